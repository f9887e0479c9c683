//! JSON, as far as messages need it (RFC 8259).

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};

use super::source::{MAX_DEPTH, ParseError, ParseResult, ValueShape, ValueSource, from_base64};

/// Reads JSON.
pub(super) struct JsonSource<'a> {
    text: &'a str,
    at: usize,
    depth: u8,
}

const CUT: &str = "unexpected end of input";

impl<'a> JsonSource<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> ParseResult<Self> {
        match simdutf8::basic::from_utf8(bytes) {
            Ok(text) => Ok(Self {
                text,
                at: 0,
                depth: 0,
            }),
            Err(_) => Err(ParseError::new("not UTF-8", 0)),
        }
    }

    pub(super) fn end(&mut self) -> ParseResult<()> {
        self.space();
        if self.at == self.text.len() {
            Ok(())
        } else {
            Err(ParseError::new("trailing bytes", self.at))
        }
    }

    #[inline]
    const fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    #[inline]
    fn space(&mut self) {
        let bytes = self.bytes();
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// What comes after white space.
    #[inline]
    fn peek(&mut self) -> ParseResult<u8> {
        self.space();
        match self.bytes().get(self.at) {
            Some(byte) => Ok(*byte),
            None => Err(ParseError::new(CUT, self.at)),
        }
    }

    #[inline]
    fn expect(&mut self, byte: u8, else_: &'static str) -> ParseResult<()> {
        if self.peek()? == byte {
            self.at += 1;
            Ok(())
        } else {
            Err(ParseError::new(else_, self.at))
        }
    }

    fn word(&mut self, word: &str) -> ParseResult<()> {
        let rest = self.bytes().get(self.at..).unwrap_or_default();
        if rest.starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(())
        } else {
            Err(ParseError::new("invalid literal", self.at))
        }
    }

    /// Takes the text after a quotation mark, up to and with the next.
    #[inline]
    fn quoted(&mut self) -> ParseResult<Cow<'a, str>> {
        let start = self.at;
        let stop = start + plain_length(self.bytes().get(start..).unwrap_or_default());
        if self.bytes().get(stop) == Some(&b'"') {
            self.at = stop + 1;
            return match self.text.get(start..stop) {
                Some(text) => Ok(Cow::Borrowed(text)),
                None => Err(ParseError::new(CUT, start)),
            };
        }
        self.escaped(start).map(Cow::Owned)
    }

    #[cold]
    fn escaped(&mut self, start: usize) -> ParseResult<String> {
        let mut out = String::new();
        self.at = start;
        loop {
            let from = self.at;
            let length = plain_length(self.bytes().get(from..).unwrap_or_default());
            self.at += length;
            out.push_str(self.text.get(from..self.at).unwrap_or_default());
            match self.bytes().get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                Some(_) => return Err(ParseError::new("control character in a string", self.at)),
                None => return Err(ParseError::new("unterminated string", start)),
            }
        }
    }

    /// Takes what follows a backslash.
    fn escape(&mut self) -> ParseResult<char> {
        let byte = self.bytes().get(self.at).copied();
        self.at += 1;
        Ok(match byte {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.code_point(),
            _ => {
                return Err(ParseError::new("invalid escape", self.at));
            }
        })
    }

    fn code_point(&mut self) -> ParseResult<char> {
        let wrong = ParseError::new("unpaired surrogate", self.at);
        let unit = self.hex()?;
        let code = match unit {
            0xd800..=0xdbff => {
                if self.bytes().get(self.at..self.at + 2) != Some(b"\\u") {
                    return Err(wrong);
                }
                self.at += 2;
                let low = self.hex()?;
                if !(0xdc00..=0xdfff).contains(&low) {
                    return Err(wrong);
                }
                0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00)
            }
            unit => unit,
        };
        char::from_u32(code).ok_or(wrong)
    }

    fn hex(&mut self) -> ParseResult<u32> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += 4;
        code.ok_or(ParseError::new(
            "an escape without four digits",
            self.at - 4,
        ))
    }

    /// Takes a number as it stands, and whether it is a whole one.
    fn number(&mut self) -> ParseResult<(&'a str, bool)> {
        self.space();
        let (start, bytes) = (self.at, self.bytes());
        let wrong = ParseError::new("expected a number", start);
        let digits = |at: &mut usize| {
            let from = *at;
            while bytes.get(*at).is_some_and(u8::is_ascii_digit) {
                *at += 1;
            }
            *at - from
        };
        let mut at = start + usize::from(bytes.get(start) == Some(&b'-'));
        let zero = bytes.get(at) == Some(&b'0');
        let count = digits(&mut at);
        if count == 0 || (zero && count > 1) {
            return Err(wrong);
        }
        let mut whole = true;
        if bytes.get(at) == Some(&b'.') {
            at += 1;
            whole = false;
            if digits(&mut at) == 0 {
                return Err(wrong);
            }
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            at += 1;
            whole = false;
            at += usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
            if digits(&mut at) == 0 {
                return Err(wrong);
            }
        }
        self.at = at;
        self.text
            .get(start..at)
            .map(|text| (text, whole))
            .ok_or(wrong)
    }

    fn deeper(&mut self) -> ParseResult<()> {
        if self.depth == MAX_DEPTH {
            return Err(ParseError::new("nested too deeply", self.at));
        }
        self.depth += 1;
        Ok(())
    }

    /// Takes the rest of a map or array, whose opening bracket is taken. `each` takes an item.
    #[inline]
    fn items(
        &mut self,
        close: u8,
        mut each: impl FnMut(usize, &mut Self) -> ParseResult<()>,
    ) -> ParseResult<()> {
        self.deeper()?;
        if self.peek()? == close {
            self.at += 1;
            self.depth -= 1;
            return Ok(());
        }
        let mut index = 0;
        loop {
            each(index, self)?;
            index += 1;
            match self.peek()? {
                b',' => self.at += 1,
                byte if byte == close => {
                    self.at += 1;
                    self.depth -= 1;
                    return Ok(());
                }
                _ => return Err(ParseError::new("expected a comma", self.at)),
            }
        }
    }
}

