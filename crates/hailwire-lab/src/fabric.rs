//! All of a network at once: where a packet goes that a host sends, and when.
//!
//! ```text
//! host ─▶ firewall ─▶ NAT ─▶ up link ─▶ internet ─▶ down link ─▶ NAT ─▶ firewall ─▶ host
//! ```
//!
//! Both tiers are this machine with another kind of payload: the real one with the bytes that
//! a kernel wrote to a TUN device, the virtual one with the datagrams of sockets in memory. It takes
//! `now` and does no I/O: [`Fabric::enter`] puts a packet in, [`Fabric::next`] says when something
//! comes out, [`Fabric::leave`] hands it over.
//!
//! A kernel hands over many packets in one buffer ([`Segments`]). Each meets its own fate on each
//! link, as it would on a wire; those that arrive next to each other within [`TOGETHER`] are handed
//! over together, when the last of them has arrived.

use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
    time::Duration,
};

use serde::Serialize;

use crate::{
    firewall::{Firewall, Rule},
    link::{self, Fate, Link},
    nat::Nat,
    packet::{Flow, Segments},
    topology::{Site, Topology, Wall},
};

/// Packets of one buffer that arrive within this time are handed over together: a fiftieth of what a
/// delay may be off.
pub const TOGETHER: Duration = Duration::from_micros(250);

/// Most bytes under way in a network; what enters beyond them is dropped. A second at 2 Gbit/s.
pub const MAX_UNDER_WAY: u64 = 256 << 20;

/// Where a host hangs on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Port(pub usize);

/// What comes out of the network at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaving<P> {
    /// Packets that have arrived.
    Arrived {
        /// The host.
        port: Port,
        /// From whom to whom, as the host sees it.
        flow: Flow,
        /// How the buffer divides.
        segments: Segments,
        /// Which packets of it have arrived.
        range: Range<u32>,
        /// The buffer, as it entered.
        payload: P,
    },
    /// The answer to a packet that was larger than a link carries (RFC 792, "fragmentation needed").
    TooLarge {
        /// The host that sent it.
        port: Port,
        /// What the link carries, in bytes.
        mtu: u16,
        /// The buffer, as it entered.
        payload: P,
    },
}

/// Packets on the wire since the start, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct Counters {
    /// Handed to a host.
    pub arrived: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped by a full queue.
    pub queue: u64,
    /// Larger than a link's MTU.
    pub too_large: u64,
    /// Refused by a NAT: no mapping, filtered, or no hairpin.
    pub nat: u64,
    /// Refused by a firewall.
    pub firewall: u64,
    /// For an address that nobody has, or from one that the sender has not.
    pub unroutable: u64,
    /// Dropped because [`MAX_UNDER_WAY`] was reached.
    pub overflow: u64,
}

#[derive(Clone, Debug)]
struct Travelling<P> {
    origin: Port,
    flow: Flow,
    segments: Segments,
    range: Range<u32>,
    payload: P,
}

impl<P> Travelling<P> {
    fn bytes(&self) -> u64 {
        self.range
            .clone()
            .map(|i| u64::from(self.segments.bytes(i)))
            .sum()
    }

    fn count(&self) -> u64 {
        u64::from(self.range.end - self.range.start)
    }
}

#[derive(Debug)]
enum Step {
    /// Leaves the up link.
    Internet,
    /// Leaves the down link of a site.
    Edge(usize),
    /// Reaches a host.
    Host(Port),
    /// The message that it was too large reaches its sender.
    TooLarge(u16),
}

#[derive(Debug)]
struct Edge {
    up: Link,
    down: Link,
    nat: Option<Nat>,
    firewall: Option<Firewall>,
}

/// Who does the NAT of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatBy {
    /// This model.
    Model,
    /// Somebody before it: the site shows its public address to the model.
    Other,
}

/// A network.
#[derive(Debug)]
pub struct Fabric<P> {
    edges: Vec<Edge>,
    ports: Vec<usize>,
    /// Port by the address that its host has.
    inner: HashMap<Ipv4Addr, Port>,
    /// Site by the address that the internet sees.
    outer: HashMap<Ipv4Addr, usize>,
    due: BTreeMap<(Duration, u64), (Step, Travelling<P>)>,
    order: u64,
    under_way: u64,
    counters: Counters,
}

