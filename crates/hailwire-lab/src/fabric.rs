//! All of a network at once: where a packet goes that a host sends, and when.
//!
//! ```text
//! host ─▶ firewall ─▶ NATs ─▶ up link ─▶ internet ─▶ down link ─▶ NATs ─▶ firewall ─▶ host
//! ```
//!
//! IPv6 passes without a NAT, or, to an address under the prefix of NAT64, as IPv4.
//!
//! Both tiers are this machine with another kind of payload: the real one with the bytes that
//! a kernel wrote to a TUN device, the virtual one with the datagrams of sockets in memory. It takes
//! `now` and does no I/O: [`Fabric::enter`] puts a packet in, [`Fabric::next`] says when something
//! comes out, [`Fabric::leave`] hands it over.
//!
//! A kernel hands over many packets in one buffer ([`PacketSegments`]). Each meets its own fate on each
//! link, as it would on a wire; those that arrive next to each other within [`GROUP_WINDOW`] are handed
//! over together, when the last of them has arrived.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    ops::Range,
    time::Duration,
};

use serde::Serialize;

use crate::{
    firewall::{Firewall, FirewallRule},
    link::{self, Link, LinkShape, PacketOutcome},
    nat::{self, Nat, NatKind},
    packet::{Flow, PacketSegments, Protocol},
    topology::{FirewallPolicy, Site, Topology},
};

/// Packets of one buffer that arrive within this time are handed over together: a fiftieth of what a
/// delay may be off.
pub const GROUP_WINDOW: Duration = Duration::from_micros(250);

/// Most bytes under way in a network; what enters beyond them is dropped. A second at 2 Gbit/s.
pub const MAX_BYTES_IN_TRANSIT: u64 = 256 << 20;

/// Where a host hangs on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct FabricPort(pub usize);

/// What comes out of the network at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricOutput<P> {
    /// Packets that have arrived.
    Arrived {
        /// The host.
        port: FabricPort,
        /// From whom to whom, as the host sees it.
        flow: Flow,
        /// How the buffer divides.
        segments: PacketSegments,
        /// Which packets of it have arrived.
        range: Range<u32>,
        /// The buffer, as it entered.
        payload: P,
    },
    /// The answer to a packet that was larger than a link carries (RFC 792, "fragmentation needed";
    /// RFC 4443, "packet too big").
    TooLarge {
        /// The host that sent it.
        port: FabricPort,
        /// What the link carries, in bytes.
        mtu: u16,
        /// The buffer, as it entered.
        payload: P,
    },
}

/// Packets on the wire since the start, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct PacketCounters {
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
    /// Dropped because [`MAX_BYTES_IN_TRANSIT`] was reached.
    pub overflow: u64,
}

#[derive(Clone, Debug)]
struct PacketInTransit<P> {
    origin: FabricPort,
    flow: Flow,
    segments: PacketSegments,
    range: Range<u32>,
    payload: P,
}

impl<P> PacketInTransit<P> {
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
enum TransitStep {
    /// Leaves the up link.
    Internet,
    /// Leaves the down link of a site.
    Edge(usize),
    /// Reaches a host.
    Host(FabricPort),
    /// The message that it was too large reaches its sender.
    TooLarge(u16),
}

#[derive(Debug)]
struct SiteEdge {
    up: Link,
    down: Link,
    /// The hosts' own router first.
    nats: Vec<Nat>,
    nat64: Option<Nat>,
    firewall: Option<Firewall>,
}

impl SiteEdge {
    /// The way out through the NATs.
    fn outbound(&mut self, now: Duration, flow: Flow) -> Option<EdgePassage> {
        let protocol = flow.protocol;
        let out = |source: SocketAddrV4, destination: SocketAddr| Flow {
            protocol,
            source: source.into(),
            destination,
        };
        match (flow.source, flow.destination) {
            (SocketAddr::V4(mut source), SocketAddr::V4(destination)) => {
                for level in 0..self.nats.len() {
                    let nat = &mut self.nats[level];
                    source = nat.outbound(now, protocol, source.into(), destination)?;
                    if *destination.ip() == nat.external() {
                        let turns = nat.kind().hairpin;
                        let port = destination.port();
                        let inside = self
                            .inbound(now, level + 1, protocol, port, source)
                            .filter(|_| turns)?;
                        return Some(EdgePassage::TurnsBack(out(source, inside)));
                    }
                }
                Some(EdgePassage::Leaves(out(source, flow.destination)))
            }
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
                let Some(four) = nat::embedded(*destination.ip()) else {
                    return Some(EdgePassage::Leaves(flow));
                };
                // Echoes would have to become other messages (RFC 7915, 5.2); nothing here needs it.
                let nat64 = self.nat64.as_mut().filter(|_| protocol != Protocol::Echo)?;
                let four = SocketAddrV4::new(four, destination.port());
                let source = nat64.outbound(now, protocol, source.into(), four)?;
                Some(EdgePassage::Leaves(out(source, four.into())))
            }
            _ => None,
        }
    }

