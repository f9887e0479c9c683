//! Our agent, and our host asking any agent, also the foreign crate's.
//!
//! The agent inspects nothing and allows everything, as the foreign program's does, so that what is measured is the
//! protocol. A host with several connections asks through its pool, one with a single connection directly.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use hailwire_callout::{
    Agent, Event, Response, Text,
    agent::{ServeOptions, grpc as agent_grpc, uds as agent_uds},
    capabilities::AgentLimits,
    event::{BodyChunk, RequestHeaders},
    host::{ConnectError, ConnectOptions, Connection, grpc, uds},
    pool::{AgentPool, Connector, PoolConfig, connect_with},
    wire::Encoding,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::{CalloutWire, operations::small, rate};
use crate::{
    BenchError,
    measure::TimeHistogram,
    subject::{ReadyAddress, failed},
    work::{MeasuredWork, WorkRequest},
};

/// Bytes of a chunk of a body.
const CHUNK_BYTES: usize = 64 << 10;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Our agent, listening.
pub(in crate::subject) struct ServedAgent {
    pub(in crate::subject) ready: ReadyAddress,
    _folder: TempDir,
    serving: JoinHandle<()>,
}

impl Drop for ServedAgent {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// An agent that allows everything.
struct AllowingAgent;

impl Agent for AllowingAgent {
    fn name(&self) -> &str {
        "passing"
    }

    fn limits(&self) -> AgentLimits {
        AgentLimits {
            max_body_size: u64::MAX,
            max_concurrency: 1024,
            ..AgentLimits::default()
        }
    }

    async fn request_headers(&self, _: RequestHeaders) -> Response {
        Response::allow()
    }

    async fn request_body(&self, _: BodyChunk) -> Response {
        Response::allow()
    }
}

pub(in crate::subject) async fn serve(wire: CalloutWire) -> Result<ServedAgent, BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::io("creating a folder"))?;
    let agent = Arc::new(AllowingAgent);
    let (address, serving) = if wire == CalloutWire::Grpc {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(BenchError::io("opening a socket"))?;
        let address = listener
            .local_addr()
            .map_err(BenchError::io("reading the socket's address"))?;
        let serving = tokio::spawn(async move {
            let never = std::future::pending();
            let _ = agent_grpc::serve(
                agent,
                listener,
                agent_grpc::GrpcServeOptions::default(),
                never,
            )
            .await;
        });
        (address.to_string(), serving)
    } else {
        let path = folder.path().join("agent.sock");
        let listener =
            agent_uds::UdsListener::bind(&path).map_err(BenchError::io("opening a socket"))?;
        let serving = tokio::spawn(async move {
            let _ = agent_uds::serve(agent, listener, &ServeOptions::default()).await;
        });
        (path.display().to_string(), serving)
    };
    Ok(ServedAgent {
        ready: ReadyAddress {
            address,
            ..ReadyAddress::default()
        },
        _folder: folder,
        serving,
    })
}

/// An agent, and the open connections to it.
pub(in crate::subject) struct CalloutTarget {
    connect: Arc<dyn Connector>,
    connections: BTreeMap<u32, AgentConnection>,
    requests: AtomicU64,
}

enum AgentConnection {
    One(Connection),
    Several(AgentPool),
}

impl CalloutTarget {
    pub(in crate::subject) async fn new(
        ready: &ReadyAddress,
        wire: CalloutWire,
    ) -> Result<Self, BenchError> {
        let address = ready.address.clone();
        let connect = connect_with("bench", move |options: ConnectOptions| {
            let address = address.clone();
            Box::pin(async move { connect(&address, wire, options).await }) as BoxFuture<'static, _>
        });
        Self::at(Arc::new(connect)).await
    }

    /// An agent that is reached through `connect`.
    pub(super) async fn at(connect: Arc<dyn Connector>) -> Result<Self, BenchError> {
        let mut target = Self {
            connect,
            connections: BTreeMap::new(),
            requests: AtomicU64::new(0),
        };
        target.open(1).await?;
        Ok(target)
    }

    async fn open(&mut self, connections: u32) -> Result<(), BenchError> {
        if self.connections.contains_key(&connections) {
            return Ok(());
        }
        let connection = if connections > 1 {
            let config = PoolConfig {
                connections: connections as usize,
                ..PoolConfig::high_throughput()
            };
            let pool = AgentPool::new("bench", Arc::clone(&self.connect), config);
            let all = async {
                while pool.available() < connections {
                    tokio::task::yield_now().await;
                }
            };
            let up = tokio::time::timeout(ANSWER_TIMEOUT, all).await;
            up.map_err(failed("connecting the pool"))?;
            AgentConnection::Several(pool)
        } else {
            let options = ConnectOptions::default();
            let connected = self.connect.connect(&options).await;
            AgentConnection::One(connected.map_err(failed("connecting"))?)
        };
        self.connections.insert(connections, connection);
        Ok(())
    }

