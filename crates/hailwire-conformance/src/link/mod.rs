//! The driver's side of the multiplexer: writes what a case says, and refuses every byte that breaks a rule of `spec/mux.md`.
//!
//! It is one value that does its own I/O whenever a case waits for something ([`Link::pump`]), so that nothing happens behind a
//! case's back: no task, no lock. What the peer sends is always read off the socket, and read off its stream when the case does;
//! credit is granted then, so a case that does not read holds the peer back.
//!
//! `rules` has what is refused, `sending` what is written, `stream` one stream.

mod rules;
mod sending;
mod stream;
#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    fmt, io,
    rc::Rc,
};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Code,
    frame::{FrameEvent, FrameKind},
    limits::MUX_MAX_STREAMS,
    mux::{MuxDecoder, MuxRole},
};
use tokio::{io::Interest, net::UnixStream};

use self::rules::Outstanding;
pub(crate) use self::stream::{DirectionEnd, LinkStream};
use crate::failure::{Failure, Outcome};

/// Bytes that are read at once.
const READ_SIZE: usize = 64 * 1024;

/// Unread bytes of a stream that the node lets the peer have, once it reads it.
const WINDOW: u64 = 256 * 1024;

/// What a case waits for now, to be told when its time is up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awaited(Rc<RefCell<String>>);

impl Awaited {
    pub(crate) fn set(&self, what: impl fmt::Display) {
        *self.0.borrow_mut() = what.to_string();
    }

    pub(crate) fn text(&self) -> String {
        self.0.borrow().clone()
    }
}

/// How a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// With CLOSE.
    Closed {
        /// Its code.
        code: Code,
        /// Its reason.
        reason: String,
    },
    /// The byte stream ended.
    Gone,
}

/// What comes next on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    /// A frame that is not `DATA`.
    Frame(FrameKind, Bytes),
    /// Bytes of a body.
    Data(Bytes),
    /// The peer finished its direction, between two frames.
    Finished,
    /// The peer gave its direction up.
    Reset(Code),
}

/// A connection of the peer's.
#[derive(Debug)]
pub(crate) struct Link {
    io: UnixStream,
    awaited: Awaited,
    role: MuxRole,
    /// The peer's preface as far as it came; `None` once it was read.
    preface: Option<Vec<u8>>,
    decoder: MuxDecoder,
    /// The stream whose DATA arrives, and whether it is dropped.
    receiving: Option<(u64, bool)>,
    ends_direction: bool,
    streams: HashMap<u64, LinkStream>,
    /// Streams that have something to send, each once.
    ready: VecDeque<u64>,
    out: BytesMut,
    next_own: u64,
    next_peer: u64,
    own_credit: usize,
    peer_credit: usize,
    peer_streams: usize,
    arrived: VecDeque<u64>,
    pongs: VecDeque<[u8; 8]>,
    outstanding: Outstanding,
    ended: Option<LinkEnd>,
    grants: bool,
}

impl Link {
    pub(crate) fn new(io: UnixStream, awaited: Awaited) -> Self {
        Self::with_role(io, awaited, MuxRole::Server)
    }

    fn with_role(io: UnixStream, awaited: Awaited, role: MuxRole) -> Self {
        Self {
            io,
            awaited,
            role,
            preface: Some(Vec::new()),
            decoder: MuxDecoder::default(),
            receiving: None,
            ends_direction: false,
            streams: HashMap::new(),
            ready: VecDeque::new(),
            out: BytesMut::new(),
            next_own: role.first_id(),
            next_peer: role.other().first_id(),
            own_credit: MUX_MAX_STREAMS,
            peer_credit: MUX_MAX_STREAMS,
            peer_streams: 0,
            arrived: VecDeque::new(),
            pongs: VecDeque::new(),
            outstanding: Outstanding::default(),
            ended: None,
            grants: true,
        }
    }

    /// Says what is awaited from here on.
    pub(crate) fn awaits(&self, what: impl fmt::Display) {
        self.awaited.set(what);
    }

    /// Does one step of input and output.
    pub(crate) async fn pump(&mut self) -> Outcome {
        if let Some(end) = &self.ended {
            let came = format_args!("the end of the connection: {end}");
            return Err(Failure::new(self.awaited.text(), came));
        }
        self.fill();
        let interest = match self.out.is_empty() {
            true => Interest::READABLE,
            false => Interest::READABLE | Interest::WRITABLE,
        };
        let ready = self.io.ready(interest).await.map_err(Failure::driver)?;
        if ready.is_writable() {
            self.write_out();
        }
        if ready.is_readable() {
            self.read_in()?;
        }
        Ok(())
    }

