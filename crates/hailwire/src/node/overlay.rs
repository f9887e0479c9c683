//! The overlay: this node's UDP sockets and the QUIC endpoint on them.
//!
//! Stands on iroh: identity by raw public keys (RFC 7250), hole punching, multipath, relays. Nothing
//! contacts a third party's servers: only addresses and relays that the user brought are used.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hailwire_core::path_silence::PathTimers;
use hailwire_wire::{HubUrl, NodeId};
use iroh::{
    Endpoint, EndpointAddr, RelayMap, RelayMode, RelayUrl, TransportAddr,
    endpoint::{
        AckFrequencyConfig, BindOpts, ConnectOptions, IdleTimeout, MtuDiscoveryConfig,
        PortmapperConfig, QuicTransportConfig, VarInt, presets,
    },
    tls::CaTlsConfig,
};
use thiserror::Error;
use tokio::time::Instant;

use super::store::NodeStore;
use crate::{
    carrier::{ConnectionLimits, cipher, congestion::ForEachPath},
    config::{Config, QuicSettings},
    hub::tls::HubPins,
    key::NodeKey,
    outbound_tcp::HttpProxies,
};

/// The protocol's name in TLS (RFC 7301). Versions are settled in the greeting, where a refusal
/// can name both sides.
pub(crate) const ALPN: &[u8] = b"hailwire";

/// Silence after which a path is given up at rest: the longest that the engine allows.
const PATH_IDLE: Duration = Duration::from_secs(15);

/// The timers of a path at rest.
pub(super) fn path_timers(quic: &QuicSettings) -> PathTimers {
    PathTimers {
        max_idle: quic.idle_timeout.min(PATH_IDLE),
        keep_alive: quic.keep_alive,
    }
}

/// What a path's round trip is taken for until the first one is measured.
///
/// The engine spreads what it sends over it: with the 333 ms of RFC 9002 it lets out one packet and
/// then one each 28 ms, so that a first flight of three comes a round trip late. With 30 ms four leave at
/// once. The price: where a round trip takes over 90 ms, the first packet is sent twice.
const INITIAL_RTT: Duration = Duration::from_millis(30);

/// Where the UDP ports of the last start are kept.
const PORTS: &str = "udp-ports";

/// How long the ports of the last start are waited for while something holds them.
const PORT_PATIENCE: Duration = Duration::from_secs(1);

/// How often a port that is waited for is tried.
const PORT_POLL: Duration = Duration::from_millis(5);

