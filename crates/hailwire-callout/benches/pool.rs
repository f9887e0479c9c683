//! What choosing a connection costs, each part alone and all together, beside what others would cost.
//!
//! Every row is measured twice: `alone`, on one thread, and `beside`, while another thread does the same as fast
//! as it can. The rows are those of the tables that the published protocol crate is measured by; rows that
//! begin with `theirs` do what it does, by the same means. `docs/decisions/0023-callout-tables.md` has the results.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measurement of something broken must stop"
)]

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hasher as _},
    hint::black_box,
    sync::{
        Arc, Barrier, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::BytesMut;
use criterion::{
    BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime,
};
use dashmap::DashMap;
use foldhash::fast::RandomState;
use hailwire_callout::{
    Agent, Event, EventKind, Response,
    agent::{self, ServeOptions},
    event::{Metadata, RequestHeaders},
    host,
    pool::{
        AgentPool, AgentPools, PoolConfig, clock, connect_with,
        histogram::LatencyHistogram,
        metrics::{Counter, PoolMetrics},
    },
    wire::{Encoding, encode_event},
};
use hailwire_pool::{
    AffinityConfig, AffinityTable, Availability, CircuitBreaker, SlotSet, Strategy,
};

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Measures an operation alone, and beside another thread that does the same. It is told which thread it runs on.
fn row<T>(group: &mut Group<'_>, name: &str, operation: impl Fn(usize) -> T + Sync) {
    group.bench_function(format!("{name}/alone"), |b| b.iter(|| operation(0)));
    group.bench_function(format!("{name}/beside"), |b| {
        b.iter_custom(|rounds| {
            let (done, start) = (AtomicBool::new(false), Barrier::new(2));
            thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    while !done.load(Ordering::Relaxed) {
                        for _ in 0..64 {
                            black_box(operation(1));
                        }
                    }
                });
                start.wait();
                let started = Instant::now();
                for _ in 0..rounds {
                    black_box(operation(0));
                }
                let took = started.elapsed();
                done.store(true, Ordering::Relaxed);
                took
            })
        });
    });
}

/// C1, C2.
fn health_and_time(c: &mut Criterion) {
    let slots = SlotSet::new(4, 0, Strategy::LeastLoaded);
    slots.set_availability(0, Availability::Available);
    slots.set_availability(1, Availability::Available);

    let mut group = c.benchmark_group("c1_health");
    let look = slots.view(0).expect("it is there");
    row(&mut group, "read", |_| {
        look.availability() != Availability::Unavailable
    });
    row(&mut group, "write", |_| {
        slots.set_availability(0, Availability::Available);
    });
    let (atomic, lock) = (AtomicBool::new(true), RwLock::new(true));
    row(&mut group, "theirs_read", |_| {
        atomic.load(Ordering::Relaxed)
    });
    row(&mut group, "theirs_write", |_| {
        atomic.store(black_box(true), Ordering::Relaxed);
    });
    row(&mut group, "rwlock_read", |_| *lock.read().unwrap());
    row(&mut group, "rwlock_write", |_| {
        *lock.write().unwrap() = black_box(true);
    });
    group.finish();

    let mut group = c.benchmark_group("c2_time");
    row(&mut group, "read", |_| look.last_seen());
    row(&mut group, "write", |_| slots.seen(0, clock::coarse()));
    let (base, offset) = (Instant::now(), AtomicU64::new(0));
    row(&mut group, "theirs_read", |_| {
        offset.load(Ordering::Relaxed)
    });
    row(&mut group, "theirs_write", |_| {
        offset.store(base.elapsed().as_millis() as u64, Ordering::Relaxed);
    });
    row(&mut group, "clock_coarse", |_| clock::coarse());
    row(&mut group, "clock_exact", |_| Instant::now());
    group.finish();
}

/// What an affinity table can be made of.
trait Table: Sync {
    fn bind(&self, id: &str, slot: u16);
    fn slot(&self, id: &str) -> Option<u16>;
    fn remove(&self, id: &str);
}

/// Ours: hashes in sets of atomics.
struct Ours(AffinityTable, RandomState);

impl Ours {
    fn hash(&self, id: &str) -> u64 {
        let mut hasher = self.1.build_hasher();
        hasher.write(id.as_bytes());
        hasher.finish()
    }
}

