//! MessagePack, as far as messages need it: <https://github.com/msgpack/msgpack/blob/master/spec.md>.

use std::borrow::Cow;

use bytes::{Buf as _, BufMut, Bytes};

use super::source::{MAX_DEPTH, ParseError, ParseResult, ValueShape, ValueSource, from_base64};

/// Reads MessagePack.
pub(super) struct PackSource<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u8,
}

const CUT: &str = "unexpected end of input";

impl<'a> PackSource<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            depth: 0,
        }
    }

    pub(super) fn end(&self) -> ParseResult<()> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(ParseError::new("trailing bytes", self.at))
        }
    }

    pub(super) const fn position(&self) -> usize {
        self.at
    }

    /// What was read between two places.
    pub(super) fn between(&self, start: u32, end: u32) -> &'a [u8] {
        self.bytes
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    /// Takes these very bytes, if they come.
    #[inline]
    pub(super) fn literal<const N: usize>(&mut self, bytes: &[u8; N]) -> bool {
        match self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<N>) {
            Some(next) if next == bytes => {
                self.at += N;
                true
            }
            _ => false,
        }
    }

    #[inline]
    pub(super) fn peek(&self) -> ParseResult<u8> {
        match self.bytes.get(self.at) {
            Some(byte) => Ok(*byte),
            None => Err(ParseError::new(CUT, self.at)),
        }
    }

    #[inline]
    fn byte(&mut self) -> ParseResult<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    fn take(&mut self, length: usize) -> ParseResult<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.get(..length) {
            Some(taken) => {
                self.at += length;
                Ok(taken)
            }
            None => Err(ParseError::new(CUT, self.at)),
        }
    }

    fn big_endian(&mut self, bytes: usize) -> ParseResult<u64> {
        self.take(bytes).map(|mut taken| taken.get_uint(bytes))
    }

    fn length(&mut self, bytes: usize) -> ParseResult<usize> {
        self.big_endian(bytes).map(|length| length as usize)
    }

    /// Takes a text as it stands. It is UTF-8.
    #[inline]
    pub(super) fn raw_text(&mut self) -> ParseResult<&'a [u8]> {
        let at = self.at;
        let text = self.unchecked_text()?;
        if is_utf8(text) {
            Ok(text)
        } else {
            Err(ParseError::new("text is not UTF-8", at))
        }
    }

    /// Takes a text that may not be UTF-8.
    #[inline]
    fn unchecked_text(&mut self) -> ParseResult<&'a [u8]> {
        let at = self.at;
        let marker = self.byte()?;
        let length = match marker {
            0xa0..=0xbf => usize::from(marker & 0x1f),
            0xd9 => self.length(1)?,
            0xda => self.length(2)?,
            0xdb => self.length(4)?,
            _ => return Err(ParseError::new("expected a text", at)),
        };
        self.take(length)
    }

    /// Takes the beginning of a map: how many keys it has.
    #[inline]
    pub(super) fn map_length(&mut self) -> ParseResult<usize> {
        let at = self.at;
        let marker = self.byte()?;
        match marker {
            0x80..=0x8f => Ok(usize::from(marker & 0x0f)),
            0xde => self.length(2),
            0xdf => self.length(4),
            _ => Err(ParseError::new("expected a map", at)),
        }
    }

    /// Takes the beginning of an array: how many values it has.
    #[inline]
    pub(super) fn seq_length(&mut self) -> ParseResult<usize> {
        let at = self.at;
        let marker = self.byte()?;
        match marker {
            0x90..=0x9f => Ok(usize::from(marker & 0x0f)),
            0xdc => self.length(2),
            0xdd => self.length(4),
            _ => Err(ParseError::new("expected an array", at)),
        }
    }

    fn deeper(&mut self) -> ParseResult<()> {
        if self.depth == MAX_DEPTH {
            return Err(ParseError::new("nested too deeply", self.at));
        }
        self.depth += 1;
        Ok(())
    }

    fn float(&mut self) -> ParseResult<f64> {
        let at = self.at;
        match self.peek()? {
            0xca => {
                self.at += 1;
                let bits = self.big_endian(4)?;
                Ok(f64::from(f32::from_bits(bits as u32)))
            }
            0xcb => {
                self.at += 1;
                self.big_endian(8).map(f64::from_bits)
            }
            0xe0..=0xff => Ok(f64::from(self.byte()? as i8)),
            0xd0 => {
                self.at += 1;
                Ok(f64::from(self.big_endian(1)? as i8))
            }
            0xd1 => {
                self.at += 1;
                Ok(f64::from(self.big_endian(2)? as i16))
            }
            0xd2 => {
                self.at += 1;
                Ok(f64::from(self.big_endian(4)? as i32))
            }
            0xd3 => {
                self.at += 1;
                Ok(self.big_endian(8)? as i64 as f64)
            }
            0x00..=0x7f | 0xcc..=0xcf => self.u64().map(|number| number as f64),
            _ => Err(ParseError::new("expected a number", at)),
        }
    }
}

