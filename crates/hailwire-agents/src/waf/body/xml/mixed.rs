//! The text of an element that other elements part, as programs get it that ask for all of it at once.
//!
//! Only an element that has text of its own is given, when it ends: what a document of data has in its leaves has been
//! given already. Elements within one another may all be such; what is given is bounded by what was read, and
//! [`Unread::XmlNesting`] says where that was not enough.

use super::{Sink, value};
use crate::waf::{
    body::OVERLAP,
    unread::{Unread, UnreadSet},
};

/// Bytes of text that are held.
const TEXT: usize = 2 * OVERLAP;
/// Elements within one another; text further within belongs to the last of them.
const DEPTH: usize = 256;
/// How many bytes are given for each one read, and how many in any case.
const SHARE: usize = 2;
const ANYWAY: usize = 64 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Mixed {
    text: Vec<u8>,
    open: Vec<Element>,
    /// Elements beyond [`DEPTH`].
    deeper: u64,
    /// Runs of text between tags so far.
    runs: u64,
    /// Whether the run that goes on has more than white space.
    running: bool,
    credit: usize,
}

#[derive(Clone, Copy, Debug)]
struct Element {
    /// Where its text begins; what was dropped is before it.
    start: usize,
    cut: bool,
    /// Runs before it.
    runs: u64,
    /// Whether it has text of its own.
    own: bool,
}

impl Default for Mixed {
    fn default() -> Self {
        Self {
            text: Vec::new(),
            open: Vec::new(),
            deeper: 0,
            runs: 0,
            running: false,
            credit: ANYWAY,
        }
    }
}

impl Mixed {
    pub(super) fn open(&mut self) {
        if self.open.len() == DEPTH {
            self.deeper += 1;
            return;
        }
        self.open.push(Element {
            start: self.text.len(),
            cut: false,
            runs: self.runs,
            own: false,
        });
    }

    /// Text; what becomes of it depends on where it stands and not on how it was cut.
    pub(super) fn push(&mut self, mut bytes: &[u8], unread: &mut UnreadSet, sink: &mut Sink<'_>) {
        while let (Some(element), false) = (self.open.last_mut(), bytes.is_empty()) {
            let (now, rest) = bytes.split_at(bytes.len().min(TEXT - self.text.len()));
            bytes = rest;
            if !now.trim_ascii().is_empty() {
                element.own = true;
                self.runs += u64::from(!self.running);
                self.running = true;
            }
            self.credit = self.credit.saturating_add(SHARE * now.len());
            self.text.extend_from_slice(now);
            if self.text.len() == TEXT {
                self.drop_half(unread, sink);
            }
        }
    }

    /// A tag ends a run.
    pub(super) fn part(&mut self) {
        self.running = false;
    }

    pub(super) fn close(&mut self, unread: &mut UnreadSet, sink: &mut Sink<'_>) {
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

    pub(super) fn finish(&mut self, unread: &mut UnreadSet, sink: &mut Sink<'_>) {
        while !self.open.is_empty() {
            self.close(unread, sink);
        }
    }

    /// What does not fit is given before it goes, if an element is parted there.
    fn drop_half(&mut self, unread: &mut UnreadSet, sink: &mut Sink<'_>) {
        let parted = |element: &&Element| element.own && self.runs - element.runs > 1;
        if let Some(outermost) = self.open.iter().find(parted).copied() {
            self.give(outermost, unread, sink);
        }
        let gone = self.text.len() - OVERLAP;
        self.text.drain(..gone);
        for element in &mut self.open {
            element.cut |= element.start < gone;
            element.start = element.start.saturating_sub(gone);
        }
    }

    fn give(&mut self, element: Element, unread: &mut UnreadSet, sink: &mut Sink<'_>) {
        let text = self.text[element.start..].trim_ascii_start();
        match self.credit.checked_sub(text.len()) {
            Some(credit) => {
                self.credit = credit;
                sink(value(text, !element.cut));
            }
            None => unread.add(Unread::XmlNesting),
        }
    }
}