impl<P: Clone> Fabric<P> {
    /// The network of a topology. Ports are in the order of [`Topology::hosts`], but a site whose NAT
    /// somebody else does has one port, for its public address.
    #[must_use]
    pub fn new(topology: &Topology, seed: u64, nat_by: impl Fn(&Site) -> NatBy) -> Self {
        let mut fabric = Self {
            edges: Vec::new(),
            ports: Vec::new(),
            inner: HashMap::new(),
            outer: HashMap::new(),
            due: BTreeMap::new(),
            order: 0,
            under_way: 0,
            counters: Counters::default(),
        };
        for (number, site) in topology.sites.iter().enumerate() {
            let model = nat_by(site) == NatBy::Model;
            fabric.add_edge(topology, number, site, model, seed);
            if site.nat.is_some() && !model {
                fabric.add_port(number, &[topology.public(number)]);
                continue;
            }
            for host in &site.hosts {
                fabric.add_port(number, &topology.addresses(&host.name));
            }
        }
        fabric
    }

    fn add_edge(
        &mut self,
        topology: &Topology,
        number: usize,
        site: &Site,
        model: bool,
        seed: u64,
    ) {
        // Streams of chance of their own, so that one site's traffic does not change another's fate.
        let own = |what: u64| seed ^ ((number as u64 * 4 + what + 1) << 32);
        let public = topology.public(number);
        let rule = site.firewall.as_ref().map(|wall| match wall {
            Wall::NoUdp => Rule::NoUdp,
            Wall::OnlyTcp443 => Rule::OnlyTcp443,
            Wall::OnlyRelay(host) => {
                let relay = topology.addresses(host).first().copied();
                Rule::OnlyTo(relay.unwrap_or(Ipv4Addr::UNSPECIFIED))
            }
        });
        let nat = site.nat.as_ref().filter(|_| model);
        self.edges.push(Edge {
            up: Link::new(site.up.clone(), own(0)),
            down: Link::new(site.down.clone(), own(1)),
            nat: nat.map(|kind| Nat::new(kind.clone(), public, own(2))),
            firewall: rule.map(Firewall::new),
        });
        self.outer.insert(public, number);
    }

    fn add_port(&mut self, site: usize, addresses: &[Ipv4Addr]) {
        let port = Port(self.ports.len());
        self.ports.push(site);
        let public = self.edges.get(site).is_some_and(|edge| edge.nat.is_none());
        for address in addresses {
            self.inner.insert(*address, port);
            if public {
                self.outer.insert(*address, site);
            }
        }
    }

    /// The port of the host that has this address.
    #[must_use]
    pub fn port(&self, address: Ipv4Addr) -> Option<Port> {
        self.inner.get(&address).copied()
    }

    /// What became of the packets so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// When something comes out next.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// A host sends.
    pub fn enter(
        &mut self,
        now: Duration,
        origin: Port,
        flow: Flow,
        segments: Segments,
        payload: P,
    ) {
        let mut packet = Travelling {
            origin,
            flow,
            segments,
            range: 0..segments.count(),
            payload,
        };
        let count = packet.count();
        if self.inner.get(flow.source.ip()) != Some(&origin) {
            self.counters.unroutable += count;
            return;
        }
        let site = self.ports[origin.0];
        if let Some(port) = self.neighbour(site, flow.destination) {
            self.schedule(now, Step::Host(port), packet);
            return;
        }
        let edge = &mut self.edges[site];
        if edge
            .firewall
            .as_mut()
            .is_some_and(|wall| !wall.outbound(now, &flow))
        {
            self.counters.firewall += count;
            return;
        }
        if let Some(nat) = &mut edge.nat {
            let Some(source) = nat.outbound(now, flow.protocol, flow.source, flow.destination)
            else {
                self.counters.nat += count;
                return;
            };
            packet.flow.source = source;
            if *flow.destination.ip() == nat.external() {
                self.hairpin(now, site, packet);
                return;
            }
        }
        self.cross(now, site, Way::Up, &packet);
    }

    /// What has come out by now, the earliest first. Call until `None`.
    pub fn leave(&mut self, now: Duration) -> Option<Leaving<P>> {
        loop {
            let entry = self.due.first_entry()?;
            let (at, _) = *entry.key();
            if at > now {
                return None;
            }
            let (step, packet) = entry.remove();
            self.under_way -= packet.bytes();
            let step = match step {
                Step::Internet => {
                    self.across(at, &packet);
                    continue;
                }
                Step::Edge(site) => match self.reach_host(at, site, packet) {
                    Some(leaving) => return Some(leaving),
                    None => continue,
                },
                arrived => arrived,
            };
            return Some(match step {
                Step::TooLarge(mtu) => Leaving::TooLarge {
                    port: packet.origin,
                    mtu,
                    payload: packet.payload,
                },
                Step::Host(port) => self.hand_over(port, packet),
                Step::Internet | Step::Edge(_) => continue,
            });
        }
    }

