//! Wide reads beneath TLS.
//!
//! rustls asks the socket for 4 KiB at a time, so a full record (RFC 8446, 5.1) takes five system calls.
//! Here the socket is asked for [`WIDE`] bytes, and rustls gets its pieces from memory. The buffer is one
//! that all connections of a thread share, and goes back to it as soon as everything in it was taken,
//! so an idle connection holds none.

use std::{
    cell::Cell,
    io,
    ops::Range,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Bytes that are asked for at once.
const WIDE: usize = 64 * 1024;

thread_local! {
    /// The buffer of whichever connection of this thread reads at the moment.
    static SPARE: Cell<Box<[u8]>> = Cell::new(Box::default());
}

/// A TCP connection that is read in large pieces.
#[derive(Debug)]
pub(in crate::carrier) struct LargeReads {
    io: TcpStream,
    /// What was read, while some of it is not taken.
    buffer: Box<[u8]>,
    /// Where in the buffer that is.
    unread: Range<usize>,
}

impl LargeReads {
    pub(super) fn new(io: TcpStream) -> Self {
        Self {
            io,
            buffer: Box::default(),
            unread: 0..0,
        }
    }

    /// Reads from the socket into the thread's buffer.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.is_empty() {
            self.buffer = SPARE.take();
        }
        if self.buffer.is_empty() {
            self.buffer = vec![0; WIDE].into();
        }
        let mut read = ReadBuf::new(&mut self.buffer);
        let result = Pin::new(&mut self.io).poll_read(cx, &mut read);
        self.unread = 0..read.filled().len();
        result
    }
}

impl AsyncRead for LargeReads {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = if self.unread.is_empty() {
            self.poll_fill(cx)
        } else {
            Poll::Ready(Ok(()))
        };
        let count = self.unread.len().min(buf.remaining());
        let start = self.unread.start;
        let part = self.buffer.get(start..start + count);
        buf.put_slice(part.unwrap_or_default());
        self.unread.start += count;
        if self.unread.is_empty() {
            SPARE.set(std::mem::take(&mut self.buffer));
        }
        result
    }
}

impl AsyncWrite for LargeReads {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
