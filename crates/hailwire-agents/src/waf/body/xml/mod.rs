//! XML 1.0, parsed leniently: the text of elements and the values of attributes are emitted.
//!
//! The text of an element is one value from tag to tag: CDATA sections, comments and processing instructions do not divide
//! it, and character references and the five predefined entities are resolved. An element whose text is divided by child
//! elements is also emitted as a whole ([`mixed`]). Literals of a DTD are emitted as values, too.
//!
//! DTD declarations are not expanded: an internal subset, and a reference to an entity that only a DTD can declare,
//! are [`UnreadKind::XmlDtd`]. An unsupported character set is [`UnreadKind::Charset`].

mod mixed;
mod reference;

use super::{InspectedValue, ValueSink, Variable, WindowBuffer};
use crate::waf::{
    media,
    unread::{UnreadKind, UnreadSet},
};
use mixed::MixedContent;
use reference::ResolvedReference;

/// Parses XML.
#[derive(Debug)]
pub(in super::super) struct XmlReader {
    state: XmlState,
    /// An incomplete reference, keyword after `<`, or XML declaration.
    held: Vec<u8>,
    text: WindowBuffer,
    mixed: MixedContent,
    /// Whether the bytes were decoded from UTF-16, so that the declared encoding does not apply.
    transcoded: bool,
    /// Whether there was a document type declaration.
    has_doctype: bool,
    unread: UnreadSet,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum XmlState {
    Text,
    /// After `&`.
    Reference(ReferenceContext),
    /// After `<`.
    Open(MarkupContext),
    /// With the number of hyphens at the end, at most two.
    Comment(MarkupContext, u8),
    /// Whether the last byte is a question mark.
    Instruction(MarkupContext, bool),
    /// With the number of brackets at the end, at most two, which are held back.
    Cdata(u8),
    Tag(TagState),
    Attribute(AttributeQuote),
    /// Whether in the internal subset.
    Doctype(bool),
    Literal(DtdLiteral),
}

/// Where markup occurs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MarkupContext {
    Content,
    /// Whether in the internal subset.
    Doctype(bool),
}

/// A literal of a document type declaration: its quote, and whether it is in the internal subset.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DtdLiteral(u8, bool);

/// Where a reference occurs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReferenceContext {
    Text,
    Attribute(AttributeQuote),
    Literal(DtdLiteral),
}

/// What ends an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AttributeQuote {
    Byte(u8),
    /// It is unquoted, and ends at white space or with its tag.
    Space,
}

/// What is known of a tag so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TagState {
    closes: bool,
    /// Its last byte that is not white space.
    last: u8,
}

/// The most bytes of a reference.
const MAX_REFERENCE: usize = 64;
/// The most bytes of an instruction that are inspected.
const MAX_DECLARATION: usize = 256;

impl XmlReader {
    pub(in super::super) fn new(transcoded: bool) -> Self {
        Self {
            state: XmlState::Text,
            held: Vec::new(),
            text: WindowBuffer::default(),
            mixed: MixedContent::default(),
            transcoded,
            has_doctype: false,
            unread: UnreadSet::default(),
        }
    }

    pub(in super::super) fn unread(&self) -> UnreadSet {
        self.unread
    }

