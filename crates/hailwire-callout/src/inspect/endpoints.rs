//! Builds the agents of a configuration: a pool of connections for each endpoint.
//!
//! This crate reaches Unix sockets and gRPC by itself. How to reach an agent on another node, or one that connects
//! by itself, is its caller's to say ([`ConnectorFactory`]). Pools whose settings did not change outlive a reload with their
//! connections; the others end with the last exchange that began with them.

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use thiserror::Error;

use super::{
    AgentClient, CallError, Checkpoint, Config, Inspector,
    config::{AgentConfig, AgentEndpoint, TlsFiles},
};
use crate::{
    Event, Response, Text,
    capabilities::Capabilities,
    control::CancelReason,
    exposition::MetricFamilies,
    host::{self, ConnectOptions, RequestError, dialect::UdsEndpoint},
    pool::{AgentPool, Connector, PoolConfig, PoolError, StartSignal, Timeouts, connect_with},
    wire::Encoding,
};

/// How to connect to an endpoint that this crate cannot reach by itself; `None` where it cannot be reached.
pub type ConnectorFactory<'a> =
    &'a dyn Fn(&AgentConfig, &AgentEndpoint) -> Option<Arc<dyn Connector>>;

/// An endpoint that cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("agent `{agent}`: endpoint cannot be reached from here: {endpoint}")]
pub struct UnreachableEndpoint {
    /// The agent.
    pub agent: String,
    /// The endpoint.
    pub endpoint: String,
}

/// A pool that an inspector asks.
pub(super) struct EndpointPool {
    /// What it was made of.
    agent: AgentConfig,
    endpoint: AgentEndpoint,
    pool: AgentPool,
    stated: RwLock<Option<(Instant, Arc<Capabilities>)>>,
}

/// How long what an agent said of itself is believed without looking again.
const CAPABILITIES_TTL: Duration = Duration::from_secs(1);

impl Inspector {
    /// The agents of a configuration. Their pools begin to connect.
    ///
    /// # Errors
    ///
    /// [`UnreachableEndpoint`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn from_config(
        config: &Config,
        reach: ConnectorFactory<'_>,
    ) -> Result<Self, UnreachableEndpoint> {
        let inspector = Self::new(Vec::new());
        inspector.reload(config, reach)?;
        Ok(inspector)
    }

    /// Those of another configuration from now on. Exchanges that have begun keep those that they began with.
    ///
    /// # Errors
    ///
    /// [`UnreachableEndpoint`]; everything is as before then.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn reload(
        &self,
        config: &Config,
        reach: ConnectorFactory<'_>,
    ) -> Result<(), UnreachableEndpoint> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Vec::new();
        let mut points = Vec::new();
        for agent in &config.agents {
            let mut endpoints: Vec<Arc<dyn AgentClient>> = Vec::new();
            for endpoint in &agent.endpoints {
                let known = pools.iter().find(|pool| pool.is(agent, endpoint));
                let pool = match known {
                    Some(pool) => Arc::clone(pool),
                    None => Arc::new(EndpointPool::new(agent, endpoint, reach)?),
                };
                next.push(Arc::clone(&pool));
                endpoints.push(pool);
            }
            points.push(Checkpoint {
                name: Text::from(agent.name.as_str()),
                rule: agent.rule.clone(),
                endpoints,
            });
        }
        *pools = next;
        drop(pools);
        self.replace(points);
        Ok(())
    }

    /// Returns when every agent can be asked at one of its endpoints, and false if one cannot before `within` is over.
    pub async fn ready(&self, within: Duration) -> bool {
        let pools = {
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            pools.clone()
        };
        let mut agents: Vec<&str> = pools.iter().map(|pool| pool.agent.name.as_str()).collect();
        agents.dedup();
        let waits = agents.into_iter().map(|agent| {
            let endpoints = pools.iter().filter(move |pool| pool.agent.name == agent);
            let any = endpoints.map(|pool| {
                Box::pin(async move {
                    match pool.pool.ready(within).await {
                        true => Ok(()),
                        false => Err(()),
                    }
                })
            });
            futures_util::future::select_ok(any)
        });
        futures_util::future::try_join_all(waits).await.is_ok()
    }
}

