//! What a host and an agent do for a request besides the socket, one operation at a time.
//!
//! Each is done by the parts that the pool and the connections themselves use, in the way in which they do: into
//! a buffer that is used again where the connection has one, with a clock reading where the pool takes one.

use std::{
    hash::{BuildHasher as _, Hasher as _},
    hint::black_box,
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use foldhash::fast::RandomState;
use hailwire_callout::{
    Agent, Event, EventKind, Response, Text,
    agent::{self, ServeOptions},
    event::{BodyChunk, Metadata, RequestHeaders},
    headers::Headers,
    host,
    pool::{
        AgentPool, AgentPools, PoolConfig, clock, connect_with, histogram::LatencyHistogram,
        metrics::Counter,
    },
    wire::{Encoding, decode_event, encode_event, raw},
};
use hailwire_pool::{AffinityConfig, AffinityTable, Availability, SlotSet, Strategy};

use super::sizes::{self, SizeListener};
use crate::{BenchError, work::MeasuredWork};

/// The header fields of a browser's request; those of the foreign program are the same.
const TWENTY: [(&str, &str); 20] = [
    ("accept", "application/json, text/plain, */*"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-language", "en-US,en;q=0.9"),
    (
        "authorization",
        "Bearer c2VjcmV0LXRva2VuLW9mLXNvbWUtbGVuZ3RoLWZvci10aGUtYmVuY2g",
    ),
    ("cache-control", "no-cache"),
    ("content-length", "1024"),
    ("content-type", "application/json"),
    ("cookie", "session=0123456789abcdef; theme=dark"),
    ("host", "api.example.com"),
    ("origin", "https://example.com"),
    ("pragma", "no-cache"),
    ("referer", "https://example.com/users"),
    ("sec-fetch-dest", "empty"),
    ("sec-fetch-mode", "cors"),
    ("sec-fetch-site", "same-site"),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)",
    ),
    ("x-forwarded-for", "192.0.2.7"),
    ("x-forwarded-host", "api.example.com"),
    ("x-forwarded-proto", "https"),
    ("x-request-id", "7b3c9d1e-0000-4000-8000-1234567890ab"),
];

/// The small request, as the foreign program sends it.
pub(super) fn small(id: &str) -> RequestHeaders {
    let metadata = Metadata {
        tls_version: Some("TLSv1.3"),
        ..metadata(id)
    };
    let fields = [
        ("accept", "*/*"),
        ("host", "example.com"),
        ("user-agent", "benchmark/1.0"),
    ];
    RequestHeaders::new(&metadata, "GET", "/api/v1/users", fields)
}

fn large(id: &str) -> RequestHeaders {
    let metadata = Metadata {
        server_name: Some("example.com"),
        tls_version: Some("TLSv1.3"),
        tls_cipher: Some("TLS_AES_128_GCM_SHA256"),
        route_id: Some("default"),
        upstream_id: Some("backend"),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ..metadata(id)
    };
    let uri = "/api/v1/users/12345/orders?include=items,customer&page=2";
    RequestHeaders::new(&metadata, "GET", uri, TWENTY)
}

fn metadata(id: &str) -> Metadata<'_> {
    Metadata {
        correlation_id: id,
        request_id: "r-1",
        client_ip: "192.0.2.7",
        client_port: 54321,
        protocol: "HTTP/1.1",
        timestamp: "2026-01-02T03:04:05Z",
        ..Metadata::default()
    }
}

/// For how long and on how many threads an operation is repeated.
#[derive(Clone, Copy)]
struct OperationRun {
    threads: u32,
    seconds: f64,
}

/// Does the operation of this name, a row of tables C.
pub(in crate::subject) async fn run(
    name: &str,
    threads: u32,
    seconds: f64,
) -> Result<MeasuredWork, BenchError> {
    let run = OperationRun { threads, seconds };
    let parts: Vec<&str> = name.split(", ").collect();
    Ok(match parts.as_slice() {
        ["health", what] => health(*what == "read", run),
        ["timestamp", what] => timestamp(*what == "read", run),
        ["affinity hit", number] => affinity(true, number, run)?,
        ["affinity miss", number] => affinity(false, number, run)?,
        ["serialise small", wire] => written(small("bench-123"), encoding(wire)?, run),
        ["serialise large", wire] => written(large("bench-123"), encoding(wire)?, run),
        ["deserialise small", wire] => read(small("bench-123"), encoding(wire)?, run),
        ["deserialise large", wire] => read(large("bench-123"), encoding(wire)?, run),
        [what @ ("size small" | "size large"), of] => {
            let event = match *what {
                "size small" => small("bench-123"),
                _ => large("bench-123"),
            };
            let listener = match *of {
                "own agent" => SizeListener::Ours,
                wire => SizeListener::Foreign(encoding(wire)?),
            };
            sizes::written(event, listener).await?
        }
        ["chunk out", size, wire] => chunk(true, size, wire, run)?,
        ["chunk in", size, wire] => chunk(false, size, wire, run)?,
        ["one header"] => timed(run, || Headers::new([black_box(TWENTY[6])])),
        ["twenty headers"] => timed(run, || Headers::new(black_box(TWENTY))),
        ["counter", what] => {
            let counter = Counter::default();
            match *what {
                "increment" => timed(run, || counter.increment()),
                _ => timed(run, || counter.value()),
            }
        }
        ["histogram", "record"] => {
            let histogram = LatencyHistogram::default();
            timed(run, || histogram.record(black_box(150)))
        }
        ["selection path", wire] => selection(encoding(wire)?, run).await?,
        _ => return Err(unknown(name)),
    })
}

