//! What is read: as much as there is at once, taken apart without a copy.
//!
//! Frames are slices of the buffer that they were read into. It begins small, so that an idle connection costs little,
//! and doubles whenever a read fills it, so that bodies come in large reads. When nobody holds a slice any
//! more, the same memory is read into again.

use std::{
    io,
    pin::pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::wire::frame::{self, FrameError, MAX_LENGTH};

/// The first buffer.
const LEAST: usize = 4 << 10;

/// The largest buffer, unless one frame is larger.
const MOST: usize = 512 << 10;

pub(crate) struct Incoming<R> {
    io: R,
    buffer: BytesMut,
    /// How large the buffer is to be.
    size: usize,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    pub(crate) fn new(io: R) -> Self {
        Self {
            io,
            buffer: BytesMut::new(),
            size: LEAST,
        }
    }

    /// The stream, and what was read of it and not taken.
    pub(crate) fn into_parts(self) -> (R, BytesMut) {
        (self.io, self.buffer)
    }

    /// Reads once. 0 is the end.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let free = self.buffer.capacity() - self.buffer.len();
        let missing = self.missing();
        if missing > free || free < self.size / 4 {
            // What is there already counts: it moves to the front, or into a new buffer.
            let wanted = missing.max(self.size.saturating_sub(self.buffer.len()));
            self.buffer.reserve(wanted.max(LEAST / 2));
        }
        let free = self.buffer.capacity() - self.buffer.len();
        let read = pin!(self.io.read_buf(&mut self.buffer));
        let read = std::future::Future::poll(read, context);
        if let Poll::Ready(Ok(read)) = read
            && read == free
        {
            self.size = (self.size * 2).min(MOST);
        }
        read
    }

    /// The next whole frame of what was read: its type and payload.
    pub(crate) fn next(&mut self) -> Result<Option<(u8, Bytes)>, FrameError> {
        frame::take(&mut self.buffer)
    }

    /// How much is missing to the frame that has begun.
    fn missing(&self) -> usize {
        let Some(prefix) = self.buffer.first_chunk::<4>() else {
            return 0;
        };
        let length = u32::from_be_bytes(*prefix).min(MAX_LENGTH) as usize;
        (length + 4).saturating_sub(self.buffer.len())
    }
}
