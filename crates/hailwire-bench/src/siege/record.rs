//! The lines of `siege.jsonl`: everything that a summary is drawn from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Kind;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// What became of honest calls.
    Calls(Calls),
    /// What a process held at a moment.
    Sample(Sample),
    /// What an attacker managed to do.
    Attacker(Attacker),
    /// A process that ended, or was ended, before its time.
    Fallen(Fallen),
    /// An aim, and whether it was reached.
    Aim(Aim),
}

/// When it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Before the attack.
    Quiet,
    /// During it.
    Attacked,
    /// After it.
    After,
}

impl Phase {
    /// In a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Attacked => "attacked",
            Self::After => "after",
        }
    }
}

/// Honest calls of one kind that were due in one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Who attacked in this round; several where all did at once.
    pub attackers: Vec<Kind>,
    /// When they were due.
    pub phase: Option<Phase>,
    /// Which kind of call.
    pub flow: String,
    /// How many were due each second.
    pub per_second: f64,
    /// How many were made.
    pub sent: u64,
    /// How many were answered rightly.
    pub answered: u64,
    /// How many were answered with something else than was asked.
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

impl Calls {
    /// Calls without a right answer.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.sent.saturating_sub(self.answered)
    }
}

/// What one process held at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Who attacked in this round.
    pub attackers: Vec<Kind>,
    /// When.
    pub phase: Phase,
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
pub struct Attacker {
    /// Who attacked in this round.
    pub attackers: Vec<Kind>,
    /// Which one.
    pub kind: Kind,
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
pub struct Fallen {
    /// Who attacked in this round.
    pub attackers: Vec<Kind>,
    /// Which.
    pub process: String,
    /// When.
    pub phase: Phase,
    /// How long into the phase.
    pub after_s: f64,
    /// How, and what it said last.
    pub how: String,
}

/// An aim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aim {
    /// Who attacked in this round.
    pub attackers: Vec<Kind>,
    /// In words.
    pub aim: String,
    /// What was measured, in words.
    pub measured: String,
    /// Whether it was reached.
    pub reached: bool,
}
