//! Frames: their header, their payloads, and an incremental decoder.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use super::MuxError;
use crate::header::Priority;
use crate::limits::{MAX_DATAGRAM, MUX_MAX_DATA, MUX_MAX_REASON};
use crate::status::Code;

/// Bytes ahead of each payload.
pub const HEADER: usize = 12;

const FIN: u8 = 0x01;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MuxFrameKind(pub u8);

impl MuxFrameKind {
    /// Bytes of a stream.
    pub const DATA: Self = Self(0x01);
    /// The writer gives its direction up.
    pub const RESET: Self = Self(0x02);
    /// The reader wants no more.
    pub const STOP: Self = Self(0x03);
    /// More credit for a stream.
    pub const WINDOW: Self = Self(0x04);
    /// More streams may be opened.
    pub const STREAMS: Self = Self(0x05);
    /// Asks for a sign of life.
    pub const PING: Self = Self(0x06);
    /// Gives it.
    pub const PONG: Self = Self(0x07);
    /// An unreliable message.
    pub const DATAGRAM: Self = Self(0x08);
    /// The connection ends.
    pub const CLOSE: Self = Self(0x09);

    /// The payload lengths that this kind can have; `None` for an unknown kind.
    fn lengths(self) -> Option<std::ops::RangeInclusive<usize>> {
        Some(match self {
            Self::DATA => 0..=MUX_MAX_DATA,
            Self::RESET | Self::STOP | Self::WINDOW | Self::STREAMS => 4..=4,
            Self::PING | Self::PONG => 8..=8,
            Self::DATAGRAM => 0..=MAX_DATAGRAM,
            Self::CLOSE => 4..=4 + MUX_MAX_REASON,
            _ => return None,
        })
    }
}

impl fmt::Debug for MuxFrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::DATA => "DATA",
            Self::RESET => "RESET",
            Self::STOP => "STOP",
            Self::WINDOW => "WINDOW",
            Self::STREAMS => "STREAMS",
            Self::PING => "PING",
            Self::PONG => "PONG",
            Self::DATAGRAM => "DATAGRAM",
            Self::CLOSE => "CLOSE",
            Self(other) => return write!(f, "{other:#04x}"),
        })
    }
}

/// The twelve bytes ahead of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is.
    pub kind: MuxFrameKind,
    /// FIN and priority.
    pub flags: u8,
    /// Bytes of payload.
    pub len: u16,
    /// The stream; 0 for a frame of the connection.
    pub stream: u64,
}

impl FrameHeader {
    /// A header for `len` bytes of `stream`.
    #[must_use]
    pub fn new(kind: MuxFrameKind, stream: u64, priority: Priority, len: u16) -> Self {
        Self {
            kind,
            flags: (priority as u8) << 4,
            len,
            stream,
        }
    }

    /// The same with FIN.
    #[must_use]
    pub fn with_fin(mut self, fin: bool) -> Self {
        self.flags |= if fin { FIN } else { 0 };
        self
    }

    /// Whether this frame ends its direction.
    #[must_use]
    pub const fn fin(self) -> bool {
        self.flags & FIN != 0
    }

    /// The stream's priority; numbers past the highest are read as the highest.
    #[must_use]
    pub fn priority(self) -> Priority {
        Priority::ALL
            .get(usize::from(self.flags >> 4))
            .copied()
            .unwrap_or(Priority::Critical)
    }

    /// The bytes on the wire.
    #[must_use]
    pub const fn encode(self) -> [u8; HEADER] {
        let [l0, l1] = self.len.to_be_bytes();
        let [a, b, c, d, e, f, g, h] = self.stream.to_be_bytes();
        [self.kind.0, self.flags, l0, l1, a, b, c, d, e, f, g, h]
    }

    /// Reads the bytes on the wire.
    #[must_use]
    pub const fn decode(bytes: &[u8; HEADER]) -> Self {
        let [kind, flags, l0, l1, a, b, c, d, e, f, g, h] = *bytes;
        Self {
            kind: MuxFrameKind(kind),
            flags,
            len: u16::from_be_bytes([l0, l1]),
            stream: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        }
    }
}

