//! The targets of a siege, and whether they were met: a function of the lines.

use super::{
    AttackerKind,
    record::{PhaseCalls, ProcessExit, ProcessSample, SiegePhase, SiegeRecord, SiegeTarget},
};

/// How many times the quiet phase's 99th percentile that of the attack may be.
const MAX_P99_RATIO: f64 = 3.0;

/// A flow with fewer calls in a phase is too small a sample for its 99th percentile.
const MIN_CALLS_FOR_P99: u64 = 200;

/// Most resident memory of a process.
const MAX_PEAK_RSS: u64 = 256 << 20;

/// Most resident memory after the attack beyond that of the quiet phase before.
const MAX_RSS_KEPT: u64 = 32 << 20;

/// Most growth of resident memory from the second quarter of an attack to its last.
const MAX_RSS_GROWTH: u64 = 16 << 20;

/// The fewest samples in an attack of which growth is judged.
const MIN_GROWTH_SAMPLES: usize = 60;

/// The processes whose memory is judged.
const JUDGED_PROCESSES: [&str; 2] = ["victim", "hub"];

/// The targets of every round.
pub(super) fn judge(lines: &[SiegeRecord]) -> Vec<SiegeTarget> {
    let mut rounds: Vec<&[AttackerKind]> = Vec::new();
    for line in lines {
        let attackers = attackers(line);
        if !rounds.contains(&attackers) {
            rounds.push(attackers);
        }
    }
    rounds
        .into_iter()
        .flat_map(|attackers| RoundRecords::of(lines, attackers).targets())
        .collect()
}

/// The targets that were missed, as text.
pub(super) fn missed(lines: &[SiegeRecord]) -> Vec<String> {
    let missed = |line: &SiegeRecord| match line {
        SiegeRecord::Target(target) if !target.reached => Some(format!(
            "{}: {} ({})",
            attacker_names(&target.attackers),
            target.target,
            target.measured
        )),
        _ => None,
    };
    lines.iter().filter_map(missed).collect()
}

/// The names of some attackers.
pub(super) fn attacker_names(attackers: &[AttackerKind]) -> String {
    let names: Vec<&str> = attackers.iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

pub(super) fn attackers(line: &SiegeRecord) -> &[AttackerKind] {
    match line {
        SiegeRecord::Calls(line) => &line.attackers,
        SiegeRecord::Sample(line) => &line.attackers,
        SiegeRecord::Attacker(line) => &line.attackers,
        SiegeRecord::Exited(line) => &line.attackers,
        SiegeRecord::Target(line) => &line.attackers,
    }
}

/// The lines of one round.
pub(super) struct RoundRecords<'a> {
    pub(super) attackers: &'a [AttackerKind],
    pub(super) calls: Vec<&'a PhaseCalls>,
    pub(super) samples: Vec<&'a ProcessSample>,
    pub(super) exited: Vec<&'a ProcessExit>,
}

impl<'a> RoundRecords<'a> {
    pub(super) fn of(lines: &'a [SiegeRecord], attackers: &'a [AttackerKind]) -> Self {
        let mut round = Self {
            attackers,
            calls: Vec::new(),
            samples: Vec::new(),
            exited: Vec::new(),
        };
        for line in lines
            .iter()
            .filter(|line| self::attackers(line) == attackers)
        {
            match line {
                SiegeRecord::Calls(line) => round.calls.push(line),
                SiegeRecord::Sample(line) => round.samples.push(line),
                SiegeRecord::Exited(line) => round.exited.push(line),
                SiegeRecord::Attacker(_) | SiegeRecord::Target(_) => {}
            }
        }
        round
    }

    fn targets(&self) -> Vec<SiegeTarget> {
        let mut targets = vec![self.all_alive(), self.nothing_lost()];
        targets.extend(self.as_fast());
        for process in JUDGED_PROCESSES {
            targets.extend(self.peak(process));
            targets.extend(self.given_back(process));
            targets.extend(self.flat(process));
        }
        targets
    }

