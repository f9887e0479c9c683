//! Golden vectors: what the crate's client and server really write, caught on a socket.
//!
//! Events, cancels, pings and the handshake's request come from the crate's client, answers and the handshake's
//! response from its server. What neither sends (reports of an agent, the registration) is written by the crate's
//! types in the crate's encodings. The older positional form, which versions up to 0.6.20 wrote, is
//! `rmp_serde::to_vec` of the same types, as in that version.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};
use zentinel_agent_protocol::{
    AgentResponse, AuditMetadata, BinaryRequestBodyChunkEvent, BinaryResponseBodyChunkEvent,
    BodyMutation, Decision, HeaderOp, RequestHeadersEvent,
    v2::{
        AgentCapabilities, AgentClientV2Uds, AgentHandlerV2, CancelReason, ConfigUpdateRequest,
        ConfigUpdateType, CounterMetric, FlowAction, FlowControlSignal, GaugeMetric, HealthState,
        HealthStatus, LoadMetrics, MessageType, MetricsReport, RegistrationRequest,
        RegistrationResponse, RuleDefinition, UdsAgentServerV2, UdsCapabilities, UdsEncoding,
        UdsHandshakeRequest, UdsHandshakeResponse,
        uds::{read_message, write_message},
    },
};

use crate::{Failure, agent, events, say};

/// When all of it was said.
const NOW: u64 = 1_767_323_045_000;

/// One message.
struct Vector {
    message: &'static str,
    name: &'static str,
    code: u8,
    json: Option<String>,
    msgpack: Option<Vec<u8>>,
    /// As versions up to 0.6.20 wrote it.
    positional: Option<Vec<u8>>,
    means: Value,
}

pub(crate) async fn print(into: Option<&Path>) -> Result<(), Failure> {
    let mut all = sent().await?;
    all.extend(answered().await?);
    all.extend(said());
    let mut files: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for vector in all {
        let mut line = json!({"name": vector.name, "code": vector.code, "means": vector.means});
        if let Some(text) = vector.json {
            line["json"] = text.into();
        }
        if let Some(bytes) = vector.msgpack {
            line["msgpack"] = hex(&bytes).into();
        }
        if let Some(bytes) = vector.positional {
            line["msgpack_positional"] = hex(&bytes).into();
        }
        if into.is_none() {
            say(&json!({"message": vector.message, "vector": line}));
        }
        files.entry(vector.message).or_default().push(line);
    }
    let Some(into) = into else { return Ok(()) };
    for (message, vectors) in files {
        let about = format!(
            "The {message} message of Agent Protocol v2, as zentinel-agent-protocol 0.6.45 writes it. \
             Written by peers/zentinel. See spec/callout.md."
        );
        let file = json!({"about": about, "vectors": vectors});
        std::fs::write(into.join(format!("{message}.json")), format!("{file:#}\n"))?;
    }
    Ok(())
}

/// What the crate's client sends.
async fn sent() -> Result<Vec<Vector>, Failure> {
    let json = caught(UdsEncoding::Json).await?;
    let msgpack = caught(UdsEncoding::MessagePack).await?;
    let mut positional = positional_events();
    let meanings = meanings();
    let mut out = Vec::new();
    for (i, (message, name, means)) in meanings.into_iter().enumerate() {
        let (code, text) = json
            .get(i)
            .ok_or("the client sent less than was asked for")?;
        let (_, bytes) = msgpack
            .get(i)
            .ok_or("the client sent less than was asked for")?;
        let always_json = matches!(message, "handshake" | "cancel" | "ping");
        out.push(Vector {
            message,
            name,
            code: *code,
            json: Some(still(std::str::from_utf8(text)?)),
            msgpack: (!always_json).then(|| bytes.clone()),
            positional: positional.remove(&(message, name)),
            means,
        });
    }
    Ok(out)
}

