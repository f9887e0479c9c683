//! The lines of `topologies.jsonl`, what each is held to, and what others have published.

use serde::{Deserialize, Serialize};

/// The file in the folder of a run.
pub const FILE: &str = "topologies.jsonl";

/// What a dispatch over known nodes may take beyond one round trip, in milliseconds.
pub const DISPATCH_BEYOND_MS: f64 = 60.0;

/// How many times longer than alone a critical call may take on a full line, at p99.
pub const CRITICAL_TIMES: f64 = 1.5;

/// What the lowest priority has at least, in hundredths.
pub const LOWEST_SHARE: f64 = 2.0;

/// How agents work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// One asks all.
    Star,
    /// One asks leaders, and each of these its team, of as many as there are teams.
    Hierarchy,
    /// Each asks the next.
    Ring,
    /// Each asks all others.
    Mesh,
    /// A thousand calls at once over ten nodes that have tunnels.
    DispatchKnown,
    /// The same by a node that was just started.
    DispatchNew,
}

impl Shape {
    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Star => "star",
            Self::Hierarchy => "hierarchy",
            Self::Ring => "ring",
            Self::Mesh => "mesh",
            Self::DispatchKnown => "1,000 calls, known nodes",
            Self::DispatchNew => "1,000 calls, no tunnel yet",
        }
    }

    /// Agents in a team.
    #[must_use]
    pub fn team(agents: usize) -> usize {
        (1..=agents).find(|team| team * team >= agents).unwrap_or(1)
    }

    /// Calls of one round.
    #[must_use]
    pub fn calls(self, agents: u32) -> u64 {
        let agents = u64::from(agents);
        match self {
            Self::Star | Self::Ring | Self::DispatchKnown | Self::DispatchNew => agents,
            Self::Hierarchy => agents + agents.div_ceil(Self::team(agents as usize) as u64),
            Self::Mesh => agents * agents,
        }
    }

    /// The latency of coordination that agentic-flow publishes for so many agents, in milliseconds: `test-reports/local-swarm-scalability-report.md`
    /// of 2025-11-16, a simulation on one machine.
    #[must_use]
    pub fn published_ms(self, agents: u32) -> Option<f64> {
        let at = [3, 6, 12, 24, 48].iter().position(|n| *n == agents)?;
        let row = match self {
            Self::Mesh => [22.0, 90.0, 360.0, 1_440.0, 5_760.0],
            Self::Hierarchy => [36.0, 72.0, 144.0, 288.0, 576.0],
            _ => return None,
        };
        row.get(at).copied()
    }
}

/// One topology, or a dispatch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopologyRow {
    /// Which.
    pub shape: Shape,
    /// Agents; of a dispatch, nodes.
    pub agents: u32,
    /// The round trip between any two machines in milliseconds.
    pub rtt_ms: u32,
    /// Calls of one round.
    pub calls: u64,
    /// Rounds that were counted.
    pub rounds: u64,
    /// Milliseconds from the first call to the last answer.
    pub p50_ms: f64,
    /// The same.
    pub p99_ms: f64,
    /// Why the last round that failed did.
    pub failed: Option<String>,
}

/// One priority on a full line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PressureRow {
    /// Which.
    pub priority: String,
    /// The round trip in milliseconds.
    pub rtt_ms: u32,
    /// Milliseconds of a small call while nothing else is sent; of critical.
    pub alone_p50_ms: Option<f64>,
    /// The same.
    pub alone_p99_ms: Option<f64>,
    /// Milliseconds of a small call on the full line, of those in time.
    pub p50_ms: f64,
    /// The same.
    pub p99_ms: f64,
    /// Small calls that were answered within their deadline.
    pub in_time: u64,
    /// Small calls that ended with `deadline_exceeded`.
    pub deadline_exceeded: u64,
    /// Small calls that ended otherwise.
    pub failed: u64,
    /// Its part of what filled the line, in hundredths; none of critical, which did not.
    pub share_percent: Option<f64>,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TopologyLine {
    /// A topology, or a dispatch.
    Topology(TopologyRow),
    /// A priority.
    Pressure(PressureRow),
}

