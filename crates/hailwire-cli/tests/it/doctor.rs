//! `hail doctor` in networks of the lab, each with a fault of its own: every one is named.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use hailwire_lab::{Topology, fabric::SiteChange, firewall::FirewallRule, real::NamespaceNetwork};
use serde_json::Value;

use crate::{
    lab::possible,
    test_nodes::{Ran, TestNodes, first_line},
};

/// One hub, and hosts with what stands before them.
const NETWORKS: &str = r#"
about "what is wrong with networks"
host "hub" ip="4+6" { link { delay "5ms" } }
host "public" { link { delay "5ms" } }
site "home" { link { delay "5ms" }; nat; host "home" }
site "open" { link { delay "5ms" }; nat filtering="endpoint-independent"; host "open" }
site "hairpin" { link { delay "5ms" }; nat hairpin=#true; host "hairpin" }
site "symmetric" { link { delay "5ms" }; nat mapping="address-and-port-dependent"; host "symmetric" }
site "random" { link { delay "5ms" }; nat mapping="address-and-port-dependent" ports="random"; host "random" }
site "blocked" { link { delay "5ms" }; nat; firewall "no-udp"; host "blocked" }
site "one-way" { link { delay "5ms" }; firewall "no-udp-in"; host "one-way" }
site "office" { link { delay "5ms" }; nat; firewall "only-tcp-443"; host "office" }
site "server" { link { delay "5ms" }; firewall "no-udp"; host "server" }
site "dead" ip="4+6" { link { delay "5ms" }; nat; firewall "no-ipv6"; host "dead" }
site "six" ip="6" { link { delay "5ms" }; host "six" }
site "tunnel" { link { delay "5ms"; mtu 1280 icmp=#false }; host "tunnel" }
site "far-away" { link { delay "600ms" }; host "far-away" }
site "narrow" { link { delay "5ms"; mtu 1100 }; host "narrow" }
site "fenced" { link { delay "5ms" }; firewall "only-relay" to="hub"; host "fenced" }
site "strict" ip="4+6" { link { delay "5ms" }; nat mapping="address-and-port-dependent"; firewall "ipv6-known-ports"; host "strict" }
site "both" ip="4+6" { link { delay "5ms" }; nat mapping="address-and-port-dependent"; host "both" }
"#;

/// What is found in each network, and what is not.
const FOUND: &[(&str, &[&str], &[&str])] = &[
    (
        "public",
        &["public-address", "hub-answers", "ipv6-none"],
        &["udp-blocked", "no-hairpin", "no-port-mapping"],
    ),
    (
        "home",
        &["nat-port-filter", "no-hairpin", "no-port-mapping"],
        &["nat-symmetric", "udp-blocked", "mtu-small"],
    ),
    ("open", &["nat-open"], &["nat-port-filter"]),
    ("hairpin", &["nat-port-filter"], &["no-hairpin"]),
    ("symmetric", &["nat-symmetric"], &["nat-port-filter"]),
    ("random", &["nat-symmetric"], &["nat-port-filter"]),
    (
        "blocked",
        &["udp-blocked", "hub-answers"],
        &["nat-symmetric"],
    ),
    ("one-way", &["udp-blocked"], &["public-address"]),
    ("office", &["udp-blocked", "hub-answers"], &["hub-silent"]),
    ("dead", &["ipv6-dead", "nat-port-filter"], &["ipv6-works"]),
    ("six", &["ipv6-works"], &["udp-blocked", "ipv6-none"]),
    ("tunnel", &["mtu-small"], &["mtu-too-small"]),
    ("far-away", &["hub-slow"], &["hub-answers"]),
    ("narrow", &["mtu-too-small", "hub-answers"], &["mtu-small"]),
    ("fenced", &["hub-answers"], &["udp-blocked"]),
    ("strict", &["nat-symmetric", "ipv6-works"], &["ipv6-dead"]),
    ("both", &["nat-symmetric", "ipv6-works"], &["ipv6-dead"]),
];

/// What is said of the path from one to another.
const PAIRS: &[(&str, &str, &str)] = &[
    ("home", "public", "path-direct"),
    ("public", "server", "path-direct-tcp"),
    ("symmetric", "random", "relayed-symmetric"),
    ("symmetric", "home", "relayed-port-filter"),
    ("home", "symmetric", "relayed-port-filter"),
    ("blocked", "home", "relayed-udp-here"),
    ("home", "blocked", "relayed-udp-there"),
    ("public", "six", "relayed-no-common-family"),
    ("public", "fenced", "relayed-no-reason"),
    ("both", "strict", "relayed-ipv6-firewall"),
    ("both", "strict", "relayed-symmetric"),
    ("home", "nobody", "peer-unknown"),
];

/// What the tests below name beside it, by what has it happen: a hub and a peer that change,
const OF_CHANGES: &[&str] = &[
    "no-hub",
    "hub-refused-record",
    "hub-silent",
    "hub-not-a-member",
    "peer-away",
    "hub-refuses",
    "hub-other-key",
    "hub-name-unknown",
];

/// settings, and trust,
const OF_SETTINGS: &[&str] = &[
    "port-mapping-off",
    "short-buffers",
    "loopback-only",
    "relayed-by-setting",
    "peer-distrusts",
    "peer-untrusted",
    "peer-without-address",
];

/// this machine, its router and the network that it is a guest of,
const OF_GUESTS: &[&str] = &[
    "no-network",
    "udp4-silent",
    "captive-portal",
    "mapping-short",
    "mapping-life-unknown",
    "hub-failed",
];

/// a clock,
const OF_CLOCK: [&str; 1] = ["clock-off"];

/// an HTTP proxy,
const OF_PROXIES: &[&str] = &["proxy", "proxy-fails"];

/// and a router that maps ports (`port_mapping.rs`).
pub(crate) const OF_ROUTERS: [&str; 2] = ["port-refused", "port-mapped-behind-nat"];

/// Where the proxies listen, of which the second connects to no port that a hub has.
const PROXY_PORTS: [(u16, &str); 2] = [(3128, ""), (3129, "ConnectPort 563\n")];

struct Ward {
    nodes: TestNodes,
    network: NamespaceNetwork,
    ticket: String,
    named: RefCell<BTreeSet<String>>,
}

impl Ward {
    /// The networks with the hub; nothing where there can be none.
    fn new() -> Option<Self> {
        Self::with(NETWORKS)
    }

    fn with(networks: &str) -> Option<Self> {
        if !possible() {
            return None;
        }
        let topology = Topology::parse(networks, "doctor").unwrap();
        let network = NamespaceNetwork::up(&topology).unwrap();
        let mut ward = Self {
            nodes: TestNodes::new(),
            network,
            ticket: String::new(),
            named: RefCell::default(),
        };
        ward.hub("hub");
        let invite = ["hub", "invite", "--uses", "100"];
        ward.ticket = ward.run("hub", &invite).ok().stdout.trim().to_owned();
        Some(ward)
    }

    /// Starts a hub on the hub's host with the data folder of this name.
    fn hub(&mut self, folder: &str) -> u32 {
        let words = [
            "--listen",
            "[::]:443",
            "--url",
            "https://hub:443",
            "--trust",
            "members",
        ];
        let mut command = self.inside_as("hub", folder, &[&["--json", "hub"], &words[..]].concat());
        let hub = command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut hub = hub.spawn().unwrap();
        assert!(first_line(&mut hub).contains("443"));
        let pid = hub.id();
        self.nodes.keep(hub);
        pid
    }

    /// `hail` in a host, on the data folder of this name.
    fn inside_as(&self, host: &str, folder: &str, args: &[&str]) -> Command {
        let own = self.nodes.hail(folder, args);
        let named = self.network.command_with_names(host, own.get_program());
        let mut command = named.unwrap();
        command
            .args(own.get_args())
            .env("HOME", self.nodes.path(""))
            .env_remove("HAIL_DATA")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, host: &str, args: &[&str]) -> Ran {
        Ran::from(self.inside_as(host, host, args).output().unwrap())
    }

    /// A node that is a member of the hub.
    fn up(&mut self, host: &'static str, words: &[&str]) {
        self.run(host, &[&["up", "-d", "--name", host], words].concat())
            .ok();
        self.nodes.adopt(host);
        self.run(host, &["join", "--yes", &self.ticket]).ok();
    }

    fn diagnosis(&self, host: &str, words: &[&str]) -> Value {
        let ran = self.run(host, &[&["--json", "doctor"], words].concat());
        let diagnosis: Value = serde_json::from_str(ran.stdout.trim())
            .unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        let findings = diagnosis["findings"].as_array().unwrap();
        let faults = findings.iter().any(|one| one["level"] == "fault");
        assert_eq!(ran.code, Some(i32::from(faults)), "{ran:?}");
        diagnosis
    }

    fn codes(&self, host: &str, words: &[&str]) -> Vec<String> {
        let diagnosis = self.diagnosis(host, words);
        let findings = diagnosis["findings"].as_array().unwrap();
        findings
            .iter()
            .map(|one| one["code"].as_str().unwrap().to_owned())
            .collect()
    }

    #[track_caller]
    fn finds(&self, host: &str, words: &[&str], code: &str) {
        let codes = self.codes(host, words);
        assert!(
            codes.iter().any(|found| found == code),
            "{host}: {code} is not in {codes:?}"
        );
        self.named.borrow_mut().insert(code.to_owned());
    }

    /// Each of these was found in this test.
    #[track_caller]
    fn has_named(&self, codes: &[&str]) {
        let named = self.named.borrow();
        let missing: Vec<_> = codes
            .iter()
            .filter(|code| !named.contains(**code))
            .collect();
        assert!(missing.is_empty(), "{missing:?} was never found");
    }

    /// Rules of nftables in a host, or on a router.
    fn rules(&self, mut nft: Command, rules: &str) {
        let file = self.nodes.path("rules.nft");
        fs::write(&file, rules).unwrap();
        assert!(nft.arg("-f").arg(file).status().unwrap().success());
    }

    /// Stops a node and starts it again, with this in its environment.
    fn again(&self, host: &str, environment: &[(&str, &str)]) {
        self.run(host, &["down"]).ok();
        let mut up = self.inside_as(host, host, &["up", "-d"]);
        let up = up.envs(environment.iter().copied());
        Ran::from(up.output().unwrap()).ok();
    }
}

/// Whether this program is there; else the test is skipped.
fn has_program(program: &str, package: &str) -> bool {
    let has = Command::new(program).arg("-v").output().is_ok();
    if !has {
        hailwire_skip::skipped(format!(
            "`{program}` is not installed (Debian's package {package})"
        ));
    }
    has
}

/// Every distinct fault, warning and note that a test stages, by the page's table of codes.
#[test]
fn thirty_and_more_faults_are_staged_each_in_a_network_or_process_of_its_own() {
    let page = include_str!("../../../../docs/reference/doctor.md");
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`'), cells.next()?))
    });
    let levels: BTreeMap<_, _> = rows.collect();
    let found = FOUND.iter().flat_map(|(_, found, _)| found.iter().copied());
    let pairs = PAIRS.iter().map(|(.., code)| *code);
    let others = [
        OF_CHANGES,
        OF_SETTINGS,
        OF_GUESTS,
        &OF_CLOCK,
        OF_PROXIES,
        &OF_ROUTERS,
    ];
    let all = found.chain(pairs).chain(others.concat());
    let staged: BTreeSet<_> = all
        .filter(|code| !levels[code].starts_with("good"))
        .collect();
    assert!(staged.len() >= 30, "{} of {staged:?}", staged.len());
}

#[test]
fn every_network_and_every_path_is_said_to_be_what_it_is() {
    let Some(mut ward) = Ward::new() else {
        return;
    };
    for (host, ..) in FOUND {
        ward.up(host, &[]);
    }
    ward.up("server", &["--listen-tcp", "0.0.0.0:443"]);
    for (host, found, not) in FOUND {
        let codes = ward.codes(host, &[]);
        let has = |code: &&&str| codes.iter().any(|one| one == **code);
        let missing: Vec<_> = found.iter().filter(|code| !has(code)).collect();
        let wrong: Vec<_> = not.iter().filter(has).collect();
        assert!(
            missing.is_empty() && wrong.is_empty(),
            "{host}: without {missing:?}, with {wrong:?}: {codes:?}"
        );
    }
    for (from, to, code) in PAIRS {
        let codes = ward.codes(from, &[to]);
        assert!(
            codes.iter().any(|found| found == code),
            "{from} – {to}: {code} is not in {codes:?}"
        );
    }
    let shown = ward.run("symmetric", &["doctor", "random"]);
    for part in [
        "warning  relayed-symmetric",
        "→ Turn on UPnP",
        "TRIED  HERE",
        "an answer, in use",
        "nothing",
    ] {
        assert!(
            shown.stdout.contains(part),
            "{part} is not in\n{}",
            shown.stdout
        );
    }
    let peer = &ward.diagnosis("home", &["public"])["peer"];
    let address = ward
        .network
        .topology()
        .public(ward_site(&ward, "home"))
        .to_string();
    let from_there = peer["far_candidates"].as_array().unwrap();
    let relays = from_there.iter().filter(|one| one["kind"] == "relay");
    assert_eq!(relays.count(), 1, "{peer}");
    let is_home = |one: &&Value| one["address"].as_str().unwrap().starts_with(&address);
    let used = from_there
        .iter()
        .filter(is_home)
        .any(|one| one["used"] == true);
    assert!(used, "{peer}");
    // The path in use is known from both ends.
    let pair = &peer["pairs"][0];
    assert_eq!(
        (&pair["kind"], &pair["outcome"]),
        (&"udp".into(), &"used".into()),
        "{peer}"
    );
    assert!(
        pair["near"].as_str().unwrap().starts_with(&address),
        "{peer}"
    );
    let far = ward.network.address("public").unwrap().to_string();
    assert!(pair["far"].as_str().unwrap().starts_with(&far), "{peer}");
}

fn ward_site(ward: &Ward, host: &str) -> usize {
    ward.network.topology().site_of(host).unwrap()
}

#[test]
fn what_becomes_of_a_hub_is_told_apart() {
    let Some(mut ward) = Ward::new() else {
        return;
    };
    ward.up("public", &[]);
    ward.finds("public", &[], "hub-answers");
    // Another node has the name.
    ward.run("open", &["up", "-d", "--name", "public"]).ok();
    ward.nodes.adopt("open");
    ward.finds("open", &[], "no-hub");
    ward.run("open", &["join", "--yes", &ward.ticket]).ok();
    ward.finds("open", &[], "hub-refused-record");
    // A firewall that lets out nothing but what is for another place.
    let elsewhere = FirewallRule::OnlyTo("198.18.250.1".parse().unwrap());
    let change = |rule| ward.network.change("open", SiteChange::Firewall(rule));
    change(Some(elsewhere)).unwrap();
    ward.finds("open", &[], "hub-silent");
    change(None).unwrap();
    // Its operator removes the member.
    let key = ward.run("open", &["id"]).ok().stdout;
    ward.run("hub", &["hub", "members", "rm", key.trim()]).ok();
    ward.finds("open", &[], "hub-not-a-member");
    // A peer that is gone.
    ward.run("home", &["up", "-d", "--name", "home"]).ok();
    ward.nodes.adopt("home");
    ward.run("home", &["join", "--yes", &ward.ticket]).ok();
    ward.finds("public", &["home"], "path-direct");
    ward.run("home", &["down"]).ok();
    ward.finds("public", &["home"], "peer-away");
    // Nobody listens, and then somebody else does.
    ward.run("hub", &["hub", "down"]).ok();
    ward.finds("public", &[], "hub-refuses");
    ward.hub("another-hub");
    ward.finds("public", &[], "hub-other-key");
    // No name leads there.
    ward.run("public", &["down"]).ok();
    let unnamed = ward
        .network
        .command("public", ward.nodes.hail("public", &[]).get_program());
    let mut unnamed = unnamed.unwrap();
    unnamed
        .arg("--data")
        .arg(ward.nodes.path("public"))
        .args(["up", "-d"]);
    assert!(unnamed.stdin(Stdio::null()).status().unwrap().success());
    ward.finds("public", &[], "hub-name-unknown");
    ward.has_named(OF_CHANGES);
}

#[test]
fn settings_that_keep_a_node_from_being_reached_are_named() {
    let Some(mut ward) = Ward::new() else {
        return;
    };
    ward.up("home", &[]);
    ward.run("home", &["down"]).ok();
    let config = ward.nodes.path("home/hail.kdl");
    let kept = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        format!("{kept}\nlisten {{ port-mapping #false }}\nquic {{ socket-buffer \"1024MiB\" }}\n"),
    )
    .unwrap();
    ward.run("home", &["up", "-d"]).ok();
    ward.finds("home", &[], "port-mapping-off");
    ward.finds("home", &[], "short-buffers");
    ward.up("public", &["--listen", "127.0.0.1:0"]);
    ward.finds("public", &[], "loopback-only");
    // Trust that goes one way only.
    ward.up("server", &["--listen-tcp", "0.0.0.0:443"]);
    ward.up("blocked", &["--carrier", "quic"]);
    ward.finds("blocked", &["server"], "relayed-by-setting");
    let key = ward.run("blocked", &["id"]).ok().stdout;
    ward.run("server", &["trust", "rm", key.trim()]).ok();
    ward.finds("blocked", &["server"], "peer-distrusts");
    // One who is not trusted, and one who is and of whom nothing is known but the key.
    ward.run("open", &["up", "-d", "--name", "open"]).ok();
    ward.nodes.adopt("open");
    let key = ward.run("open", &["id"]).ok().stdout;
    ward.finds("home", &[key.trim()], "peer-untrusted");
    ward.run("home", &["trust", "add", key.trim()]).ok();
    ward.finds("home", &[key.trim()], "peer-without-address");
    ward.has_named(OF_SETTINGS);
}

/// A hotel whose router answers in place of all others, and other networks that one is a guest of.
const GUESTS: &str = r#"
about "guests"
host "hub" ip="4+6" { link { delay "5ms" } }
host "portal" { link { delay "5ms" } }
site "hotel" { link { delay "5ms" }; nat; host "hotel" }
site "six" ip="4+6" { link { delay "5ms" }; host "six" }
site "forgetful" { link { delay "5ms" }; nat timeout="5s"; host "forgetful" }
"#;

#[test]
fn what_a_guest_of_a_network_meets_is_named() {
    if !has_program("nft", "nftables") {
        return;
    }
    let Some(mut ward) = Ward::with(GUESTS) else {
        return;
    };
    ward.up("hotel", &[]);
    ward.up("six", &[]);
    ward.up("forgetful", &[]);
    ward.finds("forgetful", &["--lifetime=10s"], "mapping-short");
    ward.finds("hotel", &["--lifetime=10s"], "mapping-lasts");
    // A firewall that takes out requests for an answer at another port (RFC 5780, 7.5): the attribute's type is the first after the
    // headers of UDP and STUN.
    let rules = "table ip stun {\n chain pre {\n type filter hook prerouting priority -150;\n\
         meta l4proto udp @th,224,16 0x0027 drop;\n }\n}\n";
    let nft = ward.network.router_command("hotel", "nft").unwrap();
    ward.rules(nft, rules);
    ward.finds("hotel", &["--lifetime=10s"], "mapping-life-unknown");
    // No route leads out.
    ward.run("forgetful", &["down"]).ok();
    let mut ip = ward.network.command("forgetful", "ip").unwrap();
    let without = ip.args(["route", "del", "default"]);
    assert!(without.status().unwrap().success());
    ward.run("forgetful", &["up", "-d"]).ok();
    ward.finds("forgetful", &[], "hub-failed");
    // Whatever is sent to the hub is taken to the portal, which answers everything in the same way.
    for port in [80, 443] {
        let bind = || TcpListener::bind(("0.0.0.0", port));
        let listener = ward.network.within("portal", bind).unwrap().unwrap();
        thread::spawn(move || answer_as_a_portal(&listener));
    }
    let [hub, portal] = ["hub", "portal"].map(|host| {
        let site = ward_site(&ward, host);
        ward.network.topology().public(site)
    });
    let rules = format!(
        "table ip portal {{\n chain pre {{\n type nat hook prerouting priority -100;\n\
         ip daddr {hub} tcp dport {{ 80, 443 }} dnat to {portal};\n }}\n}}\n"
    );
    let nft = ward.network.router_command("hotel", "nft").unwrap();
    ward.rules(nft, &rules);
    ward.again("hotel", &[]);
    ward.finds("hotel", &[], "captive-portal");
    let rules = "table ip walls {\n chain out {\n type filter hook output priority 0;\n\
         meta l4proto udp drop;\n }\n}\n";
    let nft = ward.network.command("six", "nft").unwrap();
    ward.rules(nft, rules);
    ward.finds("six", &[], "udp4-silent");
    let mut ip = ward.network.command("six", "ip").unwrap();
    let down = ip.args(["link", "set", "eth0", "down"]);
    assert!(down.status().unwrap().success());
    ward.finds("six", &[], "no-network");
    ward.has_named(OF_GUESTS);
}

fn answer_as_a_portal(listener: &TcpListener) {
    for accepted in listener.incoming() {
        let Ok(mut guest) = accepted else {
            return;
        };
        let mut asked = [0; 1024];
        let _ = guest.read(&mut asked);
        let _ = guest.write_all(
            b"HTTP/1.1 302 Found\r\nlocation: http://login.hotel.test/\r\ncontent-length: 0\r\n\r\n",
        );
    }
}

/// Where Debian's package libfaketime has its library, which tells a program another time.
fn faketime() -> Option<String> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    let found = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let found = found.into_iter().find(|library| library.exists());
    if found.is_none() {
        hailwire_skip::skipped(
            "`libfaketime.so.1` is not installed (Debian's package libfaketime)",
        );
    }
    Some(found?.display().to_string())
}

#[test]
fn a_clock_that_is_an_hour_behind_is_named() {
    let Some(faketime) = faketime() else {
        return;
    };
    let Some(mut ward) = Ward::new() else {
        return;
    };
    ward.up("public", &[]);
    let environment = [
        ("LD_PRELOAD", faketime.as_str()),
        ("FAKETIME", "-1h"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    ward.again("public", &environment);
    ward.finds("public", &[], OF_CLOCK[0]);
}

/// An office whose way out is a proxy.
const OFFICE: &str = r#"
about "an office"
host "hub" ip="4+6" { link { delay "5ms" } }
host "proxy" { link { delay "5ms" } }
site "office" { link { delay "5ms" }; firewall "only-proxy" to="proxy"; host "office" }
"#;

#[test]
fn a_proxy_and_one_that_does_not_connect_are_named() {
    if !has_program("tinyproxy", "tinyproxy-bin") {
        return;
    }
    let Some(mut ward) = Ward::with(OFFICE) else {
        return;
    };
    for (port, ports) in PROXY_PORTS {
        let config = ward.nodes.path(&format!("proxy-{port}.conf"));
        fs::write(
            &config,
            format!("Port {port}\nListen 0.0.0.0\nTimeout 600\nMaxClients 100\n{ports}"),
        )
        .unwrap();
        let proxy = ward.network.command_with_names("proxy", "tinyproxy");
        let mut proxy = proxy.unwrap();
        let proxy = proxy.args(["-d", "-c"]).arg(config).stdin(Stdio::null());
        let proxy = proxy.stdout(Stdio::null()).stderr(Stdio::null());
        ward.nodes.keep(proxy.spawn().unwrap());
        let begun = Instant::now();
        let connect = || std::net::TcpStream::connect(("127.0.0.1", port));
        while ward.network.within("proxy", connect).unwrap().is_err() {
            assert!(begun.elapsed() < Duration::from_secs(10));
            thread::sleep(Duration::from_millis(20));
        }
    }
    let at = ward.network.address("proxy").unwrap();
    let [open, closed] = PROXY_PORTS.map(|(port, _)| format!("http://{at}:{port}"));
    let mut up = ward.inside_as("office", "office", &["up", "-d", "--name", "office"]);
    Ran::from(up.env("HTTPS_PROXY", &open).output().unwrap()).ok();
    ward.nodes.adopt("office");
    ward.run("office", &["join", "--yes", &ward.ticket]).ok();
    ward.finds("office", &[], "proxy");
    ward.finds("office", &[], "hub-answers");
    ward.again("office", &[("HTTPS_PROXY", closed.as_str())]);
    ward.finds("office", &[], "proxy-fails");
    ward.has_named(OF_PROXIES);
}
