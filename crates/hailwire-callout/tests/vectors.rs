//! Golden vectors, which the published crate wrote (`peers/zentinel`).

#![expect(
    clippy::unwrap_used,
    reason = "what the helpers of a test miss fails the test"
)]

use std::{path::PathBuf, process::Command};

use bytes::{Bytes, BytesMut};
use hailwire_callout::{
    Decision, Event, EventKind, Response,
    control::{FlowControl, HealthState, Notice},
    event::BodyChunk,
    headers::Headers,
    response::{BodyMutation, WebSocketDecision},
    wire::{
        self, Encoding, decode_cancel, decode_notice, decode_ping, frame::FrameType, handshake,
        plain,
    },
};
use serde_json::{Map, Value, json};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn vectors(message: &str) -> Vec<Value> {
    let path = root().join(format!("spec/vectors/callout/{message}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file: Value = serde_json::from_str(&text).unwrap();
    file["vectors"].as_array().unwrap().clone()
}

fn unhex(text: &str) -> Bytes {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every form in which a message was written.
fn forms(vector: &Value) -> Vec<(Bytes, Encoding)> {
    let text = vector["json"].as_str().map(|text| {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        (bytes, Encoding::Json)
    });
    let packed = ["msgpack", "msgpack_positional"]
        .into_iter()
        .filter_map(|key| Some((unhex(vector[key].as_str()?), Encoding::MessagePack)));
    text.into_iter().chain(packed).collect()
}

const BOTH: [Encoding; 2] = [Encoding::Json, Encoding::MessagePack];

#[test]
fn events_of_the_published_crate_mean_what_it_says() {
    let mut count = 0;
    for kind in EventKind::ALL {
        for vector in vectors(kind.name()) {
            for (payload, encoding) in forms(&vector) {
                count += 1;
                let name = format!("{} {} {encoding:?}", kind.name(), vector["name"]);
                let event = wire::decode_event(kind, payload, encoding)
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(describe(&event), vector["means"], "{name}");
                assert_eq!(event.id(), id_of(&vector["means"]), "{name}");
                // And what ours writes is read by the plainest reader as the same.
                for encoding in BOTH {
                    let mut out = BytesMut::new();
                    wire::encode_event(&event, encoding, &mut out);
                    let plain = plain::decode_event(kind, &out, encoding)
                        .unwrap_or_else(|e| panic!("{name}: {e}"));
                    assert_eq!(
                        without_empty(&describe(&plain)),
                        without_empty(&describe(&event))
                    );
                    let again = wire::decode_event(kind, out.freeze(), encoding).unwrap();
                    assert_eq!(again, event, "{name}");
                }
            }
        }
    }
    assert!(count > 40, "{count}");
}

#[test]
fn answers_of_the_published_crate_mean_what_it_says() {
    for vector in vectors("response") {
        for (payload, encoding) in forms(&vector) {
            let name = format!("{} {encoding:?}", vector["name"]);
            let (id, response) =
                wire::decode_response(payload, encoding).unwrap_or_else(|e| panic!("{name}: {e}"));
            let means = &vector["means"];
            assert_eq!(&*id, means["id"].as_str().unwrap(), "{name}");
            assert_eq!(describe_response(&response), means["answer"], "{name}");
            for encoding in BOTH {
                let mut out = BytesMut::new();
                wire::encode_response(&id, &response, encoding, &mut out);
                let plain = plain::decode_response(&out, encoding).unwrap();
                assert_eq!(plain, (id.clone(), response.clone()), "{name}");
            }
        }
    }
}

#[test]
fn handshakes_and_controls_of_the_published_crate_are_read() {
    for vector in vectors("handshake") {
        for (payload, _) in forms(&vector) {
            let hello: handshake::HandshakeRequest = handshake::decode(&payload).unwrap();
            assert_eq!(without_null(&json!(hello)), without_null(&vector["means"]));
        }
    }
    for vector in vectors("handshake_response") {
        for (payload, _) in forms(&vector) {
            let welcome: handshake::HandshakeResponse = handshake::decode(&payload).unwrap();
            assert_eq!(
                without_null(&json!(welcome)),
                without_null(&vector["means"])
            );
        }
    }
    for vector in vectors("registration") {
        for (payload, _) in forms(&vector) {
            let registration: handshake::RegistrationRequest = handshake::decode(&payload).unwrap();
            assert_eq!(
                without_null(&json!(registration)),
                without_null(&vector["means"])
            );
        }
    }
    for vector in vectors("registration_response") {
        for (payload, _) in forms(&vector) {
            let registered: handshake::RegistrationResponse = handshake::decode(&payload).unwrap();
            assert_eq!(
                without_null(&json!(registered)),
                without_null(&vector["means"])
            );
        }
    }
    for vector in vectors("cancel") {
        for (payload, _) in forms(&vector) {
            let cancel = decode_cancel(&payload).unwrap();
            let mut out = BytesMut::new();
            wire::encode_cancel(&cancel, &mut out);
            let written: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(written, vector["means"]);
        }
    }
    for vector in vectors("ping") {
        for (payload, _) in forms(&vector) {
            assert_eq!(json!(decode_ping(&payload).unwrap()), vector["means"]);
        }
    }
}

#[test]
fn notices_of_the_published_crate_are_read_in_every_shape() {
    let read = |kind, vector: &Value| -> Vec<Notice> {
        forms(vector)
            .into_iter()
            .map(|(payload, encoding)| decode_notice(kind, &payload, encoding).unwrap())
            .collect()
    };
    for (kind, message) in [
        (FrameType::Metrics, "metrics"),
        (FrameType::ConfigUpdate, "config_update"),
    ] {
        for vector in vectors(message) {
            for notice in read(kind, &vector) {
                let written = match notice {
                    Notice::Metrics(report) => json!(report),
                    Notice::ConfigUpdate(update) => json!(update),
                    other => panic!("{other:?}"),
                };
                assert_eq!(without_null(&written), without_null(&vector["means"]));
            }
        }
    }
    for vector in vectors("health") {
        for notice in read(FrameType::Health, &vector) {
            let Notice::Health(health) = notice else {
                panic!("{notice:?}");
            };
            let state = match vector["name"].as_str().unwrap() {
                "healthy" => HealthState::Healthy,
                "degraded" => HealthState::Degraded,
                "draining" => HealthState::Draining,
                _ => HealthState::Unhealthy,
            };
            assert_eq!(health.state, state);
            let state = &vector["means"]["state"];
            assert_eq!(health.drain_eta_ms, state["eta_ms"].as_u64());
            assert_eq!(
                json!(health.timeout_multiplier),
                state["timeout_multiplier"]
            );
        }
    }
    for vector in vectors("flow") {
        for notice in read(FrameType::Flow, &vector) {
            let expected = match vector["name"].as_str().unwrap() {
                "resume" | "capacity" => FlowControl::Resume(None),
                "pause of one request" => FlowControl::Pause(Some("c-1".into())),
                _ => FlowControl::Pause(None),
            };
            assert_eq!(notice, Notice::Flow(expected));
        }
    }
}

/// The published crate, where it can be built, still writes what is committed.
#[test]
fn the_published_crate_writes_what_is_committed() {
    let built = Command::new(root().join("peers/zentinel/build")).output();
    let program = match built {
        Ok(built) if built.status.success() => String::from_utf8(built.stdout).unwrap(),
        Ok(built) => {
            let why = String::from_utf8_lossy(&built.stderr);
            return hailwire_skip::skipped(
                why.lines().last().unwrap_or("the peer cannot be built"),
            );
        }
        Err(e) => return hailwire_skip::skipped(e),
    };
    let into = tempfile::tempdir().unwrap();
    let status = Command::new(program.trim())
        .args(["vectors", "--into"])
        .arg(into.path())
        .status()
        .unwrap();
    assert!(status.success());
    let mut count = 0;
    for entry in std::fs::read_dir(into.path()).unwrap() {
        let path = entry.unwrap().path();
        let committed = root()
            .join("spec/vectors/callout")
            .join(path.file_name().unwrap());
        let (new, old) = (
            std::fs::read(&path).unwrap(),
            std::fs::read(&committed).unwrap(),
        );
        assert!(new == old, "{} is another now", committed.display());
        count += 1;
    }
    assert_eq!(count, 19);
}

fn id_of(means: &Value) -> &str {
    let id = &means["correlation_id"];
    id.as_str()
        .unwrap_or_else(|| means["metadata"]["correlation_id"].as_str().unwrap())
}

fn describe(event: &Event) -> Value {
    match event {
        Event::RequestHeaders(head) => json!({
            "metadata": head.metadata(),
            "method": head.method(),
            "uri": head.uri(),
            "headers": fields(head.headers()),
        }),
        Event::RequestBody(chunk) => describe_chunk(chunk, "bytes_received"),
        Event::ResponseHeaders(head) => json!({
            "correlation_id": head.id(),
            "status": head.status(),
            "headers": fields(head.headers()),
        }),
        Event::ResponseBody(chunk) => describe_chunk(chunk, "bytes_sent"),
        Event::RequestComplete(event) => json!(event),
        Event::WebSocketFrame(frame) => json!({
            "correlation_id": frame.correlation_id,
            "opcode": frame.opcode,
            "data": hex(&frame.data),
            "client_to_server": frame.client_to_server,
            "frame_index": frame.index,
            "fin": frame.fin,
            "route_id": frame.route_id,
            "client_ip": frame.client_ip,
        }),
        Event::Guardrail(event) => json!(event),
        Event::Configure(event) => json!(event),
    }
}

fn describe_chunk(chunk: &BodyChunk, transferred: &str) -> Value {
    json!({
        "correlation_id": chunk.correlation_id,
        "data": hex(&chunk.data),
        "is_last": chunk.is_last,
        "total_size": chunk.total_size,
        "chunk_index": chunk.index,
        transferred: chunk.transferred,
    })
}

fn fields(headers: &Headers) -> Value {
    headers
        .names()
        .map(|(name, values)| (name.to_owned(), values.map(Value::from).collect()))
        .collect::<Map<String, Value>>()
        .into()
}

fn describe_response(response: &Response) -> Value {
    let mutation = |mutation: &Option<BodyMutation>| {
        mutation.as_ref().map(|mutation| {
            json!({"data": mutation.data.as_deref().map(hex), "chunk_index": mutation.index})
        })
    };
    let decision = match &response.decision {
        Decision::Block {
            status,
            body,
            headers,
        } => {
            let headers = (!headers.is_empty()).then_some(headers);
            json!({"block": {"status": status, "body": body, "headers": headers}})
        }
        other => json!(other),
    };
    json!({
        "version": 2,
        "decision": decision,
        "request_headers": response.request_headers,
        "response_headers": response.response_headers,
        "routing_metadata": response.routing_metadata,
        "audit": response.audit,
        "needs_more": response.needs_more,
        "request_body_mutation": mutation(&response.request_body),
        "response_body_mutation": mutation(&response.response_body),
        "websocket_decision": response.websocket.as_ref().map(|decision: &WebSocketDecision| json!(decision)),
    })
}

/// Without keys whose value is null.
fn without_null(value: &Value) -> Value {
    without(value, &Value::is_null)
}

/// Without keys whose value is an empty array.
fn without_empty(value: &Value) -> Value {
    without(value, &|value| value.as_array().is_some_and(Vec::is_empty))
}

fn without(value: &Value, unwanted: &dyn Fn(&Value) -> bool) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !unwanted(value))
            .map(|(key, value)| (key.clone(), without(value, unwanted)))
            .collect::<Map<String, Value>>()
            .into(),
        Value::Array(values) => values.iter().map(|v| without(v, unwanted)).collect(),
        other => other.clone(),
    }
}
