//! XML, read leniently: its text and the values of its attributes are given.

use super::{Sink, Value, Variable, Windows};

/// See the module.
#[derive(Debug, Default)]
pub(in super::super) struct Xml {
    state: State,
    windows: Windows,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Text,
    Tag,
    Attribute(u8),
}

impl Xml {
    pub(super) fn feed(&mut self, mut bytes: &[u8], sink: &mut Sink<'_>) {
        while !bytes.is_empty() {
            let end = match self.state {
                State::Text => memchr::memchr(b'<', bytes),
                State::Tag => memchr::memchr3(b'>', b'"', b'\'', bytes),
                State::Attribute(quote) => memchr::memchr(quote, bytes),
            };
            let (now, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if !matches!(self.state, State::Tag) {
                let text = if self.windows.is_empty() {
                    now.trim_ascii_start()
                } else {
                    now
                };
                self.windows
                    .push(text, |bytes, first| sink(value(bytes, first)));
            }
            let Some((&byte, rest)) = rest.split_first() else {
                return;
            };
            self.state = match (self.state, byte) {
                (State::Tag, b'>') => State::Text,
                (State::Tag, quote) => State::Attribute(quote),
                _ => State::Tag,
            };
            self.finish(sink);
            bytes = rest;
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        self.windows.end(|bytes, first| sink(value(bytes, first)));
    }
}

fn value(bytes: &[u8], first: bool) -> Value<'_> {
    Value {
        variable: Variable::Xml,
        name: b"",
        bytes,
        first,
    }
}
