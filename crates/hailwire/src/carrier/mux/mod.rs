//! The carrier for anything that is one ordered byte stream: a Unix socket, a pipe in memory.
//!
//! [`hailwire_wire::mux`] decides; this shell moves its bytes. One task per connection owns the byte
//! stream: it reads into a buffer that all connections of its thread share, so that an idle
//! connection holds none, and writes everything that is ready in one vectored write. Streams and
//! the task meet in one mutex, held for the time of a queue operation and never across an await;
//! whoever waits is woken once, and only for what it waits for.
//!
//! Memory: an idle connection takes less than 4 KiB here. What a peer can make it hold is bounded as
//! stated in [`hailwire_wire::mux`], and where the peer has an account, by that ([`rooms`]).

mod charged_buffers;
mod driver;
mod shared;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hailwire_wire::mux::{
    self, ConnectionEnd, Mux, MuxReadError, MuxRole, MuxWriteError, StreamKey,
};
use hailwire_wire::{Code, Priority};
use tokio::io::{AsyncRead, AsyncWrite};

use self::charged_buffers::ChargedBuffers;
use self::shared::{MuxHandle, MuxState, note};
use super::budget::PeerAccount;
use super::{ConnectionError, ConnectionStats, DatagramError, ReadError, WriteError};

/// Bytes that each direction of [`MuxConnection::pair`] holds beneath the multiplexer.
const PIPE: usize = 64 * 1024;

/// A multiplexed connection. Cheap to clone.
///
/// It closes with `cancelled` when the last clone and the last half of its streams are gone.
#[derive(Clone, Debug)]
pub struct MuxConnection {
    handle: Arc<MuxHandle>,
    label: Arc<ConnectionLabel>,
}

/// What a connection says of itself.
#[derive(Debug)]
struct ConnectionLabel {
    carrier: &'static str,
    remote: String,
}

