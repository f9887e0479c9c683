//! Who is carried when, by a relay that is to carry no more than so many bytes a second.
//!
//! Max-min fairness between members: when several want more than there is, each gets an equal part, and what one leaves is shared by the
//! others. A member that sends less than its part never waits, whatever the others send.
//!
//! It follows generalized processor sharing (Parekh and Gallager, 1993). What a member was let through is its debt, and the debts of all
//! that have one are paid down at the same speed: together at the relay's rate. A member may pass while its debt is within [`BURST`], or
//! what the relay carries in 5 ms where that is more. So a relay carries in any time no more than its rate allows and one burst with one
//! frame for each member that sends. All is counted in billionths of a byte, which a rate pays each nanosecond.
//!
//! Each member may have a rate of its own beside it, which it keeps even where nobody else sends.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    time::{Duration, Instant},
};

/// Bytes that a member may be ahead of its part, about one of the largest frames.
pub const BURST: u64 = 64 * 1024;

/// The time that a burst lasts where the rate is high, longer than the steps of a runtime's timers.
const BURST_TIME: Duration = Duration::from_millis(5);

/// After which time whoever waits asks again: others may have begun or stopped to send.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// How long a member's frames may wait at its part of the rate; beyond that the newest are dropped, as on any link that is full.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Members with a rate of their own that are remembered before those that are within it are forgotten.
const REMEMBERED: usize = 64;

/// Billionths of a byte.
const UNIT: u128 = 1_000_000_000;

/// What a relay carries, in bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayRates {
    /// For all members together.
    pub whole: Option<NonZeroU32>,
    /// For each member.
    pub each: Option<NonZeroU32>,
}

impl RelayRates {
    /// Whether it carries whatever comes.
    #[must_use]
    pub fn unlimited(self) -> bool {
        self == Self::default()
    }
}

/// What a relay carries for whom.
#[derive(Debug)]
pub struct RelayShare<M> {
    rates: RelayRates,
    /// Up to when debts are paid.
    paid: Option<Instant>,
    /// What each member that was always in debt has paid so far.
    level: u128,
    /// What was left when that was divided.
    rest: u128,
    /// The level at which the debt of a member is paid, of those that have one.
    debts: BTreeMap<M, u128>,
    /// The same in order.
    order: BTreeSet<(u128, M)>,
    /// When what a member sent is paid at its own rate.
    own: BTreeMap<M, Instant>,
    /// How many of those are remembered before one looks whom to forget.
    remembered: usize,
}

impl<M: Copy + Ord> RelayShare<M> {
    /// Nobody has sent anything.
    #[must_use]
    pub fn new(rates: RelayRates) -> Self {
        Self {
            rates,
            paid: None,
            level: 0,
            rest: 0,
            debts: BTreeMap::new(),
            order: BTreeSet::new(),
            own: BTreeMap::new(),
            remembered: REMEMBERED,
        }
    }

    /// Lets `bytes` of a member through.
    ///
    /// # Errors
    ///
    /// Not yet: when to ask again. Nothing is charged.
    pub fn pass(&mut self, member: M, bytes: usize, now: Instant) -> Result<(), Instant> {
        self.pay(now);
        let wait = self.wait_for_all(member).max(self.wait_alone(member, now));
        if !wait.is_zero() {
            return Err(now + wait.min(ASK_AGAIN));
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.rates.whole.is_some() {
            let since = self.debts.get(&member).copied();
            let until = since.unwrap_or(self.level) + u128::from(bytes) * UNIT;
            if let Some(since) = since {
                self.order.remove(&(since, member));
            }
            self.debts.insert(member, until);
            self.order.insert((until, member));
        }
        if let Some(rate) = self.rates.each {
            let since = self.own.get(&member).copied().unwrap_or(now).max(now);
            self.own.insert(member, since + time(bytes.into(), rate));
            self.forget(now);
        }
        Ok(())
    }

    /// How many bytes of a member are worth keeping until they can pass: those that do within 100 ms.
    #[must_use]
    pub fn worth_keeping(&self, member: M) -> usize {
        let others = self.debts.len() - usize::from(self.debts.contains_key(&member));
        let part = |rate: NonZeroU32, parts: usize| {
            let bytes = u128::from(rate.get()) * LONGEST_WAIT.as_millis() / 1000;
            usize::try_from(bytes / parts as u128).unwrap_or(usize::MAX)
        };
        let whole = self.rates.whole.map_or(usize::MAX, |w| part(w, others + 1));
        let each = self.rates.each.map_or(usize::MAX, |each| part(each, 1));
        whole.min(each)
    }

    /// Pays the debts up to now, of those that have one the same for each.
    fn pay(&mut self, now: Instant) {
        let since = self.paid.unwrap_or(now);
        self.paid = Some(since.max(now));
        let Some(rate) = self.rates.whole else { return };
        let passed = now.saturating_duration_since(since).as_nanos();
        let mut money = u128::from(rate.get()).saturating_mul(passed) + self.rest;
        self.rest = 0;
        while let Some(&(until, member)) = self.order.first() {
            let members = self.order.len() as u128;
            let all = (until - self.level).saturating_mul(members);
            if money < all {
                self.level += money / members;
                self.rest = money % members;
                return;
            }
            money -= all;
            self.level = until;
            self.order.pop_first();
            self.debts.remove(&member);
        }
        self.level = 0;
    }

    /// How long until the member's debt is within a burst, if those that are in debt stay so.
    fn wait_for_all(&self, member: M) -> Duration {
        let (Some(rate), Some(until)) = (self.rates.whole, self.debts.get(&member)) else {
            return Duration::ZERO;
        };
        let beyond = (until - self.level).saturating_sub(u128::from(burst(rate)) * UNIT);
        let bytes = beyond
            .saturating_mul(self.order.len() as u128)
            .div_ceil(UNIT);
        time(bytes, rate)
    }

    /// How long until what the member has sent is within a burst at its own rate.
    fn wait_alone(&self, member: M, now: Instant) -> Duration {
        let (Some(rate), Some(paid)) = (self.rates.each, self.own.get(&member)) else {
            return Duration::ZERO;
        };
        let ahead = paid.saturating_duration_since(now);
        ahead.saturating_sub(time(burst(rate).into(), rate))
    }

    /// Forgets members that are within their own rate, each time that there are twice as many as the last time.
    fn forget(&mut self, now: Instant) {
        if self.own.len() > self.remembered {
            self.own.retain(|_, paid| *paid > now);
            self.remembered = REMEMBERED.max(2 * self.own.len());
        }
    }
}

/// How many bytes a member may be ahead at a rate.
fn burst(rate: NonZeroU32) -> u64 {
    let long = u128::from(rate.get()) * BURST_TIME.as_millis() / 1000;
    BURST.max(u64::try_from(long).unwrap_or(u64::MAX))
}

/// How long so many bytes take, rounded up.
fn time(bytes: u128, rate: NonZeroU32) -> Duration {
    let nanos = bytes.saturating_mul(UNIT).div_ceil(u128::from(rate.get()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
