//! XML 1.0, read as a parser would and leniently: the text of elements and the values of attributes are given.
//!
//! The text of an element is one value from tag to tag: CDATA sections, comments and processing instructions within it
//! do not part it, and references to characters and the five named entities are what they stand for. An element whose
//! text is parted by other elements is given whole besides ([`mixed`]). Literals of a DTD are given as values, too.
//!
//! What a DTD declares is not expanded: an internal subset, and a reference to an entity that only a DTD can declare,
//! are [`Unread::XmlDtd`]. A declared character set that is not read is [`Unread::Charset`].

mod mixed;
mod reference;

use super::{Sink, Value, Variable, Windows};
use crate::waf::{
    media,
    unread::{Unread, UnreadSet},
};
use mixed::Mixed;
use reference::Reference;

/// See the module.
#[derive(Debug)]
pub(in super::super) struct Xml {
    state: State,
    /// A reference, a mark after `<`, or an XML declaration, as far as it has come.
    held: Vec<u8>,
    text: Windows,
    mixed: Mixed,
    /// Whether the bytes were of UTF-16 once, whatever they declare.
    transcoded: bool,
    /// Whether there was a document type declaration.
    typed: bool,
    unread: UnreadSet,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Text,
    /// After `&`.
    Reference(Within),
    /// After `<`.
    Open(Place),
    /// With so many hyphens at the end, at most two.
    Comment(Place, u8),
    /// Whether a question mark is at the end.
    Instruction(Place, bool),
    /// With so many brackets at the end, at most two, which are held back.
    Cdata(u8),
    Tag(Tag),
    Attribute(Quote),
    /// Whether within its brackets.
    Doctype(bool),
    Literal(Literal),
}

/// Where a mark stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Content,
    /// Whether within its brackets.
    Doctype(bool),
}

/// A literal of a document type declaration: its quote, and whether within brackets.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Literal(u8, bool);

/// What a reference is part of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Within {
    Text,
    Attribute(Quote),
    Literal(Literal),
}

/// What ends an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quote {
    Byte(u8),
    /// It has no quotes, and ends at white space or with its tag.
    Space,
}

/// What is known of a tag so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tag {
    closes: bool,
    /// Its last byte that is no white space.
    last: u8,
}

/// Bytes of a reference.
const REFERENCE: usize = 64;
/// Bytes of an instruction that are looked at.
const DECLARATION: usize = 256;

impl Xml {
    pub(in super::super) fn new(transcoded: bool) -> Self {
        Self {
            state: State::Text,
            held: Vec::new(),
            text: Windows::default(),
            mixed: Mixed::default(),
            transcoded,
            typed: false,
            unread: UnreadSet::default(),
        }
    }

    pub(in super::super) fn unread(&self) -> UnreadSet {
        self.unread
    }

