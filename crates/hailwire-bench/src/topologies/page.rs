//! The tables for people.

use std::fmt::Write as _;

use super::record::TopologyLine;
use crate::run_folder::RunEnvironment;

/// Q10 of agentic-flow's QUIC benchmark: the median in milliseconds, of critical, high, medium and low.
const PUBLISHED_PRIORITIES: [(&str, f64); 4] = [
    ("critical", 18.3),
    ("high", 34.7),
    ("medium", 67.2),
    ("low", 142.8),
];

/// The whole summary as text.
#[must_use]
pub fn text(environment: &RunEnvironment, lines: &[TopologyLine]) -> String {
    let mut text = format!("{}\n\n", environment.line());
    topologies(&mut text, lines);
    pressures(&mut text, lines);
    let missed = lines.iter().filter_map(TopologyLine::missed);
    for missed in missed {
        let _ = writeln!(text, "missed: {missed}");
    }
    text
}

fn topologies(text: &mut String, lines: &[TopologyLine]) {
    text.push_str(
        "| topology | agents | calls | p50 | p99 | published (simulated, one machine) |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for line in lines {
        let TopologyLine::Topology(row) = line else {
            continue;
        };
        let published = row.shape.published_ms(row.agents);
        let published = published.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} ms | {:.1} ms | {published} |",
            row.shape.name(),
            row.agents,
            row.calls,
            row.p50_ms,
            row.p99_ms,
        );
    }
    text.push('\n');
}

fn pressures(text: &mut String, lines: &[TopologyLine]) {
    let ms = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.1} ms"));
    text.push_str(
        "| priority | alone p50 | alone p99 | full line p50 | p99 | in time | deadline_exceeded | failed | of the line | published p50 |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for line in lines {
        let TopologyLine::Pressure(row) = line else {
            continue;
        };
        let published = PUBLISHED_PRIORITIES
            .iter()
            .find_map(|(name, ms)| (*name == row.priority).then_some(*ms));
        let share = row.share_percent;
        let share = share.map_or("–".to_owned(), |share| format!("{share:.1} %"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} ms | {:.1} ms | {} | {} | {} | {share} | {} |",
            row.priority,
            ms(row.alone_p50_ms),
            ms(row.alone_p99_ms),
            row.p50_ms,
            row.p99_ms,
            row.in_time,
            row.deadline_exceeded,
            row.failed,
            ms(published),
        );
    }
    text.push('\n');
}
