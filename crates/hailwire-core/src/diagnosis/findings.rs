//! Every finding: its code, its cause and its cure, each in one place.

use std::{net::SocketAddr, time::Duration};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingLevel {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// It costs time or a direct path.
    Warning,
    /// Something does not work because of it.
    Fault,
}

impl FindingLevel {
    /// Its word in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its stable code, one of [`ALL_CODES`].
    pub code: &'static str,
    /// How much it matters.
    pub level: FindingLevel,
    /// What is the case, and why.
    pub cause: String,
    /// What to do; empty where there is nothing.
    pub cure: String,
}

/// Makes the codes, and for each a function that gives the finding.
macro_rules! findings {
    ($($(#[$about:meta])* $code:literal $level:ident $name:ident($($arg:ident: $kind:ty),*) { $cause:expr, $cure:expr })*) => {
        /// The codes of all findings.
        pub const ALL_CODES: &[&str] = &[$($code),*];

        impl Finding {
            $($(#[$about])* pub(super) fn $name($($arg: $kind),*) -> Self {
                Self {
                    code: $code,
                    level: FindingLevel::$level,
                    cause: $cause.into(),
                    cure: $cure.into(),
                }
            })*
        }
    };
}

fn millis(time: Duration) -> u128 {
    time.as_millis()
}

findings! {
    "loopback-only" Warning loopback_only() {
        "The node listens on this machine alone, so no other machine reaches it.",
        "Start it with `hail up --listen 0.0.0.0:0`, or take the loopback address out of `listen { udp }`."
    }
    "no-network" Fault no_network() {
        "This machine has no address but loopback: it is on no network.",
        "Connect it; `ip address` shows what it has."
    }
    "no-hub" Note no_hub() {
        "The node is in no hub, so peers find it by tickets and addresses alone and nothing tells what its NAT does.",
        "Run `hail join TICKET` with a hub's ticket, or host a hub with `hail hub`."
    }
    "hub-answers" Good hub_answers(url: &str, took: Duration) {
        format!("The hub {url} answers in {} ms.", millis(took)), ""
    }
    "hub-slow" Warning hub_slow(url: &str, took: Duration) {
        format!("The hub {url} takes {} ms to answer, which each first call waits for.", millis(took)),
        "Use a hub that is nearer, or find out what slows the way to it."
    }
    "hub-name-unknown" Fault hub_name_unknown(url: &str) {
        format!("The name in {url} has no address here."),
        "Check the name and this machine's DNS (`getent hosts NAME`)."
    }
    "hub-refuses" Fault hub_refuses(url: &str) {
        format!("The machine of {url} answers, and nothing listens at that port."),
        "See that the hub runs (`hail hub status` there) and that the port is right."
    }
    "hub-silent" Fault hub_silent(url: &str, proxied: bool) {
        format!("Nothing comes back from {url} over TCP: it is down, or a firewall between drops its packets."),
        match proxied {
            true => "See that the hub runs, and that the HTTP proxy may connect to its port.",
            false => "See that the hub runs; if this network lets out only some ports, host the hub on 443, or set HTTPS_PROXY.",
        }
    }
    "hub-other-key" Fault hub_other_key(url: &str) {
        format!("Somebody else answers in place of {url}: a proxy that opens TLS, or a hub with a new key."),
        "Ask the hub's operator for a new ticket; if nothing has changed there, ask whoever runs this network whether it opens TLS."
    }
    "captive-portal" Fault captive_portal(url: &str) {
        format!("This network answers with a web page of its own in place of {url}: a captive portal, which lets nothing through before somebody has signed in."),
        "Open any page in a browser on this machine and sign in; the node goes on by itself."
    }
    "hub-not-a-member" Fault hub_not_a_member(url: &str) {
        format!("The hub {url} does not know this node as a member."),
        "Ask its operator for a ticket, and run `hail join TICKET`."
    }
    "hub-failed" Fault hub_failed(url: &str, why: &str) {
        format!("The hub {url} cannot be used: {why}."),
        "`hail logs` and the hub's log say more."
    }
    "hub-refused-record" Warning hub_refused_record(url: &str, why: &str) {
        format!("The hub {url} did not take all of this node's record: {why}."),
        "Choose another name (`hail up --name`), or ask the hub's operator."
    }
    "hub-without-stun" Note hub_without_stun(url: &str) {
        format!("The hub {url} does not answer STUN, so it cannot tell what a NAT does."),
        "Bring the hub to this version."
    }
    "clock-off" Fault clock_off(url: &str, offset: i64) {
        format!(
            "This machine's clock is {} s {} that of {url}, so tickets and records seem to be of another time.",
            offset.unsigned_abs(),
            if offset > 0 { "behind" } else { "before" }
        ),
        "Set the clock of whichever is wrong (`timedatectl set-ntp true`)."
    }
    "proxy" Note proxy(proxy: &str) {
        format!("Hubs and relays are reached through the HTTP proxy {proxy}."), ""
    }
    "proxy-fails" Fault proxy_fails(url: &str, why: &str) {
        format!("The HTTP proxy does not connect to {url}: {why}."),
        "Check HTTPS_PROXY and NO_PROXY, or ask who runs the proxy to allow the hub's host and port."
    }
    "udp-blocked" Warning udp_blocked(listens: bool) {
        "UDP does not come back from any hub, so paths are relayed.",
        match listens {
            true => "Allow UDP out and its answers in; this node listens on TCP, where peers reach it if its port is open.",
            false => "Allow UDP out and its answers in, or let the node listen on TCP (`--listen-tcp 0.0.0.0:443`).",
        }
    }
    "udp4-silent" Note udp4_silent() {
        "UDP comes back over IPv6 and not over IPv4, so peers without IPv6 are reached by a relay.",
        "Allow UDP over IPv4 out and its answers in, where this network has IPv4."
    }
    "ipv6-works" Good ipv6_works() {
        "IPv6 works, on which no NAT stands between two machines.", ""
    }
    "ipv6-none" Note ipv6_none() {
        "This machine has no global IPv6 address.",
        "Where the provider has IPv6, switch it on in the router: it spares hole punching."
    }
    "ipv6-dead" Warning ipv6_dead() {
        "This machine has IPv6 addresses, and nothing comes back over IPv6: each connection tries it in vain.",
        "Mend IPv6 in the router, or switch it off."
    }
    "mtu-small" Note mtu_small(payload: u16) {
        format!("The way to the hub takes UDP packets of {payload} bytes of payload and none that are longer: a tunnel or a mobile network lies between."),
        ""
    }
    "mtu-too-small" Fault mtu_too_small(payload: u16) {
        format!("The way to the hub takes UDP packets of {payload} bytes of payload, and QUIC needs 1,200 (RFC 9000, 14)."),
        "Raise the MTU of the VPN or tunnel on the way to 1,280 or more, or use `carrier \"h2\"`."
    }
    "public-address" Good public_address(at: SocketAddr) {
        format!("This machine has the public address {}, and packets of strangers come in.", at.ip()), ""
    }
    "public-with-firewall" Good public_with_firewall(at: SocketAddr) {
        format!("This machine has the public address {}, and a firewall lets in only what was sent to.", at.ip()),
        "Peers behind NATs with a new port for each destination need a UDP port that is open: `--listen 0.0.0.0:41641`, and allow it in."
    }
    "nat-open" Good nat_open(at: SocketAddr) {
        format!("The router has one external port for all destinations ({at}) and lets other ports in (endpoint-independent mapping): peers meet."),
        ""
    }
    "nat-port-filter" Good nat_port_filter(at: SocketAddr) {
        format!("The router has one external port for all destinations ({at}) and lets in only who was sent to (endpoint-independent mapping, address- and port-dependent filtering), as most at home: holes can be punched."),
        ""
    }
    "nat-symmetric" Warning nat_symmetric(at: SocketAddr, mapped: Option<SocketAddr>) {
        format!("The router uses a new external port for each destination (address- and port-dependent mapping; {at} toward the hub), so most peers behind a NAT are relayed."),
        match mapped {
            Some(_) => "Nothing: the router has mapped a port to the node, which peers reach.",
            None => "Turn on UPnP, NAT-PMP or PCP on the router, forward a UDP port to this machine (`--listen 0.0.0.0:41641`), or use IPv6.",
        }
    }
    "no-hairpin" Note no_hairpin() {
        "The router does not lead back what this machine sends to its own external address (no hairpinning); machines behind it meet by their private addresses.",
        ""
    }
    "mapping-lasts" Good mapping_lasts(at_least: Duration) {
        format!("The router keeps a UDP mapping that nobody uses for at least {} s.", at_least.as_secs()), ""
    }
    "mapping-short" Note mapping_short(lasts: Duration, gone_after: Duration) {
        match lasts.as_secs() {
            0 => format!("The router forgets a UDP mapping that nobody uses within {} s.", gone_after.as_secs()),
            lasts => format!("The router forgets a UDP mapping that nobody uses after {lasts} to {} s.", gone_after.as_secs()),
        },
        "Raise its time limit for UDP (RFC 4787, 4.3 asks for two minutes); until then each direct path costs a packet every 5 s."
    }
    "mapping-life-unknown" Note mapping_life_unknown() {
        "How long the router keeps a UDP mapping was not learnt: no answer came to a port that did not ask.",
        "Bring the hub to this version; if it is, a router that filters more than most stands before this machine."
    }
    "port-mapped" Good port_mapped(external: SocketAddr) {
        format!("The router leads {external} to this node."), ""
    }
    "port-mapped-behind-nat" Warning mapped_behind_another(external: SocketAddr, seen: SocketAddr) {
        format!("The router leads {external} to this node, and the hub sees {}: another NAT stands before the router.", seen.ip()),
        "Have the outer router forward the port too, or bridge the inner one; a provider's NAT (CGNAT) can only be left by IPv6 or a public address."
    }
    "port-mapping-off" Note port_mapping_off() {
        "The node does not ask the router for a port (`listen { port-mapping #false }`).",
        "Take that line out of hail.kdl."
    }
    "port-refused" Note port_refused() {
        "The router speaks a protocol for port mapping and gave no port.",
        "See its settings for UPnP, NAT-PMP or PCP, and its list of ports."
    }
    "no-port-mapping" Note no_port_mapping() {
        "The router speaks neither UPnP, NAT-PMP nor PCP.",
        "Turn one of them on, or forward a UDP port by hand, if peers are relayed."
    }
    "short-buffers" Note short_buffers(granted: usize, asked: usize) {
        format!("The kernel grants {granted} bytes of the {asked} that a UDP socket asks for, which costs speed at high rates."),
        format!("Run `sysctl -w net.core.rmem_max={asked} net.core.wmem_max={asked}`.")
    }
    "peer-unknown" Fault peer_unknown(peer: &str) {
        format!("No node `{peer}` is known here."),
        "`hail peers` lists the nodes that are; `hail join TICKET` adds one."
    }
    "peer-untrusted" Fault peer_untrusted(peer: &str) {
        format!("This node does not trust {peer}."),
        "Join it with a ticket of its (`hail join TICKET`), or `hail trust add`."
    }
    "peer-distrusts" Fault peer_distrusts(peer: &str) {
        format!("{peer} answers, and does not trust this node: it refuses its calls."),
        "Have its operator run `hail trust approve` with this node's key (`hail id`), or send a ticket."
    }
    "peer-without-address" Fault peer_without_address(peer: &str) {
        format!("No address of {peer} is known that can be reached from here."),
        "Join the hub that it is in, or `hail trust add ID --address IP:PORT`."
    }
    "peer-away" Fault peer_away(peer: &str, why: &str) {
        format!("{peer} does not answer: {why}."),
        "See that it runs and is on the network (`hail status` and `hail doctor` there)."
    }
    "peer-not-asked" Note peer_not_asked(peer: &str) {
        format!("{peer} did not say what its network allows."),
        "Bring it to this version, and have it trust this node; then its end is in this report too."
    }
    "path-direct" Good path_direct(peer: &str, remote: &str) {
        format!("{peer} is reached directly, at {remote}."), ""
    }
    "path-direct-tcp" Good path_direct_tcp(peer: &str, remote: &str, carrier: &str) {
        format!("{peer} is reached directly over TCP ({carrier}), at {remote}, where UDP has no direct path."), ""
    }
    "relayed-symmetric" Warning relayed_symmetric(peer: &str, ipv6: &str) {
        format!("{peer} is relayed: both routers use a new port for each destination."),
        format!("Turn on UPnP, NAT-PMP or PCP on either router, forward a UDP port on either, or {ipv6}.")
    }
    "relayed-port-filter" Warning relayed_port_filter(peer: &str, symmetric: &str, filter: &str, ipv6: &str) {
        format!("{peer} is relayed: the router of {symmetric} uses a new port for each destination, and that of {filter} lets in only ports that it knows."),
        format!("Turn on UPnP, NAT-PMP or PCP on the router of {filter}, forward a UDP port to it, or {ipv6}.")
    }
    "relayed-udp-here" Warning relayed_udp_here(peer: &str, ipv6: &str) {
        format!("{peer} is relayed: UDP does not come back to this machine."),
        format!("Allow UDP out and its answers in on this network, have {peer} listen on TCP (`--listen-tcp 0.0.0.0:443`) at an address that this machine reaches, or {ipv6}.")
    }
    "relayed-udp-there" Warning relayed_udp_there(peer: &str, ipv6: &str) {
        format!("{peer} is relayed: UDP does not come back to it."),
        format!("Allow UDP out and its answers in on its network, have this node listen on TCP (`--listen-tcp 0.0.0.0:443`) at an address that {peer} reaches, or {ipv6}.")
    }
    "relayed-no-common-family" Warning relayed_no_common_family(peer: &str, ipv6: &str) {
        format!("{peer} is relayed: UDP comes back over IPv4 alone to one end, and over IPv6 alone to the other."),
        format!("Give either end the other family: {ipv6}.")
    }
    "relayed-ipv6-firewall" Warning relayed_ipv6_firewall(peer: &str) {
        format!("{peer} is relayed, though IPv6 works at both ends: a firewall at one of them lets UDP over IPv6 through to the hub, and not between the two."),
        "Allow UDP over IPv6 out, and in to the node's port (`hail status` shows it), in the firewalls of both ends; over IPv6 no port needs to be forwarded."
    }
    "relayed-by-setting" Note relayed_by_setting(peer: &str) {
        format!("{peer} is relayed over QUIC, and the configuration allows no other carrier."),
        "Take `carrier \"quic\"` out of hail.kdl, and the peer is tried over TCP."
    }
    "relayed-no-reason" Warning relayed_no_reason(peer: &str) {
        format!("{peer} is relayed, though what both networks allow should give a direct path."),
        "A firewall may drop what neither hub sees: allow UDP between the two, and look for `path` in `hail logs`."
    }
    "relayed-unknown" Warning relayed_unknown(peer: &str) {
        format!("{peer} is relayed, and what its network allows is not known."),
        "Run `hail doctor` on the peer."
    }
}
