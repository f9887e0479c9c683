//! The TLS connection beneath one HTTP/2 connection: one write for everything that is ready.
//!
//! h2 hands each frame down by itself and flushes after nearly each one, which over TLS would be a record
//! and a system call for every frame. Here they are only gathered, and a flush of h2's means nothing:
//! the connection's task writes once h2 has said all that it has to say ([`GatheredWriter::poll_drain`]), or h2 has to
//! wait because [`FULL`] bytes have come together. The buffer is one that all connections of a thread
//! share, so an idle connection holds none.

use std::{
    cell::Cell,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use hailwire_wire::capsule::ConnectionHalf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::shared::H2Shared;

/// Bytes that are written without waiting for more.
const FULL: usize = 64 * 1024;

/// What one call may add to them.
const FRAME: usize = 17 * 1024;

thread_local! {
    /// The buffer of whichever connection of this thread is gathering at the moment.
    static SPARE: Cell<BytesMut> = Cell::new(BytesMut::new());
}

/// The end that the connection's task holds.
pub(super) struct GatheredWriter<IO>(Arc<Mutex<GatheredState<IO>>>);

/// The end that h2 holds.
pub(super) struct GatheredIo<IO>(Arc<Mutex<GatheredState<IO>>>);

/// A connection whose writes are gathered and whose bytes are counted.
struct GatheredState<IO> {
    io: IO,
    buffer: BytesMut,
    /// h2 has more to say and was made to wait.
    blocked: bool,
    shared: Arc<H2Shared>,
    half: ConnectionHalf,
}

/// Both ends of a line.
pub(super) fn line<IO>(
    io: IO,
    shared: Arc<H2Shared>,
    half: ConnectionHalf,
) -> (GatheredWriter<IO>, GatheredIo<IO>) {
    let gathered = Arc::new(Mutex::new(GatheredState {
        io,
        buffer: BytesMut::new(),
        blocked: false,
        shared,
        half,
    }));
    (GatheredWriter(gathered.clone()), GatheredIo(gathered))
}

fn lock<IO>(gathered: &Mutex<GatheredState<IO>>) -> MutexGuard<'_, GatheredState<IO>> {
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<IO: AsyncWrite + Unpin> GatheredWriter<IO> {
    /// Writes what was gathered; ready with whether h2 has more to say. A connection that cannot be
    /// written to is found by h2 too.
    pub(super) fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut this = lock(&self.0);
        if ready!(this.poll_drain(cx)).is_err() {
            return Poll::Ready(false);
        }
        let more = std::mem::take(&mut this.blocked);
        if !more {
            this.shared.outgoing(this.half).flushed();
        }
        Poll::Ready(more)
    }
}

impl<IO: AsyncWrite + Unpin> GatheredWriter<IO> {
    /// Does something with h2 ahead of the connection's task, which writes from then on.
    pub(super) async fn flushing<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let done = work.as_mut().poll(cx);
            // What could not be written now is written when the task is woken for it.
            let _ = self.poll_drain(cx);
            done
        })
        .await
    }
}

impl<IO: AsyncWrite + Unpin> GatheredState<IO> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.capacity() == 0 {
            return Poll::Ready(Ok(()));
        }
        while !self.buffer.is_empty() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, &self.buffer))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.buffer.advance(count);
        }
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        SPARE.set(buffer);
        Poll::Ready(Ok(()))
    }

    fn poll_append(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.buffer.len() >= FULL {
            let drained = self.poll_drain(cx);
            self.blocked = drained.is_pending();
            ready!(drained)?;
        }
        if self.buffer.capacity() == 0 {
            self.buffer = SPARE.take();
            self.buffer.reserve(FULL + FRAME);
        }
        let before = self.buffer.len();
        for slice in slices {
            self.buffer.extend_from_slice(slice);
        }
        let count = self.buffer.len() - before;
        self.shared.note_written(self.half, count);
        Poll::Ready(Ok(count))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for GatheredIo<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut this = lock(&self.0);
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        this.shared.note_read(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for GatheredIo<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_append(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_append(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = lock(&self.0);
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}
