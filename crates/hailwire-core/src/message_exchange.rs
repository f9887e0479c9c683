//! When a node asks a peer to take messages and receipts.
//!
//! One batch is under way to a peer at a time, and the next goes when it was answered, so that what is sent in order arrives in order. A peer
//! that cannot be reached is tried again after pauses that double up to [`LONGEST_PAUSE`], and at once when a tunnel to it is up: whoever
//! wakes up gets its messages then, and who sleeps costs an attempt every few minutes.
//!
//! What waits for a peer that could not be reached is copied to a hub as well, if one holds it: after each failed attempt, and when more comes
//! meanwhile, at most once each [`COPY_PAUSE`] for one peer. Copies have slots of their own, so that a slow hub holds up no batch.
//!
//! A peer may have no room for the messages of one sender, or for one agent. Then those of this sender to this agent, an [`OfferedLane`], rest
//! for as long as the peer says, and all others go on.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use hailwire_wire::NodeId;

/// After the first failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest pause between two attempts to reach a peer for which something waits.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Until it is first looked whether a peer that has messages of this node can still say how they ended.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// Longest pause between two such looks.
const LONGEST_LOOK: Duration = Duration::from_secs(60);

/// Batches under way at once, to different peers.
pub const AT_ONCE: usize = 64;

/// Shortest time between two copies of what waits for one peer.
pub const COPY_PAUSE: Duration = Duration::from_secs(5);

/// Lanes of one peer that rest at once; where more have no room, nothing is offered to that peer for a while.
pub const RESTING_LANES: usize = 1000;

/// Copies under way at once to hubs, for different peers; each is up to a few MiB of memory.
pub const COPIES_AT_ONCE: usize = 8;

/// The messages of one sender to one agent of a peer, which keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OfferedLane {
    /// The sender's name at this node; empty for programs that have none.
    pub sender: String,
    /// The agent at the peer.
    pub agent: String,
}

/// The peers for which something waits.
#[derive(Debug, Default)]
pub struct MessageExchange {
    peers: HashMap<NodeId, PeerExchange>,
    under_way: usize,
    /// The peers for which a copy is under way, also those that have answered meanwhile.
    copying: HashSet<NodeId>,
}

#[derive(Debug)]
struct PeerExchange {
    /// `None` while a batch is under way.
    due: Option<Instant>,
    /// More came while a batch was under way.
    more: bool,
    failures: u32,
    /// Nothing waits for it, and it owes receipts: how often it was looked for since.
    looks: Option<u32>,
    /// Nothing waits but what rests.
    rests: bool,
    full: HashMap<OfferedLane, FullLane>,
    /// `None` where nothing is new since the last copy.
    copy_due: Option<Instant>,
    copied: Option<Instant>,
}

/// A lane for which the peer has no room.
#[derive(Debug)]
struct FullLane {
    refusals: u32,
    rests_until: Instant,
}

impl PeerExchange {
    /// When the next of the lanes that rest is offered again.
    fn next_lane(&self, now: Instant) -> Option<Instant> {
        let lanes = self.full.values().map(|lane| lane.rests_until);
        lanes.filter(|until| *until > now).min()
    }

    fn ask_for_copy(&mut self, now: Instant) {
        let rested = self.copied.map_or(now, |copied| copied + COPY_PAUSE);
        self.copy_due = Some(now.max(rested));
    }
}

impl MessageExchange {
    /// Something waits for a peer.
    pub fn handle_waiting(&mut self, now: Instant, peer: NodeId) {
        let known = self.peers.entry(peer).or_insert(PeerExchange {
            due: Some(now),
            more: false,
            failures: 0,
            looks: None,
            rests: false,
            full: HashMap::new(),
            copy_due: None,
            copied: None,
        });
        known.more = true;
        let rested = std::mem::take(&mut known.rests);
        if (known.looks.take().is_some() || rested)
            && let Some(due) = &mut known.due
        {
            *due = now.min(*due);
        }
        if known.failures > 0 {
            known.ask_for_copy(now);
        }
    }

