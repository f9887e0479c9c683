//! The README's table of figures, written from kept results and never typed.
//!
//! Its rows follow a rule that the README states: [`HEADLINES`] names one or a few rows of each published table and of callouts
//! from end to end, and [`WORST`] rows are those in which Hailwire is furthest behind, whichever they are. Each stands beside
//! every baseline that did the same work in the same run. [`replaced`] puts the table between two marks of a
//! page; `./x pages` writes the README so, and a test holds the two equal.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use super::{
    cells::{Cells, Place},
    figure,
    folder::Folder,
    page,
    spread::{Ratio, Verdict, times},
    standing::{self, Standing},
    subjects,
};
use crate::{
    BenchError,
    aims::AIMS,
    tables::{self, callout, form, subject},
};

/// Where results are kept, from the root of the repository.
const RESULTS: &str = "bench/results";

/// The suites whose reports are published. Of each the newest whole run is taken.
const SUITES: [&str; 3] = ["coordination", "overlay", "callout"];

/// How many rows of all reports are shown because Hailwire is furthest behind in them.
const WORST: usize = 3;

/// The lines between which the table stands.
const MARKS: [&str; 2] = [
    "<!-- figures: written by ./x pages from bench/results -->",
    "<!-- end of figures -->",
];

/// A row that is shown whatever came of it.
struct Headline {
    suite: &'static str,
    table: &'static str,
    row: &'static str,
    form: &'static str,
    network: &'static str,
    figure: &'static str,
    ours: &'static str,
    /// Others to show beside those that a report compares ours with: subject and form.
    also: &'static [(&'static str, &'static str)],
    /// For people.
    words: &'static str,
}

