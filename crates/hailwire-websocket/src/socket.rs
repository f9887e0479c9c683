//! A WebSocket connection after the upgrade.

use std::{
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker, ready},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::{
    Role, WebSocketError, WebSocketLimits,
    frame::Opcode,
    incoming::{IncomingEvent, IncomingFrames},
    outgoing::{MAX_SLICES, OutgoingFrames},
};

/// Bytes that are read and discarded after this side's close frame, until the peer's close frame arrives.
const MAX_DRAINED: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Open,
    /// This side has sent its close frame and waits for the peer's; this many more bytes may arrive before it.
    Closing(usize),
    /// The last frame waits to be written.
    Ending,
    Over,
}

/// A WebSocket: a stream and a sink of binary messages.
///
/// The stream answers pings automatically and ends with the peer's close frame. One task should poll it; if a reader and a
/// writer are polled by different tasks, both are woken.
#[derive(Debug)]
pub struct WebSocket<IO> {
    io: IO,
    incoming: IncomingFrames,
    outgoing: OutgoingFrames,
    /// Answers the newest ping, once no other pong waits to be written.
    pong: Option<Bytes>,
    state: ConnectionState,
    queue: usize,
    /// Whether something was written that `io` may not have flushed.
    unflushed: bool,
    /// The task that waits until everything is written.
    writer: Option<Waker>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> WebSocket<IO> {
    /// Takes over a connection after its upgrade.
    pub fn over(io: IO, role: Role, limits: WebSocketLimits) -> Self {
        Self::with_rest(io, role, limits, BytesMut::new())
    }

    /// As [`WebSocket::over`], with what was read past the upgrade's head.
    pub(crate) fn with_rest(io: IO, role: Role, limits: WebSocketLimits, rest: BytesMut) -> Self {
        Self {
            io,
            incoming: IncomingFrames::new(role, limits, rest),
            outgoing: OutgoingFrames::new(role),
            pong: None,
            state: ConnectionState::Open,
            queue: limits.queue,
            unflushed: false,
            writer: None,
        }
    }

    /// The underlying byte stream.
    pub const fn get_ref(&self) -> &IO {
        &self.io
    }

    /// Bytes that wait to be written.
    pub fn queued(&self) -> usize {
        self.outgoing.bytes() + self.pong.as_ref().map_or(0, Bytes::len)
    }

    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        let written = self.poll_write_frames(cx);
        if let Poll::Ready(Err(_)) = written {
            self.state = ConnectionState::Over;
        }
        written
    }

