//! A connection that has been upgraded: messages in, messages out.

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
    Error, Role, Terms,
    frame::Opcode,
    incoming::{Event, Incoming},
    outgoing::{Outgoing, SLICES},
};

/// Bytes that are still read and thrown away after this side's close, while the peer's is awaited.
const DRAIN: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// This side has closed and waits for the peer's close; so many bytes may come before it.
    Closing(usize),
    /// The last frame waits to be written.
    Ending,
    Over,
}

/// A WebSocket: a stream and a sink of binary messages.
///
/// The stream answers pings by itself and ends with the peer's close. One task should poll it; where two
/// do, both are woken for what one of them waits for.
#[derive(Debug)]
pub struct WebSocket<IO> {
    io: IO,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Answers the newest ping, once no other pong waits to be written.
    pong: Option<Bytes>,
    state: State,
    queue: usize,
    /// Something was written that `io` may still hold back.
    unflushed: bool,
    /// Whoever waits until everything is written.
    writer: Option<Waker>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> WebSocket<IO> {
    /// Takes over a connection after its upgrade.
    pub fn over(io: IO, role: Role, terms: Terms) -> Self {
        Self::with_rest(io, role, terms, BytesMut::new())
    }

    /// As [`WebSocket::over`], with what was read past the upgrade's head.
    pub(crate) fn with_rest(io: IO, role: Role, terms: Terms, rest: BytesMut) -> Self {
        Self {
            io,
            incoming: Incoming::new(role, terms, rest),
            outgoing: Outgoing::new(role),
            pong: None,
            state: State::Open,
            queue: terms.queue,
            unflushed: false,
            writer: None,
        }
    }

    /// What is beneath.
    pub const fn get_ref(&self) -> &IO {
        &self.io
    }

    /// Bytes that wait to be written.
    pub fn queued(&self) -> usize {
        self.outgoing.bytes() + self.pong.as_ref().map_or(0, Bytes::len)
    }

    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let written = self.poll_write_frames(cx);
        if let Poll::Ready(Err(_)) = written {
            self.state = State::Over;
        }
        written
    }

    fn poll_write_frames(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            if !self.outgoing.has_pong()
                && let Some(pong) = self.pong.take()
            {
                self.outgoing.push(Opcode::Pong, pong)?;
            }
            if self.outgoing.bytes() == 0 {
                break;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
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

    /// Writes what waits as far as that goes at once, on behalf of a reader. A writer that waits for the
    /// same is not forgotten.
    fn write_some(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        if self.pong.is_none() && self.outgoing.bytes() == 0 && !self.unflushed {
            return Ok(());
        }
        let written = match &self.writer {
            Some(writer) if !writer.will_wake(cx.waker()) => {
                let both = Waker::from(Arc::new(Both(writer.clone(), cx.waker().clone())));
                self.poll_write_out(&mut Context::from_waker(&both))
            }
            _ => self.poll_write_out(cx),
        };
        match written {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        loop {
            match self.state {
                State::Over => return Poll::Ready(None),
                State::Ending => {
                    let written = ready!(self.poll_write_out(cx));
                    self.state = State::Over;
                    return Poll::Ready(written.err().map(Err));
                }
                State::Open | State::Closing(_) => {}
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
                        self.state = State::Over;
                    }
                }
                Err(error) => return Poll::Ready(Some(Err(self.refuse(error)))),
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<Option<Bytes>, Error> {
        match (event, self.state) {
            (Event::Message(message), State::Open) => return Ok(Some(message)),
            (Event::Ping(payload), State::Open) => self.pong = Some(payload),
            (Event::Close(code), State::Open) => {
                self.outgoing.push(Opcode::Close, code)?;
                self.state = State::Ending;
            }
            (Event::Close(_), _) => self.state = State::Over,
            (Event::Message(_) | Event::Ping(_), _) => {}
        }
        Ok(None)
    }

    /// Tells the peer why it is not listened to any more.
    fn refuse(&mut self, error: Error) -> Error {
        let open = self.state == State::Open;
        let code = Bytes::copy_from_slice(&error.close_code().to_be_bytes());
        self.pong = None;
        self.state = if open && self.outgoing.push(Opcode::Close, code).is_ok() {
            State::Ending
        } else {
            State::Over
        };
        error
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let read = pin!(self.io.read_buf(self.incoming.buffer())).poll(cx);
        let Poll::Ready(read) = read else {
            self.incoming.rest();
            return Poll::Pending;
        };
        self.incoming.came();
        if let (State::Closing(left), Ok(count)) = (self.state, &read) {
            self.state = match left.checked_sub(*count) {
                Some(left) => State::Closing(left),
                None => State::Over,
            };
        }
        if read.is_err() {
            self.state = State::Over;
        }
        Poll::Ready(read)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Stream for WebSocket<IO> {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Sink<Bytes> for WebSocket<IO> {
    type Error = Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.outgoing.bytes() < self.queue {
            return Poll::Ready(Ok(()));
        }
        self.poll_flush(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Bytes) -> Result<(), Error> {
        if self.state != State::Open {
            return Err(Error::Closed);
        }
        self.outgoing.push(Opcode::Binary, message)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let written = self.poll_write_out(cx);
        self.writer = written.is_pending().then(|| cx.waker().clone());
        written
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.state == State::Open {
            let normal = Bytes::copy_from_slice(&1000_u16.to_be_bytes());
            self.outgoing.push(Opcode::Close, normal)?;
            self.state = State::Closing(DRAIN);
        }
        ready!(self.as_mut().poll_flush(cx))?;
        // An error here says no more than that the peer is gone.
        while let Some(Ok(_)) = ready!(self.poll_event(cx)) {}
        Pin::new(&mut self.io).poll_shutdown(cx).map_err(Error::Io)
    }
}

/// Wakes two tasks.
struct Both(Waker, Waker);

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
        self.1.wake_by_ref();
    }
}

#[cfg(test)]
mod tests;
