//! The peer of `spec/conformance/README.md` over this repository's own client, by which the driver and the client are held to each other.

#![forbid(unsafe_code)]

mod bodies;
mod calls;
mod topics;

use std::{
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use self::bodies::Pauses;
use data_encoding::HEXLOWER;
use hailwire::{
    Agent, AgentName, Caller, Client, Code, DataDir, Request, RequestKind, Response, ServeHandle,
    Status,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};

/// How long calls under way may take once the peer is told to end.
const LAST_CALLS: Duration = Duration::from_secs(10);

/// Between two attempts to attach again.
const PAUSE: Duration = Duration::from_millis(100);

/// Largest body that a handler reads whole.
const MOST: usize = 64 << 20;

#[tokio::main]
async fn main() -> ExitCode {
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return ExitCode::FAILURE;
    };
    let peer = Arc::new(Peer::default());
    let mut attached = match attach(&peer).await {
        Ok(attached) => attached,
        Err(status) => {
            eprintln!("error: {}: {}", status.code, status.message);
            return ExitCode::FAILURE;
        }
    };
    loop {
        tokio::select! {
            _ = terminated.recv() => break,
            _ = attached.closed() => {}
        }
        peer.set_client(None);
        *lock(&peer.second) = None;
        attached = loop {
            match attach(&peer).await {
                Ok(attached) => break attached,
                Err(status) => eprintln!("not attached again: {status}"),
            }
            tokio::select! {
                _ = terminated.recv() => return ExitCode::SUCCESS,
                () = sleep(PAUSE) => {}
            }
        };
    }
    let _ = timeout(LAST_CALLS, attached.drain()).await;
    peer.set_client(None);
    ExitCode::SUCCESS
}

/// What lasts over connections.
#[derive(Default)]
struct Peer {
    client: Mutex<Option<Client>>,
    second: Mutex<Option<ServeHandle>>,
    waiting: AtomicU64,
    cancelled: AtomicU64,
    detached: Mutex<Option<tokio::task::JoinHandle<Value>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    fn set_client(&self, client: Option<Client>) {
        *lock(&self.client) = client;
    }

    fn client(&self) -> Result<Client, Status> {
        let client = lock(&self.client).clone();
        client.ok_or_else(|| Status::new(Code::Unavailable, "no node is attached"))
    }
}

async fn attach(peer: &Arc<Peer>) -> Result<ServeHandle, Status> {
    let missing = || Status::new(Code::FailedPrecondition, "no data folder is known");
    let data = DataDir::from_env().ok_or_else(missing)?;
    let client = Client::attach(&data).await.map_err(|error| match error {
        hailwire::AttachError::Refused(status) => status,
        error => Status::new(Code::Unavailable, error.to_string()),
    })?;
    peer.set_client(Some(client.clone()));
    let agent = agent("peer")?;
    let handler = {
        let peer = peer.clone();
        move |request| handle(peer.clone(), request)
    };
    client.serve(agent, handler).await
}

fn agent(name: &str) -> Result<Agent, Status> {
    Agent::new(name).map_err(|error| Status::new(Code::Internal, error.to_string()))
}

async fn handle(peer: Arc<Peer>, request: Request) -> Result<Response, Status> {
    let method = request.header().method.clone();
    match method.as_str() {
        "echo" => echo(request).await,
        "chunks" => Ok(Response::new(request.into_body())),
        "inspect" => inspect(request).await,
        "produce" => bodies::produce(request).await,
        "consume" => consume(request).await,
        "ignore" => Ok(Response::new("ignored")),
        "wait" => wait(peer).await,
        "crash" => crash(request).await,
        "counts" => Ok(answer(&json!({
            "waiting": peer.waiting.load(Ordering::SeqCst),
            "cancelled": peer.cancelled.load(Ordering::SeqCst),
        }))),
        "call" => calls::call(peer, request).await,
        "outcome" => calls::outcome(&peer).await,
        "subscribe" => topics::subscribe(&peer, request).await,
        "publish" => topics::publish(&peer, request).await,
        "admin" => topics::admin(&peer, request).await,
        "second" => second(&peer).await,
        "drain" => drain(&peer).await,
        other => {
            let what = format!("there is no method `{other}`");
            Err(Status::new(Code::Unimplemented, what))
        }
    }
}

