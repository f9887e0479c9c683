//! The task that owns the byte stream.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use hailwire_wire::mux::{ConnectionEnd, MuxOutput, READ_BUFFER};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::shared::MuxShared;

/// Bytes after which readers get their turn before more is read, so that credit goes back while the
/// peer still has some: where readers share a thread with this task, they would see nothing before it
/// sleeps.
const TURN: usize = 2 * READ_BUFFER;

/// Bytes that are read, where they are there, before the multiplexer gets them; with less room than that a
/// buffer is renewed.
const ENOUGH: usize = READ_BUFFER / 2;

/// How long a closing side tries to tell a peer that does not read.
const LINGER: Duration = Duration::from_secs(1);

thread_local! {
    /// The read buffer of whichever connection of this thread reads at the moment.
    static SPARE: Cell<BytesMut> = Cell::new(BytesMut::new());
}

/// Moves bytes until the connection is over, then tells the peer if there is something to tell.
pub(super) async fn drive<IO: AsyncRead + AsyncWrite>(io: Pin<Box<IO>>, shared: Arc<MuxShared>) {
    let mut driver = MuxDriver {
        io,
        shared,
        out: MuxOutput::new(),
        wakes: Vec::new(),
        write_error: None,
        unflushed: false,
        full: false,
    };
    poll_fn(|cx| driver.poll(cx)).await;
    // A peer that does not read in time learns it from the end of the byte stream.
    let _ = tokio::time::timeout(LINGER, driver.write_close()).await;
}

struct MuxDriver<IO> {
    io: Pin<Box<IO>>,
    shared: Arc<MuxShared>,
    /// Taken from the multiplexer and not yet written.
    out: MuxOutput,
    wakes: Vec<Waker>,
    write_error: Option<io::Error>,
    /// Something was written that the byte stream may still hold back.
    unflushed: bool,
    /// The peer has used up its room, and is not read from until some of it is read by others.
    full: bool,
}

impl<IO: AsyncRead + AsyncWrite> MuxDriver<IO> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut buffer = SPARE.take();
        let result = self.poll_with(&mut buffer, cx);
        SPARE.set(buffer);
        self.out.release();
        result
    }

    fn poll_with(&mut self, buffer: &mut BytesMut, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        self.full = self.shared.with_driver_awake(&mut self.wakes, |state| {
            state.driver = Some(waker);
            state.fit();
            state.full = !state.mux.wants_input();
            state.full
        });
        let mut read = 0;
        loop {
            if self.poll_write(cx).is_ready() {
                return Poll::Ready(());
            }
            if self.full {
                return Poll::Pending;
            }
            if read >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.poll_read(buffer, cx) {
                Poll::Ready(Some(count)) => read += count,
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return self.sleep(),
            }
        }
    }

    /// Ready when the connection is over; pending when there is nothing to write or no room for it.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.write_error.is_none() {
            if self.out.is_empty() {
                let out = &mut self.out;
                let over = self.shared.with_driver_awake(&mut self.wakes, |state| {
                    let over = state.mux.ended().is_some();
                    if !over {
                        state.mux.poll_output(out);
                        state.sent += out.len() as u64;
                    }
                    over
                });
                if over {
                    return Poll::Ready(());
                }
                if self.out.is_empty() {
                    self.poll_flush(cx);
                    return Poll::Pending;
                }
            }
            match pin!(self.io.write_buf(&mut self.out)).poll(cx) {
                Poll::Ready(Ok(0)) => self.write_error = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(_)) => self.unflushed = true,
                Poll::Ready(Err(error)) => self.write_error = Some(error),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) {
        if self.unflushed
            && let Poll::Ready(flushed) = self.io.as_mut().poll_flush(cx)
        {
            self.unflushed = false;
            self.write_error = flushed.err();
        }
    }

    /// Ready with how many bytes have come, or none when the connection is over.
    fn poll_read(&mut self, buffer: &mut BytesMut, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        if buffer.capacity() - buffer.len() < ENOUGH {
            buffer.reserve(READ_BUFFER);
        }
        let mut over = None;
        while over.is_none() && buffer.len() < ENOUGH {
            match pin!(self.io.read_buf(buffer)).poll(cx) {
                Poll::Ready(Ok(0)) => over = Some("the byte stream ended".to_owned()),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => over = Some(error.to_string()),
                Poll::Pending if buffer.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        let count = buffer.len();
        let (goes_on, full) = self.shared.with_driver_awake(&mut self.wakes, |state| {
            if count > 0 {
                state.received += count as u64;
                state.reads += 1;
                if let Err(error) = state.mux.handle_input(buffer.split().freeze()) {
                    tracing::debug!(%error, "multiplexer refused its peer");
                }
            }
            if let Some(why) = over {
                state.mux.lost(why);
            }
            state.fit();
            state.full = !state.mux.wants_input();
            (state.mux.ended().is_none(), state.full)
        });
        self.full = full;
        Poll::Ready(goes_on.then_some(count))
    }

    /// Nothing to read. A peer that can no longer be written to may have said why, and then that
    /// has been read by now.
    fn sleep(&mut self) -> Poll<()> {
        let Some(error) = self.write_error.take() else {
            return Poll::Pending;
        };
        self.shared
            .with_driver_awake(&mut self.wakes, |state| state.mux.lost(error.to_string()));
        Poll::Ready(())
    }

    async fn write_close(&mut self) {
        let out = &mut self.out;
        let tell = self.shared.with_driver_awake(&mut self.wakes, |state| {
            state.mux.poll_output(out);
            matches!(
                state.mux.ended(),
                Some(ConnectionEnd::Here | ConnectionEnd::Protocol(_))
            )
        });
        while tell && !self.out.is_empty() {
            match self.io.write_buf(&mut self.out).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let _ = self.io.shutdown().await;
    }
}

impl<IO> Drop for MuxDriver<IO> {
    /// Also where the runtime stops in mid-flight: nobody is left waiting.
    fn drop(&mut self) {
        let closed = self.shared.with_driver_awake(&mut self.wakes, |state| {
            state.mux.lost("the runtime stopped");
            state.done = true;
            std::mem::take(&mut state.closed)
        });
        closed.into_iter().for_each(Waker::wake);
    }
}
