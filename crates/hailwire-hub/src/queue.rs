//! The thread that owns the directory, and the two ordered queues in front of it.
//!
//! SQLite blocks, so it gets a thread of its own. Quick queries (look-ups, records, membership checks) go before long
//! ones (searches, lists). Long queries are run one slice at a time, in round-robin order: so a look-up waits for at most
//! one slice, whatever else is queued, and searches do not wait for each other to finish. Both queues are bounded; callers
//! wait for space. A long query whose caller has gone is dropped. The thread ends when the queue is closed, whoever still
//! holds a handle.

use std::{
    collections::VecDeque,
    fmt, io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::directory::Directory;

/// Quick queries that wait.
const MAX_QUICK_WAITING: usize = 256;

/// Long queries that are active.
const MAX_LONG_ACTIVE: usize = 64;

/// Quick queries in a row after which a slice of a long query is run, so that long queries are slow but never starve.
const MAX_QUICK_IN_A_ROW: u32 = 32;

type QuickQuery = Box<dyn FnOnce(&mut Directory) + Send>;

/// Runs a slice; returns whether that was the last one.
type LongQuery = Box<dyn FnMut(&mut Directory) -> bool + Send>;

/// Sends queries to the directory's thread. Clones share the thread; it ends with the last of them, or
/// with [`DirectoryQueue::close`].
#[derive(Clone, Debug)]
pub(crate) struct DirectoryQueue(Arc<QueueHandle>);

#[derive(Debug)]
struct QueueHandle(Arc<QueueState>);

#[derive(Debug)]
struct QueueState {
    scheduler: Mutex<QueryScheduler<QuickQuery, LongQuery>>,
    more: Condvar,
    quick: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// The directory's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueClosed;

impl DirectoryQueue {
    /// Starts the thread.
    pub(crate) fn start(mut directory: Directory) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let state = Arc::new(QueueState {
            scheduler: Mutex::new(QueryScheduler::new()),
            more: Condvar::new(),
            quick: Arc::new(Semaphore::new(MAX_QUICK_WAITING)),
            long: Arc::new(Semaphore::new(MAX_LONG_ACTIVE)),
        });
        let for_thread = state.clone();
        let thread = thread::Builder::new()
            .name("hub-directory".into())
            .spawn(move || {
                while let Some(next) = for_thread.next() {
                    match next {
                        NextQuery::Quick(query) => query(&mut directory),
                        NextQuery::Long(mut work) => {
                            if !work(&mut directory) {
                                for_thread.lock().long.push_back(work);
                            }
                        }
                    }
                }
            })?;
        Ok((Self(Arc::new(QueueHandle(state))), thread))
    }

    /// Runs a quick query and returns its answer.
    ///
    /// # Cancel safety
    ///
    /// A query that is queued is run even if this future is dropped.
    pub(crate) async fn run_quick<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Directory) -> T + Send + 'static,
    ) -> Result<T, QueueClosed> {
        let state = &self.0.0;
        let permit = acquire(&state.quick).await?;
        let (sender, answer) = oneshot::channel();
        let query: QuickQuery = Box::new(move |directory| {
            // The caller may have given up.
            let _ = sender.send(query(directory));
            drop(permit);
        });
        state.push(|scheduler| scheduler.quick.push_back(query))?;
        answer.await.map_err(|_| QueueClosed)
    }

    /// Runs a long query: `slice` is called until it returns the answer, alternating with other queries.
    ///
    /// # Cancel safety
    ///
    /// The query is dropped if this future is dropped.
    pub(crate) async fn run_long<T: Send + 'static>(
        &self,
        mut slice: impl FnMut(&mut Directory) -> Option<T> + Send + 'static,
    ) -> Result<T, QueueClosed> {
        let state = &self.0.0;
        let permit = acquire(&state.long).await?;
        let (sender, answer) = oneshot::channel();
        let mut waiting = Some((sender, permit));
        let work: LongQuery = Box::new(move |directory| {
            if waiting
                .as_ref()
                .is_none_or(|(sender, _)| sender.is_closed())
            {
                return true;
            }
            let Some(answer) = slice(directory) else {
                return false;
            };
            if let Some((sender, _permit)) = waiting.take() {
                let _ = sender.send(answer);
            }
            true
        });
        state.push(|scheduler| scheduler.long.push_back(work))?;
        answer.await.map_err(|_| QueueClosed)
    }

    /// Accepts no more queries; the thread ends once the waiting quick ones are answered.
    pub(crate) async fn close(&self) {
        self.0.0.close();
    }
}

