//! What leaves: the preface, then what streams have to say, the most urgent first.

use super::connection::{Mux, MuxEvent};
use super::frame::{FrameHeader, HEADER, MuxFrame, MuxFrameKind};
use super::output::MuxOutput;
use super::preface::preface;
use super::slab::StreamKey;
use super::stream::{RecvState, SendState, StopState};
use crate::header::Priority;
use crate::limits::{MAX_DATAGRAM, MUX_MAX_DATA};

/// Bytes of one output, beyond which the rest waits for the next. What is in an output can no
/// longer be overtaken.
const MAX_BATCH: usize = 128 * 1024;

/// Datagrams of one output, so that a flood of them does not stop the streams.
const MAX_DATAGRAM_BATCH: usize = 16;

impl Mux {
    /// Whether [`Mux::poll_output`] has something.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.preface_sent
            || self.close.is_some()
            || !self.control.is_empty()
            || !self.pings.is_empty()
            || !self.datagrams_out.is_empty()
            || self.streams_to_grant() > 0
            || self.ready.iter().any(|queue| !queue.is_empty())
    }

    /// Appends to `out` what is to be written now: at most about 128 KiB, in order of urgency. Call
    /// it again when `out` is written.
    pub fn poll_output(&mut self, out: &mut MuxOutput) {
        if !std::mem::replace(&mut self.preface_sent, true) {
            out.put(&preface(self.role));
        }
        if let Some(farewell) = self.close.take() {
            out.frame(&farewell);
        }
        if self.ended.is_none() {
            self.emit_connection(out);
            while out.len() < MAX_BATCH
                && let Some(key) = self.control.pop_front()
            {
                self.emit_control(key, out);
            }
            self.emit_datagrams(out);
            while out.len() < MAX_BATCH
                && let Some(key) = self.next_to_send()
            {
                self.emit_data(key, out);
            }
        }
        out.seal();
        self.shrink();
    }

    fn emit_connection(&mut self, out: &mut MuxOutput) {
        while let Some(frame) = self.pings.pop_front() {
            out.frame(&frame);
        }
        let grant = self.streams_to_grant();
        if grant > 0 {
            self.returned = 0;
            self.remote_credit += grant;
            out.frame(&MuxFrame::Streams(u32::try_from(grant).unwrap_or(u32::MAX)));
        }
    }

    /// Streams are granted again once there are as many as the peer has left: seldom while it has
    /// many, at once when it has none.
    const fn streams_to_grant(&self) -> usize {
        if self.returned >= self.remote_credit && self.ended.is_none() {
            self.returned
        } else {
            0
        }
    }

    fn emit_control(&mut self, key: StreamKey, out: &mut MuxOutput) {
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        stream.control_queued = false;
        if stream.never_was() {
            return self.collect(key);
        }
        let id = assign_id(stream.id, &mut self.next_local);
        if stream.id.is_none() {
            stream.id = Some(id);
            self.by_id.insert(id, key);
        }
        let priority = stream.priority;
        if let Some(StopState::Pending(code)) = stream.recv.stop
            && stream.recv.state == RecvState::Open
        {
            stream.recv.stop = Some(StopState::Sent);
            out.frame(&MuxFrame::Stop {
                stream: id,
                priority,
                code,
            });
        }
        if let SendState::Resetting(code) = stream.send.state {
            stream.send.state = SendState::Reset;
            if std::mem::take(&mut stream.send.watched) {
                self.events.push_back(MuxEvent::SendEnded(key));
            }
            out.frame(&MuxFrame::Reset {
                stream: id,
                priority,
                code,
            });
        }
        let grant = std::mem::take(&mut stream.recv.grant);
        if grant > 0 && stream.recv.stop.is_none() {
            let credit = u32::try_from(grant).unwrap_or(u32::MAX);
            out.frame(&MuxFrame::Window {
                stream: id,
                priority,
                credit,
            });
        }
        self.collect(key);
    }

    fn emit_datagrams(&mut self, out: &mut MuxOutput) {
        for _ in 0..MAX_DATAGRAM_BATCH {
            let Some(payload) = self.datagrams_out.pop_front() else {
                break;
            };
            let len = payload.len().min(MAX_DATAGRAM) as u16;
            out.put(&FrameHeader::new(MuxFrameKind::DATAGRAM, 0, Priority::Low, len).encode());
            out.body(payload);
        }
    }

    fn next_to_send(&mut self) -> Option<StreamKey> {
        let has = self.ready.each_ref().map(|queue| !queue.is_empty());
        let level = self.shares.next(has, MUX_MAX_DATA as u32)?;
        self.ready.get_mut(level)?.pop_front()
    }

    fn emit_data(&mut self, key: StreamKey, out: &mut MuxOutput) {
        let Some(stream) = self.streams.find(key) else {
            return;
        };
        stream.data_queued = false;
        if !stream.send.is_ready() {
            return;
        }
        let id = assign_id(stream.id, &mut self.next_local);
        if stream.id.is_none() {
            stream.id = Some(id);
            self.by_id.insert(id, key);
        }
        let send = &mut stream.send;
        let credit = usize::try_from(send.credit).unwrap_or(usize::MAX);
        let len = send.queue.len().min(credit).min(MUX_MAX_DATA);
        let fin = send.state == SendState::Finishing && len == send.queue.len();
        let header =
            FrameHeader::new(MuxFrameKind::DATA, id, stream.priority, len as u16).with_fin(fin);
        out.put(&header.encode());
        let mut left = len;
        while let Some(part) = send.queue.pop(left) {
            left -= part.len();
            out.body(part);
        }
        send.credit -= len as u64;
        self.shares.served(stream.priority as usize, len + HEADER);
        self.queued -= len;
        if send.queue.len() <= send.most / 2 && std::mem::take(&mut send.blocked) {
            self.events.push_back(MuxEvent::Writable(key));
        }
        if fin {
            send.state = SendState::Finished;
            if std::mem::take(&mut send.watched) {
                self.events.push_back(MuxEvent::SendEnded(key));
            }
            self.collect(key);
        } else {
            self.schedule_data(key);
        }
        self.tell_accepter();
    }

    /// Gives memory back that a burst needed.
    fn shrink(&mut self) {
        const KEPT_CAPACITY: usize = 256;
        for queue in self
            .ready
            .iter_mut()
            .chain([&mut self.control, &mut self.incoming])
        {
            if queue.is_empty() && queue.capacity() > KEPT_CAPACITY {
                *queue = std::collections::VecDeque::new();
            }
        }
        if self.events.is_empty() && self.events.capacity() > KEPT_CAPACITY {
            self.events = std::collections::VecDeque::new();
        }
    }
}

/// A stream gets its number with its first frame, so that numbers leave no gap and come in order.
fn assign_id(id: Option<u64>, next: &mut u64) -> u64 {
    id.unwrap_or_else(|| {
        let id = *next;
        *next += 2;
        id
    })
}
