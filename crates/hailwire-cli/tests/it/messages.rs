//! Durable messages through the command line, and what is left of them when nodes are killed.

use std::fs;

use hailwire_bench::messages::record::{self, MessageRecord, SurvivalRecord};
use hailwire_lab::power_loss;

use crate::test_nodes::TestNodes;

#[test]
fn no_message_is_lost_while_nodes_are_killed() {
    let nodes = TestNodes::new();
    let out = nodes.path("messages").display().to_string();
    let args = ["--json", "bench", "messages", "--sends", "0"];
    let more = ["--messages", "400", "--kills", "16", "--out", &out];
    let ran = nodes.run("desk", &[&args[..], &more[..]].concat()).ok();
    let lines = fs::read_to_string(nodes.path("messages").join(record::FILE)).unwrap();
    let lines: Vec<MessageRecord> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [MessageRecord::Survival(survival)] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert_eq!(
        (survival.accepted, survival.kills),
        (400, 16),
        "{}",
        ran.stderr
    );
    assert_eq!(survival.ends.values().sum::<u32>(), 400, "{survival:?}");
}

/// What became of messages while nodes were killed, or why they could not be started again.
fn through_kills(nodes: &TestNodes, more: &[&str]) -> Result<SurvivalRecord, String> {
    let out = nodes.path("messages").display().to_string();
    let args = ["--json", "bench", "messages", "--sends", "0", "--out", &out];
    let kills = ["--messages", "300", "--kills", "10"];
    let ran = nodes.run("desk", &[&args[..], &kills[..], more].concat());
    let lines = fs::read_to_string(nodes.path("messages").join(record::FILE)).unwrap_or_default();
    match lines.lines().map(serde_json::from_str).next() {
        Some(Ok(MessageRecord::Survival(survival))) => Ok(survival),
        _ => Err(ran.stderr),
    }
}

fn holds(survival: &SurvivalRecord) {
    assert_eq!(
        (survival.accepted, survival.kills),
        (300, 10),
        "{survival:?}"
    );
    let broken = [
        survival.lost,
        survival.never_done,
        survival.after_end,
        survival.out_of_order,
    ];
    assert_eq!(broken, [0; 4], "{survival:?}");
    assert_eq!(survival.ends.values().sum::<u32>(), 300, "{survival:?}");
}

#[test]
fn no_message_is_lost_while_disks_lose_power() {
    if let Err(reason) = power_loss::available() {
        return hailwire_skip::skipped(reason);
    }
    let survival = through_kills(&TestNodes::new(), &["--power-loss"]).unwrap();
    assert!(survival.power_loss);
    holds(&survival);
}

#[test]
fn messages_are_lost_where_disks_ignore_syncs() {
    if let Err(reason) = power_loss::available() {
        return hailwire_skip::skipped(reason);
    }
    match through_kills(
        &TestNodes::new(),
        &["--power-loss", "--ignore-syncs", "--seed", "3"],
    ) {
        Ok(survival) => assert!(survival.lost > 0, "{survival:?}"),
        // A database of which parts are missing is as lost.
        Err(stderr) => assert!(stderr.contains("cannot be used"), "{stderr}"),
    }
}

#[test]
fn no_message_is_lost_in_a_network_that_loses_repeats_and_reorders_packets_and_is_cut() {
    if let Err(reason) = hailwire_lab::real::available() {
        return hailwire_skip::skipped(reason);
    }
    let survival = through_kills(&TestNodes::new(), &["--rough-network"]).unwrap();
    assert!(survival.rough_network);
    holds(&survival);
}

#[test]
fn scripts_send_take_and_acknowledge_by_exit_codes_and_json() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "laptop");
    nodes.serve("laptop", "shout", "tr a-z A-Z");
    nodes.serve("laptop", "broken", "echo no >&2; exit 3");
    let answer = nodes.run(
        "desk",
        &["call", "--durable", "--wait", "shout@laptop", "hello"],
    );
    assert_eq!(answer.ok().stdout, "HELLO");
    let sent = nodes
        .run(
            "desk",
            &["--json", "send", "--durable", "shout@laptop", "x"],
        )
        .ok()
        .json();
    let id = sent["id"].as_str().unwrap();
    let ended = nodes
        .run("desk", &["--json", "inbox", "wait", id])
        .ok()
        .json();
    assert_eq!(ended["state"], "acknowledged");
    assert_eq!(ended["attempts"], 1);

    // What is not there yet waits, and the sender's own wait ends with its own timeout.
    let sent = nodes
        .run("desk", &["send", "--durable", "script@laptop", "by hand"])
        .ok();
    let id = sent.stdout.trim();
    let waited = nodes.run("desk", &["--timeout", "300ms", "inbox", "wait", id]);
    assert_eq!(waited.code, Some(68), "{}", waited.stderr);
    assert!(
        waited.stderr.contains("kept all the same"),
        "{}",
        waited.stderr
    );
    nodes
        .run("desk", &["inbox", "wait", id, "--until", "delivered"])
        .ok();
    let taken = nodes
        .run("laptop", &["--json", "inbox", "take", "script"])
        .ok()
        .json();
    assert_eq!(taken[0]["body"]["text"], "by hand");
    nodes
        .run("laptop", &["inbox", "ack", id, "--failed", "cannot"])
        .ok();
    let waited = nodes.run("desk", &["inbox", "wait", id]);
    assert_eq!(waited.code, Some(64 + 9), "{}", waited.stderr);
    assert!(
        waited.stderr.contains("given up: cannot"),
        "{}",
        waited.stderr
    );
    let dead = nodes
        .run("laptop", &["--json", "inbox", "dead"])
        .ok()
        .json();
    assert_eq!(dead[0]["id"], id);
    nodes.run("laptop", &["inbox", "drop", id]).ok();
    assert_eq!(
        nodes
            .run("laptop", &["--json", "inbox", "dead"])
            .ok()
            .json(),
        serde_json::json!([])
    );

    // Mistakes lose nothing, and say what to do.
    let bad = nodes.run("desk", &["inbox", "show", "nonsense"]);
    assert_eq!(bad.code, Some(2), "{}", bad.stderr);
    let nobody = nodes.run("desk", &["send", "--durable", "nobody", "x"]);
    assert_eq!(nobody.code, Some(69), "{}", nobody.stderr);
    assert!(nobody.stderr.contains("name its node"), "{}", nobody.stderr);
    let loose = nodes.run("desk", &["send", "--any-order", "shout@laptop", "x"]);
    assert_eq!(loose.code, Some(2), "{}", loose.stderr);
}
