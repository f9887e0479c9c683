//! Transformations, which normalise a value before it is matched.
//!
//! Names and semantics are those of SecLang (the language of ModSecurity and Coraza). Each is one pass over the bytes,
//! emits at most six bytes for one, and reports when nothing changed.

mod codec;

use std::borrow::Cow;

/// A transformation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "SecLang's names")]
pub enum Transform {
    Base64Decode,
    Base64Encode,
    CmdLine,
    CompressWhitespace,
    CssDecode,
    EscapeSeqDecode,
    HexDecode,
    HexEncode,
    HtmlEntityDecode,
    JsDecode,
    Length,
    Lowercase,
    NormalizePath,
    NormalizePathWin,
    ParityEven7bit,
    ParityOdd7bit,
    ParityZero7bit,
    RemoveComments,
    RemoveCommentsChar,
    RemoveNulls,
    RemoveWhitespace,
    ReplaceComments,
    ReplaceNulls,
    SqlHexDecode,
    Trim,
    TrimLeft,
    TrimRight,
    Uppercase,
    UrlDecode,
    UrlDecodeUni,
    UrlEncode,
    Utf8ToUnicode,
}

impl Transform {
    /// The transformation with this SecLang name, ignoring case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "base64decode" | "base64decodeext" => Self::Base64Decode,
            "base64encode" => Self::Base64Encode,
            "cmdline" => Self::CmdLine,
            "compresswhitespace" => Self::CompressWhitespace,
            "cssdecode" => Self::CssDecode,
            "escapeseqdecode" => Self::EscapeSeqDecode,
            "hexdecode" => Self::HexDecode,
            "hexencode" => Self::HexEncode,
            "htmlentitydecode" => Self::HtmlEntityDecode,
            "jsdecode" => Self::JsDecode,
            "length" => Self::Length,
            "lowercase" => Self::Lowercase,
            "normalizepath" | "normalisepath" => Self::NormalizePath,
            "normalizepathwin" | "normalisepathwin" => Self::NormalizePathWin,
            "parityeven7bit" => Self::ParityEven7bit,
            "parityodd7bit" => Self::ParityOdd7bit,
            "parityzero7bit" => Self::ParityZero7bit,
            "removecomments" => Self::RemoveComments,
            "removecommentschar" => Self::RemoveCommentsChar,
            "removenulls" => Self::RemoveNulls,
            "removewhitespace" => Self::RemoveWhitespace,
            "replacecomments" => Self::ReplaceComments,
            "replacenulls" => Self::ReplaceNulls,
            "sqlhexdecode" => Self::SqlHexDecode,
            "trim" => Self::Trim,
            "trimleft" => Self::TrimLeft,
            "trimright" => Self::TrimRight,
            "uppercase" => Self::Uppercase,
            "urldecode" => Self::UrlDecode,
            "urldecodeuni" => Self::UrlDecodeUni,
            "urlencode" => Self::UrlEncode,
            "utf8tounicode" => Self::Utf8ToUnicode,
            _ => return None,
        })
    }

    /// The transformed value; borrowed if nothing changed.
    #[must_use]
    pub fn apply<'a>(self, value: &'a [u8]) -> Cow<'a, [u8]> {
        let has = |byte: u8| memchr::memchr(byte, value).is_some();
        let changed = match self {
            Self::Lowercase => value
                .iter()
                .any(u8::is_ascii_uppercase)
                .then(|| value.to_ascii_lowercase()),
            Self::RemoveNulls => {
                has(0).then(|| value.iter().copied().filter(|b| *b != 0).collect())
            }
            Self::ReplaceNulls => has(0).then(|| {
                value
                    .iter()
                    .map(|b| if *b == 0 { b' ' } else { *b })
                    .collect()
            }),
            Self::RemoveWhitespace => value
                .iter()
                .any(|b| is_space(*b))
                .then(|| value.iter().copied().filter(|b| !is_space(*b)).collect()),
            Self::CompressWhitespace => compress(value),
            Self::Trim => return Cow::Borrowed(trim_right(trim_left(value))),
            Self::TrimLeft => return Cow::Borrowed(trim_left(value)),
            Self::TrimRight => return Cow::Borrowed(trim_right(value)),
            Self::Uppercase => value
                .iter()
                .any(u8::is_ascii_lowercase)
                .then(|| value.to_ascii_uppercase()),
            Self::Length => Some(value.len().to_string().into_bytes()),
            Self::UrlDecode => (has(b'%') || has(b'+')).then(|| url_decode(value, false)),
            Self::UrlDecodeUni => (has(b'%') || has(b'+')).then(|| url_decode(value, true)),
            Self::HtmlEntityDecode => has(b'&').then(|| html_decode(value)),
            Self::JsDecode => has(b'\\').then(|| js_decode(value)),
            Self::EscapeSeqDecode => has(b'\\').then(|| escape_decode(value)),
            Self::CssDecode => has(b'\\').then(|| css_decode(value)),
            Self::RemoveCommentsChar => {
                (has(b'*') || has(b'-') || has(b'#')).then(|| remove_comment_marks(value))
            }
            Self::ReplaceComments => {
                memchr::memmem::find(value, b"/*").map(|_| replace_comments(value))
            }
            Self::CmdLine => Some(command_line(value)),
            Self::NormalizePath => has(b'/').then(|| normalize_path(value)),
            Self::NormalizePathWin => (has(b'/') || has(b'\\')).then(|| {
                let slashes: Vec<u8> = value
                    .iter()
                    .map(|b| if *b == b'\\' { b'/' } else { *b })
                    .collect();
                normalize_path(&slashes)
            }),
            Self::RemoveComments => {
                (has(b'*') || has(b'-') || has(b'#')).then(|| remove_comments(value))
            }
            Self::Base64Decode => Some(codec::base64_decode(value)),
            Self::Base64Encode => Some(codec::base64_encode(value)),
            Self::HexDecode => Some(codec::hex_decode(value).unwrap_or_default()),
            Self::HexEncode => Some(codec::hex_encode(value)),
            Self::SqlHexDecode => {
                memchr::memmem::find(value, b"0").map(|_| codec::sql_hex_decode(value))
            }
            Self::UrlEncode => Some(codec::url_encode(value)),
            Self::ParityEven7bit => Some(codec::parity(value, 0)),
            Self::ParityOdd7bit => Some(codec::parity(value, 1)),
            Self::ParityZero7bit => Some(value.iter().map(|b| b & 0x7f).collect()),
            Self::Utf8ToUnicode => (!value.is_ascii()).then(|| utf8_to_unicode(value)),
        };
        changed.map_or(Cow::Borrowed(value), Cow::Owned)
    }
}

