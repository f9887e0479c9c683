//! Looking again before going to sleep.
//!
//! A call between two programs on two machines wakes six processes in turn, and on an idle machine
//! each wake-up costs more than the work that it is for. So after each sign of traffic a node looks
//! for more, for a moment, before it lets the operating system put it to sleep; it gives its
//! processor away at each look, so that it stands in nobody's way. Without traffic it costs nothing.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// Longest time to look: more would heat the machine and find nothing.
const MAX_SPAN: Duration = Duration::from_millis(10);

/// When there was traffic last, and whether somebody is looking for more.
#[derive(Debug)]
pub(crate) struct BusyPolling {
    /// How long to look; zero for not at all.
    span: Duration,
    origin: Instant,
    /// Nanoseconds since `origin`.
    last: AtomicU64,
    looking: AtomicBool,
    wake: Notify,
}

impl BusyPolling {
    pub(crate) fn new(span: Duration) -> Self {
        Self {
            span: span.min(MAX_SPAN),
            origin: Instant::now(),
            last: AtomicU64::new(0),
            looking: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    /// There was traffic at `at`, which is about now.
    pub(crate) fn touch(&self, at: Instant) {
        if self.span.is_zero() {
            return;
        }
        self.last.store(self.nanos(at), Ordering::Relaxed);
        if !self.looking.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Looks for more traffic whenever there was some, until dropped.
    pub(crate) async fn run(&self) {
        if self.span.is_zero() {
            return;
        }
        loop {
            self.wake.notified().await;
            self.looking.store(true, Ordering::Relaxed);
            while self.is_worth_it(self.nanos(Instant::now())) {
                std::thread::yield_now();
                // Lets the runtime look at its sockets before it comes back here.
                tokio::task::yield_now().await;
            }
            self.looking.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the last traffic was so lately that more may come before a sleep would pay.
    fn is_worth_it(&self, now: u64) -> bool {
        let since = now.saturating_sub(self.last.load(Ordering::Relaxed));
        Duration::from_nanos(since) < self.span
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from((at - self.origin).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_looks_for_its_span_after_the_last_traffic() {
        let spin = BusyPolling::new(Duration::from_nanos(50));
        spin.last.store(1_000, Ordering::Relaxed);
        assert!(spin.is_worth_it(1_049));
        assert!(!spin.is_worth_it(1_050));
        spin.last.store(1_040, Ordering::Relaxed);
        assert!(spin.is_worth_it(1_050));
    }

    #[tokio::test]
    async fn without_a_span_it_never_looks() {
        let spin = BusyPolling::new(Duration::ZERO);
        let now = Instant::now();
        spin.touch(now);
        spin.run().await;
        assert!(!spin.is_worth_it(spin.nanos(now)));
    }

    #[test]
    fn the_span_is_bounded() {
        assert_eq!(BusyPolling::new(Duration::from_secs(9)).span, MAX_SPAN);
    }
}
