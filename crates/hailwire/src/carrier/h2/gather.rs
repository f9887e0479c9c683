//! One write for everything that is ready.
//!
//! h2 hands each frame to the connection beneath by itself, which over TLS is a record and a system
//! call for each. Here they are gathered until h2 flushes, which it does when it has nothing more to
//! say, or until [`FULL`] bytes have come together. The buffer is one that all connections of a
//! thread share, so an idle connection holds none.

use std::{
    cell::Cell,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use hailwire_wire::capsule::Half;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::shared::Shared;

/// Bytes that are written without waiting for more.
const FULL: usize = 64 * 1024;

/// What one call may add to them.
const FRAME: usize = 17 * 1024;

thread_local! {
    /// The buffer of whichever connection of this thread is gathering at the moment.
    static SPARE: Cell<BytesMut> = Cell::new(BytesMut::new());
}

/// A connection whose writes are gathered and whose bytes are counted.
pub(super) struct Gather<IO> {
    io: IO,
    buffer: BytesMut,
    shared: Arc<Shared>,
    half: Half,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Gather<IO> {
    pub(super) fn new(io: IO, shared: Arc<Shared>, half: Half) -> Self {
        Self {
            io,
            buffer: BytesMut::new(),
            shared,
            half,
        }
    }

    /// Writes what was gathered.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.buffer.is_empty() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, &self.buffer))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.buffer.advance(count);
        }
        if self.buffer.capacity() > 0 {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            SPARE.set(buffer);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_gather(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.buffer.len() >= FULL {
            ready!(self.poll_drain(cx))?;
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

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gather<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.shared.note_read(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Gather<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_gather(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_gather(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.shared.outgoing(self.half).flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
