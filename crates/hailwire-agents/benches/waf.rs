//! What the firewall and the rate limiter cost: a head, a body, by kind, with the rules of the house; with
//! `HAILWIRE_CRS` the rules of that directory besides.

use std::{hint::black_box, path::PathBuf, time::Instant};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hailwire_agents::{
    rate_limit::{self, RateLimit},
    waf::{Settings, Waf},
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
        "binary" => (0..size as u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect(),
        _ => words.into_bytes(),
    }
}

#[expect(clippy::expect_used, reason = "a bench that cannot begin says so")]
fn firewall(c: &mut Criterion) {
    let mut rules = vec![("house", Settings::default())];
    if let Some(crs) = std::env::var_os("HAILWIRE_CRS") {
        rules.push((
            "crs",
            Settings {
                rules: Some(PathBuf::from(crs)),
                ..Settings::default()
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
            ("binary", "application/octet-stream"),
        ] {
            for size in [1 << 10, 64 << 10, 1 << 20] {
                let data = Bytes::from(body(kind, size));
                let post = head("c", "/api", Some(content_type));
                group.throughput(Throughput::Bytes(data.len() as u64));
                group.bench_function(format!("{kind} of {} KiB", size >> 10), |b| {
                    b.iter(|| {
                        let _ = waf.head(&post, now);
                        let response = waf.piece(&chunk(&data), now);
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
        let agent =
            RateLimit::new(rate_limit::Settings::of(limits.iter().copied()).expect("limits"));
        let get = head("c", "/", None);
        group.bench_function(name, |b| {
            b.iter(|| runtime.block_on(agent.request_headers(black_box(get.clone()))));
        });
    }
    group.finish();
}

criterion_group!(benches, firewall, limiter);
criterion_main!(benches);
