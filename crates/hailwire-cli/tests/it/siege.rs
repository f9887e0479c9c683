//! A short siege: what it finds is well formed, and honest callers lose nothing. Speed is not judged in tests.

use std::{collections::BTreeSet, fs};

use hailwire_bench::{
    folder::Environment,
    siege::{
        Kind,
        record::{Phase, Record},
    },
};

use crate::house::House;

/// Those come from the joiners' own address faster than a debug build lets a joiner show its ticket.
/// `joins_get_through_a_flood_of_strangers_from_their_own_address` has them alone, a siege by hand with the others.
const TOO_FAST: Kind = Kind::Strangers;

#[test]
fn honest_callers_lose_nothing_while_attackers_are_at_work() {
    let house = House::new();
    let out = house.path("siege");
    let all = Kind::ALL.into_iter();
    let attackers: BTreeSet<Kind> = all.filter(|kind| *kind != TOO_FAST).collect();
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
    let ran = house.run("desk", &[&args[..], &more[..]].concat());

    let environment: Environment =
        serde_json::from_slice(&fs::read(out.join("environment.json")).unwrap()).unwrap();
    assert_eq!(environment.state, "whole", "{}", ran.stderr);
    let summary = fs::read_to_string(out.join("summary.txt")).unwrap();
    let lines = fs::read_to_string(out.join("siege.jsonl")).unwrap();
    let lines: Vec<Record> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();

    let mut attacked = BTreeSet::new();
    let mut phases = BTreeSet::new();
    let mut processes = BTreeSet::new();
    let mut missed = BTreeSet::new();
    for line in &lines {
        match line {
            Record::Calls(calls) => {
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
            Record::Sample(sample) => {
                processes.insert(sample.process.as_str());
            }
            Record::Attacker(attacker) => {
                assert_eq!(attacker.failed, "", "{attacker:?}");
                assert!(attacker.did.values().sum::<u64>() > 0, "{attacker:?}");
                attacked.insert(attacker.kind);
            }
            Record::Fallen(fallen) => panic!("{fallen:?}"),
            Record::Aim(aim) => {
                if !aim.reached {
                    missed.insert(aim.aim.as_str());
                }
            }
        }
    }
    assert_eq!(attacked, attackers);
    assert_eq!(phases, [Phase::Quiet, Phase::Attacked, Phase::After].into());
    assert!(processes.contains("victim") && processes.contains("hub"));
    // What is left are aims of speed and of memory, which a debug build on a busy machine need not reach.
    let expected = if missed.is_empty() { 0 } else { 1 };
    assert_eq!(ran.code, Some(expected), "{missed:?}");
    assert!(!missed.contains("no honest call is lost") && !missed.contains("every process lives"));
}

#[test]
fn an_attacker_that_nobody_knows_is_answered_with_the_nearest() {
    let house = House::new();
    let ran = house.run("desk", &["bench", "siege", "--only", "pngs"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("pings"), "{}", ran.stderr);
}