impl<'a> ValueSource<'a> for JsonSource<'a> {
    #[inline]
    fn shape(&mut self) -> ParseResult<ValueShape> {
        Ok(match self.peek()? {
            b'n' => ValueShape::Null,
            b't' | b'f' => ValueShape::Bool,
            b'-' | b'0'..=b'9' => ValueShape::Number,
            b'"' => ValueShape::Text,
            b'{' => ValueShape::Map,
            b'[' => ValueShape::Seq,
            _ => return Err(ParseError::new("expected a value", self.at)),
        })
    }

    #[inline]
    fn null(&mut self) -> ParseResult<bool> {
        if self.peek()? != b'n' {
            return Ok(false);
        }
        self.word("null").map(|()| true)
    }

    fn bool(&mut self) -> ParseResult<bool> {
        match self.peek()? {
            b't' => self.word("true").map(|()| true),
            b'f' => self.word("false").map(|()| false),
            _ => Err(ParseError::new("expected a boolean", self.at)),
        }
    }

    #[inline]
    fn u64(&mut self) -> ParseResult<u64> {
        self.space();
        let start = self.at;
        let mut number = 0u64;
        let mut count = 0;
        // Short ones, which nearly all are, in one pass.
        while let Some(digit @ b'0'..=b'9') = self.bytes().get(start + count) {
            number = number
                .wrapping_mul(10)
                .wrapping_add(u64::from(digit - b'0'));
            count += 1;
        }
        let short = (1..=19).contains(&count) && (count == 1 || self.bytes()[start] != b'0');
        let more = matches!(self.bytes().get(start + count), Some(b'.' | b'e' | b'E'));
        if short && !more {
            self.at = start + count;
            return Ok(number);
        }
        match self.number()? {
            (text, true) if !text.starts_with('-') => text
                .parse()
                .map_err(|_| ParseError::new("number out of range", start)),
            (_, true) => Err(ParseError::new("negative number", start)),
            (_, false) => Err(ParseError::new("expected an integer", start)),
        }
    }

    fn f32(&mut self) -> ParseResult<f32> {
        let start = self.at;
        let (text, _) = self.number()?;
        // By way of the wider type, as everyone does.
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(number as f32),
            _ => Err(ParseError::new("number out of range", start)),
        }
    }

    #[inline]
    fn text(&mut self) -> ParseResult<Cow<'a, str>> {
        self.expect(b'"', "expected a text")?;
        self.quoted()
    }

    fn data(&mut self, _: &Bytes) -> ParseResult<Bytes> {
        self.expect(b'"', "expected a text")?;
        let start = self.at;
        let rest = self.bytes().get(start..).unwrap_or_default();
        // What base64 does not have is found when it is decoded.
        let stop = memchr::memchr2(b'"', b'\\', rest).map(|length| start + length);
        if let Some(stop) = stop
            && self.bytes().get(stop) == Some(&b'"')
        {
            self.at = stop + 1;
            return from_base64(self.bytes().get(start..stop).unwrap_or_default(), start);
        }
        from_base64(self.escaped(start)?.as_bytes(), start)
    }

    fn skip(&mut self) -> ParseResult<()> {
        match self.shape()? {
            ValueShape::Null => self.null().map(drop),
            ValueShape::Bool => self.bool().map(drop),
            ValueShape::Number => self.number().map(drop),
            ValueShape::Text | ValueShape::Bytes => self.text().map(drop),
            ValueShape::Map => self.map(|_, source| source.skip()),
            ValueShape::Seq => self.seq(|_, source| source.skip()),
        }
    }

    fn value(&mut self) -> ParseResult<serde_json::Value> {
        self.space();
        let start = self.at;
        self.skip()?;
        serde_json::from_str(self.text.get(start..self.at).unwrap_or_default())
            .map_err(|_| ParseError::new("value cannot be represented", start))
    }

    #[inline]
    fn map(&mut self, mut each: impl FnMut(&str, &mut Self) -> ParseResult<()>) -> ParseResult<()> {
        self.expect(b'{', "expected an object")?;
        self.items(b'}', |_, source| {
            let key = source.text()?;
            source.expect(b':', "no colon after a name")?;
            each(&key, source)
        })
    }

    #[inline]
    fn seq(&mut self, each: impl FnMut(usize, &mut Self) -> ParseResult<()>) -> ParseResult<()> {
        self.expect(b'[', "expected an array")?;
        self.items(b']', each)
    }

    fn at(&self) -> usize {
        self.at
    }
}

