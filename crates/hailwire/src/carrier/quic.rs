//! The QUIC carrier, through iroh.
//!
//! A thin mapping: QUIC (RFC 9000) has streams, flow control, resets and datagrams (RFC 9221) of
//! its own. Only who may write next on a full connection is settled here (`write_queues.rs`). Only
//! this file, the overlay and the hub name iroh.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream as _;
use hailwire_core::path_silence::PathTimers;
use hailwire_wire::{Code, Priority};
use iroh::{
    TransportAddr,
    endpoint::{self as iroh_endpoint, PathEvent, SendDatagramError, VarInt},
};

use super::{
    ConnectionError, ConnectionLimits, ConnectionStats, DatagramError, PathCounters, ReadError,
    ReadWaiting, ReadWaitingKind, UnreadBytes, WriteError,
    budget::PeerAccount,
    early::{EngineHandle, FirstFlightStream},
    unacknowledged::UnacknowledgedBytes,
    write_queues::{WriteQueues, YIELDING_BYTES},
};

/// A QUIC connection between two nodes.
#[derive(Clone, Debug)]
pub struct QuicConnection {
    inner: EngineHandle,
    queues: Arc<WriteQueues>,
    writers: Arc<QuicWriters>,
    limits: ConnectionLimits,
}

/// What the writers of a connection share.
#[derive(Debug)]
struct QuicWriters {
    engine: EngineHandle,
    unsent: UnacknowledgedBytes,
    /// Bytes that went through relays on paths that are no more.
    relayed: AtomicU64,
}

impl QuicWriters {
    /// Waits until there is room for what a stream writes.
    async fn writable(&self) {
        let engine = &self.engine;
        let unacknowledged = || (!engine.is_closed()).then(|| engine.stats().unacknowledged);
        self.unsent.writable(unacknowledged).await;
    }
}

impl QuicConnection {
    /// Wraps a connection whose handshake is complete, and whose endpoint gives a peer
    /// [`ConnectionLimits::PEER`].
    #[must_use]
    pub fn new(inner: iroh_endpoint::Connection) -> Self {
        Self::with_limits(inner, ConnectionLimits::PEER)
    }

    /// As [`QuicConnection::new`], of an endpoint that gives a peer another room.
    #[must_use]
    pub fn with_limits(inner: iroh_endpoint::Connection, room: ConnectionLimits) -> Self {
        Self::of(EngineHandle::Full(inner), room)
    }

    /// A connection that was dialled and whose first flight may be refused. What is opened before
    /// the handshake is complete travels with it and may be replayed by others.
    #[must_use]
    pub fn dialled_early(
        inner: iroh_endpoint::OutgoingZeroRttConnection,
        room: ConnectionLimits,
    ) -> Self {
        Self::of(EngineHandle::Out(inner, Arc::default()), room)
    }

    /// A connection that was accepted and whose handshake is not complete: streams accepted until then
    /// say that they are early.
    #[must_use]
    pub fn accepted_early(
        inner: iroh_endpoint::IncomingZeroRttConnection,
        room: ConnectionLimits,
    ) -> Self {
        Self::of(EngineHandle::In(inner, Arc::default()), room)
    }

    fn of(inner: EngineHandle, room: ConnectionLimits) -> Self {
        Self {
            writers: Arc::new(QuicWriters {
                engine: inner.clone(),
                unsent: UnacknowledgedBytes::default(),
                relayed: AtomicU64::new(0),
            }),
            inner,
            queues: Arc::default(),
            limits: room,
        }
    }

    /// Waits until the handshake is complete. Whether what was sent before was taken by the peer;
    /// where it was not, it has been or is being sent again.
    ///
    /// # Errors
    ///
    /// Why the handshake failed.
    pub async fn complete(&self) -> Result<bool, String> {
        self.inner.complete().await
    }

    /// See [`CarrierConnection::charge`](super::CarrierConnection::charge).
    pub(super) fn charge(&self, account: &Arc<PeerAccount>) -> bool {
        self.writers.unsent.charge(account)
    }

    /// See [`CarrierConnection::shrink`](super::CarrierConnection::shrink).
    pub(super) fn shrink(&self) {
        let unacknowledged = || self.inner.stats().unacknowledged;
        self.writers.unsent.shrink(unacknowledged);
    }

