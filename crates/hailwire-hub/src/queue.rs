//! The one thread that owns the directory, and the two lanes in front of it.
//!
//! SQLite blocks, so it gets a thread of its own. What is quick (look-ups, records, whether somebody is a
//! member) goes before what is long (searches, lists), and long work is done a slice at a time, each in its
//! turn: so a look-up waits for one slice, whatever else is asked, and one long search for no other. Each
//! lane holds a bounded number of questions and then makes their askers wait. Work for which nobody waits
//! any more is dropped. The thread ends when it is told to, whoever still holds the queue.

use std::{
    collections::VecDeque,
    fmt, io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::directory::Directory;

/// Quick questions that wait.
const QUICK: usize = 256;

/// Long ones under way.
const LONG: usize = 64;

/// So many quick questions in a row, and long work has a turn: it is slow then, and does not stand still.
const IN_A_ROW: u32 = 32;

type Question = Box<dyn FnOnce(&mut Directory) + Send>;

/// Does a slice; returns whether that was the last one.
type Work = Box<dyn FnMut(&mut Directory) -> bool + Send>;

/// Hands questions to the directory's thread. Clones share it; it ends with the last of them, or
/// with [`Queue::close`].
#[derive(Clone, Debug)]
pub(crate) struct Queue(Arc<Handle>);

#[derive(Debug)]
struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    lanes: Mutex<Lanes<Question, Work>>,
    more: Condvar,
    quick: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// The directory's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl Queue {
    /// Starts the thread.
    pub(crate) fn start(mut directory: Directory) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let shared = Arc::new(Shared {
            lanes: Mutex::new(Lanes::new()),
            more: Condvar::new(),
            quick: Arc::new(Semaphore::new(QUICK)),
            long: Arc::new(Semaphore::new(LONG)),
        });
        let asked = shared.clone();
        let thread = thread::Builder::new()
            .name("hub-directory".into())
            .spawn(move || {
                while let Some(next) = asked.next() {
                    match next {
                        Next::Quick(question) => question(&mut directory),
                        Next::Long(mut work) => {
                            if !work(&mut directory) {
                                asked.lock().long.push_back(work);
                            }
                        }
                    }
                }
            })?;
        Ok((Self(Arc::new(Handle(shared))), thread))
    }

    /// Asks what is quick, and waits for the answer. A question that is queued is answered even if nobody
    /// waits.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Directory) -> T + Send + 'static,
    ) -> Result<T, Closed> {
        let shared = &self.0.0;
        let place = place(&shared.quick).await?;
        let (sender, answer) = oneshot::channel();
        let question: Question = Box::new(move |directory| {
            // Whoever asked may have given up.
            let _ = sender.send(question(directory));
            drop(place);
        });
        shared.push(|lanes| lanes.quick.push_back(question))?;
        answer.await.map_err(|_| Closed)
    }

    /// Asks what takes long: `slice` is called until it gives the answer, with others in between. It is
    /// dropped once nobody waits.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        mut slice: impl FnMut(&mut Directory) -> Option<T> + Send + 'static,
    ) -> Result<T, Closed> {
        let shared = &self.0.0;
        let place = place(&shared.long).await?;
        let (sender, answer) = oneshot::channel();
        let mut waiting = Some((sender, place));
        let work: Work = Box::new(move |directory| {
            if waiting
                .as_ref()
                .is_none_or(|(sender, _)| sender.is_closed())
            {
                return true;
            }
            let Some(answer) = slice(directory) else {
                return false;
            };
            if let Some((sender, _place)) = waiting.take() {
                let _ = sender.send(answer);
            }
            true
        });
        shared.push(|lanes| lanes.long.push_back(work))?;
        answer.await.map_err(|_| Closed)
    }

    /// Takes no more questions; the thread ends once quick ones that wait are answered.
    pub(crate) async fn close(&self) {
        self.0.0.close();
    }
}

async fn place(lane: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Closed> {
    lane.clone().acquire_owned().await.map_err(|_| Closed)
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    fn push(&self, push: impl FnOnce(&mut Lanes<Question, Work>)) -> Result<(), Closed> {
        let mut lanes = self.lock();
        if lanes.closed {
            return Err(Closed);
        }
        push(&mut lanes);
        drop(lanes);
        self.more.notify_one();
        Ok(())
    }

    /// Waits for what is to be done next; `None` at the end.
    fn next(&self) -> Option<Next<Question, Work>> {
        let mut lanes = self.lock();
        loop {
            if let Some(next) = lanes.next() {
                return Some(next);
            }
            if lanes.closed {
                return None;
            }
            lanes = self
                .more
                .wait(lanes)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        let given_up = {
            let mut lanes = self.lock();
            lanes.closed = true;
            std::mem::take(&mut lanes.long)
        };
        drop(given_up);
        self.quick.close();
        self.long.close();
        self.more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Lanes<Question, Work>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
enum Next<Q, W> {
    Quick(Q),
    Long(W),
}

/// Decides whose turn it is.
struct Lanes<Q, W> {
    quick: VecDeque<Q>,
    long: VecDeque<W>,
    in_a_row: u32,
    closed: bool,
}

impl<Q, W> Lanes<Q, W> {
    fn new() -> Self {
        Self {
            quick: VecDeque::new(),
            long: VecDeque::new(),
            in_a_row: 0,
            closed: false,
        }
    }

    fn next(&mut self) -> Option<Next<Q, W>> {
        let long_has_waited = self.in_a_row >= IN_A_ROW && !self.long.is_empty();
        if !long_has_waited && let Some(question) = self.quick.pop_front() {
            self.in_a_row += 1;
            return Some(Next::Quick(question));
        }
        self.in_a_row = 0;
        self.long.pop_front().map(Next::Long)
    }
}

impl<Q, W> fmt::Debug for Lanes<Q, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes")
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
        let mut lanes = Lanes::new();
        lanes.long.extend(0..16);
        let mut slices = Vec::new();
        for lookup in 0..10 {
            // One slice is under way when it comes.
            let Some(Next::Long(search)) = lanes.next() else {
                panic!("no slice");
            };
            lanes.quick.push_back(lookup);
            lanes.long.push_back(search);
            slices.push(search);
            assert_eq!(lanes.next(), Some(Next::Quick(lookup)));
        }
        assert_eq!(
            slices,
            (0..10).collect::<Vec<_>>(),
            "each search in its turn"
        );
    }

    #[test]
    fn long_work_does_not_stand_still_behind_quick_questions() {
        let mut lanes = Lanes::new();
        lanes.long.push_back("search");
        lanes.quick.extend(0..1000);
        let place = (0..).find(|_| matches!(lanes.next(), Some(Next::Long(_))));
        assert_eq!(place, Some(IN_A_ROW));
    }
}
