//! What is aimed at, and whether it was reached: a function of the lines.

use super::{
    Kind,
    record::{Aim, Calls, Fallen, Phase, Record, Sample},
};

/// The 99th percentile may be so many times that of the quiet.
const SLOWER: f64 = 3.0;

/// A flow with fewer calls in a phase is too small a sample for its 99th percentile.
const ENOUGH: u64 = 200;

/// What a process may hold at its peak.
const PEAK: u64 = 256 << 20;

/// What may stay after the attack, beyond what was held in the quiet before.
const STAYS: u64 = 32 << 20;

/// What may be added from the second quarter of an attack to its last.
const GROWS: u64 = 16 << 20;

/// Samples in an attack below which nothing is said of growth.
const LONG: usize = 60;

/// The processes whose memory is judged.
const JUDGED: [&str; 2] = ["victim", "hub"];

/// The aims of every round.
pub(super) fn judge(lines: &[Record]) -> Vec<Aim> {
    let mut rounds: Vec<&[Kind]> = Vec::new();
    for line in lines {
        let attackers = attackers(line);
        if !rounds.contains(&attackers) {
            rounds.push(attackers);
        }
    }
    rounds
        .into_iter()
        .flat_map(|attackers| Round::of(lines, attackers).aims())
        .collect()
}

/// The aims that were missed, in words.
pub(super) fn missed(lines: &[Record]) -> Vec<String> {
    let missed = |line: &Record| match line {
        Record::Aim(aim) if !aim.reached => Some(format!(
            "{}: {} ({})",
            words(&aim.attackers),
            aim.aim,
            aim.measured
        )),
        _ => None,
    };
    lines.iter().filter_map(missed).collect()
}

/// Attackers in words.
pub(super) fn words(attackers: &[Kind]) -> String {
    let names: Vec<&str> = attackers.iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

pub(super) fn attackers(line: &Record) -> &[Kind] {
    match line {
        Record::Calls(line) => &line.attackers,
        Record::Sample(line) => &line.attackers,
        Record::Attacker(line) => &line.attackers,
        Record::Fallen(line) => &line.attackers,
        Record::Aim(line) => &line.attackers,
    }
}

/// The lines of one round.
pub(super) struct Round<'a> {
    pub(super) attackers: &'a [Kind],
    pub(super) calls: Vec<&'a Calls>,
    pub(super) samples: Vec<&'a Sample>,
    pub(super) fallen: Vec<&'a Fallen>,
}

impl<'a> Round<'a> {
    pub(super) fn of(lines: &'a [Record], attackers: &'a [Kind]) -> Self {
        let mut round = Self {
            attackers,
            calls: Vec::new(),
            samples: Vec::new(),
            fallen: Vec::new(),
        };
        for line in lines
            .iter()
            .filter(|line| self::attackers(line) == attackers)
        {
            match line {
                Record::Calls(line) => round.calls.push(line),
                Record::Sample(line) => round.samples.push(line),
                Record::Fallen(line) => round.fallen.push(line),
                Record::Attacker(_) | Record::Aim(_) => {}
            }
        }
        round
    }

    fn aims(&self) -> Vec<Aim> {
        let mut aims = vec![self.standing(), self.nothing_lost()];
        aims.extend(self.as_fast());
        for process in JUDGED {
            aims.extend(self.peak(process));
            aims.extend(self.given_back(process));
            aims.extend(self.flat(process));
        }
        aims
    }

    fn aim(&self, aim: String, measured: String, reached: bool) -> Aim {
        Aim {
            attackers: self.attackers.to_vec(),
            aim,
            measured,
            reached,
        }
    }

    fn standing(&self) -> Aim {
        let fallen: Vec<String> = self
            .fallen
            .iter()
            .map(|fallen| {
                format!(
                    "{} after {:.0} s: {}",
                    fallen.process, fallen.after_s, fallen.how
                )
            })
            .collect();
        let measured = if fallen.is_empty() {
            "all live".to_owned()
        } else {
            fallen.join("; ")
        };
        self.aim("every process lives".into(), measured, fallen.is_empty())
    }

    fn nothing_lost(&self) -> Aim {
        let sent: u64 = self.calls.iter().map(|calls| calls.sent).sum();
        let failed: u64 = self.calls.iter().map(|calls| calls.failed()).sum();
        let wrong: u64 = self.calls.iter().map(|calls| calls.wrong).sum();
        let which: Vec<String> = self
            .calls
            .iter()
            .filter(|calls| calls.failed() > 0)
            .map(|calls| {
                let phase = calls.phase.map_or("", Phase::word);
                format!("{} {phase} {}", calls.flow, calls.failed())
            })
            .collect();
        let mut measured = format!("{failed} of {sent} lost, {wrong} of them answered wrongly");
        if !which.is_empty() {
            measured += &format!(": {}", which.join(", "));
        }
        self.aim(
            "no honest call is lost".into(),
            measured,
            failed == 0 && sent > 0,
        )
    }

