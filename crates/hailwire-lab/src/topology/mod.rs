//! A network as a file says it: sites on one internet, each with a link, perhaps a NAT and a
//! firewall, and hosts behind them.
//!
//! ```kdl
//! about "A laptop at home and a server"
//! site "home" {
//!     link { delay "12ms"; up { rate "20 Mbit/s" }; down { rate "100 Mbit/s" } }
//!     nat mapping="endpoint-independent" filtering="address-and-port-dependent"
//!     host "a"
//! }
//! host "b" { link { delay "5ms" } }
//! ```
//!
//! A host outside of a `site` is a site of its own, with a public address. Delays are one way: `a` and
//! `b` above are 34 ms apart, there and back. What a file says wrongly is refused with line and
//! column. [`Topology::named`] knows those that come with the crate.
//!
//! Addresses follow from the order in the file. Site number *n*, from 0, has `198.18.n.1` (a
//! network for benchmarks, RFC 2544); behind a NAT, hosts have `192.168.n.10` and upwards. Where a site
//! has IPv6, its hosts have `2001:2:0:n::1` and upwards (RFC 5180).

mod read;

use std::{
    fmt::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    time::Duration,
};

use hailwire_kdl::FileError;
use serde::Serialize;
use thiserror::Error;

use crate::{link::LinkShape, nat::NatKind};

/// Most sites of a topology.
pub const MAX_SITES: usize = 64;

/// Most hosts of a site.
pub const MAX_HOSTS: usize = 64;

/// Most NATs of a site, one behind the other.
pub const MAX_NATS: usize = 3;

/// The topologies that come with the crate: name and file.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("lan", include_str!("../../topologies/lan.kdl")),
    ("wan-50ms", include_str!("../../topologies/wan-50ms.kdl")),
    (
        "wan-50ms-loss1",
        include_str!("../../topologies/wan-50ms-loss1.kdl"),
    ),
    ("wan-100ms", include_str!("../../topologies/wan-100ms.kdl")),
    (
        "transatlantic-85ms",
        include_str!("../../topologies/transatlantic-85ms.kdl"),
    ),
    ("gigabit", include_str!("../../topologies/gigabit.kdl")),
    ("longfat", include_str!("../../topologies/longfat.kdl")),
    ("mobile", include_str!("../../topologies/mobile.kdl")),
    (
        "home-to-home",
        include_str!("../../topologies/home-to-home.kdl"),
    ),
    ("corporate", include_str!("../../topologies/corporate.kdl")),
];

/// A network.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Topology {
    /// Its name: a ready one's, or the file's without `.kdl`.
    pub name: String,
    /// One line for people.
    pub about: String,
    /// What hangs on the internet, in the file's order.
    pub sites: Vec<Site>,
}

/// One attachment to the internet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Site {
    /// Its name; a lone host's own.
    pub name: String,
    /// Toward the internet.
    pub up: LinkShape,
    /// From the internet.
    pub down: LinkShape,
    /// The families of its hosts' addresses.
    pub ip: IpFamilies,
    /// Its NATs, the hosts' own router first; without one, hosts have public addresses of IPv4.
    pub nats: Vec<NatKind>,
    /// Whether hosts without IPv4 reach it through a NAT64 (RFC 6146) under the well-known prefix
    /// `64:ff9b::/96` (RFC 6052).
    pub nat64: bool,
    /// Its firewall.
    pub firewall: Option<FirewallPolicy>,
    /// The hosts behind it.
    pub hosts: Vec<Host>,
}

/// Which addresses hosts have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum IpFamilies {
    /// `"4"`.
    #[default]
    #[serde(rename = "4")]
    Ipv4,
    /// `"6"`.
    #[serde(rename = "6")]
    Ipv6,
    /// `"4+6"`.
    #[serde(rename = "4+6")]
    Both,
}

impl IpFamilies {
    /// Whether IPv4 is among them.
    #[must_use]
    pub const fn has_ipv4(self) -> bool {
        !matches!(self, Self::Ipv6)
    }

