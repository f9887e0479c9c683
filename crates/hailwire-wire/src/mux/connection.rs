//! The multiplexer as its user sees it: streams, datagrams, and the end of the connection.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, atomic::AtomicUsize};
use std::task::Poll;

use bytes::Bytes;
use thiserror::Error;

use super::MuxError;
use super::budget::WindowBudget;
use super::frame::{MuxDecoder, MuxFrame};
use super::preface::{MuxRole, PREFACE};
use super::slab::{StreamKey, StreamSlab};
use super::stream::{MuxStream, RecvState, SendState, StopState};
use crate::header::Priority;
use crate::limits::{
    MAX_DATAGRAM, MUX_MAX_DATAGRAMS, MUX_MAX_PINGS, MUX_MAX_REASON, MUX_MAX_STREAMS,
    MUX_SEND_FLOOR, MUX_SEND_QUEUE,
};
use crate::priority_shares::PriorityShares;
use crate::status::Code;

/// Something that may be worth doing now. Each is told at most once for each call that answered
/// `Poll::Pending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuxEvent {
    /// [`Mux::accept`] has a stream.
    Incoming,
    /// [`Mux::open`] may succeed.
    OpenAllowed,
    /// [`Mux::read`] has bytes or an end.
    Readable(StreamKey),
    /// [`Mux::write`] takes bytes or fails.
    Writable(StreamKey),
    /// [`Mux::stopped`] has its answer.
    SendEnded(StreamKey),
    /// [`Mux::datagram`] has one.
    Datagram,
    /// The peer answered a ping with this payload.
    Pong([u8; 8]),
    /// The connection is over: see [`Mux::ended`]. Whoever waits should try again.
    Ended,
}

/// Why the connection is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectionEnd {
    /// The peer closed it.
    #[error("the peer closed the connection: {reason} ({code})")]
    ByPeer {
        /// Its code.
        code: Code,
        /// In words.
        reason: String,
    },
    /// [`Mux::close`] was called.
    #[error("the connection was closed here")]
    Here,
    /// The byte stream beneath ended or broke.
    #[error("the peer is gone: {0}")]
    Lost(String),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] MuxError),
}

/// Why a write failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MuxWriteError {
    /// The reader does not want more.
    #[error("the reader stopped the stream ({0})")]
    Stopped(Code),
    /// This direction was finished, reset or dropped here.
    #[error("the stream was ended here")]
    Ended,
    /// The connection is over.
    #[error(transparent)]
    Connection(#[from] ConnectionEnd),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MuxReadError {
    /// The writer gave the stream up.
    #[error("the writer reset the stream ({0})")]
    Reset(Code),
    /// This direction was stopped or dropped here.
    #[error("the stream was stopped here")]
    Stopped,
    /// The connection is over.
    #[error(transparent)]
    Connection(#[from] ConnectionEnd),
}

/// What the user of one side lets the peer have, within what the protocol promises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimits {
    /// Streams of the peer that [`Mux::accept`] has given out and that are not over.
    pub streams: usize,
    /// Unread bytes beyond which [`Mux::wants_input`] says no.
    pub unread: usize,
    /// Bytes that wait to be written, beyond which a stream queues no more than
    /// [`MUX_SEND_FLOOR`] and no further stream is given out.
    pub queued: usize,
}

impl Default for ReceiveLimits {
    /// No less than the protocol promises.
    fn default() -> Self {
        Self {
            streams: MUX_MAX_STREAMS,
            unread: usize::MAX,
            queued: usize::MAX,
        }
    }
}

/// Fewer bytes than that are copied behind others that wait: a handle takes memory too.
const MAX_COPIED: usize = 512;

/// One side of a multiplexed connection, without I/O and without a clock.
///
/// See the [module](super) for what it promises and how to drive it. Idle, it takes less than 1 KiB.
#[derive(Debug)]
pub struct Mux {
    pub(super) role: MuxRole,
    pub(super) streams: StreamSlab<MuxStream>,
    pub(super) by_id: HashMap<u64, StreamKey, BuildHasherDefault<IdHasher>>,
    pub(super) events: VecDeque<MuxEvent>,
    pub(super) ended: Option<ConnectionEnd>,

    // Opening here.
    pub(super) next_local: u64,
    /// Streams that may still be opened here.
    pub(super) open_credit: usize,
    pub(super) open_blocked: bool,