const fn headline(
    suite: &'static str,
    [table, row, form, network]: [&'static str; 4],
    figure: &'static str,
    ours: &'static str,
    words: &'static str,
) -> Headline {
    Headline {
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
const fn q(at: [&'static str; 4], figure: &'static str, words: &'static str) -> Headline {
    headline("coordination", at, figure, subject::QUIC, words)
}

/// One of the overlay suite.
const fn o(at: [&'static str; 4], figure: &'static str, words: &'static str) -> Headline {
    headline("overlay", at, figure, subject::QUIC, words)
}

/// One of callouts between two processes, in MessagePack.
const fn ce(row: &'static str, figure: &'static str, words: &'static str) -> Headline {
    let at = ["CE", row, "msgpack", "loopback"];
    headline("callout", at, figure, callout::OURS_OURS, words)
}

const FAR: &str = "transatlantic-85ms";
const RATE: &str = "messages_per_s";
const MANY_AGENTS: &str = "1,000 agents";

/// In the order of the published tables.
const HEADLINES: &[Headline] = &[
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
        ["O1", "opened", form::WARM, FAR],
        "p50_us",
        "a stream opened on a live tunnel, nothing answered yet",
    ),
    o(
        ["O2", "50 agents, serial", form::COLD, FAR],
        "all_us",
        "50 agents one after the other, 85 ms away, not yet connected",
    ),
    o(
        ["O3", "100 KB", form::WARM, FAR],
        "p50_us",
        "100 KB there and back, 85 ms away, tunnel up",
    ),
    o(
        ["O4", "1 MB", form::WARM, FAR],
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
    Headline {
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
    Headline {
        also: &[(callout::RAW, callout::BLOCKING)],
        ..ce(
            callout::BODY[0],
            "gibibytes_per_s",
            "bodies of 64 KiB shown to an agent, 64 in flight",
        )
    },
    Headline {
        also: &[(callout::RAW, callout::BLOCKING)],
        ..ce(
            callout::BODY[1],
            "gibibytes_per_s",
            "bodies of 10 MiB shown to an agent, one at a time",
        )
    },
    Headline {
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

/// A page with the table of now between its marks.
///
/// # Errors
///
/// The page has no marks, a suite has no whole run below the root of the repository, or a run lacks a headline.
pub fn replaced(page: &str, root: &Path) -> Result<String, BenchError> {
    let wrong = || BenchError::Wrong("a page without the marks of the figures".to_owned());
    let (before, rest) = page.split_once(MARKS[0]).ok_or_else(wrong)?;
    let (_, after) = rest.split_once(MARKS[1]).ok_or_else(wrong)?;
    let [begin, end] = MARKS;
    Ok(format!("{before}{begin}\n{}{end}{after}", table(root)?))
}

/// The newest whole run of a suite, from the root of the repository.
fn newest(root: &Path, suite: &str) -> Result<(PathBuf, Folder), BenchError> {
    let results = root.join(RESULTS);
    let listed = fs::read_dir(&results).map_err(BenchError::io(results.display().to_string()))?;
    let mut names: Vec<_> = listed.flatten().map(|entry| entry.file_name()).collect();
    // They begin with the day.
    names.sort();
    for name in names.into_iter().rev() {
        let place = Path::new(RESULTS).join(name).join(suite);
        let dir = root.join(&place);
        if dir.join("raw.jsonl").is_file() {
            let folder = Folder::read(&dir)?;
            if folder.fact("state").as_deref() == Some("whole") {
                return Ok((place, folder));
            }
        }
    }
    Err(BenchError::Wrong(format!(
        "no whole run of {suite} is kept"
    )))
}

fn table(root: &Path) -> Result<String, BenchError> {
    let runs = SUITES
        .into_iter()
        .map(|suite| Ok((suite, newest(root, suite)?)))
        .collect::<Result<Vec<_>, BenchError>>()?;
    let mut out = String::new();
    for (suite, (place, folder)) in &runs {
        let fact = |name: &str| folder.fact(name).unwrap_or_default();
        let _ = writeln!(
            out,
            "- {suite}: [report]({}/report.md) of {}, on {}, revision {}",
            place.display(),
            page::when(folder).split(' ').next().unwrap_or_default(),
            fact("cpu"),
            fact("revision"),
        );
    }
    let suites: Vec<(&str, Cells<'_>)> = runs
        .iter()
        .map(|(suite, (_, folder))| (*suite, Cells::of(folder)))
        .collect();
    out += "\n| row | Hailwire | beside it in the same run (Hailwire ÷ it) |\n|---|---|---|\n";
    for one in HEADLINES {
        let cells = suites.iter().find(|(suite, _)| *suite == one.suite);
        let row = cells.and_then(|(_, cells)| one.row(cells)).ok_or_else(|| {
            BenchError::Wrong(format!("no figure for “{}” ({})", one.words, one.table))
        })?;
        out += &row;
    }
    let all: Vec<(usize, Standing)> = (0..)
        .zip(&suites)
        .flat_map(|(n, (_, cells))| standing::all(cells).into_iter().map(move |one| (n, one)))
        .collect();
    let _ = write!(
        out,
        "\nThe {WORST} rows in which it is furthest behind, of all {} that the three reports compare, each row once:\n\n\
         | row | Hailwire | beside it in the same run (Hailwire ÷ it) |\n|---|---|---|\n",
        figure::number(all.len() as f64)
    );
    for (n, one) in worst(&all) {
        if let Some((_, cells)) = suites.get(*n) {
            out += &worst_row(cells, one);
        }
    }
    out += &aims(runs.iter().map(|(suite, (_, folder))| (*suite, folder)));
    Ok(out)
}

/// Those in which we are furthest behind, beyond the spread: of each row the figure and the baseline with the largest gap.
fn worst(all: &[(usize, Standing)]) -> Vec<&(usize, Standing)> {
    let mut behind: Vec<_> = all
        .iter()
        .filter(|(_, one)| one.verdict == Verdict::Worse)
        .collect();
    behind.sort_by(|(_, a), (_, b)| a.lead.total_cmp(&b.lead));
    let mut worst: Vec<&(usize, Standing)> = Vec::new();
    for one in behind {
        let place = |of: &(usize, Standing)| (of.0, of.1.place(), of.1.network.clone());
        if worst.len() < WORST && worst.iter().all(|other| place(other) != place(one)) {
            worst.push(one);
        }
    }
    worst
}

fn worst_row(cells: &Cells<'_>, one: &Standing) -> String {
    let place = Place {
        table: &one.table,
        row: &one.row,
        subject: &one.ours,
        form: &one.form,
        network: &one.network,
    };
    let words = format!(
        "{}, {}: {}",
        one.place(),
        one.network,
        figure::label(&one.figure)
    );
    let beside = compared(cells, place);
    row(cells, place, &one.figure, &words, &beside).unwrap_or_default()
}

impl Headline {
    fn row(&self, cells: &Cells<'_>) -> Option<String> {
        let place = Place {
            table: self.table,
            row: self.row,
            subject: self.ours,
            form: self.form,
            network: self.network,
        };
        let mut beside = compared(cells, place);
        beside.extend(self.also.iter().map(|(subject, form)| Place {
            subject,
            form,
            ..place
        }));
        row(cells, place, self.figure, self.words, &beside)
    }
}

/// The baselines that did the same work as one of our subjects, in the order in which reports show them.
fn compared<'a>(cells: &Cells<'a>, ours: Place<'a>) -> Vec<Place<'a>> {
    let mut beside: Vec<_> = cells
        .measured()
        .filter(|place| place.with("") == ours.with(""))
        .filter(|place| subjects::compared(ours.subject, place.subject))
        .collect();
    beside.sort_by_key(|place| subjects::order(place.subject));
    beside
}

/// Nothing where ours has no such figure.
fn row(
    cells: &Cells<'_>,
    ours: Place<'_>,
    name: &str,
    words: &str,
    beside: &[Place<'_>],
) -> Option<String> {
    let (our, _) = cells.spread(ours, name)?;
    let others: Vec<String> = beside
        .iter()
        .filter_map(|theirs| {
            let (their, _) = cells.spread(*theirs, name)?;
            let ratio = Ratio::paired(&cells.values(ours, name), &cells.values(*theirs, name))?;
            let mut factor = format!("{} ×", times(ratio.spread.median));
            if ratio.verdict(figure::better(name)?) == Verdict::Worse {
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

/// What is said of one of our subjects where it is not the one that a node takes by itself.
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

/// How many aims are met, and those that are not.
fn aims<'a>(runs: impl Iterator<Item = (&'a str, &'a Folder)>) -> String {
    let judged: Vec<page::Judged> = runs
        .flat_map(|(suite, folder)| {
            let of = AIMS.iter().filter(move |aim| aim.of.suite == suite);
            of.map(|aim| page::judge(aim, folder))
        })
        .collect();
    let met = judged.iter().filter(|aim| aim.met == Some(true)).count();
    let missed: Vec<_> = judged.iter().filter(|aim| aim.met == Some(false)).collect();
    let mut out = format!(
        "\nOf the aims of these suites {met} are met and {} missed:\n\n",
        missed.len()
    );
    for aim in missed {
        let _ = writeln!(out, "- {}: {}", aim.name, aim.value);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{measure::Spread, report::fixture};

    #[test]
    fn the_readme_has_the_figures_of_the_newest_kept_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let path = root.join("README.md");
        let written = fs::read_to_string(&path).unwrap();
        let now = replaced(&written, &root).unwrap();
        if std::env::var_os("HAIL_BLESS").is_some() {
            fs::write(&path, &now).unwrap();
            return;
        }
        assert!(
            written == now,
            "README.md is stale: run ./x pages, which writes its figures from {RESULTS}"
        );
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
        let (place, _) = newest(root.path(), "coordination").unwrap();
        assert!(
            place.ends_with("2026-01-02/coordination"),
            "{}",
            place.display()
        );
        let missing = newest(root.path(), "overlay").unwrap_err().to_string();
        assert!(missing.contains("no whole run of overlay"), "{missing}");
    }

    #[test]
    fn the_worst_rows_are_those_furthest_behind_each_once() {
        let one = |row: &str, figure: &str, lead: f64, verdict: Verdict| {
            let spread = Spread {
                median: 1.0,
                min: 1.0,
                max: 1.0,
            };
            let standing = Standing {
                table: "Q1".to_owned(),
                row: row.to_owned(),
                form: String::new(),
                network: "loopback".to_owned(),
                figure: figure.to_owned(),
                ours: "quic".to_owned(),
                theirs: "plain h2".to_owned(),
                our: spread,
                their: spread,
                ratio: Ratio { spread, count: 5 },
                verdict,
                lead,
            };
            (0, standing)
        };
        let all = [
            one("a", "p50_us", 0.5, Verdict::Worse),
            one("b", "p50_us", 0.2, Verdict::Worse),
            one("b", "p99_us", 0.1, Verdict::Worse),
            one("c", "p50_us", 0.05, Verdict::TooFew),
            one("d", "p50_us", 0.9, Verdict::Worse),
            one("e", "p50_us", 0.8, Verdict::Worse),
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
        let [begin, end] = MARKS;
        let page = replaced(&format!("before\n{begin}\nold\n{end}\nafter\n"), &root).unwrap();
        assert!(
            page.starts_with(&format!("before\n{begin}\n- coordination: ")),
            "{page}"
        );
        assert!(page.ends_with(&format!("{end}\nafter\n")), "{page}");
        assert!(!page.contains("old\n"));
        assert!(replaced("no marks", &root).is_err());
    }
}
