//! A fixed set of slots, such as the connections to one agent, and the choice among them.
//!
//! [`crate::pool`] is for members that come and go and may be many. Here there are at most 64 that
//! stay and whose availability changes, so that "which can serve" is one word with a bit for each: a choice is
//! two loads and one compare-and-swap, whatever the strategy, and looks at the slots themselves only where
//! the strategy does. The availability of one slot is a byte of its own: a load.
//!
//! A slot that is acquired counts one more call until [`SlotSet::release`]. Whoever acquires must release, also when the
//! call is dropped; the caller keeps a guard for that.
//!
//! # Drain
//!
//! [`SlotSet::close`] makes every slot refuse. Calls that hold a slot keep it until they release it, and the release that empties the
//! set says so.

use std::{
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    availability::Availability,
    call_count::{CallCount, CountRefusal},
    last_seen::{LastSeen, LastSeenCell},
    outcome::Outcome,
    strategy::Strategy,
};

/// Why no slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoSlot {
    /// None can serve.
    Unavailable,
    /// Those that can serve have as many calls as they take.
    Full,
    /// The set is closed.
    Closed,
}

/// A set of slots.
#[derive(Debug)]
pub struct SlotSet {
    strategy: Strategy,
    availabilities: AvailabilityBytes,
    /// Whose availability is available, drawn from these.
    available: AtomicU64,
    /// Whose is degraded.
    degraded: AtomicU64,
    turn: AtomicU32,
    slots: Box<[SlotState]>,
}

/// The availability of each slot, apart from what calls write.
#[derive(Debug)]
#[repr(align(64))]
struct AvailabilityBytes([AtomicU8; MAX_SLOTS]);

/// One slot, alone on its cache lines: slots are written by every call, and beside one another.
#[derive(Debug)]
#[repr(align(128))]
struct SlotState {
    calls: CallCount,
    /// How well its calls go, 1 to 255.
    score: AtomicU32,
    last_seen: LastSeenCell,
}

/// A view of one slot, for repeated reads without another look-up.
#[derive(Clone, Copy, Debug)]
pub struct SlotView<'a> {
    availability: &'a AtomicU8,
    slot: &'a SlotState,
}

/// The most slots of a set.
pub const MAX_SLOTS: usize = 64;

const MAX_SCORE: u32 = 255;

impl SlotSet {
    /// A set of slots, from 1 to [`MAX_SLOTS`], all of them out; each takes `max` calls at once, 0 for any number.
    #[must_use]
    pub fn new(count: usize, max: u32, strategy: Strategy) -> Self {
        let slot = || SlotState {
            calls: CallCount::new(max),
            score: AtomicU32::new(MAX_SCORE),
            last_seen: LastSeenCell::default(),
        };
        Self {
            strategy,
            availabilities: AvailabilityBytes(
                [const { AtomicU8::new(Availability::Unavailable as u8) }; MAX_SLOTS],
            ),
            available: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
            turn: AtomicU32::new(0),
            slots: (0..count.clamp(1, MAX_SLOTS)).map(|_| slot()).collect(),
        }
    }

    /// How many slots there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Chooses a slot and takes it. `random` is a random number, which decides wherever chance does.
    ///
    /// # Errors
    ///
    /// [`NoSlot`].
    #[inline]
    pub fn choose(&self, random: u64) -> Result<usize, NoSlot> {
        self.choose_except(random, None)
    }

    /// Like [`SlotSet::choose`], with one slot excepted.
    ///
    /// # Errors
    ///
    /// [`NoSlot`].
    pub fn choose_except(&self, random: u64, except: Option<usize>) -> Result<usize, NoSlot> {
        let but = except.map_or(u64::MAX, |slot| !bit(slot));
        let mut why = NoSlot::Unavailable;
        for mask in [&self.available, &self.degraded] {
            let mut left = mask.load(Ordering::Acquire) & but;
            while left != 0 {
                let slot = self.pick(left, random);
                match self.try_acquire(slot) {
                    Ok(()) => return Ok(slot),
                    Err(reason) => why = reason,
                }
                left &= !bit(slot);
            }
        }
        Err(why)
    }

    /// Takes this slot, if it has room. Whether it can serve is not asked: see [`SlotSet::availability`].
    ///
    /// # Errors
    ///
    /// [`NoSlot::Full`], [`NoSlot::Closed`].
    #[inline]
    pub fn acquire(&self, slot: usize) -> Result<(), NoSlot> {
        self.try_acquire(slot)
    }

