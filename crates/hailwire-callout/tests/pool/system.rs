//! Agents on socket pairs, and a pool in front of them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use hailwire_callout::{
    Agent, Event, Response,
    agent::{self, HostHandle, ServeOptions},
    capabilities::AgentLimits,
    control::{CancelReason, Notice},
    event::{BodyChunk, Configure, Metadata, RequestComplete, RequestHeaders, ResponseHeaders},
    host::{self, ConnectError},
    pool::{AgentPool, PoolConfig, PoolError, connect_with},
};
use tokio::{net::UnixStream, sync::watch, task::JoinHandle};

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// One of the agents; each serves one connection at a time, so that its answers show which connection was asked.
pub(crate) struct Probe {
    number: usize,
    limits: AgentLimits,
    /// While it is true, nothing is answered.
    holding: watch::Sender<bool>,
    pub(crate) asked: AtomicU32,
    pub(crate) cancelled: AtomicU32,
    pub(crate) configured: AtomicU32,
    hosts: Mutex<Vec<HostHandle>>,
    serving: Mutex<Option<JoinHandle<()>>>,
    /// No connection is served.
    alone: AtomicBool,
    /// Changes with each of these.
    changes: watch::Sender<()>,
}

/// Its connection is served as long as this lives.
struct ServedConnection(Arc<Probe>);

impl ServedConnection {
    fn new(probe: &Arc<Probe>) -> Self {
        probe.alone.store(false, SeqCst);
        Self(Arc::clone(probe))
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        self.0.alone.store(true, SeqCst);
        self.0.changes.send_replace(());
    }
}

impl Probe {
    pub(crate) fn hold(&self, holding: bool) {
        self.holding.send_replace(holding);
    }

    pub(crate) fn tell(&self, notice: &Notice) {
        let hosts = self.hosts.lock().unwrap();
        assert!(hosts.last().unwrap().notify(notice.clone()));
    }

    /// Its connection ends, as when it is killed.
    pub(crate) fn hang_up(&self) {
        self.serving.lock().unwrap().take().unwrap().abort();
    }

    /// Whether its connection has ended.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(SeqCst)
    }

    async fn answer(&self) -> Response {
        self.asked.fetch_add(1, SeqCst);
        self.changes.send_replace(());
        let mut holding = self.holding.subscribe();
        let _ = holding.wait_for(|holding| !holding).await;
        let mut response = Response::allow();
        response.audit.tags.push(self.number.to_string());
        response
    }
}

impl Agent for Probe {
    fn name(&self) -> &str {
        "probe"
    }
    fn limits(&self) -> AgentLimits {
        self.limits
    }
    fn connected(&self, host: HostHandle) {
        self.hosts.lock().unwrap().push(host);
    }
    async fn request_headers(&self, _: RequestHeaders) -> Response {
        self.answer().await
    }
    async fn request_body(&self, _: BodyChunk) -> Response {
        self.answer().await
    }
    async fn response_headers(&self, _: ResponseHeaders) -> Response {
        self.answer().await
    }
    async fn response_body(&self, _: BodyChunk) -> Response {
        self.answer().await
    }
    async fn request_complete(&self, _: RequestComplete) -> Response {
        self.answer().await
    }
    async fn configure(&self, event: Configure) -> Response {
        self.configured.fetch_add(1, SeqCst);
        if event.config["accept"] == false {
            return Response::block(500);
        }
        Response::allow()
    }
    fn cancelled(&self, _: &str, _: CancelReason) {
        self.cancelled.fetch_add(1, SeqCst);
        self.changes.send_replace(());
    }
}

/// A pool with one connection to each of some agents.
pub(crate) struct PoolFixture {
    pub(crate) pool: Arc<AgentPool>,
    pub(crate) agents: Vec<Arc<Probe>>,
    /// While it is true, no connection comes about.
    pub(crate) away: Arc<AtomicBool>,
    pub(crate) attempts: Arc<AtomicUsize>,
    /// Changes with what the agents see.
    changes: watch::Sender<()>,
}

impl PoolFixture {
    pub(crate) async fn new(agents: usize, config: PoolConfig) -> Self {
        Self::with_limits(agents, config, AgentLimits::default()).await
    }

    pub(crate) async fn with_limits(
        agents: usize,
        config: PoolConfig,
        limits: AgentLimits,
    ) -> Self {
        let fixture = Self::build(agents, config, limits, false);
        fixture.has_available(agents as u32).await;
        fixture
    }

    pub(crate) fn away(config: PoolConfig) -> Self {
        Self::build(1, config, AgentLimits::default(), true)
    }

