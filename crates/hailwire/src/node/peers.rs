//! Tunnels: at most one live session per peer, dialled once however many ask for it.
//!
//! When both sides dial at once two connections come up; both sides then keep the one that the
//! node with the lower key dialled, and let the other one finish what it carries. A peer whose
//! greeting shows that it has restarted loses its old tunnel at once.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use hailwire_wire::{Code, NodeId, Status};
use tokio::sync::watch;

use crate::session::Session;

/// The outcome of a dial, once there is one.
type Dialled = Option<Result<Session, Status>>;

#[derive(Debug)]
pub(crate) struct Peers {
    me: NodeId,
    table: Mutex<HashMap<NodeId, Peer>>,
    /// Tunnels that another has superseded; each ends when it carries nothing more.
    retired: Mutex<Vec<Session>>,
}

#[derive(Debug, Default)]
struct Peer {
    tunnel: Option<Tunnel>,
    dialling: Option<watch::Receiver<Dialled>>,
}

#[derive(Clone, Debug)]
struct Tunnel {
    session: Session,
    dialled_by: NodeId,
    instance: u64,
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

impl Peers {
    pub(crate) fn new(me: NodeId) -> Self {
        Self {
            me,
            table: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    /// The tunnel to `id`, if one is up and takes new work.
    pub(crate) fn up(&self, id: NodeId) -> Option<Session> {
        let table = self.lock();
        let tunnel = table.get(&id)?.tunnel.as_ref()?;
        (!tunnel.session.peer_is_going_away()).then(|| tunnel.session.clone())
    }

    /// The tunnel to `id`, or whose business it is to make one.
    pub(crate) fn connect(&self, id: NodeId) -> Connect {
        let mut table = self.lock();
        let peer = table.entry(id).or_default();
        if let Some(tunnel) = &peer.tunnel
            && !tunnel.session.peer_is_going_away()
        {
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

    /// Enters a session whose greeting has arrived. Returns whether it is the tunnel now.
    pub(crate) fn enter(&self, id: NodeId, session: &Session, dialled: bool) -> bool {
        let dialled_by = if dialled { self.me } else { id };
        let instance = session.peer_hello().map_or(0, |hello| hello.instance);
        let new = Tunnel {
            session: session.clone(),
            dialled_by,
            instance,
        };
        let mut table = self.lock();
        let peer = table.entry(id).or_default();
        peer.dialling = None;
        let Some(old) = &peer.tunnel else {
            peer.tunnel = Some(new);
            return true;
        };
        if old.session.is(session) {
            return true;
        }
        if old.instance != instance {
            old.session
                .close(Code::Unavailable, "the peer has restarted");
        } else if old.dialled_by != dialled_by && old.dialled_by == self.me.min(id) {
            // The old one is the one to keep; the new one ends when it is idle.
            self.retire(session.clone());
            return false;
        } else {
            self.retire(old.session.clone());
        }
        peer.tunnel = Some(new);
        true
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

    /// Takes a session out after it has ended. Returns whether it was the tunnel.
    pub(crate) fn leave(&self, id: NodeId, session: &Session) -> bool {
        let mut table = self.lock();
        let Some(peer) = table.get_mut(&id) else {
            return false;
        };
        let was = peer
            .tunnel
            .as_ref()
            .is_some_and(|tunnel| tunnel.session.is(session));
        if was {
            peer.tunnel = None;
        }
        if peer.tunnel.is_none() && peer.dialling.is_none() {
            table.remove(&id);
        }
        was
    }

    /// Forgets a dial that failed.
    pub(crate) fn failed(&self, id: NodeId) {
        let mut table = self.lock();
        if let Some(peer) = table.get_mut(&id) {
            peer.dialling = None;
            if peer.tunnel.is_none() {
                table.remove(&id);
            }
        }
    }

    /// Every tunnel.
    pub(crate) fn all(&self) -> Vec<(NodeId, Session)> {
        let table = self.lock();
        let up = |(id, peer): (&NodeId, &Peer)| Some((*id, peer.tunnel.as_ref()?.session.clone()));
        table.iter().filter_map(up).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock()
            .values()
            .filter(|peer| peer.tunnel.is_some())
            .count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Peer>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
