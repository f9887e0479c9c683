//! Requests as fast as answers come: so many in flight, for so many seconds.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;
use zentinel_agent_protocol::v2::{AgentClientV2, AgentClientV2Uds, AgentPool, AgentPoolConfig};

use crate::{Encoding, Failure, events, say};

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

enum Client {
    Uds(AgentClientV2Uds),
    Grpc(AgentClientV2),
    Pool(Arc<AgentPool>),
}

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn client(load: &Load) -> Result<(), Failure> {
    let mut clients = Vec::new();
    for _ in 0..load.connections.max(1) {
        clients.push(Arc::new(match (&load.uds, &load.grpc) {
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
    run(load, &clients, "client").await
}

pub(crate) async fn pool(load: &Load) -> Result<(), Failure> {
    let config = AgentPoolConfig {
        connections_per_agent: load.connections.max(1),
        request_timeout: TIMEOUT,
        ..AgentPoolConfig::default()
    };
    let pool = Arc::new(AgentPool::with_config(config));
    let endpoint = match (&load.uds, &load.grpc) {
        (Some(path), _) => format!("unix:{}", path.display()),
        (None, address) => format!("http://{}", address.as_deref().unwrap_or_default()),
    };
    pool.add_agent("peer", endpoint).await?;
    run(load, &[Arc::new(Client::Pool(pool))], "pool").await
}

async fn run(load: &Load, clients: &[Arc<Client>], through: &str) -> Result<(), Failure> {
    let (body, chunk) = (load.body, load.chunk.max(1));
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(load.seconds);
    let tasks: Vec<_> = (0..load.in_flight.max(1))
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
    let at = |share: f64| {
        let index = (took.len() as f64 * share) as usize;
        took.get(index.min(took.len().saturating_sub(1)))
            .map_or(0.0, |ns| *ns as f64 / 1e3)
    };
    say(&json!({
        "through": through,
        "encoding": if load.encoding == Encoding::Json { "json" } else { "msgpack" },
        "in_flight": load.in_flight,
        "connections": load.connections,
        "body": load.body,
        "requests": took.len(),
        "failed": failed,
        "seconds": seconds,
        "per_second": took.len() as f64 / seconds,
        "p50_us": at(0.5),
        "p99_us": at(0.99),
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
