//! Capsules (RFC 9297, 3.2): what the control stream of an HTTP/2 connection carries.
//!
//! HTTP/2 has streams, flow control and pings, and lacks what a carrier needs besides: datagrams, a
//! stop of one direction with a code, and a close with a code and a reason. Those travel as
//! capsules on one stream that lives as long as the connection:
//!
//! ```text
//! +-------------------+---------------------+------------------+
//! | type (varint)     | length (varint)     | value (length)   |
//! +-------------------+---------------------+------------------+
//!
//!  type         value
//!  0x00         DATAGRAM  0 to 1,100 bytes
//!  0x28687701   STOP      connection (1), stream (u32), code (u32)
//!  0x28687702   CLOSE     code (u32), then 0 to 1,024 bytes of UTF-8
//! ```
//!
//! Variable-length integers are those of RFC 9000, 16; the rest is big-endian. A capsule of another
//! type is skipped, as RFC 9297 asks, without being buffered. A known one of a length that it cannot
//! have is refused. Prose: `spec/http2.md`; vectors: `spec/vectors/capsules.json`.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::{
    limits::{H2_MAX_REASON, MAX_DATAGRAM},
    status::Code,
};

const DATAGRAM: u64 = 0x00;
const STOP: u64 = 0x2868_7701;
const CLOSE: u64 = 0x2868_7702;

/// The value of a STOP.
const STOP_LEN: usize = 9;

/// One message on the control stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capsule {
    /// A small message that may be dropped.
    Datagram(Bytes),
    /// The sender of this capsule wants no more of what the other side sends on a stream.
    Stop {
        /// Which of the two HTTP/2 connections the stream is on.
        connection: ConnectionHalf,
        /// Its number there.
        stream: u32,
        /// Why.
        code: Code,
    },
    /// Both HTTP/2 connections end now.
    Close {
        /// Why.
        code: Code,
        /// In words, at most [`H2_MAX_REASON`] bytes.
        reason: String,
    },
}

/// One of the two HTTP/2 connections of which a carrier is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConnectionHalf {
    /// The node that dialled is the HTTP client.
    Forward = 0,
    /// The node that was dialled is the HTTP client.
    Reverse = 1,
}

/// Why capsules cannot be read. The connection ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CapsuleError {
    /// A length that the type cannot have.
    #[error("a capsule of type {kind:#x} cannot have {len} bytes")]
    Length {
        /// The type.
        kind: u64,
        /// The stated length.
        len: u64,
    },
    /// A STOP for neither of the two connections.
    #[error("there is no connection {0}")]
    Connection(u8),
    /// The stream ended inside a capsule.
    #[error("the control stream ended inside a capsule")]
    Truncated,
}

impl Capsule {
    /// Appends the capsule to `out`. A reason past its bound is cut on a character boundary.
    ///
    /// # Panics
    ///
    /// If a datagram is larger than [`MAX_DATAGRAM`].
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Datagram(payload) => {
                assert!(payload.len() <= MAX_DATAGRAM, "a datagram past its bound");
                put_head(out, DATAGRAM, payload.len());
                out.put_slice(payload);
            }
            Self::Stop {
                connection,
                stream,
                code,
            } => {
                put_head(out, STOP, STOP_LEN);
                out.put_u8(*connection as u8);
                out.put_u32(*stream);
                out.put_u32(u32::from(code.number()));
            }
            Self::Close { code, reason } => {
                let mut end = reason.len().min(H2_MAX_REASON);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                let reason = reason.get(..end).unwrap_or_default();
                put_head(out, CLOSE, 4 + reason.len());
                out.put_u32(u32::from(code.number()));
                out.put_slice(reason.as_bytes());
            }
        }
    }

    /// Reads the value of a capsule whose length is one that its type can have.
    fn decode(kind: u64, mut value: Bytes) -> Result<Self, CapsuleError> {
        match kind {
            STOP => {
                let connection = match value.get_u8() {
                    0 => ConnectionHalf::Forward,
                    1 => ConnectionHalf::Reverse,
                    other => return Err(CapsuleError::Connection(other)),
                };
                Ok(Self::Stop {
                    connection,
                    stream: value.get_u32(),
                    code: Code::from_number(u64::from(value.get_u32())),
                })
            }
            CLOSE => Ok(Self::Close {
                code: Code::from_number(u64::from(value.get_u32())),
                reason: String::from_utf8_lossy(&value).into_owned(),
            }),
            _ => Ok(Self::Datagram(value)),
        }
    }
}

/// Reads capsules off a byte stream, however it is cut. Holds at most one of a known type.
#[derive(Debug, Default)]
pub struct CapsuleDecoder {
    buffer: BytesMut,
    /// Bytes of a capsule of unknown type that are still to be skipped.
    skip: u64,
}

