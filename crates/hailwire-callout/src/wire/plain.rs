//! Both encodings in the plainest way, through serde: the oracle of the fast ones.

use std::collections::BTreeMap;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned},
};

use super::{DecodeError, Encoding};
use crate::{
    Text, VERSION,
    event::{
        BodyChunk, Event, EventKind, Metadata, Opcode, RequestHeaders, ResponseHeaders,
        WebSocketFrame,
    },
    headers::{HeaderValues, Headers},
    response::{Audit, BodyMutation, Decision, HeaderOp, Response, WebSocketDecision},
};

/// Appends the payload of an event's frame.
pub fn encode_event(event: &Event, encoding: Encoding, out: &mut BytesMut) {
    match event {
        Event::RequestHeaders(event) => put(&RequestHeadMessage::of(event), encoding, out),
        Event::RequestBody(chunk) => put(&ChunkMessage::of(chunk, true), encoding, out),
        Event::ResponseHeaders(event) => put(&ResponseHeadMessage::of(event), encoding, out),
        Event::ResponseBody(chunk) => put(&ChunkMessage::of(chunk, false), encoding, out),
        Event::RequestComplete(event) => put(event, encoding, out),
        Event::WebSocketFrame(frame) => put(&WebSocketMessage::of(frame), encoding, out),
        Event::Guardrail(event) => put(event, encoding, out),
        Event::Configure(event) => put(event, encoding, out),
    }
}

/// Reads the payload of an event's frame.
///
/// # Errors
///
/// [`DecodeError`].
pub fn decode_event(
    kind: EventKind,
    payload: &[u8],
    encoding: Encoding,
) -> Result<Event, DecodeError> {
    Ok(match kind {
        EventKind::RequestHeaders => {
            Event::RequestHeaders(take::<RequestHeadMessage>(payload, encoding)?.into_head())
        }
        EventKind::RequestBody => {
            Event::RequestBody(take::<ChunkMessage>(payload, encoding)?.into_chunk()?)
        }
        EventKind::ResponseHeaders => {
            Event::ResponseHeaders(take::<ResponseHeadMessage>(payload, encoding)?.into_head())
        }
        EventKind::ResponseBody => {
            Event::ResponseBody(take::<ChunkMessage>(payload, encoding)?.into_chunk()?)
        }
        EventKind::RequestComplete => Event::RequestComplete(take(payload, encoding)?),
        EventKind::WebSocketFrame => {
            Event::WebSocketFrame(take::<WebSocketMessage>(payload, encoding)?.into_frame()?)
        }
        EventKind::Guardrail => Event::Guardrail(take(payload, encoding)?),
        EventKind::Configure => Event::Configure(take(payload, encoding)?),
    })
}

/// Appends the payload of an answer's frame.
pub fn encode_response(id: &str, response: &Response, encoding: Encoding, out: &mut BytesMut) {
    let mut audit = response.audit.clone();
    let id = serde_json::Value::String(id.to_owned());
    audit.custom.insert(ID.to_owned(), id);
    let answer = AnswerMessage {
        version: VERSION,
        decision: response.decision.clone(),
        request_headers: response.request_headers.clone(),
        response_headers: response.response_headers.clone(),
        routing_metadata: response.routing_metadata.clone(),
        audit,
        needs_more: response.needs_more,
        request_body_mutation: response.request_body.as_ref().map(MutationMessage::of),
        response_body_mutation: response.response_body.as_ref().map(MutationMessage::of),
        websocket_decision: response.websocket.clone(),
    };
    put(&answer, encoding, out);
}

/// Reads the payload of an answer's frame.
///
/// # Errors
///
/// [`DecodeError`].
pub fn decode_response(
    payload: &[u8],
    encoding: Encoding,
) -> Result<(Text, Response), DecodeError> {
    let mut answer: AnswerMessage = take(payload, encoding)?;
    let id = match answer.audit.custom.remove(ID) {
        Some(serde_json::Value::String(id)) => Text::from(id),
        _ => return Err(DecodeError("the answer has no correlation id".to_owned())),
    };
    let mutation = |mutation: Option<MutationMessage>| {
        mutation.map(MutationMessage::into_mutation).transpose()
    };
    let response = Response {
        decision: answer.decision,
        request_headers: answer.request_headers,
        response_headers: answer.response_headers,
        routing_metadata: answer.routing_metadata,
        audit: answer.audit,
        needs_more: answer.needs_more,
        request_body: mutation(answer.request_body_mutation)?,
        response_body: mutation(answer.response_body_mutation)?,
        websocket: answer.websocket_decision,
    };
    Ok((id, response))
}

/// Where an answer says to what.
const ID: &str = "correlation_id";

