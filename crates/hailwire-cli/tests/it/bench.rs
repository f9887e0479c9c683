//! Measurements as people run them: every cell has a figure or a reason, a run that is interrupted keeps
//! what it has, and anybody's program can take part.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
};

use hailwire_bench::{
    result::{CellId, ResultEntry},
    run_folder::RunEnvironment,
    suite::{SdkLaunchers, Suite, SuiteOrder, SuiteSize, covered, steps},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::test_nodes::TestNodes;

fn entries(dir: &Path) -> Vec<ResultEntry> {
    let raw = fs::read_to_string(dir.join("raw.jsonl")).unwrap();
    raw.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn environment(dir: &Path) -> RunEnvironment {
    serde_json::from_slice(&fs::read(dir.join("environment.json")).unwrap()).unwrap()
}

fn measured(entries: &[ResultEntry], subject: &str) -> usize {
    let of = |entry: &&ResultEntry| matches!(entry, ResultEntry::Measured(line) if line.cell.subject == subject);
    entries.iter().filter(of).count()
}

/// Runs a suite with as little work as there is, on loopback and over QUIC.
fn tiny(nodes: &TestNodes, suite: Suite) -> Vec<ResultEntry> {
    let out = nodes.path(suite.name());
    let shown = out.display().to_string();
    let args = ["bench", "run", suite.name(), "--tiny", "--carrier", "quic"];
    let more = ["--network", "loopback", "--out", &shown];
    nodes.run("desk", &[&args[..], &more[..]].concat()).ok();
    assert_eq!(environment(&out).state, "whole");
    assert!(out.join("report.html").exists() && out.join("report.md").exists());
    entries(&out)
}

/// Every cell of the suite has a line or a reason, and every line of a counted repeat has figures.
fn assert_whole(suite: Suite, entries: &[ResultEntry]) {
    let order = SuiteOrder {
        suite,
        size: SuiteSize::Tiny,
        networks: Vec::new(),
        carriers: vec![hailwire_bench::subject::SessionCarrier::Quic],
        repeats: None,
        foreign: Vec::new(),
        peer: None,
        sdk: SdkLaunchers::default(),
    };
    let cell = |entry: &ResultEntry| match entry {
        ResultEntry::Measured(line) => Some(line.cell.clone()),
        ResultEntry::Skipped(skipped) => Some(skipped.cell.clone()),
        ResultEntry::Timing(_) => None,
    };
    let seen: Vec<CellId> = entries.iter().filter_map(cell).collect();
    for wanted in covered(&steps(&order)) {
        let same = |cell: &&CellId| {
            CellId {
                suite: String::new(),
                ..(*cell).clone()
            } == CellId {
                suite: String::new(),
                ..wanted.clone()
            }
        };
        assert!(seen.iter().any(|cell| same(&cell)), "{wanted:?} is empty");
    }
    for entry in entries {
        match entry {
            ResultEntry::Measured(line) => {
                assert!(!line.figures.is_empty(), "{:?}", line.cell);
                assert!(line.figures.values().all(|figure| figure.is_finite()));
            }
            ResultEntry::Skipped(skipped) => assert!(!skipped.reason.is_empty()),
            ResultEntry::Timing(timing) => {
                assert!(timing.took.work_s > 0.0, "{timing:?}");
                // A party that has to be killed costs seconds in every row, and says of itself that it hangs.
                assert_eq!(timing.killed, 0, "{timing:?}");
            }
        }
    }
}

#[test]
fn the_smoke_suite_leaves_no_cell_empty() {
    let nodes = TestNodes::new();
    let entries = tiny(&nodes, Suite::Smoke);
    assert_whole(Suite::Smoke, &entries);
    for subject in [
        "quic",
        "raw iroh",
        "plain h2",
        "plain ws",
        "process to process",
    ] {
        assert!(measured(&entries, subject) > 0, "{subject}");
    }
}

#[test]
fn the_coordination_suite_leaves_no_cell_empty() {
    let nodes = TestNodes::new();
    assert_whole(Suite::Coordination, &tiny(&nodes, Suite::Coordination));
}

#[test]
fn the_overlay_suite_leaves_no_cell_empty() {
    let nodes = TestNodes::new();
    assert_whole(Suite::Overlay, &tiny(&nodes, Suite::Overlay));
}

#[test]
fn the_callout_suite_leaves_no_cell_empty() {
    let nodes = TestNodes::new();
    let entries = tiny(&nodes, Suite::Callout);
    assert_whole(Suite::Callout, &entries);
    for subject in [
        "callout",
        "ours to ours",
        "near agent",
        "far agent",
        "udp echo",
    ] {
        assert!(measured(&entries, subject) > 0, "{subject}");
    }
}

#[test]
fn the_sdk_suite_leaves_no_cell_empty() {
    let nodes = TestNodes::new();
    let entries = tiny(&nodes, Suite::Sdk);
    assert_whole(Suite::Sdk, &entries);
    let absent = |script: &str| {
        let says_so = |entry: &ResultEntry| matches!(entry, ResultEntry::Skipped(s) if s.reason.ends_with(script));
        entries.iter().any(says_so)
    };
    for (script, subject) in [
        ("peers/install sdk-python", "aiohttp"),
        ("peers/install sdk-node", "undici"),
    ] {
        if absent(script) {
            hailwire_skip::skipped(format!("{subject} is not installed ({script})"));
        } else {
            assert!(measured(&entries, subject) > 0, "{subject}");
        }
    }
}

#[test]
fn a_program_of_somebody_elses_takes_part() {
    let nodes = TestNodes::new();
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../hailwire-bench/examples/echo_subject.py"
    );
    let subject =
        format!("python=python3 {program} serve {{listen}},python3 {program} load {{address}}");
    let out = nodes.path("foreign");
    let shown = out.display().to_string();
    let args = ["bench", "run", "smoke", "--tiny", "--carrier", "quic"];
    let more = ["--subject", &subject, "--out", &shown];
    nodes.run("desk", &[&args[..], &more[..]].concat()).ok();
    let entries = entries(&out);
    assert!(measured(&entries, "python") >= 4);
    let says_so = |entry: &ResultEntry| matches!(entry, ResultEntry::Skipped(s) if s.reason == "this subject does no bulk");
    assert!(entries.iter().any(says_so));
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_finishes_the_folder() {
    let nodes = TestNodes::new();
    let out = nodes.path("stopped");
    let shown = out.display().to_string();
    let args = ["bench", "run", "smoke", "--tiny", "--repeats", "100"];
    let mut child: Child = nodes
        .hail(
            "desk",
            &[&args[..], &["--carrier", "quic", "--out", &shown]].concat(),
        )
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let raw = out.join("raw.jsonl");
    let lines = || fs::read_to_string(&raw).unwrap_or_default().lines().count();
    while lines() < 5 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let programs = hailwire_bench::measure::process::process_tree(child.id());
    assert!(programs.len() > 2, "its parties are processes of their own");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let entries = entries(&out);
    assert!(measured(&entries, "raw iroh") > 0);
    let interrupted = |entry: &ResultEntry| matches!(entry, ResultEntry::Skipped(s) if s.reason == "the run was interrupted");
    assert!(entries.iter().any(interrupted));
    assert_eq!(environment(&out).state, "interrupted");
    assert!(out.join("report.html").exists());
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest() {
    let nodes = TestNodes::new();
    for (args, nearest) in [
        (&["bench", "run", "smoek"][..], "smoke"),
        (
            &["bench", "run", "smoke", "--network", "wan-50"],
            "wan-50ms",
        ),
        (&["bench", "run", "smoke", "--carrier", "h3"], "h2"),
    ] {
        let ran = nodes.run("desk", args);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(nearest), "{}", ran.stderr);
    }
}

#[test]
fn an_agent_of_ones_own_is_measured_at_a_rate_and_by_callers() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    nodes.serve_with("desk", &["echo", "--lines", "--", "cat"]);
    let measured = |args: &[&str]| {
        let all = [
            &[
                "--json",
                "bench",
                "call",
                "echo",
                "hello",
                "--warm-up",
                "0s",
            ],
            args,
        ]
        .concat();
        nodes.run("desk", &all).ok().json()
    };
    let open = measured(&["--rate", "50", "--duration", "1s"]);
    assert_eq!(
        (&open["answered"], &open["failed"]),
        (&50.into(), &serde_json::json!({}))
    );
    assert!(open["p50_us"].as_f64() > Some(0.0), "{open}");
    assert!(open["max_us"].as_f64() >= open["p99_us"].as_f64(), "{open}");
    let closed = measured(&["--callers", "2", "--duration", "200ms"]);
    assert!(closed["answered"].as_u64() >= Some(2), "{closed}");

    let none = nodes.run(
        "desk",
        &[
            "bench",
            "call",
            "nobody",
            "--duration",
            "1ms",
            "--warm-up",
            "0s",
        ],
    );
    assert_eq!(none.code, Some(1), "{none:#?}");
    assert!(none.stderr.contains("not_found"), "{none:#?}");
}
