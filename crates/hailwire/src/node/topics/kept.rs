//! The log of kept messages of a node: one file, one thread that writes it, one connection that reads it. What is published under a topic
//! that is kept goes to those who are subscribed at that moment once it is on the disk, in the order of the log.

use std::{
    path::Path,
    sync::{Arc, Mutex, RwLock},
    time::Duration,
};

use foldhash::HashMap;
use hailwire_core::kept_topics::{
    KeepRefusal, KeptRule, KeptRules, MAX_KEPT_BYTES, MAX_KEPT_PATTERNS,
};
use hailwire_core::topics::PublishedAt;
use hailwire_wire::{
    Code, NodeId, Status,
    limits::MAX_TOPIC_RECORD,
    topics::{Topic, TopicPattern, TopicRecord},
};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use super::{
    invalid, locked,
    log_rows::{self, KeepOutcome, LogBatch, LogStart},
    named::NamedReading,
    now_ms,
};
use crate::{
    admin::{KeepRequest, KeptTopicRow},
    key::random,
    node::{
        NodeInner,
        messages::{MessageStore, MessageStoreError},
    },
};

/// Bytes of messages that wait to be written, of all programs together; further ones wait to be taken.
const WAITING_BYTES: usize = 64 * 1024 * 1024;

/// What one unit of [`WAITING_BYTES`] stands for.
const UNIT: usize = 1024;

/// Between two looks for what is too old, where something may be: the system's clock may be set meanwhile.
const LONGEST_LOOK: Duration = Duration::from_secs(3600);

/// How long the database may be another's.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct KeptLog {
    pub(super) store: MessageStore,
    reader: Arc<Mutex<Connection>>,
    /// Who reads next, in the order in which they came.
    turn: tokio::sync::Mutex<()>,
    /// Its number, by which readers know it from one that was lost.
    pub(super) id: u64,
    rules: RwLock<KeptRules>,
    /// The number of the last message.
    head: watch::Sender<u64>,
    room: Arc<Semaphore>,
    look: Notify,
    pub(super) names: Mutex<HashMap<String, NamedReading>>,
    /// Replays under way, by the peer that reads; none for programs of this machine.
    pub(super) replays: Mutex<HashMap<Option<NodeId>, usize>>,
}

/// What became of a message that was to be kept.
#[derive(Debug)]
pub(super) struct KeptReceipt {
    pub(super) programs: u64,
    pub(super) peers: u64,
    pub(super) number: u64,
}

impl KeptLog {
    pub(super) fn open(path: &Path) -> Result<Self, MessageStoreError> {
        let mut id = [0; 8];
        random(&mut id);
        // Never 0, which stands for none, and not above what the database takes.
        let id = (u64::from_be_bytes(id) >> 1) | 1;
        let begin = move |db: &Connection| log_rows::begin(db, id);
        let (store, (head, rules)) = MessageStore::open(path, "topics", log_rows::SCHEMA, begin)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reader = Connection::open_with_flags(path, flags)?;
        reader.busy_timeout(BUSY_PATIENCE)?;
        reader.set_prepared_statement_cache_capacity(32);
        Ok(Self {
            store,
            reader: Arc::new(Mutex::new(reader)),
            turn: tokio::sync::Mutex::default(),
            id: head.log,
            rules: RwLock::new(KeptRules::new(rules)),
            head: watch::Sender::new(head.number),
            room: Arc::new(Semaphore::new(WAITING_BYTES / UNIT)),
            look: Notify::new(),
            names: Mutex::default(),
            replays: Mutex::default(),
        })
    }

    /// Which rule keeps a topic, if any does.
    pub(super) fn rule_of(&self, topic: &Topic) -> Option<KeptRule> {
        let rules = self
            .rules
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        rules.of(topic).cloned()
    }

    /// Told when messages were kept.
    pub(super) fn head(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// Does something with the connection that reads.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let _turn = self.turn.lock().await;
        let reader = self.reader.clone();
        let read = tokio::task::spawn_blocking(move || work(&locked(&reader)));
        let read = read.await.map_err(|error| failed(&error))?;
        read.map_err(|error| failed(&MessageStoreError::from(error)))
    }

    /// What follows a number.
    pub(super) async fn after(
        &self,
        patterns: Arc<[TopicPattern]>,
        number: u64,
    ) -> Result<LogBatch, Status> {
        self.read(move |db| log_rows::read(db, &patterns, number))
            .await
    }

    /// The position of a reader that starts, and the last number then.
    pub(super) async fn start(
        &self,
        patterns: Arc<[TopicPattern]>,
        start: LogStart,
    ) -> Result<(u64, u64), Status> {
        self.read(move |db| {
            let position = log_rows::start(db, &patterns, start)?;
            Ok((position, log_rows::head(db)?.number))
        })
        .await
    }

