//! Which addresses and relays this node lets itself be sent to.
//!
//! Where a peer is, it says itself: in a ticket, when it joins, in its record at a hub. A node that
//! believed all of that would contact whatever an untrusted peer names: the services of its own machine, its
//! neighbours' routers, a web server. So what was only **told** is dialled where it is no more than
//! what anybody may contact:
//!
//! - the machine itself (loopback) only by a node that is itself on no other network;
//! - private and link-local ranges (RFC 1918, 3927, 4193, 4291, 6598) only inside a subnet of one of this
//!   machine's interfaces;
//! - never what is no single host: port 0, multicast, broadcast, unspecified and reserved addresses; nor
//!   a cloud's metadata service; nor an address that hides another in a tunnel (6to4);
//! - at most [`MAX_DIALLED`] addresses of one peer, and no more new ones at a time than [`DialBudget`] has.
//!
//! What this node's user typed is dialled as it is, and where the peer was found before, proved by its
//! key, also on loopback. A relay is used only if it is that of a hub that this node joined.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

/// Addresses of one peer that are dialled at once, over UDP and over TCP each.
pub const MAX_DIALLED: usize = 16;

/// Dials of told addresses that may be made at once, and how many more each second.
const DIAL_BUDGET: (u32, u32) = (512, 32);

/// The metadata service of several clouds, which gives secrets to whoever asks from inside.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// A subnet of one of this machine's interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// This machine's address in it.
    pub address: IpAddr,
    /// The length of its prefix, in bits.
    pub prefix: u8,
}

impl Subnet {
    /// Whether it is a host of this subnet: neither the subnet's own address nor its broadcast.
    fn has_host(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                let host = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                let (own, address) = (own.to_bits(), address.to_bits());
                let inside = own & !host == address & !host;
                let whole = self.prefix < 31 && (address & host == 0 || address & host == host);
                inside && !whole
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                let host = u128::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                own.to_bits() & !host == address.to_bits() & !host
            }
            _ => false,
        }
    }
}

/// The networks that this machine is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNetworks {
    /// The subnets of its interfaces, loopback apart.
    pub subnets: Vec<Subnet>,
    /// This node listens on loopback alone, so its peers are on this machine.
    pub loopback_only: bool,
    /// The sockets of this node, as bound, that a peer of the same port and address would be taken for.
    pub own_udp: Vec<SocketAddr>,
    /// Those over TCP.
    pub own_tcp: Vec<SocketAddr>,
}

impl LocalNetworks {
    /// Whether one of these sockets of this node is at an address.
    fn is_own(&self, address: SocketAddr, sockets: &[SocketAddr]) -> bool {
        let ip = address.ip().to_canonical();
        let is_here = || ip.is_loopback() || self.subnets.iter().any(|subnet| subnet.address == ip);
        sockets.iter().any(|own| {
            let bound = own.ip();
            let same = if bound.is_unspecified() {
                bound.is_ipv4() == ip.is_ipv4() && is_here()
            } else {
                bound == ip
            };
            own.port() == address.port() && same
        })
    }
}

/// How an address is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressOrigin {
    /// This user typed it.
    Typed,
    /// The peer was found there, and proved its key.
    Found,
    /// Somebody said so.
    Told,
}

/// Addresses at which a peer may be, each with how it is known, the best known first.
#[derive(Clone, Debug, Default)]
pub struct AddressCandidates {
    /// Over UDP.
    pub udp: Vec<(SocketAddr, AddressOrigin)>,
    /// Over TCP.
    pub tcp: Vec<(SocketAddr, AddressOrigin)>,
    /// URLs of the relays that it named.
    pub relays: Vec<String>,
}

impl AddressCandidates {
    /// Adds addresses that are known in the same way.
    pub fn add(&mut self, known: AddressOrigin, udp: &[SocketAddr], tcp: &[SocketAddr]) {
        self.udp.extend(udp.iter().map(|address| (*address, known)));
        self.tcp.extend(tcp.iter().map(|address| (*address, known)));
    }