impl MuxConnection {
    /// The side that connected.
    ///
    /// Starts the task that owns `io`; it ends with the connection.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with a clock.
    #[must_use]
    pub fn client<IO: AsyncRead + AsyncWrite + Send + 'static>(io: IO) -> Self {
        Self::over(io, MuxRole::Client, "unix", String::new())
    }

    /// The side that listened. As [`MuxConnection::client`] in all else.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with a clock.
    #[must_use]
    pub fn server<IO: AsyncRead + AsyncWrite + Send + 'static>(io: IO) -> Self {
        Self::over(io, MuxRole::Server, "unix", String::new())
    }

    /// Two connections joined in memory: client and server.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with a clock.
    #[must_use]
    pub fn pair() -> (Self, Self) {
        let (a, b) = tokio::io::duplex(PIPE);
        let side = |io, role| Self::over(io, role, "memory", String::new());
        (side(a, MuxRole::Client), side(b, MuxRole::Server))
    }

    /// Either side, over a byte stream with a name of its own.
    pub(crate) fn over<IO: AsyncRead + AsyncWrite + Send + 'static>(
        io: IO,
        role: MuxRole,
        carrier: &'static str,
        remote: String,
    ) -> Self {
        let handle = MuxHandle::new(Mux::new(role));
        tokio::spawn(driver::drive(Box::pin(io), handle.shared.clone()));
        Self {
            handle: Arc::new(handle),
            label: Arc::new(ConnectionLabel { carrier, remote }),
        }
    }

    /// What its byte stream is: see [`CarrierConnection::carrier`](super::CarrierConnection::carrier).
    #[must_use]
    pub fn carrier(&self) -> &'static str {
        self.label.carrier
    }

    /// See [`CarrierConnection::open`](super::CarrierConnection::open).
    ///
    /// # Errors
    ///
    /// The connection is gone.
    pub async fn open(
        &self,
        priority: Priority,
    ) -> Result<(MuxSendStream, MuxRecvStream), ConnectionError> {
        let key = self.wait(|state, cx| {
            let key = state.mux.open(priority);
            note_if(key.is_pending(), &mut state.open, cx);
            key
        });
        Ok(self.halves(key.await?))
    }

    /// See [`CarrierConnection::accept`](super::CarrierConnection::accept).
    ///
    /// # Errors
    ///
    /// The connection is gone.
    pub async fn accept(&self) -> Result<(MuxSendStream, MuxRecvStream), ConnectionError> {
        let key = self.wait(|state, cx| {
            let key = state.mux.accept();
            note_if(key.is_pending(), &mut state.accept, cx);
            key
        });
        Ok(self.halves(key.await?))
    }

    /// See [`CarrierConnection::send_datagram`](super::CarrierConnection::send_datagram).
    ///
    /// # Errors
    ///
    /// [`DatagramError::TooLarge`] past [`MAX_DATAGRAM`](hailwire_wire::limits::MAX_DATAGRAM), or
    /// the connection is gone.
    pub fn send_datagram(&self, payload: Bytes) -> Result<(), DatagramError> {
        self.handle.with(|state| {
            if let Some(ended) = state.mux.ended() {
                return Err(DatagramError::Connection(ended.clone().into()));
            }
            if state.mux.send_datagram(payload) {
                Ok(())
            } else {
                Err(DatagramError::TooLarge)
            }
        })
    }

    /// See [`CarrierConnection::read_datagram`](super::CarrierConnection::read_datagram).
    ///
    /// # Errors
    ///
    /// The connection is gone.
    pub async fn read_datagram(&self) -> Result<Bytes, ConnectionError> {
        let payload = self.wait(|state, cx| {
            let payload = state.mux.datagram();
            note_if(payload.is_pending(), &mut state.datagram, cx);
            payload
        });
        payload.await
    }

    /// See [`CarrierConnection::close`](super::CarrierConnection::close). [`MuxConnection::closed`] then waits until
    /// the peer was told.
    pub fn close(&self, code: Code, reason: &str) {
        self.handle.with(|state| state.mux.close(code, reason));
    }

    /// See [`CarrierConnection::closed`](super::CarrierConnection::closed).
    pub async fn closed(&self) -> ConnectionError {
        poll_fn(|cx| {
            self.handle.with(|state| match state.mux.ended() {
                Some(ended) if state.done => Poll::Ready(ended.clone().into()),
                _ => {
                    note(&mut state.closed, cx);
                    Poll::Pending
                }
            })
        })
        .await
    }

    /// See [`CarrierConnection::stats`](super::CarrierConnection::stats). A byte stream has no packets: what is
    /// counted as such are the reads that brought bytes. Where there is a far end on a network, asking
    /// sends a ping, and the round-trip time is that of the last one.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        self.handle.with(|state| {
            if !self.label.remote.is_empty() {
                state.ping();
            }
            ConnectionStats {
                sent_bytes: state.sent,
                received_bytes: state.received,
                received_packets: state.reads,
                rtt: state.rtt,
                remote: self.label.remote.clone(),
                ..ConnectionStats::default()
            }
        })
    }

    /// See [`CarrierConnection::charge`](super::CarrierConnection::charge).
    #[must_use]
    pub fn charge(&self, account: &Arc<PeerAccount>) -> bool {
        let rooms = ChargedBuffers::of(account);
        let charged = rooms.is_some();
        self.handle.with(|state| {
            state.buffers = rooms;
            state.apply_limits();
        });
        charged
    }

    /// See [`CarrierConnection::narrow`](super::CarrierConnection::narrow).
    pub fn narrow(&self) {
        self.give(mux::ReceiveLimits {
            streams: super::ConnectionLimits::UNTRUSTED.streams as usize,
            unread: super::ConnectionLimits::UNTRUSTED.unread as usize,
            ..mux::ReceiveLimits::default()
        });
    }

    /// See [`CarrierConnection::widen`](super::CarrierConnection::widen).
    pub fn widen(&self) {
        self.give(mux::ReceiveLimits::default());
    }

    fn give(&self, room: mux::ReceiveLimits) {
        self.handle.with(|state| {
            state.most = room;
            state.apply_limits();
        });
    }

    async fn wait<T>(
        &self,
        mut attempt: impl FnMut(&mut MuxState, &mut Context<'_>) -> Poll<Result<T, ConnectionEnd>>,
    ) -> Result<T, ConnectionError> {
        let result = poll_fn(|cx| self.handle.with(|state| attempt(state, cx))).await;
        result.map_err(ConnectionError::from)
    }

    fn halves(&self, key: StreamKey) -> (MuxSendStream, MuxRecvStream) {
        let send = MuxSendStream {
            handle: self.handle.clone(),
            key,
        };
        (
            send,
            MuxRecvStream {
                handle: self.handle.clone(),
                key,
            },
        )
    }
}

fn note_if(waits: bool, wakers: &mut Vec<std::task::Waker>, cx: &Context<'_>) {
    if waits {
        note(wakers, cx);
    }
}

/// The writing half of a multiplexed stream.
#[derive(Debug)]
pub struct MuxSendStream {
    handle: Arc<MuxHandle>,
    key: StreamKey,
}

impl MuxSendStream {
    /// See [`SendStream::write`](super::SendStream::write).
    ///
    /// # Errors
    ///
    /// [`WriteError`].
    pub async fn write(&mut self, chunk: Bytes) -> Result<(), WriteError> {
        self.write_many(&mut [chunk]).await
    }