    pub(in super::super) fn feed(&mut self, mut bytes: &[u8], sink: &mut ValueSink<'_>) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = match self.state {
                XmlState::Text => self.in_text(bytes, sink),
                XmlState::Attribute(AttributeQuote::Byte(quote))
                | XmlState::Literal(DtdLiteral(quote, _)) => self.in_quotes(quote, bytes, sink),
                XmlState::Cdata(brackets) => self.in_cdata(brackets, bytes, sink),
                XmlState::Reference(context) => {
                    if self.in_reference(context, byte, sink) {
                        rest
                    } else {
                        bytes
                    }
                }
                XmlState::Open(context) => {
                    self.in_open(context, byte, sink);
                    rest
                }
                XmlState::Comment(context, hyphens) => {
                    self.in_comment(context, hyphens, byte);
                    rest
                }
                XmlState::Instruction(context, asked) => {
                    self.in_instruction(context, asked, byte);
                    rest
                }
                XmlState::Attribute(AttributeQuote::Space) => {
                    if self.in_bare(byte, sink) {
                        rest
                    } else {
                        bytes
                    }
                }
                XmlState::Tag(tag) => {
                    self.in_tag(tag, byte, sink);
                    rest
                }
                XmlState::Doctype(internal) => {
                    self.in_doctype(internal, byte);
                    rest
                }
            };
        }
    }

    pub(in super::super) fn finish(&mut self, sink: &mut ValueSink<'_>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            XmlState::Reference(context) => self.refer(context, &held, sink),
            XmlState::Open(MarkupContext::Content) => {
                self.push(b"<", sink);
                self.push(&held, sink);
            }
            XmlState::Cdata(brackets) => self.push(&b"]]"[..usize::from(brackets)], sink),
            _ => {}
        }
        self.end(sink);
        self.mixed.finish(&mut self.unread, sink);
        self.state = XmlState::Text;
    }

    fn in_text<'a>(&mut self, bytes: &'a [u8], sink: &mut ValueSink<'_>) -> &'a [u8] {
        let end = memchr::memchr2(b'<', b'&', bytes).unwrap_or(bytes.len());
        self.push(&bytes[..end], sink);
        let Some((&byte, rest)) = bytes[end..].split_first() else {
            return &[];
        };
        self.state = match byte {
            b'&' => XmlState::Reference(ReferenceContext::Text),
            _ => XmlState::Open(MarkupContext::Content),
        };
        rest
    }

    /// A quoted attribute value, or a literal of a declaration.
    fn in_quotes<'a>(&mut self, quote: u8, bytes: &'a [u8], sink: &mut ValueSink<'_>) -> &'a [u8] {
        let end = memchr::memchr2(quote, b'&', bytes).unwrap_or(bytes.len());
        self.push(&bytes[..end], sink);
        let Some((&byte, rest)) = bytes[end..].split_first() else {
            return &[];
        };
        let tag = TagState {
            closes: false,
            last: quote,
        };
        let (context, then) = match self.state {
            XmlState::Literal(literal) => (
                ReferenceContext::Literal(literal),
                XmlState::Doctype(literal.1),
            ),
            _ => (
                ReferenceContext::Attribute(AttributeQuote::Byte(quote)),
                XmlState::Tag(tag),
            ),
        };
        if byte == b'&' {
            self.state = XmlState::Reference(context);
        } else {
            self.end(sink);
            self.state = then;
        }
        rest
    }

    /// An unquoted value; whether the byte was part of it.
    fn in_bare(&mut self, byte: u8, sink: &mut ValueSink<'_>) -> bool {
        match byte {
            b'>' | b' ' | b'\t' | b'\r' | b'\n' => {
                self.end(sink);
                self.state = XmlState::Tag(TagState {
                    closes: false,
                    last: b'a',
                });
                false
            }
            b'&' => {
                self.state =
                    XmlState::Reference(ReferenceContext::Attribute(AttributeQuote::Space));
                true
            }
            _ => {
                self.push(&[byte], sink);
                true
            }
        }
    }

    /// A name or a number, up to a semicolon; whether the byte was consumed.
    fn in_reference(
        &mut self,
        context: ReferenceContext,
        byte: u8,
        sink: &mut ValueSink<'_>,
    ) -> bool {
        let of_it = byte.is_ascii_alphanumeric() || b"#_-.:".contains(&byte) || byte >= 0x80;
        if of_it && self.held.len() < MAX_REFERENCE {
            self.held.push(byte);
            return true;
        }
        let held = std::mem::take(&mut self.held);
        let ended = byte == b';';
        self.state = match context {
            ReferenceContext::Text => XmlState::Text,
            ReferenceContext::Attribute(quote) => XmlState::Attribute(quote),
            ReferenceContext::Literal(literal) => XmlState::Literal(literal),
        };
        self.refer(context, &held, sink);
        // A semicolon is literal if there was no reference that it could end.
        ended && !held.is_empty()
    }

    fn refer(&mut self, context: ReferenceContext, name: &[u8], sink: &mut ValueSink<'_>) {
        let mut buffer = [0; 4];
        match reference::of(name, &mut buffer) {
            ResolvedReference::Bytes(bytes) => self.push(bytes, sink),
            ResolvedReference::Unknown => {
                // Only a DTD can declare it.
                let declared = self.has_doctype
                    && !name.is_empty()
                    && !matches!(context, ReferenceContext::Literal(_));
                if declared {
                    self.unread.add(UnreadKind::XmlDtd);
                }
                self.push(b"&", sink);
                self.push(name, sink);
                if !name.is_empty() {
                    self.push(b";", sink);
                }
            }
        }
    }

    /// Markup after `<`: a tag, a CDATA section, a comment, an instruction or a declaration.
    fn in_open(&mut self, context: MarkupContext, byte: u8, sink: &mut ValueSink<'_>) {
        self.held.push(byte);
        let marks: [(&[u8], XmlState); 4] = [
            (b"!--", XmlState::Comment(context, 0)),
            (b"?", XmlState::Instruction(context, false)),
            (b"![CDATA[", XmlState::Cdata(0)),
            (b"!DOCTYPE", XmlState::Doctype(false)),
        ];
        let there = match context {
            MarkupContext::Content => &marks[..],
            MarkupContext::Doctype(_) => &marks[..2],
        };
        for (mark, state) in there {
            if self.held.eq_ignore_ascii_case(mark) {
                self.held.clear();
                self.state = *state;
                if *state == XmlState::Doctype(false) {
                    self.has_doctype = true;
                    self.end(sink);
                }
                return;
            }
            let begin = mark.get(..self.held.len());
            if begin.is_some_and(|begin| begin.eq_ignore_ascii_case(&self.held)) {
                return;
            }
        }
        let held = std::mem::take(&mut self.held);
        if let MarkupContext::Doctype(internal) = context {
            self.in_doctype(internal, byte);
        } else if held.len() > 1
            || matches!(byte, b'/' | b'_' | b':' | 0x80..)
            || byte.is_ascii_alphabetic()
        {
            self.end(sink);
            let tag = TagState {
                closes: byte == b'/' && held.len() == 1,
                last: 0,
            };
            self.state = XmlState::Tag(tag);
            if held.len() == 1 && !tag.closes {
                self.mixed.open();
            }
            self.in_tag(tag, byte, sink);
        } else {
            // A sign of less: no parser goes on, and a lenient one takes it for text.
            self.state = XmlState::Text;
            self.push(b"<", sink);
            self.feed(&held, sink);
        }
    }

    fn in_comment(&mut self, context: MarkupContext, hyphens: u8, byte: u8) {
        self.state = match (byte, hyphens) {
            (b'>', 2) => after(context),
            (b'-', _) => XmlState::Comment(context, (hyphens + 1).min(2)),
            _ => XmlState::Comment(context, 0),
        };
    }

    fn in_instruction(&mut self, context: MarkupContext, asked: bool, byte: u8) {
        if byte == b'>' && asked {
            let held = std::mem::take(&mut self.held);
            if context == MarkupContext::Content {
                self.declared(&held);
            }
            self.state = after(context);
            return;
        }
        if self.held.len() < MAX_DECLARATION {
            self.held.push(byte);
        }
        self.state = XmlState::Instruction(context, byte == b'?');
    }

    /// Checks the encoding in an XML declaration.
    fn declared(&mut self, instruction: &[u8]) {
        let text = String::from_utf8_lossy(instruction).to_ascii_lowercase();
        if !text.starts_with("xml") || self.transcoded {
            return;
        }
        let Some((_, rest)) = text.split_once("encoding") else {
            return;
        };
        let value = rest.trim_start().strip_prefix('=').unwrap_or_default();
        let name = value.trim_start().trim_start_matches(['"', '\'']);
        let name = name.split(['"', '\'', ' ', '?']).next().unwrap_or_default();
        if !media::reads_charset(name) {
            self.unread.add(UnreadKind::Charset);
        }
    }

    fn in_cdata<'a>(
        &mut self,
        brackets: u8,
        bytes: &'a [u8],
        sink: &mut ValueSink<'_>,
    ) -> &'a [u8] {
        if brackets == 0 {
            let end = memchr::memchr(b']', bytes).unwrap_or(bytes.len());
            self.push(&bytes[..end], sink);
            let rest = &bytes[end..];
            if !rest.is_empty() {
                self.state = XmlState::Cdata(1);
            }
            return rest.get(1..).unwrap_or_default();
        }
        let Some((&byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        match (byte, brackets) {
            (b'>', 2) => self.state = XmlState::Text,
            (b']', 1) => self.state = XmlState::Cdata(2),
            (b']', _) => self.push(b"]", sink),
            _ => {
                self.push(&b"]]"[..usize::from(brackets)], sink);
                self.state = XmlState::Cdata(0);
                return bytes;
            }
        }
        rest
    }

    fn in_tag(&mut self, tag: TagState, byte: u8, sink: &mut ValueSink<'_>) {
        match byte {
            b'>' => {
                self.state = XmlState::Text;
                if tag.closes || tag.last == b'/' {
                    self.mixed.close(&mut self.unread, sink);
                }
            }
            b'"' | b'\'' => self.state = XmlState::Attribute(AttributeQuote::Byte(byte)),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ if tag.last == b'=' => {
                self.state = XmlState::Attribute(AttributeQuote::Space);
                let _ = self.in_bare(byte, sink);
            }
            _ => self.state = XmlState::Tag(TagState { last: byte, ..tag }),
        }
    }

    fn in_doctype(&mut self, internal: bool, byte: u8) {
        self.state = match byte {
            b'"' | b'\'' => XmlState::Literal(DtdLiteral(byte, internal)),
            b'<' => XmlState::Open(MarkupContext::Doctype(internal)),
            b'[' => {
                self.unread.add(UnreadKind::XmlDtd);
                XmlState::Doctype(true)
            }
            b']' => XmlState::Doctype(false),
            b'>' if !internal => XmlState::Text,
            _ => XmlState::Doctype(internal),
        };
    }

    /// Adds bytes to the current value.
    fn push(&mut self, bytes: &[u8], sink: &mut ValueSink<'_>) {
        let text = if self.text.is_empty() {
            bytes.trim_ascii_start()
        } else {
            bytes
        };
        self.text
            .push(text, |bytes, first| sink(value(bytes, first)));
        if matches!(self.state, XmlState::Text | XmlState::Cdata(_)) {
            self.mixed.push(bytes, &mut self.unread, sink);
        }
    }

    /// Ends the current value.
    fn end(&mut self, sink: &mut ValueSink<'_>) {
        self.text.end(|bytes, first| sink(value(bytes, first)));
        self.mixed.end_run();
    }
}

/// The state after markup in this context.
fn after(context: MarkupContext) -> XmlState {
    match context {
        MarkupContext::Content => XmlState::Text,
        MarkupContext::Doctype(internal) => XmlState::Doctype(internal),
    }
}

fn value(bytes: &[u8], first: bool) -> InspectedValue<'_> {
    InspectedValue {
        variable: Variable::Xml,
        name: b"",
        bytes,
        first,
    }
}
