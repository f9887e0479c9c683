//! Parses a body while it arrives.
//!
//! Each reader is a state machine that takes bytes and emits *values*: fields of a form, strings of JSON, parts of a
//! multipart body, text and attributes of XML, or the body as it is. The values depend on the bytes alone and not on how
//! they were divided into chunks, and so does every decision.
//!
//! Memory is bounded: a value is emitted when it ends, or in windows of [`WINDOW`] bytes that overlap by [`OVERLAP`], so
//! any match of at most that length is contained in one of them.

mod form;
mod json;
mod multipart;
mod part;
mod raw;
mod utf16;
mod xml;

use super::{
    media::MediaType,
    rules::InspectedValue,
    seclang::Variable,
    unread::{UnreadKind, UnreadSet},
};
use raw::RawReader;
use utf16::Utf16Decoder;

/// The most bytes of a value that are judged at once.
pub const WINDOW: usize = 32 << 10;
/// How many bytes of a window are repeated in the next one.
pub const OVERLAP: usize = 4 << 10;
/// How many bytes of a name are kept for the value that follows it.
const MAX_NAME: usize = 256;
/// How many bytes of a body of unknown type are inspected before its readers are chosen.
const SNIFF_BYTES: usize = 512;
/// The byte order mark that UTF-8 text may begin with (RFC 3629, section 6).
const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

pub(super) use form::FormReader;
pub(super) use json::JsonReader;
pub(super) use xml::XmlReader;

/// Receives values.
pub(super) type ValueSink<'a> = dyn FnMut(InspectedValue<'_>) + 'a;

/// Parses a body into values.
///
/// Both the declared type and the first bytes count: a form that begins like JSON is read as both, since a server may
/// take it for either.
#[derive(Debug)]
pub(super) struct BodyReader {
    declared: DeclaredType,
    encoding: TextEncoding,
    /// Its first bytes, until the readers are chosen.
    begin: Option<Vec<u8>>,
    readers: Vec<ContentReader>,
    unread: UnreadSet,
}

/// The declared type of a body.
#[derive(Debug)]
enum DeclaredType {
    Form,
    Json,
    Xml,
    Multipart(Box<multipart::MultipartReader>),
    /// Multipart without a usable boundary.
    InvalidMultipart,
    Unknown,
    /// A field of a multipart body, whose text is also emitted as it is.
    PartField,
}

/// The encoding of the text.
#[derive(Debug)]
enum TextEncoding {
    /// Decided by the first bytes; whether the declared character set is UTF-16.
    Undetermined(Vec<u8>, bool),
    Bytes,
    Utf16(Utf16Decoder),
}

#[derive(Debug)]
enum ContentReader {
    Form(FormReader),
    Json(JsonReader),
    Multipart(Box<multipart::MultipartReader>),
    Xml(Box<XmlReader>),
    Raw(RawReader),
    /// Emits at the end that the body is not of its declared type.
    InvalidMultipart,
}

