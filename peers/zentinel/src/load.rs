//! Requests as fast as answers come: so many in flight, for so many seconds.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;
use zentinel_agent_protocol::v2::{AgentClientV2, AgentClientV2Uds, AgentPool, AgentPoolConfig};

use crate::{At, Encoding, Failure, events, say};

#[derive(Args)]
pub(crate) struct Load {
    /// A Unix socket
    #[arg(long, required_unless_present = "grpc")]
    uds: Option<PathBuf>,
    /// A gRPC address
    #[arg(long)]
    grpc: Option<String>,
    #[arg(long, default_value = "msgpack")]
    pub(crate) encoding: Encoding,
    /// Requests at once, over all connections
    #[arg(long, default_value_t = 1)]
    in_flight: usize,
    #[arg(long, default_value_t = 1)]
    connections: usize,
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Bytes of a body: each request is then one chunk of it; 0 for heads only
    #[arg(long, default_value_t = 0)]
    body: usize,
    /// Bytes of a chunk: a larger body is sent in several, one after the other
    #[arg(long, default_value_t = 65536)]
    chunk: usize,
}

pub(crate) enum Client {
    Uds(AgentClientV2Uds),
    Grpc(AgentClientV2),
    Pool(Arc<AgentPool>),
}

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn client(load: &Load) -> Result<(), Failure> {
    let clients = clients(&load.at(), load.connections).await?;
    run(load, &clients, "client").await
}

pub(crate) async fn pool(load: &Load) -> Result<(), Failure> {
    let clients = pooled(&load.at(), load.connections).await?;
    run(load, &clients, "pool").await
}

/// So many connections, each by itself.
pub(crate) async fn clients(at: &At, connections: usize) -> Result<Vec<Arc<Client>>, Failure> {
    let mut clients = Vec::new();
    for _ in 0..connections.max(1) {
        clients.push(Arc::new(match (&at.uds, &at.grpc) {
            (Some(path), _) => {
                let client = AgentClientV2Uds::new("peer", path.to_string_lossy(), TIMEOUT).await?;
                client.connect().await?;
                Client::Uds(client)
            }
            (None, address) => {
                let endpoint = format!("http://{}", address.as_deref().unwrap_or_default());
                let client = AgentClientV2::new("peer", endpoint, TIMEOUT).await?;
                client.connect().await?;
                Client::Grpc(client)
            }
        }));
    }
    Ok(clients)
}

/// The crate's pool of so many connections.
pub(crate) async fn pooled(at: &At, connections: usize) -> Result<Vec<Arc<Client>>, Failure> {
    let config = AgentPoolConfig {
        connections_per_agent: connections.max(1),
        request_timeout: TIMEOUT,
        ..AgentPoolConfig::default()
    };
    let pool = Arc::new(AgentPool::with_config(config));
    let endpoint = match (&at.uds, &at.grpc) {
        (Some(path), _) => format!("unix:{}", path.display()),
        (None, address) => format!("http://{}", address.as_deref().unwrap_or_default()),
    };
    pool.add_agent("peer", endpoint).await?;
    Ok(vec![Arc::new(Client::Pool(pool))])
}

impl Load {
    fn at(&self) -> At {
        At {
            uds: self.uds.clone(),
            grpc: self.grpc.clone(),
        }
    }
}

/// What came of a closed loop.
pub(crate) struct Measured {
    /// Of each request that was answered, in nanoseconds, ascending.
    pub(crate) took: Vec<u64>,
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.took.len() as f64 / self.seconds
    }

    /// Microseconds that a share of the requests took at most.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let index = (self.took.len() as f64 * share) as usize;
        self.took
            .get(index.min(self.took.len().saturating_sub(1)))
            .map_or(0.0, |ns| *ns as f64 / 1e3)
    }
}

/// So many requests in flight for so long, each with a body of so many bytes in chunks of at most so many.
pub(crate) async fn measure(
    clients: &[Arc<Client>],
    in_flight: usize,
    seconds: f64,
    (body, chunk): (usize, usize),
) -> Result<Measured, Failure> {
    let chunk = chunk.max(1);
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> = (0..in_flight.max(1))
        .map(|worker| {
            let client = Arc::clone(&clients[worker % clients.len()]);
            tokio::spawn(async move {
                let mut took = Vec::new();
                let mut failed = 0u64;
                let mut n = 0u64;
                while Instant::now() < until {
                    let id = format!("l-{worker}-{n}");
                    n += 1;
                    let begun = Instant::now();
                    if client.once(&id, body, chunk).await.is_err() {
                        failed += 1;
                    } else {
                        took.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
                    }
                }
                (took, failed)
            })
        })
        .collect();
    let (mut took, mut failed) = (Vec::new(), 0);
    for task in tasks {
        let (some, bad) = task.await?;
        took.extend(some);
        failed += bad;
    }
    let seconds = started.elapsed().as_secs_f64();
    took.sort_unstable();
    Ok(Measured {
        took,
        failed,
        seconds,
    })
}

async fn run(load: &Load, clients: &[Arc<Client>], through: &str) -> Result<(), Failure> {
    let sizes = (load.body, load.chunk);
    let measured = measure(clients, load.in_flight, load.seconds, sizes).await?;
    say(&json!({
        "through": through,
        "encoding": if load.encoding == Encoding::Json { "json" } else { "msgpack" },
        "in_flight": load.in_flight,
        "connections": load.connections,
        "body": load.body,
        "requests": measured.took.len(),
        "failed": measured.failed,
        "seconds": measured.seconds,
        "per_second": measured.per_second(),
        "p50_us": measured.at(0.5),
        "p99_us": measured.at(0.99),
    }));
    Ok(())
}

impl Client {
    async fn once(&self, id: &str, body: usize, chunk: usize) -> Result<(), Failure> {
        if body == 0 {
            let event = events::small(id);
            match self {
                Self::Uds(client) => client.send_request_headers(id, &event).await?,
                Self::Grpc(client) => client.send_request_headers(id, &event).await?,
                Self::Pool(pool) => pool.send_request_headers("peer", id, &event).await?,
            };
            return Ok(());
        }
        let data = vec![b'a'; body.min(chunk)];
        let mut left = body;
        let mut index = 0;
        while left > 0 {
            let size = left.min(chunk);
            left -= size;
            let event = events::request_body(id, &data[..size], index, left == 0);
            index += 1;
            match self {
                Self::Uds(client) => client.send_request_body_chunk(id, &event).await?,
                Self::Grpc(client) => client.send_request_body_chunk(id, &event).await?,
                Self::Pool(pool) => pool.send_request_body_chunk("peer", id, &event).await?,
            };
        }
        Ok(())
    }
}
