//! The networks that people have: what stands between a host and the internet.

use std::fmt::Write as _;

use hailwire_lab::nat::EndpointDependence::{
    self, AddressAndPortDependent, AddressDependent, EndpointIndependent,
};

use crate::BenchError;

/// The hub's host, and its name in the network.
pub(super) const HUB: &str = "hub";

/// The host of the HTTP proxy.
pub(super) const PROXY: &str = "proxy";

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachNetwork {
    /// Its name in tables and on the command line.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// The families of addresses, as in a topology file.
    ip: &'static str,
    /// What its link has beside a delay, as in a topology file.
    link: &'static str,
    /// What else stands in the site, as in a topology file.
    site: &'static str,
    /// Whether both hosts of it are in one site.
    pub(super) shared: bool,
    /// Whether programs reach the internet by the HTTP proxy of the environment only.
    pub(super) proxied: bool,
    /// The TCP port on which its nodes listen for peers.
    pub(super) listen_tcp: Option<u16>,
    /// Whether TCP of IPv4 gets out to port 443 of anybody.
    pub(super) tcp4_out: bool,
    /// What UDP of IPv4 meets; `None` where it does not pass both ways.
    pub(super) udp4: Option<UdpNat>,
    /// Whether UDP of IPv6 passes both ways.
    pub(super) udp6: bool,
}

/// What UDP meets on the way out, as RFC 4787 sorts it. A public address is both kinds of
/// endpoint-independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UdpNat {
    pub(super) mapping: EndpointDependence,
    pub(super) filtering: EndpointDependence,
}

const OPEN: Option<UdpNat> = nat(EndpointIndependent, EndpointIndependent);
const HOME: Option<UdpNat> = nat(EndpointIndependent, AddressAndPortDependent);
const SYMMETRIC: Option<UdpNat> = nat(AddressAndPortDependent, AddressAndPortDependent);

const fn nat(mapping: EndpointDependence, filtering: EndpointDependence) -> Option<UdpNat> {
    Some(UdpNat { mapping, filtering })
}

const PLAIN: ReachNetwork = ReachNetwork {
    name: "public",
    about: "a public address, no firewall",
    ip: "4",
    link: "",
    site: "",
    shared: false,
    proxied: false,
    listen_tcp: None,
    tcp4_out: true,
    udp4: OPEN,
    udp6: false,
};

/// All of them.
pub(super) const ALL: [ReachNetwork; 23] = [
    PLAIN,
    ReachNetwork {
        name: "nat-open",
        about: "a NAT with endpoint-independent mapping and filtering",
        site: "nat filtering=\"endpoint-independent\"",
        ..PLAIN
    },
    ReachNetwork {
        name: "nat-address",
        about: "endpoint-independent mapping, address-dependent filtering",
        site: "nat filtering=\"address-dependent\"",
        udp4: nat(EndpointIndependent, AddressDependent),
        ..PLAIN
    },
    ReachNetwork {
        name: "nat-port",
        about: "endpoint-independent mapping, address- and port-dependent filtering: most homes",
        site: "nat",
        udp4: HOME,
        ..PLAIN
    },
    ReachNetwork {
        name: "nat-noting",
        about: "the same on Linux without a firewall: what comes in unasked takes the port",
        site: "nat unasked=\"noted\"",
        udp4: HOME,
        ..PLAIN
    },
    ReachNetwork {
        name: "symmetric",
        about: "address- and port-dependent mapping; the first flow keeps its port",
        site: "nat mapping=\"address-and-port-dependent\"",
        udp4: SYMMETRIC,
        ..PLAIN
    },
    ReachNetwork {
        name: "symmetric-random",
        about: "address- and port-dependent mapping, each flow a random port",
        site: "nat mapping=\"address-and-port-dependent\" ports=\"random\"",
        udp4: SYMMETRIC,
        ..PLAIN
    },
    ReachNetwork {
        name: "double-nat",
        about: "a home router behind another one",
        site: "nat; nat",
        udp4: HOME,
        ..PLAIN
    },
    ReachNetwork {
        name: "carrier-nat",
        about: "a home router behind a carrier's NAT (RFC 6888), which forgets after 30 s",
        site: "nat; nat filtering=\"endpoint-independent\" timeout=\"30s\"",
        udp4: HOME,
        ..PLAIN
    },
    ReachNetwork {
        name: "one-nat",
        about: "both behind one home router, no hairpin",
        site: "nat",
        shared: true,
        udp4: HOME,
        ..PLAIN
    },
    ReachNetwork {
        name: "one-nat-hairpin",
        about: "both behind one home router with a hairpin",
        site: "nat hairpin=#true",
        shared: true,
        udp4: HOME,
        ..PLAIN
    },
    ReachNetwork {
        name: "no-udp",
        about: "a NAT and a firewall that drops UDP",
        site: "nat; firewall \"no-udp\"",
        udp4: None,
        ..PLAIN
    },
    ReachNetwork {
        name: "udp-out-only",
        about: "a firewall that lets UDP out and none in",
        site: "firewall \"no-udp-in\"",
        udp4: None,
        ..PLAIN
    },
    ReachNetwork {
        name: "tcp-443",
        about: "an office: only TCP to port 443 gets out",
        site: "nat; firewall \"only-tcp-443\"",
        udp4: None,
        ..PLAIN
    },
    ReachNetwork {
        name: "http-proxy",
        about: "an office: only an HTTP proxy gets out",
        site: "firewall \"only-proxy\" to=\"proxy\"",
        proxied: true,
        tcp4_out: false,
        udp4: None,
        ..PLAIN
    },
    ReachNetwork {
        name: "ipv6",
        about: "IPv6 only",
        ip: "6",
        tcp4_out: false,
        udp4: None,
        udp6: true,
        ..PLAIN
    },
    ReachNetwork {
        name: "nat64",
        about: "IPv6 only, IPv4 through a NAT64: mobile carriers",
        ip: "6",
        site: "nat64",
        tcp4_out: false,
        udp4: None,
        udp6: true,
        ..PLAIN
    },
    ReachNetwork {
        name: "dead-ipv6",
        about: "a home router, and IPv6 addresses that lead nowhere",
        ip: "4+6",
        site: "nat; firewall \"no-ipv6\"",
        udp4: HOME,
        ..PLAIN
    },
    ReachNetwork {
        name: "mtu-1280",
        about: "an uplink of 1,280 bytes that says so (ICMP)",
        link: "mtu 1280",
        ..PLAIN
    },
    ReachNetwork {
        name: "mtu-1280-silent",
        about: "an uplink of 1,280 bytes that tells nobody",
        link: "mtu 1280 icmp=#false",
        ..PLAIN
    },
    ReachNetwork {
        name: "mtu-1280-tcp",
        about: "an uplink of 1,280 bytes that says so, and no UDP",
        link: "mtu 1280",
        site: "firewall \"no-udp\"",
        udp4: None,
        ..PLAIN
    },
    ReachNetwork {
        name: "mtu-1280-silent-tcp",
        about: "an uplink of 1,280 bytes that tells nobody, and no UDP",
        link: "mtu 1280 icmp=#false",
        site: "firewall \"no-udp\"",
        udp4: None,
        ..PLAIN
    },
    ReachNetwork {
        name: "tcp-server",
        about: "a public address, no UDP; the node listens on TCP port 443",
        site: "firewall \"no-udp\"",
        listen_tcp: Some(443),
        udp4: None,
        ..PLAIN
    },
];