impl BodyReader {
    /// A reader for the content types of a request, of which there should be one.
    pub(super) fn for_content_types<'a>(mut content_types: impl Iterator<Item = &'a str>) -> Self {
        let whole = content_types.next().unwrap_or_default();
        let media = MediaType::parse(whole.as_bytes());
        let mut body = Self::new(&media);
        if media.ambiguous || content_types.any(|other| other != whole) {
            body.unread.add(UnreadKind::ContentType);
        }
        body
    }

    /// A reader for bytes that are known not to be text.
    pub(super) fn opaque() -> Self {
        let mut body = Self::new(&MediaType::default());
        body.encoding = TextEncoding::Bytes;
        body.begin = None;
        body.readers = vec![ContentReader::Raw(RawReader::bytes())];
        body
    }

    /// A reader for the content of a part.
    fn for_part(media: &MediaType, field: bool) -> Self {
        let mut body = Self::new(media);
        match body.declared {
            DeclaredType::Unknown if field => body.declared = DeclaredType::PartField,
            DeclaredType::Multipart(_) | DeclaredType::InvalidMultipart => {
                body.unread.add(UnreadKind::PartEncoding);
                body.declared = DeclaredType::PartField;
            }
            _ => {}
        }
        body
    }

    fn new(media: &MediaType) -> Self {
        let kind = media.kind.as_str();
        let declared = match kind {
            "application/x-www-form-urlencoded" => DeclaredType::Form,
            "application/json" | "text/json" => DeclaredType::Json,
            "application/xml" | "text/xml" => DeclaredType::Xml,
            _ if kind.starts_with("multipart/") => match multipart::MultipartReader::new(media) {
                Some(multipart) => DeclaredType::Multipart(Box::new(multipart)),
                None => DeclaredType::InvalidMultipart,
            },
            _ if kind.ends_with("+json") => DeclaredType::Json,
            _ if kind.ends_with("+xml") => DeclaredType::Xml,
            _ => DeclaredType::Unknown,
        };
        let wide = |name: &[u8]| {
            let begin = name.get(..6).unwrap_or_default();
            begin.eq_ignore_ascii_case(b"utf-16")
        };
        let wide = media.all("charset").any(wide);
        let text = matches!(
            declared,
            DeclaredType::Json | DeclaredType::Xml | DeclaredType::Unknown
        );
        let mut unread = UnreadSet::default();
        let read = media.is_read() || (wide && text);
        if !read {
            unread.add(UnreadKind::Charset);
        }
        Self {
            encoding: if text {
                TextEncoding::Undetermined(Vec::new(), wide)
            } else {
                TextEncoding::Bytes
            },
            declared,
            begin: Some(Vec::new()),
            readers: Vec::new(),
            unread,
        }
    }

    /// Whether its declared type has a parser.
    fn has_structured_type(&self) -> bool {
        matches!(
            self.declared,
            DeclaredType::Form | DeclaredType::Json | DeclaredType::Xml
        )
    }

    /// The kinds of unread content so far.
    pub(super) fn unread(&self) -> UnreadSet {
        let of = |reader: &ContentReader| match reader {
            ContentReader::Xml(xml) => xml.unread(),
            ContentReader::Multipart(multipart) => multipart.unread(),
            _ => UnreadSet::default(),
        };
        self.readers
            .iter()
            .map(of)
            .fold(self.unread, UnreadSet::with)
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        match &mut self.encoding {
            TextEncoding::Bytes => self.text(bytes, sink),
            TextEncoding::Utf16(wide) => {
                let text = wide.decode(bytes);
                self.text(text.as_bytes(), sink);
            }
            TextEncoding::Undetermined(begin, _) => {
                let (now, later) = bytes.split_at(bytes.len().min(4 - begin.len()));
                begin.extend_from_slice(now);
                if begin.len() == 4 {
                    self.decide_encoding(sink);
                    self.feed(later, sink);
                }
            }
        }
    }

    /// The body has ended.
    pub(super) fn finish(&mut self, sink: &mut ValueSink<'_>) {
        self.decide_encoding(sink);
        if let Some(begin) = self.begin.take() {
            self.choose_readers(&begin);
            self.read(&begin, sink);
        }
        for reader in &mut self.readers {
            match reader {
                ContentReader::Form(form) => form.finish(sink),
                ContentReader::Json(json) => json.finish(sink),
                ContentReader::Multipart(multipart) => multipart.finish(sink),
                ContentReader::Xml(xml) => xml.finish(sink),
                ContentReader::Raw(raw) => raw.finish(sink),
                ContentReader::InvalidMultipart => sink(body_error()),
            }
        }
    }

    /// Decides the encoding from the first bytes.
    fn decide_encoding(&mut self, sink: &mut ValueSink<'_>) {
        let TextEncoding::Undetermined(begin, wide) = &mut self.encoding else {
            return;
        };
        let (begin, wide) = (std::mem::take(begin), *wide);
        let found = Utf16Decoder::detect(&begin);
        if Utf16Decoder::is_utf32(&begin) && self.has_structured_type() || wide && found.is_none() {
            self.unread.add(UnreadKind::Charset);
        }
        self.encoding = found.map_or(TextEncoding::Bytes, TextEncoding::Utf16);
        if !begin.is_empty() {
            self.feed(&begin, sink);
        }
    }

    /// Takes the next bytes of decoded text.
    fn text(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        let Some(begin) = &mut self.begin else {
            self.read(bytes, sink);
            return;
        };
        let (now, later) = bytes.split_at(bytes.len().min(SNIFF_BYTES - begin.len()));
        begin.extend_from_slice(now);
        let enough = match self.declared {
            DeclaredType::Multipart(_) | DeclaredType::InvalidMultipart => true,
            DeclaredType::Unknown => begin.len() == SNIFF_BYTES,
            _ => begin.len() == SNIFF_BYTES || first(begin).is_some(),
        };
        if enough {
            let begin = std::mem::take(begin);
            self.begin = None;
            self.choose_readers(&begin);
            self.read(&begin, sink);
            self.read(later, sink);
        }
    }

    fn read(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        if bytes.is_empty() {
            return;
        }
        for reader in &mut self.readers {
            match reader {
                ContentReader::Form(form) => form.feed(bytes, sink),
                ContentReader::Json(json) => json.feed(bytes, sink),
                ContentReader::Multipart(multipart) => multipart.feed(bytes, sink),
                ContentReader::Xml(xml) => xml.feed(bytes, sink),
                ContentReader::Raw(raw) => raw.feed(bytes, sink),
                ContentReader::InvalidMultipart => {}
            }
        }
    }

    /// Chooses the readers for the declared type and for what the first bytes look like.
    fn choose_readers(&mut self, begin: &[u8]) {
        let transcoded = matches!(self.encoding, TextEncoding::Utf16(_));
        let form = || ContentReader::Form(FormReader::body());
        let json = || ContentReader::Json(JsonReader::default());
        let xml = || ContentReader::Xml(Box::new(XmlReader::new(transcoded)));
        let (raw, bytes) = (
            || ContentReader::Raw(RawReader::text()),
            || ContentReader::Raw(RawReader::bytes()),
        );
        let looks = first(begin);
        let like_json = matches!(looks, Some(b'{' | b'[' | b'"'));
        let like_xml = looks == Some(b'<');
        let declared = std::mem::replace(&mut self.declared, DeclaredType::Unknown);
        self.readers = match declared {
            DeclaredType::Form if like_json => vec![form(), json()],
            DeclaredType::Form if like_xml => vec![form(), xml()],
            DeclaredType::Form => vec![form()],
            DeclaredType::Json if like_xml => vec![json(), xml()],
            DeclaredType::Json => vec![json()],
            DeclaredType::Xml if like_xml => vec![xml(), bytes()],
            DeclaredType::Xml if like_json => vec![xml(), json(), raw()],
            DeclaredType::Xml => vec![xml(), form(), raw()],
            DeclaredType::Multipart(multipart) => vec![ContentReader::Multipart(multipart)],
            DeclaredType::InvalidMultipart => vec![raw(), ContentReader::InvalidMultipart],
            DeclaredType::PartField if like_json => vec![json()],
            DeclaredType::PartField if like_xml => vec![xml()],
            DeclaredType::PartField => Vec::new(),
            DeclaredType::Unknown if is_binary(begin) => {
                self.unread.add(UnreadKind::Binary);
                vec![bytes()]
            }
            DeclaredType::Unknown if like_json => vec![json(), raw()],
            DeclaredType::Unknown if like_xml && looks_like_xml(begin) => vec![xml(), bytes()],
            DeclaredType::Unknown if like_xml => vec![xml(), raw()],
            DeclaredType::Unknown if looks_like_form(begin) => vec![form(), raw()],
            DeclaredType::Unknown => vec![raw()],
        };
    }
}

