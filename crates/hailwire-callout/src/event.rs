//! Events: what a host sends an agent.
//!
//! Each event belongs to one request and carries its correlation id, which the host chooses, unique among
//! the requests that it has in flight on a connection.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Text,
    headers::{self, Headers},
};

/// The kinds of events, as an agent lists them in its capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// The head of a request.
    RequestHeaders,
    /// A chunk of a request's body.
    RequestBody,
    /// The head of a response.
    ResponseHeaders,
    /// A chunk of a response's body.
    ResponseBody,
    /// A request has ended; for records.
    RequestComplete,
    /// A WebSocket frame, in either direction.
    WebSocketFrame,
    /// A text for or from a language model.
    Guardrail,
    /// The agent's configuration.
    Configure,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::RequestHeaders,
        Self::RequestBody,
        Self::ResponseHeaders,
        Self::ResponseBody,
        Self::RequestComplete,
        Self::WebSocketFrame,
        Self::Guardrail,
        Self::Configure,
    ];

    /// The name that operators write in configuration, such as `request_headers`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestHeaders => "request_headers",
            Self::RequestBody => "request_body_chunk",
            Self::ResponseHeaders => "response_headers",
            Self::ResponseBody => "response_body_chunk",
            Self::RequestComplete => "request_complete",
            Self::WebSocketFrame => "websocket_frame",
            Self::Guardrail => "guardrail_inspect",
            Self::Configure => "configure",
        }
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is named like what it carries")]
pub enum Event {
    RequestHeaders(RequestHeaders),
    RequestBody(BodyChunk),
    ResponseHeaders(ResponseHeaders),
    ResponseBody(BodyChunk),
    RequestComplete(RequestComplete),
    WebSocketFrame(WebSocketFrame),
    Guardrail(Guardrail),
    Configure(Configure),
}

impl Event {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> EventKind {
        match self {
            Self::RequestHeaders(_) => EventKind::RequestHeaders,
            Self::RequestBody(_) => EventKind::RequestBody,
            Self::ResponseHeaders(_) => EventKind::ResponseHeaders,
            Self::ResponseBody(_) => EventKind::ResponseBody,
            Self::RequestComplete(_) => EventKind::RequestComplete,
            Self::WebSocketFrame(_) => EventKind::WebSocketFrame,
            Self::Guardrail(_) => EventKind::Guardrail,
            Self::Configure(_) => EventKind::Configure,
        }
    }

    /// The correlation id of the request that it belongs to.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::RequestHeaders(event) => event.id(),
            Self::RequestBody(event) | Self::ResponseBody(event) => &event.correlation_id,
            Self::ResponseHeaders(event) => event.id(),
            Self::RequestComplete(event) => &event.correlation_id,
            Self::WebSocketFrame(event) => &event.correlation_id,
            Self::Guardrail(event) => &event.correlation_id,
            Self::Configure(event) => &event.correlation_id,
        }
    }

    /// The correlation id, as bytes that were checked.
    #[inline]
    pub(crate) fn id_bytes(&self) -> &[u8] {
        match self {
            Self::RequestHeaders(event) => event.bytes(0).unwrap_or_default(),
            Self::ResponseHeaders(event) => event.id_bytes(),
            other => other.id().as_bytes(),
        }
    }
}

/// What a host knows of a request besides its head, to build a [`RequestHeaders`] from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Metadata<'a> {
    /// The id of this request among those in flight.
    pub correlation_id: &'a str,
    /// The request's name in logs.
    pub request_id: &'a str,
    /// The client's IP address.
    pub client_ip: &'a str,
    /// The client's TCP port.
    pub client_port: u16,
    /// The name that the client asked for (TLS SNI, or the host).
    pub server_name: Option<&'a str>,
    /// Such as `HTTP/1.1`.
    pub protocol: &'a str,
    /// Such as `TLSv1.3`.
    pub tls_version: Option<&'a str>,
    /// The cipher suite.
    pub tls_cipher: Option<&'a str>,
    /// The route that the host chose.
    pub route_id: Option<&'a str>,
    /// The upstream that the host chose.
    pub upstream_id: Option<&'a str>,
    /// When the request came, as RFC 3339 has it.
    pub timestamp: &'a str,
    /// The W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<&'a str>,
}

