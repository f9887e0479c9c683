//! Decodes UTF-16 (RFC 2781) while it arrives; invalid units become U+FFFD.

/// Decodes UTF-16 to UTF-8.
#[derive(Clone, Debug)]
pub(super) struct Utf16Decoder {
    big: bool,
    /// The first byte of an incomplete unit.
    half: Option<u8>,
    /// The first unit of a surrogate pair.
    high: Option<u16>,
}

impl Utf16Decoder {
    /// The decoder for text with these first bytes, if it is UTF-16.
    pub(super) fn detect(begin: &[u8]) -> Option<Self> {
        let plain = |byte: u8| (b' '..0x7f).contains(&byte) || byte.is_ascii_whitespace();
        let big = match begin {
            [0xff, 0xfe, 0, 0, ..] => return None,
            [0xfe, 0xff, ..] => true,
            [0xff, 0xfe, ..] => false,
            [0, one, 0, two, ..] if plain(*one) && plain(*two) => true,
            [one, 0, two, 0, ..] if plain(*one) && plain(*two) => false,
            _ => return None,
        };
        Some(Self {
            big,
            half: None,
            high: None,
        })
    }

    /// Whether text with these first bytes is UTF-32.
    pub(super) fn is_utf32(begin: &[u8]) -> bool {
        match begin {
            [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => true,
            [0, 0, 0, byte, ..] | [byte, 0, 0, 0, ..] => *byte != 0,
            _ => false,
        }
    }

    pub(super) fn decode(&mut self, bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len());
        for byte in bytes {
            let Some(half) = self.half.take() else {
                self.half = Some(*byte);
                continue;
            };
            let unit = if self.big {
                u16::from_be_bytes([half, *byte])
            } else {
                u16::from_le_bytes([half, *byte])
            };
            self.unit(unit, &mut out);
        }
        out
    }

    fn unit(&mut self, unit: u16, out: &mut String) {
        if let Some(high) = self.high.take() {
            let mut pair = char::decode_utf16([high, unit]);
            match pair.next() {
                Some(Ok(c)) => {
                    out.push(c);
                    return;
                }
                _ => out.push(char::REPLACEMENT_CHARACTER),
            }
        }
        match unit {
            0xd800..=0xdbff => self.high = Some(unit),
            // The byte order mark is not part of the text.
            0xfeff => {}
            _ => out.push(char::from_u32(u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }
}
