//! Frames on a Unix socket: a length, a type, a payload.
//!
//! ```text
//! u32 big-endian   1 + bytes of the payload, 1 to 16,777,216
//! u8               type
//! bytes            payload
//! ```

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use thiserror::Error;

use crate::event::EventKind;

/// The greatest length, of type and payload together.
pub const MAX_LENGTH: u32 = 16 << 20;

/// Bytes before the payload.
pub const PREFIX: usize = 5;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is named like what it carries")]
pub enum FrameType {
    Handshake,
    HandshakeAnswer,
    Event(EventKind),
    Response,
    Health,
    Metrics,
    ConfigUpdate,
    Flow,
    Cancel,
    Ping,
    Pong,
}

impl FrameType {
    /// As on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Handshake => 0x01,
            Self::HandshakeAnswer => 0x02,
            Self::Event(EventKind::RequestHeaders) => 0x10,
            Self::Event(EventKind::RequestBody) => 0x11,
            Self::Event(EventKind::ResponseHeaders) => 0x12,
            Self::Event(EventKind::ResponseBody) => 0x13,
            Self::Event(EventKind::RequestComplete) => 0x14,
            Self::Event(EventKind::WebSocketFrame) => 0x15,
            Self::Event(EventKind::Guardrail) => 0x16,
            Self::Event(EventKind::Configure) => 0x17,
            Self::Response => 0x20,
            Self::Health => 0x30,
            Self::Metrics => 0x31,
            Self::ConfigUpdate => 0x32,
            Self::Flow => 0x33,
            Self::Cancel => 0x40,
            Self::Ping => 0x41,
            Self::Pong => 0x42,
        }
    }

    /// From the wire.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x01 => Self::Handshake,
            0x02 => Self::HandshakeAnswer,
            0x10 => Self::Event(EventKind::RequestHeaders),
            0x11 => Self::Event(EventKind::RequestBody),
            0x12 => Self::Event(EventKind::ResponseHeaders),
            0x13 => Self::Event(EventKind::ResponseBody),
            0x14 => Self::Event(EventKind::RequestComplete),
            0x15 => Self::Event(EventKind::WebSocketFrame),
            0x16 => Self::Event(EventKind::Guardrail),
            0x17 => Self::Event(EventKind::Configure),
            0x20 => Self::Response,
            0x30 => Self::Health,
            0x31 => Self::Metrics,
            0x32 => Self::ConfigUpdate,
            0x33 => Self::Flow,
            0x40 => Self::Cancel,
            0x41 => Self::Ping,
            0x42 => Self::Pong,
            _ => return None,
        })
    }
}

/// Bytes that are no frame: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A length of zero or above [`MAX_LENGTH`].
    #[error("invalid frame length {0}: must be 1 to 16,777,216")]
    Length(u32),
    /// A payload that is too large to be sent.
    #[error("payload of {0} bytes is too large: at most 16,777,215")]
    TooLarge(usize),
}

/// Appends a frame whose payload `write` appends.
///
/// # Errors
///
/// [`FrameError::TooLarge`]; `out` is as before then.
pub fn put(
    out: &mut BytesMut,
    code: u8,
    write: impl FnOnce(&mut BytesMut),
) -> Result<(), FrameError> {
    let start = out.len();
    out.put_u32(0);
    out.put_u8(code);
    write(out);
    let payload = out.len() - start - PREFIX;
    let length = u32::try_from(payload + 1)
        .ok()
        .filter(|length| *length <= MAX_LENGTH);
    let Some(length) = length else {
        out.truncate(start);
        return Err(FrameError::TooLarge(payload));
    };
    if let Some(prefix) = out.get_mut(start..start + 4) {
        prefix.copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

/// Takes the first whole frame out of what was read: its type's code and its payload, or `None` while there is none.
///
/// # Errors
///
/// [`FrameError::Length`].
pub fn take(read: &mut BytesMut) -> Result<Option<(u8, Bytes)>, FrameError> {
    let Some(prefix) = read.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*prefix);
    if !(1..=MAX_LENGTH).contains(&length) {
        return Err(FrameError::Length(length));
    }
    let whole = 4 + length as usize;
    if read.len() < whole {
        return Ok(None);
    }
    let mut frame = read.split_to(whole);
    frame.advance(4);
    let code = frame.get_u8();
    Ok(Some((code, frame.freeze())))
}
