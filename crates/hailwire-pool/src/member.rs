//! One member of a group.
//!
//! What a member is (key, value, tier, bound, policy) is fixed when it joins; what happens to it (calls in
//! flight, health, weight, when it was last seen) lies in atomics.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    availability::Availability,
    call_count::CallCount,
    health::{CallAdmission, HealthCell, HealthConfig, MemberHealth, ProbeClaim},
    last_seen::LastSeenCell,
    outcome::Outcome,
    outlier::{CallTally, OutlierCell, OutlierConfig},
    priority::PriorityPolicy,
    rendezvous::MemberPlace,
    slot_watch::SlotWatch,
    weight::WeightCell,
};

/// How near a member is. A nearer one is preferred as long as it is healthy and has room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// On this machine.
    #[default]
    Local,
    /// Behind a tunnel.
    Remote,
}

/// What is settled when a member joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberConfig {
    /// How near it is. Default [`Tier::Local`].
    pub tier: Tier,
    /// Calls that it takes at once. Default 0, which means no bound.
    pub max_concurrency: u32,
    /// Which keys go to it. Members of equal places share theirs: the oldest has them. Default: the same for all.
    pub place: MemberPlace,
    /// When it takes calls beside the others. Default: always.
    pub policy: PriorityPolicy,
    /// How many members it stands for, as a node that has several of the name: it gets the calls of as many. Default 0, which is read as 1.
    pub stands_for: u32,
    /// For how long it gets fewer calls than the others after it joined, was down or ejected. Default zero: all of them at once.
    pub slow_start: Duration,
    /// When it joined, by the pool's clock.
    pub joined: Duration,
}

/// What a member is at one moment, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It takes calls.
    Healthy,
    /// It takes calls, fewer than the others.
    SlowStart,
    /// It failed of late, and is passed over.
    Suspect,
    /// It is out of service, because its calls fail more often than those of others.
    Ejected,
    /// It is out of service, because it failed several times in a row.
    Down,
    /// It is to be removed, and called only where no other member is.
    Leaving,
}

/// One member of a group, with its state.
#[derive(Debug)]
pub struct Member<K, V> {
    key: K,
    value: V,
    config: MemberConfig,
    health_config: HealthConfig,
    in_flight: CallCount,
    /// The pool's turn at which it was picked last, 0 for never.
    turn: AtomicU64,
    last_seen: LastSeenCell,
    health: HealthCell,
    outlier: OutlierCell,
    weight: WeightCell,
    leaving: AtomicBool,
    watch: Option<Arc<dyn SlotWatch>>,
    /// Told it by its pool, where each has another; never 0.
    serial: u64,
}

impl<K, V> Member<K, V> {
    pub(crate) fn new(
        key: K,
        value: V,
        serial: u64,
        config: MemberConfig,
        health_config: HealthConfig,
        watch: Option<Arc<dyn SlotWatch>>,
    ) -> Self {
        Self {
            key,
            value,
            config,
            health_config,
            in_flight: CallCount::new(config.max_concurrency),
            turn: AtomicU64::new(0),
            last_seen: LastSeenCell::default(),
            health: HealthCell::default(),
            outlier: OutlierCell::default(),
            weight: WeightCell::new(config.stands_for, config.slow_start, config.joined),
            leaving: AtomicBool::new(false),
            watch,
            serial,
        }
    }

    /// What tells it from the other members of its group.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// What a call is dispatched with, for example a connection.
    #[must_use]
    pub fn value(&self) -> &V {
        &self.value
    }

