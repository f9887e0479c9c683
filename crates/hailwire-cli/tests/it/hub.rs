//! What the operator of a hub does, on the folder of a hub that runs, with nodes as processes.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
};

use serde_json::Value;

use crate::test_nodes::{TestNodes, first_line};

/// A hub on loopback, and where it is reached.
fn hub(nodes: &TestNodes) -> (Child, String) {
    let mut command = nodes.hail("hub", &["--json", "hub", "--listen", "127.0.0.1:0"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started: Value = serde_json::from_str(&first_line(&mut child)).unwrap();
    let url = started["url"].as_str().unwrap().to_owned();
    (child, url)
}

fn ticket(nodes: &TestNodes, uses: &str) -> String {
    let invited = nodes.run("hub", &["--json", "hub", "invite", "--uses", uses]);
    invited.ok().json()["ticket"].as_str().unwrap().to_owned()
}

fn asked(nodes: &TestNodes, args: &[&str]) -> Value {
    nodes
        .run("hub", &[&["--json", "hub"], args].concat())
        .ok()
        .json()
}

#[test]
fn members_are_listed_removed_and_leave_and_tickets_are_revoked() {
    let mut nodes = TestNodes::new();
    let early = nodes.run("hub", &["hub", "members"]);
    assert_eq!(early.code, Some(73), "{early:#?}");
    let (running, url) = hub(&nodes);
    nodes.keep(running);
    nodes.up("desk");
    nodes.up("lap");
    let open = ticket(&nodes, "2");
    for node in ["desk", "lap"] {
        nodes.run(node, &["join", &open]).ok();
    }

    let members = asked(&nodes, &["members"]);
    let mut names: Vec<&str> = members
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["desk", "lap"]);
    let status = asked(&nodes, &["status"]);
    assert_eq!(status["running"], true);
    assert_eq!(
        (&status["members"], &status["url"]),
        (&2.into(), &url.as_str().into())
    );
    assert_eq!(
        asked(&nodes, &["tickets"]),
        serde_json::json!([]),
        "it is used up"
    );

    // Removed: its next request is refused, and it says so.
    let removed = asked(&nodes, &["members", "rm", "lap"]);
    assert_eq!(removed["name"], "lap");
    let none = nodes.run("hub", &["hub", "members", "rm", "lap"]);
    assert_eq!(none.code, Some(69), "{none:#?}");
    let shown = nodes.run("lap", &["status"]).ok().stdout;
    assert!(shown.contains("not a member"), "{shown}");
    assert!(
        nodes.run("lap", &["join", &open]).code != Some(0),
        "with a ticket that is used up"
    );

    // It leaves, and is no member of any hub then; the other one leaves by the URL.
    let left = nodes.run("desk", &["--json", "leave", &url]).ok().json();
    assert_eq!(
        (&left["url"], &left["error"]),
        (&url.as_str().into(), &"".into())
    );
    let status = nodes.run("desk", &["--json", "status"]).ok().json();
    assert_eq!(status["hubs"], serde_json::json!([]));
    assert_eq!(asked(&nodes, &["members"]), serde_json::json!([]));
    let again = nodes.run("desk", &["leave"]);
    assert_eq!(again.code, Some(69), "{again:#?}");

    // A ticket that was revoked lets nobody in.
    let revoked = ticket(&nodes, "5");
    let tickets = asked(&nodes, &["tickets"]);
    assert_eq!(
        (tickets.as_array().unwrap().len(), &tickets[0]["uses_left"]),
        (1, &5.into())
    );
    let id = tickets[0]["id"].as_str().unwrap();
    asked(&nodes, &["tickets", "revoke", id]);
    let refused = nodes.run("desk", &["join", &revoked]);
    assert_eq!(refused.code, Some(71), "{refused:#?}");
    let gone = nodes.run("hub", &["hub", "tickets", "revoke", id]);
    assert_eq!(gone.code, Some(69), "{gone:#?}");
}

#[test]
fn a_node_leaves_a_hub_that_is_away_and_says_who_has_to_remove_it() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let (mut running, _) = hub(&nodes);
    let ticket = ticket(&nodes, "1");
    nodes.run("desk", &["join", &ticket]).ok();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(asked(&nodes, &["status"])["running"], false);

    let shown = nodes.run("desk", &["status"]).ok().stdout;
    assert!(
        shown.contains("not connected") || shown.contains("does not answer now"),
        "{shown}"
    );
    assert!(shown.contains("last answer"), "{shown}");
    let left = nodes.run("desk", &["leave"]).ok();
    assert!(left.stderr.contains("hail hub members rm"), "{left:#?}");
    assert_eq!(asked(&nodes, &["members"]).as_array().unwrap().len(), 1);
}

#[test]
fn a_hub_in_the_background_tells_its_metrics_and_is_stopped_by_a_command() {
    let nodes = TestNodes::new();
    let up = |metrics: &str| {
        let args = [
            "--json",
            "hub",
            "-d",
            "--listen",
            "127.0.0.1:0",
            "--trust",
            "members",
            "--relay-rate",
            "20MiB",
            "--relay-rate-each",
            "5MiB",
            "--metrics",
            metrics,
        ];
        nodes.run("hub", &args)
    };
    let none = nodes.run("hub", &["--json", "hub", "down"]).ok().json();
    assert_eq!(none["stopped"], false);
    let started = up("127.0.0.1:0").ok().json();
    let status = nodes.run("hub", &["--json", "hub", "status"]).ok().json();
    assert_eq!(status["running"], true, "{status}");
    assert_eq!(status["pid"], started["pid"], "{status}");
    assert_eq!(status["members_trust_each_other"], true, "{status}");

    let mut scrape = TcpStream::connect(started["metrics"].as_str().unwrap()).unwrap();
    scrape
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: hub\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("hailwire_hub_members 0\n"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");

    let second = up("127.0.0.1:0");
    assert_eq!(second.code, Some(70), "{second:#?}");
    assert!(second.stderr.contains("already"), "{second:#?}");
    let stopped = nodes.run("hub", &["--json", "hub", "down"]).ok().json();
    assert_eq!(stopped["stopped"], true);
    let status = nodes.run("hub", &["--json", "hub", "status"]).ok().json();
    assert_eq!(status["running"], false, "{status}");
    assert!(status["pid"].is_null(), "{status}");
}
