//! Parses operators and their arguments.

use std::path::Path;

use regex::bytes::{Regex, RegexBuilder};

use super::{NumberComparison, Operator};
use crate::waf::{
    byte_classes::ByteClassSet,
    prefilter::{AtomBoundary, PrefilterAtom, required},
};

/// An operator with a plain text or a number as argument.
pub(in crate::waf) fn simple_operator(name: &str, argument: &str) -> Option<Operator> {
    let bytes = argument.as_bytes().to_vec();
    let number = |how| Some(Operator::Number(how, argument.trim().parse().ok()?));
    match name.to_ascii_lowercase().as_str() {
        "contains" => Some(Operator::Contains(bytes)),
        "beginswith" => Some(Operator::BeginsWith(bytes)),
        "endswith" => Some(Operator::EndsWith(bytes)),
        "streq" => Some(Operator::Equals(bytes)),
        "within" => Some(Operator::Within(bytes)),
        "eq" => number(NumberComparison::Eq),
        "ge" => number(NumberComparison::Ge),
        "gt" => number(NumberComparison::Gt),
        "le" => number(NumberComparison::Le),
        "lt" => number(NumberComparison::Lt),
        _ => None,
    }
}

/// Atoms of which every match contains one, if there are any.
pub(super) type RequiredAtoms = Option<Vec<PrefilterAtom>>;

type ParsedOperator = (Operator, bool, RequiredAtoms);

pub(super) fn parse_operator(
    text: &str,
    directory: Option<&Path>,
) -> Result<ParsedOperator, String> {
    let text = text.trim();
    let (negated, text) = match text.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (name, argument) = match text.strip_prefix('@') {
        Some(rest) => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        None => ("rx", text),
    };
    let argument = argument.trim_start();
    if argument.contains("%{") {
        return Err("macro in the operator".to_owned());
    }
    let bytes = argument.as_bytes().to_vec();
    let own = |before, after| {
        let atom = atom(argument.as_bytes())?;
        Some(vec![PrefilterAtom {
            before,
            after,
            ..atom
        }])
    };
    let classes = |classes| Some(vec![PrefilterAtom::classes(classes)]);
    let number = |how| {
        argument
            .trim()
            .parse()
            .map(|n| Operator::Number(how, n))
            .map_err(|_| format!("\"{argument}\" is not a number"))
    };
    let lower = name.to_ascii_lowercase();
    let (operator, atoms) = match lower.as_str() {
        "rx" => {
            let (regex, atoms) = regex(argument)?;
            (Operator::Rx(regex), atoms)
        }
        "pm" => {
            let words: Vec<String> = argument.split_whitespace().map(str::to_owned).collect();
            phrases(&words)?
        }
        "pmfromfile" | "pmf" => phrases(&phrase_files(argument, directory)?)?,
        "contains" => (
            Operator::Contains(bytes),
            own(AtomBoundary::Anything, AtomBoundary::Anything),
        ),
        "beginswith" => (
            Operator::BeginsWith(bytes),
            own(AtomBoundary::Value, AtomBoundary::Anything),
        ),
        "endswith" => (
            Operator::EndsWith(bytes),
            own(AtomBoundary::Anything, AtomBoundary::Value),
        ),
        "streq" => (
            Operator::Equals(bytes),
            own(AtomBoundary::Value, AtomBoundary::Value),
        ),
        "within" => (Operator::Within(bytes), None),
        // A single word is not SQL, and all scripts that libinjection detects contain one of these marks.
        "detectsqli" => (
            Operator::DetectSqli,
            classes(ByteClassSet::ALL.without(ByteClassSet::WORD)),
        ),
        "detectxss" => (Operator::DetectXss, classes(ByteClassSet::bytes(b"<=`"))),
        "validatebyterange" => {
            let allowed = byte_set(argument)?;
            let outside: Vec<u8> = (0..=255).filter(|b| !allowed[usize::from(*b)]).collect();
            (
                Operator::OutsideBytes(allowed),
                classes(ByteClassSet::bytes(&outside)),
            )
        }
        "validateurlencoding" => (Operator::BadUrlEncoding, classes(ByteClassSet::byte(b'%'))),
        "unconditionalmatch" => (Operator::Unconditional, None),
        "eq" => (number(NumberComparison::Eq)?, None),
        "ge" => (number(NumberComparison::Ge)?, None),
        "gt" => (number(NumberComparison::Gt)?, None),
        "le" => (number(NumberComparison::Le)?, None),
        "lt" => (number(NumberComparison::Lt)?, None),
        _ => return Err(format!("operator {name}")),
    };
    Ok((operator, negated, atoms))
}

