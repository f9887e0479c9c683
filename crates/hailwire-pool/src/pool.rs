//! The members of one group, and the pick.
//!
//! A pick looks at every member once and takes the least of (ejected or not, availability, priority, tier, load, turn): availability
//! from [`crate::health`], priority from [`crate::priority`], load as the [`Strategy`] has it and in proportion to the member's weight, and turn, how long
//! ago it was picked last, so that equals follow each other in a circle whichever of them are excluded,
//! full or down at the time, and one of twice the weight has twice the turns. The member's turn is taken with a compare-and-swap: whoever loses
//! looks again, so that threads that pick together go to different members.
//!
//! Cost: one pass over the group, seven loads a member. Where chance decides, it is the turn's number,
//! scrambled, so that nothing else is kept for it.

use std::{
    cmp::Reverse,
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    availability::Availability,
    health::{HealthConfig, MemberHealth},
    lease::Lease,
    member::{Member, MemberConfig},
    outlier::{CallTally, OutlierConfig, OutlierLooks, outliers},
    priority::{GroupPin, PriorityPolicy},
    rendezvous::AffinityKey,
    scramble::scramble,
    slot_watch::SlotWatch,
    strategy::Strategy,
    weight::WHOLE,
};

/// How a pool picks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolConfig {
    /// The choice among equals. Default [`Strategy::LeastLoaded`].
    pub strategy: Strategy,
    /// When members are taken out of service for failures in a row.
    pub health: HealthConfig,
    /// When they are for failing more often than others.
    pub outliers: OutlierConfig,
}

/// Why no member was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMember {
    /// The group has no member, or none that was not excluded: `not_found`, or `unavailable` if
    /// there were some.
    Empty,
    /// Every member is down: `unavailable`.
    Down {
        /// When the first of them may be tried again.
        until: Duration,
    },
    /// Each member that is in service has as many calls as it takes: `resource_exhausted`.
    Full,
}

impl fmt::Display for NoMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the group has no eligible member",
            Self::Down { .. } => "every member is down",
            Self::Full => "every member is at its concurrency limit",
        })
    }
}

impl std::error::Error for NoMember {}

/// The list that a pick reads; exchanged whole when the membership changes.
type MemberList<K, V> = Arc<[Arc<Member<K, V>>]>;

/// The list, and which policies there are in it.
#[derive(Debug)]
struct MemberTable<K, V> {
    list: MemberList<K, V>,
    has_pinned: bool,
    has_overflow: bool,
}

impl<K, V> From<Vec<Arc<Member<K, V>>>> for MemberTable<K, V> {
    fn from(list: Vec<Arc<Member<K, V>>>) -> Self {
        let has = |is: fn(PriorityPolicy) -> bool| list.iter().any(|member| is(member.policy()));
        Self {
            has_pinned: has(PriorityPolicy::is_pinned),
            has_overflow: has(PriorityPolicy::is_overflow),
            list: list.into(),
        }
    }
}

/// A member that could be picked, and the turn that it had.
type RankedMember<'a, K, V> = (&'a Arc<Member<K, V>>, MemberRank, u64);

/// A group of members under one name. Share it in an [`Arc`].
///
/// `K` tells members apart, `V` is what a call is dispatched with. Memory: about 180 bytes a member
/// besides its key and value.
#[derive(Debug)]
pub struct Pool<K, V> {
    config: PoolConfig,
    members: RwLock<MemberTable<K, V>>,
    turn: AtomicU64,
    serial: AtomicU64,
    looks: OutlierLooks,
    pin: GroupPin,
    watch: Option<Arc<dyn SlotWatch>>,
}

impl<K, V> Default for Pool<K, V> {
    fn default() -> Self {
        Self::new(PoolConfig::default())
    }
}

impl<K, V> Pool<K, V> {
    /// An empty group.
    #[must_use]
    pub fn new(config: PoolConfig) -> Self {
        Self {
            config,
            members: RwLock::new(Vec::new().into()),
            turn: AtomicU64::new(0),
            serial: AtomicU64::new(0),
            looks: OutlierLooks::default(),
            pin: GroupPin::default(),
            watch: None,
        }
    }

    /// An empty group that tells of each place which becomes free.
    #[must_use]
    pub fn watched(config: PoolConfig, watch: Arc<dyn SlotWatch>) -> Self {
        Self {
            watch: Some(watch),
            ..Self::new(config)
        }
    }

