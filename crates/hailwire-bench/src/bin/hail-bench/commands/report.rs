//! `hail bench report` and `hail bench compare`: what was measured, drawn and set side by side.

use std::path::Path;

use hailwire_bench::{
    BenchError,
    report::{self, Drawn, compare},
};
use hailwire_terminal::{failure::Failure, output::Output, text};
use serde::Serialize;

use crate::args::report::Compare;

/// Where a report is.
#[derive(Debug, Serialize)]
struct Written {
    html: String,
    markdown: String,
    summary: String,
}

/// Draws the report of a folder.
pub(super) fn draw(output: Output, dir: &Path) -> Result<(), Failure> {
    let drawn = report::draw(dir).map_err(|error| no_folder(&error))?;
    output.note(told(&drawn).trim_end());
    let written = Written {
        html: drawn.html.display().to_string(),
        markdown: drawn.markdown.display().to_string(),
        summary: drawn.summary.display().to_string(),
    };
    output.value(&written, |written| format!("{}\n", written.html))
}

/// Draws it and says nothing.
pub(super) fn write(dir: &Path) -> Result<(), Failure> {
    report::draw(dir).map_err(|error| no_folder(&error))?;
    Ok(())
}

/// The three most telling rows, and how many rows and aims came out which way.
fn told(drawn: &Drawn) -> String {
    let mut text = String::new();
    for warning in &drawn.warnings {
        text += &format!("warning: {}\n", text::one_line(warning));
    }
    for row in &drawn.telling {
        text += &format!("{}\n", text::one_line(row));
    }
    let [lost, won, same] = drawn.rows;
    let [met, missed, open] = drawn.aims;
    text += &format!(
        "rows behind a baseline: {lost}, ahead: {won}, without a difference: {same}; aims met: {met}, \
         missed: {missed}, not measured: {open}\n"
    );
    text
}

/// Compares two folders.
pub(super) fn compare(output: Output, compare: &Compare) -> Result<(), Failure> {
    let compared =
        compare::folders(&compare.before, &compare.after).map_err(|error| no_folder(&error))?;
    if let Some(path) = &compare.html {
        compared
            .write_html(path)
            .map_err(|error| Failure::general(error.told()))?;
    }
    for warning in &compared.warnings {
        output.note(&format!("warning: {}", text::one_line(warning)));
    }
    output.value(&compared, compare::Comparison::markdown)
}

fn no_folder(error: &BenchError) -> Failure {
    Failure::general(error.told())
        .hint("`hail bench run SUITE` writes a result folder, with a file raw.jsonl in it")
}
