//! Lines as `hail bench smoke` of the first version wrote them: `bench/results/2026-11-20-two-cores` is such a
//! folder. They are read into the lines of today, under the table `smoke`, and memory under `memory`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::result::{Cell, Entry, Line};

/// One line of the first `raw.jsonl`.
#[derive(Debug, Deserialize)]
struct First {
    row: String,
    subject: String,
    repeat: u32,
    measured: Measured,
}

#[derive(Debug, Deserialize)]
struct Measured {
    seconds: f64,
    cpu_seconds: f64,
    count: u64,
    bytes: u64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
}

/// One reading of `memory.json`.
#[derive(Debug, Deserialize)]
struct Reading {
    peers: u32,
    rss_bytes: f64,
    peak_bytes: f64,
}

/// A line of the first version.
///
/// # Errors
///
/// It is none.
pub(crate) fn entry(line: &[u8]) -> Result<Entry, serde_json::Error> {
    let First {
        row,
        subject,
        repeat,
        measured,
    } = serde_json::from_slice(line)?;
    let figures = figures(&measured);
    Ok(Entry::Measured(of("smoke", row, subject, repeat, figures)))
}

/// The lines of a `memory.json`.
///
/// # Errors
///
/// It is none.
pub(crate) fn memory(text: &[u8]) -> Result<Vec<Line>, serde_json::Error> {
    let readings: Vec<Reading> = serde_json::from_slice(text)?;
    let line = |reading: &Reading| {
        let figures = BTreeMap::from([
            ("rss_bytes".to_owned(), reading.rss_bytes),
            ("peak_bytes".to_owned(), reading.peak_bytes),
        ]);
        let row = format!("{} peers", reading.peers);
        of("memory", row, "process to process".into(), 1, figures)
    };
    Ok(readings.iter().map(line).collect())
}

fn figures(measured: &Measured) -> BTreeMap<String, f64> {
    let rate = |amount: u64| Some(amount as f64 / measured.seconds);
    let (messages, bytes) = match (measured.p50_us, measured.count) {
        (Some(_), _) => (None, None),
        (None, 1) => (None, rate(measured.bytes)),
        (None, count) => (rate(count), None),
    };
    let figures = [
        ("seconds", Some(measured.seconds)),
        ("cpu_s", Some(measured.cpu_seconds)),
        ("count", Some(measured.count as f64)),
        ("p50_us", measured.p50_us),
        ("p99_us", measured.p99_us),
        ("max_us", measured.max_us),
        ("messages_per_s", messages),
        ("bytes_per_s", bytes),
    ];
    let some = figures
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    some.collect()
}

fn of(
    table: &str,
    row: String,
    subject: String,
    repeat: u32,
    figures: BTreeMap<String, f64>,
) -> Line {
    Line {
        cell: Cell {
            suite: "smoke".into(),
            table: table.into(),
            row,
            subject,
            form: String::new(),
        },
        network: "loopback".into(),
        repeat,
        figures,
        distribution: Vec::new(),
        asked: BTreeMap::new(),
    }
}
