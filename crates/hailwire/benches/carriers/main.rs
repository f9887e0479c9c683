//! The carriers side by side, with plain hyper HTTP/2 in the same run.
//!
//! All do the same work, checked the same way: an echo of 1 KiB with a stream (or request) of its own
//! for each message, 1 and 64 in flight, and 64 MiB through one stream. Each side runs on a
//! single-threaded runtime and a thread of its own, on loopback. `quic`, `h2` and `ws` prove node keys;
//! `hyper` has the same TLS library, cipher and flow-control windows, and a certificate. `unix`, our
//! multiplexer, and `yamux` are over a pair of Unix sockets, without TLS. Left out: a real network, and whatever stands above the streams. The loop is closed, so these
//! are rates, not latencies under load. Rounds follow each other, so that a row can be told from the
//! machine's mood; compare within a round.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement of something broken must stop"
)]

mod ours;
mod plain;
mod yamux;

use std::{future::Future, os::unix::net::UnixStream as StdUnixStream, time::Duration};

use bytes::Bytes;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use tokio::{
    net::UnixStream,
    runtime::{Builder, Runtime},
    task::JoinSet,
};

const MESSAGE: usize = 1024;
const BULK: usize = 64 * 1024 * 1024;
const CHUNK: usize = 64 * 1024;

/// How a stream begins that is to be echoed rather than counted.
const ECHO: &[u8] = &[1];

/// Unread bytes of one stream, and of all, that the other side may have on its way.
const WINDOWS: (u32, u32) = (2 * 1024 * 1024, 32 * 1024 * 1024);

/// What a carrier must do to take part.
trait Subject: Clone + Send + 'static {
    /// Sends one message on a stream of its own and returns the length of its echo.
    fn echo(&self, body: Bytes) -> impl Future<Output = usize> + Send;
    /// Sends [`BULK`] bytes on one stream and returns how many the far side says it read.
    fn bulk(&self, chunk: Bytes) -> impl Future<Output = u64> + Send;
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A client on a runtime of its own, its server on another thread, a Unix socket each.
fn unix_pair<S, F: Future<Output = ()>>(
    serve: impl FnOnce(UnixStream) -> F + Send + 'static,
    client: impl FnOnce(UnixStream) -> S,
) -> (Runtime, S) {
    let (a, b) = StdUnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        runtime().block_on(async { serve(UnixStream::from_std(b).unwrap()).await });
    });
    let runtime = runtime();
    let client = runtime.block_on(async { client(UnixStream::from_std(a).unwrap()) });
    (runtime, client)
}

async fn echoes<S: Subject>(subject: S, count: u64, in_flight: u64) -> Duration {
    let body = Bytes::from(vec![ECHO[0]; MESSAGE]);
    let start = std::time::Instant::now();
    let mut lanes = JoinSet::new();
    for lane in 0..in_flight {
        let (subject, body) = (subject.clone(), body.clone());
        lanes.spawn(async move {
            for _ in 0..count / in_flight + u64::from(lane < count % in_flight) {
                assert_eq!(subject.echo(body.clone()).await, MESSAGE);
            }
        });
    }
    lanes.join_all().await;
    start.elapsed()
}

type Group<'a> = BenchmarkGroup<'a, criterion::measurement::WallTime>;

/// A subject's name, its client's runtime and its client.
type Row<S> = (&'static str, Runtime, S);

fn echo_row<S: Subject>(group: &mut Group<'_>, (name, runtime, subject): &Row<S>, in_flight: u64) {
    group.bench_function(*name, |b| {
        b.iter_custom(|count| runtime.block_on(echoes(subject.clone(), count, in_flight)));
    });
}

fn bulk_row<S: Subject>(group: &mut Group<'_>, (name, runtime, subject): &Row<S>) {
    let chunk = Bytes::from(vec![7; CHUNK]);
    group.bench_function(*name, |b| {
        b.iter(|| assert_eq!(runtime.block_on(subject.bulk(chunk.clone())), BULK as u64));
    });
}

fn carriers(c: &mut Criterion) {
    let ours = [ours::h2(), ours::ws(), ours::quic(), ours::unix()];
    let plain = plain::hyper();
    let yamux = yamux::unix();
    for round in ["first", "second"] {
        for in_flight in [1, 64] {
            let name = format!("{round}: echo of 1 KiB, {in_flight} in flight");
            let mut group = group(c, name, Throughput::Elements(1));
            echo_row(&mut group, &plain, in_flight);
            for row in &ours {
                echo_row(&mut group, row, in_flight);
            }
            echo_row(&mut group, &yamux, in_flight);
        }
        let name = format!("{round}: 64 MiB on one stream");
        let mut group = group(c, name, Throughput::Bytes(BULK as u64));
        bulk_row(&mut group, &plain);
        for row in &ours {
            bulk_row(&mut group, row);
        }
        bulk_row(&mut group, &yamux);
    }
}

fn group(c: &mut Criterion, name: String, throughput: Throughput) -> Group<'_> {
    let mut group = c.benchmark_group(name);
    group.sample_size(15).warm_up_time(Duration::from_secs(1));
    group.measurement_time(Duration::from_secs(3));
    group.throughput(throughput);
    group
}

criterion_group!(benches, carriers);
criterion_main!(benches);