    /// There is a tunnel to a peer, which may have been away.
    pub fn handle_reachable(&mut self, now: Instant, peer: NodeId) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.failures = 0;
            known.copy_due = None;
            if let Some(due) = &mut known.due {
                *due = now.min(*due);
            }
        }
    }

    /// The next peer to be sent a batch.
    pub fn poll_batch(&mut self, now: Instant) -> Option<NodeId> {
        if self.under_way >= AT_ONCE {
            return None;
        }
        let due = self
            .peers
            .iter_mut()
            .filter(|(_, known)| known.due.is_some_and(|due| due <= now));
        let (id, known) = due.min_by_key(|(id, known)| (known.due, **id))?;
        known.due = None;
        known.more = false;
        self.under_way += 1;
        Some(*id)
    }

    /// Whether the batch that is under way to a peer is to be sent even with nothing in it: it looks whether the peer, which owes receipts, still
    /// hears this node.
    #[must_use]
    pub fn is_look(&self, peer: NodeId) -> bool {
        self.peers
            .get(&peer)
            .is_some_and(|known| known.looks.is_some())
    }

    /// The batch to a peer was answered. `more` is to be sent, or may have come meanwhile.
    pub fn handle_answered(&mut self, now: Instant, peer: NodeId, more: bool) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(known) = self.peers.get_mut(&peer) {
            known.failures = 0;
            known.copy_due = None;
            known.due = Some(now);
            known.rests = false;
            if !more && !known.more {
                match known.next_lane(now) {
                    None => drop(self.peers.remove(&peer)),
                    Some(lane) => {
                        known.due = Some(lane);
                        known.rests = true;
                    }
                }
            }
        }
    }

    /// The peer took a message of a lane.
    pub fn handle_lane_taken(&mut self, peer: NodeId, lane: &OfferedLane) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.full.remove(lane);
        }
    }

    /// The peer, whose batch was answered, has no room for a lane, and says perhaps when to come back. The pauses of one that is refused again
    /// and again double.
    pub fn handle_lane_full(
        &mut self,
        now: Instant,
        peer: NodeId,
        lane: OfferedLane,
        retry_after: Option<Duration>,
    ) {
        let Some(known) = self.peers.get_mut(&peer) else {
            return;
        };
        if known.full.len() >= RESTING_LANES && !known.full.contains_key(&lane) {
            known.full.retain(|_, lane| lane.rests_until > now);
            if known.full.len() >= RESTING_LANES {
                known.due = known.next_lane(now);
                return;
            }
        }
        let lane = known.full.entry(lane).or_insert(FullLane {
            refusals: 0,
            rests_until: now,
        });
        let pause = FIRST_PAUSE.saturating_mul(1 << lane.refusals.min(20));
        let pause = pause.max(retry_after.unwrap_or_default());
        lane.refusals = lane.refusals.saturating_add(1);
        lane.rests_until = now + pause.min(LONGEST_PAUSE);
    }

    /// A message that a peer had has its end: lanes that wait for the room of its sender, or of its agent, are offered again at once. Returns
    /// whether there is one.
    pub fn handle_room(&mut self, now: Instant, peer: NodeId, sender: &str, agent: &str) -> bool {
        let Some(known) = self.peers.get_mut(&peer) else {
            return false;
        };
        let mut offers = false;
        for (lane, full) in &mut known.full {
            if full.rests_until > now && (lane.sender == sender || lane.agent == agent) {
                full.rests_until = now;
                full.refusals = 0;
                offers = true;
                known.more = true;
                if let Some(due) = &mut known.due {
                    *due = now.min(*due);
                }
            }
        }
        offers
    }

    /// The lanes of a peer that are not to be offered now.
    #[must_use]
    pub fn resting_lanes(&self, now: Instant, peer: NodeId) -> Vec<OfferedLane> {
        let known = self.peers.get(&peer).into_iter();
        let lanes = known.flat_map(|known| &known.full);
        lanes
            .filter(|(_, lane)| lane.rests_until > now)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// There was nothing to send to a peer, with which a tunnel is up; it has messages of this node and has not said yet how they ended. It is looked for now and then,
    /// because it may have been restarted, and have no way to a node behind a NAT but the tunnel that this one makes.
    pub fn handle_awaiting(&mut self, now: Instant, peer: NodeId) {
        let looks = self.peers.get(&peer).and_then(|known| known.looks);
        self.handle_answered(now, peer, true);
        if let Some(known) = self.peers.get_mut(&peer)
            && !known.more
        {
            let looks = looks.unwrap_or(0);
            let pause = FIRST_LOOK.saturating_mul(1 << looks.min(20));
            known.looks = Some(looks.saturating_add(1));
            let look = now + pause.min(LONGEST_LOOK);
            known.due = known.next_lane(now).into_iter().chain([look]).min();
        }
    }

    /// The peer could not be reached: what waits for it is copied to a hub too.
    pub fn handle_unreachable(&mut self, now: Instant, peer: NodeId) {
        self.handle_failed(now, peer);
        if let Some(known) = self.peers.get_mut(&peer) {
            known.ask_for_copy(now);
        }
    }

    /// The next peer for which a copy of what waits is left at a hub.
    pub fn poll_copy(&mut self, now: Instant) -> Option<NodeId> {
        if self.copying.len() >= COPIES_AT_ONCE {
            return None;
        }
        let due = self.peers.iter_mut().filter(|(id, known)| {
            known.copy_due.is_some_and(|due| due <= now) && !self.copying.contains(id)
        });
        let (id, known) = due.min_by_key(|(id, known)| (known.copy_due, **id))?;
        known.copy_due = None;
        known.copied = Some(now);
        self.copying.insert(*id);
        Some(*id)
    }

    /// The copy for a peer is left, or was not to be.
    pub fn handle_copied(&mut self, peer: NodeId) {
        self.copying.remove(&peer);
    }

    /// The batch to a peer was not answered, or not taken whole.
    pub fn handle_failed(&mut self, now: Instant, peer: NodeId) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(known) = self.peers.get_mut(&peer) {
            let pause = FIRST_PAUSE.saturating_mul(1 << known.failures.min(20));
            known.failures = known.failures.saturating_add(1);
            known.due = Some(now + pause.min(LONGEST_PAUSE));
        }
    }

    /// When [`MessageExchange::poll_batch`] or [`MessageExchange::poll_copy`] has something that it has not now.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let batch = (self.under_way < AT_ONCE)
            .then(|| self.peers.values().filter_map(|known| known.due).min());
        let copies = self
            .peers
            .iter()
            .filter(|(id, _)| !self.copying.contains(id));
        let copy = (self.copying.len() < COPIES_AT_ONCE)
            .then(|| copies.filter_map(|(_, known)| known.copy_due).min());
        batch.flatten().into_iter().chain(copy.flatten()).min()
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
    fn a_peer_that_is_away_is_tried_ever_more_seldom_and_at_once_when_it_is_back() {
        let (mut now, mut exchange) = (start(), MessageExchange::default());
        exchange.handle_waiting(now, peer(1));
        let mut tries = 0;
        let end = now + Duration::from_secs(3600);
        while now < end {
            assert_eq!(exchange.poll_batch(now), Some(peer(1)));
            assert_eq!(exchange.poll_batch(now), None, "one at a time");
            exchange.handle_failed(now, peer(1));
            tries += 1;
            now = exchange.poll_timeout().unwrap();
        }
        assert!((15..=25).contains(&tries), "{tries} in an hour");
        exchange.handle_reachable(now - Duration::from_secs(100), peer(1));
        assert_eq!(
            exchange.poll_batch(now - Duration::from_secs(100)),
            Some(peer(1))
        );
        exchange.handle_answered(now, peer(1), false);
        assert_eq!(exchange.poll_timeout(), None);
    }

    #[test]
    fn a_peer_that_owes_receipts_is_looked_for_now_and_then_and_what_is_new_goes_at_once() {
        let (mut now, mut exchange) = (start(), MessageExchange::default());
        exchange.handle_waiting(now, peer(1));
        let end = now + Duration::from_secs(600);
        let mut looks = 0;
        while now < end {
            assert_eq!(exchange.poll_batch(now), Some(peer(1)));
            assert_eq!(exchange.is_look(peer(1)), looks > 0);
            exchange.handle_awaiting(now, peer(1));
            looks += 1;
            now = exchange.poll_timeout().unwrap();
        }
        assert!((10..=20).contains(&looks), "{looks} in ten minutes");
        let before = now - Duration::from_secs(10);
        exchange.handle_waiting(before, peer(1));
        assert_eq!(exchange.poll_batch(before), Some(peer(1)));
        exchange.handle_waiting(before, peer(1));
        exchange.handle_awaiting(before, peer(1));
        assert_eq!(exchange.poll_batch(before), Some(peer(1)), "more came");
        exchange.handle_answered(before, peer(1), false);
        assert_eq!(exchange.poll_timeout(), None);
    }

    fn lane(agent: &str) -> OfferedLane {
        OfferedLane {
            sender: "s".to_owned(),
            agent: agent.to_owned(),
        }
    }

    #[test]
    fn a_lane_that_finds_no_room_rests_and_the_others_go_on() {
        let (now, mut exchange) = (start(), MessageExchange::default());
        exchange.handle_waiting(now, peer(1));
        exchange.poll_batch(now).unwrap();
        let said = Some(Duration::from_secs(30));
        exchange.handle_answered(now, peer(1), true);
        exchange.handle_lane_full(now, peer(1), lane("x"), said);
        assert_eq!(exchange.poll_batch(now), Some(peer(1)), "for the others");
        assert_eq!(exchange.resting_lanes(now, peer(1)), [lane("x")]);
        exchange.handle_answered(now, peer(1), false);
        let back = now + Duration::from_secs(30);
        assert_eq!(exchange.poll_timeout(), Some(back));
        // What is new goes at once.
        let between = now + Duration::from_secs(10);
        exchange.handle_waiting(between, peer(1));
        assert_eq!(exchange.poll_batch(between), Some(peer(1)));
        assert_eq!(exchange.resting_lanes(between, peer(1)), [lane("x")]);
        exchange.handle_answered(between, peer(1), false);
        assert!(!exchange.handle_room(between, peer(1), "t", "y"));
        assert_eq!(exchange.poll_timeout(), Some(back), "others have room");
        assert!(exchange.handle_room(between, peer(1), "s", "y"));
        assert_eq!(exchange.poll_timeout(), Some(between), "its sender has");
        assert_eq!(exchange.poll_batch(back), Some(peer(1)));
        assert_eq!(exchange.resting_lanes(back, peer(1)), []);
        exchange.handle_answered(back, peer(1), true);
        exchange.handle_lane_taken(peer(1), &lane("x"));
        assert_eq!(exchange.poll_batch(back), Some(peer(1)));
        exchange.handle_answered(back, peer(1), false);
        assert_eq!(exchange.poll_timeout(), None, "nothing is left");
    }

    #[test]
    fn a_lane_that_stays_full_is_offered_ever_more_seldom_and_one_that_owes_receipts_still_rests() {
        let (mut now, mut exchange) = (start(), MessageExchange::default());
        exchange.handle_waiting(now, peer(1));
        let mut offers = 0;
        let end = now + Duration::from_secs(3600);
        while now < end {
            assert_eq!(exchange.poll_batch(now), Some(peer(1)));
            if exchange.resting_lanes(now, peer(1)).is_empty() {
                offers += 1;
                exchange.handle_answered(now, peer(1), true);
                exchange.handle_lane_full(now, peer(1), lane("x"), None);
                exchange.poll_batch(now).unwrap();
            }
            exchange.handle_awaiting(now, peer(1));
            now = exchange.poll_timeout().unwrap();
        }
        assert!((15..=25).contains(&offers), "{offers} in an hour");
    }

    #[test]
    fn the_lanes_that_rest_are_bounded() {
        let (now, mut exchange) = (start(), MessageExchange::default());
        exchange.handle_waiting(now, peer(1));
        exchange.poll_batch(now).unwrap();
        exchange.handle_answered(now, peer(1), true);
        for number in 0..2 * RESTING_LANES {
            exchange.handle_lane_full(now, peer(1), lane(&number.to_string()), None);
        }
        assert_eq!(exchange.resting_lanes(now, peer(1)).len(), RESTING_LANES);
        assert_eq!(exchange.poll_batch(now), None, "nothing is offered");
        assert_eq!(exchange.poll_batch(now + FIRST_PAUSE), Some(peer(1)));
    }

    #[test]
    fn what_comes_while_a_batch_is_under_way_goes_with_the_next() {
        let (now, mut exchange) = (start(), MessageExchange::default());
        exchange.handle_waiting(now, peer(1));
        exchange.poll_batch(now).unwrap();
        exchange.handle_waiting(now, peer(1));
        assert_eq!(exchange.poll_batch(now), None);
        exchange.handle_answered(now, peer(1), false);
        assert_eq!(exchange.poll_batch(now), Some(peer(1)));
    }

    #[test]
    fn what_comes_for_a_peer_that_is_away_is_copied_soon_and_not_more_often_than_each_pause() {
        let (mut now, mut exchange) = (start(), MessageExchange::default());
        exchange.handle_waiting(now, peer(1));
        assert_eq!(exchange.poll_batch(now), Some(peer(1)));
        assert_eq!(exchange.poll_copy(now), None, "it may answer yet");
        exchange.handle_unreachable(now, peer(1));
        assert_eq!(exchange.poll_copy(now), Some(peer(1)));
        assert_eq!(exchange.poll_copy(now), None);
        exchange.handle_copied(peer(1));
        // A hundred messages within a pause are one more copy.
        let first = now;
        for _ in 0..100 {
            now += Duration::from_millis(10);
            exchange.handle_waiting(now, peer(1));
            assert_eq!(exchange.poll_copy(now), None);
        }
        assert!(exchange.poll_timeout().unwrap() <= first + COPY_PAUSE);
        assert_eq!(exchange.poll_copy(first + COPY_PAUSE), Some(peer(1)));
        exchange.handle_copied(peer(1));
        exchange.handle_waiting(now, peer(1));
        exchange.handle_reachable(now, peer(1));
        assert_eq!(exchange.poll_copy(now + LONGEST_PAUSE), None, "it is back");
    }

    #[test]
    fn hubs_that_do_not_answer_hold_up_no_batch_and_have_so_many_copies_at_once() {
        let (now, mut exchange) = (start(), MessageExchange::default());
        for number in 0..200 {
            exchange.handle_waiting(now, peer(number));
        }
        let mut sent = 0;
        while let Some(id) = exchange.poll_batch(now) {
            exchange.handle_unreachable(now, id);
            sent += 1;
        }
        assert_eq!(sent, 200);
        let copying: Vec<NodeId> = std::iter::from_fn(|| exchange.poll_copy(now)).collect();
        assert_eq!(copying.len(), COPIES_AT_ONCE);
        let later = now + LONGEST_PAUSE;
        for id in &copying {
            assert!(exchange.poll_batch(later).is_some());
            exchange.handle_answered(later, *id, false);
            exchange.handle_copied(*id);
        }
        assert!(exchange.poll_copy(later).is_some());
    }

    #[test]
    fn whatever_happens_there_are_no_two_batches_to_one_peer_and_nothing_waits_for_ever() {
        for_each_seed(&[], 5_000, |seed| {
            let mut below = draws(seed, 3);
            let (mut now, mut exchange) = (start(), MessageExchange::default());
            let mut under_way: Vec<NodeId> = Vec::new();
            let mut waiting = std::collections::HashSet::new();
            for _ in 0..200 {
                match below(4) {
                    0 => {
                        let id = peer(below(4) as u8);
                        waiting.insert(id);
                        exchange.handle_waiting(now, id);
                    }
                    1 => {
                        while let Some(id) = exchange.poll_batch(now) {
                            assert!(!under_way.contains(&id));
                            waiting.remove(&id);
                            under_way.push(id);
                        }
                    }
                    2 => {
                        if let Some(id) = under_way.pop() {
                            match below(2) {
                                0 => exchange.handle_answered(now, id, false),
                                _ => {
                                    waiting.insert(id);
                                    exchange.handle_failed(now, id);
                                }
                            }
                        }
                    }
                    _ => now += Duration::from_secs(u64::from(below(30))),
                }
            }
            now += LONGEST_PAUSE;
            for id in under_way.drain(..) {
                exchange.handle_answered(now, id, false);
            }
            while let Some(id) = exchange.poll_batch(now) {
                waiting.remove(&id);
                exchange.handle_answered(now, id, false);
            }
            assert!(waiting.is_empty());
        });
    }
}
