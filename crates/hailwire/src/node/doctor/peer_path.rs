//! The path to a peer: what is tried, what came back, and what the peer says of its end.

use std::{sync::Arc, time::Duration};

use hailwire_core::{
    Carrier,
    diagnosis::{self, PairFacts, PeerState},
};
use hailwire_wire::{Code, NodeId, Status, address::NodeRef};
use tokio::time::timeout;

use super::report::{reach, summary};
use crate::{
    admin,
    node::{
        NodeInner, dial, hubs,
        manage::{known_as, trusts_us},
        overlay::NodeAddresses,
        resolve, status, tunnel,
    },
    session::Session,
};

/// How long a relayed tunnel may take to get a direct path, before it is said why it has none.
const PATH_PATIENCE: Duration = Duration::from_secs(4);

/// How long a peer may take to say what its network allows.
const PEER_PATIENCE: Duration = Duration::from_secs(9);

/// Most bytes of what a peer says.
const MAX_REPORT: usize = 32 * 1024;

/// Most addresses that are told to a peer, and that are taken from one.
const MAX_CANDIDATES: usize = 32;

/// Most bytes of each.
const MAX_CANDIDATE: usize = 256;

/// What is known of a peer, the tunnel brought up, and how that is shown.
pub(super) async fn pair(
    node: &Arc<NodeInner>,
    who: &str,
) -> Result<(PairFacts, admin::PeerDiagnosis), Status> {
    let who_ref: NodeRef = who
        .parse()
        .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
    let facts = |state, far| PairFacts {
        peer: who.to_owned(),
        state,
        far,
    };
    let mut shown = admin::PeerDiagnosis::default();
    let id = match resolve::resolve(node, &who_ref).await {
        Ok(id) => id,
        Err(status) if status.code == Code::NotFound => {
            return Ok((facts(PeerState::Unknown, None), shown));
        }
        Err(status) => return Ok((facts(PeerState::Away(status.message), None), shown)),
    };
    (shown.id, shown.name) = (Some(id), known_as(node, id));
    if !hubs::trusts(node, id).await {
        return Ok((facts(PeerState::Untrusted, None), shown));
    }
    let places = tunnel::places(node, id).await;
    let candidates = tried_candidates(&places);
    let session = match tunnel::tunnel_to(node, id).await {
        Ok(session) => session,
        Err(_) if places.is_empty() => {
            return Ok((facts(PeerState::WithoutAddress, None), shown));
        }
        Err(status) => {
            shown.candidates = shown_candidates(candidates, &[]);
            shown.pairs = pairs(&shown.candidates, &[]);
            return Ok((facts(PeerState::Away(status.message), None), shown));
        }
    };
    if !matches!(trusts_us(&session).await, Ok(true)) {
        return Ok((facts(PeerState::Distrusts, None), shown));
    }
    // The peer measures meanwhile, so that it can say at once what has become of the path.
    let (_, ()) = tokio::join!(report_of(&session), direct(node, id));
    let session = node.peers.up(id).unwrap_or(session);
    let report = report_of(&session).await;
    let path = status::path(&session);
    shown.candidates = bounded(candidates_with(node, id, candidates, &session));
    let mut far = None;
    if let Some(report) = report {
        let of_far = summary(&report.network);
        far = Some(of_far);
        shown.far = Some(reach(&of_far));
        shown.far_candidates = bounded(report.candidates);
    }
    shown.pairs = pairs(&shown.candidates, &shown.far_candidates);
    let state = PeerState::Up {
        carrier: session.connection().carrier().to_owned(),
        relayed: path.kind == "relay",
        remote: path.remote,
        tcp_allowed: dial::carrier_for(node, id) != Carrier::Quic,
    };
    Ok((facts(state, far), shown))
}

/// Both ends' candidates put together.
fn pairs(
    candidates: &[admin::PathCandidate],
    far_candidates: &[admin::PathCandidate],
) -> Vec<admin::AddressPair> {
    let pairs = diagnosis::candidate_pairs(&tried(candidates), &tried(far_candidates));
    let shown = pairs.into_iter().map(|pair| admin::AddressPair {
        kind: pair.kind.to_owned(),
        near: pair.near.map(str::to_owned),
        far: pair.far.map(str::to_owned),
        outcome: pair.outcome.name().to_owned(),
    });
    shown.collect()
}

fn tried(candidates: &[admin::PathCandidate]) -> Vec<diagnosis::TriedCandidate<'_>> {
    let tried = candidates.iter().map(|one| diagnosis::TriedCandidate {
        kind: &one.kind,
        address: &one.address,
        answered: one.answered,
        used: one.used,
    });
    tried.collect()
}