/// The frames of a client that sends everything, to an agent which speaks `encoding`.
async fn caught(encoding: UdsEncoding) -> Result<Vec<(u8, Vec<u8>)>, Failure> {
    let path = scratch("client");
    let listener = UnixListener::bind(&path)?;
    let frames = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&frames);
    let agent = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let (kind, payload) = read_message(&mut stream).await?;
        keep(&into, kind, payload);
        let hello = serde_json::to_vec(&handshake_response(encoding))?;
        write_message(&mut stream, MessageType::HandshakeResponse, &hello).await?;
        while let Ok((kind, payload)) = read_message(&mut stream).await {
            let id = encoding.deserialize::<Id>(&payload).ok().and_then(id_of);
            keep(&into, kind, payload);
            if matches!(kind, MessageType::Cancel | MessageType::Ping) {
                continue;
            }
            let mut response = AgentResponse::default_allow();
            response
                .audit
                .custom
                .insert("correlation_id".to_owned(), json!(id));
            let bytes = encoding.serialize(&response)?;
            write_message(&mut stream, MessageType::AgentResponse, &bytes).await?;
        }
        Ok::<(), Failure>(())
    });
    let client =
        AgentClientV2Uds::new("peer", path.to_string_lossy(), Duration::from_secs(5)).await?;
    client.connect().await?;
    for event in heads() {
        client
            .send_request_headers(&event.metadata.correlation_id, &event)
            .await?;
    }
    for event in request_bodies() {
        client
            .send_request_body_chunk(&event.correlation_id, &event)
            .await?;
    }
    client
        .send_request_body_chunk_binary(
            &BinaryRequestBodyChunkEvent::new("c-1", &b"\xff\x00raw"[..], 4, true)
                .with_total_size(100)
                .with_bytes_received(100),
        )
        .await?;
    client
        .send_request_body_chunk_binary(&BinaryRequestBodyChunkEvent::new(
            "c-1",
            &b"no size"[..],
            5,
            false,
        ))
        .await?;
    client
        .send_response_headers("c-1", &events::response_headers("c-1", 200))
        .await?;
    let bare = zentinel_agent_protocol::ResponseHeadersEvent {
        correlation_id: "c-1".to_owned(),
        status: 404,
        headers: HashMap::new(),
    };
    client.send_response_headers("c-1", &bare).await?;
    client
        .send_response_body_chunk("c-1", &events::response_body("c-1", b"hello", 0, true))
        .await?;
    client
        .send_response_body_chunk_binary(&BinaryResponseBodyChunkEvent::new(
            "c-1",
            &b"\xfe"[..],
            1,
            true,
        ))
        .await?;
    client
        .send_request_complete("c-1", &events::request_complete("c-1", None))
        .await?;
    client
        .send_request_complete(
            "c-1",
            &events::request_complete("c-1", Some("upstream reset")),
        )
        .await?;
    client
        .send_websocket_frame("c-1", &events::websocket("c-1", "text", b"hi"))
        .await?;
    let mut frame = events::websocket("c-1", "binary", b"\x00\xff");
    (frame.route_id, frame.client_to_server, frame.fin) = (None, false, false);
    client.send_websocket_frame("c-1", &frame).await?;
    client
        .send_guardrail_inspect("c-1", &events::guardrail("c-1", false))
        .await?;
    client
        .send_guardrail_inspect("c-1", &events::guardrail("c-1", true))
        .await?;
    client
        .send_configure(
            "k-1",
            &json!({"config": {"mode": "strict"}, "config_version": "7"}),
        )
        .await?;
    client
        .send_configure("k-2", &json!({"config": null}))
        .await?;
    for reason in REASONS {
        client.cancel_request("c-1", reason).await?;
    }
    client.ping().await?;
    client.close().await?;
    drop(client);
    agent.await??;
    let _ = std::fs::remove_file(&path);
    let frames = frames.lock().map_err(|_| "a task panicked")?.clone();
    Ok(frames)
}

const REASONS: [CancelReason; 6] = [
    CancelReason::ClientDisconnect,
    CancelReason::Timeout,
    CancelReason::BlockedByAgent,
    CancelReason::UpstreamError,
    CancelReason::ProxyShutdown,
    CancelReason::Manual,
];

