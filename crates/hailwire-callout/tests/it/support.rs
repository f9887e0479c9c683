//! An agent that does what it is told, and a peer that says what bytes it is told.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hailwire_callout::{
    Agent, Decision, Event, Response, Text,
    agent::{self, HostHandle, ServeOptions},
    capabilities::AgentLimits,
    control::CancelReason,
    event::{
        BodyChunk, Configure, Guardrail, Metadata, RequestComplete, RequestHeaders,
        ResponseHeaders, WebSocketFrame,
    },
    response::{BodyMutation, WebSocketDecision},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};

/// Longer than anything takes. Whoever waits so long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Does what the uri of a request says, and for bodies what its id begins with.
pub(crate) struct Told {
    pub(crate) limits: AgentLimits,
    /// It decides on each piece of a body, where it otherwise says that it needs more.
    pub(crate) decides: bool,
    /// What `slow` bodies and `wait` heads need one of.
    pub(crate) permits: Semaphore,
    pub(crate) running: AtomicUsize,
    pub(crate) most_running: AtomicUsize,
    pub(crate) events: Mutex<mpsc::UnboundedSender<Seen>>,
}

#[derive(Debug)]
pub(crate) enum Seen {
    Connected(HostHandle),
    Cancelled(String, CancelReason),
    /// A future that waited was dropped.
    Dropped,
    /// A piece of a request's body.
    Piece(Text),
}

impl Told {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Seen>) {
        let (events, seen) = mpsc::unbounded_channel();
        let told = Self {
            limits: AgentLimits::default(),
            decides: false,
            permits: Semaphore::new(0),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            events: Mutex::new(events),
        };
        (told, seen)
    }

    fn saw(&self, seen: Seen) {
        let _ = self.events.lock().unwrap().send(seen);
    }

    async fn permit(&self) {
        struct Running<'a>(&'a Told, bool);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.running.fetch_sub(1, Ordering::SeqCst);
                if !self.1 {
                    self.0.saw(Seen::Dropped);
                }
            }
        }
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(now, Ordering::SeqCst);
        let mut running = Running(self, false);
        self.permits.acquire().await.unwrap().forget();
        running.1 = true;
    }
}

impl Agent for Told {
    fn name(&self) -> &str {
        "told"
    }

    fn version(&self) -> &str {
        "1.2.3"
    }

    fn limits(&self) -> AgentLimits {
        self.limits
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        match event.uri() {
            "/block" => Response::block(403),
            "/wait" => {
                self.permit().await;
                Response::allow()
            }
            "/panic" => panic!("as it was told"),
            "/20ms" => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Response::allow()
            }
            _ => Response::allow(),
        }
    }

    async fn request_body(&self, event: BodyChunk) -> Response {
        self.saw(Seen::Piece(event.correlation_id.clone()));
        if event.correlation_id.starts_with("slow") {
            self.permit().await;
        }
        if event.correlation_id.starts_with("stalls") && event.index >= 2 {
            self.permit().await;
        }
        if event.correlation_id.starts_with("early") && event.index == 2 {
            return Response::block(413);
        }
        let data = event
            .correlation_id
            .starts_with("upper")
            .then(|| Bytes::from(event.data.to_ascii_uppercase()));
        Response {
            request_body: data.map(|data| BodyMutation {
                index: event.index,
                data: Some(data),
            }),
            needs_more: !event.is_last && !self.decides,
            ..Response::allow()
        }
    }

    async fn response_headers(&self, event: ResponseHeaders) -> Response {
        Response::block(event.status())
    }

    async fn response_body(&self, event: BodyChunk) -> Response {
        Response {
            response_body: Some(BodyMutation {
                index: event.index,
                data: Some(Bytes::new()),
            }),
            ..Response::allow()
        }
    }

    async fn request_complete(&self, _: RequestComplete) -> Response {
        Response::allow()
    }

    async fn websocket_frame(&self, _: WebSocketFrame) -> Response {
        Response {
            websocket: Some(WebSocketDecision::Drop),
            ..Response::allow()
        }
    }

    async fn guardrail(&self, event: Guardrail) -> Response {
        if event.content.contains("ignore") {
            Response::block(400)
        } else {
            Response::allow()
        }
    }

    async fn configure(&self, event: Configure) -> Response {
        if event.config.get("refuse").is_some() {
            Response::block(500)
        } else {
            Response::allow()
        }
    }

    fn connected(&self, host: HostHandle) {
        self.saw(Seen::Connected(host));
    }

    fn cancelled(&self, correlation_id: &str, reason: CancelReason) {
        self.saw(Seen::Cancelled(correlation_id.to_owned(), reason));
    }
}