fn unknown(name: &str) -> BenchError {
    BenchError::Reported(format!("there is no operation `{name}`"))
}

fn encoding(wire: &str) -> Result<Encoding, BenchError> {
    match wire {
        "JSON" => Ok(Encoding::Json),
        "MessagePack" => Ok(Encoding::MessagePack),
        _ => Err(unknown(wire)),
    }
}

fn slots() -> SlotSet {
    let slots = SlotSet::new(4, 0, Strategy::LeastLoaded);
    (0..4).for_each(|slot| slots.set_availability(slot, Availability::Available));
    slots
}

fn health(read: bool, run: OperationRun) -> MeasuredWork {
    let slots = slots();
    match slots.view(0) {
        // Read as it is for a session that has a connection already.
        Some(slot) if read => timed(run, move || {
            slot.availability() != Availability::Unavailable
        }),
        _ => timed(run, || slots.set_availability(0, Availability::Available)),
    }
}

fn timestamp(read: bool, run: OperationRun) -> MeasuredWork {
    let slots = slots();
    match slots.view(0) {
        Some(slot) if read => timed(run, move || slot.last_seen()),
        _ => timed(run, || slots.seen(0, clock::coarse())),
    }
}

fn affinity(hit: bool, number: &str, run: OperationRun) -> Result<MeasuredWork, BenchError> {
    let number: u32 = number
        .replace(',', "")
        .parse()
        .map_err(|_| unknown(number))?;
    let (table, hasher) = (
        AffinityTable::new(AffinityConfig::default()),
        RandomState::default(),
    );
    let hash = |id: &str| {
        let mut hasher = hasher.build_hasher();
        hasher.write(id.as_bytes());
        hasher.finish()
    };
    for n in 0..number {
        table.bind(hash(&format!("corr-{n}")), n as u16 % 4, clock::coarse());
    }
    let wanted = if hit { number / 2 } else { number + 1 };
    let wanted = format!("corr-{wanted}");
    Ok(timed(run, || {
        table.slot(hash(black_box(&wanted)), clock::coarse())
    }))
}

/// Capacity of a connection's buffer; each thread has its own.
const BUFFER_BYTES: usize = 256 << 10;

fn written(event: RequestHeaders, encoding: Encoding, run: OperationRun) -> MeasuredWork {
    let event = Event::RequestHeaders(event);
    timed_with(
        run,
        || BytesMut::with_capacity(BUFFER_BYTES),
        |out| {
            out.clear();
            encode_event(black_box(&event), encoding, out);
        },
    )
}

fn payload(event: &Event, encoding: Encoding) -> Bytes {
    let mut out = BytesMut::new();
    encode_event(event, encoding, &mut out);
    out.freeze()
}

fn read(event: RequestHeaders, encoding: Encoding, run: OperationRun) -> MeasuredWork {
    let payload = payload(&Event::RequestHeaders(event), encoding);
    taken(run, &payload, |bytes| {
        decode_event(EventKind::RequestHeaders, bytes, encoding)
    })
}