/// A kind of candidate and its address.
type TriedCandidate = (&'static str, String);

/// Where a peer may be.
pub(super) fn tried_candidates(places: &NodeAddresses) -> Vec<TriedCandidate> {
    let udp = places.addresses.iter().chain(&places.held_back);
    let udp = udp.map(|address| ("udp", address.to_string()));
    let tcp = places
        .tcp
        .iter()
        .map(|address| ("tcp", address.to_string()));
    let relays = places.relays.iter().map(|relay| ("relay", one_way(relay)));
    udp.chain(tcp).chain(relays).collect()
}

/// What came of each while `session` takes new calls.
pub(super) fn candidates_with(
    node: &NodeInner,
    id: NodeId,
    tried: Vec<TriedCandidate>,
    session: &Session,
) -> Vec<admin::PathCandidate> {
    let udp = node.peers.connections(id, hailwire_core::Transport::Udp);
    let open = udp.first().unwrap_or(session).connection().open_paths();
    let open: Vec<String> = open.iter().map(|remote| one_way(remote)).collect();
    let used = one_way(&status::path(session).remote);
    let mut candidates = shown_candidates(tried, &open);
    for candidate in &mut candidates {
        candidate.used = candidate.address == used;
        candidate.answered |= candidate.used;
    }
    candidates
}

/// A relay's URL in the form of hubs' URLs, whichever it has; an address as it is.
fn one_way(address: &str) -> String {
    let short = address.trim_end_matches('/');
    match short.strip_prefix("https://") {
        Some(_) => short.strip_suffix(":443").unwrap_or(short).to_owned(),
        None => address.to_owned(),
    }
}

/// Addresses that were tried, and those at which the peer turned out to be beside them.
pub(super) fn shown_candidates(
    tried: Vec<TriedCandidate>,
    open: &[String],
) -> Vec<admin::PathCandidate> {
    let mut shown: Vec<admin::PathCandidate> = Vec::new();
    let seen = open.iter().map(|remote| {
        let kind = if remote.contains("://") {
            "relay"
        } else {
            "udp"
        };
        (kind, remote.clone())
    });
    for (kind, address) in tried.into_iter().chain(seen) {
        if !shown.iter().any(|known| known.address == address) {
            shown.push(admin::PathCandidate {
                kind: kind.to_owned(),
                answered: open.contains(&address),
                used: false,
                address,
            });
        }
    }
    shown
}

/// Waits until the tunnel that takes new calls has a direct path, for a moment.
async fn direct(node: &NodeInner, id: NodeId) {
    let mut changes = node.peers.changes();
    let direct = async {
        loop {
            changes.mark_unchanged();
            let up = node.peers.up(id);
            let relayed = up.is_none_or(|session| {
                let stats = session.connection().stats();
                stats.relayed || stats.remote.is_empty()
            });
            if !relayed || changes.changed().await.is_err() {
                return;
            }
        }
    };
    // Without one it is said why.
    let _ = timeout(PATH_PATIENCE, direct).await;
}

/// What the peer says of its network and of the addresses of this node; nothing where it is of another version.
async fn report_of(session: &Session) -> Option<admin::PeerReport> {
    let asked = tunnel::ask_node(
        session,
        admin::method::REACH,
        crate::Body::empty(),
        MAX_REPORT,
    );
    let said = timeout(PEER_PATIENCE, asked).await.ok()?.ok()?;
    serde_json::from_slice(&said).ok()
}

/// No more and no longer ones than are told.
pub(super) fn bounded(mut candidates: Vec<admin::PathCandidate>) -> Vec<admin::PathCandidate> {
    // What is in use is not what is left out.
    candidates.sort_by_key(|candidate| !candidate.answered);
    candidates.truncate(MAX_CANDIDATES);
    for candidate in &mut candidates {
        for text in [&mut candidate.kind, &mut candidate.address] {
            text.truncate(text.floor_char_boundary(MAX_CANDIDATE));
        }
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_candidates_is_bounded_and_keeps_what_answered() {
        let candidate = |place: usize| admin::PathCandidate {
            kind: "udp".to_owned(),
            address: format!("{place}{}", "é".repeat(MAX_CANDIDATE)),
            answered: place == 99,
            used: false,
        };
        let told = bounded((0..100).map(candidate).collect());
        assert_eq!(told.len(), MAX_CANDIDATES);
        assert!(told[0].answered && told.iter().all(|one| one.address.len() <= MAX_CANDIDATE));
        let report = admin::PeerReport {
            candidates: told,
            ..admin::PeerReport::default()
        };
        assert!(serde_json::to_vec(&report).unwrap().len() < MAX_REPORT);
    }

    #[test]
    fn a_report_of_an_older_peer_has_no_candidates() {
        let older = serde_json::to_vec(&admin::ReachReport::default()).unwrap();
        let report: admin::PeerReport = serde_json::from_slice(&older).unwrap();
        assert_eq!(report, admin::PeerReport::default());
    }

    #[test]
    fn a_relay_is_one_however_its_url_is_written() {
        for url in [
            "https://hub",
            "https://hub/",
            "https://hub:443",
            "https://hub:443/",
        ] {
            assert_eq!(one_way(url), "https://hub");
        }
        assert_eq!(
            one_way("https://[2001:db8::443]/"),
            "https://[2001:db8::443]"
        );
        assert_eq!(one_way("https://hub:7443/"), "https://hub:7443");
        assert_eq!(one_way("192.0.2.1:443"), "192.0.2.1:443");
    }

    #[test]
    fn a_candidate_is_shown_once_and_says_whether_it_answered() {
        let tried = vec![
            ("udp", "192.0.2.1:7".to_owned()),
            ("relay", "https://hub/".to_owned()),
        ];
        let open = ["https://hub/".to_owned(), "192.0.2.1:9".to_owned()];
        let shown = shown_candidates(tried, &open);
        let told: Vec<_> = shown
            .iter()
            .map(|one| (one.kind.as_str(), one.address.as_str(), one.answered))
            .collect();
        assert_eq!(
            told,
            [
                ("udp", "192.0.2.1:7", false),
                ("relay", "https://hub/", true),
                ("udp", "192.0.2.1:9", true)
            ]
        );
    }
}
