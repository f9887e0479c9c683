//! Leading through the command line: one of two machines runs the program, and the other takes over.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use serde_json::Value;

use crate::test_nodes::{TestNodes, first_line};

/// Two members of a hub, `desk` and `lap`; the hub is a process of its own.
fn members(nodes: &mut TestNodes) -> Child {
    let mut command = nodes.hail("hub", &["--json", "hub", "--listen", "127.0.0.1:0"]);
    let mut hub = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}"));
    first_line(&mut hub);
    let invited = nodes.run("hub", &["--json", "hub", "invite", "--uses", "2"]);
    let ticket = invited.ok().json()["ticket"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    for node in ["desk", "lap"] {
        nodes.up(node);
        nodes.run(node, &["join", &ticket]).ok();
    }
    hub
}

/// A program that says its token and then waits for its stdin to end, run as long as this machine leads.
fn leads(nodes: &TestNodes, node: &str, options: &[&str]) -> Child {
    let script = ["--", "sh", "-c", "echo $HAIL_LEASE_TOKEN; cat"];
    let args = [&["lead", "nightly"], options, &script].concat();
    let mut command = nodes.hail(node, &args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}"))
}

fn token(child: &mut Child) -> u64 {
    let line = first_line(child);
    line.trim()
        .parse()
        .unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn the_program_of_one_machine_runs_and_the_next_has_a_higher_token() {
    let mut nodes = TestNodes::new();
    let hub = members(&mut nodes);
    nodes.keep(hub);
    let mut first = leads(&nodes, "desk", &[]);
    let first_token = token(&mut first);
    let held = nodes.run("lap", &["--json", "leases"]).ok().json();
    let [lease] = &held.as_array().unwrap()[..] else {
        panic!("{held}");
    };
    assert_eq!(lease["name"], "nightly");
    assert_eq!(lease["token"], first_token);

    let mut second = leads(&nodes, "lap", &[]);
    // It waits: the program of the first ends only now.
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    assert!(token(&mut second) > first_token);
    drop(second.stdin.take());
    assert!(second.wait().unwrap().success());
    let none = nodes.run("lap", &["--json", "leases"]).ok().json();
    assert_eq!(none, Value::Array(Vec::new()));
}

#[test]
fn the_program_is_stopped_where_the_hub_is_gone_for_as_long_as_the_lease() {
    let mut nodes = TestNodes::new();
    let mut hub = members(&mut nodes);
    let mut leader = leads(&nodes, "desk", &["--ttl", "1s"]);
    token(&mut leader);
    // Else waiting for it would close it, and end the program.
    let _stdin = leader.stdin.take();
    hub.kill().unwrap();
    hub.wait().unwrap();
    let ended = leader.wait().unwrap();
    assert_eq!(ended.code(), Some(74), "aborted");
    let mut said = BufReader::new(leader.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("the lease of nightly was lost")));
}

#[test]
fn a_program_that_cannot_lead_is_not_started() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let alone = nodes.run("desk", &["lead", "nightly", "--", "echo", "started"]);
    assert_eq!(alone.code, Some(69), "{alone:#?}");
    assert!(!alone.stdout.contains("started"));
    let name = nodes.run("desk", &["lead", "Not A Name", "--", "true"]);
    assert_eq!(name.code, Some(2), "{name:#?}");
    let ttl = nodes.run("desk", &["lead", "nightly", "--ttl", "10ms", "--", "true"]);
    assert_eq!(ttl.code, Some(67), "{ttl:#?}");
}