/// What each of them means, in the order in which they are sent.
fn meanings() -> Vec<(&'static str, &'static str, Value)> {
    let mut out = vec![(
        "handshake",
        "request",
        json!({
            "supported_versions": [2], "proxy_id": "zentinel-proxy", "proxy_version": "0.6.45",
            "config": null, "supported_encodings": ["msgpack", "json"],
        }),
    )];
    let names = ["full", "sparse", "escapes"];
    for (event, name) in heads().iter().zip(names) {
        out.push(("request_headers", name, meaning(event)));
    }
    for (event, name) in request_bodies().iter().zip(["first", "last", "empty"]) {
        out.push(("request_body_chunk", name, meaning(event)));
    }
    let raw = |data: &[u8], last: bool, total: Option<u64>, index: u32, so_far: u64, key: &str| {
        let mut means = json!({
            "correlation_id": "c-1", "data": hex(data), "is_last": last, "total_size": total, "chunk_index": index,
        });
        means[key] = so_far.into();
        means
    };
    out.push((
        "request_body_chunk",
        "raw",
        raw(b"\xff\x00raw", true, Some(100), 4, 100, "bytes_received"),
    ));
    out.push((
        "request_body_chunk",
        "raw without size",
        raw(b"no size", false, None, 5, 7, "bytes_received"),
    ));
    out.push((
        "response_headers",
        "full",
        meaning(&events::response_headers("c-1", 200)),
    ));
    out.push((
        "response_headers",
        "bare",
        json!({"correlation_id": "c-1", "status": 404, "headers": {}}),
    ));
    out.push((
        "response_body_chunk",
        "whole",
        meaning(&events::response_body("c-1", b"hello", 0, true)),
    ));
    out.push((
        "response_body_chunk",
        "raw",
        raw(b"\xfe", true, None, 1, 1, "bytes_sent"),
    ));
    out.push((
        "request_complete",
        "well",
        meaning(&events::request_complete("c-1", None)),
    ));
    out.push((
        "request_complete",
        "failed",
        meaning(&events::request_complete("c-1", Some("upstream reset"))),
    ));
    out.push((
        "websocket_frame",
        "text",
        meaning(&events::websocket("c-1", "text", b"hi")),
    ));
    let mut frame = events::websocket("c-1", "binary", b"\x00\xff");
    (frame.route_id, frame.client_to_server, frame.fin) = (None, false, false);
    out.push(("websocket_frame", "binary", meaning(&frame)));
    out.push((
        "guardrail_inspect",
        "sparse",
        meaning(&events::guardrail("c-1", false)),
    ));
    out.push((
        "guardrail_inspect",
        "full",
        meaning(&events::guardrail("c-1", true)),
    ));
    out.push((
        "configure",
        "with a version",
        json!({"correlation_id": "k-1", "config": {"mode": "strict"}, "config_version": "7"}),
    ));
    out.push((
        "configure",
        "bare",
        json!({"correlation_id": "k-2", "config": null, "config_version": null}),
    ));
    let reasons = [
        "client disconnect",
        "timeout",
        "blocked by agent",
        "upstream error",
        "proxy shutdown",
        "manual",
    ];
    for (code, reason) in reasons.into_iter().enumerate() {
        out.push((
            "cancel",
            reason,
            json!({"correlation_id": "c-1", "reason": code, "timestamp_ms": NOW}),
        ));
    }
    out.push(("ping", "first", json!({"sequence": 0, "timestamp_ms": NOW})));
    out
}

fn heads() -> [RequestHeadersEvent; 3] {
    let mut sparse = events::small("c-2");
    sparse.metadata.tls_version = None;
    sparse.headers = HashMap::new();
    let mut escapes = events::small("c-\"3\"");
    escapes.uri = "/\\\"\u{1}\n\t/ü/\u{1f600}".to_owned();
    escapes.headers = events::fields(&[
        ("x-empty", &[""]),
        ("x-quote", &["a\"b\\c", "é"]),
        ("x-valueless", &[]),
    ]);
    [
        events::request_headers("c-1", "/search?q=1"),
        sparse,
        escapes,
    ]
}

fn request_bodies() -> [zentinel_agent_protocol::RequestBodyChunkEvent; 3] {
    let mut first = events::request_body("c-1", b"hello ", 0, false);
    first.total_size = Some(11);
    let mut last = events::request_body("c-1", b"w\xf6rld", 1, true);
    last.total_size = Some(11);
    last.bytes_received = 11;
    [first, last, events::request_body("c-1", b"", 0, true)]
}

/// An event as JSON, its data as hex.
fn meaning(event: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(event).unwrap_or_default();
    unbase64(&mut value);
    value
}

fn unbase64(value: &mut Value) {
    if let Some(Value::String(text)) = value.get("data") {
        let bytes = STANDARD.decode(text).unwrap_or_default();
        value["data"] = hex(&bytes).into();
    }
}

