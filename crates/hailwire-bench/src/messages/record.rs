//! The lines of `messages.jsonl`, and what is said of them.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::{Deserialize, Serialize};

use crate::{measure::too_much_growth, run_folder::RunEnvironment};

/// The file in the folder of a run.
pub const FILE: &str = "messages.jsonl";

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageRecord {
    /// A row of speed.
    Speed(MessageSpeed),
    /// A row of publishing to many.
    Fanout(FanoutSpeed),
    /// Something that was not measured, and why.
    Skipped(String),
    /// What became of the messages while nodes were killed.
    Survival(SurvivalRecord),
    /// Where a soak is.
    Soak(SoakState),
    /// What a soak came to.
    SoakEnd(SoakEnd),
}

/// Where a soak is, counted from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SoakState {
    /// Seconds.
    pub at_s: u64,
    /// Durable messages that were accepted.
    pub accepted: u64,
    /// Different ones that their agent has done.
    pub done: u64,
    /// Messages that were published at most once.
    pub published: u64,
    /// Those that came to the subscriber.
    pub received: u64,
    /// Resident bytes of the sender's node, and of the receiver's before it is restarted.
    pub memory: [u64; 2],
    /// Bytes of the files in their data folders.
    pub disk: [u64; 2],
}

/// What a soak came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SoakEnd {
    /// Durable messages that were accepted.
    pub accepted: u64,
    /// Those that their agent has never done.
    pub lost: u64,
}

/// How fast something accepts messages of 1 KiB that are on disk then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageSpeed {
    /// What accepts.
    pub system: String,
    /// Messages that wait for their acceptance at once.
    pub in_flight: u32,
    /// Messages.
    pub messages: u32,
    /// Accepted each second.
    pub per_s: f64,
    /// Median and 99th percentile of the time to acceptance, in milliseconds; `None` where it is not measured.
    pub p50_ms: Option<f64>,
    /// See `p50_ms`.
    pub p99_ms: Option<f64>,
}

/// How fast something that is published comes to many, at most once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FanoutSpeed {
    /// What carries it.
    pub system: String,
    /// How many subscribe.
    pub subscribers: u32,
    /// Messages of 128 bytes.
    pub messages: u64,
    /// Published each second.
    pub published_per_s: f64,
    /// Delivered each second, to all subscribers together.
    pub delivered_per_s: f64,
    /// Deliveries that subscribers were told are lost.
    pub told_lost: u64,
    /// Deliveries that did not come, those among them.
    pub not_come: u64,
    /// Median and 99th percentile from being published to being read, in milliseconds.
    pub p50_ms: Option<f64>,
    /// See `p50_ms`.
    pub p99_ms: Option<f64>,
}

/// What became of the messages while nodes were killed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SurvivalRecord {
    /// The seed of the instants.
    pub seed: u64,
    /// How often a node was killed.
    pub kills: u32,
    /// Whether each kill was a loss of power of that node's disk.
    #[serde(default)]
    pub power_loss: bool,
    /// Whether those disks ignored syncs, so that something must be lost.
    #[serde(default)]
    pub syncs_ignored: bool,
    /// Whether the network lost, repeated and reordered packets, and was cut.
    #[serde(default)]
    pub rough_network: bool,
    /// Messages that were accepted.
    pub accepted: u32,
    /// Sends that ended without an answer and were made again with the same key.
    pub sent_again: u64,
    /// How many ended how, by what the sender's node says.
    pub ends: BTreeMap<String, u32>,
    /// Accepted, and without an end or unknown to the sender's node.
    pub lost: u32,
    /// Acknowledged, and never done by the agent.
    pub never_done: u32,
    /// Handed over again after their end was on the receiver's disk.
    pub after_end: u32,
    /// Of those in order: handed over after a later one had been.
    pub out_of_order: u32,
    /// Handed over more than once, as at least once allows.
    pub handed_over_again: u32,
    /// Seconds in all.
    pub took_s: f64,
}

impl MessageRecord {
    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Speed(speed) => {
                let times = match (speed.p50_ms, speed.p99_ms) {
                    (Some(p50), Some(p99)) => format!(", p50 {p50:.2} ms, p99 {p99:.2} ms"),
                    _ => String::new(),
                };
                format!(
                    "{}, {} in flight: {:.0} a second{times}",
                    speed.system, speed.in_flight, speed.per_s
                )
            }
            Self::Fanout(fanout) => fanout.line(),
            Self::Skipped(what) => format!("skipped: {what}"),
            Self::Survival(survival) => survival.line(),
            Self::Soak(state) => state.line(),
            Self::SoakEnd(end) => format!("{} accepted, {} lost", end.accepted, end.lost),
        }
    }
}

