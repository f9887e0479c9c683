//! Which connections to peers there are, and which of them takes a call.
//!
//! A peer has at most two tunnels, one over UDP and one over TCP, and each stands on one connection or on several of the
//! same carrier ([`PeerTunnel`]). Which of the two takes new calls is decided by [`crate::carrier_choice`] and kept here,
//! where every call looks; where only one is up, it is that one.
//!
//! When both sides dial at once, two connections of one kind come up; both sides then keep the one that the node with
//! the lower key dialled, and let the other one, with all its additional connections, finish what it carries. A
//! peer whose greeting shows that it has restarted loses its old tunnels at once. An additional connection replaces nothing.
//!
//! The table holds connections and does nothing to them: what is to be done it says in [`PeerAction`]s. After each
//! call of a `&mut` method they are taken with [`PeerTable::poll_action`].

use std::collections::{HashSet, VecDeque};

use foldhash::{HashMap, HashMapExt};
use hailwire_wire::{Code, NodeId, Status};

use crate::{Carrier, Transport, carrier_choice::ChoiceReason};

mod tunnel;

pub use tunnel::{PeerTunnel, TunnelSize};

/// Why a tunnel that another has superseded ends.
const SUPERSEDED: &str = "another tunnel is up";

/// A connection, as far as the table looks at it. Clones are the same connection.
pub trait PeerConnection: Clone {
    /// Whether both are the same connection.
    fn is(&self, other: &Self) -> bool;
    /// The name of its carrier. Two carriers over TCP are two kinds of tunnel, of which a peer has one.
    fn carrier_name(&self) -> &'static str;
    /// What its carrier stands on.
    fn transport(&self) -> Transport;
    /// Which start of the peer it is with, by the peer's greeting; zero where that does not say.
    fn instance(&self) -> u64;
    /// Whether new streams may be opened on it.
    fn takes_work(&self) -> bool;
    /// Streams in flight.
    fn in_flight(&self) -> u64;
    /// Whether it has ended.
    fn is_closed(&self) -> bool;
}

/// What is to be done after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAction<C> {
    /// Close a connection, with this code and reason.
    Close(C, Code, &'static str),
    /// Send `GOING_AWAY`: what it carries may finish.
    GoAway(C, &'static str),
    /// A tunnel has another size than before.
    TunnelChanged(NodeId, Transport, TunnelSize),
    /// A tunnel is there no more, or another has taken its place.
    TunnelEnded(NodeId, Transport),
}

/// What is left of a peer when a connection to it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRemains {
    /// A tunnel, or the connection was none of its.
    Tunnel,
    /// No tunnel any more.
    Nothing,
}

/// A tunnel as it is shown.
#[derive(Clone, Debug)]
pub struct TunnelView<C> {
    /// With whom.
    pub peer: NodeId,
    /// The first of its connections.
    pub first: C,
    /// All of them.
    pub connections: Vec<C>,
    /// Whether it takes new calls.
    pub carries: bool,
    /// Why the one that takes new calls does.
    pub reason: ChoiceReason,
}

/// All tunnels of a node.
#[derive(Debug)]
pub struct PeerTable<C> {
    me: NodeId,
    peers: HashMap<NodeId, PeerEntry<C>>,
    /// Connections that others have superseded; each ends when it carries nothing more.
    retired: Vec<(NodeId, C)>,
    /// Which transport worked last with a peer, for the next dial. Peers are trusted, so their number is the
    /// operator's doing.
    worked: HashMap<NodeId, Transport>,
    /// Second tunnels that are being dialled.
    second: HashSet<(NodeId, Transport)>,
    actions: VecDeque<PeerAction<C>>,
}

/// A peer with at least one tunnel.
#[derive(Debug)]
struct PeerEntry<C> {
    udp: Option<PeerTunnel<C>>,
    tcp: Option<PeerTunnel<C>>,
    /// The only carrier that takes new calls to it, where one is configured.
    only: Carrier,
    /// Which takes new calls, where both are up.
    carry: Option<Transport>,
    reason: ChoiceReason,
}

