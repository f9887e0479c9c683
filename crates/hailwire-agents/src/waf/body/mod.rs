//! A body, read while it comes.
//!
//! Each reader is a machine that takes bytes and gives *values*: fields of a form, strings of JSON, parts of a
//! multipart body, text and attributes of XML, or the body as it is. What it gives depends on the bytes alone and not on
//! how they were cut, so a decision cannot depend on it either.
//!
//! Memory is bounded: a value is given when it ends, or in windows of [`WINDOW`] bytes that overlap by [`OVERLAP`], so
//! whatever is matched within so many bytes is seen whole in one of them.

mod form;
mod json;
mod multipart;
mod xml;

use super::{rules::Value, seclang::Variable};

/// The longest piece of a value that is judged at once.
pub const WINDOW: usize = 32 << 10;
/// How much of a window is seen again in the next one.
pub const OVERLAP: usize = 4 << 10;
/// How much of a name is kept for the value that follows it.
const NAME: usize = 256;
/// How much of a body of unknown kind is looked at before it is taken for something.
const SNIFF: usize = 512;

pub(super) use form::Form;

/// Where values go.
pub(super) type Sink<'a> = dyn FnMut(Value<'_>) + 'a;

/// Reads a body.
#[derive(Debug)]
pub(super) enum Body {
    Form(Form),
    Json(json::Json),
    Multipart(Box<multipart::Multipart>),
    Xml(xml::Xml, Raw),
    Raw(Raw),
    /// It looks like JSON and does not say so.
    Likely(json::Json, Raw),
    /// Its first bytes, until there are enough to tell what it is.
    Unknown(Vec<u8>),
    /// Refused: it is said to be multipart and cannot be.
    Broken(Raw),
}

impl Body {
    /// One for a content type.
    pub(super) fn of(content_type: Option<&str>) -> Self {
        let whole = content_type.unwrap_or_default();
        let kind = whole
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        match kind.as_str() {
            "application/x-www-form-urlencoded" => Self::Form(Form::body()),
            "multipart/form-data" | "multipart/mixed" | "multipart/related" => {
                match multipart::boundary(whole) {
                    Some(boundary) => {
                        Self::Multipart(Box::new(multipart::Multipart::new(&boundary)))
                    }
                    None => Self::Broken(Raw::text()),
                }
            }
            "application/json" | "text/json" => Self::Json(json::Json::default()),
            "application/xml" | "text/xml" => Self::Xml(xml::Xml::default(), Raw::bytes()),
            kind if kind.ends_with("+json") => Self::Json(json::Json::default()),
            kind if kind.ends_with("+xml") => Self::Xml(xml::Xml::default(), Raw::bytes()),
            _ => Self::Unknown(Vec::new()),
        }
    }

    /// The next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        match self {
            Self::Form(form) => form.feed(bytes, sink),
            Self::Json(json) => json.feed(bytes, sink),
            Self::Multipart(multipart) => multipart.feed(bytes, sink),
            Self::Xml(xml, raw) => {
                xml.feed(bytes, sink);
                raw.feed(bytes, sink);
            }
            Self::Raw(raw) | Self::Broken(raw) => raw.feed(bytes, sink),
            Self::Likely(json, raw) => {
                json.feed(bytes, sink);
                raw.feed(bytes, sink);
            }
            Self::Unknown(begin) => {
                let room = SNIFF - begin.len();
                let (now, later) = bytes.split_at(room.min(bytes.len()));
                begin.extend_from_slice(now);
                if begin.len() == SNIFF {
                    let begin = std::mem::take(begin);
                    *self = looks_like(&begin);
                    self.feed(&begin, sink);
                    self.feed(later, sink);
                }
            }
        }
    }

    /// No more come.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        match self {
            Self::Form(form) => form.finish(sink),
            Self::Json(json) => json.finish(sink),
            Self::Multipart(multipart) => multipart.finish(sink),
            Self::Xml(xml, raw) => {
                xml.finish(sink);
                raw.finish(sink);
            }
            Self::Raw(raw) => raw.finish(sink),
            Self::Broken(raw) => {
                raw.finish(sink);
                sink(error());
            }
            Self::Likely(json, raw) => {
                json.finish(sink);
                raw.finish(sink);
            }
            Self::Unknown(begin) => {
                let begin = std::mem::take(begin);
                *self = looks_like(&begin);
                self.feed(&begin, sink);
                self.finish(sink);
            }
        }
    }
}

/// That the body is not what it says.
fn error() -> Value<'static> {
    Value {
        variable: Variable::ReqbodyError,
        name: b"",
        bytes: b"1",
        first: true,
    }
}

/// What a body is that does not say so, or whose word is not worth much: its first bytes tell.
fn looks_like(begin: &[u8]) -> Body {
    let text = begin.trim_ascii_start();
    let odd = |byte: &&u8| **byte < 32 && !matches!(**byte, b'\t' | b'\n' | b'\r' | 12 | 27);
    let odd = begin.iter().filter(odd).count();
    let undecodable: usize = begin.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    if odd * 32 > begin.len() || undecodable * 8 > begin.len().max(64) {
        return Body::Raw(Raw::bytes());
    }
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.[]%+".contains(byte);
    let named = text.iter().take_while(|byte| name(byte)).count();
    match text.first() {
        Some(b'{' | b'[') => Body::Likely(json::Json::default(), Raw::text()),
        Some(b'<') if text.starts_with(b"<?xml") || text.starts_with(b"<!DOCTYPE") => {
            Body::Xml(xml::Xml::default(), Raw::bytes())
        }
        _ if (1..64).contains(&named) && text.get(named) == Some(&b'=') => Body::Form(Form::body()),
        _ => Body::Raw(Raw::text()),
    }
}

/// A value that is given in windows.
#[derive(Debug, Default)]
pub(super) struct Windows {
    held: Vec<u8>,
    /// How much of it was given before.
    given: usize,
    /// Whether a window was given already.
    later: bool,
}

impl Windows {
    pub(super) fn push(&mut self, mut bytes: &[u8], mut give: impl FnMut(&[u8], bool)) {
        while self.held.len() + bytes.len() > WINDOW {
            let (now, rest) = bytes.split_at(WINDOW - self.held.len());
            self.hold(now);
            bytes = rest;
            give(&self.held, !self.later);
            self.later = true;
            self.held.drain(..WINDOW - OVERLAP);
            self.given = OVERLAP;
        }
        self.hold(bytes);
    }

    /// Never takes room for more than a window.
    fn hold(&mut self, bytes: &[u8]) {
        let needed = self.held.len() + bytes.len();
        if needed > self.held.capacity() {
            let room = (2 * needed).min(WINDOW);
            self.held.reserve_exact(room - self.held.len());
        }
        self.held.extend_from_slice(bytes);
    }

    /// The value ends; the next push begins another.
    pub(super) fn end(&mut self, mut give: impl FnMut(&[u8], bool)) {
        if self.held.len() > self.given {
            give(&self.held, !self.later);
        }
        self.later = false;
        self.given = 0;
        self.held.clear();
        self.held.shrink_to(OVERLAP);
    }

    /// Whether nothing was pushed since the last end.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && !self.later
    }
}

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

/// Keeps the beginning of a name.
fn keep(name: &mut Vec<u8>, bytes: &[u8]) {
    let room = NAME.saturating_sub(name.len()).min(bytes.len());
    name.extend_from_slice(&bytes[..room]);
}

#[cfg(test)]
mod tests;
