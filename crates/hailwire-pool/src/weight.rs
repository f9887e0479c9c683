//! How much of the calls a member gets beside the others: in proportion to how many it stands for, and less while it is new.
//!
//! A member's load counts by its weight, so that one with twice the weight has twice the calls in flight; and where loads are
//! equal, the time since its last turn does, so that it has twice the turns. A member in its *slow start* (Envoy's word) has a
//! tenth of its weight at first, and all of it when the window is over.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

/// The weight of a member that stands for itself.
pub(crate) const WHOLE: u64 = 1000;

/// What a member in its slow start has at least, of [`WHOLE`].
const LEAST: u64 = 100;

/// A member's weight as it changes with time.
#[derive(Debug)]
pub(crate) struct WeightCell {
    /// How many it stands for, at least 1.
    stands_for: AtomicU32,
    window: Duration,
    /// When its slow start ends, in milliseconds; 0 for none.
    warm_at_ms: AtomicU64,
}

impl WeightCell {
    /// With a slow start of `window` that begins at `joined`; none where that is zero.
    pub(crate) fn new(stands_for: u32, window: Duration, joined: Duration) -> Self {
        let cell = Self {
            stands_for: AtomicU32::new(stands_for.max(1)),
            window,
            warm_at_ms: AtomicU64::new(0),
        };
        cell.start_slowly(joined);
        cell
    }

    pub(crate) fn set(&self, stands_for: u32) {
        self.stands_for.store(stands_for.max(1), Ordering::Relaxed);
    }

    /// A slow start begins, where there is one.
    pub(crate) fn start_slowly(&self, at: Duration) {
        if !self.window.is_zero() {
            let warm = at.saturating_add(self.window).as_millis();
            let warm = u64::try_from(warm).unwrap_or(u64::MAX);
            self.warm_at_ms.store(warm, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_starting_slowly(&self, now: Duration) -> bool {
        self.left(now).is_some()
    }

    /// Its weight, [`WHOLE`] for each that it stands for.
    #[inline]
    pub(crate) fn weight(&self, now: Duration) -> u64 {
        let whole = u64::from(self.stands_for.load(Ordering::Relaxed)) * WHOLE;
        match self.left(now) {
            None => whole,
            Some(left_ms) => {
                let window = u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX);
                let share = WHOLE - (left_ms.min(window) * WHOLE / window.max(1));
                whole * share.max(LEAST) / WHOLE
            }
        }
    }

    /// Milliseconds that are left of a slow start.
    #[inline]
    fn left(&self, now: Duration) -> Option<u64> {
        let warm = self.warm_at_ms.load(Ordering::Relaxed);
        if warm == 0 {
            return None;
        }
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        warm.checked_sub(now).filter(|left| *left > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_weight_grows_from_a_tenth_to_the_whole_and_never_shrinks() {
        let cell = WeightCell::new(1, at(10_000), at(500));
        assert_eq!(cell.weight(at(500)), LEAST);
        assert_eq!(cell.weight(at(5_500)), WHOLE / 2);
        assert_eq!(cell.weight(at(10_500)), WHOLE);
        let weights: Vec<u64> = (0..20_000)
            .step_by(7)
            .map(|ms| cell.weight(at(ms)))
            .collect();
        assert!(weights.is_sorted());
        cell.set(3);
        assert_eq!(cell.weight(at(5_500)), 3 * WHOLE / 2);
        assert!(cell.is_starting_slowly(at(5_500)) && !cell.is_starting_slowly(at(10_500)));
    }

    #[test]
    fn without_a_window_a_member_has_its_whole_weight_at_once() {
        let cell = WeightCell::new(0, Duration::ZERO, at(0));
        assert_eq!(cell.weight(at(0)), WHOLE);
        cell.start_slowly(at(5));
        assert_eq!(cell.weight(at(5)), WHOLE);
    }
}
