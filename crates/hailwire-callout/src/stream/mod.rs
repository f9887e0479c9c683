//! Frames over a pair of byte streams, many of them to a system call.

mod incoming;
mod outgoing;

pub(crate) use incoming::Incoming;
pub(crate) use outgoing::Outgoing;

/// Bytes of one direction of a body that may be under way, of each request.
pub(crate) const WINDOW: u32 = 256 << 10;

use std::{future::poll_fn, io};

use bytes::Bytes;
use tokio::io::AsyncRead;

/// The next frame, for handshakes.
///
/// # Cancel safety
///
/// Nothing is lost.
pub(crate) async fn frame<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
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
