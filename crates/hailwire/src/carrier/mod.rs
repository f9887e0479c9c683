//! Carriers: what moves a session's streams.
//!
//! A session is written once, against the four types of this module, and runs unchanged over QUIC
//! ([`quic`]), and over anything that is one ordered byte stream, such as a Unix socket or a pipe
//! in memory, by way of the multiplexer ([`mux`]). HTTP/2 is the third variant,
//! WebSocket as another byte stream under the multiplexer.
//!
//! A carrier promises, and the contract suite in `tests/it/carrier.rs` proves for each:
//!
//! - streams are opened without a round trip, accepted in the order in which they first carried
//!   bytes, and limited by the accepting side;
//! - each direction ends by itself: `finish` is seen as the end after all bytes, `reset` as
//!   [`ReadError::Reset`] with its code, `stop` as [`WriteError::Stopped`] with its code;
//! - a reader that does not read stops the writer, and no other stream;
//! - a stream of higher priority overtakes what is queued on lower ones;
//! - a peer that vanishes ends every pending operation with an error.
//!
//! Reset and stop codes are [`Code`] numbers. Dropping a half that has not ended resets or stops
//! it with `cancelled`, so that a dropped future is a cancel that reaches the far side.

mod bbr;
pub mod budget;
pub(crate) mod cipher;
pub(crate) mod congestion;
mod early;
pub mod h2;
pub mod mux;
pub mod quic;
pub mod tcp;
mod unacknowledged;
mod write_queues;
pub mod ws;

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use hailwire_core::path_silence::PathTimers;
use hailwire_wire::{Code, Priority};
use thiserror::Error;

use self::budget::PeerAccount;

/// One connection of some carrier. Cheap to clone; the connection closes when it is told to, not
/// when a clone is dropped.
#[derive(Clone, Debug)]
pub enum CarrierConnection {
    /// QUIC, through iroh.
    Quic(quic::QuicConnection),
    /// HTTP/2, over a pair of TLS connections.
    H2(h2::H2Connection),
    /// The credit-based multiplexer over one byte stream.
    Mux(mux::MuxConnection),
}

impl CarrierConnection {
    /// Opens a bidirectional stream. The far side sees it once it carries bytes.
    ///
    /// Waits while the far side's limit of open streams is reached.
    ///
    /// # Errors
    ///
    /// The connection is gone.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: an unopened stream is simply not opened.
    pub async fn open(
        &self,
        priority: Priority,
    ) -> Result<(SendStream, RecvStream), ConnectionError> {
        match self {
            Self::Quic(c) => c
                .open(priority)
                .await
                .map(|(s, r)| (SendStream::Quic(s), RecvStream::Quic(r))),
            Self::H2(c) => c
                .open(priority)
                .await
                .map(|(s, r)| (SendStream::H2(s), RecvStream::H2(r))),
            Self::Mux(c) => c
                .open(priority)
                .await
                .map(|(s, r)| (SendStream::Mux(s), RecvStream::Mux(r))),
        }
    }

    /// The next stream that the far side opened.
    ///
    /// # Errors
    ///
    /// The connection is gone.
    ///
    /// # Cancel safety
    ///
    /// A stream is either returned or stays queued.
    pub async fn accept(&self) -> Result<(SendStream, RecvStream), ConnectionError> {
        match self {
            Self::Quic(c) => c
                .accept()
                .await
                .map(|(s, r)| (SendStream::Quic(s), RecvStream::Quic(r))),
            Self::H2(c) => c
                .accept()
                .await
                .map(|(s, r)| (SendStream::H2(s), RecvStream::H2(r))),
            Self::Mux(c) => c
                .accept()
                .await
                .map(|(s, r)| (SendStream::Mux(s), RecvStream::Mux(r))),
        }
    }

    /// Sends a small unreliable message of at most
    /// [`MAX_DATAGRAM`](hailwire_wire::limits::MAX_DATAGRAM) bytes. It may be lost, and is dropped
    /// rather than queued without bound.
    ///
    /// # Errors
    ///
    /// [`DatagramError`].
    pub fn send_datagram(&self, payload: Bytes) -> Result<(), DatagramError> {
        match self {
            Self::Quic(c) => c.send_datagram(payload),
            Self::H2(c) => c.send_datagram(payload),
            Self::Mux(c) => c.send_datagram(payload),
        }
    }

    /// The next datagram from the far side.
    ///
    /// # Errors
    ///
    /// The connection is gone.
    ///
    /// # Cancel safety
    ///
    /// A datagram is either returned or stays queued.
    pub async fn read_datagram(&self) -> Result<Bytes, ConnectionError> {
        match self {
            Self::Quic(c) => c.read_datagram().await,
            Self::H2(c) => c.read_datagram().await,
            Self::Mux(c) => c.read_datagram().await,
        }
    }

