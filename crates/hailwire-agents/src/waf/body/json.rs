//! JSON (RFC 8259), parsed leniently: invalid text between punctuation marks is emitted, too.
//!
//! Strings are emitted as names or values with their escapes decoded; numbers, `true`, `false` and `null` are not
//! emitted; any other text outside of strings is.

use super::{InspectedValue, ValueSink, Variable, WindowBuffer, push_name};

/// Nesting depth beyond which all strings are taken for values.
const MAX_DEPTH: usize = 256;

/// Parses JSON.
#[derive(Debug, Default)]
pub(in super::super) struct JsonReader {
    state: JsonState,
    /// For each open bracket, whether it opens an object.
    open: Vec<bool>,
    /// Brackets beyond [`MAX_DEPTH`].
    deeper: u64,
    /// Whether the next string is a name.
    name_next: bool,
    name: Vec<u8>,
    windows: WindowBuffer,
    /// The hexadecimal digits of an escape so far.
    digits: Vec<u8>,
    /// The first half of a surrogate pair.
    high: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum JsonState {
    /// Between punctuation marks.
    #[default]
    Bare,
    Text,
    Escape,
    Unicode,
}

impl JsonReader {
    pub(in super::super) fn feed(&mut self, mut bytes: &[u8], sink: &mut ValueSink<'_>) {
        while !bytes.is_empty() {
            bytes = match self.state {
                JsonState::Bare => self.bare(bytes, sink),
                JsonState::Text => self.text(bytes, sink),
                JsonState::Escape => self.escape(bytes, sink),
                JsonState::Unicode => self.unicode(bytes, sink),
            };
        }
    }

    pub(in super::super) fn finish(&mut self, sink: &mut ValueSink<'_>) {
        match self.state {
            JsonState::Bare => self.end_bare(sink),
            JsonState::Text | JsonState::Escape | JsonState::Unicode => self.end_text(sink),
        }
    }

    fn bare<'a>(&mut self, bytes: &'a [u8], sink: &mut ValueSink<'_>) -> &'a [u8] {
        let mark = |byte: &u8| matches!(byte, b'{' | b'}' | b'[' | b']' | b',' | b':' | b'"');
        let plain = bytes.iter().position(mark).unwrap_or(bytes.len());
        let text = if self.windows.is_empty() {
            bytes[..plain].trim_ascii_start()
        } else {
            &bytes[..plain]
        };
        if !text.is_empty() {
            let name = &self.name[..];
            self.windows
                .push(text, |bytes, first| sink(value(false, name, bytes, first)));
        }
        let Some((&byte, rest)) = bytes[plain..].split_first() else {
            return &[];
        };
        self.end_bare(sink);
        match byte {
            b'{' | b'[' => {
                if self.open.len() < MAX_DEPTH {
                    self.open.push(byte == b'{');
                } else {
                    self.deeper += 1;
                }
                self.name_next = byte == b'{' && self.deeper == 0;
            }
            b'}' | b']' => {
                if self.deeper > 0 {
                    self.deeper -= 1;
                } else {
                    self.open.pop();
                }
                self.name_next = false;
            }
            b',' => self.name_next = self.deeper == 0 && self.open.last() == Some(&true),
            b':' => self.name_next = false,
            _ => {
                self.state = JsonState::Text;
                if self.name_next {
                    self.name.clear();
                }
            }
        }
        rest
    }

    fn end_bare(&mut self, sink: &mut ValueSink<'_>) {
        let name = &self.name[..];
        self.windows.end(|bytes, first| {
            let literal = std::str::from_utf8(bytes).is_ok_and(|text| {
                let text = text.trim_ascii_end();
                matches!(text, "true" | "false" | "null") || text.parse::<f64>().is_ok()
            });
            if !literal {
                sink(value(false, name, bytes, first));
            }
        });
    }

    fn text<'a>(&mut self, bytes: &'a [u8], sink: &mut ValueSink<'_>) -> &'a [u8] {
        let plain = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
        if plain > 0 {
            self.push(&bytes[..plain], sink);
        }
        let Some((&byte, rest)) = bytes[plain..].split_first() else {
            return &[];
        };
        if byte == b'\\' {
            self.state = JsonState::Escape;
        } else {
            self.end_text(sink);
            self.state = JsonState::Bare;
            self.name_next = false;
        }
        rest
    }

    fn end_text(&mut self, sink: &mut ValueSink<'_>) {
        self.flush_high(sink);
        let (named, name) = (self.name_next, &self.name[..]);
        self.windows
            .end(|bytes, first| sink(value(named, name, bytes, first)));
    }

    fn escape<'a>(&mut self, bytes: &'a [u8], sink: &mut ValueSink<'_>) -> &'a [u8] {
        let Some((&byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        self.state = JsonState::Text;
        match byte {
            b'u' => {
                self.state = JsonState::Unicode;
                self.digits.clear();
            }
            b'b' => self.push(&[8], sink),
            b'f' => self.push(&[12], sink),
            b'n' => self.push(b"\n", sink),
            b'r' => self.push(b"\r", sink),
            b't' => self.push(b"\t", sink),
            other => self.push(&[other], sink),
        }
        rest
    }

    fn unicode<'a>(&mut self, bytes: &'a [u8], sink: &mut ValueSink<'_>) -> &'a [u8] {
        let Some((&byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        let Some(digit) = char::from(byte).to_digit(16) else {
            // Not an escape: it is literal.
            self.state = JsonState::Text;
            let digits = std::mem::take(&mut self.digits);
            let letter = |digit: &u8| char::from_digit(u32::from(*digit), 16).unwrap_or('0') as u8;
            let literal: Vec<u8> = b"\\u"
                .iter()
                .copied()
                .chain(digits.iter().map(letter))
                .collect();
            self.push(&literal, sink);
            return bytes;
        };
        self.digits.push(digit as u8);
        if self.digits.len() == 4 {
            let code = self
                .digits
                .iter()
                .fold(0, |code, digit| code << 4 | u32::from(*digit));
            self.state = JsonState::Text;
            self.code(code, sink);
        }
        rest
    }

    fn code(&mut self, code: u32, sink: &mut ValueSink<'_>) {
        if let (Some(high), 0xdc00..=0xdfff) = (self.high, code) {
            self.high = None;
            self.put(0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00), sink);
        } else if matches!(code, 0xd800..=0xdbff) {
            self.flush_high(sink);
            self.high = Some(code);
        } else {
            self.flush_high(sink);
            self.put(code, sink);
        }
    }

    fn put(&mut self, code: u32, sink: &mut ValueSink<'_>) {
        let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        self.push_now(bytes, sink);
    }

    fn flush_high(&mut self, sink: &mut ValueSink<'_>) {
        if self.high.take().is_some() {
            self.put(0xd800, sink);
        }
    }

    fn push(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        self.flush_high(sink);
        self.push_now(bytes, sink);
    }

    fn push_now(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        let named = self.name_next;
        if named {
            push_name(&mut self.name, bytes);
        }
        let name = &self.name[..];
        self.windows
            .push(bytes, |bytes, first| sink(value(named, name, bytes, first)));
    }
}

fn value<'a>(named: bool, name: &'a [u8], bytes: &'a [u8], first: bool) -> InspectedValue<'a> {
    let variable = if named {
        Variable::ArgsPostNames
    } else {
        Variable::ArgsPost
    };
    InspectedValue {
        variable,
        name,
        bytes,
        first,
    }
}
