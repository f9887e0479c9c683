//! What arrives: the preface, then frames.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;

use super::connection::{ConnectionEnd, IncomingData, Mux, MuxEvent, PrefaceState, push_bounded};
use super::frame::{DecodedItem, FrameHeader, MuxFrame};
use super::preface::{PREFACE, parse_preface};
use super::slab::StreamKey;
use super::stream::{MuxStream, RecvState};
use super::{MuxError, READ_BUFFER};
use crate::header::Priority;
use crate::limits::MUX_RECEIVE_POOL;
use crate::status::Code;

/// Bytes from here on are kept as a slice of the chunk that they came in; smaller pieces are copied, so
/// that they do not pin it.
const SLICE_FROM: usize = 8 * 1024;

/// A chunk of fewer bytes is copied whole: it would pin a read buffer that it does not half fill.
const PINNED_FROM: usize = READ_BUFFER / 2;

/// Bytes of chunks that every connection may pin; beyond its room for unread bytes, all that comes is copied.
pub(super) const MAX_PINNED: usize = 2 * READ_BUFFER;

/// A chunk of which slices are kept, counted while any of them is.
struct PinnedChunk {
    chunk: Bytes,
    pins: usize,
    all: Arc<AtomicUsize>,
}

impl PinnedChunk {
    fn new(chunk: Bytes, pins: usize, all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(pins, Relaxed);
        Self {
            chunk,
            pins,
            all: all.clone(),
        }
    }
}

impl AsRef<[u8]> for PinnedChunk {
    fn as_ref(&self) -> &[u8] {
        &self.chunk
    }
}

impl Drop for PinnedChunk {
    fn drop(&mut self) {
        self.all.fetch_sub(self.pins, Relaxed);
    }
}

impl Mux {
    /// Hands over the next bytes from the peer. After the end of the connection they are ignored.
    ///
    /// Large parts of a large chunk are not copied but kept as slices of it. Whoever calls reads into buffers of
    /// [`READ_BUFFER`] bytes: so much is counted as pinned, until the last slice is dropped.
    ///
    /// # Errors
    ///
    /// The peer broke the protocol. The connection is over; [`Mux::poll_output`] has a last frame
    /// for the peer that says so.
    pub fn handle_input(&mut self, chunk: Bytes) -> Result<(), MuxError> {
        let result = self.input(chunk);
        if let Err(error) = &result {
            let understood = matches!(self.preface, PrefaceState::Done);
            self.close = understood.then(|| MuxFrame::Close {
                code: Code::InvalidArgument,
                reason: error.to_string(),
            });
            self.end(ConnectionEnd::Protocol(error.clone()));
        }
        result
    }

    fn input(&mut self, mut chunk: Bytes) -> Result<(), MuxError> {
        if let PrefaceState::Preface { bytes, len } = &mut self.preface {
            let part = chunk.split_to((PREFACE - *len).min(chunk.len()));
            let Some((filled, _)) = bytes.split_at_mut_checked(*len + part.len()) else {
                return Ok(());
            };
            if let Some(room) = filled.get_mut(*len..) {
                room.copy_from_slice(&part);
            }
            *len += part.len();
            if parse_preface(filled, self.role)?.is_none() {
                return Ok(());
            }
            self.preface = PrefaceState::Done;
        }
        self.slices = self.pin(&mut chunk);
        while self.ended.is_none() {
            let Some(item) = self.decoder.next_item(&mut chunk)? else {
                break;
            };
            match item {
                DecodedItem::Data(header) => self.data_begins(header)?,
                DecodedItem::Part(part) => self.data_part(part),
                DecodedItem::DataEnd => self.data_ends(),
                DecodedItem::Frame(frame) => self.frame(frame)?,
            }
        }
        Ok(())
    }

    /// Whether slices of the chunk may be kept. Then it says for how long they are.
    fn pin(&self, chunk: &mut Bytes) -> bool {
        let most = self.limits.unread.clamp(MAX_PINNED, MUX_RECEIVE_POOL);
        let pins = chunk.len().max(READ_BUFFER);
        if chunk.len() < PINNED_FROM || self.pinned.load(Relaxed) + pins > most {
            return false;
        }
        *chunk = Bytes::from_owner(PinnedChunk::new(std::mem::take(chunk), pins, &self.pinned));
        true
    }

    fn data_begins(&mut self, header: FrameHeader) -> Result<(), MuxError> {
        let key = self.stream_of(header.stream, header.priority())?;
        if let Some(stream) = key.and_then(|key| self.streams.find(key)) {
            let recv = &mut stream.recv;
            if recv.state != RecvState::Open {
                return Err(MuxError::AfterEnd(header.stream));
            }
            if recv.credit < usize::from(header.len) {
                return Err(MuxError::Window(header.stream));
            }
        }
        self.receiving = Some(IncomingData {
            key,
            fin: header.fin(),
        });
        Ok(())
    }

