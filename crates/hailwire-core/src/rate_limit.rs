//! How often a thing may be done: some at once, then one after each pause.
//!
//! The generic cell rate algorithm: one instant is kept, that at which all that was done is paid for. It
//! decides nothing but that, and is told the time.

use std::time::{Duration, Instant};

/// So many at once, and one more after each `pause`.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// How many at once, at least one.
    pub burst: u32,
    /// The time for one more.
    pub pause: Duration,
}

/// What was done at a [`Rate`].
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    rate: Rate,
    paid: Option<Instant>,
}

impl RateLimit {
    /// Nothing was done yet.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self { rate, paid: None }
    }

    /// When it may be done next; `now` or earlier where it may be done at once.
    #[must_use]
    pub fn next(&self, now: Instant) -> Instant {
        let Some(paid) = self.paid else { return now };
        let ahead = self.rate.pause * self.rate.burst.saturating_sub(1);
        paid.checked_sub(ahead).unwrap_or(now)
    }

    /// It is done.
    pub fn done(&mut self, now: Instant) {
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + self.rate.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::start;

    #[test]
    fn so_many_are_done_at_once_and_then_one_after_each_pause() {
        let start = start();
        let pause = Duration::from_millis(250);
        let mut limit = RateLimit::new(Rate { burst: 4, pause });
        for _ in 0..4 {
            assert!(limit.next(start) <= start);
            limit.done(start);
        }
        assert_eq!(limit.next(start), start + pause);
        let later = start + pause;
        limit.done(later);
        assert_eq!(limit.next(later), start + 2 * pause);
        // Quiet time saves up four and no more.
        let long = start + Duration::from_secs(3600);
        let done = (0..100).filter(|_| {
            let may = limit.next(long) <= long;
            if may {
                limit.done(long);
            }
            may
        });
        assert_eq!(done.count(), 4);
    }

    #[test]
    fn what_may_be_done_one_at_a_time_is_done_after_each_pause() {
        let begin = start();
        let pause = Duration::from_secs(1);
        for burst in [0, 1] {
            let mut limit = RateLimit::new(Rate { burst, pause });
            assert_eq!(limit.next(begin), begin);
            limit.done(begin);
            assert_eq!(limit.next(begin), begin + pause, "a burst of {burst}");
            assert_eq!(limit.next(begin + 3 * pause), begin + pause);
            // What is done late moves the next one, and what is done early is paid for as well.
            limit.done(begin + 3 * pause);
            assert_eq!(limit.next(begin), begin + 4 * pause);
            limit.done(begin + 3 * pause);
            assert_eq!(limit.next(begin), begin + 5 * pause);
        }
    }
}
