//! A fixed row of seats, such as the connections to one agent, and the choice among them.
//!
//! [`crate::pool`] is for members that come and go and may be many. Here there are at most 64 that
//! stay and whose standing changes, so that "who can serve" is one word with a bit for each: a choice is
//! two loads and one compare-and-swap, whatever the strategy, and looks at the seats themselves only where
//! the strategy does. How one seat stands is a byte of its own: a load.
//!
//! A seat that is entered counts one more call until [`SlotSet::leave`]. Whoever enters must leave, also when the
//! call is dropped; the shell has a guard for that.
//!
//! # Drain
//!
//! [`SlotSet::close`] makes every seat refuse. What is seated stays until it leaves, and the leave that empties the
//! row says so.

use std::{
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use crate::{member::Outcome, pool::Strategy};

/// How gladly a seat is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Availability {
    /// It takes its turn.
    Good,
    /// Only where no good one has room.
    Fair,
    /// Not now.
    #[default]
    Out,
}

/// Why no seat was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoSlot {
    /// None can serve.
    Out,
    /// Those that can serve have as many calls as they take.
    Full,
    /// The row is closed.
    Closed,
}

/// The row.
#[derive(Debug)]
pub struct SlotSet {
    strategy: Strategy,
    standings: AvailabilityBytes,
    /// Whose standing is good, drawn from these.
    good: AtomicU64,
    /// Whose is fair.
    fair: AtomicU64,
    turn: AtomicU32,
    row: Box<[SlotState]>,
}

/// How each seat stands, a [`Availability`], away from what calls write.
#[derive(Debug)]
#[repr(align(64))]
struct AvailabilityBytes([AtomicU8; MOST_SEATS]);

/// One seat, alone on its cache lines: seats are written by every call, and beside one another.
#[derive(Debug)]
#[repr(align(128))]
struct SlotState {
    /// Calls in flight, and [`CLOSED`].
    load: AtomicU32,
    max: AtomicU32,
    /// How well its calls go, 1 to 255.
    score: AtomicU32,
    /// Milliseconds plus one, 0 for never.
    last_seen: AtomicU64,
}

/// One seat, looked at again and again without being looked for.
#[derive(Clone, Copy, Debug)]
pub struct SlotView<'a> {
    standing: &'a AtomicU8,
    seat: &'a SlotState,
}

/// When a seat last gave a sign of life, as it is kept. A later one is greater; never is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LastSeen(u64);

/// The most seats of a row.
pub const MOST_SEATS: usize = 64;

const CLOSED: u32 = 1 << 31;
const BEST: u32 = 255;

impl SlotSet {
    /// A row of seats, from 1 to [`MOST_SEATS`], all of them out; each takes `max` calls at once, 0 for any number.
    #[must_use]
    pub fn new(count: usize, max: u32, strategy: Strategy) -> Self {
        let seat = || SlotState {
            load: AtomicU32::new(0),
            max: AtomicU32::new(bound(max)),
            score: AtomicU32::new(BEST),
            last_seen: AtomicU64::new(0),
        };
        Self {
            strategy,
            standings: AvailabilityBytes(
                [const { AtomicU8::new(Availability::Out as u8) }; MOST_SEATS],
            ),
            good: AtomicU64::new(0),
            fair: AtomicU64::new(0),
            turn: AtomicU32::new(0),
            row: (0..count.clamp(1, MOST_SEATS)).map(|_| seat()).collect(),
        }
    }

