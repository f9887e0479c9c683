//! The connections to one agent, and which of them an event goes to.
//!
//! An [`AgentPool`] keeps a few connections to its agent open, for ever: one that ends is opened again after a back-off
//! that doubles and never gives up ([`reconnect`]). It decides with the cores of `hailwire-pool`, which read no clock and
//! perform no I/O: the set of slots, one for each connection, the circuit breaker, and the table of which request has which
//! slot.
//!
//! # What becomes of an event
//!
//! 1. The breaker lets it in, or it fails with [`PoolError::Down`].
//! 2. Where its request has a connection already, it goes to that one, whatever the strategy would say, and also while the
//!    agent drains or the pool does: what was begun is finished. When that connection has ended, the next chunk of a body or
//!    of a WebSocket conversation fails: an agent must not judge half of a body that it has not seen the other half of. What
//!    begins a phase goes to another connection.
//! 3. Otherwise it is new. Its session's connection takes it if it can (`request_in_session`), else the strategy chooses among those
//!    that are well. Without room on any of them it fails with [`PoolError::Overload`] at once, so that a caller
//!    can turn elsewhere or decide by its policy.
//! 4. It is sent, and waited for until its time is over: the caller's, or its phase's if that is less, counted from when it was
//!    sent or, behind others, from its start signal. Then, and also when the caller drops the future, the agent is told that nobody
//!    waits, and the slot and a probe of the breaker are given back.
//!
//! [`Event::RequestComplete`] and [`AgentPool::done`] end a request; without them its entry stays until it expires.
//!
//! # What moves a pool
//!
//! | the agent says | new requests | what was begun |
//! |---|---|---|
//! | healthy | its connection takes its turn | goes on |
//! | degraded | go elsewhere where they can; its time may be stretched ([`PoolConfig::stretch`]) | goes on, stretched likewise |
//! | draining, unhealthy | go elsewhere | goes on |
//! | pause | go elsewhere; with [`PausedPolicy::Wait`], wait where there is nowhere else | waits in the connection |
//! | nothing: the connection ended | go elsewhere | fails |
//!
//! # What a request costs
//!
//! No lock is held and nothing is looked up by string: the correlation id is hashed once, the set of slots says in
//! one word who can serve, and all counting is one addition to an atomic. `docs/decisions/0023-callout-tables.md` has the figures.

mod agents;
mod body_slots;
pub mod clock;
pub mod config;
mod connect;
mod connection_slot;
pub mod histogram;
mod lease;
pub mod metrics;
mod reconnect;
pub mod reports;
mod request;
mod start_signal;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use foldhash::quality::RandomState;
use hailwire_pool::{AffinityTable, Availability, BreakerState, CircuitBreaker, SlotSet};
use prometheus_client::metrics::MetricType;
use thiserror::Error;
use tokio::{sync::Notify, task::JoinSet};

pub use agents::{AgentPools, PoolReader, PoolSnapshot};
pub use config::{Backoff, PausedPolicy, PoolConfig, Timeouts};
pub use connect::{Connector, connect_with};
pub use lease::ConnectionLease;
pub use metrics::PoolMetrics;
pub use reports::ReportedMetrics;
pub use start_signal::StartSignal;

use crate::{
    capabilities::Capabilities,
    control::CancelReason,
    event::{Configure, Event},
    exposition::{MetricFamilies, MetricValue},
    host::{ConnectionState, RequestError},
    response::Decision,
};

use connection_slot::ConnectionSlot;
use metrics::NO_LABELS;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    /// It did not come in time. The agent was told that nobody waits.
    #[error("the agent did not answer in time")]
    Timeout,
    /// The agent is at its concurrency limit, or has paused.
    #[error("the agent is overloaded")]
    Overload,
    /// No connection to the agent can serve, or it has failed too often of late, or the pool drains.
    #[error("the agent is down")]
    Down,
    /// The request was sent and failed.
    #[error("the request to the agent failed")]
    Failed(#[source] RequestError),
    /// The body is larger than the agent accepts.
    #[error("larger than the agent accepts")]
    TooLarge,
}

/// A pool of connections to one agent. Share it in an [`Arc`]; its connections end when it is dropped.
pub struct AgentPool {
    shared: Arc<PoolShared>,
    /// Aborts the reconnect tasks when the pool is dropped.
    _reconnect_tasks: JoinSet<()>,
}

/// What the pool, its reconnect tasks and its calls share.
struct PoolShared {
    name: Box<str>,
    config: PoolConfig,
    options: ArcSwap<crate::host::ConnectOptions>,
    connect: Arc<dyn Connector>,
    slots: SlotSet,
    connections: Box<[ConnectionSlot]>,
    affinity: AffinityTable,
    sticky: AffinityTable,
    body_slots: body_slots::BodySlots,
    hasher: RandomState,
    breaker: CircuitBreaker,
    metrics: PoolMetrics,
    reports: ReportedMetrics,
    /// Whether an attempt to connect has ended, in whichever way.
    attempted: AtomicBool,
    /// Nothing new is taken.
    draining: AtomicBool,
    /// Connections are opened no more.
    stopping: AtomicBool,
    /// A slot's availability has changed, or a closed pool has become emptier.
    changed: Notify,
}

