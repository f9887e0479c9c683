//! Where the node listens on TCP, for peers that UDP does not reach.

use std::{net::SocketAddr, sync::Arc};

use super::{NodeInner, overlay::BindError, store::NodeStore, tunnel};
use crate::{
    carrier::tcp::{CarrierListener, TlsIdentity},
    config::Config,
    key::NodeKey,
    panics,
};

/// Where the TCP ports of the last start are kept.
const PORTS: &str = "tcp-ports";

/// This node's key for TCP, and where it listens.
#[derive(Debug)]
pub(super) struct TcpListening {
    pub(super) identity: Arc<TlsIdentity>,
    sockets: Vec<SocketAddr>,
}

/// Binds the TCP sockets of `config`.
///
/// As with UDP, the port of the last start is tried first where the configuration leaves it open.
pub(super) async fn bind(
    config: &Config,
    key: &NodeKey,
    store: &NodeStore,
) -> Result<(TcpListening, Vec<CarrierListener>), BindError> {
    let identity = Arc::new(TlsIdentity::new(key));
    let last = super::overlay::last_ports(store, PORTS);
    let mut listeners = Vec::new();
    for configured in &config.listen.tcp {
        let remembered = super::overlay::remembered_port(*configured, &last);
        let bound = match CarrierListener::bind(remembered, &identity).await {
            Err(_) if remembered != *configured => {
                CarrierListener::bind(*configured, &identity).await
            }
            bound => bound,
        };
        listeners.push(bound.map_err(|error| BindError::TcpAddress {
            address: configured.to_string(),
            reason: error.to_string(),
        })?);
    }
    let sockets: Vec<SocketAddr> = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok())
        .collect();
    super::overlay::keep_ports(store, PORTS, &sockets);
    Ok((TcpListening { identity, sockets }, listeners))
}

/// Accepts tunnels on one socket until the node ends.
pub(super) async fn accept(node: Arc<NodeInner>, listener: Arc<CarrierListener>) {
    loop {
        let incoming = listener.accept().await;
        let node = node.clone();
        let arrives = async move {
            let remote = incoming.remote();
            match incoming.handshake().await {
                Ok(Some((id, connection))) => {
                    Box::pin(tunnel::arrived(&node, id, connection)).await;
                }
                // The other half of a pair, which makes one connection with its first half.
                Ok(None) => {}
                Err(error) => tracing::debug!(%remote, %error, "a handshake over TCP failed"),
            }
        };
        tokio::spawn(panics::panicked("a connection over TCP", arrives));
    }
}

/// Where a node may be reached, most useful first.
#[derive(Debug)]
pub(super) struct OwnAddresses {
    pub(super) udp: Vec<SocketAddr>,
    /// None where it does not listen on TCP.
    pub(super) tcp: Vec<SocketAddr>,
}

impl TcpListening {
    /// As bound.
    pub(super) fn sockets(&self) -> &[SocketAddr] {
        &self.sockets
    }
}

/// Where this node may be reached; of both kinds together no more than a record takes.
pub(super) fn own_addresses(node: &NodeInner) -> OwnAddresses {
    let mut udp = super::overlay::own_addresses(&node.sockets.endpoint);
    let tcp = reachable(&node.sockets.tcp.sockets, &udp);
    udp.truncate(hailwire_wire::limits::MAX_ADDRESSES - tcp.len());
    OwnAddresses { udp, tcp }
}

/// TCP sockets as bound.
pub(super) fn tcp_sockets(node: &NodeInner) -> &[SocketAddr] {
    &node.sockets.tcp.sockets
}

/// What the sockets mean to others: one bound to every interface has the machine's own addresses,
/// which `known` has with the ports of others.
fn reachable(sockets: &[SocketAddr], known: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for socket in sockets {
        if !socket.ip().is_unspecified() {
            addresses.push(*socket);
            continue;
        }
        let same = known.iter().filter(|a| a.is_ipv4() == socket.is_ipv4());
        addresses.extend(same.map(|a| SocketAddr::new(a.ip(), socket.port())));
    }
    let mut once = Vec::new();
    addresses.retain(|address| {
        let new = !once.contains(address);
        once.push(*address);
        new
    });
    // The other half is for UDP.
    addresses.truncate(hailwire_wire::limits::MAX_ADDRESSES / 2);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_socket_on_every_interface_is_reachable_at_each_address_of_its_family() {
        let known = addresses(&[
            "192.0.2.1:7",
            "[2001:db8::1]:8",
            "192.0.2.1:9",
            "127.0.0.1:7",
        ]);
        let told = reachable(&addresses(&["0.0.0.0:443"]), &known);
        assert_eq!(told, addresses(&["192.0.2.1:443", "127.0.0.1:443"]));
        let told = reachable(&addresses(&["192.0.2.7:443", "[::]:443"]), &known);
        assert_eq!(told, addresses(&["192.0.2.7:443", "[2001:db8::1]:443"]));
        assert_eq!(reachable(&[], &known), []);
    }
}