/// Events in the form of versions up to 0.6.20: an outer map with the id first (and again for most), all inner
/// structures as arrays.
fn positional_events() -> HashMap<(&'static str, &'static str), Vec<u8>> {
    #[derive(Serialize)]
    struct Outer<'a, T: Serialize> {
        correlation_id: &'a str,
        #[serde(flatten)]
        event: &'a T,
    }
    fn of<T: Serialize>(id: &str, event: &T) -> Vec<u8> {
        rmp_serde::to_vec(&Outer {
            correlation_id: id,
            event,
        })
        .unwrap_or_default()
    }
    let mut out = HashMap::new();
    for (event, name) in heads().iter().zip(["full", "sparse", "escapes"]) {
        out.insert(
            ("request_headers", name),
            of(&event.metadata.correlation_id, event),
        );
    }
    for (event, name) in request_bodies().iter().zip(["first", "last", "empty"]) {
        out.insert(("request_body_chunk", name), of("c-1", event));
    }
    out.insert(
        ("response_headers", "full"),
        of("c-1", &events::response_headers("c-1", 200)),
    );
    out.insert(
        ("response_body_chunk", "whole"),
        of("c-1", &events::response_body("c-1", b"hello", 0, true)),
    );
    out.insert(
        ("request_complete", "well"),
        of("c-1", &events::request_complete("c-1", None)),
    );
    out.insert(
        ("websocket_frame", "text"),
        of("c-1", &events::websocket("c-1", "text", b"hi")),
    );
    out.insert(
        ("guardrail_inspect", "full"),
        of("c-1", &events::guardrail("c-1", true)),
    );
    // The binary API of that version: an array, of which absent fields are left out.
    let raw = rmp_serde::to_vec(&("c-1", serde_bytes(b"\xff\x00raw"), true, 100, 4, 100))
        .unwrap_or_default();
    out.insert(("request_body_chunk", "raw"), raw);
    out
}

fn serde_bytes(bytes: &[u8]) -> impl Serialize {
    struct Raw(Vec<u8>);
    impl Serialize for Raw {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0)
        }
    }
    Raw(bytes.to_vec())
}

/// What the crate's server answers.
async fn answered() -> Result<Vec<Vector>, Failure> {
    let json = answers_in(UdsEncoding::Json).await?;
    let msgpack = answers_in(UdsEncoding::MessagePack).await?;
    let mut out = vec![Vector {
        message: "handshake_response",
        name: "msgpack chosen",
        code: 0x02,
        json: Some(String::from_utf8(msgpack[0].clone())?),
        msgpack: None,
        positional: None,
        means: handshake_means("msgpack"),
    }];
    out.push(Vector {
        message: "handshake_response",
        name: "json chosen",
        code: 0x02,
        json: Some(String::from_utf8(json[0].clone())?),
        msgpack: None,
        positional: None,
        means: handshake_means("json"),
    });
    for (i, (name, response)) in responses().into_iter().enumerate() {
        let id = format!("a-{i}");
        let mut with_id = response.clone();
        with_id
            .audit
            .custom
            .insert("correlation_id".to_owned(), json!(id));
        let mut means = serde_json::to_value(&response)?;
        for mutation in ["request_body_mutation", "response_body_mutation"] {
            unbase64(&mut means[mutation]);
        }
        out.push(Vector {
            message: "response",
            name,
            code: 0x20,
            json: Some(String::from_utf8(json[i + 1].clone())?),
            msgpack: Some(msgpack[i + 1].clone()),
            // With one key in `custom`, so that it is the same each time.
            positional: (with_id.audit.custom.len() == 1)
                .then(|| rmp_serde::to_vec(&with_id))
                .transpose()?,
            means: json!({"id": id, "answer": means}),
        });
    }
    Ok(out)
}

