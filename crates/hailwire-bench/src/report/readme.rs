//! The figures of the README and of docs/figures.md, generated from kept results.
//!
//! The rows of docs/figures.md follow a rule that it states: [`HEADLINES`] names one or a few rows of each published table and of
//! callouts from end to end, and [`WORST_ROWS`] rows are those in which Hailwire is furthest behind, whichever they are. Each is
//! shown with every baseline that did the same work in the same run. The README has three of the headlines: the best, the one in
//! the middle and the worst. [`replaced`] puts a [`FiguresPage`] between its marks; `./x pages` writes both pages so, and a
//! test holds them equal.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use super::{
    baseline_comparison::{self, BaselineComparison},
    cell_index::{CellIndex, CellKey},
    figure, page,
    result_folder::ResultFolder,
    spread::{DifferenceVerdict, RatioSpread, times},
    subjects,
};
use crate::{
    BenchError,
    tables::{self, callout, form, subject},
    targets::TARGETS,
};

/// Where results are kept, from the root of the repository.
const RESULTS: &str = "bench/results";

/// The suites whose reports are published. Of each the newest whole run is taken.
pub(super) const SUITES: [&str; 3] = ["coordination", "overlay", "callout"];

/// How many rows of all reports are shown because Hailwire is furthest behind in them.
const WORST_ROWS: usize = 3;

/// A page with figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiguresPage {
    /// Every headline, the worst rows and the targets.
    Figures,
    /// The best, the middle and the worst headline.
    Readme,
}

impl FiguresPage {
    /// The path from the root of the repository.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Figures => "docs/figures.md",
            Self::Readme => "README.md",
        }
    }

    /// The lines before and after the figures.
    const fn marks(self) -> [&'static str; 2] {
        match self {
            Self::Figures => [
                "<!-- figures: written by ./x pages from bench/results -->",
                "<!-- end of figures -->",
            ],
            Self::Readme => [
                "<!-- three figures: written by ./x pages from bench/results -->",
                "<!-- end of three figures -->",
            ],
        }
    }
}

const HEAD: &str =
    "| row | Hailwire | beside it in the same run (Hailwire ÷ it) |\n|---|---|---|\n";

/// A row that is always shown.
pub(super) struct HeadlineRow {
    /// Of which suite.
    pub(super) suite: &'static str,
    /// Of which table.
    pub(super) table: &'static str,
    row: &'static str,
    form: &'static str,
    network: &'static str,
    figure: &'static str,
    ours: &'static str,
    /// Others to show beside those that a report compares ours with: subject and form.
    also: &'static [(&'static str, &'static str)],
    /// Its name for people.
    pub(super) words: &'static str,
}