    /// How near it is.
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.config.tier
    }

    /// Calls that it takes at once; 0 for no bound.
    #[must_use]
    pub fn max_concurrency(&self) -> u32 {
        self.config.max_concurrency
    }

    /// Which keys go to it.
    #[must_use]
    pub fn place(&self) -> MemberPlace {
        self.config.place
    }

    /// When it takes calls beside the others of its group.
    #[must_use]
    pub fn policy(&self) -> PriorityPolicy {
        self.config.policy
    }

    /// How many members it stands for.
    #[must_use]
    pub fn stands_for(&self) -> u32 {
        self.weight.stands_for()
    }

    /// From now on it stands for so many members; 0 is read as 1.
    pub fn set_stands_for(&self, members: u32) {
        self.weight.set(members);
    }

    /// It is to be removed: from now on it is picked only where no other is.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether it is to be removed.
    #[must_use]
    #[inline]
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// What it is at this moment.
    #[must_use]
    pub fn state(&self, now: Duration) -> MemberState {
        match self.health() {
            _ if self.is_leaving() => MemberState::Leaving,
            MemberHealth::Down { .. } => MemberState::Down,
            _ if self.is_ejected(now) => MemberState::Ejected,
            MemberHealth::Suspect { until } if now < until => MemberState::Suspect,
            _ if self.weight.is_starting_slowly(now) => MemberState::SlowStart,
            MemberHealth::Suspect { .. } | MemberHealth::Healthy => MemberState::Healthy,
        }
    }

    /// Calls that it has now.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// How it fares.
    #[must_use]
    pub fn health(&self) -> MemberHealth {
        self.health.health()
    }

    /// Failures in a row, at most 255 of them counted.
    #[must_use]
    pub fn failures(&self) -> u8 {
        self.health.failures()
    }

    /// When it last gave a sign of life, to the millisecond; `None` if it never did.
    #[must_use]
    pub fn last_seen(&self) -> Option<Duration> {
        self.last_seen.get().at()
    }

    /// Notes a sign of life that is not the outcome of a call, such as an answered ping. It does
    /// not heal: only an answered call shows that calls are answered.
    pub fn seen(&self, now: Duration) {
        self.last_seen.note(now);
    }

    /// Reports an outcome that was learned without a lease, for example by a health check.
    pub fn report(&self, outcome: Outcome, now: Duration) {
        self.settle(outcome, false, now);
    }

    pub(crate) fn settle(&self, outcome: Outcome, probe: bool, now: Duration) {
        self.outlier.note(outcome == Outcome::Failure);
        match outcome {
            Outcome::Success => {
                self.seen(now);
                if self.health.succeeded() {
                    self.weight.start_slowly(now);
                }
            }
            Outcome::Failure => self.health.failed(probe, now, &self.health_config),
        }
    }

    /// What was counted of its calls of late.
    pub(crate) fn tally(&self) -> CallTally {
        self.outlier.look()
    }

    #[inline]
    pub(crate) fn is_ejected(&self, now: Duration) -> bool {
        self.outlier.is_ejected(now)
    }

    pub(crate) fn ejected_until(&self) -> Duration {
        self.outlier.ejected_until()
    }

    /// Takes it out of service for a while; it starts slowly after that.
    pub(crate) fn eject(&self, now: Duration, config: &OutlierConfig) {
        self.weight.start_slowly(self.outlier.eject(now, config));
    }

    pub(crate) fn forgive(&self, now: Duration) {
        self.outlier.forgive(now);
    }

    pub(crate) fn weight(&self, now: Duration) -> u64 {
        self.weight.weight(now)
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) fn availability(&self, now: Duration) -> Availability {
        self.health.availability(now)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_flight.has_room()
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Acquire)
    }

    /// Takes the member's turn; false if somebody else took it since `seen` was read.
    pub(crate) fn take_turn(&self, seen: u64, turn: u64) -> bool {
        self.turn
            .compare_exchange(seen, turn, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Takes a slot and, where one is due, the probe; `None` if either is no longer there.
    pub(crate) fn enter(&self, now: Duration) -> Option<Option<ProbeClaim>> {
        self.in_flight.take().ok()?;
        match self.health.admit(now, &self.health_config) {
            CallAdmission::Call => Some(None),
            CallAdmission::Probe(probe) => Some(Some(probe)),
            CallAdmission::Refused => {
                self.give_slot_back();
                None
            }
        }
    }

    pub(crate) fn give_slot_back(&self) {
        self.in_flight.give_back();
        if let Some(watch) = &self.watch {
            watch.slot_freed();
        }
    }

    pub(crate) fn abandon(&self, probe: ProbeClaim) {
        self.health.abandoned(probe);
    }
}