impl<C> Default for PeerEntry<C> {
    fn default() -> Self {
        Self {
            udp: None,
            tcp: None,
            only: Carrier::Auto,
            carry: None,
            reason: ChoiceReason::default(),
        }
    }
}

impl<C: PeerConnection> PeerEntry<C> {
    fn slot(&mut self, transport: Transport) -> &mut Option<PeerTunnel<C>> {
        match transport {
            Transport::Udp => &mut self.udp,
            Transport::Tcp => &mut self.tcp,
        }
    }

    fn tunnel(&self, transport: Transport) -> Option<&PeerTunnel<C>> {
        match transport {
            Transport::Udp => self.udp.as_ref(),
            Transport::Tcp => self.tcp.as_ref(),
        }
    }

    fn tunnels(&self) -> impl Iterator<Item = &PeerTunnel<C>> {
        [&self.udp, &self.tcp].into_iter().flatten()
    }

    /// The tunnel over one transport, if it takes new work.
    fn ready(&self, transport: Transport) -> Option<&PeerTunnel<C>> {
        self.tunnel(transport)
            .filter(|tunnel| tunnel.ready().next().is_some())
    }

    /// The tunnel that takes new calls.
    fn carrying(&self) -> Option<&PeerTunnel<C>> {
        if let Some(transport) = Transport::of(self.only) {
            let named = |tunnel: &&PeerTunnel<C>| tunnel.carrier_name() == Some(self.only.name());
            return self.ready(transport).filter(named);
        }
        let first = self.carry.unwrap_or(Transport::Udp);
        self.ready(first).or_else(|| self.ready(first.other()))
    }

    fn shown_reason(&self, carrying: Option<&PeerTunnel<C>>) -> ChoiceReason {
        let over = carrying.and_then(|tunnel| tunnel.connections().next().map(C::transport));
        match (self.only, self.carry, over) {
            (Carrier::Auto, None, Some(Transport::Tcp)) => ChoiceReason::NoUdp,
            (Carrier::Auto, _, _) => self.reason,
            _ => ChoiceReason::Configured,
        }
    }
}

impl<C: PeerConnection> PeerTable<C> {
    /// That of the node with the key `me`; empty.
    #[must_use]
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            peers: HashMap::new(),
            retired: Vec::new(),
            worked: HashMap::new(),
            second: HashSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next; nothing where all was given.
    pub fn poll_action(&mut self) -> Option<PeerAction<C>> {
        self.actions.pop_front()
    }

    /// The first connection that takes new work of the tunnel that takes new calls to a peer.
    #[must_use]
    pub fn up(&self, id: NodeId) -> Option<&C> {
        self.peers.get(&id)?.carrying()?.ready().next()
    }

    /// The connection that takes the next call to a peer.
    #[must_use]
    pub fn up_for_call(&self, id: NodeId) -> Option<&C> {
        self.peers.get(&id)?.carrying()?.least_busy()
    }

    /// The connection that takes a call which asks for a carrier.
    #[must_use]
    pub fn up_over(&self, id: NodeId, carrier: Carrier) -> Option<&C> {
        let tunnel = self.peers.get(&id)?.tunnel(Transport::of(carrier)?)?;
        let named = tunnel.carrier_name() == Some(carrier.name());
        named.then(|| tunnel.least_busy()).flatten()
    }

    /// Whether any tunnel to a peer is up, also one that takes no calls from here.
    #[must_use]
    pub fn has(&self, id: NodeId) -> bool {
        self.peers.contains_key(&id)
    }

    /// Those connections of a tunnel that take new work; none where there is no tunnel.
    pub fn connections(&self, id: NodeId, transport: Transport) -> impl Iterator<Item = &C> {
        let tunnel = self.peers.get(&id).and_then(|peer| peer.tunnel(transport));
        tunnel.into_iter().flat_map(PeerTunnel::ready)
    }

    /// The size of the tunnel of which this is the first connection.
    #[must_use]
    pub fn size_by_first(&self, id: NodeId, connection: &C) -> Option<TunnelSize> {
        let tunnel = self.peers.get(&id)?.tunnel(connection.transport())?;
        let first = tunnel.connections().next()?;
        first.is(connection).then(|| tunnel.size())
    }

