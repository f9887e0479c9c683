//! `multipart/form-data` (RFC 7578): fields, names of files, and what is in these.

use super::{Sink, Value, Variable, Windows, error, keep};

/// Bytes of a part's head.
const HEAD: usize = 8 << 10;

/// See the module.
#[derive(Debug)]
pub(in super::super) struct Multipart {
    /// Two hyphens and the boundary.
    delimiter: Vec<u8>,
    state: State,
    /// What may be the beginning of a delimiter, or a head that has not ended.
    held: Vec<u8>,
    windows: Windows,
    name: Vec<u8>,
    file: bool,
    broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Before the first delimiter; nobody reads it.
    Preamble,
    /// After a delimiter: a line end, or two hyphens.
    Delimiter,
    Head,
    Content,
    Epilogue,
}

/// The boundary of a content type, where it has a usable one.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let lower = content_type.to_ascii_lowercase();
    let start = lower.find("boundary=")? + "boundary=".len();
    let rest = &content_type[start..];
    let boundary = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next()?,
        None => rest.split([';', ',', ' ', '\t']).next()?,
    };
    (1..=256)
        .contains(&boundary.len())
        .then(|| boundary.to_owned())
}

impl Multipart {
    pub(super) fn new(boundary: &str) -> Self {
        Self {
            delimiter: format!("--{boundary}").into_bytes(),
            state: State::Preamble,
            // The first delimiter needs no line before it.
            held: b"\n".to_vec(),
            windows: Windows::default(),
            name: Vec::new(),
            file: false,
            broken: false,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        if self.state == State::Epilogue {
            return;
        }
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
            State::Content => {
                self.content(&held, sink);
                self.end(sink);
                self.broken = true;
            }
            State::Head => {
                self.head(&held, sink);
                self.broken = true;
            }
            State::Preamble => self.broken = true,
            State::Delimiter | State::Epilogue => {}
        }
        if self.broken {
            sink(error());
        }
    }

    /// Uses some of the bytes; `None` when it needs more.
    fn step(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Option<usize> {
        match self.state {
            State::Preamble | State::Content => self.until_delimiter(bytes, sink),
            State::Delimiter => {
                let line = match bytes {
                    [b'-', b'-', ..] => {
                        self.state = State::Epilogue;
                        return Some(bytes.len());
                    }
                    _ => memchr::memchr(b'\n', bytes.get(..bytes.len().min(HEAD))?),
                };
                if line.is_none() && bytes.len() < HEAD {
                    return None;
                }
                self.state = State::Head;
                self.name.clear();
                self.file = false;
                Some(line.map_or(0, |line| line + 1))
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
            State::Epilogue => (!bytes.is_empty()).then_some(bytes.len()),
        }
    }

    /// Content, as far as it cannot be the beginning of a delimiter at the start of a line.
    fn until_delimiter(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Option<usize> {
        let mut from = 0;
        while let Some(line) = memchr::memchr(b'\n', &bytes[from..]).map(|at| from + at) {
            let next = &bytes[line + 1..];
            if next.starts_with(&self.delimiter) {
                let content = &bytes[..line];
                self.content(content.strip_suffix(b"\r").unwrap_or(content), sink);
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

    fn content(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        if self.state == State::Content && !bytes.is_empty() {
            let (variable, name) = (self.variable(), &self.name[..]);
            self.windows.push(bytes, |bytes, first| {
                sink(Value {
                    variable,
                    name,
                    bytes,
                    first,
                });
            });
        }
    }

    fn end(&mut self, sink: &mut Sink<'_>) {
        let (variable, name) = (self.variable(), &self.name[..]);
        self.windows.end(|bytes, first| {
            sink(Value {
                variable,
                name,
                bytes,
                first,
            });
        });
    }

    fn variable(&self) -> Variable {
        if self.file {
            Variable::FilesTmpContent
        } else {
            Variable::ArgsPost
        }
    }

    fn head(&mut self, head: &[u8], sink: &mut Sink<'_>) {
        for line in head.split(|byte| *byte == b'\n') {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let whole = Value {
                variable: Variable::MultipartPartHeaders,
                name: b"",
                bytes: line,
                first: true,
            };
            sink(whole);
            let disposition = b"content-disposition:";
            if !line
                .get(..disposition.len())
                .is_some_and(|l| l.eq_ignore_ascii_case(disposition))
            {
                continue;
            }
            let parameters = &line[disposition.len()..];
            if let Some(name) = parameter(parameters, b"name") {
                keep(&mut self.name, &name);
                sink(named(Variable::ArgsPostNames, &name));
            }
            for key in [&b"filename"[..], b"filename*"] {
                if let Some(file) = parameter(parameters, key) {
                    self.file = true;
                    sink(Value {
                        name: &self.name,
                        ..named(Variable::Files, &file)
                    });
                    sink(named(Variable::FilesNames, &self.name));
                }
            }
        }
    }
}

fn named(variable: Variable, bytes: &[u8]) -> Value<'_> {
    Value {
        variable,
        name: b"",
        bytes,
        first: true,
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

/// A parameter's value, quoted or not.
fn parameter(text: &[u8], key: &[u8]) -> Option<Vec<u8>> {
    let mut rest = text;
    loop {
        let at = memchr::memchr(b';', rest)?;
        rest = rest[at + 1..].trim_ascii_start();
        let Some(value) = rest
            .get(..key.len())
            .filter(|k| k.eq_ignore_ascii_case(key))
        else {
            continue;
        };
        let after = rest[value.len()..].trim_ascii_start();
        let Some(value) = after.strip_prefix(b"=") else {
            continue;
        };
        let value = value.trim_ascii_start();
        let Some(quoted) = value.strip_prefix(b"\"") else {
            let end = memchr::memchr(b';', value).unwrap_or(value.len());
            return Some(value[..end].trim_ascii_end().to_vec());
        };
        let mut out = Vec::new();
        let mut bytes = quoted.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => break,
                b'\\' => out.extend(bytes.next()),
                _ => out.push(*byte),
            }
        }
        return Some(out);
    }
}
