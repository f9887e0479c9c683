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

/// The number up to which everything is decided after a batch, whose statuses are those of the messages with the numbers beside them; 0 where
/// nothing is. A sender offers what is open in its order, so what is lower than all that it offers, or has left out of the batch (`left_out`; 0
/// for none), is decided or given up. A message that is to be offered again is not decided, and neither counts anything behind it.
#[must_use]
pub fn decided_up_to(numbers: &[u64], statuses: &[Status], left_out: u64) -> u64 {
    let all = numbers.iter().copied().zip(statuses);
    let open = all.filter(|(_, status)| is_offered_again(status.code));
    let open = open.map(|(number, _)| number);
    match open.chain((left_out > 0).then_some(left_out)).min() {
        Some(first_open) => first_open.saturating_sub(1),
        None => numbers.iter().copied().max().unwrap_or(0),
    }
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

    /// Messages with numbers of the same remainder are of one lane.
    const LANES: u64 = 3;

    /// The receiver's side: what it took in its order, what it still knows, and the newest number on which it decided.
    #[derive(Default)]
    struct Receiver {
        taken: Vec<u64>,
        known: Vec<u64>,
        refused: Vec<u64>,
        newest: u64,
        /// The lanes that have no room.
        full: Vec<u64>,
        refuses: Option<u64>,
    }

    impl Receiver {
        /// Takes a batch; messages of the lane `refuses` are of an agent that the sender may not call.
        fn take(&mut self, numbers: &[u64], left_out: u64, from_hub: bool) -> Vec<Status> {
            let before = self.newest;
            let mut closed = false;
            let mut statuses: Vec<Status> = Vec::new();
            for number in numbers {
                let lane = number % LANES;
                let is_full = self.full.contains(&lane) || (from_hub && closed);
                statuses.push(match self.refuses {
                    Some(refused) if refused == lane => Status::new(Code::PermissionDenied, "no"),
                    _ if is_full => Status::new(Code::ResourceExhausted, "full"),
                    _ => Status::ok(),
                });
                closed |= self.full.contains(&lane);
            }
            self.newest = before.max(decided_up_to(numbers, &statuses, left_out));
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
                        // What the number does not say is kept, and of what a hub brought its sender has no answer.
                        if from_hub || *number > self.newest {
                            self.known.push(*number);
                        }
                    }
                }
            }
            statuses
        }
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[
        // What its sender had given up was not decided while something behind it had no room.
        6,
    ];

    /// A sender appends, gives up some that were offered, leaves copies from the oldest message on that the receiver is not known to have
    /// decided on, and sends directly now and then, lanes that rest left out; a hub keeps every copy that it ever saw and hands out any of them
    /// at any time, more than once or never; the receiver changes what it allows, has no room for some lanes at times, and forgets what it
    /// once knew.
    #[test]
    fn whichever_copies_a_hub_hands_out_no_lane_comes_out_of_order_or_twice_or_after_it_was_refused()
     {
        let (by_hub, past_a_full_one) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for_each_seed(KEPT, 6_000, |seed| {
            let mut draw = draws(seed, 36);
            let mut sent = 0_u64;
            let mut open: std::collections::BTreeSet<u64> = Default::default();
            let mut receiver = Receiver::default();
            let mut copies: Vec<Vec<u64>> = Vec::new();
            let mut resting: Vec<u64> = Vec::new();
            for _ in 0..80 {
                let most = 1 + draw(5) as usize;
                match draw(8) {
                    0 | 1 => {
                        sent += 1;
                        open.insert(sent);
                    }
                    2 => copies.push(open.iter().copied().take(most).collect()),
                    3 => {
                        let goes = |number: &&u64| !resting.contains(&(*number % LANES));
                        let batch: Vec<u64> =
                            open.iter().filter(goes).copied().take(most).collect();
                        let last = batch.last().copied().unwrap_or(0);
                        let rests = |number: &u64| resting.contains(&(number % LANES));
                        let left_out = open.iter().copied().find(|n| *n < last && rests(n));
                        let statuses = receiver.take(&batch, left_out.unwrap_or(0), false);
                        if left_out.is_some() && statuses.iter().any(Status::is_ok) {
                            past_a_full_one.fetch_add(1, Ordering::Relaxed);
                        }
                        let refused = statuses
                            .iter()
                            .any(|status| status.code == Code::PermissionDenied);
                        // Where the answer is lost, all of it is offered again.
                        if refused || draw(2) == 0 {
                            for (number, status) in batch.iter().zip(&statuses) {
                                match is_offered_again(status.code) {
                                    true => resting.push(number % LANES),
                                    false => drop(open.remove(number)),
                                }
                            }
                        }
                    }
                    // The oldest has had its time, or is withdrawn.
                    4 => drop(open.pop_first()),
                    5 => match draw(5) {
                        0 => {
                            let newest = receiver.newest;
                            let known = &mut receiver.known;
                            known.retain(|number| open.contains(number) || *number > newest);
                        }
                        1 => receiver.full.push(u64::from(draw(LANES as u32))),
                        2 => receiver.full.clear(),
                        3 => resting.clear(),
                        _ => receiver.refuses = (draw(2) == 0).then(|| u64::from(draw(3))),
                    },
                    _ if copies.is_empty() => {}
                    _ => {
                        let copy = copies[draw(copies.len() as u32) as usize].clone();
                        let before = receiver.taken.len();
                        receiver.take(&copy, 0, true);
                        by_hub.fetch_add(receiver.taken.len() - before, Ordering::Relaxed);
                    }
                }
            }
            for lane in 0..LANES {
                let taken = receiver
                    .taken
                    .iter()
                    .filter(|number| *number % LANES == lane);
                let taken: Vec<&u64> = taken.collect();
                assert!(taken.is_sorted_by(|a, b| a < b), "seed {seed}: {taken:?}");
            }
            let twice = receiver
                .taken
                .iter()
                .find(|number| receiver.refused.contains(number));
            assert_eq!(twice, None, "seed {seed}");
        });
        let counts = [by_hub, past_a_full_one].map(AtomicUsize::into_inner);
        assert!(counts.iter().all(|count| *count > 1_000), "{counts:?}");
    }
}
