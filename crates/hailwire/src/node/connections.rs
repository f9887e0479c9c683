//! The connections of one tunnel: the first, and those beside it.
//!
//! A tunnel stands on one connection, or on several of the same carrier: its connection pool. The first
//! one stands for the tunnel wherever one session is asked for. New calls go to the connection with the
//! fewest streams in flight, of several such to the eldest. When the first one ends, the eldest of the others
//! takes its place, and what runs on them does not notice; the last one takes the tunnel with it.
//!
//! What is kept here is only who belongs. Who dials further connections, and when, is decided in
//! [`super::beside`].

use hailwire_wire::{Code, NodeId, Status};
use tokio::sync::watch;

use crate::session::Session;

/// All connections to one peer over one carrier.
#[derive(Debug)]
pub(super) struct Tunnel {
    /// The start of the peer that all of them belong to.
    instance: u64,
    /// The first one first; never empty.
    connections: Vec<Connected>,
    standing: watch::Sender<Standing>,
}

#[derive(Debug)]
struct Connected {
    session: Session,
    dialled_by: NodeId,
}

/// How a tunnel stands, for whoever sees to it that it has enough connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) connections: usize,
    /// Agents that the peer offers.
    pub(super) agents: usize,
}

/// What remains of a tunnel without one of its connections.
#[derive(Debug)]
pub(super) enum Remains {
    /// The connection was none of them.
    All,
    /// Others.
    Others,
    Nothing,
}

impl Tunnel {
    pub(super) fn new(session: Session, dialled_by: NodeId, instance: u64) -> Self {
        let first = Connected {
            session,
            dialled_by,
        };
        Self {
            instance,
            connections: vec![first],
            standing: watch::Sender::new(Standing {
                connections: 1,
                agents: 0,
            }),
        }
    }

    pub(super) fn instance(&self) -> u64 {
        self.instance
    }

    /// Who dialled the first connection.
    pub(super) fn dialled_by(&self) -> Option<NodeId> {
        self.connections.first().map(|first| first.dialled_by)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.connections.iter().map(|connected| &connected.session)
    }

    /// The carrier of all of them.
    pub(super) fn carrier(&self) -> Option<&'static str> {
        self.sessions()
            .next()
            .map(|first| first.connection().carrier())
    }

    pub(super) fn has(&self, session: &Session) -> bool {
        self.sessions().any(|ours| ours.is(session))
    }

    pub(super) fn is_first(&self, session: &Session) -> bool {
        self.sessions()
            .next()
            .is_some_and(|first| first.is(session))
    }

    /// Those that take new work, the first one first.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Session> {
        self.sessions().filter(|session| session.takes_work())
    }

    /// The one that takes the next call.
    pub(super) fn least_busy(&self) -> Option<&Session> {
        // Of equals the first one is given.
        self.ready().min_by_key(|session| session.in_flight())
    }

    /// Takes in a connection beside the others; at most `most` are there then.
    ///
    /// # Errors
    ///
    /// `failed_precondition` for one of another start of the peer, `resource_exhausted` where there is no
    /// room; the text is for the peer.
    pub(super) fn add(
        &mut self,
        session: Session,
        dialled_by: NodeId,
        instance: u64,
        most: usize,
    ) -> Result<(), Status> {
        if self.has(&session) {
            return Ok(());
        }
        if instance != self.instance {
            return Err(Status::new(
                Code::FailedPrecondition,
                "the tunnel is one with another start of this node",
            ));
        }
        if self.connections.len() >= most {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("the tunnel has {most} connections, and takes no more"),
            ));
        }
        self.connections.push(Connected {
            session,
            dialled_by,
        });
        self.tell();
        Ok(())
    }

    /// Takes a connection out.
    pub(super) fn remove(&mut self, session: &Session) -> Remains {
        let place = self.sessions().position(|ours| ours.is(session));
        let Some(place) = place else {
            return Remains::All;
        };
        self.connections.remove(place);
        self.tell();
        match self.connections.is_empty() {
            true => Remains::Nothing,
            false => Remains::Others,
        }
    }

    /// Notes how many agents the peer offers.
    pub(super) fn note_agents(&self, agents: usize) {
        self.standing
            .send_if_modified(|standing| std::mem::replace(&mut standing.agents, agents) != agents);
    }

    /// Tells each change; ends with the tunnel.
    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    fn tell(&self) {
        let connections = self.connections.len();
        self.standing
            .send_modify(|standing| standing.connections = connections);
    }
}