impl<'a> ValueSource<'a> for PackSource<'a> {
    #[inline]
    fn shape(&mut self) -> ParseResult<ValueShape> {
        Ok(match self.peek()? {
            0xc0 => ValueShape::Null,
            0xc2 | 0xc3 => ValueShape::Bool,
            0x00..=0x7f | 0xca..=0xd3 | 0xe0..=0xff => ValueShape::Number,
            0xa0..=0xbf | 0xd9..=0xdb => ValueShape::Text,
            0xc4..=0xc6 => ValueShape::Bytes,
            0x80..=0x8f | 0xde | 0xdf => ValueShape::Map,
            0x90..=0x9f | 0xdc | 0xdd => ValueShape::Seq,
            _ => return Err(ParseError::new("unsupported type", self.at)),
        })
    }

    #[inline]
    fn null(&mut self) -> ParseResult<bool> {
        let null = self.peek()? == 0xc0;
        self.at += usize::from(null);
        Ok(null)
    }

    fn bool(&mut self) -> ParseResult<bool> {
        let at = self.at;
        match self.byte()? {
            0xc2 => Ok(false),
            0xc3 => Ok(true),
            _ => Err(ParseError::new("expected a boolean", at)),
        }
    }

    #[inline]
    fn u64(&mut self) -> ParseResult<u64> {
        let at = self.at;
        let marker = self.byte()?;
        let negative = Err(ParseError::new("negative number", at));
        match marker {
            0x00..=0x7f => Ok(u64::from(marker)),
            0xcc => self.big_endian(1),
            0xcd => self.big_endian(2),
            0xce => self.big_endian(4),
            0xcf => self.big_endian(8),
            0xd0..=0xd3 => {
                let bytes = 1 << (marker - 0xd0);
                let number = self.big_endian(bytes)?;
                if number >> (8 * bytes - 1) == 0 {
                    Ok(number)
                } else {
                    negative
                }
            }
            0xe0..=0xff => negative,
            _ => Err(ParseError::new("expected an integer", at)),
        }
    }

    fn f32(&mut self) -> ParseResult<f32> {
        let at = self.at;
        let number = self.float()? as f32;
        if number.is_nan() {
            return Err(ParseError::new("number is NaN", at));
        }
        Ok(number)
    }

    #[inline]
    fn text(&mut self) -> ParseResult<Cow<'a, str>> {
        let at = self.at;
        let text = self.raw_text()?;
        std::str::from_utf8(text)
            .map(Cow::Borrowed)
            .map_err(|_| ParseError::new("text is not UTF-8", at))
    }

    fn data(&mut self, frame: &Bytes) -> ParseResult<Bytes> {
        let at = self.at;
        let bytes = match self.peek()? {
            0xc4 => 1,
            0xc5 => 2,
            0xc6 => 4,
            _ => return from_base64(self.unchecked_text()?, at),
        };
        self.at += 1;
        let length = self.length(bytes)?;
        self.take(length)?;
        Ok(frame.slice(self.at - length..self.at))
    }

    fn skip(&mut self) -> ParseResult<()> {
        let at = self.at;
        let marker = self.byte()?;
        let length = match marker {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 0,
            0xa0..=0xbf | 0xd9..=0xdb => {
                self.at = at;
                return self.raw_text().map(drop);
            }
            0x80..=0x8f | 0xde | 0xdf => {
                self.at = at;
                return self.map(|_, source| source.skip());
            }
            0x90..=0x9f | 0xdc | 0xdd => {
                self.at = at;
                return self.seq(|_, source| source.skip());
            }
            0xc4 => self.length(1)?,
            0xc5 => self.length(2)?,
            0xc6 => self.length(4)?,
            0xca => 4,
            0xcb => 8,
            0xcc..=0xcf => 1 << (marker - 0xcc),
            0xd0..=0xd3 => 1 << (marker - 0xd0),
            0xd4..=0xd8 => (1 << (marker - 0xd4)) + 1,
            0xc7 => self.length(1)? + 1,
            0xc8 => self.length(2)? + 1,
            0xc9 => self.length(4)? + 1,
            0xc1 => return Err(ParseError::new("unsupported type", at)),
        };
        self.take(length).map(drop)
    }

    fn value(&mut self) -> ParseResult<serde_json::Value> {
        use serde::Deserialize as _;
        let start = self.at;
        self.skip()?;
        let mut span = self.bytes.get(start..self.at).unwrap_or_default();
        let mut deserializer = rmp_serde::Deserializer::new(&mut span);
        deserializer.set_max_depth(usize::from(MAX_DEPTH));
        serde_json::Value::deserialize(&mut deserializer)
            .map_err(|_| ParseError::new("value has no JSON form", start))
    }

    #[inline]
    fn map(&mut self, mut each: impl FnMut(&str, &mut Self) -> ParseResult<()>) -> ParseResult<()> {
        self.deeper()?;
        for _ in 0..self.map_length()? {
            // Keys that are no text are nobody's.
            if self.shape()? != ValueShape::Text {
                self.skip()?;
                self.skip()?;
                continue;
            }
            let key = self.text()?;
            each(&key, self)?;
        }
        self.depth -= 1;
        Ok(())
    }

    #[inline]
    fn seq(
        &mut self,
        mut each: impl FnMut(usize, &mut Self) -> ParseResult<()>,
    ) -> ParseResult<()> {
        self.deeper()?;
        for index in 0..self.seq_length()? {
            each(index, self)?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn at(&self) -> usize {
        self.at
    }
}

#[inline]
fn is_utf8(bytes: &[u8]) -> bool {
    bytes.is_ascii() || simdutf8::basic::from_utf8(bytes).is_ok()
}

/// Writes a text.
#[inline]
pub(super) fn put_text(text: &str, out: &mut impl BufMut) {
    put_text_length(text.len(), out);
    out.put_slice(text.as_bytes());
}

#[inline]
pub(super) fn put_text_length(length: usize, out: &mut impl BufMut) {
    match length {
        0..=31 => out.put_u8(0xa0 | length as u8),
        32..=0xff => out.put_slice(&[0xd9, length as u8]),
        0x100..=0xffff => {
            out.put_u8(0xda);
            out.put_u16(length as u16);
        }
        _ => {
            out.put_u8(0xdb);
            out.put_u32(length as u32);
        }
    }
}

/// Writes an integer in its shortest form.
#[inline]
pub(super) fn put_uint(number: u64, out: &mut impl BufMut) {
    match number {
        0..=0x7f => out.put_u8(number as u8),
        0x80..=0xff => out.put_slice(&[0xcc, number as u8]),
        0x100..=0xffff => {
            out.put_u8(0xcd);
            out.put_u16(number as u16);
        }
        0x1_0000..=0xffff_ffff => {
            out.put_u8(0xce);
            out.put_u32(number as u32);
        }
        _ => {
            out.put_u8(0xcf);
            out.put_u64(number);
        }
    }
}

pub(super) fn put_bool(value: bool, out: &mut impl BufMut) {
    out.put_u8(0xc2 | u8::from(value));
}

pub(super) fn put_map_length(length: usize, out: &mut impl BufMut) {
    match length {
        0..=15 => out.put_u8(0x80 | length as u8),
        16..=0xffff => {
            out.put_u8(0xde);
            out.put_u16(length as u16);
        }
        _ => {
            out.put_u8(0xdf);
            out.put_u32(length as u32);
        }
    }
}

pub(super) fn put_seq_length(length: usize, out: &mut impl BufMut) {
    match length {
        0..=15 => out.put_u8(0x90 | length as u8),
        16..=0xffff => {
            out.put_u8(0xdc);
            out.put_u16(length as u16);
        }
        _ => {
            out.put_u8(0xdd);
            out.put_u32(length as u32);
        }
    }
}