    pub(super) fn narrow(&self) {
        self.set_limits(ConnectionLimits::UNTRUSTED);
    }

    pub(super) fn widen(&self) {
        self.set_limits(self.limits);
    }

    pub(super) fn set_window(&self, bytes: u32) {
        self.inner.set_window(VarInt::from_u32(bytes));
    }

    pub(super) fn set_path_timers(&self, timers: PathTimers) {
        let Some(full) = self.inner.full() else {
            return;
        };
        let paths = full.paths();
        if paths.iter().any(|path| path.is_relay()) {
            for path in paths.iter().filter(|path| path.is_ip()) {
                path.set_timers(timers.max_idle, timers.keep_alive);
            }
        }
    }

    /// See [`CarrierConnection::path_changes`](super::CarrierConnection::path_changes).
    pub(super) fn path_changes(&self) -> QuicPathChanges {
        QuicPathChanges {
            events: self
                .inner
                .full()
                .map(iroh_endpoint::Connection::path_events),
            writers: self.writers.clone(),
        }
    }

    pub(super) fn open_paths(&self) -> Vec<String> {
        let Some(full) = self.inner.full() else {
            return Vec::new();
        };
        let paths = full.paths();
        paths
            .iter()
            .map(|path| remote(path.remote_addr()))
            .collect()
    }

    fn set_limits(&self, room: ConnectionLimits) {
        let streams = VarInt::from_u32(room.streams);
        self.inner.set_streams(streams);
        self.inner.set_window(VarInt::from_u32(room.unread));
    }

    pub(super) async fn open(
        &self,
        priority: Priority,
    ) -> Result<(QuicSendStream, QuicRecvStream), ConnectionError> {
        let (send, recv) = self.inner.open().await.map_err(lost)?;
        Ok(self.wrap(send, recv, priority))
    }

    pub(super) async fn accept(&self) -> Result<(QuicSendStream, QuicRecvStream), ConnectionError> {
        let (send, recv) = self.inner.accept().await.map_err(lost)?;
        Ok(self.wrap(send, recv, Priority::default()))
    }

    pub(super) async fn refuse_unidirectional(&self) {
        if self.limits.unidirectional == 0 {
            return;
        }
        let most = VarInt::from_u32(self.limits.unidirectional);
        self.inner.set_uni_streams(most);
        while let Ok(mut stream) = self.inner.accept_uni().await {
            tracing::debug!(stream = %stream.id(), "a unidirectional stream is refused");
            // Fails only where there is nothing to stop any more.
            let _ = stream.stop(code_to_wire(Code::Unimplemented));
        }
    }

    fn wrap(
        &self,
        send: iroh_endpoint::SendStream,
        recv: iroh_endpoint::RecvStream,
        priority: Priority,
    ) -> (QuicSendStream, QuicRecvStream) {
        if priority != Priority::default() {
            // Fails only for a stream that is closed already; writing will say so.
            let _ = send.set_priority(quic_priority(priority));
        }
        // Opened before the handshake was complete, by whoever opened it.
        let early = recv.is_0rtt();
        let kept = (early && matches!(self.inner, EngineHandle::Out(..)))
            .then(|| FirstFlightStream::new(&self.inner));
        let send = QuicSendStream {
            inner: send,
            writers: self.writers.clone(),
            kept: kept.clone(),
            ended: false,
            queues: self.queues.clone(),
            priority: AtomicU8::new(priority as u8),
            written: 0,
        };
        let recv = QuicRecvStream {
            inner: recv,
            kept,
            early,
            ended: false,
            stopped: false,
        };
        (send, recv)
    }

    pub(super) fn send_datagram(&self, payload: Bytes) -> Result<(), DatagramError> {
        self.inner
            .send_datagram(payload)
            .map_err(|error| match error {
                SendDatagramError::UnsupportedByPeer | SendDatagramError::Disabled => {
                    DatagramError::Unsupported
                }
                SendDatagramError::TooLarge => DatagramError::TooLarge,
                SendDatagramError::ConnectionLost(error) => DatagramError::Connection(lost(error)),
            })
    }