/// The server's handshake response and its answers, with keys of maps in their order.
async fn answers_in(encoding: UdsEncoding) -> Result<Vec<Vec<u8>>, Failure> {
    let path = scratch("server");
    let server = UdsAgentServerV2::new("peer", &path, Box::new(Scripted));
    let running = tokio::spawn(async move { server.run().await });
    let mut stream = loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => break stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    };
    let hello = UdsHandshakeRequest {
        supported_versions: vec![2],
        proxy_id: "peer".to_owned(),
        proxy_version: "0".to_owned(),
        config: None,
        supported_encodings: vec![encoding],
    };
    write_message(
        &mut stream,
        MessageType::HandshakeRequest,
        &serde_json::to_vec(&hello)?,
    )
    .await?;
    let (_, payload) = read_message(&mut stream).await?;
    let mut out = vec![payload];
    for i in 0..responses().len() {
        let id = format!("a-{i}");
        let event = encoding.serialize(&events::small(&id))?;
        // The crate keeps maps in an order that is another each time: asked until it is the one that is kept.
        let payload = loop {
            write_message(&mut stream, MessageType::RequestHeaders, &event).await?;
            let (_, payload) = read_message(&mut stream).await?;
            let response: AgentResponse = encoding.deserialize(&payload)?;
            let keys: Vec<&String> = response.audit.custom.keys().collect();
            if keys.len() < 2 || custom_is_sorted(&payload) {
                break payload;
            }
        };
        out.push(payload);
    }
    stream.shutdown().await?;
    running.abort();
    let _ = std::fs::remove_file(&path);
    Ok(out)
}

/// Whether the id, which the server adds, comes before the key `score`.
fn custom_is_sorted(payload: &[u8]) -> bool {
    let find = |needle: &[u8]| payload.windows(needle.len()).position(|w| w == needle);
    match (find(b"correlation_id"), find(b"score")) {
        (Some(id), Some(score)) => id < score,
        _ => true,
    }
}

struct Scripted;

#[async_trait]
impl AgentHandlerV2 for Scripted {
    fn capabilities(&self) -> AgentCapabilities {
        agent::capabilities()
    }

    async fn on_request_headers(&self, event: RequestHeadersEvent) -> AgentResponse {
        let i: usize = event
            .metadata
            .correlation_id
            .trim_start_matches("a-")
            .parse()
            .unwrap_or(0);
        responses()
            .into_iter()
            .nth(i)
            .map_or_else(AgentResponse::default_allow, |(_, response)| response)
    }
}

fn responses() -> Vec<(&'static str, AgentResponse)> {
    let text = |text: &str| text.to_owned();
    let decided = |decision: Decision| AgentResponse {
        decision,
        ..AgentResponse::default_allow()
    };
    vec![
        ("allow", AgentResponse::default_allow()),
        ("block", AgentResponse::block(403, None)),
        (
            "block with all",
            decided(Decision::Block {
                status: 429,
                body: Some(text("slow \"down\"\n")),
                headers: Some(events::map(&[
                    ("retry-after", text("5")),
                    ("x-why", text("rate")),
                ])),
            }),
        ),
        (
            "redirect",
            AgentResponse::redirect(text("https://example.com/?a=1&b=2"), 302),
        ),
        (
            "challenge",
            decided(Decision::Challenge {
                challenge_type: text("captcha"),
                params: events::map(&[("difficulty", text("hard")), ("site", text("s1"))]),
            }),
        ),
        (
            "header operations",
            AgentResponse::default_allow()
                .add_request_header(HeaderOp::Set {
                    name: text("x-a"),
                    value: text("1"),
                })
                .add_request_header(HeaderOp::Remove {
                    name: text("cookie"),
                })
                .add_response_header(HeaderOp::Add {
                    name: text("set-cookie"),
                    value: text("a=\"b\""),
                }),
        ),
        ("needs more", AgentResponse::needs_more_data()),
        (
            "body replaced",
            AgentResponse::default_allow().with_request_body_mutation(BodyMutation::replace(
                2,
                STANDARD.encode(b"new \xff body"),
            )),
        ),
        (
            "bodies passed and dropped",
            AgentResponse::default_allow()
                .with_request_body_mutation(BodyMutation::pass_through(0))
                .with_response_body_mutation(BodyMutation::drop_chunk(7)),
        ),
        ("websocket allowed", AgentResponse::websocket_allow()),
        ("websocket dropped", AgentResponse::websocket_drop()),
        (
            "websocket closed",
            AgentResponse::websocket_close(1008, text("policy")),
        ),
        (
            "audit",
            AgentResponse::default_allow().with_audit(AuditMetadata {
                tags: vec![text("sqli"), text("high")],
                rule_ids: vec![text("942100")],
                confidence: Some(0.75),
                reason_codes: vec![text("SQLI")],
                custom: [(text("score"), json!({"points": [1, -2, 2.5], "note": null}))].into(),
            }),
        ),
        (
            "routing",
            AgentResponse {
                routing_metadata: events::map(&[
                    ("guardrail_response", text("{\"detected\":true}")),
                    ("pool", text("b")),
                ]),
                ..AgentResponse::default_allow()
            },
        ),
    ]
}

