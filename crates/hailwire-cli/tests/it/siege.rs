//! A short siege: what it finds is well formed, and honest callers lose nothing. Speed is not judged in tests.

use std::{collections::BTreeSet, fs};

use hailwire_bench::{
    run_folder::RunEnvironment,
    siege::{
        AttackerKind,
        record::{SiegePhase, SiegeRecord},
    },
};

use crate::test_nodes::TestNodes;

/// These connect from the joiners' own address faster than a joiner of a debug build can present its ticket.
/// `joins_get_through_a_flood_of_untrusted_peers_from_their_own_address` tests them alone, a siege by hand with the others.
const TOO_FAST: AttackerKind = AttackerKind::UntrustedPeers;

#[test]
fn honest_callers_lose_nothing_while_attackers_are_at_work() {
    let nodes = TestNodes::new();
    let out = nodes.path("siege");
    let all = AttackerKind::ALL.into_iter();
    let attackers: BTreeSet<AttackerKind> = all.filter(|kind| *kind != TOO_FAST).collect();
    let names: Vec<&str> = attackers.iter().map(|kind| kind.name()).collect();
    let (only, shown) = (names.join(","), out.display().to_string());
    let args = [
        "--json",
        "bench",
        "siege",
        "--duration",
        "8s",
        "--quiet",
        "2s",
    ];
    let more = ["--only", &only, "--out", &shown];
    let ran = nodes.run("desk", &[&args[..], &more[..]].concat());

    let environment: RunEnvironment =
        serde_json::from_slice(&fs::read(out.join("environment.json")).unwrap()).unwrap();
    assert_eq!(environment.state, "whole", "{}", ran.stderr);
    let summary = fs::read_to_string(out.join("summary.txt")).unwrap();
    let lines = fs::read_to_string(out.join("siege.jsonl")).unwrap();
    let lines: Vec<SiegeRecord> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();

    let mut attacked = BTreeSet::new();
    let mut phases = BTreeSet::new();
    let mut processes = BTreeSet::new();
    let mut missed = BTreeSet::new();
    for line in &lines {
        match line {
            SiegeRecord::Calls(calls) => {
                assert!(calls.sent > 0, "{calls:?}");
                assert_eq!(
                    calls.failed(),
                    calls.lost.values().sum::<u64>(),
                    "{calls:?}"
                );
                assert_eq!(calls.failed(), 0, "{calls:?}\n{summary}");
                assert!(calls.p50_us <= calls.p99_us, "{calls:?}");
                phases.extend(calls.phase);
            }
            SiegeRecord::Sample(sample) => {
                processes.insert(sample.process.as_str());
            }
            SiegeRecord::Attacker(attacker) => {
                assert_eq!(attacker.failed, "", "{attacker:?}");
                assert!(attacker.did.values().sum::<u64>() > 0, "{attacker:?}");
                attacked.insert(attacker.kind);
            }
            SiegeRecord::Exited(exited) => panic!("{exited:?}"),
            SiegeRecord::Target(target) => {
                if !target.reached {
                    missed.insert(target.target.as_str());
                }
            }
        }
    }
    assert_eq!(attacked, attackers);
    assert_eq!(
        phases,
        [SiegePhase::Quiet, SiegePhase::Attacked, SiegePhase::After].into()
    );
    assert!(processes.contains("victim") && processes.contains("hub"));
    // The others are targets of speed and of memory, which a debug build on a busy machine need not meet.
    let expected = if missed.is_empty() { 0 } else { 1 };
    assert_eq!(ran.code, Some(expected), "{missed:?}");
    assert!(!missed.contains("no honest call is lost") && !missed.contains("every process lives"));
}

#[test]
fn an_attacker_that_nobody_knows_is_answered_with_the_nearest() {
    let nodes = TestNodes::new();
    let ran = nodes.run("desk", &["bench", "siege", "--only", "pngs"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("pings"), "{}", ran.stderr);
}
