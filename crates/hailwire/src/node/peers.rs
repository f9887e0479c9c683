//! The tunnels to peers, as tasks share them: [`PeerTable`] decides, here it is locked, and what it says is done.
//!
//! However many ask for a tunnel, each is dialled once: whoever comes second waits for the outcome of the first. Whoever
//! sees to it that a tunnel has enough connections is told how its size changes.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hailwire_core::{
    Transport,
    carrier_choice::ChoiceReason,
    dial_patience::UnreachablePeers,
    path_history::{PathHistory, PathKind, PathSums, UsedPath},
    peer_table::{PeerAction, PeerConnection, PeerRemains, PeerTable, TunnelSize, TunnelView},
};
use hailwire_wire::{Code, NodeId, Status};
use tokio::sync::watch;

use super::{
    accounts::PeerAccounts, early_sessions::EarlySessions, offers::OfferLists,
    requested_dials::RequestedDials, tunnel::UntrustedPeers,
};
use crate::{carrier::CarrierConnection, clock, config::Carrier, session::Session};

/// The outcome of a dial, once there is one.
pub(super) type DialOutcome = Option<Result<Session, Status>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Peers {
    state: Mutex<PeersState>,
    pub(super) lists: OfferLists,
    pub(super) requested_dials: RequestedDials,
    pub(super) accounts: PeerAccounts,
    pub(super) untrusted: UntrustedPeers,
    /// Sessions of dials that are under way and take calls already.
    pub(crate) early: EarlySessions,
    reuse: TunnelReuse,
    paths: Mutex<PeerPaths>,
    /// Counts changes of the tunnels.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct PeersState {
    table: PeerTable<Session>,
    /// Dials of peers that have no tunnel.
    dials: HashMap<NodeId, watch::Receiver<DialOutcome>>,
    unreachable: UnreachablePeers,
    /// Who is told how the size of a tunnel changes; gone with the tunnel.
    sizes: HashMap<(NodeId, Transport), watch::Sender<TunnelSize>>,
}

/// The paths of the tunnels over UDP, by the keys of their sessions.
#[derive(Debug, Default)]
struct PeerPaths {
    history: PathHistory<usize>,
    /// Peers with a path that changed since somebody looked.
    changed: HashSet<NodeId>,
}

/// How often a call found a tunnel up.
#[derive(Debug, Default)]
struct TunnelReuse {
    found: AtomicU64,
    made: AtomicU64,
}

/// What to do about a peer without a tunnel.
pub(crate) enum ConnectStep {
    /// There is one.
    Up(Session),
    /// Somebody dials already: wait for the outcome.
    Wait(watch::Receiver<DialOutcome>),
    /// Dial, and tell everyone who waits.
    Dial(watch::Sender<DialOutcome>),
}

impl PeerConnection for Session {
    fn is(&self, other: &Self) -> bool {
        self.is(other)
    }

    fn carrier_name(&self) -> &'static str {
        self.connection().carrier()
    }

    fn transport(&self) -> Transport {
        match self.connection() {
            CarrierConnection::Quic(_) => Transport::Udp,
            CarrierConnection::H2(_) | CarrierConnection::Mux(_) => Transport::Tcp,
        }
    }

    fn instance(&self) -> u64 {
        self.peer_hello().map_or(0, |hello| hello.instance)
    }

    fn takes_work(&self) -> bool {
        self.takes_work()
    }

    fn in_flight(&self) -> u64 {
        self.in_flight()
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }
}

impl PeersState {
    /// Does what the table says. Nothing of it waits.
    fn act(&mut self) {
        while let Some(action) = self.table.poll_action() {
            match action {
                PeerAction::Close(session, code, reason) => session.close(code, reason),
                PeerAction::GoAway(session, reason) => session.go_away(reason),
                PeerAction::TunnelChanged(id, transport, size) => {
                    if let Some(told) = self.sizes.get(&(id, transport)) {
                        told.send_replace(size);
                    }
                }
                PeerAction::TunnelEnded(id, transport) => {
                    self.sizes.remove(&(id, transport));
                }
            }
        }
    }
}

