//! How many messages of 1 KiB are on disk each second: the disk alone, a bare log, durable sends, and Redis.

use std::{
    fs::File,
    io::Write as _,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire::{
    Client,
    admin::{KeepRequest, KeptTopicRow, method},
};
use tokio::task::JoinSet;

use super::{
    MessageOptions,
    jetstream::{JetStreamServer, NatsConnection},
    record::{MessageRecord, MessageSpeed},
    survival::{DESK, LAPTOP, TwoNodes},
};
use crate::{BenchError, measure::millis};

/// Bytes of a message's body.
const BODY: usize = 1024;

/// Messages that wait at once.
const IN_FLIGHT: [u32; 2] = [64, 256];

/// Syncs of the disk alone.
const SYNCS: u32 = 500;

/// Names the program of a NATS server; default: `nats-server`.
const NATS_SERVER: &str = "HAILWIRE_NATS_SERVER";

/// The agent to which messages are sent, which is not there.
const AWAY: &str = "away";

/// The topic that is kept.
const KEPT: &str = "bench.kept";

type Keep<'a> = &'a mut dyn FnMut(MessageRecord) -> Result<(), BenchError>;

pub(super) async fn measure(order: &MessageOptions, keep: Keep<'_>) -> Result<(), BenchError> {
    let folder = order.folder()?;
    let log = folder.path().join("log");
    keep(MessageRecord::Speed(bare_log(
        &log,
        "the disk: a sync for each",
        1,
        SYNCS,
    )?))?;
    for in_flight in IN_FLIGHT {
        let row = bare_log(
            &log,
            "a bare log, a sync for all in flight",
            in_flight,
            order.sends,
        )?;
        keep(MessageRecord::Speed(row))?;
    }
    for in_flight in IN_FLIGHT {
        let nodes = TwoNodes::start(order, "").await?;
        let to = format!("{AWAY}@{LAPTOP}");
        let client = nodes.attach(DESK).await?;
        let row = durable_sends(
            &client,
            "hail send --durable, to a peer",
            &to,
            in_flight,
            order.sends,
        )
        .await?;
        keep(MessageRecord::Speed(row))?;
        let to = format!("{AWAY}@{DESK}");
        let row = durable_sends(
            &client,
            "hail send --durable, on one node",
            &to,
            in_flight,
            order.sends,
        )
        .await?;
        keep(MessageRecord::Speed(row))?;
        nodes.end().await;
    }
    kept_rows(order, keep).await?;
    jetstream(folder.path(), order.sends, keep).await?;
    redis(folder.path(), order.sends, keep).await
}

/// A port of loopback that nobody has at the moment.
fn free_address() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(BenchError::io("choosing a port"))?;
    listener
        .local_addr()
        .map_err(BenchError::io("choosing a port"))
}

/// A server of NATS that runs until this is dropped.
pub(super) struct NatsServer {
    pub(super) at: SocketAddr,
    _server: JetStreamServer,
}

/// Starts a server of NATS; none where it is not installed.
pub(super) fn nats_server(folder: &Path) -> Result<Option<NatsServer>, BenchError> {
    let program = std::env::var(NATS_SERVER).unwrap_or_else(|_| "nats-server".to_owned());
    let at = free_address()?;
    let server = JetStreamServer::start(&program, folder, at)?;
    Ok(server.map(|server| NatsServer {
        at,
        _server: server,
    }))
}

/// `hail pub` to a topic that is kept.
async fn kept(client: &Client, in_flight: u32, messages: u32) -> Result<MessageSpeed, BenchError> {
    let client = client.clone();
    let publish = move |body: Bytes| {
        let one = client.publish(KEPT).body(body);
        async move {
            let kept = one.send().await;
            kept.map(drop)
                .map_err(BenchError::failed("publishing to a kept topic"))
        }
    };
    closed_loop("hail pub, to a kept topic", in_flight, messages, publish).await
}

async fn kept_rows(order: &MessageOptions, keep: Keep<'_>) -> Result<(), BenchError> {
    let nodes = TwoNodes::start(order, "").await?;
    let client = nodes.attach(DESK).await?;
    let request = KeepRequest {
        pattern: KEPT.to_owned(),
        ..KeepRequest::default()
    };
    let _: KeptTopicRow = client
        .admin(method::TOPIC_KEEP, &request)
        .await
        .map_err(BenchError::failed("keeping a topic"))?;
    // One that waits for each takes a sync a message.
    for (in_flight, messages) in [(1, order.sends / 50), (64, order.sends), (256, order.sends)] {
        let row = kept(&client, in_flight, messages.max(in_flight)).await?;
        keep(MessageRecord::Speed(row))?;
    }
    nodes.end().await;
    Ok(())
}

async fn jetstream(folder: &Path, messages: u32, keep: Keep<'_>) -> Result<(), BenchError> {
    let Some(NatsServer { at, _server }) = nats_server(folder)? else {
        let what = "NATS JetStream: nats-server is not installed (`peers/install nats`)";
        return keep(MessageRecord::Skipped(what.to_owned()));
    };
    let connection = NatsConnection::open(at).await?;
    for in_flight in IN_FLIGHT {
        let connection = connection.clone();
        let publish = move |body: Bytes| {
            let connection = connection.clone();
            async move { connection.publish(&body).await }
        };
        let system = "NATS JetStream, sync_interval: always";
        keep(MessageRecord::Speed(
            closed_loop(system, in_flight, messages, publish).await?,
        ))?;
    }
    Ok(())
}