    pub(super) async fn read_datagram(&self) -> Result<Bytes, ConnectionError> {
        self.inner.read_datagram().await.map_err(lost)
    }

    pub(super) fn close(&self, code: Code, reason: &str) {
        // Closing again would replace the reason for which the connection ended.
        if !self.inner.is_closed() {
            self.inner.close(code_to_wire(code), reason.as_bytes());
        }
    }

    pub(super) async fn closed(&self) -> ConnectionError {
        lost(self.inner.closed().await)
    }

    pub(super) fn unread(&self) -> UnreadBytes {
        let stats = self.inner.stats();
        UnreadBytes {
            bytes: stats.unread,
            read: stats.read,
        }
    }

    pub(super) fn stats(&self) -> ConnectionStats {
        let total = self.inner.stats();
        let mut stats = ConnectionStats {
            sent_bytes: total.udp_tx.bytes,
            received_bytes: total.udp_rx.bytes,
            sent_packets: total.sent_packets,
            lost_packets: total.lost_packets,
            sent_pieces: total.frame_tx.stream,
            received_packets: total.udp_rx.datagrams,
            ..ConnectionStats::default()
        };
        let Some(full) = self.inner.full() else {
            return stats;
        };
        let paths = full.paths();
        let relays = paths.iter().filter(|path| path.is_relay());
        let relayed: u64 = relays.map(|path| relayed_bytes(&path.stats())).sum();
        stats.relayed_bytes = relayed + self.writers.relayed.load(Ordering::Relaxed);
        if let Some(path) = paths.iter().find(|path| path.is_selected()) {
            stats.rtt = Some(path.rtt()).filter(|rtt| *rtt > Duration::ZERO);
            let on_path = path.stats();
            stats.path = PathCounters {
                sent_packets: on_path.sent_packets - on_path.sent_plpmtud_probes,
                lost_packets: on_path.lost_packets - on_path.lost_plpmtud_probes,
                sent_pieces: on_path.frame_tx.stream,
            };
            stats.relayed = path.is_relay();
            stats.remote = remote(path.remote_addr());
        }
        stats
    }
}

/// What is heard of the paths of a connection.
#[derive(Debug)]
pub(crate) struct QuicPathChanges {
    /// Nothing is heard before the handshake is complete.
    events: Option<iroh_endpoint::PathEventStream>,
    writers: Arc<QuicWriters>,
}

impl QuicPathChanges {
    pub(super) async fn changed(&mut self) {
        let Some(events) = &mut self.events else {
            return std::future::pending().await;
        };
        match poll_fn(|cx| Pin::new(&mut *events).poll_next(cx)).await {
            Some(PathEvent::Closed {
                remote_addr,
                last_stats,
                ..
            }) if remote_addr.is_relay() && !self.writers.engine.is_closed() => {
                let bytes = relayed_bytes(&last_stats);
                self.writers.relayed.fetch_add(bytes, Ordering::Relaxed);
            }
            Some(_) => {}
            None => self.events = None,
        }
    }
}

fn remote(address: &TransportAddr) -> String {
    match address {
        TransportAddr::Ip(address) => address.to_string(),
        TransportAddr::Relay(url) => url.to_string(),
        other => format!("{other:?}"),
    }
}

fn relayed_bytes(path: &iroh_endpoint::PathStats) -> u64 {
    path.udp_tx.bytes + path.udp_rx.bytes
}

/// The writing half of a QUIC stream.
#[derive(Debug)]
pub struct QuicSendStream {
    inner: iroh_endpoint::SendStream,
    writers: Arc<QuicWriters>,
    /// What was written before the handshake was complete.
    kept: Option<Arc<FirstFlightStream>>,
    ended: bool,
    queues: Arc<WriteQueues>,
    priority: AtomicU8,
    written: u64,
}

impl QuicSendStream {
    pub(super) async fn write(&mut self, chunk: Bytes) -> Result<(), WriteError> {
        self.write_many(&mut [chunk]).await
    }