impl Peers {
    pub(crate) fn new(me: NodeId) -> Self {
        Self {
            state: Mutex::new(PeersState {
                table: PeerTable::new(me),
                dials: HashMap::new(),
                unreachable: UnreachablePeers::default(),
                sizes: HashMap::new(),
            }),
            lists: OfferLists::new(),
            requested_dials: RequestedDials::default(),
            accounts: PeerAccounts::default(),
            untrusted: UntrustedPeers::new(),
            early: EarlySessions::default(),
            reuse: TunnelReuse::default(),
            paths: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Changes whenever a connection of a tunnel comes up or ends, and when another transport takes new calls.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The tunnel that takes new calls to `id`, if one is up.
    pub(crate) fn up(&self, id: NodeId) -> Option<Session> {
        self.lock().table.up(id).cloned()
    }

    /// Where the next call to `id` goes, if a tunnel is up; counts it as one that found one.
    pub(crate) fn up_for_call(&self, id: NodeId) -> Option<Session> {
        let session = self.lock().table.up_for_call(id).cloned()?;
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
        self.lock().table.up_over(id, carrier).cloned()
    }

    /// Whether any tunnel to `id` is up, also one that takes no calls from here.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.lock().table.has(id)
    }

    /// Those connections of a tunnel that take new work; none where there is no tunnel.
    pub(crate) fn connections(&self, id: NodeId, transport: Transport) -> Vec<Session> {
        let state = self.lock();
        state.table.connections(id, transport).cloned().collect()
    }

    /// How large a tunnel is from now on, if this is the first of its connections. Ends with the tunnel.
    pub(super) fn watch_size(
        &self,
        id: NodeId,
        session: &Session,
    ) -> Option<watch::Receiver<TunnelSize>> {
        let mut state = self.lock();
        let size = state.table.size_by_first(id, session)?;
        let key = (id, session.transport());
        let told = state.sizes.entry(key);
        Some(told.or_insert_with(|| watch::Sender::new(size)).subscribe())
    }

    /// Notes how many agents the peer offers.
    pub(crate) fn note_agents(&self, id: NodeId, agents: usize) {
        self.change(|table| table.handle_agents(id, agents));
    }

    /// The tunnel to `id`, or whose business it is to make one. `only` is the carrier that is
    /// configured for it.
    pub(crate) fn connect(&self, id: NodeId, only: Carrier) -> ConnectStep {
        let mut state = self.lock();
        state.table.set_only(id, only);
        if let Some(session) = state.table.up(id) {
            return ConnectStep::Up(session.clone());
        }
        if let Some(dial) = state.dials.get(&id)
            && dial.has_changed().is_ok()
        {
            return ConnectStep::Wait(dial.clone());
        }
        let (sender, receiver) = watch::channel(None);
        state.dials.insert(id, receiver);
        ConnectStep::Dial(sender)
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
        let mut state = self.lock();
        state.dials.remove(&id);
        state.unreachable.handle_connected(id);
        let entered = state.table.handle_connected(id, session, dialled, only);
        state.act();
        drop(state);
        self.tell_change();
        entered
    }

    /// Enters an additional session of a tunnel, of which there are at most `most` then.
    ///
    /// # Errors
    ///
    /// Why it may not, for the peer.
    pub(crate) fn enter_additional(
        &self,
        id: NodeId,
        session: &Session,
        dialled: bool,
        most: usize,
    ) -> Result<(), Status> {
        let entered = self.change(|table| table.handle_additional(id, session, dialled, most));
        self.tell_change();
        entered
    }

    /// Says which transport takes new calls, and why.
    pub(crate) fn set_carry(&self, id: NodeId, carry: Transport, reason: ChoiceReason) {
        if self.change(|table| table.set_carry(id, carry, reason)) {
            tracing::info!(peer = %id, ?carry, %reason, "new calls");
            self.tell_change();
        }
    }

    /// Closes superseded tunnels that carry nothing more.
    pub(crate) fn close_retired(&self) {
        self.change(PeerTable::close_retired);
    }

    /// Superseded connections that carry something still.
    pub(crate) fn still_busy(&self) -> Vec<(NodeId, Session)> {
        self.lock().table.retired().to_vec()
    }

    /// Takes a session out after it has ended. Says what is left because of that.
    pub(crate) fn leave(&self, id: NodeId, session: &Session) -> PeerRemains {
        let remains = self.change(|table| table.handle_closed(id, session));
        self.tell_change();
        remains
    }

    /// Takes note of the path that a session uses, and tells of it where it is another one than before.
    pub(crate) fn look_at_path(&self, id: NodeId, session: &Session) {
        let stats = session.connection().stats();
        let used = (!stats.remote.is_empty()).then_some(UsedPath {
            kind: match stats.relayed {
                true => PathKind::Relay,
                false => PathKind::Direct,
            },
            remote: stats.remote,
        });
        let change = {
            let mut paths = self.paths();
            paths.changed.insert(id);
            match session.transport() {
                Transport::Udp => paths.history.handle_path(clock::now(), session.key(), used),
                Transport::Tcp => None,
            }
        };
        if let Some(change) = change {
            let before = change.from.map_or("none", |from| from.kind.name());
            let after_ms = change.after.as_millis();
            tracing::info!(peer = %id, path = %change.to, before, after_ms, "path");
            self.tell_change();
        }
    }

    /// A session has ended, and with it its path.
    pub(crate) fn forget_path(&self, session: &Session) {
        if session.transport() == Transport::Udp {
            let relayed = session.connection().stats().relayed_bytes;
            self.paths().history.handle_closed(session.key(), relayed);
        }
    }

    /// Peers with a path that has changed since this was called last.
    pub(crate) fn take_changed_paths(&self) -> HashSet<NodeId> {
        std::mem::take(&mut self.paths().changed)
    }

    /// How the tunnels over UDP came to their paths since the start.
    pub(crate) fn path_sums(&self) -> PathSums {
        let all = self.all().into_iter();
        let live: u64 = all
            .map(|(_, session)| session.connection().stats().relayed_bytes)
            .sum();
        let mut sums = self.paths().history.sums();
        sums.relayed_bytes += live;
        sums
    }

    fn paths(&self) -> MutexGuard<'_, PeerPaths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a dial that failed.
    pub(crate) fn failed(&self, id: NodeId, why: &Status) {
        self.lock().dials.remove(&id);
        if why.code == Code::Unavailable {
            self.fell_silent(id);
        }
    }

    /// Remembers that the peer did not answer.
    pub(crate) fn fell_silent(&self, id: NodeId) {
        self.lock().unreachable.handle_failure(clock::now(), id);
    }

    /// For how long a peer has not answered, where callers are to wait for it briefly
    /// ([`hailwire_core::dial_patience`] decides).
    pub(crate) fn unreachable_for(&self, id: NodeId) -> Option<Duration> {
        self.lock().unreachable.unreachable_for(clock::now(), id)
    }

    /// Which transport takes new calls by what was decided last.
    pub(crate) fn carries(&self, id: NodeId) -> Option<Transport> {
        self.lock().table.carries(id)
    }

    /// Every connection of every tunnel.
    pub(crate) fn all(&self) -> Vec<(NodeId, Session)> {
        let state = self.lock();
        let all = state.table.all();
        all.map(|(id, session)| (id, session.clone())).collect()
    }

    /// Every tunnel, with what it is for.
    pub(crate) fn shown(&self) -> Vec<TunnelView<Session>> {
        self.lock().table.view()
    }

    /// Peers that have a tunnel.
    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.lock().table.ids().collect()
    }

