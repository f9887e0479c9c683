//! Counts the calls in flight of a member or a slot, within a bound.

use std::sync::atomic::{AtomicU32, Ordering};

/// Set in a count that takes no more calls.
const CLOSED: u32 = 1 << 31;

/// Why a call was not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountRefusal {
    /// There are as many as may be.
    Full,
    /// It is closed.
    Closed,
}

/// Calls in flight, at most a bound of them.
#[derive(Debug)]
pub(crate) struct CallCount {
    /// How many, and [`CLOSED`].
    count: AtomicU32,
    max: AtomicU32,
}

impl CallCount {
    /// None, and at most `max`, 0 for any number.
    pub(crate) fn new(max: u32) -> Self {
        Self {
            count: AtomicU32::new(0),
            max: AtomicU32::new(bound(max)),
        }
    }

    /// Counts one more.
    #[inline]
    pub(crate) fn take(&self) -> Result<(), CountRefusal> {
        let max = self.max.load(Ordering::Acquire);
        let mut count = self.count.load(Ordering::Acquire);
        loop {
            if count & CLOSED != 0 {
                return Err(CountRefusal::Closed);
            }
            if count >= max {
                return Err(CountRefusal::Full);
            }
            match self.count.compare_exchange_weak(
                count,
                count + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(()),
                Err(current) => count = current,
            }
        }
    }

    /// Counts one more whatever the bound, also where it is closed.
    #[inline]
    pub(crate) fn take_anyway(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one less. Whether it was the last of a closed one.
    ///
    /// In the one order that all threads see, with [`CallCount::has_room`]: who says that it waits and then finds no room is heard by whoever gives
    /// back next ([`SlotWatch`](crate::SlotWatch)).
    #[inline]
    pub(crate) fn give_back(&self) -> bool {
        self.count.fetch_sub(1, Ordering::SeqCst) == CLOSED | 1
    }

    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.count.load(Ordering::Acquire) & !CLOSED
    }

    /// Whether one more would be within the bound.
    pub(crate) fn has_room(&self) -> bool {
        self.count.load(Ordering::SeqCst) & !CLOSED < self.max.load(Ordering::Acquire)
    }

    /// What is counted beyond stays.
    pub(crate) fn set_max(&self, max: u32) {
        self.max.store(bound(max), Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.count.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub(crate) fn open(&self) {
        self.count.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.count.load(Ordering::Acquire) & CLOSED != 0
    }
}

fn bound(max: u32) -> u32 {
    match max {
        0 => CLOSED - 1,
        max => max.min(CLOSED - 1),
    }
}