impl EndpointPool {
    fn new(
        agent: &AgentConfig,
        endpoint: &AgentEndpoint,
        reach: ConnectorFactory<'_>,
    ) -> Result<Self, UnreachableEndpoint> {
        let connect = reach(agent, endpoint).or_else(|| near(agent, endpoint));
        let connect = connect.ok_or_else(|| UnreachableEndpoint {
            agent: agent.name.clone(),
            endpoint: endpoint.to_string(),
        })?;
        let name = match agent.endpoints.as_slice() {
            [_] => agent.name.clone(),
            _ => format!("{} {endpoint}", agent.name),
        };
        Ok(Self {
            agent: agent.clone(),
            endpoint: endpoint.clone(),
            pool: AgentPool::new(&name, connect, settings(agent, endpoint)),
            stated: RwLock::default(),
        })
    }

    /// Adds what it counted to a scrape.
    pub(super) fn expose(&self, families: &mut MetricFamilies) {
        self.pool.expose(families);
    }

    /// Whether it is the pool of this agent at this endpoint, with these settings.
    fn is(&self, agent: &AgentConfig, endpoint: &AgentEndpoint) -> bool {
        let AgentConfig {
            name,
            kind: _,
            endpoints,
            rule: _,
            dialect,
            connect_timeout,
            pool,
            breaker,
            config,
        } = &self.agent;
        let same = self.endpoint == *endpoint
            && *name == agent.name
            && (endpoints.len() == 1) == (agent.endpoints.len() == 1);
        same && *dialect == agent.dialect
            && *connect_timeout == agent.connect_timeout
            && *pool == agent.pool
            && *breaker == agent.breaker
            && *config == agent.config
    }
}

/// How to connect to an endpoint that this crate reaches by itself.
fn near(agent: &AgentConfig, endpoint: &AgentEndpoint) -> Option<Arc<dyn Connector>> {
    match endpoint {
        AgentEndpoint::UnixSocket(path) | AgentEndpoint::BinaryUds(path) => {
            let uds = Arc::new(UdsEndpoint::new(path, agent.dialect));
            let connect = move |options: ConnectOptions| -> BoxFuture<'static, _> {
                let uds = Arc::clone(&uds);
                Box::pin(async move { uds.connect(&options).await })
            };
            Some(Arc::new(connect_with(endpoint.to_string(), connect)))
        }
        AgentEndpoint::Grpc { address, tls } => {
            let grpc = host::grpc::GrpcEndpoint::new(address).ok()?;
            let tls = tls.clone();
            let connect = move |options: ConnectOptions| -> BoxFuture<'static, _> {
                let (grpc, tls) = (grpc.clone(), tls.clone());
                Box::pin(async move {
                    let grpc = match &tls {
                        Some(tls) => grpc.tls(read(tls).await?),
                        None => grpc,
                    };
                    host::grpc::connect(&grpc, &options).await
                })
            };
            Some(Arc::new(connect_with(endpoint.to_string(), connect)))
        }
        AgentEndpoint::Reverse(_) | AgentEndpoint::Hail { .. } => None,
    }
}

/// Certificates as they are now: they are renewed while a proxy runs.
async fn read(tls: &TlsFiles) -> io::Result<host::grpc::ClientTls> {
    Ok(host::grpc::ClientTls {
        ca: tokio::fs::read(&tls.ca).await?,
        identity: match &tls.identity {
            Some((cert, key)) => Some((tokio::fs::read(cert).await?, tokio::fs::read(key).await?)),
            None => None,
        },
        name: tls.name.clone(),
    })
}