impl SoakState {
    fn line(&self) -> String {
        let mib = |bytes: [u64; 2]| {
            bytes
                .map(|bytes| format!("{:.1}", bytes as f64 / 1048576.0))
                .join(" and ")
        };
        format!(
            "{} s: {} accepted, {} done, {} published, {} received; memory {} MiB, disk {} MiB",
            self.at_s,
            self.accepted,
            self.done,
            self.published,
            self.received,
            mib(self.memory),
            mib(self.disk)
        )
    }
}

impl FanoutSpeed {
    fn line(&self) -> String {
        let times = match (self.p50_ms, self.p99_ms) {
            (Some(p50), Some(p99)) => format!(", p50 {p50:.2} ms, p99 {p99:.2} ms"),
            _ => String::new(),
        };
        format!(
            "{}, {} subscribers: {:.0} published and {:.0} delivered a second{times}; {} told lost, {} not come",
            self.system,
            self.subscribers,
            self.published_per_s,
            self.delivered_per_s,
            self.told_lost,
            self.not_come
        )
    }
}

impl SurvivalRecord {
    fn line(&self) -> String {
        let what = match (self.power_loss, self.syncs_ignored) {
            (true, true) => "losses of power of disks that ignore syncs",
            (true, false) => "losses of power",
            (false, _) => "kills",
        };
        let network = match self.rough_network {
            true => " and cuts of a bad network",
            false => "",
        };
        let mut line = format!(
            "{} messages through {} {what}{network} in {:.0} s, seed {}: {} lost, {} acknowledged and never done, {} after their end, \
             {} out of order; {} handed over more than once, {} sends made again;",
            self.accepted,
            self.kills,
            self.took_s,
            self.seed,
            self.lost,
            self.never_done,
            self.after_end,
            self.out_of_order,
            self.handed_over_again,
            self.sent_again,
        );
        for (end, count) in &self.ends {
            let _ = write!(line, " {count} {end}");
        }
        line
    }
}

/// The whole summary as text.
#[must_use]
pub fn text(environment: &RunEnvironment, lines: &[MessageRecord]) -> String {
    let mut text = format!("{}\n\n", environment.line());
    for line in lines {
        let _ = writeln!(text, "{}", line.line());
    }
    for missed in missed(lines) {
        let _ = writeln!(text, "missed: {missed}");
    }
    text
}

/// What does not hold of what durable messages promise.
#[must_use]
pub fn missed(lines: &[MessageRecord]) -> Vec<String> {
    let mut missed = Vec::new();
    for line in lines {
        if let MessageRecord::SoakEnd(end) = line
            && end.lost > 0
        {
            missed.push(format!(
                "{} accepted messages are lost in the soak",
                end.lost
            ));
        }
        let MessageRecord::Survival(survival) = line else {
            continue;
        };
        for (count, what) in [
            (survival.lost, "accepted messages are lost"),
            (survival.never_done, "acknowledged messages were never done"),
            (survival.after_end, "messages came again after their end"),
            (survival.out_of_order, "messages came out of order"),
        ] {
            if count > 0 {
                missed.push(format!("{count} {what}"));
            }
        }
    }
    let states = lines.iter().filter_map(|line| match line {
        MessageRecord::Soak(state) => Some(state),
        _ => None,
    });
    let states: Vec<&SoakState> = states.collect();
    for (place, whose) in ["the sender's node", "the receiver's node"]
        .into_iter()
        .enumerate()
    {
        for (what, of) in [
            (
                "memory",
                (|state| state.memory) as fn(&SoakState) -> [u64; 2],
            ),
            ("disk", |state| state.disk),
        ] {
            let bytes: Vec<u64> = states.iter().map(|state| of(state)[place]).collect();
            if let Some(growth) = too_much_growth(&bytes) {
                missed.push(format!(
                    "the {what} of {whose} grew by {growth:.0} % from the second quarter of the soak to the last"
                ));
            }
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_lost_done_twice_or_out_of_order_is_missed() {
        let whole = SurvivalRecord {
            accepted: 10,
            ..SurvivalRecord::default()
        };
        assert_eq!(
            missed(&[MessageRecord::Survival(whole.clone())]),
            <[String; 0]>::default()
        );
        let broken = SurvivalRecord {
            lost: 1,
            never_done: 2,
            after_end: 3,
            out_of_order: 4,
            ..whole
        };
        let said = missed(&[MessageRecord::Survival(broken)]);
        assert_eq!(said.len(), 4);
        assert_eq!(said[0], "1 accepted messages are lost");
    }
}
