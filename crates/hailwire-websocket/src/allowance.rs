//! How many frames a peer may send that bring nothing.

use std::time::{Duration, Instant};

/// Counts them. It is told the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    burst: u32,
    /// After how long one is given back.
    each: Duration,
    used: u32,
    /// Up to when what was used has been given back.
    since: Option<Instant>,
}

impl Allowance {
    /// So many at once, and so many each second beyond those.
    pub(crate) fn new(burst: u32, rate: u32) -> Self {
        Self {
            burst,
            each: Duration::from_secs(1) / rate.max(1),
            used: 0,
            since: None,
        }
    }

    /// Whether one more is within bounds.
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
    fn a_burst_is_allowed_and_then_so_many_each_second() {
        let mut allowance = Allowance::new(64, 8);
        let start = Instant::now();
        assert!((0..64).all(|_| allowance.take(start)));
        assert!(!allowance.take(start));
        let mut allowance = Allowance::new(64, 8);
        assert!((0..64).all(|_| allowance.take(start)));
        let later = start + Duration::from_secs(2);
        assert!((0..2 * 8).all(|_| allowance.take(later)));
        assert!(!allowance.take(later));
    }

    #[test]
    fn a_steady_peer_never_runs_out() {
        let mut allowance = Allowance::new(64, 8);
        let mut now = Instant::now();
        for _ in 0..10_000 {
            assert!(allowance.take(now));
            now += Duration::from_secs(1) / 8;
        }
    }
}
