//! Detects SQL by libinjection, with a fast check that excludes most values.
//!
//! libinjection splits a value into tokens, folds them, and looks up the types of the first five in a table of 8,367
//! fingerprints. Ordinary values have only tokens that make up no fingerprint: words that SQL does not know, numbers, dates.
//! [`cannot_be_sqli`] makes one pass over a value, collects the types that its tokens can have, and looks up in a
//! table derived from libinjection's whether any fingerprint consists of these types only. It errs on one side: doubtful
//! values go to libinjection. Tests compare it with libinjection over every fingerprint, every word, and random mixtures.

use std::sync::LazyLock;

use libinjectionrs::{
    SqliFlags, SqliState,
    sqli::sqli_data::{CHAR_MAP, CharType, SQL_KEYWORDS},
};

/// Whether libinjection detects an injection in a value.
pub(super) fn detect(value: &[u8]) -> bool {
    SqliState::new(value, SqliFlags::FLAG_NONE).detect()
}

/// Longer values go to libinjection directly, which usually stops after a few words.
const MAX_CHECKED_BYTES: usize = 1_024;

/// A set of token types, as bits.
type TokenTypes = u16;

/// libinjection's letters for token types, in the order of the bits. Other types end the fast check.
const TOKEN_LETTERS: [u8; 15] = *b"n1o,;:vftAk&()s";

const fn bit(letter: u8) -> TokenTypes {
    let mut at = 0;
    while at < TOKEN_LETTERS.len() {
        if TOKEN_LETTERS[at] == letter {
            return 1 << at;
        }
        at += 1;
    }
    // `.`, `?`, `{`, `}`: no fingerprint has them.
    0
}

const WORD: TokenTypes = bit(b'n');
const NUMBER: TokenTypes = bit(b'1');
/// A token type that is not among the letters.
const OTHER: TokenTypes = 1 << 15;

/// Whether libinjection cannot detect an injection in this value.
pub(super) fn cannot_be_sqli(value: &[u8]) -> bool {
    if value.len() > MAX_CHECKED_BYTES {
        return false;
    }
    let tables = &*TABLES;
    let mut types = WORD;
    let mut at = 0;
    while let Some(&byte) = value.get(at) {
        let class = tables.classes[usize::from(byte)];
        if class & WORD_BYTE != 0 {
            let length = value[at..]
                .iter()
                .position(|byte| tables.classes[usize::from(*byte)] & WORD_BYTE == 0)
                .unwrap_or(value.len() - at);
            types |= tables.word_types(&value[at..at + length]);
            at += length;
            continue;
        }
        types |= class as TokenTypes;
        if class & LOOKS_AHEAD != 0 {
            let next = value.get(at + 1).copied().unwrap_or(0);
            types |= match (byte, next) {
                // Comments, in one dialect or all.
                (b'-', b'-') | (b'/', b'*') => OTHER,
                (b'&', b'&') | (b'|', b'|') => bit(b'&'),
                (b'$', b'0'..=b'9') => NUMBER,
                (b'$', _) => OTHER,
                _ => 0,
            };
        }
        if types & OTHER != 0 {
            return false;
        }
        at += 1;
    }
    types & OTHER == 0 && !tables.found(types)
}

/// The byte is part of a word or a number.
const WORD_BYTE: u32 = 1 << 16;
/// The token also depends on the next byte.
const LOOKS_AHEAD: u32 = 1 << 17;

/// Tables derived from libinjection's.
struct FingerprintTables {
    /// For each byte, the types of tokens that may begin with it, and [`WORD_BYTE`] and [`LOOKS_AHEAD`].
    classes: [u32; 256],
    /// Hashes of words with their possible types: a hash table whose size is a power of two, 0 for empty slots.
    words: Box<[(u64, TokenTypes)]>,
    /// One bit for each set of types: whether some fingerprint consists of these types only.
    found: Box<[u64]>,
}

static TABLES: LazyLock<FingerprintTables> = LazyLock::new(FingerprintTables::new);

impl FingerprintTables {
    fn new() -> Self {
        Self {
            classes: classes(),
            words: words(),
            found: fingerprints(),
        }
    }

