//! `hail lab` as people and scripts use it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use hailwire_lab::{Topology, real::NamespaceNetwork};
use hailwire_terminal::programs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    companion_programs,
    test_nodes::{Ran, TestNodes, first_line, mkfifo},
};

fn hail(args: &[&str]) -> Command {
    let mut command = Command::new(companion_programs::hail());
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
pub(crate) fn possible() -> bool {
    match hailwire_lab::real::available() {
        Ok(()) => true,
        Err(reason) => {
            hailwire_skip::skipped(reason);
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
    mkfifo(&ready);
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

/// `hail lab run` with programs that never end, in every host and in the background, which have told
/// the namespaces that they are in.
struct Running {
    hail: Child,
    namespaces: Vec<PathBuf>,
}

impl Running {
    fn start() -> Self {
        let script = "readlink \"$LAB_NS_A\" \"$LAB_NS_B\" \"$LAB_NS_HUB\"; echo; \
            sleep 1000 & \
            setsid nsenter --net=\"$LAB_NS_B\" sleep 1000 & \
            exec sleep 1000";
        let beside = "hub=sleep 1000 & exec sleep 1000";
        let args = ["lab", "run", "home-to-home", "--with", beside, "--"];
        let mut hail = hail(&args)
            // Whoever runs the tests in the background may have had them ignore SIGINT, and what is ignored is inherited.
            .args(["env", "--default-signal=INT", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(hail.stdout.take().unwrap()).lines();
        let lines = lines
            .map(Result::unwrap)
            .take_while(|line| !line.is_empty());
        let namespaces: Vec<_> = lines.map(PathBuf::from).collect();
        assert_eq!(namespaces.len(), 3);
        Self { hail, namespaces }
    }

    fn processes_inside(&self) -> usize {
        processes_inside(&self.namespaces)
    }

    /// Waits until so many processes are inside, none of which is ours to wait for.
    fn wait_for(&self, expected: usize) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.processes_inside() != expected {
            let now = self.processes_inside();
            assert!(Instant::now() < until, "{now} inside, not {expected}");
            thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already where the test has gone well.
        let _ = self.hail.kill();
        let _ = self.hail.wait();
    }
}

/// How many processes live in these namespaces. A dead one that nobody has waited for is in none.
fn processes_inside(namespaces: &[PathBuf]) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let inside = processes.filter_map(|entry| fs::read_link(entry.path().join("ns/net")).ok());
    inside
        .filter(|namespace| namespaces.contains(namespace))
        .count()
}

fn send(process: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn an_interrupt_reaches_the_program_and_its_end_becomes_hails() {
    if !possible() {
        return;
    }
    let mut running = Running::start();
    send(running.hail.id(), Signal::INT);
    assert_eq!(running.hail.wait().unwrap().code(), Some(130));
    assert_eq!(running.processes_inside(), 0);
}

#[test]
fn what_a_script_leaves_in_the_background_ends_with_it() {
    if !possible() {
        return;
    }
    let script = "nsenter --net=\"$LAB_NS_B\" sleep 1000 >/dev/null 2>&1 & \
        setsid sleep 1000 >/dev/null 2>&1 & \
        readlink \"$LAB_NS_A\" \"$LAB_NS_B\"";
    let ran = output(&["lab", "run", "lan", "--", "sh", "-c", script]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let namespaces: Vec<_> = text(&ran.stdout).lines().map(PathBuf::from).collect();
    assert_eq!(namespaces.len(), 2);
    assert_eq!(processes_inside(&namespaces), 0);
}

#[test]
fn a_killed_hail_takes_every_program_in_every_host_with_it() {
    if !possible() {
        return;
    }
    let mut running = Running::start();
    // Two programs, and the three that they have put into the background.
    running.wait_for(5);
    send(running.hail.id(), Signal::KILL);
    running.hail.wait().unwrap();
    running.wait_for(0);
    // And the next one starts as if nothing had been.
    assert!(
        output(&["lab", "run", "home-to-home", "--", "true"])
            .status
            .success()
    );
}

#[test]
fn programs_inside_see_each_other_and_no_process_outside() {
    if !possible() {
        return;
    }
    let script = "echo \"$LAB_NS_A\"; pwd; test -e /proc/$$/cwd && ls -d /proc/[0-9]* | wc -l";
    let here = tempfile::tempdir().unwrap();
    let ran = hail(&["lab", "run", "lan", "--", "sh", "-c", script])
        .current_dir(&here)
        .output()
        .unwrap();
    let out = text(&ran.stdout);
    let lines: Vec<&str> = out.lines().collect();
    let [namespace, folder, seen] = lines[..] else {
        panic!("{out} {}", text(&ran.stderr));
    };
    assert_eq!(folder, here.path().to_str().unwrap());
    if !namespace.starts_with("/proc/1/") {
        hailwire_skip::skipped("the system does not let this user mount /proc");
        return;
    }
    // The first process, the script, its pipe's two programs.
    assert!(seen.parse::<u32>().unwrap() <= 5, "{out}");
}

/// A user who is not root, and `hail` where that user can run it.
struct Unprivileged {
    _folder: TempDir,
    hail: PathBuf,
}

impl Unprivileged {
    /// Nothing, and a line that says why, where such a user can have no network.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&folder, open).unwrap();
        let hail = folder.path().join("hail");
        let bench = programs::BENCH.name;
        fs::copy(companion_programs::hail(), &hail).unwrap();
        let built = companion_programs::hail().with_file_name(bench);
        fs::copy(built, folder.path().join(bench)).unwrap();
        let user = Self {
            _folder: folder,
            hail,
        };
        // What `hail lab` says by itself where the system allows no user namespaces.
        let tried = user.output(&["lab", "run", "lan", "--", "true"]);
        let said = text(&tried.stderr);
        let forbidden = [
            "user namespaces are not allowed here",
            "is not installed",
            // Where the device is root's alone, as on some machines.
            "no TUN device can be made (/dev/net/tun): Permission denied",
        ];
        if forbidden.iter().any(|reason| said.contains(reason)) {
            hailwire_skip::skipped(said.trim());
            return None;
        }
        assert!(tried.status.success(), "{said}");
        Some(user)
    }

    /// What `hail` does for `nobody` where this user is root, else for this user.
    fn output(&self, args: &[&str]) -> Output {
        let mut command = match rustix::process::geteuid().is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
                command.arg(&self.hail);
                command
            }
            false => Command::new(&self.hail),
        };
        command.args(args).current_dir("/").stdin(Stdio::null());
        command.output().unwrap()
    }
}

#[test]
fn a_user_without_rights_has_networks_in_a_user_namespace() {
    let Some(user) = Unprivileged::new() else {
        return;
    };
    let me = "readlink \"$LAB_NS_B\"; id -u; \
        nsenter --net=\"$LAB_NS_B\" ip -brief address show eth0; \
        sleep 1000 >/dev/null 2>&1 & exit 7";
    let ran = user.output(&["lab", "run", "home-to-home", "--", "sh", "-c", me]);
    let (out, err) = (text(&ran.stdout), text(&ran.stderr));
    assert_eq!(ran.status.code(), Some(7), "{err}");
    assert_eq!(err, "", "hail itself says nothing");
    let mut lines = out.lines();
    let namespace = PathBuf::from(lines.next().unwrap());
    assert_eq!(lines.next(), Some("0"), "root, inside");
    assert!(out.contains("192.168.1.10"), "{out}");
    assert_eq!(processes_inside(&[namespace]), 0);

    let checked = user.output(&["lab", "check", "lan", "--json"]);
    let (out, err) = (text(&checked.stdout), text(&checked.stderr));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out} {err}"));
    assert!(
        report["paths"][0]["tcp"]["rate_out"].as_f64() > Some(0.0),
        "{out}"
    );
}

/// `hail` on the data folder of a node, in the host of the same name.
pub(crate) fn inside(
    network: &NamespaceNetwork,
    nodes: &TestNodes,
    node: &str,
    args: &[&str],
) -> Command {
    let own = nodes.hail(node, args);
    let mut command = network.command(node, own.get_program()).unwrap();
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

/// Nodes `a` and `b` and a hub, each in its host of a network, both members of the hub.
pub(crate) struct Nodes {
    // First, so that the nodes are stopped while they still have a network.
    pub(crate) nodes: TestNodes,
    pub(crate) network: NamespaceNetwork,
}

impl Nodes {
    pub(crate) fn up(topology: &str, hub_port: u16) -> Self {
        let mut nodes = Self::inside_of(&Topology::named(topology).unwrap());
        let ticket = nodes.hub("hub", hub_port);
        for node in ["a", "b"] {
            nodes.node(node);
            nodes.run(node, &["join", "--yes", &ticket]).ok();
        }
        nodes
    }

    /// A network in which nothing runs yet.
    fn inside_of(topology: &Topology) -> Self {
        Self {
            network: NamespaceNetwork::up(topology).unwrap(),
            nodes: TestNodes::new(),
        }
    }

    /// Starts a hub in the host of that name, and gives a ticket for two nodes.
    fn hub(&mut self, host: &str, port: u16) -> String {
        let listen = format!("{}:{port}", self.network.address(host).unwrap());
        let mut command = self.inside(
            host,
            &["--json", "hub", "--listen", &listen, "--trust", "members"],
        );
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        assert!(first_line(&mut child).contains(&listen));
        self.nodes.keep(child);
        let invite = self.run(host, &["hub", "invite", "--uses", "2"]).ok();
        invite.stdout.trim().to_owned()
    }

    /// Starts a node in the host of its name.
    fn node(&mut self, node: &'static str) {
        let listen = format!("{}:0", self.network.address(node).unwrap());
        self.run(node, &["up", "-d", "--name", node, "--listen", &listen])
            .ok();
        self.nodes.adopt(node);
    }

    /// See [`inside`].
    pub(crate) fn inside(&self, node: &str, args: &[&str]) -> Command {
        inside(&self.network, &self.nodes, node, args)
    }

    pub(crate) fn run(&self, node: &str, args: &[&str]) -> Ran {
        Ran::from(self.inside(node, args).output().unwrap())
    }

    /// The pings from `a` to `b`, as they are answered.
    fn pings(&mut self, count: u32) -> impl Iterator<Item = Value> + use<> {
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
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        self.nodes.keep(child);
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
    let until_direct = ["--json", "ping", "b", "--until-direct", "-i", "100ms"];
    let ran = nodes.run("a", &until_direct).ok();
    let pongs: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (direct, before) = pongs.split_last().unwrap();
    assert_eq!(direct["path"]["kind"], "direct", "{direct}");
    assert!(before.iter().all(|pong| pong["path"]["kind"] != "direct"));
    assert_eq!(
        direct["path"]["remote"].as_str().unwrap().split(':').next(),
        Some("198.18.1.1")
    );
}

#[test]
fn a_member_that_joins_another_by_ticket_keeps_its_public_address_and_its_direct_path() {
    if !possible() {
        return;
    }
    let nodes = Nodes::up("home-to-home", 7443);
    let public = || {
        let status = nodes.run("a", &["--json", "status"]).ok().json();
        status["public_addresses"].as_array().unwrap().len()
    };
    let until_direct = ["--json", "ping", "b", "--until-direct", "-i", "100ms"];
    nodes.run("a", &until_direct).ok();
    assert_eq!(public(), 1);
    let ticket = nodes.run("b", &["invite"]).ok().stdout;
    nodes.run("a", &["join", ticket.trim()]).ok();
    // Whom it met before it dials anew.
    nodes.run("b", &["down"]).ok();
    nodes.run("b", &["up", "-d"]).ok();
    nodes.run("a", &until_direct).ok();
    assert_eq!(public(), 1);
}

#[test]
fn an_office_that_lets_only_port_443_out_reaches_a_node_through_the_hub() {
    if !possible() {
        return;
    }
    let mut nodes = Nodes::up("corporate", 443);
    let first = nodes.pings(1).next().unwrap();
    assert_eq!(first["path"]["kind"], "relay", "{first}");
    let until_direct = ["ping", "b", "--until-direct", "-c", "2", "-i", "10ms"];
    let ran = nodes.run("a", &until_direct);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let said = "no ping of 2 took a direct path to `b`: relay https://";
    assert!(ran.stderr.contains(said), "{ran:?}");
}

/// Two nodes that only a relay joins, a hub far away, and one nearby.
const TWO_HUBS: &str = r#"
host "a" { link { delay "5ms" }; firewall "no-udp" }
host "b" { link { delay "5ms" }; firewall "no-udp" }
host "far" { link { delay "80ms" } }
host "near" { link { delay "5ms" } }
"#;

#[test]
fn members_of_two_hubs_use_the_relay_of_the_nearer_one_though_they_joined_the_other_first() {
    if !possible() {
        return;
    }
    let mut nodes = Nodes::inside_of(&Topology::parse(TWO_HUBS, "two hubs").unwrap());
    for node in ["a", "b"] {
        nodes.node(node);
    }
    for host in ["far", "near"] {
        let ticket = nodes.hub(host, 443);
        for node in ["a", "b"] {
            nodes.run(node, &["join", "--yes", &ticket]).ok();
        }
    }
    let near = format!("https://{}", nodes.network.address("near").unwrap());
    nodes.run("a", &["ping", "b", "-i", "100ms"]).ok();
    let peers = nodes.run("a", &["--json", "peers"]).ok().json();
    let path = &peers[0]["tunnel"]["path"];
    assert_eq!(path["kind"], "relay", "{peers}");
    assert!(
        path["remote"].as_str().unwrap().starts_with(&near),
        "{peers}"
    );
    // There and back by the far one takes 340 ms.
    let pong = nodes.pings(1).next().unwrap();
    assert!(
        pong["path"]["remote"].as_str().unwrap().starts_with(&near),
        "{pong}"
    );
    assert!(pong["rtt_us"].as_u64().unwrap() < 200_000, "{pong}");
}
