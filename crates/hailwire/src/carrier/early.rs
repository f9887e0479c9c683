//! The first flight of a resumed QUIC connection (0-RTT; RFC 9001, 4.6).
//!
//! A node that has met a peer before may send with its very first packet, before the peer has answered.
//! Two things are different until the handshake is complete:
//!
//! - *The peer may refuse* what came early, because it has forgotten the session (it was restarted, or
//!   remembers others). Then it is as if it had never been sent. So what is written early is kept, and
//!   is written again on a fresh stream of the same connection; whoever writes or reads notices nothing.
//! - *Somebody may replay it*: whoever recorded the first flight can send it again, and the peer
//!   cannot tell. So a stream that was accepted early says so ([`RecvStream::is_early`]), and the
//!   router lets only calls through that may be made twice.
//!
//! [`RecvStream::is_early`]: super::RecvStream::is_early

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use hailwire_wire::Code;
use iroh::endpoint::{
    self as engine, ConnectionStats, IncomingZeroRttConnection, OutgoingZeroRttConnection,
    SendDatagramError, VarInt, ZeroRttStatus,
};

use super::quic::code_to_wire;

/// The engine's connection, in whichever state its handshake is.
#[derive(Clone, Debug)]
pub(super) enum EngineHandle {
    /// The handshake is complete.
    Full(engine::Connection),
    /// Dialled here, with a first flight that may be refused.
    Out(OutgoingZeroRttConnection, Arc<FirstFlightDial>),
    /// Accepted here; what came so far may be a replay.
    In(IncomingZeroRttConnection, Arc<OnceLock<engine::Connection>>),
}

/// What is known of a connection that was dialled with a first flight.
#[derive(Debug, Default)]
pub(super) struct FirstFlightDial {
    full: OnceLock<engine::Connection>,
    /// Streams that were opened early have lower numbers than this.
    early: AtomicU64,
}

/// Does the same with each state.
macro_rules! each {
    ($handle:expr, $connection:ident => $what:expr) => {
        match $handle {
            EngineHandle::Full($connection) => $what,
            EngineHandle::Out($connection, _) => $what,
            EngineHandle::In($connection, _) => $what,
        }
    };
}

impl EngineHandle {
    pub(super) async fn open(
        &self,
    ) -> Result<(engine::SendStream, engine::RecvStream), engine::ConnectionError> {
        let Self::Out(connection, outgoing) = self else {
            return each!(self, c => c.open_bi().await);
        };
        loop {
            let (send, recv) = connection.open_bi().await?;
            let number = recv.id().index();
            if recv.is_0rtt() {
                outgoing.early.fetch_max(number + 1, Ordering::SeqCst);
                return Ok((send, recv));
            }
            if number >= outgoing.early.load(Ordering::SeqCst) {
                return Ok((send, recv));
            }
            // The engine numbers anew after a refusal, and keeps its wakers by number: what is left of
            // the refused stream would take those of this one along. So the number is passed over.
        }
    }

    pub(super) async fn accept(
        &self,
    ) -> Result<(engine::SendStream, engine::RecvStream), engine::ConnectionError> {
        each!(self, c => c.accept_bi().await)
    }

    pub(super) fn send_datagram(&self, payload: Bytes) -> Result<(), SendDatagramError> {
        each!(self, c => c.send_datagram(payload))
    }

    pub(super) async fn read_datagram(&self) -> Result<Bytes, engine::ConnectionError> {
        each!(self, c => c.read_datagram().await)
    }

    pub(super) fn close(&self, code: VarInt, reason: &[u8]) {
        each!(self, c => c.close(code, reason));
    }

    pub(super) fn is_closed(&self) -> bool {
        each!(self, c => c.close_reason().is_some())
    }

    pub(super) async fn closed(&self) -> engine::ConnectionError {
        each!(self, c => c.closed().await)
    }

    pub(super) fn stats(&self) -> ConnectionStats {
        each!(self, c => c.stats())
    }

    pub(super) async fn accept_uni(&self) -> Result<engine::RecvStream, engine::ConnectionError> {
        each!(self, c => c.accept_uni().await)
    }

    pub(super) fn set_uni_streams(&self, count: VarInt) {
        each!(self, c => c.set_max_concurrent_uni_streams(count));
    }

    pub(super) fn set_streams(&self, count: VarInt) {
        each!(self, c => c.set_max_concurrent_bi_streams(count));
    }

    pub(super) fn set_window(&self, bytes: VarInt) {
        each!(self, c => c.set_receive_window(bytes));
    }

    /// The connection once its handshake is complete.
    pub(super) fn full(&self) -> Option<&engine::Connection> {
        match self {
            Self::Full(connection) => Some(connection),
            Self::Out(_, outgoing) => outgoing.full.get(),
            Self::In(_, full) => full.get(),
        }
    }

    /// Waits until the handshake is complete. Whether what was sent early was taken.
    pub(super) async fn complete(&self) -> Result<bool, String> {
        let failed = |error: engine::ConnectingError| error.to_string();
        match self {
            Self::Full(_) => Ok(true),
            Self::Out(early, outgoing) => {
                let status = early.handshake_completed().await.map_err(failed)?;
                let (connection, taken) = match status {
                    ZeroRttStatus::Accepted(connection) => (connection, true),
                    ZeroRttStatus::Rejected(connection) => (connection, false),
                };
                outgoing.full.get_or_init(|| connection);
                Ok(taken)
            }
            Self::In(early, full) => {
                let connection = early.handshake_completed().await.map_err(failed)?;
                full.get_or_init(|| connection);
                Ok(true)
            }
        }
    }
}

