//! What a result folder holds: the lines that every table and plot is drawn from.
//!
//! `raw.jsonl` has one [`ResultEntry`] per line: a repeat of a measurement, the reason why a cell of a table has
//! none, or where the time of a row went. Nothing else carries figures; a report, a summary and a comparison
//! are drawn from these lines and can be drawn again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One line of `raw.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultEntry {
    /// A repeat.
    Measured(MeasuredRepeat),
    /// A cell that was not measured, and why.
    Skipped(SkippedEntry),
    /// Where the time of a row went.
    Timing(RowTiming),
}

/// The cell of a table that a line belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellId {
    /// `smoke`, `coordination` or `overlay`.
    pub suite: String,
    /// The table: `Q1` to `Q12` and `O1` to `O6` as the published ones, else a word of our own.
    pub table: String,
    /// The table's row, as text: `100 agents × 10 KB, 50 ms`.
    pub row: String,
    /// What was measured: `quic`, `h2`, `ws` for a session over that carrier; `plain h2`, `plain ws`,
    /// `raw iroh` for the baselines; a foreign subject's own name.
    pub subject: String,
    /// `pooled` or `per agent` where both exist; `cold`, `warm`, `resumed`, `0-rtt` where they differ;
    /// else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub form: String,
}

/// One repeat of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRepeat {
    /// The cell.
    pub cell: CellId,
    /// The network it ran on: a topology's name, or `loopback`.
    pub network: String,
    /// Number of the repeat. 0 is the warm-up, which is kept and not counted.
    pub repeat: u32,
    /// The figures by name; the name ends with the unit: `p50_us`, `messages_per_s`,
    /// `client_rss_bytes`, `cpu_s`, `seconds`, `count`.
    pub figures: BTreeMap<String, f64>,
    /// The distribution behind the quantiles, as pairs of (share at or below, microseconds), rising;
    /// empty where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distribution: Vec<(f64, f64)>,
    /// The parameters of the work: agents, bytes, in flight, rate, seconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asked: BTreeMap<String, serde_json::Value>,
}

/// A cell without a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedEntry {
    /// Which.
    pub cell: CellId,
    /// The reason, as text that follows "not measured: ".
    pub reason: String,
}

/// What a run spends its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPhase {
    /// Creating a network and checking it.
    Network,
    /// Starting the processes.
    Start,
    /// Warm-up repeats.
    WarmUp,
    /// Counted repeats.
    Work,
    /// Stopping the processes.
    Stop,
}

impl RunPhase {
    /// All of them, in the order of a row.
    pub const ALL: [Self; 5] = [
        Self::Network,
        Self::Start,
        Self::WarmUp,
        Self::Work,
        Self::Stop,
    ];

    /// Its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Network => "networks",
            Self::Start => "starting",
            Self::WarmUp => "warm-up",
            Self::Work => "work",
            Self::Stop => "stopping",
        }
    }
}

/// Seconds by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseSeconds {
    /// See [`RunPhase::Network`].
    pub network_s: f64,
    /// See [`RunPhase::Start`].
    pub start_s: f64,
    /// See [`RunPhase::WarmUp`].
    pub warm_up_s: f64,
    /// See [`RunPhase::Work`].
    pub work_s: f64,
    /// See [`RunPhase::Stop`].
    pub stop_s: f64,
}

impl PhaseSeconds {
    /// The seconds of one phase.
    #[must_use]
    pub fn of(&self, phase: RunPhase) -> f64 {
        match phase {
            RunPhase::Network => self.network_s,
            RunPhase::Start => self.start_s,
            RunPhase::WarmUp => self.warm_up_s,
            RunPhase::Work => self.work_s,
            RunPhase::Stop => self.stop_s,
        }
    }

    /// Adds to one phase.
    pub fn add(&mut self, phase: RunPhase, seconds: f64) {
        *match phase {
            RunPhase::Network => &mut self.network_s,
            RunPhase::Start => &mut self.start_s,
            RunPhase::WarmUp => &mut self.warm_up_s,
            RunPhase::Work => &mut self.work_s,
            RunPhase::Stop => &mut self.stop_s,
        } += seconds;
    }

    /// Adds all of another.
    pub fn add_all(&mut self, other: &Self) {
        for phase in RunPhase::ALL {
            self.add(phase, other.of(phase));
        }
    }

    /// The sum of all phases.
    #[must_use]
    pub fn sum(&self) -> f64 {
        RunPhase::ALL.into_iter().map(|phase| self.of(phase)).sum()
    }
}

/// Where the time of one row of a run went, warm-ups and failures included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowTiming {
    /// The suite.
    pub suite: String,
    /// The table.
    pub table: String,
    /// The row.
    pub row: String,
    /// The network.
    pub network: String,
    /// What it took.
    pub took: PhaseSeconds,
    /// What it was expected to take.
    pub expected: PhaseSeconds,
    /// Processes that did not end by themselves in time and were killed.
    #[serde(default)]
    pub killed: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_as_it_was_written() {
        let cell = CellId {
            suite: "coordination".into(),
            table: "Q1".into(),
            row: "10 agents, 0 ms".into(),
            subject: "h2".into(),
            form: "cold".into(),
        };
        let line = ResultEntry::Measured(MeasuredRepeat {
            cell: cell.clone(),
            network: "loopback".into(),
            repeat: 1,
            figures: BTreeMap::from([("p50_us".to_owned(), 12.5)]),
            distribution: vec![(0.5, 12.5), (1.0, 40.0)],
            asked: BTreeMap::from([("agents".to_owned(), 10.into())]),
        });
        let skipped = ResultEntry::Skipped(SkippedEntry {
            cell,
            reason: "no root".into(),
        });
        let timing = ResultEntry::Timing(RowTiming {
            suite: "coordination".into(),
            table: "Q1".into(),
            row: "10 agents, 0 ms".into(),
            network: "loopback".into(),
            took: PhaseSeconds {
                work_s: 1.5,
                ..PhaseSeconds::default()
            },
            expected: PhaseSeconds::default(),
            killed: 0,
        });
        for entry in [line, skipped, timing] {
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<ResultEntry>(&text).unwrap(), entry);
        }
    }
}
