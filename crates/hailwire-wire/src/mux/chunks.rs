//! A queue of bytes that keeps large pieces as they are and copies small ones together.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

#[derive(Debug, Default)]
pub(super) struct Chunks {
    whole: VecDeque<Bytes>,
    /// Copied bytes, behind all of `whole`.
    tail: BytesMut,
    len: usize,
}

impl Chunks {
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
        if self.tail.capacity() == 0 {
            self.tail = BytesMut::with_capacity(bytes.len());
        }
        self.tail.extend_from_slice(bytes);
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
        let mut chunks = Chunks::default();
        chunks.push(Bytes::from_static(b"ab"));
        chunks.push_copy(b"c");
        chunks.push_copy(b"d");
        chunks.push(Bytes::from_static(b"efgh"));
        assert_eq!(chunks.len(), 8);
        let all: Vec<_> = std::iter::from_fn(|| chunks.pop(3)).collect();
        assert_eq!(all, [&b"ab"[..], b"cd", b"efg", b"h"]);
        assert_eq!(chunks.len(), 0);
    }
}
