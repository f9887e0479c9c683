//! When a node leaves a sealed copy of what waits for a peer at a hub.
//!
//! A copy begins with the oldest message that the peer may not have, and takes the place of the one before: so whichever copies a hub
//! hands out, and in which order, no message comes before one that was sent earlier. The same copy is left once, and
//! again only when half of its time is over; a hub that refused is asked again after a pause.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use hailwire_wire::NodeId;

/// How long a hub that would not hold a copy for a peer is left alone about that peer.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(300);

/// Peers of which it is known what is held for them; more are forgotten, and their copies left again.
pub const MAX_KNOWN: usize = 10_000;

/// What is in a copy: a digest over the ids in it.
pub type CopyDigest = [u8; 32];

/// The copies that were left, by receiver.
#[derive(Debug, Default)]
pub struct HeldCopies {
    left: HashMap<NodeId, LeftCopy>,
}

#[derive(Debug)]
enum LeftCopy {
    Held { digest: CopyDigest, renew: Instant },
    Refused { again: Instant },
}

impl HeldCopies {
    /// Whether a copy of these contents is to be sealed and left for a peer that cannot be reached.
    #[must_use]
    pub fn is_due(&self, now: Instant, peer: NodeId, digest: CopyDigest) -> bool {
        match self.left.get(&peer) {
            None => true,
            Some(LeftCopy::Held { digest: of, renew }) => *of != digest || now >= *renew,
            Some(LeftCopy::Refused { again }) => now >= *again,
        }
    }

    /// A hub holds the copy for so long.
    pub fn handle_held(&mut self, now: Instant, peer: NodeId, digest: CopyDigest, time: Duration) {
        let renew = now + time / 2;
        self.note(peer, LeftCopy::Held { digest, renew });
    }

    /// No hub holds it.
    pub fn handle_refused(&mut self, now: Instant, peer: NodeId) {
        let again = now + REFUSED_PAUSE;
        self.note(peer, LeftCopy::Refused { again });
    }

    /// The peer has answered: what it was told, and has, changes what waits.
    pub fn handle_reached(&mut self, peer: NodeId) {
        self.left.remove(&peer);
    }

    fn note(&mut self, peer: NodeId, copy: LeftCopy) {
        if self.left.len() >= MAX_KNOWN && !self.left.contains_key(&peer) {
            self.left.clear();
        }
        self.left.insert(peer, copy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    fn peer(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    #[test]
    fn the_same_copy_is_left_once_and_renewed_when_half_its_time_is_over() {
        let (now, mut copies) = (start(), HeldCopies::default());
        let day = Duration::from_secs(24 * 3600);
        assert!(copies.is_due(now, peer(1), [1; 32]));
        copies.handle_held(now, peer(1), [1; 32], 6 * day);
        assert!(!copies.is_due(now + 2 * day, peer(1), [1; 32]));
        assert!(copies.is_due(now + 3 * day, peer(1), [1; 32]));
        assert!(copies.is_due(now, peer(1), [2; 32]), "more waits");
        assert!(copies.is_due(now, peer(2), [1; 32]), "for another");
        copies.handle_reached(peer(1));
        assert!(copies.is_due(now, peer(1), [1; 32]));
    }

    #[test]
    fn a_hub_that_refuses_is_left_alone_for_a_while_whatever_waits() {
        let (now, mut copies) = (start(), HeldCopies::default());
        copies.handle_refused(now, peer(1));
        let a_moment_before = now + REFUSED_PAUSE - Duration::from_millis(1);
        assert!(!copies.is_due(a_moment_before, peer(1), [2; 32]));
        assert!(copies.is_due(now + REFUSED_PAUSE, peer(1), [2; 32]));
    }

    #[test]
    fn what_is_known_of_peers_is_bounded() {
        let (now, mut copies) = (start(), HeldCopies::default());
        for number in 0..=MAX_KNOWN {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&(number as u64).to_be_bytes());
            copies.handle_refused(now, NodeId::from_bytes(key));
            assert!(copies.left.len() <= MAX_KNOWN);
        }
    }

    /// A sender appends, leaves copies from the oldest message that the receiver is not known to have, and sends directly now and
    /// then; a hub keeps every copy that it ever saw and hands out any of them at any time, more than once or never.
    #[test]
    fn whichever_copies_a_hub_hands_out_nothing_comes_out_of_order_or_twice() {
        for_each_seed(&[], 2_000, |seed| {
            let mut draw = draws(seed, 36);
            let (mut sent, mut answered) = (0_usize, 0_usize);
            let mut taken: Vec<usize> = Vec::new();
            let mut copies: Vec<std::ops::Range<usize>> = Vec::new();
            for _ in 0..60 {
                let most = 1 + draw(5) as usize;
                let batch = answered..sent.min(answered + most);
                let mut take = |batch: std::ops::Range<usize>| {
                    // The receiver knows the ids that it has.
                    for message in batch {
                        if !taken.contains(&message) {
                            taken.push(message);
                        }
                    }
                };
                match draw(4) {
                    0 => sent += 1,
                    1 => copies.push(batch),
                    2 => {
                        take(batch.clone());
                        if draw(2) == 0 {
                            answered = batch.end;
                        }
                    }
                    _ if copies.is_empty() => {}
                    _ => take(copies[draw(copies.len() as u32) as usize].clone()),
                }
            }
            let in_order: Vec<usize> = (0..taken.len()).collect();
            assert_eq!(taken, in_order, "seed {seed}");
        });
    }
}
