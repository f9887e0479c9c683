//! What the crate does for a request besides the socket, one operation at a time.
//!
//! Encodings, headers and metrics are the crate's own public functions. Its look-ups are private: they are done here
//! on the structures that it uses (atomics, `DashMap` with `String` keys), as its own Criterion file does.

use std::{
    hint::black_box,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::DashMap;
use serde_json::{Value, json};
use zentinel_agent_protocol::{
    RequestBodyChunkEvent, RequestHeadersEvent,
    headers::{HeaderValues, OptimizedHeaderMap},
    v2::{ProtocolMetrics, UdsEncoding},
};

use crate::{Failure, events, vectors};

/// On how many threads, for how long, and how many bytes each moves.
#[derive(Clone, Copy)]
struct Run {
    threads: usize,
    seconds: f64,
    bytes: usize,
}

/// The figures of an operation; nothing where the crate has none.
pub(crate) fn run(name: &str, threads: usize, seconds: f64) -> Option<Value> {
    let run = Run {
        threads,
        seconds,
        bytes: 0,
    };
    let parts: Vec<&str> = name.split(", ").collect();
    match parts.as_slice() {
        ["health", what] => {
            let healthy = AtomicBool::new(true);
            match *what {
                "read" => run.time(|| {
                    black_box(healthy.load(Ordering::Acquire));
                }),
                _ => run.time(|| black_box(&healthy).store(true, Ordering::Release)),
            }
        }
        ["timestamp", what] => {
            let (born, seen) = (Instant::now(), AtomicU64::new(0));
            match *what {
                "read" => run.time(|| {
                    black_box(seen.load(Ordering::Relaxed));
                }),
                _ => run.time(|| {
                    seen.store(born.elapsed().as_millis() as u64, Ordering::Relaxed);
                }),
            }
        }
        [what @ ("affinity hit" | "affinity miss"), number] => {
            let number: usize = number.replace(',', "").parse().ok()?;
            affinity(*what == "affinity hit", number, run)
        }
        [what @ ("serialise small" | "serialise large"), wire] => {
            let event = event(what.ends_with("small"));
            let encoding = encoding(wire)?;
            run.time(|| drop(black_box(encoding.serialize(black_box(&event)))))
        }
        [what @ ("deserialise small" | "deserialise large"), wire] => {
            let encoding = encoding(wire)?;
            let bytes = encoding.serialize(&event(what.ends_with("small"))).ok()?;
            run.time(|| {
                let read: Result<RequestHeadersEvent, _> = encoding.deserialize(black_box(&bytes));
                drop(black_box(read));
            })
        }
        [what @ ("chunk out" | "chunk in"), size, wire] => {
            let size: usize = size.strip_suffix(" KiB")?.parse().ok()?;
            let run = Run {
                bytes: size << 10,
                ..run
            };
            chunk(*what == "chunk out", wire, run)
        }
        ["one header"] => run.time(|| {
            let mut values = HeaderValues::new();
            values.push(black_box("application/json").to_owned());
            drop(black_box(values));
        }),
        ["twenty headers"] => run.time(|| {
            let mut headers = OptimizedHeaderMap::new();
            for (name, value) in events::TWENTY {
                let values = headers.entry(black_box(name).to_owned());
                values.or_default().push(black_box(value).to_owned());
            }
            drop(black_box(headers));
        }),
        ["counter", what] => {
            let metrics = ProtocolMetrics::new();
            match *what {
                "increment" => run.time(|| metrics.inc_requests()),
                _ => run.time(|| {
                    black_box(metrics.requests_total.load(Ordering::Relaxed));
                }),
            }
        }
        ["histogram", "record"] => {
            let metrics = ProtocolMetrics::new();
            run.time(|| metrics.record_request_duration(black_box(Duration::from_micros(150))))
        }
        ["selection path", wire] => {
            let encoding = encoding(wire)?;
            selection(encoding, run)
        }
        _ => None,
    }
}

fn affinity(hit: bool, number: usize, run: Run) -> Option<Value> {
    let table: DashMap<String, Arc<String>> = DashMap::new();
    for i in 0..number {
        table.insert(format!("corr-{i}"), Arc::new(format!("conn-{}", i % 4)));
    }
    let key = if hit {
        format!("corr-{}", number / 2)
    } else {
        "no-such-request".to_owned()
    };
    run.time(|| drop(black_box(table.get(&key).map(|found| Arc::clone(&found)))))
}

fn selection(encoding: UdsEncoding, run: Run) -> Option<Value> {
    let agents: DashMap<String, Arc<String>> = DashMap::new();
    agents.insert("waf".to_owned(), Arc::new("agent".to_owned()));
    let affinity: DashMap<String, Arc<String>> = DashMap::new();
    let healthy = AtomicBool::new(true);
    let (in_flight, requests) = (AtomicU64::new(0), AtomicU64::new(0));
    let event = event(true);
    run.time(|| {
        let agent = agents.get("waf").map(|found| Arc::clone(&found));
        let known = affinity.get("bench-123").map(|found| Arc::clone(&found));
        black_box((agent, known, healthy.load(Ordering::Relaxed)));
        requests.fetch_add(1, Ordering::Relaxed);
        in_flight.fetch_add(1, Ordering::Relaxed);
        let payload = encoding.serialize(&event);
        affinity.insert("bench-123".to_owned(), Arc::new("conn-0".to_owned()));
        in_flight.fetch_sub(1, Ordering::Relaxed);
        affinity.remove("bench-123");
        drop(black_box(payload));
    })
}

fn chunk(out: bool, wire: &str, run: Run) -> Option<Value> {
    let data = vec![b'a'; run.bytes];
    // The crate's raw chunks are its MessagePack with bytes instead of base64.
    if wire == "raw" {
        let raw = RawChunk {
            correlation_id: "bench-123".to_owned(),
            data,
            is_last: false,
        };
        let bytes = rmp_serde::to_vec_named(&raw).ok()?;
        return if out {
            run.time(|| {
                drop(black_box(rmp_serde::to_vec_named(black_box(&raw))));
            })
        } else {
            run.time(|| {
                let read: Result<RawChunk, _> = rmp_serde::from_slice(black_box(&bytes));
                drop(black_box(read));
            })
        };
    }
    let encoding = encoding(wire)?;
    let event = events::request_body("bench-123", &data, 0, false);
    let bytes = encoding.serialize(&event).ok()?;
    if out {
        run.time(|| {
            let event = events::request_body("bench-123", black_box(&data), 0, false);
            drop(black_box(encoding.serialize(&event)));
        })
    } else {
        run.time(|| {
            use base64::Engine as _;
            let read: Result<RequestBodyChunkEvent, _> = encoding.deserialize(black_box(&bytes));
            let standard = base64::engine::general_purpose::STANDARD;
            drop(black_box(read.map(|read| standard.decode(read.data))));
        })
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct RawChunk {
    correlation_id: String,
    #[serde(with = "serde_bytes")]
    data: Vec<u8>,
    is_last: bool,
}

/// The bytes of a request as the crate's client writes it to a socket: the whole frame. Nothing where the name is no size's.
pub(crate) async fn size(name: &str) -> Option<Result<Value, Failure>> {
    let (what, wire) = name.split_once(", ")?;
    let event = match what {
        "size small" => event(true),
        "size large" => event(false),
        _ => return None,
    };
    let encoding = match wire {
        "own agent" => encoding("MessagePack").unwrap_or_default(),
        wire => encoding(wire)?,
    };
    let bytes = vectors::written(encoding, &event).await;
    Some(bytes.map(|bytes| json!({"count": 1, "size_bytes": bytes})))
}

fn encoding(wire: &str) -> Option<UdsEncoding> {
    match wire {
        "JSON" => Some(UdsEncoding::Json),
        "MessagePack" if cfg!(feature = "msgpack") => Some(UdsEncoding::MessagePack),
        _ => None,
    }
}

fn event(small: bool) -> RequestHeadersEvent {
    if small {
        return events::small("bench-123");
    }
    events::large("bench-123")
}

/// Operations between two looks at the clock.
const BATCH: u32 = 256;

impl Run {
    /// The same again and again on so many threads, all from the same moment on.
    fn time(self, operation: impl Fn() + Sync) -> Option<Value> {
        let start = Barrier::new(self.threads);
        let whole = Duration::from_secs_f64(self.seconds);
        let each = std::thread::scope(|scope| {
            let running: Vec<_> = (0..self.threads)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let (begun, mut count) = (Instant::now(), 0u64);
                        while begun.elapsed() < whole {
                            (0..BATCH).for_each(|_| operation());
                            count += u64::from(BATCH);
                        }
                        (count, begun.elapsed())
                    })
                })
                .collect();
            let done: Vec<_> = running
                .into_iter()
                .filter_map(|one| one.join().ok())
                .collect();
            done
        });
        let count: u64 = each.iter().map(|(count, _)| count).sum();
        let spent: f64 = each.iter().map(|(_, took)| took.as_secs_f64()).sum();
        let ns = spent * 1e9 / count as f64;
        let mut figures = json!({"count": count, "ns_per_op": ns});
        if self.bytes > 0 {
            figures["gibibytes_per_s"] = json!(self.bytes as f64 / ns * 1e9 / f64::from(1 << 30));
        }
        Some(figures)
    }
}
