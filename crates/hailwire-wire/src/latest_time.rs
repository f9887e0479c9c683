//! The latest time seen: what a clock that is set back does not bring back.
//!
//! Whether a ticket has expired is asked of this and not of the clock alone. It never goes back: where
//! the clock does, it goes on by the time that passes while the program runs. So a clock that was once
//! far ahead expires what is open, and tickets made later live as long as they should all the same.

use std::time::Duration;

/// The latest unix time that was seen. Pure: it is told both clocks.
#[derive(Clone, Copy, Debug)]
pub struct LatestTime {
    /// The clock's time when it was last ahead.
    unix: u64,
    /// How long the program had run then.
    running: Duration,
}

impl LatestTime {
    /// Goes on from what an earlier run kept; 0 for nothing. `running` is how long this program has run,
    /// by a clock that never goes back.
    #[must_use]
    pub const fn new(kept: u64, running: Duration) -> Self {
        Self {
            unix: kept,
            running,
        }
    }

    /// The time now, where the clock says `unix`.
    pub fn now(&mut self, unix: u64, running: Duration) -> u64 {
        let passed = running.saturating_sub(self.running).as_secs();
        let at_least = self.unix.saturating_add(passed);
        if unix > at_least {
            *self = Self::new(unix, running);
            return unix;
        }
        at_least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn a_clock_that_is_set_back_brings_back_no_time() {
        let s = Duration::from_secs;
        let mut latest = LatestTime::new(0, s(0));
        assert_eq!(latest.now(NOW, s(0)), NOW);
        assert_eq!(latest.now(NOW - 3600, s(0)), NOW);
        // It goes on while the clock is behind, and by the clock once that is ahead again.
        assert_eq!(latest.now(NOW - 3600, s(90)), NOW + 90);
        assert_eq!(latest.now(NOW + 100, s(95)), NOW + 100);
        assert_eq!(latest.now(NOW + 100, s(96)), NOW + 101);
        // Across a restart it is what was kept.
        let mut restarted = LatestTime::new(NOW + 100, s(0));
        assert_eq!(restarted.now(NOW - 3600, s(5)), NOW + 105);
    }

    #[test]
    fn no_time_is_lost_between_two_looks() {
        let mut latest = LatestTime::new(NOW, Duration::ZERO);
        for ms in (0..=10_000).step_by(10) {
            latest.now(0, Duration::from_millis(ms));
        }
        assert_eq!(latest.now(0, Duration::from_millis(10_010)), NOW + 10);
        assert_eq!(
            LatestTime::new(u64::MAX, Duration::ZERO).now(0, Duration::MAX),
            u64::MAX
        );
    }
}
