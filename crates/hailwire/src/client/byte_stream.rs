//! A raw stream as a pair of byte streams, for whatever speaks a protocol of its own over it.

use std::{
    fmt,
    future::Future,
    io::{self, IoSlice},
    mem,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{Code, Status};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep_until},
};

use super::RawStream;
use crate::{
    body::{BodySender, ChunkPermit},
    session::Answer,
};

/// Most bytes of one write that travel as one chunk: a piece of 64 KiB with what frames it.
const MOST: usize = 68 * 1024;

/// A raw stream read and written as bytes: [`RawStream::into_io`].
///
/// What one write is given, several slices together up to 68 KiB, travels as one chunk. At most 16 chunks wait to be taken by
/// the node, then writing does. A write has reached the node's queue when it returns, so there is nothing to flush.
///
/// Reading ends where the agent has ended its direction well; a stream that ended otherwise is an error of the kind
/// that fits its [`Code`], with the [`Status`] inside. Shutting down says that this direction is done;
/// dropping gives the stream up.
pub struct StreamIo {
    recv: Answer,
    /// What was read and did not fit.
    rest: Bytes,
    /// Ends reading where nothing comes until then.
    deadline: Option<Pin<Box<Sleep>>>,
    send: ByteSending,
}

enum ByteSending {
    Open(BodySender),
    /// There was no room.
    Waiting(PendingPermit),
    /// By this side, or because nobody reads any more.
    Ended,
}

type PendingPermit = Pin<Box<dyn Future<Output = Option<ChunkPermit>> + Send + Sync>>;

impl RawStream {
    /// The same stream as bytes, for whatever wants [`AsyncRead`] and [`AsyncWrite`].
    #[must_use]
    pub fn into_io(self) -> StreamIo {
        StreamIo {
            deadline: self.recv.deadline().map(|at| Box::pin(sleep_until(at))),
            recv: self.recv,
            rest: Bytes::new(),
            send: ByteSending::Open(self.send),
        }
    }
}

impl StreamIo {
    /// The next chunk. A future of [`Answer::chunk`] that is dropped loses nothing, so that each poll has one of its own;
    /// only the stream's deadline has to be remembered.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if let Poll::Ready(chunk) = pin!(self.recv.chunk()).poll(cx) {
            return Poll::Ready(chunk.map_err(error));
        }
        if let Some(deadline) = &mut self.deadline {
            ready!(deadline.as_mut().poll(cx));
            // The answer says so itself, as soon as it is asked.
            cx.waker().wake_by_ref();
            self.deadline = None;
        }
        Poll::Pending
    }

    /// Room for one chunk. Whoever gets it sets what is to be sent next.
    fn poll_reserve(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ChunkPermit>> {
        loop {
            let waiting = match mem::replace(&mut self.send, ByteSending::Ended) {
                ByteSending::Open(sender) => match sender.try_reserve() {
                    Some(Ok(room)) => return Poll::Ready(Ok(room)),
                    Some(Err(sender)) => Box::pin(sender.reserve()),
                    None => continue,
                },
                ByteSending::Waiting(waiting) => waiting,
                ByteSending::Ended => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
            let mut waiting: PendingPermit = waiting;
            match waiting.as_mut().poll(cx) {
                Poll::Ready(Some(room)) => return Poll::Ready(Ok(room)),
                Poll::Ready(None) => {}
                Poll::Pending => {
                    self.send = ByteSending::Waiting(waiting);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl AsyncRead for StreamIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            match ready!(self.poll_chunk(cx))? {
                Some(chunk) => self.rest = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        let fits = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(fits));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StreamIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: usize = slices.iter().map(|slice| slice.len()).sum();
        if all == 0 {
            return Poll::Ready(Ok(0));
        }
        let room = ready!(self.poll_reserve(cx))?;
        let mut chunk = BytesMut::with_capacity(all.min(MOST));
        for slice in slices {
            let fits = slice.len().min(MOST - chunk.len());
            chunk.extend_from_slice(slice.get(..fits).unwrap_or_default());
        }
        let written = chunk.len();
        self.send = ByteSending::Open(room.send(chunk.freeze()));
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.send, ByteSending::Ended) {
            return Poll::Ready(Ok(()));
        }
        // Where nobody reads any more, nobody has to be told.
        if let Ok(room) = ready!(self.poll_reserve(cx)) {
            room.finish();
        }
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for StreamIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamIo").finish_non_exhaustive()
    }
}

fn error(status: Status) -> io::Error {
    let kind = match status.code {
        Code::DeadlineExceeded => io::ErrorKind::TimedOut,
        Code::PermissionDenied => io::ErrorKind::PermissionDenied,
        Code::Cancelled | Code::Aborted => io::ErrorKind::ConnectionAborted,
        Code::Unavailable => io::ErrorKind::ConnectionReset,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, status)
}
