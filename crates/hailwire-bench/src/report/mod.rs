//! Reports, generated from a result folder.
//!
//! [`draw`] reads the lines of a folder ([`result_folder`]), finds for every published row what was measured
//! ([`published`], [`table`]), compares ours with the baselines of the same run ([`spread`],
//! [`baseline_comparison`]), judges the targets, and decides the whole page before any of it is written ([`page`]).
//! The page is then written three times: as one HTML file that needs nothing else ([`html`], with plots
//! from [`charts`] and [`plot`]), as Markdown ([`markdown`]) and as JSON ([`summary`]). [`compare`] sets two
//! folders side by side, [`front`] writes the page over all suites, and [`readme`] writes the README's table of figures from the kept ones.
//!
//! It never fills gaps: a cell without a figure says why, a published figure is never computed with, and
//! a difference within the spread is reported as none.

mod baseline_comparison;
mod cell_index;
mod charts;
pub mod compare;
mod figure;
#[cfg(test)]
mod fixture;
mod front;
mod html;
mod markdown;
mod networks;
#[cfg(test)]
mod overflow;
mod page;
mod plot;
mod published;
pub mod readme;
mod result_folder;
mod scores;
mod spread;
mod subjects;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod timings;

use std::{
    fs,
    path::{Path, PathBuf},
};

use page::ReportPage;
use result_folder::ResultFolder;
pub use spread::DifferenceVerdict;

use crate::BenchError;

/// A report that was written, and what to tell the user.
#[derive(Clone, Debug)]
pub struct DrawnReport {
    /// The page.
    pub html: PathBuf,
    /// The same in Markdown.
    pub markdown: PathBuf,
    /// The figures, for programs.
    pub summary: PathBuf,
    /// The rows at the top of the page, a sentence each.
    pub telling: Vec<String>,
    /// Targets met, missed and not measured.
    pub targets: [usize; 3],
    /// Rows in which we are behind a baseline, ahead of one, and between which the spread hides a difference.
    pub rows: [usize; 3],
    /// What could not be read or drawn.
    pub warnings: Vec<String>,
}

/// Draws `report.html`, `report.md` and `summary.json` into a result folder, from what is there; a run that was
/// interrupted is drawn as far as it came. May be done again at any time.
///
/// # Errors
///
/// The folder has no `raw.jsonl`, or cannot be written.
pub fn draw(dir: &Path) -> Result<DrawnReport, BenchError> {
    let report = ReportPage::of(ResultFolder::read(dir)?);
    let summary = serde_json::to_string_pretty(&summary::of(&report));
    let summary = summary.map_err(|error| BenchError::Invalid(error.to_string()))? + "\n";
    let targets = |met| {
        report
            .targets
            .iter()
            .filter(|target| target.met == met)
            .count()
    };
    Ok(DrawnReport {
        html: write(dir, "report.html", &html::page(&report))?,
        markdown: write(dir, "report.md", &markdown::page(&report))?,
        summary: write(dir, "summary.json", &summary)?,
        telling: report
            .first
            .iter()
            .map(baseline_comparison::BaselineComparison::sentence)
            .collect(),
        targets: [Some(true), Some(false), None].map(targets),
        rows: [report.losses.len(), report.wins.len(), report.hidden],
        warnings: report.warnings,
    })
}

/// The front page of a folder of runs, and the reports that it links.
#[derive(Clone, Debug)]
pub struct DrawnFront {
    /// The page.
    pub index: PathBuf,
    /// The pages of the reports, the newest run first.
    pub reports: Vec<PathBuf>,
}

/// Whether a folder holds no lines itself but runs that do: `RUN/SUITE/raw.jsonl`.
#[must_use]
pub fn is_folder_of_runs(dir: &Path) -> bool {
    !dir.join("raw.jsonl").exists() && front::reports(dir).is_ok_and(|found| !found.is_empty())
}

/// Draws every report of a folder of runs, and `index.html` over all suites.
///
/// # Errors
///
/// The folder cannot be listed, or a file cannot be written.
pub fn draw_all(results: &Path) -> Result<DrawnFront, BenchError> {
    let mut reports = Vec::new();
    for path in front::reports(results)? {
        reports.push(draw(&results.join(path))?.html);
    }
    let index = results.join(front::NAME);
    fs::write(&index, front::page(results)?)
        .map_err(BenchError::io(index.display().to_string()))?;
    Ok(DrawnFront { index, reports })
}

/// Writes a file whole or not at all, so that a page being read is never half a page.
fn write(dir: &Path, name: &str, text: &str) -> Result<PathBuf, BenchError> {
    let path = dir.join(name);
    let wrong = || BenchError::io(path.display().to_string());
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(wrong())?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(wrong())?;
    let file = file.persist(&path).map_err(|error| wrong()(error.error))?;
    // A temporary file is readable by its owner only; a report gets the permissions of `raw.jsonl`.
    let like = fs::metadata(dir.join("raw.jsonl")).map(|raw| raw.permissions());
    like.and_then(|like| file.set_permissions(like))
        .map_err(wrong())?;
    Ok(path)
}
