//! `hail bench report` and `hail bench compare`: reports and comparisons of result folders.

use std::path::Path;

use hailwire_bench::{
    BenchError,
    report::{self, DrawnReport, compare},
};
use hailwire_terminal::{failure::CommandFailure, output::Output, text};
use serde::Serialize;

use crate::args::report::CompareArgs;

/// The output of `hail bench report`.
#[derive(Debug, Serialize)]
struct ReportFiles {
    html: String,
    markdown: String,
    summary: String,
}

/// Draws the report of a folder.
pub(super) fn draw(output: Output, dir: &Path) -> Result<(), CommandFailure> {
    let drawn = report::draw(dir).map_err(|error| no_folder(&error))?;
    output.note(output_text(&drawn).trim_end());
    let written = ReportFiles {
        html: drawn.html.display().to_string(),
        markdown: drawn.markdown.display().to_string(),
        summary: drawn.summary.display().to_string(),
    };
    output.value(&written, |written| format!("{}\n", written.html))
}

/// Writes it and prints nothing.
pub(super) fn write(dir: &Path) -> Result<(), CommandFailure> {
    report::draw(dir).map_err(|error| no_folder(&error))?;
    Ok(())
}

/// The three most telling rows, and the counts of rows and targets by result.
fn output_text(drawn: &DrawnReport) -> String {
    let mut text = String::new();
    for warning in &drawn.warnings {
        text += &format!("warning: {}\n", text::one_line(warning));
    }
    for row in &drawn.telling {
        text += &format!("{}\n", text::one_line(row));
    }
    let [lost, won, same] = drawn.rows;
    let [met, missed, open] = drawn.targets;
    text += &format!(
        "rows behind a baseline: {lost}, ahead: {won}, without a difference: {same}; targets met: {met}, \
         missed: {missed}, not measured: {open}\n"
    );
    text
}

/// Compares two folders.
pub(super) fn compare(output: Output, compare: &CompareArgs) -> Result<(), CommandFailure> {
    let compared =
        compare::folders(&compare.before, &compare.after).map_err(|error| no_folder(&error))?;
    if let Some(path) = &compare.html {
        compared
            .write_html(path)
            .map_err(|error| CommandFailure::general(error.with_cause()))?;
    }
    for warning in &compared.warnings {
        output.note(&format!("warning: {}", text::one_line(warning)));
    }
    output.value(&compared, compare::FolderComparison::markdown)
}

fn no_folder(error: &BenchError) -> CommandFailure {
    CommandFailure::general(error.with_cause())
        .hint("`hail bench run SUITE` writes a result folder, with a file raw.jsonl in it")
}
