//! What waits to be written.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Bytes, BytesMut};

use crate::{
    Error, Role,
    frame::{MAX_HEADER, Opcode, apply_mask, write_header},
};

/// Bytes of randomness that are fetched at once, for the masks of so many frames / 4.
const RANDOM: usize = 256;

/// Slices that one write takes.
pub(crate) const SLICES: usize = 64;

/// Room for frames that is kept while none waits.
const KEPT: usize = 64;

#[derive(Debug)]
struct Frame {
    header: [u8; MAX_HEADER],
    size: usize,
    payload: Bytes,
    pong: bool,
}

impl Frame {
    fn len(&self) -> usize {
        self.size + self.payload.len()
    }

    /// Header and payload without their first bytes.
    fn after(&self, written: usize) -> [&[u8]; 2] {
        let header = self.header.get(written.min(self.size)..self.size);
        let payload = self.payload.get(written.saturating_sub(self.size)..);
        [header.unwrap_or_default(), payload.unwrap_or_default()]
    }
}

/// Frames in the order in which they leave.
#[derive(Debug)]
pub(crate) struct Outgoing {
    masks: Option<Masks>,
    queue: VecDeque<Frame>,
    /// Bytes of the first frame that have left.
    written: usize,
    /// Bytes that have not left.
    bytes: usize,
    /// A pong is among the frames.
    pong: bool,
}

impl Outgoing {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            masks: (role == Role::Client).then(Masks::default),
            queue: VecDeque::new(),
            written: 0,
            bytes: 0,
            pong: false,
        }
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a pong waits, so that a further one must not be added.
    pub(crate) const fn has_pong(&self) -> bool {
        self.pong
    }

    pub(crate) fn push(&mut self, opcode: Opcode, payload: Bytes) -> Result<(), Error> {
        let mut header = [0; MAX_HEADER];
        let mask = self.masks.as_mut().map(Masks::next).transpose()?;
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
        let frame = Frame {
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

    /// The front of what waits.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
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

    /// So many bytes have left.
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
        if self.queue.capacity() > KEPT {
            self.queue = VecDeque::new();
        }
    }
}

/// Masks that nobody can foretell (RFC 6455, 5.3).
#[derive(Debug)]
struct Masks {
    random: [u8; RANDOM],
    used: usize,
}

impl Default for Masks {
    fn default() -> Self {
        Self {
            random: [0; RANDOM],
            used: RANDOM,
        }
    }
}

impl Masks {
    fn next(&mut self) -> Result<[u8; 4], Error> {
        if self.used == RANDOM {
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