    /// The inside endpoint behind the innermost `levels` NATs that a port outside of them is for.
    fn inbound(
        &self,
        now: Duration,
        levels: usize,
        protocol: Protocol,
        port: u16,
        outside: SocketAddrV4,
    ) -> Option<SocketAddr> {
        let mut passed = self.nats[..levels].iter().rev();
        let mut inside = passed.next()?.inbound(now, protocol, port, outside)?;
        for nat in passed {
            inside = nat.inbound(now, protocol, inside.port(), outside)?;
        }
        Some(inside)
    }

    /// What a packet from the internet looks like behind the NATs.
    fn arriving(&self, now: Duration, flow: Flow) -> Option<Flow> {
        let (SocketAddr::V4(source), SocketAddr::V4(to)) = (flow.source, flow.destination) else {
            return Some(flow);
        };
        if let Some(nat64) = &self.nat64 {
            let destination = nat64.inbound(now, flow.protocol, to.port(), source)?;
            let source = SocketAddr::new(nat::embed(*source.ip()).into(), source.port());
            return Some(Flow {
                source,
                destination,
                ..flow
            });
        }
        if self.nats.is_empty() {
            return Some(flow);
        }
        let destination = self.inbound(now, self.nats.len(), flow.protocol, to.port(), source)?;
        Some(Flow {
            destination,
            ..flow
        })
    }
}

/// What the NATs of a site make of a packet that leaves a host.
enum EdgePassage {
    /// It leaves the site so.
    Leaves(Flow),
    /// It is for a neighbour, by a hairpin.
    TurnsBack(Flow),
}

/// A change to a site of a running network.
#[derive(Clone, Debug, PartialEq)]
pub enum SiteChange {
    /// Its NATs forget every mapping and give other ports from now on.
    Rebind,
    /// Another firewall, or none. It knows no flow that the one before let out.
    Firewall(Option<FirewallRule>),
    /// Other links, with empty queues.
    Links(Box<SiteLinks>),
}

/// Both directions of a site's link.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteLinks {
    /// Toward the internet.
    pub up: LinkShape,
    /// From the internet.
    pub down: LinkShape,
}

/// Who does the NAT of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatProvider {
    /// This model.
    Model,
    /// Somebody before it: the site shows its public address to the model.
    Other,
}

/// A network.
#[derive(Debug)]
pub struct Fabric<P> {
    edges: Vec<SiteEdge>,
    ports: Vec<usize>,
    /// Port by the address that its host has.
    inner: HashMap<IpAddr, FabricPort>,
    /// Site by the address that the internet sees.
    outer: HashMap<IpAddr, usize>,
    due: BTreeMap<(Duration, u64), (TransitStep, PacketInTransit<P>)>,
    order: u64,
    bytes_in_transit: u64,
    counters: PacketCounters,
}

