//! A Unix socket of which only what is waited for is watched.
//!
//! The runtime's own type for sockets watches both directions at once, and so wakes its task each time the other side has read
//! and there is more room: one wake-up too many for every question and its answer. Here what comes is watched, and room only
//! since a write found none. The runtime's types for pipes watch one direction each, and what they do to a descriptor can
//! be done to a socket. It takes a second descriptor for each connection, and a third one once it was full.

use std::{
    io::{self, IoSlice, Write as _},
    net::Shutdown,
    os,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixStream, unix::pipe},
};

/// What comes.
pub(crate) type Incoming = pipe::Receiver;

/// The writing half. The socket is shut down for writing when it is dropped.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Watched for nothing.
    stream: os::unix::net::UnixStream,
    /// Watched for room, since there was none for the first time.
    room: Option<pipe::Sender>,
}

/// Both halves of a socket, as one.
#[derive(Debug)]
pub(crate) struct UnixIo {
    incoming: Incoming,
    outgoing: Outgoing,
}

/// Takes a connected socket apart.
///
/// # Errors
///
/// The process has no descriptor left.
pub(crate) fn halves(socket: UnixStream) -> io::Result<(Incoming, Outgoing)> {
    let stream = socket.into_std()?;
    let incoming = pipe::Receiver::from_owned_fd_unchecked(stream.try_clone()?.into())?;
    Ok((incoming, Outgoing { stream, room: None }))
}

impl UnixIo {
    /// A connected socket.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        let (incoming, outgoing) = halves(socket)?;
        Ok(Self { incoming, outgoing })
    }
}

impl AsyncWrite for Outgoing {
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
        loop {
            match self.stream.write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                written => return Poll::Ready(written),
            }
        }
        let Self { stream, room } = &mut *self;
        let room = match room {
            Some(room) => room,
            none => {
                let stream = stream.try_clone()?;
                none.insert(pipe::Sender::from_owned_fd_unchecked(stream.into())?)
            }
        };
        // It tries again itself before it waits.
        Pin::new(room).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.shutdown(Shutdown::Write))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // A socket that is gone needs no end.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl AsyncRead for UnixIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.incoming).poll_read(cx, buffer)
    }
}

impl AsyncWrite for UnixIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.outgoing).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.outgoing).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.outgoing).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.outgoing).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> (UnixIo, UnixIo) {
        let (one, other) = UnixStream::pair().unwrap();
        (UnixIo::new(one).unwrap(), UnixIo::new(other).unwrap())
    }

    #[tokio::test]
    async fn more_than_fits_arrives_whole_and_the_end_after_it() {
        let (mut near, mut far) = pair();
        let all: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 / 3) as u8).collect();
        let sent = all.clone();
        let writing = tokio::spawn(async move {
            for piece in sent.chunks(200_000) {
                near.write_all(piece).await.unwrap();
            }
            near.shutdown().await.unwrap();
            // The other direction is still open.
            near.read_u8().await.unwrap()
        });
        let mut came = Vec::new();
        far.read_to_end(&mut came).await.unwrap();
        assert!(came == all, "{} bytes", came.len());
        far.write_u8(1).await.unwrap();
        assert_eq!(writing.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn room_is_watched_only_after_there_was_none() {
        let (mut near, mut far) = pair();
        near.write_all(b"x").await.unwrap();
        assert!(near.outgoing.room.is_none());
        let piece = [0; 64 << 10];
        let mut written = 1;
        loop {
            let polled =
                poll_fn(|cx| Poll::Ready(Pin::new(&mut near).poll_write(cx, &piece))).await;
            match polled {
                Poll::Ready(count) => written += count.unwrap(),
                Poll::Pending => break,
            }
        }
        assert!(near.outgoing.room.is_some());
        let mut came = vec![0; written];
        let (read, more) = tokio::join!(far.read_exact(&mut came), near.write(&piece));
        assert!(read.unwrap() == written && more.unwrap() > 0);
    }

    #[tokio::test]
    async fn whoever_has_gone_cannot_be_written_to() {
        let (mut near, far) = pair();
        drop(far);
        assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
        let error = near.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
