//! Frames over a pair of byte streams, many of them to a system call.

mod incoming;
mod outgoing;

use std::{future::poll_fn, io};

use bytes::Bytes;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::{io::AsyncRead, net::UnixStream};

pub(crate) use hailwire_socket::{SocketReader, SocketWriter};
pub(crate) use incoming::FrameReceiver;
pub(crate) use outgoing::FrameSender;

/// Bytes in flight of one direction of a request's body.
pub(crate) const WINDOW: u32 = 512 << 10;

/// The least that a chunk counts against a window, which bounds the number of small ones.
pub(crate) const MIN_CHUNK_COST: u64 = 4 << 10;

/// How many chunks a window holds at most.
pub(crate) const MAX_WINDOW_CHUNKS: usize = (WINDOW as u64 / MIN_CHUNK_COST) as usize;

/// Bytes that a socket may hold; the system may allow less.
const SOCKET_BUFFER: usize = 1 << 20;

/// Both directions of a socket, which holds several chunks of bodies from now on, so that writer and reader wake each other less often.
///
/// # Errors
///
/// As [`hailwire_socket::split`].
pub(crate) fn split(stream: UnixStream) -> io::Result<(SocketReader, SocketWriter)> {
    if let Err(error) = set_socket_send_buffer_size(&stream, SOCKET_BUFFER) {
        tracing::debug!(%error, "setting the socket's buffer size failed");
    }
    hailwire_socket::split(stream)
}

/// The next frame, for handshakes.
///
/// # Cancel safety
///
/// Nothing is lost.
pub(crate) async fn frame<R: AsyncRead + Unpin>(
    incoming: &mut FrameReceiver<R>,
) -> io::Result<(u8, Bytes)> {
    loop {
        match incoming.next() {
            Ok(Some(frame)) => return Ok(frame),
            Ok(None) => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
        if poll_fn(|context| incoming.poll_fill(context)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
