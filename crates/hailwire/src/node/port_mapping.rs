//! A port of the router before this machine that leads to this node: [`hailwire_core::port_mapping`] decides when one is asked for.
//!
//! The crate `portmapper` speaks UPnP IGD, NAT-PMP and PCP, and renews what it was given. What the router says is offered to
//! peers as an address of this node. A router that lies sends peers to another place, where nobody has this node's key.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    num::NonZeroU16,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use hailwire_core::{
    dial_address::is_global,
    port_mapping::{PortMapping, PortMappingAction},
};
use iroh::Watcher as _;
use portmapper::Client;
use tokio::{sync::watch, time::timeout};

use super::{NodeInner, dial_targets};
use crate::{admin, clock};

/// How long the router may take to give a port once it has said that it gives some.
const MAPPED_WITHIN: Duration = Duration::from_secs(3);

/// How long it may take to be given back at the end.
const RELEASED_WITHIN: Duration = Duration::from_secs(1);

/// The node's port mapping.
#[derive(Debug, Default)]
pub(super) struct MappedPort {
    client: OnceLock<Client>,
    state: Mutex<MappingState>,
}

/// What is known of the router.
#[derive(Clone, Debug, Default)]
struct MappingState {
    external: Option<SocketAddrV4>,
    protocols: Vec<&'static str>,
    asked: bool,
}

impl MappedPort {
    pub(super) fn status(&self, enabled: bool) -> admin::PortMappingStatus {
        let state = self.state().clone();
        admin::PortMappingStatus {
            enabled,
            asked: state.asked,
            protocols: state.protocols.into_iter().map(str::to_owned).collect(),
            external: state.external.map(|external| external.to_string()),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, MappingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the port back, if there is one.
    pub(super) async fn release(&self) {
        let Some(client) = self.client.get() else {
            return;
        };
        if self.state().external.take().is_none() {
            return;
        }
        client.deactivate();
        // It does one thing after the other: once it looks for protocols, the port is given back.
        let _ = timeout(RELEASED_WITHIN, client.probe()).await;
    }
}

/// Whether this node asks for a mapping: not where it is told not to, or hears nothing from other machines over IPv4.
pub(super) fn is_enabled(node: &NodeInner) -> bool {
    node.config().listen.port_mapping && local_port(node).is_some()
}

/// The UDP port over IPv4 that others may reach.
fn local_port(node: &NodeInner) -> Option<NonZeroU16> {
    let sockets = node.sockets.endpoint.bound_sockets().into_iter();
    let mut open = sockets.filter(|socket| socket.is_ipv4() && !socket.ip().is_loopback());
    NonZeroU16::new(open.next()?.port())
}

/// Keeps a port mapped until the node ends.
pub(super) async fn run(node: Arc<NodeInner>) {
    if !is_enabled(&node) {
        return std::future::pending().await;
    }
    let client = node.sockets.mapped_port.client.get_or_init(Client::default);
    let mut external = client.watch_external_address();
    let mut addresses = node.sockets.endpoint.watch_addr();
    let mut mapping = PortMapping::default();
    loop {
        mapping.handle_addresses(clock::now(), inside_addresses().await);
        while let Some(action) = mapping.poll_action(clock::now()) {
            match action {
                PortMappingAction::Release => {
                    client.deactivate();
                    offer(&node, None).await;
                }
                PortMappingAction::Ask => {
                    let mapped = ask(&node, client, &mut external).await;
                    mapping.handle_asked(clock::now(), mapped);
                }
            }
        }
        tokio::select! {
            () = clock::reached(mapping.poll_timeout()) => {}
            updated = addresses.updated() => if updated.is_err() { return },
            changed = external.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = *external.borrow_and_update();
                offer(&node, now).await;
                mapping.handle_mapped(clock::now(), now.is_some());
            }
        }
    }
}

/// Addresses of this machine that are not global: a NAT stands between them and the internet.
async fn inside_addresses() -> Vec<Ipv4Addr> {
    let subnets = dial_targets::own_subnets().await.into_iter();
    let inside = subnets.filter_map(|subnet| match subnet.address {
        IpAddr::V4(address) if !is_global(subnet.address) => Some(address),
        _ => None,
    });
    inside.collect()
}

/// Asks the router, and waits for what it gives. Whether it gave a port.
async fn ask(
    node: &NodeInner,
    client: &Client,
    external: &mut watch::Receiver<Option<SocketAddrV4>>,
) -> bool {
    let Some(port) = local_port(node) else {
        return false;
    };
    let spoken = match client.probe().await {
        Ok(Ok(spoken)) => [
            ("pcp", spoken.pcp),
            ("nat-pmp", spoken.nat_pmp),
            ("upnp", spoken.upnp),
        ]
        .to_vec(),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no router was asked for a port");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let protocols: Vec<&str> = spoken
        .into_iter()
        .filter_map(|(name, speaks)| speaks.then_some(name))
        .collect();
    {
        let mut state = node.sockets.mapped_port.state();
        state.asked = true;
        state.protocols.clone_from(&protocols);
    }
    if protocols.is_empty() {
        return false;
    }
    client.update_local_port(port);
    client.procure_mapping();
    let given = timeout(MAPPED_WITHIN, external.wait_for(Option::is_some)).await;
    let given = given.ok().and_then(|given| *given.ok()?);
    offer(node, given).await;
    given.is_some()
}

/// Tells peers and hubs of the port, and no more of the one before.
async fn offer(node: &NodeInner, external: Option<SocketAddrV4>) {
    // A router that has no address itself gives ports that lead nowhere.
    let external = external.filter(|external| !external.ip().is_unspecified());
    let before = std::mem::replace(&mut node.sockets.mapped_port.state().external, external);
    if before == external {
        return;
    }
    if let Some(before) = before {
        tracing::info!(external = %before, "the router's port is no more");
        let gone = SocketAddr::V4(before);
        node.sockets.endpoint.remove_external_addr(&gone).await;
    }
    if let Some(external) = external {
        tracing::info!(%external, "the router has mapped a port to this node");
        let offered = SocketAddr::V4(external);
        node.sockets.endpoint.add_external_addr(offered).await;
    }
}
