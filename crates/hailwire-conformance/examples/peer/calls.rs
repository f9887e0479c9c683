//! Calls that the peer makes: its method `call`.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use data_encoding::HEXLOWER;
use hailwire::{
    Answer, Body, Call, Client, Code, Priority, Request, Response, Status, client::StreamBuilder,
    config::Carrier,
};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::{
    Peer, answer,
    bodies::{Pauses, write_pattern},
    lock, name, read_json,
};

#[derive(Clone, Deserialize)]
#[serde(default)]
struct CallPlan {
    kind: String,
    to: String,
    method: String,
    r#type: String,
    idempotency_key: String,
    affinity: String,
    traceparent: String,
    tracestate: String,
    carrier: String,
    from: String,
    priority: u8,
    member: u64,
    durable: u8,
    headers: Vec<(String, String)>,
    body: String,
    body_bytes: Option<u64>,
    body_chunk: usize,
    timeout_ms: Option<u64>,
    read: String,
    pause_us: u64,
    cancel_after_ms: u64,
    times: usize,
    detached: bool,
}

impl Default for CallPlan {
    fn default() -> Self {
        Self {
            kind: "call".into(),
            to: String::new(),
            method: String::new(),
            r#type: String::new(),
            idempotency_key: String::new(),
            affinity: String::new(),
            traceparent: String::new(),
            tracestate: String::new(),
            carrier: String::new(),
            from: String::new(),
            priority: 1,
            member: 0,
            durable: 0,
            headers: Vec::new(),
            body: String::new(),
            body_bytes: None,
            body_chunk: 65_536,
            timeout_ms: None,
            read: "whole".into(),
            pause_us: 0,
            cancel_after_ms: 50,
            times: 1,
            detached: false,
        }
    }
}

pub(crate) async fn call(peer: Arc<Peer>, request: Request) -> Result<Response, Status> {
    let plan: CallPlan = read_json(request).await?;
    let client = peer.client()?;
    if plan.detached {
        let made = tokio::spawn(made(client, plan));
        *lock(&peer.detached) = Some(made);
        return Ok(Response::new("started"));
    }
    Ok(answer(&made(client, plan).await))
}

/// What came of the calls that were made last without being waited for.
pub(crate) async fn outcome(peer: &Peer) -> Result<Response, Status> {
    let made = lock(&peer.detached).take();
    let missing = || Status::new(Code::FailedPrecondition, "no calls were made");
    let came = made.ok_or_else(missing)?.await;
    let came = came.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(answer(&came))
}

async fn made(client: Client, plan: CallPlan) -> Value {
    let times = plan.times.max(1);
    if times == 1 {
        return one_call(client, plan).await.told();
    }
    let calls = (0..times).map(|_| one_call(client.clone(), plan.clone()));
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    let mut bytes = 0;
    for call in futures_util::future::join_all(calls).await {
        let code = call.status.code.number().to_string();
        *outcomes.entry(code).or_default() += 1;
        bytes += call.bytes;
    }
    json!({"outcomes": outcomes, "bytes": bytes})
}

/// What came of one call.
struct CallOutcome {
    status: Status,
    content_type: String,
    headers: Vec<(String, String)>,
    bytes: u64,
    hash: Sha256,
    /// The first bytes of the answer.
    begin: Vec<u8>,
    elapsed: Duration,
}

impl CallOutcome {
    fn new() -> Self {
        Self {
            status: Status::ok(),
            content_type: String::new(),
            headers: Vec::new(),
            bytes: 0,
            hash: Sha256::new(),
            begin: Vec::new(),
            elapsed: Duration::ZERO,
        }
    }

    fn add(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        self.hash.update(chunk);
        let room = 1_025_usize.saturating_sub(self.begin.len());
        self.begin
            .extend_from_slice(&chunk[..chunk.len().min(room)]);
    }

    fn told(self) -> Value {
        let status = self.status;
        let retryable = matches!(
            status.code,
            Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        );
        let text = std::str::from_utf8(&self.begin).ok();
        json!({
            "code": status.code.number(), "message": status.message, "hint": status.hint,
            "details": status.details, "retry_after_ms": status.retry_after_ms,
            "retryable": retryable, "type": self.content_type, "headers": self.headers,
            "bytes": self.bytes, "sha256": HEXLOWER.encode(&self.hash.finalize()),
            "text": text.filter(|text| text.len() <= 1_024), "elapsed_ms": self.elapsed.as_millis(),
        })
    }
}

async fn one_call(client: Client, plan: CallPlan) -> CallOutcome {
    let began = Instant::now();
    let mut outcome = CallOutcome::new();
    let made = async {
        match plan.kind.as_str() {
            "stream" => raw_stream(&client, &plan, &mut outcome).await,
            _ => plain_call(&client, &plan, &mut outcome).await,
        }
    };
    let made = Box::pin(made).await;
    if let Err(status) = made {
        outcome.status = status;
    }
    outcome.elapsed = began.elapsed();
    outcome
}