impl<P: Clone> Fabric<P> {
    /// The network of a topology. Ports are in the order of [`Topology::hosts`], but a site whose NAT
    /// somebody else does has one port, for its public address.
    #[must_use]
    pub fn new(topology: &Topology, seed: u64, nat_by: impl Fn(&Site) -> NatProvider) -> Self {
        let mut fabric = Self {
            edges: Vec::new(),
            ports: Vec::new(),
            inner: HashMap::new(),
            outer: HashMap::new(),
            due: BTreeMap::new(),
            order: 0,
            bytes_in_transit: 0,
            counters: PacketCounters::default(),
        };
        for (number, site) in topology.sites.iter().enumerate() {
            let model = nat_by(site) == NatProvider::Model;
            fabric.add_edge(topology, number, site, model, seed);
            if !site.nats.is_empty() && !model {
                fabric.add_port(number, &[topology.public(number).into()]);
                continue;
            }
            for host in &site.hosts {
                fabric.add_port(number, &topology.all_addresses(&host.name));
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
        let rule = site.firewall.as_ref().map(|wall| {
            let only = wall.only_host().map(|host| topology.addresses(host));
            let only = only.and_then(|addresses| addresses.first().copied());
            let only = only.unwrap_or(Ipv4Addr::UNSPECIFIED);
            match wall {
                FirewallPolicy::NoUdp => FirewallRule::NoUdp,
                FirewallPolicy::NoUdpIn => FirewallRule::NoUdpIn,
                FirewallPolicy::NoIpv6 => FirewallRule::NoIpv6,
                FirewallPolicy::Ipv6KnownPorts => FirewallRule::Ipv6KnownPorts,
                FirewallPolicy::OnlyTcp443 => FirewallRule::OnlyTcp443,
                FirewallPolicy::OnlyRelay(_) => FirewallRule::OnlyTo(only),
                FirewallPolicy::OnlyProxy(_) => FirewallRule::OnlyTcpTo(only),
            }
        });
        let nats = site.nats.iter().enumerate().filter(|_| model);
        let nats = nats.map(|(level, kind)| {
            let seed = own(2) ^ level as u64;
            Nat::new(kind.clone(), topology.external(number, level), seed)
        });
        let public = topology.public(number);
        let nat64 = || Nat::new(NatKind::default(), public, own(2));
        self.edges.push(SiteEdge {
            up: Link::new(site.up.clone(), own(0)),
            down: Link::new(site.down.clone(), own(1)),
            nats: nats.collect(),
            nat64: site.nat64.then(nat64),
            firewall: rule.map(Firewall::new),
        });
        self.outer.insert(public.into(), number);
    }

    fn add_port(&mut self, site: usize, addresses: &[IpAddr]) {
        let port = FabricPort(self.ports.len());
        self.ports.push(site);
        let public = self
            .edges
            .get(site)
            .is_some_and(|edge| edge.nats.is_empty());
        for address in addresses {
            self.inner.insert(*address, port);
            if public || address.is_ipv6() {
                self.outer.insert(*address, site);
            }
        }
    }

    /// The port of the host that has this address.
    #[must_use]
    pub fn port(&self, address: IpAddr) -> Option<FabricPort> {
        self.inner.get(&address).copied()
    }

    /// What became of the packets so far.
    #[must_use]
    pub fn counters(&self) -> PacketCounters {
        self.counters
    }

    /// Changes a site from now on; what is on the wire arrives as it would have. An unknown site is no
    /// site to change.
    pub fn change(&mut self, site: usize, change: SiteChange) {
        let Some(edge) = self.edges.get_mut(site) else {
            return;
        };
        match change {
            SiteChange::Rebind => edge
                .nats
                .iter_mut()
                .chain(&mut edge.nat64)
                .for_each(Nat::rebind),
            SiteChange::Firewall(rule) => edge.firewall = rule.map(Firewall::new),
            SiteChange::Links(links) => {
                self.order += 1;
                let seed = self.order << 16 ^ site as u64;
                edge.up = Link::new(links.up, seed);
                edge.down = Link::new(links.down, !seed);
            }
        }
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
        origin: FabricPort,
        flow: Flow,
        segments: PacketSegments,
        payload: P,
    ) {
        let mut packet = PacketInTransit {
            origin,
            flow,
            segments,
            range: 0..segments.count(),
            payload,
        };
        let count = packet.count();
        if self.inner.get(&flow.source.ip()) != Some(&origin) {
            self.counters.unroutable += count;
            return;
        }
        let site = self.ports[origin.0];
        if let Some(port) = self.neighbour(site, flow.destination.ip()) {
            self.schedule(now, TransitStep::Host(port), packet);
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
        match edge.outbound(now, flow) {
            None => self.counters.nat += count,
            Some(EdgePassage::Leaves(flow)) => {
                packet.flow = flow;
                self.cross(now, site, LinkDirection::Up, &packet);
            }
            Some(EdgePassage::TurnsBack(flow)) => {
                packet.flow = flow;
                match self.inner.get(&flow.destination.ip()).copied() {
                    Some(port) => self.schedule(now, TransitStep::Host(port), packet),
                    None => self.counters.nat += count,
                }
            }
        }
    }

    /// What has come out by now, the earliest first. Call until `None`.
    pub fn leave(&mut self, now: Duration) -> Option<FabricOutput<P>> {
        loop {
            let entry = self.due.first_entry()?;
            let (at, _) = *entry.key();
            if at > now {
                return None;
            }
            let (step, packet) = entry.remove();
            self.bytes_in_transit -= packet.bytes();
            let step = match step {
                TransitStep::Internet => {
                    self.across(at, &packet);
                    continue;
                }
                TransitStep::Edge(site) => match self.reach_host(at, site, packet) {
                    Some(output) => return Some(output),
                    None => continue,
                },
                arrived => arrived,
            };
            return Some(match step {
                TransitStep::TooLarge(mtu) => FabricOutput::TooLarge {
                    port: packet.origin,
                    mtu,
                    payload: packet.payload,
                },
                TransitStep::Host(port) => self.hand_over(port, packet),
                TransitStep::Internet | TransitStep::Edge(_) => continue,
            });
        }
    }

    fn neighbour(&self, site: usize, destination: IpAddr) -> Option<FabricPort> {
        let port = self.inner.get(&destination)?;
        (self.ports[port.0] == site).then_some(*port)
    }

    /// From the up link to the down link of whoever has the address.
    fn across(&mut self, now: Duration, packet: &PacketInTransit<P>) {
        match self.outer.get(&packet.flow.destination.ip()) {
            Some(site) => self.cross(now, *site, LinkDirection::Down, packet),
            None => self.counters.unroutable += packet.count(),
        }
    }

    fn reach_host(
        &mut self,
        now: Duration,
        site: usize,
        mut packet: PacketInTransit<P>,
    ) -> Option<FabricOutput<P>> {
        let edge = &mut self.edges[site];
        let Some(flow) = edge.arriving(now, packet.flow) else {
            self.counters.nat += packet.count();
            return None;
        };
        packet.flow = flow;
        if edge
            .firewall
            .as_mut()
            .is_some_and(|wall| !wall.inbound(now, &packet.flow))
        {
            self.counters.firewall += packet.count();
            return None;
        }
        match self.inner.get(&packet.flow.destination.ip()) {
            Some(port) => Some(self.hand_over(*port, packet)),
            None => {
                self.counters.unroutable += packet.count();
                None
            }
        }
    }

    fn hand_over(&mut self, port: FabricPort, packet: PacketInTransit<P>) -> FabricOutput<P> {
        self.counters.arrived += packet.count();
        FabricOutput::Arrived {
            port,
            flow: packet.flow,
            segments: packet.segments,
            range: packet.range,
            payload: packet.payload,
        }
    }

    /// Sends each packet of a buffer over a link, and those that stay together on together.
    fn cross(
        &mut self,
        now: Duration,
        site: usize,
        direction: LinkDirection,
        packet: &PacketInTransit<P>,
    ) {
        let mut group: Option<ArrivalGroup> = None;
        for index in packet.range.clone() {
            let edge = &mut self.edges[site];
            let link = match direction {
                LinkDirection::Up => &mut edge.up,
                LinkDirection::Down => &mut edge.down,
            };
            let LinkShape {
                mtu,
                mtu_told: told,
                ..
            } = *link.shape();
            match link.pass(now, packet.segments.bytes(index)) {
                PacketOutcome::Arrives { at, again } => {
                    if !group.as_mut().is_some_and(|group| group.takes(index, at)) {
                        self.forward(site, direction, group.take(), packet);
                        group = Some(ArrivalGroup::of(index, at));
                    }
                    let copy = again.map(|at| ArrivalGroup::of(index, at));
                    self.forward(site, direction, copy, packet);
                }
                PacketOutcome::Dropped(link::DropReason::Lost) => self.counters.lost += 1,
                PacketOutcome::Dropped(link::DropReason::Queue) => self.counters.queue += 1,
                PacketOutcome::Dropped(link::DropReason::TooLarge) => {
                    self.counters.too_large += 1;
                    if told {
                        self.schedule(now, TransitStep::TooLarge(mtu), packet.clone());
                        break;
                    }
                }
            }
        }
        self.forward(site, direction, group, packet);
    }

    fn forward(
        &mut self,
        site: usize,
        direction: LinkDirection,
        group: Option<ArrivalGroup>,
        packet: &PacketInTransit<P>,
    ) {
        let Some(ArrivalGroup { range, last, .. }) = group else {
            return;
        };
        let step = match direction {
            LinkDirection::Up => TransitStep::Internet,
            LinkDirection::Down => TransitStep::Edge(site),
        };
        let packet = PacketInTransit {
            range,
            ..packet.clone()
        };
        self.schedule(last, step, packet);
    }

    fn schedule(&mut self, at: Duration, step: TransitStep, packet: PacketInTransit<P>) {
        let bytes = packet.bytes();
        if self.bytes_in_transit + bytes > MAX_BYTES_IN_TRANSIT {
            self.counters.overflow += packet.count();
            return;
        }
        self.bytes_in_transit += bytes;
        self.order += 1;
        self.due.insert((at, self.order), (step, packet));
    }
}

#[derive(Clone, Copy)]
enum LinkDirection {
    Up,
    Down,
}

/// Packets of one buffer that arrive next to each other.
struct ArrivalGroup {
    range: Range<u32>,
    first: Duration,
    last: Duration,
}

impl ArrivalGroup {
    fn of(index: u32, at: Duration) -> Self {
        Self {
            range: index..index + 1,
            first: at,
            last: at,
        }
    }

    /// Takes one more packet if it follows closely enough.
    fn takes(&mut self, index: u32, at: Duration) -> bool {
        let follows = index == self.range.end && at >= self.last && at - self.first <= GROUP_WINDOW;
        if follows {
            self.range.end += 1;
            self.last = at;
        }
        follows
    }
}

#[cfg(test)]
mod tests;