    /// How many peers have a tunnel.
    pub(crate) fn len(&self) -> usize {
        self.lock().table.len()
    }

    /// The transport that worked last with a peer.
    pub(crate) fn worked(&self, id: NodeId) -> Option<Transport> {
        self.lock().table.worked(id)
    }

    /// Takes note of the transport that won a dial.
    pub(crate) fn note_worked(&self, id: NodeId, transport: Transport) {
        self.change(|table| table.note_worked(id, transport));
    }

    /// Whether nobody dials that second tunnel yet; whoever asks does from now on.
    pub(crate) fn begin_second(&self, id: NodeId, transport: Transport) -> bool {
        self.change(|table| table.begin_second(id, transport))
    }

    pub(crate) fn end_second(&self, id: NodeId, transport: Transport) {
        self.change(|table| table.end_second(id, transport));
    }

    /// Changes the table, and does what it says then.
    fn change<T>(&self, change: impl FnOnce(&mut PeerTable<Session>) -> T) -> T {
        let mut state = self.lock();
        let outcome = change(&mut state.table);
        state.act();
        outcome
    }

    fn tell_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn lock(&self) -> MutexGuard<'_, PeersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use hailwire_wire::{Code, header::Hello};

    use super::*;
    use crate::session::{
        OpenedStream, StreamDispatcher,
        tests::{RawPeer, connected},
    };