/// Writes as many as are in flight, and syncs.
fn bare_log(
    path: &Path,
    system: &str,
    in_flight: u32,
    messages: u32,
) -> Result<MessageSpeed, BenchError> {
    let failed = |what: &'static str| BenchError::io(what);
    let mut log = File::create(path).map_err(failed("creating a log"))?;
    let message = [7; BODY];
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut written = 0;
    while written < messages {
        let at = Instant::now();
        for _ in 0..in_flight {
            log.write_all(&message).map_err(failed("writing a log"))?;
        }
        log.sync_data().map_err(failed("syncing a log"))?;
        times.push(at.elapsed());
        written += in_flight;
    }
    Ok(row(system, in_flight, written, begun.elapsed(), times))
}

fn row(
    system: &str,
    in_flight: u32,
    messages: u32,
    took: Duration,
    mut times: Vec<Duration>,
) -> MessageSpeed {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().map(millis);
    MessageSpeed {
        system: system.to_owned(),
        in_flight,
        messages,
        per_s: f64::from(messages) / took.as_secs_f64(),
        p50_ms: at(50),
        p99_ms: at(99),
    }
}

async fn durable_sends(
    client: &Client,
    system: &str,
    to: &str,
    in_flight: u32,
    messages: u32,
) -> Result<MessageSpeed, BenchError> {
    let to: Arc<str> = to.into();
    let client = client.clone();
    let send = move |body: Bytes| {
        let call = client.call(&*to).body(body);
        async move {
            let sent = call.durable(false, false).await;
            sent.map(drop).map_err(BenchError::failed("a durable send"))
        }
    };
    closed_loop(system, in_flight, messages, send).await
}

/// As many senders as are in flight, each of which waits for its acceptance.
async fn closed_loop<F>(
    system: &str,
    in_flight: u32,
    messages: u32,
    send: impl Fn(Bytes) -> F + Clone + Send + 'static,
) -> Result<MessageSpeed, BenchError>
where
    F: Future<Output = Result<(), BenchError>> + Send + 'static,
{
    let body = Bytes::from(vec![7; BODY]);
    let begun = Instant::now();
    let mut senders = JoinSet::new();
    for _ in 0..in_flight {
        let (send, body) = (send.clone(), body.clone());
        senders.spawn(async move {
            let mut times = Vec::new();
            for _ in 0..messages / in_flight {
                let at = Instant::now();
                send(body.clone()).await?;
                times.push(at.elapsed());
            }
            Ok::<_, BenchError>(times)
        });
    }
    let mut times = Vec::new();
    while let Some(sent) = senders.join_next().await {
        times.extend(sent.map_err(BenchError::failed("a sender"))??);
    }
    let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
    Ok(row(system, in_flight, count, begun.elapsed(), times))
}

/// `XADD` with `appendfsync always`, by Redis's own load generator.
async fn redis(folder: &Path, messages: u32, keep: Keep<'_>) -> Result<(), BenchError> {
    let port = free_address()?.port().to_string();
    let mut server = Command::new("redis-server");
    server.args([
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "yes",
    ]);
    server
        .args(["--appendfsync", "always", "--dir"])
        .arg(folder);
    let server = server.stdout(std::process::Stdio::null()).spawn();
    let Ok(mut server) = server else {
        let what = "Redis: redis-server is not installed (Debian: redis-server)";
        return keep(MessageRecord::Skipped(what.to_owned()));
    };
    let outcome = load_redis(&port, messages, keep).await;
    let _ = server.kill();
    let _ = server.wait();
    outcome
}

async fn load_redis(port: &str, messages: u32, keep: Keep<'_>) -> Result<(), BenchError> {
    let until = Instant::now() + Duration::from_secs(10);
    while tokio::net::TcpStream::connect(format!("127.0.0.1:{port}"))
        .await
        .is_err()
    {
        if Instant::now() > until {
            return keep(MessageRecord::Skipped(
                "Redis: it does not start".to_owned(),
            ));
        }
        tokio::task::yield_now().await;
    }
    let body = "7".repeat(BODY);
    for in_flight in IN_FLIGHT {
        let (count, clients) = (messages.to_string(), in_flight.to_string());
        let mut load = tokio::process::Command::new("redis-benchmark");
        load.args([
            "-p", port, "-c", &clients, "-n", &count, "--csv", "XADD", "s", "*", "f", &body,
        ]);
        let out = load
            .output()
            .await
            .map_err(BenchError::io("running redis-benchmark"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
        let fields = text.lines().last().unwrap_or_default().rsplit(',');
        let fields: Vec<f64> = fields
            .filter_map(|field| field.trim_matches('"').parse().ok())
            .collect();
        let &[_max, p99, _p95, p50, _min, _mean, per_s, ..] = fields.as_slice() else {
            return keep(MessageRecord::Skipped(
                "Redis: its load generator says something else".to_owned(),
            ));
        };
        keep(MessageRecord::Speed(MessageSpeed {
            system: "Redis XADD, appendfsync always".to_owned(),
            in_flight,
            messages,
            per_s,
            p50_ms: Some(p50),
            p99_ms: Some(p99),
        }))?;
    }
    Ok(())
}