impl Table for Ours {
    fn bind(&self, id: &str, slot: u16) {
        self.0.bind(self.hash(id), slot, clock::coarse());
    }
    fn slot(&self, id: &str) -> Option<u16> {
        self.0.slot(self.hash(id), clock::coarse())
    }
    fn remove(&self, id: &str) {
        self.0.remove(self.hash(id));
    }
}

/// As the published crate has it: texts to shared pointers, with the standard hash.
struct Theirs(DashMap<String, Arc<String>>, Arc<String>);

impl Table for Theirs {
    fn bind(&self, id: &str, _: u16) {
        self.0.insert(id.to_owned(), Arc::clone(&self.1));
    }
    fn slot(&self, id: &str) -> Option<u16> {
        self.0.get(id).map(|entry| entry.len() as u16)
    }
    fn remove(&self, id: &str) {
        self.0.remove(id);
    }
}

/// The others get every advantage: hashes for keys, numbers for values, the fast hash.
struct Dash(DashMap<u64, u16, RandomState>, RandomState);
struct Papaya(papaya::HashMap<u64, u16, RandomState>, RandomState);
struct Scc(scc::HashMap<u64, u16, RandomState>, RandomState);
struct Locked(RwLock<HashMap<u64, u16, RandomState>>, RandomState);
struct Sharded(Box<[Mutex<HashMap<u64, u16, RandomState>>]>, RandomState);

fn hashed(hasher: &RandomState, id: &str) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(id.as_bytes());
    hasher.finish()
}

impl Table for Dash {
    fn bind(&self, id: &str, slot: u16) {
        self.0.insert(hashed(&self.1, id), slot);
    }
    fn slot(&self, id: &str) -> Option<u16> {
        self.0.get(&hashed(&self.1, id)).map(|slot| *slot)
    }
    fn remove(&self, id: &str) {
        self.0.remove(&hashed(&self.1, id));
    }
}

impl Table for Papaya {
    fn bind(&self, id: &str, slot: u16) {
        self.0.pin().insert(hashed(&self.1, id), slot);
    }
    fn slot(&self, id: &str) -> Option<u16> {
        self.0.pin().get(&hashed(&self.1, id)).copied()
    }
    fn remove(&self, id: &str) {
        self.0.pin().remove(&hashed(&self.1, id));
    }
}

impl Table for Scc {
    fn bind(&self, id: &str, slot: u16) {
        let _ = self.0.insert_sync(hashed(&self.1, id), slot);
    }
    fn slot(&self, id: &str) -> Option<u16> {
        self.0.read_sync(&hashed(&self.1, id), |_, slot| *slot)
    }
    fn remove(&self, id: &str) {
        self.0.remove_sync(&hashed(&self.1, id));
    }
}

impl Table for Locked {
    fn bind(&self, id: &str, slot: u16) {
        self.0.write().unwrap().insert(hashed(&self.1, id), slot);
    }
    fn slot(&self, id: &str) -> Option<u16> {
        self.0.read().unwrap().get(&hashed(&self.1, id)).copied()
    }
    fn remove(&self, id: &str) {
        self.0.write().unwrap().remove(&hashed(&self.1, id));
    }
}

impl Sharded {
    fn shard(&self, hash: u64) -> &Mutex<HashMap<u64, u16, RandomState>> {
        &self.0[(hash >> 56) as usize % self.0.len()]
    }
}

impl Table for Sharded {
    fn bind(&self, id: &str, slot: u16) {
        let hash = hashed(&self.1, id);
        self.shard(hash).lock().unwrap().insert(hash, slot);
    }
    fn slot(&self, id: &str) -> Option<u16> {
        let hash = hashed(&self.1, id);
        self.shard(hash).lock().unwrap().get(&hash).copied()
    }
    fn remove(&self, id: &str) {
        let hash = hashed(&self.1, id);
        self.shard(hash).lock().unwrap().remove(&hash);
    }
}