fn prepared(client: &Client, plan: &CallPlan) -> Result<Call, Status> {
    let mut call = client
        .call(&plan.to)
        .method(&plan.method)
        .content_type(&plan.r#type)
        .idempotency_key(&plan.idempotency_key)
        .affinity(&plan.affinity)
        .traceparent(&plan.traceparent)
        .tracestate(&plan.tracestate)
        .member(plan.member)
        .carrier(carrier(&plan.carrier))
        .priority(priority(plan.priority));
    for (name, value) in &plan.headers {
        call = call.header(name, value);
    }
    if !plan.from.is_empty() {
        call = call.from_agent(&name(&plan.from)?);
    }
    if let Some(ms) = plan.timeout_ms {
        call = call.deadline(Duration::from_millis(ms));
    }
    Ok(match plan.body_bytes {
        Some(bytes) => {
            let (sender, body) = Body::channel(2);
            tokio::spawn(write_pattern(sender, bytes, plan.body_chunk.max(1), None));
            call.body(body)
        }
        None => call.body(plan.body.clone()),
    })
}

fn priority(number: u8) -> Priority {
    let known = Priority::ALL.get(usize::from(number));
    known.copied().unwrap_or(Priority::Critical)
}

fn carrier(name: &str) -> Carrier {
    match name {
        "quic" => Carrier::Quic,
        "h2" => Carrier::H2,
        "ws" => Carrier::Ws,
        _ => Carrier::Auto,
    }
}

async fn plain_call(
    client: &Client,
    plan: &CallPlan,
    outcome: &mut CallOutcome,
) -> Result<(), Status> {
    let call = prepared(client, plan)?;
    if plan.durable > 0 {
        let receipt = call.durable(plan.kind == "call", plan.durable == 1).await?;
        let receipt = serde_json::to_vec(&receipt).unwrap_or_default();
        outcome.add(&receipt);
        return Ok(());
    }
    if plan.kind == "send" {
        return call.one_way().await;
    }
    if plan.read == "cancel" {
        return cancelled(call, plan).await;
    }
    let answer = call.send().await?;
    read(answer, plan, outcome).await
}

/// Begins a call and drops it, as its user would whose own work was cancelled.
async fn cancelled(call: Call, plan: &CallPlan) -> Result<(), Status> {
    let after = Duration::from_millis(plan.cancel_after_ms);
    // Dropped in either case: the call's future, or the answer that has begun.
    let _ = timeout(after, call.send()).await;
    Err(Status::new(Code::Cancelled, "cancelled here"))
}

async fn read(
    mut answer: Answer,
    plan: &CallPlan,
    outcome: &mut CallOutcome,
) -> Result<(), Status> {
    outcome.content_type = answer.head().content_type.clone();
    outcome.headers = answer.head().headers.clone();
    let mut pauses = Pauses::default();
    while let Some(chunk) = answer.chunk().await? {
        outcome.add(&chunk);
        if plan.read == "first" {
            break;
        }
        if plan.read == "chunks" {
            pauses.add(Duration::from_micros(plan.pause_us)).await;
        }
    }
    Ok(())
}

fn prepared_stream(client: &Client, plan: &CallPlan) -> StreamBuilder {
    let mut stream = client
        .stream(&plan.to)
        .method(&plan.method)
        .content_type(&plan.r#type)
        .idempotency_key(&plan.idempotency_key)
        .affinity(&plan.affinity)
        .traceparent(&plan.traceparent)
        .tracestate(&plan.tracestate)
        .member(plan.member)
        .carrier(carrier(&plan.carrier))
        .priority(priority(plan.priority));
    for (name, value) in &plan.headers {
        stream = stream.header(name, value);
    }
    if let Some(ms) = plan.timeout_ms {
        stream = stream.deadline(Duration::from_millis(ms));
    }
    stream
}

async fn raw_stream(
    client: &Client,
    plan: &CallPlan,
    outcome: &mut CallOutcome,
) -> Result<(), Status> {
    let stream = prepared_stream(client, plan).open().await?;
    match plan.body_bytes {
        Some(bytes) => {
            let chunk = plan.body_chunk.max(1);
            tokio::spawn(write_pattern(stream.send, bytes, chunk, None));
        }
        None => {
            let body = plan.body.clone();
            tokio::spawn(async move {
                // Where nobody reads it, its answer says why.
                let _ = stream.send.send(body).await;
                let _ = stream.send.finish().await;
            });
        }
    }
    read(stream.recv, plan, outcome).await
}
