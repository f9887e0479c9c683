//! A NAT in the words of RFC 4787 (UDP) and RFC 5382 (TCP): which inside endpoint appears as which
//! outside one, and who may answer it.
//!
//! *Mapping* (RFC 4787, 4.1) says how far one inside address and port keeps its external port: toward
//! everybody, toward one address, or toward one address and port. *Filtering* (5) says who may send
//! to that external port: everybody, addresses that were contacted, or addresses and ports that
//! were. *Hairpinning* (6) lets two inside hosts reach each other by their external endpoints.
//! The external address is one, so that pooling (4.1) does not arise. A mapping lives while the
//! inside sends (REQ-6); inbound packets do not refresh it. A mapped port is never shared by two
//! inside endpoints (REQ-3: no overloading). Inside endpoints may be of IPv6: the table of a NAT64
//! (RFC 6146) is this one.
//!
//! It takes `now` and does no I/O; random ports come from a seed.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng as _, SeedableRng as _},
};
use serde::{Deserialize, Serialize};

use crate::packet::Protocol;

/// Most outside endpoints that one mapping remembers for its filter; beyond them the one that was
/// heard of longest ago is forgotten.
pub const MAX_CONTACTS: usize = 1024;

/// External ports are chosen from here up.
const FIRST_PORT: u16 = 1024;

/// How long an unused TCP mapping lives (RFC 5382, REQ-5).
const TCP_TIMEOUT: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// The well-known prefix of NAT64 (RFC 6052): the first 96 bits.
const NAT64_PREFIX: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// The address under which a host behind a NAT64 reaches an address of IPv4.
#[must_use]
pub fn embed(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    let [p, q, r, s, t, u] = NAT64_PREFIX;
    Ipv6Addr::new(
        p,
        q,
        r,
        s,
        t,
        u,
        u16::from_be_bytes([a, b]),
        u16::from_be_bytes([c, d]),
    )
}

/// The address of IPv4 that an address under the prefix of NAT64 stands for.
#[must_use]
pub fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [prefix @ .., high, low] = address.segments();
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    (prefix == NAT64_PREFIX).then(|| Ipv4Addr::new(a, b, c, d))
}

/// How much of an outside endpoint counts, for mapping and for filtering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointDependence {
    /// Nothing of it: the same toward everybody.
    #[default]
    EndpointIndependent,
    /// Its address.
    AddressDependent,
    /// Its address and port.
    AddressAndPortDependent,
}

impl EndpointDependence {
    /// All kinds, the most open first.
    pub const ALL: [Self; 3] = [
        Self::EndpointIndependent,
        Self::AddressDependent,
        Self::AddressAndPortDependent,
    ];

    /// The name, as in RFC 4787 and in topology files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EndpointIndependent => "endpoint-independent",
            Self::AddressDependent => "address-dependent",
            Self::AddressAndPortDependent => "address-and-port-dependent",
        }
    }

    /// The part of `outside` that counts.
    const fn scope(self, outside: SocketAddrV4) -> Option<(Ipv4Addr, u16)> {
        match self {
            Self::EndpointIndependent => None,
            Self::AddressDependent => Some((*outside.ip(), 0)),
            Self::AddressAndPortDependent => Some((*outside.ip(), outside.port())),
        }
    }
}

/// How external ports are chosen (RFC 4787, 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortAllocation {
    /// The inside port where it is free, else a random one.
    #[default]
    Preserve,
    /// A random one.
    Random,
}

/// What becomes of a packet from outside that nobody inside asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnaskedPackets {
    /// It is dropped before it is noted, as home routers do.
    #[default]
    Dropped,
    /// It is noted as a flow to the router itself, as Linux does without a rule for it. That takes the port from a host inside
    /// which sends there later: it gets another one. nftables alone does this, in the real tier.
    Noted,
}

/// What a NAT does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatKind {
    /// How far a mapping is kept. Default: endpoint-independent.
    pub mapping: EndpointDependence,
    /// Who may answer. Default: address-and-port-dependent, as most home routers.
    pub filtering: EndpointDependence,
    /// Whether inside hosts reach each other by external endpoints. Default: no.
    pub hairpin: bool,
    /// How external ports are chosen. Default: preserved.
    pub ports: PortAllocation,
    /// How long an unused UDP mapping lives. Default: 5 min, as REQ-5 recommends; TCP has the
    /// 2 h 4 min of RFC 5382.
    pub timeout: Duration,
    /// What becomes of packets that nobody asked for. Default: dropped.
    pub unasked: UnaskedPackets,
}