    /// Closes the connection now: every stream on both sides ends with
    /// [`ConnectionError::Closed`]. What was written and not yet delivered may be lost.
    pub fn close(&self, code: Code, reason: &str) {
        match self {
            Self::Quic(c) => c.close(code, reason),
            Self::H2(c) => c.close(code, reason),
            Self::Mux(c) => c.close(code, reason),
        }
    }

    /// Waits until the connection is gone, and says why. Safe to drop.
    pub async fn closed(&self) -> ConnectionError {
        match self {
            Self::Quic(c) => c.closed().await,
            Self::H2(c) => c.closed().await,
            Self::Mux(c) => c.closed().await,
        }
    }

    /// Leaves the peer the room of an untrusted peer ([`ConnectionLimits::UNTRUSTED`]): enough for a ticket and little
    /// more. What it was granted before stays granted, so call it before the first
    /// [`accept`](Self::accept).
    pub fn narrow(&self) {
        match self {
            Self::Quic(c) => c.narrow(),
            Self::H2(c) => c.narrow(),
            Self::Mux(c) => c.narrow(),
        }
    }

    /// Gives an untrusted peer that has become a peer the room of one.
    pub fn widen(&self) {
        match self {
            Self::Quic(c) => c.widen(),
            Self::H2(c) => c.widen(),
            Self::Mux(c) => c.widen(),
        }
    }

    /// Charges what the peer makes this side hold on this connection, as far as it grows with bytes, to
    /// its account: over the multiplexer what is unread and unsent, over QUIC what is unsent. False where there is
    /// no room to begin with.
    #[must_use]
    pub fn charge(&self, account: &Arc<PeerAccount>) -> bool {
        match self {
            Self::Quic(c) => c.charge(account),
            Self::H2(_) => true,
            Self::Mux(c) => c.charge(account),
        }
    }

    /// Gives back to the account what is charged for bytes under way and needed no longer, half of it each time.
    pub fn shrink(&self) {
        match self {
            Self::Quic(c) => c.shrink(),
            Self::H2(_) | Self::Mux(_) => {}
        }
    }

    /// What the peer has sent on this connection and nobody has read, where it is not charged by
    /// [`CarrierConnection::charge`]: over QUIC, and over HTTP/2 as no less than it is.
    #[must_use]
    pub fn unread(&self) -> Option<UnreadBytes> {
        match self {
            Self::Quic(c) => Some(c.unread()),
            Self::H2(c) => Some(c.unread()),
            Self::Mux(_) => None,
        }
    }

    /// Lets the peer have so many bytes of all its streams under way unread, where that can be
    /// changed: on QUIC. It was promised what it has, so a smaller number takes effect slowly.
    pub fn set_window(&self, bytes: u32) {
        match self {
            Self::Quic(c) => c.set_window(bytes),
            Self::H2(_) | Self::Mux(_) => {}
        }
    }

    /// Sets the timers of the direct paths, where there is a relayed one that takes over from them: on QUIC. Setting the same again changes nothing.
    pub(crate) fn set_path_timers(&self, timers: PathTimers) {
        match self {
            Self::Quic(c) => c.set_path_timers(timers),
            Self::H2(_) | Self::Mux(_) => {}
        }
    }

    /// Tells when the path in use may have become another: on QUIC, once the handshake is complete; elsewhere never.
    pub(crate) fn path_changes(&self) -> PathChanges {
        PathChanges(match self {
            Self::Quic(c) => Some(c.path_changes()),
            Self::H2(_) | Self::Mux(_) => None,
        })
    }

    /// The far ends of the paths that are open: socket addresses and relay URLs. One where the carrier has no paths.
    pub(crate) fn open_paths(&self) -> Vec<String> {
        match self {
            Self::Quic(c) => c.open_paths(),
            Self::H2(_) | Self::Mux(_) => vec![self.stats().remote],
        }
    }

    /// Lets the far side open as many unidirectional streams as its [`ConnectionLimits`] has, and refuses each:
    /// a session uses none. It is stopped with `unimplemented`, as RFC 9114, 6.2 does with a type that
    /// it does not know, so that a later version may try without losing the connection. Until this is
    /// called it may open none. Returns when the connection is gone, at once where there are no such
    /// streams: over anything but QUIC.
    ///
    /// # Cancel safety
    ///
    /// What comes later waits, as many as may be open.
    pub async fn refuse_unidirectional(&self) {
        match self {
            Self::Quic(c) => c.refuse_unidirectional().await,
            Self::H2(_) | Self::Mux(_) => {}
        }
    }

    /// Counters and the state of the path.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        match self {
            Self::Quic(c) => c.stats(),
            Self::H2(c) => c.stats(),
            Self::Mux(c) => c.stats(),
        }
    }

    /// The carrier's name in status and metrics: `quic`, `h2`, `ws`, `unix` or `memory`.
    #[must_use]
    pub fn carrier(&self) -> &'static str {
        match self {
            Self::Quic(_) => "quic",
            Self::H2(_) => "h2",
            Self::Mux(c) => c.carrier(),
        }
    }
}