/// C's `isspace`, and the non-breaking space of Latin-1.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | 9..=13)
}

fn compress(value: &[u8]) -> Option<Vec<u8>> {
    let odd = |pair: &[u8]| is_space(pair[0]) && (pair[0] != b' ' || is_space(pair[1]));
    let last = value.last().is_some_and(|b| is_space(*b) && *b != b' ');
    if !last && !value.windows(2).any(odd) {
        return None;
    }
    let mut out = Vec::with_capacity(value.len());
    let mut before = false;
    for byte in value {
        let space = is_space(*byte);
        if !space {
            out.push(*byte);
        } else if !before {
            out.push(b' ');
        }
        before = space;
    }
    Some(out)
}

/// The number that these hexadecimal digits represent, if all of them are valid.
fn hex(digits: Option<&[u8]>) -> Option<u32> {
    digits?.iter().try_fold(0, |value, digit| {
        Some(value << 4 | char::from(*digit).to_digit(16)?)
    })
}

/// A code point as one byte: full-width forms of ASCII become ASCII, as on servers that fold them; others keep the low
/// byte.
fn narrow(code: u32) -> u8 {
    match code {
        0xff01..=0xff5e => (code - 0xff01 + 0x21) as u8,
        _ => (code & 0xff) as u8,
    }
}

