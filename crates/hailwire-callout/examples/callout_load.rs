//! How fast one connection is: an agent that allows everything, and a host that asks it, over a Unix socket or gRPC.
//!
//! ```text
//! callout_load agent PATH [window bytes 524288]
//! callout_load host PATH [in-flight 64] [seconds 3] [body bytes 0] [chunk bytes 65536] [json|msgpack] [plain]
//! callout_load echo PATH            answers each 8 bytes, a length and a size, with so many bytes
//! callout_load raw PATH [seconds 3] [bytes out 430] [bytes back 20]
//! ```
//!
//! For gRPC, PATH is `grpc:127.0.0.1:PORT`. `plain` leaves out what only Hailwire speaks. `echo` and `raw` are the same bytes without any protocol.

use std::{
    env,
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire_callout::{
    Agent, Event, Response,
    agent::{self, ServeOptions},
    capabilities::Limits,
    event::{BodyChunk, Metadata, RequestHeaders},
    host::{self, ConnectOptions, Connection},
    wire::Encoding,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixListener, UnixStream},
};

struct Allow;

impl Agent for Allow {
    fn name(&self) -> &str {
        "allow"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_body_size: u64::MAX,
            max_concurrency: 1024,
            ..Limits::default()
        }
    }

    async fn request_headers(&self, _: RequestHeaders) -> Response {
        Response::allow()
    }

    async fn request_body(&self, _: BodyChunk) -> Response {
        Response::allow()
    }
}

type Done = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Done {
    let args: Vec<String> = env::args().skip(1).collect();
    let arg = |at: usize| args.get(at).map(String::as_str);
    let number = |at, default: usize| arg(at).map_or(Ok(default), str::parse);
    let path = arg(1).ok_or("a path")?;
    let seconds = |at| number(at, 3).map(|seconds| Duration::from_secs(seconds as u64));
    match arg(0) {
        Some("agent") if path.starts_with("grpc:") => {
            let listener = TcpListener::bind(path.trim_start_matches("grpc:")).await?;
            let options = agent::grpc::Options::default();
            agent::grpc::serve(Arc::new(Allow), listener, options, std::future::pending()).await?;
        }
        Some("agent") => {
            let listener = agent::uds::Listener::bind(path)?;
            let options = ServeOptions {
                window: number(2, 512 << 10)? as u32,
                ..ServeOptions::default()
            };
            agent::uds::serve(Arc::new(Allow), listener, &options).await?;
        }
        Some("echo") => echo(path).await?,
        Some("raw") => raw(path, seconds(2)?, number(3, 430)?, number(4, 20)?).await?,
        Some("host") => {
            let options = ConnectOptions {
                encodings: match arg(6) {
                    Some("json") => vec![Encoding::Json],
                    _ => vec![Encoding::MessagePack],
                },
                extensions: arg(7) != Some("plain"),
                ..ConnectOptions::default()
            };
            let connection = match path.strip_prefix("grpc:") {
                Some(address) => {
                    let endpoint = host::grpc::Endpoint::new(address)?;
                    host::grpc::connect(&endpoint, &options).await?
                }
                None => host::uds::connect(path, &options).await?,
            };
            let (body, chunk) = (number(4, 0)?, number(5, 65536)?);
            ask(connection, number(2, 64)?, seconds(3)?, body, chunk).await?;
        }
        _ => return Err("agent, host, echo or raw".into()),
    }
    Ok(())
}

async fn ask(
    connection: Connection,
    in_flight: usize,
    time: Duration,
    body: usize,
    chunk: usize,
) -> Done {
    let start = Instant::now();
    let tasks: Vec<_> = (0..in_flight)
        .map(|task| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let mut times = Vec::with_capacity(1 << 16);
                let data = Bytes::from(vec![b'x'; chunk]);
                let mut request = 0;
                while start.elapsed() < time {
                    request += 1;
                    let id = format!("req-{task:04}-{request:08}");
                    let asked = Instant::now();
                    if body == 0 {
                        connection.ask(head(&id)).await?;
                    } else {
                        stream(&connection, &id, body, &data).await?;
                    }
                    times.push(asked.elapsed());
                }
                Ok::<_, Box<dyn Error + Send + Sync>>(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    report(&mut times, start.elapsed(), body);
    Ok(())
}

fn head(id: &str) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        request_id: id,
        client_ip: "192.0.2.7",
        client_port: 40000,
        protocol: "HTTP/1.1",
        timestamp: "2026-01-01T00:00:00Z",
        ..Metadata::default()
    };
    let headers = [("host", "example.com"), ("user-agent", "load/1")];
    Event::RequestHeaders(RequestHeaders::new(
        &metadata,
        "GET",
        "/index.html",
        headers,
    ))
}

/// A whole body, in pieces that leave as fast as the window lets them.
async fn stream(connection: &Connection, id: &str, body: usize, data: &Bytes) -> Done {
    let mut pieces = futures_util::stream::FuturesOrdered::new();
    let mut sent = 0;
    let mut index = 0;
    while sent < body || !pieces.is_empty() {
        while sent < body && pieces.len() < 16 {
            let data = data.slice(..data.len().min(body - sent));
            sent += data.len();
            let piece = BodyChunk {
                correlation_id: id.into(),
                data,
                is_last: sent == body,
                total_size: Some(body as u64),
                index,
                transferred: sent as u64,
            };
            index += 1;
            pieces.push_back(connection.ask(Event::RequestBody(piece)));
        }
        if let Some(answer) = futures_util::StreamExt::next(&mut pieces).await {
            answer?;
        }
    }
    Ok(())
}

async fn echo(path: &str) -> Done {
    let listener = UnixListener::bind(path)?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut sizes = [0; 8];
        stream.read_exact(&mut sizes).await?;
        let [a, b, c, d, e, f, g, h] = sizes;
        let mut ask = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
        let answer = vec![0; u32::from_be_bytes([e, f, g, h]) as usize];
        while stream.read_exact(&mut ask).await.is_ok() {
            stream.write_all(&answer).await?;
        }
    }
}

async fn raw(path: &str, time: Duration, out: usize, back: usize) -> Done {
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(&(out as u32).to_be_bytes()).await?;
    stream.write_all(&(back as u32).to_be_bytes()).await?;
    let (ask, mut answer) = (vec![0; out], vec![0; back]);
    // On a worker, as the host's.
    let task = tokio::spawn(async move {
        let start = Instant::now();
        let mut times = Vec::new();
        while start.elapsed() < time {
            let asked = Instant::now();
            stream.write_all(&ask).await?;
            stream.read_exact(&mut answer).await?;
            times.push(asked.elapsed());
        }
        Ok::<_, std::io::Error>((times, start.elapsed()))
    });
    let (mut times, took) = task.await??;
    report(&mut times, took, 0);
    Ok(())
}

fn report(times: &mut [Duration], took: Duration, body: usize) {
    times.sort_unstable();
    let at = |share: f64| {
        let at = (times.len() as f64 * share) as usize;
        times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    let rate = times.len() as f64 / took.as_secs_f64();
    println!(
        "{rate:.0} requests/s, {:.3} GiB/s, p50 {:.1} µs, p99 {:.1} µs",
        rate * body as f64 / f64::from(1 << 30),
        at(0.5),
        at(0.99),
    );
}
