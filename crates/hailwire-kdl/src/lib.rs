//! Reads configuration files in [KDL 2](https://kdl.dev): a file is valid, or reading it returns its first [`TextMistake`] with
//! its position.
//!
//! The hint for an unknown name is the nearest known one; unknown names are errors, because a setting that is silently
//! ignored is worse than a program that does not start. The functions here read the arguments and children of a node; the
//! callers know which names there are.

mod file;

use std::{
    fmt, mem,
    ops::{Bound, Range, RangeBounds, RangeInclusive},
    str::FromStr,
    time::Duration,
};

pub use file::{FileError, MAX_FILE, SettingRow, read};
pub use kdl::{KdlDocument, KdlEntry, KdlIdentifier, KdlNode, KdlValue};

/// A mistake at a byte offset of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextMistake {
    /// Its position in bytes.
    pub offset: usize,
    /// What is wrong, lower case, no full stop.
    pub what: String,
    /// What to write instead; empty if there is no suggestion.
    pub hint: String,
}

impl TextMistake {
    /// A mistake without a hint.
    pub fn at(offset: usize, what: impl Into<String>) -> Self {
        Self {
            offset,
            what: what.into(),
            hint: String::new(),
        }
    }

    /// A mistake in a node as a whole.
    pub fn of(node: &KdlNode, what: impl Into<String>) -> Self {
        Self::at(node.name().span().offset(), what)
    }

    /// A mistake in one of a node's values.
    pub fn in_value(entry: &KdlEntry, what: impl Into<String>) -> Self {
        Self::at(entry.span().offset(), what)
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Its line and column in the text, both from 1; the column in characters.
    #[must_use]
    pub fn line_and_column(&self, text: &str) -> (usize, usize) {
        let mut end = self.offset.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = text.get(..end).unwrap_or_default();
        let last = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, last.chars().count() + 1)
    }
}

/// Deepest nesting of braces, and of comments. The parser calls itself for each level.
pub const MAX_DEPTH: usize = 100;

/// Deepest nesting of blocks that are commented out by `/-`. The parser reads each of them twice, and so what lies `n`
/// deep 2^n times.
pub const MAX_SLASHDASH_DEPTH: usize = 3;

/// Parses a text.
///
/// # Errors
///
/// The first syntax error, or nesting beyond [`MAX_DEPTH`] or [`MAX_SLASHDASH_DEPTH`].
pub fn document(text: &str) -> Result<KdlDocument, TextMistake> {
    check_depth(text)?;
    KdlDocument::parse_v2(text).map_err(|error| {
        let Some(first) = error.diagnostics.first() else {
            return TextMistake::at(0, "not a KDL document");
        };
        let label = first.label.as_deref().or(first.message.as_deref());
        let label = label.unwrap_or("unexpected text");
        let what = format!("not KDL: {}", label.trim_end_matches('.').to_lowercase());
        let hint = first.help.as_deref().unwrap_or("see https://kdl.dev");
        TextMistake::at(first.span.offset(), what).hint(hint)
    })
}

/// The known name that is most like an unknown one, where one is like it at all.
#[must_use]
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Counts what is open, also within strings, where a file hardly has so many braces that are never closed. A block
/// counts as commented out if `/-` stands anywhere between the brace before it and its own.
fn check_depth(text: &str) -> Result<(), TextMistake> {
    let (mut blocks, mut comments) = (Vec::new(), 0_usize);
    let mut slashdash = false;
    for (offset, pair) in text.as_bytes().windows(2).enumerate() {
        match pair {
            b"/*" => comments += 1,
            b"*/" => comments = comments.saturating_sub(1),
            b"/-" => slashdash = true,
            [b'{', _] => blocks.push(mem::take(&mut slashdash)),
            [b'}', _] => {
                blocks.pop();
                slashdash = false;
            }
            _ => continue,
        }
        if blocks.len().max(comments) > MAX_DEPTH {
            let what = format!("more than {MAX_DEPTH} braces or comments within one another");
            return Err(TextMistake::at(offset, what));
        }
        if blocks.iter().filter(|commented| **commented).count() > MAX_SLASHDASH_DEPTH {
            let what = format!(
                "more than {MAX_SLASHDASH_DEPTH} blocks commented out by `/-` within one another"
            );
            return Err(TextMistake::at(offset, what).hint("write `//` before each line instead"));
        }
    }
    Ok(())
}

