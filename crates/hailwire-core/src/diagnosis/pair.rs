//! Why the path to a peer is as it is: from both ends' reports.

use super::{Finding, MappingKind, NetworkFacts, ProbeOutcome, ReachSummary, sorted};

/// What is known of a peer and of the tunnel to it.
#[derive(Clone, Debug)]
pub struct PairFacts {
    /// What it is called.
    pub peer: String,
    /// What came of reaching it.
    pub state: PeerState,
    /// What it says of its network; `None` where it did not.
    pub far: Option<ReachSummary>,
}

/// What came of reaching a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Nobody goes by that name.
    Unknown,
    /// This node does not trust it.
    Untrusted,
    /// No address of it is known.
    WithoutAddress,
    /// It does not answer, and why.
    Away(String),
    /// It answers, and does not trust this node.
    Distrusts,
    /// A tunnel over this carrier to this far end.
    Up {
        /// The carrier's name.
        carrier: String,
        /// Where the path ends.
        remote: String,
        /// Whether the path leads through a relay.
        relayed: bool,
        /// Whether the configuration allows TCP.
        tcp_allowed: bool,
    },
}

/// What is to be said of the path to a peer; what is worst comes first.
#[must_use]
pub fn diagnose_pair(near: &NetworkFacts, pair: &PairFacts) -> Vec<Finding> {
    let peer = pair.peer.as_str();
    let mut found = Vec::new();
    match &pair.state {
        PeerState::Unknown => found.push(Finding::peer_unknown(peer)),
        PeerState::Untrusted => found.push(Finding::peer_untrusted(peer)),
        PeerState::WithoutAddress => found.push(Finding::peer_without_address(peer)),
        PeerState::Away(why) => found.push(Finding::peer_away(peer, why)),
        PeerState::Distrusts => found.push(Finding::peer_distrusts(peer)),
        PeerState::Up {
            carrier,
            remote,
            relayed,
            tcp_allowed,
        } => {
            if pair.far.is_none() {
                found.push(Finding::peer_not_asked(peer));
            }
            match (relayed, carrier.as_str()) {
                (false, "quic") => found.push(Finding::path_direct(peer, remote)),
                (false, carrier) => found.push(Finding::path_direct_tcp(peer, remote, carrier)),
                (true, _) => why_relayed(&near.summary(), pair, &mut found),
            }
            let listens = pair.far.is_some_and(|far| far.listens_tcp);
            if *relayed && listens && !tcp_allowed {
                found.push(Finding::relayed_by_setting(peer));
            }
        }
    }
    sorted(found)
}

/// Of each family why it gives no direct path, as far as that is known.
fn why_relayed(here: &ReachSummary, pair: &PairFacts, found: &mut Vec<Finding>) {
    let peer = pair.peer.as_str();
    let ipv6 = ipv6_cure(here, pair.far.as_ref(), peer);
    if !has_udp(here) {
        return found.push(Finding::relayed_udp_here(peer, &ipv6));
    }
    let Some(far) = &pair.far else {
        return found.push(Finding::relayed_unknown(peer));
    };
    if !has_udp(far) {
        return found.push(Finding::relayed_udp_there(peer, &ipv6));
    }
    let both_ipv4 = answered(here.udp4) && answered(far.udp4);
    let of_nats = both_ipv4.then(|| why_ipv4_fails(here, far, peer, &ipv6));
    let of_nats = of_nats.flatten();
    let both_ipv6 = answered(here.udp6) && answered(far.udp6);
    match &of_nats {
        _ if both_ipv6 => found.push(Finding::relayed_ipv6_firewall(peer)),
        None if both_ipv4 => found.push(Finding::relayed_no_reason(peer)),
        None => found.push(Finding::relayed_no_common_family(peer, &ipv6)),
        Some(_) => {}
    }
    found.extend(of_nats);
}

/// What two NATs do together that keeps holes from being punched.
fn why_ipv4_fails(
    here: &ReachSummary,
    far: &ReachSummary,
    peer: &str,
    ipv6: &str,
) -> Option<Finding> {
    const HERE: &str = "this machine";
    let is_symmetric = |end: &ReachSummary| end.mapping == Some(MappingKind::EndpointDependent);
    // Whoever is mapped is met at that port, whatever its NAT does otherwise.
    let is_strict = |end: &ReachSummary| end.lets_other_ports_in != Some(true) && !end.is_mapped;
    match (is_symmetric(here), is_symmetric(far)) {
        (true, true) if is_strict(here) && is_strict(far) => {
            Some(Finding::relayed_symmetric(peer, ipv6))
        }
        (true, false) if is_strict(far) => {
            Some(Finding::relayed_port_filter(peer, HERE, peer, ipv6))
        }
        (false, true) if is_strict(here) => {
            Some(Finding::relayed_port_filter(peer, peer, HERE, ipv6))
        }
        _ => None,
    }
}

fn answered(outcome: ProbeOutcome) -> bool {
    outcome == ProbeOutcome::Answered
}

fn has_udp(end: &ReachSummary) -> bool {
    answered(end.udp4) || answered(end.udp6)
}

/// What would make IPv6 the way out: which end has it, and whether the other lacks it or blocks it.
fn ipv6_cure(here: &ReachSummary, far: Option<&ReachSummary>, peer: &str) -> String {
    use ProbeOutcome::{Answered, NotTried, Silent};

    match (here.udp6, far.map(|far| far.udp6)) {
        (Answered, Some(Answered)) => {
            "use IPv6, which works at both ends, and which a firewall blocks between them"
                .to_owned()
        }
        (Answered, Some(Silent)) => {
            format!("use IPv6, which works here, and which a firewall blocks at {peer}")
        }
        (Answered, Some(NotTried)) => format!("use IPv6, which works here, and which {peer} lacks"),
        (Silent, Some(Answered)) => {
            format!("use IPv6, which works at {peer}, and which a firewall blocks here")
        }
        (NotTried, Some(Answered)) => {
            format!("use IPv6, which works at {peer}, and which this machine lacks")
        }
        (Answered, None) => format!("use IPv6 at {peer} too, as it works here"),
        (Silent | NotTried, _) => "use IPv6 at both ends".to_owned(),
    }
}
