//! How long a caller waits for a peer that did not answer a moment ago.
//!
//! A dial takes as long as it may need: holes are punched, a relay is found, packets are lost. A caller who waits that long for
//! a peer that is switched off learns nothing by it. So whoever wants a peer whose last dial failed, or whose tunnel was
//! closed for its silence, waits [`SHORT_PATIENCE`]; the dial itself goes on, and later callers find its tunnel.
//!
//! A dial that this machine begins without a network is silent for long after the network is back, since what repeats its
//! packets waits ever longer (RFC 9002, section 6.2.1). So it is begun anew as soon as the machine has gained a way out
//! ([`NetworkReach`]).

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    time::{Duration, Instant},
};

use hailwire_wire::NodeId;

/// How long a caller waits for a peer that did not answer a moment ago.
pub const SHORT_PATIENCE: Duration = Duration::from_millis(1800);

/// For how long after a failure callers wait that short.
pub const REMEMBERED: Duration = Duration::from_secs(60);

/// A dial younger than this is not begun anew when the network changes: its own first repetition is as soon.
pub const DIALLED_ANEW_AFTER: Duration = Duration::from_secs(1);

/// Peers that are remembered at once; the one that failed longest ago makes way.
const MAX_PEERS: usize = 1024;

/// By which ways this machine reaches others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkReach {
    /// The addresses at which it is seen.
    pub addresses: BTreeSet<SocketAddr>,
    /// URLs of the relays to which it is connected.
    pub relays: BTreeSet<String>,
}

impl NetworkReach {
    /// Whether there is a way now that was not there before.
    #[must_use]
    pub fn gained_since(&self, before: &Self) -> bool {
        !(self.addresses.is_subset(&before.addresses) && self.relays.is_subset(&before.relays))
    }
}

/// Peers that did not answer.
#[derive(Debug, Default)]
pub struct UnreachablePeers {
    failed: HashMap<NodeId, FailedDials>,
}

#[derive(Clone, Copy, Debug)]
struct FailedDials {
    first: Instant,
    last: Instant,
}

impl UnreachablePeers {
    /// A dial failed, or a tunnel was closed because nothing came on it.
    pub fn handle_failure(&mut self, now: Instant, id: NodeId) {
        self.failed
            .retain(|_, failed| now.saturating_duration_since(failed.last) < REMEMBERED);
        if let Some(failed) = self.failed.get_mut(&id) {
            failed.last = now;
            return;
        }
        if self.failed.len() >= MAX_PEERS
            && let Some(oldest) = self.failed.iter().min_by_key(|(_, failed)| failed.last)
        {
            let oldest = *oldest.0;
            self.failed.remove(&oldest);
        }
        let failed = FailedDials {
            first: now,
            last: now,
        };
        self.failed.insert(id, failed);
    }

    /// A tunnel to the peer is up.
    pub fn handle_connected(&mut self, id: NodeId) {
        self.failed.remove(&id);
    }

    /// For how long a peer has not answered, where a caller is to wait [`SHORT_PATIENCE`] only; `None` where it waits for as
    /// long as the dial takes.
    #[must_use]
    pub fn unreachable_for(&self, now: Instant, id: NodeId) -> Option<Duration> {
        let failed = self.failed.get(&id)?;
        let recent = now.saturating_duration_since(failed.last) < REMEMBERED;
        recent.then(|| now.saturating_duration_since(failed.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    fn peer(number: u32) -> NodeId {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        NodeId::from_bytes(key)
    }

    #[test]
    fn a_way_out_that_was_not_there_is_gained_and_one_that_went_is_not() {
        let reach = |addresses: &[&str], relays: &[&str]| NetworkReach {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            relays: relays.iter().map(ToString::to_string).collect(),
        };
        let whole = reach(&["10.0.0.1:1"], &["https://hub"]);
        let lost = reach(&[], &["https://hub"]);
        assert!(!whole.gained_since(&whole));
        assert!(!lost.gained_since(&whole));
        assert!(whole.gained_since(&lost));
        assert!(whole.gained_since(&reach(&["10.0.0.1:1"], &[])));
        assert!(
            reach(&["10.9.9.9:1"], &[]).gained_since(&whole),
            "another network"
        );
    }

    #[test]
    fn a_caller_of_a_peer_that_failed_a_moment_ago_waits_briefly() {
        let begin = start();
        let mut peers = UnreachablePeers::default();
        assert_eq!(peers.unreachable_for(begin, peer(1)), None);
        peers.handle_failure(begin, peer(1));
        peers.handle_failure(begin + REMEMBERED / 2, peer(1));
        let at = |part| begin + REMEMBERED * part / 4;
        assert_eq!(
            peers.unreachable_for(at(5), peer(1)),
            Some(REMEMBERED * 5 / 4)
        );
        assert_eq!(peers.unreachable_for(at(5), peer(2)), None);
        assert_eq!(peers.unreachable_for(at(6), peer(1)), None, "long ago");
        peers.handle_connected(peer(1));
        assert_eq!(peers.unreachable_for(at(5), peer(1)), None);
    }

    #[test]
    fn no_more_peers_are_remembered_than_the_bound_and_the_newest_stay() {
        let begin = start();
        let mut peers = UnreachablePeers::default();
        let most = u32::try_from(MAX_PEERS).unwrap();
        for number in 0..=most {
            let now = begin + Duration::from_micros(u64::from(number));
            peers.handle_failure(now, peer(number));
        }
        assert_eq!(peers.failed.len(), MAX_PEERS);
        assert_eq!(peers.unreachable_for(begin, peer(0)), None);
        assert!(peers.unreachable_for(begin, peer(1)).is_some());
    }

    /// Against a list of what happened.
    fn follow(seed: u64) {
        let mut below = draws(seed, 9);
        let mut peers = UnreachablePeers::default();
        let mut now = start();
        let mut failures: [Vec<Instant>; 3] = Default::default();
        for _ in 0..40 {
            now += Duration::from_secs(u64::from(below(30)));
            let which = below(3);
            let known = &mut failures[which as usize];
            match below(3) {
                0 => {
                    if known.last().is_some_and(|last| now - *last >= REMEMBERED) {
                        known.clear();
                    }
                    known.push(now);
                    peers.handle_failure(now, peer(which));
                }
                1 => {
                    known.clear();
                    peers.handle_connected(peer(which));
                }
                _ => {}
            }
            for (which, known) in (0..).zip(&failures) {
                let recent = known.last().filter(|last| now - **last < REMEMBERED);
                let expected = recent.map(|_| now - known[0]);
                let found = peers.unreachable_for(now, peer(which));
                assert_eq!(found, expected, "seed {seed}: peer {which}");
            }
        }
    }

    #[test]
    fn any_order_of_failures_and_tunnels_is_remembered_as_long_as_it_should() {
        for_each_seed(&[], 10_000, follow);
    }
}
