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
mod part;
mod raw;
mod utf16;
mod xml;

use super::{
    media::Media,
    rules::Value,
    seclang::Variable,
    unread::{Unread, UnreadSet},
};
use raw::Raw;
use utf16::Utf16;

/// The longest piece of a value that is judged at once.
pub const WINDOW: usize = 32 << 10;
/// How much of a window is seen again in the next one.
pub const OVERLAP: usize = 4 << 10;
/// How much of a name is kept for the value that follows it.
const NAME: usize = 256;
/// How much of a body of unknown kind is looked at before it is taken for something.
const SNIFF: usize = 512;
/// What text of UTF-8 may begin with (a byte order mark, RFC 3629 section 6).
const MARK: &[u8] = b"\xef\xbb\xbf";

pub(super) use form::Form;
pub(super) use json::Json;
pub(super) use xml::Xml;

/// Where values go.
pub(super) type Sink<'a> = dyn FnMut(Value<'_>) + 'a;

/// Reads a body.
///
/// What it says of itself is taken at its word, and so are its first bytes: a form that begins like JSON is read as both,
/// since a server may take it for either.
#[derive(Debug)]
pub(super) struct Body {
    says: Says,
    encoding: Encoding,
    /// Its first bytes, until they tell what it is.
    begin: Option<Vec<u8>>,
    readers: Vec<Reader>,
    unread: UnreadSet,
}

/// What a body says that it is.
#[derive(Debug)]
enum Says {
    Form,
    Json,
    Xml,
    Multipart(Box<multipart::Multipart>),
    /// It is said to be multipart and cannot be.
    Broken,
    Nothing,
    /// A field of a multipart body, which is given as it is besides.
    Field,
}

/// How bytes stand for text.
#[derive(Debug)]
enum Encoding {
    /// Its first bytes tell; whether it says that it is UTF-16.
    Open(Vec<u8>, bool),
    Bytes,
    Wide(Utf16),
}

#[derive(Debug)]
enum Reader {
    Form(Form),
    Json(Json),
    Multipart(Box<multipart::Multipart>),
    Xml(Box<Xml>),
    Raw(Raw),
    /// Says in the end that the body is not what it says.
    Broken,
}