impl ReachNetwork {
    /// Its hosts: the one that calls, and the one that is called.
    pub(super) fn hosts(&self) -> [String; 2] {
        [1, 2].map(|number| format!("{}-{number}", self.name))
    }
}

/// Those of these names, in our order; all where none is named.
pub(super) fn chosen(names: &[String]) -> Result<Vec<ReachNetwork>, BenchError> {
    for name in names {
        if !ALL.iter().any(|network| network.name == name) {
            let known: Vec<_> = ALL.iter().map(|network| network.name).collect();
            let what = format!("no network is called `{name}`; known: {}", known.join(", "));
            return Err(BenchError::Reported(what));
        }
    }
    let named =
        |network: &&ReachNetwork| names.is_empty() || names.iter().any(|n| n == network.name);
    Ok(ALL.iter().filter(named).copied().collect())
}

/// Every pair, each once, a network with itself included. Where both hosts share a site, they meet only
/// each other.
pub(super) fn pairs(networks: &[ReachNetwork]) -> Vec<(&ReachNetwork, &ReachNetwork)> {
    let mut pairs = Vec::new();
    for (index, near) in networks.iter().enumerate() {
        for far in &networks[index..] {
            if near == far || !(near.shared || far.shared) {
                pairs.push((near, far));
            }
        }
    }
    pairs
}

/// The topology file with two hosts of each, the hub, which has both families, and the proxy.
pub(super) fn topology(networks: &[ReachNetwork]) -> String {
    let mut file = format!(
        "about \"the networks that people have\"\n\
         host \"{HUB}\" ip=\"4+6\" {{ link {{ delay \"5ms\" }} }}\n\
         host \"{PROXY}\" ip=\"4+6\" {{ link {{ delay \"2ms\" }} }}\n"
    );
    for network in networks {
        let ReachNetwork { ip, link, site, .. } = network;
        let hosts = network.hosts();
        let together = if network.shared { hosts.len() } else { 1 };
        for hosts in hosts.chunks(together) {
            let names: String = hosts
                .iter()
                .map(|host| format!("host \"{host}\"\n"))
                .collect();
            // Writing to text cannot fail.
            let _ = writeln!(
                file,
                "site \"{}\" ip=\"{ip}\" {{\nlink {{ delay \"10ms\"; {link} }}\n{site}\n{names}}}",
                hosts[0]
            );
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_has_two_hosts_and_meets_every_other_once() {
        let all = chosen(&[]).unwrap();
        let topology = hailwire_lab::Topology::parse(&topology(&all), "reach").unwrap();
        assert_eq!(topology.hosts().count(), 2 * ALL.len() + 2);
        let pairs = pairs(&all);
        let alone = ALL.iter().filter(|network| network.shared).count();
        let others = ALL.len() - alone;
        assert_eq!(pairs.len(), others * (others + 1) / 2 + alone);
    }

    #[test]
    fn an_unknown_network_is_answered_with_the_known_ones() {
        let error = chosen(&["nat-hard".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("`nat-hard`") && error.contains("carrier-nat"),
            "{error}"
        );
    }
}
