//! The summary scores of table Q12, computed from the other tables of the same folder.
//!
//! The formula, printed with the table: for each of connection (Q1, p50), throughput (Q2, messages a
//! second), memory (Q4, resident), CPU (Q5, time for each message) and latency (Q6, p50), a subject's
//! score is 100 times the geometric mean, over all rows that both have, of how many times as good as
//! `quic` it is; overall is the arithmetic mean of the five, as it is in the published table. Scores are
//! computed repeat by repeat, so they have a spread.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cell_index::{CellIndex, CellKey},
    figure::{self, BetterDirection},
    result_folder::ResultFolder,
};
use crate::{
    result::{CellId, MeasuredRepeat, SkippedEntry},
    tables::subject::QUIC,
};

/// The formula, printed with the table.
pub(crate) const FORMULA: &str = "Ours: 100 × the geometric mean, over all rows that a subject and quic both have in the same form \
     on the same network, of how many times as good as quic the subject is, repeat by repeat; overall is the \
     arithmetic mean of the five. Connection: p50 of Q1. Throughput: messages a second of Q2. Memory: \
     resident bytes of Q4. CPU: time for each message of Q5. Latency: p50 of Q6.";

/// A score's name, its table, and its figure's names in order of preference.
const PARTS: &[(&str, &str, &[&str])] = &[
    ("connection", "Q1", &["p50_us"]),
    ("throughput", "Q2", &["messages_per_s"]),
    (
        "memory",
        "Q4",
        &[
            "peak_rss_bytes",
            "rss_bytes",
            "client_peak_rss_bytes",
            "client_rss_bytes",
            "added_rss_bytes",
        ],
    ),
    (
        "CPU",
        "Q5",
        &[
            "cpu_us_per_message",
            "client_cpu_us_per_message",
            "cpu_percent",
        ],
    ),
    ("latency", "Q6", &["p50_us"]),
];

type ScoresByCell = BTreeMap<(String, u32), f64>;

/// Adds the scores to a folder as lines of table Q12, where it has none.
pub(crate) fn add(folder: &mut ResultFolder) {
    if folder.lines.iter().any(|line| line.cell.table == "Q12") {
        return;
    }
    let cells = CellIndex::of(folder);
    let parts: Vec<(&str, ScoresByCell)> = PARTS
        .iter()
        .map(|(name, table, figures)| (*name, scores(&cells, table, figures)))
        .collect();
    let subjects: BTreeSet<String> = parts
        .iter()
        .flat_map(|(_, scores)| scores.keys().map(|(subject, _)| subject.clone()))
        .collect();
    let mut lines = Vec::new();
    let mut skipped = Vec::new();
    for (name, scores) in &parts {
        lines.extend(
            scores
                .iter()
                .map(|((s, repeat), score)| line(name, s, *repeat, *score)),
        );
        for subject in &subjects {
            if !scores.keys().any(|(of, _)| of == subject) {
                let reason = "no row has figures of both it and `quic`";
                skipped.push(skip(name, subject, reason));
            }
        }
    }
    for subject in &subjects {
        let mut some = false;
        for (repeat, score) in overall(&parts, subject) {
            lines.push(line("overall", subject, repeat, score));
            some = true;
        }
        if !some {
            skipped.push(skip("overall", subject, "one of the five is missing"));
        }
    }
    if !lines.is_empty() {
        folder.skipped.retain(|one| one.cell.table != "Q12");
        folder.skipped.extend(skipped);
        folder.lines.extend(lines);
    }
}

fn scores(cells: &CellIndex<'_>, table: &str, figures: &[&str]) -> ScoresByCell {
    let cell_keys = || cells.measured().filter(|cell_key| cell_key.table == table);
    let has_quic = |figure: &&&str| cell_keys().any(|p| p.subject == QUIC && cells.has(p, figure));
    let Some(name) = figures.iter().find(has_quic) else {
        return ScoresByCell::new();
    };
    let Some(better) = figure::better(name) else {
        return ScoresByCell::new();
    };
    let mut logs: BTreeMap<(String, u32), Vec<f64>> = BTreeMap::new();
    for cell_key in cell_keys() {
        for (repeat, lead) in leads(cells, cell_key, name, better) {
            let at = logs
                .entry((cell_key.subject.to_owned(), repeat))
                .or_default();
            at.push(lead.ln());
        }
    }
    let mean = |logs: &Vec<f64>| logs.iter().sum::<f64>() / logs.len() as f64;
    logs.iter()
        .map(|(at, logs)| (at.clone(), 100.0 * mean(logs).exp()))
        .collect()
}