/// A code point mapped as by servers that only know ASCII: marks that resemble an ASCII mark become that mark.
fn best_fit(code: u32) -> u8 {
    match code {
        0x2b9 | 0x2bb | 0x2bc | 0x2c8 | 0x2018..=0x201b | 0x2032 => b'\'',
        0x2ba | 0x201c..=0x201f | 0x2033 => b'"',
        0x2010..=0x2015 | 0x2212 => b'-',
        0x2039 | 0x2329 | 0x3008 => b'<',
        0x203a | 0x232a | 0x3009 => b'>',
        0x2044 | 0x2215 => b'/',
        0x2216 => b'\\',
        0x2223 => b'|',
        0x2236 => b':',
        0x2217 => b'*',
        0x37e => b';',
        _ => narrow(code),
    }
}

fn url_decode(value: &[u8], unicode: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                if unicode
                    && matches!(after.first(), Some(b'u' | b'U'))
                    && let Some(code) = hex(after.get(1..5))
                {
                    out.push(best_fit(code));
                    rest = &after[5..];
                } else if let Some(code) = hex(after.get(..2)) {
                    out.push(code as u8);
                    rest = &after[2..];
                } else {
                    out.push(b'%');
                }
            }
            _ => out.push(byte),
        }
    }
    out
}

fn html_decode(value: &[u8]) -> Vec<u8> {
    const NAMED: [(&[u8], u8); 12] = [
        (b"quot", b'"'),
        (b"amp", b'&'),
        (b"lt", b'<'),
        (b"gt", b'>'),
        (b"nbsp", b' '),
        (b"apos", b'\''),
        (b"tab", b'\t'),
        (b"newline", b'\n'),
        (b"colon", b':'),
        (b"lpar", b'('),
        (b"rpar", b')'),
        (b"sol", b'/'),
    ];
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'&' {
            out.push(byte);
            continue;
        }
        let (decoded, length) = match after {
            [b'#', b'x' | b'X', digits @ ..] => {
                let length = digits
                    .iter()
                    .take(8)
                    .take_while(|b| b.is_ascii_hexdigit())
                    .count();
                (
                    hex(digits.get(..length)).filter(|_| length > 0).map(narrow),
                    2 + length,
                )
            }
            [b'#', digits @ ..] => {
                let length = digits
                    .iter()
                    .take(8)
                    .take_while(|b| b.is_ascii_digit())
                    .count();
                let code = digits[..length]
                    .iter()
                    .fold(0, |n, d| n * 10 + u32::from(d - b'0'));
                ((length > 0).then(|| narrow(code)), 1 + length)
            }
            _ => {
                let same = |(name, _): &&(&[u8], u8)| {
                    after
                        .get(..name.len())
                        .is_some_and(|a| a.eq_ignore_ascii_case(name))
                };
                match NAMED.iter().find(same) {
                    Some((name, byte)) => (Some(*byte), name.len()),
                    None => (None, 0),
                }
            }
        };
        let Some(decoded) = decoded else {
            out.push(byte);
            continue;
        };
        out.push(decoded);
        rest = &after[length..];
        if let Some(after) = rest.strip_prefix(b";") {
            rest = after;
        }
    }
    out
}

/// The escapes of C: a letter, or up to three octal digits.
fn plain_escape(after: &[u8]) -> (u8, usize) {
    match after {
        [digit @ b'0'..=b'7', ..] => {
            let most = if *digit <= b'3' { 3 } else { 2 };
            let length = after
                .iter()
                .take(most)
                .take_while(|b| matches!(b, b'0'..=b'7'))
                .count();
            let code = after[..length]
                .iter()
                .fold(0_u32, |n, d| n * 8 + u32::from(d - b'0'));
            ((code & 0xff) as u8, length)
        }
        [letter, ..] => {
            let byte = match letter {
                b'a' => 7,
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'v' => 11,
                other => *other,
            };
            (byte, 1)
        }
        [] => (b'\\', 0),
    }
}

fn js_decode(value: &[u8]) -> Vec<u8> {
    escapes(value, |after| match after {
        [b'u', b'{', digits @ ..] => {
            let length = digits
                .iter()
                .take(8)
                .take_while(|b| b.is_ascii_hexdigit())
                .count();
            let closed = digits.get(length) == Some(&b'}') && length > 0;
            closed
                .then(|| Some((narrow(hex(digits.get(..length))?), length + 3)))
                .flatten()
        }
        [b'u', digits @ ..] => hex(digits.get(..4)).map(|code| (narrow(code), 5)),
        [b'x', digits @ ..] => hex(digits.get(..2)).map(|code| (code as u8, 3)),
        _ => None,
    })
}