/// A whole frame, for those who write or read them one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MuxFrame {
    /// Bytes of a stream, at most [`MUX_MAX_DATA`].
    Data {
        /// Which stream.
        stream: u64,
        /// Its priority.
        priority: Priority,
        /// Whether this direction ends after these bytes.
        fin: bool,
        /// The bytes.
        body: Bytes,
    },
    /// The writer gives its direction up.
    Reset {
        /// Which stream.
        stream: u64,
        /// Its priority.
        priority: Priority,
        /// Why.
        code: Code,
    },
    /// The reader wants no more.
    Stop {
        /// Which stream.
        stream: u64,
        /// Its priority.
        priority: Priority,
        /// Why.
        code: Code,
    },
    /// More credit.
    Window {
        /// Which stream.
        stream: u64,
        /// Its priority.
        priority: Priority,
        /// Bytes.
        credit: u32,
    },
    /// So many streams more may be opened.
    Streams(u32),
    /// Asks for a sign of life.
    Ping([u8; 8]),
    /// Gives it.
    Pong([u8; 8]),
    /// An unreliable message, at most [`MAX_DATAGRAM`] bytes.
    Datagram(Bytes),
    /// The connection ends.
    Close {
        /// Why.
        code: Code,
        /// In words, at most [`MUX_MAX_REASON`] bytes.
        reason: String,
    },
}

impl MuxFrame {
    /// Appends the frame. Bodies past their bound are cut: the writer splits before.
    pub fn encode(&self, out: &mut BytesMut) {
        let connection = |kind| (kind, 0, Priority::Low, false);
        let code_bytes = |code: Code| u32::from(code.number()).to_be_bytes();
        let mut put = |(kind, stream, priority, fin), parts: [&[u8]; 2]| {
            let len = parts.iter().map(|p| p.len()).sum::<usize>();
            let len = u16::try_from(len).unwrap_or(u16::MAX);
            out.put_slice(
                &FrameHeader::new(kind, stream, priority, len)
                    .with_fin(fin)
                    .encode(),
            );
            parts.iter().for_each(|part| out.put_slice(part));
        };
        match self {
            Self::Data {
                stream,
                priority,
                fin,
                body,
            } => {
                put(
                    (MuxFrameKind::DATA, *stream, *priority, *fin),
                    [cut(body, MUX_MAX_DATA), &[]],
                );
            }
            Self::Reset {
                stream,
                priority,
                code,
            } => {
                put(
                    (MuxFrameKind::RESET, *stream, *priority, false),
                    [&code_bytes(*code), &[]],
                );
            }
            Self::Stop {
                stream,
                priority,
                code,
            } => {
                put(
                    (MuxFrameKind::STOP, *stream, *priority, false),
                    [&code_bytes(*code), &[]],
                );
            }
            Self::Window {
                stream,
                priority,
                credit,
            } => {
                put(
                    (MuxFrameKind::WINDOW, *stream, *priority, false),
                    [&credit.to_be_bytes(), &[]],
                );
            }
            Self::Streams(credit) => put(
                connection(MuxFrameKind::STREAMS),
                [&credit.to_be_bytes(), &[]],
            ),
            Self::Ping(payload) => put(connection(MuxFrameKind::PING), [payload, &[]]),
            Self::Pong(payload) => put(connection(MuxFrameKind::PONG), [payload, &[]]),
            Self::Datagram(payload) => {
                put(
                    connection(MuxFrameKind::DATAGRAM),
                    [cut(payload, MAX_DATAGRAM), &[]],
                );
            }
            Self::Close { code, reason } => {
                let reason = cut(reason.as_bytes(), MUX_MAX_REASON);
                put(
                    connection(MuxFrameKind::CLOSE),
                    [&code_bytes(*code), reason],
                );
            }
        }
    }

    /// Reads a whole frame; `None` for an unknown kind, which is to be skipped.
    ///
    /// # Errors
    ///
    /// [`MuxError::Length`].
    pub fn decode(header: FrameHeader, payload: Bytes) -> Result<Option<Self>, MuxError> {
        let Some(lengths) = header.kind.lengths() else {
            return Ok(None);
        };
        if !lengths.contains(&payload.len()) {
            return Err(MuxError::Length {
                kind: header.kind,
                len: payload.len(),
            });
        }
        let (stream, priority) = (header.stream, header.priority());
        let code = || Code::from_number(u64::from(number(&payload)));
        Ok(Some(match header.kind {
            MuxFrameKind::DATA => Self::Data {
                stream,
                priority,
                fin: header.fin(),
                body: payload,
            },
            MuxFrameKind::RESET => Self::Reset {
                stream,
                priority,
                code: code(),
            },
            MuxFrameKind::STOP => Self::Stop {
                stream,
                priority,
                code: code(),
            },
            MuxFrameKind::WINDOW => Self::Window {
                stream,
                priority,
                credit: number(&payload),
            },
            MuxFrameKind::STREAMS => Self::Streams(number(&payload)),
            MuxFrameKind::PING => Self::Ping(eight(&payload)),
            MuxFrameKind::PONG => Self::Pong(eight(&payload)),
            MuxFrameKind::DATAGRAM => Self::Datagram(payload),
            MuxFrameKind::CLOSE => Self::Close {
                code: code(),
                reason: String::from_utf8_lossy(payload.get(4..).unwrap_or_default()).into_owned(),
            },
            _ => return Ok(None),
        }))
    }
}