    fn data_part(&mut self, part: Bytes) {
        let Some(key) = self.receiving.and_then(|receiving| receiving.key) else {
            return;
        };
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        let recv = &mut stream.recv;
        // As they come: what is announced and has not come is still promised.
        recv.credit = recv.credit.saturating_sub(part.len());
        if recv.stop.is_some() {
            return;
        }
        self.unread += part.len();
        if self.slices && part.len() >= SLICE_FROM {
            recv.queue.push(part);
        } else {
            recv.queue.push_copy(&part);
        }
        self.tell_reader(key);
    }

    fn data_ends(&mut self) {
        if let Some(IncomingData {
            key: Some(key),
            fin: true,
        }) = self.receiving.take()
        {
            self.receiving_ends(key, RecvState::Ended);
        }
    }

    fn frame(&mut self, frame: MuxFrame) -> Result<(), MuxError> {
        match frame {
            MuxFrame::Data { .. } => {}
            MuxFrame::Reset {
                stream,
                priority,
                code,
            } => {
                if let Some(key) = self.stream_of(stream, priority)? {
                    self.receiving_ends(key, RecvState::Reset(code));
                }
            }
            MuxFrame::Stop {
                stream,
                priority,
                code,
            } => {
                if let Some(key) = self.stream_of(stream, priority)? {
                    self.stop_arrives(key, code);
                }
            }
            MuxFrame::Window {
                stream,
                priority,
                credit,
            } => {
                if let Some(key) = self.stream_of(stream, priority)?
                    && let Some(stream) = self.streams.find(key)
                {
                    stream.send.credit = stream.send.credit.saturating_add(u64::from(credit));
                    self.schedule_data(key);
                }
            }
            MuxFrame::Streams(count) => self.allow_open(count as usize),
            MuxFrame::Ping(payload) => {
                self.queue_ping(MuxFrame::Pong(payload));
            }
            MuxFrame::Pong(payload) => {
                if let Some(left) = self.unanswered.checked_sub(1) {
                    self.unanswered = left;
                    self.events.push_back(MuxEvent::Pong(payload));
                }
            }
            MuxFrame::Datagram(payload) => {
                push_bounded(&mut self.datagrams_in, Bytes::copy_from_slice(&payload));
                if std::mem::take(&mut self.datagram_blocked) {
                    self.events.push_back(MuxEvent::Datagram);
                }
            }
            MuxFrame::Close { code, reason } => self.end(ConnectionEnd::ByPeer { code, reason }),
        }
        Ok(())
    }

    /// The live stream of this id, made now if this is its first frame; `None` if it is over.
    fn stream_of(&mut self, id: u64, priority: Priority) -> Result<Option<StreamKey>, MuxError> {
        if let Some(key) = self.by_id.get(&id) {
            return Ok(Some(*key));
        }
        let ours = id % 2 == self.role.first_id() % 2;
        let next = if ours {
            self.next_local
        } else {
            self.next_remote
        };
        if id == 0 || id > next || (ours && id == next) {
            return Err(MuxError::NoSuchStream(id));
        }
        if id < next {
            return Ok(None);
        }
        self.remote_credit = self
            .remote_credit
            .checked_sub(1)
            .ok_or(MuxError::TooManyStreams(id))?;
        self.next_remote += 2;
        let key = self.streams.insert(MuxStream::new(Some(id), priority));
        self.by_id.insert(id, key);
        self.incoming.push_back(key);
        self.tell_accepter();
        Ok(Some(key))
    }

    fn receiving_ends(&mut self, key: StreamKey, state: RecvState) {
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        let recv = &mut stream.recv;
        if recv.state != RecvState::Open {
            return;
        }
        recv.state = state;
        recv.grant = 0;
        if matches!(state, RecvState::Reset(_)) {
            self.unread -= recv.unread();
            recv.queue.clear();
        }
        self.budget.settle(recv);
        self.tell_reader(key);
        self.collect(key);
    }

    fn stop_arrives(&mut self, key: StreamKey, code: Code) {
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        let send = &mut stream.send;
        let queued = send.queued();
        if !send.give_up(code) {
            return;
        }
        self.queued -= queued;
        send.stopped = Some(code);
        if std::mem::take(&mut send.blocked) {
            self.events.push_back(MuxEvent::Writable(key));
        }
        if std::mem::take(&mut send.watched) {
            self.events.push_back(MuxEvent::SendEnded(key));
        }
        self.schedule_control(key);
        self.tell_accepter();
    }

    fn tell_reader(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.find(key)
            && std::mem::take(&mut stream.recv.blocked)
        {
            self.events.push_back(MuxEvent::Readable(key));
        }
    }
}