    // Opened by the peer.
    pub(super) next_remote: u64,
    /// Streams that the peer may still open.
    pub(super) remote_credit: usize,
    /// Streams of the peer that are over and not yet granted again.
    pub(super) returned: usize,
    pub(super) incoming: VecDeque<StreamKey>,
    pub(super) accept_blocked: bool,
    pub(super) limits: ReceiveLimits,

    // Arriving.
    pub(super) preface: PrefaceState,
    pub(super) decoder: MuxDecoder,
    pub(super) receiving: Option<IncomingData>,
    pub(super) budget: WindowBudget,
    /// Unread bytes of all streams.
    pub(super) unread: usize,
    /// Bytes of chunks of which slices are kept, here or by who has read them.
    pub(super) pinned: Arc<AtomicUsize>,
    /// Slices of the chunk that arrives may be kept.
    pub(super) slices: bool,
    pub(super) datagrams_in: VecDeque<Bytes>,
    pub(super) datagram_blocked: bool,

    // Leaving.
    /// Bytes that wait to be written, of all streams.
    pub(super) queued: usize,
    pub(super) preface_sent: bool,
    pub(super) close: Option<MuxFrame>,
    pub(super) control: VecDeque<StreamKey>,
    pub(super) ready: [VecDeque<StreamKey>; Priority::ALL.len()],
    pub(super) shares: PriorityShares,
    pub(super) pings: VecDeque<MuxFrame>,
    /// Pings of ours without an answer so far.
    pub(super) unanswered: usize,
    pub(super) datagrams_out: VecDeque<Bytes>,
}

/// How much of the peer's preface has come.
#[derive(Debug)]
pub(super) enum PrefaceState {
    Preface { bytes: [u8; PREFACE], len: usize },
    Done,
}

/// The DATA frame that is arriving.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingData {
    /// None for a stream that is over.
    pub(super) key: Option<StreamKey>,
    pub(super) fin: bool,
}

impl Mux {
    /// A connection at its start.
    #[must_use]
    pub fn new(role: MuxRole) -> Self {
        Self {
            role,
            streams: StreamSlab::new(),
            by_id: HashMap::default(),
            events: VecDeque::new(),
            ended: None,
            next_local: role.first_id(),
            open_credit: MUX_MAX_STREAMS,
            open_blocked: false,
            next_remote: role.other().first_id(),
            remote_credit: MUX_MAX_STREAMS,
            returned: 0,
            incoming: VecDeque::new(),
            accept_blocked: false,
            limits: ReceiveLimits::default(),
            preface: PrefaceState::Preface {
                bytes: [0; PREFACE],
                len: 0,
            },
            decoder: MuxDecoder::default(),
            receiving: None,
            budget: WindowBudget::default(),
            unread: 0,
            pinned: Arc::default(),
            slices: false,
            datagrams_in: VecDeque::new(),
            datagram_blocked: false,
            queued: 0,
            preface_sent: false,
            close: None,
            control: VecDeque::new(),
            ready: Default::default(),
            shares: PriorityShares::default(),
            pings: VecDeque::new(),
            unanswered: 0,
            datagrams_out: VecDeque::new(),
        }
    }

    /// The next thing that may be worth doing.
    pub fn poll_event(&mut self) -> Option<MuxEvent> {
        self.events.pop_front()
    }

    /// Why the connection is over, if it is.
    #[must_use]
    pub const fn ended(&self) -> Option<&ConnectionEnd> {
        self.ended.as_ref()
    }

    /// Streams that take memory here: those not over, and those over with a half still held.
    #[must_use]
    pub const fn live_streams(&self) -> usize {
        self.streams.len()
    }

    /// Bytes received and not yet read, over all streams.
    #[must_use]
    pub const fn unread(&self) -> usize {
        self.unread
    }

