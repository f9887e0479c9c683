//! When a member takes calls beside the others of its group, in the words of NATS' priority groups (ADR-42).

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// When a member takes calls, as far as others of its group can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PriorityPolicy {
    /// It takes calls while none with a lower number is in service and has room. Default: 0, so that all are equal.
    Prioritised(u8),
    /// It takes calls only while each of those that are no overflow has so many under way at least, or none of them is in service.
    Overflow {
        /// Calls under way of each of the others.
        above: u32,
    },
    /// Of the pinned members one takes all calls, until it is gone, out of service, or had none under way for so long; then another is chosen. Others of the
    /// group are called where no pinned one is in service.
    Pinned {
        /// How long without a call another is chosen.
        idle: Duration,
    },
}

impl Default for PriorityPolicy {
    fn default() -> Self {
        Self::Prioritised(0)
    }
}

impl PriorityPolicy {
    /// Its number among those that are in service; overflow and pinned ones have none.
    #[inline]
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Prioritised(number) => number,
            Self::Overflow { .. } | Self::Pinned { .. } => 0,
        }
    }

    pub(crate) const fn is_pinned(self) -> bool {
        matches!(self, Self::Pinned { .. })
    }

    pub(crate) const fn is_overflow(self) -> bool {
        matches!(self, Self::Overflow { .. })
    }
}

/// Which of the pinned members has the calls, and when it had the last.
#[derive(Debug, Default)]
pub(crate) struct GroupPin {
    /// The member's serial number in its pool; 0 for none.
    member: AtomicU64,
    used_ms: AtomicU64,
}

impl GroupPin {
    pub(crate) fn member(&self) -> u64 {
        self.member.load(Ordering::Acquire)
    }

    /// Whether it had no call for so long.
    pub(crate) fn is_idle(&self, now: Duration, idle: Duration) -> bool {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Acquire));
        now.saturating_sub(used) > idle
    }

    /// Chooses another; false if somebody else did since `seen` was read.
    pub(crate) fn choose(&self, seen: u64, member: u64) -> bool {
        let chosen =
            self.member
                .compare_exchange(seen, member, Ordering::AcqRel, Ordering::Acquire);
        chosen.is_ok()
    }

    pub(crate) fn note_use(&self, now: Duration) {
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.used_ms.fetch_max(now_ms, Ordering::AcqRel);
    }
}