/// The hint for an unknown name: the nearest known one, or all of them.
#[must_use]
pub fn suggestion(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None if known.is_empty() => String::new(),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// The mistake of a node with an unknown name in a section, or at the top level of a file (`""`).
#[must_use]
pub fn unknown(node: &KdlNode, section: &str, known: &[&str]) -> TextMistake {
    let name = node.name().value();
    let what = match section {
        "" => format!("`{name}` is not a setting"),
        _ => format!("`{name}` is not a setting of `{section}`"),
    };
    TextMistake::of(node, what).hint(suggestion(name, known))
}

/// Calls `set` for each setting of a section: only known ones, each once; the section has no arguments.
///
/// # Errors
///
/// The first mistake.
pub fn section(
    node: &KdlNode,
    name: &str,
    known: &[&str],
    set: impl FnMut(&KdlNode) -> Result<(), TextMistake>,
) -> Result<(), TextMistake> {
    if let Some(entry) = node.entries().first() {
        let what = format!("`{name}` takes its settings in braces");
        let first = known.first().copied().unwrap_or_default();
        let hint = format!("write: {name} {{ {first} … }}");
        return Err(TextMistake::in_value(entry, what).hint(hint));
    }
    settings(node, name, known, set)
}

/// Calls `set` for each child of a section: only known settings, each once.
///
/// # Errors
///
/// The first mistake.
pub fn settings(
    node: &KdlNode,
    name: &str,
    known: &[&str],
    mut set: impl FnMut(&KdlNode) -> Result<(), TextMistake>,
) -> Result<(), TextMistake> {
    let mut seen = SeenNames::default();
    for inner in node.iter_children() {
        if !known.contains(&inner.name().value()) {
            return Err(unknown(inner, name, known));
        }
        seen.once(inner)?;
        set(inner)?;
    }
    Ok(())
}

/// The names of settings that have been read, to find those that are set twice.
#[derive(Default)]
pub struct SeenNames(Vec<String>);

impl SeenNames {
    /// Records a node's name.
    ///
    /// # Errors
    ///
    /// The name has been recorded before.
    pub fn once(&mut self, node: &KdlNode) -> Result<(), TextMistake> {
        let name = node.name().value();
        if self.0.iter().any(|seen| seen == name) {
            return Err(TextMistake::of(node, format!("`{name}` is set twice")));
        }
        self.0.push(name.to_owned());
        Ok(())
    }
}

/// The single value of a setting, parsed from a string.
///
/// # Errors
///
/// Another number of values, or one that does not parse.
pub fn single<T>(node: &KdlNode) -> Result<T, TextMistake>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    value(node, only(node)?)
}

/// The values of a setting, parsed from strings: at least one, at most `max`.
///
/// # Errors
///
/// Another number of values, or one that does not parse.
pub fn several<T>(node: &KdlNode, max: usize) -> Result<Vec<T>, TextMistake>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    let entries = plain_entries(node)?;
    if entries.is_empty() || entries.len() > max {
        let what = format!("`{}` takes 1 to {max} values", node.name().value());
        return Err(TextMistake::of(node, what));
    }
    entries.iter().map(|entry| value(node, entry)).collect()
}

/// A whole number within a range.
///
/// # Errors
///
/// Another number of values, or one out of range.
pub fn number(node: &KdlNode, range: RangeInclusive<u32>) -> Result<u32, TextMistake> {
    let (least, most) = (*range.start(), *range.end());
    whole(only(node)?, range, || {
        let name = node.name().value();
        format!("`{name}` must be a whole number from {least} to {most}")
    })
}

