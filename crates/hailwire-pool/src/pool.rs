//! The members of one group, and the pick.
//!
//! A pick looks at every member once and takes the least of (availability, tier, load, turn): availability
//! from [`crate::health`], load as the [`Strategy`] has it, and turn, the moment at which
//! it was picked last, so that equals follow each other in a circle whichever of them are excluded,
//! full or down at the time. The member's turn is taken with a compare-and-swap: whoever loses
//! looks again, so that threads that pick together go to different members.
//!
//! Cost: one pass over the group, five loads a member. Where chance decides, it is the turn's number,
//! scrambled, so that nothing else is kept for it.

use std::{
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
    member::{Member, MemberConfig, Tier},
    rendezvous::AffinityKey,
    scramble::scramble,
    strategy::Strategy,
};

/// How a pool picks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolConfig {
    /// The choice among equals. Default [`Strategy::LeastLoaded`].
    pub strategy: Strategy,
    /// When members are taken out of service.
    pub health: HealthConfig,
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
    /// Each member that is not down has as many calls as it takes: `resource_exhausted`.
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

type RankedMember<'a, K, V> = (&'a Arc<Member<K, V>>, MemberRank);

/// A group of members under one name. Share it in an [`Arc`].
///
/// `K` tells members apart, `V` is what a call is dispatched with. Memory: about 100 bytes a member
/// besides its key and value.
#[derive(Debug)]
pub struct Pool<K, V> {
    config: PoolConfig,
    members: RwLock<MemberList<K, V>>,
    turn: AtomicU64,
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
            members: RwLock::new(Arc::from([])),
            turn: AtomicU64::new(0),
        }
    }

    /// The members as they are now, in the order in which they joined.
    #[must_use]
    pub fn members(&self) -> Arc<[Arc<Member<K, V>>]> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How many members there are, whatever their health.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
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
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        // Turns begin at 1, since 0 says that a member was never picked.
        let turn = self.turn.fetch_add(1, Ordering::AcqRel) + 1;
        // Each further round means that another thread has taken what this one wanted.
        let lots = RandomDraw {
            turn,
            members: members.len(),
        };
        loop {
            let numbered = members.iter().enumerate();
            let accepted = numbered.filter(|(_, member)| accept(member));
            let (member, rank) = self.best(accepted, lots, now)?;
            if !member.take_turn(rank.turn, turn) {
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
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        // Each further round means that another thread has taken the last room or the probe.
        loop {
            let (mut best, mut why) = (None, NoMember::Empty);
            for member in members.iter().filter(|member| accept(member)) {
                match eligible(member, now) {
                    Err(reason) => why = soonest(why, reason),
                    Ok(_) => {
                        let score = key.score(member.place());
                        if best.is_none_or(|(most, _)| score > most) {
                            best = Some((score, member));
                        }
                    }
                }
            }
            let (_, member) = best.ok_or(why)?;
            if let Some(probe) = member.enter(now) {
                return Ok(Lease::new(Arc::clone(member), probe));
            }
        }
    }

    /// The most welcome of some members.
    fn best<'a>(
        &self,
        members: impl Iterator<Item = (usize, &'a Arc<Member<K, V>>)>,
        lots: RandomDraw,
        now: Duration,
    ) -> Result<RankedMember<'a, K, V>, NoMember> {
        let mut best: Option<RankedMember<'a, K, V>> = None;
        let mut why = NoMember::Empty;
        for (index, member) in members {
            match self.rank(index, member, lots, now) {
                Err(reason) => why = soonest(why, reason),
                Ok(rank) => {
                    if best.as_ref().is_none_or(|(_, least)| rank < *least) {
                        best = Some((member, rank));
                    }
                }
            }
        }
        best.ok_or(why)
    }

    #[inline]
    fn rank(
        &self,
        index: usize,
        member: &Member<K, V>,
        lots: RandomDraw,
        now: Duration,
    ) -> Result<MemberRank, NoMember> {
        let availability = eligible(member, now)?;
        let load = match self.config.strategy {
            Strategy::RoundRobin => 0,
            Strategy::LeastLoaded => member.in_flight(),
            Strategy::Random => lots.of(index),
            Strategy::HealthWeighted => {
                let failures = u32::from(member.failures());
                lots.of(index).saturating_mul(failures.saturating_add(1))
            }
            Strategy::TwoChoices if lots.names(index) => member.in_flight(),
            Strategy::TwoChoices => u32::MAX,
        };
        Ok(MemberRank {
            availability,
            tier: member.tier(),
            load,
            turn: member.turn(),
        })
    }

    /// Replaces the list by what `change` makes of it.
    fn exchange<T>(&self, change: impl FnOnce(&mut Vec<Arc<Member<K, V>>>) -> T) -> T {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let mut list = members.to_vec();
        let result = change(&mut list);
        *members = list.into();
        result
    }
}

impl<K: Eq, V> Pool<K, V> {
    /// Adds a member, healthy and idle, and returns it. One with an equal key is replaced; calls
    /// that it has in flight end with the old one.
    ///
    /// Cost: the list is copied, which is meant for changes that are rare beside picks.
    pub fn insert(&self, key: K, value: V, config: MemberConfig) -> Arc<Member<K, V>> {
        let member = Arc::new(Member::new(key, value, config, self.config.health));
        self.exchange(
            |list| match list.iter_mut().find(|old| old.key() == member.key()) {
                Some(old) => *old = Arc::clone(&member),
                None => list.push(Arc::clone(&member)),
            },
        );
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
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members
            .iter()
            .find(|member| member.key() == key)
            .map(Arc::clone)
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

/// How available a member is that a call may go to, or why none may.
#[inline]
fn eligible<K, V>(member: &Member<K, V>, now: Duration) -> Result<Availability, NoMember> {
    let availability = member.availability(now);
    if availability == Availability::Unavailable {
        let until = match member.health() {
            MemberHealth::Down { until } => until,
            MemberHealth::Healthy | MemberHealth::Suspect { .. } => now,
        };
        return Err(NoMember::Down { until });
    }
    match member.has_room() {
        true => Ok(availability),
        false => Err(NoMember::Full),
    }
}

/// The order in which members are preferred; the fields in the order of their weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MemberRank {
    availability: Availability,
    tier: Tier,
    load: u32,
    turn: u64,
}

/// The random numbers of one pick. Costs nothing under a strategy that does not use them.
#[derive(Clone, Copy)]
struct RandomDraw {
    turn: u64,
    members: usize,
}

impl RandomDraw {
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
