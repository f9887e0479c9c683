//! A port of the router that leads to a node: miniupnpd, a foreign program, on a router of the lab.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use hailwire_lab::{Topology, real::NamespaceNetwork};
use serde_json::Value;

use crate::{
    doctor::OF_ROUTERS,
    lab::{inside, possible},
    test_nodes::{Ran, TestNodes, first_line},
};

/// A home whose router filters by address and port, and somebody on the internet.
const TOPOLOGY: &str = r#"
about "a home and a stranger"
site "home" { link { delay "5ms" }; nat; host "desk" }
host "far" { link { delay "5ms" } }
"#;

/// The router's address on the internet. miniupnpd gives no ports of an address that is reserved, as all of the lab are, so the stranger's
/// machine sends what is for this one to the router.
const PUBLIC: &str = "9.9.9.1";

/// Where miniupnpd puts its rules.
const CHAINS: &str = "
table inet filter {
    chain forward { type filter hook forward priority 0; policy accept; jump miniupnpd; }
    chain miniupnpd { }
    chain prerouting { type nat hook prerouting priority -100; policy accept; jump prerouting_miniupnpd; }
    chain postrouting { type nat hook postrouting priority 90; policy accept; jump postrouting_miniupnpd; }
    chain prerouting_miniupnpd { }
    chain postrouting_miniupnpd { }
}
";

struct Home {
    nodes: TestNodes,
    network: NamespaceNetwork,
}

impl Home {
    /// With a router that speaks what these lines of its configuration say; nothing where miniupnpd is not installed.
    fn new(speaks: &str) -> Option<Self> {
        if !possible() {
            return None;
        }
        if Command::new("miniupnpd").output().is_err() {
            hailwire_skip::skipped(
                "`miniupnpd` is not installed (Debian's package miniupnpd-nftables)",
            );
            return None;
        }
        let network = NamespaceNetwork::up(&Topology::parse(TOPOLOGY, "home").unwrap()).unwrap();
        let mut nodes = TestNodes::new();
        let chains = nodes.path("chains.nft");
        fs::write(&chains, CHAINS).unwrap();
        let mut nft = network.router_command("home", "nft").unwrap();
        assert!(nft.arg("-f").arg(&chains).status().unwrap().success());
        let config = nodes.path("miniupnpd.conf");
        let text = format!(
            "ext_ifname=eth0\nlistening_ip=192.168.0.1/24\next_ip={PUBLIC}\nsecure_mode=yes\n\
             uuid=6b9f1f3e-0000-4000-8000-000000000001\nhttp_port=5000\n\
             upnp_table_name=filter\nupnp_nat_table_name=filter\n{speaks}\nallow 1-65535 0.0.0.0/0 1-65535\n"
        );
        fs::write(&config, text).unwrap();
        let mut router = network.router_command("home", "miniupnpd").unwrap();
        let log = fs::File::create(nodes.path("miniupnpd.log")).unwrap();
        let pid = nodes.path("miniupnpd.pid");
        let child = router
            .args(["-d", "-P"])
            .arg(pid)
            .arg("-f")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        nodes.keep(child);
        let router = network.topology().public(0);
        let redirect = format!(
            "table ip internet {{\n chain out {{\n type nat hook output priority -100;\n\
             ip daddr {PUBLIC} dnat to {router};\n }}\n}}\n"
        );
        let internet = nodes.path("internet.nft");
        fs::write(&internet, redirect).unwrap();
        let mut nft = network.command("far", "nft").unwrap();
        assert!(nft.arg("-f").arg(&internet).status().unwrap().success());
        let home = Self { nodes, network };
        if speaks.contains("yes") {
            home.router_is_up();
        }
        Some(home)
    }