/// What is kept of a stream that was opened early, to write it again if it is refused.
///
/// Either half may find out first that the stream was refused, and then opens the one that takes its place for both.
/// So what the other half does meanwhile is kept here, and done to the new one.
#[derive(Debug)]
pub(super) struct FirstFlightStream {
    handle: EngineHandle,
    kept: Mutex<KeptHalves>,
    /// Held by whoever opens the stream again.
    opening: tokio::sync::Mutex<Reopening>,
}

#[derive(Debug, Default)]
struct KeptHalves {
    written: Vec<Bytes>,
    /// It is being written again; what comes now is no part of it.
    sealed: bool,
    /// How the writing half was ended.
    ended: Option<WriteEnd>,
    /// With which code the reading half was stopped.
    stopped: Option<VarInt>,
    /// The halves of the new stream, until they are fetched.
    send: Option<ReplacementWriter>,
    recv: Option<engine::RecvStream>,
}

#[derive(Clone, Copy, Debug)]
enum WriteEnd {
    Finished,
    Reset(VarInt),
}

/// How far the opening of the new stream is. Whoever waits for it may stop waiting, and another goes on.
#[derive(Debug, Default)]
enum Reopening {
    #[default]
    NotBegun,
    Writing {
        send: ReplacementWriter,
        recv: engine::RecvStream,
        rest: Vec<Bytes>,
    },
    Done,
}

/// The writing half of the new stream. The engine finishes what is dropped, and then a part would look like the whole:
/// so this is reset, unless it has ended or is in other hands.
#[derive(Debug)]
struct ReplacementWriter {
    send: Option<engine::SendStream>,
    ended: bool,
}

impl ReplacementWriter {
    fn end(&mut self, end: WriteEnd) {
        self.ended = true;
        let Some(send) = &mut self.send else { return };
        // Either fails only where it has ended already.
        let _ = match end {
            WriteEnd::Finished => send.finish(),
            WriteEnd::Reset(code) => send.reset(code),
        };
    }
}

impl Drop for ReplacementWriter {
    fn drop(&mut self) {
        if !self.ended {
            self.end(WriteEnd::Reset(code_to_wire(Code::Cancelled)));
        }
    }
}

impl FirstFlightStream {
    pub(super) fn new(handle: &EngineHandle) -> Arc<Self> {
        Arc::new(Self {
            handle: handle.clone(),
            kept: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        })
    }

    /// Keeps what is about to be written, while the outcome is open; whether it is kept. The engine's
    /// send window bounds it: these are handles on the same bytes.
    pub(super) fn write(&self, chunks: &[Bytes]) -> bool {
        let mut kept = self.kept();
        let open = !kept.sealed && self.handle.full().is_none();
        if open {
            kept.written.extend_from_slice(chunks);
        }
        open
    }

    pub(super) fn finish(&self) {
        self.end(WriteEnd::Finished);
    }

    pub(super) fn reset(&self, code: VarInt) {
        self.end(WriteEnd::Reset(code));
    }

    fn end(&self, end: WriteEnd) {
        let mut kept = self.kept();
        kept.ended = Some(end);
        if let Some(send) = &mut kept.send {
            send.end(end);
        }
    }

    pub(super) fn stop(&self, code: VarInt) {
        let mut kept = self.kept();
        kept.stopped = Some(code);
        if let Some(recv) = &mut kept.recv {
            let _ = recv.stop(code);
        }
    }

    /// The writing half of the stream that takes the refused one's place, with everything written
    /// before; `None` where that cannot be had.
    pub(super) async fn send_again(&self) -> Option<engine::SendStream> {
        self.open_again().await?;
        self.kept().send.take()?.send.take()
    }

    /// The reading half of the stream that takes the refused one's place.
    pub(super) async fn read_again(&self) -> Option<engine::RecvStream> {
        self.open_again().await?;
        self.kept().recv.take()
    }

    async fn open_again(&self) -> Option<()> {
        let mut opening = self.opening.lock().await;
        if matches!(*opening, Reopening::NotBegun) {
            self.handle.complete().await.ok()?;
            let (send, recv) = self.handle.open().await.ok()?;
            let mut kept = self.kept();
            kept.sealed = true;
            *opening = Reopening::Writing {
                send: ReplacementWriter {
                    send: Some(send),
                    ended: false,
                },
                recv,
                rest: std::mem::take(&mut kept.written),
            };
        }
        if let Reopening::Writing { send, rest, .. } = &mut *opening {
            // What was written by whoever stopped waiting is empty.
            rest.retain(|chunk| !chunk.is_empty());
            let mut rest = &mut rest[..];
            while !rest.is_empty() {
                let send = send.send.as_mut()?;
                send.write_many_chunks(&mut rest).await.ok()?;
            }
        }
        if let Reopening::Writing { send, recv, .. } =
            std::mem::replace(&mut *opening, Reopening::Done)
        {
            self.fetchable(send, recv);
        }
        Some(())
    }

    /// Does to the new stream what was done to the old one meanwhile.
    fn fetchable(&self, mut send: ReplacementWriter, mut recv: engine::RecvStream) {
        let mut kept = self.kept();
        if let Some(end) = kept.ended {
            send.end(end);
        }
        if let Some(code) = kept.stopped {
            let _ = recv.stop(code);
        }
        (kept.send, kept.recv) = (Some(send), Some(recv));
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, KeptHalves> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