    fn target(&self, target: String, measured: String, reached: bool) -> SiegeTarget {
        SiegeTarget {
            attackers: self.attackers.to_vec(),
            target,
            measured,
            reached,
        }
    }

    fn all_alive(&self) -> SiegeTarget {
        let exited: Vec<String> = self
            .exited
            .iter()
            .map(|exited| {
                format!(
                    "{} after {:.0} s: {}",
                    exited.process, exited.after_s, exited.how
                )
            })
            .collect();
        let measured = if exited.is_empty() {
            "all live".to_owned()
        } else {
            exited.join("; ")
        };
        self.target("every process lives".into(), measured, exited.is_empty())
    }

    fn nothing_lost(&self) -> SiegeTarget {
        let sent: u64 = self.calls.iter().map(|calls| calls.sent).sum();
        let failed: u64 = self.calls.iter().map(|calls| calls.failed()).sum();
        let wrong: u64 = self.calls.iter().map(|calls| calls.wrong).sum();
        let which: Vec<String> = self
            .calls
            .iter()
            .filter(|calls| calls.failed() > 0)
            .map(|calls| {
                let phase = calls.phase.map_or("", SiegePhase::name);
                format!("{} {phase} {}", calls.flow, calls.failed())
            })
            .collect();
        let mut measured = format!("{failed} of {sent} lost, {wrong} of them answered wrongly");
        if !which.is_empty() {
            measured += &format!(": {}", which.join(", "));
        }
        self.target(
            "no honest call is lost".into(),
            measured,
            failed == 0 && sent > 0,
        )
    }

    /// The calls of a flow in a phase.
    pub(super) fn flow(&self, flow: &str, phase: SiegePhase) -> Option<&'a PhaseCalls> {
        let mut calls = self.calls.iter();
        calls
            .find(|calls| calls.flow == flow && calls.phase == Some(phase))
            .copied()
    }

    fn as_fast(&self) -> Vec<SiegeTarget> {
        let attacked = self.calls.iter().filter(|calls| {
            calls.phase == Some(SiegePhase::Attacked) && calls.sent >= MIN_CALLS_FOR_P99
        });
        let compare = |attacked: &&PhaseCalls| {
            let quiet = self.flow(&attacked.flow, SiegePhase::Quiet)?;
            if quiet.sent < MIN_CALLS_FOR_P99 || quiet.p99_us <= 0.0 {
                return None;
            }
            let ratio = attacked.p99_us / quiet.p99_us;
            let target = format!(
                "p99 of {} within {MAX_P99_RATIO} × that of the quiet",
                attacked.flow
            );
            let (quiet, attacked) = (quiet.p99_us / 1e3, attacked.p99_us / 1e3);
            let measured = format!("{attacked:.2} ms, {ratio:.2} × of {quiet:.2} ms");
            Some(self.target(target, measured, ratio <= MAX_P99_RATIO))
        };
        attacked.filter_map(compare).collect()
    }

    /// Resident bytes of a process in a phase, in order.
    pub(super) fn rss(&self, process: &str, phase: SiegePhase) -> Vec<u64> {
        let of = |sample: &&&ProcessSample| sample.process == process && sample.phase == phase;
        let samples = self.samples.iter().filter(of);
        // A process that is gone holds nothing.
        samples
            .map(|sample| sample.rss_bytes)
            .filter(|bytes| *bytes > 0)
            .collect()
    }

    fn peak(&self, process: &str) -> Option<SiegeTarget> {
        let phases = [SiegePhase::Quiet, SiegePhase::Attacked, SiegePhase::After];
        let all = phases.iter().flat_map(|phase| self.rss(process, *phase));
        let peak = all.max()?;
        let target = format!("{process} holds at most {}", mib(MAX_PEAK_RSS));
        Some(self.target(target, mib(peak), peak < MAX_PEAK_RSS))
    }

    fn given_back(&self, process: &str) -> Option<SiegeTarget> {
        let before = middle(&self.rss(process, SiegePhase::Quiet))?;
        let after = self.rss(process, SiegePhase::After);
        // By the second half of the phase, freed memory has been returned.
        let after = middle(after.get(after.len() / 2..)?)?;
        let target = format!(
            "{process} gives memory back, to {} more than before",
            mib(MAX_RSS_KEPT)
        );
        let measured = format!("{} before, {} after", mib(before), mib(after));
        Some(self.target(target, measured, after <= before + MAX_RSS_KEPT))
    }

    fn flat(&self, process: &str) -> Option<SiegeTarget> {
        let all = self.rss(process, SiegePhase::Attacked);
        if all.len() < MIN_GROWTH_SAMPLES {
            return None;
        }
        let quarter = all.len() / 4;
        let early = middle(all.get(quarter..2 * quarter)?)?;
        let late = middle(all.get(3 * quarter..)?)?;
        let target = format!(
            "{process} grows by at most {} from the attack's second quarter to its last",
            mib(MAX_RSS_GROWTH)
        );
        let measured = format!("{} then, {} in the end", mib(early), mib(late));
        Some(self.target(target, measured, late <= early + MAX_RSS_GROWTH))
    }
}

