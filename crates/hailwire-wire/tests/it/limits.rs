//! `spec/limits.md` against `limits.rs`, and bounds that no other test reaches.

use std::collections::BTreeMap;

use bytes::Bytes;
use hailwire_wire::{
    Code, Status,
    directory::SearchRequest,
    frame::{self, FrameDecoder, FrameEvent, FrameKind},
    limits,
};

use crate::{links::collect, read, repository};

#[test]
fn every_constant_stands_on_the_page_with_its_value() {
    let page = page();
    let constants = constants();
    assert!(constants.len() > 15, "{constants:?}");
    for (name, value) in &constants {
        let row = page
            .get(name)
            .unwrap_or_else(|| panic!("limits.md lacks {name} = {value}"));
        assert_eq!(row.value, *value, "{name}");
    }
    for name in page.keys() {
        assert!(
            constants.contains_key(name),
            "limits.md lists {name}, which is gone"
        );
    }
}

#[test]
fn every_test_that_the_page_names_exists() {
    let mut files = Vec::new();
    collect(&repository("crates"), "rs", &mut files);
    let sources: String = files
        .iter()
        .map(|file| read(&file.display().to_string()))
        .collect();
    for (name, Row { test, .. }) in page() {
        if let Some(test) = test {
            assert!(
                sources.contains(&format!("fn {test}()")),
                "{name}: no test {test}"
            );
        }
    }
}

#[test]
fn the_largest_frame_is_read_without_being_buffered() {
    let len = limits::MAX_FRAME_PAYLOAD;
    let mut decoder = FrameDecoder::new();
    decoder.push(Bytes::copy_from_slice(&frame::prefix(FrameKind::DATA, len)));
    let chunk = Bytes::from(vec![7; 64 * 1024]);
    let mut left = len;
    while left > 0 {
        let part = chunk.slice(..left.min(chunk.len()));
        decoder.push(part.clone());
        assert_eq!(
            decoder.next_event(),
            Ok(Some(FrameEvent::Data(part.clone())))
        );
        assert_eq!(decoder.next_event(), Ok(None));
        left -= part.len();
    }
    assert_eq!(decoder.finish(), Ok(()));
}

#[test]
#[should_panic(expected = "does not fit 24 bits")]
fn a_larger_frame_cannot_be_written() {
    let _ = frame::prefix(FrameKind::DATA, limits::MAX_FRAME_PAYLOAD + 1);
}

#[test]
fn long_details_and_hints_are_cut() {
    let long = "é".repeat(limits::MAX_STATUS_DETAILS);
    let status = Status::new(Code::Internal, "broken")
        .with_hint(&*long)
        .with_details(&*long);
    assert_eq!(status.hint.len(), limits::MAX_STATUS_MESSAGE);
    assert_eq!(status.details.len(), limits::MAX_STATUS_DETAILS);
}

#[test]
fn a_search_of_too_many_words_is_refused() {
    let search = |words| SearchRequest {
        words: vec!["x".to_owned(); words],
        ..SearchRequest::default()
    };
    assert_eq!(search(limits::MAX_SEARCH_TERMS).check_bounds(), Ok(()));
    assert!(search(limits::MAX_SEARCH_TERMS + 1).check_bounds().is_err());
}

struct Row {
    value: u64,
    /// `None` where the page has a dash.
    test: Option<String>,
}

/// The rows of all tables of the page, by constant.
fn page() -> BTreeMap<String, Row> {
    let text = read("spec/limits.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, value, _, _, test, _] = cells[..] else {
            panic!("five cells: {line}")
        };
        let value = value
            .parse()
            .unwrap_or_else(|_| panic!("a plain number: {line}"));
        let test = (test != "—").then(|| test.trim_matches('`').to_owned());
        (name.trim_matches('`').to_owned(), Row { value, test })
    })
    .collect()
}

/// Names and values of `limits.rs`, read from its text, so that none can be forgotten here.
fn constants() -> BTreeMap<String, u64> {
    let source = read("crates/hailwire-wire/src/limits.rs");
    let declarations = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "));
    declarations
        .map(|line| {
            let (name, rest) = line.split_once(':').expect("a type");
            let (_, value) = rest.split_once('=').expect("a value on the same line");
            (
                name.to_owned(),
                evaluate(value.trim().trim_end_matches(';')),
            )
        })
        .collect()
}

/// Evaluates numbers with `<<`, `+`, `-`, `*` and parentheses, as Rust does.
fn evaluate(expression: &str) -> u64 {
    let expression = expression.trim();
    for operators in [&["<<"][..], &["+", "-"], &["*"]] {
        if let Some((left, operator, right)) = split_last(expression, operators) {
            let (left, right) = (evaluate(left), evaluate(right));
            return match operator {
                "<<" => left << right,
                "+" => left + right,
                "-" => left - right,
                _ => left * right,
            };
        }
    }
    match expression
        .strip_prefix('(')
        .and_then(|inner| inner.strip_suffix(')'))
    {
        Some(inner) => evaluate(inner),
        None => {
            let digits = expression.replace('_', "");
            digits
                .parse()
                .unwrap_or_else(|_| panic!("a number: {expression}"))
        }
    }
}

/// Splits at the last of some operators that stands outside parentheses.
fn split_last<'a>(text: &'a str, operators: &[&'a str]) -> Option<(&'a str, &'a str, &'a str)> {
    let outside = |at: usize| {
        let before = &text[..at];
        before.matches('(').count() == before.matches(')').count()
    };
    let found = operators
        .iter()
        .flat_map(|operator| text.match_indices(*operator));
    let (at, operator) = found
        .filter(|(at, _)| outside(*at))
        .max_by_key(|(at, _)| *at)?;
    Some((&text[..at], operator, &text[at + operator.len()..]))
}