    /// Whether nothing at all is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.udp.is_empty() && self.tcp.is_empty() && self.relays.is_empty()
    }

    /// What was told of an address at which the peer is now is known better.
    pub fn seen_at(&mut self, remotes: &[SocketAddr]) {
        for (address, known) in self.udp.iter_mut().chain(&mut self.tcp) {
            if *known == AddressOrigin::Told && remotes.contains(address) {
                *known = AddressOrigin::Found;
            }
        }
    }

    /// Whether it matters which networks this machine is in.
    #[must_use]
    pub fn depends_on_networks(&self) -> bool {
        let mut all = self.udp.iter().chain(&self.tcp);
        all.any(|(_, known)| *known != AddressOrigin::Typed)
    }
}

/// Whether an address may be dialled.
#[must_use]
pub fn may_dial(address: SocketAddr, known: AddressOrigin, here: &LocalNetworks) -> bool {
    if address.port() == 0 {
        return false;
    }
    let ip = address.ip().to_canonical();
    if known == AddressOrigin::Typed {
        return !ip.is_unspecified() && !ip.is_multicast();
    }
    match scope(ip) {
        AddressScope::Invalid => false,
        AddressScope::Global => true,
        AddressScope::Host => {
            known == AddressOrigin::Found || here.loopback_only || here.subnets.is_empty()
        }
        AddressScope::Network => here.subnets.iter().any(|subnet| subnet.has_host(ip)),
    }
}

/// How far an address reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressScope {
    /// It is no single host, or none that a peer is.
    Invalid,
    /// This machine.
    Host,
    /// The network that the machine is in.
    Network,
    Global,
}

/// Whether an address means the same host everywhere.
#[must_use]
pub fn is_global(ip: IpAddr) -> bool {
    scope(ip) == AddressScope::Global
}

fn scope(ip: IpAddr) -> AddressScope {
    match ip {
        IpAddr::V4(ip) => scope_v4(ip),
        IpAddr::V6(ip) => scope_v6(ip),
    }
}

fn scope_v4(ip: Ipv4Addr) -> AddressScope {
    match ip.octets() {
        _ if ip == METADATA => AddressScope::Invalid,
        [0, ..] | [192, 0, 0, _] | [224..=255, ..] => AddressScope::Invalid,
        [127, ..] => AddressScope::Host,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [169, 254, ..] | [100, 64..=127, ..] => {
            AddressScope::Network
        }
        _ => AddressScope::Global,
    }
}

fn scope_v6(ip: Ipv6Addr) -> AddressScope {
    match ip.segments() {
        _ if ip.is_loopback() => AddressScope::Host,
        // Translated (RFC 6052): as far as the address inside.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => match scope_v4(embedded(high, low)) {
            AddressScope::Global => AddressScope::Global,
            AddressScope::Invalid | AddressScope::Host | AddressScope::Network => {
                AddressScope::Invalid
            }
        },
        // Unspecified, IPv4-compatible, 6to4, Teredo, site-local, multicast.
        [0, 0, 0, 0, 0, 0, ..] | [0x2002, ..] | [0x2001, 0, ..] | [0xfec0..=0xffff, ..] => {
            AddressScope::Invalid
        }
        [0xfc00..=0xfdff | 0xfe80..=0xfebf, ..] => AddressScope::Network,
        _ => AddressScope::Global,
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

/// The addresses over UDP and over TCP of one peer to dial, the best known first, each once. None is this node's own, whoever named it.
pub fn select_all(
    candidates: &AddressCandidates,
    here: &LocalNetworks,
    budget: &mut DialBudget,
    now: Duration,
) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    let others = |addresses: &[(SocketAddr, AddressOrigin)], own: &[SocketAddr]| {
        let others = addresses.iter().copied();
        others
            .filter(|(address, _)| !here.is_own(*address, own))
            .collect::<Vec<_>>()
    };
    let udp = select(others(&candidates.udp, &here.own_udp), here, budget, now);
    let tcp = select(others(&candidates.tcp, &here.own_tcp), here, budget, now);
    (udp, tcp)
}

