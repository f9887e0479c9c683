//! The lines of `reach.jsonl`, from which the table is made.

use serde::{Deserialize, Serialize};

use super::{ANSWER_WITHIN, ExpectedReach};
use crate::measure::millis;

/// The file in the folder of a run.
pub const FILE: &str = "reach.jsonl";

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReachRecord {
    /// A network that could not be had here.
    LeftOut {
        /// Its name.
        network: String,
        /// Why.
        reason: String,
    },
    /// A pair.
    Pair(Box<ReachPair>),
}

/// What was measured between a host of one network and one of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReachPair {
    /// The network of the host that called.
    pub from: String,
    /// The network of the host that was called.
    pub to: String,
    /// What theory says.
    pub expected: ExpectedReach,
    /// Milliseconds from the call to its answer, the first between the two; `None` where none came.
    pub answered_ms: Option<f64>,
    /// Milliseconds from the first call until the path was direct; `None` where it was not.
    pub direct_ms: Option<f64>,
    /// The path at the end: `direct`, `relay`, or nothing.
    pub path: String,
    /// The round trip of that path by the links between, in milliseconds.
    pub label_ms: f64,
    /// The median time of a small call on that path, in milliseconds, where it was measured.
    pub call_ms: Option<f64>,
    /// Megabits a second of a large body, where it was measured.
    pub mbit_s: Option<f64>,
    /// Why there is no answer.
    pub failed: Option<String>,
}

impl ReachRecord {
    /// The pair, where it is one.
    #[must_use]
    pub fn pair(&self) -> Option<&ReachPair> {
        match self {
            Self::Pair(pair) => Some(pair),
            Self::LeftOut { .. } => None,
        }
    }
}

impl ReachPair {
    /// What is not as theory says, in words; `None` where all is.
    #[must_use]
    pub fn missed(&self) -> Option<String> {
        let Self { from, to, .. } = self;
        let wrong = match (&self.failed, self.answered_ms) {
            (Some(reason), _) => format!("no answer: {reason}"),
            (None, Some(ms)) if ms > millis(ANSWER_WITHIN) => {
                format!("answered after {ms:.0} ms")
            }
            _ if self.path != self.expected.word() => {
                format!("{} where theory says {}", self.path, self.expected.word())
            }
            _ => return None,
        };
        Some(format!("{from} – {to}: {wrong}"))
    }

    /// One line for people, while it runs.
    #[must_use]
    pub fn line(&self) -> String {
        let ms = |time: Option<f64>| time.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
        let Self { from, to, path, .. } = self;
        let mut line = format!(
            "{from} – {to}: {path}, answer {}, direct {}",
            ms(self.answered_ms),
            ms(self.direct_ms)
        );
        if let Some(reason) = &self.failed {
            line = format!("{from} – {to}: no answer: {reason}");
        }
        line
    }
}