/// How many bytes come before the first that a text of JSON cannot hold as it is.
#[inline]
fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let mut at = 0;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * b'"' as u64);
        let slash = word ^ (ONES * b'\\' as u64);
        // The lowest bit that is set marks the first such byte; only above it may others be set in error.
        let special = (quote.wrapping_sub(ONES) & !quote)
            | (slash.wrapping_sub(ONES) & !slash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        let special = special & HIGH;
        if special != 0 {
            return at + (special.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    let length = rest
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
    at + length.unwrap_or(rest.len())
}

/// Whether a text is without escapes.
pub(super) fn is_plain(text: &[u8]) -> bool {
    plain_length(text) == text.len()
}

/// Where JSON is written.
pub(super) trait JsonWrite {
    fn put(&mut self, bytes: &[u8]);
    /// A text, with its quotation marks.
    fn text(&mut self, text: &[u8]);
}

impl JsonWrite for BytesMut {
    fn put(&mut self, bytes: &[u8]) {
        self.put_slice(bytes);
    }

    fn text(&mut self, text: &[u8]) {
        put_text(text, self);
    }
}

/// A buffer of a fixed size for JSON without escapes: a write only checks whether it fits.
pub(super) struct FixedBuffer<'p> {
    bytes: &'p mut [u8],
    at: usize,
    full: bool,
}

impl<'p> FixedBuffer<'p> {
    pub(super) const fn new(bytes: &'p mut [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            full: false,
        }
    }

    /// How much was written; `None` where it did not fit, or had to be escaped.
    pub(super) const fn written(&self) -> Option<usize> {
        if self.full { None } else { Some(self.at) }
    }
}

impl JsonWrite for FixedBuffer<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        match self.bytes.get_mut(self.at..end) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.full = true,
        }
        self.at = end;
    }

    #[inline]
    fn text(&mut self, text: &[u8]) {
        self.full |= plain_length(text) < text.len();
        self.put(b"\"");
        self.put(text);
        self.put(b"\"");
    }
}

/// Writes an integer.
#[inline]
pub(super) fn put_uint(number: impl itoa::Integer, out: &mut impl JsonWrite) {
    out.put(itoa::Buffer::new().format(number).as_bytes());
}

/// Writes a text with its quotation marks.
#[inline]
pub(super) fn put_text(text: &[u8], out: &mut BytesMut) {
    out.put_u8(b'"');
    let length = plain_length(text);
    out.put_slice(text.get(..length).unwrap_or_default());
    if length < text.len() {
        put_escaped(text.get(length..).unwrap_or_default(), out);
    }
    out.put_u8(b'"');
}

#[cold]
fn put_escaped(mut text: &[u8], out: &mut BytesMut) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    while let Some((byte, rest)) = text.split_first() {
        match byte {
            b'"' => out.put_slice(b"\\\""),
            b'\\' => out.put_slice(b"\\\\"),
            b'\n' => out.put_slice(b"\\n"),
            b'\r' => out.put_slice(b"\\r"),
            b'\t' => out.put_slice(b"\\t"),
            byte => {
                let digits = [byte >> 4, byte & 15].map(|half| HEX[usize::from(half)]);
                out.put_slice(b"\\u00");
                out.put_slice(&digits);
            }
        }
        let length = plain_length(rest);
        out.put_slice(rest.get(..length).unwrap_or_default());
        text = rest.get(length..).unwrap_or_default();
    }
}

/// Writes bytes as base64, with quotation marks.
pub(super) fn put_base64(data: &[u8], out: &mut BytesMut) {
    out.put_u8(b'"');
    put_bare_base64(data, out);
    out.put_u8(b'"');
}

/// Writes bytes as base64.
pub(super) fn put_bare_base64(data: &[u8], out: &mut BytesMut) {
    let start = out.len();
    out.resize(start + base64_simd::STANDARD.encoded_length(data.len()), 0);
    if let Some(place) = out.get_mut(start..) {
        let _ = base64_simd::STANDARD.encode(data, base64_simd::Out::from_slice(place));
    }
}

pub(super) fn put_bool(value: bool, out: &mut BytesMut) {
    out.put_slice(if value { b"true" } else { b"false" });
}
