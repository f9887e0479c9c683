//! Which agents can be called, and who takes the next call.
//!
//! Each name is a group: handlers in this process, programs attached over the local socket, and
//! peers that offer the name, in one [`Pool`]. The pool prefers the healthy, then the local, then
//! the least loaded.

use std::{
    collections::{BTreeMap, HashSet},
    iter,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use hailwire_core::{grants::Grant, offer_capacity::OfferCapacity, routing::CallOrigin};
use hailwire_pool::{
    AffinityKey, Lease, Member, MemberConfig, MemberPlace, MemberState, NoMember, Outcome, Pool,
    PoolConfig, PriorityPolicy, Tier,
};
use hailwire_wire::{
    AgentName, Code, NodeId, Priority, Status,
    header::{AgentOffer, OfferedGroup, RegisterHeader},
    limits,
};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::waiting_calls::{QueuedCall, WaitingCalls};
use crate::{admin::AgentMember, agent, agent::SharedHandler, session::Session};

/// The members of one name, and the calls that wait for them.
#[derive(Debug)]
pub(crate) struct AgentGroup {
    pool: Pool<MemberKey, MemberTarget>,
    waiting: Arc<WaitingCalls>,
}

impl AgentGroup {
    fn new(here: Arc<AtomicUsize>) -> Self {
        let waiting = Arc::new(WaitingCalls::new(here));
        Self {
            pool: Pool::watched(PoolConfig::default(), waiting.clone()),
            waiting,
        }
    }

    /// How many calls may wait for it.
    fn max_waiting(&self) -> usize {
        let members = self.pool.members();
        let registered = members
            .iter()
            .filter_map(|member| member.value().register());
        let each = registered.map(|register| {
            register
                .max_waiting
                .unwrap_or(limits::DEFAULT_WAITING_CALLS)
        });
        each.max().unwrap_or(0) as usize
    }
}

impl Deref for AgentGroup {
    type Target = Pool<MemberKey, MemberTarget>;

    fn deref(&self) -> &Self::Target {
        &self.pool
    }
}

/// The members of one group at one moment.
pub(crate) type GroupMembers = Arc<[Arc<Member<MemberKey, MemberTarget>>]>;

/// A picked member.
pub(crate) type MemberLease = Lease<MemberKey, MemberTarget>;

/// Tells the members of a group apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberKey {
    /// An attachment or a handler, by the number of its registration.
    Local(u64),
    /// A peer that offers the name.
    Peer(NodeId),
}

impl MemberKey {
    /// The number of a member of this node.
    pub(crate) const fn number(&self) -> Option<u64> {
        match self {
            Self::Local(number) => Some(*number),
            Self::Peer(_) => None,
        }
    }
}

/// What a member is.
#[derive(Clone, Debug)]
pub(crate) enum MemberTarget {
    /// A handler in this process.
    Handler {
        handler: SharedHandler,
        register: Arc<RegisterHeader>,
        _in_use: MemberUse,
    },
    /// A program attached over a session.
    Attached {
        session: Session,
        register: Arc<RegisterHeader>,
        _in_use: MemberUse,
    },
    /// A peer.
    Peer {
        id: NodeId,
        offer: Arc<AgentOffer>,
        /// Whether it may take calls that name no node.
        bare: bool,
    },
}

/// Held by a member, so by the registry and by each call that has picked it.
#[derive(Clone, Debug)]
pub(crate) struct MemberUse(
    #[expect(dead_code, reason = "its drop is what tells")] Arc<oneshot::Sender<()>>,
);

impl MemberUse {
    /// With what resolves, as an error, once nobody holds the member any more: it is taken out, and its calls have ended.
    pub(crate) fn new() -> (Self, oneshot::Receiver<()>) {
        let (held, unused) = oneshot::channel();
        (Self(Arc::new(held)), unused)
    }
}

