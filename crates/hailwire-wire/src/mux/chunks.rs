//! A queue of bytes that keeps large pieces as they are and copies small ones together.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Copies lie together in blocks of so many bytes, so that little of what is allocated stays unused.
const BLOCK_BYTES: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct ChunkQueue {
    whole: VecDeque<Bytes>,
    /// Copied bytes, behind all of `whole`.
    tail: BytesMut,
    len: usize,
}

impl ChunkQueue {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Appends a handle.
    pub(super) fn push(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        self.len += chunk.len();
        self.seal();
        self.whole.push_back(chunk);
    }

    /// Appends a copy.
    pub(super) fn push_copy(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.tail.len() == self.tail.capacity() {
                self.make_room(rest.len());
            }
            let room = self.tail.capacity() - self.tail.len();
            let (part, left) = rest.split_at(room.min(rest.len()));
            self.tail.extend_from_slice(part);
            rest = left;
        }
    }

    /// The tail is full: it grows to a block, or the next one begins.
    fn make_room(&mut self, wanted: usize) {
        if self.tail.len() >= BLOCK_BYTES {
            self.seal();
        }
        let len = self.tail.len();
        let grown = BytesMut::with_capacity((len + wanted.max(len)).min(BLOCK_BYTES.max(wanted)));
        let before = std::mem::replace(&mut self.tail, grown);
        self.tail.extend_from_slice(&before);
    }

    /// Pieces that lie apart.
    #[cfg(test)]
    pub(super) fn handles(&self) -> usize {
        self.whole.len() + usize::from(!self.tail.is_empty())
    }

    /// Bytes that are allocated for copies.
    #[cfg(test)]
    fn allocated(&self) -> usize {
        let whole: usize = self.whole.iter().map(Bytes::len).sum();
        whole + self.tail.capacity()
    }

    /// The first bytes, at most `max`, as they lie together.
    pub(super) fn pop(&mut self, max: usize) -> Option<Bytes> {
        if self.len == 0 || max == 0 {
            return None;
        }
        if self.whole.is_empty() {
            self.seal();
        }
        let front = self.whole.front_mut()?;
        let chunk = if front.len() <= max {
            self.whole.pop_front()?
        } else {
            let chunk = front.slice(..max);
            front.advance(max);
            chunk
        };
        self.len -= chunk.len();
        Some(chunk)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.whole
                .push_back(std::mem::take(&mut self.tail).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_between_handles_and_copies() {
        let mut chunks = ChunkQueue::default();
        chunks.push(Bytes::from_static(b"ab"));
        chunks.push_copy(b"c");
        chunks.push_copy(b"d");
        chunks.push(Bytes::from_static(b"efgh"));
        assert_eq!(chunks.len(), 8);
        let all: Vec<_> = std::iter::from_fn(|| chunks.pop(3)).collect();
        assert_eq!(all, [&b"ab"[..], b"cd", b"efg", b"h"]);
        assert_eq!(chunks.len(), 0);
    }

    #[test]
    fn copies_keep_their_order_and_leave_less_than_a_block_unused() {
        for size in [
            1,
            7,
            1_000,
            BLOCK_BYTES - 1,
            BLOCK_BYTES,
            BLOCK_BYTES + 1,
            3 * BLOCK_BYTES,
        ] {
            let mut chunks = ChunkQueue::default();
            let all: Vec<u8> = (0..10 * BLOCK_BYTES).map(|at| (at % 251) as u8).collect();
            for piece in all.chunks(size) {
                chunks.push_copy(piece);
                assert!(
                    chunks.allocated() < chunks.len() + BLOCK_BYTES.max(size),
                    "{size}"
                );
            }
            let read: Vec<u8> = std::iter::from_fn(|| chunks.pop(usize::MAX))
                .flatten()
                .collect();
            assert_eq!(read, all, "{size}");
        }
    }
}
