//! What a host says.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::{
    DecodeError, json, json_text, now_ms,
    proto::{self, proxy_to_agent::Message},
    small,
};
use crate::{
    Text,
    control::{Cancel, CancelReason, Ping},
    event::{
        BodyChunk, Configure, Event, EventKind, Guardrail, GuardrailCheck, Metadata, Opcode,
        RequestComplete, RequestHeaders, ResponseHeaders, WebSocketFrame,
    },
    headers::Headers,
};

/// What a host said.
#[derive(Debug)]
pub(crate) enum ReceivedEvent {
    /// It opens the stream.
    Handshake(proto::HandshakeRequest),
    /// It asks.
    Event(Box<Event>),
    /// It asks, and this cannot be read: the answer is a block.
    Undecodable(Text, EventKind, DecodeError),
    /// It does not wait any more.
    Cancel(Cancel),
    /// It wants to know whether anyone is there.
    Ping(Ping),
    /// Something that this version does not know.
    Unknown,
}

/// An event as a message; `ours` is whether the peer reads the numbers from 1000.
pub(crate) fn message(event: Event, ours: bool) -> Message {
    match event {
        Event::RequestHeaders(event) => Message::RequestHeaders(request_headers(&event, ours)),
        Event::RequestBody(chunk) => Message::RequestBodyChunk(body_chunk(chunk)),
        Event::ResponseHeaders(event) => Message::ResponseHeaders(proto::ResponseHeadersEvent {
            correlation_id: event.id().to_owned(),
            status_code: event.status().into(),
            headers: headers(event.headers()),
        }),
        Event::ResponseBody(chunk) => Message::ResponseBodyChunk(body_chunk(chunk)),
        Event::RequestComplete(event) => Message::RequestComplete(proto::RequestCompleteEvent {
            correlation_id: event.correlation_id.to_string(),
            status_code: event.status.into(),
            duration_ms: event.duration_ms,
            bytes_received: event.request_body_size,
            bytes_sent: event.response_body_size,
            upstream: None,
            from_cache: false,
            error: event.error,
            upstream_attempts: event.upstream_attempts,
        }),
        Event::WebSocketFrame(frame) => Message::WebsocketFrame(proto::WebSocketFrameEvent {
            correlation_id: frame.correlation_id.to_string(),
            client_to_server: frame.client_to_server,
            frame_type: frame_type(frame.opcode),
            payload: frame.data,
            frame_index: frame.index,
            unfinished: !frame.fin,
            route_id: frame.route_id,
            client_ip: frame.client_ip,
        }),
        Event::Guardrail(event) => Message::Guardrail(guardrail(event)),
        Event::Configure(event) => Message::Configure(proto::ConfigureEvent {
            config_json: json_text(&event.config),
            config_version: event.config_version,
            is_initial: false,
            timestamp_ms: now_ms(),
            correlation_id: event.correlation_id.to_string(),
        }),
    }
}

/// What a message says.
pub(crate) fn to_agent(message: proto::ProxyToAgent) -> ReceivedEvent {
    let Some(message) = message.message else {
        return ReceivedEvent::Unknown;
    };
    let read = match message {
        Message::Handshake(handshake) => return ReceivedEvent::Handshake(handshake),
        Message::Cancel(cancel) => {
            return ReceivedEvent::Cancel(Cancel {
                correlation_id: cancel.correlation_id.into(),
                reason: reason(cancel.reason),
                timestamp_ms: cancel.timestamp_ms,
            });
        }
        Message::Ping(ping) => {
            return ReceivedEvent::Ping(Ping {
                sequence: ping.sequence,
                timestamp_ms: ping.timestamp_ms,
            });
        }
        Message::RequestHeaders(event) => read_request_headers(event),
        Message::RequestBodyChunk(chunk) => Ok(Event::RequestBody(read_chunk(chunk))),
        Message::ResponseHeaders(event) => match small(event.status_code, "status") {
            Ok(status) => Ok(Event::ResponseHeaders(ResponseHeaders::new(
                &event.correlation_id,
                status,
                pairs(&event.headers),
            ))),
            Err(error) => Err((event.correlation_id, EventKind::ResponseHeaders, error)),
        },
        Message::ResponseBodyChunk(chunk) => Ok(Event::ResponseBody(read_chunk(chunk))),
        Message::RequestComplete(event) => read_complete(event),
        Message::WebsocketFrame(frame) => read_frame(frame),
        Message::Guardrail(event) => read_guardrail(event),
        Message::Configure(event) => match json(&event.config_json) {
            Ok(config) => Ok(Event::Configure(Configure {
                correlation_id: event.correlation_id.into(),
                config,
                config_version: event.config_version,
            })),
            Err(error) => Err((event.correlation_id, EventKind::Configure, error)),
        },
    };
    match read {
        Ok(event) => ReceivedEvent::Event(Box::new(event)),
        Err((id, kind, error)) => ReceivedEvent::Undecodable(id.into(), kind, error),
    }
}

