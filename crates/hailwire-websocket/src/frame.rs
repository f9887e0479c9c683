//! Headers and masks of frames (RFC 6455, sections 5.2 and 5.3), without state.

use crate::WebSocketError;

/// Bytes of the longest header.
pub(crate) const MAX_HEADER: usize = 14;

/// Longest payload of a control frame.
pub(crate) const MAX_CONTROL: u64 = 125;

/// Which side of a connection this is. A client masks what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It requested the upgrade.
    Client,
    /// It accepted the upgrade.
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    const fn parse(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    const fn bits(self) -> u8 {
        match self {
            Self::Continuation => 0,
            Self::Text => 1,
            Self::Binary => 2,
            Self::Close => 8,
            Self::Ping => 9,
            Self::Pong => 10,
        }
    }

    pub(crate) const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHeader {
    pub(crate) fin: bool,
    pub(crate) opcode: Opcode,
    pub(crate) mask: Option<[u8; 4]>,
    /// Bytes of the payload.
    pub(crate) len: u64,
    /// Bytes of the header itself.
    pub(crate) size: usize,
}

impl FrameHeader {
    /// Parses a header; `None` while it is incomplete.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, WebSocketError> {
        let [first, second, rest @ ..] = bytes else {
            return Ok(None);
        };
        if first & 0x70 != 0 {
            return Err(WebSocketError::Protocol("a frame uses an extension"));
        }
        let fin = first & 0x80 != 0;
        let opcode = Opcode::parse(first & 0x0f)
            .ok_or(WebSocketError::Protocol("a frame has an unknown opcode"))?;
        let short = second & 0x7f;
        if opcode.is_control() && (!fin || u64::from(short) > MAX_CONTROL) {
            return Err(WebSocketError::Protocol(
                "a control frame is too long or fragmented",
            ));
        }
        let (len, rest) = match short {
            126 => match rest.split_first_chunk::<2>() {
                Some((len, rest)) => (u64::from(u16::from_be_bytes(*len)), rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk::<8>() {
                Some((len, rest)) => (u64::from_be_bytes(*len), rest),
                None => return Ok(None),
            },
            short => (u64::from(short), rest),
        };
        let least = match short {
            126 => 126,
            127 => 65536,
            _ => 0,
        };
        if len < least || len > u64::MAX >> 1 {
            return Err(WebSocketError::Protocol(
                "the length of a frame is not minimally encoded",
            ));
        }
        let (mask, rest) = if second & 0x80 == 0 {
            (None, rest)
        } else {
            match rest.split_first_chunk::<4>() {
                Some((mask, rest)) => (Some(*mask), rest),
                None => return Ok(None),
            }
        };
        Ok(Some(Self {
            fin,
            opcode,
            mask,
            len,
            size: bytes.len() - rest.len(),
        }))
    }
}

/// Writes the header of an unfragmented frame, and returns its length.
pub(crate) fn write_header(
    out: &mut [u8; MAX_HEADER],
    opcode: Opcode,
    len: usize,
    mask: Option<[u8; 4]>,
) -> usize {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut header = [0; MAX_HEADER];
    let mut size = 2;
    let mut put = |bytes: &[u8]| {
        for (to, from) in header.iter_mut().skip(size).zip(bytes) {
            *to = *from;
        }
        size += bytes.len();
    };
    let short = match (u8::try_from(len), u16::try_from(len)) {
        (Ok(short @ 0..=125), _) => short,
        (_, Ok(len)) => {
            put(&len.to_be_bytes());
            126
        }
        _ => {
            put(&(len as u64).to_be_bytes());
            127
        }
    };
    if let Some(mask) = mask {
        put(&mask);
    }
    let [first, second, ..] = &mut header;
    *first = 0x80 | opcode.bits();
    *second = masked | short;
    *out = header;
    size
}

/// Masks or unmasks a payload from its first byte on.
pub(crate) fn apply_mask(mask: [u8; 4], payload: &mut [u8]) {
    let [a, b, c, d] = mask;
    let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (chunks, rest) = payload.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_ne_bytes(*chunk) ^ word).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_all_lengths_come_back_as_they_were_written() {
        for len in [0, 1, 125, 126, 65_535, 65_536, 1 << 30] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let mut out = [0; MAX_HEADER];
                let size = write_header(&mut out, Opcode::Binary, len, mask);
                for part in 0..size {
                    assert!(FrameHeader::parse(&out[..part]).unwrap().is_none());
                }
                let read = FrameHeader::parse(&out[..size]).unwrap().unwrap();
                assert_eq!((read.len, read.mask), (len as u64, mask));
                assert_eq!((read.size, read.fin), (size, true));
                assert_eq!(read.opcode, Opcode::Binary);
            }
        }
    }

    #[test]
    fn what_the_rfc_forbids_in_a_header_is_refused() {
        for bytes in [
            &[0xc2, 0][..],                             // an extension's bit
            &[0x83, 0],                                 // an unknown opcode
            &[0x09, 0],                                 // a fragmented ping
            &[0x89, 126, 0, 126],                       // a long ping
            &[0x82, 126, 0, 125],                       // a length in too many bytes
            &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff], // the same
            &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0],    // a length with the top bit
        ] {
            assert!(FrameHeader::parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn masking_twice_gives_what_was() {
        let plain: Vec<u8> = (0..=255).cycle().take(1021).collect();
        let mut bytes = plain.clone();
        apply_mask([7, 0, 255, 1], &mut bytes);
        assert!(
            bytes
                .iter()
                .zip(&plain)
                .enumerate()
                .all(|(at, (b, p))| { b ^ p == [7, 0, 255, 1][at % 4] })
        );
        apply_mask([7, 0, 255, 1], &mut bytes);
        assert_eq!(bytes, plain);
    }
}