fn escape_decode(value: &[u8]) -> Vec<u8> {
    escapes(value, |after| match after {
        [b'x' | b'X', digits @ ..] => hex(digits.get(..2)).map(|code| (code as u8, 3)),
        // Of three digits that exceed a byte the low byte is kept.
        [b'0'..=b'7', b'0'..=b'7', b'0'..=b'7', ..] => {
            let digits = after.iter().take(3);
            let code = digits.fold(0_u32, |code, digit| code << 3 | u32::from(digit - b'0'));
            Some(((code & 0xff) as u8, 3))
        }
        _ => None,
    })
}

fn escapes(value: &[u8], special: impl Fn(&[u8]) -> Option<(u8, usize)>) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'\\' {
            let (decoded, length) = special(after).unwrap_or_else(|| plain_escape(after));
            out.push(decoded);
            rest = &after[length..];
        } else {
            out.push(byte);
        }
    }
    out
}

fn css_decode(value: &[u8]) -> Vec<u8> {
    escapes(value, |after| {
        let length = after
            .iter()
            .take(6)
            .take_while(|b| b.is_ascii_hexdigit())
            .count();
        if length == 0 {
            return after.first().map(|byte| (*byte, 1));
        }
        let space = usize::from(after.get(length).is_some_and(|b| is_space(*b)));
        Some((narrow(hex(after.get(..length))?), length + space))
    })
}

/// Replaces each C comment by a space, also an unterminated one.
fn replace_comments(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(start) = memchr::memmem::find(rest, b"/*") {
        out.extend_from_slice(&rest[..start]);
        out.push(b' ');
        let inside = &rest[start + 2..];
        rest = match memchr::memmem::find(inside, b"*/") {
            Some(end) => &inside[end + 2..],
            None => &[],
        };
    }
    out.extend_from_slice(rest);
    out
}

fn trim_left(value: &[u8]) -> &[u8] {
    let start = value.iter().position(|b| !is_space(*b));
    &value[start.unwrap_or(value.len())..]
}

fn trim_right(value: &[u8]) -> &[u8] {
    let end = value.iter().rposition(|b| !is_space(*b));
    &value[..end.map_or(0, |end| end + 1)]
}

/// Removes comments of C and HTML, and of SQL from two hyphens or a hash on; an unterminated one leaves a space.
fn remove_comments(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((byte, after)) = rest.split_first() {
        let ends = [(&b"/*"[..], &b"*/"[..]), (b"<!--", b"-->")];
        let within = ends
            .iter()
            .find_map(|(begin, end)| Some((rest.strip_prefix(*begin)?, *end)));
        if let Some((inside, end)) = within {
            rest = match memchr::memmem::find(inside, end) {
                Some(at) => &inside[at + end.len()..],
                None => {
                    out.push(b' ');
                    &[]
                }
            };
        } else if rest.starts_with(b"--") || *byte == b'#' {
            break;
        } else {
            out.push(*byte);
            rest = after;
        }
    }
    out
}

/// Removes comment marks, but not the text between them.
fn remove_comment_marks(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((byte, after)) = rest.split_first() {
        let marks = [&b"<!--"[..], b"-->", b"/*", b"*/", b"--", b"#"];
        let mark = marks.iter().find_map(|mark| rest.strip_prefix(*mark));
        if mark.is_none() {
            out.push(*byte);
        }
        rest = mark.unwrap_or(after);
    }
    out
}

/// Normalises a command line: removes `\ " ' ^`, replaces `, ;` and white space by one space, removes spaces before
/// `/ (`, and folds to lower case.
fn command_line(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for byte in value {
        match byte {
            b'\\' | b'"' | b'\'' | b'^' => {}
            b' ' | b',' | b';' | b'\t' | b'\r' | b'\n' => {
                if out.last() != Some(&b' ') {
                    out.push(b' ');
                }
            }
            b'/' | b'(' => {
                if out.last() == Some(&b' ') {
                    out.pop();
                }
                out.push(*byte);
            }
            other => out.push(other.to_ascii_lowercase()),
        }
    }
    out
}

