//! Durable messages on disk: one SQLite file of their own, in WAL mode with `synchronous=FULL`; and another one for what is kept of topics.
//!
//! One thread owns the database. Jobs that wait for it share a transaction, and each is told of its outcome once that is synced: so
//! many senders together cost one sync (group commit), and what is told is on the disk.

use std::{
    path::Path,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use rusqlite::Connection;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

/// How long the database may be another's.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// Jobs that wait for the thread; further ones wait to be taken.
const QUEUE: usize = 4096;

/// Jobs in one transaction.
const MAX_JOBS: usize = 1024;

/// Between two looks for another job of a transaction.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// The longest that a transaction waits for more jobs.
const LONGEST_PATIENCE: Duration = Duration::from_millis(2);

/// Pages of the log after which it is written back: a longer log means fewer interruptions.
const CHECKPOINT_PAGES: u32 = 4000;

/// A write or read of messages failed.
#[derive(Clone, Debug, Error)]
#[error("the messages on disk cannot be used: {reason}")]
pub struct MessageStoreError {
    reason: String,
    /// There is no room on the disk.
    pub(in crate::node) full: bool,
}

impl From<rusqlite::Error> for MessageStoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self {
            full: error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            reason: error.to_string(),
        }
    }
}

/// What a job says once its transaction has its end.
type Told = Box<dyn FnOnce(Result<(), MessageStoreError>) + Send>;
/// Works in a transaction, or learns why there is none. Says why it failed, if it did, and whom to tell.
type Job = Box<
    dyn FnOnce(Result<&Connection, MessageStoreError>) -> (Result<(), MessageStoreError>, Told)
        + Send,
>;

/// The database of messages, as tasks use it. Dropping it ends the thread once what was asked for is done.
#[derive(Debug)]
pub(in crate::node) struct MessageStore {
    /// None once it is closed.
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    /// Until the thread has ended.
    open: watch::Receiver<bool>,
}

