//! The frames of a session stream.
//!
//! A session runs over one carrier; each piece of work gets a bidirectional stream of its own. On
//! it both sides write frames:
//!
//! ```text
//!  0        1                          4
//! +--------+--------+--------+--------+----------------------+
//! |  kind  |     length (24 bits BE)  |  payload (length)    |
//! +--------+--------+--------+--------+----------------------+
//! ```
//!
//! The first frame that the opener writes says what the stream is for (kinds `0x01`–`0x0f`). `DATA`
//! carries raw body bytes and may be delivered in parts as they arrive; every other payload is a
//! MessagePack map ([`crate::header`]) of at most [`MAX_HEADER`] bytes. An unknown kind of `0x10`
//! and above is skipped, an unknown opening is answered with `END(unimplemented)`, so that
//! versions can meet.
//!
//! The decoder never buffers a body, and never more than one header.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::limits::{MAX_FRAME_PAYLOAD, MAX_HEADER};

/// Bytes ahead of each payload.
pub const FRAME_PREFIX: usize = 4;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameKind(pub u8);

impl FrameKind {
    /// Opens the control stream: [`crate::header::Hello`], in both directions.
    pub const HELLO: Self = Self(0x01);
    /// Opens a call: [`crate::header::CallHeader`].
    pub const CALL: Self = Self(0x02);
    /// Opens a one-way send: [`crate::header::CallHeader`]; acknowledged by `END`.
    pub const SEND: Self = Self(0x03);
    /// Opens a raw stream: [`crate::header::CallHeader`]; accepted by `HEAD`.
    pub const STREAM: Self = Self(0x04);
    /// Opens an agent's attachment to its node: [`crate::header::RegisterHeader`]; accepted by `HEAD`,
    /// in force until either side ends the stream.
    pub const REGISTER: Self = Self(0x05);
    /// The head of an answer: [`crate::header::AnswerHead`]. Optional ahead of `DATA`.
    pub const HEAD: Self = Self(0x10);
    /// Raw body bytes, in either direction.
    pub const DATA: Self = Self(0x11);
    /// The end of an answer: a [`crate::Status`]; an empty payload means `ok`.
    pub const END: Self = Self(0x12);
    /// On the control stream: asks for a `PONG` with the same payload (at most 64 bytes).
    pub const PING: Self = Self(0x20);
    /// Answers a `PING` with its payload.
    pub const PONG: Self = Self(0x21);
    /// On the control stream: no new work is accepted; what runs may finish
    /// ([`crate::header::GoingAway`]).
    pub const GOING_AWAY: Self = Self(0x22);
    /// On the control stream: the agents that the sender offers to this peer
    /// ([`crate::header::AgentOffers`]); replaces the earlier list.
    pub const OFFERS: Self = Self(0x23);
    /// On the control stream: a further page of the list that began with an `OFFERS`
    /// ([`crate::header::AgentOffers`]). A reader that does not know it has the first page.
    pub const MORE_OFFERS: Self = Self(0x24);

    /// Whether this kind may be the first frame of a stream, known or not.
    #[must_use]
    pub const fn is_opening(self) -> bool {
        matches!(self.0, 0x01..=0x0f)
    }

    /// The name in `spec/session.md`, if this version knows the kind.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::HELLO => "HELLO",
            Self::CALL => "CALL",
            Self::SEND => "SEND",
            Self::STREAM => "STREAM",
            Self::REGISTER => "REGISTER",
            Self::HEAD => "HEAD",
            Self::DATA => "DATA",
            Self::END => "END",
            Self::PING => "PING",
            Self::PONG => "PONG",
            Self::GOING_AWAY => "GOING_AWAY",
            Self::OFFERS => "OFFERS",
            Self::MORE_OFFERS => "MORE_OFFERS",
            _ => return None,
        })
    }
}

impl fmt::Debug for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#04x}", self.0),
        }
    }
}

/// The four bytes ahead of a payload of `len` bytes.
///
/// # Panics
///
/// If `len` exceeds [`MAX_FRAME_PAYLOAD`]; callers cut bodies into chunks first.
#[must_use]
pub fn prefix(kind: FrameKind, len: usize) -> [u8; FRAME_PREFIX] {
    assert!(
        len <= MAX_FRAME_PAYLOAD,
        "a frame payload of {len} bytes does not fit 24 bits"
    );
    let [_, a, b, c] = (len as u32).to_be_bytes();
    [kind.0, a, b, c]
}

/// Appends a whole frame.
///
/// # Panics
///
/// As [`prefix`].
pub fn put(out: &mut BytesMut, kind: FrameKind, payload: &[u8]) {
    out.reserve(FRAME_PREFIX + payload.len());
    out.put_slice(&prefix(kind, payload.len()));
    out.put_slice(payload);
}