    /// Whether IPv6 is among them.
    #[must_use]
    pub const fn has_ipv6(self) -> bool {
        !matches!(self, Self::Ipv4)
    }
}

/// A firewall as a file says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirewallPolicy {
    /// `"no-udp"`.
    NoUdp,
    /// `"no-udp-in"`.
    NoUdpIn,
    /// `"no-ipv6"`.
    NoIpv6,
    /// `"ipv6-known-ports"`.
    Ipv6KnownPorts,
    /// `"only-tcp-443"`.
    OnlyTcp443,
    /// `"only-relay" to="HOST"`.
    OnlyRelay(String),
    /// `"only-proxy" to="HOST"`.
    OnlyProxy(String),
}

impl FirewallPolicy {
    /// The one host that may be reached, where there is one.
    #[must_use]
    pub fn only_host(&self) -> Option<&str> {
        match self {
            Self::OnlyRelay(host) | Self::OnlyProxy(host) => Some(host),
            Self::NoUdp
            | Self::NoUdpIn
            | Self::NoIpv6
            | Self::Ipv6KnownPorts
            | Self::OnlyTcp443 => None,
        }
    }

    /// Whether a connection over IPv4 may come in.
    #[must_use]
    pub const fn lets_tcp_in(&self) -> bool {
        match self {
            Self::NoUdp | Self::NoUdpIn | Self::NoIpv6 | Self::Ipv6KnownPorts => true,
            Self::OnlyTcp443 | Self::OnlyRelay(_) | Self::OnlyProxy(_) => false,
        }
    }
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Host {
    /// Its name.
    pub name: String,
    /// How many addresses it has. Default: 1.
    pub addresses: u8,
}

/// Why there is no topology.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// Neither a ready topology nor a file.
    #[error("`{name}` is neither a ready topology nor a file")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file cannot be read, or says something wrong.
    #[error(transparent)]
    File(#[from] FileError),
}

impl TopologyError {
    /// What to try.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { .. } => {
                let names: Vec<_> = BUILT_IN.iter().map(|(name, _)| *name).collect();
                format!("ready are: {}", names.join(", "))
            }
            Self::File(error) => error.hint().to_owned(),
        }
    }
}

/// What is to be expected between two hosts, from the shapes on the way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpectedPath {
    /// There and back.
    #[serde(serialize_with = "as_millis", rename = "rtt_ms")]
    pub rtt: Duration,
    /// By how much one round trip may differ from it.
    #[serde(serialize_with = "as_millis", rename = "jitter_ms")]
    pub jitter: Duration,
    /// Share of packets lost from the first to the second, 0 to 1.
    pub loss_out: f64,
    /// Share of packets lost on the way back, 0 to 1.
    pub loss_back: f64,
    /// Bits a second from the first to the second; `None` for no bound.
    pub rate: Option<u64>,
    /// Largest IP packet that passes both ways.
    pub mtu: u16,
}

fn as_millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64() * 1000.0)
}

impl Topology {
    /// One that comes with the crate.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unknown`].
    pub fn named(name: &str) -> Result<Self, TopologyError> {
        let ready = BUILT_IN.iter().find(|(ready, _)| *ready == name);
        let (name, text) = ready.ok_or_else(|| TopologyError::Unknown {
            name: name.to_owned(),
        })?;
        Self::parse(text, name)
    }

    /// A ready one by name, else the one in the file of this path.
    ///
    /// # Errors
    ///
    /// As [`Topology::named`] and [`Topology::parse`], and where the file cannot be read or is larger
    /// than [`hailwire_kdl::MAX_FILE`].
    pub fn find(name_or_path: &str) -> Result<Self, TopologyError> {
        let path = Path::new(name_or_path);
        match Self::named(name_or_path) {
            Err(TopologyError::Unknown { .. }) if path.exists() => Self::load(path),
            named => named,
        }
    }

