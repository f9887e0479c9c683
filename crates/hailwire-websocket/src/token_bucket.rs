//! A token bucket that limits the frames without data that a peer may send.

use std::time::{Duration, Instant};

/// A token bucket, told the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    burst: u32,
    /// The interval in which one token is refilled.
    each: Duration,
    used: u32,
    /// The time of the last refill.
    since: Option<Instant>,
}

impl TokenBucket {
    /// A bucket of `burst` tokens, refilled with `rate` tokens a second.
    pub(crate) fn new(burst: u32, rate: u32) -> Self {
        Self {
            burst,
            each: Duration::from_secs(1) / rate.max(1),
            used: 0,
            since: None,
        }
    }

    /// Takes a token; returns whether there was one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let each = self.each;
        let since = *self.since.get_or_insert(now);
        let due = now.saturating_duration_since(since).as_nanos() / each.as_nanos();
        let back = u32::try_from(due).unwrap_or(u32::MAX).min(self.used);
        self.used -= back;
        self.since = Some(if self.used == 0 {
            now
        } else {
            since + each * back
        });
        self.used += 1;
        self.used <= self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_a_rate() {
        let mut control_frames = TokenBucket::new(64, 8);
        let start = Instant::now();
        assert!((0..64).all(|_| control_frames.take(start)));
        assert!(!control_frames.take(start));
        let mut control_frames = TokenBucket::new(64, 8);
        assert!((0..64).all(|_| control_frames.take(start)));
        let later = start + Duration::from_secs(2);
        assert!((0..2 * 8).all(|_| control_frames.take(later)));
        assert!(!control_frames.take(later));
    }

    #[test]
    fn a_steady_peer_never_runs_out() {
        let mut control_frames = TokenBucket::new(64, 8);
        let mut now = Instant::now();
        for _ in 0..10_000 {
            assert!(control_frames.take(now));
            now += Duration::from_secs(1) / 8;
        }
    }
}