fn chunk(out: bool, size: &str, wire: &str, run: OperationRun) -> Result<MeasuredWork, BenchError> {
    let kib = size.strip_suffix(" KiB").unwrap_or_default();
    let size = kib.parse::<usize>().map_err(|_| unknown(size))? << 10;
    let chunk = BodyChunk {
        correlation_id: Text::from_static("bench-123"),
        data: Bytes::from(vec![b'a'; size]),
        is_last: false,
        total_size: None,
        index: 0,
        transferred: size as u64,
    };
    let event = Event::RequestBody(chunk.clone());
    let measured = match (wire, out) {
        ("raw", true) => timed_with(
            run,
            || BytesMut::with_capacity(BUFFER_BYTES),
            |buffer| {
                buffer.clear();
                raw::put_chunk_head(7, EventKind::RequestBody, black_box(&chunk), buffer);
                buffer.extend_from_slice(&chunk.data);
            },
        ),
        ("raw", false) => {
            let mut frame = BytesMut::new();
            raw::put_chunk_head(7, EventKind::RequestBody, &chunk, &mut frame);
            frame.extend_from_slice(&chunk.data);
            taken(run, &frame, raw::take_chunk)
        }
        (_, true) => {
            let encoding = encoding(wire)?;
            timed_with(
                run,
                || BytesMut::with_capacity(BUFFER_BYTES),
                |buffer| {
                    buffer.clear();
                    encode_event(black_box(&event), encoding, buffer);
                },
            )
        }
        (_, false) => {
            let encoding = encoding(wire)?;
            let payload = payload(&event, encoding);
            taken(run, &payload, |bytes| {
                decode_event(EventKind::RequestBody, bytes, encoding)
            })
        }
    };
    let ns = measured.figure("ns_per_op");
    Ok(measured.with(
        "gibibytes_per_s",
        size as f64 / ns * 1e9 / f64::from(1 << 30),
    ))
}

/// An agent in this process that allows everything.
struct InProcessAgent;

impl Agent for InProcessAgent {
    fn name(&self) -> &str {
        "waf"
    }

    async fn request_headers(&self, _: RequestHeaders) -> Response {
        Response::allow()
    }
}

/// Everything that is done for a request but the socket: its agent, a connection of its own, breaker, bytes, counters, and its
/// end, after which the state is as before.
async fn selection(encoding: Encoding, run: OperationRun) -> Result<MeasuredWork, BenchError> {
    let connect = connect_with("here", |options| {
        Box::pin(async move {
            let (local, target) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                let _ =
                    agent::serve(Arc::new(InProcessAgent), target, &ServeOptions::default()).await;
            });
            host::over(local, &options).await
        })
    });
    let pool = AgentPool::new("waf", Arc::new(connect), PoolConfig::high_throughput());
    if !pool.ready(Duration::from_secs(5)).await {
        return Err(BenchError::Unsupported("the agent did not come up"));
    }
    let agents = AgentPools::new();
    agents.insert(&Arc::new(pool));
    let id = "bench-123";
    let event = Event::RequestHeaders(small(id));
    let (answer, took) = (Response::allow(), Duration::from_micros(20));
    Ok(timed_with(
        run,
        || (agents.reader(), BytesMut::with_capacity(BUFFER_BYTES)),
        |(agents, out)| {
            out.clear();
            let Some(pool) = agents.named(black_box("waf")) else {
                return;
            };
            let Ok(call) = pool.select(None, black_box(&event)) else {
                return;
            };
            encode_event(&event, encoding, out);
            call.answered(black_box(&answer), took);
            pool.done(id);
        },
    ))
}

/// Operations between two readings of the clock.
const BATCH: u32 = 256;

/// An operation that owns its captured data: behind a reference, each iteration would begin with a load of it.
fn timed<T>(run: OperationRun, operation: impl Fn() -> T + Sync) -> MeasuredWork {
    timed_with(
        run,
        || (),
        move |()| {
            black_box(operation());
        },
    )
}

/// Decodes bytes. Each thread has its own copy, as each connection has a buffer of its own.
fn taken<T>(run: OperationRun, bytes: &[u8], take: impl Fn(Bytes) -> T + Sync) -> MeasuredWork {
    timed_with(
        run,
        || Bytes::copy_from_slice(bytes),
        |own| {
            black_box(take(black_box(&*own).clone()));
        },
    )
}

/// Repeats an operation on a number of threads that start at the same moment, each with its own input.
fn timed_with<S>(
    run: OperationRun,
    own: impl Fn() -> S + Sync,
    operation: impl Fn(&mut S) + Sync,
) -> MeasuredWork {
    let start = Barrier::new(run.threads as usize);
    let whole = Duration::from_secs_f64(run.seconds);
    let on_thread = || {
        let mut own = own();
        start.wait();
        let (begun, mut count) = (Instant::now(), 0u64);
        while begun.elapsed() < whole {
            (0..BATCH).for_each(|_| operation(&mut own));
            count += u64::from(BATCH);
        }
        (count, begun.elapsed())
    };
    let each: Vec<(u64, Duration)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..run.threads).map(|_| scope.spawn(on_thread)).collect();
        running
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    let count: u64 = each.iter().map(|(count, _)| count).sum();
    let spent: f64 = each.iter().map(|(_, took)| took.as_secs_f64()).sum();
    MeasuredWork::default()
        .with("count", count as f64)
        .with("ns_per_op", spent * 1e9 / count.max(1) as f64)
}
