//! Who writes first when a QUIC connection is full.
//!
//! QUIC sends what is buffered in order of priority, but a write that finds the connection's send
//! buffer or its peer's credit used up waits with all others, and whoever is woken first takes the
//! next bit of room: an urgent call behind many bulk writers might wait for the last of them. So
//! while a write waits, those of lower priority stand back and do not try. Nobody stands back for ever:
//! after every [`WRITES_AHEAD`] writes that waited, one of each lower priority has a turn among them.
//!
//! A stream is stood back for only at its beginning, for [`YIELDING_BYTES`] bytes. That is less than
//! what every stream may send without a word from its reader, so such a write waits for room on
//! the connection and never for its own reader: a reader that stalls holds up nobody else.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use hailwire_wire::Priority;

/// Bytes at the beginning of a stream for which lower priorities stand back.
pub(super) const YIELDING_BYTES: u64 = 3 * 512 * 1024;

/// Writes that had to wait, after which one of each lower priority has a turn.
const WRITES_AHEAD: u32 = 16;

/// Bits in which the waiting writes of one priority are counted; a connection has far fewer streams.
const COUNTER_BITS: u32 = 16;

/// The writes of one connection that wait, by priority.
#[derive(Debug, Default)]
pub(super) struct WriteQueues {
    /// Four counters, the highest priority in the highest bits.
    waiting: AtomicU64,
    /// Those who stand back.
    back: Mutex<Vec<Waker>>,
    /// Writes that waited and are through.
    through: AtomicU32,
    /// A bit for each priority that has a turn.
    turns: AtomicU32,
}

/// A write that waits; lower priorities stand back while this lives.
#[derive(Debug)]
pub(super) struct QueuedWrite<'a> {
    queues: &'a WriteQueues,
    priority: Priority,
}

impl WriteQueues {
    /// Notes that a write of this priority waits for room.
    pub(super) fn wait(&self, priority: Priority) -> QueuedWrite<'_> {
        self.waiting.fetch_add(one(priority), Ordering::SeqCst);
        QueuedWrite {
            queues: self,
            priority,
        }
    }

    /// Ready when no write of a higher priority waits, with `false`; or, with `true`, when it is this priority's turn all the same. Who has
    /// the turn keeps it until its write is through, and does not ask again before.
    pub(super) fn poll_clear(&self, priority: Priority, cx: &Context<'_>) -> Poll<bool> {
        if self.is_clear(priority) {
            return Poll::Ready(false);
        }
        if self.take_turn(priority) {
            return Poll::Ready(true);
        }
        {
            let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
            if !back.iter().any(|waker| waker.will_wake(cx.waker())) {
                back.push(cx.waker().clone());
            }
        }
        // The last of them may have gone before the waker was there to be found.
        if self.is_clear(priority) {
            Poll::Ready(false)
        } else if self.take_turn(priority) {
            Poll::Ready(true)
        } else {
            Poll::Pending
        }
    }

    fn take_turn(&self, priority: Priority) -> bool {
        let bit = 1 << priority as u32;
        self.turns.load(Ordering::SeqCst) & bit != 0
            && self.turns.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    fn wake_all(&self) {
        let back = {
            let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *back)
        };
        back.into_iter().for_each(Waker::wake);
    }

    fn is_clear(&self, priority: Priority) -> bool {
        let higher = self
            .waiting
            .load(Ordering::SeqCst)
            .checked_shr(COUNTER_BITS * (priority as u32 + 1));
        higher.unwrap_or(0) == 0
    }
}

impl Drop for QueuedWrite<'_> {
    fn drop(&mut self) {
        let one = one(self.priority);
        let before = self.queues.waiting.fetch_sub(one, Ordering::SeqCst);
        let counter = one * ((1 << COUNTER_BITS) - 1);
        let through = self.queues.through.fetch_add(1, Ordering::SeqCst);
        let is_turn = through % WRITES_AHEAD == WRITES_AHEAD - 1;
        if is_turn {
            let lower = (1 << self.priority as u32) - 1;
            self.queues.turns.fetch_or(lower, Ordering::SeqCst);
        }
        if is_turn || before & counter == one {
            self.queues.wake_all();
        }
    }
}

fn one(priority: Priority) -> u64 {
    1 << (COUNTER_BITS * priority as u32)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::AtomicUsize},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn lower_lanes_stand_back_until_the_last_higher_write_is_through() {
        let queues = WriteQueues::default();
        let count = Arc::new(WakeCounter::default());
        let waker = Waker::from(count.clone());
        let cx = Context::from_waker(&waker);
        let clear = |priority| queues.poll_clear(priority, &cx).is_ready();

        assert!(Priority::ALL.into_iter().all(clear));
        let first = queues.wait(Priority::High);
        let second = queues.wait(Priority::High);
        assert!(!clear(Priority::Low) && !clear(Priority::Medium));
        assert!(clear(Priority::High) && clear(Priority::Critical));
        drop(first);
        assert!(!clear(Priority::Medium));
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        drop(second);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(Priority::ALL.into_iter().all(clear));

        let _critical = queues.wait(Priority::Critical);
        assert!(!clear(Priority::High) && clear(Priority::Critical));
    }

    #[test]
    fn nobody_stands_back_for_more_than_so_many_writes() {
        let queues = WriteQueues::default();
        let count = Arc::new(WakeCounter::default());
        let waker = Waker::from(count.clone());
        let cx = Context::from_waker(&waker);
        let turn = |priority| queues.poll_clear(priority, &cx);

        // Another always waits when one is through, so that it is never clear.
        let mut waits = queues.wait(Priority::Critical);
        let mut turns = [0; Priority::ALL.len()];
        for _ in 0..10 * WRITES_AHEAD {
            waits = queues.wait(Priority::Critical);
            for (priority, turns) in Priority::ALL.into_iter().zip(&mut turns) {
                match turn(priority) {
                    Poll::Ready(by_turn) => {
                        assert_eq!(by_turn, priority != Priority::Critical);
                        *turns += 1;
                    }
                    Poll::Pending => {}
                }
            }
        }
        drop(waits);
        assert_eq!(turns, [10, 10, 10, 10 * WRITES_AHEAD]);
        assert!(
            count.0.load(Ordering::SeqCst) >= 10,
            "they are woken for it"
        );
    }
}
