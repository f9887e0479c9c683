//! The lines of `soak.jsonl`, and what is said of them.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::{
    measure::{Spread, quarters, too_much_growth},
    run_folder::RunEnvironment,
};

/// The file in the folder of a run.
pub const FILE: &str = "soak.jsonl";

/// Resident bytes of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoakMemory {
    /// Of the phone's node.
    pub phone: u64,
    /// Of the server's.
    pub server: u64,
    /// Of the hub.
    pub hub: u64,
}

/// What one period between two changes of the address came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoakPeriod {
    /// Seconds from the beginning of the soak to the end of the period.
    pub at_s: u64,
    /// Calls whose answer came in it.
    pub answered: u64,
    /// Calls that failed in it.
    pub lost: u64,
    /// Why, of the first three.
    pub reasons: Vec<String>,
    /// The median time of those that were answered.
    pub median_ms: Option<f64>,
    /// The longest.
    pub slowest_ms: Option<f64>,
    /// The path from the phone to the server at its end: `direct` or `relay`.
    pub path: String,
    /// At its end.
    pub memory: SoakMemory,
}

impl SoakPeriod {
    /// One line for people, while it runs.
    #[must_use]
    pub fn line(&self) -> String {
        let ms = |time: Option<f64>| time.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
        let mut line = format!(
            "{} s: {} answered, {} lost, median {}, slowest {}, {}; phone {}, server {}, hub {} MiB",
            self.at_s,
            self.answered,
            self.lost,
            ms(self.median_ms),
            ms(self.slowest_ms),
            self.path,
            mib(self.memory.phone),
            mib(self.memory.server),
            mib(self.memory.hub),
        );
        for reason in &self.reasons {
            let _ = write!(line, "; {reason}");
        }
        line
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// The whole summary as text.
#[must_use]
pub fn text(environment: &RunEnvironment, periods: &[SoakPeriod]) -> String {
    let sum = |of: fn(&SoakPeriod) -> u64| periods.iter().map(of).sum::<u64>();
    let slowest = periods.iter().filter_map(|period| period.slowest_ms);
    let medians = Spread::of(periods.iter().filter_map(|p| p.median_ms).collect());
    let mut text = format!(
        "{}\n\n{} changes of the address, {} calls answered, {} lost. Slowest {:.0} ms; the median of the periods' medians {:.0} ms.\n",
        environment.line(),
        periods.len().saturating_sub(1),
        sum(|period| period.answered),
        sum(|period| period.lost),
        slowest.fold(0.0, f64::max),
        medians.map_or(0.0, |medians| medians.median),
    );
    for (name, of) in PROCESSES {
        let bytes: Vec<u64> = periods.iter().map(|period| of(&period.memory)).collect();
        if let Some([second, last]) = quarters(&bytes) {
            let _ = writeln!(
                text,
                "{name}: {:.1} MiB in the second quarter, {:.1} in the last",
                second / f64::from(1 << 20),
                last / f64::from(1 << 20)
            );
        }
    }
    for missed in missed(periods) {
        let _ = writeln!(text, "missed: {missed}");
    }
    text
}

type ReadMemory = fn(&SoakMemory) -> u64;

const PROCESSES: [(&str, ReadMemory); 3] = [
    ("phone", |memory| memory.phone),
    ("server", |memory| memory.server),
    ("hub", |memory| memory.hub),
];

/// What is not as it must be.
#[must_use]
pub fn missed(periods: &[SoakPeriod]) -> Vec<String> {
    let lost = periods.iter().filter(|period| period.lost > 0);
    let mut missed: Vec<String> = lost.map(SoakPeriod::line).collect();
    for (name, of) in PROCESSES {
        let bytes: Vec<u64> = periods.iter().map(|period| of(&period.memory)).collect();
        if let Some(growth) = too_much_growth(&bytes) {
            missed.push(format!(
                "the memory of {name} grew by {growth:.0} % from the second quarter to the last"
            ));
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(lost: u64, phone: u64) -> SoakPeriod {
        SoakPeriod {
            at_s: 20,
            answered: 280,
            lost,
            reasons: (0..lost).map(|_| "gone".to_owned()).collect(),
            median_ms: Some(62.0),
            slowest_ms: Some(500.0),
            path: "direct".to_owned(),
            memory: SoakMemory {
                phone,
                server: 1 << 20,
                hub: 1 << 20,
            },
        }
    }

    #[test]
    fn a_lost_call_and_growing_memory_are_missed_and_a_warm_up_is_not() {
        let mut periods: Vec<_> = (0..12).map(|_| period(0, 30 << 20)).collect();
        // Not yet warm.
        periods[0].memory.phone = 10 << 20;
        assert_eq!(missed(&periods), [""; 0]);
        periods[5].lost = 1;
        assert_eq!(missed(&periods).len(), 1);
        for grown in &mut periods[9..] {
            grown.memory.phone = 34 << 20;
        }
        let all = missed(&periods);
        assert!(all[1].contains("phone grew by 13 %"), "{all:?}");
        assert_eq!(missed(&periods[9..]), [""; 0], "too short to say");
    }
}
