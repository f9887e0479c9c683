//! A server, a client, and a foreign program between them.

use std::{
    convert::Infallible,
    ffi::OsStr,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinSet};

/// The path of a foreign program, as `./x test` names it or as it was installed before.
pub(crate) fn program(variable: &str, else_at: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os(variable).filter(|path| !path.is_empty());
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = else_at.iter().map(|path| here.join(path));
    named
        .map(PathBuf::from)
        .into_iter()
        .chain(places)
        .find(|path| path.exists())
}

/// A file of `examples/proxies`, with other addresses: each pair's first part must be there.
pub(crate) fn example(name: &str, changes: &[(&str, String)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/proxies");
    let mut text = std::fs::read_to_string(path.join(name)).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{name} has no {from}");
        text = text.replace(from, to);
    }
    text
}

/// Where a front listens that does not care.
pub(crate) fn tcp() -> hailwire_callout::inspect::config::ListenAddress {
    "127.0.0.1:0".parse().unwrap()
}

/// A running program; killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn start(program: &Path, args: &[&OsStr], log: PathBuf) -> Self {
        let output = std::fs::File::create(&log).unwrap();
        let child = Command::new(program)
            .args(args)
            .current_dir(log.parent().unwrap())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Tries until it succeeds, as long as the program runs.
    pub(crate) async fn once<T>(&mut self, mut tried: impl AsyncFnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        loop {
            tick.tick().await;
            if let Some(value) = tried().await {
                return value;
            }
            let exited = self.child.try_wait().unwrap();
            let late = begin.elapsed() > Duration::from_secs(30);
            assert!(exited.is_none() && !late, "{}", self.log());
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.len().saturating_sub(4000);
            eprintln!("{}", log.get(tail..).unwrap_or(&log));
        }
    }
}

type Body = BoxBody<Bytes, Infallible>;

/// A server that sends back the body that it gets, and the headers with `saw-` before their names.
///
/// `/leak` answers with a header `x-leak`, `/secret` with a secret, `/trailers` with body and trailers as text.
pub(crate) async fn server() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((io, _)) = listener.accept().await {
            io.set_nodelay(true).unwrap();
            let http = hyper::server::conn::http1::Builder::new();
            connections.spawn(http.serve_connection(TokioIo::new(io), service_fn(serve)));
        }
    });
    (address, tasks)
}

async fn serve(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let mut response = Response::builder().header("server", "a server of the test");
    for (name, value) in request.headers() {
        response = response.header(format!("saw-{name}"), value);
    }
    let body = match request.uri().path() {
        "/leak" => {
            response = response.header("x-leak", "1");
            Full::from("leaked").boxed()
        }
        "/trailers" => {
            let body = request.into_body().collect().await.unwrap();
            let trailers = body.trailers().cloned().unwrap_or_default();
            let mut text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
            for (name, value) in &trailers {
                text = format!("{text}; {name}: {}", value.to_str().unwrap());
            }
            Full::from(text).boxed()
        }
        "/secret" => Full::from("the password is known").boxed(),
        _ => {
            let frames = http_body_util::BodyStream::new(request.into_body());
            let frames =
                futures_util::StreamExt::filter_map(frames, async |frame| frame.ok().map(Ok));
            StreamBody::new(Box::pin(frames)).boxed()
        }
    };
    Ok(response.body(body).unwrap())
}

/// What a client got.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A connection to a proxy.
pub(crate) struct Client {
    sender: hyper::client::conn::http1::SendRequest<Body>,
    _connection: JoinSet<()>,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Option<Self> {
        let io = tokio::net::TcpStream::connect(to).await.ok()?;
        io.set_nodelay(true).unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
            .await
            .ok()?;
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            let _ = connection.await;
        });
        Some(Self {
            sender,
            _connection: connections,
        })
    }

    pub(crate) async fn send(&mut self, request: Request<Body>) -> Option<Got> {
        self.sender.ready().await.ok()?;
        let response = self.sender.send_request(request).await.ok()?;
        let (head, body) = response.into_parts();
        Some(Got {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.collect().await.ok()?.to_bytes(),
        })
    }
}

pub(crate) fn get(path: &str) -> Request<Body> {
    let request = Request::get(path)
        .header("host", "house")
        .header("x-secret", "mine");
    request.body(Full::default().boxed()).unwrap()
}

pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<Body> {
    let request = Request::post(path).header("host", "house");
    request.body(Full::from(body.into()).boxed()).unwrap()
}

/// A body without `content-length`, piece by piece.
pub(crate) fn streamed(path: &str, pieces: Vec<Bytes>) -> Request<Body> {
    let pieces = pieces
        .into_iter()
        .map(|piece| Ok(hyper::body::Frame::data(piece)));
    let body = StreamBody::new(futures_util::stream::iter(pieces)).boxed();
    Request::post(path)
        .header("host", "house")
        .body(body)
        .unwrap()
}

/// A body with a trailer, `x-sum: 9`.
pub(crate) fn with_trailers(path: &str, body: &'static str) -> Request<Body> {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-sum", "9".parse().unwrap());
    let frames = [
        hyper::body::Frame::data(Bytes::from_static(body.as_bytes())),
        hyper::body::Frame::trailers(trailers),
    ];
    let frames = frames.into_iter().map(Ok);
    let body = StreamBody::new(futures_util::stream::iter(frames)).boxed();
    let request = Request::post(path)
        .header("host", "house")
        .header("trailer", "x-sum");
    request.body(body).unwrap()
}

/// A request of its own connection.
pub(crate) async fn ask(to: SocketAddr, request: Request<Body>) -> Got {
    let mut client = Client::connect(to).await.unwrap();
    let sent = tokio::time::timeout(Duration::from_secs(30), client.send(request)).await;
    sent.expect("an answer in time").expect("an answer")
}
