//! Tunnels: at most two per peer, one over UDP and one over TCP, each dialled once however many ask
//! for it, and each of one connection or several ([`super::connections`]).
//!
//! Which of the two takes new calls is decided elsewhere ([`super::choice`]) and kept here, where
//! every call looks; where only one is up, it is that one. When both sides dial at once two
//! connections of one kind come up; both sides then keep the one that the node with the lower key
//! dialled, and let the other one, with all that stands beside it, finish what it carries. A peer whose
//! greeting shows that it has restarted loses its old tunnels at once. A connection that is to stand beside
//! others replaces nothing.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use hailwire_core::{Transport, carrier_choice::ChoiceReason};
use hailwire_wire::{Code, NodeId, Status};
use tokio::sync::watch;

use super::{
    connections::{Remains, Standing, Tunnel},
    early::Early,
};
use crate::{config::Carrier, session::Session};

/// The outcome of a dial, once there is one.
pub(super) type Dialled = Option<Result<Session, Status>>;

#[derive(Debug)]
pub(crate) struct Peers {
    me: NodeId,
    table: Mutex<HashMap<NodeId, Peer>>,
    /// Tunnels that another has superseded; each ends when it carries nothing more.
    retired: Mutex<Vec<(NodeId, Session)>>,
    /// What worked last with a peer, for the next dial.
    worked: Mutex<HashMap<NodeId, Transport>>,
    /// Second tunnels that are being dialled.
    second: Mutex<HashSet<(NodeId, Transport)>>,
    /// Sessions of dials that are under way and take calls already.
    pub(crate) early: Early,
    reuse: Reuse,
}

/// How often a call found a tunnel up.
#[derive(Debug, Default)]
struct Reuse {
    found: AtomicU64,
    made: AtomicU64,
}

#[derive(Debug, Default)]
struct Peer {
    udp: Option<Tunnel>,
    tcp: Option<Tunnel>,
    /// The only carrier that takes new calls to it, where one is configured.
    only: Carrier,
    /// Whoever takes new calls, where both are up.
    carry: Option<Transport>,
    why: ChoiceReason,
    dialling: Option<watch::Receiver<Dialled>>,
}

/// A tunnel as it is shown.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) id: NodeId,
    /// The first of its connections.
    pub(crate) session: Session,
    /// All of them.
    pub(crate) connections: Vec<Session>,
    /// Whether it takes new calls.
    pub(crate) carries: bool,
    /// ChoiceReason the one that takes new calls does.
    pub(crate) why: ChoiceReason,
}

/// What to do about a peer without a tunnel.
pub(crate) enum Connect {
    /// There is one.
    Up(Session),
    /// Somebody dials already: wait for the outcome.
    Wait(watch::Receiver<Dialled>),
    /// Dial, and tell everyone who waits.
    Dial(watch::Sender<Dialled>),
}

/// What is left of a peer when a connection to it has ended.
#[derive(Debug)]
pub(crate) enum Left {
    /// What was there, or enough of it.
    Others,
    /// No tunnel any more.
    Nothing,
}

/// The way of a session.
pub(crate) fn way_of(session: &Session) -> Transport {
    match session.connection().carrier() {
        "quic" => Transport::Udp,
        _ => Transport::Tcp,
    }
}

/// The start of the peer that a session is with.
fn instance_of(session: &Session) -> u64 {
    session.peer_hello().map_or(0, |hello| hello.instance)
}

impl Peer {
    fn slot(&mut self, way: Transport) -> &mut Option<Tunnel> {
        match way {
            Transport::Udp => &mut self.udp,
            Transport::Tcp => &mut self.tcp,
        }
    }

    fn tunnel(&self, way: Transport) -> Option<&Tunnel> {
        match way {
            Transport::Udp => self.udp.as_ref(),
            Transport::Tcp => self.tcp.as_ref(),
        }
    }

    /// The tunnel of one way, if it takes new work.
    fn ready(&self, way: Transport) -> Option<&Tunnel> {
        self.tunnel(way)
            .filter(|tunnel| tunnel.ready().next().is_some())
    }

