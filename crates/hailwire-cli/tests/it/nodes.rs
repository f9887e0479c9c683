//! The life of nodes: up, joined, down.

use std::process::{Command, Stdio};

use crate::test_nodes::{TestNodes, first_line};

#[test]
fn a_node_starts_once_per_folder_and_stops() {
    let mut nodes = TestNodes::new();
    let started = nodes.up("desk");
    assert_eq!(started["name"], "desk");
    let id = nodes.run("desk", &["id"]).ok().stdout;
    assert_eq!(id.trim(), started["id"]);
    let status = nodes.run("desk", &["status", "--json"]).ok().json();
    assert_eq!(
        (&status["id"], &status["pid"]),
        (&started["id"], &started["pid"])
    );
    assert!(
        nodes
            .run("desk", &["status"])
            .ok()
            .stdout
            .starts_with("node      desk\n")
    );

    for again in [&["up"][..], &["up", "-d"]] {
        let ran = nodes.run("desk", again);
        assert_eq!(ran.code, Some(70), "{ran:#?}");
        assert!(ran.stderr.contains("running already"), "{ran:#?}");
    }
    nodes.run("desk", &["down"]).ok();
    assert_eq!(nodes.run("desk", &["status"]).code, Some(78));
    assert_eq!(nodes.up("desk")["id"], started["id"]);
}

#[test]
fn what_up_is_told_once_holds_for_every_start() {
    let mut nodes = TestNodes::new();
    let tcp = [
        "up",
        "-d",
        "--json",
        "--name",
        "desk",
        "--listen",
        "127.0.0.1:0",
    ];
    let first = nodes.run("desk", &tcp).ok().json();
    nodes.adopt("desk");
    assert_eq!(
        first["kept"],
        serde_json::json!(["node.name", "listen.udp"])
    );
    let file = std::fs::read_to_string(nodes.path("desk").join("hail.kdl")).unwrap();
    assert_eq!(
        file,
        "node {\n    name \"desk\"\n}\nlisten {\n    udp \"127.0.0.1:0\"\n}\n"
    );
    nodes.run("desk", &["down"]).ok();

    let again = nodes.run("desk", &["up", "-d", "--json"]).ok().json();
    assert_eq!(
        (&again["name"], &again["kept"]),
        (&first["name"], &serde_json::json!([]))
    );
    assert_eq!(again["sockets"].as_array().unwrap().len(), 1);
    nodes.run("desk", &["down"]).ok();

    let other = ["up", "-d", "--json", "--name", "tower"];
    let renamed = nodes.run("desk", &other).ok().json();
    assert_eq!(renamed["kept"], serde_json::json!(["node.name"]));
    nodes.run("desk", &["down"]).ok();

    // A node that does not start keeps nothing.
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let failed = nodes.run("desk", &["up", "-d", "--name", "x", "--listen", &address]);
    assert_eq!(failed.code, Some(78), "{failed:#?}");
    let file = std::fs::read_to_string(nodes.path("desk").join("hail.kdl")).unwrap();
    assert!(file.contains("tower") && !file.contains(&address), "{file}");
}

#[test]
fn a_node_that_nobody_named_goes_by_the_hosts_name() {
    let mut nodes = TestNodes::new();
    let up = ["up", "-d", "--json", "--listen", "127.0.0.1:0"];
    let started = nodes.run("desk", &up).ok().json();
    nodes.adopt("desk");
    let rows = nodes
        .run("desk", &["--json", "config", "show", "--effective"])
        .ok()
        .json();
    let row = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["setting"] == "node.name")
        .unwrap();
    match started["name"].as_str().unwrap() {
        "" => assert_eq!(row["why"], "default"),
        name => assert_eq!(
            (&row["why"], &row["value"]),
            (&"host".into(), &format!("\"{name}\"").into())
        ),
    }
}