    struct NoCalls;

    impl StreamDispatcher for NoCalls {
        async fn dispatch(self: std::sync::Arc<Self>, _: Session, _: OpenedStream) {}
    }

    fn key(byte: u8) -> NodeId {
        NodeId::from_bytes([byte; 32])
    }

    /// A session that a peer has dialled, with its far end.
    async fn dialled_here() -> (Session, RawPeer) {
        let (far, near) = connected();
        let hello = Hello {
            versions: vec![hailwire_wire::header::VERSION],
            ..Hello::default()
        };
        let session = Session::start(near, false, hello, std::sync::Arc::new(NoCalls));
        (session, RawPeer(far))
    }

    #[tokio::test]
    async fn a_peer_is_dialled_once_however_many_ask() {
        let peers = Peers::new(key(1));
        let connect = || peers.connect(key(2), Carrier::Auto);
        let ConnectStep::Dial(tell) = connect() else {
            panic!("the first dials");
        };
        let ConnectStep::Wait(mut told) = connect() else {
            panic!("the second waits");
        };
        // Another peer is another matter.
        assert!(matches!(
            peers.connect(key(3), Carrier::Auto),
            ConnectStep::Dial(_)
        ));
        let away = Status::new(Code::Unavailable, "away");
        tell.send(Some(Err(away.clone()))).unwrap();
        let told = told.wait_for(Option::is_some).await.unwrap().clone();
        assert_eq!(told.unwrap().unwrap_err(), away);
        peers.failed(key(2), &Status::new(Code::Unavailable, "away"));
        let ConnectStep::Dial(given_up) = connect() else {
            panic!("it failed, and is tried anew");
        };
        // Whoever dialled is gone without a word.
        drop(given_up);
        assert!(matches!(connect(), ConnectStep::Dial(_)));
    }

    #[tokio::test]
    async fn a_tunnel_is_found_until_it_is_gone_and_every_change_is_told() {
        let peers = Peers::new(key(1));
        let mut changes = peers.changes();
        let (session, far) = dialled_here().await;
        let _control = far.greet().await;
        assert!(peers.enter(key(2), &session, false, Carrier::Auto));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(peers.has(key(2)) && peers.len() == 1 && peers.ids() == [key(2)]);
        assert!(peers.up(key(2)).unwrap().is(&session));
        assert!(matches!(
            peers.connect(key(2), Carrier::Auto),
            ConnectStep::Up(up) if up.is(&session)
        ));
        assert!(peers.up_over(key(2), Carrier::Quic).is_none());
        assert!(peers.up(key(3)).is_none() && !peers.has(key(3)));

        session.close(Code::Ok, "");
        assert!(matches!(
            peers.leave(key(2), &session),
            PeerRemains::Nothing
        ));
        assert!(changes.has_changed().unwrap());
        assert!(!peers.has(key(2)) && peers.up(key(2)).is_none());
    }

    #[test]
    fn calls_that_found_a_tunnel_are_counted_apart_from_those_that_did_not() {
        let peers = Peers::new(key(1));
        for found in [true, false, true] {
            peers.count(found);
        }
        assert_eq!(peers.reuse(), (2, 1));
        assert!(peers.up_for_call(key(2)).is_none());
        assert_eq!(peers.reuse(), (2, 1), "one that waits is counted there");
    }
}
