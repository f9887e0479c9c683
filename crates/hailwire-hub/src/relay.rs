//! The relay and address discovery, which iroh-relay provides, for members only.
//!
//! The relay verifies the key of a connection before it calls the access check here, so a non-member gets no further
//! than that. Address discovery tells any client the address that its packet came from; it needs no membership and keeps
//! no state.
//!
//! A relay whose rate is bounded shares it fairly among the members that send ([`hailwire_core::relay_share`]).

mod connection;
mod member_stream;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use hailwire_core::relay_share::RelayShare;

use hailwire_wire::NodeId;
use http::HeaderMap;
use iroh_base::EndpointId;
use iroh_relay::{
    KeyCache,
    server::{
        Access, AccessControl, ClientRequest, ConnectionId, DynAccessControl, Handlers, Metrics,
        QuicConfig, RelayService, Server, ServerConfig, SpawnError,
    },
};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use crate::{config::HubBounds, directory::Directory, queue::DirectoryQueue};

/// Decoded public keys that the relay caches, about 100 bytes each.
const KEY_CACHE: usize = 4096;

/// How often the hub looks whether another process has ended a membership.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How often it looks after a change: a connection that was being admitted meanwhile is seen the second time.
const LOOKS: u32 = 2;

/// Members that are looked up in one query, so that others wait for it for a moment only.
const LOOKED_UP_AT_ONCE: usize = 64;

/// The relay: iroh's, with connections that this crate takes in.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    /// It only keeps the connections and passes on what comes.
    service: RelayService,
    access: Arc<dyn DynAccessControl>,
    keys: KeyCache,
    pub(crate) counters: Arc<Metrics>,
    /// Who is carried when, if that is bounded.
    share: Option<Arc<Mutex<RelayShare<NodeId>>>>,
    /// Frames dropped because their sender was over its share.
    pub(crate) over_rate: Arc<AtomicU64>,
}

impl Relay {
    /// A relay, and what ends the connections of members that are removed.
    pub(crate) fn new(queue: DirectoryQueue, bounds: &HubBounds) -> (Self, RemovedMembers) {
        let members = Arc::new(MembersOnly {
            queue,
            max: bounds.relay_connections_per_member,
            open: Mutex::default(),
        });
        let counters = Arc::new(Metrics::default());
        let keys = KeyCache::new(KEY_CACHE);
        let service = RelayService::new(
            Handlers::default(),
            HeaderMap::new(),
            None,
            keys.clone(),
            members.clone(),
            Arc::clone(&counters),
        );
        let rates = bounds.relay_rates;
        let share = (!rates.unlimited()).then(|| Arc::new(Mutex::new(RelayShare::new(rates))));
        let relay = Self {
            service,
            access: members.clone(),
            keys,
            counters,
            share,
            over_rate: Arc::default(),
        };
        let removed = RemovedMembers {
            members,
            relay: relay.clone(),
        };
        (relay, removed)
    }

    /// Ends a member's connections.
    pub(crate) fn disconnect(&self, endpoint: EndpointId) {
        self.service.clients().disconnect(endpoint, None);
    }

    /// Ends all connections.
    pub(crate) async fn shutdown(&self) {
        self.service.shutdown().await;
    }
}

/// Ends the relay connections of nodes that are no members any more: `hail hub members rm` works on the database, and knows
/// nothing of connections.
pub(crate) struct RemovedMembers {
    members: Arc<MembersOnly>,
    relay: Relay,
}

impl RemovedMembers {
    /// Looks until the hub stops.
    pub(crate) async fn end(self, mut stopped: watch::Receiver<bool>) {
        let mut look = interval(LOOK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut looks) = (None, 0);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                _ = stopped.changed() => return,
            }
            let version = self.members.queue.run_quick(Directory::data_version).await;
            let Ok(Ok(version)) = version else {
                continue;
            };
            if seen.replace(version) != Some(version) {
                looks = LOOKS;
            }
            if looks > 0 {
                looks -= 1;
                self.disconnect().await;
            }
        }
    }

    async fn disconnect(&self) {
        let connected: Vec<EndpointId> = self.members.open().keys().copied().collect();
        for some in connected.chunks(LOOKED_UP_AT_ONCE) {
            let mut gone = some.to_vec();
            let looked_up = self.members.queue.run_quick(move |directory| {
                gone.retain(|endpoint| {
                    let node = NodeId::from_bytes(*endpoint.as_bytes());
                    matches!(directory.is_member(node), Ok(false))
                });
                gone
            });
            for endpoint in looked_up.await.unwrap_or_default() {
                tracing::debug!(node = %endpoint.fmt_short(), "relay connection ended: not a member any more");
                self.relay.disconnect(endpoint);
            }
        }
    }
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

impl MembersOnly {
    fn open(&self) -> MutexGuard<'_, HashMap<EndpointId, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let mut open = self.open();
        let count = open.entry(endpoint).or_default();
        if *count >= self.max {
            return deny("too many connections");
        }
        *count += 1;
        Access::Allow
    }

    fn on_disconnect(&self, endpoint: EndpointId, _: ConnectionId) {
        let mut open = self.open();
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
