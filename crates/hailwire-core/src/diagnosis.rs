//! What keeps a node from being reached, why, and what to do: from what was measured to findings.
//!
//! The shell measures ([`NetworkFacts`] of each end, [`PairFacts`] of the two); here is said what it means. A [`Finding`] has a
//! stable code, one sentence of cause and one of cure. The kinds of NAT are those of RFC 4787, as far as one hub with two ports can
//! tell them apart (RFC 5780): whether the external port depends on where packets go, and whether packets from another port are
//! let in.

use std::{net::SocketAddr, time::Duration};

use crate::dial_address::is_global;

mod candidate_pairs;
mod findings;
mod mapping_life;
mod pair;
mod portal;

pub use candidate_pairs::{CandidatePair, PairOutcome, TriedCandidate, candidate_pairs};
pub use findings::{ALL_CODES, Finding, FindingLevel};
pub use mapping_life::{LIFETIME_STEPS, MappingLife, lifetime_steps};
pub use pair::{PairFacts, PeerState, diagnose_pair};
pub use portal::{MAX_PLAIN_ANSWER, PlainAnswer, read_plain_answer};

/// A hub's clock that differs by more makes signed requests and tickets fail.
pub const MAX_CLOCK_OFFSET_S: u64 = 30;

/// A hub that takes longer to answer delays each first call.
pub const SLOW_HUB: Duration = Duration::from_millis(1000);

/// The UDP payload that QUIC needs at least (RFC 9000, 14).
pub const LEAST_PAYLOAD: u16 = 1200;

/// What came of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// There was nothing to probe.
    #[default]
    NotTried,
    /// Nobody answered.
    Silent,
    /// An answer came.
    Answered,
}

/// What was measured of a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFacts {
    /// Its URL.
    pub url: String,
    /// Whether it answers.
    pub reach: HubReach,
    /// Its clock less this machine's, in seconds.
    pub clock_offset_s: i64,
    /// Why it did not give this node its name, or did not register it; empty where all is well.
    pub refusal: String,
    /// Whether it says at which ports it answers STUN.
    pub has_stun: bool,
    /// What a request without TLS for a page that no hub has was answered, where the hub itself did not answer.
    pub plain: PlainAnswer,
}

/// Whether a hub answers over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubReach {
    /// After so long.
    Answers(Duration),
    /// Its name has no address here.
    UnknownName,
    /// Nobody listens there.
    Refused,
    /// Nothing came back.
    Silent,
    /// Somebody else answers in its place.
    OtherKey,
    /// It does not know this node as a member.
    NotAMember,
    /// The HTTP proxy does not connect to it.
    Proxy(String),
    /// Something else is wrong.
    Failed(String),
}

/// The NAT before a machine, as packets of one socket showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatFacts {
    /// The socket's own port.
    pub local_port: u16,
    /// Where the hub's first port saw it.
    pub first: SocketAddr,
    /// Where its second port, or another hub, saw it.
    pub second: Option<SocketAddr>,
    /// Whether an answer from a port that was not asked came in; `None` where nobody could try.
    pub other_port_came_in: Option<bool>,
    /// Whether a packet to the own external address came back (RFC 4787, 6).
    pub hairpin: bool,
    /// Whether the external address is one of this machine's own.
    pub is_own: bool,
}

/// What a NAT does with external ports (RFC 4787, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// There is no NAT.
    None,
    /// One external port, whoever is sent to.
    EndpointIndependent,
    /// Another one for each destination.
    EndpointDependent,
}

impl NatFacts {
    /// What it does with external ports.
    #[must_use]
    pub fn mapping(&self) -> MappingKind {
        match self.second {
            _ if self.is_own => MappingKind::None,
            Some(second) if second != self.first => MappingKind::EndpointDependent,
            _ => MappingKind::EndpointIndependent,
        }
    }
}

/// What one end of a path can do: what a peer tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReachSummary {
    /// UDP over IPv4 came back from a hub.
    pub udp4: ProbeOutcome,
    /// UDP over IPv6 did.
    pub udp6: ProbeOutcome,
    /// What its NAT does with external ports, where that was measured.
    pub mapping: Option<MappingKind>,
    /// Whether its NAT lets in packets of a port that was not sent to.
    pub lets_other_ports_in: Option<bool>,
    /// Whether a router has mapped a port to it.
    pub is_mapped: bool,
    /// Whether it listens on TCP.
    pub listens_tcp: bool,
}

/// What was measured of this machine's network.
#[derive(Clone, Debug, Default)]
pub struct NetworkFacts {
    /// Addresses of this machine, loopback apart.
    pub addresses: Vec<std::net::IpAddr>,
    /// The node listens on loopback alone.
    pub loopback_only: bool,
    /// The hubs that the node joined.
    pub hubs: Vec<HubFacts>,
    /// UDP over IPv4 to a hub and back.
    pub udp4: ProbeOutcome,
    /// UDP over IPv6.
    pub udp6: ProbeOutcome,
    /// The NAT over IPv4, where UDP came back.
    pub nat: Option<NatFacts>,
    /// How long the NAT keeps a mapping that is not used, where that was measured.
    pub mapping_life: Option<MappingLife>,
    /// The longest UDP payload that came through, of those tried.
    pub payload: Option<u16>,
    /// The longest one that was tried.
    pub tried_payload: u16,
    /// The router's port mapping.
    pub port_mapping: PortMappingFacts,
    /// The HTTP proxy through which hubs are reached.
    pub proxy: Option<String>,
    /// What the kernel grants of the UDP buffers that were asked for, in bytes, where it is less.
    pub short_buffers: Option<(usize, usize)>,
    /// Whether the node listens on TCP.
    pub listens_tcp: bool,
}

