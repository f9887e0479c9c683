//! `multipart/form-data` (RFC 7578) and other multipart types: fields, file names, and the contents of files.
//!
//! Servers differ in what ends a part. To hide nothing from any of them, a delimiter after a line feed alone or followed by
//! other text, a part without a disposition and a body without its closing delimiter are errors, and text before the first
//! part and after the last one is emitted.

use super::{
    BodyReader, InspectedValue, ValueSink, Variable, WindowBuffer, body_error, part::PartHead,
};
use crate::waf::{media::MediaType, unread::UnreadSet};

/// The most bytes of a part's head.
const MAX_PART_HEAD: usize = 8 << 10;

/// Parses a multipart body.
#[derive(Debug)]
pub(in super::super) struct MultipartReader {
    /// Two hyphens and the boundary.
    delimiter: Vec<u8>,
    /// Whether its parts are fields of a form.
    form: bool,
    state: MultipartState,
    /// What may be the beginning of a delimiter, or an incomplete head.
    held: Vec<u8>,
    windows: WindowBuffer,
    part: PartHead,
    /// The reader of the part's content, if it has one.
    content_reader: Option<Box<BodyReader>>,
    invalid: bool,
    unread: UnreadSet,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum MultipartState {
    /// Before the first delimiter.
    Preamble,
    /// After a delimiter: a line end, or two hyphens.
    Delimiter,
    Head,
    Content,
    /// After the last delimiter, up to its line's end.
    Closing,
    Epilogue,
}

impl MultipartReader {
    /// A reader for a content type, if that has a usable boundary.
    pub(super) fn new(media: &MediaType) -> Option<Self> {
        let boundary = media.get("boundary")?;
        if !(1..=256).contains(&boundary.len()) {
            return None;
        }
        Some(Self {
            delimiter: [b"--", boundary].concat(),
            form: media.kind == "multipart/form-data",
            state: MultipartState::Preamble,
            // The first delimiter needs no line before it.
            held: b"\r\n".to_vec(),
            windows: WindowBuffer::default(),
            part: PartHead::default(),
            content_reader: None,
            invalid: false,
            unread: UnreadSet::default(),
        })
    }

    pub(super) fn unread(&self) -> UnreadSet {
        let content_reader = self.content_reader.as_ref().map(|body| body.unread());
        self.unread.with(content_reader.unwrap_or_default())
    }

    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        let mut rest = &held[..];
        while let Some(used) = self.step(rest, sink) {
            rest = &rest[used..];
        }
        let used = held.len() - rest.len();
        held.drain(..used);
        held.shrink_to(MAX_PART_HEAD);
        self.held = held;
    }

