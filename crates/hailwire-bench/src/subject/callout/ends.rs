//! Our agent, and our host at any agent: theirs too.
//!
//! The agent looks at nothing and lets everything pass, as the foreign program's does, so that what is measured is the
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

use super::{Wire, operations::small, rate};
use crate::{
    BenchError,
    measure::Times,
    subject::{Ready, failed},
    work::{Measured, Work},
};

/// Bytes of a piece of a body.
const PIECE: usize = 64 << 10;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Our agent, listening.
pub(in crate::subject) struct Served {
    pub(in crate::subject) ready: Ready,
    _folder: TempDir,
    serving: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Lets everything pass.
struct Passing;

impl Agent for Passing {
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

pub(in crate::subject) async fn serve(wire: Wire) -> Result<Served, BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::io("a folder"))?;
    let agent = Arc::new(Passing);
    let (address, serving) = if wire == Wire::Grpc {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(BenchError::io("a socket"))?;
        let address = listener
            .local_addr()
            .map_err(BenchError::io("its address"))?;
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
        let listener = agent_uds::UdsListener::bind(&path).map_err(BenchError::io("a socket"))?;
        let serving = tokio::spawn(async move {
            let _ = agent_uds::serve(agent, listener, &ServeOptions::default()).await;
        });
        (path.display().to_string(), serving)
    };
    Ok(Served {
        ready: Ready {
            address,
            ..Ready::default()
        },
        _folder: folder,
        serving,
    })
}

/// An agent to be asked, and the ways to it that are open.
pub(in crate::subject) struct Far {
    connect: Arc<dyn Connector>,
    ways: BTreeMap<u32, Way>,
    requests: AtomicU64,
}

enum Way {
    One(Connection),
    Several(AgentPool),
}

impl Far {
    pub(in crate::subject) async fn new(ready: &Ready, wire: Wire) -> Result<Self, BenchError> {
        let address = ready.address.clone();
        let connect = connect_with("bench", move |options: ConnectOptions| {
            let address = address.clone();
            Box::pin(async move { connect(&address, wire, options).await }) as BoxFuture<'static, _>
        });
        Self::at(Arc::new(connect)).await
    }

    /// An agent that is reached in whatever way.
    pub(super) async fn at(connect: Arc<dyn Connector>) -> Result<Self, BenchError> {
        let mut far = Self {
            connect,
            ways: BTreeMap::new(),
            requests: AtomicU64::new(0),
        };
        far.open(1).await?;
        Ok(far)
    }

    async fn open(&mut self, connections: u32) -> Result<(), BenchError> {
        if self.ways.contains_key(&connections) {
            return Ok(());
        }
        let way = if connections > 1 {
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
            let up = tokio::time::timeout(PATIENCE, all).await;
            up.map_err(failed("the pool"))?;
            Way::Several(pool)
        } else {
            let options = ConnectOptions::default();
            let connected = self.connect.connect(&options).await;
            Way::One(connected.map_err(failed("connecting"))?)
        };
        self.ways.insert(connections, way);
        Ok(())
    }

    pub(in crate::subject) async fn run(&mut self, work: &Work) -> Result<Measured, BenchError> {
        match *work {
            Work::Rate {
                in_flight,
                seconds,
                bytes,
                connections,
                ..
            } => {
                self.open(connections).await?;
                let way = self.way(connections)?;
                let body = Bytes::from(vec![b'a'; bytes]);
                let begun = Instant::now();
                let until = begun + Duration::from_secs_f64(seconds);
                let workers: FuturesUnordered<_> = (0..in_flight.max(1))
                    .map(|_| self.ask_until(way, &body, until))
                    .collect();
                let mut times = Times::default();
                for done in workers.collect::<Vec<_>>().await {
                    times.add(&done?);
                }
                let took = begun.elapsed().as_secs_f64();
                Ok(rate(times.measured(), times.count(), took, bytes))
            }
            Work::Latency {
                per_second,
                seconds,
                bytes: 0,
                connections,
            } => {
                self.open(connections).await?;
                let way = self.way(connections)?;
                let times = self.ask_seldom(way, per_second, seconds).await?;
                Ok(times.measured().with("count", times.count() as f64))
            }
            _ => Err(BenchError::Unsupported(
                "this subject does rates, and single events now and then",
            )),
        }
    }

    fn way(&self, connections: u32) -> Result<&Way, BenchError> {
        let way = self.ways.get(&connections);
        way.ok_or(BenchError::Unsupported("there is no way"))
    }

    /// One event at a time with pauses between them, in which everybody goes to sleep. Each is timed from when it is asked and not
    /// from when it was due, for a timer is late by up to a millisecond.
    async fn ask_seldom(
        &self,
        way: &Way,
        per_second: f64,
        seconds: f64,
    ) -> Result<Times, BenchError> {
        let mut times = Times::default();
        for _ in 0..(per_second * seconds).ceil().max(1.0) as u64 {
            tokio::time::sleep(Duration::from_secs_f64(1.0 / per_second)).await;
            let once = self.ask_until(way, &Bytes::new(), Instant::now()).await?;
            times.add(&once);
        }
        Ok(times)
    }

    async fn ask_until(
        &self,
        way: &Way,
        body: &Bytes,
        until: Instant,
    ) -> Result<Times, BenchError> {
        let mut times = Times::default();
        loop {
            let id = format!("l-{}", self.requests.fetch_add(1, Ordering::Relaxed));
            let begun = Instant::now();
            if body.is_empty() {
                way.request(Event::RequestHeaders(small(&id))).await?;
            } else {
                way.ask_body(&id, body).await?;
            }
            let now = Instant::now();
            times.record(now - begun);
            if now >= until {
                return Ok(times);
            }
        }
    }
}

impl Way {
    async fn request(&self, event: Event) -> Result<Response, BenchError> {
        match self {
            Self::One(connection) => connection.request(event).await.map_err(failed("asking")),
            Self::Several(pool) => pool
                .request(event, PATIENCE)
                .await
                .map_err(failed("asking")),
        }
    }

    /// All pieces of a body, as fast as the window lets them.
    async fn ask_body(&self, id: &str, body: &Bytes) -> Result<(), BenchError> {
        let id = Text::from(id);
        let pieces = body.len().div_ceil(PIECE);
        let mut asked = FuturesUnordered::new();
        for index in 0..pieces {
            let (from, to) = (index * PIECE, ((index + 1) * PIECE).min(body.len()));
            let piece = BodyChunk {
                correlation_id: id.clone(),
                data: body.slice(from..to),
                is_last: to == body.len(),
                total_size: Some(body.len() as u64),
                index: index as u32,
                transferred: to as u64,
            };
            let mut asking = Box::pin(self.request(Event::RequestBody(piece)));
            // Pieces leave in the order in which they are first polled.
            match futures_util::poll!(&mut asking) {
                std::task::Poll::Ready(done) => drop(done?),
                std::task::Poll::Pending => asked.push(asking),
            }
        }
        while let Some(done) = asked.next().await {
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
    wire: Wire,
    options: ConnectOptions,
) -> Result<Connection, ConnectError> {
    let options = ConnectOptions {
        encodings: match wire {
            Wire::Json => vec![Encoding::Json],
            Wire::MessagePack | Wire::Grpc => vec![Encoding::MessagePack, Encoding::Json],
        },
        ..options
    };
    if wire == Wire::Grpc {
        let endpoint = grpc::GrpcEndpoint::new(address);
        let endpoint = endpoint.map_err(|e| ConnectError::Handshake(e.to_string()))?;
        return grpc::connect(&endpoint, &options).await;
    }
    uds::connect(address, &options).await
}