impl TopologyLine {
    /// What is not as it should be, in words.
    #[must_use]
    pub fn missed(&self) -> Option<String> {
        match self {
            Self::Topology(row) => row.missed(),
            Self::Pressure(row) => row.missed(),
        }
    }

    /// One line for people, while it runs.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Topology(row) => format!(
                "{}, {}: p50 {:.0} ms, p99 {:.0} ms, {} calls{}",
                row.shape.name(),
                row.agents,
                row.p50_ms,
                row.p99_ms,
                row.calls,
                row.failed
                    .as_ref()
                    .map_or(String::new(), |why| format!(", failed: {why}"))
            ),
            Self::Pressure(row) => format!(
                "{}: p50 {:.0} ms, p99 {:.0} ms, {} in time, {} deadline_exceeded, {} failed{}",
                row.priority,
                row.p50_ms,
                row.p99_ms,
                row.in_time,
                row.deadline_exceeded,
                row.failed,
                row.share_percent
                    .map_or(String::new(), |share| format!(", {share:.1} % of the line"))
            ),
        }
    }
}

impl TopologyRow {
    fn missed(&self) -> Option<String> {
        let what = format!("{} ({})", self.shape.name(), self.agents);
        if let Some(why) = &self.failed {
            return Some(format!("{what}: {why}"));
        }
        let aim = f64::from(self.rtt_ms) + DISPATCH_BEYOND_MS;
        let late = self.shape == Shape::DispatchKnown && self.p50_ms > aim;
        late.then(|| format!("{what}: {:.0} ms, and {aim:.0} are aimed at", self.p50_ms))
    }
}

impl PressureRow {
    fn missed(&self) -> Option<String> {
        let what = &self.priority;
        if self.failed > 0 {
            return Some(format!(
                "{what}: {} calls ended in another way",
                self.failed
            ));
        }
        if let Some(alone) = self.alone_p99_ms
            && self.p99_ms > alone * CRITICAL_TIMES
        {
            return Some(format!(
                "{what}: p99 {:.0} ms, alone {alone:.0} ms",
                self.p99_ms
            ));
        }
        let starves = self.share_percent.is_some_and(|share| share < LOWEST_SHARE);
        starves.then(|| format!("{what}: less than {LOWEST_SHARE} % of the line"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_are_as_many_as_their_members_and_calls_are_counted() {
        assert_eq!(
            [1, 3, 4, 10, 12, 48, 100].map(Shape::team),
            [1, 2, 2, 4, 4, 7, 10]
        );
        assert_eq!(Shape::Hierarchy.calls(100), 110);
        assert_eq!(Shape::Hierarchy.calls(10), 13);
        assert_eq!(
            Shape::Mesh.calls(10),
            100,
            "ten are asked, and each asks nine"
        );
        assert_eq!(Shape::Ring.calls(10), 10);
    }

    #[test]
    fn what_is_late_starves_or_fails_is_missed() {
        let row = TopologyRow {
            shape: Shape::DispatchKnown,
            agents: 10,
            rtt_ms: 50,
            calls: 1000,
            rounds: 5,
            p50_ms: 109.0,
            p99_ms: 200.0,
            failed: None,
        };
        assert_eq!(row.missed(), None);
        let late = TopologyRow {
            p50_ms: 111.0,
            ..row.clone()
        };
        assert!(late.missed().is_some());
        let failed = TopologyRow {
            failed: Some("gone".into()),
            ..row
        };
        assert!(failed.missed().is_some());
        let row = PressureRow {
            priority: "critical".into(),
            rtt_ms: 50,
            alone_p50_ms: Some(51.0),
            alone_p99_ms: Some(60.0),
            p50_ms: 55.0,
            p99_ms: 89.0,
            in_time: 10,
            deadline_exceeded: 3,
            failed: 0,
            share_percent: None,
        };
        assert_eq!(
            row.missed(),
            None,
            "an honest deadline_exceeded is no fault"
        );
        for wrong in [
            PressureRow {
                p99_ms: 91.0,
                ..row.clone()
            },
            PressureRow {
                failed: 1,
                ..row.clone()
            },
            PressureRow {
                share_percent: Some(1.9),
                ..row.clone()
            },
        ] {
            assert!(wrong.missed().is_some(), "{wrong:?}");
        }
    }
}