    fn write_out(&mut self) {
        match self.io.try_write(&self.out) {
            Ok(written) => drop(self.out.split_to(written)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The peer is gone; reading tells.
            Err(_) => self.out.clear(),
        }
    }

    fn read_in(&mut self) -> Outcome {
        let mut buffer = BytesMut::with_capacity(READ_SIZE);
        match self.io.try_read_buf(&mut buffer) {
            Ok(0) => self.ended = Some(LinkEnd::Gone),
            Ok(_) => self.handle_input(buffer.freeze())?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.ended = Some(LinkEnd::Gone),
        }
        Ok(())
    }

    /// Writes all that can be written now: what credit holds back stays.
    pub(crate) async fn flush(&mut self) -> Outcome {
        self.fill();
        while !self.out.is_empty() {
            self.pump().await?;
        }
        Ok(())
    }

    /// Waits until the peer's preface is there.
    pub(crate) async fn greeted(&mut self) -> Outcome {
        self.awaits("the preface");
        while self.preface.is_some() {
            self.pump().await?;
        }
        Ok(())
    }

    /// The next stream that the peer opens.
    pub(crate) async fn accept(&mut self) -> Outcome<u64> {
        loop {
            if let Some(id) = self.arrived.pop_front() {
                return Ok(id);
            }
            self.pump().await?;
        }
    }

    /// A stream that the peer has opened, if there is one.
    pub(crate) fn poll_accept(&mut self) -> Option<u64> {
        self.arrived.pop_front()
    }

    /// The next event of a stream.
    pub(crate) async fn event(&mut self, id: u64) -> Outcome<StreamEvent> {
        loop {
            if let Some(event) = self.poll_event(id)? {
                return Ok(event);
            }
            self.pump().await?;
        }
    }

    /// The next event of a stream, if it is there.
    pub(crate) fn poll_event(&mut self, id: u64) -> Outcome<Option<StreamEvent>> {
        loop {
            let Some(stream) = self.streams.get_mut(&id) else {
                return Err(Failure::driver(format_args!("stream {id} is unknown")));
            };
            let event = stream.frames.next_event();
            let broken = |error| Failure::rule(format_args!("on stream {id} {error}"));
            match event.map_err(broken)? {
                Some(FrameEvent::Frame(kind, payload)) => {
                    return Ok(Some(StreamEvent::Frame(kind, payload)));
                }
                Some(FrameEvent::Data(bytes)) => return Ok(Some(StreamEvent::Data(bytes))),
                None => {}
            }
            if let Some(chunk) = self.take_chunk(id) {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.frames.push(chunk);
                }
                continue;
            }
            let Some(stream) = self.streams.get(&id) else {
                return Ok(None);
            };
            return Ok(match stream.ended_in {
                Some(DirectionEnd::Finished) => {
                    stream.frames.finish().map_err(broken)?;
                    Some(StreamEvent::Finished)
                }
                Some(DirectionEnd::Reset(code)) => Some(StreamEvent::Reset(code)),
                None => None,
            });
        }
    }

    /// Takes bytes that came, and grants the peer more where the case lets it.
    fn take_chunk(&mut self, id: u64) -> Option<Bytes> {
        let grants = self.grants;
        let stream = self.streams.get_mut(&id)?;
        let chunk = stream.chunks.pop_front()?;
        stream.unread -= chunk.len() as u64;
        let open = stream.ended_in.is_none() && !stream.stopped_here;
        let held = stream.credit_in + stream.unread;
        if grants && open && held <= WINDOW / 2 {
            let more = u32::try_from(WINDOW - held).unwrap_or(u32::MAX);
            self.grant(id, more);
        }
        Some(chunk)
    }

    /// Waits until the peer has ended its direction and it was told: FIN or RESET, whatever lies unread.
    pub(crate) async fn direction_end(&mut self, id: u64) -> Outcome<DirectionEnd> {
        loop {
            if let Some(end) = self.stream(id)?.ended_in {
                return Ok(end);
            }
            self.pump().await?;
        }
    }

    /// Waits until the peer stops the node's direction.
    pub(crate) async fn stop_of(&mut self, id: u64) -> Outcome<Code> {
        loop {
            if let Some(code) = self.stream(id)?.stop {
                return Ok(code);
            }
            self.pump().await?;
        }
    }

    /// Waits until all that was written on a stream was sent.
    pub(crate) async fn sent(&mut self, id: u64) -> Outcome {
        while self.queued(id) > 0 && self.stream(id)?.stop.is_none() {
            self.pump().await?;
        }
        self.flush().await
    }

    /// Waits for a PONG.
    pub(crate) async fn pong(&mut self) -> Outcome<[u8; 8]> {
        self.awaits("a PONG of the multiplexer");
        loop {
            if let Some(payload) = self.pongs.pop_front() {
                return Ok(payload);
            }
            self.pump().await?;
        }
    }

    /// Asks for a PONG and waits for it: what the peer was sent before was read then.
    pub(crate) async fn round_trip(&mut self) -> Outcome {
        let payload = *b"complete";
        self.ping(payload);
        while self.pong().await? != payload {}
        Ok(())
    }

    /// Waits until the peer has ended the connection.
    pub(crate) async fn ended(&mut self) -> Outcome<LinkEnd> {
        loop {
            if let Some(end) = &self.ended {
                return Ok(end.clone());
            }
            self.pump().await?;
        }
    }

    /// A stream that exists.
    pub(crate) fn stream(&self, id: u64) -> Outcome<&LinkStream> {
        let missing = || Failure::driver(format_args!("stream {id} is unknown"));
        self.streams.get(&id).ok_or_else(missing)
    }

    /// Streams that the peer has opened so far.
    pub(crate) fn peer_streams(&self) -> usize {
        self.peer_streams
    }

    /// The number of the stream that the node opens next.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_own
    }

    /// Streams that the node may open.
    pub(crate) fn may_open(&self) -> usize {
        self.own_credit
    }
}

impl LinkStream {
    /// Bytes that came on it.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Bytes that were sent on it.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.sent
    }

    /// The code with which the peer stopped the node's direction.
    pub(crate) fn stop(&self) -> Option<Code> {
        self.stop
    }

    /// Whether and how the peer has ended its direction.
    pub(crate) fn end(&self) -> Option<DirectionEnd> {
        self.ended_in
    }

    /// The priorities in the flags of the peer's frames, lowest first.
    pub(crate) fn priorities(&self) -> Vec<u8> {
        (0..16)
            .filter(|bit| self.priorities_seen & (1 << bit) != 0)
            .collect()
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { code, reason } => write!(f, "CLOSE with {code} ({reason})"),
            Self::Gone => f.write_str("the byte stream ended"),
        }
    }
}
