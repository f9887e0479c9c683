//! A body as it is, in windows.

use super::{Sink, Value, Variable, Windows};

/// A body as it is. Text is judged like a field without a name, too.
#[derive(Debug)]
pub(super) struct Raw {
    windows: Windows,
    text: bool,
}

impl Raw {
    pub(super) fn text() -> Self {
        Self {
            windows: Windows::default(),
            text: true,
        }
    }

    pub(super) fn bytes() -> Self {
        Self {
            windows: Windows::default(),
            text: false,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        let text = self.text;
        self.windows
            .push(bytes, |bytes, first| give(text, bytes, first, sink));
    }

    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        let text = self.text;
        self.windows
            .end(|bytes, first| give(text, bytes, first, sink));
    }
}

fn give(text: bool, bytes: &[u8], first: bool, sink: &mut Sink<'_>) {
    sink(Value {
        variable: Variable::RequestBody,
        name: b"",
        bytes,
        first,
    });
    if text {
        sink(Value {
            variable: Variable::ArgsPost,
            name: b"",
            bytes,
            first,
        });
    }
}