    fn neighbour(&self, site: usize, destination: SocketAddrV4) -> Option<Port> {
        let port = self.inner.get(destination.ip())?;
        (self.ports[port.0] == site).then_some(*port)
    }

    fn hairpin(&mut self, now: Duration, site: usize, mut packet: Travelling<P>) {
        let Flow {
            protocol,
            source,
            destination,
        } = packet.flow;
        let nat = self.edges[site]
            .nat
            .as_ref()
            .filter(|nat| nat.kind().hairpin);
        let inside = nat.and_then(|nat| nat.inbound(now, protocol, destination.port(), source));
        let port = inside.and_then(|inside| self.inner.get(inside.ip()).copied());
        match (inside, port) {
            (Some(inside), Some(port)) => {
                packet.flow.destination = inside;
                self.schedule(now, Step::Host(port), packet);
            }
            _ => self.counters.nat += packet.count(),
        }
    }

    /// From the up link to the down link of whoever has the address.
    fn across(&mut self, now: Duration, packet: &Travelling<P>) {
        match self.outer.get(packet.flow.destination.ip()) {
            Some(site) => self.cross(now, *site, Way::Down, packet),
            None => self.counters.unroutable += packet.count(),
        }
    }

    fn reach_host(
        &mut self,
        now: Duration,
        site: usize,
        mut packet: Travelling<P>,
    ) -> Option<Leaving<P>> {
        let edge = &mut self.edges[site];
        if let Some(nat) = &edge.nat {
            let Flow {
                protocol,
                source,
                destination,
            } = packet.flow;
            let Some(inside) = nat.inbound(now, protocol, destination.port(), source) else {
                self.counters.nat += packet.count();
                return None;
            };
            packet.flow.destination = inside;
        }
        if edge
            .firewall
            .as_mut()
            .is_some_and(|wall| !wall.inbound(now, &packet.flow))
        {
            self.counters.firewall += packet.count();
            return None;
        }
        match self.inner.get(packet.flow.destination.ip()) {
            Some(port) => Some(self.hand_over(*port, packet)),
            None => {
                self.counters.unroutable += packet.count();
                None
            }
        }
    }

    fn hand_over(&mut self, port: Port, packet: Travelling<P>) -> Leaving<P> {
        self.counters.arrived += packet.count();
        Leaving::Arrived {
            port,
            flow: packet.flow,
            segments: packet.segments,
            range: packet.range,
            payload: packet.payload,
        }
    }

    /// Sends each packet of a buffer over a link, and those that stay together on together.
    fn cross(&mut self, now: Duration, site: usize, way: Way, packet: &Travelling<P>) {
        let mut group: Option<Group> = None;
        for index in packet.range.clone() {
            let edge = &mut self.edges[site];
            let link = match way {
                Way::Up => &mut edge.up,
                Way::Down => &mut edge.down,
            };
            let mtu = link.shape().mtu;
            match link.pass(now, packet.segments.bytes(index)) {
                Fate::Arrives { at, again } => {
                    if !group.as_mut().is_some_and(|group| group.takes(index, at)) {
                        self.forward(site, way, group.take(), packet);
                        group = Some(Group::of(index, at));
                    }
                    let copy = again.map(|at| Group::of(index, at));
                    self.forward(site, way, copy, packet);
                }
                Fate::Dropped(link::Drop::Lost) => self.counters.lost += 1,
                Fate::Dropped(link::Drop::Queue) => self.counters.queue += 1,
                Fate::Dropped(link::Drop::TooLarge) => {
                    self.counters.too_large += 1;
                    self.schedule(now, Step::TooLarge(mtu), packet.clone());
                    break;
                }
            }
        }
        self.forward(site, way, group, packet);
    }

    fn forward(&mut self, site: usize, way: Way, group: Option<Group>, packet: &Travelling<P>) {
        let Some(Group { range, last, .. }) = group else {
            return;
        };
        let step = match way {
            Way::Up => Step::Internet,
            Way::Down => Step::Edge(site),
        };
        let packet = Travelling {
            range,
            ..packet.clone()
        };
        self.schedule(last, step, packet);
    }

