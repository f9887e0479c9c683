//! The front page over all suites of a folder of runs: twelve rows, chosen by a rule that it states, and links to the reports.
//!
//! Of each suite the newest whole run is taken, as in [`super::readme`]. The page is written beside the runs, and a test holds
//! the kept one equal to what the kept results give.

use std::{fs, path::Path};

use maud::{Markup, html};

use super::{
    baseline_comparison::{self, BaselineComparison},
    cell_index::CellIndex,
    figure, html as page,
    page::when,
    readme::{self, HEADLINES, SUITES, SuiteRun},
    result_folder::ResultFolder,
    subjects,
};
use crate::BenchError;

/// The name of the page, in the folder of runs.
pub(crate) const NAME: &str = "index.html";

/// Rows of each suite that are questions of published tables; one more is a row in which Hailwire is behind.
const QUESTIONS: usize = 3;

/// How the rows are chosen, as the page says it.
const RULE: &str = "Four rows of each suite, from its newest whole run. Three are questions of the published tables: of the \
     suite's first three tables that have a headline in docs/figures.md, the first headline of each, in the order of the tables. \
     They are not chosen by how they came out. The fourth is where Hailwire loses: of all other figures in which it is behind \
     beyond the spread, sorted by how far, the one in the middle (of two in the middle the one further behind). Processor time \
     counted by the tick is left out there. Beside Hailwire stands the best of what did the same work in the same run. Bytes over a \
     Unix socket and UDP back and forth are floors: what the same bytes take when nothing is done with them.";

/// One row of the page.
struct FrontRow {
    /// The suite.
    suite: &'static str,
    /// What was asked, for people.
    words: String,
    /// Hailwire beside the best other program.
    compared: BaselineComparison,
    /// What runs the row again.
    command: String,
}

/// The page of a folder of runs.
///
/// # Errors
///
/// The folder cannot be listed, or the lines of a run cannot be read.
pub(crate) fn page(results: &Path) -> Result<String, BenchError> {
    let mut runs: Vec<SuiteRun> = Vec::new();
    let mut absent = Vec::new();
    for suite in SUITES {
        match readme::newest_in(results, suite)? {
            Some(run) => runs.push((suite, run)),
            None => absent.push(suite),
        }
    }
    let rows: Vec<FrontRow> = runs.iter().flat_map(rows).collect();
    let names: Vec<&str> = runs.iter().map(|(suite, _)| *suite).collect();
    let body = html! {
        header {
            p.over { "Hailwire bench" }
            h1 { "Hailwire beside other programs" }
            p.sentence {
                "Hailwire and the plain programs of the same protocols did the same work in turns on one machine: "
                (rows.len()) " rows of the suites " (names.join(", ")) ", each with the best of the others."
            }
        }
        main {
            section id="rows" {
                h2 { "Headline rows" }
                (page::scroll("Headline rows", &table(&rows)))
                h3 { "How these rows were chosen" }
                p { (RULE) }
                p { "A figure is the median of its repeats, the spread is from the least to the most. The ratio is Hailwire's figure \
                     divided by the other's, taken repeat by repeat; ▲ and ▼ stand where every pair lies on the same side of 1." }
                p { "Commands run on a machine of your own; those that name an emulated network need root. They measure all rows \
                     of the suite on that network." }
            }
            section id="runs" {
                h2 { "The runs behind them" }
                ul { @for (suite, (path, folder)) in &runs { li {
                    a href=(format!("{}/report.html", path.display())) { (suite) } ", " (when(folder))
                    @for name in ["cpu", "revision"] { @if let Some(fact) = folder.fact(name) { ", " (fact) } }
                } } }
                @for suite in absent { p { "No whole run of " (suite) " is kept here." } }
                h3 { "All reports" }
                ul { @for path in reports(results)? { li { a href=(format!("{path}/report.html")) { (path) } } } }
            }
        }
    };
    Ok(page::whole("Hailwire bench: all suites", &body))
}

fn table(rows: &[FrontRow]) -> Markup {
    html! {
        table.front.stack {
            thead { tr { @for name in ["question", "Hailwire", "best other", "ratio and spread", "run it again"] {
                th scope="col" { (name) }
            } } }
            tbody { @for row in rows { @let one = &row.compared; tr {
                th scope="row" { (row.words) span.sub { (row.suite) " " (one.table) ", " (one.network) ", " (figure::label(&one.figure)) } }
                (page::cell("Hailwire", "value", &html! {
                    (figure::text(&one.figure, one.our.median)) span.sub { (figure::range(&one.figure, &one.our)) }
                    span.sub { (subjects::words(&one.ours)) }
                }))
                (page::cell("best other", "value", &html! {
                    (figure::text(&one.figure, one.their.median)) span.sub { (figure::range(&one.figure, &one.their)) }
                    span.sub { (subjects::words(&one.theirs)) }
                }))
                (page::cell("ratio and spread", "value", &html! {
                    (one.ratio.text())
                    span class=(format!("sub {}", page::class(one.verdict))) { (page::times(one)) }
                    span.sub { "of " (one.ratio.count) @if one.ratio.count == 1 { " pair" } @else { " pairs" } }
                }))
                (page::cell("run it again", "text", &html! { code { @for word in row.command.split(' ') { span.word { (word) } " " } } }))
            } } }
        }
    }
}