    /// Does something with the connection that writes.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        self.store.run(work).await.map_err(|error| refused(&error))
    }
}

/// Hands a message over to be kept, and then to those who are subscribed. It is in its place among others once this has resolved; what comes of it is
/// said on the channel, once it is on the disk.
pub(super) async fn append(
    node: &Arc<NodeInner>,
    rule: KeptRule,
    topic: Topic,
    record: Box<TopicRecord>,
) -> Result<oneshot::Receiver<Result<KeptReceipt, Status>>, Status> {
    let kept = &node.topics.kept;
    let keyed = rule.bounds.last_per_topic;
    if !keyed && (record.deleted || record.if_kept.is_some()) {
        return Err(invalid(format!(
            "`{topic}` keeps all of its messages, so it has no value to replace or delete"
        )));
    }
    let headers = record.headers.iter();
    let size = headers.fold(record.body.len(), |size, (name, value)| {
        size + name.len() + value.len()
    });
    let units = u32::try_from(size.min(MAX_TOPIC_RECORD) / UNIT + 1).unwrap_or(u32::MAX);
    let waiting = kept.room.clone().acquire_many_owned(units).await;
    let waiting = waiting.map_err(|_| super::shutting_down())?;
    let (tell, told) = oneshot::channel();
    let shell = node.clone();
    let said = topic.clone();
    let submitted = kept.store.submit(
        move |db| log_rows::keep(db, &rule, record, now_ms()),
        move |outcome| {
            drop(waiting);
            let receipt = match outcome {
                Ok(KeepOutcome::Kept(record)) => Ok(publish_kept(&shell, &said, *record)),
                Ok(KeepOutcome::Conflict(number)) => Err(conflict(&said, number)),
                Ok(KeepOutcome::NoRoom) => Err(no_room(&said)),
                Ok(KeepOutcome::NoRule) => Err(Status::new(
                    Code::Aborted,
                    format!("`{said}` is kept no more; publish it again"),
                )),
                Err(error) => Err(refused(&error)),
            };
            // Whoever published it may have gone.
            let _ = tell.send(receipt);
        },
    );
    submitted.await.map_err(|error| refused(&error))?;
    Ok(told)
}

/// Tells readers and subscribers of a message that is kept.
fn publish_kept(node: &Arc<NodeInner>, topic: &Topic, record: TopicRecord) -> KeptReceipt {
    let number = record.kept;
    let mut state = node.topics.state();
    let published = state.publish(node, topic, PublishedAt::Here, |sequence| TopicRecord {
        sequence,
        ..record
    });
    drop(state);
    node.topics.kept.head.send_replace(number);
    KeptReceipt {
        programs: published.programs,
        peers: published.peers,
        number,
    }
}

fn conflict(topic: &Topic, number: u64) -> Status {
    let what = match number {
        0 => format!("nothing is kept under `{topic}`, so its revision is 0"),
        number => format!("the revision of `{topic}` is {number}"),
    };
    Status::new(Code::Aborted, what)
        .with_hint("read it again, decide again, and put it with that revision")
}

fn no_room(topic: &Topic) -> Status {
    let what =
        format!("there is no room for `{topic}`: what is kept with it has reached its bound");
    Status::new(Code::ResourceExhausted, what)
        .with_hint("`hail topics` shows bounds and use; `hail state rm` and `hail topics keep PATTERN --max-bytes` make room")
}

fn failed(error: &impl std::fmt::Display) -> Status {
    Status::new(Code::Internal, format!("what is kept of topics: {error}"))
}

/// What whoever wants something written is told when it cannot be.
fn refused(error: &MessageStoreError) -> Status {
    match error.full {
        true => Status::new(
            Code::ResourceExhausted,
            "the disk is full, so nothing can be kept; what was accepted before is safe",
        )
        .with_hint(
            "make room on the disk, or allow less with `hail topics keep PATTERN --max-bytes`",
        ),
        false => failed(error),
    }
}

/// A program says what is to be kept.
pub(in crate::node) async fn keep(
    node: &NodeInner,
    request: &KeepRequest,
) -> Result<KeptTopicRow, Status> {
    let pattern: TopicPattern = request.pattern.parse().map_err(invalid)?;
    let bounds = request.bounds();
    let kept = &node.topics.kept;
    let written = pattern.clone();
    let outcome = kept
        .write(move |db| {
            let rules = KeptRules::new(log_rows::rules(db)?);
            if let Err(refusal) = rules.check(&written, &bounds) {
                return Ok(Err(keep_refusal(&written, refusal)));
            }
            let before = rules.all().iter().find(|rule| rule.pattern == written);
            if before.is_some_and(|rule| rule.bounds.last_per_topic != bounds.last_per_topic) {
                return Ok(Err(Status::new(
                    Code::FailedPrecondition,
                    format!("`{written}` is kept already, and in the other way"),
                )
                .with_hint("`hail topics unkeep` first, which removes what is kept")));
            }
            log_rows::put_rule(db, &written, &bounds)?;
            Ok(Ok(log_rows::rules(db)?))
        })
        .await?;
    kept.set_rules(outcome?);
    let rows = rows(node).await?;
    let row = rows.into_iter().find(|row| row.pattern == pattern.as_str());
    row.ok_or_else(|| failed(&"the pattern is gone again"))
}

