//! The multiplexer against yamux, side by side over a pair of Unix sockets.
//!
//! Both carry the same work, checked the same way: an echo of 1 KiB with a stream of its own for
//! each message, 1 and 64 in flight, and 64 MiB through one stream. Each side runs on a
//! single-threaded runtime and a thread of its own. Left out: TLS, a real network, and whatever
//! stands above the streams. The loop is closed, so these are rates, not latencies under load.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement of something broken must stop"
)]

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use hailwire::carrier::mux;
use hailwire_wire::Priority;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::compat::TokioAsyncReadCompatExt;

const MESSAGE: usize = 1024;
const BULK: usize = 64 * 1024 * 1024;
const CHUNK: usize = 64 * 1024;

/// How a stream begins that is to be echoed rather than counted.
const ECHO: &[u8] = b"e";

/// What a multiplexer must do to take part.
trait Client: Clone + Send + 'static {
    /// Sends one message on a stream of its own and returns the length of its echo.
    fn echo(&self, body: Bytes) -> impl Future<Output = usize> + Send;
    /// Sends [`BULK`] bytes on one stream and returns how many the far side says it read.
    fn bulk(&self, chunk: Bytes) -> impl Future<Output = u64> + Send;
}

#[derive(Clone)]
struct Ours(mux::Connection);

impl Client for Ours {
    async fn echo(&self, body: Bytes) -> usize {
        let (mut send, mut recv) = self.0.open(Priority::Medium).await.unwrap();
        send.write(body).await.unwrap();
        send.finish();
        let mut len = 0;
        while let Some(chunk) = recv.read(CHUNK).await.unwrap() {
            len += black_box(chunk).len();
        }
        len
    }

    async fn bulk(&self, chunk: Bytes) -> u64 {
        let (mut send, mut recv) = self.0.open(Priority::Medium).await.unwrap();
        for _ in 0..BULK / chunk.len() {
            send.write(chunk.clone()).await.unwrap();
        }
        send.finish();
        let answer = recv.read(8).await.unwrap().unwrap();
        u64::from_be_bytes(answer[..].try_into().unwrap())
    }
}

async fn serve_ours(io: UnixStream) {
    let connection = mux::Connection::server(io);
    while let Ok((mut send, mut recv)) = connection.accept().await {
        tokio::spawn(async move {
            let (mut echo, mut total) = (None, 0);
            while let Some(chunk) = recv.read(CHUNK).await.unwrap() {
                total += chunk.len() as u64;
                if *echo.get_or_insert(chunk.starts_with(ECHO)) {
                    send.write(chunk).await.unwrap();
                } else {
                    black_box(chunk);
                }
            }
            if echo == Some(false) {
                send.write(Bytes::copy_from_slice(&total.to_be_bytes()))
                    .await
                    .unwrap();
            }
            send.finish();
        });
    }
}

/// Yamux wants its connection polled by one owner; opening goes through a channel to it.
#[derive(Clone)]
struct Yamux(mpsc::UnboundedSender<oneshot::Sender<yamux::Stream>>);

impl Yamux {
    fn new(io: UnixStream) -> Self {
        let (requests, mut queue) = mpsc::unbounded_channel::<oneshot::Sender<yamux::Stream>>();
        let mut connection =
            yamux::Connection::new(io.compat(), yamux::Config::default(), yamux::Mode::Client);
        let mut wanted: Option<oneshot::Sender<yamux::Stream>> = None;
        tokio::spawn(poll_fn(move |cx| {
            loop {
                if wanted.is_none() {
                    match queue.poll_recv(cx) {
                        Poll::Ready(Some(request)) => wanted = Some(request),
                        Poll::Ready(None) => return Poll::Ready(()),
                        Poll::Pending => break,
                    }
                }
                match connection.poll_new_outbound(cx) {
                    Poll::Ready(stream) => {
                        let _ = wanted.take().unwrap().send(stream.unwrap());
                    }
                    Poll::Pending => break,
                }
            }
            match connection.poll_next_inbound(cx) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            }
        }));
        Self(requests)
    }

    async fn open(&self) -> yamux::Stream {
        let (answer, stream) = oneshot::channel();
        self.0.send(answer).unwrap();
        stream.await.unwrap()
    }
}

impl Client for Yamux {
    async fn echo(&self, body: Bytes) -> usize {
        let mut stream = self.open().await;
        stream.write_all(&body).await.unwrap();
        stream.close().await.unwrap();
        let mut answer = Vec::with_capacity(MESSAGE);
        stream.read_to_end(&mut answer).await.unwrap();
        black_box(answer).len()
    }

