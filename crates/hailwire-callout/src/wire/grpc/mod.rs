//! The same events and answers as messages of gRPC (`proto/agent_v2.proto`).
//!
//! What an event or answer says beyond the messages of the wire travels in fields numbered from 1000, which only peers of ours
//! read. Toward a foreign peer they are written all the same where leaving them out would save nothing, since
//! every reader of protobuf skips what it does not know.
//!
//! | what | how it travels |
//! |---|---|
//! | time of a request | milliseconds; to ours also the text |
//! | what a guardrail looks for | JSON in `context_json`, under the names that the Unix socket has for it |
//! | values of an audit's `custom` | JSON text; what cannot be read as JSON is a text |
//! | a WebSocket continuation | frame type 0, which has no name on the wire |
//! | changed bodies, WebSocket decisions, routing metadata | ours only |

mod answer;
mod event;
mod notice;
mod order;
#[expect(clippy::all, unreachable_pub, reason = "generated")]
pub(crate) mod proto {
    tonic::include_proto!("zentinel.agent.v2");
}

pub(crate) use answer::{answer, response};
pub(crate) use event::{ReceivedEvent, message, reason_code, to_agent};
pub(crate) use notice::{ReceivedNotice, health_status, notice, notified, read_health};
pub(crate) use order::{drain, order, shutdown};

use super::DecodeError;
use crate::{
    VERSION,
    capabilities::{AgentLimits, Capabilities, Features},
    event::EventKind,
};

/// The greatest message, unless said otherwise: what fits into a frame of the Unix socket, and what is around it.
pub(crate) const MAX_MESSAGE: usize = (16 << 20) + (64 << 10);

/// Bytes of one stream that may be under way before its reader has taken them.
pub(crate) const STREAM_WINDOW: u32 = 4 << 20;

/// Bytes of one TCP connection.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;

/// What is said in both handshakes by peers that read the numbers from 1000.
pub(crate) const EXTENSIONS: u32 = 1;

/// Capabilities as a message.
pub(crate) fn capabilities(of: &Capabilities) -> proto::AgentCapabilities {
    let Features {
        streaming_body,
        websocket,
        guardrails,
        config_push,
        metrics_export,
        concurrent_requests,
        cancellation,
        flow_control,
        health_reporting,
    } = of.features;
    proto::AgentCapabilities {
        protocol_version: VERSION,
        agent_id: of.agent_id.clone(),
        name: of.name.clone(),
        version: of.version.clone(),
        supported_events: of.events.iter().map(kind_code).collect(),
        features: Some(proto::AgentFeatures {
            streaming_body,
            websocket,
            guardrails,
            config_push,
            metrics_export,
            concurrent_requests,
            cancellation,
            flow_control,
            health_reporting,
        }),
        limits: Some(proto::AgentLimits {
            max_body_size: of.limits.max_body_size,
            max_concurrency: of.limits.max_concurrency,
            preferred_chunk_size: of.limits.preferred_chunk_size,
            max_memory: None,
            max_processing_time_ms: None,
        }),
        health_config: None,
    }
}

/// Capabilities from a message.
///
/// A limit of 0 is one that was not said, as the kit for TypeScript leaves out `max_concurrency`: the default holds.
/// Nor does it name events; an agent that names none is taken to want every one, since it would be shown nothing otherwise.
pub(crate) fn capabilities_of(message: proto::AgentCapabilities) -> Capabilities {
    let features = message.features.unwrap_or_default();
    let limits = message.limits.unwrap_or_default();
    let default = AgentLimits::default();
    let said = |value: u64, otherwise: u64| if value == 0 { otherwise } else { value };
    let concurrency = match (limits.max_concurrency, features.concurrent_requests) {
        (0, 0) => default.max_concurrency,
        (0, told) | (told, _) => told,
    };
    let events = match message.supported_events.as_slice() {
        [] => EventKind::ALL.into_iter().collect(),
        codes => codes.iter().filter_map(|code| kind(*code)).collect(),
    };
    Capabilities {
        agent_id: message.agent_id,
        name: message.name,
        version: message.version,
        events,
        features: Features {
            streaming_body: features.streaming_body,
            websocket: features.websocket,
            guardrails: features.guardrails,
            config_push: features.config_push,
            metrics_export: features.metrics_export,
            concurrent_requests: features.concurrent_requests,
            cancellation: features.cancellation,
            flow_control: features.flow_control,
            health_reporting: features.health_reporting,
        },
        limits: AgentLimits {
            max_body_size: said(limits.max_body_size, default.max_body_size),
            max_concurrency: concurrency,
            preferred_chunk_size: said(limits.preferred_chunk_size, default.preferred_chunk_size),
        },
    }
}

fn kind_code(kind: EventKind) -> i32 {
    match kind {
        EventKind::RequestHeaders => 1,
        EventKind::RequestBody => 2,
        EventKind::ResponseHeaders => 3,
        EventKind::ResponseBody => 4,
        EventKind::RequestComplete => 5,
        EventKind::WebSocketFrame => 6,
        EventKind::Guardrail => 7,
        EventKind::Configure => 8,
    }
}

fn kind(code: i32) -> Option<EventKind> {
    EventKind::ALL
        .into_iter()
        .find(|kind| kind_code(*kind) == code)
}

/// JSON text into a value; nothing at all is null.
pub(crate) fn json(text: &str) -> Result<serde_json::Value, DecodeError> {
    match text {
        "" => Ok(serde_json::Value::Null),
        text => serde_json::from_str(text).map_err(|e| DecodeError(e.to_string())),
    }
}

/// A value as JSON text; nothing where there is none.
pub(crate) fn json_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => String::new(),
        value => value.to_string(),
    }
}

fn small(number: u32, what: &str) -> Result<u16, DecodeError> {
    u16::try_from(number).map_err(|_| DecodeError(format!("{number} is not a valid {what}")))
}

pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
