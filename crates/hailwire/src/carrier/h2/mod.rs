//! The HTTP/2 carrier (RFC 9113): one HTTP/2 stream for each stream.
//!
//! For networks in which UDP does not get through, or is slower than TCP. A stream is a POST whose
//! body and answer are its two directions; flow control is HTTP/2's, by stream and by connection,
//! and the opener tells its priority as an urgency (RFC 9218). `spec/http2.md` is its prose.
//!
//! In HTTP only the client opens streams. So the node that dials opens two TLS connections at once:
//! on the *forward* one it is the client, on the *reverse* one the roles are exchanged, and each side
//! opens its streams on the one where it is the client, without a round trip. The first request of
//! the forward connection is the control stream, which names the reverse one by a random token and
//! then carries what HTTP/2 lacks as capsules ([`hailwire_wire::capsule`]): datagrams, stops with a
//! code, the close. Losing either connection ends both.
//!
//! | here | on the wire |
//! |---|---|
//! | finish | END_STREAM |
//! | reset with a code | the trailer `hailwire-code` |
//! | stop with a code | the capsule STOP |
//! | both halves dropped | RST_STREAM with CANCEL |
//!
//! Who is next to write is decided before bytes are handed to the library, which knows no priority
//! and therefore never holds many (`outgoing.rs`). What is ready leaves in one write (`line.rs`).
//!
//! Bounds: [`H2_MAX_STREAMS`] streams each way, 2 MiB unread for each of them and 32 MiB for each of
//! the two connections, or what [`ConnectionLimits`] says; heads of [`H2_MAX_HEAD`] bytes. An accepting side that
//! has not said how much room the peer gets gives it that of an untrusted peer until it first accepts or
//! opens a stream.

mod codes;
mod driver;
mod gathered_io;
mod outgoing;
mod shared;
mod stream;
#[cfg(test)]
mod tests;
mod unread;

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use bytes::{Bytes, BytesMut};
use h2::{client, server};
use hailwire_wire::{
    Code, Priority,
    capsule::{Capsule, CapsuleDecoder, ConnectionHalf},
    limits::{H2_MAX_HEAD, H2_MAX_STREAMS, MAX_DATAGRAM},
};
use http::{Method, Request, Response, Uri};
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::stream::{H2RecvStream, H2SendStream};
pub(super) use self::unread::ReadWait;
use self::{
    driver::{
        CapsuleStream, ControlRecv, H2Driver, ReadyConnection, SecondConnection, ServerConnection,
    },
    gathered_io::line,
    shared::H2Shared,
};
use super::{
    ConnectionError, ConnectionLimits, ConnectionStats, DatagramError, UnreadBytes, tcp::TcpError,
};

/// What names the reverse connection that belongs to a forward one. 128 random bits.
pub(super) type PairToken = [u8; 16];

/// Unread bytes of one stream.
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;

/// Bytes that h2 buffers of one stream.
const SEND_BUFFER: usize = outgoing::AHEAD;

/// Streams remembered for a second after they were reset here, so that what is still under way on them is
/// not taken for an offence. Beyond it h2 answers each frame with a reset, and by default gives a
/// connection up after 1,024 of these in its whole life, which a tunnel may be long enough to reach.
const RESET_STREAMS: usize = 1024;

/// Where the control stream is; the token follows.
const CONTROL: &str = "/hailwire/control/";

/// Where streams are.
fn path() -> &'static Uri {
    static PATH: OnceLock<Uri> = OnceLock::new();
    PATH.get_or_init(|| Uri::from_static("https://hailwire.invalid/hailwire/stream"))
}

/// A pair of HTTP/2 connections between two nodes. Cheap to clone.
///
/// It closes with `cancelled` when the last clone and the last half of its streams are gone.
#[derive(Clone, Debug)]
pub struct H2Connection {
    handle: Arc<H2Handle>,
}

/// What the user's side holds: the connection closes when the last one goes.
#[derive(Debug)]
struct H2Handle {
    shared: Arc<H2Shared>,
}

impl Drop for H2Handle {
    fn drop(&mut self) {
        close(
            &self.shared,
            Code::Cancelled,
            "nobody holds the connection any more",
        );
    }
}