    fn load(path: &Path) -> Result<Self, TopologyError> {
        let text = hailwire_kdl::read(path)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::of(&text, &name, path)
    }

    fn of(text: &str, name: &str, path: &Path) -> Result<Self, TopologyError> {
        let mut topology = read::topology(text).map_err(|mistake| mistake.in_file(text, path))?;
        topology.name = name.to_owned();
        Ok(topology)
    }

    /// The topology of a text; `name` is its name, also in messages.
    ///
    /// # Errors
    ///
    /// [`TopologyError::File`] for the first mistake.
    pub fn parse(text: &str, name: &str) -> Result<Self, TopologyError> {
        Self::of(text, name, Path::new(&format!("{name}.kdl")))
    }

    /// All hosts, in the file's order, each with its site's number.
    pub fn hosts(&self) -> impl Iterator<Item = (usize, &Host)> {
        let sites = self.sites.iter().enumerate();
        sites.flat_map(|(number, site)| site.hosts.iter().map(move |host| (number, host)))
    }

    /// The site of a host.
    #[must_use]
    pub fn site_of(&self, host: &str) -> Option<usize> {
        self.hosts()
            .find(|(_, h)| h.name == host)
            .map(|(site, _)| site)
    }

    /// The addresses of IPv4 that a host itself has, the main one first; private ones behind a NAT.
    /// Empty for an unknown host and for one without IPv4.
    #[must_use]
    pub fn addresses(&self, host: &str) -> Vec<Ipv4Addr> {
        let of = |number, site: &Site, index| site.ip.has_ipv4().then(|| site.inner(number, index));
        self.each_address(host, of)
    }

    /// The addresses of IPv6 that a host has, the main one first. Empty for an unknown host and for
    /// one without IPv6.
    #[must_use]
    pub fn ipv6_addresses(&self, host: &str) -> Vec<Ipv6Addr> {
        let of = |number: usize, site: &Site, index| {
            let number = u16::try_from(number).unwrap_or(u16::MAX);
            let last = 1 + u16::from(index);
            let address = Ipv6Addr::new(0x2001, 2, 0, number, 0, 0, 0, last);
            site.ip.has_ipv6().then_some(address)
        };
        self.each_address(host, of)
    }

    /// All addresses that a host itself has, those of IPv4 first.
    #[must_use]
    pub fn all_addresses(&self, host: &str) -> Vec<IpAddr> {
        let four = self.addresses(host).into_iter().map(IpAddr::V4);
        let six = self.ipv6_addresses(host).into_iter().map(IpAddr::V6);
        four.chain(six).collect()
    }

    /// What `of` says to each address of a host: the site's number, the site, and the address's
    /// number within the site.
    fn each_address<T>(&self, host: &str, of: impl Fn(usize, &Site, u8) -> Option<T>) -> Vec<T> {
        let Some(number) = self.site_of(host) else {
            return Vec::new();
        };
        let site = &self.sites[number];
        let before = site.hosts.iter().take_while(|h| h.name != host);
        let first: u8 = before.map(|h| h.addresses).sum();
        let own = site.hosts.iter().find(|h| h.name == host);
        let count = own.map_or(0, |h| h.addresses);
        let indices = first..first + count;
        indices
            .filter_map(|index| of(number, site, index))
            .collect()
    }

    /// The names of the network as `asker` is told them, in the form of `/etc/hosts`: each host that
    /// it can reach by an address, in the families that `asker` has. Behind a NAT64, who has no IPv6
    /// has an address under its prefix (DNS64, RFC 6147).
    #[must_use]
    pub fn hosts_file(&self, asker: &str) -> String {
        let mut file = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        let Some(own) = self.site_of(asker) else {
            return file;
        };
        let Site { ip, nat64, .. } = self.sites[own];
        for (number, host) in self.hosts() {
            let near = number == own || self.sites[number].nats.is_empty();
            let mut four = self.addresses(&host.name);
            four.retain(|_| near);
            let mut six = match ip.has_ipv6() {
                true => self.ipv6_addresses(&host.name),
                false => Vec::new(),
            };
            if six.is_empty() && nat64 {
                six.extend(four.iter().copied().map(crate::nat::embed));
            }
            four.retain(|_| ip.has_ipv4());
            let six = six.into_iter().map(IpAddr::V6);
            for address in six.chain(four.into_iter().map(IpAddr::V4)) {
                let _ = writeln!(file, "{address} {}", host.name);
            }
        }
        file
    }