    /// Bytes written and not yet handed to the byte stream, over all streams.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.queued
    }

    /// The room that the peer has.
    #[must_use]
    pub const fn receive_limits(&self) -> ReceiveLimits {
        self.limits
    }

    /// Opens a stream; pending while the peer's limit is reached. The peer sees it with its first
    /// bytes.
    ///
    /// # Errors
    ///
    /// The connection is over.
    pub fn open(&mut self, priority: Priority) -> Poll<Result<StreamKey, ConnectionEnd>> {
        if let Some(ended) = &self.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        if self.open_credit == 0 {
            self.open_blocked = true;
            return Poll::Pending;
        }
        self.open_credit -= 1;
        Poll::Ready(Ok(self.streams.insert(MuxStream::new(None, priority))))
    }

    /// The next stream that the peer opened, in the order of first frames.
    ///
    /// # Errors
    ///
    /// The connection is over.
    pub fn accept(&mut self) -> Poll<Result<StreamKey, ConnectionEnd>> {
        if let Some(ended) = &self.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        let next = self
            .gives_streams()
            .then(|| self.incoming.pop_front())
            .flatten();
        self.accept_blocked = next.is_none();
        next.map_or(Poll::Pending, |key| Poll::Ready(Ok(key)))
    }

    /// Gives the peer less room than the protocol promises it, or all of it again: for one that is
    /// not trusted yet. What was granted stays granted, so its streams wait in the queue of
    /// [`Mux::accept`], and whoever feeds this side should ask [`Mux::wants_input`] first.
    pub fn set_receive_limits(&mut self, room: ReceiveLimits) {
        self.limits = room;
        self.tell_accepter();
    }

    /// Whether more bytes should be read from the peer: not while more than its [`ReceiveLimits`] is unread.
    #[must_use]
    pub const fn wants_input(&self) -> bool {
        self.unread <= self.limits.unread
    }

    /// Streams of the peer that were given out and are not over.
    fn accepted_streams(&self) -> usize {
        MUX_MAX_STREAMS - self.remote_credit - self.returned - self.incoming.len()
    }

    /// Whether the peer's next stream is given out.
    fn gives_streams(&self) -> bool {
        self.accepted_streams() < self.limits.streams && self.queued <= self.limits.queued
    }

    /// Tells whoever waits for a stream, if there is one to be had.
    pub(super) fn tell_accepter(&mut self) {
        let one = !self.incoming.is_empty() && self.gives_streams();
        if one && std::mem::take(&mut self.accept_blocked) {
            self.events.push_back(MuxEvent::Incoming);
        }
    }

    /// The priority that the opener gave a stream.
    pub fn priority(&mut self, key: StreamKey) -> Option<Priority> {
        self.streams.find(key).map(|stream| stream.priority)
    }

    /// Lets no more than so many bytes of a stream wait to be written, within [`MUX_SEND_FLOOR`] and
    /// [`MUX_SEND_QUEUE`], which is what every stream begins with.
    pub fn set_send_queue(&mut self, key: StreamKey, bytes: usize) {
        if let Some(stream) = self.streams.find(key) {
            stream.send.most = bytes.clamp(MUX_SEND_FLOOR, MUX_SEND_QUEUE);
        }
    }

    /// Bytes of a stream that wait to be written.
    pub fn queued_on(&mut self, key: StreamKey) -> usize {
        self.streams
            .find(key)
            .map_or(0, |stream| stream.send.queued())
    }

    /// Queues bytes off the front of `chunk`, as handles where they are many; pending while any are left, because
    /// as many wait already as may ([`Mux::set_send_queue`]), or as many of all streams as the peer has [`ReceiveLimits`] for.
    ///
    /// # Errors
    ///
    /// [`MuxWriteError`].
    pub fn write(&mut self, key: StreamKey, chunk: &mut Bytes) -> Poll<Result<(), MuxWriteError>> {
        if let Some(ended) = &self.ended {
            return Poll::Ready(Err(ended.clone().into()));
        }
        let Some(stream) = self.streams.find(key) else {
            return Poll::Ready(Err(MuxWriteError::Ended));
        };
        let send = &mut stream.send;
        if let Some(code) = send.stopped {
            return Poll::Ready(Err(MuxWriteError::Stopped(code)));
        }
        if send.state != SendState::Open {
            return Poll::Ready(Err(MuxWriteError::Ended));
        }
        let all = self.limits.queued.saturating_sub(self.queued);
        let most = send
            .most
            .min(send.queue.len().saturating_add(all).max(MUX_SEND_FLOOR));
        let taken = most.saturating_sub(send.queue.len()).min(chunk.len());
        self.queued += taken;
        let part = chunk.split_to(taken);
        if send.queue.len() > 0 && taken < MAX_COPIED {
            send.queue.push_copy(&part);
        } else {
            send.queue.push(part);
        }
        send.blocked = !chunk.is_empty();
        let blocked = send.blocked;
        self.schedule_data(key);
        if blocked {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Ends the sending direction after everything written.
    pub fn finish(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        if stream.send.state == SendState::Open {
            stream.send.state = SendState::Finishing;
            self.schedule_data(key);
        }
    }

    /// Ends the sending direction at once; what is queued is dropped.
    pub fn reset(&mut self, key: StreamKey, code: Code) {
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        self.queued -= stream.send.queued();
        let given_up = stream.send.give_up(code);
        self.queued += stream.send.queued();
        if given_up {
            self.schedule_control(key);
            self.tell_accepter();
        }
    }

    /// The code with which the reader stopped the sending direction; `None` when it ended otherwise:
    /// everything was handed to the byte stream, it was reset here, or the connection is over.
    pub fn stopped(&mut self, key: StreamKey) -> Poll<Option<Code>> {
        let over = self.ended.is_some();
        let Some(stream) = self.streams.find(key) else {
            return Poll::Ready(None);
        };
        if stream.send.stopped.is_some() {
            return Poll::Ready(stream.send.stopped);
        }
        if over || !matches!(stream.send.state, SendState::Open | SendState::Finishing) {
            return Poll::Ready(None);
        }
        stream.send.watched = true;
        Poll::Pending
    }

    /// The next bytes, at most `max` and never none; `None` at the end.
    ///
    /// What arrived before the connection ended can still be read.
    ///
    /// # Errors
    ///
    /// [`MuxReadError`].
    pub fn read(
        &mut self,
        key: StreamKey,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, MuxReadError>> {
        let Some(stream) = self.streams.find(key) else {
            return Poll::Ready(Err(MuxReadError::Stopped));
        };
        let recv = &mut stream.recv;
        if recv.stop.is_some() {
            return Poll::Ready(Err(MuxReadError::Stopped));
        }
        if let RecvState::Reset(code) = recv.state {
            return Poll::Ready(Err(MuxReadError::Reset(code)));
        }
        if let Some(chunk) = recv.queue.pop(max.max(1)) {
            self.unread -= chunk.len();
            if recv.state == RecvState::Open && self.ended.is_none() {
                recv.grant += self.budget.grant(recv);
                if recv.grant > 0 {
                    self.schedule_control(key);
                }
            }
            return Poll::Ready(Ok(Some(chunk)));
        }
        if recv.state == RecvState::Ended {
            return Poll::Ready(Ok(None));
        }
        if let Some(ended) = &self.ended {
            return Poll::Ready(Err(ended.clone().into()));
        }
        recv.blocked = true;
        Poll::Pending
    }

    /// Tells the writer to stop; what is unread is dropped.
    pub fn stop(&mut self, key: StreamKey, code: Code) {
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        let recv = &mut stream.recv;
        self.unread -= recv.unread();
        recv.queue.clear();
        if recv.stop.is_none() {
            recv.stop = Some(StopState::Pending(code));
            if recv.state == RecvState::Open {
                self.schedule_control(key);
            }
        }
    }

    /// Gives the sending half back. If it has not ended, it is reset with `cancelled`.
    pub fn drop_send(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.find(key) {
            stream.send.held = false;
            if stream.send.state == SendState::Open {
                self.reset(key, Code::Cancelled);
            }
            self.collect(key);
        }
    }

    /// Gives the receiving half back. If it has not ended, it is stopped with `cancelled`.
    pub fn drop_recv(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.find(key) {
            stream.recv.held = false;
            self.stop(key, Code::Cancelled);
            self.collect(key);
        }
    }

    /// Queues a datagram; where [`MUX_MAX_DATAGRAMS`] wait already, the oldest is dropped. `false`
    /// if it is larger than [`MAX_DATAGRAM`].
    #[must_use]
    pub fn send_datagram(&mut self, payload: Bytes) -> bool {
        if payload.len() > MAX_DATAGRAM {
            return false;
        }
        if self.ended.is_none() {
            push_bounded(&mut self.datagrams_out, payload);
        }
        true
    }

    /// The next datagram.
    ///
    /// # Errors
    ///
    /// The connection is over.
    pub fn datagram(&mut self) -> Poll<Result<Bytes, ConnectionEnd>> {
        if let Some(payload) = self.datagrams_in.pop_front() {
            return Poll::Ready(Ok(payload));
        }
        if let Some(ended) = &self.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        self.datagram_blocked = true;
        Poll::Pending
    }

    /// Asks for a sign of life, told as [`MuxEvent::Pong`]. `false`, and nothing is sent, while
    /// [`MUX_MAX_PINGS`] are unanswered.
    pub fn ping(&mut self, payload: [u8; 8]) -> bool {
        let allowed = self.unanswered < MUX_MAX_PINGS && self.queue_ping(MuxFrame::Ping(payload));
        self.unanswered += usize::from(allowed);
        allowed
    }

    /// Ends the connection: the peer is told, all else that waits is dropped.
    pub fn close(&mut self, code: Code, reason: &str) {
        if self.ended.is_none() {
            let mut reason = reason.to_owned();
            while reason.len() > MUX_MAX_REASON {
                reason.pop();
            }
            self.close = Some(MuxFrame::Close { code, reason });
            self.end(ConnectionEnd::Here);
        }
    }

    /// Says that the byte stream beneath ended or broke.
    pub fn lost(&mut self, why: impl Into<String>) {
        self.end(ConnectionEnd::Lost(why.into()));
    }

    pub(super) fn end(&mut self, why: ConnectionEnd) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(why);
        self.control.clear();
        self.ready.iter_mut().for_each(VecDeque::clear);
        self.pings.clear();
        self.datagrams_out.clear();
        for key in std::mem::take(&mut self.incoming) {
            self.drop_send(key);
            self.drop_recv(key);
        }
        for (_, stream) in self.streams.iter_mut() {
            stream.send.queue.clear();
        }
        self.queued = 0;
        let abandoned: Vec<_> = self
            .streams
            .iter_mut()
            .filter(|(_, s)| s.is_abandoned())
            .map(|(k, _)| k)
            .collect();
        abandoned.into_iter().for_each(|key| self.collect(key));
        self.events.push_back(MuxEvent::Ended);
    }

    pub(super) fn queue_ping(&mut self, frame: MuxFrame) -> bool {
        let room = self.ended.is_none() && self.pings.len() < 2 * MUX_MAX_PINGS;
        if room {
            self.pings.push_back(frame);
        }
        room
    }

    pub(super) fn schedule_control(&mut self, key: StreamKey) {
        if self.ended.is_none()
            && let Some(stream) = self.streams.find(key)
            && !std::mem::replace(&mut stream.control_queued, true)
        {
            self.control.push_back(key);
        }
    }

    pub(super) fn schedule_data(&mut self, key: StreamKey) {
        if self.ended.is_none()
            && let Some(stream) = self.streams.find(key)
            && stream.send.is_ready()
            && !std::mem::replace(&mut stream.data_queued, true)
            && let Some(queue) = self.ready.get_mut(stream.priority as usize)
        {
            queue.push_back(key);
        }
    }

    /// Forgets a stream once nobody on either side needs it.
    pub(super) fn collect(&mut self, key: StreamKey) {
        let over = self.ended.is_some();
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        if !stream.is_abandoned() || !(over || stream.is_over() || stream.never_was()) {
            return;
        }
        let Some(mut stream) = self.streams.remove(key) else {
            return;
        };
        self.unread -= stream.recv.unread();
        self.budget.forget(&mut stream.recv);
        match stream.id {
            Some(id) => drop(self.by_id.remove(&id)),
            // The peer never heard of it: it does not count.
            None => self.allow_open(1),
        }
        if !stream.local {
            self.returned += 1;
            self.tell_accepter();
        }
        if self.by_id.is_empty() && self.by_id.capacity() > 128 {
            self.by_id = HashMap::default();
        }
    }

    pub(super) fn allow_open(&mut self, count: usize) {
        self.open_credit = self.open_credit.saturating_add(count).min(MUX_MAX_STREAMS);
        if std::mem::take(&mut self.open_blocked) {
            self.events.push_back(MuxEvent::OpenAllowed);
        }
    }
}

/// Queues one more, dropping the oldest where there is no room: a newer datagram is worth more.
pub(super) fn push_bounded(queue: &mut VecDeque<Bytes>, payload: Bytes) {
    if queue.len() >= MUX_MAX_DATAGRAMS {
        queue.pop_front();
    }
    queue.push_back(payload);
}

/// Stream ids come in order without a gap, so a peer cannot choose them to collide: one
/// multiplication spreads them well enough.
#[derive(Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