pub(super) fn put(value: &impl Serialize, encoding: Encoding, out: &mut BytesMut) {
    let mut writer = out.writer();
    let written = match encoding {
        Encoding::Json => serde_json::to_writer(&mut writer, value).map_err(|e| e.to_string()),
        Encoding::MessagePack => {
            rmp_serde::encode::write_named(&mut writer, value).map_err(|e| e.to_string())
        }
    };
    debug_assert!(written.is_ok(), "memory takes everything: {written:?}");
}

pub(super) fn take<T: DeserializeOwned>(
    payload: &[u8],
    encoding: Encoding,
) -> Result<T, DecodeError> {
    match encoding {
        Encoding::Json => serde_json::from_slice(payload).map_err(|e| DecodeError(e.to_string())),
        Encoding::MessagePack => {
            let mut rest = payload;
            let mut deserializer = rmp_serde::Deserializer::new(&mut rest);
            deserializer.set_max_depth(MAX_DEPTH);
            let value =
                T::deserialize(&mut deserializer).map_err(|e| DecodeError(e.to_string()))?;
            if rest.is_empty() {
                Ok(value)
            } else {
                Err(DecodeError(format!("{} bytes after the end", rest.len())))
            }
        }
    }
}

/// How deep values may lie in each other, as `serde_json` has it.
const MAX_DEPTH: usize = 128;

fn base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

fn from_base64(text: &str) -> Result<Bytes, DecodeError> {
    base64_simd::STANDARD
        .decode_to_vec(text)
        .map(Bytes::from)
        .map_err(|_| DecodeError("the data is not valid base64".to_owned()))
}

/// Names and their values, in their order.
#[derive(Default)]
struct HeaderFields(Vec<(String, Vec<String>)>);

impl HeaderFields {
    fn of(headers: &Headers) -> Self {
        let own = |(name, values): (&str, HeaderValues<'_>)| {
            (name.to_owned(), values.map(str::to_owned).collect())
        };
        Self(headers.names().map(own).collect())
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .flat_map(|(name, values)| values.iter().map(move |v| (name.as_str(), v.as_str())))
    }
}

impl Serialize for HeaderFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, values)| (name, values)))
    }
}

impl<'de> Deserialize<'de> for HeaderFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> de::Visitor<'de> for FieldsVisitor {
            type Value = HeaderFields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map of names to lists of values")
            }

            fn visit_map<A: de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<HeaderFields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(HeaderFields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[derive(Serialize, Deserialize)]
struct RequestHeadMessage {
    metadata: MetadataMessage,
    method: String,
    uri: String,
    headers: HeaderFields,
}

#[derive(Serialize, Deserialize)]
struct MetadataMessage {
    correlation_id: String,
    request_id: String,
    client_ip: String,
    client_port: u16,
    server_name: Option<String>,
    protocol: String,
    tls_version: Option<String>,
    tls_cipher: Option<String>,
    route_id: Option<String>,
    upstream_id: Option<String>,
    timestamp: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
}

impl RequestHeadMessage {
    fn of(head: &RequestHeaders) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let of = head.metadata();
        Self {
            metadata: MetadataMessage {
                correlation_id: of.correlation_id.to_owned(),
                request_id: of.request_id.to_owned(),
                client_ip: of.client_ip.to_owned(),
                client_port: of.client_port,
                server_name: owned(of.server_name),
                protocol: of.protocol.to_owned(),
                tls_version: owned(of.tls_version),
                tls_cipher: owned(of.tls_cipher),
                route_id: owned(of.route_id),
                upstream_id: owned(of.upstream_id),
                timestamp: of.timestamp.to_owned(),
                traceparent: owned(of.traceparent),
            },
            method: head.method().to_owned(),
            uri: head.uri().to_owned(),
            headers: HeaderFields::of(head.headers()),
        }
    }

    fn into_head(self) -> RequestHeaders {
        let of = &self.metadata;
        let metadata = Metadata {
            correlation_id: &of.correlation_id,
            request_id: &of.request_id,
            client_ip: &of.client_ip,
            client_port: of.client_port,
            server_name: of.server_name.as_deref(),
            protocol: &of.protocol,
            tls_version: of.tls_version.as_deref(),
            tls_cipher: of.tls_cipher.as_deref(),
            route_id: of.route_id.as_deref(),
            upstream_id: of.upstream_id.as_deref(),
            timestamp: &of.timestamp,
            traceparent: of.traceparent.as_deref(),
        };
        RequestHeaders::new(&metadata, &self.method, &self.uri, self.headers.pairs())
    }
}

#[derive(Serialize, Deserialize)]
struct ResponseHeadMessage {
    correlation_id: String,
    status: u16,
    headers: HeaderFields,
}

impl ResponseHeadMessage {
    fn of(head: &ResponseHeaders) -> Self {
        Self {
            correlation_id: head.id().to_owned(),
            status: head.status(),
            headers: HeaderFields::of(head.headers()),
        }
    }