    /// See [`SendStream::write_many`](super::SendStream::write_many).
    ///
    /// Waits while as many bytes of this stream are queued as may be: at first
    /// [`MUX_SEND_QUEUE`](hailwire_wire::limits::MUX_SEND_QUEUE).
    ///
    /// # Errors
    ///
    /// [`WriteError`].
    pub async fn write_many(&mut self, chunks: &mut [Bytes]) -> Result<(), WriteError> {
        let mut next = 0;
        poll_fn(|cx| {
            self.handle.with(|state| {
                while let Some(chunk) = chunks.get_mut(next) {
                    match state.mux.write(self.key, chunk) {
                        Poll::Ready(Ok(())) => next += 1,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                        Poll::Pending => {
                            state.stream(self.key).write = Some(cx.waker().clone());
                            return Poll::Pending;
                        }
                    }
                }
                Poll::Ready(Ok(()))
            })
        })
        .await
    }

    /// See [`SendStream::queued`](super::SendStream::queued).
    pub fn queued(&self) -> usize {
        self.handle.with(|state| state.mux.queued_on(self.key))
    }

    /// See [`SendStream::set_queue`](super::SendStream::set_queue).
    pub fn set_queue(&mut self, bytes: usize) {
        self.handle
            .with(|state| state.mux.set_send_queue(self.key, bytes));
    }

    /// See [`SendStream::finish`](super::SendStream::finish).
    pub fn finish(&mut self) {
        self.handle.with(|state| state.mux.finish(self.key));
    }

    /// See [`SendStream::reset`](super::SendStream::reset).
    pub fn reset(&mut self, code: Code) {
        self.handle.with(|state| state.mux.reset(self.key, code));
    }

    /// See [`SendStream::stopped`](super::SendStream::stopped). Here a direction has ended well once
    /// its last byte was handed to the byte stream.
    pub async fn stopped(&self) -> Option<Code> {
        poll_fn(|cx| {
            self.handle.with(|state| {
                let code = state.mux.stopped(self.key);
                note_if(code.is_pending(), &mut state.stream(self.key).ended, cx);
                code
            })
        })
        .await
    }
}

impl Drop for MuxSendStream {
    fn drop(&mut self) {
        self.handle.with(|state| state.mux.drop_send(self.key));
    }
}

/// The reading half of a multiplexed stream.
#[derive(Debug)]
pub struct MuxRecvStream {
    handle: Arc<MuxHandle>,
    key: StreamKey,
}

impl MuxRecvStream {
    /// See [`RecvStream::read`](super::RecvStream::read).
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    pub async fn read(&mut self, max: usize) -> Result<Option<Bytes>, ReadError> {
        poll_fn(|cx| self.poll_read(max, cx)).await
    }

    pub(super) fn poll_read(
        &mut self,
        max: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        self.handle.with(|state| {
            let chunk = state.mux.read(self.key, max);
            if chunk.is_pending() {
                state.stream(self.key).read = Some(cx.waker().clone());
            }
            chunk.map_err(ReadError::from)
        })
    }

    /// See [`RecvStream::stop`](super::RecvStream::stop).
    pub fn stop(&mut self, code: Code) {
        self.handle.with(|state| state.mux.stop(self.key, code));
    }
}

impl Drop for MuxRecvStream {
    fn drop(&mut self) {
        self.handle.with(|state| state.mux.drop_recv(self.key));
    }
}

impl From<ConnectionEnd> for ConnectionError {
    fn from(ended: ConnectionEnd) -> Self {
        match ended {
            ConnectionEnd::ByPeer { code, reason } => Self::Closed { code, reason },
            ConnectionEnd::Here => Self::LocallyClosed,
            ConnectionEnd::Lost(why) => Self::Lost(why),
            ConnectionEnd::Protocol(error) => Self::Protocol(error.to_string()),
        }
    }
}

impl From<MuxWriteError> for WriteError {
    fn from(error: MuxWriteError) -> Self {
        match error {
            MuxWriteError::Stopped(code) => Self::Stopped(code),
            MuxWriteError::Ended => Self::Ended,
            MuxWriteError::Connection(ended) => Self::Connection(ended.into()),
        }
    }
}

impl From<MuxReadError> for ReadError {
    fn from(error: MuxReadError) -> Self {
        match error {
            MuxReadError::Reset(code) => Self::Reset(code),
            MuxReadError::Stopped => Self::Stopped,
            MuxReadError::Connection(ended) => Self::Connection(ended.into()),
        }
    }
}
