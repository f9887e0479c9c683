//! Members whose calls fail far more often than those of the others: they are ejected for a while, as Envoy's outlier detection has it.
//!
//! [`crate::health`] sees failures in a row. A member that fails every second call never has three of them; what shows it is that the
//! others fail less. At most once each interval, at a pick, the share of failed calls of each member is compared with the median of all that
//! had enough calls, the lower one where there are two: whoever fails by [`OutlierConfig::excess_percent`] more is ejected. So a fault that
//! all have in common, as that of something behind them, ejects nobody.
//!
//! An ejected member gets no call while there is another in service, be it full. Each further ejection lasts longer; each interval without one forgets
//! one of them.
//!
//! Calls are counted in one atomic word, `calls` above and `failures` below, which is halved at each look, so that what was long ago
//! counts ever less.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::clock::millis;

/// When members are ejected, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierConfig {
    /// Time between two looks. Default 10 s.
    pub interval: Duration,
    /// Calls that a member must have had of late to be looked at. Default 20.
    pub min_calls: u32,
    /// Members with so many calls that there must be. Default 2; less is read as 2.
    pub min_members: u32,
    /// By how many percentage points more calls must fail than of the median member. Default 30.
    pub excess_percent: u8,
    /// How long the first ejection lasts; the second lasts twice as long, and so on. Default 30 s.
    pub ejection: Duration,
    /// The longest ejection. Default 300 s.
    pub ejection_max: Duration,
    /// How many of 100 members may be out of service, those that are down included; one always may where there are two. Default 50.
    pub max_ejection_percent: u8,
}

impl Default for OutlierConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            min_calls: 20,
            min_members: 2,
            excess_percent: 30,
            ejection: Duration::from_secs(30),
            ejection_max: Duration::from_secs(300),
            max_ejection_percent: 50,
        }
    }
}

impl OutlierConfig {
    /// How many of so many members may be out of service: never all.
    pub(crate) fn most_ejected(&self, members: usize) -> usize {
        let share = members * usize::from(self.max_ejection_percent) / 100;
        share.max(1).min(members.saturating_sub(1))
    }

    fn ejection_of(&self, times: u8) -> Duration {
        let lasts = self.ejection.saturating_mul(u32::from(times.max(1)));
        lasts.min(self.ejection_max.max(self.ejection))
    }
}

/// Calls of a member and how many of them failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallTally {
    pub(crate) calls: u32,
    pub(crate) failures: u32,
}

impl CallTally {
    /// Failed calls of a thousand.
    fn failed_permille(self) -> u64 {
        u64::from(self.failures) * 1000 / u64::from(self.calls.max(1))
    }
}

/// Of members with these tallies, the places of those that fail far more often than the others, the worst first.
pub(crate) fn outliers(tallies: &[CallTally], config: &OutlierConfig) -> Vec<usize> {
    let numbered = tallies.iter().enumerate();
    let enough = numbered.filter(|(_, tally)| tally.calls >= config.min_calls.max(1));
    let mut shares: Vec<(u64, usize)> = enough
        .map(|(place, tally)| (tally.failed_permille(), place))
        .collect();
    if shares.len() < config.min_members.max(2) as usize {
        return Vec::new();
    }
    shares.sort_unstable();
    let median = shares[(shares.len() - 1) / 2].0;
    let most = median + u64::from(config.excess_percent) * 10;
    let worst = shares.iter().rev().take_while(|(share, _)| *share > most);
    worst.map(|(_, place)| *place).collect()
}

const TIMES_SHIFT: u32 = 48;
const UNTIL_MASK: u64 = (1 << TIMES_SHIFT) - 1;

/// What is known of one member.
#[derive(Debug, Default)]
pub(crate) struct OutlierCell {
    tally: AtomicU64,
    /// How often it was ejected of late, above, and until when in milliseconds, below.
    ejection: AtomicU64,
}

impl OutlierCell {
    pub(crate) fn note(&self, failed: bool) {
        self.tally
            .fetch_add(1 << 32 | u64::from(failed), Ordering::Relaxed);
    }

    /// What was counted of late, of which half is kept for the next look.
    pub(crate) fn look(&self) -> CallTally {
        let word = self.tally.swap(0, Ordering::Relaxed);
        let tally = CallTally {
            calls: (word >> 32) as u32,
            failures: word as u32,
        };
        let half = u64::from(tally.calls / 2) << 32 | u64::from(tally.failures / 2);
        self.tally.fetch_add(half, Ordering::Relaxed);
        tally
    }

    #[inline]
    pub(crate) fn is_ejected(&self, now: Duration) -> bool {
        let word = self.ejection.load(Ordering::Relaxed);
        word != 0 && millis(now) < word & UNTIL_MASK
    }