impl Body {
    /// One for the content types of a request; there should be one of them.
    pub(super) fn of<'a>(mut content_types: impl Iterator<Item = &'a str>) -> Self {
        let whole = content_types.next().unwrap_or_default();
        let media = Media::parse(whole.as_bytes());
        let mut body = Self::new(&media);
        if media.ambiguous || content_types.any(|other| other != whole) {
            body.unread.add(Unread::ContentType);
        }
        body
    }

    /// One for bytes that are known to be no text.
    pub(super) fn opaque() -> Self {
        let mut body = Self::new(&Media::default());
        body.encoding = Encoding::Bytes;
        body.begin = None;
        body.readers = vec![Reader::Raw(Raw::bytes())];
        body
    }

    /// One for the content of a part.
    fn of_part(media: &Media, field: bool) -> Self {
        let mut body = Self::new(media);
        match body.says {
            Says::Nothing if field => body.says = Says::Field,
            Says::Multipart(_) | Says::Broken => {
                body.unread.add(Unread::PartEncoding);
                body.says = Says::Field;
            }
            _ => {}
        }
        body
    }

    fn new(media: &Media) -> Self {
        let kind = media.kind.as_str();
        let says = match kind {
            "application/x-www-form-urlencoded" => Says::Form,
            "application/json" | "text/json" => Says::Json,
            "application/xml" | "text/xml" => Says::Xml,
            _ if kind.starts_with("multipart/") => match multipart::Multipart::new(media) {
                Some(multipart) => Says::Multipart(Box::new(multipart)),
                None => Says::Broken,
            },
            _ if kind.ends_with("+json") => Says::Json,
            _ if kind.ends_with("+xml") => Says::Xml,
            _ => Says::Nothing,
        };
        let wide = |name: &[u8]| {
            let begin = name.get(..6).unwrap_or_default();
            begin.eq_ignore_ascii_case(b"utf-16")
        };
        let wide = media.all("charset").any(wide);
        let text = matches!(says, Says::Json | Says::Xml | Says::Nothing);
        let mut unread = UnreadSet::default();
        let read = media.is_read() || (wide && text);
        if !read {
            unread.add(Unread::Charset);
        }
        Self {
            encoding: if text {
                Encoding::Open(Vec::new(), wide)
            } else {
                Encoding::Bytes
            },
            says,
            begin: Some(Vec::new()),
            readers: Vec::new(),
            unread,
        }
    }

    /// Whether its content is read by what it says, and not only as it is.
    fn says_something(&self) -> bool {
        matches!(self.says, Says::Form | Says::Json | Says::Xml)
    }

    /// What of it is not read, as far as it has come.
    pub(super) fn unread(&self) -> UnreadSet {
        let of = |reader: &Reader| match reader {
            Reader::Xml(xml) => xml.unread(),
            Reader::Multipart(multipart) => multipart.unread(),
            _ => UnreadSet::default(),
        };
        self.readers
            .iter()
            .map(of)
            .fold(self.unread, UnreadSet::with)
    }

    /// The next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        match &mut self.encoding {
            Encoding::Bytes => self.text(bytes, sink),
            Encoding::Wide(wide) => {
                let text = wide.decode(bytes);
                self.text(text.as_bytes(), sink);
            }
            Encoding::Open(begin, _) => {
                let (now, later) = bytes.split_at(bytes.len().min(4 - begin.len()));
                begin.extend_from_slice(now);
                if begin.len() == 4 {
                    self.settle(sink);
                    self.feed(later, sink);
                }
            }
        }
    }

    /// No more come.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        self.settle(sink);
        if let Some(begin) = self.begin.take() {
            self.choose(&begin);
            self.read(&begin, sink);
        }
        for reader in &mut self.readers {
            match reader {
                Reader::Form(form) => form.finish(sink),
                Reader::Json(json) => json.finish(sink),
                Reader::Multipart(multipart) => multipart.finish(sink),
                Reader::Xml(xml) => xml.finish(sink),
                Reader::Raw(raw) => raw.finish(sink),
                Reader::Broken => sink(error()),
            }
        }
    }

    /// The first bytes tell how they stand for text.
    fn settle(&mut self, sink: &mut Sink<'_>) {
        let Encoding::Open(begin, wide) = &mut self.encoding else {
            return;
        };
        let (begin, wide) = (std::mem::take(begin), *wide);
        let found = Utf16::of(&begin);
        if Utf16::is_wider(&begin) && self.says_something() || wide && found.is_none() {
            self.unread.add(Unread::Charset);
        }
        self.encoding = found.map_or(Encoding::Bytes, Encoding::Wide);
        if !begin.is_empty() {
            self.feed(&begin, sink);
        }
    }

    /// The next bytes of text.
    fn text(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        let Some(begin) = &mut self.begin else {
            self.read(bytes, sink);
            return;
        };
        let (now, later) = bytes.split_at(bytes.len().min(SNIFF - begin.len()));
        begin.extend_from_slice(now);
        let enough = match self.says {
            Says::Multipart(_) | Says::Broken => true,
            Says::Nothing => begin.len() == SNIFF,
            _ => begin.len() == SNIFF || first(begin).is_some(),
        };
        if enough {
            let begin = std::mem::take(begin);
            self.begin = None;
            self.choose(&begin);
            self.read(&begin, sink);
            self.read(later, sink);
        }
    }

    fn read(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        if bytes.is_empty() {
            return;
        }
        for reader in &mut self.readers {
            match reader {
                Reader::Form(form) => form.feed(bytes, sink),
                Reader::Json(json) => json.feed(bytes, sink),
                Reader::Multipart(multipart) => multipart.feed(bytes, sink),
                Reader::Xml(xml) => xml.feed(bytes, sink),
                Reader::Raw(raw) => raw.feed(bytes, sink),
                Reader::Broken => {}
            }
        }
    }

    /// The readers for what the body says and what its first bytes look like.
    fn choose(&mut self, begin: &[u8]) {
        let transcoded = matches!(self.encoding, Encoding::Wide(_));
        let form = || Reader::Form(Form::body());
        let json = || Reader::Json(Json::default());
        let xml = || Reader::Xml(Box::new(Xml::new(transcoded)));
        let (raw, bytes) = (|| Reader::Raw(Raw::text()), || Reader::Raw(Raw::bytes()));
        let looks = first(begin);
        let like_json = matches!(looks, Some(b'{' | b'[' | b'"'));
        let like_xml = looks == Some(b'<');
        let says = std::mem::replace(&mut self.says, Says::Nothing);
        self.readers = match says {
            Says::Form if like_json => vec![form(), json()],
            Says::Form if like_xml => vec![form(), xml()],
            Says::Form => vec![form()],
            Says::Json if like_xml => vec![json(), xml()],
            Says::Json => vec![json()],
            Says::Xml if like_xml => vec![xml(), bytes()],
            Says::Xml if like_json => vec![xml(), json(), raw()],
            Says::Xml => vec![xml(), form(), raw()],
            Says::Multipart(multipart) => vec![Reader::Multipart(multipart)],
            Says::Broken => vec![raw(), Reader::Broken],
            Says::Field if like_json => vec![json()],
            Says::Field if like_xml => vec![xml()],
            Says::Field => Vec::new(),
            Says::Nothing if is_binary(begin) => {
                self.unread.add(Unread::Binary);
                vec![bytes()]
            }
            Says::Nothing if like_json => vec![json(), raw()],
            Says::Nothing if like_xml && is_xml(begin) => vec![xml(), bytes()],
            Says::Nothing if like_xml => vec![xml(), raw()],
            Says::Nothing if is_named(begin) => vec![form(), raw()],
            Says::Nothing => vec![raw()],
        };
    }
}