    /// Takes this slot again, for a call that goes on with what an earlier one began: also where it is full or
    /// closed, or takes nothing new.
    #[inline]
    pub fn reacquire(&self, slot: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.calls.take_anyway();
        }
    }

    /// Releases a slot; whether that emptied a closed set.
    #[inline]
    pub fn release(&self, slot: usize) -> bool {
        let Some(slot) = self.slots.get(slot) else {
            return false;
        };
        slot.calls.give_back() && self.in_flight() == 0
    }

    /// Notes what a call showed about its slot.
    #[inline]
    pub fn record(&self, slot: usize, outcome: Outcome, now: Duration) {
        let Some(slot) = self.slots.get(slot) else {
            return;
        };
        let score = slot.score.load(Ordering::Relaxed);
        match outcome {
            // Two threads that settle at once may lose one's step: it is an average, not a count.
            Outcome::Success if score < MAX_SCORE => {
                let next = score + ((MAX_SCORE - score) / 8).max(1);
                slot.score.store(next, Ordering::Relaxed);
            }
            Outcome::Success => {}
            Outcome::Failure => {
                let next = score.saturating_sub((score / 4).max(1)).max(1);
                slot.score.store(next, Ordering::Relaxed);
            }
        }
        if outcome == Outcome::Success {
            slot.last_seen.note(now);
        }
    }

    /// Notes a sign of life.
    #[inline]
    pub fn seen(&self, slot: usize, now: Duration) {
        if let Some(slot) = self.slots.get(slot) {
            slot.last_seen.note(now);
        }
    }

    /// A view of a slot.
    #[inline]
    #[must_use]
    pub fn view(&self, slot: usize) -> Option<SlotView<'_>> {
        Some(SlotView {
            availability: self.availabilities.0.get(slot)?,
            slot: self.slots.get(slot)?,
        })
    }

    /// When a slot last gave a sign of life, to the millisecond.
    #[must_use]
    pub fn last_seen(&self, slot: usize) -> Option<Duration> {
        self.view(slot)?.last_seen().at()
    }

    /// Whether a slot can serve; one that there is not, cannot.
    #[inline]
    #[must_use]
    pub fn availability(&self, slot: usize) -> Availability {
        self.availabilities
            .0
            .get(slot)
            .map_or(Availability::Unavailable, availability)
    }

    /// Says whether a slot can serve. Calls that it has stay.
    #[inline]
    pub fn set_availability(&self, slot: usize, availability: Availability) {
        // Mostly nothing has changed, and a load keeps the line shared.
        if self.availability(slot) != availability {
            self.change_availability(slot, availability);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_availability(&self, slot: usize, availability: Availability) {
        let Some(view) = self.view(slot) else {
            return;
        };
        view.availability
            .store(availability as u8, Ordering::Release);
        let mut marked = availability;
        loop {
            self.mark(slot, marked);
            // Of several who say something else at once, whoever marks last sees what was said last.
            let now = view.availability();
            if now == marked {
                return;
            }
            marked = now;
        }
    }

    /// Enters an availability in the masks: first in, then out, so that a slot that only changes its kind is never missing.
    fn mark(&self, slot: usize, availability: Availability) {
        let kinds = [
            (&self.available, Availability::Available),
            (&self.degraded, Availability::Degraded),
        ];
        for (mask, kind) in kinds {
            if kind == availability {
                mask.fetch_or(bit(slot), Ordering::AcqRel);
            }
        }
        for (mask, kind) in kinds {
            if kind != availability {
                mask.fetch_and(!bit(slot), Ordering::AcqRel);
            }
        }
    }

    /// Sets how many calls a slot takes at once, 0 for any number; what it has beyond stays.
    pub fn set_max(&self, slot: usize, max: u32) {
        if let Some(slot) = self.slots.get(slot) {
            slot.calls.set_max(max);
        }
    }

    /// How well a slot's calls went of late: see [`SlotView::score`].
    #[must_use]
    pub fn score(&self, slot: usize) -> u32 {
        self.view(slot).map_or(0, |slot| slot.score())
    }

    /// A slot begins anew, for example with a new connection: its score is the best again.
    pub fn renew(&self, slot: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.score.store(MAX_SCORE, Ordering::Relaxed);
        }
    }

    /// How many slots can serve.
    #[must_use]
    pub fn available(&self) -> u32 {
        let available = self.available.load(Ordering::Acquire);
        (available | self.degraded.load(Ordering::Acquire)).count_ones()
    }

    /// Calls on one slot.
    #[inline]
    #[must_use]
    pub fn load(&self, slot: usize) -> u32 {
        self.view(slot).map_or(0, |slot| slot.load())
    }

    /// Calls on all slots.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        (0..self.count()).map(|slot| self.load(slot)).sum()
    }

    /// Refuses whoever comes from now on; whether the set is empty already.
    pub fn close(&self) -> bool {
        for slot in &self.slots {
            slot.calls.close();
        }
        self.in_flight() == 0
    }

    /// Opens a closed set again.
    pub fn open(&self) {
        for slot in &self.slots {
            slot.calls.open();
        }
    }

    /// Whether it is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let first = self.slots.first();
        first.is_some_and(|slot| slot.calls.is_closed())
    }

    #[inline]
    fn try_acquire(&self, slot: usize) -> Result<(), NoSlot> {
        let slot = self.slots.get(slot).ok_or(NoSlot::Unavailable)?;
        slot.calls.take().map_err(|refusal| match refusal {
            CountRefusal::Full => NoSlot::Full,
            CountRefusal::Closed => NoSlot::Closed,
        })
    }

    /// One of the slots of a mask that is not empty.
    #[inline]
    fn pick(&self, mask: u64, random: u64) -> usize {
        let count = mask.count_ones();
        match self.strategy {
            Strategy::RoundRobin => nth(mask, self.turn.fetch_add(1, Ordering::Relaxed) % count),
            Strategy::LeastLoaded => self.least(mask, part(random, count)),
            Strategy::HealthWeighted => self.weighted(mask, random),
            Strategy::Random => nth(mask, part(random, count)),
            Strategy::TwoChoices => {
                let first = part(random, count);
                // Another one, unless there is no other.
                let step = 1 + part(random << 32, count.saturating_sub(1));
                let second = if first + step < count {
                    first + step
                } else {
                    (first + step).saturating_sub(count)
                };
                let (first, second) = (nth(mask, first), nth(mask, second));
                if self.load(second) < self.load(first) {
                    second
                } else {
                    first
                }
            }
        }
    }

    /// The one with the fewest calls, chance deciding among equals.
    #[inline]
    fn least(&self, mask: u64, start: u32) -> usize {
        let start = nth(mask, start);
        let (mut best, mut least) = (start, self.load(start));
        let mut left = mask & !bit(start);
        while left != 0 && least > 0 {
            let slot = nth(left, 0);
            left &= left - 1;
            let load = self.load(slot);
            if load < least {
                (best, least) = (slot, load);
            }
        }
        best
    }

    #[inline]
    fn weighted(&self, mask: u64, random: u64) -> usize {
        let mut total = 0;
        let mut left = mask;
        while left != 0 {
            total += self.score(nth(left, 0));
            left &= left - 1;
        }
        let mut point = part(random, total);
        let mut left = mask;
        while left & (left - 1) != 0 {
            let weight = self.score(nth(left, 0));
            if point < weight {
                break;
            }
            point -= weight;
            left &= left - 1;
        }
        nth(left, 0)
    }
}