/// The first byte that is not white space, after a byte order mark; `None` while the mark may be incomplete.
fn first(begin: &[u8]) -> Option<u8> {
    if UTF8_BOM.starts_with(begin) {
        return None;
    }
    skip_bom(begin).first().copied()
}

/// The text after a byte order mark and white space.
pub(super) fn skip_bom(begin: &[u8]) -> &[u8] {
    let text = begin.strip_prefix(UTF8_BOM).unwrap_or(begin);
    text.trim_ascii_start()
}

/// The value that reports a body that is not of its declared type.
fn body_error() -> InspectedValue<'static> {
    InspectedValue {
        variable: Variable::ReqbodyError,
        name: b"",
        bytes: b"1",
        first: true,
    }
}

/// Whether a body with these first bytes is not text.
fn is_binary(begin: &[u8]) -> bool {
    let odd = |byte: &&u8| **byte < 32 && !matches!(**byte, b'\t' | b'\n' | b'\r' | 12 | 27);
    let odd = begin.iter().filter(odd).count();
    let undecodable: usize = begin.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    odd * 32 > begin.len() || undecodable * 8 > begin.len().max(64)
}

/// Whether it can only be XML: as a form field, the XML declaration alone would match some rules.
fn looks_like_xml(begin: &[u8]) -> bool {
    let text = skip_bom(begin);
    text.starts_with(b"<?xml") || text.starts_with(b"<!DOCTYPE")
}

/// Whether it begins with a name and an equals sign.
fn looks_like_form(begin: &[u8]) -> bool {
    let text = skip_bom(begin);
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.[]%+".contains(byte);
    let named = text.iter().take_while(|byte| name(byte)).count();
    (1..64).contains(&named) && text.get(named) == Some(&b'=')
}

/// Buffers a value and emits it in windows.
#[derive(Debug, Default)]
pub(super) struct WindowBuffer {
    held: Vec<u8>,
    /// How many of the held bytes were emitted already.
    given: usize,
    /// Whether a window of this value was emitted already.
    later: bool,
}

impl WindowBuffer {
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

    /// Never allocates more than a window.
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

/// Appends to a name, up to its maximum length.
fn push_name(name: &mut Vec<u8>, bytes: &[u8]) {
    let room = MAX_NAME.saturating_sub(name.len()).min(bytes.len());
    name.extend_from_slice(&bytes[..room]);
}

#[cfg(test)]
mod tests;
