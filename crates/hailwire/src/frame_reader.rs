//! Reads frames off a carrier's stream.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use hailwire_wire::{
    Code, Status,
    frame::{FrameDecoder, FrameEvent, FrameKind},
};

use crate::carrier::{ConnectionError, ReadError, ReadWaiting, RecvStream};

/// Most bytes taken from the carrier at once.
const READ_SIZE: usize = 64 * 1024;

/// A [`FrameDecoder`] on the reading half of a stream.
#[derive(Debug)]
pub(crate) struct FrameReader {
    recv: RecvStream,
    decoder: FrameDecoder,
}

impl FrameReader {
    pub(crate) fn new(recv: RecvStream) -> Self {
        Self {
            recv,
            decoder: FrameDecoder::new(),
        }
    }

    /// Whether the stream may be a replay; see [`RecvStream::is_early`].
    pub(crate) fn is_early(&self) -> bool {
        self.recv.is_early()
    }

    /// The next frame or part of a body; `None` at an orderly end.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(crate) async fn next(&mut self) -> Result<Option<FrameEvent>, Status> {
        let mut waiting = ReadWaiting::default();
        poll_fn(|cx| self.poll_next(&mut waiting, cx)).await
    }

    /// As [`FrameReader::next`], for a future of the caller's that holds `waiting` ([`RecvStream::poll_read`]).
    pub(crate) fn poll_next(
        &mut self,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<FrameEvent>, Status>> {
        loop {
            if let Some(event) = self.decoder.next_event().map_err(malformed)? {
                return Poll::Ready(Ok(Some(event)));
            }
            match ready!(self.recv.poll_read(READ_SIZE, waiting, cx)) {
                Ok(Some(chunk)) => self.decoder.push(chunk),
                Ok(None) => {
                    let ended = self.decoder.finish().map(|()| None);
                    return Poll::Ready(ended.map_err(malformed));
                }
                Err(error) => return Poll::Ready(Err(read_status(error))),
            }
        }
    }

    /// The first frame of a stream, of which a body says only that it is none that opens one.
    pub(crate) async fn opening(&mut self) -> Result<Option<(FrameKind, Bytes)>, Status> {
        Ok(self.next().await?.map(|event| match event {
            FrameEvent::Frame(kind, payload) => (kind, payload),
            FrameEvent::Data(_) => (FrameKind::DATA, Bytes::new()),
        }))
    }

    /// The next frame that is not body, skipping body bytes.
    pub(crate) async fn next_frame(&mut self) -> Result<Option<(FrameKind, Bytes)>, Status> {
        loop {
            match self.next().await? {
                Some(FrameEvent::Frame(kind, payload)) => return Ok(Some((kind, payload))),
                Some(FrameEvent::Data(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Lets go of the stream after the frame that ends what it is for.
    ///
    /// The far side's end has mostly come with that frame; only where it has not is the far side
    /// told to stop, which costs a packet.
    pub(crate) fn close(&mut self) {
        if !matches!(
            now(pin!(self.recv.read(READ_SIZE))),
            Some(Ok(None) | Err(_))
        ) {
            self.recv.stop(Code::Ok);
        }
    }

    pub(crate) fn stop(&mut self, code: Code) {
        self.recv.stop(code);
    }

    /// What was read and not decoded, and the stream, for a relay that looks no further.
    pub(crate) fn into_parts(self) -> (Bytes, RecvStream) {
        (self.decoder.into_rest(), self.recv)
    }
}

fn malformed(error: hailwire_wire::frame::FrameError) -> Status {
    Status::new(Code::InvalidArgument, error.to_string())
}

/// What a failed read means to whoever waits for an answer or a body.
pub(crate) fn read_status(error: ReadError) -> Status {
    match error {
        ReadError::Reset(Code::Ok | Code::Cancelled) => {
            Status::new(Code::Cancelled, "the far side gave the call up")
        }
        ReadError::Reset(Code::Unavailable) => Status::new(
            Code::Unavailable,
            "the agent or its node went away in mid-call",
        ),
        ReadError::Reset(Code::DeadlineExceeded) => deadline_exceeded(),
        ReadError::Reset(code) => Status::new(code, "the far side reset the call"),
        ReadError::Stopped => Status::new(Code::Cancelled, "the call was given up here"),
        ReadError::Connection(error) => connection_status(&error),
    }
}

/// What a lost connection means to whoever had work on it.
pub(crate) fn connection_status(error: &ConnectionError) -> Status {
    match error {
        ConnectionError::Closed { code: Code::Ok, .. } | ConnectionError::LocallyClosed => {
            Status::new(Code::Unavailable, "the connection was closed in mid-call")
        }
        ConnectionError::Closed { code, reason } => Status::new(*code, reason.clone()),
        ConnectionError::Lost(_) | ConnectionError::Protocol(_) => {
            Status::new(Code::Unavailable, error.to_string())
        }
    }
}

pub(crate) fn deadline_exceeded() -> Status {
    Status::new(
        Code::DeadlineExceeded,
        "the deadline passed before the answer was whole",
    )
    .with_hint("allow more time, or ask `hail ping` and `hail status` where it goes")
}

/// What a future gives without waiting. The future must not lose anything when it is dropped. Takes it pinned, because what it
/// is used for is large to move.
pub(crate) fn now<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match future.poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