    fn into_head(self) -> ResponseHeaders {
        ResponseHeaders::new(&self.correlation_id, self.status, self.headers.pairs())
    }
}

#[derive(Serialize, Deserialize)]
struct ChunkMessage {
    correlation_id: Text,
    data: String,
    is_last: bool,
    #[serde(default)]
    total_size: Option<u64>,
    #[serde(default)]
    chunk_index: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_received: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_sent: Option<u64>,
}

impl ChunkMessage {
    fn of(chunk: &BodyChunk, request: bool) -> Self {
        Self {
            correlation_id: chunk.correlation_id.clone(),
            data: base64(&chunk.data),
            is_last: chunk.is_last,
            total_size: chunk.total_size,
            chunk_index: chunk.index,
            bytes_received: request.then_some(chunk.transferred),
            bytes_sent: (!request).then_some(chunk.transferred),
        }
    }

    fn into_chunk(self) -> Result<BodyChunk, DecodeError> {
        Ok(BodyChunk {
            correlation_id: self.correlation_id,
            data: from_base64(&self.data)?,
            is_last: self.is_last,
            total_size: self.total_size,
            index: self.chunk_index,
            transferred: self.bytes_received.or(self.bytes_sent).unwrap_or(0),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WebSocketMessage {
    correlation_id: Text,
    opcode: Opcode,
    data: String,
    client_to_server: bool,
    frame_index: u64,
    fin: bool,
    #[serde(default)]
    route_id: Option<String>,
    client_ip: String,
}

impl WebSocketMessage {
    fn of(frame: &WebSocketFrame) -> Self {
        Self {
            correlation_id: frame.correlation_id.clone(),
            opcode: frame.opcode,
            data: base64(&frame.data),
            client_to_server: frame.client_to_server,
            frame_index: frame.index,
            fin: frame.fin,
            route_id: frame.route_id.clone(),
            client_ip: frame.client_ip.clone(),
        }
    }

    fn into_frame(self) -> Result<WebSocketFrame, DecodeError> {
        Ok(WebSocketFrame {
            correlation_id: self.correlation_id,
            opcode: self.opcode,
            data: from_base64(&self.data)?,
            client_to_server: self.client_to_server,
            index: self.frame_index,
            fin: self.fin,
            route_id: self.route_id,
            client_ip: self.client_ip,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct AnswerMessage {
    version: u32,
    decision: Decision,
    #[serde(default)]
    request_headers: Vec<HeaderOp>,
    #[serde(default)]
    response_headers: Vec<HeaderOp>,
    #[serde(default)]
    routing_metadata: BTreeMap<String, String>,
    #[serde(default)]
    audit: Audit,
    #[serde(default)]
    needs_more: bool,
    #[serde(default)]
    request_body_mutation: Option<MutationMessage>,
    #[serde(default)]
    response_body_mutation: Option<MutationMessage>,
    #[serde(default)]
    websocket_decision: Option<WebSocketDecision>,
}

#[derive(Serialize, Deserialize)]
struct MutationMessage {
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    chunk_index: u32,
}

impl MutationMessage {
    fn of(mutation: &BodyMutation) -> Self {
        Self {
            data: mutation.data.as_deref().map(base64),
            chunk_index: mutation.index,
        }
    }

    fn into_mutation(self) -> Result<BodyMutation, DecodeError> {
        Ok(BodyMutation {
            index: self.chunk_index,
            data: self.data.as_deref().map(from_base64).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_in_both_encodings() {
        let metadata = Metadata {
            correlation_id: "c1",
            client_port: 7,
            ..Metadata::default()
        };
        let head = RequestHeaders::new(&metadata, "GET", "/", [("a", "1"), ("A", "2")]);
        let chunk = BodyChunk {
            correlation_id: "c1".into(),
            data: Bytes::from_static(b"\xff\x00"),
            is_last: true,
            total_size: None,
            index: 3,
            transferred: 2,
        };
        let events = [
            Event::RequestHeaders(head),
            Event::RequestBody(chunk.clone()),
            Event::ResponseBody(chunk),
            Event::WebSocketFrame(WebSocketFrame::default()),
        ];
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            for event in &events {
                let mut out = BytesMut::new();
                encode_event(event, encoding, &mut out);
                let read = decode_event(event.kind(), &out, encoding);
                assert_eq!(read.as_ref().ok(), Some(event), "{read:?}");
            }
            let mut out = BytesMut::new();
            encode_response("c1", &Response::block(403), encoding, &mut out);
            let (id, read) = decode_response(&out, encoding).unwrap();
            assert_eq!((&*id, read), ("c1", Response::block(403)));
        }
    }
}