    fn found(&self, types: TokenTypes) -> bool {
        let types = usize::from(types);
        self.found[types >> 6] >> (types & 63) & 1 != 0
    }

    /// The possible types of a run of letters, digits and underscores.
    fn word_types(&self, word: &[u8]) -> TokenTypes {
        let number = word.first().is_some_and(u8::is_ascii_digit);
        let mut hash = 0;
        let mut types = if number { NUMBER } else { 0 };
        if !number {
            for byte in word.iter().rev() {
                hash = step(hash, *byte);
            }
            return types | self.word(hash);
        }
        // A number ends somewhere, and a word may begin there: any suffix of the run may be a word.
        if word.iter().all(u8::is_ascii_digit) {
            return types;
        }
        for byte in word.iter().rev() {
            hash = step(hash, *byte);
            types |= self.word(hash);
        }
        types
    }

    fn word(&self, hash: u64) -> TokenTypes {
        let mask = self.words.len() - 1;
        let mut at = (hash >> 32) as usize & mask;
        loop {
            match self.words[at] {
                (0, _) => return WORD,
                (found, types) if found == hash => return types,
                _ => at = (at + 1) & mask,
            }
        }
    }
}

/// The hash of a word, computed from its end and ignoring case. A collision only costs a call of libinjection.
fn step(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte | 0x20)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn classes() -> [u32; 256] {
    let mut classes = [0; 256];
    for (byte, class) in classes.iter_mut().enumerate() {
        let byte = byte as u8;
        *class = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => WORD_BYTE,
            // A quote opens a string, which a prefix can turn into a number; it may also be in a word.
            b'\'' | b'"' => u32::from(bit(b's') | NUMBER),
            b'-' | b'/' | b'&' | b'|' => u32::from(bit(b'o')) | LOOKS_AHEAD,
            b'$' => u32::from(WORD) | LOOKS_AHEAD,
            // Either digits follow, which are recognised then, or it is a dot.
            b'.' => 0,
            b':' => u32::from(bit(b':') | bit(b'o')),
            b'@' => u32::from(bit(b'v')),
            _ => match CHAR_MAP[usize::from(byte)] {
                CharType::White | CharType::Word | CharType::BWord | CharType::Other => 0,
                CharType::Bang | CharType::Op1 | CharType::Op2 | CharType::Unary => {
                    u32::from(bit(b'o'))
                }
                CharType::LeftParens
                | CharType::RightParens
                | CharType::Comma
                | CharType::Semicolon
                | CharType::LeftBrace
                | CharType::RightBrace => u32::from(bit(byte)),
                _ => u32::from(OTHER),
            },
        };
    }
    classes
}

/// The words of libinjection's table; of phrases, the first word, from which libinjection merges them.
fn words() -> Box<[(u64, TokenTypes)]> {
    let mut words = vec![(0, 0); 4_096].into_boxed_slice();
    let mut add = |word: &str, types: TokenTypes| {
        let hash = word.bytes().rev().fold(0, step);
        let mask = words.len() - 1;
        let mut at = (hash >> 32) as usize & mask;
        while words[at].0 != 0 && words[at].0 != hash {
            at = (at + 1) & mask;
        }
        words[at].0 = hash;
        words[at].1 |= types | WORD;
    };
    for keyword in SQL_KEYWORDS {
        let kind = keyword.token_type;
        let known = TOKEN_LETTERS.contains(&kind) || matches!(kind, b'.' | b'?' | b'{' | b'}');
        let types = if known { bit(kind) } else { OTHER };
        let part = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
        let first = keyword.word.split(|c| !part(c)).next().unwrap_or_default();
        if kind != b'F' && !first.is_empty() {
            add(first, types);
        }
    }
    // Words whose type changes when tokens are folded: `IN (`, `LIKE (`, `USER (`, `; IF`, a collation before a name.
    let (function, operator) = (bit(b'f'), bit(b'o'));
    for word in [
        "USER_ID",
        "USER_NAME",
        "DATABASE",
        "PASSWORD",
        "USER",
        "CURRENT_USER",
        "CURRENT_DATE",
        "CURRENT_TIME",
        "CURRENT_TIMESTAMP",
    ] {
        add(word, function);
    }
    for word in ["LOCALTIME", "LOCALTIMESTAMP", "LIKE", "NOT"] {
        add(word, function | operator);
    }
    add("IN", operator);
    add("IF", OTHER);
    add("INTO", OTHER);
    for keyword in SQL_KEYWORDS
        .iter()
        .filter(|keyword| keyword.token_type == b'A')
    {
        add(keyword.word, bit(b't'));
    }
    words
}

