//! What a call costs above the QUIC stream that carries it: raw iroh, an embedded node, a program
//! attached to its node, and a handler in the caller's own process.
//!
//! Each side runs on a single-threaded runtime and a thread of its own, in one process: left out is
//! what separate processes cost (`hail bench smoke` measures that). Closed loop, 1 KiB, loopback,
//! every answer compared with its message.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement of something broken must stop"
)]

use std::{net::SocketAddr, thread};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hailwire::{Client, Config, DataDir, Node, admin, admin::method};
use hailwire_bench::{
    load::{self, Subject, Work},
    part,
};
use iroh::{EndpointAddr, TransportAddr};
use tokio::{runtime::Runtime, sync::oneshot};

const BYTES: usize = 1024;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

async fn node(dir: &tempfile::TempDir, name: &str) -> Node {
    let mut config = Config::default();
    config.node.name = Some(name.parse().unwrap());
    config.listen.udp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    Node::builder()
        .data_dir(DataDir::new(dir.path()))
        .config(config)
        .start()
        .await
        .unwrap()
}

/// Starts the far side on its own thread; returns a ticket and the raw endpoint's address.
fn far_side() -> (String, EndpointAddr) {
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        runtime().block_on(async {
            let endpoint = part::endpoint().await.unwrap();
            let address = endpoint.bound_sockets()[0];
            let raw = EndpointAddr::from_parts(endpoint.id(), [TransportAddr::Ip(address)]);
            let dir = tempfile::tempdir().unwrap();
            let node = node(&dir, "far").await;
            let _serving = load::serve_agents(&node.client()).await.unwrap();
            let invite = admin::Invite {
                uses: 9,
                expires_s: 3600,
                allow: Vec::new(),
            };
            let invited: admin::Invited =
                node.client().admin(method::INVITE, &invite).await.unwrap();
            tell.send((invited.ticket, raw)).unwrap();
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(load::serve_iroh(incoming.await.unwrap()));
            }
        });
    });
    told.blocking_recv().unwrap()
}

fn call(c: &mut Criterion) {
    let (ticket, raw) = far_side();
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let (_node, _endpoint, subjects) = runtime.block_on(async {
        let endpoint = part::endpoint().await.unwrap();
        let connection = endpoint.connect(raw, part::ALPN).await.unwrap();
        let node = node(&dir, "near").await;
        let join = admin::Join {
            ticket,
            alias: String::new(),
        };
        let _: admin::Joined = node.client().admin(method::JOIN, &join).await.unwrap();
        let _serving = load::serve_agents(&node.client()).await.unwrap();
        std::mem::forget(_serving);
        let attached = Client::attach(&DataDir::new(dir.path())).await.unwrap();
        let subjects = [
            ("raw iroh", Subject::Iroh(connection)),
            ("embedded", Subject::hailwire(node.client(), "far")),
            ("attached", Subject::hailwire(attached, "far")),
            ("own process", Subject::hailwire(node.client(), "near")),
        ];
        (node, endpoint, subjects)
    });
    for in_flight in [1, 64] {
        let mut group = c.benchmark_group(format!("echo 1 KiB, {in_flight} in flight"));
        let count = in_flight * 4;
        group.throughput(Throughput::Elements(u64::from(count)));
        for (name, subject) in &subjects {
            let work = Work::Rate {
                count,
                bytes: BYTES,
                in_flight,
            };
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                b.to_async(&runtime)
                    .iter(|| async { load::run(subject, work).await.unwrap() });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, call);
criterion_main!(benches);