impl Default for NatKind {
    fn default() -> Self {
        Self {
            mapping: EndpointDependence::EndpointIndependent,
            filtering: EndpointDependence::AddressAndPortDependent,
            hairpin: false,
            ports: PortAllocation::Preserve,
            timeout: Duration::from_secs(300),
            unasked: UnaskedPackets::Dropped,
        }
    }
}

/// Whose mapping, toward whom.
type MappingKey = (Protocol, SocketAddr, Option<(Ipv4Addr, u16)>);

#[derive(Debug)]
struct NatMapping {
    inside: SocketAddr,
    key: MappingKey,
    used: Duration,
    /// Outside endpoints that were contacted, as far as the filter looks, and when last.
    contacts: HashMap<Option<(Ipv4Addr, u16)>, Duration>,
}

/// A NAT with one external address.
#[derive(Debug)]
pub struct Nat {
    kind: NatKind,
    external: Ipv4Addr,
    random: Pcg64Mcg,
    ports: HashMap<MappingKey, u16>,
    mappings: HashMap<(Protocol, u16), NatMapping>,
}

impl Nat {
    /// A NAT without mappings.
    #[must_use]
    pub fn new(kind: NatKind, external: Ipv4Addr, seed: u64) -> Self {
        Self {
            kind,
            external,
            random: Pcg64Mcg::seed_from_u64(seed),
            ports: HashMap::new(),
            mappings: HashMap::new(),
        }
    }

    /// Its address outside.
    #[must_use]
    pub fn external(&self) -> Ipv4Addr {
        self.external
    }

    /// What it does.
    #[must_use]
    pub fn kind(&self) -> &NatKind {
        &self.kind
    }

    /// A packet leaves: the endpoint it seems to come from. `None` where no port is free
    /// or the packet has none: fragments and foreign protocols do not pass.
    pub fn outbound(
        &mut self,
        now: Duration,
        protocol: Protocol,
        inside: SocketAddr,
        outside: SocketAddrV4,
    ) -> Option<SocketAddrV4> {
        if protocol == Protocol::Other {
            return None;
        }
        let key = (protocol, inside, self.kind.mapping.scope(outside));
        let port = match self.ports.get(&key) {
            Some(port) if self.lives(now, protocol, *port) => *port,
            _ => self.map(now, key)?,
        };
        let filter = self.kind.filtering.scope(outside);
        let mapping = self.mappings.get_mut(&(protocol, port))?;
        mapping.used = now;
        if mapping.contacts.len() >= MAX_CONTACTS && !mapping.contacts.contains_key(&filter) {
            let oldest = mapping
                .contacts
                .iter()
                .min_by_key(|(contact, at)| (**at, **contact));
            if let Some(oldest) = oldest.map(|(contact, _)| *contact) {
                mapping.contacts.remove(&oldest);
            }
        }
        mapping.contacts.insert(filter, now);
        Some(SocketAddrV4::new(self.external, port))
    }

    /// A packet arrives at an external port: the inside endpoint it is for, or `None` where there is
    /// no mapping or the filter refuses.
    #[must_use]
    pub fn inbound(
        &self,
        now: Duration,
        protocol: Protocol,
        port: u16,
        outside: SocketAddrV4,
    ) -> Option<SocketAddr> {
        if !self.lives(now, protocol, port) {
            return None;
        }
        let mapping = self.mappings.get(&(protocol, port))?;
        let heard = mapping.contacts.get(&self.kind.filtering.scope(outside))?;
        (now.saturating_sub(*heard) < self.timeout(protocol)).then_some(mapping.inside)
    }

    /// Forgets every mapping, as a router that starts again, and gives random ports from now on, so
    /// that whoever sends next appears at another port than before.
    pub fn rebind(&mut self) {
        self.ports.clear();
        self.mappings.clear();
        self.kind.ports = PortAllocation::Random;
    }