/// The number of a reason over gRPC.
pub(crate) fn reason_code(reason: CancelReason) -> i32 {
    match reason {
        CancelReason::ClientDisconnect => 1,
        CancelReason::Timeout => 2,
        CancelReason::BlockedByAgent => 3,
        CancelReason::UpstreamError => 4,
        CancelReason::ProxyShutdown => 5,
        CancelReason::Manual => 6,
    }
}

fn reason(code: i32) -> CancelReason {
    match code {
        1 => CancelReason::ClientDisconnect,
        2 => CancelReason::Timeout,
        3 => CancelReason::BlockedByAgent,
        4 => CancelReason::UpstreamError,
        5 => CancelReason::ProxyShutdown,
        _ => CancelReason::Manual,
    }
}

type EventResult = Result<Event, (String, EventKind, DecodeError)>;

fn request_headers(event: &RequestHeaders, ours: bool) -> proto::RequestHeadersEvent {
    let metadata = event.metadata();
    let owned = |text: Option<&str>| text.map(str::to_owned);
    proto::RequestHeadersEvent {
        metadata: Some(proto::RequestMetadata {
            correlation_id: metadata.correlation_id.to_owned(),
            request_id: metadata.request_id.to_owned(),
            client_ip: metadata.client_ip.to_owned(),
            client_port: metadata.client_port.into(),
            server_name: owned(metadata.server_name),
            protocol: metadata.protocol.to_owned(),
            tls_version: owned(metadata.tls_version),
            route_id: owned(metadata.route_id),
            upstream_id: owned(metadata.upstream_id),
            timestamp_ms: milliseconds(metadata.timestamp),
            traceparent: owned(metadata.traceparent),
            tls_cipher: owned(metadata.tls_cipher),
            timestamp: ours.then(|| metadata.timestamp.to_owned()),
        }),
        method: event.method().to_owned(),
        uri: event.uri().to_owned(),
        http_version: metadata.protocol.to_owned(),
        headers: headers(event.headers()),
    }
}

fn read_request_headers(event: proto::RequestHeadersEvent) -> EventResult {
    let of = event.metadata.unwrap_or_default();
    let client_port = match small(of.client_port, "port") {
        Ok(port) => port,
        Err(error) => return Err((of.correlation_id, EventKind::RequestHeaders, error)),
    };
    let written = of.timestamp.is_none().then(|| time(of.timestamp_ms));
    let protocol = match of.protocol.as_str() {
        "" => &event.http_version,
        protocol => protocol,
    };
    let metadata = Metadata {
        correlation_id: &of.correlation_id,
        request_id: &of.request_id,
        client_ip: &of.client_ip,
        client_port,
        server_name: of.server_name.as_deref(),
        protocol,
        tls_version: of.tls_version.as_deref(),
        tls_cipher: of.tls_cipher.as_deref(),
        route_id: of.route_id.as_deref(),
        upstream_id: of.upstream_id.as_deref(),
        timestamp: of.timestamp.as_deref().or(written.as_deref()).unwrap_or(""),
        traceparent: of.traceparent.as_deref(),
    };
    let headers = pairs(&event.headers);
    let event = RequestHeaders::new(&metadata, &event.method, &event.uri, headers);
    Ok(Event::RequestHeaders(event))
}

/// Milliseconds since 1970 of a time as RFC 3339 has it; 0 where it is none.
fn milliseconds(text: &str) -> u64 {
    humantime::parse_rfc3339_weak(text)
        .ok()
        .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

/// The other way. What lies beyond the year 9999 is not a time.
fn time(milliseconds: u64) -> String {
    const BEYOND: u64 = 253_402_300_800_000;
    match milliseconds {
        BEYOND.. => String::new(),
        _ => {
            let time = SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds);
            humantime::format_rfc3339_millis(time).to_string()
        }
    }
}