/// The rows of a suite: its questions, then where it loses.
fn rows((suite, (_, folder)): &SuiteRun) -> Vec<FrontRow> {
    let cells = CellIndex::of(folder);
    let mut rows: Vec<FrontRow> = Vec::new();
    for headline in HEADLINES.iter().filter(|one| one.suite == *suite) {
        let asked = rows.iter().any(|row| row.compared.table == headline.table);
        if rows.len() == QUESTIONS || asked {
            continue;
        }
        if let Some(compared) = headline.best_other(&cells) {
            rows.push(FrontRow {
                suite,
                words: headline.words.to_owned(),
                command: command(folder, suite, &compared.network),
                compared,
            });
        }
    }
    let all = baseline_comparison::all(&cells);
    let others: Vec<&BaselineComparison> = baseline_comparison::best_others(&all)
        .into_iter()
        .filter(|one| rows.iter().all(|row| !row.compared.same_figure(one)))
        .collect();
    rows.extend(
        baseline_comparison::middle_loss(&others).map(|one| FrontRow {
            suite,
            words: format!("where it loses: {}", one.cell_key()),
            command: command(folder, suite, &one.network),
            compared: one.clone(),
        }),
    );
    rows
}

/// What measures the rows of a suite on a network again, with as much work as the kept run.
fn command(folder: &ResultFolder, suite: &str, network: &str) -> String {
    let typed = folder.fact("command").unwrap_or_default();
    let full = typed.split(' ').any(|word| word == "--full");
    let amount = if full { " --full" } else { "" };
    format!("hail bench run {suite}{amount} --network {network}")
}

/// The folders of runs that have lines, from the folder of all: `2026-11-22-two-cores/overlay`, the newest first.
pub(crate) fn reports(results: &Path) -> Result<Vec<String>, BenchError> {
    let mut found = Vec::new();
    for run in folders(results)? {
        let dir = results.join(&run);
        for suite in folders(&dir)? {
            if dir.join(&suite).join("raw.jsonl").is_file() {
                found.push(format!("{run}/{suite}"));
            }
        }
    }
    found.sort_by(|a, b| {
        let of = |path: &str| path.split('/').next().unwrap_or_default().to_owned();
        of(b).cmp(&of(a)).then_with(|| a.cmp(b))
    });
    Ok(found)
}

/// Names of the folders in a folder.
fn folders(dir: &Path) -> Result<Vec<String>, BenchError> {
    let listed = fs::read_dir(dir).map_err(BenchError::io(dir.display().to_string()))?;
    Ok(listed
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kept_page, report::fixture};

    fn kept() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results")
    }

    #[test]
    fn the_kept_front_page_is_that_of_the_kept_results() {
        kept_page::written(&kept().join(NAME), &page(&kept()).unwrap());
    }

    #[test]
    fn twelve_rows_are_three_questions_and_a_loss_of_each_suite() {
        for suite in SUITES {
            let run = readme::newest_in(&kept(), suite).unwrap().unwrap();
            let rows = rows(&(suite, run));
            assert_eq!(rows.len(), QUESTIONS + 1, "{suite}");
            let tables: std::collections::BTreeSet<&str> = rows[..QUESTIONS]
                .iter()
                .map(|row| row.compared.table.as_str())
                .collect();
            assert_eq!(tables.len(), QUESTIONS, "{suite}");
            assert!(rows[QUESTIONS].compared.lead < 1.0, "{suite}");
            for row in &rows {
                assert!(row.command.starts_with(&format!("hail bench run {suite} ")));
            }
        }
    }

    #[test]
    fn a_folder_with_one_suite_has_its_rows_and_says_which_suites_it_lacks() {
        let results = tempfile::tempdir().unwrap();
        let dir = results.path().join("2026-01-02/coordination");
        fs::create_dir_all(&dir).unwrap();
        fixture::write(&dir, &fixture::entries());
        fs::write(dir.join("environment.json"), r#"{"state":"whole"}"#).unwrap();
        let page = page(results.path()).unwrap();
        assert!(page.contains("No whole run of overlay is kept here."));
        assert!(page.contains("2026-01-02/coordination/report.html"));
        assert!(page.contains("<span class=\"word\">--network</span>"));
    }
}