/// How many times as good as `quic` a cell is, in each repeat that both have.
fn leads(
    cells: &CellIndex<'_>,
    cell_key: CellKey<'_>,
    figure: &str,
    better: BetterDirection,
) -> Vec<(u32, f64)> {
    let quic = cells.values(cell_key.with(QUIC), figure);
    let own = cells.values(cell_key, figure);
    own.iter()
        .filter_map(|(repeat, value)| {
            let ratio = match better {
                BetterDirection::More => value / quic.get(repeat)?,
                BetterDirection::Less => quic.get(repeat)? / value,
            };
            (ratio.is_finite() && ratio > 0.0).then_some((*repeat, ratio))
        })
        .collect()
}

/// The mean of the five in each repeat that has all of them.
fn overall(parts: &[(&str, ScoresByCell)], subject: &str) -> Vec<(u32, f64)> {
    let repeats: BTreeSet<u32> = parts
        .iter()
        .flat_map(|(_, scores)| scores.keys().map(|(_, repeat)| *repeat))
        .collect();
    repeats
        .into_iter()
        .filter_map(|repeat| {
            let of = |(_, scores): &(&str, ScoresByCell)| {
                scores.get(&(subject.to_owned(), repeat)).copied()
            };
            let five: Option<Vec<f64>> = parts.iter().map(of).collect();
            let five = five?;
            Some((repeat, five.iter().sum::<f64>() / five.len() as f64))
        })
        .collect()
}

fn cell(row: &str, subject: &str) -> CellId {
    CellId {
        suite: "coordination".into(),
        table: "Q12".into(),
        row: row.to_owned(),
        subject: subject.to_owned(),
        form: String::new(),
    }
}

fn line(row: &str, subject: &str, repeat: u32, score: f64) -> MeasuredRepeat {
    MeasuredRepeat {
        cell: cell(row, subject),
        network: "all of this folder".into(),
        repeat,
        figures: [("score".to_owned(), score)].into(),
        distribution: Vec::new(),
        asked: BTreeMap::new(),
    }
}

fn skip(row: &str, subject: &str, reason: &str) -> SkippedEntry {
    SkippedEntry {
        cell: cell(row, subject),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn folder(with: &[(&str, &str, f64)]) -> ResultFolder {
        let mut folder = ResultFolder::default();
        for (table, figure, factor) in with {
            for (subject, factor) in [("quic", 1.0), ("plain h2", *factor)] {
                let cell = fixture::cell(table, "a row", subject, "");
                let line = fixture::line(cell, "loopback", 1, &[(figure, 10.0 * factor)]);
                folder.lines.push(line);
            }
        }
        folder
    }

    fn score(folder: &ResultFolder, row: &str) -> Option<f64> {
        let of = |l: &&MeasuredRepeat| {
            l.cell.table == "Q12" && l.cell.row == row && l.cell.subject == "plain h2"
        };
        folder
            .lines
            .iter()
            .find(of)
            .map(|line| line.figures["score"])
    }

    #[test]
    fn twice_the_time_and_half_the_rate_are_both_fifty() {
        let mut folder = folder(&[
            ("Q1", "p50_us", 2.0),
            ("Q2", "messages_per_s", 0.5),
            ("Q4", "client_rss_bytes", 2.0),
            ("Q5", "cpu_us_per_message", 2.0),
            ("Q6", "p50_us", 1.0),
        ]);
        add(&mut folder);
        for row in ["connection", "throughput", "memory", "CPU"] {
            assert!((score(&folder, row).unwrap() - 50.0).abs() < 1e-6, "{row}");
        }
        assert!((score(&folder, "overall").unwrap() - 60.0).abs() < 1e-6);
    }

    #[test]
    fn without_one_of_the_five_there_is_no_overall_score_but_a_reason() {
        let mut folder = folder(&[("Q1", "p50_us", 2.0)]);
        add(&mut folder);
        assert_eq!(score(&folder, "overall"), None);
        assert!(folder.skipped.iter().any(|one| one.cell.row == "overall"));
    }

    #[test]
    fn a_folder_with_scores_of_its_own_keeps_them() {
        let mut folder = folder(&[("Q12", "score", 0.7)]);
        let before = folder.lines.clone();
        add(&mut folder);
        assert_eq!(folder.lines, before);
    }
}
