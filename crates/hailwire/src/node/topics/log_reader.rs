//! Somebody reads the log: a program of this machine, or a peer. It has a position and nothing else, so what it reads slowly costs no memory, and what is
//! published while it catches up is read like what was there before.

use std::sync::Arc;

use hailwire_core::kept_topics::LogPosition;
use hailwire_wire::{
    Code, NodeId, Status,
    limits::MAX_REPLAY_LAST,
    topics::{TopicPattern, TopicReplay},
};

use super::{
    invalid, locked,
    log_rows::{LogBatch, LogStart},
    now_ms,
};
use crate::node::NodeInner;

/// Most replays of the programs of this machine, and of one peer.
pub(super) const MAX_REPLAYS: usize = 64;

/// Most replays of all.
pub(super) const MAX_ALL_REPLAYS: usize = 512;

/// A reader's place among all. Dropping it makes room.
#[derive(Debug)]
pub(super) struct ReplaySlot {
    node: Arc<NodeInner>,
    reader: Option<NodeId>,
}

impl ReplaySlot {
    /// A slot for one more replay of a peer, or of a program.
    pub(super) fn take(node: &Arc<NodeInner>, reader: Option<NodeId>) -> Result<Self, Status> {
        let mut replays = locked(&node.topics.kept.replays);
        let all: usize = replays.values().sum();
        let of_reader = replays.get(&reader).copied().unwrap_or_default();
        if of_reader >= MAX_REPLAYS || all >= MAX_ALL_REPLAYS {
            let what = match reader {
                None => format!(
                    "programs of this node read {MAX_REPLAYS} times what is kept, which is the most"
                ),
                Some(_) => "this node reads what is kept there as often as it may".to_owned(),
            };
            return Err(Status::new(Code::ResourceExhausted, what)
                .with_hint("several patterns may share one subscription"));
        }
        *replays.entry(reader).or_default() += 1;
        Ok(Self {
            node: node.clone(),
            reader,
        })
    }
}

impl Drop for ReplaySlot {
    fn drop(&mut self) {
        let mut replays = locked(&self.node.topics.kept.replays);
        if let Some(count) = replays.get_mut(&self.reader) {
            *count -= 1;
            if *count == 0 {
                replays.remove(&self.reader);
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct LogReader {
    node: Arc<NodeInner>,
    patterns: Arc<[TopicPattern]>,
    position: u64,
    /// The last number when it began, until it has come so far.
    until: Option<u64>,
}

/// What a reader reads next.
#[derive(Debug)]
pub(super) struct ReadStep {
    pub(super) batch: LogBatch,
    /// What was there when it began has been read with this.
    pub(super) reached: bool,
}

impl LogReader {
    pub(super) async fn begin(
        node: &Arc<NodeInner>,
        patterns: Vec<TopicPattern>,
        replay: &TopicReplay,
    ) -> Result<Self, Status> {
        let kept = &node.topics.kept;
        let patterns: Arc<[TopicPattern]> = patterns.into();
        let (position, until) = kept
            .start(patterns.clone(), start(replay, kept.id)?)
            .await?;
        Ok(Self {
            node: node.clone(),
            patterns,
            position,
            until: Some(until),
        })
    }

    /// Where it is.
    pub(super) fn position(&self) -> LogPosition {
        LogPosition {
            log: self.node.topics.kept.id,
            number: self.position,
        }
    }

    /// Waits for what comes next: messages, news of lost ones, or that all is read that was there when it began.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Result<ReadStep, Status> {
        let kept = &self.node.topics.kept;
        let mut head = kept.head();
        loop {
            head.borrow_and_update();
            let batch = kept.after(self.patterns.clone(), self.position).await?;
            self.position = batch.position;
            let reached = self
                .until
                .take_if(|until| batch.position >= *until)
                .is_some();
            if reached || batch.missed > 0 || !batch.records.is_empty() {
                return Ok(ReadStep { batch, reached });
            }
            if batch.at_end && head.changed().await.is_err() {
                return Err(super::shutting_down());
            }
        }
    }
}

/// Where a replay starts in the log with this id.
fn start(replay: &TopicReplay, id: u64) -> Result<LogStart, Status> {
    if replay.last.is_some_and(|last| last > MAX_REPLAY_LAST) {
        return Err(invalid(format!(
            "a replay takes at most the last {MAX_REPLAY_LAST} messages"
        )));
    }
    Ok(match replay {
        TopicReplay {
            log: 0,
            from: Some(from),
            ..
        } => LogStart::From(*from),
        TopicReplay {
            log: 0,
            last: Some(last),
            ..
        } => LogStart::Last(*last),
        TopicReplay {
            log: 0,
            since_ms: Some(age),
            ..
        } => LogStart::Since(now_ms().saturating_sub(*age)),
        TopicReplay { log: 0, .. } => LogStart::End,
        TopicReplay { log, after, .. } if *log == id => LogStart::From(after.saturating_add(1)),
        // Its position is of a log that is no more: all of this one is new.
        _ => LogStart::From(1),
    })
}