    /// Whether a member is in service and has room for another call, of those that `accept` does not refuse. With [`SlotWatch`], whoever says first that
    /// it waits and then looks here misses no place.
    pub fn has_room_where(&self, now: Duration, accept: impl Fn(&Member<K, V>) -> bool) -> bool {
        let table = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let mut members = table.list.iter();
        members.any(|member| accept(member) && eligible(member, now).is_ok())
    }

    /// The members as they are now, in the order in which they joined.
    #[must_use]
    pub fn members(&self) -> Arc<[Arc<Member<K, V>>]> {
        let table = self.members.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table.list)
    }

    /// How many members there are, whatever their health.
    #[must_use]
    pub fn len(&self) -> usize {
        let table = self.members.read().unwrap_or_else(PoisonError::into_inner);
        table.list.len()
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Picks a member.
    ///
    /// # Errors
    ///
    /// [`NoMember`] says why there is none.
    pub fn pick(&self, now: Duration) -> Result<Lease<K, V>, NoMember> {
        self.pick_where(now, |_| true)
    }

    /// Picks a member that `accept` does not refuse, for example one that is local.
    ///
    /// `accept` is asked about every member, perhaps more than once, and must not use the pool.
    ///
    /// # Errors
    ///
    /// [`NoMember`]; refused members count as absent.
    pub fn pick_where(
        &self,
        now: Duration,
        accept: impl Fn(&Member<K, V>) -> bool,
    ) -> Result<Lease<K, V>, NoMember> {
        let table = self.members.read().unwrap_or_else(PoisonError::into_inner);
        self.look_for_outliers(&table.list, now);
        // Turns begin at 1, since 0 says that a member was never picked.
        let turn = self.turn.fetch_add(1, Ordering::AcqRel) + 1;
        let lots = RandomDraw {
            turn,
            members: table.list.len(),
        };
        if table.has_pinned
            && let Some(pinned) = self.pick_pinned(&table.list, lots, now, &accept)
        {
            return pinned;
        }
        // Each further round means that another thread has taken what this one wanted.
        loop {
            let (member, _, seen) = match table.has_overflow {
                false => self.best(&table.list, lots, now, &accept)?,
                true => self.best_below_overflow(&table.list, lots, now, &accept)?,
            };
            if !member.take_turn(seen, turn) {
                continue;
            }
            if let Some(probe) = member.enter(now) {
                return Ok(Lease::new(Arc::clone(member), probe));
            }
        }
    }

    /// Picks the member that a key has its calls go to, among those that `accept` does not refuse: the one with the highest score
    /// for it that is not down and has room ([`crate::rendezvous`]). Nearness, load and a failure that left it in service do not count, so that a key
    /// moves only when its member cannot take it.
    ///
    /// `accept` is asked about every member, perhaps more than once, and must not use the pool.
    ///
    /// # Errors
    ///
    /// [`NoMember`]; refused members count as absent.
    pub fn pick_affine(
        &self,
        now: Duration,
        key: AffinityKey,
        accept: impl Fn(&Member<K, V>) -> bool,
    ) -> Result<Lease<K, V>, NoMember> {
        let table = self.members.read().unwrap_or_else(PoisonError::into_inner);
        self.look_for_outliers(&table.list, now);
        if table.has_pinned {
            let turn = self.turn.fetch_add(1, Ordering::AcqRel) + 1;
            let lots = RandomDraw {
                turn,
                members: table.list.len(),
            };
            if let Some(pinned) = self.pick_pinned(&table.list, lots, now, &accept) {
                return pinned;
            }
        }
        // Each further round means that another thread has taken the last room or the probe.
        loop {
            let (mut best, mut why) = (None, NoMember::Empty);
            for member in table.list.iter().filter(|member| accept(member)) {
                match eligible(member, now) {
                    Err(reason) => why = soonest(why, reason),
                    Ok(Eligible { last, .. }) => {
                        let score = (!last, key.score(member.place()));
                        if best.is_none_or(|(most, _)| score > most) {
                            best = Some((score, member));
                        }
                    }
                }
            }
            let ((in_service, _), member) = best.ok_or(why)?;
            if !in_service && why == NoMember::Full {
                return Err(why);
            }
            if let Some(probe) = member.enter(now) {
                return Ok(Lease::new(Arc::clone(member), probe));
            }
        }
    }

    /// The member that a key has its work go to which can wait for it: as [`Pool::pick_affine`], but room does not count and nothing is taken.
    /// `None` where there is no member, or `accept` refuses all of them.
    pub fn affine_member(
        &self,
        now: Duration,
        key: AffinityKey,
        accept: impl Fn(&Member<K, V>) -> bool,
    ) -> Option<Arc<Member<K, V>>> {
        let table = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let members = table.list.iter().filter(|member| accept(member));
        let best = members.max_by_key(|member| {
            let in_service = match eligible(member, now) {
                Ok(Eligible { last, .. }) => !last,
                Err(why) => why == NoMember::Full,
            };
            (in_service, key.score(member.place()))
        });
        best.map(Arc::clone)
    }

    /// Of the pinned members, the one that has the calls; nothing where none is in service.
    fn pick_pinned(
        &self,
        members: &[Arc<Member<K, V>>],
        lots: RandomDraw,
        now: Duration,
        accept: &impl Fn(&Member<K, V>) -> bool,
    ) -> Option<Result<Lease<K, V>, NoMember>> {
        let is_pinned = |member: &Member<K, V>| member.policy().is_pinned() && accept(member);
        loop {
            let seen = self.pin.member();
            let held = members
                .iter()
                .find(|member| member.serial() == seen && is_pinned(member));
            let held = held.filter(|member| self.holds_pin(member, now));
            let member = match held {
                Some(member) => member,
                None => match self.best(members, lots, now, &is_pinned) {
                    Ok((member, rank, _)) if !rank.is_last() => member,
                    Ok(_) | Err(NoMember::Empty | NoMember::Down { .. }) => return None,
                    Err(NoMember::Full) => return Some(Err(NoMember::Full)),
                },
            };
            if member.serial() != seen && !self.pin.choose(seen, member.serial()) {
                continue;
            }
            self.pin.note_use(now);
            // So that another's turn comes once it is idle; whoever else takes it does as well.
            member.take_turn(member.turn(), lots.turn);
            match member.enter(now) {
                Some(probe) => return Some(Ok(Lease::new(Arc::clone(member), probe))),
                None if !member.has_room() => return Some(Err(NoMember::Full)),
                // Another thread has taken its probe: it is down for this one.
                None => {}
            }
        }
    }

    /// Whether a member that was chosen still has the calls.
    fn holds_pin(&self, member: &Member<K, V>, now: Duration) -> bool {
        let PriorityPolicy::Pinned { idle } = member.policy() else {
            return false;
        };
        let in_service =
            member.availability(now) != Availability::Unavailable && !member.is_ejected(now);
        let in_service = in_service && !member.is_leaving();
        in_service && (member.in_flight() > 0 || !self.pin.is_idle(now, idle))
    }

    /// The most welcome of the members that `accept` does not refuse.
    fn best<'a>(
        &self,
        members: &'a [Arc<Member<K, V>>],
        lots: RandomDraw,
        now: Duration,
        accept: &impl Fn(&Member<K, V>) -> bool,
    ) -> Result<RankedMember<'a, K, V>, NoMember> {
        let mut best: Option<RankedMember<'a, K, V>> = None;
        let mut why = NoMember::Empty;
        for (index, member) in members.iter().enumerate() {
            if !accept(member) {
                continue;
            }
            let seen = member.turn();
            match self.rank(index, member, seen, lots, now) {
                Err(reason) => why = soonest(why, reason),
                Ok(rank) => {
                    if best.as_ref().is_none_or(|(_, least, _)| rank < *least) {
                        best = Some((member, rank, seen));
                    }
                }
            }
        }
        match best {
            // One that is in service and full is waited for.
            Some((_, rank, _)) if rank.is_last() && why == NoMember::Full => Err(why),
            best => best.ok_or(why),
        }
    }

    /// As [`Pool::best`], without the overflow members whose time has not come.
    fn best_below_overflow<'a>(
        &self,
        members: &'a [Arc<Member<K, V>>],
        lots: RandomDraw,
        now: Duration,
        accept: &impl Fn(&Member<K, V>) -> bool,
    ) -> Result<RankedMember<'a, K, V>, NoMember> {
        let in_service = |member: &&Arc<Member<K, V>>| {
            !member.policy().is_overflow()
                && accept(member)
                && member.availability(now) != Availability::Unavailable
                && !member.is_ejected(now)
                && !member.is_leaving()
        };
        let others = members.iter().filter(in_service);
        let least = others.map(|member| member.in_flight()).min();
        let regular = self.best(members, lots, now, &|member| {
            !member.policy().is_overflow() && accept(member)
        });
        let overflow = self.best(members, lots, now, &|member| {
            let its_time = match (member.policy(), least) {
                (PriorityPolicy::Overflow { above }, Some(least)) => least >= above,
                (PriorityPolicy::Overflow { .. }, None) => true,
                _ => false,
            };
            its_time && accept(member)
        });
        match (regular, overflow) {
            // However near they are, the one with less to do.
            (Ok(regular), Ok(overflow)) => {
                let less = overflow.1.without_tier() < regular.1.without_tier();
                Ok(if less { overflow } else { regular })
            }
            (Err(one), Err(other)) => Err(soonest(one, other)),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        }
    }

    /// Ejects members whose calls fail far more often than those of the others, where a look is due.
    #[inline]
    fn look_for_outliers(&self, members: &[Arc<Member<K, V>>], now: Duration) {
        if self.looks.is_due(now, &self.config.outliers) {
            self.eject_outliers(members, now);
        }
    }

    #[cold]
    fn eject_outliers(&self, members: &[Arc<Member<K, V>>], now: Duration) {
        let config = &self.config.outliers;
        let tallies: Vec<CallTally> = members.iter().map(|member| member.tally()).collect();
        let is_out = |member: &Arc<Member<K, V>>| {
            member.is_ejected(now) || member.availability(now) == Availability::Unavailable
        };
        let mut out = members.iter().filter(|member| is_out(member)).count();
        for member in members {
            member.forgive(now);
        }
        for place in outliers(&tallies, config) {
            if out >= config.most_ejected(members.len()) {
                return;
            }
            if !is_out(&members[place]) {
                members[place].eject(now, config);
                out += 1;
            }
        }
    }

    #[inline(always)]
    fn rank(
        &self,
        index: usize,
        member: &Member<K, V>,
        turn: u64,
        lots: RandomDraw,
        now: Duration,
    ) -> Result<MemberRank, NoMember> {
        let Eligible { last, availability } = eligible(member, now)?;
        let load = match self.config.strategy {
            Strategy::RoundRobin => 0,
            Strategy::LeastLoaded => member.in_flight(),
            strategy => lots.load(strategy, index, member),
        };
        let waited = lots.turn.saturating_sub(turn);
        let weight = member.weight(now);
        let (load, waited) = match weight == WHOLE {
            true => (u64::from(load) * WHOLE, waited.saturating_mul(WHOLE)),
            false => weighed(load, waited, weight),
        };
        let class = [
            u8::from(last),
            availability as u8,
            member.policy().number(),
            member.tier() as u8,
        ];
        Ok(MemberRank {
            class: u32::from_be_bytes(class),
            load,
            waited: Reverse(waited),
        })
    }

    /// Replaces the list by what `change` makes of it.
    fn exchange<T>(&self, change: impl FnOnce(&mut Vec<Arc<Member<K, V>>>) -> T) -> T {
        let mut table = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let mut list = table.list.to_vec();
        let result = change(&mut list);
        *table = list.into();
        result
    }
}

