//! Applies the operators of rules to values.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    byte_classes::is_word,
    seclang::{NumberComparison, Operator},
    sqli,
};

impl Operator {
    /// Whether a value, or a window of one, matches.
    pub(super) fn matches(&self, value: &[u8], first: bool) -> bool {
        match self {
            Self::Rx(regex) => regex.is_match(value),
            Self::Pm(search) => search.is_match(value),
            Self::Contains(part) => memchr::memmem::find(value, part).is_some(),
            Self::BeginsWith(part) => first && value.starts_with(part),
            Self::EndsWith(part) => value.ends_with(part),
            Self::Equals(whole) => first && value == &whole[..],
            Self::Within(text) => memchr::memmem::find(text, value).is_some(),
            // Most values need no call of libinjection: one word cannot be an injection, and every script that it detects
            // contains one of these marks.
            Self::DetectSqli => {
                first
                    && !value.iter().copied().all(is_word)
                    && !sqli::cannot_be_sqli(value)
                    && sql(value)
            }
            Self::DetectXss => memchr::memchr3(b'<', b'=', b'`', value).is_some() && xss(value),
            Self::OutsideBytes(allowed) => value.iter().any(|byte| !allowed[usize::from(*byte)]),
            Self::BadUrlEncoding => bad_url_encoding(value),
            Self::Number(how, wanted) => {
                let text = String::from_utf8_lossy(value);
                let number = text.trim().parse::<i64>().unwrap_or(0);
                match how {
                    NumberComparison::Eq => number == *wanted,
                    NumberComparison::Ge => number >= *wanted,
                    NumberComparison::Gt => number > *wanted,
                    NumberComparison::Le => number <= *wanted,
                    NumberComparison::Lt => number < *wanted,
                }
            }
            Self::Unconditional => true,
        }
    }

    /// What it captures from a value that it matches: the whole match, and the groups.
    pub(super) fn captures(&self, value: &[u8]) -> Vec<Option<Vec<u8>>> {
        match self {
            Self::Rx(regex) => {
                let groups = regex.captures(value);
                let text =
                    |group: Option<regex::bytes::Match<'_>>| group.map(|g| g.as_bytes().to_vec());
                groups
                    .iter()
                    .flat_map(|groups| groups.iter().map(text))
                    .collect()
            }
            Self::Pm(search) => {
                let found = search
                    .find(value)
                    .map(|found| value[found.range()].to_vec());
                vec![found]
            }
            _ => vec![Some(value.to_vec())],
        }
    }

    /// The same without shortcuts.
    pub(super) fn matches_without_shortcuts(&self, value: &[u8], first: bool) -> bool {
        match self {
            Self::DetectSqli => first && sql(value),
            Self::DetectXss => xss(value),
            _ => self.matches(value, first),
        }
    }
}

fn sql(value: &[u8]) -> bool {
    true_on_panic(|| sqli::detect(value))
}

fn xss(value: &[u8]) -> bool {
    true_on_panic(|| libinjectionrs::detect_xss(value).is_injection())
}

/// A detector that panics on a value has not found it harmless.
pub(super) fn true_on_panic(detect: impl Fn() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(detect)).unwrap_or(true)
}

fn bad_url_encoding(value: &[u8]) -> bool {
    memchr::memchr_iter(b'%', value).any(|at| {
        let digits = value.get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}
