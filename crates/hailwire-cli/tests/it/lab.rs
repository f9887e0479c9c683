//! `hail lab` as people and scripts use it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use hailwire_lab::{Topology, real::Network};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::house::{House, Ran, first_line};

fn hail(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hail"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    hail(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether networks can be made; says why where they cannot.
fn possible() -> bool {
    match hailwire_lab::real::available() {
        Ok(()) => true,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            false
        }
    }
}

#[test]
fn the_list_and_a_topology_need_no_rights() {
    let list = text(&output(&["lab", "list"]).stdout);
    assert!(
        list.contains("home-to-home") && list.contains("a b hub"),
        "{list}"
    );
    let shown = output(&["lab", "show", "wan-50ms"]);
    let again = hailwire_lab::Topology::parse(&text(&shown.stdout), "again").unwrap();
    assert_eq!(
        again.expected("a", "b").unwrap().rtt,
        Duration::from_millis(50)
    );
    let json: serde_json::Value =
        serde_json::from_slice(&output(&["lab", "show", "wan-50ms", "--json"]).stdout).unwrap();
    assert_eq!(json["sites"][0]["hosts"][0]["name"], "a");
}

#[test]
fn a_mistake_in_a_file_is_named_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.kdl");
    fs::write(&path, "host \"a\"\nhost \"b\" { lnk }\n").unwrap();
    let failed = output(&["lab", "show", path.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(2));
    assert!(
        text(&failed.stderr).contains("net.kdl:2:12: `lnk` is not known here"),
        "{}",
        text(&failed.stderr)
    );
}

