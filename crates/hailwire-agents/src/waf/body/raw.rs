//! A body as it is, in windows.

use super::{InspectedValue, ValueSink, Variable, WindowBuffer};

/// Emits a body as it is. Text is judged like a form field without a name, too.
#[derive(Debug)]
pub(super) struct RawReader {
    windows: WindowBuffer,
    text: bool,
}

impl RawReader {
    pub(super) fn text() -> Self {
        Self {
            windows: WindowBuffer::default(),
            text: true,
        }
    }

    pub(super) fn bytes() -> Self {
        Self {
            windows: WindowBuffer::default(),
            text: false,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        let text = self.text;
        self.windows
            .push(bytes, |bytes, first| give(text, bytes, first, sink));
    }

    pub(super) fn finish(&mut self, sink: &mut ValueSink<'_>) {
        let text = self.text;
        self.windows
            .end(|bytes, first| give(text, bytes, first, sink));
    }
}

fn give(text: bool, bytes: &[u8], first: bool, sink: &mut ValueSink<'_>) {
    sink(InspectedValue {
        variable: Variable::RequestBody,
        name: b"",
        bytes,
        first,
    });
    if text {
        sink(InspectedValue {
            variable: Variable::ArgsPost,
            name: b"",
            bytes,
            first,
        });
    }
}