impl<K: Eq, V> Pool<K, V> {
    /// Adds a member, healthy and idle, and returns it. One with an equal key is replaced; calls
    /// that it has in flight end with the old one.
    ///
    /// Cost: the list is copied, which is meant for changes that are rare beside picks.
    pub fn insert(&self, key: K, value: V, config: MemberConfig) -> Arc<Member<K, V>> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed) + 1;
        let health = self.config.health;
        let member = Member::new(key, value, serial, config, health, self.watch.clone());
        let member = Arc::new(member);
        self.exchange(
            |list| match list.iter_mut().find(|old| old.key() == member.key()) {
                Some(old) => *old = Arc::clone(&member),
                None => list.push(Arc::clone(&member)),
            },
        );
        if let Some(watch) = &self.watch {
            watch.slot_freed();
        }
        member
    }

    /// Removes a member and returns it. Its leases stay valid and are simply the last.
    pub fn remove(&self, key: &K) -> Option<Arc<Member<K, V>>> {
        self.exchange(|list| {
            let index = list.iter().position(|member| member.key() == key)?;
            Some(list.remove(index))
        })
    }

    /// The member with this key.
    #[must_use]
    pub fn member(&self, key: &K) -> Option<Arc<Member<K, V>>> {
        let table = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let found = table.list.iter().find(|member| member.key() == key);
        found.map(Arc::clone)
    }

    /// Picks a member that is none of `excluded`: those that a call has been to already.
    ///
    /// # Errors
    ///
    /// [`NoMember`]; excluded members count as absent.
    pub fn pick_excluding(&self, now: Duration, excluded: &[K]) -> Result<Lease<K, V>, NoMember> {
        self.pick_where(now, |member| !excluded.contains(member.key()))
    }
}

