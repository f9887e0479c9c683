//! Result folders for tests, generated.

use std::{collections::BTreeMap, fs, path::Path};

use crate::{
    result::{CellId, MeasuredRepeat, PhaseSeconds, ResultEntry, RowTiming, SkippedEntry},
    tables::{self, form, subject},
};

/// The subjects of the fixture with their factor on times; higher is slower.
const SUBJECTS: &[(&str, f64)] = &[
    (subject::QUIC, 1.0),
    (subject::H2, 1.3),
    (subject::WS, 1.2),
    (subject::PLAIN_H2, 0.8),
    (subject::PLAIN_WS, 1.5),
    (subject::RAW_IROH, 0.99),
];

pub(crate) fn cell(table: &str, row: &str, subject: &str, form: &str) -> CellId {
    CellId {
        suite: if table.starts_with('O') {
            "overlay"
        } else {
            "coordination"
        }
        .into(),
        table: table.into(),
        row: row.into(),
        subject: subject.into(),
        form: form.into(),
    }
}

pub(crate) fn line(
    cell: CellId,
    network: &str,
    repeat: u32,
    figures: &[(&str, f64)],
) -> MeasuredRepeat {
    MeasuredRepeat {
        cell,
        network: network.into(),
        repeat,
        figures: figures.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect(),
        distribution: Vec::new(),
        asked: BTreeMap::new(),
    }
}

/// A value that differs a little from repeat to repeat, the same each time it is asked for.
fn shaken(value: f64, repeat: u32, factor: f64) -> f64 {
    value * factor * (1.0 + f64::from(repeat * 7 % 5) / 100.0)
}

/// Shares and microseconds of a latency around `p50`.
fn distribution(p50: f64) -> Vec<(f64, f64)> {
    (0..=100)
        .map(|i| f64::from(i) / 100.0)
        .map(|share| (share, p50 * (0.9 + 0.2 * share + 3.0 * share.powi(24))))
        .collect()
}

/// Lines of most tables for all subjects, five repeats after a warm-up, and some skipped cells.
pub(crate) fn entries() -> Vec<ResultEntry> {
    let mut out = Vec::new();
    for repeat in 0..=5 {
        for (subject, factor) in SUBJECTS {
            measured(&mut out, subject, *factor, repeat);
        }
    }
    let skip = |table, row, subject, form, reason: &str| {
        ResultEntry::Skipped(SkippedEntry {
            cell: cell(table, row, subject, form),
            reason: reason.into(),
        })
    };
    out.push(skip(
        "Q1",
        tables::ONE_AGENT,
        "plain ws",
        form::ZERO_RTT,
        "WebSocket has no 0-RTT",
    ));
    out.push(skip("O6", "punched", "quic", "", "needs root"));
    out.push(ResultEntry::Timing(RowTiming {
        suite: "coordination".into(),
        table: "Q1".into(),
        row: tables::ONE_AGENT.into(),
        network: "wan-50ms".into(),
        took: PhaseSeconds {
            network_s: 11.0,
            work_s: 4.0,
            ..PhaseSeconds::default()
        },
        expected: PhaseSeconds::default(),
        killed: 0,
    }));
    out
}

fn measured(out: &mut Vec<ResultEntry>, subject: &str, factor: f64, repeat: u32) {
    let mut keep = |line: MeasuredRepeat| out.push(ResultEntry::Measured(line));
    for (count, bytes) in tables::SCENARIOS {
        for (rtt, network) in [(0, "loopback"), (50, "wan-50ms"), (100, "wan-100ms")] {
            for form in [form::POOLED, form::PER_AGENT] {
                let rate = shaken(9_000.0, repeat, 1.0 / factor);
                let row = tables::scenario(count, bytes, rtt);
                let figures = [
                    ("messages_per_s", rate),
                    ("bytes_per_s", rate * bytes as f64),
                ];
                let mut line = line(cell("Q2", &row, subject, form), network, repeat, &figures);
                line.asked.insert("agents".into(), count.into());
                line.asked.insert("bytes".into(), bytes.into());
                keep(line);
            }
            let row = tables::establishment(count, rtt);
            let p50 = shaken(600.0 + f64::from(rtt) * 2_000.0, repeat, factor);
            let figures = [("p50_us", p50), ("p95_us", p50 * 1.2)];
            keep(line(
                cell("Q1", &row, subject, form::COLD),
                network,
                repeat,
                &figures,
            ));
        }
        let row = tables::agents(count);
        let rss = shaken(8e6 + f64::from(count) * 30e3, repeat, factor);
        let figures = [("client_rss_bytes", rss), ("server_rss_bytes", rss * 0.9)];
        let mut line = line(
            cell("Q4", &row, subject, form::PER_AGENT),
            "loopback",
            repeat,
            &figures,
        );
        line.asked.insert("agents".into(), count.into());
        keep(line);
    }
    for (row, network) in [("1 KB, 50 ms", "wan-50ms"), (tables::UNDER_LOSS, "lossy")] {
        let p50 = shaken(50_300.0, repeat, 1.0 + factor / 100.0);
        let figures = [
            ("p50_us", p50),
            ("p95_us", p50 * 1.1),
            ("p99_us", p50 * 1.9),
        ];
        let mut line = line(
            cell("Q6", row, subject, form::POOLED),
            network,
            repeat,
            &figures,
        );
        line.distribution = distribution(p50);
        keep(line);
    }
    for row in ["1 KB", "10 KB", "100 KB"] {
        let figures = [("p50_us", shaken(86_000.0, repeat, factor))];
        keep(line(
            cell("O3", row, subject, form::WARM),
            "transatlantic-85ms",
            repeat,
            &figures,
        ));
    }
}

/// Writes a result folder as a run does.
pub(crate) fn write(dir: &Path, entries: &[ResultEntry]) {
    let lines: Vec<String> = entries
        .iter()
        .map(|entry| serde_json::to_string(entry).unwrap())
        .collect();
    fs::write(dir.join("raw.jsonl"), lines.join("\n") + "\n").unwrap();
    let environment = serde_json::json!({
        "at": 1_795_186_013, "version": "0.1.0", "kernel": "6.18.0", "cpu": "A processor × 2",
        "command": "hail bench run coordination --quick", "revision": "ff94f2f"
    });
    fs::write(dir.join("environment.json"), environment.to_string()).unwrap();
    let check = serde_json::json!({
        "network": "wan-50ms", "within": true, "paths": [{
            "from": "a", "to": "b", "label": {"rtt_ms": 50.0, "loss_out": 0.0},
            "udp": {"rtt_ms": 50.4, "loss_out": 0.0}, "tcp": {"rtt_ms": 50.6}, "faults": []
        }]
    });
    fs::write(dir.join("network.jsonl"), check.to_string() + "\n").unwrap();
}
