//! The connections of one tunnel: the first, and additional ones.
//!
//! A tunnel stands on one connection, or on several of the same carrier: its connection pool. The first one stands for
//! the tunnel wherever one connection is asked for. New calls go to the connection with the fewest streams in
//! flight, of several such to the eldest. When the first one ends, the eldest of the others takes its place, and
//! what runs on them does not notice; the last one takes the tunnel with it.

use hailwire_wire::{Code, NodeId, Status};

use super::PeerConnection;

/// All connections to one peer over one carrier.
#[derive(Debug)]
pub struct PeerTunnel<C> {
    /// The start of the peer that all of them belong to.
    instance: u64,
    /// With whoever dialled each; the first one first; never empty.
    connections: Vec<(C, NodeId)>,
    /// Agents that the peer offers.
    agents: usize,
}

/// How large a tunnel is, for whoever sees to it that it has enough connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelSize {
    /// Its connections.
    pub connections: usize,
    /// Agents that the peer offers.
    pub agents: usize,
}

impl<C: PeerConnection> PeerTunnel<C> {
    pub(super) fn new(first: C, dialled_by: NodeId, instance: u64) -> Self {
        Self {
            instance,
            connections: vec![(first, dialled_by)],
            agents: 0,
        }
    }

    pub(super) const fn instance(&self) -> u64 {
        self.instance
    }

    /// Who dialled the first connection.
    pub(super) fn dialled_by(&self) -> Option<NodeId> {
        self.connections.first().map(|(_, dialled_by)| *dialled_by)
    }

    /// All of them, the first one first.
    pub fn connections(&self) -> impl Iterator<Item = &C> {
        self.connections.iter().map(|(connection, _)| connection)
    }

    /// The carrier of all of them.
    pub(super) fn carrier_name(&self) -> Option<&'static str> {
        self.connections().next().map(C::carrier_name)
    }

    pub(super) fn has(&self, connection: &C) -> bool {
        self.connections().any(|ours| ours.is(connection))
    }

    /// Those that take new work, the first one first.
    pub(super) fn ready(&self) -> impl Iterator<Item = &C> {
        self.connections()
            .filter(|connection| connection.takes_work())
    }

    /// The one that takes the next call.
    pub(super) fn least_busy(&self) -> Option<&C> {
        // Of equals the first one is given.
        self.ready().min_by_key(|connection| connection.in_flight())
    }

    pub(super) fn size(&self) -> TunnelSize {
        TunnelSize {
            connections: self.connections.len(),
            agents: self.agents,
        }
    }

    /// Takes in an additional connection; at most `most` are there then. Returns whether it is new.
    ///
    /// # Errors
    ///
    /// `failed_precondition` for one of another start of the peer, `resource_exhausted` where there is no room; the
    /// text is for the peer.
    pub(super) fn add(
        &mut self,
        connection: &C,
        dialled_by: NodeId,
        most: usize,
    ) -> Result<bool, Status> {
        if self.has(connection) {
            return Ok(false);
        }
        if connection.instance() != self.instance {
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
        self.connections.push((connection.clone(), dialled_by));
        Ok(true)
    }

    /// Takes a connection out. Returns whether any is left.
    pub(super) fn remove(&mut self, connection: &C) -> bool {
        self.connections.retain(|(ours, _)| !ours.is(connection));
        !self.connections.is_empty()
    }

    /// Takes note of how many agents the peer offers. Returns whether that is news.
    pub(super) const fn note_agents(&mut self, agents: usize) -> bool {
        let before = self.agents;
        self.agents = agents;
        before != agents
    }
}
