//! The rows C4 to C10 of the protocol's published tables, and answers.
//!
//! The requests have the headers of the protocol's own Criterion file and, unlike it, all of a real
//! request's metadata. `cargo bench -p hailwire-callout --bench wire`; `zentinel-peer micro` has the published crate's
//! own operations on the same events.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hailwire_callout::{
    Event, EventKind, Response,
    event::{BodyChunk, Metadata, RequestHeaders},
    headers::Headers,
    wire::{self, Encoding, plain, raw},
};

const ENCODINGS: [(&str, Encoding); 2] =
    [("json", Encoding::Json), ("msgpack", Encoding::MessagePack)];

const SMALL: [(&str, &str); 3] = [
    ("host", "example.com"),
    ("user-agent", "benchmark/1.0"),
    ("accept", "*/*"),
];

const LARGE: [(&str, &str); 24] = [
    ("host", "api.example.com"),
    (
        "user-agent",
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36",
    ),
    ("accept", "application/json"),
    ("accept", "text/plain"),
    ("accept", "*/*"),
    ("accept-language", "en-US,en;q=0.9"),
    ("accept-encoding", "gzip, deflate, br"),
    ("content-type", "application/json"),
    ("content-length", "1024"),
    (
        "authorization",
        "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0",
    ),
    ("cookie", "session=abc123; tracking=xyz789"),
    ("x-request-id", "req-12345-67890"),
    ("x-correlation-id", "corr-abcdef-123456"),
    (
        "x-forwarded-for",
        "203.0.113.195, 70.41.3.18, 150.172.238.178",
    ),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "api.example.com"),
    ("x-real-ip", "203.0.113.195"),
    ("cache-control", "no-cache"),
    ("pragma", "no-cache"),
    ("origin", "https://app.example.com"),
    ("referer", "https://app.example.com/dashboard"),
    ("sec-fetch-dest", "empty"),
    ("sec-fetch-mode", "cors"),
    ("sec-fetch-site", "same-site"),
];

fn metadata() -> Metadata<'static> {
    Metadata {
        correlation_id: "bench-12345",
        request_id: "r-1",
        client_ip: "192.168.1.100",
        client_port: 54321,
        protocol: "HTTP/1.1",
        tls_version: Some("TLSv1.3"),
        timestamp: "2026-01-02T03:04:05Z",
        ..Metadata::default()
    }
}

fn small() -> RequestHeaders {
    RequestHeaders::new(&metadata(), "GET", "/api/v1/users", SMALL)
}

fn large() -> RequestHeaders {
    let uri = "/api/v2/orders/create?include=items,shipping&format=json";
    RequestHeaders::new(&metadata(), "POST", uri, LARGE)
}

/// As the published crate's client writes it: in JSON its keys are sorted.
fn theirs(event: &Event, encoding: Encoding) -> Bytes {
    let mut out = BytesMut::new();
    plain::encode_event(event, encoding, &mut out);
    if encoding == Encoding::Json {
        let mut tree: serde_json::Value = serde_json::from_slice(&out).unwrap_or_default();
        if let Some(tree) = tree.as_object_mut() {
            tree.insert("correlation_id".to_owned(), event.id().into());
        }
        return Bytes::from(tree.to_string());
    }
    out.freeze()
}

fn heads(c: &mut Criterion) {
    let events = [
        ("small", Event::RequestHeaders(small())),
        ("large", Event::RequestHeaders(large())),
    ];
    let mut group = c.benchmark_group("c4_serialise");
    for (size, event) in &events {
        for (name, encoding) in ENCODINGS {
            let mut out = BytesMut::with_capacity(1 << 16);
            wire::encode_event(event, encoding, &mut out);
            println!("C6 {size} {name}: {} B", out.len());
            group.bench_function(format!("{name}_{size}"), |b| {
                b.iter(|| {
                    out.clear();
                    wire::encode_event(black_box(event), encoding, &mut out);
                    black_box(out.len())
                });
            });
        }
    }
    group.bench_function("build_small", |b| b.iter(|| black_box(small())));
    group.bench_function("build_large", |b| b.iter(|| black_box(large())));
    group.finish();
    let mut group = c.benchmark_group("c5_deserialise");
    for (size, event) in &events {
        for (name, encoding) in ENCODINGS {
            let payload = theirs(event, encoding);
            group.bench_function(format!("{name}_{size}"), |b| {
                b.iter(|| {
                    black_box(wire::decode_event(
                        EventKind::RequestHeaders,
                        black_box(&payload).clone(),
                        encoding,
                    ))
                });
            });
        }
    }
    group.finish();
}

