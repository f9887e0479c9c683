//! The summary of a siege as text.

use std::fmt::Write as _;

use super::{
    AttackerKind,
    record::{AttackerResult, SiegePhase, SiegeRecord},
    verdict::{self, RoundRecords, mib, middle},
};
use crate::run_folder::RunEnvironment;

/// The whole summary.
pub(super) fn of(environment: &RunEnvironment, lines: &[SiegeRecord]) -> String {
    let mut text = String::new();
    let RunEnvironment {
        command,
        load_before,
        load_after,
        seconds,
        state,
        ..
    } = environment;
    // Writing to text cannot fail.
    let _ = writeln!(
        text,
        "{command}\n{}, load {load_before} before, {load_after} after, {seconds:.0} s, {state}",
        environment.program_and_machine()
    );
    let mut rounds: Vec<&[AttackerKind]> = Vec::new();
    for line in lines {
        let attackers = verdict::attackers(line);
        if !rounds.contains(&attackers) {
            rounds.push(attackers);
        }
    }
    for attackers in rounds {
        round(&mut text, lines, attackers);
    }
    text
}

fn round(text: &mut String, lines: &[SiegeRecord], attackers: &[AttackerKind]) {
    let round = RoundRecords::of(lines, attackers);
    let _ = writeln!(text, "\n== {} ==", verdict::attacker_names(attackers));
    calls(text, &round);
    memory(text, &round);
    let _ = writeln!(text, "\nattackers (cpu: share of one processor)");
    for line in lines {
        if let SiegeRecord::Attacker(attacker) = line
            && attacker.attackers == attackers
        {
            one(text, attacker);
        }
    }
    let _ = writeln!(text, "\naims");
    for line in lines {
        if let SiegeRecord::Target(target) = line
            && target.attackers == attackers
        {
            let word = if target.reached { "reached" } else { "MISSED " };
            let _ = writeln!(text, "  {word}  {}: {}", target.target, target.measured);
        }
    }
}

fn calls(text: &mut String, round: &RoundRecords<'_>) {
    let _ = writeln!(
        text,
        "\n{:<22} {:>5} {:>7} {:>6} {:>10} {:>10} {:>10} {:>10} {:>7}",
        "honest calls",
        "/s",
        "sent",
        "lost",
        "p50 quiet",
        "attacked",
        "p99 quiet",
        "attacked",
        "ratio"
    );
    let mut seen = Vec::new();
    for calls in &round.calls {
        if seen.contains(&&calls.flow) {
            continue;
        }
        seen.push(&calls.flow);
        let of = |phase| round.flow(&calls.flow, phase);
        let phases = [SiegePhase::Quiet, SiegePhase::Attacked, SiegePhase::After].map(of);
        let sum = |count: fn(&super::record::PhaseCalls) -> u64| -> u64 {
            phases.iter().flatten().map(|calls| count(calls)).sum()
        };
        let us = |phase: usize, which: fn(&super::record::PhaseCalls) -> f64| {
            phases[phase].map_or(0.0, which)
        };
        let (quiet, attacked) = (us(0, |c| c.p99_us), us(1, |c| c.p99_us));
        let ratio = if quiet > 0.0 { attacked / quiet } else { 0.0 };
        let _ = writeln!(
            text,
            "{:<22} {:>5} {:>7} {:>6} {:>10} {:>10} {:>10} {:>10} {ratio:>7.2}",
            calls.flow,
            calls.per_second,
            sum(|c| c.sent),
            sum(|c| c.failed()),
            ms(us(0, |c| c.p50_us)),
            ms(us(1, |c| c.p50_us)),
            ms(quiet),
            ms(attacked),
        );
    }
    for calls in &round.calls {
        for (why, count) in &calls.lost {
            let phase = calls.phase.map_or("", SiegePhase::name);
            let _ = writeln!(text, "  lost {count} of {} {phase}: {why}", calls.flow);
        }
    }
}

fn memory(text: &mut String, round: &RoundRecords<'_>) {
    let _ = writeln!(
        text,
        "\n{:<16} {:>10} {:>10} {:>10} {:>10}   cpu of one: {:>6} {:>9}",
        "memory", "quiet", "attacked", "peak", "after", "quiet", "attacked"
    );
    let mut seen: Vec<&str> = Vec::new();
    for sample in &round.samples {
        if seen.contains(&sample.process.as_str()) {
            continue;
        }
        seen.push(&sample.process);
        let of = |phase| round.rss(&sample.process, phase);
        let [quiet, attacked, after] =
            [SiegePhase::Quiet, SiegePhase::Attacked, SiegePhase::After].map(of);
        let show = |bytes: Option<u64>| bytes.map_or("-".to_owned(), mib);
        let peak = [&quiet, &attacked, &after].into_iter().flatten().max();
        let _ = writeln!(
            text,
            "{:<16} {:>10} {:>10} {:>10} {:>10}               {:>6} {:>9}",
            sample.process,
            show(middle(&quiet)),
            show(middle(&attacked)),
            show(peak.copied()),
            show(middle(after.get(after.len() / 2..).unwrap_or_default())),
            percent(cpu(round, &sample.process, SiegePhase::Quiet)),
            percent(cpu(round, &sample.process, SiegePhase::Attacked)),
        );
    }
}

/// Share of one processor that a process took in a phase.
fn cpu(round: &RoundRecords<'_>, process: &str, phase: SiegePhase) -> f64 {
    let mut samples = round.samples.iter().filter(|sample| {
        sample.process == process && sample.phase == phase && sample.rss_bytes > 0
    });
    let first = samples.next();
    match (first, samples.next_back()) {
        (Some(first), Some(last)) => {
            (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s).max(0.001)
        }
        _ => 0.0,
    }
}

fn one(text: &mut String, attacker: &AttackerResult) {
    let _ = writeln!(
        text,
        "  {:<10} cpu {:>5}  {}",
        attacker.kind.name(),
        percent(attacker.cpu_share),
        attacker.kind.description()
    );
    let counts = |counts: &std::collections::BTreeMap<String, u64>| {
        let each: Vec<String> = counts
            .iter()
            .map(|(what, n)| format!("{what} {n}"))
            .collect();
        each.join(", ")
    };
    let _ = writeln!(text, "    did      {}", counts(&attacker.did));
    let _ = writeln!(text, "    refused  {}", counts(&attacker.refused));
    if !attacker.failed.is_empty() {
        let _ = writeln!(text, "    FAILED   {}", attacker.failed);
    }
}

fn ms(us: f64) -> String {
    format!("{:.2} ms", us / 1e3)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
