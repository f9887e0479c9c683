//! The lines of `siege.jsonl`, from which a summary is made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::AttackerKind;

/// The file in the folder of a run.
pub const FILE: &str = "siege.jsonl";

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SiegeRecord {
    /// The outcome of honest calls.
    Calls(PhaseCalls),
    /// Memory and processor time of a process at a moment.
    Sample(ProcessSample),
    /// What an attacker managed to do.
    Attacker(AttackerResult),
    /// A process that ended, or was ended, before its time.
    #[serde(rename = "fallen")]
    Exited(ProcessExit),
    /// A target, and whether it was met.
    #[serde(rename = "aim")]
    Target(SiegeTarget),
}

/// A phase of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SiegePhase {
    /// Before the attack.
    Quiet,
    /// During it.
    Attacked,
    /// After it.
    After,
}

impl SiegePhase {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Attacked => "attacked",
            Self::After => "after",
        }
    }
}

/// Honest calls of one kind that were due in one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseCalls {
    /// The attackers of this round; several where all attacked at once.
    pub attackers: Vec<AttackerKind>,
    /// When they were due.
    pub phase: Option<SiegePhase>,
    /// Which kind of call.
    pub flow: String,
    /// How many were due each second.
    pub per_second: f64,
    /// How many were made.
    pub sent: u64,
    /// How many were answered correctly.
    pub answered: u64,
    /// How many were answered with the wrong content.
    pub wrong: u64,
    /// Why the others were not answered, and how many.
    pub lost: BTreeMap<String, u64>,
    /// Microseconds from when a call was due until its answer was whole.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// See `p50_us`.
    pub max_us: f64,
    /// Pairs of (share at or below, microseconds).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distribution: Vec<(f64, f64)>,
}

impl PhaseCalls {
    /// Calls without a correct answer.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.sent.saturating_sub(self.answered)
    }
}

/// What one process held at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// The attackers of this round.
    pub attackers: Vec<AttackerKind>,
    /// When.
    pub phase: SiegePhase,
    /// Seconds since the round began.
    pub at_s: f64,
    /// `victim`, `hub`, or another.
    pub process: String,
    /// Resident bytes.
    pub rss_bytes: u64,
    /// Seconds of processor time so far.
    pub cpu_s: f64,
}

/// What one attacker managed to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttackerResult {
    /// The attackers of this round.
    pub attackers: Vec<AttackerKind>,
    /// Which one.
    pub kind: AttackerKind,
    /// How long it attacked.
    pub seconds: f64,
    /// Share of one processor that it took itself.
    pub cpu_share: f64,
    /// What it did, and how often.
    pub did: BTreeMap<String, u64>,
    /// How it was refused, and how often.
    pub refused: BTreeMap<String, u64>,
    /// Why it did not attack to the end; empty where it did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed: String,
}

/// A process that ended before its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessExit {
    /// The attackers of this round.
    pub attackers: Vec<AttackerKind>,
    /// Which.
    pub process: String,
    /// When.
    pub phase: SiegePhase,
    /// How long into the phase.
    pub after_s: f64,
    /// How it ended, and the end of its log.
    pub how: String,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiegeTarget {
    /// The attackers of this round.
    pub attackers: Vec<AttackerKind>,
    /// The target as text.
    #[serde(rename = "aim")]
    pub target: String,
    /// The measured value as text.
    pub measured: String,
    /// Whether it was met.
    pub reached: bool,
}
