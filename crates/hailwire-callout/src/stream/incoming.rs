//! Receives frames: reads as much as there is at once, and splits it into frames without a copy.
//!
//! Frames are slices of the buffer that they were read into. It begins small, so that an idle connection costs little,
//! and doubles whenever a read fills it, so that bodies come in large reads. When nobody holds a slice any
//! more, the same memory is read into again.
//!
//! While large frames come, a buffer holds a whole number of them, as far as they are all as large as the last: a read ends
//! where a frame does, and nothing has to be moved to the front of the next one.

use std::{
    io,
    pin::pin,
    task::{Context, Poll},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::wire::frame::{self, FrameError, MAX_LENGTH};

/// The first buffer.
const MIN_BUFFER: usize = 4 << 10;

/// The largest buffer, unless one frame is larger: four chunks of 64 KiB with their heads, half a window, so that the other side writes the
/// one half while the other is read. A chunk that somebody keeps keeps no more than this.
const MAX_BUFFER: usize = 258 << 10;

/// From this size on, a frame is large.
const LARGE_FRAME: usize = 16 << 10;

pub(crate) struct FrameReceiver<R> {
    io: R,
    buffer: BytesMut,
    /// How large the buffer is to be.
    size: usize,
    /// How long the frame is, with its length, that the buffer begins with, or the last one that it began with.
    frame: usize,
}

impl<R: AsyncRead + Unpin> FrameReceiver<R> {
    pub(crate) fn new(io: R) -> Self {
        Self {
            io,
            buffer: BytesMut::new(),
            size: MIN_BUFFER,
            frame: 0,
        }
    }

    /// The stream, and what was read of it and not taken.
    pub(crate) fn into_parts(self) -> (R, BytesMut) {
        (self.io, self.buffer)
    }

    /// Reads once. 0 is the end.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.look();
        let (length, large) = (self.buffer.len(), self.frame >= LARGE_FRAME);
        let missing = self.frame.saturating_sub(length).max(1);
        let (least, wanted) = match large {
            true => (missing, self.frame * (MAX_BUFFER / self.frame).max(1)),
            false => (missing.max(self.size / 4), self.size),
        };
        if self.buffer.capacity() - length < least {
            // What is there already counts: it moves to the front, or into a new buffer.
            let wanted = wanted.saturating_sub(length);
            self.buffer.reserve(wanted.max(least).max(MIN_BUFFER / 2));
        }
        let capacity = self.buffer.capacity();
        let room = match large {
            true => (capacity.min(wanted) / self.frame * self.frame).saturating_sub(length),
            false => capacity - length,
        };
        let room = room.max(1);
        let mut into = (&mut self.buffer).limit(room);
        let read = pin!(self.io.read_buf(&mut into));
        let read = std::future::Future::poll(read, context);
        if let Poll::Ready(Ok(read)) = read
            && read == room
            && !large
        {
            self.size = (self.size * 2).min(MAX_BUFFER);
        }
        read
    }

    /// The next whole frame of what was read: its type and payload.
    pub(crate) fn next(&mut self) -> Result<Option<(u8, Bytes)>, FrameError> {
        frame::take(&mut self.buffer)
    }

    /// Looks how long the frame is that has begun. Until it says so, it is taken to be like the last, unless that was huge.
    fn look(&mut self) {
        self.frame = match self.buffer.first_chunk::<4>() {
            Some(prefix) => u32::from_be_bytes(*prefix).min(MAX_LENGTH) as usize + 4,
            None => self.frame.min(MAX_BUFFER),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, pin::Pin};

    use tokio::io::ReadBuf;

    use super::*;

    /// Gives as much as is asked for, and remembers how much there was then.
    struct Plenty {
        bytes: VecDeque<u8>,
        most: usize,
        reads: Vec<usize>,
    }

    impl AsyncRead for Plenty {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let size = into.remaining().min(self.bytes.len()).min(self.most);
            let bytes: Vec<u8> = self.bytes.drain(..size).collect();
            into.put_slice(&bytes);
            self.reads.push(size);
            Poll::Ready(Ok(()))
        }
    }

    /// Reads frames of these lengths, and whatever comes after one is kept as long as `keep` says.
    fn read(lengths: &[usize], most: usize, keep: usize) -> FrameReceiver<Plenty> {
        let mut bytes = BytesMut::new();
        for (n, length) in lengths.iter().enumerate() {
            frame::put(&mut bytes, n as u8, |out| out.put_bytes(n as u8, *length)).unwrap();
        }
        let plenty = Plenty {
            bytes: bytes.iter().copied().collect(),
            most,
            reads: Vec::new(),
        };
        let mut incoming = FrameReceiver::new(plenty);
        let mut kept = VecDeque::new();
        let mut expected = lengths.iter().enumerate();
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            while let Some((code, payload)) = incoming.next().unwrap() {
                let (n, length) = expected.next().unwrap();
                assert_eq!((code, payload.len()), (n as u8, *length));
                assert!(payload.iter().all(|byte| *byte == n as u8));
                kept.push_back(payload);
                while kept.len() > keep {
                    kept.pop_front();
                }
            }
            match incoming.poll_fill(&mut context) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(expected.next(), None);
        assert!(incoming.buffer.is_empty());
        incoming
    }

    #[test]
    fn frames_are_whole_however_large_they_are_and_however_they_come() {
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((random >> 33) % below) as usize
        };
        for most in [1, 7, 4096, 100_000, usize::MAX] {
            let large = if most < 4096 { 20_000 } else { 700_000 };
            let lengths: Vec<usize> = (0..60)
                .map(|n| next(if n % 3 == 0 { large } else { 2_000 }))
                .collect();
            for keep in [0, 1, 100] {
                read(&lengths, most, keep);
            }
        }
    }

    #[test]
    fn reads_of_large_frames_end_where_frames_do() {
        let piece = 64 << 10;
        for keep in [0, 3] {
            let incoming = read(&[piece; 64], usize::MAX, keep);
            let whole = piece + 5;
            // Once it is known how large they are.
            let mut at = 0;
            let mut reads = incoming.io.reads.iter();
            reads.find(|size| {
                at += **size;
                at % whole == 0
            });
            for size in reads {
                assert_eq!(size % whole, 0, "{:?}", incoming.io.reads);
                assert!(*size <= MAX_BUFFER);
            }
            let count = incoming.io.reads.len();
            assert!(count <= 64 / 3 + 6, "{count}");
        }
    }
}