fn headers(of: &Headers) -> Vec<proto::Header> {
    of.iter()
        .map(|(name, value)| proto::Header {
            name: name.to_owned(),
            value: value.to_owned(),
        })
        .collect()
}

fn pairs(headers: &[proto::Header]) -> impl Iterator<Item = (&str, &str)> {
    headers
        .iter()
        .map(|header| (header.name.as_str(), header.value.as_str()))
}

fn body_chunk(chunk: BodyChunk) -> proto::BodyChunkEvent {
    proto::BodyChunkEvent {
        correlation_id: chunk.correlation_id.to_string(),
        chunk_index: chunk.index,
        data: chunk.data,
        is_last: chunk.is_last,
        total_size: chunk.total_size,
        bytes_transferred: chunk.transferred,
        proxy_buffer_available: 0,
        timestamp_ms: 0,
    }
}

fn read_chunk(chunk: proto::BodyChunkEvent) -> BodyChunk {
    BodyChunk {
        correlation_id: chunk.correlation_id.into(),
        data: chunk.data,
        is_last: chunk.is_last,
        total_size: chunk.total_size,
        index: chunk.chunk_index,
        transferred: chunk.bytes_transferred,
    }
}

fn read_complete(event: proto::RequestCompleteEvent) -> EventResult {
    let status = match small(event.status_code, "status") {
        Ok(status) => status,
        Err(error) => return Err((event.correlation_id, EventKind::RequestComplete, error)),
    };
    Ok(Event::RequestComplete(RequestComplete {
        correlation_id: event.correlation_id.into(),
        status,
        duration_ms: event.duration_ms,
        request_body_size: event.bytes_received,
        response_body_size: event.bytes_sent,
        upstream_attempts: event.upstream_attempts,
        error: event.error,
    }))
}

const FRAME_TYPES: [Opcode; 6] = [
    Opcode::Continuation,
    Opcode::Text,
    Opcode::Binary,
    Opcode::Ping,
    Opcode::Pong,
    Opcode::Close,
];

fn frame_type(opcode: Opcode) -> i32 {
    (0..)
        .zip(FRAME_TYPES)
        .find(|(_, known)| *known == opcode)
        .map_or(0, |(code, _)| code)
}

fn read_frame(frame: proto::WebSocketFrameEvent) -> EventResult {
    let opcode = usize::try_from(frame.frame_type)
        .ok()
        .and_then(|code| FRAME_TYPES.get(code));
    let Some(opcode) = opcode else {
        let error = DecodeError(format!(
            "{} is not a WebSocket frame type",
            frame.frame_type
        ));
        return Err((frame.correlation_id, EventKind::WebSocketFrame, error));
    };
    Ok(Event::WebSocketFrame(WebSocketFrame {
        correlation_id: frame.correlation_id.into(),
        opcode: *opcode,
        data: frame.payload,
        client_to_server: frame.client_to_server,
        index: frame.frame_index,
        fin: !frame.unfinished,
        route_id: frame.route_id,
        client_ip: frame.client_ip,
    }))
}

/// What `context_json` of ours holds; each may be missing in a foreign one.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct GuardrailContext {
    inspection_type: GuardrailCheck,
    categories: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route_id: Option<String>,
    metadata: BTreeMap<String, String>,
}

fn guardrail(event: Guardrail) -> proto::GuardrailInspectEvent {
    let context = GuardrailContext {
        inspection_type: event.inspection_type,
        categories: event.categories,
        route_id: event.route_id,
        metadata: event.metadata,
    };
    proto::GuardrailInspectEvent {
        correlation_id: event.correlation_id.to_string(),
        content: event.content,
        content_type: proto::GuardrailContentType::Prompt.into(),
        model: event.model,
        context_json: serde_json::to_string(&context).unwrap_or_default(),
    }
}