/// A text as an atom; `None` if it is empty, since every text contains it.
fn atom(text: &[u8]) -> Option<PrefilterAtom> {
    match text {
        [] => None,
        // Its class, ignoring case.
        [byte] => Some(PrefilterAtom::classes(ByteClassSet::byte(
            byte.to_ascii_lowercase(),
        ))),
        text => Some(PrefilterAtom::text(text)),
    }
}

/// Parses a set of bytes: numbers and ranges, separated by commas.
fn byte_set(text: &str) -> Result<Box<[bool; 256]>, String> {
    let mut allowed = Box::new([false; 256]);
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (Ok(from), Ok(to)) = (from.trim().parse::<u8>(), to.trim().parse::<u8>()) else {
            return Err(format!("\"{text}\" is not a set of bytes"));
        };
        for byte in from..=to {
            allowed[usize::from(byte)] = true;
        }
    }
    Ok(allowed)
}

fn phrase_files(names: &str, directory: Option<&Path>) -> Result<Vec<String>, String> {
    let directory = directory.ok_or("a file in rules that have no directory")?;
    let mut phrases = Vec::new();
    for name in names.split_whitespace() {
        let text = std::fs::read_to_string(directory.join(name))
            .map_err(|error| format!("file {name}: {error}"))?;
        let line = |line: &str| {
            let line = line.trim();
            (!line.is_empty() && !line.starts_with('#')).then(|| line.to_owned())
        };
        phrases.extend(text.lines().filter_map(line));
    }
    Ok(phrases)
}

fn phrases(phrases: &[String]) -> Result<(Operator, RequiredAtoms), String> {
    let search = aho_corasick::AhoCorasickBuilder::new()
        .ascii_case_insensitive(true)
        .build(phrases)
        .map_err(|error| error.to_string())?;
    let atoms = phrases
        .iter()
        .map(|phrase| atom(phrase.as_bytes()))
        .collect();
    Ok((Operator::Pm(search), atoms))
}

/// The most memory of one compiled expression.
const MAX_REGEX_SIZE: usize = 64 << 20;

/// Compiles a regular expression over bytes, in which `.` is any byte and `$` the very end, with its atoms.
pub(super) fn regex(pattern: &str) -> Result<(Regex, RequiredAtoms), String> {
    let pattern = from_pcre(pattern);
    let first = |error: String| {
        let line = error.lines().last().unwrap_or_default();
        format!("expression: {}", line.trim_start_matches("error: "))
    };
    let hir = regex_syntax::ParserBuilder::new()
        .unicode(false)
        .utf8(false)
        .dot_matches_new_line(true)
        .build()
        .parse(&pattern)
        .map_err(|error| first(error.to_string()))?;
    let regex = RegexBuilder::new(&pattern)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(MAX_REGEX_SIZE)
        .build()
        .map_err(|error| first(error.to_string()))?;
    Ok((regex, required(&hir)))
}

/// Translates from PCRE: `\x{ff}` is a byte; `[`, `&` and `~` in classes, and elsewhere braces that are not repetitions,
/// are literal.
pub(super) fn from_pcre(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut in_class = false;
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = after;
        match c {
            '\\' if let Some((code, tail)) = byte_code(after) => {
                out.push_str(&format!("\\x{code:0>2}"));
                rest = tail;
            }
            '\\' => {
                out.push(c);
                if let Some(escaped) = after.chars().next() {
                    out.push(escaped);
                    rest = &after[escaped.len_utf8()..];
                }
            }
            '[' if in_class && !after.starts_with(':') => out.push_str("\\["),
            '[' if in_class => {
                // A named class: `[:alpha:]`.
                let end = after.find(":]").map_or(0, |end| end + 2);
                out.push(c);
                out.push_str(&after[..end]);
                rest = &after[end..];
            }
            '[' => {
                in_class = true;
                out.push(c);
                for first in ["^]", "]", "^"] {
                    if let Some(tail) = after.strip_prefix(first) {
                        out.push_str(&first.replace(']', "\\]"));
                        rest = tail;
                        break;
                    }
                }
            }
            ']' => {
                in_class = false;
                out.push(c);
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            '{' if !in_class && !repetition(after) => out.push_str("\\{"),
            _ => out.push(c),
        }
    }
    out
}

/// The digits of `x{ff}`, and the text after it.
fn byte_code(after: &str) -> Option<(&str, &str)> {
    let (code, tail) = after.strip_prefix("x{")?.split_once('}')?;
    let digits = code.bytes().all(|b| b.is_ascii_hexdigit());
    (digits && matches!(code.len(), 1 | 2)).then_some((code, tail))
}

/// Whether a brace followed by this text is a repetition: `3}`, `3,}` or `3,5}`.
fn repetition(after: &str) -> bool {
    after.split_once('}').is_some_and(|(inside, _)| {
        let (from, to) = inside.split_once(',').unwrap_or((inside, ""));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        !from.is_empty() && digits(from) && digits(to)
    })
}