/// All sets of types that contain a fingerprint. Fingerprints of three tokens with a keyword in the middle are left out:
/// libinjection accepts those unless the keyword is `INTO`, which is not among the types here.
fn fingerprints() -> Box<[u64]> {
    let sets = 1_usize << TOKEN_LETTERS.len();
    let mut found = vec![false; sets];
    for keyword in SQL_KEYWORDS
        .iter()
        .filter(|keyword| keyword.token_type == b'F')
        .filter(|keyword| !matches!(keyword.word.as_bytes(), [_, _, b'K', _]))
    {
        let letters = keyword.word.bytes().skip(1);
        // Fingerprints are in capital letters.
        let of = |letter: u8| {
            TOKEN_LETTERS
                .iter()
                .position(|own| own.to_ascii_uppercase() == letter)
        };
        let places: Option<Vec<usize>> = letters.map(of).collect();
        if let Some(places) = places {
            found[places.into_iter().fold(0, |set, place| set | 1 << place)] = true;
        }
    }
    for place in 0..TOKEN_LETTERS.len() {
        for set in 0..sets {
            found[set] |= set >> place & 1 != 0 && found[set & !(1 << place)];
        }
    }
    let word = |bits: &[bool]| {
        bits.iter()
            .rev()
            .fold(0, |word, bit| word << 1 | u64::from(*bit))
    };
    found.chunks(64).map(word).collect()
}

#[cfg(test)]
mod tests {
    use rand_pcg::rand_core::Rng as _;

    use super::*;

    fn agrees(value: &[u8]) {
        if cannot_be_sqli(value) {
            assert!(!detect(value), "{}", value.escape_ascii());
        }
    }