impl CapsuleDecoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands over the next bytes. Take every [`CapsuleDecoder::next_capsule`] before the next call.
    pub fn push(&mut self, mut part: Bytes) {
        let skipped = part
            .len()
            .min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        part.advance(skipped);
        self.skip -= skipped as u64;
        self.buffer.extend_from_slice(&part);
    }

    /// The next whole capsule, if one has come.
    ///
    /// # Errors
    ///
    /// [`CapsuleError`]; nothing more can be read.
    pub fn next_capsule(&mut self) -> Result<Option<Capsule>, CapsuleError> {
        loop {
            let mut rest = &self.buffer[..];
            let (Some(kind), Some(len)) = (take_varint(&mut rest), take_varint(&mut rest)) else {
                return Ok(None);
            };
            let head = self.buffer.len() - rest.len();
            let bound = match kind {
                DATAGRAM => 0..=MAX_DATAGRAM as u64,
                STOP => STOP_LEN as u64..=STOP_LEN as u64,
                CLOSE => 4..=(4 + H2_MAX_REASON) as u64,
                _ => {
                    let here = len.min(rest.len() as u64);
                    self.buffer.advance(head + here as usize);
                    self.skip = len - here;
                    continue;
                }
            };
            if !bound.contains(&len) {
                return Err(CapsuleError::Length { kind, len });
            }
            let len = len as usize;
            if rest.len() < len {
                return Ok(None);
            }
            self.buffer.advance(head);
            // A copy, so that a small value does not keep what was read with it.
            let value = Bytes::copy_from_slice(&self.buffer.split_to(len));
            return Capsule::decode(kind, value).map(Some);
        }
    }

    /// Says that the stream has ended.
    ///
    /// # Errors
    ///
    /// [`CapsuleError::Truncated`] inside a capsule.
    pub fn finish(&self) -> Result<(), CapsuleError> {
        if self.buffer.is_empty() && self.skip == 0 {
            Ok(())
        } else {
            Err(CapsuleError::Truncated)
        }
    }
}

fn put_head(out: &mut BytesMut, kind: u64, len: usize) {
    put_varint(out, kind);
    put_varint(out, len as u64);
}

/// Writes a number below 2^30 in its shortest form (RFC 9000, 16).
fn put_varint(out: &mut BytesMut, value: u64) {
    match value {
        0..0x40 => out.put_u8(value as u8),
        0x40..0x4000 => out.put_u16(0x4000 | value as u16),
        _ => {
            debug_assert!(value < 0x4000_0000, "no type or length of ours is longer");
            out.put_u32(0x8000_0000 | value as u32);
        }
    }
}

/// Takes a number off the front, in whichever form it comes; `None` while some of it is missing.
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let first = *rest.first()?;
    let len = 1 << (first >> 6);
    let (number, after) = rest.split_at_checked(len)?;
    let value = number
        .iter()
        .fold(0, |value, byte| (value << 8) | u64::from(*byte));
    *rest = after;
    Some(value & (u64::MAX >> (66 - 8 * len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_rfc_9000() {
        // RFC 9000, A.1.
        for (bytes, value) in [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            let mut rest = bytes;
            assert_eq!(take_varint(&mut rest), Some(value));
            assert!(rest.is_empty());
            assert_eq!(take_varint(&mut &bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn an_unknown_capsule_is_skipped_without_being_buffered() {
        let mut decoder = CapsuleDecoder::new();
        // Type 0x21, 2^62 - 1 bytes.
        decoder.push(Bytes::from_static(&[
            0x21, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ]));
        for _ in 0..1000 {
            assert_eq!(decoder.next_capsule(), Ok(None));
            decoder.push(Bytes::from_static(&[0; 4096]));
            assert!(decoder.buffer.is_empty());
        }
        assert_eq!(decoder.finish(), Err(CapsuleError::Truncated));
    }

    #[test]
    fn a_capsule_that_claims_too_much_is_refused_before_it_is_buffered() {
        for kind in [DATAGRAM, STOP, CLOSE] {
            let mut bytes = BytesMut::new();
            put_head(&mut bytes, kind, 4 + H2_MAX_REASON.max(MAX_DATAGRAM) + 1);
            let mut decoder = CapsuleDecoder::new();
            decoder.push(bytes.freeze());
            assert!(matches!(
                decoder.next_capsule(),
                Err(CapsuleError::Length { .. })
            ));
        }
    }

    #[test]
    fn a_long_close_reason_is_cut_on_a_character_boundary() {
        let mut bytes = BytesMut::new();
        let reason = format!("x{}", "é".repeat(H2_MAX_REASON));
        Capsule::Close {
            code: Code::Ok,
            reason,
        }
        .encode(&mut bytes);
        let mut decoder = CapsuleDecoder::new();
        decoder.push(bytes.freeze());
        match decoder.next_capsule() {
            Ok(Some(Capsule::Close { reason, .. })) => {
                assert_eq!(reason.len(), H2_MAX_REASON - 1);
            }
            other => panic!("{other:?}"),
        }
    }
}
