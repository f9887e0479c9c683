//! Publish and subscribe. Who gets what is decided in [`hailwire_core::topics`]; here programs publish and subscribe, and nodes
//! tell each other what they want (`spec/topics.md`).
//!
//! What is published under topics that are kept ([`hailwire_core::kept_topics`]) is in a log on disk, in `kept` and `log_rows`. Whoever is to get all of it reads
//! that log: `log_reader` has a place in it, `serve_replay` reads for a peer, `replay` reads for a program, here and at
//! peers, and `named` knows how far those have come that have a name.
//!
//! A node that has subscribers calls its trusted peers, method `topics`, and keeps the call open: what it sends is which patterns it wants,
//! what is answered are messages. So a peer gets one copy of each, in order, and everything ends with the tunnel; once there is another, the
//! call is made anew. Who asks is whom TLS proved, and what may be asked is granted as calls are.

mod interest;
mod kept;
mod log_reader;
mod log_rows;
mod named;
mod programs;
mod replay;
mod serve_peer;
mod serve_replay;

use std::{
    path::Path,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::{Bytes, BytesMut};
use foldhash::HashMap;
use hailwire_core::topics::{Published, PublishedAt, SubscriberNumber, TakenRecords, TopicTable};
use hailwire_wire::{
    AgentName, Code, NodeId, Status,
    topics::{Topic, TopicPattern, TopicRecord, put_record},
};
use tokio::sync::{Notify, watch};

use super::{NodeInner, messages::MessageStoreError};
use crate::{admin, body::BodySender, session::Session};

pub(super) use interest::run as follow_peers;
pub(super) use kept::{keep, keep_clean, unkeep};
pub(super) use named::{confirm, forget};
pub(super) use programs::{list, publish, subscribe};
pub(super) use serve_peer::serve as subscribed_by_peer;
pub(super) use serve_replay::serve as replayed_by_peer;

/// Messages that are ready leave together up to this size.
const WRITTEN_AT_ONCE: usize = 64 * 1024;

/// Topics and subscribers of one node.
#[derive(Debug)]
pub(super) struct Topics {
    kept: kept::KeptLog,
    state: Mutex<TopicState>,
    /// What peers are told that this node wants.
    wanted: watch::Sender<Arc<Vec<String>>>,
    /// What peers said of it.
    asked: Mutex<HashMap<NodeId, AskedPeer>>,
}

#[derive(Debug, Default)]
struct TopicState {
    table: TopicTable<Bytes>,
    readers: HashMap<SubscriberNumber, SubscriberReader>,
}

/// Whoever reads the queue of a subscriber.
#[derive(Debug)]
struct SubscriberReader {
    /// Counts the streams that read it one after the other, as the tunnels of a peer do.
    stream: u64,
    wake: Arc<Notify>,
    /// What it is told ahead of messages.
    news: Option<TopicRecord>,
}

/// A peer that is asked for messages.
#[derive(Clone, Debug, Default)]
struct AskedPeer {
    subscribed: bool,
    /// Patterns that it does not let this node subscribe to.
    refused: Vec<String>,
    /// Messages that it may not publish here, or that it gave as somebody else's.
    dropped: u64,
    /// Why it cannot be asked.
    error: String,
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Topics {
    /// Opens the database of what is kept.
    ///
    /// # Errors
    ///
    /// [`MessageStoreError`].
    pub(super) fn open(path: &Path) -> Result<Self, MessageStoreError> {
        Ok(Self {
            kept: kept::KeptLog::open(path)?,
            state: Mutex::default(),
            wanted: watch::Sender::default(),
            asked: Mutex::default(),
        })
    }

    /// Writes what was begun, and nothing after that.
    pub(super) async fn close(&self) {
        self.kept.store.close().await;
    }

    fn state(&self) -> MutexGuard<'_, TopicState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<NodeId, AskedPeer>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Programs have come or gone: peers are told if that changes anything for them.
    fn note_wanted(&self, state: &TopicState) {
        let wanted = state
            .table
            .wanted()
            .filter(|pattern| !stays_here(pattern.first()));
        let wanted: Vec<String> = wanted.map(TopicPattern::to_string).collect();
        self.wanted.send_if_modified(|before| {
            let changed = **before != wanted;
            if changed {
                *before = Arc::new(wanted);
            }
            changed
        });
    }
}

impl TopicState {
    fn wake(&self, woken: &[SubscriberNumber]) {
        for number in woken {
            if let Some(reader) = self.readers.get(number) {
                reader.wake.notify_one();
            }
        }
    }

    /// Has a new stream read the queue of a subscriber; one that reads it ends.
    fn begin_reading(&mut self, number: SubscriberNumber) -> (u64, Arc<Notify>) {
        let reader = self
            .readers
            .entry(number)
            .or_insert_with(|| SubscriberReader {
                stream: 0,
                wake: Arc::default(),
                news: None,
            });
        reader.stream += 1;
        reader.wake.notify_waiters();
        reader.wake = Arc::default();
        reader.news = None;
        (reader.stream, reader.wake.clone())
    }

    fn is_read_by(&self, number: SubscriberNumber, stream: u64) -> bool {
        let reader = self.readers.get(&number);
        reader.is_some_and(|reader| reader.stream == stream)
    }

    fn tell(&mut self, number: SubscriberNumber, news: TopicRecord) {
        if let Some(reader) = self.readers.get_mut(&number) {
            reader.news = Some(news);
            reader.wake.notify_one();
        }
    }

    /// Appends what a subscriber reads next, if there is anything.
    fn take(&mut self, number: SubscriberNumber, out: &mut BytesMut) {
        let reader = self.readers.get_mut(&number);
        if let Some(news) = reader.and_then(|reader| reader.news.take()) {
            put_record(out, &news);
        }
        if let Some(taken) = self.table.take(number, WRITTEN_AT_ONCE) {
            put_taken(out, taken);
        }
    }

    fn publish(
        &mut self,
        node: &NodeInner,
        topic: &Topic,
        at: PublishedAt,
        record: impl FnOnce(u64) -> TopicRecord,
    ) -> Published {
        let first = topic.first();
        let private = stays_here(Some(first.clone()));
        let may = |peer: NodeId| !private && node.trust.check(peer, &first).is_ok();
        let published = self.table.publish(topic, at, may, |count| {
            let mut out = BytesMut::new();
            put_record(&mut out, &record(count));
            let size = out.len();
            (out.freeze(), size)
        });
        self.wake(&published.woken);
        published
    }
}

/// The reading of one subscriber's queue; what nobody reads any more is removed with it.
struct QueueReading {
    node: Arc<NodeInner>,
    number: SubscriberNumber,
    stream: u64,
    wake: Arc<Notify>,
    /// The program, so that no other has its key meanwhile.
    _program: Option<Session>,
}

impl QueueReading {
    /// Writes what is published into a body, until its reader, the node or the reading ends.
    async fn write(self, sender: BodySender, first: TopicRecord) {
        let mut closing = pin!(closing(&self.node));
        let mut out = BytesMut::new();
        // It tells the subscriber that the subscription stands.
        put_record(&mut out, &first);
        loop {
            let wake = self.wake.notified();
            if out.is_empty() && !self.take(&mut out) {
                // Another stream goes on from here.
                let _ = sender.finish().await;
                return;
            }
            let step = async {
                if out.is_empty() {
                    return tokio::select! {
                        () = wake => true,
                        () = sender.closed() => false,
                    };
                }
                sender.send(out.split().freeze()).await.is_ok()
            };
            let is_read = tokio::select! {
                is_read = step => is_read,
                () = &mut closing => break,
            };
            if !is_read {
                return;
            }
        }
        // One who does not read is not waited for.
        let aborted = sender.abort(shutting_down());
        let _ = tokio::time::timeout(CHANGE_PAUSE, aborted).await;
    }

    /// Appends what is to be read next, if there is anything; whether this stream still reads it.
    fn take(&self, out: &mut BytesMut) -> bool {
        let mut state = self.node.topics.state();
        let reads = state.is_read_by(self.number, self.stream);
        if reads {
            state.take(self.number, out);
        }
        reads
    }
}

impl Drop for QueueReading {
    fn drop(&mut self) {
        let mut state = self.node.topics.state();
        if state.is_read_by(self.number, self.stream) {
            state.readers.remove(&self.number);
            state.table.remove(self.number);
            self.node.topics.note_wanted(&state);
        }
    }
}

fn put_taken(out: &mut BytesMut, taken: TakenRecords<Bytes>) {
    let TakenRecords {
        missed,
        missed_of,
        mut records,
    } = taken;
    if missed > 0 {
        let missed_of = missed_of.into_iter();
        let news = TopicRecord {
            missed,
            missed_of: missed_of
                .map(|(pattern, lost)| (pattern.to_string(), lost))
                .collect(),
            ..TopicRecord::default()
        };
        put_record(out, &news);
    }
    match (out.is_empty(), records.len()) {
        // A large one is handed on as it is.
        (true, 1) => *out = records.remove(0).into(),
        _ => records
            .iter()
            .for_each(|record| out.extend_from_slice(record)),
    }
}

/// Whether topics of this first token are for programs of one machine alone, as agents of such names are.
fn stays_here(first: Option<AgentName>) -> bool {
    first.is_some_and(|first| first.as_str() == admin::AGENT)
}

/// Resolves when the node ends.
async fn closing(node: &NodeInner) {
    let mut closing = node.lifecycle.closing.subscribe();
    // The sender lives as long as the node.
    let _ = closing.wait_for(|closing| *closing).await;
}

fn shutting_down() -> Status {
    Status::new(Code::Unavailable, "this node is shutting down")
}

fn invalid(error: impl std::fmt::Display) -> Status {
    Status::new(Code::InvalidArgument, error.to_string())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// How long a peer may take to begin what it was asked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two changes of what a peer is told, so that subscriptions that come one after another are told together; and between two that a peer
/// is heard.
const CHANGE_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
