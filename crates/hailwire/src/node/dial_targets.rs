//! The networks that this machine is in, and so which of a peer's addresses are dialled: [`hailwire_core::dial_address`] decides.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use netwatch::interfaces::{IpNet, State};
use tokio::time::Instant;

use super::{NodeInner, overlay, overlay::NodeAddresses};
use hailwire_core::dial_address::{
    AddressCandidates, DialBudget, LocalNetworks, Subnet, held_back, is_global, select_all,
    usable_relays,
};
use hailwire_wire::NodeId;

/// How long the list of interfaces is believed.
const FRESH: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct DialTargets {
    /// This node listens on loopback alone.
    loopback_only: bool,
    here: Mutex<Option<(Instant, Arc<LocalNetworks>)>>,
    budget: Mutex<DialBudget>,
}

impl DialTargets {
    /// For a node that listens at these sockets.
    pub(super) fn new(sockets: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            loopback_only: sockets.into_iter().all(|socket| socket.ip().is_loopback()),
            here: Mutex::default(),
            budget: Mutex::default(),
        }
    }

    pub(super) async fn local_networks(&self) -> Arc<LocalNetworks> {
        let known = self
            .here
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((at, here)) = known
            && at.elapsed() < FRESH
        {
            return here;
        }
        let here = Arc::new(LocalNetworks {
            subnets: own_subnets().await,
            loopback_only: self.loopback_only,
            ..LocalNetworks::default()
        });
        *self.here.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), here.clone()));
        here
    }
}

/// This machine's addresses, with their networks.
pub(super) async fn own_subnets() -> Vec<Subnet> {
    subnets(&State::new().await)
}

fn subnets(state: &State) -> Vec<Subnet> {
    let up = state
        .interfaces
        .values()
        .filter(|interface| interface.is_up());
    let subnets = up.flat_map(|interface| interface.addrs()).map(|net| {
        let prefix = match &net {
            IpNet::V4(net) => net.prefix_len(),
            IpNet::V6 { net, .. } => net.prefix_len(),
        };
        Subnet {
            address: net.addr(),
            prefix,
        }
    });
    subnets
        .filter(|subnet| !subnet.address.is_loopback())
        .collect()
}

/// Of the places where a peer may be, those that this node lets itself be sent to.
pub(super) async fn dialled(
    node: &NodeInner,
    id: NodeId,
    mut candidates: AddressCandidates,
) -> NodeAddresses {
    let sessions = node.peers.all().into_iter().filter(|(peer, _)| *peer == id);
    let remotes = sessions.map(|(_, session)| session.connection().stats().remote);
    let remotes: Vec<SocketAddr> = remotes.filter_map(|text| text.parse().ok()).collect();
    candidates.seen_at(&remotes);
    let here = match candidates.depends_on_networks() {
        true => node.sockets.reaching.local_networks().await,
        false => Arc::default(),
    };
    let here = LocalNetworks {
        own_udp: node.sockets.endpoint.bound_sockets(),
        own_tcp: node.sockets.tcp.sockets().to_vec(),
        ..LocalNetworks::clone(&here)
    };
    let now = node.lifecycle.started.elapsed();
    let budget = node.sockets.reaching.budget.lock();
    let mut budget = budget.unwrap_or_else(PoisonError::into_inner);
    let (addresses, tcp) = select_all(&candidates, &here, &mut budget, now);
    let relays = usable_relays(candidates.relays.clone(), &node.hubs.answering_relays());
    let held_back = match relays.is_empty() {
        true => Vec::new(),
        false => held_back(&candidates, &addresses, &own_public(node)),
    };
    NodeAddresses {
        addresses: addresses
            .into_iter()
            .filter(|address| !held_back.contains(address))
            .collect(),
        held_back,
        tcp,
        relays,
    }
}

/// The public addresses that this node knows of itself.
fn own_public(node: &NodeInner) -> Vec<IpAddr> {
    let own = overlay::own_addresses(&node.sockets.endpoint).into_iter();
    own.map(|address| address.ip().to_canonical())
        .filter(|ip| is_global(*ip))
        .collect()
}