    /// The address outside of a site's NAT `level`, 0 being the hosts' own router. The last is
    /// [`Topology::public`], those before it are of the space that carriers share (RFC 6598).
    #[must_use]
    pub fn external(&self, site: usize, level: usize) -> Ipv4Addr {
        match self.sites.get(site) {
            Some(own) if level + 1 < own.nats.len() => {
                let low = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
                Ipv4Addr::new(100, 64, low(site), 1 + low(level))
            }
            _ => self.public(site),
        }
    }

    /// The address under which the internet sees a site.
    #[must_use]
    pub fn public(&self, site: usize) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, u8::try_from(site).unwrap_or(u8::MAX), 1)
    }

    /// What is to be expected from host `a` to host `b` by the links between them; `None` where one of
    /// them is unknown.
    #[must_use]
    pub fn expected(&self, a: &str, b: &str) -> Option<ExpectedPath> {
        let (a, b) = (self.site_of(a)?, self.site_of(b)?);
        let shapes: [&LinkShape; 4] = match a == b {
            true => return Some(ExpectedPath::same_site()),
            false => {
                let (a, b) = (&self.sites[a], &self.sites[b]);
                [&a.up, &b.down, &b.up, &a.down]
            }
        };
        let passes =
            |shapes: &[&LinkShape]| 1.0 - shapes.iter().map(|s| 1.0 - s.loss).product::<f64>();
        Some(ExpectedPath {
            rtt: shapes.iter().map(|s| s.delay).sum(),
            jitter: shapes.iter().map(|s| s.jitter).sum(),
            loss_out: passes(&shapes[..2]),
            loss_back: passes(&shapes[2..]),
            rate: shapes[..2].iter().filter_map(|s| s.rate).min(),
            mtu: shapes
                .iter()
                .map(|s| s.mtu)
                .min()
                .unwrap_or(crate::link::MTU),
        })
    }
}

impl ExpectedPath {
    const fn same_site() -> Self {
        Self {
            rtt: Duration::ZERO,
            jitter: Duration::ZERO,
            loss_out: 0.0,
            loss_back: 0.0,
            rate: None,
            mtu: crate::link::MTU,
        }
    }
}

impl Site {
    /// Address `index` behind this site.
    fn inner(&self, number: usize, index: u8) -> Ipv4Addr {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        match self.nats.is_empty() {
            false => Ipv4Addr::new(192, 168, number, 10 + index),
            true => Ipv4Addr::new(198, 18, number, 1 + index),
        }
    }
}

