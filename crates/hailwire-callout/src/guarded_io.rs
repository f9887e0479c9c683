//! Connections for tonic's servers that hold something while they are open: a permit, or a signal that closes them with
//! their server, since tonic leaves connections running when its server is dropped.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{
    FutureExt as _,
    future::{FusedFuture as _, Shared},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, oneshot},
};
use tonic::transport::server::Connected;

/// What a connection has guard its bytes.
pub(crate) trait ConnectionGuard: Unpin {
    /// Whether the connection has ended with it; otherwise the task is woken when it does.
    fn poll_closed(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// A permit of the semaphore that bounds connections.
impl ConnectionGuard for OwnedSemaphorePermit {}

/// Ends when the other half of its channel is dropped.
pub(crate) type ShutdownSignal = Shared<oneshot::Receiver<()>>;

impl ConnectionGuard for ShutdownSignal {
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_terminated() {
            return Poll::Ready(());
        }
        self.poll_unpin(cx).map(|_| ())
    }
}

/// A connection that holds a guard for as long as it is open; reading fails once the guard is closed.
pub(crate) struct GuardedIo<Io, G> {
    io: Io,
    guard: G,
}

impl<Io, G> GuardedIo<Io, G> {
    pub(crate) const fn new(io: Io, guard: G) -> Self {
        Self { io, guard }
    }
}

impl<Io: AsyncRead + Unpin, G: ConnectionGuard> AsyncRead for GuardedIo<Io, G> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.guard.poll_closed(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<Io: AsyncWrite + Unpin, G: ConnectionGuard> AsyncWrite for GuardedIo<Io, G> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
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

impl<Io: Connected, G> Connected for GuardedIo<Io, G> {
    type ConnectInfo = Io::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}
