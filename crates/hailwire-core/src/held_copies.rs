//! When a node leaves a sealed copy of what waits for a peer at a hub.
//!
//! A copy begins with the oldest message that the peer may not have, and takes the place of the one before: so whichever copies a hub
//! hands out, and in which order, no message comes before one that was sent earlier. Its receiver takes of a copy only messages whose
//! number is higher than all that it has decided on, so nothing comes out of order, or after it was refused for good, from a copy that a hub kept. The same copy is left once, and
//! again only when half of its time is over; a hub that refused is asked again after a pause.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use hailwire_wire::{NodeId, Status, messages::is_offered_again};

/// How long a hub that would not hold a copy for a peer is left alone about that peer.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(300);

/// Peers of which it is known what is held for them; more are forgotten, and their copies left again.
pub const MAX_KNOWN: usize = 10_000;

/// The highest number of a batch on which these statuses decide, each that of the message with the number beside it; 0 where they decide on none.
#[must_use]
pub fn decided_up_to(numbers: &[u64], statuses: &[Status]) -> u64 {
    let decided = numbers.iter().zip(statuses);
    let decided = decided.filter(|(_, status)| !is_offered_again(status.code));
    decided.map(|(number, _)| *number).max().unwrap_or(0)
}

/// Whether a message in a held copy is left out: its receiver, which has decided on all up to `newest`, has taken or refused it before, or its
/// sender has given it up.
#[must_use]
pub const fn is_decided(newest: u64, number: u64) -> bool {
    number <= newest
}

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

    /// Whether hubs are left alone about a peer, whatever waits for it.
    #[must_use]
    pub fn is_refused(&self, now: Instant, peer: NodeId) -> bool {
        matches!(self.left.get(&peer), Some(LeftCopy::Refused { again }) if now < *again)
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hailwire_wire::Code;

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

    /// The receiver's side: what it took in its order, what it still knows, and the newest number on which it decided.
    #[derive(Default)]
    struct Receiver {
        taken: Vec<u64>,
        known: Vec<u64>,
        refused: Vec<u64>,
        newest: u64,
        is_full: bool,
        refuses: Option<u64>,
    }

    impl Receiver {
        /// Takes a batch; messages of every third number from `refuses` on are of an agent that the sender may not call.
        fn take(&mut self, batch: std::ops::Range<u64>, from_hub: bool) -> Vec<Status> {
            let before = self.newest;
            let numbers: Vec<u64> = batch.collect();
            let mut statuses: Vec<Status> = Vec::new();
            for number in &numbers {
                let refuses = self.refuses.is_some_and(|third| number % 3 == third);
                let closed = statuses.last().filter(|last| is_offered_again(last.code));
                statuses.push(match closed {
                    Some(closed) => closed.clone(),
                    None if refuses => Status::new(Code::PermissionDenied, "no"),
                    None if self.is_full => Status::new(Code::ResourceExhausted, "full"),
                    None => Status::ok(),
                });
            }
            for (number, status) in numbers.iter().zip(&statuses) {
                let is_old = from_hub && is_decided(before, *number);
                if is_old || self.known.contains(number) || is_offered_again(status.code) {
                    continue;
                }
                match status.code {
                    Code::Ok => {
                        self.taken.push(*number);
                        self.known.push(*number);
                    }
                    _ => {
                        self.refused.push(*number);
                        // Its sender has no answer, so it is kept for a receipt.
                        if from_hub {
                            self.known.push(*number);
                        }
                    }
                }
            }
            self.newest = before.max(decided_up_to(&numbers, &statuses));
            statuses
        }
    }

    /// A sender appends, gives up some that were offered, leaves copies from the oldest message on that the receiver is not known to have
    /// decided on, and sends directly now and then; a hub keeps every copy that it ever saw and hands out any of them at any time, more than
    /// once or never; the receiver changes what it allows, has no room at times, and forgets what it once knew.
    #[test]
    fn whichever_copies_a_hub_hands_out_nothing_comes_out_of_order_or_twice_or_after_it_was_refused()
     {
        let by_hub = AtomicUsize::new(0);
        for_each_seed(&[], 4_000, |seed| {
            let mut draw = draws(seed, 36);
            let (mut sent, mut settled) = (0_u64, 0_u64);
            let mut receiver = Receiver::default();
            let mut copies: Vec<std::ops::Range<u64>> = Vec::new();
            for _ in 0..80 {
                let batch = settled + 1..(sent + 1).min(settled + 2 + u64::from(draw(5)));
                match draw(8) {
                    0 | 1 => sent += 1,
                    2 => copies.push(batch),
                    3 => {
                        let statuses = receiver.take(batch.clone(), false);
                        let refused = statuses
                            .iter()
                            .any(|status| status.code == Code::PermissionDenied);
                        // Where the answer is lost, all of it is offered again.
                        if refused || draw(2) == 0 {
                            let again = statuses.iter().position(|s| is_offered_again(s.code));
                            settled += again.unwrap_or(statuses.len()) as u64;
                        }
                    }
                    // The oldest has had its time, or is withdrawn.
                    4 => settled = sent.min(settled + 1),
                    5 => match draw(4) {
                        0 => receiver.known.retain(|number| *number > settled),
                        1 => receiver.is_full = !receiver.is_full,
                        _ => receiver.refuses = (draw(2) == 0).then(|| u64::from(draw(3))),
                    },
                    _ if copies.is_empty() => {}
                    _ => {
                        let copy = copies[draw(copies.len() as u32) as usize].clone();
                        let before = receiver.taken.len();
                        receiver.take(copy, true);
                        by_hub.fetch_add(receiver.taken.len() - before, Ordering::Relaxed);
                    }
                }
            }
            let taken = &receiver.taken;
            assert!(taken.is_sorted_by(|a, b| a < b), "seed {seed}: {taken:?}");
            let twice = taken
                .iter()
                .find(|number| receiver.refused.contains(number));
            assert_eq!(twice, None, "seed {seed}");
        });
        let by_hub = by_hub.into_inner();
        assert!(by_hub > 1_000, "the hub brought {by_hub}");
    }
}