async fn acquire(lane: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, QueueClosed> {
    lane.clone().acquire_owned().await.map_err(|_| QueueClosed)
}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl QueueState {
    fn push(
        &self,
        push: impl FnOnce(&mut QueryScheduler<QuickQuery, LongQuery>),
    ) -> Result<(), QueueClosed> {
        let mut scheduler = self.lock();
        if scheduler.closed {
            return Err(QueueClosed);
        }
        push(&mut scheduler);
        drop(scheduler);
        self.more.notify_one();
        Ok(())
    }

    /// Waits for the next query; `None` once the queue is closed.
    fn next(&self) -> Option<NextQuery<QuickQuery, LongQuery>> {
        let mut scheduler = self.lock();
        loop {
            if let Some(next) = scheduler.next() {
                return Some(next);
            }
            if scheduler.closed {
                return None;
            }
            scheduler = self
                .more
                .wait(scheduler)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        let given_up = {
            let mut scheduler = self.lock();
            scheduler.closed = true;
            std::mem::take(&mut scheduler.long)
        };
        drop(given_up);
        self.quick.close();
        self.long.close();
        self.more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, QueryScheduler<QuickQuery, LongQuery>> {
        self.scheduler
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next query to run.
#[derive(Debug, PartialEq, Eq)]
enum NextQuery<Q, W> {
    Quick(Q),
    Long(W),
}

/// Decides the order of queries.
struct QueryScheduler<Q, W> {
    quick: VecDeque<Q>,
    long: VecDeque<W>,
    in_a_row: u32,
    closed: bool,
}

impl<Q, W> QueryScheduler<Q, W> {
    fn new() -> Self {
        Self {
            quick: VecDeque::new(),
            long: VecDeque::new(),
            in_a_row: 0,
            closed: false,
        }
    }

    fn next(&mut self) -> Option<NextQuery<Q, W>> {
        let long_has_waited = self.in_a_row >= MAX_QUICK_IN_A_ROW && !self.long.is_empty();
        if !long_has_waited && let Some(query) = self.quick.pop_front() {
            self.in_a_row += 1;
            return Some(NextQuery::Quick(query));
        }
        self.in_a_row = 0;
        self.long.pop_front().map(NextQuery::Long)
    }
}

impl<Q, W> fmt::Debug for QueryScheduler<Q, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryScheduler")
            .field("quick", &self.quick.len())
            .field("long", &self.long.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_waits_for_one_slice_of_sixteen_searches() {
        let mut scheduler = QueryScheduler::new();
        scheduler.long.extend(0..16);
        let mut slices = Vec::new();
        for lookup in 0..10 {
            // One slice is being run when the look-up arrives.
            let Some(NextQuery::Long(search)) = scheduler.next() else {
                panic!("no slice");
            };
            scheduler.quick.push_back(lookup);
            scheduler.long.push_back(search);
            slices.push(search);
            assert_eq!(scheduler.next(), Some(NextQuery::Quick(lookup)));
        }
        assert_eq!(
            slices,
            (0..10).collect::<Vec<_>>(),
            "searches are run in round-robin order"
        );
    }

    #[test]
    fn long_queries_do_not_starve_behind_quick_ones() {
        let mut scheduler = QueryScheduler::new();
        scheduler.long.push_back("search");
        scheduler.quick.extend(0..1000);
        let permit = (0..).find(|_| matches!(scheduler.next(), Some(NextQuery::Long(_))));
        assert_eq!(permit, Some(MAX_QUICK_IN_A_ROW));
    }
}