/// An agent that listens, until it is dropped.
pub(crate) struct Served<A> {
    pub(crate) agent: Arc<A>,
    path: PathBuf,
    serving: JoinHandle<std::io::Result<()>>,
    _dir: TempDir,
}

impl<A: Agent> Served<A> {
    pub(crate) fn new(agent: A, options: ServeOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let listener = agent::uds::UdsListener::bind(&path).unwrap();
        let agent = Arc::new(agent);
        let served = agent.clone();
        let serving =
            tokio::spawn(async move { agent::uds::serve(served, listener, &options).await });
        Self {
            agent,
            path,
            serving,
            _dir: dir,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl<A> Drop for Served<A> {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One side of a connection that says what it is told, byte by byte.
pub(crate) struct Raw(pub(crate) UnixStream);

impl Raw {
    pub(crate) async fn dial(path: &Path) -> Self {
        Self(UnixStream::connect(path).await.unwrap())
    }

    /// A socket to be dialled.
    pub(crate) fn listen() -> (UnixListener, PathBuf, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        (UnixListener::bind(&path).unwrap(), path, dir)
    }

    pub(crate) async fn frame(&mut self, code: u8, payload: &[u8]) {
        self.0.write_u32(payload.len() as u32 + 1).await.unwrap();
        self.0.write_u8(code).await.unwrap();
        self.0.write_all(payload).await.unwrap();
    }

    /// The next frame; `None` at the end.
    pub(crate) async fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        let read = async {
            let length = self.0.read_u32().await.ok()?;
            let code = self.0.read_u8().await.ok()?;
            let mut payload = vec![0; length as usize - 1];
            self.0.read_exact(&mut payload).await.ok()?;
            Some((code, payload))
        };
        tokio::time::timeout(LONG, read).await.expect("a frame")
    }

    /// As a host, in JSON.
    pub(crate) async fn greet(&mut self) -> serde_json::Value {
        let hello = br#"{"supported_versions":[2],"proxy_id":"raw","proxy_version":"1","config":null,"supported_encodings":["json"]}"#;
        self.frame(0x01, hello).await;
        let (code, payload) = self.read().await.unwrap();
        assert_eq!(code, 0x02);
        serde_json::from_slice(&payload).unwrap()
    }

    /// As an agent, in JSON, with the given key of extensions.
    pub(crate) async fn welcome(&mut self, extensions: serde_json::Value) -> serde_json::Value {
        let (code, hello) = self.read().await.unwrap();
        assert_eq!(code, 0x01);
        let welcome = serde_json::json!({
            "protocol_version": 2, "success": true, "error": null, "encoding": "json",
            "capabilities": {
                "agent_id": "raw", "name": "raw", "version": "1", "supported_events": [1, 2],
                "features": {
                    "streaming_body": true, "websocket": false, "guardrails": false,
                    "config_push": false, "metrics_export": false, "concurrent_requests": 0,
                    "cancellation": true, "flow_control": true, "health_reporting": true,
                },
                "limits": {
                    "max_body_size": 10_000_000, "max_concurrency": 100,
                    "preferred_chunk_size": 65536,
                },
            },
            "x_hailwire": extensions,
        });
        self.frame(0x02, welcome.to_string().as_bytes()).await;
        serde_json::from_slice(&hello).unwrap()
    }
}

pub(crate) fn head(id: &str, uri: &str) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        request_id: id,
        client_ip: "192.0.2.7",
        client_port: 40000,
        protocol: "HTTP/1.1",
        timestamp: "2026-01-01T00:00:00Z",
        ..Metadata::default()
    };
    Event::RequestHeaders(RequestHeaders::new(&metadata, "GET", uri, [("host", "a")]))
}

pub(crate) fn piece(id: &str, index: u32, data: impl Into<Bytes>, is_last: bool) -> BodyChunk {
    let data = data.into();
    BodyChunk {
        correlation_id: id.into(),
        transferred: data.len() as u64 * (u64::from(index) + 1),
        data,
        is_last,
        total_size: None,
        index,
    }
}

pub(crate) fn blocks(response: &Response, with: u16) -> bool {
    matches!(response.decision, Decision::Block { status, .. } if status == with)
}

/// Waits until something holds that no message tells. It fails after [`LONG`].
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect(what);
}

/// What the next event of a channel is.
pub(crate) async fn next(seen: &mut mpsc::UnboundedReceiver<Seen>) -> Seen {
    let seen = tokio::time::timeout(LONG, seen.recv()).await;
    seen.expect("something is seen")
        .expect("the agent is there")
}