const fn headline(
    suite: &'static str,
    [table, row, form, network]: [&'static str; 4],
    figure: &'static str,
    ours: &'static str,
    words: &'static str,
) -> HeadlineRow {
    HeadlineRow {
        suite,
        table,
        row,
        form,
        network,
        figure,
        ours,
        also: &[],
        words,
    }
}

/// One of a table of the coordination suite, of the QUIC carrier.
const fn q(at: [&'static str; 4], figure: &'static str, words: &'static str) -> HeadlineRow {
    headline("coordination", at, figure, subject::QUIC, words)
}

/// One of the overlay suite.
const fn o(at: [&'static str; 4], figure: &'static str, words: &'static str) -> HeadlineRow {
    headline("overlay", at, figure, subject::QUIC, words)
}

/// One of callouts between two processes, in MessagePack.
const fn ce(row: &'static str, figure: &'static str, words: &'static str) -> HeadlineRow {
    let at = ["CE", row, "msgpack", "loopback"];
    headline("callout", at, figure, callout::OURS_OURS, words)
}

const TRANSATLANTIC: &str = "transatlantic-85ms";
const RATE: &str = "messages_per_s";
const MANY_AGENTS: &str = "1,000 agents";

/// In the order of the published tables.
pub(super) const HEADLINES: &[HeadlineRow] = &[
    q(
        ["Q1", tables::ONE_AGENT, form::COLD, "wan-50ms"],
        "p50_us",
        "first call to a machine, 50 ms away",
    ),
    q(
        ["Q1", tables::ONE_AGENT, form::ZERO_RTT, "wan-50ms"],
        "p50_us",
        "the same, met before (0-RTT)",
    ),
    q(
        ["Q1", "1,000 agents, 100 ms", form::COLD_POOLED, "wan-100ms"],
        "p50_us",
        "1,000 agents called at once, 100 ms away, not yet connected",
    ),
    q(
        ["Q2", tables::SMALL_CALLS, form::POOLED, "loopback"],
        RATE,
        "64 calls of 1 KB in flight, loopback",
    ),
    q(
        [
            "Q2",
            "1,000 agents × 100 KB, 0 ms",
            form::POOLED,
            "loopback",
        ],
        RATE,
        "1,000 agents × 100 KB, loopback",
    ),
    q(
        ["Q3", MANY_AGENTS, form::POOLED, "loopback"],
        RATE,
        "small messages of 1,000 agents, each a stream, loopback",
    ),
    q(
        ["Q4", MANY_AGENTS, form::POOLED, "loopback"],
        "added_rss_bytes",
        "memory that 1,000 agents add on one connection, both ends",
    ),
    q(
        ["Q4", MANY_AGENTS, form::PER_AGENT, "loopback"],
        "added_rss_bytes",
        "memory that 1,000 agents add on a connection each (for Hailwire 1,000 nodes), both ends",
    ),
    q(
        ["Q5", MANY_AGENTS, form::POOLED, "loopback"],
        "cpu_us_per_message",
        "processor time for each message, 1,000 agents × 100 KB, both ends",
    ),
    q(
        ["Q6", tables::UNDER_LOSS, form::POOLED, "wan-50ms-loss1"],
        "p99_us",
        "p99 of 200 small calls a second, 50 ms away, 1 % lost each way",
    ),
    headline(
        "coordination",
        ["Q7", "100 ms, 200 Mbit/s", form::POOLED, "longfat"],
        "megabytes_per_s",
        "quic bbr",
        "bulk over 200 Mbit/s, 100 ms away",
    ),
    q(
        ["Q8", MANY_AGENTS, "50 connections", "loopback"],
        RATE,
        "1,000 agents over 50 connections, loopback",
    ),
    q(
        ["Q10", "critical", form::POOLED, "narrow"],
        "p50_us",
        "a critical message where others fill a narrow network",
    ),
    o(
        ["O1", "opened", form::WARM, TRANSATLANTIC],
        "p50_us",
        "a stream opened on a live tunnel, nothing answered yet",
    ),
    o(
        ["O2", "50 agents, serial", form::COLD, TRANSATLANTIC],
        "all_us",
        "50 agents one after the other, 85 ms away, not yet connected",
    ),
    o(
        ["O3", "100 KB", form::WARM, TRANSATLANTIC],
        "p50_us",
        "100 KB there and back, 85 ms away, tunnel up",
    ),
    o(
        ["O4", "1 MB", form::WARM, TRANSATLANTIC],
        "p50_us",
        "1 MB there and back, 85 ms away, tunnel up",
    ),
    o(
        ["O5", "100 peers", "", "loopback"],
        "server_rss_bytes",
        "memory of a server with 100 peers connected",
    ),
    o(
        ["O6", "throughput, direct", "", "home-open"],
        "megabytes_per_s",
        "bulk to a home whose port is open",
    ),
    headline(
        "callout",
        [
            "C12",
            "selection path, MessagePack",
            callout::ALONE,
            "loopback",
        ],
        "ns_per_op",
        callout::OURS,
        "all that a callout does but the socket",
    ),
    HeadlineRow {
        also: &[(callout::RAW, callout::BLOCKING)],
        ..ce(
            callout::ONE,
            "p50_us",
            "a callout, one at a time, both programs on one CPU",
        )
    },
    ce(
        callout::MANY,
        RATE,
        "callouts, 64 in flight over four Unix sockets",
    ),
    HeadlineRow {
        also: &[(callout::RAW, callout::BLOCKING)],
        ..ce(
            callout::BODY[0],
            "gibibytes_per_s",
            "bodies of 64 KiB shown to an agent, 64 in flight",
        )
    },
    HeadlineRow {
        also: &[(callout::RAW, callout::BLOCKING)],
        ..ce(
            callout::BODY[1],
            "gibibytes_per_s",
            "bodies of 10 MiB shown to an agent, one at a time",
        )
    },
    HeadlineRow {
        also: &[(callout::UDP, "msgpack")],
        ..headline(
            "callout",
            [
                "CF",
                "headers, 1 in flight, wan-50ms",
                "msgpack",
                "wan-50ms",
            ],
            "p50_us",
            callout::FAR,
            "a callout to an agent on another node, 50 ms away",
        )
    },
];

/// A page's text with the current figures between its marks.
///
/// # Errors
///
/// The text has no marks, a suite has no whole run below the root of the repository, or a run lacks a headline.
pub fn replaced(of: FiguresPage, text: &str, root: &Path) -> Result<String, BenchError> {
    let wrong = || BenchError::Invalid("the page has no marks around the figures".to_owned());
    let [begin, end] = of.marks();
    let (before, rest) = text.split_once(begin).ok_or_else(wrong)?;
    let (_, after) = rest.split_once(end).ok_or_else(wrong)?;
    let runs = SUITES
        .into_iter()
        .map(|suite| Ok((suite, newest(root, suite)?)))
        .collect::<Result<Vec<_>, BenchError>>()?;
    let figures = match of {
        FiguresPage::Figures => table(&runs)?,
        FiguresPage::Readme => three(&runs)?,
    };
    Ok(format!("{before}{begin}\n{figures}{end}{after}"))
}

/// A suite, and where its newest run is.
pub(super) type SuiteRun = (&'static str, (PathBuf, ResultFolder));

/// The newest whole run of a suite, from the root of the repository.
fn newest(root: &Path, suite: &str) -> Result<(PathBuf, ResultFolder), BenchError> {
    let run = newest_in(&root.join(RESULTS), suite)?;
    let run = run.map(|(path, folder)| (Path::new(RESULTS).join(path), folder));
    run.ok_or_else(|| BenchError::Invalid(format!("no whole run of {suite} is kept")))
}

/// The newest whole run of a suite in a folder of runs, from that folder; `None` where there is none.
pub(super) fn newest_in(
    results: &Path,
    suite: &str,
) -> Result<Option<(PathBuf, ResultFolder)>, BenchError> {
    let listed = fs::read_dir(results).map_err(BenchError::io(results.display().to_string()))?;
    let mut names: Vec<_> = listed.flatten().map(|entry| entry.file_name()).collect();
    // Names begin with the date.
    names.sort();
    for name in names.into_iter().rev() {
        let path = Path::new(&name).join(suite);
        let dir = results.join(&path);
        if dir.join("raw.jsonl").is_file() {
            let folder = ResultFolder::read(&dir)?;
            if folder.fact("state").as_deref() == Some("whole") {
                return Ok(Some((path, folder)));
            }
        }
    }
    Ok(None)
}

fn cells(runs: &[SuiteRun]) -> Vec<(&'static str, CellIndex<'_>)> {
    runs.iter()
        .map(|(suite, (_, folder))| (*suite, CellIndex::of(folder)))
        .collect()
}

/// Each headline with its row, and by how much Hailwire leads the best baseline in it; less than 1 where it is behind.
fn headlines(suites: &[(&'static str, CellIndex<'_>)]) -> Result<Vec<(String, f64)>, BenchError> {
    let row = |one: &HeadlineRow| {
        let cells = suites.iter().find(|(suite, _)| *suite == one.suite);
        cells
            .and_then(|(_, cells)| Some((one.row(cells)?, one.lead(cells)?)))
            .ok_or_else(|| {
                BenchError::Invalid(format!("no figure for “{}” ({})", one.words, one.table))
            })
    };
    HEADLINES.iter().map(row).collect()
}

/// The best headline, the one in the middle and the worst.
fn three(runs: &[SuiteRun]) -> Result<String, BenchError> {
    let mut rows = headlines(&cells(runs))?;
    rows.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let shown = [0, rows.len() / 2, rows.len() - 1];
    let shown = shown.iter().filter_map(|at| rows.get(*at));
    Ok(shown.fold(HEAD.to_owned(), |out, (row, _)| out + row))
}

fn table(runs: &[SuiteRun]) -> Result<String, BenchError> {
    let mut out = String::new();
    for (suite, (path, folder)) in runs {
        let fact = |name: &str| folder.fact(name).unwrap_or_default();
        let _ = writeln!(
            out,
            "- {suite}: [report](../{}/report.md) of {}, on {}, revision {}",
            path.display(),
            page::when(folder).split(' ').next().unwrap_or_default(),
            fact("cpu"),
            fact("revision"),
        );
    }
    let suites = cells(runs);
    let _ = write!(out, "\n{HEAD}");
    for (row, _) in headlines(&suites)? {
        out += &row;
    }
    let all: Vec<(usize, BaselineComparison)> = (0..)
        .zip(&suites)
        .flat_map(|(n, (_, cells))| {
            baseline_comparison::all(cells)
                .into_iter()
                .map(move |one| (n, one))
        })
        .collect();
    let _ = write!(
        out,
        "\nThe {WORST_ROWS} rows in which it is furthest behind, of all {} that the three reports compare, each row once:\n\n\
         {HEAD}",
        figure::number(all.len() as f64)
    );
    for (n, one) in worst(&all) {
        if let Some((_, cells)) = suites.get(*n) {
            out += &worst_row(cells, one);
        }
    }
    out += &targets(runs.iter().map(|(suite, (_, folder))| (*suite, folder)));
    Ok(out)
}

/// Those in which we are furthest behind, beyond the spread: of each row the figure and the baseline with the largest gap.
fn worst(all: &[(usize, BaselineComparison)]) -> Vec<&(usize, BaselineComparison)> {
    let mut behind: Vec<_> = all
        .iter()
        .filter(|(_, one)| one.verdict == DifferenceVerdict::Worse)
        .collect();
    behind.sort_by(|(_, a), (_, b)| a.lead.total_cmp(&b.lead));
    let mut worst: Vec<&(usize, BaselineComparison)> = Vec::new();
    for one in behind {
        let cell_key =
            |of: &(usize, BaselineComparison)| (of.0, of.1.cell_key(), of.1.network.clone());
        if worst.len() < WORST_ROWS && worst.iter().all(|other| cell_key(other) != cell_key(one)) {
            worst.push(one);
        }
    }
    worst
}

fn worst_row(cells: &CellIndex<'_>, one: &BaselineComparison) -> String {
    let cell_key = CellKey {
        table: &one.table,
        row: &one.row,
        subject: &one.ours,
        form: &one.form,
        network: &one.network,
    };
    let words = format!(
        "{}, {}: {}",
        one.cell_key(),
        one.network,
        figure::label(&one.figure)
    );
    let baseline = compared(cells, cell_key);
    row(cells, cell_key, &one.figure, &words, &baseline).unwrap_or_default()
}

impl HeadlineRow {
    fn row(&self, cells: &CellIndex<'_>) -> Option<String> {
        let (ours, baseline) = self.compared(cells);
        row(cells, ours, self.figure, self.words, &baseline)
    }

    /// Of its baselines the best decides.
    fn lead(&self, cells: &CellIndex<'_>) -> Option<f64> {
        let (ours, baseline) = self.compared(cells);
        let better = figure::better(self.figure)?;
        let our = cells.values(ours, self.figure);
        let leads = baseline.into_iter().filter_map(|theirs| {
            let ratio = RatioSpread::paired(&our, &cells.values(theirs, self.figure))?;
            Some(ratio.lead(better))
        });
        leads.min_by(f64::total_cmp)
    }

    /// Its figure beside the best of its baselines; nothing where one of them is not measured.
    pub(super) fn best_other(&self, cells: &CellIndex<'_>) -> Option<BaselineComparison> {
        let (ours, baseline) = self.compared(cells);
        let one = |theirs| baseline_comparison::compare_cell(cells, ours, theirs, self.figure);
        let all = baseline.into_iter().filter_map(one);
        all.min_by(|a, b| a.lead.total_cmp(&b.lead))
    }

    /// The cell of ours, and those to show beside it.
    fn compared<'a>(&self, cells: &CellIndex<'a>) -> (CellKey<'a>, Vec<CellKey<'a>>) {
        let cell_key = CellKey {
            table: self.table,
            row: self.row,
            subject: self.ours,
            form: self.form,
            network: self.network,
        };
        let mut baseline = compared(cells, cell_key);
        baseline.extend(self.also.iter().map(|(subject, form)| CellKey {
            subject,
            form,
            ..cell_key
        }));
        (cell_key, baseline)
    }
}

/// The baselines that did the same work as one of our subjects, in the order in which reports show them.
fn compared<'a>(cells: &CellIndex<'a>, ours: CellKey<'a>) -> Vec<CellKey<'a>> {
    let mut baseline: Vec<_> = cells
        .measured()
        .filter(|cell_key| cell_key.with("") == ours.with(""))
        .filter(|cell_key| subjects::compared(ours.subject, cell_key.subject))
        .collect();
    baseline.sort_by_key(|cell_key| subjects::order(cell_key.subject));
    baseline
}

/// Nothing where ours has no such figure.
fn row(
    cells: &CellIndex<'_>,
    ours: CellKey<'_>,
    name: &str,
    words: &str,
    baseline: &[CellKey<'_>],
) -> Option<String> {
    let (our, _) = cells.spread(ours, name)?;
    let others: Vec<String> = baseline
        .iter()
        .filter_map(|theirs| {
            let (their, _) = cells.spread(*theirs, name)?;
            let ratio =
                RatioSpread::paired(&cells.values(ours, name), &cells.values(*theirs, name))?;
            let mut factor = format!("{} ×", times(ratio.spread.median));
            if ratio.verdict(figure::better(name)?) == DifferenceVerdict::Worse {
                factor = format!("**{factor}**");
            }
            let who = named(theirs.subject);
            Some(format!(
                "{who} {} ({factor})",
                figure::text(name, their.median)
            ))
        })
        .collect();
    Some(format!(
        "| {words} | {}{} | {} |\n",
        variant(ours.subject),
        figure::text(name, our.median),
        others.join(", ")
    ))
}

/// A baseline for people.
fn named(subject: &str) -> String {
    let (name, congestion) = match subject.rsplit_once(' ') {
        Some((name, congestion @ ("bbr" | "cubic"))) => (name, congestion),
        _ => (subject, ""),
    };
    let name = match name {
        subject::PLAIN_H2 => "plain HTTP/2",
        subject::PLAIN_WS => "plain WebSocket",
        callout::THEIRS | callout::THEIRS_THEIRS => "`zentinel-agent-protocol`",
        callout::RAW => "its bytes alone, with blocking calls",
        callout::UDP => "UDP back and forth",
        other => other,
    };
    format!("{name} {}", congestion.to_uppercase())
        .trim_end()
        .to_owned()
}

/// A prefix for one of our subjects that is not the default of a node.
fn variant(subject: &str) -> String {
    match subject {
        subject::H2 => "over HTTP/2 ".to_owned(),
        subject::WS => "over WebSocket ".to_owned(),
        subject => subject
            .strip_prefix("quic ")
            .map_or(String::new(), |congestion| {
                format!("{} ", congestion.to_uppercase())
            }),
    }
}

/// How many targets are met, and which are not.
fn targets<'a>(runs: impl Iterator<Item = (&'a str, &'a ResultFolder)>) -> String {
    let judged: Vec<page::JudgedTarget> = runs
        .flat_map(|(suite, folder)| {
            let of = TARGETS
                .iter()
                .filter(move |target| target.of.suite == suite);
            of.map(|target| page::judge(target, folder))
        })
        .collect();
    let met = judged
        .iter()
        .filter(|target| target.met == Some(true))
        .count();
    let missed: Vec<_> = judged
        .iter()
        .filter(|target| target.met == Some(false))
        .collect();
    let mut out = format!(
        "\nOf the targets of these suites {met} are met and {} missed:\n\n",
        missed.len()
    );
    for target in missed {
        let _ = writeln!(out, "- {}: {}", target.name, target.value);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kept_page, measure::Spread, report::fixture};

    #[test]
    fn both_pages_have_the_figures_of_the_newest_kept_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for page in [FiguresPage::Figures, FiguresPage::Readme] {
            let path = root.join(page.path());
            let written = fs::read_to_string(&path).unwrap();
            let now = replaced(page, &written, &root).unwrap();
            kept_page::written(&path, &now);
        }
    }

    #[test]
    fn the_readme_has_the_best_the_middle_and_the_worst_headline() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let runs: Vec<SuiteRun> = SUITES
            .map(|suite| (suite, newest(&root, suite).unwrap()))
            .into();
        let mut rows = headlines(&cells(&runs)).unwrap();
        let readme = fs::read_to_string(root.join(FiguresPage::Readme.path())).unwrap();
        assert!(readme.contains(&format!("Of the [{} headline rows]", rows.len())));
        let page = three(&runs).unwrap();
        let shown: Vec<f64> = page
            .lines()
            .skip(2)
            .map(|line| {
                rows.iter()
                    .find(|(row, _)| row.trim_end() == line)
                    .unwrap()
                    .1
            })
            .collect();
        rows.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let leads: Vec<f64> = rows.iter().map(|(_, lead)| *lead).collect();
        assert_eq!(shown.len(), 3);
        assert_eq!(shown.first(), leads.last());
        assert_eq!(shown.last(), leads.first());
        let above = leads.iter().filter(|lead| **lead > shown[1]).count();
        assert_eq!(above, leads.len() / 2);
    }

    #[test]
    fn each_published_table_has_a_headline_or_a_reason_to_have_none() {
        let reasons = [
            (
                "Q9",
                "the published buffers are smaller than a node's windows",
            ),
            ("Q11", "shares of one process, of which there is no better"),
            ("Q12", "scores that are made of the other tables"),
            ("P", "no baseline in the same run"),
        ];
        for table in crate::report::published::tables() {
            // Parts of C12, the whole path.
            let part = table.id.starts_with('C') && !["C12", "CE", "CF"].contains(&table.id);
            let shown = HEADLINES.iter().any(|one| one.table == table.id);
            let excused = part || reasons.iter().any(|(id, _)| *id == table.id);
            assert!(shown != excused, "{}", table.id);
        }
    }

    #[test]
    fn the_newest_whole_run_of_a_suite_is_taken() {
        let root = tempfile::tempdir().unwrap();
        for (day, state) in [
            ("2026-01-01", "whole"),
            ("2026-01-02", "whole"),
            ("2026-01-03", "interrupted"),
        ] {
            let dir = root.path().join(RESULTS).join(day).join("coordination");
            fs::create_dir_all(&dir).unwrap();
            fixture::write(&dir, &fixture::entries());
            fs::write(
                dir.join("environment.json"),
                format!(r#"{{"state":"{state}"}}"#),
            )
            .unwrap();
        }
        let (path, _) = newest(root.path(), "coordination").unwrap();
        assert!(
            path.ends_with("2026-01-02/coordination"),
            "{}",
            path.display()
        );
        let missing = newest(root.path(), "overlay").unwrap_err().to_string();
        assert!(missing.contains("no whole run of overlay"), "{missing}");
    }

    #[test]
    fn the_worst_rows_are_those_furthest_behind_each_once() {
        let one = |row: &str, figure: &str, lead: f64, verdict: DifferenceVerdict| {
            let spread = Spread {
                median: 1.0,
                min: 1.0,
                max: 1.0,
            };
            let standing = BaselineComparison {
                table: "Q1".to_owned(),
                row: row.to_owned(),
                form: String::new(),
                network: "loopback".to_owned(),
                figure: figure.to_owned(),
                ours: "quic".to_owned(),
                theirs: "plain h2".to_owned(),
                our: spread,
                their: spread,
                ratio: RatioSpread { spread, count: 5 },
                verdict,
                lead,
            };
            (0, standing)
        };
        let all = [
            one("a", "p50_us", 0.5, DifferenceVerdict::Worse),
            one("b", "p50_us", 0.2, DifferenceVerdict::Worse),
            one("b", "p99_us", 0.1, DifferenceVerdict::Worse),
            one("c", "p50_us", 0.05, DifferenceVerdict::TooFew),
            one("d", "p50_us", 0.9, DifferenceVerdict::Worse),
            one("e", "p50_us", 0.8, DifferenceVerdict::Worse),
        ];
        let rows: Vec<_> = worst(&all)
            .into_iter()
            .map(|(_, one)| (one.row.as_str(), one.figure.as_str()))
            .collect();
        assert_eq!(rows, [("b", "p99_us"), ("a", "p50_us"), ("e", "p50_us")]);
    }

    #[test]
    fn only_what_stands_between_the_marks_is_written_anew() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let of = FiguresPage::Figures;
        let [begin, end] = of.marks();
        let text = format!("before\n{begin}\nold\n{end}\nafter\n");
        let page = replaced(of, &text, &root).unwrap();
        assert!(
            page.starts_with(&format!("before\n{begin}\n- coordination: ")),
            "{page}"
        );
        assert!(page.ends_with(&format!("{end}\nafter\n")), "{page}");
        assert!(!page.contains("old\n"));
        assert!(replaced(of, "no marks", &root).is_err());
    }
}
