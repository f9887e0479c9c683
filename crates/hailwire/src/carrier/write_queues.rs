//! Who writes first when a QUIC connection is full.
//!
//! QUIC sends what is buffered in order of priority, but a write that finds the connection's send
//! buffer or its peer's credit used up waits with all others, and whoever is woken first takes the
//! next bit of room: an urgent call behind many bulk writers might wait for the last of them. So
//! while a write waits, those of lower priority stand back and do not try.
//!
//! A stream is stood back for only at its beginning, for [`YIELDING_BYTES`] bytes. That is less than
//! what every stream may send without a word from its reader, so such a write waits for room on
//! the connection and never for its own reader: a reader that stalls holds up nobody else.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use hailwire_wire::Priority;

/// Bytes at the beginning of a stream for which lower priorities stand back.
pub(super) const YIELDING_BYTES: u64 = 3 * 512 * 1024;

/// Bits in which the waiting writes of one priority are counted; a connection has far fewer streams.
const COUNTER_BITS: u32 = 16;

/// The writes of one connection that wait, by priority.
#[derive(Debug, Default)]
pub(super) struct WriteQueues {
    /// Four counters, the highest priority in the highest bits.
    waiting: AtomicU64,
    /// Those who stand back.
    back: Mutex<Vec<Waker>>,
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

    /// Ready when no write of a higher priority waits.
    pub(super) fn poll_clear(&self, priority: Priority, cx: &Context<'_>) -> Poll<()> {
        if self.is_clear(priority) {
            return Poll::Ready(());
        }
        {
            let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
            if !back.iter().any(|waker| waker.will_wake(cx.waker())) {
                back.push(cx.waker().clone());
            }
        }
        // The last of them may have gone before the waker was there to be found.
        if self.is_clear(priority) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
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
        if before & counter == one {
            let back = {
                let mut back = self
                    .queues
                    .back
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *back)
            };
            back.into_iter().for_each(Waker::wake);
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
}