#[cold]
fn weighed(load: u32, waited: u64, weight: u64) -> (u64, u64) {
    (
        u64::from(load) * WHOLE * WHOLE / weight,
        waited.saturating_mul(weight),
    )
}

/// What is known of a member that a call may go to.
struct Eligible {
    /// Only where nobody else is.
    last: bool,
    availability: Availability,
}

/// How a member is that a call may go to, or why none may.
#[inline]
fn eligible<K, V>(member: &Member<K, V>, now: Duration) -> Result<Eligible, NoMember> {
    let availability = member.availability(now);
    if availability == Availability::Unavailable {
        let until = match member.health() {
            MemberHealth::Down { until } => until,
            MemberHealth::Healthy | MemberHealth::Suspect { .. } => now,
        };
        return Err(NoMember::Down { until });
    }
    // One that leaves is as welcome as one that is ejected.
    let last = member.is_leaving() || member.is_ejected(now);
    match (member.has_room(), last) {
        (true, _) => Ok(Eligible { last, availability }),
        (false, false) => Err(NoMember::Full),
        (false, true) => Err(NoMember::Down {
            until: member.ejected_until(),
        }),
    }
}

/// The order in which members are preferred; the fields in the order of their weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MemberRank {
    /// Whether it is called only where nobody else is, availability, priority and tier, a byte each.
    class: u32,
    load: u64,
    waited: Reverse<u64>,
}

