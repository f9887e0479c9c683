//! Tunnels: at most two live sessions per peer, one over UDP and one over TCP, each dialled once
//! however many ask for it.
//!
//! Which of the two takes new calls is decided elsewhere ([`super::choice`]) and kept here, where
//! every call looks; where only one is up, it is that one. When both sides dial at once two
//! connections of one kind come up; both sides then keep the one that the node with the lower key
//! dialled, and let the other one finish what it carries. A peer whose greeting shows that it has
//! restarted loses its old tunnels at once.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use hailwire_wire::{Code, NodeId, Status};
use tokio::sync::watch;

use super::choice::{Way, Why};
use crate::{config::Carrier, session::Session};

/// The outcome of a dial, once there is one.
type Dialled = Option<Result<Session, Status>>;

#[derive(Debug)]
pub(crate) struct Peers {
    me: NodeId,
    table: Mutex<HashMap<NodeId, Peer>>,
    /// Tunnels that another has superseded; each ends when it carries nothing more.
    retired: Mutex<Vec<Session>>,
    /// What worked last with a peer, for the next dial.
    worked: Mutex<HashMap<NodeId, Way>>,
    /// Second tunnels that are being dialled.
    second: Mutex<HashSet<(NodeId, Way)>>,
    /// Sessions of dials that are under way and take calls already.
    early: watch::Sender<HashMap<NodeId, Early>>,
    reuse: Reuse,
}

/// A session whose peer has not greeted yet.
#[derive(Debug)]
struct Early {
    session: Session,
    /// The handshake is complete: what is sent now cannot be replayed.
    proven: bool,
}

/// What makes a session take calls before its peer has greeted. Also a dial that is given up leaves
/// nothing behind: the seat goes with it.
#[derive(Debug)]
pub(crate) struct EarlySeat {
    early: watch::Sender<HashMap<NodeId, Early>>,
    id: NodeId,
    session: Session,
}

impl EarlySeat {
    /// The handshake is complete: from now on all calls may be on it.
    pub(crate) fn prove(&self) {
        self.early.send_if_modified(|early| {
            let ours = early.get_mut(&self.id);
            let ours = ours.filter(|entry| entry.session.is(&self.session));
            ours.is_some_and(|entry| !std::mem::replace(&mut entry.proven, true))
        });
    }
}

impl Drop for EarlySeat {
    fn drop(&mut self) {
        self.early.send_if_modified(|early| {
            let ours = early.get(&self.id);
            let ours = ours.is_some_and(|entry| entry.session.is(&self.session));
            ours && early.remove(&self.id).is_some()
        });
    }
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
    carry: Option<Way>,
    why: Why,
    dialling: Option<watch::Receiver<Dialled>>,
}

#[derive(Clone, Debug)]
struct Tunnel {
    session: Session,
    dialled_by: NodeId,
    instance: u64,
}

/// A tunnel as it is shown.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) id: NodeId,
    pub(crate) session: Session,
    /// Whether it takes new calls.
    pub(crate) carries: bool,
    /// Why the one that takes new calls does.
    pub(crate) why: Why,
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

/// The way of a session.
pub(crate) fn way_of(session: &Session) -> Way {
    match session.connection().carrier() {
        "quic" => Way::Udp,
        _ => Way::Tcp,
    }
}

impl Tunnel {
    fn carrier(&self) -> &'static str {
        self.session.connection().carrier()
    }
}

impl Peer {
    fn slot(&mut self, way: Way) -> &mut Option<Tunnel> {
        match way {
            Way::Udp => &mut self.udp,
            Way::Tcp => &mut self.tcp,
        }
    }

    fn tunnel(&self, way: Way) -> Option<&Tunnel> {
        match way {
            Way::Udp => self.udp.as_ref(),
            Way::Tcp => self.tcp.as_ref(),
        }
    }

    /// The tunnel of one way, if it takes new work.
    fn ready(&self, way: Way) -> Option<&Tunnel> {
        self.tunnel(way)
            .filter(|tunnel| !tunnel.session.peer_is_going_away())
    }