/// The median.
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

    fn calls(phase: SiegePhase, sent: u64, answered: u64, p99_us: f64) -> SiegeRecord {
        SiegeRecord::Calls(PhaseCalls {
            attackers: vec![AttackerKind::Pings],
            phase: Some(phase),
            flow: "quic".into(),
            sent,
            answered,
            p99_us,
            ..PhaseCalls::default()
        })
    }

    fn sample(phase: SiegePhase, rss_bytes: u64) -> SiegeRecord {
        SiegeRecord::Sample(ProcessSample {
            attackers: vec![AttackerKind::Pings],
            phase,
            at_s: 0.0,
            process: "victim".into(),
            rss_bytes,
            cpu_s: 0.0,
        })
    }

    fn missed_of(lines: &[SiegeRecord]) -> Vec<String> {
        let targets = judge(lines);
        targets
            .into_iter()
            .filter(|target| !target.reached)
            .map(|target| target.target)
            .collect()
    }

    #[test]
    fn a_round_in_which_nothing_happens_reaches_every_aim() {
        let lines = [
            calls(SiegePhase::Quiet, 1000, 1000, 500.0),
            calls(SiegePhase::Attacked, 1000, 1000, 1500.0),
            sample(SiegePhase::Quiet, 20 << 20),
            sample(SiegePhase::Attacked, 200 << 20),
            sample(SiegePhase::After, 50 << 20),
        ];
        assert_eq!(missed_of(&lines), Vec::<String>::new());
        assert_eq!(judge(&lines).len(), 5);
    }

    #[test]
    fn each_thing_that_goes_wrong_is_an_aim_of_its_own() {
        let mut lines = vec![
            calls(SiegePhase::Quiet, 1000, 1000, 500.0),
            calls(SiegePhase::Attacked, 1000, 999, 1501.0),
            sample(SiegePhase::Quiet, 20 << 20),
            sample(SiegePhase::After, 53 << 20),
        ];
        lines.extend((0..100).map(|second| sample(SiegePhase::Attacked, (20 + 4 * second) << 20)));
        lines.push(SiegeRecord::Exited(ProcessExit {
            attackers: vec![AttackerKind::Pings],
            process: "victim".into(),
            phase: SiegePhase::Attacked,
            after_s: 3.0,
            how: "it ended".into(),
        }));
        let missed = missed_of(&lines);
        assert_eq!(missed.len(), 6, "{missed:#?}");
    }

    #[test]
    fn a_percentile_of_too_few_calls_is_not_judged() {
        let lines = [
            calls(SiegePhase::Quiet, 20, 20, 500.0),
            calls(SiegePhase::Attacked, 1000, 1000, 9000.0),
        ];
        assert_eq!(missed_of(&lines), Vec::<String>::new());
    }
}
