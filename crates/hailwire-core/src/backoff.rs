//! When something is tried again that did not work: after a pause that doubles with each failure, up to a longest one.

use std::time::{Duration, Instant};

/// Exponential back-off between attempts.
///
/// Until the first failure an attempt may be made at once.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first and the longest pause.
    range: (Duration, Duration),
    /// How long after a failure the next one counts as the first again; `None` for never.
    forgets_after: Option<Duration>,
    /// The pause after the next failure.
    next: Duration,
    failed: Option<Instant>,
    until: Option<Instant>,
}

impl Backoff {
    /// One that has seen no failure, with its first and longest pause.
    #[must_use]
    pub const fn new(range: (Duration, Duration)) -> Self {
        Self {
            range,
            forgets_after: None,
            next: range.0,
            failed: None,
            until: None,
        }
    }

    /// The same, where a failure counts as the first again once there was none for so long.
    #[must_use]
    pub const fn forgetting_after(mut self, quiet: Duration) -> Self {
        self.forgets_after = Some(quiet);
        self
    }

    /// An attempt failed, or one that may fail begins: the next one comes after a pause, which is given.
    pub fn fail(&mut self, now: Instant) -> Duration {
        let quiet = |failed| now.saturating_duration_since(failed);
        if let (Some(failed), Some(most)) = (self.failed, self.forgets_after)
            && quiet(failed) >= most
        {
            self.reset();
        }
        let pause = self.next;
        self.failed = Some(now);
        self.until = Some(now + pause);
        self.next = (pause * 2).min(self.range.1);
        pause
    }

    /// Whether there was no failure since the beginning, or since an attempt worked.
    #[must_use]
    pub const fn is_untried(&self) -> bool {
        self.failed.is_none()
    }

    /// An attempt worked: the next failure is the first.
    pub const fn reset(&mut self) {
        self.next = self.range.0;
        self.failed = None;
        self.until = None;
    }

    /// Whether the next attempt may be made.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        self.wait(now).is_zero()
    }

    /// How long the next attempt has to wait; zero where it may be made at once.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(now);
        self.until.map_or(Duration::ZERO, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::start;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let mut now = start();
        let mut backoff = Backoff::new((SECOND, 5 * SECOND));
        assert!(backoff.is_over(now));
        let mut pauses = Vec::new();
        for _ in 0..5 {
            pauses.push(backoff.fail(now).as_secs());
            assert!(!backoff.is_over(now));
            now += backoff.wait(now);
            assert!(backoff.is_over(now));
        }
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        backoff.reset();
        assert!(backoff.is_over(now));
        assert_eq!(backoff.fail(now), SECOND);
    }

    #[test]
    fn what_failed_long_ago_is_forgotten_where_that_was_asked_for() {
        let now = start();
        let mut kept = Backoff::new((SECOND, 60 * SECOND));
        let mut forgetting = kept.forgetting_after(10 * SECOND);
        for backoff in [&mut kept, &mut forgetting] {
            backoff.fail(now);
            assert_eq!(backoff.fail(now + 9 * SECOND), 2 * SECOND);
        }
        let later = now + 19 * SECOND;
        assert_eq!(kept.fail(later), 4 * SECOND);
        assert_eq!(forgetting.fail(later), SECOND);
    }

    #[test]
    fn a_pause_is_waited_for_to_its_end_and_counts_from_the_last_failure() {
        let now = start();
        let mut backoff = Backoff::new((4 * SECOND, 60 * SECOND));
        assert_eq!(backoff.wait(now), Duration::ZERO);
        backoff.fail(now);
        assert_eq!(backoff.wait(now + SECOND), 3 * SECOND);
        assert!(!backoff.is_over(now + 4 * SECOND - Duration::from_nanos(1)));
        assert!(backoff.is_over(now + 4 * SECOND));
        assert_eq!(backoff.wait(now + 9 * SECOND), Duration::ZERO);
        // A failure while the pause still runs begins the next one at once.
        backoff.fail(now + SECOND);
        assert_eq!(backoff.wait(now + SECOND), 8 * SECOND);
    }

    #[test]
    fn a_success_makes_a_failure_long_ago_none() {
        let now = start();
        let mut backoff = Backoff::new((SECOND, 60 * SECOND)).forgetting_after(10 * SECOND);
        backoff.fail(now);
        backoff.fail(now);
        backoff.reset();
        assert!(backoff.is_over(now));
        // Within the time for which failures are remembered, the next is nevertheless the first.
        assert_eq!(backoff.fail(now + 2 * SECOND), SECOND);
        assert_eq!(backoff.fail(now + 2 * SECOND), 2 * SECOND);
    }
}
