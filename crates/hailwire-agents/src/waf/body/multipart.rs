//! `multipart/form-data` (RFC 7578) and its relatives: fields, names of files, and what is in these.
//!
//! Where servers differ in what ends a part, what some of them would see is not hidden by what others do: a delimiter
//! after a line feed alone, or with anything beside it, a part without its disposition and a body without its end are
//! errors, and text before the first part and after the last one is given.

use super::{Body, Sink, Value, Variable, Windows, error, part::Part};
use crate::waf::{media::Media, unread::UnreadSet};

/// Bytes of a part's head.
const HEAD: usize = 8 << 10;

/// See the module.
#[derive(Debug)]
pub(in super::super) struct Multipart {
    /// Two hyphens and the boundary.
    delimiter: Vec<u8>,
    /// Whether its parts are fields of a form.
    form: bool,
    state: State,
    /// What may be the beginning of a delimiter, or a head that has not ended.
    held: Vec<u8>,
    windows: Windows,
    part: Part,
    /// Who reads the part besides.
    inner: Option<Box<Body>>,
    broken: bool,
    unread: UnreadSet,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
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

impl Multipart {
    /// One for a content type, where it has a usable boundary.
    pub(super) fn new(media: &Media) -> Option<Self> {
        let boundary = media.get("boundary")?;
        if !(1..=256).contains(&boundary.len()) {
            return None;
        }
        Some(Self {
            delimiter: [b"--", boundary].concat(),
            form: media.kind == "multipart/form-data",
            state: State::Preamble,
            // The first delimiter needs no line before it.
            held: b"\r\n".to_vec(),
            windows: Windows::default(),
            part: Part::default(),
            inner: None,
            broken: false,
            unread: UnreadSet::default(),
        })
    }

    pub(super) fn unread(&self) -> UnreadSet {
        let inner = self.inner.as_ref().map(|body| body.unread());
        self.unread.with(inner.unwrap_or_default())
    }

    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        let mut rest = &held[..];
        while let Some(used) = self.step(rest, sink) {
            rest = &rest[used..];
        }
        let used = held.len() - rest.len();
        held.drain(..used);
        held.shrink_to(HEAD);
        self.held = held;
    }

    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Content | State::Preamble => {
                self.content(&held, sink);
                self.end(sink);
                self.broken = true;
            }
            State::Head => {
                self.head(&held, sink);
                self.broken = true;
            }
            State::Delimiter => self.broken = true,
            State::Closing => self.broken |= !held.trim_ascii().is_empty(),
            State::Epilogue => self.end(sink),
        }
        if self.broken {
            sink(error());
        }
    }

    /// Uses some of the bytes; `None` when it needs more.
    fn step(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Option<usize> {
        match self.state {
            State::Preamble | State::Content => self.until_delimiter(bytes, sink),
            State::Delimiter => match bytes {
                [b'-', b'-', ..] => {
                    self.state = State::Closing;
                    Some(2)
                }
                _ => {
                    let used = self.blank_line(bytes)?;
                    self.state = State::Head;
                    Some(used)
                }
            },
            State::Closing => {
                let used = self.blank_line(bytes)?;
                self.state = State::Epilogue;
                Some(used)
            }
            State::Head => {
                let (end, after) = match head_end(&bytes[..bytes.len().min(HEAD)]) {
                    Some(end) => end,
                    None if bytes.len() < HEAD => return None,
                    None => {
                        self.broken = true;
                        (HEAD, HEAD)
                    }
                };
                self.head(&bytes[..end], sink);
                self.state = State::Content;
                Some(after)
            }
            State::Epilogue => {
                self.content(bytes, sink);
                (!bytes.is_empty()).then_some(bytes.len())
            }
        }
    }

    /// The rest of a delimiter's line, in which there is nothing; else the line may be content to others.
    fn blank_line(&mut self, bytes: &[u8]) -> Option<usize> {
        let line = &bytes[..bytes.len().min(HEAD)];
        let end = memchr::memchr(b'\n', line);
        if end.is_none() && line.len() < HEAD {
            return None;
        }
        let end = end.map_or(line.len(), |end| end + 1);
        self.broken |= !line[..end].trim_ascii().is_empty();
        Some(end)
    }

    /// Content, as far as it cannot be the beginning of a delimiter at the start of a line.
    fn until_delimiter(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Option<usize> {
        let mut from = 0;
        while let Some(line) = memchr::memchr(b'\n', &bytes[from..]).map(|at| from + at) {
            let next = &bytes[line + 1..];
            if next.starts_with(&self.delimiter) {
                let content = &bytes[..line];
                let stripped = content.strip_suffix(b"\r");
                self.broken |= stripped.is_none();
                self.content(stripped.unwrap_or(content), sink);
                self.end(sink);
                self.state = State::Delimiter;
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

    /// What it is: that of a part, or text outside of all of them, which is taken for a field.
    fn variables(&self) -> &'static [Variable] {
        match self.state {
            State::Content => self.part.variables(),
            _ => &[Variable::ArgsPost],
        }
    }

    fn content(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        let outside = self.state != State::Content;
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
        if let (false, Some(inner)) = (outside, &mut self.inner) {
            inner.feed(bytes, sink);
        }
    }

    fn end(&mut self, sink: &mut Sink<'_>) {
        let (variables, name) = (self.variables(), &self.part.name[..]);
        self.windows
            .end(|bytes, first| give(variables, name, bytes, first, sink));
        if let Some(mut inner) = self.inner.take() {
            inner.finish(sink);
            self.unread = self.unread.with(inner.unread());
        }
    }

    fn head(&mut self, head: &[u8], sink: &mut Sink<'_>) {
        self.part = Part::read(head, self.form, sink);
        self.inner = self.part.body();
        self.broken |= self.part.broken;
        self.unread = self.unread.with(self.part.unread);
    }
}

fn give(variables: &[Variable], name: &[u8], bytes: &[u8], first: bool, sink: &mut Sink<'_>) {
    for variable in variables {
        sink(Value {
            variable: *variable,
            name,
            bytes,
            first,
        });
    }
}

/// Where the empty line begins, and what comes after it.
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