/// The first byte that is no white space, after a mark of UTF-8; a mark that has come in part is waited for.
fn first(begin: &[u8]) -> Option<u8> {
    if MARK.starts_with(begin) {
        return None;
    }
    after_mark(begin).first().copied()
}

/// The text after a mark of UTF-8 and white space.
pub(super) fn after_mark(begin: &[u8]) -> &[u8] {
    let text = begin.strip_prefix(MARK).unwrap_or(begin);
    text.trim_ascii_start()
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

/// Whether a body with these first bytes is no text.
fn is_binary(begin: &[u8]) -> bool {
    let odd = |byte: &&u8| **byte < 32 && !matches!(**byte, b'\t' | b'\n' | b'\r' | 12 | 27);
    let odd = begin.iter().filter(odd).count();
    let undecodable: usize = begin.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    odd * 32 > begin.len() || undecodable * 8 > begin.len().max(64)
}

/// Whether it can be nothing but XML: as a field, its declaration alone would be an attack to some rules.
fn is_xml(begin: &[u8]) -> bool {
    let text = after_mark(begin);
    text.starts_with(b"<?xml") || text.starts_with(b"<!DOCTYPE")
}

/// Whether it begins with a name and a sign of equality.
fn is_named(begin: &[u8]) -> bool {
    let text = after_mark(begin);
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.[]%+".contains(byte);
    let named = text.iter().take_while(|byte| name(byte)).count();
    (1..64).contains(&named) && text.get(named) == Some(&b'=')
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

/// Keeps the beginning of a name.
fn keep(name: &mut Vec<u8>, bytes: &[u8]) {
    let room = NAME.saturating_sub(name.len()).min(bytes.len());
    name.extend_from_slice(&bytes[..room]);
}

#[cfg(test)]
mod tests;