impl MessageStore {
    /// Opens the database at `path`, making it with its tables if need be, and does `first` with it. Its thread is named as what it keeps.
    pub(in crate::node) fn open<T>(
        path: &Path,
        what: &'static str,
        tables: &str,
        first: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<(Self, T), MessageStoreError> {
        let connection = Connection::open(path)?;
        // A node that ended a moment ago may still be writing.
        connection.busy_timeout(BUSY_PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        // Where `fsync` does not reach the medium, this does.
        connection.pragma_update(None, "fullfsync", "ON")?;
        connection.pragma_update(None, "checkpoint_fullfsync", "ON")?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.execute_batch(tables)?;
        connection.set_prepared_statement_cache_capacity(64);
        let together = connection.unchecked_transaction()?;
        let begun = first(&together)?;
        together.commit()?;
        let (jobs, waiting) = mpsc::channel(QUEUE);
        let (ended, open) = watch::channel(true);
        thread::Builder::new()
            .name(what.to_owned())
            .spawn(move || {
                work(what, &connection, waiting);
                drop(connection);
                ended.send_replace(false);
            })
            .map_err(|error| MessageStoreError {
                reason: error.to_string(),
                full: false,
            })?;
        let store = Self {
            jobs: Mutex::new(Some(jobs)),
            open,
        };
        Ok((store, begun))
    }

    /// Does some work in a transaction; what it returns is on the disk.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the work may be done or not.
    pub(in crate::node) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, MessageStoreError> {
        let (tell, told) = oneshot::channel();
        let tell = move |outcome| {
            // Nobody may be waiting any more.
            let _ = tell.send(outcome);
        };
        self.submit(work, tell).await?;
        told.await.unwrap_or_else(|_| Err(given_up()))
    }

    /// Hands over some work, and says on the thread what came of it, once that is on the disk: in the order in which it was handed over.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the work is not done; once it has resolved, it is.
    pub(in crate::node) async fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
        tell: impl FnOnce(Result<T, MessageStoreError>) + Send + 'static,
    ) -> Result<(), MessageStoreError> {
        let job: Job = Box::new(move |connection| {
            let outcome =
                connection.and_then(|connection| work(connection).map_err(MessageStoreError::from));
            let failed = outcome.as_ref().map(|_| ()).map_err(Clone::clone);
            let told = Box::new(move |committed: Result<(), MessageStoreError>| {
                tell(outcome.and_then(|value| committed.map(|()| value)));
            });
            (failed, told)
        });
        let jobs = super::locked(&self.jobs).clone().ok_or_else(given_up)?;
        jobs.send(job).await.map_err(|_| given_up())
    }

    /// Does what was asked for before, and nothing after that. Whoever comes later may open the file again.
    pub(in crate::node) async fn close(&self) {
        super::locked(&self.jobs).take();
        let mut open = self.open.clone();
        // An error is a thread that has ended as well.
        let _ = open.wait_for(|open| !*open).await;
    }
}

fn given_up() -> MessageStoreError {
    MessageStoreError {
        reason: "the thread that owns them has given up this job".to_owned(),
        full: false,
    }
}

fn work(what: &'static str, connection: &Connection, mut jobs: mpsc::Receiver<Job>) {
    let mut told: Vec<Told> = Vec::new();
    let mut gathering = Gathering::default();
    while let Some(first) = jobs.blocking_recv() {
        let outcome = transaction(connection, first, &mut jobs, &mut told, &mut gathering);
        if let Err(error) = &outcome {
            tracing::error!(%error, what, "a transaction failed");
            // There may be none any more.
            let _ = connection.execute_batch("ROLLBACK");
            if error.full {
                give_log_back(connection);
            }
        }
        for tell in told.drain(..) {
            tell(outcome.clone());
        }
    }
}

/// Writes the log back and cuts it off: on a small disk it may be what has filled it.
fn give_log_back(connection: &Connection) {
    let cut = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    if let Err(error) = cut {
        tracing::debug!(%error, "the log of messages stays as it is");
    }
}

/// Does one job and those that come with it, and syncs.
fn transaction(
    connection: &Connection,
    first: Job,
    jobs: &mut mpsc::Receiver<Job>,
    told: &mut Vec<Told>,
    gathering: &mut Gathering,
) -> Result<(), MessageStoreError> {
    if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
        let error = MessageStoreError::from(error);
        let (_, tell) = first(Err(error.clone()));
        told.push(tell);
        return Err(error);
    }
    let begun = Instant::now();
    let changes = connection.total_changes();
    let mut next = Some(first);
    while let Some(job) = next {
        connection.prepare_cached("SAVEPOINT job")?.execute([])?;
        let (outcome, tell) = job(Ok(connection));
        told.push(tell);
        if let Err(error) = outcome {
            // SQLite ends the whole transaction where the disk is full or fails, and the others are to know why.
            if connection.is_autocommit() {
                return Err(error);
            }
            connection.execute_batch("ROLLBACK TO job")?;
        }
        connection.prepare_cached("RELEASE job")?.execute([])?;
        next = match told.len() {
            MAX_JOBS => None,
            done => gathering.next(done, begun, jobs),
        };
    }
    let committing = Instant::now();
    connection.execute_batch("COMMIT")?;
    // Whoever only reads costs no sync, and tells nothing of those who write.
    if connection.total_changes() != changes {
        gathering.committed(told.len(), committing.elapsed());
    }
    Ok(())
}

/// How long a transaction waits for more jobs. Whoever was told that its job is done comes back at once with the next one, so as many are expected as there
/// were before: without a moment's patience the first to come back would have a sync of its own, and all others wait for two. A sender that is
/// alone waits for nobody.
#[derive(Debug, Default)]
struct Gathering {
    expected: usize,
    patience: Duration,
}

impl Gathering {
    fn next(&self, done: usize, begun: Instant, jobs: &mut mpsc::Receiver<Job>) -> Option<Job> {
        loop {
            if let Ok(job) = jobs.try_recv() {
                return Some(job);
            }
            if done >= self.expected || begun.elapsed() >= self.patience {
                return None;
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn committed(&mut self, jobs: usize, took: Duration) {
        self.expected = jobs;
        self.patience = (took / 4).min(LONGEST_PATIENCE);
    }
}
