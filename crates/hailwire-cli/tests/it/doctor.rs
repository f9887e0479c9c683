//! `hail doctor` in networks of the lab, each with a fault of its own: every one is named.

use std::{
    fs,
    process::{Command, Stdio},
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
    ("home", "nobody", "peer-unknown"),
];

struct Ward {
    nodes: TestNodes,
    network: NamespaceNetwork,
    ticket: String,
}

impl Ward {
    /// The networks with the hub; nothing where there can be none.
    fn new() -> Option<Self> {
        if !possible() {
            return None;
        }
        let topology = Topology::parse(NETWORKS, "doctor").unwrap();
        let network = NamespaceNetwork::up(&topology).unwrap();
        let mut ward = Self {
            nodes: TestNodes::new(),
            network,
            ticket: String::new(),
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

    fn codes(&self, host: &str, words: &[&str]) -> Vec<String> {
        let ran = self.run(host, &[&["--json", "doctor"], words].concat());
        let diagnosis: Value = serde_json::from_str(ran.stdout.trim())
            .unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        let findings = diagnosis["findings"].as_array().unwrap();
        let faults = findings.iter().any(|one| one["level"] == "fault");
        assert_eq!(ran.code, Some(i32::from(faults)), "{ran:?}");
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
    }
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
        "addresses of the peer that were tried",
        "in use",
    ] {
        assert!(
            shown.stdout.contains(part),
            "{part} is not in\n{}",
            shown.stdout
        );
    }
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
        format!("{kept}\nlisten {{ port-mapping #false }}\n"),
    )
    .unwrap();
    ward.run("home", &["up", "-d"]).ok();
    ward.finds("home", &[], "port-mapping-off");
    ward.up("public", &["--listen", "127.0.0.1:0"]);
    ward.finds("public", &[], "loopback-only");
    // Trust that goes one way only.
    ward.up("server", &["--listen-tcp", "0.0.0.0:443"]);
    ward.up("blocked", &["--carrier", "quic"]);
    ward.finds("blocked", &["server"], "relayed-by-setting");
    let key = ward.run("blocked", &["id"]).ok().stdout;
    ward.run("server", &["trust", "rm", key.trim()]).ok();
    ward.finds("blocked", &["server"], "peer-distrusts");
}