impl SlotView<'_> {
    /// Whether it can serve.
    #[inline]
    #[must_use]
    pub fn availability(&self) -> Availability {
        availability(self.availability)
    }

    /// When it last gave a sign of life.
    #[inline]
    #[must_use]
    pub fn last_seen(&self) -> LastSeen {
        self.slot.last_seen.get()
    }

    /// How well its calls went of late, 1 to 255: an average in which each weighs an eighth, a failed one a quarter.
    #[inline]
    #[must_use]
    pub fn score(&self) -> u32 {
        self.slot.score.load(Ordering::Relaxed)
    }

    /// Calls on it.
    #[inline]
    #[must_use]
    pub fn load(&self) -> u32 {
        self.slot.calls.get()
    }
}

#[inline]
fn availability(of: &AtomicU8) -> Availability {
    match of.load(Ordering::Acquire) {
        byte if byte == Availability::Available as u8 => Availability::Available,
        byte if byte == Availability::Degraded as u8 => Availability::Degraded,
        _ => Availability::Unavailable,
    }
}

#[inline]
fn bit(slot: usize) -> u64 {
    1_u64
        .checked_shl(u32::try_from(slot).unwrap_or(u32::MAX))
        .unwrap_or(0)
}

/// A number below `count`, or 0, by the upper half of a random number (Lemire, 2019, without its correction, which is
/// below a millionth here).
#[inline]
fn part(random: u64, count: u32) -> u32 {
    u32::try_from(((random >> 32) * u64::from(count)) >> 32).unwrap_or(0)
}

/// The n-th of a mask's slots, from 0.
#[inline]
fn nth(mut mask: u64, n: u32) -> usize {
    for _ in 0..n {
        mask &= mask - 1;
    }
    mask.trailing_zeros() as usize
}