#[test]
fn a_node_in_the_foreground_ends_with_sigterm() {
    let nodes = TestNodes::new();
    let mut command = nodes.hail("desk", &["up", "--json", "--listen", "127.0.0.1:0"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(first_line(&mut child).contains("\"id\""));
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_log_of_a_node_is_shown_and_followed_in_the_format_that_its_file_says() {
    let mut nodes = TestNodes::new();
    std::fs::create_dir(nodes.path("desk")).unwrap();
    std::fs::write(
        nodes.path("desk").join("hail.kdl"),
        "log { format \"json\" }",
    )
    .unwrap();
    let none = nodes.run("desk", &["logs"]);
    assert_eq!(none.code, Some(69), "{none:#?}");
    assert!(none.stderr.contains("hail up -d"), "{none:#?}");

    nodes.trusted_pair("desk", "lap");
    nodes.run("desk", &["ping", "lap", "-c", "1"]).ok();
    let shown = nodes.run("desk", &["logs"]).ok().stdout;
    let events = shown.lines().map(serde_json::from_str::<serde_json::Value>);
    let events: Vec<_> = events.map(Result::unwrap).collect();
    let says = |what: &str| {
        events
            .iter()
            .any(|event| event["fields"]["message"] == what)
    };
    assert!(says("tunnel up"), "{shown}");

    let mut command = nodes.hail("desk", &["logs", "-f", "-n", "0"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    nodes.run("desk", &["trust", "rm", "lap"]).ok();
    let line = first_line(&mut follower);
    assert!(line.contains("tunnel down"), "{line}");
    assert!(
        Command::new("kill")
            .args(["-INT", &follower.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(follower.wait().unwrap().code(), Some(0));
}

#[test]
fn a_port_in_use_is_told_with_its_hint() {
    let nodes = TestNodes::new();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = nodes.run("desk", &["up", "-d", "--listen", &address]);
    assert_eq!(ran.code, Some(78), "{ran:#?}");
    assert!(ran.stderr.contains("--listen"), "{ran:#?}");
    // The log is for people, also of a start that failed.
    let log = std::fs::read_to_string(nodes.path("desk").join("hail.log")).unwrap();
    assert!(
        log.contains("error: ") && !log.contains("{\"error\""),
        "{log}"
    );
}

#[test]
fn a_ticket_makes_both_sides_trust_each_other_once() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    nodes.up("lap");
    let ticket = nodes.run("desk", &["invite"]).ok();
    assert!(ticket.stderr.contains("once within 10m"), "{ticket:#?}");
    nodes.feed("lap", &["join", "-"], &ticket.stdout).ok();
    let used = nodes.feed("lap", &["join", "-"], &ticket.stdout);
    assert_ne!(used.code, Some(0), "{used:#?}");

    let peers = nodes.run("desk", &["peers", "--json"]).ok().json();
    assert_eq!(
        (&peers[0]["alias"], &peers[0]["via"]),
        (&"lap".into(), &"ticket".into())
    );
    let pong = nodes
        .run("lap", &["ping", "desk", "-c", "1", "--json"])
        .ok()
        .json();
    assert_eq!(
        (&pong["path"]["kind"], &pong["carrier"], &pong["trusted"]),
        (&"direct".into(), &"quic".into(), &true.into())
    );

    nodes.serve("desk", "echo", "cat");
    nodes.run("lap", &["call", "echo@desk", "x"]).ok();
    nodes.run("desk", &["trust", "rm", "lap"]).ok();
    assert_eq!(
        nodes.run("desk", &["trust", "ls", "--json"]).ok().stdout,
        "[]\n"
    );
    let refused = nodes.run("lap", &["call", "echo@desk", "x", "--timeout", "5s"]);
    assert_eq!(refused.code, Some(71), "{refused:#?}");
    let pong = nodes.run("lap", &["ping", "desk", "-c", "1"]).ok();
    assert!(
        pong.stdout.contains("it does not trust this node"),
        "{pong:#?}"
    );
}

#[test]
fn a_hub_runs_and_takes_members() {
    let mut nodes = TestNodes::new();
    let mut command = nodes.hail("hub", &["--json", "hub", "--listen", "127.0.0.1:0"]);
    let mut hub = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let line = first_line(&mut hub);
    nodes.keep(hub);
    assert!(line.contains("https://127.0.0.1:"), "{line}");
    nodes.up("desk");
    let ticket = nodes.run("hub", &["hub", "invite"]).ok().stdout;
    let joined = nodes
        .feed("desk", &["join", "-", "--json"], &ticket)
        .ok()
        .json();
    assert_eq!(
        (&joined["kind"], &joined["name"]),
        (&"hub".into(), &"desk".into())
    );
}

#[test]
fn joining_asks_before_the_members_of_a_hub_may_call_and_says_what_a_peer_may() {
    use hailwire_wire::ticket::{HubTicket, Ticket, TicketSecret};

    let mut nodes = TestNodes::new();
    let ticket = Ticket::Hub(HubTicket {
        url: "https://127.0.0.1:9".parse().unwrap(),
        key: None,
        secret: TicketSecret::from_random([7; 16]),
        expires: u64::MAX,
        trust: hailwire_wire::directory::MemberTrust::Members,
    });
    let text = ticket.to_text().unwrap();
    for asked in [
        nodes.run("desk", &["join", &text]),
        nodes.feed("desk", &["join", "-"], &text),
    ] {
        assert_eq!(asked.code, Some(73), "{asked:#?}");
        assert!(asked.stderr.contains("trust each other"), "{asked:#?}");
        assert!(
            asked.stderr.contains("hint: to agree, join with --yes"),
            "{asked:#?}"
        );
    }
    nodes.up("desk");
    nodes.up("laptop");
    let id = nodes.run("laptop", &["id"]).ok().stdout;
    let added = nodes
        .run("desk", &["trust", "add", id.trim(), "--allow", "echo"])
        .ok();
    assert!(added.stdout.contains("may call: echo"), "{added:#?}");
    let invite = || {
        let ticket = nodes.run("laptop", &["--json", "invite"]).ok().json();
        ticket["ticket"].as_str().unwrap().to_owned()
    };
    let joined = nodes.run("desk", &["join", &invite()]).ok();
    assert!(
        joined.stdout.contains("laptop may call: echo\n"),
        "{joined:#?}"
    );
    let widened = nodes.run("desk", &["join", &invite(), "--allow", "*"]).ok();
    assert!(
        widened.stdout.contains("laptop may call: every agent"),
        "{widened:#?}"
    );
}