/// A whole number within a range, from one value of a node; `what` describes the mistake otherwise.
///
/// # Errors
///
/// It is not.
pub fn whole(
    entry: &KdlEntry,
    range: impl RangeBounds<u32>,
    what: impl FnOnce() -> String,
) -> Result<u32, TextMistake> {
    let number = entry
        .value()
        .as_integer()
        .and_then(|n| u32::try_from(n).ok());
    let range = (range.start_bound(), range.end_bound()) as (Bound<&u32>, Bound<&u32>);
    number
        .filter(|n| range.contains(n))
        .ok_or_else(|| TextMistake::in_value(entry, what()))
}

/// Checks that a value lies within a range; `written` formats the bounds as in the file.
///
/// # Errors
///
/// It does not.
pub fn within<T: PartialOrd>(
    node: &KdlNode,
    given: T,
    range: RangeInclusive<T>,
    written: impl Fn(&T) -> String,
) -> Result<T, TextMistake> {
    if range.contains(&given) {
        return Ok(given);
    }
    let (least, most) = (written(range.start()), written(range.end()));
    let what = format!(
        "`{}` must be from \"{least}\" to \"{most}\"",
        node.name().value()
    );
    Err(TextMistake::of(node, what))
}

/// A boolean.
///
/// # Errors
///
/// Anything else.
pub fn yes(node: &KdlNode) -> Result<bool, TextMistake> {
    let entry = only(node)?;
    entry.value().as_bool().ok_or_else(|| {
        let what = format!("`{}` must be #true or #false", node.name().value());
        TextMistake::in_value(entry, what)
    })
}

/// One value of a node, parsed from a string.
///
/// # Errors
///
/// It is not a string, or does not parse.
pub fn value<T>(node: &KdlNode, entry: &KdlEntry) -> Result<T, TextMistake>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    let name = node.name().value();
    text(node, entry)?
        .parse()
        .map_err(|error: T::Err| TextMistake::in_value(entry, format!("`{name}`: {error}")))
}

/// One value of a node, which must be a string.
///
/// # Errors
///
/// It is not.
pub fn text<'a>(node: &KdlNode, entry: &'a KdlEntry) -> Result<&'a str, TextMistake> {
    let name = node.name().value();
    entry.value().as_string().ok_or_else(|| {
        TextMistake::in_value(entry, format!("`{name}` takes a string"))
            .hint(format!("write: {name} \"…\""))
    })
}

/// The only value of a node that has neither properties nor children.
///
/// # Errors
///
/// It has more or less.
pub fn only(node: &KdlNode) -> Result<&KdlEntry, TextMistake> {
    match plain_entries(node)? {
        [entry] => Ok(entry),
        _ => {
            let what = format!("`{}` takes exactly one value", node.name().value());
            Err(TextMistake::of(node, what))
        }
    }
}

/// The values of a setting, which must have neither properties nor children.
///
/// # Errors
///
/// It has.
pub fn plain_entries(node: &KdlNode) -> Result<&[KdlEntry], TextMistake> {
    let name = node.name().value();
    if let Some(property) = node.entries().iter().find(|entry| entry.name().is_some()) {
        let what = format!("`{name}` has no properties");
        return Err(TextMistake::in_value(property, what));
    }
    if let Some(inner) = node.iter_children().next() {
        let what = format!("`{name}` has no settings of its own");
        return Err(TextMistake::of(inner, what));
    }
    Ok(node.entries())
}

/// The only value of a node that may have properties of `known` and anything in its braces.
///
/// # Errors
///
/// Another number of values, or another property.
pub fn argument<'a>(node: &'a KdlNode, known: &[&str]) -> Result<&'a KdlEntry, TextMistake> {
    properties(node, known)?;
    let mut values = node.entries().iter().filter(|entry| entry.name().is_none());
    match (values.next(), values.next()) {
        (Some(entry), None) => Ok(entry),
        _ => {
            let what = format!("`{}` takes exactly one value", node.name().value());
            Err(TextMistake::of(node, what))
        }
    }
}