    fn poll_write_frames(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        loop {
            if !self.outgoing.has_pong()
                && let Some(pong) = self.pong.take()
            {
                self.outgoing.push(Opcode::Pong, pong)?;
            }
            if self.outgoing.bytes() == 0 {
                break;
            }
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = self.outgoing.slices(&mut slices);
            let slices = slices.get(..count).unwrap_or_default();
            let io = Pin::new(&mut self.io);
            let count = match slices {
                [first, ..] if !io.is_write_vectored() => ready!(io.poll_write(cx, first)),
                slices => ready!(io.poll_write_vectored(cx, slices)),
            }?;
            if count == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
            }
            self.unflushed = true;
            self.outgoing.advance(count);
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes as much as possible without waiting, on behalf of a reader. A writer that waits for the same is woken,
    /// too.
    fn write_some(&mut self, cx: &mut Context<'_>) -> Result<(), WebSocketError> {
        if self.pong.is_none() && self.outgoing.bytes() == 0 && !self.unflushed {
            return Ok(());
        }
        let written = match &self.writer {
            Some(writer) if !writer.will_wake(cx.waker()) => {
                let both = Waker::from(Arc::new(WakeBoth(writer.clone(), cx.waker().clone())));
                self.poll_write_out(&mut Context::from_waker(&both))
            }
            _ => self.poll_write_out(cx),
        };
        match written {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, WebSocketError>>> {
        loop {
            match self.state {
                ConnectionState::Over => return Poll::Ready(None),
                ConnectionState::Ending => {
                    let written = ready!(self.poll_write_out(cx));
                    self.state = ConnectionState::Over;
                    return Poll::Ready(written.err().map(Err));
                }
                ConnectionState::Open | ConnectionState::Closing(_) => {}
            }
            match self.incoming.next(Instant::now) {
                Ok(Some(event)) => {
                    if let Some(message) = self.take(event)? {
                        return Poll::Ready(Some(Ok(message)));
                    }
                }
                Ok(None) => {
                    self.write_some(cx)?;
                    if ready!(self.poll_fill(cx))? == 0 {
                        self.state = ConnectionState::Over;
                    }
                }
                Err(error) => return Poll::Ready(Some(Err(self.refuse(error)))),
            }
        }
    }

    fn take(&mut self, event: IncomingEvent) -> Result<Option<Bytes>, WebSocketError> {
        match (event, self.state) {
            (IncomingEvent::Message(message), ConnectionState::Open) => return Ok(Some(message)),
            (IncomingEvent::Ping(payload), ConnectionState::Open) => self.pong = Some(payload),
            (IncomingEvent::Close(code), ConnectionState::Open) => {
                self.outgoing.push(Opcode::Close, code)?;
                self.state = ConnectionState::Ending;
            }
            (IncomingEvent::Close(_), _) => self.state = ConnectionState::Over,
            (IncomingEvent::Message(_) | IncomingEvent::Ping(_), _) => {}
        }
        Ok(None)
    }

    /// Queues a close frame with the error's status code.
    fn refuse(&mut self, error: WebSocketError) -> WebSocketError {
        let open = self.state == ConnectionState::Open;
        let code = Bytes::copy_from_slice(&error.close_code().to_be_bytes());
        self.pong = None;
        self.state = if open && self.outgoing.push(Opcode::Close, code).is_ok() {
            ConnectionState::Ending
        } else {
            ConnectionState::Over
        };
        error
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let read = pin!(self.io.read_buf(self.incoming.buffer())).poll(cx);
        let Poll::Ready(read) = read else {
            self.incoming.rest();
            return Poll::Pending;
        };
        self.incoming.filled();
        if let (ConnectionState::Closing(left), Ok(count)) = (self.state, &read) {
            self.state = match left.checked_sub(*count) {
                Some(left) => ConnectionState::Closing(left),
                None => ConnectionState::Over,
            };
        }
        if read.is_err() {
            self.state = ConnectionState::Over;
        }
        Poll::Ready(read)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Stream for WebSocket<IO> {
    type Item = Result<Bytes, WebSocketError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Sink<Bytes> for WebSocket<IO> {
    type Error = WebSocketError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        if self.outgoing.bytes() < self.queue {
            return Poll::Ready(Ok(()));
        }
        self.poll_flush(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Bytes) -> Result<(), WebSocketError> {
        if self.state != ConnectionState::Open {
            return Err(WebSocketError::Closed);
        }
        self.outgoing.push(Opcode::Binary, message)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WebSocketError>> {
        let written = self.poll_write_out(cx);
        self.writer = written.is_pending().then(|| cx.waker().clone());
        written
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WebSocketError>> {
        if self.state == ConnectionState::Open {
            let normal = Bytes::copy_from_slice(&1000_u16.to_be_bytes());
            self.outgoing.push(Opcode::Close, normal)?;
            self.state = ConnectionState::Closing(MAX_DRAINED);
        }
        ready!(self.as_mut().poll_flush(cx))?;
        // An error here only means that the peer is gone.
        while let Some(Ok(_)) = ready!(self.poll_event(cx)) {}
        Pin::new(&mut self.io)
            .poll_shutdown(cx)
            .map_err(WebSocketError::Io)
    }
}

/// Wakes two tasks.
struct WakeBoth(Waker, Waker);

impl Wake for WakeBoth {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
        self.1.wake_by_ref();
    }
}

#[cfg(test)]
mod tests;
