//! Why a case failed: one line of what was expected and what came.

use std::fmt::{self, Debug, Display};

/// Characters of a value that are shown.
const MOST_SHOWN: usize = 300;

/// What was expected and what came instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(String);

/// How a case, or a step of it, ended.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Says that one thing was expected and another came.
    pub(crate) fn new(expected: impl Display, came: impl Display) -> Self {
        Self(format!("expected {expected}, came {came}"))
    }

    /// Says that the peer broke a rule, whatever the case is about.
    pub(crate) fn rule(broken: impl Display) -> Self {
        Self(format!("expected that rules are kept, came {broken}"))
    }

    /// Says that the driver itself cannot go on.
    pub(crate) fn driver(what: impl Display) -> Self {
        Self(format!("expected nothing, the driver cannot go on: {what}"))
    }

    /// The same, with the step in which it happened.
    pub(crate) fn within(self, step: impl Display) -> Self {
        Self(format!("{step}: {}", self.0))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A reason from the peer may have line breaks of its own.
        let words: Vec<&str> = self.0.split_whitespace().collect();
        f.write_str(&words.join(" "))
    }
}

/// Compares what came with what was expected.
#[expect(
    clippy::needless_pass_by_value,
    reason = "both are mostly made for this call"
)]
pub(crate) fn same<A: PartialEq<B> + Debug, B: Debug>(what: &str, expected: A, came: B) -> Outcome {
    if expected == came {
        return Ok(());
    }
    let expected = shown(format!("{expected:?}"));
    let came = shown(format!("{came:?}"));
    Err(Failure::new(format_args!("{what} {expected}"), came))
}

/// A value that fits a line.
fn shown(text: String) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Fails unless something holds.
pub(crate) fn holds(what: impl Display, is_so: bool, came: impl Debug) -> Outcome {
    match is_so {
        true => Ok(()),
        false => Err(Failure::new(what, shown(format!("{came:?}")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_that_says_both() {
        let failure = same("the code", 0, 14).map_err(|failure| failure.within("a\nstep"));
        let line = failure.map_err(|failure| failure.to_string());
        assert_eq!(line, Err("a step: expected the code 0, came 14".to_owned()));
        assert_eq!(same("a", 1, 1), Ok(()));
    }
}
