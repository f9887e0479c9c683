//! Programs of this machine publish, subscribe, and ask who does.

use std::{collections::VecDeque, pin::pin, sync::Arc};

use hailwire_core::{
    kept_topics::STATE,
    topics::{MAX_OF_PROGRAM, MAX_SUBSCRIPTIONS, PatternUse, PublishedAt, SubscribeRefusal},
};
use hailwire_wire::{
    AgentName, Code, Status,
    limits::MAX_TOPIC_PATTERNS,
    topics::{RecordReader, TopicPattern, TopicRecord},
};

use tokio::sync::oneshot;

use super::{
    QueueReading, closing, invalid,
    kept::{self, KeptReceipt, append},
    named, now_ms, replay, shutting_down,
};
use crate::{
    admin::{PublishReceipt, SubscribeRequest, TopicList, TopicPeer, TopicRow},
    agent::{Request, Response},
    body::Body,
    node::{NodeInner, manage::json},
    session::{Session, now},
};

/// Messages of one program that wait to be on the disk; it is not read meanwhile.
const WAITING: usize = 256;

/// Bytes of messages that are ready and taken one after the other, so that a subscriber is woken for all of them once: far less than its queue holds.
const TAKEN_AT_ONCE: usize = 32 * 1024;

/// What a program publishes, one message after the other.
struct Publishing<'a> {
    node: &'a Arc<NodeInner>,
    receipt: PublishReceipt,
    /// What is being kept, in order.
    waiting: VecDeque<oneshot::Receiver<Result<KeptReceipt, Status>>>,
}

/// Publishes what a program sends: one record after the other, each as soon as it is there. What is kept is answered once it is on the disk.
pub(in crate::node) async fn publish(
    node: &Arc<NodeInner>,
    mut request: Request,
) -> Result<Response, Status> {
    let mut reader = RecordReader::default();
    let mut publishing = Publishing {
        node,
        receipt: PublishReceipt::default(),
        waiting: VecDeque::new(),
    };
    let mut closing = pin!(closing(node));
    let mut taken = 0;
    loop {
        let ready = match taken < TAKEN_AT_ONCE {
            true => now(pin!(request.body.chunk())),
            false => None,
        };
        let chunk = match ready {
            Some(chunk) => chunk?,
            None => {
                // Subscribers have their turn however fast messages come.
                tokio::task::yield_now().await;
                taken = 0;
                tokio::select! {
                    chunk = request.body.chunk() => chunk?,
                    () = &mut closing => return Err(shutting_down()),
                }
            }
        };
        let Some(chunk) = chunk else { break };
        taken += chunk.len();
        reader.handle_chunk(&chunk);
        while let Some(record) = reader.poll_record().map_err(invalid)? {
            publishing.publish(record).await?;
        }
    }
    publishing.settle(0).await?;
    match reader.is_amid_record() {
        true => Err(invalid("the last record is not whole")),
        false => json(&publishing.receipt),
    }
}

impl Publishing<'_> {
    async fn publish(&mut self, said: TopicRecord) -> Result<(), Status> {
        let topic = said.check().map_err(invalid)?;
        if said.node.is_some() {
            return Err(invalid("`node` is what the node says itself"));
        }
        if !said.from.is_empty() {
            said.from.parse::<AgentName>().map_err(invalid)?;
        }
        let at_ms = now_ms();
        let record = TopicRecord {
            topic: said.topic,
            from: said.from,
            content_type: said.content_type,
            headers: said.headers,
            body: said.body,
            at_ms,
            ..TopicRecord::default()
        };
        if let Some(rule) = self.node.topics.kept.rule_of(&topic) {
            self.settle(WAITING - 1).await?;
            let record = Box::new(TopicRecord {
                deleted: said.deleted,
                if_kept: said.if_kept,
                ..record
            });
            let told = append(self.node, rule, topic, record).await?;
            self.waiting.push_back(told);
            return Ok(());
        }
        if said.deleted || said.if_kept.is_some() {
            return Err(invalid(format!(
                "`{topic}` is not kept, so it has no value"
            )));
        }
        // What was published before goes before.
        self.settle(0).await?;
        // Under one lock, so that what is numbered first is queued first.
        let mut state = self.node.topics.state();
        let published = state.publish(self.node, &topic, PublishedAt::Here, |sequence| {
            TopicRecord { sequence, ..record }
        });
        drop(state);
        self.count(published.programs, published.peers);
        Ok(())
    }

    fn count(&mut self, programs: u64, peers: u64) {
        self.receipt.published += 1;
        self.receipt.programs += programs;
        self.receipt.peers += peers;
    }

    /// Waits until at most so many messages wait to be on the disk.
    async fn settle(&mut self, most: usize) -> Result<(), Status> {
        while self.waiting.len() > most {
            let Some(told) = self.waiting.pop_front() else {
                break;
            };
            let kept = told.await.unwrap_or_else(|_| Err(shutting_down()))?;
            self.count(kept.programs, kept.peers);
            self.receipt.kept += 1;
            self.receipt.last = kept.number;
        }
        Ok(())
    }
}

/// Subscribes a program; the answer is a stream of records, the first of them empty.
pub(in crate::node) async fn subscribe(
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
    if request.is_replay() {
        return replay::subscribe(node, session, request, patterns).await;
    }
    live(node, session, &patterns)
}

/// Subscribes a program to what is published from now on, at most once.
fn live(
    node: &Arc<NodeInner>,
    session: Option<Session>,
    patterns: &[TopicPattern],
) -> Result<Response, Status> {
    let topics = &node.topics;
    let mut state = topics.state();
    let number = state
        .table
        .subscribe(session.as_ref().map(Session::key), patterns)
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
pub(in crate::node) async fn list(node: &NodeInner) -> Result<TopicList, Status> {
    let (kept, named) = (kept::rows(node).await?, named::rows(node).await?);
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
    Ok(TopicList {
        topics: uses.into_iter().map(row).collect(),
        peers,
        // State that nobody has put is nothing to see.
        kept: kept
            .into_iter()
            .filter(|row| row.messages > 0 || !row.pattern.starts_with(STATE))
            .collect(),
        named,
    })
}
