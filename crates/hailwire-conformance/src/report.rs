//! What the driver says: a line for each case, as text or JSON, and the list of cases as a page.

use std::fmt::Write as _;

use serde_json::json;

use crate::{case::CaseGroup, runner::CaseResult};

/// Lines of the peer's stderr that are shown below a case that failed.
const STDERR_LINES: usize = 12;

/// One line for people; below one that failed, what the peer wrote to stderr last.
pub(crate) fn line(result: &CaseResult) -> String {
    let name = result.case.name;
    let took = result.took.as_secs_f64();
    let note = match result.note.as_str() {
        "" => String::new(),
        note => format!(" ({note})"),
    };
    let mut out = match &result.outcome {
        Ok(()) => format!("passed  {name} {took:.2} s{note}\n"),
        Err(failure) => format!("FAILED  {name} {took:.2} s{note}: {failure}\n"),
    };
    if result.outcome.is_err() {
        let lines: Vec<&str> = result.stderr.lines().collect();
        let beyond = lines.len().saturating_sub(STDERR_LINES);
        for line in lines.iter().skip(beyond) {
            let _ = writeln!(out, "        | {line}");
        }
    }
    out
}

/// One line of JSON.
pub(crate) fn json_line(result: &CaseResult) -> String {
    let failure = result.outcome.as_ref().err().map(ToString::to_string);
    let value = json!({
        "case": result.case.name,
        "passed": result.outcome.is_ok(),
        "failure": failure,
        "note": result.note,
        "seconds": (result.took.as_secs_f64() * 1000.0).round() / 1000.0,
        "stderr": result.stderr,
    });
    format!("{value}\n")
}

/// What is said at the end.
pub(crate) fn summary(passed: usize, failed: &[&str]) -> String {
    match failed {
        [] => format!("{passed} passed\n"),
        failed => format!(
            "{passed} passed, {} failed: {}\n",
            failed.len(),
            failed.join(", ")
        ),
    }
}

/// The names of the cases, one on each line.
pub(crate) fn list(groups: &[CaseGroup]) -> String {
    let cases = groups.iter().flat_map(|group| &group.cases);
    cases.fold(String::new(), |all, case| {
        format!("{all}{}: {}\n", case.name, case.claim)
    })
}

/// The list as the page `spec/conformance/cases.md`.
pub(crate) fn page(groups: &[CaseGroup]) -> String {
    let count: usize = groups.iter().map(|group| group.cases.len()).sum();
    let mut page = format!(
        "# Cases of the conformance driver\n\n\
         What `hail-conformance` checks, in {count} cases; [README.md](README.md) says how it is run and what its peer is. \
         `hail-conformance --list --markdown` writes this page.\n"
    );
    for group in groups {
        let _ = write!(
            page,
            "\n## {}\n\n| case | what is checked |\n|---|---|\n",
            group.title
        );
        for case in &group.cases {
            let _ = writeln!(page, "| `{}` | {} |", case.name, case.claim);
        }
    }
    page
}
