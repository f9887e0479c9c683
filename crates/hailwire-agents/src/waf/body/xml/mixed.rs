//! Mixed content: the text of an element that is divided by child elements, joined as programs see it that ask for the
//! whole text of the element.
//!
//! Only an element with text of its own is emitted, when it ends: text in leaf elements has been emitted already. Since
//! nested elements may all have mixed content, the output is bounded by the input, and [`UnreadKind::XmlNesting`] reports
//! where that was not enough.

use super::{ValueSink, value};
use crate::waf::{
    body::OVERLAP,
    unread::{UnreadKind, UnreadSet},
};

/// The most bytes of text that are held.
const MAX_HELD_TEXT: usize = 2 * OVERLAP;
/// The nesting depth that is tracked; text of deeper elements belongs to the innermost tracked one.
const MAX_DEPTH: usize = 256;
/// How many bytes may be emitted for each one read.
const OUTPUT_PER_INPUT: usize = 2;
/// How many bytes may be emitted in any case.
const BASE_OUTPUT: usize = 64 << 10;

/// Collects mixed content.
#[derive(Debug)]
pub(super) struct MixedContent {
    text: Vec<u8>,
    open: Vec<OpenElement>,
    /// Elements beyond [`MAX_DEPTH`].
    deeper: u64,
    /// The number of runs of text between tags so far.
    runs: u64,
    /// Whether the current run has more than white space.
    running: bool,
    credit: usize,
}

#[derive(Clone, Copy, Debug)]
struct OpenElement {
    /// Where its text begins in the held text.
    start: usize,
    cut: bool,
    /// The number of runs before it.
    runs: u64,
    /// Whether it has text of its own.
    own: bool,
}

impl Default for MixedContent {
    fn default() -> Self {
        Self {
            text: Vec::new(),
            open: Vec::new(),
            deeper: 0,
            runs: 0,
            running: false,
            credit: BASE_OUTPUT,
        }
    }
}

impl MixedContent {
    pub(super) fn open(&mut self) {
        if self.open.len() == MAX_DEPTH {
            self.deeper += 1;
            return;
        }
        self.open.push(OpenElement {
            start: self.text.len(),
            cut: false,
            runs: self.runs,
            own: false,
        });
    }

    /// Adds text; the result does not depend on how the text is divided into chunks.
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        unread: &mut UnreadSet,
        sink: &mut ValueSink<'_>,
    ) {
        while let (Some(element), false) = (self.open.last_mut(), bytes.is_empty()) {
            let (now, rest) = bytes.split_at(bytes.len().min(MAX_HELD_TEXT - self.text.len()));
            bytes = rest;
            if !now.trim_ascii().is_empty() {
                element.own = true;
                self.runs += u64::from(!self.running);
                self.running = true;
            }
            self.credit = self.credit.saturating_add(OUTPUT_PER_INPUT * now.len());
            self.text.extend_from_slice(now);
            if self.text.len() == MAX_HELD_TEXT {
                self.drop_half(unread, sink);
            }
        }
    }

    /// A tag ends the current run.
    pub(super) fn end_run(&mut self) {
        self.running = false;
    }

    pub(super) fn close(&mut self, unread: &mut UnreadSet, sink: &mut ValueSink<'_>) {
        if self.deeper > 0 {
            self.deeper -= 1;
            return;
        }
        let Some(element) = self.open.pop() else {
            return;
        };
        if element.own && self.runs - element.runs > 1 {
            self.give(element, unread, sink);
        }
        if self.open.is_empty() {
            self.text.clear();
        }
    }

    pub(super) fn finish(&mut self, unread: &mut UnreadSet, sink: &mut ValueSink<'_>) {
        while !self.open.is_empty() {
            self.close(unread, sink);
        }
    }

    /// Emits text before it is dropped, if it belongs to mixed content.
    fn drop_half(&mut self, unread: &mut UnreadSet, sink: &mut ValueSink<'_>) {
        let divided = |element: &&OpenElement| element.own && self.runs - element.runs > 1;
        if let Some(outermost) = self.open.iter().find(divided).copied() {
            self.give(outermost, unread, sink);
        }
        let gone = self.text.len() - OVERLAP;
        self.text.drain(..gone);
        for element in &mut self.open {
            element.cut |= element.start < gone;
            element.start = element.start.saturating_sub(gone);
        }
    }

    fn give(&mut self, element: OpenElement, unread: &mut UnreadSet, sink: &mut ValueSink<'_>) {
        let text = self.text[element.start..].trim_ascii_start();
        match self.credit.checked_sub(text.len()) {
            Some(credit) => {
                self.credit = credit;
                sink(value(text, !element.cut));
            }
            None => unread.add(UnreadKind::XmlNesting),
        }
    }
}