/// What a request's metadata has, in the protocol's order.
pub(crate) const METADATA: [&str; 12] = [
    "correlation_id",
    "request_id",
    "client_ip",
    "client_port",
    "server_name",
    "protocol",
    "tls_version",
    "tls_cipher",
    "route_id",
    "upstream_id",
    "timestamp",
    "traceparent",
];
/// Of the method among [`RequestIndex::texts`].
pub(crate) const METHOD: usize = METADATA.len();
/// Of the uri.
pub(crate) const URI: usize = METHOD + 1;

/// The text whose marker is there.
fn text_at(arena: &Bytes, at: u32) -> Option<&[u8]> {
    let rest = arena.get(at as usize..)?;
    let (length, rest) = match rest {
        [marker @ 0xa0..=0xbf, rest @ ..] => (usize::from(marker & 0x1f), rest),
        [0xd9, length, rest @ ..] => (usize::from(*length), rest),
        [0xda, a, b, rest @ ..] => (usize::from(u16::from_be_bytes([*a, *b])), rest),
        [0xdb, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return None,
    };
    rest.get(..length)
}

/// The head of a request, kept as it travels: one stretch of bytes and where in it what is.
#[derive(Clone)]
pub struct RequestHeaders {
    /// With the bytes that everything lies in.
    headers: Headers,
    at: RequestIndex,
}

/// Where the texts of a request's head begin; 0 for what is not there.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestIndex {
    /// In the order of [`METADATA`], and then the method and the uri.
    pub(crate) texts: [u32; URI + 1],
    pub(crate) client_port: u16,
    /// The stretch from the key `metadata` up to the end of the uri.
    pub(crate) fields: (u32, u32),
}

impl RequestHeaders {
    pub(crate) const fn within(headers: Headers, at: RequestIndex) -> Self {
        Self { headers, at }
    }

    pub(crate) const fn index(&self) -> &RequestIndex {
        &self.at
    }

    /// The text at an index of [`RequestIndex::texts`], as bytes that were checked.
    pub(crate) fn bytes(&self, index: usize) -> Option<&[u8]> {
        match self.at.texts.get(index) {
            None | Some(0) => None,
            Some(at) => text_at(self.headers.arena(), *at),
        }
    }

    fn optional(&self, index: usize) -> Option<&str> {
        self.bytes(index).map(headers::text)
    }

    fn text(&self, index: usize) -> &str {
        self.optional(index).unwrap_or_default()
    }

    /// The correlation id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text(0)
    }

    /// What the host knows of the request.
    #[must_use]
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata {
            correlation_id: self.text(0),
            request_id: self.text(1),
            client_ip: self.text(2),
            client_port: self.at.client_port,
            server_name: self.optional(4),
            protocol: self.text(5),
            tls_version: self.optional(6),
            tls_cipher: self.optional(7),
            route_id: self.optional(8),
            upstream_id: self.optional(9),
            timestamp: self.text(10),
            traceparent: self.optional(11),
        }
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &str {
        self.text(METHOD)
    }

    /// The request target, with its query.
    #[must_use]
    pub fn uri(&self) -> &str {
        self.text(URI)
    }

    /// The header fields.
    #[must_use]
    pub const fn headers(&self) -> &Headers {
        &self.headers
    }
}

impl PartialEq for RequestHeaders {
    fn eq(&self, other: &Self) -> bool {
        self.metadata() == other.metadata()
            && self.method() == other.method()
            && self.uri() == other.uri()
            && self.headers == other.headers
    }
}