fn tables() -> Vec<(&'static str, Box<dyn Table>)> {
    let hasher = RandomState::default;
    let shards = (0..16).map(|_| Mutex::default()).collect();
    vec![
        (
            "ours",
            Box::new(Ours(
                AffinityTable::new(AffinityConfig::default()),
                hasher(),
            )),
        ),
        ("theirs", Box::new(Theirs(DashMap::new(), Arc::default()))),
        ("dashmap", Box::new(Dash(DashMap::default(), hasher()))),
        (
            "papaya",
            Box::new(Papaya(papaya::HashMap::default(), hasher())),
        ),
        ("scc", Box::new(Scc(scc::HashMap::default(), hasher()))),
        ("rwlock", Box::new(Locked(RwLock::default(), hasher()))),
        ("mutex16", Box::new(Sharded(shards, hasher()))),
    ]
}

/// C3.
fn affinity(c: &mut Criterion) {
    for entries in [10, 100, 1_000, 10_000, 50_000] {
        let mut group = c.benchmark_group(format!("c3_affinity_{entries}"));
        for (name, table) in tables() {
            for n in 0..entries {
                table.bind(&format!("corr-{n}"), n as u16 % 4);
            }
            let hit = [entries / 2, entries / 3].map(|n| format!("corr-{n}"));
            let miss = [entries + 1, entries + 2].map(|n| format!("corr-{n}"));
            let fresh = ["new-corr-one", "new-corr-two"];
            row(&mut group, &format!("hit/{name}"), |thread| {
                table.slot(&hit[thread])
            });
            row(&mut group, &format!("miss/{name}"), |thread| {
                table.slot(&miss[thread])
            });
            row(&mut group, &format!("insert_remove/{name}"), |thread| {
                table.bind(fresh[thread], 1);
                table.remove(fresh[thread]);
            });
        }
        group.finish();
    }
}

/// Look-up of an agent by its name, and of a slot's connection.
fn lookup(c: &mut Criterion) {
    for agents in [1, 10, 100] {
        let mut group = c.benchmark_group(format!("c3_agent_{agents}"));
        let all: Vec<_> = (0..agents)
            .map(|n| (format!("agent-{n}"), Arc::new(n)))
            .collect();
        let wanted = format!("agent-{}", agents / 2);
        let map: HashMap<String, Arc<u32>, RandomState> = all.iter().cloned().collect();
        let arc_swap = ArcSwap::from_pointee(map.clone());
        let rwlock = RwLock::new(map);
        let theirs: DashMap<String, Arc<u32>> = all.iter().cloned().collect();
        let dashmap: DashMap<String, Arc<u32>, RandomState> = all.iter().cloned().collect();
        let papaya: papaya::HashMap<String, Arc<u32>, RandomState> = all.iter().cloned().collect();
        let scc: scc::HashMap<String, Arc<u32>, RandomState> = scc::HashMap::default();
        for (name, agent) in all {
            let _ = scc.insert_sync(name, agent);
        }
        row(&mut group, "arc_swap_borrowed", |_| {
            arc_swap.load().get(wanted.as_str()).map(|agent| **agent)
        });
        row(&mut group, "theirs_borrowed", |_| {
            theirs.get(&wanted).map(|agent| **agent)
        });
        row(&mut group, "papaya_borrowed", |_| {
            papaya.pin().get(&wanted).map(|agent| **agent)
        });
        row(&mut group, "arc_swap", |_| {
            arc_swap.load().get(wanted.as_str()).cloned()
        });
        row(&mut group, "theirs", |_| {
            theirs.get(&wanted).map(|agent| Arc::clone(&agent))
        });
        row(&mut group, "dashmap", |_| {
            dashmap.get(&wanted).map(|agent| Arc::clone(&agent))
        });
        row(&mut group, "papaya", |_| papaya.pin().get(&wanted).cloned());
        row(&mut group, "scc", |_| {
            scc.read_sync(&wanted, |_, agent| Arc::clone(agent))
        });
        row(&mut group, "rwlock", |_| {
            rwlock.read().unwrap().get(&wanted).cloned()
        });
        group.finish();
    }

    let mut group = c.benchmark_group("connection");
    let arc_swap = ArcSwapOption::from_pointee(1_u32);
    let rwlock = RwLock::new(Some(Arc::new(1_u32)));
    let mutex = Mutex::new(Some(Arc::new(1_u32)));
    row(&mut group, "arc_swap_full", |_| arc_swap.load_full());
    row(&mut group, "arc_swap_guard", |_| arc_swap.load().is_some());
    row(&mut group, "rwlock", |_| rwlock.read().unwrap().clone());
    row(&mut group, "mutex", |_| mutex.lock().unwrap().clone());
    group.finish();
}