impl MemberRank {
    const fn is_last(self) -> bool {
        self.class >> 24 != 0
    }

    /// Its order beside those that are as near.
    const fn without_tier(self) -> (u32, u64, Reverse<u64>) {
        (self.class & !0xff, self.load, self.waited)
    }
}

/// The random numbers of one pick. Costs nothing under a strategy that does not use them.
#[derive(Clone, Copy)]
struct RandomDraw {
    turn: u64,
    members: usize,
}

impl RandomDraw {
    /// The load of a member where chance has a part in it.
    #[inline(never)]
    fn load<K, V>(self, strategy: Strategy, index: usize, member: &Member<K, V>) -> u32 {
        match strategy {
            Strategy::RoundRobin => 0,
            Strategy::LeastLoaded => member.in_flight(),
            Strategy::Random => self.of(index),
            Strategy::HealthWeighted => {
                let failures = u32::from(member.failures());
                self.of(index).saturating_mul(failures.saturating_add(1))
            }
            Strategy::TwoChoices if self.names(index) => member.in_flight(),
            Strategy::TwoChoices => u32::MAX,
        }
    }

    /// A member's lot, up to a 256th of the greatest number, so that it can be weighted.
    fn of(self, index: usize) -> u32 {
        let lot = scramble(scramble(self.turn) ^ index as u64);
        u32::try_from(lot >> 40).unwrap_or(u32::MAX)
    }

    /// Whether a member is one of two that chance names.
    fn names(self, index: usize) -> bool {
        let lot = scramble(self.turn);
        let count = self.members.max(1) as u64;
        let first = lot % count;
        let second = (first + 1 + (lot >> 32) % (count - 1).max(1)) % count;
        index as u64 == first || index as u64 == second
    }
}

/// What to say of a group when its members give different reasons: the one that ends soonest.
fn soonest(a: NoMember, b: NoMember) -> NoMember {
    match (a, b) {
        (NoMember::Full, _) | (_, NoMember::Full) => NoMember::Full,
        (NoMember::Down { until: a }, NoMember::Down { until: b }) => {
            NoMember::Down { until: a.min(b) }
        }
        (down @ NoMember::Down { .. }, NoMember::Empty)
        | (NoMember::Empty, down @ NoMember::Down { .. }) => down,
        (NoMember::Empty, NoMember::Empty) => NoMember::Empty,
    }
}