fn read_guardrail(event: proto::GuardrailInspectEvent) -> EventResult {
    let context = match event.context_json.as_str() {
        "" => Ok(GuardrailContext::default()),
        text => serde_json::from_str(text),
    };
    let context = match context {
        Ok(context) => context,
        Err(error) => {
            let error = DecodeError(error.to_string());
            return Err((event.correlation_id, EventKind::Guardrail, error));
        }
    };
    Ok(Event::Guardrail(Guardrail {
        correlation_id: event.correlation_id.into(),
        inspection_type: context.inspection_type,
        content: event.content,
        model: event.model,
        categories: context.categories,
        route_id: context.route_id,
        metadata: context.metadata,
    }))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn there_and_back(event: &Event, ours: bool) -> ReceivedEvent {
        let message = Some(message(event.clone(), ours));
        to_agent(proto::ProxyToAgent { message, ticket: 0 })
    }

    fn head(timestamp: &str) -> Event {
        let metadata = Metadata {
            correlation_id: "c1",
            request_id: "r1",
            client_ip: "192.0.2.1",
            client_port: 7,
            protocol: "HTTP/2",
            tls_cipher: Some("TLS_AES_128_GCM_SHA256"),
            timestamp,
            ..Metadata::default()
        };
        let headers = [("a", "1"), ("b", "2"), ("A", "3")];
        Event::RequestHeaders(RequestHeaders::new(&metadata, "GET", "/x?y", headers))
    }

    #[test]
    fn every_event_comes_to_one_of_ours_as_it_left() {
        let chunk = BodyChunk {
            correlation_id: "c1".into(),
            data: Bytes::from_static(b"\xff\x00"),
            is_last: true,
            total_size: Some(2),
            index: 3,
            transferred: 9,
        };
        let frame = WebSocketFrame {
            correlation_id: "c1".into(),
            opcode: Opcode::Continuation,
            data: Bytes::from_static(b"\xff"),
            client_to_server: true,
            index: 4,
            fin: false,
            route_id: Some("r".to_owned()),
            client_ip: "192.0.2.1".to_owned(),
        };
        let guardrail = Guardrail {
            correlation_id: "c1".into(),
            inspection_type: GuardrailCheck::PiiDetection,
            content: "text".to_owned(),
            model: Some("m".to_owned()),
            categories: vec!["email".to_owned()],
            route_id: Some("r".to_owned()),
            metadata: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
        };
        let complete = RequestComplete {
            correlation_id: "c1".into(),
            status: 204,
            duration_ms: 5,
            request_body_size: 6,
            response_body_size: 7,
            upstream_attempts: 2,
            error: Some("e".to_owned()),
        };
        let configure = Configure {
            correlation_id: "c1".into(),
            config: serde_json::json!({"a": [1]}),
            config_version: Some("7".to_owned()),
        };
        let events = [
            head("2026-01-02T03:04:05.678901Z"),
            Event::RequestBody(chunk.clone()),
            Event::ResponseHeaders(ResponseHeaders::new("c1", 404, [("x", "y")])),
            Event::ResponseBody(chunk),
            Event::RequestComplete(complete),
            Event::WebSocketFrame(frame),
            Event::Guardrail(guardrail),
            Event::Configure(configure),
        ];
        for event in &events {
            let came = there_and_back(event, true);
            assert!(
                matches!(&came, ReceivedEvent::Event(read) if **read == *event),
                "{event:?} {came:?}"
            );
        }
    }

    #[test]
    fn a_foreign_peer_sees_the_time_in_milliseconds() {
        let came = there_and_back(&head("2026-01-02T03:04:05.678901Z"), false);
        let ReceivedEvent::Event(event) = came else {
            panic!("{came:?}");
        };
        let Event::RequestHeaders(head) = *event else {
            panic!("{event:?}");
        };
        assert_eq!(head.metadata().timestamp, "2026-01-02T03:04:05.678Z");
        assert_eq!(time(u64::MAX), "");
    }

    #[test]
    fn what_cannot_be_read_still_says_whose_it_is() {
        let message = Message::ResponseHeaders(proto::ResponseHeadersEvent {
            correlation_id: "c9".to_owned(),
            status_code: 70_000,
            headers: Vec::new(),
        });
        let message = Some(message);
        let came = to_agent(proto::ProxyToAgent { message, ticket: 0 });
        let ReceivedEvent::Undecodable(id, EventKind::ResponseHeaders, _) = came else {
            panic!("{came:?}");
        };
        assert_eq!(&*id, "c9");
    }
}
