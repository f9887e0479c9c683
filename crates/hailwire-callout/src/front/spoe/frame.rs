//! The frames of SPOP 2.0, as bytes.
//!
//! ```text
//! u32 BE   length of what follows
//! u8       type: 1 HAPROXY-HELLO, 2 HAPROXY-DISCONNECT, 3 NOTIFY, 101 AGENT-HELLO, 102 AGENT-DISCONNECT, 103 ACK
//! u32 BE   flags: 1 the frame is whole, 2 aborted
//! varint   stream, varint frame
//! bytes    HELLO, DISCONNECT: names with values; NOTIFY: messages; ACK: actions
//! ```
//!
//! A value is one byte, its type in the low and flags in the high half, and then what that type holds. Texts
//! and bodies that are read are slices of the frame. A frame that is not whole is refused: we do not announce
//! that we can put fragments together, and HAProxy no longer makes any.
//!
//! Our own code and not the crate `spop`, which reads texts with loss (an agent would see other bytes than the
//! server), copies every body, and boxes each frame; what would be ours anyway, the sessions, their bounds and
//! the meaning of the messages, is the larger part. HAProxy's `doc/SPOE.txt`, chapter 3, is what this follows.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::{Buf as _, Bytes, BytesMut};

pub(super) use read::FrameReader;
pub use read::read;
pub use write::{write_ack, write_disconnect, write_hello};

/// Bytes of a frame that are taken at most; HAProxy proposes its buffer's size, 16 KiB by default.
pub const MAX_FRAME: u32 = 1 << 20;

/// Every peer takes frames of this size.
pub const MIN_FRAME: u32 = 256;

/// Messages in one NOTIFY.
pub const MAX_MESSAGES: usize = 32;

const FIN: u32 = 1;

const HAPROXY_HELLO: u8 = 1;
const HAPROXY_DISCONNECT: u8 = 2;
const NOTIFY: u8 = 3;
const AGENT_HELLO: u8 = 101;
const AGENT_DISCONNECT: u8 = 102;
const ACK: u8 = 103;

/// Why a connection ends, with the numbers of SPOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum SpopError {
    #[error("normal")]
    Normal = 0,
    #[error("input or output failed")]
    Io = 1,
    #[error("the frame is too big")]
    TooBig = 3,
    #[error("the frame is invalid")]
    Invalid = 4,
    #[error("the supported versions are missing")]
    NoVersion = 5,
    #[error("the maximum frame size is missing")]
    NoMaxFrameSize = 6,
    #[error("the capabilities are missing")]
    NoCapabilities = 7,
    #[error("no supported version")]
    UnsupportedVersion = 8,
    #[error("the maximum frame size is too small")]
    BadFrameSize = 9,
    #[error("fragments are not taken")]
    Fragmented = 10,
}

/// What HAProxy sends.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "each is named as in SPOP, or after what it holds"
)]
pub enum SpopFrame {
    Hello(HaproxyHello),
    Notify(NotifyFrame),
    Disconnect {
        code: u64,
        message: Bytes,
    },
    /// Of a type that is not known, and skipped.
    Other(u8),
}

/// What HAProxy proposes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaproxyHello {
    /// Bytes of a frame.
    pub max_frame: u32,
    /// Answers need not come in the order of the questions.
    pub pipelining: bool,
    /// The connection ends after the answer.
    pub healthcheck: bool,
    /// Which engine of which process this is; empty where it does not say.
    pub engine: Bytes,
}

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct NotifyFrame {
    /// The stream of HAProxy that it is about: one HTTP request.
    pub stream: u64,
    /// Which question of that stream.
    pub frame: u64,
    /// What it tells.
    pub messages: Vec<SpoeMessage>,
}

/// A message: one `spoe-message` of HAProxy's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct SpoeMessage {
    /// Its name there.
    pub name: Bytes,
    /// Its arguments.
    pub args: Vec<(Bytes, SpopValue)>,
}

impl SpoeMessage {
    /// The first argument of a name.
    #[must_use]
    pub fn arg(&self, name: &str) -> Option<&SpopValue> {
        self.args
            .iter()
            .find(|(known, _)| known == name.as_bytes())
            .map(|(_, value)| value)
    }
}

/// A value with its type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the types of SPOP")]
pub enum SpopValue {
    Null,
    Bool(bool),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Text(Bytes),
    Binary(Bytes),
}

impl SpopValue {
    /// The bytes of a text or of binary data.
    #[must_use]
    pub const fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Text(bytes) | Self::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A number that is not negative.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match *self {
            Self::Int32(n) => n.try_into().ok(),
            Self::Uint32(n) => Some(n.into()),
            Self::Int64(n) => n.try_into().ok(),
            Self::Uint64(n) => Some(n),
            _ => None,
        }
    }
}

/// Whose variable an action sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarScope {
    /// Of a request and its response, `txn.`
    Transaction = 2,
    /// Of a response, `res.`
    Response = 4,
}

/// A variable that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetVar {
    /// Whose it is.
    pub scope: VarScope,
    /// Its name, without what HAProxy puts before it.
    pub name: String,
    /// Its value.
    pub value: SpopValue,
}

/// Takes the next frame, without its length, out of what came in; `None` until all of it is there.
///
/// # Errors
///
/// [`SpopError::TooBig`] as soon as a length beyond `max` is read.
pub fn cut(input: &mut BytesMut, max: u32) -> Result<Option<Bytes>, SpopError> {
    let Some(length) = input.first_chunk::<4>().copied() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(length);
    if length > max {
        return Err(SpopError::TooBig);
    }
    if input.len() - 4 < length as usize {
        return Ok(None);
    }
    input.advance(4);
    Ok(Some(input.split_to(length as usize).freeze()))
}
