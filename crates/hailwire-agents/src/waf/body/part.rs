//! The head of a part of a multipart body (RFC 7578, section 4): its name, whether it is a file, its encoding.

use super::{BodyReader, InspectedValue, ValueSink, Variable};
use crate::waf::{
    media::MediaType,
    transform::Transform,
    unread::{UnreadKind, UnreadSet},
};

/// The head of a part.
#[derive(Debug, Default)]
pub(super) struct PartHead {
    pub(super) name: Vec<u8>,
    /// Whether every server takes it for a file.
    is_file: bool,
    /// Whether some servers take it for a file.
    maybe_file: bool,
    has_disposition: bool,
    media: MediaType,
    /// Whether a line is not a field, or the disposition is missing or repeated.
    pub(super) invalid: bool,
    pub(super) unread: UnreadSet,
}

impl PartHead {
    /// Parses a head, and emits its values. Every part of `multipart/form-data` must have a disposition.
    pub(super) fn read(head: &[u8], form: bool, sink: &mut ValueSink<'_>) -> Self {
        let mut part = Self::default();
        let (lines, folded) = unfolded(head);
        for line in &lines {
            part.line(line, sink);
        }
        if folded {
            part.maybe_file |= part.is_file;
            part.is_file = false;
        }
        part.invalid |= form && !part.has_disposition;
        part
    }

    /// The variables of its content.
    pub(super) fn variables(&self) -> &'static [Variable] {
        match (self.is_file, self.maybe_file) {
            (true, _) => &[Variable::FilesTmpContent],
            (false, true) => &[Variable::ArgsPost, Variable::FilesTmpContent],
            (false, false) => &[Variable::ArgsPost],
        }
    }

    /// The reader of its content: a field is read by what it looks like, a file only by its declared type.
    pub(super) fn content_reader(&mut self) -> Option<Box<BodyReader>> {
        let body = BodyReader::for_part(&self.media, !self.is_file);
        self.unread = self.unread.with(body.unread());
        (!self.is_file || body.has_structured_type()).then(|| Box::new(body))
    }

    fn line(&mut self, line: &[u8], sink: &mut ValueSink<'_>) {
        sink(value(Variable::MultipartPartHeaders, line));
        let Some(colon) = memchr::memchr(b':', line) else {
            self.invalid = true;
            return;
        };
        let name = line[..colon].trim_ascii().to_ascii_lowercase();
        let field = line[colon + 1..].trim_ascii();
        match &name[..] {
            b"content-disposition" => self.disposition(field, sink),
            b"content-type" => {
                let media = MediaType::parse(field);
                if media.ambiguous || !self.media.kind.is_empty() {
                    self.unread.add(UnreadKind::ContentType);
                }
                if !media.is_read() {
                    self.unread.add(UnreadKind::Charset);
                }
                self.media = media;
            }
            b"content-transfer-encoding" => {
                let plain = |name: &&[u8]| field.eq_ignore_ascii_case(name);
                if ![&b"7bit"[..], b"8bit", b"binary"].iter().any(plain) {
                    self.unread.add(UnreadKind::PartEncoding);
                }
            }
            b"content-length" | b"mime-version" => {}
            _ => sink(value(Variable::ArgsPost, field)),
        }
    }

    fn disposition(&mut self, field: &[u8], sink: &mut ValueSink<'_>) {
        let disposition = MediaType::parse(field);
        let twice = std::mem::replace(&mut self.has_disposition, true);
        for name in disposition.all("name").chain(disposition.all("name*")) {
            if self.name.is_empty() {
                super::push_name(&mut self.name, name);
            }
            sink(value(Variable::ArgsPostNames, name));
        }
        let mut named = false;
        for parameter in ["filename", "filename*"] {
            for file in disposition.all(parameter) {
                named |= parameter == "filename" && !file.is_empty();
                self.maybe_file = true;
                self.file_name(file, sink);
            }
        }
        self.invalid |= twice;
        self.is_file = named && !disposition.ambiguous;
    }

    fn file_name(&mut self, file: &[u8], sink: &mut ValueSink<'_>) {
        if memchr::memmem::find(file, b"=?").is_some() && file.ends_with(b"?=") {
            self.unread.add(UnreadKind::PartEncoding);
        }
        let decoded = Transform::UrlDecode.apply(file);
        let spelt_otherwise = (decoded != file).then_some(&*decoded);
        for bytes in std::iter::once(file).chain(spelt_otherwise) {
            sink(InspectedValue {
                name: &self.name,
                ..value(Variable::Files, bytes)
            });
        }
        sink(value(Variable::FilesNames, &self.name));
    }
}

/// The lines, with folded ones joined; and whether any was folded.
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

fn value(variable: Variable, bytes: &[u8]) -> InspectedValue<'_> {
    InspectedValue {
        variable,
        name: b"",
        bytes,
        first: true,
    }
}