/// What neither of them sends, but the crate's types say.
fn said() -> Vec<Vector> {
    let id = "peer";
    let health = |state: HealthState| HealthStatus {
        state,
        timestamp_ms: NOW,
        ..HealthStatus::healthy(id)
    };
    let mut loaded = health(HealthState::Degraded {
        disabled_features: vec!["ml".to_owned()],
        timeout_multiplier: 1.5,
    });
    loaded.message = Some("busy".to_owned());
    loaded.load = Some(LoadMetrics {
        in_flight: 7,
        ..LoadMetrics::default()
    });
    let mut report = MetricsReport::new(id, 10_000);
    report.timestamp_ms = NOW;
    let mut counter = CounterMetric::new("requests_total", 42);
    counter.help = Some("Requests".to_owned());
    counter.labels = events::map(&[("route", "a".to_owned())]);
    report.counters.push(counter);
    report.gauges.push(GaugeMetric::new("load", 0.5));
    // Its type has the name of another one, which hides it.
    let histogram = json!({
        "name": "latency", "sum": 12.5, "count": 3,
        "buckets": [{"le": 0.5, "count": 1}, {"le": "+Inf", "count": 3}],
    });
    report
        .histograms
        .extend(serde_json::from_value(histogram).ok());
    let update = |update_type: ConfigUpdateType| ConfigUpdateRequest {
        update_type,
        request_id: "u-1".to_owned(),
        timestamp_ms: NOW,
    };
    let flow = |action: FlowAction, id: Option<&str>| FlowControlSignal {
        correlation_id: id.map(str::to_owned),
        action,
        timestamp_ms: NOW,
    };
    let capabilities = UdsCapabilities::from(agent::capabilities());
    let mut out = vec![
        typed("health", "healthy", 0x30, &health(HealthState::Healthy)),
        typed("health", "degraded", 0x30, &loaded),
        typed(
            "health",
            "draining",
            0x30,
            &health(HealthState::Draining { eta_ms: Some(2500) }),
        ),
        typed(
            "health",
            "unhealthy",
            0x30,
            &health(HealthState::Unhealthy {
                reason: "no memory".to_owned(),
                recoverable: false,
            }),
        ),
        typed("metrics", "all", 0x31, &report),
        typed(
            "config_update",
            "reload",
            0x32,
            &update(ConfigUpdateType::RequestReload),
        ),
        typed(
            "config_update",
            "rules",
            0x32,
            &update(ConfigUpdateType::RuleUpdate {
                rule_set: "core".to_owned(),
                rules: vec![RuleDefinition {
                    id: "r1".to_owned(),
                    priority: -5,
                    definition: json!({"match": "x"}),
                    enabled: true,
                    description: None,
                    tags: vec!["t".to_owned()],
                }],
                remove_rules: vec!["r0".to_owned()],
            }),
        ),
        typed(
            "config_update",
            "list",
            0x32,
            &update(ConfigUpdateType::ListUpdate {
                list_id: "ips".to_owned(),
                add: vec!["192.0.2.1".to_owned()],
                remove: vec![],
            }),
        ),
        typed(
            "config_update",
            "restart",
            0x32,
            &update(ConfigUpdateType::RestartRequired {
                reason: "leak".to_owned(),
                grace_period_ms: 5000,
            }),
        ),
        typed(
            "config_update",
            "error",
            0x32,
            &update(ConfigUpdateType::ConfigError {
                error: "bad".to_owned(),
                field: Some("mode".to_owned()),
            }),
        ),
        typed("flow", "pause", 0x33, &flow(FlowAction::Pause, None)),
        typed("flow", "resume", 0x33, &flow(FlowAction::Resume, None)),
        typed(
            "flow",
            "pause of one request",
            0x33,
            &flow(FlowAction::Pause, Some("c-1")),
        ),
        typed(
            "flow",
            "capacity",
            0x33,
            &flow(
                FlowAction::UpdateCapacity {
                    buffer_available: 9,
                },
                None,
            ),
        ),
    ];
    // The forms that the crate's client parses, which no type of it writes.
    out.push(typed(
        "health",
        "as the client reads it",
        0x30,
        &json!({"state": 4}),
    ));
    out.push(typed(
        "flow",
        "as the client reads it",
        0x33,
        &json!({"action": 1}),
    ));
    let registration = RegistrationRequest {
        protocol_version: 2,
        agent_id: id.to_owned(),
        capabilities,
        auth_token: Some("secret".to_owned()),
        metadata: Some(json!({"zone": "a"})),
    };
    let registered = |success: bool| RegistrationResponse {
        success,
        error: (!success).then(|| "refused".to_owned()),
        proxy_id: "zentinel-proxy".to_owned(),
        proxy_version: "0.6.45".to_owned(),
        connection_id: if success {
            "peer-1".to_owned()
        } else {
            String::new()
        },
    };
    for mut vector in [
        typed("registration", "request", 0x01, &registration),
        typed("registration_response", "accepted", 0x02, &registered(true)),
        typed("registration_response", "refused", 0x02, &registered(false)),
    ] {
        vector.msgpack = None;
        out.push(vector);
    }
    out
}

