//! The relay and address discovery, which iroh-relay provides, for members only.
//!
//! The relay verifies the key of a connection before it calls the access check here, so a non-member gets no further
//! than that. Address discovery tells any client the address that its packet came from; it needs no membership and keeps
//! no state.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use hailwire_wire::NodeId;
use http::HeaderMap;
use iroh_base::EndpointId;
use iroh_relay::{
    KeyCache,
    server::{
        Access, AccessControl, ClientRateLimit, ClientRequest, ConnectionId, Handlers, Metrics,
        QuicConfig, RelayService, Server, ServerConfig, SpawnError,
    },
};

use crate::{config::HubBounds, queue::DirectoryQueue};

/// Decoded public keys that the relay caches, about 100 bytes each.
const KEY_CACHE: usize = 4096;

/// Creates the relay, which takes over upgraded connections.
pub(crate) fn relay(
    queue: DirectoryQueue,
    bounds: &HubBounds,
    counters: Arc<Metrics>,
) -> RelayService {
    RelayService::new(
        Handlers::default(),
        HeaderMap::new(),
        bounds.relay_bytes_per_second.map(ClientRateLimit::new),
        KeyCache::new(KEY_CACHE),
        Arc::new(MembersOnly {
            queue,
            max: bounds.relay_connections_per_member,
            open: Mutex::default(),
        }),
        counters,
    )
}

/// Starts address discovery on a UDP address.
pub(crate) async fn discovery(
    address: SocketAddr,
    tls: rustls::ServerConfig,
) -> Result<Server, SpawnError> {
    let mut quic = QuicConfig::new(address);
    quic.server_config = Some(tls);
    let mut config = ServerConfig::default();
    config.quic = Some(quic);
    Server::spawn(config).await
}

/// Admits members only, each with a bounded number of connections.
#[derive(Debug)]
struct MembersOnly {
    queue: DirectoryQueue,
    max: usize,
    open: Mutex<HashMap<EndpointId, usize>>,
}

impl AccessControl for MembersOnly {
    async fn on_connect(&self, request: &ClientRequest) -> Access {
        let endpoint = request.endpoint_id();
        let node = NodeId::from_bytes(*endpoint.as_bytes());
        let member = self
            .queue
            .run_quick(move |directory| directory.is_member(node))
            .await;
        if !matches!(member, Ok(Ok(true))) {
            tracing::debug!(node = %node.short(), "relay refused: not a member");
            return deny("not a member of this hub");
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(endpoint).or_default();
        if *count >= self.max {
            return deny("too many connections");
        }
        *count += 1;
        Access::Allow
    }

    fn on_disconnect(&self, endpoint: EndpointId, _: ConnectionId) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&endpoint) {
            *count -= 1;
            if *count == 0 {
                open.remove(&endpoint);
            }
        }
    }
}

fn deny(reason: &str) -> Access {
    Access::Deny {
        reason: Some(reason.to_owned()),
    }
}
