//! Programs of this machine publish, subscribe, and ask who does.

use std::{pin::pin, sync::Arc};

use hailwire_core::topics::{
    MAX_OF_PROGRAM, MAX_SUBSCRIPTIONS, PatternUse, PublishedAt, SubscribeRefusal,
};
use hailwire_wire::{
    AgentName, Code, Status,
    limits::MAX_TOPIC_PATTERNS,
    topics::{RecordReader, TopicPattern, TopicRecord},
};

use super::{QueueReading, closing, invalid, now_ms, shutting_down};
use crate::{
    admin::{PublishReceipt, SubscribeRequest, TopicList, TopicPeer, TopicRow},
    agent::{Request, Response},
    body::Body,
    node::{NodeInner, manage::json},
    session::Session,
};

/// Publishes what a program sends: one record after the other, each as soon as it is there.
pub(in crate::node) async fn publish(
    node: &Arc<NodeInner>,
    mut request: Request,
) -> Result<Response, Status> {
    let mut reader = RecordReader::default();
    let mut receipt = PublishReceipt::default();
    let mut closing = pin!(closing(node));
    loop {
        let chunk = tokio::select! {
            chunk = request.body.chunk() => chunk?,
            () = &mut closing => return Err(shutting_down()),
        };
        let Some(chunk) = chunk else { break };
        reader.handle_chunk(&chunk);
        while let Some(record) = reader.poll_record().map_err(invalid)? {
            publish_one(node, record, &mut receipt)?;
        }
        // Subscribers have their turn however fast messages come.
        tokio::task::yield_now().await;
    }
    match reader.is_amid_record() {
        true => Err(invalid("the last record is not whole")),
        false => json(&receipt),
    }
}

fn publish_one(
    node: &NodeInner,
    said: TopicRecord,
    receipt: &mut PublishReceipt,
) -> Result<(), Status> {
    let topic = said.check().map_err(invalid)?;
    if said.node.is_some() {
        return Err(invalid("`node` is what the node says itself"));
    }
    if !said.from.is_empty() {
        said.from.parse::<AgentName>().map_err(invalid)?;
    }
    let at_ms = now_ms();
    // Under one lock, so that what is numbered first is queued first.
    let mut state = node.topics.state();
    let published = state.publish(node, &topic, PublishedAt::Here, |sequence| TopicRecord {
        topic: said.topic,
        from: said.from,
        content_type: said.content_type,
        headers: said.headers,
        body: said.body,
        sequence,
        at_ms,
        ..TopicRecord::default()
    });
    receipt.published += 1;
    receipt.programs += published.programs;
    receipt.peers += published.peers;
    Ok(())
}

/// Subscribes a program; the answer is a stream of records, the first of them empty.
pub(in crate::node) fn subscribe(
    node: &Arc<NodeInner>,
    session: Option<Session>,
    request: &SubscribeRequest,
) -> Result<Response, Status> {
    if node.is_closing() {
        return Err(shutting_down());
    }
    let patterns = request.patterns.iter().map(|text| text.parse());
    let patterns: Vec<TopicPattern> = patterns.collect::<Result<_, _>>().map_err(invalid)?;
    if patterns.is_empty() {
        return Err(invalid("no pattern of topics is given"));
    }
    let topics = &node.topics;
    let mut state = topics.state();
    let number = state
        .table
        .subscribe(session.as_ref().map(Session::key), &patterns)
        .map_err(refusal)?;
    let (stream, wake) = state.begin_reading(number);
    topics.note_wanted(&state);
    drop(state);
    let reading = QueueReading {
        node: node.clone(),
        number,
        stream,
        wake,
        _program: session,
    };
    let (sender, body) = Body::channel(1);
    // It ends with the answer's reader, or with the node.
    tokio::spawn(reading.write(sender, TopicRecord::default()));
    Ok(Response::new(body))
}

fn refusal(refusal: SubscribeRefusal) -> Status {
    let what = match refusal {
        SubscribeRefusal::Program => {
            format!("this program has {MAX_OF_PROGRAM} subscriptions, which is the most")
        }
        SubscribeRefusal::All => {
            format!("this node has {MAX_SUBSCRIPTIONS} subscriptions, which is the most")
        }
        SubscribeRefusal::Patterns => format!(
            "programs of this node want {MAX_TOPIC_PATTERNS} different patterns, which is the most"
        ),
    };
    Status::new(Code::ResourceExhausted, what)
        .with_hint("a pattern with wildcards takes the place of many: `build.>`")
}

/// Who is subscribed to what, here and among peers.
pub(in crate::node) fn list(node: &NodeInner) -> TopicList {
    let uses = node.topics.state().table.uses();
    let name = |id| node.trust.alias(id).map(String::from).unwrap_or_default();
    let row = |one: PatternUse| TopicRow {
        pattern: one.pattern.to_string(),
        node: one.peer,
        node_name: one.peer.map(name).unwrap_or_default(),
        subscribers: one.subscribers,
        published: one.counts.published,
        delivered: one.counts.delivered,
        missed: one.counts.missed,
    };
    let asked = node.topics.asked().clone().into_iter();
    let mut peers: Vec<TopicPeer> = asked
        .map(|(id, asked)| TopicPeer {
            node: id,
            node_name: name(id),
            subscribed: asked.subscribed,
            refused: asked.refused,
            dropped: asked.dropped,
            error: asked.error,
        })
        .collect();
    peers.sort_by(|a, b| (&a.node_name, a.node).cmp(&(&b.node_name, b.node)));
    TopicList {
        topics: uses.into_iter().map(row).collect(),
        peers,
    }
}