fn cut(bytes: &[u8], max: usize) -> &[u8] {
    bytes.get(..max).unwrap_or(bytes)
}

fn number(payload: &[u8]) -> u32 {
    payload
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn eight(payload: &[u8]) -> [u8; 8] {
    payload.first_chunk().copied().unwrap_or_default()
}

/// What the decoder found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedItem {
    /// A whole frame other than DATA.
    Frame(MuxFrame),
    /// A DATA frame begins; its bytes follow in as many parts as they arrive in.
    Data(FrameHeader),
    /// Some bytes of the DATA frame that began last, never empty.
    Part(Bytes),
    /// The DATA frame that began last is whole.
    DataEnd,
}

/// An incremental decoder of frames. It buffers no body, and of other frames at most one.
#[derive(Debug, Default)]
pub struct MuxDecoder {
    carry: BytesMut,
    state: MuxDecoderState,
}

#[derive(Clone, Copy, Debug, Default)]
enum MuxDecoderState {
    #[default]
    Header,
    Payload(FrameHeader),
    Data(usize),
    Skip(usize),
}

impl MuxDecoder {
    /// The next item, taken off the front of `chunk`; `None` once it is used up.
    ///
    /// # Errors
    ///
    /// [`MuxError::Length`], found before the payload is buffered.
    pub fn next_item(&mut self, chunk: &mut Bytes) -> Result<Option<DecodedItem>, MuxError> {
        loop {
            match self.state {
                MuxDecoderState::Header => {
                    let Some(header) = self.take_header(chunk) else {
                        return Ok(None);
                    };
                    match header.kind.lengths() {
                        None => self.state = MuxDecoderState::Skip(usize::from(header.len)),
                        Some(range) if !range.contains(&usize::from(header.len)) => {
                            let len = usize::from(header.len);
                            return Err(MuxError::Length {
                                kind: header.kind,
                                len,
                            });
                        }
                        Some(_) if header.kind == MuxFrameKind::DATA => {
                            self.state = MuxDecoderState::Data(usize::from(header.len));
                            return Ok(Some(DecodedItem::Data(header)));
                        }
                        Some(_) => self.state = MuxDecoderState::Payload(header),
                    }
                }
                MuxDecoderState::Payload(header) => {
                    let Some(payload) = self.take(chunk, usize::from(header.len)) else {
                        return Ok(None);
                    };
                    self.state = MuxDecoderState::Header;
                    if let Some(frame) = MuxFrame::decode(header, payload)? {
                        return Ok(Some(DecodedItem::Frame(frame)));
                    }
                }
                MuxDecoderState::Data(0) => {
                    self.state = MuxDecoderState::Header;
                    return Ok(Some(DecodedItem::DataEnd));
                }
                MuxDecoderState::Skip(0) => self.state = MuxDecoderState::Header,
                MuxDecoderState::Data(_) | MuxDecoderState::Skip(_) if chunk.is_empty() => {
                    return Ok(None);
                }
                MuxDecoderState::Data(left) => {
                    let part = chunk.split_to(left.min(chunk.len()));
                    self.state = MuxDecoderState::Data(left - part.len());
                    return Ok(Some(DecodedItem::Part(part)));
                }
                MuxDecoderState::Skip(left) => {
                    let part = chunk.split_to(left.min(chunk.len()));
                    self.state = MuxDecoderState::Skip(left - part.len());
                }
            }
        }
    }

    /// Whether the input so far ends between two frames.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.carry.is_empty() && matches!(self.state, MuxDecoderState::Header)
    }

    fn take_header(&mut self, chunk: &mut Bytes) -> Option<FrameHeader> {
        if self.carry.is_empty()
            && let Some(bytes) = chunk.first_chunk::<HEADER>()
        {
            let header = FrameHeader::decode(bytes);
            bytes::Buf::advance(chunk, HEADER);
            return Some(header);
        }
        self.take(chunk, HEADER)
            .and_then(|b| b.first_chunk().map(FrameHeader::decode))
    }

    /// Exactly `len` bytes, as a slice of the chunk where they lie in one.
    fn take(&mut self, chunk: &mut Bytes, len: usize) -> Option<Bytes> {
        if self.carry.is_empty() && chunk.len() >= len {
            return Some(chunk.split_to(len));
        }
        let missing = len - self.carry.len();
        let part = chunk.split_to(missing.min(chunk.len()));
        self.carry.extend_from_slice(&part);
        (self.carry.len() == len).then(|| std::mem::take(&mut self.carry).freeze())
    }
}