fn close(shared: &H2Shared, code: Code, reason: &str) {
    let close = Capsule::Close {
        code,
        reason: reason.to_owned(),
    };
    shared.end(ConnectionError::LocallyClosed, Some(close));
}

impl H2Connection {
    /// The side that dialled. `reverse` is the second connection once TLS stands and the token is
    /// sent on it.
    ///
    /// # Errors
    ///
    /// [`TcpError::Carrier`]: the forward connection broke at once.
    pub(super) async fn client<IO, R>(
        forward: IO,
        remote: SocketAddr,
        token: PairToken,
        reverse: R,
    ) -> Result<Self, TcpError>
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        R: Future<Output = Result<IO, TcpError>> + Send + 'static,
    {
        let room = Some(ConnectionLimits::PEER);
        let shared = Arc::new(H2Shared::new(
            ConnectionHalf::Forward,
            remote.to_string(),
            room,
        ));
        let (line, io) = line(forward, shared.clone(), ConnectionHalf::Forward);
        let (mut opener, mut opening) = client_settings(ConnectionLimits::PEER)
            .handshake(io)
            .await
            .map_err(|error| refused(&error))?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        let token = data_encoding::HEXLOWER.encode(&token);
        *request.uri_mut() = format!("https://hailwire.invalid{CONTROL}{token}")
            .parse()
            .map_err(|_| broken("its token is no path".to_owned()))?;
        let (head, send) = opener
            .send_request(request, false)
            .map_err(|error| refused(&error))?;
        let pings = opening.ping_pong();
        shared.set_opener(opener);
        let second: SecondConnection<IO> = Box::pin({
            let shared = shared.clone();
            async move {
                let io = reverse.await.map_err(|error| error.to_string())?;
                let (line, io) = gathered_io::line(io, shared, ConnectionHalf::Reverse);
                let serving = server_settings(ConnectionLimits::PEER).handshake(io);
                let serving = line.flushing(serving).await;
                let serving = serving.map_err(|error| error.to_string())?;
                Ok(ReadyConnection::Serving(Box::new(serving), line))
            }
        });
        Ok(Self::start(H2Driver {
            shared,
            server: None,
            client: Some(Box::new(opening)),
            second: Some(second),
            lines: vec![line],
            control: CapsuleStream {
                send,
                recv: ControlRecv::Head(head),
            },
            decoder: CapsuleDecoder::new(),
            out: BytesMut::new(),
            pings,
            pinged: None,
            limits: room,
        }))
    }

    /// The side that listened, of which `forward` is the first connection. `reverse` finds the second
    /// one by its token.
    ///
    /// # Errors
    ///
    /// [`TcpError::Carrier`]: the far side does not begin as a node does.
    pub(super) async fn server<IO, F, R>(
        forward: IO,
        remote: SocketAddr,
        reverse: F,
    ) -> Result<Self, TcpError>
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: FnOnce(PairToken) -> R,
        R: Future<Output = Result<IO, TcpError>> + Send + 'static,
    {
        let shared = Arc::new(H2Shared::new(
            ConnectionHalf::Reverse,
            remote.to_string(),
            None,
        ));
        let (line, io) = line(forward, shared.clone(), ConnectionHalf::Forward);
        let mut serving: ServerConnection<IO> = line
            .flushing(server_settings(ConnectionLimits::UNTRUSTED).handshake(io))
            .await
            .map_err(|error| refused(&error))?;
        let (request, mut respond) = match line.flushing(serving.accept()).await {
            Some(Ok(first)) => first,
            Some(Err(error)) => return Err(refused(&error)),
            None => return Err(broken("it hung up".to_owned())),
        };
        let token = token(request.uri().path())
            .ok_or_else(|| broken(format!("it began with {}", request.uri().path())))?;
        let send = respond
            .send_response(Response::new(()), false)
            .map_err(|error| refused(&error))?;
        let pings = serving.ping_pong();
        let reverse = reverse(token);
        let second: SecondConnection<IO> = Box::pin({
            let shared = shared.clone();
            async move {
                let io = reverse.await.map_err(|error| error.to_string())?;
                let (line, io) = gathered_io::line(io, shared, ConnectionHalf::Reverse);
                let connected = client_settings(ConnectionLimits::UNTRUSTED)
                    .handshake(io)
                    .await;
                let (opener, opening) = connected.map_err(|error| error.to_string())?;
                Ok(ReadyConnection::Opening(opener, Box::new(opening), line))
            }
        });
        Ok(Self::start(H2Driver {
            shared,
            server: Some(Box::new(serving)),
            client: None,
            second: Some(second),
            lines: vec![line],
            control: CapsuleStream {
                send,
                recv: ControlRecv::Body(request.into_body()),
            },
            decoder: CapsuleDecoder::new(),
            out: BytesMut::new(),
            pings,
            pinged: None,
            limits: None,
        }))
    }