impl AgentPool {
    /// A pool for the agent of this name, which begins to connect.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(name: &str, connect: Arc<dyn Connector>, config: PoolConfig) -> Self {
        let slots = SlotSet::new(config.connections, config.max_concurrent, config.strategy);
        let shared = Arc::new(PoolShared {
            name: name.into(),
            options: ArcSwap::from_pointee(reconnect::options(&config)),
            connect,
            connections: (0..slots.count())
                .map(|_| ConnectionSlot::default())
                .collect(),
            slots,
            affinity: AffinityTable::new(config.affinity),
            sticky: AffinityTable::new(config.sticky),
            body_slots: body_slots::BodySlots::default(),
            hasher: RandomState::default(),
            breaker: CircuitBreaker::new(config.breaker),
            metrics: PoolMetrics::default(),
            reports: ReportedMetrics::default(),
            attempted: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            changed: Notify::new(),
            config,
        });
        let mut reconnect_tasks = JoinSet::new();
        for slot in 0..shared.slots.count() {
            reconnect_tasks.spawn(reconnect::run(Arc::clone(&shared), slot));
        }
        Self {
            shared,
            _reconnect_tasks: reconnect_tasks,
        }
    }

    /// The agent's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How it behaves.
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    /// A request has ended: its connection is forgotten, and a drain need not wait for it.
    pub fn done(&self, id: &str) {
        let shared = &self.shared;
        shared.affinity.remove(shared.hash(id.as_bytes()));
        shared.notify_drain();
    }

    /// Tells the agent that nobody waits for what was asked about a request.
    pub fn cancel(&self, id: &str, reason: CancelReason) {
        let shared = &self.shared;
        let slot_id = shared
            .affinity
            .slot(shared.hash(id.as_bytes()), clock::coarse());
        if let Some(borrowed) = slot_id.and_then(|slot_id| lease::open(shared, slot_id)) {
            borrowed.connection.cancel(id, reason);
        }
    }

    /// Gives the agent another configuration: told on every connection, and on those that are opened later.
    ///
    /// # Errors
    ///
    /// The first failure, or [`RequestError::Refused`] where the agent does not accept it; connections that are
    /// opened later are told the new one all the same.
    pub async fn configure(&self, configure: Configure) -> Result<(), PoolError> {
        let shared = &self.shared;
        shared.options.rcu(|options| {
            let mut options = crate::host::ConnectOptions::clone(options);
            options.config = Some(configure.config.clone());
            options.config_version.clone_from(&configure.config_version);
            options
        });
        let timeout = shared.config.timeouts.of(crate::EventKind::Configure);
        for connection in shared
            .connections
            .iter()
            .filter_map(ConnectionSlot::connection)
        {
            let asked = connection.request(Event::Configure(configure.clone()));
            let answer = tokio::time::timeout(timeout, asked)
                .await
                .map_err(|_| PoolError::Timeout)?
                .map_err(PoolError::Failed)?;
            if answer.decision != Decision::Allow {
                let why = "the agent does not accept the configuration".to_owned();
                return Err(PoolError::Failed(RequestError::Refused(why)));
            }
        }
        Ok(())
    }

    /// Returns when a connection can serve, and false if none can before `within` is over.
    pub async fn ready(&self, within: Duration) -> bool {
        let shared = &self.shared;
        let ready = shared.until(|| shared.slots.available() > 0);
        tokio::time::timeout(within, ready).await.is_ok()
    }

    /// Waits until something holds, which is asked again whenever a connection has opened or ended, an agent has said something
    /// of itself, or an attempt to connect has failed. Without a bound on its time.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn wait_until(&self, holds: impl Fn(&Self) -> bool) {
        self.shared.until(|| holds(self)).await;
    }

    /// Takes nothing new, lets requests that were begun end, and closes the connections. A request has ended when
    /// nothing of it is in flight and it is complete ([`AgentPool::done`]). Returns whether all did before `within`
    /// was over.
    pub async fn drain(&self, within: Duration) -> bool {
        let shared = &self.shared;
        shared.draining.store(true, Ordering::Release);
        shared.slots.close();
        let empty = || shared.slots.in_flight() == 0 && shared.affinity.is_empty(clock::coarse());
        let drained = tokio::time::timeout(within, shared.until(empty)).await;
        shared.stopping.store(true, Ordering::Release);
        for (slot, link) in shared.connections.iter().enumerate() {
            shared
                .slots
                .set_availability(slot, Availability::Unavailable);
            if let Some(borrowed) = link.load() {
                borrowed.connection.close();
            }
        }
        shared.changed.notify_waiters();
        drained.is_ok()
    }

    /// What the agent said of itself on one of the connections that are open.
    #[must_use]
    pub fn capabilities(&self) -> Option<Capabilities> {
        let borrowed = self
            .shared
            .connections
            .iter()
            .find_map(ConnectionSlot::load)?;
        Some(borrowed.connection.capabilities().clone())
    }

    /// The status of each connection, by slot; `None` where there is none.
    #[must_use]
    pub fn connections(&self) -> Vec<Option<ConnectionStatus>> {
        let slots = &self.shared.slots;
        let status = |(slot, link): (usize, &ConnectionSlot)| {
            let look = slots.view(slot)?;
            Some(ConnectionStatus {
                state: link.load()?.connection.state(),
                availability: look.availability(),
                in_flight: look.load(),
                score: look.score(),
                last_seen: look.last_seen().at(),
            })
        };
        self.shared
            .connections
            .iter()
            .enumerate()
            .map(status)
            .collect()
    }

    /// How many connections can take a new request.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u32 {
        self.shared.slots.available()
    }

    /// Events that are asked about at the moment; the chunks of a body that are under way together count once.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.shared.slots.in_flight()
    }

    /// What the breaker does.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        self.shared.breaker.state()
    }

    /// What was counted.
    #[must_use]
    pub fn metrics(&self) -> &PoolMetrics {
        &self.shared.metrics
    }

    /// What the agent reported.
    #[must_use]
    pub fn reports(&self) -> &ReportedMetrics {
        &self.shared.reports
    }

    /// What was counted, how it is, and what the agent reported, in the text format of OpenMetrics.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        let mut families = MetricFamilies::default();
        self.expose(&mut families);
        families.encode()
    }

    /// Adds all of it to a scrape.
    pub(crate) fn expose(&self, families: &mut MetricFamilies) {
        let shared = &self.shared;
        let (agent, now) = (self.name(), clock::coarse());
        shared.metrics.expose(agent, families);
        let breaker = match shared.breaker.state() {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open { .. } => 2,
        };
        for (name, help, value) in [
            (
                "callout_in_flight",
                "Events in flight.",
                self.in_flight() as usize,
            ),
            (
                "callout_connections_able",
                "Connections that take new requests.",
                self.available() as usize,
            ),
            (
                "callout_requests_bound",
                "Requests that have a connection.",
                shared.affinity.len(now),
            ),
            (
                "callout_sessions_bound",
                "Sessions that have a connection.",
                shared.sticky.len(now),
            ),
            (
                "callout_breaker_state",
                "0 closed, 1 half-open, 2 open.",
                breaker,
            ),
            (
                "callout_reported_series",
                "Series that the agent reported.",
                shared.reports.len(now),
            ),
        ] {
            let value = MetricValue::Gauge(i64::try_from(value).unwrap_or(i64::MAX));
            let family = families.own(name, MetricType::Gauge, help, None);
            family.sample(agent, NO_LABELS, value);
        }
        let left_out = MetricValue::Counter(shared.reports.left_out.value());
        families
            .own(
                "callout_reported_series_left_out_total",
                MetricType::Counter,
                "Series that the agent reported and that were not taken in.",
                None,
            )
            .sample(agent, NO_LABELS, left_out);
        shared.reports.expose(agent, now, families);
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectionStatus {
    /// What it says itself.
    pub state: ConnectionState,
    /// Whether it is given new requests.
    pub availability: Availability,
    /// Events that are asked about on it.
    pub in_flight: u32,
    /// How well requests went of late, 1 to 255.
    pub score: u32,
    /// When it last answered, by [`clock::coarse`].
    pub last_seen: Option<Duration>,
}

impl fmt::Debug for AgentPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentPool")
            .field("name", &self.name())
            .field("connect", &self.shared.connect)
            .field("available", &self.available())
            .field("in_flight", &self.in_flight())
            .field("breaker", &self.breaker())
            .finish_non_exhaustive()
    }
}

/// The hash of a correlation id or a session. It also is the chance by which one of several connections is chosen, so that its high bits
/// must differ between ids that differ in a digit: those of foldhash's fast variant do not, for some seeds.
#[inline]
fn id_hash(hasher: &RandomState, text: &[u8]) -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let mut hasher = hasher.build_hasher();
    hasher.write(text);
    hasher.finish()
}

impl PoolShared {
    #[inline]
    fn hash(&self, text: &[u8]) -> u64 {
        id_hash(&self.hasher, text)
    }

    /// Returns when something holds that changes with the pool.
    async fn until(&self, holds: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if holds() {
                return;
            }
            changed.await;
        }
    }

    /// Tells a drain that it may be over.
    #[inline]
    fn notify_drain(&self) {
        if self.draining.load(Ordering::Acquire) {
            self.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_differ_in_a_digit_are_spread_over_two_connections_whatever_the_seed() {
        for _ in 0..5_000 {
            let hasher = RandomState::default();
            let high = |number| id_hash(&hasher, format!("r{number}").as_bytes()) >> 63;
            let second: u64 = (0..64).map(high).sum();
            assert!((8..=56).contains(&second), "{second} of 64");
        }
    }
}