    pub(in crate::subject) async fn run(
        &mut self,
        work: &WorkRequest,
    ) -> Result<MeasuredWork, BenchError> {
        match *work {
            WorkRequest::Rate {
                in_flight,
                seconds,
                bytes,
                connections,
                ..
            } => {
                self.open(connections).await?;
                let connection = self.connection(connections)?;
                let body = Bytes::from(vec![b'a'; bytes]);
                let begun = Instant::now();
                let until = begun + Duration::from_secs_f64(seconds);
                let workers: FuturesUnordered<_> = (0..in_flight.max(1))
                    .map(|_| self.request_until(connection, &body, until))
                    .collect();
                let mut times = TimeHistogram::default();
                for done in workers.collect::<Vec<_>>().await {
                    times.add(&done?);
                }
                let took = begun.elapsed().as_secs_f64();
                Ok(rate(times.measured(), times.count(), took, bytes))
            }
            WorkRequest::Latency {
                per_second,
                seconds,
                bytes: 0,
                connections,
            } => {
                self.open(connections).await?;
                let connection = self.connection(connections)?;
                let times = self.request_seldom(connection, per_second, seconds).await?;
                Ok(times.measured().with("count", times.count() as f64))
            }
            _ => Err(BenchError::Unsupported(
                "this subject only does rates, and single events at a low rate",
            )),
        }
    }

    fn connection(&self, connections: u32) -> Result<&AgentConnection, BenchError> {
        let connection = self.connections.get(&connections);
        connection.ok_or(BenchError::Unsupported("the connection is not open"))
    }

    /// One event at a time with pauses between them, in which all threads go to sleep. Each is timed from when it is sent and
    /// not from when it was due, since a timer is late by up to a millisecond.
    async fn request_seldom(
        &self,
        connection: &AgentConnection,
        per_second: f64,
        seconds: f64,
    ) -> Result<TimeHistogram, BenchError> {
        let mut times = TimeHistogram::default();
        for _ in 0..(per_second * seconds).ceil().max(1.0) as u64 {
            tokio::time::sleep(Duration::from_secs_f64(1.0 / per_second)).await;
            let once = self
                .request_until(connection, &Bytes::new(), Instant::now())
                .await?;
            times.add(&once);
        }
        Ok(times)
    }

    async fn request_until(
        &self,
        connection: &AgentConnection,
        body: &Bytes,
        until: Instant,
    ) -> Result<TimeHistogram, BenchError> {
        let mut times = TimeHistogram::default();
        loop {
            let id = format!("l-{}", self.requests.fetch_add(1, Ordering::Relaxed));
            let begun = Instant::now();
            if body.is_empty() {
                connection
                    .request(Event::RequestHeaders(small(&id)))
                    .await?;
            } else {
                connection.request_with_body(&id, body).await?;
            }
            let now = Instant::now();
            times.record(now - begun);
            if now >= until {
                return Ok(times);
            }
        }
    }
}

impl AgentConnection {
    async fn request(&self, event: Event) -> Result<Response, BenchError> {
        match self {
            Self::One(connection) => connection
                .request(event)
                .await
                .map_err(failed("the request")),
            Self::Several(pool) => pool
                .request(event, ANSWER_TIMEOUT)
                .await
                .map_err(failed("the request")),
        }
    }

    /// Sends all chunks of a body, as fast as the window allows.
    async fn request_with_body(&self, id: &str, body: &Bytes) -> Result<(), BenchError> {
        let id = Text::from(id);
        let chunks = body.len().div_ceil(CHUNK_BYTES);
        let mut requests = FuturesUnordered::new();
        for index in 0..chunks {
            let (from, to) = (
                index * CHUNK_BYTES,
                ((index + 1) * CHUNK_BYTES).min(body.len()),
            );
            let chunk = BodyChunk {
                correlation_id: id.clone(),
                data: body.slice(from..to),
                is_last: to == body.len(),
                total_size: Some(body.len() as u64),
                index: index as u32,
                transferred: to as u64,
            };
            let mut request = Box::pin(self.request(Event::RequestBody(chunk)));
            // Chunks are sent in the order in which they are first polled.
            match futures_util::poll!(&mut request) {
                std::task::Poll::Ready(done) => drop(done?),
                std::task::Poll::Pending => requests.push(request),
            }
        }
        while let Some(done) = requests.next().await {
            done?;
        }
        if let Self::Several(pool) = self {
            pool.done(&id);
        }
        Ok(())
    }
}

async fn connect(
    address: &str,
    wire: CalloutWire,
    options: ConnectOptions,
) -> Result<Connection, ConnectError> {
    let options = ConnectOptions {
        encodings: match wire {
            CalloutWire::Json => vec![Encoding::Json],
            CalloutWire::MessagePack | CalloutWire::Grpc => {
                vec![Encoding::MessagePack, Encoding::Json]
            }
        },
        ..options
    };
    if wire == CalloutWire::Grpc {
        let endpoint = grpc::GrpcEndpoint::new(address);
        let endpoint = endpoint.map_err(|e| ConnectError::Handshake(e.to_string()))?;
        return grpc::connect(&endpoint, &options).await;
    }
    uds::connect(address, &options).await
}
