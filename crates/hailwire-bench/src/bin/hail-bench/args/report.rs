//! `hail bench report` and `hail bench compare`.

use std::path::PathBuf;

use clap::Args;

/// Draw the report of a result folder
///
/// Writes report.html (a single self-contained file), report.md and summary.json into the folder and
/// prints the path of the page. It can be repeated at any time, also for a run that was
/// interrupted.
///
/// Of a folder of runs, RUN/SUITE below it, all reports are drawn, and index.html over all suites.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Folder that `hail bench` wrote, or a folder of runs
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Compare two result folders
///
/// Prints every figure that both have, their ratio with its spread, and whether they differ beyond
/// it. Warns when machine, kernel, revision or command differ. A comparison is not a test: the exit
/// code is 0 whichever is better.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The first folder, against which the second is measured
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The second folder
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// Also write the comparison as an HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}