    fn start<IO: AsyncRead + AsyncWrite + Send + Unpin + 'static>(driver: H2Driver<IO>) -> Self {
        let handle = Arc::new(H2Handle {
            shared: driver.shared.clone(),
        });
        tokio::spawn(driver::drive(driver));
        Self { handle }
    }

    pub(super) async fn open(
        &self,
        priority: Priority,
    ) -> Result<(H2SendStream, H2RecvStream), ConnectionError> {
        self.settle();
        poll_fn(|cx| self.shared().poll_open(cx)).await?;
        Ok(stream::opened(&self.handle, priority))
    }

    pub(super) async fn accept(&self) -> Result<(H2SendStream, H2RecvStream), ConnectionError> {
        self.settle();
        let arrived = poll_fn(|cx| self.shared().poll_accept(cx)).await?;
        Ok(stream::accepted(&self.handle, arrived))
    }

    pub(super) fn send_datagram(&self, payload: Bytes) -> Result<(), DatagramError> {
        if payload.len() > MAX_DATAGRAM {
            return Err(DatagramError::TooLarge);
        }
        Ok(self.shared().send_datagram(payload)?)
    }

    pub(super) async fn read_datagram(&self) -> Result<Bytes, ConnectionError> {
        poll_fn(|cx| self.shared().poll_datagram(cx)).await
    }

    pub(super) fn close(&self, code: Code, reason: &str) {
        close(self.shared(), code, reason);
    }

    pub(super) async fn closed(&self) -> ConnectionError {
        poll_fn(|cx| self.shared().poll_closed(cx)).await
    }

    pub(super) fn unread(&self) -> UnreadBytes {
        self.shared().unread()
    }

    /// The round-trip time is that of a ping, sent at the start and whenever somebody asks.
    pub(super) fn stats(&self) -> ConnectionStats {
        self.shared().stats()
    }

    pub(super) fn narrow(&self) {
        self.set_limits(ConnectionLimits::UNTRUSTED);
    }

    pub(super) fn widen(&self) {
        self.set_limits(ConnectionLimits::PEER);
    }

    fn set_limits(&self, room: ConnectionLimits) {
        self.shared().with_driver(|state| state.limits = Some(room));
        self.shared().place_was_made();
    }

    /// A peer that nobody has called an untrusted peer is none.
    fn settle(&self) {
        if self.shared().lock().limits.is_none() {
            self.widen();
        }
    }

    fn shared(&self) -> &H2Shared {
        &self.handle.shared
    }
}

fn client_settings(room: ConnectionLimits) -> client::Builder {
    let mut settings = client::Builder::new();
    settings
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(room.unread)
        .initial_max_send_streams(H2_MAX_STREAMS)
        .max_header_list_size(H2_MAX_HEAD as u32)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(None)
        .enable_push(false);
    settings
}

fn server_settings(room: ConnectionLimits) -> server::Builder {
    let mut settings = server::Builder::new();
    settings
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(room.unread)
        // The control stream comes on top.
        .max_concurrent_streams(H2_MAX_STREAMS as u32 + 1)
        .max_header_list_size(H2_MAX_HEAD as u32)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(None);
    settings
}

fn token(path: &str) -> Option<PairToken> {
    let token = path.strip_prefix(CONTROL)?;
    let token = data_encoding::HEXLOWER.decode(token.as_bytes()).ok()?;
    token.try_into().ok()
}

fn refused(error: &h2::Error) -> TcpError {
    broken(error.to_string())
}

const fn broken(reason: String) -> TcpError {
    TcpError::Carrier {
        carrier: "h2",
        reason,
    }
}