impl KeptLog {
    fn set_rules(&self, rules: Vec<KeptRule>) {
        let mut all = self
            .rules
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *all = KeptRules::new(rules);
        drop(all);
        // What exceeds them goes.
        self.look.notify_one();
    }
}

fn keep_refusal(pattern: &TopicPattern, refusal: KeepRefusal) -> Status {
    match refusal {
        KeepRefusal::TooMany => Status::new(
            Code::ResourceExhausted,
            format!("{MAX_KEPT_PATTERNS} patterns are kept, which is the most"),
        )
        .with_hint("a pattern with wildcards takes the place of many: `build.>`"),
        KeepRefusal::Overlaps(other) => Status::new(
            Code::AlreadyExists,
            format!("`{pattern}` has topics in common with `{other}`, which is kept; a message belongs to one pattern"),
        )
        .with_hint(format!("`hail topics unkeep '{other}'` first, which removes what is kept under it")),
        KeepRefusal::NoRoom => Status::new(
            Code::ResourceExhausted,
            format!("all patterns together may take {MAX_KEPT_BYTES} bytes"),
        )
        .with_hint("`hail topics` shows what each may take"),
        KeepRefusal::State => invalid("topics under `state` are kept always, the last message of each"),
        KeepRefusal::Nothing => invalid("a bound of 0 keeps nothing"),
    }
}

/// A program says that something is kept no more; how many messages went with it.
pub(in crate::node) async fn unkeep(
    node: &NodeInner,
    pattern: &str,
) -> Result<KeptTopicRow, Status> {
    let pattern: TopicPattern = pattern.parse().map_err(invalid)?;
    let before = rows(node).await?;
    let Some(row) = before
        .into_iter()
        .find(|row| row.pattern == pattern.as_str())
    else {
        return Err(
            Status::new(Code::NotFound, format!("`{pattern}` is not kept"))
                .with_hint("`hail topics` lists what is"),
        );
    };
    let kept = &node.topics.kept;
    let written = pattern.clone();
    let removed = kept
        .write(move |db| {
            let rules = KeptRules::new(log_rows::rules(db)?);
            // State is kept always.
            let of = rules
                .all()
                .iter()
                .skip(1)
                .find(|rule| rule.pattern == written);
            let id = of.map(|rule| rule.id);
            if let Some(id) = id {
                log_rows::remove_rule(db, id)?;
            }
            Ok((id, log_rows::rules(db)?))
        })
        .await?;
    let (id, rules) = removed;
    let id = id.ok_or_else(|| invalid("topics under `state` are kept always"))?;
    kept.set_rules(rules);
    while kept.write(move |db| log_rows::remove_left(db, id)).await? {}
    Ok(row)
}

/// What is kept, by pattern.
pub(super) async fn rows(node: &NodeInner) -> Result<Vec<KeptTopicRow>, Status> {
    let rows = node.topics.kept.read(log_rows::rule_rows).await?;
    let row = |row: log_rows::RuleRow| KeptTopicRow {
        pattern: row.rule.pattern.to_string(),
        max_bytes: row.rule.bounds.max_bytes,
        max_messages: row.rule.bounds.max_messages,
        max_age_ms: row.rule.bounds.max_age_ms,
        last_per_topic: row.rule.bounds.last_per_topic,
        bytes: row.usage.bytes,
        messages: row.usage.messages,
        removed: row.removed,
        first: row.first.map_or(0, |(number, _)| number),
        first_at_ms: row.first.map_or(0, |(_, at_ms)| at_ms),
        last: row.last.unwrap_or_default(),
    };
    Ok(rows.into_iter().map(row).collect())
}

/// Removes what is too old, until the node ends.
pub(in crate::node) async fn keep_clean(node: Arc<NodeInner>) {
    let kept = &node.topics.kept;
    loop {
        let next = match kept
            .store
            .run(|db| log_rows::remove_old(db, now_ms()))
            .await
        {
            Ok(next) => next.map(|at| Duration::from_millis(at.saturating_sub(now_ms()))),
            Err(error) => {
                tracing::warn!(%error, "what is kept too long is not removed now");
                None
            }
        };
        let pause = next.unwrap_or(LONGEST_LOOK).min(LONGEST_LOOK);
        if pause.is_zero() {
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            () = kept.look.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