/// The settings of the pool of connections to an endpoint.
fn settings(agent: &AgentConfig, endpoint: &AgentEndpoint) -> PoolConfig {
    let mut config = agent.pool.preset.pool();
    // How long an answer may take is the rule's to say.
    let configure = config.timeouts.of(crate::EventKind::Configure);
    config.timeouts =
        Timeouts::all(Duration::from_secs(3600)).with(crate::EventKind::Configure, configure);
    if let Some(strategy) = agent.pool.strategy {
        config.strategy = strategy;
    }
    if let Some(connections) = agent.pool.connections {
        config.connections = connections as usize;
    }
    if let Some(most) = agent.pool.max_in_flight {
        config.max_concurrent = most;
    }
    if let Some(most) = agent.pool.stretch {
        config.stretch = most.into();
    }
    let breaker = &mut config.breaker;
    breaker.failures = agent.breaker.failures.unwrap_or(breaker.failures);
    breaker.successes = agent.breaker.successes.unwrap_or(breaker.successes);
    breaker.open = agent.breaker.open_for.unwrap_or(breaker.open);
    breaker.probes = agent.breaker.trials.unwrap_or(breaker.probes);
    config.connect.connect_timeout = agent.connect_timeout;
    config.connect.config.clone_from(&agent.config);
    if let AgentEndpoint::UnixSocket(_) = endpoint {
        config.connect.encodings = vec![Encoding::Json];
    }
    config
}

/// A pool that its owner made can be used as an endpoint as it is.
impl AgentClient for AgentPool {
    fn request(
        &self,
        event: Event,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<Response, CallError>> {
        Box::pin(async move {
            let answer = AgentPool::request(self, event, deadline).await;
            answer.map_err(unanswered)
        })
    }

    fn request_queued(
        &self,
        event: Event,
        deadline: Duration,
        turn: StartSignal,
    ) -> BoxFuture<'_, Result<Response, CallError>> {
        Box::pin(async move {
            let answer = AgentPool::request_queued(self, event, deadline, &turn).await;
            answer.map_err(unanswered)
        })
    }

    fn longest_wait(&self, deadline: Duration) -> Duration {
        AgentPool::longest_wait(self, deadline)
    }

    fn capabilities(&self) -> Option<Arc<Capabilities>> {
        AgentPool::capabilities(self).map(Arc::new)
    }

    fn cancel(&self, id: &str, reason: CancelReason) {
        AgentPool::cancel(self, id, reason);
    }

    fn done(&self, id: &str) {
        AgentPool::done(self, id);
    }
}

impl AgentClient for EndpointPool {
    fn request(
        &self,
        event: Event,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<Response, CallError>> {
        AgentClient::request(&self.pool, event, deadline)
    }

    fn request_queued(
        &self,
        event: Event,
        deadline: Duration,
        turn: StartSignal,
    ) -> BoxFuture<'_, Result<Response, CallError>> {
        AgentClient::request_queued(&self.pool, event, deadline, turn)
    }

    fn longest_wait(&self, deadline: Duration) -> Duration {
        self.pool.longest_wait(deadline)
    }

    fn capabilities(&self) -> Option<Arc<Capabilities>> {
        let now = Instant::now();
        {
            let stated = self.stated.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, stated)) = &*stated
                && now.duration_since(*since) < CAPABILITIES_TTL
            {
                return Some(Arc::clone(stated));
            }
        }
        let fresh = self.pool.capabilities().map(Arc::new);
        let mut stated = self.stated.write().unwrap_or_else(PoisonError::into_inner);
        // What it said last is believed while it is away.
        let known = fresh.or_else(|| stated.take().map(|(_, stated)| stated))?;
        *stated = Some((now, Arc::clone(&known)));
        Some(known)
    }

    fn cancel(&self, id: &str, reason: CancelReason) {
        self.pool.cancel(id, reason);
    }

    fn done(&self, id: &str) {
        self.pool.done(id);
    }
}

fn unanswered(error: PoolError) -> CallError {
    match error {
        PoolError::Timeout => CallError::Timeout,
        PoolError::Overload | PoolError::Failed(RequestError::Paused | RequestError::Full) => {
            CallError::Overload
        }
        PoolError::Down => CallError::Down,
        PoolError::TooLarge | PoolError::Failed(RequestError::TooLarge) => CallError::TooLarge,
        PoolError::Failed(error) => CallError::Failed(error.to_string()),
    }
}
