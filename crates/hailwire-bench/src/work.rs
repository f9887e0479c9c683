//! The work that a subject is requested to do, and its answer: the JSON lines of the subjects' interface.
//!
//! `docs/reference/bench-subjects.md` is written for whoever brings a program of their own. Every
//! piece of work is an echo or a stream that is checked for its content, so that all subjects move
//! the same bytes and wait for the same answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One line on the standard input of a program that loads.
///
/// `connections` says how many connections the agents share; 0 means one for each agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkRequest {
    /// Reach `agents` agents at once over new connections, one echo of `bytes` each.
    ///
    /// Answer: `p50_us`, `p95_us`, `max_us` from the start to each first answer, `opened_p50_us` until
    /// each connection could be used where that can be told, `all_us` until the last answer.
    Establish {
        /// How many.
        agents: u32,
        /// Connections that they share.
        connections: u32,
        /// What is known before.
        start: ConnectionStart,
        /// Size of each message.
        bytes: usize,
    },
    /// Echo at a stated rate, each timed from when it was due.
    ///
    /// Answer: `p50_us`, `p90_us`, `p95_us`, `p99_us`, `p999_us`, `max_us`, `count`, `lost_count`, and
    /// the distribution.
    Latency {
        /// Messages a second, over all connections.
        per_second: f64,
        /// How long.
        seconds: f64,
        /// Size of each message.
        bytes: usize,
        /// Connections that are used in turn; at least 1.
        connections: u32,
    },
    /// Echo with a number of messages always in flight (a closed loop).
    ///
    /// Answer: `count`, `seconds`, `messages_per_s`, `megabits_per_s` (bodies, one direction).
    Rate {
        /// Messages under way at once.
        in_flight: u32,
        /// How long.
        seconds: f64,
        /// Size of each message.
        bytes: usize,
        /// Agents that are called in turn.
        agents: u32,
        /// Connections that they share.
        connections: u32,
    },
    /// Receive one streamed answer of `bytes`, or as much of it as arrives within `seconds`.
    ///
    /// Answer: `bytes`, `seconds`, `megabytes_per_s`.
    Bulk {
        /// Size of the answer.
        bytes: u64,
        /// When to stop; 0 for never.
        seconds: f64,
    },
    /// Call each of `agents` once: one after the other, or all at once.
    ///
    /// Answer: `all_us` until the last answer, `p50_us` and `max_us` of the single ones.
    Dispatch {
        /// How many.
        agents: u32,
        /// Connections that they share.
        connections: u32,
        /// What is known before.
        start: ConnectionStart,
        /// Whether all are called at once.
        at_once: bool,
        /// Size of each message.
        bytes: usize,
    },
    /// Hand over `count` requests on a warm connection, one after the other: each is timed until it has
    /// been given to the transport, and its answer is awaited outside of the clock.
    ///
    /// Answer: `p50_us`, `p99_us`, `max_us`, `count`.
    Open {
        /// Number of requests.
        count: u32,
    },
    /// Connect, echo once with each agent, and stay connected without traffic.
    ///
    /// Answer: `count`. The memory of both programs is read from outside.
    Hold {
        /// How many.
        agents: u32,
        /// Connections that they share.
        connections: u32,
        /// Size of each message.
        bytes: usize,
    },
    /// Messages of four priorities, each at a stated rate, beside streams of the lowest that take all
    /// that the network gives.
    ///
    /// Answer, for `critical`, `high`, `medium`, `low`: `critical_p50_us`, `critical_p99_us`,
    /// `critical_delivered_percent` (answered within a second), and so on.
    Mix {
        /// Messages a second of each priority.
        per_second: f64,
        /// How long.
        seconds: f64,
        /// Size of each message.
        bytes: usize,
    },
    /// Repeat one operation on a number of threads that share its data.
    ///
    /// Answer: `count` of them, and `ns_per_op`, the time of each on its thread; with bytes `gibibytes_per_s`; where the
    /// operation is a size, `size_bytes` alone with `count` 1.
    Operation {
        /// Which, by its row in tables C.
        name: String,
        /// Threads.
        threads: u32,
        /// How long.
        seconds: f64,
    },
}

/// What is known before a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionStart {
    /// The connection is up.
    #[serde(rename = "warm")]
    Warm,
    /// The two programs have never met.
    #[serde(rename = "cold")]
    Cold,
    /// A TLS session is kept from before.
    #[serde(rename = "resumed")]
    Resumed,
    /// The same, and the request is sent with the first flight.
    #[serde(rename = "0-rtt")]
    ZeroRtt,
}

impl ConnectionStart {
    /// Its word in a cell's form.
    #[must_use]
    pub fn form(self) -> &'static str {
        use crate::tables::form;
        match self {
            Self::Warm => form::WARM,
            Self::Cold => form::COLD,
            Self::Resumed => form::RESUMED,
            Self::ZeroRtt => form::ZERO_RTT,
        }
    }
}

/// One line on the standard output of a program that loads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredWork {
    /// Why the work could not be done; then nothing else counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Figures by name, the unit at its end.
    pub figures: BTreeMap<String, f64>,
    /// Pairs of (share at or below, microseconds), rising.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distribution: Vec<(f64, f64)>,
}