    /// The calls of a flow in a phase.
    pub(super) fn flow(&self, flow: &str, phase: Phase) -> Option<&'a Calls> {
        let mut calls = self.calls.iter();
        calls
            .find(|calls| calls.flow == flow && calls.phase == Some(phase))
            .copied()
    }

    fn as_fast(&self) -> Vec<Aim> {
        let attacked = self
            .calls
            .iter()
            .filter(|calls| calls.phase == Some(Phase::Attacked) && calls.sent >= ENOUGH);
        let compare = |attacked: &&Calls| {
            let quiet = self.flow(&attacked.flow, Phase::Quiet)?;
            if quiet.sent < ENOUGH || quiet.p99_us <= 0.0 {
                return None;
            }
            let ratio = attacked.p99_us / quiet.p99_us;
            let aim = format!(
                "p99 of {} within {SLOWER} × that of the quiet",
                attacked.flow
            );
            let (quiet, attacked) = (quiet.p99_us / 1e3, attacked.p99_us / 1e3);
            let measured = format!("{attacked:.2} ms, {ratio:.2} × of {quiet:.2} ms");
            Some(self.aim(aim, measured, ratio <= SLOWER))
        };
        attacked.filter_map(compare).collect()
    }

    /// Resident bytes of a process in a phase, in order.
    pub(super) fn rss(&self, process: &str, phase: Phase) -> Vec<u64> {
        let of = |sample: &&&Sample| sample.process == process && sample.phase == phase;
        let samples = self.samples.iter().filter(of);
        // A process that is gone holds nothing.
        samples
            .map(|sample| sample.rss_bytes)
            .filter(|bytes| *bytes > 0)
            .collect()
    }

    fn peak(&self, process: &str) -> Option<Aim> {
        let phases = [Phase::Quiet, Phase::Attacked, Phase::After];
        let all = phases.iter().flat_map(|phase| self.rss(process, *phase));
        let peak = all.max()?;
        let aim = format!("{process} holds at most {}", mib(PEAK));
        Some(self.aim(aim, mib(peak), peak < PEAK))
    }

    fn given_back(&self, process: &str) -> Option<Aim> {
        let before = middle(&self.rss(process, Phase::Quiet))?;
        let after = self.rss(process, Phase::After);
        // What is given back is given back by then.
        let after = middle(after.get(after.len() / 2..)?)?;
        let aim = format!(
            "{process} gives memory back, to {} more than before",
            mib(STAYS)
        );
        let measured = format!("{} before, {} after", mib(before), mib(after));
        Some(self.aim(aim, measured, after <= before + STAYS))
    }

    fn flat(&self, process: &str) -> Option<Aim> {
        let all = self.rss(process, Phase::Attacked);
        if all.len() < LONG {
            return None;
        }
        let quarter = all.len() / 4;
        let early = middle(all.get(quarter..2 * quarter)?)?;
        let late = middle(all.get(3 * quarter..)?)?;
        let aim = format!(
            "{process} grows by at most {} from the attack's second quarter to its last",
            mib(GROWS)
        );
        let measured = format!("{} then, {} in the end", mib(early), mib(late));
        Some(self.aim(aim, measured, late <= early + GROWS))
    }
}

/// The middle one.
pub(super) fn middle(values: &[u64]) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

pub(super) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(phase: Phase, sent: u64, answered: u64, p99_us: f64) -> Record {
        Record::Calls(Calls {
            attackers: vec![Kind::Pings],
            phase: Some(phase),
            flow: "quic".into(),
            sent,
            answered,
            p99_us,
            ..Calls::default()
        })
    }

    fn sample(phase: Phase, rss_bytes: u64) -> Record {
        Record::Sample(Sample {
            attackers: vec![Kind::Pings],
            phase,
            at_s: 0.0,
            process: "victim".into(),
            rss_bytes,
            cpu_s: 0.0,
        })
    }

    fn missed_of(lines: &[Record]) -> Vec<String> {
        let aims = judge(lines);
        aims.into_iter()
            .filter(|aim| !aim.reached)
            .map(|aim| aim.aim)
            .collect()
    }

    #[test]
    fn a_round_in_which_nothing_happens_reaches_every_aim() {
        let lines = [
            calls(Phase::Quiet, 1000, 1000, 500.0),
            calls(Phase::Attacked, 1000, 1000, 1500.0),
            sample(Phase::Quiet, 20 << 20),
            sample(Phase::Attacked, 200 << 20),
            sample(Phase::After, 50 << 20),
        ];
        assert_eq!(missed_of(&lines), Vec::<String>::new());
        assert_eq!(judge(&lines).len(), 5);
    }

    #[test]
    fn each_thing_that_goes_wrong_is_an_aim_of_its_own() {
        let mut lines = vec![
            calls(Phase::Quiet, 1000, 1000, 500.0),
            calls(Phase::Attacked, 1000, 999, 1501.0),
            sample(Phase::Quiet, 20 << 20),
            sample(Phase::After, 53 << 20),
        ];
        lines.extend((0..100).map(|second| sample(Phase::Attacked, (20 + 4 * second) << 20)));
        lines.push(Record::Fallen(Fallen {
            attackers: vec![Kind::Pings],
            process: "victim".into(),
            phase: Phase::Attacked,
            after_s: 3.0,
            how: "it ended".into(),
        }));
        let missed = missed_of(&lines);
        assert_eq!(missed.len(), 6, "{missed:#?}");
    }

    #[test]
    fn a_percentile_of_too_few_calls_is_not_judged() {
        let lines = [
            calls(Phase::Quiet, 20, 20, 500.0),
            calls(Phase::Attacked, 1000, 1000, 9000.0),
        ];
        assert_eq!(missed_of(&lines), Vec::<String>::new());
    }
}