#[test]
fn a_program_in_a_host_keeps_its_output_and_its_exit_code() {
    if !possible() {
        return;
    }
    let script = "echo to $LAB_B; ip -brief address show eth0; exit 7";
    let ran = output(&["lab", "run", "lan", "--", "sh", "-c", script]);
    let out = text(&ran.stdout);
    assert_eq!(ran.status.code(), Some(7), "{}", text(&ran.stderr));
    assert!(
        out.contains("to 198.18.1.1") && out.contains("198.18.0.1"),
        "{out}"
    );
    assert_eq!(text(&ran.stderr), "", "hail itself says nothing");
    let wrong = output(&["lab", "run", "lan", "--host", "c", "--", "true"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_program_meets_one_that_runs_beside_it_in_another_host() {
    if !possible() {
        return;
    }
    let fifo = tempfile::tempdir().unwrap();
    let ready = fifo.path().join("ready");
    assert!(
        Command::new("mkfifo")
            .arg(&ready)
            .status()
            .unwrap()
            .success()
    );
    let ready = ready.display();
    // `nsenter` and `readlink` are on every machine that has a lab; the fifo is the meeting.
    let beside = format!("b=readlink /proc/self/ns/net > {ready}");
    let script = format!(
        "read other < {ready}; mine=$(readlink /proc/self/ns/net); \
         theirs=$(nsenter --net=\"$LAB_NS_B\" readlink /proc/self/ns/net); \
         test \"$other\" != \"$mine\" && test \"$other\" = \"$theirs\""
    );
    let ran = output(&[
        "lab", "run", "lan", "--with", &beside, "--", "sh", "-c", &script,
    ]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
}

/// `hail lab run` with a program that has told its process id and namespace.
struct Running {
    hail: Child,
    program: u32,
}

fn running() -> Running {
    let script = "echo $$; exec sleep 1000";
    let mut hail = hail(&["lab", "run", "home-to-home", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(hail.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let program = line.trim().parse().unwrap();
    Running { hail, program }
}

fn send(process: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits until a process that is not ours to wait for has ended.
fn ended(process: u32) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    let status = format!("/proc/{process}/status");
    let gone = || match fs::read_to_string(&status) {
        Ok(status) => status.contains("State:\tZ"),
        Err(_) => !Path::new(&status).exists(),
    };
    while Instant::now() < until {
        if gone() {
            return true;
        }
        thread::yield_now();
    }
    false
}

#[test]
fn an_interrupt_reaches_the_program_and_its_end_becomes_hails() {
    if !possible() {
        return;
    }
    let Running { mut hail, program } = running();
    send(hail.id(), Signal::INT);
    assert_eq!(hail.wait().unwrap().code(), Some(130));
    assert!(ended(program));
}

#[test]
fn what_a_script_leaves_in_the_background_ends_with_it() {
    if !possible() {
        return;
    }
    let script = "nsenter --net=\"$LAB_NS_B\" sleep 1000 >/dev/null 2>&1 & echo $!";
    let ran = output(&["lab", "run", "lan", "--", "sh", "-c", script]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(ended(text(&ran.stdout).trim().parse().unwrap()));
}

#[test]
fn a_killed_hail_takes_its_program_and_its_network_with_it() {
    if !possible() {
        return;
    }
    let Running { mut hail, program } = running();
    let inside = fs::read_link(format!("/proc/{program}/ns/net")).unwrap();
    send(hail.id(), Signal::KILL);
    hail.wait().unwrap();
    assert!(ended(program), "the program outlived hail");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let left = processes
        .filter_map(|entry| fs::read_link(entry.path().join("ns/net")).ok())
        .filter(|namespace| *namespace == inside)
        .count();
    assert_eq!(left, 0, "somebody is still in the network");
    // And the next one starts as if nothing had been.
    assert!(
        output(&["lab", "run", "home-to-home", "--", "true"])
            .status
            .success()
    );
}

/// Nodes `a` and `b` and a hub, each in its host of a network, both members of the hub.
struct Nodes {
    // First, so that the nodes are stopped while they still have a network.
    house: House,
    network: Network,
}

impl Nodes {
    fn up(topology: &str, hub_port: u16) -> Self {
        let network = Network::up(&Topology::named(topology).unwrap()).unwrap();
        let mut nodes = Self {
            network,
            house: House::new(),
        };
        let hub = format!("{}:{hub_port}", nodes.network.address("hub").unwrap());
        let mut command = nodes.inside(
            "hub",
            &["--json", "hub", "--listen", &hub, "--trust", "members"],
        );
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        assert!(first_line(&mut child).contains(&hub));
        nodes.house.keep(child);
        let ticket = nodes
            .run("hub", &["hub", "invite", "--uses", "2"])
            .ok()
            .stdout;
        for node in ["a", "b"] {
            let listen = format!("{}:0", nodes.network.address(node).unwrap());
            nodes
                .run(node, &["up", "-d", "--name", node, "--listen", &listen])
                .ok();
            nodes.house.adopt(node);
            nodes.run(node, &["join", ticket.trim()]).ok();
        }
        nodes
    }

    /// `hail` on the data folder of a node, in the host of the same name.
    fn inside(&self, node: &str, args: &[&str]) -> Command {
        let own = self.house.hail(node, args);
        let mut command = self.network.command(node, own.get_program()).unwrap();
        let set = own
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        command
            .args(own.get_args())
            .envs(set)
            .env_remove("HAIL_DATA")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, node: &str, args: &[&str]) -> Ran {
        Ran::from(self.inside(node, args).output().unwrap())
    }

    /// The pings from `a` to `b`, as they are answered.
    fn pings(&self, count: u32) -> impl Iterator<Item = Value> {
        let count = count.to_string();
        let mut command = self.inside(
            "a",
            &[
                "--json",
                "ping",
                "b",
                "--count",
                &count,
                "--interval",
                "100ms",
            ],
        );
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = child.stdout.unwrap();
        BufReader::new(output)
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
    }
}

#[test]
fn two_homes_meet_through_their_nats_and_then_talk_without_the_hub() {
    if !possible() {
        return;
    }
    let nodes = Nodes::up("home-to-home", 7443);
    let direct = nodes
        .pings(100)
        .find(|pong| pong["path"]["kind"] == "direct");
    let direct = direct.expect("no ping took a direct path");
    assert_eq!(
        direct["path"]["remote"].as_str().unwrap().split(':').next(),
        Some("198.18.1.1")
    );
}

#[test]
fn an_office_that_lets_only_port_443_out_reaches_a_node_through_the_hub() {
    if !possible() {
        return;
    }
    let nodes = Nodes::up("corporate", 443);
    let first = nodes.pings(1).next().unwrap();
    assert_eq!(first["path"]["kind"], "relay", "{first}");
}