/// The choice of a slot, by strategy, and the breaker.
fn choice(c: &mut Criterion) {
    let mut group = c.benchmark_group("choice");
    for strategy in [
        Strategy::RoundRobin,
        Strategy::LeastLoaded,
        Strategy::HealthWeighted,
        Strategy::Random,
        Strategy::TwoChoices,
    ] {
        let slots = SlotSet::new(4, 100, strategy);
        (0..4).for_each(|slot| slots.set_availability(slot, Availability::Available));
        let lots = [AtomicU64::new(1), AtomicU64::new(2)];
        row(&mut group, &format!("{strategy:?}"), |thread| {
            let lot = lots[thread]
                .load(Ordering::Relaxed)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            lots[thread].store(lot | 1, Ordering::Relaxed);
            slots.choose(lot >> 3).map(|slot| slots.release(slot))
        });
    }
    let breaker = CircuitBreaker::default();
    row(&mut group, "breaker", |_| {
        breaker
            .enter(Duration::ZERO)
            .map(|permit| breaker.succeeded(permit))
    });
    group.finish();
}

/// C11.
fn metrics(c: &mut Criterion) {
    let mut group = c.benchmark_group("c11_metrics");
    let counter = Counter::default();
    row(&mut group, "counter_increment", |_| counter.increment());
    row(&mut group, "counter_read", |_| counter.value());
    let metrics = PoolMetrics::default();
    row(&mut group, "counter_of_a_phase", |_| {
        metrics
            .phase(black_box(EventKind::RequestHeaders))
            .abandoned
            .increment();
    });
    let histogram = LatencyHistogram::default();
    let values = [AtomicU64::new(0), AtomicU64::new(0)];
    let next = |thread: usize| {
        let value = (values[thread].load(Ordering::Relaxed) + 37) % 15_000;
        values[thread].store(value, Ordering::Relaxed);
        value
    };
    row(&mut group, "histogram_record", |thread| {
        histogram.record(next(thread));
    });
    let bounds = [10_u64, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];
    let buckets: Vec<_> = bounds.iter().map(|_| AtomicU64::new(0)).collect();
    row(&mut group, "theirs_histogram_record", |thread| {
        let value = next(thread);
        let at = bounds.iter().position(|bound| value <= *bound);
        buckets[at.unwrap_or(bounds.len() - 1)].fetch_add(1, Ordering::Relaxed);
    });
    group.finish();
}

struct Nothing;

impl Agent for Nothing {
    fn name(&self) -> &str {
        "waf"
    }
    async fn request_headers(&self, _: RequestHeaders) -> Response {
        Response::allow()
    }
}

fn pool() -> AgentPool {
    let connect = connect_with("memory", |options| {
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                let _ = agent::serve(Arc::new(Nothing), far, &ServeOptions::default()).await;
            });
            host::over(near, &options).await
        })
    });
    AgentPool::new("waf", Arc::new(connect), PoolConfig::default())
}

fn small(id: &str) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        client_ip: "192.168.1.100",
        tls_version: Some("TLSv1.3"),
        ..Metadata::default()
    };
    let headers = [
        ("host", "example.com"),
        ("user-agent", "benchmark/1.0"),
        ("accept", "*/*"),
    ];
    Event::RequestHeaders(RequestHeaders::new(
        &metadata,
        "GET",
        "/api/v1/users",
        headers,
    ))
}

/// What the published crate's own measurement serialises.
#[derive(serde::Serialize)]
struct TheirRequest {
    correlation_id: String,
    method: String,
    uri: String,
    headers: HashMap<String, Vec<String>>,
    client_ip: String,
    tls_version: Option<String>,
}