fn answer(value: &Value) -> Response {
    Response::new(value.to_string()).content_type("application/json")
}

async fn read_json<T: serde::de::DeserializeOwned>(mut request: Request) -> Result<T, Status> {
    let body = request.body_mut().bytes(MOST).await?;
    serde_json::from_slice(&body)
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))
}

async fn echo(mut request: Request) -> Result<Response, Status> {
    let body = request.body_mut().bytes(MOST).await?;
    let header = request.header();
    let response = Response::new(body).content_type(&header.content_type);
    let fields = header.headers.iter();
    Ok(fields.fold(response, |response, (name, value)| {
        response.header(name, value)
    }))
}

async fn inspect(mut request: Request) -> Result<Response, Status> {
    let began = Instant::now();
    let body = request.body_mut().bytes(MOST).await?;
    let node = match request.caller() {
        Caller::Peer(key) => Some(key.to_string()),
        Caller::Local => None,
    };
    let header = request.header();
    let left = header
        .deadline()
        .map(|left| left.saturating_sub(began.elapsed()));
    let kind = match request.kind() {
        RequestKind::Call => "call",
        RequestKind::Send => "send",
        RequestKind::Stream => "stream",
    };
    Ok(answer(&json!({
        "kind": kind, "method": header.method, "agent": header.to,
        "from": {"agent": header.from.agent_name(), "node": node},
        "type": header.content_type, "deadline_ms": left.map(|left| left.as_millis()),
        "priority": header.priority as u8, "idempotency_key": header.idempotency_key,
        "traceparent": header.traceparent, "tracestate": header.tracestate,
        "affinity": header.affinity, "headers": header.headers,
        "bytes": body.len(), "sha256": HEXLOWER.encode(&Sha256::digest(&body)),
    })))
}

async fn consume(mut request: Request) -> Result<Response, Status> {
    let pause = request.header().field("pause-us");
    let pause = Duration::from_micros(pause.and_then(|text| text.parse().ok()).unwrap_or(0));
    let (mut hash, mut bytes, mut pauses) = (Sha256::new(), 0, Pauses::default());
    while let Some(chunk) = request.body_mut().chunk().await? {
        hash.update(&chunk);
        bytes += chunk.len();
        pauses.add(pause).await;
    }
    let sha256 = HEXLOWER.encode(&hash.finalize());
    Ok(answer(&json!({"bytes": bytes, "sha256": sha256})))
}

async fn crash(request: Request) -> Result<Response, Status> {
    let method = &request.header().method;
    panic!("the handler of `{method}` is to fail")
}

/// Counts a handler of `wait` that is cancelled.
struct Waiting(Arc<Peer>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        self.0.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

async fn wait(peer: Arc<Peer>) -> Result<Response, Status> {
    peer.waiting.fetch_add(1, Ordering::SeqCst);
    let _waiting = Waiting(peer);
    std::future::pending().await
}

fn name(text: &str) -> Result<AgentName, Status> {
    text.parse()
        .map_err(|_| Status::new(Code::InvalidArgument, "`from` is no name"))
}

async fn second(peer: &Peer) -> Result<Response, Status> {
    let serving = peer.client()?.serve(agent("second")?, echo).await?;
    *lock(&peer.second) = Some(serving);
    Ok(Response::new("offered"))
}

async fn drain(peer: &Peer) -> Result<Response, Status> {
    let second = lock(&peer.second).take();
    let missing = || Status::new(Code::FailedPrecondition, "no second agent is offered");
    second.ok_or_else(missing)?.drain().await;
    Ok(Response::new("taken back"))
}
