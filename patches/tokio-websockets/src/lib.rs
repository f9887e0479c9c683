//! The part of the interface of tokio-websockets 0.13 that iroh-relay 1.4 uses, over `hailwire-websocket`.
//!
//! iroh-relay makes its connections itself, in the hub's relay and in every node that uses a relay, and
//! nothing can be put beneath it. The library that it takes answers pings into a queue without bound and
//! reads a head of any length, so the workspace puts this crate in its place (`[patch.crates-io]`). Names
//! and meanings are that crate's, the code is not. `docs/upstream/tokio-websockets-pongs.md` says what
//! upstream should mend; with that this crate goes.
//!
//! Other than there, text ends the connection, and control frames are never handed out.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use hailwire_websocket::{Role, WebSocket, WebSocketLimits as Terms};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, uri::InvalidUri};
use tokio::io::{AsyncRead, AsyncWrite};

pub use hailwire_websocket::WebSocketError as Error;

/// Longest message where nobody says otherwise, as in tokio-websockets.
const MAX_PAYLOAD: usize = 64 << 20;

/// Bytes that wait for a flush where nobody says otherwise, as in tokio-websockets.
const THRESHOLD: usize = 8192;

/// Longest HTTP head that is taken.
const MAX_HEAD: usize = 16 * 1024;

/// How a connection is run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    flush_threshold: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            flush_threshold: THRESHOLD,
        }
    }
}

impl Config {
    /// Bytes that may wait before a sender has to.
    #[must_use]
    pub const fn flush_threshold(mut self, bytes: usize) -> Self {
        self.flush_threshold = bytes;
        self
    }
}

/// What is taken from the peer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    max_payload_len: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_payload_len: MAX_PAYLOAD,
        }
    }
}

impl Limits {
    /// The longest message.
    #[must_use]
    pub fn max_payload_len(mut self, bytes: Option<usize>) -> Self {
        self.max_payload_len = bytes.unwrap_or(usize::MAX);
        self
    }
}

fn terms(config: Config, limits: Limits) -> Terms {
    Terms {
        max_message: limits.max_payload_len,
        max_head: MAX_HEAD,
        queue: config.flush_threshold,
        ..Terms::default()
    }
}

/// Asks for a WebSocket.
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    uri: Uri,
    headers: HeaderMap,
    config: Config,
    limits: Limits,
}

impl ClientBuilder {
    /// One that asks for nothing so far.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What to ask for.
    ///
    /// # Errors
    ///
    /// It is no URI.
    pub fn uri(mut self, uri: &str) -> Result<Self, InvalidUri> {
        self.uri = uri.parse()?;
        Ok(self)
    }

    /// Adds a header field.
    ///
    /// # Errors
    ///
    /// Never; the original refuses those that it sets itself.
    pub fn add_header(mut self, name: HeaderName, value: HeaderValue) -> Result<Self, Error> {
        self.headers.insert(name, value);
        Ok(self)
    }

    /// How the connection is run.
    #[must_use]
    pub const fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// What is taken from the peer.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Asks on a connection.
    ///
    /// # Errors
    ///
    /// The far side answers anything but an upgrade.
    pub async fn connect_on<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(WebSocketStream<S>, Response<()>), Error> {
        let terms = terms(self.config, self.limits);
        let asked = hailwire_websocket::connect(stream, &self.uri, &self.headers, terms);
        let (inner, response) = asked.await?;
        Ok((WebSocketStream { inner }, response))
    }

    /// Takes over a connection that was upgraded by somebody else.
    pub fn take_over<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> WebSocketStream<S> {
        let terms = terms(self.config, self.limits);
        WebSocketStream {
            inner: WebSocket::over(stream, Role::Client, terms),
        }
    }
}

/// Answers a request for a WebSocket.
#[derive(Clone, Debug, Default)]
pub struct ServerBuilder {
    headers: HeaderMap,
    config: Config,
    limits: Limits,
}

impl ServerBuilder {
    /// One that answers anybody.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How the connection is run.
    #[must_use]
    pub const fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// What is taken from the peer.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Answers on a connection.
    ///
    /// # Errors
    ///
    /// The far side asks for something else.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(Request<()>, WebSocketStream<S>), Error> {
        let terms = terms(self.config, self.limits);
        let (request, inner) = hailwire_websocket::accept(stream, &self.headers, terms).await?;
        Ok((request, WebSocketStream { inner }))
    }

    /// Takes over a connection that was upgraded by somebody else.
    pub fn serve<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> WebSocketStream<S> {
        let terms = terms(self.config, self.limits);
        WebSocketStream {
            inner: WebSocket::over(stream, Role::Server, terms),
        }
    }
}

/// What a message carries.
#[derive(Clone, Debug)]
pub struct Payload(Bytes);

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<BytesMut> for Payload {
    fn from(bytes: BytesMut) -> Self {
        Self(bytes.freeze())
    }
}

impl From<Payload> for Bytes {
    fn from(payload: Payload) -> Self {
        payload.0
    }
}

/// A binary message. There are no others.
#[derive(Clone, Debug)]
pub struct Message(Payload);

impl Message {
    /// A binary message.
    pub fn binary(payload: impl Into<Payload>) -> Self {
        Self(payload.into())
    }

    /// Always.
    #[must_use]
    pub const fn is_binary(&self) -> bool {
        true
    }

    /// Never: the end of the stream says it.
    #[must_use]
    pub const fn is_close(&self) -> bool {
        false
    }

    /// Never.
    #[must_use]
    pub const fn is_ping(&self) -> bool {
        false
    }

    /// Never.
    #[must_use]
    pub const fn is_pong(&self) -> bool {
        false
    }

    /// What it carries.
    #[must_use]
    pub fn into_payload(self) -> Payload {
        self.0
    }
}

/// A WebSocket, as a stream and a sink of messages.
#[derive(Debug)]
pub struct WebSocketStream<T> {
    inner: WebSocket<T>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocketStream<T> {
    /// What is beneath.
    pub const fn get_ref(&self) -> &T {
        self.inner.get_ref()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for WebSocketStream<T> {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.inner).poll_next(cx);
        next.map(|next| next.map(|message| message.map(Message::binary)))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Sink<Message> for WebSocketStream<T> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        Pin::new(&mut self.inner).start_send(message.into_payload().into())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}