fn bodies(c: &mut Criterion) {
    for size in [1024usize, 4096, 16384, 65536] {
        let event = Event::RequestBody(BodyChunk {
            correlation_id: "bench-123".into(),
            data: (0..size).map(|i| (i % 256) as u8).collect(),
            is_last: false,
            total_size: None,
            index: 0,
            transferred: size as u64,
        });
        let Event::RequestBody(chunk) = &event else {
            return;
        };
        let mut group = c.benchmark_group("c7_body_out");
        group.throughput(Throughput::Bytes(size as u64));
        for (name, encoding) in ENCODINGS {
            let mut out = BytesMut::with_capacity(1 << 18);
            group.bench_function(format!("{name}_base64_{size}"), |b| {
                b.iter(|| {
                    out.clear();
                    wire::encode_event(black_box(&event), encoding, &mut out);
                    black_box(out.len())
                });
            });
        }
        // Between two of ours: the data goes to the socket as it is.
        let mut head = BytesMut::with_capacity(1 << 10);
        group.bench_function(format!("piece_{size}"), |b| {
            b.iter(|| {
                head.clear();
                raw::put_chunk_head(7, EventKind::RequestBody, black_box(chunk), &mut head);
                black_box((head.len(), chunk.data.clone()))
            });
        });
        group.finish();
        let mut group = c.benchmark_group("c8_body_in");
        group.throughput(Throughput::Bytes(size as u64));
        let read = |payload: &Bytes, encoding| {
            wire::decode_event(EventKind::RequestBody, payload.clone(), encoding)
        };
        for (name, encoding) in ENCODINGS {
            let payload = theirs(&event, encoding);
            group.bench_function(format!("{name}_base64_{size}"), |b| {
                b.iter(|| black_box(read(black_box(&payload), encoding)));
            });
        }
        let mut raw = b"\x84\xaecorrelation_id\xa9bench-123\xa4data\xc6".to_vec();
        raw.extend((size as u32).to_be_bytes());
        raw.extend(&chunk.data);
        raw.extend(b"\xa7is_last\xc2\xabchunk_index\x00");
        let raw = Bytes::from(raw);
        group.bench_function(format!("msgpack_bin_{size}"), |b| {
            b.iter(|| black_box(read(black_box(&raw), Encoding::MessagePack)));
        });
        let mut piece = BytesMut::new();
        raw::put_chunk_head(7, EventKind::RequestBody, chunk, &mut piece);
        piece.extend_from_slice(&chunk.data);
        let piece = piece.freeze();
        group.bench_function(format!("piece_{size}"), |b| {
            b.iter(|| black_box(raw::take_chunk(black_box(&piece).clone())));
        });
        group.finish();
    }
}

fn headers(c: &mut Criterion) {
    let twenty: Vec<(&str, &str)> = LARGE
        .iter()
        .copied()
        .filter(|(_, value)| {
            !matches!(
                *value,
                "text/plain" | "*/*" | "same-site" | "api.example.com"
            )
        })
        .collect();
    let mut group = c.benchmark_group("c9_c10_headers");
    group.bench_function("one", |b| {
        b.iter(|| Headers::new(black_box([("content-type", "application/json")])));
    });
    group.bench_function("map_of_20", |b| {
        b.iter(|| black_box(Headers::new(black_box(&twenty).iter().copied())));
    });
    let headers = Headers::new(twenty.iter().copied());
    println!("headers: {}", headers.len());
    group.bench_function("count_20", |b| {
        b.iter(|| black_box(&headers).iter().count());
    });
    group.bench_function("collect_20", |b| {
        b.iter(|| black_box(black_box(&headers).iter().collect::<Vec<_>>()));
    });
    group.bench_function("get_last_of_20", |b| {
        b.iter(|| black_box(black_box(&headers).get("sec-fetch-mode")));
    });
    group.finish();
}

fn answers(c: &mut Criterion) {
    let mut group = c.benchmark_group("answers");
    for (name, encoding) in ENCODINGS {
        let mut out = BytesMut::with_capacity(1 << 12);
        group.bench_function(format!("{name}_allow_out"), |b| {
            b.iter(|| {
                out.clear();
                wire::encode_response(
                    "bench-12345",
                    black_box(&Response::allow()),
                    encoding,
                    &mut out,
                );
                black_box(out.len())
            });
        });
        let mut ours = BytesMut::new();
        wire::encode_response("bench-12345", &Response::allow(), encoding, &mut ours);
        let mut theirs = BytesMut::new();
        plain::encode_response("bench-12345", &Response::allow(), encoding, &mut theirs);
        for (whose, payload) in [("ours", ours.freeze()), ("theirs", theirs.freeze())] {
            group.bench_function(format!("{name}_allow_in_{whose}"), |b| {
                b.iter(|| black_box(wire::decode_response(black_box(&payload).clone(), encoding)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, heads, bodies, headers, answers);
criterion_main!(benches);