/// What is known of the router's port mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMappingFacts {
    /// Whether the node asks for one.
    pub enabled: bool,
    /// Whether the router speaks a protocol for it.
    pub spoken: bool,
    /// The external address that it gave.
    pub external: Option<SocketAddr>,
}

impl NetworkFacts {
    /// What a peer is told of it.
    #[must_use]
    pub fn summary(&self) -> ReachSummary {
        ReachSummary {
            udp4: self.udp4,
            udp6: self.udp6,
            mapping: self.nat.map(|nat| nat.mapping()),
            lets_other_ports_in: self.nat.and_then(|nat| nat.other_port_came_in),
            is_mapped: self.port_mapping.external.is_some(),
            listens_tcp: self.listens_tcp,
        }
    }
}

/// What this network allows, and what is wrong with it; what is worst comes first.
#[must_use]
pub fn diagnose(facts: &NetworkFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    if facts.loopback_only {
        found.push(Finding::loopback_only());
    } else if facts.addresses.is_empty() {
        found.push(Finding::no_network());
    }
    if facts.hubs.is_empty() {
        found.push(Finding::no_hub());
    }
    facts
        .hubs
        .iter()
        .for_each(|hub| of_hub(hub, facts, &mut found));
    if !facts.loopback_only {
        of_udp(facts, &mut found);
    }
    if let Some(nat) = &facts.nat {
        of_nat(nat, facts, &mut found);
    }
    if let Some(proxy) = &facts.proxy {
        found.push(Finding::proxy(proxy));
    }
    if let Some((granted, asked)) = facts.short_buffers {
        found.push(Finding::short_buffers(granted, asked));
    }
    sorted(found)
}

/// What is worst comes first.
fn sorted(mut found: Vec<Finding>) -> Vec<Finding> {
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    found
}

fn of_hub(hub: &HubFacts, facts: &NetworkFacts, found: &mut Vec<Finding>) {
    let url = &hub.url;
    found.push(match &hub.reach {
        reach if portal::is_in_place_of(reach, hub.plain) => Finding::captive_portal(url),
        HubReach::Answers(took) if *took > SLOW_HUB => Finding::hub_slow(url, *took),
        HubReach::Answers(took) => Finding::hub_answers(url, *took),
        HubReach::UnknownName => Finding::hub_name_unknown(url),
        HubReach::Refused => Finding::hub_refuses(url),
        HubReach::Silent => Finding::hub_silent(url, facts.proxy.is_some()),
        HubReach::OtherKey => Finding::hub_other_key(url),
        HubReach::NotAMember => Finding::hub_not_a_member(url),
        HubReach::Proxy(why) => Finding::proxy_fails(url, why),
        HubReach::Failed(why) => Finding::hub_failed(url, why),
    });
    let answers = matches!(hub.reach, HubReach::Answers(_));
    if answers && hub.clock_offset_s.unsigned_abs() > MAX_CLOCK_OFFSET_S {
        found.push(Finding::clock_off(url, hub.clock_offset_s));
    }
    if answers && !hub.refusal.is_empty() {
        found.push(Finding::hub_refused_record(url, &hub.refusal));
    }
    if answers && !hub.has_stun {
        found.push(Finding::hub_without_stun(url));
    }
}

fn of_udp(facts: &NetworkFacts, found: &mut Vec<Finding>) {
    let has_ipv6 = facts
        .addresses
        .iter()
        .any(|ip| ip.is_ipv6() && is_global(*ip));
    match (facts.udp4, facts.udp6) {
        (ProbeOutcome::Silent, ProbeOutcome::Answered) => found.push(Finding::udp4_silent()),
        (ProbeOutcome::Silent, _) => found.push(Finding::udp_blocked(facts.listens_tcp)),
        (_, ProbeOutcome::Silent) if has_ipv6 => found.push(Finding::ipv6_dead()),
        _ => {}
    }
    match facts.udp6 {
        ProbeOutcome::Answered => found.push(Finding::ipv6_works()),
        _ if !has_ipv6 => found.push(Finding::ipv6_none()),
        _ => {}
    }
    match facts.payload {
        Some(payload) if payload < LEAST_PAYLOAD => found.push(Finding::mtu_too_small(payload)),
        Some(payload) if payload < facts.tried_payload => found.push(Finding::mtu_small(payload)),
        _ => {}
    }
}

fn of_nat(nat: &NatFacts, facts: &NetworkFacts, found: &mut Vec<Finding>) {
    let mapping = nat.mapping();
    let port = &facts.port_mapping;
    let is_home = mapping != MappingKind::None;
    found.push(match (mapping, nat.other_port_came_in) {
        (MappingKind::None, Some(false)) => Finding::public_with_firewall(nat.first),
        (MappingKind::None, _) => Finding::public_address(nat.first),
        (MappingKind::EndpointDependent, _) => Finding::nat_symmetric(nat.first, port.external),
        (_, Some(true)) => Finding::nat_open(nat.first),
        (_, _) => Finding::nat_port_filter(nat.first),
    });
    if is_home && !nat.hairpin {
        found.push(Finding::no_hairpin());
    }
    if is_home && let Some(life) = facts.mapping_life {
        found.push(life.finding());
    }
    match port.external {
        Some(external) if external.ip() != nat.first.ip() => {
            found.push(Finding::mapped_behind_another(external, nat.first));
        }
        Some(external) => found.push(Finding::port_mapped(external)),
        None if !is_home => {}
        None if !port.enabled => found.push(Finding::port_mapping_off()),
        None if port.spoken => found.push(Finding::port_refused()),
        None => found.push(Finding::no_port_mapping()),
    }
}

#[cfg(test)]
mod tests;
