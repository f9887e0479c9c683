//! How often a thing may be done: some at once, then one after each pause.
//!
//! The generic cell rate algorithm: one instant is kept, that at which all that was done is paid for. It
//! decides nothing but that, and is told the time.

use std::time::Duration;

use tokio::time::Instant;

/// So many at once, and one more after each `pause`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) burst: u32,
    pub(super) pause: Duration,
}

/// What was done at a [`Rate`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Paced {
    rate: Rate,
    paid: Option<Instant>,
}

impl Paced {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, paid: None }
    }

    /// When it may be done next; `now` or earlier where it may be done at once.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let Some(paid) = self.paid else { return now };
        let ahead = self.rate.pause * self.rate.burst.saturating_sub(1);
        paid.checked_sub(ahead).unwrap_or(now)
    }

    /// It is done.
    pub(super) fn done(&mut self, now: Instant) {
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + self.rate.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_done_at_once_and_then_one_after_each_pause() {
        let start = Instant::now();
        let pause = Duration::from_millis(250);
        let mut paced = Paced::new(Rate { burst: 4, pause });
        for _ in 0..4 {
            assert!(paced.next(start) <= start);
            paced.done(start);
        }
        assert_eq!(paced.next(start), start + pause);
        let later = start + pause;
        paced.done(later);
        assert_eq!(paced.next(later), start + 2 * pause);
        // Quiet time saves up four and no more.
        let long = start + Duration::from_secs(3600);
        let done = (0..100).filter(|_| {
            let may = paced.next(long) <= long;
            if may {
                paced.done(long);
            }
            may
        });
        assert_eq!(done.count(), 4);
    }
}