/// C12: everything but the socket.
fn full_path(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let agents = AgentPools::new();
    agents.insert(&Arc::new(pool()));
    let pool = agents.named("waf").expect("it is there");
    assert!(runtime.block_on(pool.ready(Duration::from_secs(5))));
    let ids = ["bench-12345", "bench-67890"];
    let events = ids.map(small);
    let mut group = c.benchmark_group("c12_full_path");
    let buffers = [
        Mutex::new(BytesMut::with_capacity(4096)),
        Mutex::new(BytesMut::with_capacity(4096)),
    ];

    let choose = |thread: usize, encoding: Option<Encoding>| {
        let now = agents.now();
        let pool = now.named("waf").expect("it is there");
        let call = pool.select(None, &events[thread]).expect("a place");
        if let Some(encoding) = encoding {
            // The connection's own buffer is under a lock too.
            let mut buffer = buffers[thread].lock().unwrap();
            buffer.clear();
            encode_event(&events[thread], encoding, &mut buffer);
            black_box(&buffer[..]);
        }
        drop(call);
        pool.done(ids[thread]);
    };
    row(&mut group, "select", |thread| choose(thread, None));
    row(&mut group, "json", |thread| {
        choose(thread, Some(Encoding::Json));
    });
    row(&mut group, "msgpack", |thread| {
        choose(thread, Some(Encoding::MessagePack));
    });
    let allowed = Response::allow();
    let readers = [(); 2].map(|()| Mutex::new(agents.reader()));
    row(&mut group, "whole_msgpack", |thread| {
        let mut reader = readers[thread].lock().unwrap();
        let pool = reader.named("waf").expect("it is there");
        let call = pool.select(None, &events[thread]).expect("a place");
        let mut buffer = buffers[thread].lock().unwrap();
        buffer.clear();
        encode_event(&events[thread], Encoding::MessagePack, &mut buffer);
        call.answered(&allowed, Duration::from_micros(20));
        pool.done(ids[thread]);
    });
    row(&mut group, "select_answered", |thread| {
        let now = agents.now();
        let pool = now.named("waf").expect("it is there");
        let call = pool.select(None, &events[thread]).expect("a place");
        call.answered(&allowed, Duration::from_micros(20));
        pool.done(ids[thread]);
    });
    row(&mut group, "serialise_json", |thread| {
        let mut buffer = buffers[thread].lock().unwrap();
        buffer.clear();
        encode_event(&events[thread], Encoding::Json, &mut buffer);
        buffer.len()
    });

    let shared: DashMap<String, Arc<String>> = DashMap::new();
    shared.insert("waf".to_owned(), Arc::default());
    let affinity: DashMap<String, Arc<String>> = DashMap::new();
    let (healthy, asked, in_flight) = (AtomicBool::new(true), AtomicU64::new(0), AtomicU64::new(0));
    let requests = ids.map(|id| TheirRequest {
        correlation_id: id.to_owned(),
        method: "GET".to_owned(),
        uri: "/api/v1/users".to_owned(),
        headers: [
            ("host", "example.com"),
            ("user-agent", "benchmark/1.0"),
            ("accept", "*/*"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), vec![value.to_owned()]))
        .collect(),
        client_ip: "192.168.1.100".to_owned(),
        tls_version: Some("TLSv1.3".to_owned()),
    });
    let theirs = |thread: usize, encoding: Encoding| {
        black_box(shared.get("waf").map(|agent| agent.len()));
        black_box(affinity.get(ids[thread]).map(|connection| connection.len()));
        black_box(healthy.load(Ordering::Relaxed));
        asked.fetch_add(1, Ordering::Relaxed);
        in_flight.fetch_add(1, Ordering::Relaxed);
        let payload = match encoding {
            Encoding::Json => serde_json::to_vec(&requests[thread]).unwrap(),
            Encoding::MessagePack => rmp_serde::to_vec(&requests[thread]).unwrap(),
        };
        affinity.insert(ids[thread].to_owned(), Arc::new("conn-0".to_owned()));
        in_flight.fetch_sub(1, Ordering::Relaxed);
        affinity.remove(ids[thread]);
        payload
    };
    row(&mut group, "theirs_json", |thread| {
        theirs(thread, Encoding::Json)
    });
    row(&mut group, "theirs_msgpack", |thread| {
        theirs(thread, Encoding::MessagePack)
    });
    group.finish();

    // With the socket, which costs a thousand times more.
    let mut group = c.benchmark_group("c12_end_to_end");
    let asks = AtomicU64::new(0);
    group.bench_function("ask_in_memory", |b| {
        b.to_async(&runtime).iter(|| async {
            let id = asks.fetch_add(1, Ordering::Relaxed).to_string();
            let answer = pool.request(small(&id), Duration::from_secs(1)).await;
            pool.done(&id);
            answer
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .sample_size(10);
    targets = health_and_time, affinity, lookup, choice, metrics, full_path
}
criterion_main!(benches);
