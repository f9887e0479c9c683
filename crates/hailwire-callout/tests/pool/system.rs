//! Agents on socket pairs, and a pool in front of them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
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
    pub(crate) cancelled: watch::Sender<u32>,
    pub(crate) configured: AtomicU32,
    hosts: Mutex<Vec<HostHandle>>,
    serving: Mutex<Option<JoinHandle<()>>>,
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
        let serving = self.serving.lock().unwrap();
        serving.as_ref().is_none_or(JoinHandle::is_finished)
    }

    async fn answer(&self) -> Response {
        self.asked.fetch_add(1, Ordering::SeqCst);
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
        self.configured.fetch_add(1, Ordering::SeqCst);
        if event.config["accept"] == false {
            return Response::block(500);
        }
        Response::allow()
    }
    fn cancelled(&self, _: &str, _: CancelReason) {
        self.cancelled.send_modify(|count| *count += 1);
    }
}

/// A pool with one connection to each of some agents.
pub(crate) struct House {
    pub(crate) pool: Arc<AgentPool>,
    pub(crate) agents: Vec<Arc<Probe>>,
    /// While it is true, no connection comes about.
    pub(crate) away: Arc<AtomicBool>,
    pub(crate) attempts: Arc<AtomicUsize>,
}

impl House {
    pub(crate) async fn new(agents: usize, config: PoolConfig) -> Self {
        Self::with_limits(agents, config, AgentLimits::default()).await
    }

    pub(crate) async fn with_limits(
        agents: usize,
        config: PoolConfig,
        limits: AgentLimits,
    ) -> Self {
        let house = Self::build(agents, config, limits, false);
        for agent in 1..=agents {
            eventually(|| house.pool.available() as usize >= agent).await;
        }
        house
    }

    pub(crate) fn away(config: PoolConfig) -> Self {
        Self::build(1, config, AgentLimits::default(), true)
    }

    fn build(count: usize, config: PoolConfig, limits: AgentLimits, away: bool) -> Self {
        let agents: Vec<_> = (0..count)
            .map(|number| {
                Arc::new(Probe {
                    number,
                    limits,
                    holding: watch::Sender::new(false),
                    asked: AtomicU32::new(0),
                    cancelled: watch::Sender::new(0),
                    configured: AtomicU32::new(0),
                    hosts: Mutex::default(),
                    serving: Mutex::default(),
                })
            })
            .collect();
        let away = Arc::new(AtomicBool::new(away));
        let attempts = Arc::new(AtomicUsize::new(0));
        let (shut, tried, all) = (Arc::clone(&away), Arc::clone(&attempts), agents.clone());
        let connect = connect_with("a socket pair", move |options| {
            tried.fetch_add(1, Ordering::SeqCst);
            let (shut, all) = (Arc::clone(&shut), all.clone());
            Box::pin(async move {
                if shut.load(Ordering::SeqCst) {
                    return Err(ConnectError::Refused("away".to_owned()));
                }
                let (near, far) = UnixStream::pair()?;
                {
                    // Whoever has nobody yet, or lost them.
                    let Some(probe) = all.iter().find(|agent| agent.is_alone()) else {
                        return Err(ConnectError::Refused("all are taken".to_owned()));
                    };
                    let agent = Arc::clone(probe);
                    let serving = tokio::spawn(async move {
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
        }
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
        eventually(|| self.asked() > before).await;
        asking
    }

    pub(crate) fn asked(&self) -> u32 {
        let counts = self.agents.iter();
        counts.map(|agent| agent.asked.load(Ordering::SeqCst)).sum()
    }

    pub(crate) fn hold(&self, holding: bool) {
        self.agents.iter().for_each(|agent| agent.hold(holding));
    }
}

fn who(answer: Result<Response, PoolError>) -> Result<usize, PoolError> {
    answer.map(|response| response.audit.tags[0].parse().unwrap())
}

/// Goes on when something holds.
pub(crate) async fn eventually(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, waiting)
        .await
        .expect("it comes about");
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