    /// Waits until miniupnpd says that it listens: a node asks once.
    fn router_is_up(&self) {
        let begun = Instant::now();
        let log = || fs::read_to_string(self.nodes.path("miniupnpd.log")).unwrap();
        while !log().contains("istening ") {
            assert!(begun.elapsed() < Duration::from_secs(10), "{}", log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn run(&self, node: &str, args: &[&str]) -> Ran {
        Ran::from(
            inside(&self.network, &self.nodes, node, args)
                .output()
                .unwrap(),
        )
    }

    fn up(&mut self, node: &'static str) {
        self.run(node, &["up", "-d", "--name", node]).ok();
        self.nodes.adopt(node);
    }

    /// What the status of `desk` says of the port, once `holds`.
    fn mapping(&self, holds: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.run("desk", &["--json", "status"]).ok().json();
            let mapping = &status["port_mapping"];
            if holds(mapping) {
                return mapping.clone();
            }
            let log = fs::read_to_string(self.nodes.path("miniupnpd.log")).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(20), "{status}\n{log}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The rules of the router that lead inside.
    fn rules(&self) -> String {
        let mut nft = self.network.router_command("home", "nft").unwrap();
        let listed = nft.args(["list", "chain", "inet", "filter", "prerouting_miniupnpd"]);
        String::from_utf8(listed.output().unwrap().stdout).unwrap()
    }

    /// `desk` gets a port, is called through it by somebody who knows its ticket alone, and gives it back.
    fn has_a_port_by(mut self, protocol: &str) {
        self.up("desk");
        let mapping = self.mapping(|mapping| mapping["external"].is_string());
        assert_eq!(mapping["protocols"][0], protocol, "{mapping}");
        let external = mapping["external"].as_str().unwrap().to_owned();
        assert!(external.starts_with(&format!("{PUBLIC}:")), "{external}");
        assert!(self.rules().contains("dnat"), "{}", self.rules());

        // No hub, and a router that lets in only what was asked for.
        self.up("far");
        let ticket = self.run("desk", &["invite"]).ok().stdout;
        self.run("far", &["join", ticket.trim()]).ok();
        let pong = self
            .run("far", &["--json", "ping", "desk", "-c", "1"])
            .ok()
            .json();
        assert_eq!(pong["path"]["remote"], external.as_str(), "{pong}");
        let shown = self.run("desk", &["status"]).ok().stdout;
        assert!(
            shown.contains(&format!("mapped    {external} by {protocol}")),
            "{shown}"
        );

        self.run("desk", &["down"]).ok();
        assert!(!self.rules().contains("dnat"), "{}", self.rules());
    }
}

#[test]
fn a_port_of_a_upnp_router_leads_to_the_node_until_it_ends() {
    if let Some(home) = Home::new("enable_upnp=yes\nenable_natpmp=no") {
        home.has_a_port_by("upnp");
    }
}

#[test]
fn a_port_of_a_router_with_pcp_and_nat_pmp_leads_to_the_node_until_it_ends() {
    if let Some(home) = Home::new("enable_upnp=no\nenable_natpmp=yes") {
        home.has_a_port_by("pcp");
    }
}

#[test]
fn a_router_that_gives_no_ports_is_said() {
    let Some(mut home) = Home::new("enable_upnp=no\nenable_natpmp=no") else {
        return;
    };
    home.up("desk");
    let mapping = home.mapping(|mapping| mapping["asked"] == true);
    assert_eq!(mapping["external"], Value::Null);
    let shown = home.run("desk", &["status"]).ok().stdout;
    assert!(
        shown.contains("mapped    no: the router speaks neither UPnP"),
        "{shown}"
    );
    home.run("desk", &["down"]).ok();
    fs::write(
        home.nodes.path("desk/hail.kdl"),
        "listen { port-mapping #false }\n",
    )
    .unwrap();
    home.up("desk");
    let shown = home.run("desk", &["status"]).ok().stdout;
    assert!(shown.contains("mapped    no: not asked for"), "{shown}");
}

/// A hub at the stranger's machine sees the router's own address, which is not the one of which miniupnpd gives ports: as where another NAT
/// stands before it.
#[test]
fn a_router_behind_another_and_one_that_refuses_are_named_by_the_doctor() {
    let [refused, behind] = OF_ROUTERS;
    let speaks = "enable_upnp=no\nenable_natpmp=yes";
    // By UPnP, since asked by PCP miniupnpd looks at every port in turn before it refuses.
    let refuses = "enable_upnp=yes\nenable_natpmp=no\ndeny 0-65535 0.0.0.0/0 0-65535";
    for (speaks, code) in [(speaks, behind), (refuses, refused)] {
        let Some(mut home) = Home::new(speaks) else {
            return;
        };
        let at = home.network.address("far").unwrap();
        let url = format!("https://{at}:443");
        let words = ["--json", "hub", "--listen", "0.0.0.0:443", "--url", &url];
        let mut hub = inside(&home.network, &home.nodes, "far", &words);
        let hub = hub.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut hub = hub.spawn().unwrap();
        first_line(&mut hub);
        home.nodes.keep(hub);
        let ticket = home.run("far", &["hub", "invite"]).ok().stdout;
        home.up("desk");
        home.run("desk", &["join", "--yes", ticket.trim()]).ok();
        home.mapping(|mapping| mapping["asked"] == true);
        let diagnosis = home.run("desk", &["--json", "doctor"]).json();
        let mut findings = diagnosis["findings"].as_array().unwrap().iter();
        assert!(findings.any(|one| one["code"] == code), "{diagnosis}");
    }
}
