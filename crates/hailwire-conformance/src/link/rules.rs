//! What the peer's frames have to keep; whatever breaks it fails the case, whatever that is about.

use bytes::Bytes;
use hailwire_wire::{
    limits::{MUX_INITIAL_WINDOW, MUX_MAX_STREAMS, MUX_RECEIVE_POOL, MUX_STREAM_WINDOW},
    mux::{DecodedItem, FrameHeader, MuxFrame, PREFACE, parse_preface},
};

use super::{DirectionEnd, Link, LinkEnd, LinkStream};
use crate::failure::{Failure, Outcome};

/// Bytes that the peer has promised to take, over all streams whose direction toward it is open.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    bytes: u64,
    streams: u64,
}

impl Outstanding {
    pub(super) fn add_stream(&mut self, credit: u64) {
        self.streams += 1;
        self.bytes += credit;
    }

    pub(super) fn end_stream(&mut self, credit: u64) {
        self.streams = self.streams.saturating_sub(1);
        self.spend(credit);
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Counts what was granted, and refuses what is beyond every bound.
    fn grant(&mut self, bytes: u64) -> Outcome {
        self.bytes += bytes;
        let most = self.streams * u64::from(MUX_INITIAL_WINDOW) + MUX_RECEIVE_POOL as u64;
        if self.bytes <= most {
            return Ok(());
        }
        let (bytes, streams) = (self.bytes, self.streams);
        Err(Failure::rule(format_args!(
            "windows of {bytes} bytes in all for {streams} streams, at most {most} are promised"
        )))
    }
}

impl Link {
    pub(super) fn handle_input(&mut self, mut chunk: Bytes) -> Outcome {
        if let Some(preface) = &mut self.preface {
            let missing = PREFACE - preface.len();
            preface.extend_from_slice(&chunk.split_to(missing.min(chunk.len())));
            if parse_preface(preface, self.role)
                .map_err(Failure::rule)?
                .is_none()
            {
                return Ok(());
            }
            self.preface = None;
        }
        while let Some(item) = self.decoder.next_item(&mut chunk).map_err(Failure::rule)? {
            if let Some(LinkEnd::Closed { .. }) = self.ended {
                return Err(Failure::rule("bytes after CLOSE"));
            }
            match item {
                DecodedItem::Data(header) => self.data_begins(header)?,
                DecodedItem::Part(part) => self.data_part(part),
                DecodedItem::DataEnd => self.data_ends(),
                DecodedItem::Frame(frame) => self.handle_frame(frame)?,
            }
        }
        Ok(())
    }

    fn data_begins(&mut self, header: FrameHeader) -> Outcome {
        let id = header.stream;
        let len = u64::from(header.len);
        let stream = self.known(id, header.flags >> 4)?;
        if let Some(end) = stream.ended_in {
            let what = format_args!("DATA on stream {id} after its direction ended ({end:?})");
            return Err(Failure::rule(what));
        }
        let Some(left) = stream.credit_in.checked_sub(len) else {
            let credit = stream.credit_in;
            let what = format_args!("{len} bytes on stream {id}, of which {credit} were granted");
            return Err(Failure::rule(what));
        };
        stream.credit_in = left;
        stream.received += len;
        let dropped = stream.stopped_here;
        self.receiving = Some((id, dropped));
        self.ends_direction = header.fin();
        Ok(())
    }

    fn data_part(&mut self, part: Bytes) {
        if let Some((id, false)) = self.receiving
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.unread += part.len() as u64;
            stream.chunks.push_back(part);
        }
    }

    fn data_ends(&mut self) {
        if let Some((id, _)) = self.receiving.take()
            && self.ends_direction
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.ended_in = Some(DirectionEnd::Finished);
        }
    }

    fn handle_frame(&mut self, frame: MuxFrame) -> Outcome {
        match frame {
            MuxFrame::Data { .. } | MuxFrame::Datagram(_) => {}
            MuxFrame::Reset {
                stream,
                priority,
                code,
            } => {
                let stream = self.known(stream, priority as u8)?;
                stream.ended_in.get_or_insert(DirectionEnd::Reset(code));
            }
            MuxFrame::Stop {
                stream,
                priority,
                code,
            } => {
                self.known(stream, priority as u8)?;
                self.handle_stop(stream, code);
            }
            MuxFrame::Window {
                stream,
                priority,
                credit,
            } => {
                self.known(stream, priority as u8)?;
                self.handle_window(stream, u64::from(credit))?;
            }
            MuxFrame::Streams(count) => self.handle_streams(count)?,
            MuxFrame::Ping(payload) => self.answer_ping(payload),
            MuxFrame::Pong(payload) => self.pongs.push_back(payload),
            MuxFrame::Close { code, reason } => self.ended = Some(LinkEnd::Closed { code, reason }),
        }
        Ok(())
    }

    fn handle_window(&mut self, id: u64, credit: u64) -> Outcome {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if stream.ended_out {
            return Ok(());
        }
        stream.credit_out += credit;
        if stream.credit_out > u64::from(MUX_STREAM_WINDOW) {
            let credit = stream.credit_out;
            let what = format_args!("a window of {credit} bytes for stream {id}");
            return Err(Failure::rule(what));
        }
        self.outstanding.grant(credit)?;
        self.schedule(id);
        Ok(())
    }

    fn handle_streams(&mut self, count: u32) -> Outcome {
        self.own_credit += count as usize;
        if self.own_credit > MUX_MAX_STREAMS {
            let credit = self.own_credit;
            let what = format_args!("{credit} streams granted at once, {MUX_MAX_STREAMS} at most");
            return Err(Failure::rule(what));
        }
        Ok(())
    }

    /// The stream of a frame, which the frame opens if it is the peer's next.
    fn known(&mut self, id: u64, priority: u8) -> Outcome<&mut LinkStream> {
        if !self.streams.contains_key(&id) {
            let own = id % 2 == self.next_own % 2;
            if id == 0 || own || id != self.next_peer {
                let next = self.next_peer;
                let what =
                    format_args!("a frame for stream {id}, which does not exist; next is {next}");
                return Err(Failure::rule(what));
            }
            if self.peer_credit == 0 {
                let what = format_args!("stream {id}, for which no stream was granted");
                return Err(Failure::rule(what));
            }
            self.peer_credit -= 1;
            self.next_peer += 2;
            let known = hailwire_wire::Priority::ALL.get(usize::from(priority));
            self.insert(
                id,
                known.copied().unwrap_or(hailwire_wire::Priority::Critical),
            );
            self.arrived.push_back(id);
            self.peer_streams += 1;
        }
        let missing = || Failure::driver(format_args!("stream {id} is unknown"));
        let stream = self.streams.get_mut(&id).ok_or_else(missing)?;
        stream.priorities_seen |= 1 << (priority & 15);
        Ok(stream)
    }
}