/// Why a stream of frames is malformed. The stream is reset with `invalid_argument`; others on the
/// same connection are not disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A frame other than `DATA` is larger than a header may be.
    #[error("a {kind:?} frame of {len} bytes exceeds the bound of {MAX_HEADER}")]
    HeaderTooLarge {
        /// What the frame claimed to be.
        kind: FrameKind,
        /// Its stated length.
        len: usize,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
}

/// What the decoder found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameEvent {
    /// A whole frame that is not `DATA`.
    Frame(FrameKind, Bytes),
    /// Some body bytes: all or part of a `DATA` frame, never empty.
    Data(Bytes),
}

/// An incremental frame decoder: [`FrameDecoder::push`] what arrived, then take every
/// [`FrameDecoder::next_event`].
///
/// Payloads that lie in one pushed chunk are handed out as slices of it, without a copy. Memory: at
/// most one header ([`MAX_HEADER`]) besides the chunk that was pushed last.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    chunk: Bytes,
    /// A prefix or header payload that began in an earlier chunk.
    carry: BytesMut,
    state: FrameDecoderState,
}

#[derive(Clone, Copy, Debug, Default)]
enum FrameDecoderState {
    #[default]
    Prefix,
    Header {
        kind: FrameKind,
        len: usize,
    },
    Data {
        left: usize,
    },
    Skip {
        left: usize,
    },
}

impl FrameDecoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands over the next bytes of the stream.
    ///
    /// Take all events before pushing more; bytes not yet taken are otherwise joined with a copy.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            let mut joined = BytesMut::with_capacity(self.chunk.len() + chunk.len());
            joined.extend_from_slice(&self.chunk);
            joined.extend_from_slice(&chunk);
            self.chunk = joined.freeze();
        }
    }

    /// The next event, or `None` until more is pushed.
    ///
    /// # Errors
    ///
    /// [`FrameError::HeaderTooLarge`]; the stream cannot be read further.
    pub fn next_event(&mut self) -> Result<Option<FrameEvent>, FrameError> {
        loop {
            match self.state {
                FrameDecoderState::Prefix => {
                    let Some([kind, len @ ..]) = self.take_prefix() else {
                        return Ok(None);
                    };
                    let [a, b, c] = len;
                    let len = u32::from_be_bytes([0, a, b, c]) as usize;
                    self.state = after_prefix(FrameKind(kind), len)?;
                }
                FrameDecoderState::Header { kind, len } => {
                    let Some(payload) = self.take(len) else {
                        return Ok(None);
                    };
                    self.state = FrameDecoderState::Prefix;
                    return Ok(Some(FrameEvent::Frame(kind, payload)));
                }
                FrameDecoderState::Data { left: 0 } | FrameDecoderState::Skip { left: 0 } => {
                    self.state = FrameDecoderState::Prefix;
                }
                FrameDecoderState::Data { left } => {
                    let Some(part) = self.take_some(left) else {
                        return Ok(None);
                    };
                    self.state = FrameDecoderState::Data {
                        left: left - part.len(),
                    };
                    return Ok(Some(FrameEvent::Data(part)));
                }
                FrameDecoderState::Skip { left } => {
                    let Some(part) = self.take_some(left) else {
                        return Ok(None);
                    };
                    self.state = FrameDecoderState::Skip {
                        left: left - part.len(),
                    };
                }
            }
        }
    }

    /// Says that the stream has ended.
    ///
    /// # Errors
    ///
    /// [`FrameError::Truncated`] if it ended inside a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        let between = matches!(
            self.state,
            FrameDecoderState::Prefix
                | FrameDecoderState::Data { left: 0 }
                | FrameDecoderState::Skip { left: 0 }
        );
        if between && self.chunk.is_empty() && self.carry.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Truncated)
        }
    }

    /// What was pushed and not yet decoded, for a relay that forwards the rest of a stream
    /// unread. Meaningful only between frames, that is right after an [`FrameEvent::Frame`].
    #[must_use]
    pub fn into_rest(self) -> Bytes {
        if self.carry.is_empty() {
            return self.chunk;
        }
        let mut rest = self.carry;
        rest.extend_from_slice(&self.chunk);
        rest.freeze()
    }

    fn take_prefix(&mut self) -> Option<[u8; FRAME_PREFIX]> {
        if self.carry.is_empty()
            && let Some(&prefix) = self.chunk.first_chunk()
        {
            self.chunk.advance(FRAME_PREFIX);
            if self.chunk.is_empty() {
                // An empty slice would keep the whole batch that it was cut from.
                self.chunk = Bytes::new();
            }
            return Some(prefix);
        }
        let prefix = self.take(FRAME_PREFIX)?;
        prefix.first_chunk().copied()
    }

    /// Exactly `len` bytes, as a slice of the chunk where they lie in one.
    fn take(&mut self, len: usize) -> Option<Bytes> {
        if self.carry.is_empty() && self.chunk.len() >= len {
            return Some(self.chunk.split_to(len));
        }
        if self.chunk.is_empty() {
            return None;
        }
        let missing = len - self.carry.len();
        let part = self.chunk.split_to(missing.min(self.chunk.len()));
        self.carry.extend_from_slice(&part);
        (self.carry.len() == len).then(|| self.carry.split().freeze())
    }

    /// At least one and at most `max` bytes.
    fn take_some(&mut self, max: usize) -> Option<Bytes> {
        let len = max.min(self.chunk.len());
        (len > 0).then(|| self.chunk.split_to(len))
    }
}

