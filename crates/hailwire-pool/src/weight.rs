//! How much of the calls a member gets beside the others: in proportion to how many it stands for, and less while it is new.
//!
//! A member's load counts by its weight, so that one with twice the weight has twice the calls in flight; and where loads are
//! equal, the time since its last turn does, so that it has twice the turns. A member in its *slow start* (Envoy's word) has a
//! tenth of its weight at first, and all of it when the window is over.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::clock::millis;

/// The weight of a member that stands for itself: a power of two, so that what it is multiplied with is shifted.
pub(crate) const WHOLE: u64 = 1024;

/// What a member in its slow start has at least, of [`WHOLE`].
const LEAST: u64 = WHOLE / 10;

/// Of a word: above how many a member stands for, below when its slow start ends in milliseconds, 0 for none.
const MEMBERS_SHIFT: u32 = 48;
const WARM_MASK: u64 = (1 << MEMBERS_SHIFT) - 1;

/// The word of nearly every member.
const PLAIN: u64 = 1 << MEMBERS_SHIFT;

/// A member's weight as it changes with time.
#[derive(Debug)]
pub(crate) struct WeightCell {
    word: AtomicU64,
    window_ms: u64,
}

impl WeightCell {
    /// With a slow start of `window` that begins at `joined`; none where that is zero.
    pub(crate) fn new(stands_for: u32, window: Duration, joined: Duration) -> Self {
        let cell = Self {
            word: AtomicU64::new(members_part(stands_for)),
            window_ms: millis(window),
        };
        cell.start_slowly(joined);
        cell
    }

    pub(crate) fn stands_for(&self) -> u32 {
        u32::try_from(self.word.load(Ordering::Relaxed) >> MEMBERS_SHIFT).unwrap_or(u32::MAX)
    }

    pub(crate) fn set(&self, stands_for: u32) {
        self.change(|word| members_part(stands_for) | word & WARM_MASK);
    }

    /// A slow start begins, where there is one.
    pub(crate) fn start_slowly(&self, at: Duration) {
        if self.window_ms > 0 {
            let warm = millis(at).saturating_add(self.window_ms).min(WARM_MASK);
            self.change(|word| word & !WARM_MASK | warm);
        }
    }

    pub(crate) fn is_starting_slowly(&self, now: Duration) -> bool {
        self.word.load(Ordering::Relaxed) & WARM_MASK > millis(now)
    }

    /// Its weight, [`WHOLE`] for each that it stands for.
    #[inline]
    pub(crate) fn weight(&self, now: Duration) -> u64 {
        match self.word.load(Ordering::Relaxed) {
            PLAIN => WHOLE,
            word => self.weight_of(word, now),
        }
    }

    #[cold]
    fn weight_of(&self, word: u64, now: Duration) -> u64 {
        let whole = (word >> MEMBERS_SHIFT) * WHOLE;
        let left = (word & WARM_MASK).saturating_sub(millis(now));
        if left == 0 {
            // The next one is told with one look.
            let over = word & !WARM_MASK;
            let _ = self
                .word
                .compare_exchange(word, over, Ordering::Relaxed, Ordering::Relaxed);
            return whole;
        }
        let window = self.window_ms.max(1);
        let share = WHOLE - left.min(window).saturating_mul(WHOLE) / window;
        whole * share.max(LEAST) / WHOLE
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        let changed = |word| Some(change(word));
        // It always changes something, so it does not fail.
        let _ = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }
}

fn members_part(stands_for: u32) -> u64 {
    u64::from(stands_for.clamp(1, u32::from(u16::MAX))) << MEMBERS_SHIFT
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
        assert!(!cell.is_starting_slowly(at(10_500)));
        let cell = WeightCell::new(1, at(10_000), at(500));
        let weights: Vec<u64> = (0..20_000)
            .step_by(7)
            .map(|ms| cell.weight(at(ms)))
            .collect();
        assert!(weights.is_sorted());
        let cell = WeightCell::new(1, at(10_000), at(500));
        cell.set(3);
        assert_eq!(cell.weight(at(5_600)), 3 * (WHOLE - 4_900 * WHOLE / 10_000));
        assert!(cell.is_starting_slowly(at(10_499)) && !cell.is_starting_slowly(at(10_500)));
    }

    #[test]
    fn without_a_window_a_member_has_its_whole_weight_at_once() {
        let cell = WeightCell::new(0, Duration::ZERO, at(0));
        assert_eq!(cell.weight(at(0)), WHOLE);
        cell.start_slowly(at(5));
        assert_eq!(cell.weight(at(5)), WHOLE);
    }
}
