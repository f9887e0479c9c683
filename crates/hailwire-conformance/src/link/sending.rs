//! What the driver writes: frames of streams within the peer's credit, and bytes of a case's own that keep no rule.

use bytes::{BufMut as _, Bytes};
use hailwire_wire::{
    Code, Priority,
    frame::{self, FrameKind},
    limits::MUX_MAX_DATA,
    mux::{FrameHeader, MuxFrame, MuxFrameKind, preface},
};

use super::{Link, LinkStream};
use crate::failure::Outcome;

/// Bytes that wait for the socket, beyond which streams wait.
const MOST_OUT: usize = 256 * 1024;

impl Link {
    /// Writes bytes as they are, outside of every rule.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.out.put_slice(bytes);
    }

    /// Writes a frame as it is, outside of every rule.
    pub(crate) fn raw_frame(&mut self, kind: u8, flags: u8, stream: u64, payload: &[u8]) {
        let header = FrameHeader {
            kind: MuxFrameKind(kind),
            flags,
            len: u16::try_from(payload.len()).unwrap_or(u16::MAX),
            stream,
        };
        self.raw(&header.encode());
        self.raw(payload);
    }

    /// Writes the node's preface.
    pub(crate) fn preface(&mut self) {
        self.raw(&preface(self.role));
    }

    fn frame(&mut self, frame: &MuxFrame) {
        frame.encode(&mut self.out);
    }

    /// Opens a stream; waits while the peer grants none.
    pub(crate) async fn open(&mut self, priority: Priority) -> Outcome<u64> {
        while self.own_credit == 0 {
            self.awaits("STREAMS, so that the node can open one more");
            self.pump().await?;
        }
        Ok(self.open_now(priority))
    }

    /// Opens a stream, granted or not.
    pub(crate) fn open_now(&mut self, priority: Priority) -> u64 {
        let id = self.next_own;
        self.next_own += 2;
        self.own_credit = self.own_credit.saturating_sub(1);
        self.insert(id, priority);
        id
    }

    pub(super) fn insert(&mut self, id: u64, priority: Priority) {
        let stream = LinkStream::new(priority);
        self.outstanding.add_stream(stream.credit_out);
        self.streams.insert(id, stream);
    }

    /// Queues bytes on a stream; they leave as the peer's credit allows.
    pub(crate) fn write(&mut self, id: u64, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.ended_out
            && !bytes.is_empty()
        {
            stream.queue.push_back(bytes);
            self.schedule(id);
        }
    }

    /// Queues a frame of the session.
    pub(crate) fn put(&mut self, id: u64, kind: FrameKind, payload: &[u8]) {
        let mut frame = Vec::with_capacity(payload.len() + frame::FRAME_PREFIX);
        frame.extend_from_slice(&frame::prefix(kind, payload.len()));
        frame.extend_from_slice(payload);
        self.write(id, frame);
    }

    /// Bytes that are queued on a stream.
    pub(crate) fn queued(&self, id: u64) -> usize {
        let stream = self.streams.get(&id);
        stream.map_or(0, |stream| stream.queue.iter().map(Bytes::len).sum())
    }

    /// Sends one DATA frame at once, outside of every rule but counted.
    pub(crate) fn data_now(&mut self, id: u64, bytes: &[u8], fin: bool) {
        let priority = self.priority(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            let len = bytes.len() as u64;
            self.outstanding.spend(len.min(stream.credit_out));
            stream.credit_out = stream.credit_out.saturating_sub(len);
            stream.sent += len;
        }
        self.frame(&MuxFrame::Data {
            stream: id,
            priority,
            fin,
            body: Bytes::copy_from_slice(bytes),
        });
        if fin {
            self.end_out(id);
        }
    }

    /// Ends the node's direction after all that is queued.
    pub(crate) fn finish(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.finishing = true;
            self.schedule(id);
        }
    }

    /// Gives the node's direction up.
    pub(crate) fn reset(&mut self, id: u64, code: Code) {
        self.reset_number(id, u32::from(code.number()));
    }

    /// As [`Link::reset`], with any number.
    pub(crate) fn reset_number(&mut self, id: u64, code: u32) {
        let over = self.streams.get(&id).is_none_or(|stream| stream.ended_out);
        if !over {
            let flags = (self.priority(id) as u8) << 4;
            self.raw_frame(MuxFrameKind::RESET.0, flags, id, &code.to_be_bytes());
            self.end_out(id);
        }
    }

    /// Tells the peer to stop its direction.
    pub(crate) fn stop(&mut self, id: u64, code: Code) {
        let priority = self.priority(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.stopped_here = true;
            stream.chunks.clear();
            stream.unread = 0;
            let stream = id;
            self.frame(&MuxFrame::Stop {
                stream,
                priority,
                code,
            });
        }
    }

    /// Grants the peer so many bytes more.
    pub(crate) fn grant(&mut self, id: u64, credit: u32) {
        let priority = self.priority(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.credit_in += u64::from(credit);
            let stream = id;
            self.frame(&MuxFrame::Window {
                stream,
                priority,
                credit,
            });
        }
    }

    /// Grants the peer so many streams more.
    pub(crate) fn grant_streams(&mut self, count: u32) {
        self.peer_credit += count as usize;
        self.frame(&MuxFrame::Streams(count));
    }

    /// Whether credit is granted as a case reads; it is by default.
    pub(crate) fn set_grants(&mut self, grants: bool) {
        self.grants = grants;
    }

    /// Asks for a PONG.
    pub(crate) fn ping(&mut self, payload: [u8; 8]) {
        self.frame(&MuxFrame::Ping(payload));
    }

    pub(super) fn answer_ping(&mut self, payload: [u8; 8]) {
        self.frame(&MuxFrame::Pong(payload));
    }

    /// Sends a datagram.
    pub(crate) fn datagram(&mut self, payload: &[u8]) {
        self.frame(&MuxFrame::Datagram(Bytes::copy_from_slice(payload)));
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self, code: Code, reason: &str) {
        let reason = reason.to_owned();
        self.frame(&MuxFrame::Close { code, reason });
    }

    fn priority(&self, id: u64) -> Priority {
        let stream = self.streams.get(&id);
        stream.map_or(Priority::default(), |stream| stream.priority)
    }

    /// The peer wants no more: what is queued is dropped, and RESET says so.
    pub(super) fn handle_stop(&mut self, id: u64, code: Code) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.stop = Some(code);
        stream.queue.clear();
        self.reset(id, code);
    }

    pub(super) fn end_out(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.ended_out
        {
            stream.ended_out = true;
            stream.queue.clear();
            self.outstanding.end_stream(stream.credit_out);
        }
    }

    pub(super) fn schedule(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.is_ready()
            && !std::mem::replace(&mut stream.scheduled, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Moves what streams have to send toward the socket, in turns.
    pub(super) fn fill(&mut self) {
        while self.out.len() < MOST_OUT
            && let Some(id) = self.ready.pop_front()
        {
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            stream.scheduled = false;
            if !stream.is_ready() {
                continue;
            }
            let priority = stream.priority;
            let (body, fin) = stream.next_data(MUX_MAX_DATA);
            self.outstanding.spend(body.len() as u64);
            let stream = id;
            self.frame(&MuxFrame::Data {
                stream,
                priority,
                fin,
                body,
            });
            if fin {
                self.end_out(id);
            } else {
                self.schedule(id);
            }
        }
    }
}