    pub(super) async fn write_many(&mut self, chunks: &mut [Bytes]) -> Result<(), WriteError> {
        let kept = self.kept.as_ref().is_some_and(|kept| kept.write(chunks));
        match self.write_once(chunks).await {
            Err(iroh_endpoint::WriteError::ZeroRttRejected) => {
                // In a box: rare, and as large as the rest of this.
                let again = async {
                    self.write_again().await?;
                    if kept {
                        return Ok(());
                    }
                    self.write_once(chunks).await.map_err(write_error)
                };
                Box::pin(again).await
            }
            written => written.map_err(write_error),
        }
    }

    /// Takes the place of a refused stream; what was written goes with it.
    async fn write_again(&mut self) -> Result<(), WriteError> {
        let again = match self.kept.take() {
            Some(kept) => kept.send_again().await,
            None => None,
        };
        let Some(again) = again else {
            return Err(write_error(iroh_endpoint::WriteError::ZeroRttRejected));
        };
        self.inner = again;
        Ok(())
    }

    async fn write_once(&mut self, chunks: &mut [Bytes]) -> Result<(), iroh_endpoint::WriteError> {
        let priority = self.priority();
        let len: usize = chunks.iter().map(Bytes::len).sum();
        self.writers.writable().await;
        self.writers.unsent.wrote(len);
        self.written += len as u64;
        let beginning = self.written <= YIELDING_BYTES;
        let queues = &self.queues;
        let mut write = pin!(self.inner.write_all_chunks(chunks));
        let (mut waiting, mut has_turn) = (None, false);
        poll_fn(|cx| {
            if !has_turn {
                has_turn = ready!(queues.poll_clear(priority, cx));
            }
            let written = write.as_mut().poll(cx);
            if written.is_pending() && beginning && waiting.is_none() {
                waiting = Some(queues.wait(priority));
            }
            written
        })
        .await
    }

    pub(super) fn finish(&mut self) {
        self.ended = true;
        if let Some(kept) = &self.kept {
            kept.finish();
        }
        // The only error is that the stream was ended before, which is what is wanted.
        let _ = self.inner.finish();
    }

    pub(super) fn reset(&mut self, code: Code) {
        self.ended = true;
        let code = code_to_wire(code);
        if let Some(kept) = &self.kept {
            kept.reset(code);
        }
        let _ = self.inner.reset(code);
    }

    pub(super) async fn stopped(&self) -> Option<Code> {
        match self.inner.stopped().await {
            Ok(code) => code.map(code_from_wire),
            // Refused, and about to be sent again: nobody has stopped it.
            Err(iroh_endpoint::StoppedError::ZeroRttRejected) => std::future::pending().await,
            Err(_) => None,
        }
    }
}

impl Drop for QuicSendStream {
    fn drop(&mut self) {
        if !self.ended {
            self.reset(Code::Cancelled);
        }
    }
}

/// The reading half of a stream that takes the place of a refused one.
pub(super) type ReopenedStream =
    Pin<Box<dyn Future<Output = Option<iroh_endpoint::RecvStream>> + Send>>;

/// The reading half of a QUIC stream.
#[derive(Debug)]
pub struct QuicRecvStream {
    inner: iroh_endpoint::RecvStream,
    kept: Option<Arc<FirstFlightStream>>,
    early: bool,
    ended: bool,
    /// Stopped here, after which QUIC itself would report an orderly end.
    stopped: bool,
}

impl QuicRecvStream {
    pub(super) fn poll_read(
        &mut self,
        max: usize,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        if self.stopped {
            return Poll::Ready(Err(ReadError::Stopped));
        }
        let mut read = ready!(pin!(self.inner.read_chunk(max)).poll(cx));
        if matches!(read, Err(iroh_endpoint::ReadError::ZeroRttRejected))
            && let Some(again) = ready!(self.poll_reopened(waiting, cx))
        {
            self.inner = again;
            self.kept = None;
            read = ready!(pin!(self.inner.read_chunk(max)).poll(cx));
        }
        self.ended |= !matches!(read, Ok(Some(_)));
        Poll::Ready(read.map_err(read_error))
    }