    /// Mappings that are held, those that have expired and not been replaced included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    fn lives(&self, now: Duration, protocol: Protocol, port: u16) -> bool {
        self.mappings
            .get(&(protocol, port))
            .is_some_and(|mapping| now.saturating_sub(mapping.used) < self.timeout(protocol))
    }

    fn timeout(&self, protocol: Protocol) -> Duration {
        match protocol {
            Protocol::Tcp => TCP_TIMEOUT,
            Protocol::Udp | Protocol::Echo | Protocol::Other => self.kind.timeout,
        }
    }

    fn map(&mut self, now: Duration, key: MappingKey) -> Option<u16> {
        let (protocol, inside, _) = key;
        let port = self.free_port(now, protocol, inside.port())?;
        if let Some(old) = self.mappings.remove(&(protocol, port)) {
            self.ports.remove(&old.key);
        }
        if let Some(old) = self.ports.insert(key, port).filter(|old| *old != port) {
            self.mappings.remove(&(protocol, old));
        }
        let mapping = NatMapping {
            inside,
            key,
            used: now,
            contacts: HashMap::new(),
        };
        self.mappings.insert((protocol, port), mapping);
        Some(port)
    }

    /// The preserved port, else a random one, else the next free one above it.
    fn free_port(&mut self, now: Duration, protocol: Protocol, inside: u16) -> Option<u16> {
        let preserved = self.kind.ports == PortAllocation::Preserve && inside >= FIRST_PORT;
        if preserved && !self.lives(now, protocol, inside) {
            return Some(inside);
        }
        let span = u32::from(u16::MAX - FIRST_PORT) + 1;
        let start = self.random.next_u32() % span;
        (0..span)
            .filter_map(|step| u16::try_from(u32::from(FIRST_PORT) + (start + step) % span).ok())
            .find(|port| !self.lives(now, protocol, *port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const EXTERNAL: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
    const UDP: Protocol = Protocol::Udp;

    fn inside(port: u16) -> SocketAddr {
        (Ipv4Addr::new(192, 168, 0, 10), port).into()
    }

    fn outside(host: u8, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(198, 18, 9, host), port)
    }

    fn nat(change: impl FnOnce(&mut NatKind)) -> Nat {
        let mut kind = NatKind::default();
        change(&mut kind);
        Nat::new(kind, EXTERNAL, 3)
    }

    /// Whether the external port stays for (another port of the same host, another host).
    fn mapping_stays(mapping: EndpointDependence) -> (bool, bool) {
        let mut nat = nat(|k| {
            k.mapping = mapping;
            k.ports = PortAllocation::Random;
        });
        let mut to = |host, port| {
            nat.outbound(S, UDP, inside(5000), outside(host, port))
                .unwrap()
        };
        let first = to(1, 80);
        (first == to(1, 81), first == to(2, 80))
    }

    #[test]
    fn the_three_kinds_of_mapping_are_told_apart() {
        assert_eq!(
            mapping_stays(EndpointDependence::EndpointIndependent),
            (true, true)
        );
        assert_eq!(
            mapping_stays(EndpointDependence::AddressDependent),
            (true, false)
        );
        assert_eq!(
            mapping_stays(EndpointDependence::AddressAndPortDependent),
            (false, false)
        );
    }

    /// Whether (another port of the contacted host, another host) may answer.
    fn filter_lets_in(filtering: EndpointDependence) -> (bool, bool) {
        let mut nat = nat(|k| k.filtering = filtering);
        let port = nat
            .outbound(S, UDP, inside(5000), outside(1, 80))
            .unwrap()
            .port();
        assert_eq!(
            nat.inbound(S, UDP, port, outside(1, 80)),
            Some(inside(5000))
        );
        (
            nat.inbound(S, UDP, port, outside(1, 81)).is_some(),
            nat.inbound(S, UDP, port, outside(2, 80)).is_some(),
        )
    }

    #[test]
    fn the_three_kinds_of_filtering_are_told_apart() {
        assert_eq!(
            filter_lets_in(EndpointDependence::EndpointIndependent),
            (true, true)
        );
        assert_eq!(
            filter_lets_in(EndpointDependence::AddressDependent),
            (true, false)
        );
        assert_eq!(
            filter_lets_in(EndpointDependence::AddressAndPortDependent),
            (false, false)
        );
    }

    #[test]
    fn a_port_is_preserved_for_the_first_who_wants_it() {
        let mut nat = nat(|_| ());
        let first = nat.outbound(S, UDP, inside(5000), outside(1, 80)).unwrap();
        assert_eq!(first, SocketAddrV4::new(EXTERNAL, 5000));
        let other = SocketAddr::from((Ipv4Addr::new(192, 168, 0, 11), 5000));
        let second = nat.outbound(S, UDP, other, outside(1, 80)).unwrap();
        assert_ne!(second.port(), 5000, "no overloading");
        assert_eq!(
            nat.inbound(S, UDP, second.port(), outside(1, 80)),
            Some(other)
        );
        assert_eq!(
            nat.inbound(S, UDP, 5000, outside(1, 80)),
            Some(inside(5000))
        );
    }

    #[test]
    fn protocols_have_mappings_of_their_own() {
        let mut nat = nat(|_| ());
        nat.outbound(S, UDP, inside(5000), outside(1, 80)).unwrap();
        assert_eq!(nat.inbound(S, Protocol::Tcp, 5000, outside(1, 80)), None);
    }

    #[test]
    fn an_unused_mapping_expires_and_only_the_inside_refreshes_it() {
        let mut nat = nat(|k| {
            k.timeout = 30 * S;
            k.ports = PortAllocation::Random;
        });
        let first = nat.outbound(S, UDP, inside(5000), outside(1, 80)).unwrap();
        assert!(
            nat.inbound(30 * S, UDP, first.port(), outside(1, 80))
                .is_some()
        );
        assert!(
            nat.inbound(31 * S, UDP, first.port(), outside(1, 80))
                .is_none()
        );
        nat.outbound(40 * S, UDP, inside(5000), outside(1, 80))
            .unwrap();
        let kept = nat
            .outbound(60 * S, UDP, inside(5000), outside(1, 80))
            .unwrap();
        let still = nat
            .outbound(89 * S, UDP, inside(5000), outside(1, 80))
            .unwrap();
        assert_eq!(kept, still);
        assert_ne!(kept, first, "an expired mapping gets a new random port");
        assert_eq!(nat.len(), 1, "what expired was replaced");
    }

    #[test]
    fn the_filter_forgets_who_was_contacted_long_ago() {
        let mut nat = nat(|k| k.timeout = 30 * S);
        let port = nat
            .outbound(S, UDP, inside(5000), outside(1, 80))
            .unwrap()
            .port();
        nat.outbound(20 * S, UDP, inside(5000), outside(2, 80))
            .unwrap();
        assert!(nat.inbound(40 * S, UDP, port, outside(2, 80)).is_some());
        assert!(nat.inbound(40 * S, UDP, port, outside(1, 80)).is_none());
    }

    #[test]
    fn an_address_under_the_prefix_of_nat64_stands_for_one_of_ipv4() {
        let address = Ipv4Addr::new(198, 18, 1, 2);
        assert_eq!(embed(address).to_string(), "64:ff9b::c612:102");
        assert_eq!(embedded(embed(address)), Some(address));
        assert_eq!(embedded("2001:2::1".parse().unwrap()), None);
    }

    #[test]
    fn after_a_rebind_nobody_answers_to_the_old_port_and_the_next_packet_has_another() {
        let mut nat = nat(|_| ());
        let first = nat.outbound(S, UDP, inside(5000), outside(1, 80)).unwrap();
        nat.rebind();
        assert!(nat.is_empty());
        assert!(nat.inbound(S, UDP, first.port(), outside(1, 80)).is_none());
        let second = nat.outbound(S, UDP, inside(5000), outside(1, 80)).unwrap();
        assert_ne!(second, first);
    }

    #[test]
    fn what_one_mapping_remembers_is_bounded() {
        let mut nat = nat(|_| ());
        for i in 0..2000u16 {
            let now = Duration::from_millis(u64::from(i));
            nat.outbound(now, UDP, inside(5000), outside(1, 1 + i))
                .unwrap();
        }
        assert_eq!(nat.mappings[&(UDP, 5000)].contacts.len(), MAX_CONTACTS);
        assert!(nat.inbound(2 * S, UDP, 5000, outside(1, 2000)).is_some());
        assert!(nat.inbound(2 * S, UDP, 5000, outside(1, 1)).is_none());
    }

    #[test]
    fn a_nat_without_free_ports_refuses_and_recovers() {
        let mut nat = nat(|k| k.timeout = 30 * S);
        for port in FIRST_PORT..=u16::MAX {
            assert!(nat.outbound(S, UDP, inside(port), outside(1, 80)).is_some());
        }
        assert!(nat.outbound(S, UDP, inside(80), outside(1, 80)).is_none());
        assert!(
            nat.outbound(40 * S, UDP, inside(80), outside(1, 80))
                .is_some()
        );
    }
}
