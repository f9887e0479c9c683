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
            found.push(match (relayed, carrier.as_str()) {
                (false, "quic") => Finding::path_direct(peer, remote),
                (false, carrier) => Finding::path_direct_tcp(peer, remote, carrier),
                (true, _) => why_relayed(near, pair),
            });
            let listens = pair.far.is_some_and(|far| far.listens_tcp);
            if *relayed && listens && !tcp_allowed {
                found.push(Finding::relayed_by_setting(peer));
            }
        }
    }
    sorted(found)
}

fn why_relayed(near: &NetworkFacts, pair: &PairFacts) -> Finding {
    let peer = pair.peer.as_str();
    let here = near.summary();
    let answers = |outcome| outcome == ProbeOutcome::Answered;
    if !answers(here.udp4) && !answers(here.udp6) {
        return Finding::relayed_udp_here(peer);
    }
    let Some(far) = pair.far else {
        return Finding::relayed_unknown(peer);
    };
    if !answers(far.udp4) && !answers(far.udp6) {
        return Finding::relayed_udp_there(peer);
    }
    if answers(here.udp6) && answers(far.udp6) {
        return Finding::relayed_no_reason(peer);
    }
    if !(answers(here.udp4) && answers(far.udp4)) {
        return Finding::relayed_no_common_family(peer);
    }
    let is_symmetric = |end: &ReachSummary| end.mapping == Some(MappingKind::EndpointDependent);
    // Whoever is mapped is met at that port, whatever its NAT does otherwise.
    let is_strict = |end: &ReachSummary| end.lets_other_ports_in != Some(true) && !end.is_mapped;
    match (is_symmetric(&here), is_symmetric(&far)) {
        (true, true) if is_strict(&here) && is_strict(&far) => Finding::relayed_symmetric(peer),
        (true, false) if is_strict(&far) => {
            Finding::relayed_port_filter(peer, "this machine", peer)
        }
        (false, true) if is_strict(&here) => {
            Finding::relayed_port_filter(peer, peer, "this machine")
        }
        _ => Finding::relayed_no_reason(peer),
    }
}
