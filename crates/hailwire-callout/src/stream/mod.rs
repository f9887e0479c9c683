//! Frames over a pair of byte streams, many of them to a system call.

mod incoming;
mod outgoing;
mod socket;

use std::{future::poll_fn, io};

use bytes::Bytes;
use tokio::io::AsyncRead;

pub(crate) use incoming::Incoming;
pub(crate) use outgoing::Outgoing;
pub(crate) use socket::{Receiving, Sending, split};

/// Bytes of one direction of a body that may be under way, of each request.
pub(crate) const WINDOW: u32 = 512 << 10;

/// What a piece counts at least of a window, so that small ones are few.
pub(crate) const LEAST_PIECE: u64 = 4 << 10;

/// How many pieces a window holds at most.
pub(crate) const PIECES: usize = (WINDOW as u64 / LEAST_PIECE) as usize;

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
