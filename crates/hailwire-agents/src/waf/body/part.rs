//! The head of a part of a multipart body (RFC 7578, 4): what it is called, whether it is a file, how it is encoded.

use super::{Body, Sink, Value, Variable};
use crate::waf::{
    media::Media,
    transform::Transform,
    unread::{Unread, UnreadSet},
};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) name: Vec<u8>,
    /// Whether every server takes it for a file,
    file: bool,
    /// or some.
    maybe: bool,
    disposed: bool,
    media: Media,
    /// A line that is no field, or two ways to say what the part is.
    pub(super) broken: bool,
    pub(super) unread: UnreadSet,
}

impl Part {
    /// Reads a head, and gives its values. Every part of `multipart/form-data` says its disposition.
    pub(super) fn read(head: &[u8], form: bool, sink: &mut Sink<'_>) -> Self {
        let mut part = Self::default();
        let (lines, folded) = unfolded(head);
        for line in &lines {
            part.line(line, sink);
        }
        if folded {
            part.maybe |= part.file;
            part.file = false;
        }
        part.broken |= form && !part.disposed;
        part
    }

    /// What its content is.
    pub(super) fn variables(&self) -> &'static [Variable] {
        match (self.file, self.maybe) {
            (true, _) => &[Variable::FilesTmpContent],
            (false, true) => &[Variable::ArgsPost, Variable::FilesTmpContent],
            (false, false) => &[Variable::ArgsPost],
        }
    }

    /// Who reads its content besides: a field by what it looks like, a file only by what it says that it is.
    pub(super) fn body(&mut self) -> Option<Box<Body>> {
        let body = Body::of_part(&self.media, !self.file);
        self.unread = self.unread.with(body.unread());
        (!self.file || body.says_something()).then(|| Box::new(body))
    }

    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) {
        sink(value(Variable::MultipartPartHeaders, line));
        let Some(colon) = memchr::memchr(b':', line) else {
            self.broken = true;
            return;
        };
        let name = line[..colon].trim_ascii().to_ascii_lowercase();
        let field = line[colon + 1..].trim_ascii();
        match &name[..] {
            b"content-disposition" => self.disposition(field, sink),
            b"content-type" => {
                let media = Media::parse(field);
                if media.ambiguous || !self.media.kind.is_empty() {
                    self.unread.add(Unread::ContentType);
                }
                if !media.is_read() {
                    self.unread.add(Unread::Charset);
                }
                self.media = media;
            }
            b"content-transfer-encoding" => {
                let plain = |name: &&[u8]| field.eq_ignore_ascii_case(name);
                if ![&b"7bit"[..], b"8bit", b"binary"].iter().any(plain) {
                    self.unread.add(Unread::PartEncoding);
                }
            }
            b"content-length" | b"mime-version" => {}
            _ => sink(value(Variable::ArgsPost, field)),
        }
    }

    fn disposition(&mut self, field: &[u8], sink: &mut Sink<'_>) {
        let disposition = Media::parse(field);
        let twice = std::mem::replace(&mut self.disposed, true);
        for name in disposition.all("name").chain(disposition.all("name*")) {
            if self.name.is_empty() {
                super::keep(&mut self.name, name);
            }
            sink(value(Variable::ArgsPostNames, name));
        }
        let mut named = false;
        for parameter in ["filename", "filename*"] {
            for file in disposition.all(parameter) {
                named |= parameter == "filename" && !file.is_empty();
                self.maybe = true;
                self.file_name(file, sink);
            }
        }
        self.broken |= twice;
        self.file = named && !disposition.ambiguous;
    }

    fn file_name(&mut self, file: &[u8], sink: &mut Sink<'_>) {
        if memchr::memmem::find(file, b"=?").is_some() && file.ends_with(b"?=") {
            self.unread.add(Unread::PartEncoding);
        }
        let decoded = Transform::UrlDecode.apply(file);
        let spelt_otherwise = (decoded != file).then_some(&*decoded);
        for bytes in std::iter::once(file).chain(spelt_otherwise) {
            sink(Value {
                name: &self.name,
                ..value(Variable::Files, bytes)
            });
        }
        sink(value(Variable::FilesNames, &self.name));
    }
}

/// The lines, each joined with those that go on with it; and whether there is such a line.
fn unfolded(head: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut folded = false;
    for line in head.split(|byte| *byte == b'\n') {
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        match lines.last_mut() {
            Some(last) if matches!(line.first(), Some(b' ' | b'\t')) => {
                folded = true;
                last.push(b' ');
                last.extend_from_slice(text);
            }
            _ => lines.push(text.to_vec()),
        }
    }
    (lines, folded)
}

fn value(variable: Variable, bytes: &[u8]) -> Value<'_> {
    Value {
        variable,
        name: b"",
        bytes,
        first: true,
    }
}