    /// How many seats there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.row.len()
    }

    /// Chooses a seat and takes it. `lot` is a random number, which decides wherever chance does.
    ///
    /// # Errors
    ///
    /// [`NoSlot`].
    #[inline]
    pub fn choose(&self, lot: u64) -> Result<usize, NoSlot> {
        self.choose_but(lot, None)
    }

    /// Like [`SlotSet::choose`], with one seat excepted.
    ///
    /// # Errors
    ///
    /// [`NoSlot`].
    pub fn choose_but(&self, lot: u64, except: Option<usize>) -> Result<usize, NoSlot> {
        let but = except.map_or(u64::MAX, |seat| !bit(seat));
        let mut why = NoSlot::Out;
        for mask in [&self.good, &self.fair] {
            let mut left = mask.load(Ordering::Acquire) & but;
            while left != 0 {
                let seat = self.draw(left, lot);
                match self.take(seat) {
                    Ok(()) => return Ok(seat),
                    Err(reason) => why = reason,
                }
                left &= !bit(seat);
            }
        }
        Err(why)
    }

    /// Takes this seat, if it has room. Whether it can serve is not asked: see [`SlotSet::standing`].
    ///
    /// # Errors
    ///
    /// [`NoSlot::Full`], [`NoSlot::Closed`].
    #[inline]
    pub fn enter(&self, seat: usize) -> Result<(), NoSlot> {
        self.take(seat)
    }

    /// Takes this seat again, for a call that goes on with what an earlier one began: also where it is full or
    /// closed, or takes nothing new.
    #[inline]
    pub fn rejoin(&self, seat: usize) {
        if let Some(seat) = self.row.get(seat) {
            seat.load.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Gives a seat back; whether that emptied a closed row.
    #[inline]
    pub fn leave(&self, seat: usize) -> bool {
        let Some(seat) = self.row.get(seat) else {
            return false;
        };
        let before = seat.load.fetch_sub(1, Ordering::AcqRel);
        before == CLOSED | 1 && self.in_flight() == 0
    }

    /// Notes what a call showed about its seat.
    #[inline]
    pub fn settle(&self, seat: usize, outcome: Outcome, now: Duration) {
        let Some(seat) = self.row.get(seat) else {
            return;
        };
        let score = seat.score.load(Ordering::Relaxed);
        match outcome {
            // Two threads that settle at once may lose one's step: it is an average, not a count.
            Outcome::Success if score < BEST => {
                let next = score + ((BEST - score) / 8).max(1);
                seat.score.store(next, Ordering::Relaxed);
            }
            Outcome::Success => {}
            Outcome::Failure => {
                let next = score.saturating_sub((score / 4).max(1)).max(1);
                seat.score.store(next, Ordering::Relaxed);
            }
        }
        if outcome == Outcome::Success {
            seat.last_seen.store(stamp(now), Ordering::Relaxed);
        }
    }

    /// Notes a sign of life.
    #[inline]
    pub fn seen(&self, seat: usize, now: Duration) {
        if let Some(seat) = self.row.get(seat) {
            seat.last_seen.store(stamp(now), Ordering::Relaxed);
        }
    }

    /// A seat, to be looked at.
    #[inline]
    #[must_use]
    pub fn look(&self, seat: usize) -> Option<SlotView<'_>> {
        Some(SlotView {
            standing: self.standings.0.get(seat)?,
            seat: self.row.get(seat)?,
        })
    }

    /// When a seat last gave a sign of life, to the millisecond.
    #[must_use]
    pub fn last_seen(&self, seat: usize) -> Option<Duration> {
        self.look(seat)?.last_seen().at()
    }

    /// Whether a seat can serve; one that there is not, cannot.
    #[inline]
    #[must_use]
    pub fn standing(&self, seat: usize) -> Availability {
        self.standings
            .0
            .get(seat)
            .map_or(Availability::Out, standing)
    }

    /// Says whether a seat can serve. Calls that it has stay.
    #[inline]
    pub fn set_standing(&self, seat: usize, standing: Availability) {
        // Mostly nothing has changed, and a load keeps the line shared.
        if self.standing(seat) != standing {
            self.change_standing(seat, standing);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_standing(&self, seat: usize, standing: Availability) {
        let Some(look) = self.look(seat) else {
            return;
        };
        look.standing.store(standing as u8, Ordering::Release);
        let mut marked = standing;
        loop {
            self.mark(seat, marked);
            // Of several who say something else at once, whoever marks last sees what was said last.
            let now = look.standing();
            if now == marked {
                return;
            }
            marked = now;
        }
    }

    /// Enters a standing in the masks: first in, then out, so that a seat that only changes its kind is never missing.
    fn mark(&self, seat: usize, standing: Availability) {
        let kinds = [
            (&self.good, Availability::Good),
            (&self.fair, Availability::Fair),
        ];
        for (mask, kind) in kinds {
            if kind == standing {
                mask.fetch_or(bit(seat), Ordering::AcqRel);
            }
        }
        for (mask, kind) in kinds {
            if kind != standing {
                mask.fetch_and(!bit(seat), Ordering::AcqRel);
            }
        }
    }

    /// Sets how many calls a seat takes at once, 0 for any number; what it has beyond stays.
    pub fn set_max(&self, seat: usize, max: u32) {
        if let Some(seat) = self.row.get(seat) {
            seat.max.store(bound(max), Ordering::Release);
        }
    }

    /// How well a seat's calls went of late: see [`SlotView::score`].
    #[must_use]
    pub fn score(&self, seat: usize) -> u32 {
        self.look(seat).map_or(0, |seat| seat.score())
    }

    /// A seat begins anew, for example with a new connection: its score is the best again.
    pub fn renew(&self, seat: usize) {
        if let Some(seat) = self.row.get(seat) {
            seat.score.store(BEST, Ordering::Relaxed);
        }
    }

    /// How many seats can serve.
    #[must_use]
    pub fn able(&self) -> u32 {
        let good = self.good.load(Ordering::Acquire);
        (good | self.fair.load(Ordering::Acquire)).count_ones()
    }

    /// Calls on one seat.
    #[inline]
    #[must_use]
    pub fn load(&self, seat: usize) -> u32 {
        self.look(seat).map_or(0, |seat| seat.load())
    }

    /// Calls on all seats.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        (0..self.count()).map(|seat| self.load(seat)).sum()
    }

    /// Refuses whoever comes from now on; whether the row is empty already.
    pub fn close(&self) -> bool {
        for seat in &self.row {
            seat.load.fetch_or(CLOSED, Ordering::AcqRel);
        }
        self.in_flight() == 0
    }

    /// Opens a closed row again.
    pub fn open(&self) {
        for seat in &self.row {
            seat.load.fetch_and(!CLOSED, Ordering::AcqRel);
        }
    }

    /// Whether it is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let first = self.row.first();
        first.is_some_and(|seat| seat.load.load(Ordering::Acquire) & CLOSED != 0)
    }

    #[inline]
    fn take(&self, seat: usize) -> Result<(), NoSlot> {
        let seat = self.row.get(seat).ok_or(NoSlot::Out)?;
        let max = seat.max.load(Ordering::Acquire);
        let mut load = seat.load.load(Ordering::Acquire);
        loop {
            if load & CLOSED != 0 {
                return Err(NoSlot::Closed);
            }
            if load >= max {
                return Err(NoSlot::Full);
            }
            match seat.load.compare_exchange_weak(
                load,
                load + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(()),
                Err(current) => load = current,
            }
        }
    }

    /// One of the seats of a mask that is not empty.
    #[inline]
    fn draw(&self, mask: u64, lot: u64) -> usize {
        let count = mask.count_ones();
        match self.strategy {
            Strategy::RoundRobin => nth(mask, self.turn.fetch_add(1, Ordering::Relaxed) % count),
            Strategy::LeastLoaded => self.least(mask, part(lot, count)),
            Strategy::HealthWeighted => self.weighted(mask, lot),
            Strategy::Random => nth(mask, part(lot, count)),
            Strategy::TwoChoices => {
                let first = part(lot, count);
                // Another one, unless there is no other.
                let step = 1 + part(lot << 32, count.saturating_sub(1));
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
            let seat = nth(left, 0);
            left &= left - 1;
            let load = self.load(seat);
            if load < least {
                (best, least) = (seat, load);
            }
        }
        best
    }

    #[inline]
    fn weighted(&self, mask: u64, lot: u64) -> usize {
        let mut total = 0;
        let mut left = mask;
        while left != 0 {
            total += self.score(nth(left, 0));
            left &= left - 1;
        }
        let mut point = part(lot, total);
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
    pub fn standing(&self) -> Availability {
        standing(self.standing)
    }

    /// When it last gave a sign of life.
    #[inline]
    #[must_use]
    pub fn last_seen(&self) -> LastSeen {
        LastSeen(self.seat.last_seen.load(Ordering::Relaxed))
    }

    /// How well its calls went of late, 1 to 255: an average in which each weighs an eighth, a failed one a quarter.
    #[inline]
    #[must_use]
    pub fn score(&self) -> u32 {
        self.seat.score.load(Ordering::Relaxed)
    }

    /// Calls on it.
    #[inline]
    #[must_use]
    pub fn load(&self) -> u32 {
        self.seat.load.load(Ordering::Acquire) & !CLOSED
    }
}

impl LastSeen {
    /// The moment, to the millisecond; `None` for never.
    #[must_use]
    pub fn at(self) -> Option<Duration> {
        self.0.checked_sub(1).map(Duration::from_millis)
    }
}

#[inline]
fn standing(of: &AtomicU8) -> Availability {
    match of.load(Ordering::Acquire) {
        byte if byte == Availability::Good as u8 => Availability::Good,
        byte if byte == Availability::Fair as u8 => Availability::Fair,
        _ => Availability::Out,
    }
}

fn bound(max: u32) -> u32 {
    match max {
        0 => CLOSED - 1,
        max => max.min(CLOSED - 1),
    }
}

#[inline]
fn bit(seat: usize) -> u64 {
    1_u64
        .checked_shl(u32::try_from(seat).unwrap_or(u32::MAX))
        .unwrap_or(0)
}

/// A number below `count`, or 0, by the upper half of a random number (Lemire, 2019, without its correction, which is
/// below a millionth here).
#[inline]
fn part(lot: u64, count: u32) -> u32 {
    u32::try_from(((lot >> 32) * u64::from(count)) >> 32).unwrap_or(0)
}

/// The n-th of a mask's seats, from 0.
#[inline]
fn nth(mut mask: u64, n: u32) -> usize {
    for _ in 0..n {
        mask &= mask - 1;
    }
    mask.trailing_zeros() as usize
}

#[inline]
fn stamp(now: Duration) -> u64 {
    now.as_secs() * 1_000 + u64::from(now.subsec_millis()) + 1
}
