//! What one of the two HTTP/2 connections has to send: how much, and who may add to it.
//!
//! The h2 library sends its streams in turn and knows no priority, so what has been handed to it can no
//! longer be overtaken. Therefore little is: once [`AHEAD`] bytes have been handed over and not
//! been written, writers wait, and are woken in the order of their priorities.
//!
//! Only an estimate is kept. Bytes are added before they are handed over, taken off as h2 writes
//! (its own frames too), and set to none when h2 has nothing left to write. So the estimate is never too
//! high once everything is written, and nobody waits in vain.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use hailwire_wire::Priority;

use crate::carrier::write_queues::WriteQueues;

/// Bytes handed to h2 and not yet written, beyond which writers wait.
pub(super) const AHEAD: usize = 256 * 1024;

/// Writers woken by one write; a flush wakes them all.
const WOKEN: usize = 8;

/// The sending side of one HTTP/2 connection.
#[derive(Debug, Default)]
pub(super) struct H2Opener {
    pub(super) queues: WriteQueues,
    ahead: AtomicUsize,
    /// Something was written that may not have been flushed.
    dirty: AtomicBool,
    /// Somebody waits below.
    crowded: AtomicBool,
    waiting: Mutex<[VecDeque<Waker>; Priority::ALL.len()]>,
}

impl H2Opener {
    /// Ready while little enough is ahead.
    pub(super) fn poll_writable(&self, priority: Priority, cx: &Context<'_>) -> Poll<()> {
        if self.is_writable() {
            return Poll::Ready(());
        }
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(queue) = waiting.get_mut(priority as usize)
                && !queue.iter().any(|waker| waker.will_wake(cx.waker()))
            {
                queue.push_back(cx.waker().clone());
            }
            self.crowded.store(true, Ordering::SeqCst);
        }
        // It may all have been written before the waker was there to be found.
        if self.is_writable() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn is_writable(&self) -> bool {
        self.ahead.load(Ordering::SeqCst) < AHEAD
    }

    /// Notes bytes that are about to be handed to h2.
    pub(super) fn add(&self, len: usize) {
        self.ahead.fetch_add(len, Ordering::SeqCst);
    }

    /// Notes bytes that h2 has written.
    pub(super) fn written(&self, len: usize) {
        self.dirty.store(true, Ordering::Relaxed);
        let less = |ahead: usize| Some(ahead.saturating_sub(len));
        let _ = self
            .ahead
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if self.is_writable() {
            self.wake(WOKEN);
        }
    }

    /// Notes that everything was written.
    pub(super) fn flushed(&self) {
        self.dirty.store(false, Ordering::Relaxed);
        self.ahead.store(0, Ordering::SeqCst);
        self.wake(usize::MAX);
    }

    /// Whether everything that was written has been flushed.
    pub(super) fn is_flushed(&self) -> bool {
        !self.dirty.load(Ordering::Relaxed)
    }

    fn wake(&self, count: usize) {
        if !self.crowded.load(Ordering::SeqCst) {
            return;
        }
        let mut wakes = Vec::new();
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            for queue in waiting.iter_mut().rev() {
                let some = queue.len().min(count - wakes.len());
                wakes.extend(queue.drain(..some));
            }
            let crowded = waiting.iter().any(|queue| !queue.is_empty());
            self.crowded.store(crowded, Ordering::SeqCst);
        }
        wakes.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, task::Wake};

    use super::*;

    #[derive(Default)]
    struct WakeFlag(AtomicBool);

    impl Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn writers_wait_while_too_much_is_ahead_and_the_urgent_are_woken_first() {
        let outgoing = H2Opener::default();
        outgoing.add(AHEAD + 10);
        let flags: Vec<_> = (0..20).map(|_| Arc::new(WakeFlag::default())).collect();
        for (index, flag) in flags.iter().enumerate() {
            let waker = Waker::from(flag.clone());
            let priority = if index == 19 {
                Priority::High
            } else {
                Priority::Low
            };
            let room = outgoing.poll_writable(priority, &Context::from_waker(&waker));
            assert!(room.is_pending());
        }
        let woken = |flag: &Arc<WakeFlag>| flag.0.load(Ordering::SeqCst);
        outgoing.written(10);
        assert!(!flags.iter().any(woken), "there is no room yet");
        outgoing.written(1);
        assert!(woken(&flags[19]), "the most urgent is among the first");
        assert_eq!(flags.iter().filter(|flag| woken(flag)).count(), WOKEN);
        outgoing.flushed();
        assert!(flags.iter().all(woken));
        assert!(outgoing.is_flushed());
    }
}