/// What a peer may have on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Bidirectional streams that it has open at once.
    pub streams: u32,
    /// Unidirectional ones, which are refused one by one.
    pub unidirectional: u32,
    /// Bytes of all its streams that nobody has read yet.
    pub unread: u32,
}

impl ConnectionLimits {
    /// An untrusted peer's: 8 streams in both directions, none in one, and 128 KiB.
    pub const UNTRUSTED: Self = Self {
        streams: 8,
        unidirectional: 0,
        unread: 128 * 1024,
    };

    /// A peer's, where nothing else is configured: 1,024 streams in both directions, 100 in one, and 32
    /// MiB.
    pub const PEER: Self = Self {
        streams: 1024,
        unidirectional: 100,
        unread: 32 * 1024 * 1024,
    };
}

/// What a peer has sent on the streams of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreadBytes {
    /// Bytes that wait to be read.
    pub bytes: u64,
    /// Bytes that were read since the connection began, or thrown away.
    pub read: u64,
}

/// What was sent on one path, without the search for its largest packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathCounters {
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Pieces of streams sent.
    pub sent_pieces: u64,
}

/// See [`CarrierConnection::path_changes`].
#[derive(Debug)]
pub(crate) struct PathChanges(Option<quic::QuicPathChanges>);

impl PathChanges {
    /// Returns when it is worth looking at [`CarrierConnection::stats`] again. Safe to drop: what is missed is told the next time.
    pub(crate) async fn changed(&mut self) {
        match &mut self.0 {
            Some(quic) => quic.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// What a connection has moved, and over what.
#[derive(Clone, Debug, Default)]
pub struct ConnectionStats {
    /// Bytes sent, as the carrier counts them on its wire.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Packets sent; 0 where the carrier has none.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Pieces of streams sent: at least one in each packet that carries data, none in one that only
    /// acknowledges; 0 where the carrier has no packets.
    pub sent_pieces: u64,
    /// Datagrams received from the network on any path, to tell a live peer from a silent one.
    pub received_packets: u64,
    /// What was sent on the path in use alone, where the carrier has paths.
    pub path: PathCounters,
    /// Smoothed round-trip time of the path in use, where the carrier measures one.
    pub rtt: Option<std::time::Duration>,
    /// The far end of the path in use: a socket address or a relay URL; empty if unknown.
    pub remote: String,
    /// Whether the path in use goes through a relay.
    pub relayed: bool,
    /// Bytes sent and received on paths through relays.
    pub relayed_bytes: u64,
}

/// The writing half of a stream.
#[derive(Debug)]
pub enum SendStream {
    /// On QUIC.
    Quic(quic::QuicSendStream),
    /// On HTTP/2.
    H2(h2::H2SendStream),
    /// On the multiplexer.
    Mux(mux::MuxSendStream),
}

impl SendStream {
    /// Writes one chunk whole, without copying it where the carrier allows.
    ///
    /// Waits while flow control forbids.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; after one, nothing more can be written.
    ///
    /// # Cancel safety
    ///
    /// If dropped, an unknown part of the chunk was written: reset the stream.
    pub async fn write(&mut self, chunk: Bytes) -> Result<(), WriteError> {
        match self {
            Self::Quic(s) => s.write(chunk).await,
            Self::H2(s) => s.write(chunk).await,
            Self::Mux(s) => s.write(chunk).await,
        }
    }

    /// Writes several chunks whole, in order, in as few packets or system calls as possible.
    ///
    /// # Errors
    ///
    /// As [`SendStream::write`].
    ///
    /// # Cancel safety
    ///
    /// As [`SendStream::write`].
    pub async fn write_many(&mut self, chunks: &mut [Bytes]) -> Result<(), WriteError> {
        match self {
            Self::Quic(s) => s.write_many(chunks).await,
            Self::H2(s) => s.write_many(chunks).await,
            Self::Mux(s) => s.write_many(chunks).await,
        }
    }

    /// Sets the priority of what is written from now on; used by the answering side, which learns
    /// it from the call's header. The multiplexer has learnt it from the stream's first frame.
    pub fn set_priority(&self, priority: Priority) {
        match self {
            Self::Quic(s) => s.set_priority(priority),
            Self::H2(s) => s.set_priority(priority),
            Self::Mux(_) => {}
        }
    }

    /// Ends this direction after everything written. Further writes fail.
    pub fn finish(&mut self) {
        match self {
            Self::Quic(s) => s.finish(),
            Self::H2(s) => s.finish(),
            Self::Mux(s) => s.finish(),
        }
    }

    /// Ends this direction at once; the reader gets [`ReadError::Reset`] with `code` and may never
    /// see what is still queued.
    pub fn reset(&mut self, code: Code) {
        match self {
            Self::Quic(s) => s.reset(code),
            Self::H2(s) => s.reset(code),
            Self::Mux(s) => s.reset(code),
        }
    }

    /// Bytes written that wait here for a reader on the multiplexer; zero over other carriers, where what waits has a
    /// bound for each connection.
    #[must_use]
    pub fn queued(&self) -> usize {
        match self {
            Self::Quic(_) | Self::H2(_) => 0,
            Self::Mux(s) => s.queued(),
        }
    }

    /// Lets no more than so many bytes wait as [`SendStream::queued`] counts.
    pub fn set_queue(&mut self, bytes: usize) {
        if let Self::Mux(s) = self {
            s.set_queue(bytes);
        }
    }

    /// Waits until the reader stopped this direction and returns its code; `None` when the
    /// direction ended well (everything was delivered) or the connection is gone.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn stopped(&self) -> Option<Code> {
        match self {
            Self::Quic(s) => s.stopped().await,
            Self::H2(s) => s.stopped().await,
            Self::Mux(s) => s.stopped().await,
        }
    }
}

/// The reading half of a stream.
#[derive(Debug)]
pub enum RecvStream {
    /// On QUIC.
    Quic(quic::QuicRecvStream),
    /// On HTTP/2.
    H2(h2::H2RecvStream),
    /// On the multiplexer.
    Mux(mux::MuxRecvStream),
}

/// What lasts while somebody waits for a stream's next bytes, and ends when that is given up.
#[derive(Default)]
pub struct ReadWaiting(ReadWaitingKind);

#[derive(Default)]
enum ReadWaitingKind {
    #[default]
    Nothing,
    /// Counts as a waiting reader of an HTTP/2 connection.
    H2 { _counted: h2::ReadWait },
    /// Opens the stream anew that went in a first flight which the far side refused.
    Reopening(quic::ReopenedStream),
}

impl RecvStream {
    /// The next chunk, at most `max` bytes and never empty; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; after one, nothing more can be read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn read(&mut self, max: usize) -> Result<Option<Bytes>, ReadError> {
        let mut waiting = ReadWaiting::default();
        poll_fn(|cx| self.poll_read(max, &mut waiting, cx)).await
    }

    /// As [`RecvStream::read`], for a future of the caller's that holds `waiting` from its first poll to its last: so
    /// that what reads through several layers is one state, not one in each.
    ///
    /// # Errors
    ///
    /// As [`RecvStream::read`].
    pub fn poll_read(
        &mut self,
        max: usize,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        match self {
            Self::Quic(s) => s.poll_read(max, waiting, cx),
            Self::H2(s) => s.poll_read(max, waiting, cx),
            Self::Mux(s) => s.poll_read(max, cx),
        }
    }

    /// Whether the far side opened the stream before the handshake was complete. Then what comes may be
    /// a replay by somebody who recorded it (RFC 9001, 9.2), and must not do anything that may not be
    /// done twice.
    #[must_use]
    pub fn is_early(&self) -> bool {
        match self {
            Self::Quic(s) => s.is_early(),
            Self::H2(_) | Self::Mux(_) => false,
        }
    }

    /// Tells the writer to stop: it gets [`WriteError::Stopped`] with `code`.
    pub fn stop(&mut self, code: Code) {
        match self {
            Self::Quic(s) => s.stop(code),
            Self::H2(s) => s.stop(code),
            Self::Mux(s) => s.stop(code),
        }
    }
}

/// Why a connection is gone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectionError {
    /// The far side closed it.
    #[error("the peer closed the connection: {reason} ({code})")]
    Closed {
        /// What the far side gave as its reason.
        code: Code,
        /// In words.
        reason: String,
    },
    /// This side closed it.
    #[error("the connection was closed here")]
    LocallyClosed,
    /// The far side has vanished: no answer, or the socket broke.
    #[error("the peer is gone: {0}")]
    Lost(String),
    /// The far side broke the carrier's protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
}

/// Why a write failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// The reader does not want more.
    #[error("the reader stopped the stream ({0})")]
    Stopped(Code),
    /// This direction was finished or reset here.
    #[error("the stream was ended here")]
    Ended,
    /// The connection is gone.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The writer gave the stream up.
    #[error("the writer reset the stream ({0})")]
    Reset(Code),
    /// This direction was stopped here.
    #[error("the stream was stopped here")]
    Stopped,
    /// The connection is gone.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

/// Why a datagram was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DatagramError {
    /// Larger than the path takes now.
    #[error("the datagram does not fit the path")]
    TooLarge,
    /// The far side takes none.
    #[error("the peer takes no datagrams")]
    Unsupported,
    /// The connection is gone.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}