fn typed(message: &'static str, name: &'static str, code: u8, value: &impl Serialize) -> Vector {
    Vector {
        message,
        name,
        code,
        json: UdsEncoding::Json
            .serialize(value)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok()),
        msgpack: UdsEncoding::MessagePack.serialize(value).ok(),
        positional: None,
        means: serde_json::to_value(value).unwrap_or_default(),
    }
}

/// How many bytes the client writes for a request to an agent that speaks `encoding`: all that comes after the handshake.
pub(crate) async fn written(
    encoding: UdsEncoding,
    event: &RequestHeadersEvent,
) -> Result<usize, Failure> {
    let path = scratch("size");
    let listener = UnixListener::bind(&path)?;
    let counting = async {
        let (mut stream, _) = listener.accept().await?;
        read_message(&mut stream).await?;
        let hello = serde_json::to_vec(&handshake_response(encoding))?;
        write_message(&mut stream, MessageType::HandshakeResponse, &hello).await?;
        // Its length does not count itself.
        let length = stream.read_u32().await?;
        let mut rest = vec![0; usize::try_from(length)?];
        stream.read_exact(&mut rest).await?;
        Ok::<usize, Failure>(4 + rest.len())
    };
    let asking = async {
        let within = Duration::from_secs(5);
        let client = AgentClientV2Uds::new("peer", path.to_string_lossy(), within).await?;
        client.connect().await?;
        let id = &event.metadata.correlation_id;
        let answer = client.send_request_headers(id, event).await?;
        Err::<usize, Failure>(format!("an answer from nobody: {answer:?}").into())
    };
    let written = tokio::select! {
        counted = counting => counted,
        wrong = asking => wrong,
    };
    let _ = std::fs::remove_file(path);
    written
}

fn handshake_response(encoding: UdsEncoding) -> UdsHandshakeResponse {
    UdsHandshakeResponse {
        protocol_version: 2,
        capabilities: UdsCapabilities::from(agent::capabilities()),
        success: true,
        error: None,
        encoding,
    }
}

fn handshake_means(encoding: &str) -> Value {
    json!({
        "protocol_version": 2,
        "capabilities": UdsCapabilities::from(agent::capabilities()),
        "success": true,
        "error": null,
        "encoding": encoding,
    })
}

/// An event's id, wherever it is; the rest of it may be bytes, which a `Value` does not hold.
#[derive(Deserialize)]
struct Id {
    correlation_id: Option<String>,
    metadata: Option<Box<Id>>,
}

fn id_of(event: Id) -> Option<String> {
    event
        .correlation_id
        .or_else(|| event.metadata?.correlation_id)
}

fn keep(into: &Mutex<Vec<(u8, Vec<u8>)>>, kind: MessageType, payload: Vec<u8>) {
    if let Ok(mut frames) = into.lock() {
        frames.push((kind as u8, payload));
    }
}

/// With one moment for all.
fn still(text: &str) -> String {
    let Some((before, after)) = text.split_once("\"timestamp_ms\":") else {
        return text.to_owned();
    };
    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}\"timestamp_ms\":{NOW}{rest}")
}

fn scratch(name: &str) -> PathBuf {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::env::temp_dir().join(format!(
        "zentinel-peer-{}-{name}-{n}.sock",
        std::process::id()
    ))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