    fn schedule(&mut self, at: Duration, step: Step, packet: Travelling<P>) {
        let bytes = packet.bytes();
        if self.under_way + bytes > MAX_UNDER_WAY {
            self.counters.overflow += packet.count();
            return;
        }
        self.under_way += bytes;
        self.order += 1;
        self.due.insert((at, self.order), (step, packet));
    }
}

#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

/// Packets of one buffer that arrive next to each other.
struct Group {
    range: Range<u32>,
    first: Duration,
    last: Duration,
}

impl Group {
    fn of(index: u32, at: Duration) -> Self {
        Self {
            range: index..index + 1,
            first: at,
            last: at,
        }
    }

    /// Takes one more packet if it follows closely enough.
    fn takes(&mut self, index: u32, at: Duration) -> bool {
        let follows = index == self.range.end && at >= self.last && at - self.first <= TOGETHER;
        if follows {
            self.range.end += 1;
            self.last = at;
        }
        follows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{firewall::flow, packet::Protocol};

    const MS: Duration = Duration::from_millis(1);

    fn fabric(text: &str) -> Fabric<&'static str> {
        Fabric::new(&Topology::parse(text, "t").unwrap(), 1, |_| NatBy::Model)
    }

    /// Sends one UDP packet and tells when it comes out where, and what it looks like there.
    fn send(
        fabric: &mut Fabric<&'static str>,
        now: Duration,
        from: &str,
        to: &str,
    ) -> Option<(Duration, Port, Flow)> {
        let flow = flow(Protocol::Udp, from, to);
        let port = fabric.port(*flow.source.ip()).unwrap();
        fabric.enter(now, port, flow, Segments::one(100), "x");
        let mut last = None;
        while let Some(at) = fabric.next() {
            if let Some(Leaving::Arrived { port, flow, .. }) = fabric.leave(at) {
                last = Some((at, port, flow));
            }
        }
        last
    }

    #[test]
    fn a_packet_takes_the_time_of_both_links() {
        let mut net =
            fabric("host \"a\" { link { delay \"10ms\" } }\nhost \"b\" { link { delay \"3ms\" } }");
        let (at, port, flow) = send(&mut net, MS, "198.18.0.1:1", "198.18.1.1:2").unwrap();
        assert_eq!((at, port), (14 * MS, Port(1)));
        assert_eq!(flow.source, "198.18.0.1:1".parse().unwrap());
    }

    #[test]
    fn behind_a_nat_a_host_shows_its_sites_address_and_gets_answers() {
        let mut net = fabric("site \"home\" { nat ports=\"random\"; host \"a\" }\nhost \"b\"");
        let (_, port, out) = send(&mut net, MS, "192.168.0.10:5000", "198.18.1.1:2").unwrap();
        assert_eq!(port, Port(1));
        assert_eq!(*out.source.ip(), Ipv4Addr::new(198, 18, 0, 1));
        assert_ne!(out.source.port(), 5000);
        let back = out.source.to_string();
        let (_, port, answer) = send(&mut net, MS, "198.18.1.1:2", &back).unwrap();
        assert_eq!(port, Port(0));
        assert_eq!(answer.destination, "192.168.0.10:5000".parse().unwrap());
        assert!(
            send(&mut net, MS, "198.18.1.1:3", &back).is_none(),
            "filtered"
        );
        assert_eq!(net.counters().nat, 1);
    }

    #[test]
    fn neighbours_reach_each_other_inside_and_only_by_hairpin_from_outside() {
        for (hairpin, reaches) in [("#true", true), ("#false", false)] {
            let mut net = fabric(&format!(
                "site \"home\" {{ link {{ delay \"9ms\" }}; nat filtering=\"endpoint-independent\" hairpin={hairpin}\n\
                 host \"a\"; host \"c\" }}\nhost \"b\""
            ));
            let inside = send(&mut net, MS, "192.168.0.10:1000", "192.168.0.11:1000").unwrap();
            assert_eq!((inside.0, inside.1), (MS, Port(1)));
            send(&mut net, MS, "192.168.0.11:2000", "198.18.1.1:2").unwrap();
            let around = send(&mut net, MS, "192.168.0.10:3000", "198.18.0.1:2000");
            assert_eq!(around.is_some(), reaches);
            if let Some((_, port, flow)) = around {
                assert_eq!(port, Port(1));
                assert_eq!(
                    *flow.source.ip(),
                    Ipv4Addr::new(198, 18, 0, 1),
                    "by its external address"
                );
            }
        }
    }