    fn build(count: usize, config: PoolConfig, limits: AgentLimits, away: bool) -> Self {
        let changes = watch::Sender::new(());
        let agents: Vec<_> = (0..count)
            .map(|number| {
                Arc::new(Probe {
                    number,
                    limits,
                    holding: watch::Sender::new(false),
                    asked: AtomicU32::new(0),
                    cancelled: AtomicU32::new(0),
                    configured: AtomicU32::new(0),
                    hosts: Mutex::default(),
                    serving: Mutex::default(),
                    alone: AtomicBool::new(true),
                    changes: changes.clone(),
                })
            })
            .collect();
        let away = Arc::new(AtomicBool::new(away));
        let attempts = Arc::new(AtomicUsize::new(0));
        let (shut, tried, all) = (Arc::clone(&away), Arc::clone(&attempts), agents.clone());
        let connect = connect_with("a socket pair", move |options| {
            tried.fetch_add(1, SeqCst);
            let (shut, all) = (Arc::clone(&shut), all.clone());
            Box::pin(async move {
                if shut.load(SeqCst) {
                    return Err(ConnectError::Refused("away".to_owned()));
                }
                let (near, far) = UnixStream::pair()?;
                {
                    // Whoever has nobody yet, or lost them.
                    let Some(probe) = all.iter().find(|agent| agent.is_alone()) else {
                        return Err(ConnectError::Refused("all are taken".to_owned()));
                    };
                    let (agent, served) = (Arc::clone(probe), ServedConnection::new(probe));
                    let serving = tokio::spawn(async move {
                        let _served = served;
                        let _ = agent::serve(agent, far, &ServeOptions::default()).await;
                    });
                    *probe.serving.lock().unwrap() = Some(serving);
                }
                host::over(near, &options).await
            })
        });
        let config = PoolConfig {
            connections: count,
            ..config
        };
        Self {
            pool: Arc::new(AgentPool::new("probe", Arc::new(connect), config)),
            agents,
            away,
            attempts,
            changes,
        }
    }

    /// Waits until something holds of the pool.
    pub(crate) async fn pool_has(&self, holds: impl Fn(&AgentPool) -> bool) {
        let held = tokio::time::timeout(LONG, self.pool.wait_until(holds));
        held.await.expect("it comes about");
    }

    pub(crate) async fn has_available(&self, number: u32) {
        self.pool_has(|pool| pool.available() == number).await;
    }

    /// Waits until something holds of what the agents have seen.
    pub(crate) async fn agents_have(&self, holds: impl Fn(&[Arc<Probe>]) -> bool) {
        let mut changes = self.changes.subscribe();
        let held = async {
            while !holds(&self.agents) {
                changes.changed().await.unwrap();
            }
        };
        let held = tokio::time::timeout(LONG, held);
        held.await.expect("it comes about");
    }

    /// Waits until the connections of all agents have ended.
    pub(crate) async fn agents_are_alone(&self) {
        let all_alone = |agents: &[Arc<Probe>]| agents.iter().all(|agent| agent.is_alone());
        self.agents_have(all_alone).await;
    }

    /// Drops the pool.
    pub(crate) fn end_pool(&mut self) {
        self.pool = Self::away(PoolConfig::default()).pool;
    }

    /// Asks, and returns which agent answered.
    pub(crate) async fn request(&self, event: Event) -> Result<usize, PoolError> {
        who(self.pool.request(event, LONG).await)
    }

    /// Asks about the head of a session's request.
    pub(crate) async fn request_in_session(
        &self,
        session: &str,
        id: &str,
    ) -> Result<usize, PoolError> {
        who(self.pool.request_in_session(session, head(id), LONG).await)
    }

    /// Begins to ask, and goes on when the agents have been asked once more.
    pub(crate) async fn begin(&self, event: Event) -> JoinHandle<Result<usize, PoolError>> {
        let before = self.asked();
        let pool = Arc::clone(&self.pool);
        let asking = tokio::spawn(async move { who(pool.request(event, LONG).await) });
        self.agents_have(|agents| asked(agents) > before).await;
        asking
    }

    pub(crate) fn asked(&self) -> u32 {
        asked(&self.agents)
    }

    pub(crate) fn hold(&self, holding: bool) {
        self.agents.iter().for_each(|agent| agent.hold(holding));
    }
}

fn who(answer: Result<Response, PoolError>) -> Result<usize, PoolError> {
    answer.map(|response| response.audit.tags[0].parse().unwrap())
}

/// How often some agents have been asked.
pub(crate) fn asked(agents: &[Arc<Probe>]) -> u32 {
    agents.iter().map(|agent| agent.asked.load(SeqCst)).sum()
}

pub(crate) fn head(id: &str) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        ..Metadata::default()
    };
    Event::RequestHeaders(RequestHeaders::new(&metadata, "GET", "/", [("host", "a")]))
}

fn chunk(id: &str, index: u32) -> BodyChunk {
    BodyChunk {
        correlation_id: id.into(),
        data: Bytes::from_static(b"body"),
        is_last: false,
        total_size: None,
        index,
        transferred: 4 * u64::from(index + 1),
    }
}

pub(crate) fn request_body(id: &str, index: u32) -> Event {
    Event::RequestBody(chunk(id, index))
}

pub(crate) fn response_body(id: &str, index: u32) -> Event {
    Event::ResponseBody(chunk(id, index))
}

pub(crate) fn response_head(id: &str) -> Event {
    Event::ResponseHeaders(ResponseHeaders::new(id, 200, []))
}

pub(crate) fn complete(id: &str) -> Event {
    Event::RequestComplete(RequestComplete {
        correlation_id: id.into(),
        ..RequestComplete::default()
    })
}
