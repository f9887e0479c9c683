//! The lines of `changes.jsonl`, from which the table is made.

use serde::{Deserialize, Serialize};

use super::NetworkChange;
use crate::measure::millis;

/// The file in the folder of a run.
pub const FILE: &str = "changes.jsonl";

/// What one change cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeRow {
    /// The change.
    pub change: NetworkChange,
    /// The path before it: `direct` or `relay`.
    pub path: String,
    /// Milliseconds from its beginning until the network was whole again.
    pub outage_ms: f64,
    /// The longest silence of the stream in milliseconds; `None` without a stream.
    pub gap_ms: Option<f64>,
    /// Numbers of the stream that never came.
    pub lost: u64,
    /// Numbers that came twice.
    pub twice: u64,
    /// Why the stream ended.
    pub broken: Option<String>,
    /// Milliseconds from the end of the outage to the answer of the first new call; `None` where none came.
    pub new_call_ms: Option<f64>,
    /// New calls that failed before.
    pub failed_calls: u32,
    /// Why it could not be measured.
    pub failed: Option<String>,
}

impl ChangeRow {
    /// What took longer than it may, or was lost, in words.
    #[must_use]
    pub fn missed(&self) -> Option<String> {
        let aim = millis(self.change.aim());
        let late = |ms: f64| ms > aim;
        let wrong = if let Some(reason) = &self.failed {
            reason.clone()
        } else if let Some(reason) = self.broken.as_ref().filter(|_| !self.may_end()) {
            format!("the stream ended: {reason}")
        } else if self.lost + self.twice > 0 {
            format!("{} lost, {} twice", self.lost, self.twice)
        } else if let Some(ms) = self.silence_ms().filter(|ms| late(*ms)) {
            format!("{ms:.0} ms of silence beyond the outage")
        } else if let Some(ms) = self.new_call_ms {
            if !late(ms) {
                return None;
            }
            format!("a new call after {ms:.0} ms")
        } else {
            "no new call was answered".to_owned()
        };
        Some(format!("{} ({}): {wrong}", self.change.name(), self.path))
    }

    /// The silence beyond the outage, where the stream goes on.
    #[must_use]
    pub fn silence_ms(&self) -> Option<f64> {
        let gap = self.gap_ms.filter(|_| !self.may_end())?;
        Some((gap - self.outage_ms).max(0.0))
    }

    fn may_end(&self) -> bool {
        self.change.ends_streams(&self.path)
    }

    /// One line for people, while it runs.
    #[must_use]
    pub fn line(&self) -> String {
        let ms = |time: Option<f64>| time.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
        let mut line = format!(
            "{} ({}): outage {}, silence {}, {} lost, {} twice, new call {}",
            self.change.name(),
            self.path,
            ms(Some(self.outage_ms)),
            ms(self.gap_ms),
            self.lost,
            self.twice,
            ms(self.new_call_ms)
        );
        for reason in self.broken.iter().chain(&self.failed) {
            line = format!("{line}, {reason}");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_itself_is_no_fault_and_what_comes_after_it_is() {
        let row = ChangeRow {
            change: NetworkChange::Down3,
            path: "direct".into(),
            outage_ms: 3_000.0,
            gap_ms: Some(6_900.0),
            lost: 0,
            twice: 0,
            broken: None,
            new_call_ms: Some(100.0),
            failed_calls: 0,
            failed: None,
        };
        assert_eq!(row.missed(), None);
        let wrong = [
            ChangeRow {
                gap_ms: Some(7_100.0),
                ..row.clone()
            },
            ChangeRow {
                new_call_ms: Some(4_100.0),
                ..row.clone()
            },
            ChangeRow {
                new_call_ms: None,
                ..row.clone()
            },
            ChangeRow {
                twice: 1,
                ..row.clone()
            },
            ChangeRow {
                broken: Some("gone".into()),
                ..row.clone()
            },
        ];
        for wrong in wrong {
            assert!(wrong.missed().is_some(), "{wrong:?}");
        }
        let ended = ChangeRow {
            change: NetworkChange::Restart,
            broken: Some("gone".into()),
            gap_ms: Some(60_000.0),
            outage_ms: 0.0,
            ..row
        };
        assert_eq!(ended.missed(), None, "what it read from is gone");
    }
}
