//! `hail bench report` and `hail bench compare`: reports and comparisons of result folders.

use std::path::{Path, PathBuf};

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

/// The output of `hail bench report` for a folder of runs.
#[derive(Debug, Serialize)]
struct FrontFiles {
    index: String,
    reports: Vec<String>,
}

/// Draws the report of a folder; of a folder of runs all of them, and the front page.
pub(super) fn draw(output: Output, dir: &Path) -> Result<(), CommandFailure> {
    if report::is_folder_of_runs(dir) {
        return draw_all(output, dir);
    }
    let drawn = report::draw(dir).map_err(|error| no_folder(&error))?;
    output.note(output_text(&drawn).trim_end());
    let written = ReportFiles {
        html: drawn.html.display().to_string(),
        markdown: drawn.markdown.display().to_string(),
        summary: drawn.summary.display().to_string(),
    };
    output.value(&written, |written| format!("{}\n", written.html))
}

fn draw_all(output: Output, results: &Path) -> Result<(), CommandFailure> {
    let drawn =
        report::draw_all(results).map_err(|error| CommandFailure::general(error.with_cause()))?;
    let shown = |path: &PathBuf| path.display().to_string();
    let written = FrontFiles {
        index: shown(&drawn.index),
        reports: drawn.reports.iter().map(shown).collect(),
    };
    output.note(&format!("reports drawn: {}", written.reports.len()));
    output.value(&written, |written| format!("{}\n", written.index))
}

/// Writes it and prints nothing.
pub(super) fn write(dir: &Path) -> Result<(), CommandFailure> {
    report::draw(dir).map_err(|error| no_folder(&error))?;
    Ok(())
}

/// The rows at the top of the page, and the counts of rows and targets by result.
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
