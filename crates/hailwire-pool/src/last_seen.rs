//! When a member or a slot last gave a sign of life.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// When a slot last gave a sign of life, as it is kept. A later one is greater; never is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LastSeen(u64);

impl LastSeen {
    /// The moment, to the millisecond; `None` for never.
    #[must_use]
    pub fn at(self) -> Option<Duration> {
        self.0.checked_sub(1).map(Duration::from_millis)
    }
}

/// Holds it, at first never: milliseconds plus one, 0 for never.
#[derive(Debug, Default)]
pub(crate) struct LastSeenCell(AtomicU64);

impl LastSeenCell {
    /// Notes a sign of life, unless a later one was noted. Of two that are noted at once either may be kept: they are a moment
    /// apart.
    #[inline]
    pub(crate) fn note(&self, now: Duration) {
        let stamp = now.as_secs() * 1_000 + u64::from(now.subsec_millis()) + 1;
        if self.0.load(Ordering::Relaxed) < stamp {
            self.0.store(stamp, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> LastSeen {
        LastSeen(self.0.load(Ordering::Relaxed))
    }
}