/// Removes `//`, `/./` and, where possible, `/x/../`.
fn normalize_path(value: &[u8]) -> Vec<u8> {
    let mut segments: Vec<&[u8]> = Vec::new();
    let absolute = value.first() == Some(&b'/');
    let mut directory = false;
    for segment in value.split(|b| *b == b'/') {
        directory = segment.is_empty();
        match segment {
            b"" | b"." => {}
            b".." => match segments.last() {
                Some(last) if *last != b".." => {
                    segments.pop();
                }
                _ if absolute => {}
                _ => segments.push(segment),
            },
            _ => segments.push(segment),
        }
    }
    let mut out = Vec::with_capacity(value.len());
    if absolute {
        out.push(b'/');
    }
    out.extend_from_slice(&segments.join(&b'/'));
    if directory && !segments.is_empty() {
        out.push(b'/');
    }
    out
}

/// Writes characters that are not ASCII as `%uXXXX`.
fn utf8_to_unicode(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() * 2);
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_ascii() {
                out.push(c as u8);
            } else {
                out.extend_from_slice(format!("%u{:04x}", u32::from(c)).as_bytes());
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(transform: Transform, value: &[u8]) -> String {
        String::from_utf8_lossy(&transform.apply(value)).into_owned()
    }

    #[test]
    fn each_transformation_normalises() {
        use Transform as T;
        for (transform, value, expected) in [
            (
                T::UrlDecodeUni,
                &b"%27+or%u0020%uff1cscript%zz%4"[..],
                "' or <script%zz%4",
            ),
            (T::UrlDecode, b"%u0041%41", "%u0041A"),
            (
                T::HtmlEntityDecode,
                b"&lt;&#x3C;&#60&#0000060;&Tab;&quot;&unknown;&",
                "<<<<\t\"&unknown;&",
            ),
            (
                T::JsDecode,
                b"\\x3cscript\\u003e\\u{61}\\141\\n\\q\\",
                "<script>aa\nq\\",
            ),
            (
                T::CssDecode,
                b"e\\78 pression\\0000 28",
                "expression\u{0}28",
            ),
            (T::EscapeSeqDecode, b"\\x2fbin\\057", "/bin/"),
            (T::ReplaceComments, b"un/**/ion/*x", "un ion "),
            (T::RemoveCommentsChar, b"a/*b*/c--d#<!--e-->-", "abcde-"),
            (T::CompressWhitespace, b"a \t\r\nb\t", "a b "),
            (T::RemoveWhitespace, b" a\tb\n", "ab"),
            (T::RemoveNulls, b"a\0b", "ab"),
            (T::ReplaceNulls, b"a\0b", "a b"),
            (T::CmdLine, b"C^at  /e\"t\"c,;x ( y", "cat/etc x( y"),
            (
                T::NormalizePath,
                b"/a/./b//../../../etc/passwd",
                "/etc/passwd",
            ),
            (T::NormalizePath, b"../../a/../b/", "../../b/"),
            (T::NormalizePathWin, b"..\\..\\a\\.\\b", "../../a/b"),
            (T::Base64Decode, b"PHNjcmlwdD4=", "<script>"),
            (T::Utf8ToUnicode, "a\u{ff1c}b".as_bytes(), "a%uff1cb"),
            (T::Lowercase, b"AbC", "abc"),
            (T::Length, b"abc", "3"),
            (T::Trim, b" a ", "a"),
        ] {
            assert_eq!(after(transform, value), expected, "{transform:?}");
        }
    }

    #[test]
    fn plain_text_is_not_copied() {
        use Transform as T;
        for transform in [
            T::UrlDecodeUni,
            T::HtmlEntityDecode,
            T::JsDecode,
            T::CssDecode,
            T::Lowercase,
            T::CompressWhitespace,
            T::RemoveNulls,
            T::ReplaceComments,
            T::Utf8ToUnicode,
        ] {
            let value = transform.apply(b"plain words and 1,234 numbers");
            assert!(matches!(value, Cow::Borrowed(_)), "{transform:?}");
        }
    }
}