    async fn bulk(&self, chunk: Bytes) -> u64 {
        let mut stream = self.open().await;
        for _ in 0..BULK / chunk.len() {
            stream.write_all(&chunk).await.unwrap();
        }
        stream.close().await.unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).await.unwrap();
        u64::from_be_bytes(answer)
    }
}

async fn serve_yamux(io: UnixStream) {
    let mut connection =
        yamux::Connection::new(io.compat(), yamux::Config::default(), yamux::Mode::Server);
    while let Some(Ok(mut stream)) = poll_fn(|cx| connection.poll_next_inbound(cx)).await {
        tokio::spawn(async move {
            let mut buffer = vec![0; 2 * MESSAGE];
            let (mut echo, mut total) = (None, 0);
            loop {
                let count = stream.read(&mut buffer).await.unwrap();
                let chunk = &buffer[..count];
                if count == 0 {
                    break;
                }
                total += count as u64;
                if *echo.get_or_insert(chunk.starts_with(ECHO)) {
                    stream.write_all(chunk).await.unwrap();
                } else {
                    buffer.resize(CHUNK, 0);
                }
            }
            if echo == Some(false) {
                stream.write_all(&total.to_be_bytes()).await.unwrap();
            }
            stream.close().await.unwrap();
        });
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A client on a runtime of its own, its server on another thread.
fn connect<C: Client, F: Future<Output = ()> + 'static>(
    client: fn(UnixStream) -> C,
    serve: fn(UnixStream) -> F,
) -> (Runtime, C) {
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

async fn echoes<C: Client>(client: C, count: u64, in_flight: u64) -> Duration {
    let body = Bytes::from(vec![ECHO[0]; MESSAGE]);
    let start = Instant::now();
    let mut lanes = JoinSet::new();
    for lane in 0..in_flight {
        let (client, body) = (client.clone(), body.clone());
        lanes.spawn(async move {
            for _ in 0..count / in_flight + u64::from(lane < count % in_flight) {
                assert_eq!(client.echo(body.clone()).await, MESSAGE);
            }
        });
    }
    lanes.join_all().await;
    start.elapsed()
}

fn echo_rows<C: Client>(group: &mut Group<'_>, name: &str, runtime: &Runtime, client: &C) {
    group.bench_function(name, |b| {
        b.iter_custom(|count| runtime.block_on(echoes(client.clone(), count, 1)));
    });
    group.bench_function(format!("{name}, 64 in flight"), |b| {
        b.iter_custom(|count| runtime.block_on(echoes(client.clone(), count, 64)));
    });
}

fn bulk_row<C: Client>(group: &mut Group<'_>, name: &str, runtime: &Runtime, client: &C) {
    let chunk = Bytes::from(vec![7; CHUNK]);
    group.bench_function(name, |b| {
        b.iter(|| {
            let total = runtime.block_on(client.bulk(chunk.clone()));
            assert_eq!(total, BULK as u64);
        });
    });
}

fn multiplexers(c: &mut Criterion) {
    let (our_runtime, ours) = connect(|io| Ours(mux::Connection::client(io)), serve_ours);
    let (their_runtime, theirs) = connect(Yamux::new, serve_yamux);
    // In turn, and twice, so that a row can be told from the machine's mood.
    for round in ["first", "second"] {
        let mut group = c.benchmark_group(format!("{round}: echo of 1 KiB"));
        settings(&mut group);
        group.throughput(Throughput::Elements(1));
        echo_rows(&mut group, "ours", &our_runtime, &ours);
        echo_rows(&mut group, "yamux", &their_runtime, &theirs);
        group.finish();
        let mut group = c.benchmark_group(format!("{round}: 64 MiB on one stream"));
        settings(&mut group);
        group.throughput(Throughput::Bytes(BULK as u64));
        bulk_row(&mut group, "ours", &our_runtime, &ours);
        bulk_row(&mut group, "yamux", &their_runtime, &theirs);
        group.finish();
    }
}

fn settings(group: &mut Group<'_>) {
    group.sample_size(15).warm_up_time(Duration::from_secs(1));
    group.measurement_time(Duration::from_secs(3));
}

type Group<'a> = BenchmarkGroup<'a, criterion::measurement::WallTime>;

criterion_group!(benches, multiplexers);
criterion_main!(benches);