/// Those of the addresses over UDP that a dial holds back for a moment, because they were only told and a relay leads to the peer as well.
///
/// A stranger in this machine's network may have the private address that a peer has in its own. And where packets pass one way only, what
/// comes first to the peer is answered to where nothing arrives. By the relay the peer is met at once, and then it is told where to send, so that
/// a direct path follows. What is held back is dialled where the relay does not answer in time. Nothing is held back of a peer behind the same
/// public address, which is in the same network.
#[must_use]
pub fn held_back(
    candidates: &AddressCandidates,
    dialled: &[SocketAddr],
    own_public: &[IpAddr],
) -> Vec<SocketAddr> {
    let told = |address: &SocketAddr| {
        let known = candidates.udp.iter().filter(|(other, _)| other == address);
        known
            .into_iter()
            .all(|(_, known)| *known == AddressOrigin::Told)
    };
    let same_network = candidates.udp.iter().any(|(address, _)| {
        let ip = address.ip().to_canonical();
        is_global(ip) && own_public.contains(&ip)
    });
    match same_network {
        true => Vec::new(),
        false => dialled.iter().copied().filter(told).collect(),
    }
}

/// The addresses of one peer to dial, the best known first, each once.
fn select(
    addresses: impl IntoIterator<Item = (SocketAddr, AddressOrigin)>,
    here: &LocalNetworks,
    budget: &mut DialBudget,
    now: Duration,
) -> Vec<SocketAddr> {
    let mut select: Vec<SocketAddr> = Vec::new();
    for (address, known) in addresses {
        if select.len() >= MAX_DIALLED {
            break;
        }
        let new = !select.contains(&address) && may_dial(address, known, here);
        if new && (known != AddressOrigin::Told || budget.take(now)) {
            select.push(address);
        }
    }
    select
}

/// The relays to use: of those that a peer names, those of the hubs that this node joined.
#[must_use]
pub fn usable_relays(told: Vec<String>, joined: &[String]) -> Vec<String> {
    let same = |a: &str, b: &str| a.trim_end_matches('/') == b.trim_end_matches('/');
    let mut relays: Vec<String> = Vec::new();
    for relay in told {
        let own = joined.iter().any(|joined| same(joined, &relay));
        if own && !relays.contains(&relay) {
            relays.push(relay);
        }
    }
    relays
}

/// How many told addresses may still be dialled: a token bucket over all peers.
#[derive(Debug)]
pub struct DialBudget {
    left: u32,
    filled: Duration,
}

impl Default for DialBudget {
    /// A full one.
    fn default() -> Self {
        Self {
            left: DIAL_BUDGET.0,
            filled: Duration::ZERO,
        }
    }
}