/// Sees that a node has properties of `known` only.
///
/// # Errors
///
/// Another property.
pub fn properties(node: &KdlNode, known: &[&str]) -> Result<(), TextMistake> {
    for entry in node.entries() {
        let Some(name) = entry.name().map(KdlIdentifier::value) else {
            continue;
        };
        if !known.contains(&name) {
            let what = format!("`{}` has no such property", node.name().value());
            return Err(TextMistake::in_value(entry, what).hint(suggestion(name, known)));
        }
    }
    Ok(())
}

/// Where a node stands in the text it was read from, in bytes: from its name to the end of its values or of its braces.
#[must_use]
pub fn span_of(node: &KdlNode) -> Range<usize> {
    let span = node.span();
    span.offset()..span.offset() + span.len()
}

/// Where the values of a node stand in the text, from the first to the last; behind its name where it has none.
#[must_use]
pub fn span_of_values(node: &KdlNode) -> Range<usize> {
    let entries = node.entries();
    let (first, last) = match (entries.first(), entries.last()) {
        (Some(first), Some(last)) => (first.span(), last.span()),
        _ => {
            let name = node.name().span();
            let end = name.offset() + name.len();
            return end..end;
        }
    };
    first.offset()..last.offset() + last.len()
}

/// A property of a node.
#[must_use]
pub fn property<'a>(node: &'a KdlNode, name: &str) -> Option<&'a KdlEntry> {
    let named = |entry: &&KdlEntry| entry.name().is_some_and(|own| own.value() == name);
    node.entries().iter().find(named)
}

/// A duration as it stands in a file: a number with its unit.
pub struct DurationText(pub Duration);

impl FromStr for DurationText {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text).map(Self).map_err(
            |_| "expected a number with its unit, for example \"250ms\", \"10s\" or \"1h30m\"",
        )
    }
}

/// A duration as a file writes it.
#[must_use]
pub fn written_time(time: &Duration) -> String {
    humantime::format_duration(*time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_mistake_counts_lines_and_characters() {
        let text = "// öäü\n/* é */ zzz";
        let node = document(text).unwrap().nodes()[0].clone();
        assert_eq!(TextMistake::of(&node, "x").line_and_column(text), (2, 9));
        assert_eq!(TextMistake::at(999, "x").line_and_column(text), (2, 12));
        assert_eq!(TextMistake::at(4, "x").line_and_column("öö"), (1, 3));
        assert_eq!(
            TextMistake::at(3, "x").line_and_column("öö"),
            (1, 2),
            "in a character"
        );
    }

    #[test]
    fn a_text_that_is_nested_deeply_costs_neither_the_stack_nor_time() {
        for (open, close, deepest) in [
            ("a {", "}", MAX_DEPTH),
            ("/* ", "*/", MAX_DEPTH),
            ("/-a {", "}", MAX_SLASHDASH_DEPTH),
            ("a /-{", "}", MAX_SLASHDASH_DEPTH),
            ("a 1 /- \n {", "}", MAX_SLASHDASH_DEPTH),
        ] {
            let nested = |depth| [open.repeat(depth), close.repeat(depth)].concat();
            assert!(document(&nested(deepest)).is_ok(), "{open}");
            for text in [nested(deepest + 1), open.repeat(100_000)] {
                let mistake = document(&text).unwrap_err();
                assert!(mistake.what.contains("within one another"), "{mistake:?}");
            }
        }
    }

    #[test]
    fn what_is_no_kdl_says_where() {
        let text = "a {\n  b \"c";
        let mistake = document(text).unwrap_err();
        assert!(mistake.what.starts_with("not KDL"), "{mistake:?}");
        assert_eq!(mistake.line_and_column(text).0, 2);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        assert_eq!(
            suggestion("timout", &["timeout", "mode"]),
            "did you mean `timeout`?"
        );
        assert_eq!(suggestion("zzz", &["a", "b"]), "known here: a, b");
        assert_eq!(suggestion("zzz", &[]), "");
    }
}
