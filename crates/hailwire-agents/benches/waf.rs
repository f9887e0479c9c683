//! The cost of the firewall and the rate limiter: a head, and bodies of several types, with the built-in rules; with
//! `HAILWIRE_CRS` also with the rules of that directory.

use std::{hint::black_box, path::PathBuf, time::Instant};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hailwire_agents::{
    rate_limit::{self, RateLimitAgent},
    waf::{Waf, WafSettings},
};
use hailwire_callout::{
    Agent as _, Decision,
    event::{BodyChunk, Metadata, RequestHeaders},
};

fn head(id: &str, uri: &str, content_type: Option<&str>) -> RequestHeaders {
    let metadata = Metadata {
        correlation_id: id,
        client_ip: "192.0.2.1",
        protocol: "HTTP/1.1",
        ..Metadata::default()
    };
    let headers = [
        ("host", "example.com"),
        (
            "user-agent",
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36",
        ),
        ("accept", "text/html"),
        ("cookie", "session=abc123; theme=dark"),
    ];
    let typed = content_type.map(|kind| ("content-type", kind));
    let method = if typed.is_some() { "POST" } else { "GET" };
    RequestHeaders::new(&metadata, method, uri, headers.into_iter().chain(typed))
}

fn chunk(data: &Bytes) -> BodyChunk {
    BodyChunk {
        correlation_id: "c".into(),
        data: data.clone(),
        is_last: true,
        total_size: None,
        index: 0,
        transferred: 0,
    }
}

fn body(kind: &str, size: usize) -> Vec<u8> {
    let words = "plain words of no meaning, 123. ".repeat(size / 32);
    match kind {
        "json" => format!("{{\"text\":\"{words}\"}}").into_bytes(),
        "form" => format!("text={}", words.replace(' ', "+")).into_bytes(),
        "fields" => "name=value+of+a+field&".repeat(size / 22).into_bytes(),
        "people" => people(size),
        "orders" => orders(size),
        "binary" => (0..size as u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect(),
        _ => prose(size),
    }
}

const WORDS: [&str; 24] = [
    "the", "meeting", "with", "Anna", "is", "on", "Tuesday", "and", "we", "need", "a", "larger",
    "room", "for", "Berlin", "order", "please", "call", "me", "back", "or", "write", "today",
    "parcel",
];

/// Words that differ from place to place.
fn words(seed: usize, count: usize) -> String {
    let word = |n| WORDS[(seed * 7 + n * (seed % 11 + 3)) % WORDS.len()];
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

/// A form as people fill it in, over and over, never twice alike.
fn people(size: usize) -> Vec<u8> {
    let mut form = String::new();
    for n in 0.. {
        form += &format!(
            "name_{n}=M%C3%BCller+{n}&email_{n}=anna.b{n}%40example.com&phone_{n}=%2B49+30+{}&born_{n}=19{}-0{}-1{}&note_{n}={}%2C+{n}%21&agree_{n}=on&",
            1_234_567 + n,
            10 + n % 90,
            1 + n % 9,
            n % 10,
            words(n, 6 + n % 7).replace(' ', "+"),
        );
        if form.len() >= size {
            break;
        }
    }
    form.into_bytes()
}

/// An array of records with the same names and other values.
fn orders(size: usize) -> Vec<u8> {
    let mut json = String::from("[");
    for n in 0_usize.. {
        json += &format!(
            "{{\"id\":\"{:08x}-4f{:02x}-11ee-b{:03x}\",\"at\":\"2026-11-{:02}T10:{:02}:00Z\",\"total\":{n}.50,\"customer\":{{\"name\":\"Anna O'Neil {n}\",\"mail\":\"a.b{n}@example.com\"}},\"items\":[{{\"sku\":\"AB-{n}-C\",\"title\":\"{}\",\"url\":\"https://example.com/p/{n}?ref=mail\"}}],\"paid\":true}},",
            n.wrapping_mul(2_654_435_761) as u32,
            n % 256,
            n % 4096,
            1 + n % 28,
            n % 60,
            words(n, 3 + n % 5),
        );
        if json.len() >= size {
            break;
        }
    }
    json.pop();
    json.push(']');
    json.into_bytes()
}

/// Prose with capitals, marks and lines.
fn prose(size: usize) -> Vec<u8> {
    let mut text = String::new();
    for n in 0.. {
        text += &format!(
            "{} ({n}), {}: \"{}\". It's {n}!\n",
            words(n, 9),
            words(n + 5, 4),
            words(n + 9, 3)
        );
        if text.len() >= size {
            break;
        }
    }
    text.into_bytes()
}

#[expect(clippy::expect_used, reason = "a bench that cannot begin says so")]
fn firewall(c: &mut Criterion) {
    let mut rules = vec![("house", WafSettings::default())];
    if let Some(crs) = std::env::var_os("HAILWIRE_CRS") {
        rules.push((
            "crs",
            WafSettings {
                rules: Some(PathBuf::from(crs)),
                ..WafSettings::default()
            },
        ));
    }
    for (name, settings) in rules {
        let waf = Waf::new(settings).expect("rules");
        eprintln!(
            "{name}: {} used, {} skipped {:?}",
            waf.report().used,
            waf.report().skipped.len(),
            waf.report().reasons()
        );
        let mut group = c.benchmark_group(format!("waf/{name}"));
        let now = Instant::now();
        let get = head(
            "c",
            "/api/v1/users?page=2&per_page=50&sort=-created_at",
            None,
        );
        group.bench_function("head", |b| b.iter(|| black_box(waf.head(&get, now))));
        let attack = head(
            "c",
            "/?id=1%27%20UNION%20SELECT%20password%20FROM%20users--",
            None,
        );
        group.bench_function("head with an attack", |b| {
            b.iter(|| black_box(waf.head(&attack, now)));
        });
        for (kind, content_type) in [
            ("json", "application/json"),
            ("form", "application/x-www-form-urlencoded"),
            ("fields", "application/x-www-form-urlencoded"),
            ("people", "application/x-www-form-urlencoded"),
            ("orders", "application/json"),
            ("prose", "text/plain"),
            ("binary", "application/octet-stream"),
        ] {
            for size in [1 << 10, 64 << 10, 1 << 20] {
                let data = Bytes::from(body(kind, size));
                let post = head("c", "/api", Some(content_type));
                group.throughput(Throughput::Bytes(data.len() as u64));
                group.bench_function(format!("{kind} of {} KiB", size >> 10), |b| {
                    b.iter(|| {
                        let _ = waf.head(&post, now);
                        let response = waf.chunk(&chunk(&data), now);
                        assert_eq!(response.decision, Decision::Allow, "{:?}", response.audit);
                    });
                });
            }
        }
        group.finish();
    }
}

#[expect(clippy::expect_used, reason = "a bench that cannot begin says so")]
fn limiter(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let mut group = c.benchmark_group("rate limit");
    for (name, limits) in [
        ("one limit", &["1000000000/s per client-ip"][..]),
        (
            "three limits",
            &[
                "1000000000/s per client-ip",
                "1000000000/s per header:host",
                "1000000000/s",
            ],
        ),
    ] {
        let agent = RateLimitAgent::new(
            rate_limit::RateLimitSettings::of(limits.iter().copied()).expect("limits"),
        );
        let get = head("c", "/", None);
        group.bench_function(name, |b| {
            b.iter(|| runtime.block_on(agent.request_headers(black_box(get.clone()))));
        });
    }
    group.finish();
}

criterion_group!(benches, firewall, limiter);
criterion_main!(benches);