impl MeasuredWork {
    /// With one more figure.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.figures.insert(name.to_owned(), value);
        self
    }

    /// A figure by its name; 0 where there is none.
    #[must_use]
    pub fn figure(&self, name: &str) -> f64 {
        self.figures.get(name).copied().unwrap_or_default()
    }

    /// Whether it answers `work`: every figure is there and is a number.
    ///
    /// # Errors
    ///
    /// What is missing or invalid.
    pub fn answers(&self, work: &WorkRequest) -> Result<(), String> {
        for name in work.needs() {
            match self.figures.get(*name) {
                None => return Err(format!("the figure `{name}` is missing")),
                Some(value) if !value.is_finite() || *value < 0.0 => {
                    return Err(format!(
                        "the figure `{name}` is not a valid number: {value}"
                    ));
                }
                Some(_) => {}
            }
        }
        let rising = |pair: &[(f64, f64)]| match pair {
            [a, b] => a.0 <= b.0 && a.1 <= b.1,
            _ => true,
        };
        if !self.distribution.windows(2).all(rising) {
            return Err("the distribution does not rise".into());
        }
        Ok(())
    }
}

/// The longest warm-up, in seconds.
const WARM_UP_S: f64 = 2.0;

impl WorkRequest {
    /// The same work as a warm-up: at most two seconds long.
    #[must_use]
    pub fn warm_up(&self) -> Self {
        let mut work = self.clone();
        match &mut work {
            Self::Latency { seconds, .. }
            | Self::Rate { seconds, .. }
            | Self::Bulk { seconds, .. }
            | Self::Mix { seconds, .. }
            | Self::Operation { seconds, .. } => *seconds = seconds.min(WARM_UP_S),
            Self::Establish { .. }
            | Self::Dispatch { .. }
            | Self::Open { .. }
            | Self::Hold { .. } => {}
        }
        work
    }

    /// The figures that an answer must have.
    #[must_use]
    pub fn needs(&self) -> &'static [&'static str] {
        match self {
            Self::Establish { .. } => &["p50_us", "p95_us", "all_us"],
            Self::Latency { .. } => &["p50_us", "p95_us", "p99_us", "max_us", "count"],
            Self::Rate { .. } => &["count", "seconds", "messages_per_s", "megabits_per_s"],
            Self::Bulk { .. } => &["bytes", "seconds", "megabytes_per_s"],
            Self::Dispatch { .. } => &["all_us"],
            Self::Open { .. } => &["p50_us", "p99_us", "count"],
            Self::Hold { .. } | Self::Operation { .. } => &["count"],
            Self::Mix { .. } => &[
                "critical_p50_us",
                "high_p50_us",
                "medium_p50_us",
                "low_p50_us",
            ],
        }
    }

    /// About how long it takes where a round trip takes `rtt` seconds, for the time left.
    #[must_use]
    pub fn estimate_s(&self, rtt: f64) -> f64 {
        let each = |connections| if connections == 0 { 0.001_2 } else { 0.000_3 };
        match self {
            Self::Establish {
                agents,
                connections,
                ..
            } => 0.01 + 2.0 * rtt + f64::from(*agents) * each(*connections),
            Self::Latency { seconds, .. } | Self::Rate { seconds, .. } => seconds + 2.0 * rtt,
            Self::Operation { seconds, .. } => *seconds,
            // Messages that are queued behind the streams arrive late.
            Self::Mix { seconds, .. } => seconds * 1.2 + 2.0 * rtt + 0.8,
            Self::Bulk { bytes, seconds } => {
                let whole = *bytes as f64 / 500e6;
                if *seconds > 0.0 && rtt > 0.0 {
                    *seconds
                } else {
                    whole + 4.0 * rtt
                }
            }
            Self::Dispatch {
                agents, at_once, ..
            } => {
                let turns = if *at_once { 1.0 } else { f64::from(*agents) };
                0.02 + turns * 2.0 * rtt + f64::from(*agents) * 0.000_5
            }
            Self::Open { count } => f64::from(*count) * (rtt + 0.000_1),
            Self::Hold {
                agents,
                connections,
                ..
            } => 0.05 + 3.0 * rtt + f64::from(*agents) * each(*connections),
        }
    }

    /// The parameters of the work, for a line: the fields of its JSON.
    #[must_use]
    pub fn asked(&self) -> BTreeMap<String, serde_json::Value> {
        let Ok(serde_json::Value::Object(work)) = serde_json::to_value(self) else {
            return BTreeMap::new();
        };
        let mut asked = BTreeMap::new();
        for (name, fields) in work {
            asked.insert("work".to_owned(), name.into());
            if let serde_json::Value::Object(fields) = fields {
                asked.extend(fields);
            }
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_reads_as_the_reference_shows_it() {
        let line = r#"{"establish":{"agents":10,"connections":0,"start":"0-rtt","bytes":64}}"#;
        let work: WorkRequest = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&work).unwrap(), line);
        assert_eq!(work.asked()["work"], "establish");
        assert_eq!(work.asked()["agents"], 10);
    }

    #[test]
    fn an_answer_that_lacks_a_figure_or_falls_is_refused() {
        let work = WorkRequest::Bulk {
            bytes: 1,
            seconds: 0.0,
        };
        let mut measured = MeasuredWork::default()
            .with("bytes", 1.0)
            .with("seconds", 1.0);
        assert!(
            measured
                .answers(&work)
                .unwrap_err()
                .contains("megabytes_per_s")
        );
        measured = measured.with("megabytes_per_s", f64::NAN);
        assert!(measured.answers(&work).is_err());
        measured = measured.with("megabytes_per_s", 1.0);
        assert_eq!(measured.answers(&work), Ok(()));
        measured.distribution = vec![(0.5, 2.0), (1.0, 1.0)];
        assert!(measured.answers(&work).unwrap_err().contains("rise"));
    }
}