/// Why the endpoint did not come up.
#[derive(Debug, Error)]
pub enum BindError {
    /// An address of the configuration cannot be bound.
    #[error("the UDP address {address} cannot be bound: {reason}")]
    Address {
        /// The address as configured.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// A TCP address of the configuration cannot be bound.
    #[error("the TCP address {address} cannot be bound: {reason}")]
    TcpAddress {
        /// The address as configured.
        address: String,
        /// What the system said.
        reason: String,
    },
}

/// Binds the sockets of `config` and starts the endpoint.
///
/// Where the configuration leaves the port to the system, the port of the last start is tried
/// first, so that peers find this node where they left it.
pub(crate) async fn bind(
    config: &Config,
    key: &NodeKey,
    store: &NodeStore,
    pins: &HubPins,
) -> Result<Endpoint, BindError> {
    let last = last_ports(store, PORTS);
    let remembered: Vec<SocketAddr> = config
        .listen
        .udp
        .iter()
        .map(|address| remembered_port(*address, &last))
        .collect();
    let endpoint = if remembered == config.listen.udp {
        try_bind(&remembered, config, key, store, pins).await?
    } else {
        free_again(&remembered).await;
        match try_bind(&remembered, config, key, store, pins).await {
            Ok(endpoint) => endpoint,
            Err(error) => {
                tracing::warn!(%error, "peers find this node at a new port only once it calls them");
                try_bind(&config.listen.udp, config, key, store, pins).await?
            }
        }
    };
    keep_ports(store, PORTS, &endpoint.bound_sockets());
    Ok(endpoint)
}

/// Waits a moment for ports that this folder's node held before.
///
/// A killed process gives its lock back before its sockets, and an endpoint that was closed in this
/// process closes its sockets on another thread, without saying when.
async fn free_again(addresses: &[SocketAddr]) {
    let in_use = |address: &SocketAddr| {
        let probe = std::net::UdpSocket::bind(address);
        probe.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
    };
    let deadline = Instant::now() + PORT_PATIENCE;
    while addresses.iter().any(in_use) && Instant::now() < deadline {
        tokio::time::sleep(PORT_POLL).await;
    }
}

async fn try_bind(
    addresses: &[SocketAddr],
    config: &Config,
    key: &NodeKey,
    store: &NodeStore,
    pins: &HubPins,
) -> Result<Endpoint, BindError> {
    let pins = pins.clone();
    let tls = CaTlsConfig::custom_server_cert_verifier(Arc::new(move |p| pins.verifier(p)));
    let mut builder = Endpoint::builder(presets::Minimal)
        .secret_key(key.iroh())
        .alpns(vec![ALPN.to_vec()])
        .relay_mode(RelayMode::Custom(RelayMap::empty()))
        .ca_tls_config(tls)
        .crypto_provider(Arc::new(cipher::provider(config.quic.cipher)))
        .transport_config(transport(&config.quic))
        .max_tls_tickets(config.quic.sessions as usize)
        .portmapper_config(PortmapperConfig::Disabled)
        .clear_ip_transports();
    if let Some(proxy) = relay_proxy(config, store) {
        builder = builder.proxy_url(proxy);
    }
    let failed = |reason: String| BindError::Address {
        address: addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
        reason,
    };
    for address in addresses {
        // A machine without IPv6 still has a network.
        let optional = address.is_ipv6() && address.ip().is_unspecified();
        let options = BindOpts::default().set_is_required(!optional);
        builder = builder
            .bind_addr_with_opts(*address, options)
            .map_err(|error| failed(error.to_string()))?;
    }
    builder
        .bind()
        .await
        .map_err(|error| failed(root_cause(&error)))
}

/// The proxy through which relays are reached: the engine has one for all of them, so the first hub says which. A node that is in no hub yet
/// takes the one that any hub would have.
fn relay_proxy(config: &Config, store: &NodeStore) -> Option<url::Url> {
    let joined = store.hubs().unwrap_or_default().into_iter();
    let joined = joined.filter_map(|row| row.url.parse::<HubUrl>().ok());
    let hub = joined.chain(config.hubs.iter().cloned()).next();
    let proxies = HttpProxies::of_environment();
    let proxy = match hub {
        Some(hub) => proxies.url(hub.host(), hub.port()),
        None => proxies.url("hub.invalid", 443),
    };
    proxy?.parse().ok()
}

/// The engine's settings, from ours.
fn transport(quic: &QuicSettings) -> QuicTransportConfig {
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(quic.ack_delay))
        // The engine counts the packets that may go by unanswered.
        .ack_eliciting_threshold(VarInt::from_u32(quic.ack_every - 1));
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(u16::try_from(quic.mtu_max).unwrap_or(u16::MAX));
    let idle = VarInt::try_from(u64::try_from(quic.idle_timeout.as_millis()).unwrap_or(u64::MAX));
    let mut builder = QuicTransportConfig::builder()
        .max_concurrent_bidi_streams(VarInt::from_u32(quic.streams))
        // Only a peer gets some, once it is known to be one.
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(quic.stream_window.bytes_u32()))
        .receive_window(VarInt::from_u32(first_window(quic)))
        .send_window(quic.send_window.bytes())
        .max_idle_timeout(idle.ok().map(IdleTimeout::from))
        .initial_rtt(INITIAL_RTT)
        .keep_alive_interval(quic.keep_alive)
        .default_path_keep_alive_interval(path_timers(quic).keep_alive)
        .default_path_max_idle_timeout(path_timers(quic).max_idle)
        .ack_frequency_config(quic.ack_frequency.then_some(acks))
        .enable_segmentation_offload(quic.gso)
        .mtu_discovery_config(quic.mtu_discovery.then_some(discovery))
        .congestion_controller_factory(Arc::new(ForEachPath {
            congestion: quic.congestion,
            initial_window: quic.initial_window.bytes(),
            initial_rtt: INITIAL_RTT,
        }));
    if quic.max_paths > QuicSettings::default().max_paths {
        builder = builder.max_concurrent_multipath_paths(quic.max_paths);
    }
    builder.build()
}

/// The room of a peer.
pub(crate) fn connection_limits(quic: &QuicSettings) -> ConnectionLimits {
    ConnectionLimits {
        streams: quic.streams,
        unidirectional: quic.uni_streams,
        unread: first_window(quic),
    }
}

/// The connection window that a tunnel begins with.
pub(crate) fn first_window(quic: &QuicSettings) -> u32 {
    (quic.window.bytes_u32() / 4).max(4 * quic.stream_window.bytes_u32())
}

/// How long a dial may take before the peer counts as unreachable.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a dial over UDP failed that nobody answered.
pub(super) fn no_answer() -> String {
    format!("no answer over UDP within {} s", DIAL_TIMEOUT.as_secs())
}

/// A node that was reached over QUIC.
pub(crate) enum ReachedNode {
    /// The handshake is complete.
    Full(iroh::endpoint::Connection),
    /// A TLS session is resumed: what is sent now travels with the first packet.
    Early(iroh::endpoint::OutgoingZeroRttConnection),
}

/// Connects to a node at any of its addresses; with `early` as soon as anything can be sent.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    id: NodeId,
    places: &NodeAddresses,
    early: bool,
) -> Result<ReachedNode, String> {
    let reach = async {
        let connecting = connecting(endpoint, id, places).await?;
        let connecting = if early {
            match connecting.into_0rtt() {
                Ok(early) => return Ok(ReachedNode::Early(early)),
                Err(connecting) => connecting,
            }
        } else {
            connecting
        };
        let connection = connecting.await.map_err(|error| root_cause(&error))?;
        Ok(ReachedNode::Full(connection))
    };
    in_time(reach).await
}

