//! Connections that end with their front: tonic's server leaves them running when it is dropped.

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
    sync::oneshot,
};
use tonic::transport::server::Connected;

/// Ends when the other half of its channel is dropped.
pub(super) type Gone = Shared<oneshot::Receiver<()>>;

/// A connection; reading fails when its front has gone.
pub(super) struct Tied<Io> {
    io: Io,
    gone: Gone,
}

impl<Io> Tied<Io> {
    pub(super) const fn new(io: Io, gone: Gone) -> Self {
        Self { io, gone }
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Tied<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.gone.is_terminated() || self.gone.poll_unpin(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Tied<Io> {
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

impl<Io: Connected> Connected for Tied<Io> {
    type ConnectInfo = Io::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}