    pub(super) fn finish(&mut self, sink: &mut ValueSink<'_>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            MultipartState::Content | MultipartState::Preamble => {
                self.content(&held, sink);
                self.end(sink);
                self.invalid = true;
            }
            MultipartState::Head => {
                self.head(&held, sink);
                self.invalid = true;
            }
            MultipartState::Delimiter => self.invalid = true,
            MultipartState::Closing => self.invalid |= !held.trim_ascii().is_empty(),
            MultipartState::Epilogue => self.end(sink),
        }
        if self.invalid {
            sink(body_error());
        }
    }

    /// Consumes some of the bytes; `None` if it needs more.
    fn step(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) -> Option<usize> {
        match self.state {
            MultipartState::Preamble | MultipartState::Content => {
                self.read_until_delimiter(bytes, sink)
            }
            MultipartState::Delimiter => match bytes {
                [b'-', b'-', ..] => {
                    self.state = MultipartState::Closing;
                    Some(2)
                }
                _ => {
                    let used = self.blank_line(bytes)?;
                    self.state = MultipartState::Head;
                    Some(used)
                }
            },
            MultipartState::Closing => {
                let used = self.blank_line(bytes)?;
                self.state = MultipartState::Epilogue;
                Some(used)
            }
            MultipartState::Head => {
                let (end, after) = match head_end(&bytes[..bytes.len().min(MAX_PART_HEAD)]) {
                    Some(end) => end,
                    None if bytes.len() < MAX_PART_HEAD => return None,
                    None => {
                        self.invalid = true;
                        (MAX_PART_HEAD, MAX_PART_HEAD)
                    }
                };
                self.head(&bytes[..end], sink);
                self.state = MultipartState::Content;
                Some(after)
            }
            MultipartState::Epilogue => {
                self.content(bytes, sink);
                (!bytes.is_empty()).then_some(bytes.len())
            }
        }
    }

    /// The rest of a delimiter's line; text in it is an error, since some servers take such a line for content.
    fn blank_line(&mut self, bytes: &[u8]) -> Option<usize> {
        let line = &bytes[..bytes.len().min(MAX_PART_HEAD)];
        let end = memchr::memchr(b'\n', line);
        if end.is_none() && line.len() < MAX_PART_HEAD {
            return None;
        }
        let end = end.map_or(line.len(), |end| end + 1);
        self.invalid |= !line[..end].trim_ascii().is_empty();
        Some(end)
    }

    /// Content, up to what may be the beginning of a delimiter at the start of a line.
    fn read_until_delimiter(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) -> Option<usize> {
        let mut from = 0;
        while let Some(line) = memchr::memchr(b'\n', &bytes[from..]).map(|at| from + at) {
            let next = &bytes[line + 1..];
            if next.starts_with(&self.delimiter) {
                let content = &bytes[..line];
                let stripped = content.strip_suffix(b"\r");
                self.invalid |= stripped.is_none();
                self.content(stripped.unwrap_or(content), sink);
                self.end(sink);
                self.state = MultipartState::Delimiter;
                return Some(line + 1 + self.delimiter.len());
            }
            if next.len() < self.delimiter.len() && self.delimiter.starts_with(next) {
                let begin = if line > 0 && bytes[line - 1] == b'\r' {
                    line - 1
                } else {
                    line
                };
                self.content(&bytes[..begin], sink);
                return (begin > 0).then_some(begin);
            }
            from = line + 1;
        }
        // A last carriage return may belong to a delimiter.
        let sure = if bytes.last() == Some(&b'\r') {
            bytes.len() - 1
        } else {
            bytes.len()
        };
        self.content(&bytes[..sure], sink);
        (sure > 0).then_some(sure)
    }

    /// The variables of the content; text outside of all parts is taken for a field.
    fn variables(&self) -> &'static [Variable] {
        match self.state {
            MultipartState::Content => self.part.variables(),
            _ => &[Variable::ArgsPost],
        }
    }

    fn content(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        let outside = self.state != MultipartState::Content;
        let bytes = if outside && self.windows.is_empty() {
            bytes.trim_ascii_start()
        } else {
            bytes
        };
        if bytes.is_empty() {
            return;
        }
        let (variables, name) = (self.variables(), &self.part.name[..]);
        self.windows.push(bytes, |bytes, first| {
            give(variables, name, bytes, first, sink);
        });
        if let (false, Some(content_reader)) = (outside, &mut self.content_reader) {
            content_reader.feed(bytes, sink);
        }
    }

    fn end(&mut self, sink: &mut ValueSink<'_>) {
        let (variables, name) = (self.variables(), &self.part.name[..]);
        self.windows
            .end(|bytes, first| give(variables, name, bytes, first, sink));
        if let Some(mut content_reader) = self.content_reader.take() {
            content_reader.finish(sink);
            self.unread = self.unread.with(content_reader.unread());
        }
    }

    fn head(&mut self, head: &[u8], sink: &mut ValueSink<'_>) {
        self.part = PartHead::read(head, self.form, sink);
        self.content_reader = self.part.content_reader();
        self.invalid |= self.part.invalid;
        self.unread = self.unread.with(self.part.unread);
    }
}

fn give(variables: &[Variable], name: &[u8], bytes: &[u8], first: bool, sink: &mut ValueSink<'_>) {
    for variable in variables {
        sink(InspectedValue {
            variable: *variable,
            name,
            bytes,
            first,
        });
    }
}

/// Where the empty line begins, and where the content after it begins.
fn head_end(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut line = 0;
    loop {
        let end = line + memchr::memchr(b'\n', &bytes[line..])?;
        if bytes[line..end].trim_ascii().is_empty() {
            return Some((line, end + 1));
        }
        line = end + 1;
    }
}