    pub(crate) fn ejected_until(&self) -> Duration {
        Duration::from_millis(self.ejection.load(Ordering::Relaxed) & UNTIL_MASK)
    }

    /// Ejects it; returns until when.
    pub(crate) fn eject(&self, now: Duration, config: &OutlierConfig) -> Duration {
        let times = (self.ejection.load(Ordering::Relaxed) >> TIMES_SHIFT) as u8;
        let times = times.saturating_add(1);
        let until = millis(now.saturating_add(config.ejection_of(times)));
        let word = u64::from(times) << TIMES_SHIFT | until;
        self.ejection.store(word, Ordering::Relaxed);
        self.tally.store(0, Ordering::Relaxed);
        Duration::from_millis(until)
    }

    /// An interval has passed in which it was not ejected.
    pub(crate) fn forgive(&self, now: Duration) {
        let word = self.ejection.load(Ordering::Relaxed);
        if word == 0 || self.is_ejected(now) {
            return;
        }
        let times = (word >> TIMES_SHIFT).saturating_sub(1);
        let word = match times {
            0 => 0,
            times => times << TIMES_SHIFT | word & UNTIL_MASK,
        };
        self.ejection.store(word, Ordering::Relaxed);
    }
}

/// When the next look is due. One thread takes it.
#[derive(Debug, Default)]
pub(crate) struct OutlierLooks(AtomicU64);

impl OutlierLooks {
    /// Takes the look if it is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Duration, config: &OutlierConfig) -> bool {
        let due = self.0.load(Ordering::Relaxed);
        let now_ms = millis(now);
        if now_ms < due {
            return false;
        }
        let next = millis(now.saturating_add(config.interval)).max(now_ms + 1);
        let taken = self
            .0
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed);
        // The first pick of all begins the first interval.
        taken.is_ok() && due != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(calls: u32, failures: u32) -> CallTally {
        CallTally { calls, failures }
    }

    #[test]
    fn whoever_fails_far_more_often_than_the_median_is_an_outlier() {
        let config = OutlierConfig::default();
        let of = |tallies: &[CallTally]| outliers(tallies, &config);
        assert_eq!(of(&[tally(100, 0), tally(100, 50), tally(100, 1)]), [1]);
        assert_eq!(of(&[tally(100, 0), tally(100, 31)]), [1]);
        assert!(of(&[tally(100, 0), tally(100, 30)]).is_empty());
        assert!(
            of(&[tally(100, 90), tally(100, 100)]).is_empty(),
            "all fail"
        );
        assert!(
            of(&[tally(100, 0), tally(19, 19)]).is_empty(),
            "too few calls"
        );
        assert!(
            of(&[tally(100, 100)]).is_empty(),
            "nobody to compare it with"
        );
        let worst_first = of(&[tally(99, 40), tally(99, 90), tally(99, 0), tally(99, 0)]);
        assert_eq!(worst_first, [1, 0]);
    }

    #[test]
    fn each_ejection_lasts_longer_and_quiet_intervals_forget_them() {
        let (cell, config) = (OutlierCell::default(), OutlierConfig::default());
        let mut now = Duration::from_secs(1);
        let mut lasted = Vec::new();
        for _ in 0..12 {
            let until = cell.eject(now, &config);
            lasted.push((until - now).as_secs());
            assert!(cell.is_ejected(now) && !cell.is_ejected(until));
            now = until;
        }
        assert_eq!(lasted[..4], [30, 60, 90, 120]);
        assert_eq!(*lasted.last().unwrap(), 300);
        for _ in 0..12 {
            cell.forgive(now);
        }
        assert_eq!(cell.eject(now, &config) - now, config.ejection);
    }

    #[test]
    fn what_was_long_ago_counts_ever_less() {
        let cell = OutlierCell::default();
        for call in 0..100 {
            cell.note(call % 2 == 0);
        }
        let looks: Vec<CallTally> = (0..4).map(|_| cell.look()).collect();
        let expected = [tally(100, 50), tally(50, 25), tally(25, 12), tally(12, 6)];
        assert_eq!(looks, expected);
    }

    #[test]
    fn some_may_be_out_of_service_and_never_all() {
        let config = OutlierConfig::default();
        let most: Vec<usize> = (0..7).map(|members| config.most_ejected(members)).collect();
        assert_eq!(most, [0, 0, 1, 1, 2, 2, 3]);
        let all = OutlierConfig {
            max_ejection_percent: 100,
            ..config
        };
        assert_eq!(all.most_ejected(4), 3);
    }
}