impl DialBudget {
    fn take(&mut self, now: Duration) -> bool {
        let seconds = now.saturating_sub(self.filled).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX);
            let more = more.saturating_mul(DIAL_BUDGET.1);
            self.left = self.left.saturating_add(more).min(DIAL_BUDGET.0);
            // The part of a second that has passed counts for the next one.
            self.filled = self.filled.saturating_add(Duration::from_secs(seconds));
        }
        let enough = self.left > 0;
        self.left = self.left.saturating_sub(1);
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> LocalNetworks {
        let subnet = |address: &str, prefix| Subnet {
            address: address.parse().unwrap(),
            prefix,
        };
        LocalNetworks {
            subnets: vec![
                subnet("192.168.7.20", 24),
                subnet("fd00:1::20", 64),
                subnet("fe80::20", 64),
            ],
            ..LocalNetworks::default()
        }
    }

    fn may(address: &str, known: AddressOrigin, here: &LocalNetworks) -> bool {
        may_dial(address.parse().unwrap(), known, here)
    }

    #[test]
    fn what_is_told_reaches_the_world_and_this_network_and_nothing_else() {
        let here = here();
        for good in [
            "203.0.113.5:443",
            "198.18.1.1:7",
            "192.168.7.5:22",
            "192.168.7.20:7440",
            "[2001:db8::1]:443",
            "[fd00:1::5]:7",
            "[fe80::5]:7",
            "[::ffff:203.0.113.5]:7",
            "[64:ff9b::203.0.113.5]:7",
        ] {
            assert!(may(good, AddressOrigin::Told, &here), "{good}");
        }
        for bad in [
            "203.0.113.5:0",
            "127.0.0.1:8080",
            "127.9.9.9:53",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:8080",
            "[::127.0.0.1]:8080",
            "0.0.0.0:80",
            "0.1.2.3:80",
            "[::]:80",
            "10.0.0.1:80",
            "172.16.0.1:80",
            "172.31.255.1:80",
            "192.168.8.5:80",
            "192.168.7.0:80",
            "192.168.7.255:80",
            "100.64.0.1:80",
            "169.254.169.254:80",
            "169.254.1.1:80",
            "[::ffff:10.0.0.1]:80",
            "[::ffff:169.254.169.254]:80",
            "[64:ff9b::10.0.0.1]:80",
            "[64:ff9b::169.254.169.254]:80",
            "[2002:0a00:0001::]:80",
            "224.0.0.251:5353",
            "239.255.255.250:1900",
            "255.255.255.255:67",
            "240.0.0.1:80",
            "[ff02::1]:5353",
            "[fd00:2::5]:80",
            "[fec0::1]:80",
        ] {
            assert!(!may(bad, AddressOrigin::Told, &here), "{bad}");
        }
    }

    #[test]
    fn loopback_is_for_a_node_on_loopback_for_where_a_peer_was_found_and_for_what_was_typed() {
        let mut here = here();
        assert!(may("127.0.0.1:7", AddressOrigin::Found, &here));
        assert!(may("127.0.0.1:7", AddressOrigin::Typed, &here));
        assert!(may("10.0.0.1:7", AddressOrigin::Typed, &here));
        assert!(
            !may("10.0.0.1:7", AddressOrigin::Found, &here),
            "of another network"
        );
        assert!(!may("0.0.0.0:7", AddressOrigin::Typed, &here));
        here.loopback_only = true;
        assert!(may("127.0.0.1:7", AddressOrigin::Told, &here));
        assert!(may(
            "127.0.0.1:7",
            AddressOrigin::Told,
            &LocalNetworks::default()
        ));
        assert!(!may(
            "10.0.0.1:7",
            AddressOrigin::Told,
            &LocalNetworks::default()
        ));
    }

    #[test]
    fn the_metadata_service_is_dialled_for_nobody_in_a_link_local_network_either() {
        let here = LocalNetworks {
            subnets: vec![Subnet {
                address: "169.254.3.3".parse().unwrap(),
                prefix: 16,
            }],
            ..LocalNetworks::default()
        };
        assert!(may("169.254.9.9:7", AddressOrigin::Told, &here));
        assert!(!may("169.254.169.254:80", AddressOrigin::Told, &here));
        assert!(!may("169.254.169.254:80", AddressOrigin::Found, &here));
    }

    #[test]
    fn what_is_this_nodes_own_is_never_dialled() {
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let here = LocalNetworks {
            own_udp: vec![address("0.0.0.0:4242"), address("[::]:4243")],
            own_tcp: vec![address("192.168.7.20:443")],
            loopback_only: true,
            ..here()
        };
        let mut candidates = AddressCandidates::default();
        let own = [
            "127.0.0.1:4242",
            "192.168.7.20:4242",
            "[fd00:1::20]:4243",
            "[::ffff:192.168.7.20]:4242",
        ];
        let others = [
            "192.168.7.20:4243",
            "192.168.7.21:4242",
            "[fd00:1::20]:4242",
        ];
        candidates.add(AddressOrigin::Told, &own.map(address), &[]);
        candidates.add(AddressOrigin::Typed, &own.map(address), &[]);
        candidates.add(AddressOrigin::Told, &others.map(address), &[]);
        let tcp = ["192.168.7.20:443", "127.0.0.1:443"].map(address);
        candidates.add(AddressOrigin::Told, &[], &tcp);
        let now = Duration::ZERO;
        let (udp, tcp) = select_all(&candidates, &here, &mut DialBudget::default(), now);
        assert_eq!(udp, others.map(address));
        assert_eq!(tcp, [address("127.0.0.1:443")]);
    }

    #[test]
    fn what_was_only_told_waits_for_the_relay_unless_it_is_of_the_same_network() {
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let [told, found] = ["192.168.7.5:7", "192.168.7.6:7"].map(address);
        let public = address("203.0.113.5:9");
        let mut candidates = AddressCandidates::default();
        candidates.add(AddressOrigin::Told, &[told, public, found], &[]);
        candidates.add(AddressOrigin::Found, &[found], &[]);
        let dialled = [told, public, found];
        assert_eq!(held_back(&candidates, &dialled, &[]), [told, public]);
        let elsewhere = ["198.51.100.1".parse().unwrap()];
        assert_eq!(held_back(&candidates, &dialled, &elsewhere), [told, public]);
        let same = ["203.0.113.5".parse().unwrap()];
        assert!(held_back(&candidates, &dialled, &same).is_empty());
    }

    #[test]
    fn the_addresses_of_one_peer_and_of_all_together_are_bounded() {
        let told = |from: u32, n: u32| {
            (from..from + n).map(|i| {
                let ip = Ipv4Addr::from_bits(0xcb00_7100 + i / 200);
                (
                    SocketAddr::from((ip, 1000 + u16::try_from(i % 200).unwrap())),
                    AddressOrigin::Told,
                )
            })
        };
        let (here, start) = (here(), Duration::ZERO);
        let mut budget = DialBudget::default();
        assert_eq!(
            select(told(0, 32), &here, &mut budget, start).len(),
            MAX_DIALLED
        );
        let again = told(0, 4).chain(told(0, 4));
        assert_eq!(select(again, &here, &mut budget, start).len(), 4);
        let mut dialled = MAX_DIALLED + 4;
        for n in 0..1000 {
            dialled += select(told(16 * n, 16), &here, &mut budget, start).len();
        }
        assert_eq!(dialled, DIAL_BUDGET.0 as usize);
        // What is known costs nothing.
        let found = told(0, 8).map(|(address, _)| (address, AddressOrigin::Found));
        assert_eq!(select(found, &here, &mut budget, start).len(), 8);
        let later = Duration::from_secs(2);
        let mut more = 0;
        for n in 0..1000 {
            more += select(told(16 * n, 16), &here, &mut budget, later).len();
        }
        assert_eq!(more, 2 * DIAL_BUDGET.1 as usize);
    }

    #[test]
    fn only_relays_of_hubs_that_this_node_joined_are_used() {
        let joined = ["https://hub.example:7443/".to_owned()];
        let told = [
            "https://hub.example:7443",
            "https://hub.example:7443",
            "http://169.254.169.254/",
            "https://hub.example:7443@evil.example",
            "https://evil.example:7443",
        ];
        let used = usable_relays(told.map(str::to_owned).to_vec(), &joined);
        assert_eq!(used, ["https://hub.example:7443"]);
    }

    #[test]
    fn each_reserved_range_ends_where_its_rfc_says() {
        let here = here();
        for (outside, inside) in [
            ("9.255.255.255", "10.0.0.0"),
            ("11.0.0.0", "10.255.255.255"),
            ("172.15.255.255", "172.16.0.0"),
            ("172.32.0.0", "172.31.255.255"),
            ("192.167.255.255", "192.168.0.0"),
            ("192.169.0.0", "192.168.255.255"),
            ("100.63.255.255", "100.64.0.0"),
            ("100.128.0.0", "100.127.255.255"),
            ("169.253.255.255", "169.254.0.1"),
            ("126.255.255.255", "127.0.0.0"),
            ("128.0.0.0", "127.255.255.255"),
            ("192.0.1.0", "192.0.0.255"),
            ("223.255.255.255", "224.0.0.0"),
            ("[fbff::1]", "[fc00::1]"),
            ("[fe7f::1]", "[fe80::1:1:1:1:1]"),
            ("[2003::1]", "[2002::1]"),
            ("[2001:1::1]", "[2001:0:1::1]"),
        ] {
            for (address, may_be) in [(outside, true), (inside, false)] {
                let address = format!("{address}:7");
                assert_eq!(
                    may(&address, AddressOrigin::Told, &here),
                    may_be,
                    "{address}"
                );
            }
        }
        let loopback = LocalNetworks {
            loopback_only: true,
            ..LocalNetworks::default()
        };
        assert!(may("[::1]:7", AddressOrigin::Told, &loopback));
        for never in ["[fec0::1]:7", "[ffff::1]:7", "[feff::1]:7", "[::2]:7"] {
            for known in [AddressOrigin::Told, AddressOrigin::Found] {
                assert!(!may(never, known, &here), "{never}");
            }
        }
    }

    #[test]
    fn a_subnet_has_the_hosts_between_its_own_address_and_its_broadcast() {
        let has = |subnet: &str, prefix, address: &str| {
            let address_of = |text: &str| text.parse().unwrap();
            let subnet = Subnet {
                address: address_of(subnet),
                prefix,
            };
            subnet.has_host(address_of(address))
        };
        for (last, host) in [(0, false), (1, true), (2, true), (3, false), (4, false)] {
            assert_eq!(
                has("10.0.0.1", 30, &format!("10.0.0.{last}")),
                host,
                "{last}"
            );
        }
        // A link of two has no address of its own (RFC 3021), and one of one neither.
        assert!(has("10.0.0.0", 31, "10.0.0.0") && has("10.0.0.0", 31, "10.0.0.1"));
        assert!(!has("10.0.0.0", 31, "10.0.0.2"));
        assert!(has("10.0.0.5", 32, "10.0.0.5") && !has("10.0.0.5", 32, "10.0.0.4"));
        assert!(has("0.0.0.0", 0, "203.0.113.5"), "all of them");
        assert!(has("fd00::1", 64, "fd00::ffff:ffff:ffff:ffff"));
        assert!(!has("fd00::1", 64, "fd00:0:0:1::"));
        assert!(has("fd00::1", 128, "fd00::1") && !has("fd00::1", 128, "fd00::2"));
        assert!(!has("10.0.0.1", 0, "fd00::1"), "of the other family");
    }

    #[test]
    fn candidates_remember_how_each_is_known_and_what_was_told_is_better_known_where_it_is_seen() {
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let [a, b, c] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(address);
        let mut known = AddressCandidates::default();
        assert!(known.is_empty() && !known.depends_on_networks());
        known.add(AddressOrigin::Typed, &[a], &[]);
        assert!(
            !known.is_empty() && !known.depends_on_networks(),
            "typed as it is"
        );
        known.add(AddressOrigin::Told, &[b], &[c]);
        assert!(known.depends_on_networks());
        known.seen_at(&[a, c]);
        let udp = [(a, AddressOrigin::Typed), (b, AddressOrigin::Told)];
        assert_eq!(known.udp, udp);
        assert_eq!(known.tcp, [(c, AddressOrigin::Found)]);
        for one in [
            AddressCandidates {
                tcp: vec![(c, AddressOrigin::Found)],
                ..AddressCandidates::default()
            },
            AddressCandidates {
                relays: vec!["https://relay.example".to_owned()],
                ..AddressCandidates::default()
            },
        ] {
            assert!(!one.is_empty());
            assert_eq!(one.depends_on_networks(), one.relays.is_empty());
        }
    }

    #[test]
    fn the_budget_fills_by_the_second_and_never_beyond_what_may_be_dialled_at_once() {
        let mut budget = DialBudget::default();
        let drain = |budget: &mut DialBudget, now| (0..2_000).filter(|_| budget.take(now)).count();
        assert_eq!(drain(&mut budget, Duration::ZERO), 512);
        assert_eq!(drain(&mut budget, Duration::from_millis(999)), 0);
        assert_eq!(drain(&mut budget, Duration::from_secs(1)), 32);
        assert_eq!(drain(&mut budget, Duration::from_secs(4)), 96);
        // Whoever asks in between costs nobody a part of a second.
        assert_eq!(drain(&mut budget, Duration::from_millis(5_900)), 32);
        assert_eq!(drain(&mut budget, Duration::from_millis(6_100)), 32);
        assert_eq!(drain(&mut budget, Duration::from_secs(4_000)), 512);
        assert_eq!(drain(&mut budget, Duration::MAX), 512);
    }
}