    #[test]
    fn ordinary_values_are_excluded() {
        for value in [
            "value of a field",
            "It's fine, really.",
            "2026-11-22T10:30:00Z",
            "first.last@example.com",
            "https://example.com/a/b?c=1",
            "9f86d081884c7d65",
            "-12.5",
            "Smith & Sons",
            "as said from here",
        ] {
            assert!(cannot_be_sqli(value.as_bytes()), "{value}");
        }
        for value in [
            "1' or '1'='1",
            "1 or 1=1",
            "a; drop table b",
            "1--",
            "x/**/",
        ] {
            assert!(!cannot_be_sqli(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn every_word_and_pair_of_words_of_its_table_is_decided_as_by_libinjection() {
        let words: Vec<&str> = SQL_KEYWORDS
            .iter()
            .filter(|keyword| keyword.token_type != b'F')
            .map(|keyword| keyword.word)
            .collect();
        let mut random = rand_pcg::Pcg32::new(1, 1);
        for (at, word) in words.iter().enumerate() {
            for frame in [
                "W", "1 W", "1 W 1", "a W b", "W(1)", "1 W(1)", "'W'1", "1W 1", "0x1W a", "a.W b",
                "W.a W", "@W W 1",
            ] {
                agrees(frame.replace('W', word).as_bytes());
                agrees(frame.replace('W', &word.to_ascii_lowercase()).as_bytes());
            }
            for _ in 0..20 {
                let other = words[random.next_u32() as usize % words.len()];
                for text in [
                    format!("1 {word} {other} 1"),
                    format!("{word} {other} a {}", words[(at + 1) % words.len()]),
                ] {
                    agrees(text.as_bytes());
                }
            }
        }
    }

    /// A text for each type of token.
    #[test]
    fn every_fingerprint_is_left_to_libinjection() {
        let text = |letter: u8| match letter {
            b'1' => "7",
            b'N' => "foo",
            b'O' => "=",
            b'&' => "and",
            b'S' => "'x'",
            b'V' => "@v",
            b'F' => "ascii",
            b'T' => "drop",
            b'E' => "select",
            b'U' => "union",
            b'K' => "as",
            b'B' => "group by",
            b'A' => "collate",
            b'C' => "/*x*/",
            other => match other {
                b'(' => "(",
                b')' => ")",
                b',' => ",",
                b';' => ";",
                b':' => ":",
                _ => "\\",
            },
        };
        let mut hits = 0;
        for keyword in SQL_KEYWORDS
            .iter()
            .filter(|keyword| keyword.token_type == b'F')
        {
            for between in [" ", "\t", ""] {
                let texts: Vec<&str> = keyword.word.bytes().skip(1).map(text).collect();
                let value = texts.join(between);
                agrees(value.as_bytes());
                agrees(value.to_ascii_uppercase().as_bytes());
                hits += usize::from(detect(value.as_bytes()));
            }
        }
        assert!(hits > 2_000, "they are fingerprints of something: {hits}");
    }

    #[test]
    fn random_mixtures_are_decided_as_by_libinjection() {
        let bits: Vec<&[u8]> = [
            "a",
            "foo",
            "1",
            "1.5",
            "0x1f",
            "0b1",
            "1e",
            "1e5",
            "9d",
            "$1",
            "$",
            "$$",
            "$a$",
            "'",
            "\"",
            "`",
            "(",
            ")",
            ",",
            ";",
            ":",
            "::",
            ":=",
            "=",
            "<",
            ">",
            "<=>",
            "!",
            "!=",
            "-",
            "--",
            "+",
            "*",
            "/",
            "/*",
            "*/",
            "%",
            "&",
            "&&",
            "|",
            "||",
            "^",
            "~",
            "#",
            "@",
            "@@",
            "{",
            "}",
            "[",
            "]",
            "\\",
            "?",
            ".",
            " ",
            " ",
            " ",
            "\n",
            "\0",
            "\u{a0}",
            "or",
            "and",
            "not",
            "in",
            "like",
            "is",
            "null",
            "true",
            "select",
            "union",
            "all",
            "from",
            "where",
            "if",
            "user",
            "password",
            "sleep",
            "ascii",
            "group",
            "by",
            "order",
            "as",
            "drop",
            "into",
            "outfile",
            "collate",
            "latin1_bin",
            "binary",
            "int",
            "between",
            "case",
            "n'",
            "e'",
            "q'(",
            "u&'",
            "b'1'",
            "x'1'",
            "e",
            "q",
            "x",
            "b",
            "n",
            "utl_inaddr.get_host_name",
            "current_user",
            "\u{e9}",
            "exists",
            "having",
            "limit",
            "xor",
            "div",
            "mod",
            "top",
            "on",
            "of",
            "for",
            "with",
            "at",
            "time",
            "date",
            "day",
            "open",
            "call",
            "set",
            "use",
            "go",
            "do",
            "begin",
            "end",
            "then",
            "when",
            "left",
            "right",
            "key",
            "table",
            "text",
            "char",
        ]
        .map(str::as_bytes)
        .to_vec();
        let mut random = rand_pcg::Pcg32::new(7, 9);
        let mut next = |below: usize| random.next_u32() as usize % below;
        let (mut spared, mut hits) = (0, 0);
        for _ in 0..400_000 {
            let mut value = Vec::new();
            let spaced = next(2) == 0;
            // Few different ones, so that what is spared is among them.
            let pool: Vec<&[u8]> = (0..1 + next(4)).map(|_| bits[next(bits.len())]).collect();
            for _ in 0..1 + next(9) {
                value.extend_from_slice(pool[next(pool.len())]);
                if spaced {
                    value.push(b' ');
                }
            }
            let hit = detect(&value);
            let spare = cannot_be_sqli(&value);
            assert!(!(hit && spare), "{}", value.escape_ascii());
            spared += usize::from(spare);
            hits += usize::from(hit);
        }
        assert!(
            spared > 20_000 && hits > 2_000,
            "{spared} spared, {hits} hits"
        );
    }
}