    fn tunnels(&self) -> impl Iterator<Item = &Tunnel> {
        [&self.udp, &self.tcp].into_iter().flatten()
    }

    /// The tunnel that takes new calls.
    fn carrying(&self) -> Option<&Tunnel> {
        if let Some(way) = Transport::of(self.only) {
            let named = |tunnel: &&Tunnel| tunnel.carrier() == Some(self.only.name());
            return self.ready(way).filter(named);
        }
        let first = self.carry.unwrap_or(Transport::Udp);
        self.ready(first).or_else(|| self.ready(first.other()))
    }

    fn is_empty(&self) -> bool {
        self.udp.is_none() && self.tcp.is_none()
    }
}

impl Peers {
    pub(crate) fn new(me: NodeId) -> Self {
        Self {
            me,
            table: Mutex::default(),
            retired: Mutex::default(),
            worked: Mutex::default(),
            second: Mutex::default(),
            early: Early::default(),
            reuse: Reuse::default(),
        }
    }

    /// The tunnel that takes new calls to `id`, if one is up.
    pub(crate) fn up(&self, id: NodeId) -> Option<Session> {
        let table = self.lock();
        table.get(&id)?.carrying()?.ready().next().cloned()
    }

    /// Where the next call to `id` goes, if a tunnel is up; counts it as one that found one.
    pub(crate) fn up_for_call(&self, id: NodeId) -> Option<Session> {
        let session = {
            let table = self.lock();
            table.get(&id)?.carrying()?.least_busy()?.clone()
        };
        self.count(true);
        Some(session)
    }

    /// Counts a call: one that found a tunnel, or one for which a tunnel had to be brought up or waited
    /// for.
    pub(crate) fn count(&self, found: bool) {
        let counter = match found {
            true => &self.reuse.found,
            false => &self.reuse.made,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls to peers that found a tunnel up, and those that did not.
    pub(crate) fn reuse(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.reuse.found), count(&self.reuse.made))
    }

    /// Where a call goes that asks for a carrier, if a tunnel over it is up.
    pub(crate) fn up_over(&self, id: NodeId, carrier: Carrier) -> Option<Session> {
        let table = self.lock();
        let tunnel = table.get(&id)?.tunnel(Transport::of(carrier)?)?;
        let named = tunnel.carrier() == Some(carrier.name());
        named.then(|| tunnel.least_busy().cloned()).flatten()
    }