impl fmt::Display for FirewallPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUdp => f.write_str("no UDP"),
            Self::NoUdpIn => f.write_str("no UDP comes in"),
            Self::NoIpv6 => f.write_str("IPv6 goes nowhere"),
            Self::Ipv6KnownPorts => f.write_str("over IPv6 only to known services"),
            Self::OnlyTcp443 => f.write_str("only TCP to port 443"),
            Self::OnlyRelay(host) => write!(f, "only to {host}"),
            Self::OnlyProxy(host) => write!(f, "only TCP to {host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ready_topology_reads_and_has_hosts_a_and_b() {
        for (name, _) in BUILT_IN {
            let topology = Topology::named(name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(topology.name, *name);
            assert!(
                !topology.about.is_empty(),
                "{name} says nothing about itself"
            );
            for host in ["a", "b"] {
                assert!(
                    topology.site_of(host).is_some(),
                    "{name} has no host {host}"
                );
            }
        }
    }

    #[test]
    fn names_with_a_time_keep_what_they_promise() {
        let rtt = |name| {
            let topology = Topology::named(name).unwrap();
            topology.expected("a", "b").unwrap().rtt.as_millis()
        };
        assert_eq!(rtt("wan-50ms"), 50);
        assert_eq!(rtt("wan-50ms-loss1"), 50);
        assert_eq!(rtt("wan-100ms"), 100);
        assert_eq!(rtt("transatlantic-85ms"), 85);
        assert_eq!(rtt("lan"), 0);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = Topology::find("wan-5ms").unwrap_err();
        assert!(error.hint().contains("wan-50ms"), "{}", error.hint());
    }

    #[test]
    fn expectations_add_up_along_the_way() {
        let text = "host \"a\" { link { delay \"10ms\"; loss \"10%\"; up { rate \"5 Mbit/s\" } } }\n\
                    host \"b\" { link { delay \"3ms\"; loss \"50%\"; down { rate \"2 Mbit/s\"; mtu 1400 } } }";
        let topology = Topology::parse(text, "t").unwrap();
        let there = topology.expected("a", "b").unwrap();
        assert_eq!(there.rtt, Duration::from_millis(26));
        assert!((there.loss_out - 0.55).abs() < 1e-9);
        assert_eq!((there.rate, there.mtu), (Some(2_000_000), 1400));
        assert_eq!(topology.expected("b", "a").unwrap().rate, None);
    }

    #[test]
    fn addresses_follow_from_the_order() {
        let text = "site \"home\" { nat; host \"a\"; host \"c\" }\nhost \"b\" addresses=2";
        let topology = Topology::parse(text, "t").unwrap();
        let of = |host| topology.addresses(host);
        assert_eq!(of("a"), [Ipv4Addr::new(192, 168, 0, 10)]);
        assert_eq!(of("c"), [Ipv4Addr::new(192, 168, 0, 11)]);
        assert_eq!(of("b"), [1, 2].map(|last| Ipv4Addr::new(198, 18, 1, last)));
        assert_eq!(topology.public(0), Ipv4Addr::new(198, 18, 0, 1));
        assert!(of("nobody").is_empty());
    }

    #[test]
    fn a_site_has_the_families_that_it_names() {
        let text = "site \"six\" ip=\"6\" { nat64; host \"a\" }\nhost \"b\"\nhost \"c\" ip=\"4+6\"";
        let topology = Topology::parse(text, "t").unwrap();
        assert!(topology.addresses("a").is_empty());
        let six = |number| Ipv6Addr::new(0x2001, 2, 0, number, 0, 0, 0, 1);
        assert_eq!(topology.ipv6_addresses("a"), [six(0)]);
        assert!(topology.ipv6_addresses("b").is_empty());
        let four = Ipv4Addr::new(198, 18, 2, 1);
        assert_eq!(
            topology.all_addresses("c"),
            [IpAddr::V4(four), IpAddr::V6(six(2))]
        );
        let told = |asker, host: &str| {
            let file = topology.hosts_file(asker);
            let lines = file.lines().filter_map(|line| line.split_once(' '));
            let own = lines.filter(|(_, name)| *name == host);
            own.map(|(address, _)| address.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(told("a", "b"), ["64:ff9b::c612:101"]);
        assert_eq!(told("a", "c"), ["2001:2:0:2::1"], "no need of the NAT64");
        assert_eq!(told("b", "c"), ["198.18.2.1"]);
        assert!(told("b", "a").is_empty());
        assert_eq!(told("c", "b"), ["198.18.1.1"]);
    }

    #[test]
    fn nats_stand_one_behind_the_other() {
        let text = "site \"home\" { nat; nat timeout=\"30s\"; host \"a\" }";
        let topology = Topology::parse(text, "t").unwrap();
        assert_eq!(topology.external(0, 0), Ipv4Addr::new(100, 64, 0, 1));
        assert_eq!(topology.external(0, 1), topology.public(0));
        assert_eq!(topology.sites[0].nats[1].timeout.as_secs(), 30);
    }
}