/// Connects as [`dial`] does, and waits for the handshake.
pub(crate) async fn dial_whole(
    endpoint: &Endpoint,
    id: NodeId,
    places: &NodeAddresses,
) -> Result<iroh::endpoint::Connection, String> {
    let whole = async {
        let connecting = connecting(endpoint, id, places).await?;
        connecting.await.map_err(|error| root_cause(&error))
    };
    in_time(whole).await
}

async fn connecting(
    endpoint: &Endpoint,
    id: NodeId,
    places: &NodeAddresses,
) -> Result<iroh::endpoint::Connecting, String> {
    let id = iroh::EndpointId::from_bytes(id.as_bytes()).map_err(|_| "its key is not a key")?;
    let address = EndpointAddr::from_parts(id, places.transport_addresses());
    let begun = endpoint.connect_with_opts(address, ALPN, ConnectOptions::new());
    begun.await.map_err(|error| root_cause(&error))
}

async fn in_time<T>(dial: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(DIAL_TIMEOUT, dial)
        .await
        .unwrap_or_else(|_| Err(no_answer()))
}

/// Where a node may be found.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeAddresses {
    pub(crate) addresses: Vec<SocketAddr>,
    /// Addresses over UDP that are dialled only where a relay does not answer at once.
    pub(crate) held_back: Vec<SocketAddr>,
    /// Where it listens on TCP.
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) relays: Vec<String>,
}

impl NodeAddresses {
    pub(crate) fn is_empty(&self) -> bool {
        !self.by_udp() && self.tcp.is_empty()
    }

    /// Whether QUIC has somewhere to go.
    pub(crate) fn by_udp(&self) -> bool {
        !(self.addresses.is_empty() && self.held_back.is_empty() && self.relays.is_empty())
    }

    fn transport_addresses(&self) -> impl Iterator<Item = TransportAddr> {
        let relays = self
            .relays
            .iter()
            .filter_map(|url| url.parse::<RelayUrl>().ok());
        self.addresses
            .iter()
            .copied()
            .map(TransportAddr::Ip)
            .chain(relays.map(TransportAddr::Relay))
    }
}

/// The addresses at which this node may be reached directly, most useful first. Loopback, which never leaves a machine, only where there
/// is nothing else.
pub(crate) fn own_addresses(endpoint: &Endpoint) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = endpoint.addr().ip_addrs().copied().collect();
    addresses.retain(|address| !address.ip().to_canonical().is_loopback());
    for socket in endpoint.bound_sockets() {
        let local = match socket {
            SocketAddr::V4(v4) if v4.ip().is_unspecified() => {
                if !addresses.is_empty() {
                    continue;
                }
                SocketAddr::from(([127, 0, 0, 1], v4.port()))
            }
            // One loopback address is enough.
            SocketAddr::V6(v6) if v6.ip().is_unspecified() => continue,
            bound => bound,
        };
        if !addresses.contains(&local) {
            addresses.push(local);
        }
    }
    addresses.truncate(hailwire_wire::limits::MAX_ADDRESSES);
    addresses
}

/// Keeps the ports in use for the next start.
pub(super) fn keep_ports(store: &NodeStore, name: &str, sockets: &[SocketAddr]) {
    let ports: Vec<String> = sockets.iter().map(ToString::to_string).collect();
    if let Err(error) = store.put_setting(name, &ports.join(" ")) {
        tracing::warn!(%error, "the ports could not be kept");
    }
}

/// The ports of the last start.
pub(super) fn last_ports(store: &NodeStore, name: &str) -> Vec<SocketAddr> {
    let text = store.setting(name).ok().flatten().unwrap_or_default();
    text.split_whitespace()
        .filter_map(|address| address.parse().ok())
        .collect()
}

pub(super) fn remembered_port(mut configured: SocketAddr, last: &[SocketAddr]) -> SocketAddr {
    if configured.port() == 0
        && let Some(before) = last.iter().find(|before| before.ip() == configured.ip())
    {
        configured.set_port(before.port());
    }
    configured
}

/// The innermost cause, which is the one that says what happened.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// An error with its causes, for a message.
pub(crate) fn whole(error: &dyn std::error::Error) -> String {
    let (own, cause) = (error.to_string(), root_cause(error));
    if own == cause {
        own
    } else {
        format!("{own}: {cause}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_the_last_start_is_tried_only_where_none_is_configured() {
        let last = ["0.0.0.0:4242".parse().unwrap()];
        let port = |text: &str| remembered_port(text.parse().unwrap(), &last).port();
        assert_eq!(port("0.0.0.0:0"), 4242);
        assert_eq!(port("0.0.0.0:77"), 77);
        assert_eq!(port("127.0.0.1:0"), 0);
    }
}
