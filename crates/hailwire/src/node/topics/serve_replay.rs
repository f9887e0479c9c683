//! A peer reads what is kept here, from a place in the log on, for as long as it likes and as fast as it can.

use std::{pin::pin, sync::Arc};

use bytes::BytesMut;
use hailwire_wire::{
    Code, NodeId, Status,
    limits::{MAX_REPLAY_PATTERNS, MAX_TOPIC},
    topics::{RecordReader, TopicInterest, TopicRecord, TopicReplay, put_record},
};

use super::{
    closing, invalid,
    log_reader::{LogReader, ReadStep, ReplaySlot},
    serve_peer::granted,
    shutting_down, stays_here,
};
use crate::{
    agent::{Request, Response},
    body::{Body, BodySender},
    node::NodeInner,
};

/// Largest request for a replay.
const MAX_REQUEST: usize = MAX_REPLAY_PATTERNS * (MAX_TOPIC + 8) + 1024;

/// The answer to a peer's call of `topics.replay`: messages, for as long as it keeps the call open.
pub(in crate::node) async fn serve(
    node: &Arc<NodeInner>,
    peer: NodeId,
    mut request: Request,
) -> Result<Response, Status> {
    if node.is_closing() {
        return Err(shutting_down());
    }
    let mut said = RecordReader::default();
    said.handle_chunk(&request.body.bytes(MAX_REQUEST).await?);
    let replay: Option<TopicReplay> = said.poll_record().map_err(invalid)?;
    let replay = replay.filter(|_| !said.is_amid_record());
    let replay = replay.ok_or_else(|| invalid("what is to be replayed is one record"))?;
    if replay.patterns.is_empty() || replay.patterns.len() > MAX_REPLAY_PATTERNS {
        return Err(invalid(format!(
            "a replay has 1 to {MAX_REPLAY_PATTERNS} patterns of topics"
        )));
    }
    let interest = TopicInterest {
        patterns: replay.patterns.clone(),
    };
    let (patterns, refused) = granted(&node.trust.grant(peer), &interest)?;
    if patterns.is_empty() {
        let refused = refused.join(", ");
        return Err(Status::new(
            Code::PermissionDenied,
            format!("this node may not subscribe to {refused} there"),
        ));
    }
    let slot = ReplaySlot::take(node, Some(peer))?;
    let reader = LogReader::begin(node, patterns, &replay).await?;
    let first = TopicRecord {
        log: reader.position().log,
        kept: reader.position().number,
        refused,
        ..TopicRecord::default()
    };
    let (sender, body) = Body::channel(1);
    // It ends with the answer's reader, or the node.
    tokio::spawn(write(node.clone(), peer, reader, (sender, first), slot));
    Ok(Response::new(body))
}

async fn write(
    node: Arc<NodeInner>,
    peer: NodeId,
    mut reader: LogReader,
    (sender, first): (BodySender, TopicRecord),
    _slot: ReplaySlot,
) {
    let ended = {
        let mut closing = pin!(closing(&node));
        let mut out = BytesMut::new();
        put_record(&mut out, &first);
        loop {
            let step = async {
                if !out.is_empty() && sender.send(out.split().freeze()).await.is_err() {
                    return None;
                }
                tokio::select! {
                    step = reader.next() => Some(step),
                    () = sender.closed() => None,
                }
            };
            let step = tokio::select! {
                step = step => step,
                () = &mut closing => Some(Err(shutting_down())),
            };
            match step {
                None => return,
                Some(Ok(step)) => put_step(&node, peer, &step, &mut out),
                Some(Err(status)) => break status,
            }
        }
    };
    // One who does not read is not waited for.
    let _ = tokio::time::timeout(super::CHANGE_PAUSE, sender.abort(ended)).await;
}

/// Appends what a peer reads next, as far as it may have it.
fn put_step(node: &NodeInner, peer: NodeId, step: &ReadStep, out: &mut BytesMut) {
    if step.batch.missed > 0 {
        let news = TopicRecord {
            missed: step.batch.missed,
            ..TopicRecord::default()
        };
        put_record(out, &news);
    }
    for kept in &step.batch.records {
        let first = kept.topic.first();
        let may = node.trust.check(peer, &first).is_ok() && !stays_here(Some(first));
        if may {
            out.extend_from_slice(&kept.record);
        }
    }
    if step.reached {
        let news = TopicRecord {
            reached: true,
            ..TopicRecord::default()
        };
        put_record(out, &news);
    }
}