    /// The tunnel that takes new calls.
    fn carrying(&self) -> Option<&Tunnel> {
        if let Some(way) = Way::of(self.only) {
            let named = |tunnel: &&Tunnel| tunnel.carrier() == self.only.name();
            return self.ready(way).filter(named);
        }
        let first = self.carry.unwrap_or(Way::Udp);
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
            early: watch::Sender::default(),
            reuse: Reuse::default(),
        }
    }

    /// The tunnel that takes new calls to `id`, if one is up.
    pub(crate) fn up(&self, id: NodeId) -> Option<Session> {
        let table = self.lock();
        let session = table.get(&id)?.carrying()?.session.clone();
        Some(session)
    }

    /// As [`Peers::up`] for a call, which counts as one that found a tunnel.
    pub(crate) fn up_for_call(&self, id: NodeId) -> Option<Session> {
        let session = self.up(id)?;
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

    /// The tunnel over one carrier, for a call that asks for it.
    pub(crate) fn up_over(&self, id: NodeId, carrier: Carrier) -> Option<Session> {
        let session = self.session(id, Way::of(carrier)?)?;
        Some(session).filter(|session| session.connection().carrier() == carrier.name())
    }

    /// Whether any tunnel to `id` is up, also one that takes no calls from here.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.lock().get(&id).is_some_and(|peer| !peer.is_empty())
    }

    /// The tunnel over UDP or TCP, if it takes new work.
    pub(crate) fn session(&self, id: NodeId, way: Way) -> Option<Session> {
        let table = self.lock();
        let session = table.get(&id)?.ready(way)?.session.clone();
        Some(session)
    }

    /// The tunnel to `id`, or whose business it is to make one. `only` is the carrier that is
    /// configured for it.
    pub(crate) fn connect(&self, id: NodeId, only: Carrier) -> Connect {
        let mut table = self.lock();
        let peer = table.entry(id).or_default();
        peer.only = only;
        if let Some(tunnel) = peer.carrying() {
            return Connect::Up(tunnel.session.clone());
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
        let instance = session.peer_hello().map_or(0, |hello| hello.instance);
        let new = Tunnel {
            session: session.clone(),
            dialled_by,
            instance,
        };
        let way = way_of(session);
        let mut table = self.lock();
        let peer = table.entry(id).or_default();
        peer.dialling = None;
        peer.only = only;
        for way in Way::BOTH {
            if let Some(old) = peer.slot(way).take_if(|old| old.instance != instance) {
                old.session
                    .close(Code::Unavailable, "the peer has restarted");
            }
        }
        if let Some(old) = peer.tunnel(way) {
            if old.session.is(session) {
                return true;
            }
            // Of two carriers over TCP the later one was asked for.
            let same = old.carrier() == new.carrier();
            if same && old.dialled_by != dialled_by && old.dialled_by == self.me.min(id) {
                // The old one is the one to keep; the new one ends when it is idle.
                self.retire(session.clone());
                return false;
            }
            self.retire(old.session.clone());
        }
        *peer.slot(way) = Some(new);
        self.note_worked(id, way);
        true
    }

    /// Says who takes new calls, and why.
    pub(crate) fn set_carry(&self, id: NodeId, carry: Way, why: Why) {
        if let Some(peer) = self.lock().get_mut(&id) {
            if peer.carry != Some(carry) {
                tracing::info!(peer = %id, ?carry, %why, "new calls");
            }
            peer.carry = Some(carry);
            peer.why = why;
        }
    }

    fn retire(&self, session: Session) {
        session.go_away("another tunnel is up");
        self.retired().push(session);
    }

    /// Closes superseded tunnels that carry nothing more.
    pub(crate) fn close_retired(&self) {
        self.retired().retain(|session| {
            let busy = session.in_flight() > 0 && !session.is_closed();
            if !busy {
                session.close(Code::Ok, "another tunnel is up");
            }
            busy
        });
    }

    fn retired(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a session out after it has ended. Returns whether the peer has no tunnel any more
    /// because of that.
    pub(crate) fn leave(&self, id: NodeId, session: &Session) -> bool {
        let mut table = self.lock();
        let Some(peer) = table.get_mut(&id) else {
            return false;
        };
        let mut was = false;
        for way in Way::BOTH {
            was |= peer
                .slot(way)
                .take_if(|tunnel| tunnel.session.is(session))
                .is_some();
        }
        let gone = was && peer.is_empty();
        if peer.is_empty() && peer.dialling.is_none() {
            table.remove(&id);
        }
        gone
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
    pub(crate) fn carries(&self, id: NodeId) -> Option<Way> {
        self.lock().get(&id)?.carry
    }

    /// Every tunnel.
    pub(crate) fn all(&self) -> Vec<(NodeId, Session)> {
        let shown = self.shown().into_iter();
        shown.map(|shown| (shown.id, shown.session)).collect()
    }

    /// Every tunnel, with what it is for.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let table = self.lock();
        let mut all = Vec::new();
        for (id, peer) in table.iter() {
            let carrying = peer.carrying();
            for tunnel in Way::BOTH.into_iter().filter_map(|way| peer.tunnel(way)) {
                all.push(Shown {
                    id: *id,
                    session: tunnel.session.clone(),
                    carries: carrying.is_some_and(|carrying| carrying.session.is(&tunnel.session)),
                    why: Self::why(peer, carrying),
                });
            }
        }
        all
    }

    fn why(peer: &Peer, carrying: Option<&Tunnel>) -> Why {
        let way = carrying.map(|tunnel| way_of(&tunnel.session));
        match (peer.only, peer.carry, way) {
            (Carrier::Auto, None, Some(Way::Tcp)) => Why::NoUdp,
            (Carrier::Auto, _, _) => peer.why,
            _ => Why::Configured,
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
    pub(crate) fn worked(&self, id: NodeId) -> Option<Way> {
        let worked = self.worked.lock().unwrap_or_else(PoisonError::into_inner);
        worked.get(&id).copied()
    }

    /// Takes note of the way that won. Peers are trusted, so their number is the operator's doing.
    pub(crate) fn note_worked(&self, id: NodeId, way: Way) {
        let mut worked = self.worked.lock().unwrap_or_else(PoisonError::into_inner);
        worked.insert(id, way);
    }

    /// Lets a session take calls that may be made twice while it is being brought up, for as long as the
    /// seat is held. Of several to one peer the first has it.
    pub(crate) fn seat_early(&self, id: NodeId, session: &Session) -> EarlySeat {
        let seat = EarlySeat {
            early: self.early.clone(),
            id,
            session: session.clone(),
        };
        self.early.send_modify(|early| {
            early.entry(id).or_insert_with(|| Early {
                session: session.clone(),
                proven: false,
            });
        });
        seat
    }

    /// Waits for a session that is being brought up and takes this call. `twice` says whether the call
    /// may be made twice.
    pub(crate) async fn early(&self, id: NodeId, twice: bool) -> Session {
        let takes = |early: &HashMap<NodeId, Early>| {
            let entry = early.get(&id).filter(|entry| entry.proven || twice);
            entry.map(|entry| entry.session.clone())
        };
        let mut early = self.early.subscribe();
        let found = early.wait_for(|early| takes(early).is_some()).await;
        match found.ok().and_then(|early| takes(&early)) {
            Some(session) => session,
            None => std::future::pending().await,
        }
    }

    /// Whether nobody dials that second tunnel yet; whoever asks does from now on.
    pub(crate) fn begin_second(&self, id: NodeId, way: Way) -> bool {
        self.seconds().insert((id, way))
    }

    pub(crate) fn end_second(&self, id: NodeId, way: Way) {
        self.seconds().remove(&(id, way));
    }

    fn seconds(&self) -> std::sync::MutexGuard<'_, HashSet<(NodeId, Way)>> {
        self.second.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Peer>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use hailwire_wire::header::Hello;
    use tokio::time::timeout;

    use super::*;
    use crate::{
        carrier::{Connection, mux},
        session::{Dispatch, Opening},
    };

    struct Nobody;

    impl Dispatch for Nobody {
        async fn dispatch(self: Arc<Self>, _session: Session, _opening: Opening) {}
    }

    fn session() -> (Session, mux::Connection) {
        let (near, far) = mux::Connection::pair();
        let near = Connection::Mux(near);
        let session = Session::start(near, true, Hello::default(), Arc::new(Nobody));
        (session, far)
    }

    async fn takes(peers: &Peers, id: NodeId, twice: bool) -> Option<Session> {
        timeout(Duration::ZERO, peers.early(id, twice)).await.ok()
    }

    #[tokio::test]
    async fn a_dial_that_is_given_up_leaves_no_session_to_call_on() {
        let id = NodeId::from_bytes([1; 32]);
        let peers = Peers::new(NodeId::from_bytes([2; 32]));
        let ((first, _far), (second, _other)) = (session(), session());
        let seat = peers.seat_early(id, &first);
        assert!(takes(&peers, id, true).await.unwrap().is(&first));
        assert!(takes(&peers, id, false).await.is_none(), "may be replayed");
        seat.prove();
        assert!(takes(&peers, id, false).await.unwrap().is(&first));

        let later = peers.seat_early(id, &second);
        drop(later);
        assert!(takes(&peers, id, false).await.unwrap().is(&first));

        let dial = async move {
            let _seat = seat;
            std::future::pending::<()>().await;
        };
        assert!(timeout(Duration::ZERO, dial).await.is_err());
        assert!(takes(&peers, id, true).await.is_none());
    }
}