    #[test]
    fn a_firewall_before_the_nat_sees_inside_addresses() {
        let mut net = fabric(
            "site \"o\" { nat; firewall \"only-relay\" to=\"hub\"; host \"a\" }\nhost \"hub\"\nhost \"b\"",
        );
        let (_, _, out) = send(&mut net, MS, "192.168.0.10:5000", "198.18.1.1:7").unwrap();
        assert!(send(&mut net, MS, "198.18.1.1:7", &out.source.to_string()).is_some());
        assert!(send(&mut net, MS, "192.168.0.10:5000", "198.18.2.1:7").is_none());
        assert_eq!(net.counters().firewall, 1);
    }

    #[test]
    fn nobody_sends_from_an_address_that_is_not_his() {
        let mut net = fabric("host \"a\"\nhost \"b\"");
        let forged = flow(Protocol::Udp, "198.18.1.1:1", "198.18.1.1:2");
        net.enter(MS, Port(0), forged, Segments::one(100), "x");
        assert_eq!((net.next(), net.counters().unroutable), (None, 1));
    }

    /// The arrivals of a buffer of 40 packets of 1,500 bytes over this link.
    fn buffer(link: &str) -> Vec<(Duration, Range<u32>)> {
        let mut net = fabric(&format!("host \"a\" {{ link {{ {link} }} }}\nhost \"b\""));
        let segments = Segments {
            header: 28,
            size: 1472,
            payload: 40 * 1472,
        };
        let flow = flow(Protocol::Udp, "198.18.0.1:1", "198.18.1.1:2");
        net.enter(Duration::ZERO, Port(0), flow, segments, "x");
        let mut out = Vec::new();
        while let Some(at) = net.next() {
            while let Some(Leaving::Arrived { range, .. }) = net.leave(at) {
                out.push((at, range));
            }
        }
        out
    }

    #[test]
    fn a_buffer_stays_whole_where_nothing_parts_its_packets() {
        assert_eq!(buffer("delay \"5ms\""), [(5 * MS, 0..40)]);
    }

    #[test]
    fn a_slow_link_spaces_the_packets_of_a_buffer() {
        let out = buffer("rate \"12 Mbit/s\"; queue \"1 MiB\"");
        let expected: Vec<_> = (0..40).map(|i| (MS * (i + 1), i..i + 1)).collect();
        assert_eq!(out, expected);
        let fast = buffer("rate \"120 Mbit/s\"; queue \"1 MiB\"");
        assert!(fast.iter().all(|(_, range)| range.len() <= 3), "{fast:?}");
        assert_eq!(fast.last().map(|(at, _)| *at), Some(4 * MS));
    }

    #[test]
    fn each_packet_of_a_buffer_is_lost_by_itself() {
        let out = buffer("loss \"20%\"");
        let arrived: usize = out.iter().map(|(_, range)| range.len()).sum();
        assert!((25..40).contains(&arrived), "{arrived} arrived");
        assert!(out.windows(2).all(|pair| pair[0].1.end < pair[1].1.start));
    }

    #[test]
    fn what_is_too_large_is_told_to_the_sender() {
        let mut net = fabric("host \"a\"\nhost \"b\" { link { mtu 1400 } }");
        let flow = flow(Protocol::Udp, "198.18.0.1:1", "198.18.1.1:2");
        net.enter(MS, Port(0), flow, Segments::one(1401), "x");
        assert_eq!(
            net.leave(MS),
            Some(Leaving::TooLarge {
                port: Port(0),
                mtu: 1400,
                payload: "x"
            })
        );
        assert_eq!(net.counters().too_large, 1);
    }

    #[test]
    fn what_is_under_way_is_bounded() {
        let mut net = fabric("host \"a\" { link { delay \"1h\" } }\nhost \"b\"");
        let flow = flow(Protocol::Udp, "198.18.0.1:1", "198.18.1.1:2");
        let segments = Segments {
            header: 28,
            size: 1472,
            payload: 40 * 1472,
        };
        for _ in 0..5000 {
            net.enter(MS, Port(0), flow, segments, "x");
        }
        assert!(net.under_way <= MAX_UNDER_WAY);
        assert!(net.counters().overflow > 0);
        while net.leave(Duration::from_secs(4000)).is_some() {}
        assert_eq!(net.under_way, 0);
    }
}