impl Eq for RequestHeaders {}

impl fmt::Debug for RequestHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHeaders")
            .field("metadata", &self.metadata())
            .field("method", &self.method())
            .field("uri", &self.uri())
            .field("headers", &self.headers)
            .finish()
    }
}

/// The head of a response, kept as it travels.
#[derive(Clone)]
pub struct ResponseHeaders {
    headers: Headers,
    /// Where the correlation id is.
    id: u32,
    status: u16,
}

impl ResponseHeaders {
    pub(crate) const fn within(headers: Headers, id: u32, status: u16) -> Self {
        Self {
            headers,
            id,
            status,
        }
    }

    /// The correlation id, as bytes that were checked.
    pub(crate) fn id_bytes(&self) -> &[u8] {
        text_at(self.headers.arena(), self.id).unwrap_or_default()
    }

    /// The correlation id.
    #[must_use]
    pub fn id(&self) -> &str {
        headers::text(self.id_bytes())
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The header fields.
    #[must_use]
    pub const fn headers(&self) -> &Headers {
        &self.headers
    }
}

impl PartialEq for ResponseHeaders {
    fn eq(&self, other: &Self) -> bool {
        self.id_bytes() == other.id_bytes()
            && self.status == other.status
            && self.headers == other.headers
    }
}

impl Eq for ResponseHeaders {}

impl fmt::Debug for ResponseHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseHeaders")
            .field("correlation_id", &self.id())
            .field("status", &self.status)
            .field("headers", &self.headers)
            .finish()
    }
}

/// A chunk of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyChunk {
    /// The request that it belongs to.
    pub correlation_id: Text,
    /// The bytes.
    pub data: Bytes,
    /// Whether the body ends here.
    pub is_last: bool,
    /// The size of the whole body, where it is known beforehand.
    pub total_size: Option<u64>,
    /// How many chunks came before.
    pub index: u32,
    /// Bytes of the body so far, with these.
    pub transferred: u64,
}

/// A request has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestComplete {
    /// The request.
    pub correlation_id: Text,
    /// The status that the client saw.
    pub status: u16,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Bytes of the request's body.
    pub request_body_size: u64,
    /// Bytes of the response's body.
    pub response_body_size: u64,
    /// How often an upstream was tried.
    pub upstream_attempts: u32,
    /// What went wrong.
    #[serde(default)]
    pub error: Option<String>,
}

/// What a WebSocket frame is (RFC 6455, 5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names of the RFC")]
pub enum Opcode {
    Continuation,
    #[default]
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

/// A WebSocket frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebSocketFrame {
    /// The request that became the connection.
    pub correlation_id: Text,
    /// What it is.
    pub opcode: Opcode,
    /// Its payload, unmasked.
    pub data: Bytes,
    /// Whether the client sent it.
    pub client_to_server: bool,
    /// How many frames came before, in this direction.
    pub index: u64,
    /// Whether the message ends here.
    pub fin: bool,
    /// The route.
    pub route_id: Option<String>,
    /// The client's IP address.
    pub client_ip: String,
}

/// What to look for in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardrailCheck {
    /// Instructions to a model where only content should be.
    #[default]
    PromptInjection,
    /// Personal data.
    PiiDetection,
}

/// A text for or from a language model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guardrail {
    /// The request.
    pub correlation_id: Text,
    /// What to look for.
    pub inspection_type: GuardrailCheck,
    /// The text.
    pub content: String,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What to look for, closer.
    #[serde(default)]
    pub categories: Vec<String>,
    /// The route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_id: Option<String>,
    /// Anything else.
    #[serde(default)]
    pub metadata: std::collections::BTreeMap<String, String>,
}

/// The agent's configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configure {
    /// The id of this push.
    pub correlation_id: Text,
    /// What the operator wrote.
    pub config: serde_json::Value,
    /// Its version.
    #[serde(default)]
    pub config_version: Option<String>,
}
