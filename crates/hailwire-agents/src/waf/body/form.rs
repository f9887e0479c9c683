//! `application/x-www-form-urlencoded`, in bodies and queries.

use super::{InspectedValue, MAX_NAME, ValueSink, Variable, WindowBuffer, push_name};

/// Parses a form.
#[derive(Debug)]
pub(in super::super) struct FormReader {
    names: Variable,
    values: Variable,
    windows: WindowBuffer,
    name: Vec<u8>,
    in_value: bool,
    /// A percent sign and the digits after it so far.
    escape: Vec<u8>,
}

impl FormReader {
    pub(in super::super) fn body() -> Self {
        Self::new(Variable::ArgsPostNames, Variable::ArgsPost)
    }

    pub(in super::super) fn query() -> Self {
        Self::new(Variable::ArgsGetNames, Variable::ArgsGet)
    }

    fn new(names: Variable, values: Variable) -> Self {
        Self {
            names,
            values,
            windows: WindowBuffer::default(),
            name: Vec::with_capacity(MAX_NAME / 8),
            in_value: false,
            escape: Vec::new(),
        }
    }

    pub(in super::super) fn feed(&mut self, mut bytes: &[u8], sink: &mut ValueSink<'_>) {
        while !bytes.is_empty() {
            if !self.escape.is_empty() {
                bytes = self.unescape(bytes, sink);
                continue;
            }
            let special = |byte: &u8| matches!(byte, b'&' | b'=' | b'%' | b'+');
            let plain = bytes.iter().position(special).unwrap_or(bytes.len());
            if plain > 0 {
                self.push(&bytes[..plain], sink);
            }
            let Some((&byte, rest)) = bytes[plain..].split_first() else {
                return;
            };
            bytes = rest;
            match byte {
                b'&' => self.end(sink),
                b'=' if !self.in_value => {
                    self.end_name(sink);
                    self.in_value = true;
                }
                b'+' => self.push(b" ", sink),
                b'%' => self.escape.push(b'%'),
                _ => self.push(&[byte], sink),
            }
        }
    }

    pub(in super::super) fn finish(&mut self, sink: &mut ValueSink<'_>) {
        let rest = std::mem::take(&mut self.escape);
        self.push(&rest, sink);
        self.end(sink);
    }

    /// After a percent sign: two hexadecimal digits are a byte, anything else is literal. Returns the rest.
    fn unescape<'a>(&mut self, bytes: &'a [u8], sink: &mut ValueSink<'_>) -> &'a [u8] {
        let Some((&byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        if !byte.is_ascii_hexdigit() {
            let literal = std::mem::take(&mut self.escape);
            self.push(&literal, sink);
            return bytes;
        }
        self.escape.push(byte);
        if let [_, high, low] = self.escape[..] {
            let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
            self.escape.clear();
            self.push(&[digit(high) << 4 | digit(low)], sink);
        }
        rest
    }

    fn push(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        let (variable, name) = if self.in_value {
            (self.values, &self.name[..])
        } else {
            push_name(&mut self.name, bytes);
            (self.names, &self.name[..])
        };
        self.windows.push(bytes, |bytes, first| {
            sink(InspectedValue {
                variable,
                name,
                bytes,
                first,
            });
        });
    }

    fn end_name(&mut self, sink: &mut ValueSink<'_>) {
        let (variable, name) = (self.names, &self.name[..]);
        self.windows.end(|bytes, first| {
            sink(InspectedValue {
                variable,
                name,
                bytes,
                first,
            });
        });
    }

    fn end(&mut self, sink: &mut ValueSink<'_>) {
        if self.in_value {
            let (variable, name) = (self.values, &self.name[..]);
            self.windows.end(|bytes, first| {
                sink(InspectedValue {
                    variable,
                    name,
                    bytes,
                    first,
                });
            });
        } else {
            self.end_name(sink);
        }
        self.in_value = false;
        self.name.clear();
    }
}
