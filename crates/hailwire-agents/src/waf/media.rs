//! Media types with their parameters, and character sets (RFC 9110, section 8.3; RFC 2045, section 5.1).
//!
//! A media type that programs parse differently is *ambiguous*: the server may take it for something else than the
//! firewall does.

/// A media type, or any field with the same syntax: a token with parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MediaType {
    /// In lower case.
    pub(super) kind: String,
    /// Names in lower case, values without quotes.
    parameters: Vec<(String, Vec<u8>)>,
    /// Whether it can be parsed in another way.
    pub(super) ambiguous: bool,
}

impl MediaType {
    pub(super) fn parse(text: &[u8]) -> Self {
        let end = text.iter().position(|byte| *byte == b';');
        let (kind, mut rest) = text.split_at(end.unwrap_or(text.len()));
        let kind = String::from_utf8_lossy(kind.trim_ascii()).to_ascii_lowercase();
        let mut media = Self {
            // Two fields in one, or unexpected words.
            ambiguous: kind.contains([',', ' ', '\t', '"']),
            kind,
            parameters: Vec::new(),
        };
        while let Some(after) = rest.strip_prefix(b";") {
            rest = media.parameter(after);
        }
        media
    }

    /// Parses one parameter; returns the rest.
    fn parameter<'a>(&mut self, text: &'a [u8]) -> &'a [u8] {
        let stop = |byte: &u8| matches!(byte, b';' | b'=');
        let end = text.iter().position(stop).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let Some(value) = rest.strip_prefix(b"=") else {
            self.ambiguous |= !name.trim_ascii().is_empty();
            return rest;
        };
        let name = String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase();
        let value = value.trim_ascii_start();
        let (value, rest) = match value.strip_prefix(b"\"") {
            Some(quoted) => self.quoted(quoted),
            None => {
                let end = value.iter().position(|b| *b == b';').unwrap_or(value.len());
                let (value, rest) = value.split_at(end);
                let value = value.trim_ascii_end();
                self.ambiguous |= value.iter().any(|b| matches!(b, b'"' | b',' | b'\\'));
                (value.to_vec(), rest)
            }
        };
        // Some programs take the first value, others the last.
        self.ambiguous |= self.get(&name).is_some_and(|known| *known != value[..]);
        self.parameters.push((name, value));
        rest
    }

    fn quoted<'a>(&mut self, text: &'a [u8]) -> (Vec<u8>, &'a [u8]) {
        let mut value = Vec::new();
        let mut at = 0;
        loop {
            match text.get(at) {
                Some(b'"') => break at += 1,
                // Some programs take the backslash literally, and a quote after it as the end.
                Some(b'\\') => {
                    at += 1;
                    self.ambiguous |= matches!(text.get(at), Some(b'"' | b'\\'));
                    match text.get(at) {
                        Some(byte @ (b'"' | b'\\')) => value.push(*byte),
                        Some(byte) => value.extend([b'\\', *byte]),
                        None => value.push(b'\\'),
                    }
                }
                Some(byte) => value.push(*byte),
                None => {
                    self.ambiguous = true;
                    break;
                }
            }
            at += 1;
        }
        let rest = text.get(at..).unwrap_or_default();
        let end = rest.iter().position(|b| *b == b';').unwrap_or(rest.len());
        self.ambiguous |= !rest[..end].trim_ascii().is_empty();
        (value, &rest[end..])
    }

    /// A parameter's value, the first of that name.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let mut named = self.parameters.iter().filter(|(own, _)| own == name);
        named.next().map(|(_, value)| &value[..])
    }

    /// Every value of a parameter.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        let named = self.parameters.iter().filter(move |(own, _)| own == name);
        named.map(|(_, value)| &value[..])
    }

    /// Whether its character set is supported; the default is UTF-8.
    pub(super) fn is_read(&self) -> bool {
        self.all("charset")
            .all(|name| reads_charset(&String::from_utf8_lossy(name)))
    }
}

/// Whether a character set is supported: it must be a superset of ASCII, byte by byte.
pub(super) fn reads_charset(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase().replace('_', "-");
    // ISO 2022 encodings use shift sequences, which hide ASCII.
    let latin = name
        .strip_prefix("iso-8859-")
        .or_else(|| name.strip_prefix("iso8859-"));
    let windows = name
        .strip_prefix("windows-125")
        .or_else(|| name.strip_prefix("cp125"));
    matches!(
        name.as_str(),
        "" | "utf-8" | "utf8" | "us-ascii" | "ascii" | "latin1" | "latin-1" | "binary" | "koi8-r" | "koi8-u"
        // Their second bytes may look like letters, but ASCII letters and marks have no other form.
        | "shift-jis" | "gbk" | "gb2312" | "gb18030" | "big5" | "euc-jp" | "euc-kr" | "euc-cn" | "euc-tw" | "tis-620"
    ) || latin.is_some_and(|number| number.parse::<u8>().is_ok())
        || windows.is_some_and(|digit| digit.len() == 1 && digit.parse::<u8>().is_ok_and(|d| d < 9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_parameters_are_parsed_and_ambiguous_types_are_recognised() {
        let media = MediaType::parse(
            b"Multipart/Form-Data ; xboundary=evil; Boundary=\"a;b\" ;charset=UTF-8",
        );
        assert_eq!(media.kind, "multipart/form-data");
        assert_eq!(media.get("boundary"), Some(&b"a;b"[..]));
        assert!(!media.ambiguous && media.is_read());
        for text in [
            "multipart/form-data; boundary=a; boundary=b",
            "application/json, application/x-www-form-urlencoded",
            "form-data; name=\"a\\\"; filename=\\\"b\"",
            "form-data; name=\"a\"b; filename=c",
            "form-data; name=\"a",
            "form-data; name=a\"b",
            "text/plain; charset=utf-8; charset=utf-7",
            "text/plain x",
        ] {
            assert!(MediaType::parse(text.as_bytes()).ambiguous, "{text}");
        }
        for text in [
            "text/plain",
            "a/b;",
            "a/b; c=d; c=d",
            "form-data; name=\"C:\\x\\y\"",
        ] {
            assert!(!MediaType::parse(text.as_bytes()).ambiguous, "{text}");
        }
    }

    #[test]
    fn only_supersets_of_ascii_are_supported() {
        for name in [
            "",
            "UTF-8",
            "utf8",
            "ISO-8859-1",
            "iso_8859-15",
            "windows-1252",
            "us-ascii",
        ] {
            assert!(reads_charset(name), "{name}");
        }
        for name in [
            "utf-7",
            "utf-16",
            "UTF-16LE",
            "utf-32",
            "ibm037",
            "cp037",
            "cp1026",
            "iso-2022-jp",
            "hz-gb-2312",
            "x-user-defined",
            "ucs-2",
            "nonsense",
            "iso-8859-x",
        ] {
            assert!(!reads_charset(name), "{name}");
        }
    }
}