    /// The stream that takes a refused one's place, if there is one.
    fn poll_reopened(
        &self,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Option<iroh_endpoint::RecvStream>> {
        let Some(kept) = &self.kept else {
            return Poll::Ready(None);
        };
        if !matches!(waiting.0, ReadWaitingKind::Reopening(_)) {
            let kept = kept.clone();
            waiting.0 =
                ReadWaitingKind::Reopening(Box::pin(async move { kept.read_again().await }));
        }
        let ReadWaitingKind::Reopening(reopened) = &mut waiting.0 else {
            return Poll::Ready(None);
        };
        let reopened = ready!(reopened.as_mut().poll(cx));
        waiting.0 = ReadWaitingKind::Nothing;
        Poll::Ready(reopened)
    }

    /// Whether it came before the handshake was complete, so that it may be a replay.
    pub(super) fn is_early(&self) -> bool {
        self.early
    }

    pub(super) fn stop(&mut self, code: Code) {
        // What has ended already keeps its end.
        self.stopped |= !self.ended;
        self.ended = true;
        let code = code_to_wire(code);
        if let Some(kept) = &self.kept {
            kept.stop(code);
        }
        let _ = self.inner.stop(code);
    }
}

impl Drop for QuicRecvStream {
    fn drop(&mut self) {
        if !self.ended {
            self.stop(Code::Cancelled);
        }
    }
}

impl QuicSendStream {
    /// Orders the answering direction once the call's header has told its priority.
    pub(super) fn set_priority(&self, priority: Priority) {
        // Mostly it stays as it is, and the engine's lock is not needed for that.
        if self.priority.swap(priority as u8, Ordering::Relaxed) == priority as u8 {
            return;
        }
        let _ = self.inner.set_priority(quic_priority(priority));
    }

    fn priority(&self) -> Priority {
        let number = usize::from(self.priority.load(Ordering::Relaxed));
        Priority::ALL.get(number).copied().unwrap_or_default()
    }
}

/// QUIC's default stream priority, 0, is our default, medium.
fn quic_priority(priority: Priority) -> i32 {
    priority as i32 - Priority::default() as i32
}

pub(super) fn code_to_wire(code: Code) -> VarInt {
    VarInt::from_u32(u32::from(code.number()))
}

fn code_from_wire(code: VarInt) -> Code {
    Code::from_number(code.into_inner())
}

fn lost(error: iroh_endpoint::ConnectionError) -> ConnectionError {
    use iroh_endpoint::ConnectionError as E;
    match error {
        E::ApplicationClosed(close) => ConnectionError::Closed {
            code: code_from_wire(close.error_code),
            reason: String::from_utf8_lossy(&close.reason).into_owned(),
        },
        E::LocallyClosed => ConnectionError::LocallyClosed,
        E::TimedOut => ConnectionError::Lost("no answer within the idle time".into()),
        E::Reset => ConnectionError::Lost("it has restarted".into()),
        E::VersionMismatch => ConnectionError::Protocol("no common QUIC version".into()),
        E::TransportError(error) => ConnectionError::Protocol(error.to_string()),
        E::ConnectionClosed(close) => ConnectionError::Protocol(close.to_string()),
        other => ConnectionError::Lost(other.to_string()),
    }
}

fn write_error(error: iroh_endpoint::WriteError) -> WriteError {
    match error {
        iroh_endpoint::WriteError::Stopped(code) => WriteError::Stopped(code_from_wire(code)),
        iroh_endpoint::WriteError::ConnectionLost(error) => WriteError::Connection(lost(error)),
        iroh_endpoint::WriteError::ClosedStream => WriteError::Ended,
        iroh_endpoint::WriteError::ZeroRttRejected => {
            WriteError::Connection(ConnectionError::Lost("0-RTT data was rejected".into()))
        }
    }
}

fn read_error(error: iroh_endpoint::ReadError) -> ReadError {
    match error {
        iroh_endpoint::ReadError::Reset(code) => ReadError::Reset(code_from_wire(code)),
        iroh_endpoint::ReadError::ConnectionLost(error) => ReadError::Connection(lost(error)),
        iroh_endpoint::ReadError::ClosedStream => ReadError::Stopped,
        iroh_endpoint::ReadError::ZeroRttRejected => {
            ReadError::Connection(ConnectionError::Lost("0-RTT data was rejected".into()))
        }
    }
}
