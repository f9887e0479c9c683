//! Bytes to write, as a list of handles for one vectored write.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::frame::{HEADER, MuxFrame};
use crate::limits::MUX_MAX_REASON;

/// Bodies up to here are copied behind their header: cheaper than an entry of their own in a
/// vectored write. Larger ones are passed on as handles.
const MAX_INLINE: usize = 2048;

/// Size of the buffer for headers and small bodies.
const TAIL_BYTES: usize = 16 * 1024;

/// The largest frame that is not DATA or DATAGRAM.
const LARGEST_CONTROL: usize = HEADER + 4 + MUX_MAX_REASON;

/// What [`Mux::poll_output`](super::Mux::poll_output) wants written, in order.
///
/// It is a [`Buf`], so that `write_buf` of an async writer sends many frames in one system call.
#[derive(Debug, Default)]
pub struct MuxOutput {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl MuxOutput {
    /// Nothing to write.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes not yet written.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether everything is written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The handles not yet written.
    pub fn chunks(&self) -> impl Iterator<Item = &Bytes> {
        self.chunks.iter()
    }

    /// Gives up the memory kept for the next output, while empty.
    pub fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.tail.put_slice(bytes);
        self.len += bytes.len();
    }

    pub(super) fn frame(&mut self, frame: &MuxFrame) {
        self.make_room(LARGEST_CONTROL);
        let before = self.tail.len();
        frame.encode(&mut self.tail);
        self.len += self.tail.len() - before;
    }

    /// Starts another buffer rather than letting this one grow, which would copy it.
    fn make_room(&mut self, len: usize) {
        if self.tail.capacity() - self.tail.len() < len {
            self.seal();
            self.tail.reserve(TAIL_BYTES.max(len));
        }
    }

    pub(super) fn body(&mut self, body: Bytes) {
        if body.len() <= MAX_INLINE {
            self.put(&body);
        } else {
            self.seal();
            self.len += body.len();
            self.chunks.push_back(body);
        }
    }

    /// Makes what was put visible as a chunk.
    pub(super) fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
}

impl Buf for MuxOutput {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let filled = dst.iter_mut().zip(&self.chunks);
        filled
            .map(|(slot, chunk)| *slot = IoSlice::new(chunk))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "advanced past the end of the output");
        self.len -= count;
        while let Some(front) = self.chunks.front_mut() {
            if front.len() > count {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.chunks.pop_front();
        }
    }
}