impl MemberTarget {
    /// Whether it may take a call that names no member.
    const fn takes(&self, local_only: bool) -> bool {
        match self {
            Self::Peer { bare, .. } => *bare && !local_only,
            Self::Handler { .. } | Self::Attached { .. } => true,
        }
    }

    fn register(&self) -> Option<&RegisterHeader> {
        match self {
            Self::Handler { register, .. } | Self::Attached { register, .. } => Some(register),
            Self::Peer { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Registry {
    own: NodeId,
    groups: RwLock<HashMap<AgentName, Arc<AgentGroup>>>,
    /// What each peer offered last, to find the difference when it changes.
    offered: Mutex<HashMap<NodeId, HashSet<AgentName>>>,
    next: AtomicU64,
    capacity: Mutex<OfferCapacity>,
    changed: Notify,
    origin: Instant,
    /// Calls that wait for any of the groups.
    waiting: Arc<AtomicUsize>,
}

impl Registry {
    pub(crate) fn new(own: NodeId) -> Self {
        Self {
            own,
            groups: RwLock::default(),
            offered: Mutex::default(),
            next: AtomicU64::new(1),
            capacity: Mutex::default(),
            changed: Notify::new(),
            origin: Instant::now(),
            waiting: Arc::default(),
        }
    }

    /// Enters a local agent; the number removes it again.
    pub(crate) fn add(&self, target: MemberTarget) -> Result<u64, Status> {
        let Some(register) = target.register() else {
            return Err(Status::new(
                Code::Internal,
                "only local agents are registered",
            ));
        };
        agent::check_register(register)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let policy = agent::policy(register);
        let offer = AgentOffer {
            group: offered_group(iter::once(policy)),
            ..agent::offer(register)
        };
        self.capacity().add(number, &offer, register.schema.len())?;
        let config = MemberConfig {
            tier: Tier::Local,
            max_concurrency: register.max_concurrency,
            policy,
            slow_start: Duration::from_millis(register.slow_start_ms),
            joined: self.now(),
            ..MemberConfig::default()
        };
        let name = register.name.clone();
        self.insert_local(name, number, target, config);
        self.changed.notify_one();
        Ok(number)
    }

    pub(crate) fn remove(&self, name: &AgentName, number: u64) {
        if self.take(name, &MemberKey::Local(number)) {
            self.capacity().remove(number, name);
            self.changed.notify_one();
        }
    }

    /// A local agent is to be removed: until then it is called only where no other member is. Returns whether its name has another member here that stays.
    pub(crate) fn begin_leaving(&self, name: &AgentName, number: u64) -> bool {
        let Some(group) = self.group(name) else {
            return false;
        };
        if let Some(member) = group.member(&MemberKey::Local(number)) {
            member.leave();
        }
        self.changed.notify_one();
        let members = group.members();
        members
            .iter()
            .any(|m| m.tier() == Tier::Local && !m.is_leaving())
    }

    /// Resolves after local agents were added or removed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Replaces what a peer offers; `bare` says which of it may take calls that name no node. Takes time in
    /// proportion to the list; the groups are changed only for each name that comes, goes or is asked otherwise.
    pub(crate) fn set_offers(
        &self,
        id: NodeId,
        offers: Vec<AgentOffer>,
        bare: impl Fn(&AgentName) -> bool,
    ) {
        let names: HashSet<AgentName> = offers.iter().map(|offer| offer.name.clone()).collect();
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let before = offered.insert(id, names.clone()).unwrap_or_default();
        for gone in before.difference(&names) {
            self.take(gone, &MemberKey::Peer(id));
        }
        for offer in offers {
            if before.contains(&offer.name) {
                self.renew_offer(id, offer);
            } else {
                let bare = bare(&offer.name);
                self.insert_of_peer(id, Arc::new(offer), bare);
            }
        }
        drop(offered);
        self.mark_bare(id, bare);
    }

    /// Asks anew which of a peer's agents may take calls that name no node. It is asked while nothing else
    /// changes this peer's list, so that the last word on a peer is the last entered.
    pub(crate) fn mark_bare(&self, id: NodeId, bare: impl Fn(&AgentName) -> bool) {
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        for name in offered.get(&id).into_iter().flatten() {
            let now = bare(name);
            if let Some(offer) = self.offer_of(name, id, |before| before != now) {
                self.take(name, &MemberKey::Peer(id));
                self.insert_of_peer(id, offer, now);
            }
        }
    }

    /// A peer says an agent again: what has changed of it changes here, and what is known of how it fares stays unless its policy is another.
    fn renew_offer(&self, id: NodeId, offer: AgentOffer) {
        let key = MemberKey::Peer(id);
        let known = self.group(&offer.name).and_then(|group| group.member(&key));
        let Some(member) = known else { return };
        let MemberTarget::Peer {
            offer: before,
            bare,
            ..
        } = member.value()
        else {
            return;
        };
        let same = AgentOffer {
            group: OfferedGroup {
                members: offer.group.members,
                ..before.group
            },
            ..before.as_ref().clone()
        };
        member.set_stands_for(offer.group.members);
        if same != offer {
            self.insert_of_peer(id, Arc::new(offer), *bare);
        }
    }

    /// Enters one agent of a peer.
    fn insert_of_peer(&self, id: NodeId, offer: Arc<AgentOffer>, bare: bool) {
        let policy = match offer.group.overflow {
            0 => PriorityPolicy::Prioritised(offer.group.priority),
            above => PriorityPolicy::Overflow { above },
        };
        let config = MemberConfig {
            tier: Tier::Remote,
            place: MemberPlace::new(id.as_bytes(), 0),
            policy,
            stands_for: offer.group.members,
            joined: self.now(),
            ..MemberConfig::default()
        };
        let name = offer.name.clone();
        let target = MemberTarget::Peer { id, offer, bare };
        self.insert(name, MemberKey::Peer(id), target, config);
    }

    /// Whether a list of the peer was entered, be it empty.
    pub(crate) fn has_offers(&self, id: NodeId) -> bool {
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        offered.contains_key(&id)
    }

    /// How many agents the peer offers.
    pub(crate) fn offers_of(&self, id: NodeId) -> usize {
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        offered.get(&id).map_or(0, HashSet::len)
    }

    /// A peer's agent of this name, where what was said of bare calls is `wanted`.
    fn offer_of(
        &self,
        name: &AgentName,
        id: NodeId,
        wanted: impl Fn(bool) -> bool,
    ) -> Option<Arc<AgentOffer>> {
        let members = self.group(name)?.members();
        members.iter().find_map(|member| match member.value() {
            MemberTarget::Peer {
                id: peer,
                offer,
                bare,
            } if *peer == id && wanted(*bare) => Some(offer.clone()),
            _ => None,
        })
    }

    /// Forgets what a peer offered.
    pub(crate) fn clear_offers(&self, id: NodeId) {
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let before = offered.remove(&id);
        for name in before.unwrap_or_default() {
            self.take(&name, &MemberKey::Peer(id));
        }
    }

    /// Who takes the next call of `name`, members in `excluded` apart. Where calls wait already, nobody does.
    ///
    /// # Errors
    ///
    /// `not_found`, `resource_exhausted` or `unavailable`.
    pub(crate) fn pick(
        &self,
        name: &AgentName,
        local_only: bool,
        excluded: &[MemberKey],
        affinity: Option<AffinityKey>,
    ) -> Result<MemberLease, Status> {
        let group = self.group(name).ok_or_else(|| not_found(name))?;
        match group.waiting.is_waiting() {
            true => Err(full(name)),
            false => self.pick_of(&group, name, local_only, excluded, affinity),
        }
    }

    /// As [`Registry::pick`], for a call whose turn it is among those that wait.
    ///
    /// # Errors
    ///
    /// As [`Registry::pick`].
    pub(super) fn pick_in_turn(
        &self,
        name: &AgentName,
        local_only: bool,
        affinity: Option<AffinityKey>,
    ) -> Result<MemberLease, Status> {
        let group = self.group(name).ok_or_else(|| not_found(name))?;
        self.pick_of(&group, name, local_only, &[], affinity)
    }

    fn pick_of(
        &self,
        group: &AgentGroup,
        name: &AgentName,
        local_only: bool,
        excluded: &[MemberKey],
        affinity: Option<AffinityKey>,
    ) -> Result<MemberLease, Status> {
        self.pick_where(group, name, affinity, |member| {
            member.value().takes(local_only) && !excluded.contains(member.key())
        })
    }

    /// The member of `name` with this number, for its next call.
    ///
    /// # Errors
    ///
    /// As [`Registry::pick`].
    pub(crate) fn pick_number(&self, name: &AgentName, number: u64) -> Result<MemberLease, Status> {
        let key = MemberKey::Local(number);
        let group = self.group(name).ok_or_else(|| not_found(name));
        let meant = |member: &Member<MemberKey, MemberTarget>| *member.key() == key;
        let picked = group.and_then(|group| self.pick_where(&group, name, None, meant));
        picked.map_err(|status| match status.code {
            Code::NotFound => Status::new(
                Code::NotFound,
                format!("`{name}` has no member {number} here"),
            )
            .with_hint("it may have ended; `hail agents` lists what can be called"),
            _ => status,
        })
    }

    fn pick_where(
        &self,
        group: &AgentGroup,
        name: &AgentName,
        affinity: Option<AffinityKey>,
        accept: impl Fn(&Member<MemberKey, MemberTarget>) -> bool,
    ) -> Result<MemberLease, Status> {
        let picked = match affinity {
            Some(key) => group.pick_affine(self.now(), key, accept),
            None => group.pick_where(self.now(), accept),
        };
        picked.map_err(|why| match why {
            NoMember::Empty => not_found(name),
            NoMember::Full => full(name),
            NoMember::Down { until } => Status::new(
                Code::Unavailable,
                format!("no member of `{name}` is healthy now"),
            )
            .with_hint("call again in a moment; `hail status` shows what is up")
            .with_retry_after(until.saturating_sub(self.now())),
        })
    }

    /// Agents attached over the local socket.
    pub(crate) fn attached(&self) -> u64 {
        let attached = |m: &&Arc<Member<MemberKey, MemberTarget>>| {
            matches!(m.value(), MemberTarget::Attached { .. })
        };
        self.members()
            .values()
            .map(|m| m.iter().filter(attached).count() as u64)
            .sum()
    }

    /// Whether a call of that name alone has somebody to go to, here or at a connected peer.
    pub(crate) fn knows(&self, name: &AgentName) -> bool {
        let Some(group) = self.group(name) else {
            return false;
        };
        let takes =
            |target: &MemberTarget| !matches!(target, MemberTarget::Peer { bare: false, .. });
        group.members().iter().any(|member| takes(member.value()))
    }

    /// The node whose agent of that name is to have a durable message, which can wait for it: that of the key's member where there is a key, else this
    /// one where it has a member, else that of the peer that a call would go to; nothing where nobody is known.
    pub(crate) fn node_for_message(
        &self,
        name: &AgentName,
        affinity: Option<AffinityKey>,
    ) -> Option<NodeId> {
        let group = self.group(name)?;
        let takes = |member: &Member<MemberKey, MemberTarget>| member.value().takes(false);
        let node = |target: &MemberTarget| match target {
            MemberTarget::Peer { id, .. } => *id,
            MemberTarget::Handler { .. } | MemberTarget::Attached { .. } => self.own,
        };
        if let Some(key) = affinity {
            let member = group.affine_member(self.now(), key, takes)?;
            return Some(node(member.value()));
        }
        if self.has_local(name) {
            return Some(self.own);
        }
        match self.pick_in_turn(name, false, None) {
            Ok(picked) => Some(node(picked.value())),
            // None is in service, but one may be by then.
            Err(_) => {
                let members = group.members();
                let first = members.iter().find(|member| takes(member));
                first.map(|member| node(member.value()))
            }
        }
    }

    /// How many calls the members of this machine take at once together, up to `most`; 0 where there is none.
    pub(crate) fn local_capacity(&self, name: &AgentName, most: usize) -> usize {
        let Some(group) = self.group(name) else {
            return 0;
        };
        let members = group.members();
        let locals = members.iter().filter(|member| member.tier() == Tier::Local);
        let each = locals.map(|member| match member.max_concurrency() {
            0 => most,
            bound => usize::try_from(bound).unwrap_or(most),
        });
        each.fold(0, usize::saturating_add).min(most)
    }

    /// Whether an agent of this machine goes by that name.
    pub(crate) fn has_local(&self, name: &AgentName) -> bool {
        let group = self.group(name);
        let local =
            |group: Arc<AgentGroup>| group.members().iter().any(|m| m.tier() == Tier::Local);
        group.is_some_and(local)
    }

    /// Gives a member back with what its call showed of it.
    pub(crate) fn finish(&self, mut picked: MemberLease, code: Code, at: Instant) {
        self.report(&mut picked, code, at);
    }

    /// Says how a call goes whose member stays busy until what is picked is dropped.
    pub(crate) fn report(&self, picked: &mut MemberLease, code: Code, at: Instant) {
        let outcome = match code {
            Code::Cancelled => return,
            Code::Unavailable | Code::Internal | Code::Unknown | Code::DataLoss => Outcome::Failure,
            _ => Outcome::Success,
        };
        picked.report(outcome, at - self.origin);
    }

    /// How a member fares, for people.
    pub(crate) fn member_row(&self, member: &Member<MemberKey, MemberTarget>) -> AgentMember {
        let state = match member.state(self.now()) {
            MemberState::Healthy => "healthy",
            MemberState::SlowStart => "slow start",
            MemberState::Suspect => "suspect",
            MemberState::Ejected => "ejected",
            MemberState::Down => "down",
            MemberState::Leaving => "leaving",
        };
        let policy = match member.policy() {
            PriorityPolicy::Prioritised(0) => String::new(),
            PriorityPolicy::Prioritised(number) => format!("priority {number}"),
            PriorityPolicy::Overflow { above } => format!("overflow {above}"),
            PriorityPolicy::Pinned { .. } => "pinned".to_owned(),
        };
        AgentMember {
            state: state.to_owned(),
            policy,
            in_flight: member.in_flight(),
        }
    }

    /// Every member of every group.
    pub(crate) fn members(&self) -> BTreeMap<AgentName, GroupMembers> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups
            .iter()
            .map(|(name, group)| (name.clone(), group.members()))
            .collect()
    }

    /// What the local agents of a name said when they registered, the oldest first.
    pub(crate) fn registered(&self, name: &AgentName) -> Vec<Arc<RegisterHeader>> {
        let Some(group) = self.group(name) else {
            return Vec::new();
        };
        let register = |member: &Arc<Member<MemberKey, MemberTarget>>| match member.value() {
            MemberTarget::Handler { register, .. } | MemberTarget::Attached { register, .. } => {
                Some(register.clone())
            }
            MemberTarget::Peer { .. } => None,
        };
        group.members().iter().filter_map(register).collect()
    }

    /// What local agents look like to a peer with this grant.
    pub(crate) fn offers(&self, allow: &Grant) -> Vec<AgentOffer> {
        let mut agents = Vec::new();
        for (name, members) in self.members() {
            if !allow.allows(&name) || agent::is_private(&name) {
                continue;
            }
            let staying = members.iter().filter(|member| !member.is_leaving());
            let locals = staying.filter_map(|member| member.value().register());
            let Some(first) = locals.clone().next() else {
                continue;
            };
            agents.push(AgentOffer {
                group: offered_group(locals.map(agent::policy)),
                ..agent::offer(first)
            });
        }
        agents
    }

    fn capacity(&self) -> MutexGuard<'_, OfferCapacity> {
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call of `name` wait for a place; nothing where no call may wait for it, or not all its members are full.
    ///
    /// # Errors
    ///
    /// `resource_exhausted` where no more may wait.
    pub(super) fn enter_queue(
        &self,
        name: &AgentName,
        local_only: bool,
        origin: CallOrigin,
        priority: Priority,
    ) -> Result<Option<QueuedCall>, Status> {
        let Some(group) = self.group(name) else {
            return Ok(None);
        };
        let most = group.max_waiting();
        if most == 0 {
            return Ok(None);
        }
        let queued = group.waiting.enter(name, most, origin, priority)?;
        if self.has_room(name, local_only) {
            group.waiting.tell_next();
        }
        Ok(Some(queued))
    }

    /// Whether a member of `name` has room for a call.
    pub(super) fn has_room(&self, name: &AgentName, local_only: bool) -> bool {
        let group = self.group(name);
        let takes = |member: &Member<MemberKey, MemberTarget>| member.value().takes(local_only);
        group.is_some_and(|group| group.has_room_where(self.now(), takes))
    }

    /// How many calls wait for a place in a member of `name`.
    pub(crate) fn waiting(&self, name: &AgentName) -> usize {
        self.group(name).map_or(0, |group| group.waiting.len())
    }

    fn group(&self, name: &AgentName) -> Option<Arc<AgentGroup>> {
        self.groups
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Enters a member of this machine in the first place that is free, so that a program that is started again has the keys of the one
    /// that ended.
    fn insert_local(
        &self,
        name: AgentName,
        number: u64,
        target: MemberTarget,
        config: MemberConfig,
    ) {
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(AgentGroup::new(self.waiting.clone()));
        let group = groups.entry(name).or_insert_with(new);
        let members = group.members();
        let locals = members.iter().filter(|member| member.tier() == Tier::Local);
        let taken: HashSet<u64> = locals.map(|member| member.place().number()).collect();
        let free = (0..).find(|place| !taken.contains(place)).unwrap_or(number);
        let place = MemberPlace::new(self.own.as_bytes(), free);
        let config = MemberConfig { place, ..config };
        group.insert(MemberKey::Local(number), target, config);
    }

    fn insert(&self, name: AgentName, key: MemberKey, target: MemberTarget, config: MemberConfig) {
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(AgentGroup::new(self.waiting.clone()));
        let group = groups.entry(name).or_insert_with(new);
        group.insert(key, target, config);
    }

    /// Takes a member out, and its group with the last one.
    fn take(&self, name: &AgentName, key: &MemberKey) -> bool {
        // Dropped after the lock: a handler may own other agents of this node, which it takes back here.
        let (member, _group);
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = groups.get(name) else {
            return false;
        };
        member = group.remove(key);
        _group = if group.is_empty() {
            // Whoever waits for it learns that it is gone.
            group.waiting.tell_all();
            groups.remove(name)
        } else {
            None
        };
        member.is_some()
    }

    /// The pool's clock: time since this registry was made.
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// What others need to know of the members of a name.
fn offered_group(policies: impl Iterator<Item = PriorityPolicy> + Clone) -> OfferedGroup {
    let numbers = policies.clone().filter_map(|policy| match policy {
        PriorityPolicy::Prioritised(number) => Some(number),
        PriorityPolicy::Overflow { .. } | PriorityPolicy::Pinned { .. } => None,
    });
    let above = policies.clone().filter_map(|policy| match policy {
        PriorityPolicy::Overflow { above } => Some(above),
        PriorityPolicy::Prioritised(_) | PriorityPolicy::Pinned { .. } => None,
    });
    let (shared, overflow) = (numbers.clone().count(), above.clone().count());
    let pinned = policies.count() > shared + overflow;
    // One that shares calls with those of other nodes is what goes without saying.
    let said = |members: usize| match members {
        1 => 0,
        members => u32::try_from(members).unwrap_or(u32::MAX),
    };
    match (pinned, numbers.min()) {
        (true, _) => OfferedGroup::default(),
        (false, Some(priority)) => OfferedGroup {
            members: said(shared),
            priority,
            overflow: 0,
        },
        (false, None) => OfferedGroup {
            members: said(overflow),
            priority: 0,
            overflow: above.min().unwrap_or(0),
        },
    }
}

fn full(name: &AgentName) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!("all members of `{name}` are at their limit of calls"),
    )
    .with_hint("call again later, or start another member of the same name")
}

pub(crate) fn not_found(name: &AgentName) -> Status {
    Status::new(Code::NotFound, format!("no agent `{name}` is known here"))
        .with_hint("`hail agents` lists what can be called; `hail serve` offers an agent")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, Request, Response};

    fn handler(agent: &Agent) -> MemberTarget {
        let handler = |_: Request| async { Ok(Response::default()) };
        MemberTarget::Handler {
            handler: Arc::new(handler),
            register: Arc::new(agent.register.clone()),
            _in_use: MemberUse::new().0,
        }
    }

    fn offers(names: &[&str]) -> Vec<AgentOffer> {
        let offer = |name: &&str| agent::offer(&Agent::new(name).unwrap().register);
        names.iter().map(offer).collect()
    }

    #[tokio::test]
    async fn a_handler_that_owns_another_agent_takes_it_back_when_it_goes() {
        struct OwnedAgent(Arc<Registry>, AgentName, u64);
        impl Drop for OwnedAgent {
            fn drop(&mut self) {
                self.0.remove(&self.1, self.2);
            }
        }
        let registry = Arc::new(Registry::new(NodeId::from_bytes([9; 32])));
        let (inner, outer) = (Agent::new("inner").unwrap(), Agent::new("outer").unwrap());
        let number = registry.add(handler(&inner)).unwrap();
        let owned = OwnedAgent(registry.clone(), inner.register.name.clone(), number);
        let owns = move |_: Request| {
            let _ = &owned;
            async { Ok(Response::default()) }
        };
        let target = MemberTarget::Handler {
            handler: Arc::new(owns),
            register: Arc::new(outer.register.clone()),
            _in_use: MemberUse::new().0,
        };
        let number = registry.add(target).unwrap();
        // On a thread of its own, so that a lock that is held shows as a failure and not as silence.
        let (done, ended) = std::sync::mpsc::channel();
        let there = registry.clone();
        std::thread::spawn(move || {
            there.remove(&outer.register.name, number);
            let _ = done.send(());
        });
        ended
            .recv_timeout(Duration::from_secs(20))
            .expect("the registry's lock is held while a handler is dropped");
        assert!(!registry.knows(&inner.register.name));
    }

    #[tokio::test]
    async fn local_members_are_called_before_peers() {
        let registry = Registry::new(NodeId::from_bytes([9; 32]));
        let peer = NodeId::from_bytes([1; 32]);
        registry.set_offers(peer, offers(&["grep"]), |_| true);
        let name: AgentName = "grep".parse().unwrap();
        assert_eq!(
            *registry.pick(&name, false, &[], None).unwrap().key(),
            MemberKey::Peer(peer)
        );
        let number = registry.add(handler(&Agent::new("grep").unwrap())).unwrap();
        assert_eq!(
            *registry.pick(&name, false, &[], None).unwrap().key(),
            MemberKey::Local(number)
        );
        registry.remove(&name, number);
        assert_eq!(
            *registry.pick(&name, false, &[], None).unwrap().key(),
            MemberKey::Peer(peer)
        );
        assert_eq!(
            registry.pick(&name, true, &[], None).unwrap_err().code,
            Code::NotFound
        );
    }

    #[tokio::test]
    async fn a_member_is_called_by_its_number_and_no_other_takes_its_call() {
        let registry = Registry::new(NodeId::from_bytes([9; 32]));
        let agent = Agent::new("grep").unwrap();
        let numbers: Vec<u64> = (0..3)
            .map(|_| registry.add(handler(&agent)).unwrap())
            .collect();
        let name: AgentName = "grep".parse().unwrap();
        for number in &numbers {
            for _ in 0..2 {
                let picked = registry.pick_number(&name, *number).unwrap();
                assert_eq!(*picked.key(), MemberKey::Local(*number));
            }
        }
        registry.remove(&name, numbers[1]);
        let gone = registry.pick_number(&name, numbers[1]).unwrap_err();
        assert_eq!(gone.code, Code::NotFound);
        assert!(gone.message.contains("no member"), "{gone}");
    }

    #[tokio::test]
    async fn a_new_offer_replaces_the_old_one() {
        let registry = Registry::new(NodeId::from_bytes([9; 32]));
        let peer = NodeId::from_bytes([1; 32]);
        registry.set_offers(peer, offers(&["grep", "sha256"]), |_| true);
        registry.set_offers(peer, offers(&["sha256", "word-count"]), |_| true);
        let known = |name: &str| registry.knows(&name.parse().unwrap());
        assert!(!known("grep") && known("sha256") && known("word-count"));
        registry.clear_offers(peer);
        assert!(!known("sha256") && !known("word-count"));
    }

    #[tokio::test]
    async fn a_peer_that_may_not_take_bare_calls_is_listed_and_never_picked() {
        let registry = Registry::new(NodeId::from_bytes([9; 32]));
        let peer = NodeId::from_bytes([1; 32]);
        let name: AgentName = "grep".parse().unwrap();
        let picked = |registry: &Registry| registry.pick(&name, false, &[], None).map(drop);
        registry.set_offers(peer, offers(&["grep"]), |_| false);
        assert_eq!(picked(&registry).unwrap_err().code, Code::NotFound);
        assert!(!registry.knows(&name) && registry.members().contains_key(&name));
        // The same list again, after this user has said otherwise.
        registry.set_offers(peer, offers(&["grep"]), |_| true);
        assert!(picked(&registry).is_ok() && registry.knows(&name));
        registry.set_offers(peer, offers(&["grep"]), |_| false);
        assert_eq!(picked(&registry).unwrap_err().code, Code::NotFound);
    }

    #[tokio::test]
    async fn a_full_member_refuses_in_words() {
        let registry = Registry::new(NodeId::from_bytes([9; 32]));
        registry
            .add(handler(&Agent::new("grep").unwrap().max_concurrency(1)))
            .unwrap();
        let name: AgentName = "grep".parse().unwrap();
        let held = registry.pick(&name, false, &[], None).unwrap();
        assert_eq!(
            registry.pick(&name, false, &[], None).unwrap_err().code,
            Code::ResourceExhausted
        );
        registry.finish(held, Code::Ok, Instant::now());
        assert!(registry.pick(&name, false, &[], None).is_ok());
    }

    #[tokio::test]
    async fn the_number_of_agents_is_bounded() {
        let registry = Registry::new(NodeId::from_bytes([9; 32]));
        for i in 0..hailwire_wire::limits::MAX_AGENTS_PER_NODE {
            registry
                .add(handler(&Agent::new(&format!("a{i}")).unwrap()))
                .unwrap();
        }
        let more = registry
            .add(handler(&Agent::new("more").unwrap()))
            .unwrap_err();
        assert_eq!(more.code, Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn the_name_of_the_node_itself_cannot_be_taken() {
        let registry = Registry::new(NodeId::from_bytes([9; 32]));
        let status = registry
            .add(handler(&Agent::new("node").unwrap()))
            .unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument);
    }
}