    /// How many agents a peer offers.
    pub fn handle_agents(&mut self, id: NodeId, agents: usize) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        for transport in Transport::BOTH {
            if let Some(tunnel) = peer.slot(transport)
                && tunnel.note_agents(agents)
            {
                let changed = PeerAction::TunnelChanged(id, transport, tunnel.size());
                self.actions.push_back(changed);
            }
        }
    }

    /// The only carrier that is configured for calls to a peer; [`Carrier::Auto`] for both.
    pub fn set_only(&mut self, id: NodeId, only: Carrier) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.only = only;
        }
    }

    /// A connection is up and greeted. Returns whether it is the peer's tunnel now. `dialled` says that this node has
    /// dialled it; `only` as for [`PeerTable::set_only`].
    pub fn handle_connected(
        &mut self,
        id: NodeId,
        connection: &C,
        dialled: bool,
        only: Carrier,
    ) -> bool {
        let dialled_by = if dialled { self.me } else { id };
        let (instance, transport) = (connection.instance(), connection.transport());
        let peer = self.peers.entry(id).or_default();
        peer.only = only;
        for transport in Transport::BOTH {
            if let Some(old) = peer
                .slot(transport)
                .take_if(|old| old.instance() != instance)
            {
                let close = |old: &C| {
                    PeerAction::Close(old.clone(), Code::Unavailable, "the peer has restarted")
                };
                self.actions.extend(old.connections().map(close));
                let ended = PeerAction::TunnelEnded(id, transport);
                self.actions.push_back(ended);
            }
        }
        if let Some(old) = peer.tunnel(transport) {
            if old.has(connection) {
                return true;
            }
            let keep = Some(self.me.min(id));
            // Of two carriers over TCP the later one was asked for.
            let same = old.carrier_name() == Some(connection.carrier_name());
            if same && old.dialled_by() != Some(dialled_by) && old.dialled_by() == keep {
                // The old one is the one to keep; the new one ends when it carries nothing.
                self.retire(id, vec![connection.clone()]);
                return false;
            }
            let superseded = old.connections().cloned().collect();
            self.retire(id, superseded);
            self.actions
                .push_back(PeerAction::TunnelEnded(id, transport));
        }
        let tunnel = PeerTunnel::new(connection.clone(), dialled_by, instance);
        *self.peers.entry(id).or_default().slot(transport) = Some(tunnel);
        self.note_worked(id, transport);
        true
    }

    /// A connection is up and greeted that is to be an additional one of its tunnel, which has at most `most` then.
    ///
    /// # Errors
    ///
    /// Why it may not, for the peer.
    pub fn handle_additional(
        &mut self,
        id: NodeId,
        connection: &C,
        dialled: bool,
        most: usize,
    ) -> Result<(), Status> {
        let dialled_by = if dialled { self.me } else { id };
        let (transport, carrier) = (connection.transport(), connection.carrier_name());
        let peer = self.peers.get_mut(&id);
        let tunnel = peer.and_then(|peer| peer.slot(transport).as_mut());
        // TCP has two carriers; a tunnel is of one.
        let tunnel = tunnel
            .filter(|tunnel| tunnel.carrier_name() == Some(carrier))
            .ok_or_else(|| {
                let what =
                    format!("there is no tunnel over {carrier} that the connection could join");
                Status::new(Code::FailedPrecondition, what)
            })?;
        if tunnel.add(connection, dialled_by, most)? {
            let changed = PeerAction::TunnelChanged(id, transport, tunnel.size());
            self.actions.push_back(changed);
        }
        Ok(())
    }

    /// A connection has ended. Says what is left because of that.
    pub fn handle_closed(&mut self, id: NodeId, connection: &C) -> PeerRemains {
        let Some(peer) = self.peers.get_mut(&id) else {
            return PeerRemains::Tunnel;
        };
        let transport = connection.transport();
        let slot = peer.slot(transport);
        let Some(tunnel) = slot.as_mut().filter(|tunnel| tunnel.has(connection)) else {
            return PeerRemains::Tunnel;
        };
        if tunnel.remove(connection) {
            let changed = PeerAction::TunnelChanged(id, transport, tunnel.size());
            self.actions.push_back(changed);
            return PeerRemains::Tunnel;
        }
        *slot = None;
        self.actions
            .push_back(PeerAction::TunnelEnded(id, transport));
        if peer.tunnels().next().is_some() {
            return PeerRemains::Tunnel;
        }
        self.peers.remove(&id);
        PeerRemains::Nothing
    }

    /// Closes superseded connections that carry nothing more.
    pub fn close_retired(&mut self) {
        let actions = &mut self.actions;
        self.retired.retain(|(_, connection)| {
            let busy = connection.in_flight() > 0 && !connection.is_closed();
            if !busy {
                actions.push_back(PeerAction::Close(connection.clone(), Code::Ok, SUPERSEDED));
            }
            busy
        });
    }

    /// Superseded connections that carry something still.
    #[must_use]
    pub fn retired(&self) -> &[(NodeId, C)] {
        &self.retired
    }

    /// Says which transport takes new calls, and why. Returns whether that is news.
    pub fn set_carry(&mut self, id: NodeId, carry: Transport, reason: ChoiceReason) -> bool {
        let Some(peer) = self.peers.get_mut(&id) else {
            return false;
        };
        peer.reason = reason;
        peer.carry.replace(carry) != Some(carry)
    }

    /// Which transport takes new calls, by what was decided last.
    #[must_use]
    pub fn carries(&self, id: NodeId) -> Option<Transport> {
        self.peers.get(&id)?.carry
    }

    /// Every connection of every tunnel.
    pub fn all(&self) -> impl Iterator<Item = (NodeId, &C)> {
        let tunnels = self
            .peers
            .iter()
            .flat_map(|(id, peer)| peer.tunnels().map(move |tunnel| (*id, tunnel)));
        tunnels.flat_map(|(id, tunnel)| tunnel.connections().map(move |one| (id, one)))
    }

    /// Every tunnel, with what it is for.
    #[must_use]
    pub fn view(&self) -> Vec<TunnelView<C>> {
        let mut all = Vec::new();
        for (id, peer) in &self.peers {
            let carrying = peer.carrying();
            for tunnel in peer.tunnels() {
                let connections: Vec<C> = tunnel.connections().cloned().collect();
                let Some(first) = connections.first().cloned() else {
                    continue;
                };
                all.push(TunnelView {
                    peer: *id,
                    carries: carrying.is_some_and(|carrying| carrying.has(&first)),
                    first,
                    connections,
                    reason: peer.shown_reason(carrying),
                });
            }
        }
        all
    }

    /// Peers that have a tunnel.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.peers.keys().copied()
    }

    /// How many peers have a tunnel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether no peer has a tunnel.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Which transport worked last with a peer.
    #[must_use]
    pub fn worked(&self, id: NodeId) -> Option<Transport> {
        self.worked.get(&id).copied()
    }

    /// Takes note of the transport over which a dial succeeded.
    pub fn note_worked(&mut self, id: NodeId, transport: Transport) {
        self.worked.insert(id, transport);
    }

    /// Whether nobody dials a peer's second tunnel yet; whoever asks does from now on, until
    /// [`PeerTable::end_second`].
    pub fn begin_second(&mut self, id: NodeId, transport: Transport) -> bool {
        self.second.insert((id, transport))
    }

    /// The second tunnel is up, or could not be brought up.
    pub fn end_second(&mut self, id: NodeId, transport: Transport) {
        self.second.remove(&(id, transport));
    }

    fn retire(&mut self, id: NodeId, connections: Vec<C>) {
        for connection in connections {
            let away = PeerAction::GoAway(connection.clone(), SUPERSEDED);
            self.actions.push_back(away);
            self.retired.push((id, connection));
        }
    }
}

#[cfg(test)]
mod tests;