    pub(in super::super) fn feed(&mut self, mut bytes: &[u8], sink: &mut Sink<'_>) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = match self.state {
                State::Text => self.in_text(bytes, sink),
                State::Attribute(Quote::Byte(quote)) | State::Literal(Literal(quote, _)) => {
                    self.in_quotes(quote, bytes, sink)
                }
                State::Cdata(brackets) => self.in_cdata(brackets, bytes, sink),
                State::Reference(within) => {
                    if self.in_reference(within, byte, sink) {
                        rest
                    } else {
                        bytes
                    }
                }
                State::Open(place) => {
                    self.in_open(place, byte, sink);
                    rest
                }
                State::Comment(place, hyphens) => {
                    self.in_comment(place, hyphens, byte);
                    rest
                }
                State::Instruction(place, asked) => {
                    self.in_instruction(place, asked, byte);
                    rest
                }
                State::Attribute(Quote::Space) => {
                    if self.in_bare(byte, sink) {
                        rest
                    } else {
                        bytes
                    }
                }
                State::Tag(tag) => {
                    self.in_tag(tag, byte, sink);
                    rest
                }
                State::Doctype(internal) => {
                    self.in_doctype(internal, byte);
                    rest
                }
            };
        }
    }

    pub(in super::super) fn finish(&mut self, sink: &mut Sink<'_>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Reference(within) => self.refer(within, &held, sink),
            State::Open(Place::Content) => {
                self.push(b"<", sink);
                self.push(&held, sink);
            }
            State::Cdata(brackets) => self.push(&b"]]"[..usize::from(brackets)], sink),
            _ => {}
        }
        self.end(sink);
        self.mixed.finish(&mut self.unread, sink);
        self.state = State::Text;
    }

    fn in_text<'a>(&mut self, bytes: &'a [u8], sink: &mut Sink<'_>) -> &'a [u8] {
        let end = memchr::memchr2(b'<', b'&', bytes).unwrap_or(bytes.len());
        self.push(&bytes[..end], sink);
        let Some((&byte, rest)) = bytes[end..].split_first() else {
            return &[];
        };
        self.state = match byte {
            b'&' => State::Reference(Within::Text),
            _ => State::Open(Place::Content),
        };
        rest
    }

    /// A value of an attribute, or a literal of a declaration.
    fn in_quotes<'a>(&mut self, quote: u8, bytes: &'a [u8], sink: &mut Sink<'_>) -> &'a [u8] {
        let end = memchr::memchr2(quote, b'&', bytes).unwrap_or(bytes.len());
        self.push(&bytes[..end], sink);
        let Some((&byte, rest)) = bytes[end..].split_first() else {
            return &[];
        };
        let tag = Tag {
            closes: false,
            last: quote,
        };
        let (within, then) = match self.state {
            State::Literal(literal) => (Within::Literal(literal), State::Doctype(literal.1)),
            _ => (Within::Attribute(Quote::Byte(quote)), State::Tag(tag)),
        };
        if byte == b'&' {
            self.state = State::Reference(within);
        } else {
            self.end(sink);
            self.state = then;
        }
        rest
    }

    /// A value without quotes; whether the byte was of it.
    fn in_bare(&mut self, byte: u8, sink: &mut Sink<'_>) -> bool {
        match byte {
            b'>' | b' ' | b'\t' | b'\r' | b'\n' => {
                self.end(sink);
                self.state = State::Tag(Tag {
                    closes: false,
                    last: b'a',
                });
                false
            }
            b'&' => {
                self.state = State::Reference(Within::Attribute(Quote::Space));
                true
            }
            _ => {
                self.push(&[byte], sink);
                true
            }
        }
    }

    /// A name or a number, up to a semicolon; whether the byte was of it.
    fn in_reference(&mut self, within: Within, byte: u8, sink: &mut Sink<'_>) -> bool {
        let of_it = byte.is_ascii_alphanumeric() || b"#_-.:".contains(&byte) || byte >= 0x80;
        if of_it && self.held.len() < REFERENCE {
            self.held.push(byte);
            return true;
        }
        let held = std::mem::take(&mut self.held);
        let ended = byte == b';';
        self.state = match within {
            Within::Text => State::Text,
            Within::Attribute(quote) => State::Attribute(quote),
            Within::Literal(literal) => State::Literal(literal),
        };
        self.refer(within, &held, sink);
        // A semicolon stays where there was nothing that it could end.
        ended && !held.is_empty()
    }

    fn refer(&mut self, within: Within, name: &[u8], sink: &mut Sink<'_>) {
        let mut buffer = [0; 4];
        match reference::of(name, &mut buffer) {
            Reference::Bytes(bytes) => self.push(bytes, sink),
            Reference::Unknown => {
                // Only a DTD can say what it stands for.
                let declared =
                    self.typed && !name.is_empty() && !matches!(within, Within::Literal(_));
                if declared {
                    self.unread.add(Unread::XmlDtd);
                }
                self.push(b"&", sink);
                self.push(name, sink);
                if !name.is_empty() {
                    self.push(b";", sink);
                }
            }
        }
    }

    /// What begins with `<`: a tag, a CDATA section, a comment, an instruction or a declaration.
    fn in_open(&mut self, place: Place, byte: u8, sink: &mut Sink<'_>) {
        self.held.push(byte);
        let marks: [(&[u8], State); 4] = [
            (b"!--", State::Comment(place, 0)),
            (b"?", State::Instruction(place, false)),
            (b"![CDATA[", State::Cdata(0)),
            (b"!DOCTYPE", State::Doctype(false)),
        ];
        let there = match place {
            Place::Content => &marks[..],
            Place::Doctype(_) => &marks[..2],
        };
        for (mark, state) in there {
            if self.held.eq_ignore_ascii_case(mark) {
                self.held.clear();
                self.state = *state;
                if *state == State::Doctype(false) {
                    self.typed = true;
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
        if let Place::Doctype(internal) = place {
            self.in_doctype(internal, byte);
        } else if held.len() > 1
            || matches!(byte, b'/' | b'_' | b':' | 0x80..)
            || byte.is_ascii_alphabetic()
        {
            self.end(sink);
            let tag = Tag {
                closes: byte == b'/' && held.len() == 1,
                last: 0,
            };
            self.state = State::Tag(tag);
            if held.len() == 1 && !tag.closes {
                self.mixed.open();
            }
            self.in_tag(tag, byte, sink);
        } else {
            // A sign of less: no parser goes on, and a lenient one takes it for text.
            self.state = State::Text;
            self.push(b"<", sink);
            self.feed(&held, sink);
        }
    }

    fn in_comment(&mut self, place: Place, hyphens: u8, byte: u8) {
        self.state = match (byte, hyphens) {
            (b'>', 2) => after(place),
            (b'-', _) => State::Comment(place, (hyphens + 1).min(2)),
            _ => State::Comment(place, 0),
        };
    }

    fn in_instruction(&mut self, place: Place, asked: bool, byte: u8) {
        if byte == b'>' && asked {
            let held = std::mem::take(&mut self.held);
            if place == Place::Content {
                self.declared(&held);
            }
            self.state = after(place);
            return;
        }
        if self.held.len() < DECLARATION {
            self.held.push(byte);
        }
        self.state = State::Instruction(place, byte == b'?');
    }

    /// An XML declaration says in which character set the document is.
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
            self.unread.add(Unread::Charset);
        }
    }

    fn in_cdata<'a>(&mut self, brackets: u8, bytes: &'a [u8], sink: &mut Sink<'_>) -> &'a [u8] {
        if brackets == 0 {
            let end = memchr::memchr(b']', bytes).unwrap_or(bytes.len());
            self.push(&bytes[..end], sink);
            let rest = &bytes[end..];
            if !rest.is_empty() {
                self.state = State::Cdata(1);
            }
            return rest.get(1..).unwrap_or_default();
        }
        let Some((&byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        match (byte, brackets) {
            (b'>', 2) => self.state = State::Text,
            (b']', 1) => self.state = State::Cdata(2),
            (b']', _) => self.push(b"]", sink),
            _ => {
                self.push(&b"]]"[..usize::from(brackets)], sink);
                self.state = State::Cdata(0);
                return bytes;
            }
        }
        rest
    }

    fn in_tag(&mut self, tag: Tag, byte: u8, sink: &mut Sink<'_>) {
        match byte {
            b'>' => {
                self.state = State::Text;
                if tag.closes || tag.last == b'/' {
                    self.mixed.close(&mut self.unread, sink);
                }
            }
            b'"' | b'\'' => self.state = State::Attribute(Quote::Byte(byte)),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ if tag.last == b'=' => {
                self.state = State::Attribute(Quote::Space);
                let _ = self.in_bare(byte, sink);
            }
            _ => self.state = State::Tag(Tag { last: byte, ..tag }),
        }
    }

    fn in_doctype(&mut self, internal: bool, byte: u8) {
        self.state = match byte {
            b'"' | b'\'' => State::Literal(Literal(byte, internal)),
            b'<' => State::Open(Place::Doctype(internal)),
            b'[' => {
                self.unread.add(Unread::XmlDtd);
                State::Doctype(true)
            }
            b']' => State::Doctype(false),
            b'>' if !internal => State::Text,
            _ => State::Doctype(internal),
        };
    }

    /// Bytes of the value that is being read.
    fn push(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        let text = if self.text.is_empty() {
            bytes.trim_ascii_start()
        } else {
            bytes
        };
        self.text
            .push(text, |bytes, first| sink(value(bytes, first)));
        if matches!(self.state, State::Text | State::Cdata(_)) {
            self.mixed.push(bytes, &mut self.unread, sink);
        }
    }

    /// The value that is being read ends.
    fn end(&mut self, sink: &mut Sink<'_>) {
        self.text.end(|bytes, first| sink(value(bytes, first)));
        self.mixed.part();
    }
}

/// What a mark there is followed by.
fn after(place: Place) -> State {
    match place {
        Place::Content => State::Text,
        Place::Doctype(internal) => State::Doctype(internal),
    }
}

fn value(bytes: &[u8], first: bool) -> Value<'_> {
    Value {
        variable: Variable::Xml,
        name: b"",
        bytes,
        first,
    }
}