    /// Whether any tunnel to `id` is up, also one that takes no calls from here.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.lock().get(&id).is_some_and(|peer| !peer.is_empty())
    }

    /// Those connections of a tunnel that take new work; none where there is no tunnel.
    pub(crate) fn connections(&self, id: NodeId, way: Transport) -> Vec<Session> {
        let table = self.lock();
        let tunnel = table.get(&id).and_then(|peer| peer.tunnel(way));
        tunnel.map_or_else(Vec::new, |tunnel| tunnel.ready().cloned().collect())
    }

    /// How a tunnel stands from now on, if this is the first of its connections.
    pub(super) fn standing(
        &self,
        id: NodeId,
        session: &Session,
    ) -> Option<watch::Receiver<Standing>> {
        let table = self.lock();
        let tunnel = table.get(&id)?.tunnel(way_of(session))?;
        tunnel.is_first(session).then(|| tunnel.standing())
    }

    /// Notes how many agents the peer offers.
    pub(crate) fn note_agents(&self, id: NodeId, agents: usize) {
        let table = self.lock();
        let tunnels = table.get(&id).into_iter().flat_map(Peer::tunnels);
        tunnels.for_each(|tunnel| tunnel.note_agents(agents));
    }

    /// The tunnel to `id`, or whose business it is to make one. `only` is the carrier that is
    /// configured for it.
    pub(crate) fn connect(&self, id: NodeId, only: Carrier) -> Connect {
        let mut table = self.lock();
        let peer = table.entry(id).or_default();
        peer.only = only;
        if let Some(session) = peer.carrying().and_then(|tunnel| tunnel.ready().next()) {
            return Connect::Up(session.clone());
        }
        if let Some(waiting) = &peer.dialling
            && waiting.has_changed().is_ok()
        {
            return Connect::Wait(waiting.clone());
        }
        let (sender, receiver) = watch::channel(None);
        peer.dialling = Some(receiver);
        Connect::Dial(sender)
    }

    /// Enters a session whose greeting has arrived. Returns whether it is a tunnel now. `only` as for
    /// [`Peers::connect`].
    pub(crate) fn enter(
        &self,
        id: NodeId,
        session: &Session,
        dialled: bool,
        only: Carrier,
    ) -> bool {
        let dialled_by = if dialled { self.me } else { id };
        let instance = instance_of(session);
        let way = way_of(session);
        let mut table = self.lock();
        let peer = table.entry(id).or_default();
        peer.dialling = None;
        peer.only = only;
        for way in Transport::BOTH {
            if let Some(old) = peer.slot(way).take_if(|old| old.instance() != instance) {
                for session in old.sessions() {
                    session.close(Code::Unavailable, "the peer has restarted");
                }
            }
        }
        if let Some(old) = peer.tunnel(way) {
            if old.has(session) {
                return true;
            }
            let keep = Some(self.me.min(id));
            // Of two carriers over TCP the later one was asked for.
            let same = old.carrier() == Some(session.connection().carrier());
            if same && old.dialled_by() != Some(dialled_by) && old.dialled_by() == keep {
                // The old one is the one to keep; the new one ends when it is idle.
                self.retire(id, session.clone());
                return false;
            }
            old.sessions().for_each(|old| self.retire(id, old.clone()));
        }
        *peer.slot(way) = Some(Tunnel::new(session.clone(), dialled_by, instance));
        self.note_worked(id, way);
        true
    }

    /// Enters a session that is to stand beside those of its tunnel, of which there are `most` then.
    ///
    /// # Errors
    ///
    /// ChoiceReason it may not, for the peer.
    pub(crate) fn enter_beside(
        &self,
        id: NodeId,
        session: &Session,
        dialled: bool,
        most: usize,
    ) -> Result<(), Status> {
        let dialled_by = if dialled { self.me } else { id };
        let mut table = self.lock();
        let tunnel = table
            .get_mut(&id)
            .and_then(|peer| peer.slot(way_of(session)).as_mut());
        let carrier = session.connection().carrier();
        // TCP has two carriers; a tunnel is of one.
        match tunnel.filter(|tunnel| tunnel.carrier() == Some(carrier)) {
            Some(tunnel) => tunnel.add(session.clone(), dialled_by, instance_of(session), most),
            None => Err(Status::new(
                Code::FailedPrecondition,
                format!("there is no tunnel over {carrier} beside which to stand"),
            )),
        }
    }

    /// Says who takes new calls, and why.
    pub(crate) fn set_carry(&self, id: NodeId, carry: Transport, why: ChoiceReason) {
        if let Some(peer) = self.lock().get_mut(&id) {
            if peer.carry != Some(carry) {
                tracing::info!(peer = %id, ?carry, %why, "new calls");
            }
            peer.carry = Some(carry);
            peer.why = why;
        }
    }

    fn retire(&self, id: NodeId, session: Session) {
        session.go_away("another tunnel is up");
        self.retired().push((id, session));
    }

    /// Closes superseded tunnels that carry nothing more.
    pub(crate) fn close_retired(&self) {
        self.retired().retain(|(_, session)| {
            let busy = session.in_flight() > 0 && !session.is_closed();
            if !busy {
                session.close(Code::Ok, "another tunnel is up");
            }
            busy
        });
    }

    /// Superseded connections that carry something still.
    pub(crate) fn still_busy(&self) -> Vec<(NodeId, Session)> {
        self.retired().clone()
    }

    fn retired(&self) -> std::sync::MutexGuard<'_, Vec<(NodeId, Session)>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a session out after it has ended. Says what is left because of that.
    pub(crate) fn leave(&self, id: NodeId, session: &Session) -> Left {
        let mut table = self.lock();
        let Some(peer) = table.get_mut(&id) else {
            return Left::Others;
        };
        let slot = peer.slot(way_of(session));
        let remains = slot
            .as_mut()
            .map_or(Remains::All, |tunnel| tunnel.remove(session));
        let left = match remains {
            Remains::All | Remains::Others => Left::Others,
            Remains::Nothing => {
                *slot = None;
                match peer.is_empty() {
                    true => Left::Nothing,
                    false => Left::Others,
                }
            }
        };
        if peer.is_empty() && peer.dialling.is_none() {
            table.remove(&id);
        }
        left
    }

    /// Forgets a dial that failed.
    pub(crate) fn failed(&self, id: NodeId) {
        let mut table = self.lock();
        if let Some(peer) = table.get_mut(&id) {
            peer.dialling = None;
            if peer.is_empty() {
                table.remove(&id);
            }
        }
    }

    /// Who takes new calls by what was decided last.
    pub(crate) fn carries(&self, id: NodeId) -> Option<Transport> {
        self.lock().get(&id)?.carry
    }

    /// Every connection of every tunnel.
    pub(crate) fn all(&self) -> Vec<(NodeId, Session)> {
        let table = self.lock();
        let tunnels = table
            .iter()
            .flat_map(|(id, peer)| peer.tunnels().map(move |tunnel| (id, tunnel)));
        let sessions = tunnels.flat_map(|(id, tunnel)| tunnel.sessions().map(move |s| (*id, s)));
        sessions
            .map(|(id, session)| (id, session.clone()))
            .collect()
    }

    /// Every tunnel, with what it is for.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let table = self.lock();
        let mut all = Vec::new();
        for (id, peer) in table.iter() {
            let carrying = peer.carrying();
            for tunnel in peer.tunnels() {
                let connections: Vec<Session> = tunnel.sessions().cloned().collect();
                let Some(session) = connections.first().cloned() else {
                    continue;
                };
                all.push(Shown {
                    id: *id,
                    carries: carrying.is_some_and(|carrying| carrying.has(&session)),
                    session,
                    connections,
                    why: Self::why(peer, carrying),
                });
            }
        }
        all
    }

    fn why(peer: &Peer, carrying: Option<&Tunnel>) -> ChoiceReason {
        let way = carrying.and_then(|tunnel| tunnel.sessions().next().map(way_of));
        match (peer.only, peer.carry, way) {
            (Carrier::Auto, None, Some(Transport::Tcp)) => ChoiceReason::NoUdp,
            (Carrier::Auto, _, _) => peer.why,
            _ => ChoiceReason::Configured,
        }
    }

    /// Peers that have a tunnel.
    pub(crate) fn ids(&self) -> Vec<NodeId> {
        let table = self.lock();
        let up = table.iter().filter(|(_, peer)| !peer.is_empty());
        up.map(|(id, _)| *id).collect()
    }

    /// Peers with a tunnel.
    pub(crate) fn len(&self) -> usize {
        self.lock().values().filter(|peer| !peer.is_empty()).count()
    }

    /// The way that worked last with a peer.
    pub(crate) fn worked(&self, id: NodeId) -> Option<Transport> {
        let worked = self.worked.lock().unwrap_or_else(PoisonError::into_inner);
        worked.get(&id).copied()
    }

    /// Takes note of the way that won. Peers are trusted, so their number is the operator's doing.
    pub(crate) fn note_worked(&self, id: NodeId, way: Transport) {
        let mut worked = self.worked.lock().unwrap_or_else(PoisonError::into_inner);
        worked.insert(id, way);
    }

    /// Whether nobody dials that second tunnel yet; whoever asks does from now on.
    pub(crate) fn begin_second(&self, id: NodeId, way: Transport) -> bool {
        self.seconds().insert((id, way))
    }

    pub(crate) fn end_second(&self, id: NodeId, way: Transport) {
        self.seconds().remove(&(id, way));
    }

    fn seconds(&self) -> std::sync::MutexGuard<'_, HashSet<(NodeId, Transport)>> {
        self.second.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Peer>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