fn after_prefix(kind: FrameKind, len: usize) -> Result<FrameDecoderState, FrameError> {
    if kind == FrameKind::DATA {
        return Ok(FrameDecoderState::Data { left: len });
    }
    if kind.name().is_none() && !kind.is_opening() {
        return Ok(FrameDecoderState::Skip { left: len });
    }
    if len > MAX_HEADER {
        return Err(FrameError::HeaderTooLarge { kind, len });
    }
    Ok(FrameDecoderState::Header { kind, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(list: &[(FrameKind, &[u8])]) -> Bytes {
        let mut out = BytesMut::new();
        for (kind, payload) in list {
            put(&mut out, *kind, payload);
        }
        out.freeze()
    }

    type HeaderFrames = Vec<(FrameKind, Vec<u8>)>;

    fn decode(bytes: &Bytes, step: usize) -> Result<(HeaderFrames, Vec<u8>), FrameError> {
        let mut decoder = FrameDecoder::new();
        let (mut heads, mut body) = (Vec::new(), Vec::new());
        for part in bytes.chunks(step) {
            decoder.push(Bytes::copy_from_slice(part));
            while let Some(event) = decoder.next_event()? {
                match event {
                    FrameEvent::Frame(kind, payload) => heads.push((kind, payload.to_vec())),
                    FrameEvent::Data(part) => body.extend_from_slice(&part),
                }
            }
        }
        decoder.finish()?;
        Ok((heads, body))
    }

    #[test]
    fn frames_survive_any_cut_of_the_stream() {
        let bytes = frames(&[
            (FrameKind::CALL, b"header"),
            (FrameKind::DATA, b"some body"),
            (FrameKind::DATA, b""),
            (FrameKind(0x7e), b"from the future"),
            (FrameKind::DATA, b", and more"),
            (FrameKind::END, b""),
        ]);
        for step in 1..=bytes.len() {
            let (heads, body) = decode(&bytes, step).unwrap();
            assert_eq!(
                heads,
                vec![
                    (FrameKind::CALL, b"header".to_vec()),
                    (FrameKind::END, Vec::new())
                ]
            );
            assert_eq!(body, b"some body, and more");
        }
    }

    #[test]
    fn a_header_past_its_bound_is_refused_before_it_is_buffered() {
        let mut decoder = FrameDecoder::new();
        decoder.push(Bytes::copy_from_slice(&prefix(
            FrameKind::CALL,
            MAX_HEADER + 1,
        )));
        assert_eq!(
            decoder.next_event(),
            Err(FrameError::HeaderTooLarge {
                kind: FrameKind::CALL,
                len: MAX_HEADER + 1
            })
        );
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_truncated() {
        let bytes = frames(&[(FrameKind::DATA, b"abc")]);
        for cut in 1..bytes.len() {
            assert_eq!(
                decode(&bytes.slice(..cut), 2),
                Err(FrameError::Truncated),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn an_unknown_opening_is_reported_and_an_unknown_frame_is_skipped() {
        let (heads, _) = decode(
            &frames(&[(FrameKind(0x0f), b"?"), (FrameKind(0xff), b"?")]),
            3,
        )
        .unwrap();
        assert_eq!(heads, vec![(FrameKind(0x0f), b"?".to_vec())]);
    }

    #[test]
    fn payloads_inside_one_chunk_are_not_copied() {
        let bytes = frames(&[(FrameKind::DATA, b"0123456789")]);
        let mut decoder = FrameDecoder::new();
        decoder.push(bytes.clone());
        let Some(FrameEvent::Data(part)) = decoder.next_event().unwrap() else {
            panic!("no data")
        };
        assert_eq!(part.as_ptr(), bytes[FRAME_PREFIX..].as_ptr());
    }

    #[test]
    fn the_rest_of_a_stream_can_be_forwarded_unread() {
        let bytes = frames(&[(FrameKind::CALL, b"h"), (FrameKind::DATA, b"body")]);
        let mut decoder = FrameDecoder::new();
        decoder.push(bytes.clone());
        decoder.next_event().unwrap();
        assert_eq!(decoder.into_rest(), bytes.slice(5..));
    }
}
