//! A peer subscribes to what is published here.

use std::sync::Arc;

use hailwire_core::{grants::Grant, topics::SubscriberNumber};
use hailwire_wire::{
    NodeId, Status,
    limits::MAX_TOPIC_PATTERNS,
    topics::{RecordReader, TopicInterest, TopicPattern, TopicRecord},
};

use super::{CHANGE_PAUSE, QueueReading, invalid, shutting_down, stays_here};
use crate::{
    agent::{Request, Response},
    body::{Body, BodySender},
    node::NodeInner,
};

/// The answer to a peer's call of `topics`: messages, for as long as it keeps the call open.
pub(in crate::node) async fn serve(
    node: &Arc<NodeInner>,
    peer: NodeId,
    request: Request,
) -> Result<Response, Status> {
    if node.is_closing() {
        return Err(shutting_down());
    }
    let mut wants = PeerWants {
        body: request.body,
        reader: RecordReader::default(),
    };
    let Some(interest) = wants.next().await? else {
        return Err(invalid("no pattern of topics is said"));
    };
    let (patterns, refused) = granted(&node.trust.grant(peer), &interest)?;
    let mut state = node.topics.state();
    let number = state.table.handle_interest(peer, &patterns);
    let (stream, wake) = state.begin_reading(number);
    drop(state);
    let reading = QueueReading {
        node: node.clone(),
        number,
        stream,
        wake,
        _program: None,
    };
    let (sender, body) = Body::channel(1);
    // It ends with the answer's reader, the call's body, or the node.
    tokio::spawn(serve_stream(peer, reading, (sender, said(refused)), wants));
    Ok(Response::new(body))
}

async fn serve_stream(
    peer: NodeId,
    reading: QueueReading,
    (sender, first): (BodySender, TopicRecord),
    mut wants: PeerWants,
) {
    let (node, number, stream) = (reading.node.clone(), reading.number, reading.stream);
    let hearing = async {
        loop {
            // However fast a peer changes its mind.
            tokio::time::sleep(CHANGE_PAUSE).await;
            let interest = match wants.next().await {
                Ok(Some(interest)) => interest,
                Ok(None) => return,
                Err(status) => return tracing::debug!(%peer, %status, "a peer subscribes no more"),
            };
            let Ok((patterns, refused)) = granted(&node.trust.grant(peer), &interest) else {
                return tracing::debug!(%peer, "a peer wants what is no pattern");
            };
            if !change(&node, peer, (number, stream), &patterns, refused) {
                // Another call of the peer has taken this one's place; what this one has taken out is still written.
                return std::future::pending().await;
            }
        }
    };
    tokio::select! {
        () = reading.write(sender, first) => {}
        () = hearing => {}
    }
}

/// A peer wants something else; whether this stream is the one that says what it wants.
fn change(
    node: &NodeInner,
    peer: NodeId,
    (number, stream): (SubscriberNumber, u64),
    patterns: &[TopicPattern],
    refused: Vec<String>,
) -> bool {
    let mut state = node.topics.state();
    let reads = state.is_read_by(number, stream);
    if reads {
        state.table.handle_interest(peer, patterns);
        state.tell(number, said(refused));
    }
    reads
}

fn said(refused: Vec<String>) -> TopicRecord {
    TopicRecord {
        refused,
        ..TopicRecord::default()
    }
}

/// Which patterns a peer may subscribe to and which not: as it may call the agent that is named as the first token is, and all agents for
/// a wildcard.
pub(super) fn granted(
    grant: &Grant,
    interest: &TopicInterest,
) -> Result<(Vec<TopicPattern>, Vec<String>), Status> {
    if interest.patterns.len() > MAX_TOPIC_PATTERNS {
        return Err(invalid(format!(
            "a node wants at most {MAX_TOPIC_PATTERNS} patterns of topics"
        )));
    }
    let (mut may, mut refused) = (Vec::new(), Vec::new());
    for text in &interest.patterns {
        let pattern: TopicPattern = text.parse().map_err(invalid)?;
        let first = pattern.first();
        let allowed = match &first {
            Some(_) if stays_here(first.clone()) => false,
            Some(first) => grant.allows(first),
            None => *grant == Grant::All,
        };
        match allowed {
            true => may.push(pattern),
            false => refused.push(text.clone()),
        }
    }
    Ok((may, refused))
}

/// What a peer says that it wants.
struct PeerWants {
    body: Body,
    reader: RecordReader,
}

impl PeerWants {
    async fn next(&mut self) -> Result<Option<TopicInterest>, Status> {
        loop {
            if let Some(interest) = self.reader.poll_record().map_err(invalid)? {
                return Ok(Some(interest));
            }
            match self.body.chunk().await? {
                Some(chunk) => self.reader.handle_chunk(&chunk),
                None => return Ok(None),
            }
        }
    }
}
