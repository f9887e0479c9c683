//! Frames that wait to be written.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Bytes, BytesMut};

use crate::{
    Role, WebSocketError,
    frame::{MAX_HEADER, Opcode, apply_mask, write_header},
};

/// Random bytes that are fetched at once; each mask takes four.
const RANDOM_BYTES: usize = 256;

/// The most slices of one write.
pub(crate) const MAX_SLICES: usize = 64;

/// The queue's capacity that is kept while it is empty.
const KEPT_CAPACITY: usize = 64;

#[derive(Debug)]
struct QueuedFrame {
    header: [u8; MAX_HEADER],
    size: usize,
    payload: Bytes,
    pong: bool,
}

impl QueuedFrame {
    fn len(&self) -> usize {
        self.size + self.payload.len()
    }

    /// The header and the payload without the bytes that were written.
    fn after(&self, written: usize) -> [&[u8]; 2] {
        let header = self.header.get(written.min(self.size)..self.size);
        let payload = self.payload.get(written.saturating_sub(self.size)..);
        [header.unwrap_or_default(), payload.unwrap_or_default()]
    }
}

/// Frames in the order in which they are written.
#[derive(Debug)]
pub(crate) struct OutgoingFrames {
    masks: Option<MaskGenerator>,
    queue: VecDeque<QueuedFrame>,
    /// Bytes of the first frame that were written.
    written: usize,
    /// Bytes that were not written yet.
    bytes: usize,
    /// Whether a pong is queued.
    pong: bool,
}

impl OutgoingFrames {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            masks: (role == Role::Client).then(MaskGenerator::default),
            queue: VecDeque::new(),
            written: 0,
            bytes: 0,
            pong: false,
        }
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a pong is queued, so that another one must not be added.
    pub(crate) const fn has_pong(&self) -> bool {
        self.pong
    }

    pub(crate) fn push(&mut self, opcode: Opcode, payload: Bytes) -> Result<(), WebSocketError> {
        let mut header = [0; MAX_HEADER];
        let mask = self.masks.as_mut().map(MaskGenerator::next).transpose()?;
        let size = write_header(&mut header, opcode, payload.len(), mask);
        let payload = match mask {
            None => payload,
            Some(mask) => {
                let mut masked = match payload.try_into_mut() {
                    Ok(only_holder) => only_holder,
                    Err(shared) => BytesMut::from(&shared[..]),
                };
                apply_mask(mask, &mut masked);
                masked.freeze()
            }
        };
        let pong = opcode == Opcode::Pong;
        let frame = QueuedFrame {
            header,
            size,
            payload,
            pong,
        };
        self.pong |= pong;
        self.bytes += frame.len();
        self.queue.push_back(frame);
        Ok(())
    }

    /// Slices of the first queued frames.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut written = self.written;
        let mut count = 0;
        let frames = self.queue.iter().flat_map(|frame| {
            let parts = frame.after(written);
            written = 0;
            parts
        });
        for (to, part) in slices
            .iter_mut()
            .zip(frames.filter(|part| !part.is_empty()))
        {
            *to = IoSlice::new(part);
            count += 1;
        }
        count
    }

    /// Removes bytes that were written.
    pub(crate) fn advance(&mut self, count: usize) {
        self.bytes = self.bytes.saturating_sub(count);
        self.written += count;
        while let Some(first) = self.queue.front() {
            let len = first.len();
            if self.written < len {
                return;
            }
            self.written -= len;
            self.pong &= !first.pong;
            self.queue.pop_front();
        }
        if self.queue.capacity() > KEPT_CAPACITY {
            self.queue = VecDeque::new();
        }
    }
}

/// Unpredictable masks (RFC 6455, section 5.3).
#[derive(Debug)]
struct MaskGenerator {
    random: [u8; RANDOM_BYTES],
    used: usize,
}

impl Default for MaskGenerator {
    fn default() -> Self {
        Self {
            random: [0; RANDOM_BYTES],
            used: RANDOM_BYTES,
        }
    }
}

impl MaskGenerator {
    fn next(&mut self) -> Result<[u8; 4], WebSocketError> {
        if self.used == RANDOM_BYTES {
            getrandom::fill(&mut self.random).map_err(std::io::Error::other)?;
            self.used = 0;
        }
        let mask = self
            .random
            .get(self.used..)
            .and_then(|left| left.first_chunk());
        self.used += 4;
        Ok(mask.copied().unwrap_or_default())
    }
}
