//! Who holds which lease at a hub, and until when.
//!
//! A lease is one candidate's until it runs out, is given back, or is renewed. Each time that one is given its **fencing token** is higher
//! than every one before, of whatever name, so what a lease guards can refuse whoever comes with an older one. A renewal keeps the token.
//!
//! How long a lease lasts is counted by a clock that nobody sets ([`Instant`]), never by the time of day: setting the hub's clock ends no
//! lease early. A hub that is started again gives every lease that it finds on its disk its whole time once more, so a renewal need not be
//! written; only who holds what is, before it is said ([`LeaseDecision::Given`]). Tokens begin at the time of day in microseconds, in whole
//! seconds, unless that is behind the last one: so they go on growing though the hub's disk is put back to what it was a week ago.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hailwire_wire::{
    NodeId,
    address::LeaseName,
    lease::{CandidateId, LeaseRow},
    limits::{MAX_LEASES, MAX_MEMBER_LEASES},
};

/// A lease that is held, as it is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLease {
    /// Of what.
    pub name: LeaseName,
    /// The holder's node.
    pub node: NodeId,
    /// The holder.
    pub candidate: CandidateId,
    /// Its fencing token.
    pub token: u64,
    /// How long it lasted when it was given.
    pub ttl: Duration,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct LeaseWish {
    /// Of what.
    pub name: LeaseName,
    /// The node that asks, by its key.
    pub node: NodeId,
    /// Which of its programs.
    pub candidate: CandidateId,
    /// For how long.
    pub ttl: Duration,
    /// The lease that is to be renewed, and no other.
    pub token: Option<u64>,
}

/// What a candidate gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// The lease, with a new token. It is to be on disk before it is said; [`LeaseTable::take_back`] where it cannot be.
    Given(KeptLease),
    /// More time on the lease that it holds.
    Renewed,
    /// Nothing: another holds it, or the one that was to be renewed is over.
    NotHeld,
    /// Nothing: the member's programs hold as many as they may.
    MemberFull,
    /// Nothing: the hub has as many as it may.
    HubFull,
}

#[derive(Debug)]
struct HeldLease {
    node: NodeId,
    candidate: CandidateId,
    token: u64,
    until: Instant,
}

/// The leases of a hub.
#[derive(Debug, Default)]
pub struct LeaseTable {
    held: BTreeMap<LeaseName, HeldLease>,
    last_token: u64,
}

impl LeaseTable {
    /// The table of a hub that starts: what its disk says is held, each with its whole time from now on.
    #[must_use]
    pub fn restore(
        kept: impl IntoIterator<Item = KeptLease>,
        last_token: u64,
        now: Instant,
    ) -> Self {
        let mut table = Self {
            last_token,
            ..Self::default()
        };
        for lease in kept.into_iter().take(MAX_LEASES) {
            table.last_token = table.last_token.max(lease.token);
            let held = HeldLease {
                node: lease.node,
                candidate: lease.candidate,
                token: lease.token,
                until: now + lease.ttl,
            };
            table.held.insert(lease.name, held);
        }
        table
    }

    /// Decides on a wish. `unix_s` is the time of day, for the token.
    pub fn ask(&mut self, wish: &LeaseWish, now: Instant, unix_s: u64) -> LeaseDecision {
        self.expire(now);
        if let Some(held) = self.held.get_mut(wish.name.as_str()) {
            let same = held.node == wish.node && held.candidate == wish.candidate;
            if same && wish.token.is_none_or(|token| token == held.token) {
                // A shorter time takes none away that was promised.
                held.until = held.until.max(now + wish.ttl);
                return LeaseDecision::Renewed;
            }
            return LeaseDecision::NotHeld;
        }
        if wish.token.is_some() {
            return LeaseDecision::NotHeld;
        }
        if self.held.len() >= MAX_LEASES {
            return LeaseDecision::HubFull;
        }
        let of_member = self.held.values().filter(|held| held.node == wish.node);
        if of_member.count() >= MAX_MEMBER_LEASES {
            return LeaseDecision::MemberFull;
        }
        LeaseDecision::Given(self.give(wish, now, unix_s))
    }

    fn give(&mut self, wish: &LeaseWish, now: Instant, unix_s: u64) -> KeptLease {
        let by_clock = unix_s.saturating_mul(1_000_000);
        self.last_token = by_clock.max(self.last_token.saturating_add(1));
        let held = HeldLease {
            node: wish.node,
            candidate: wish.candidate,
            token: self.last_token,
            until: now + wish.ttl,
        };
        self.held.insert(wish.name.clone(), held);
        KeptLease {
            name: wish.name.clone(),
            node: wish.node,
            candidate: wish.candidate,
            token: self.last_token,
            ttl: wish.ttl,
        }
    }

    /// Undoes a lease that could not be written to disk.
    pub fn take_back(&mut self, lease: &KeptLease) {
        let given = |held: &HeldLease| held.token == lease.token;
        if self.held.get(lease.name.as_str()).is_some_and(given) {
            self.held.remove(lease.name.as_str());
        }
    }

    /// Gives a lease back; returns whether the candidate held it. It is to be off the disk before that is said, or the next start finds
    /// it held.
    pub fn release(
        &mut self,
        name: &LeaseName,
        node: NodeId,
        candidate: CandidateId,
        token: u64,
        now: Instant,
    ) -> bool {
        self.expire(now);
        let own = |held: &HeldLease| {
            held.node == node && held.candidate == candidate && held.token == token
        };
        let released = self.held.get(name.as_str()).is_some_and(own);
        if released {
            self.held.remove(name.as_str());
        }
        released
    }

    /// The lease of a name, if it is held.
    pub fn lease(&mut self, name: &LeaseName, now: Instant) -> Option<LeaseRow> {
        self.expire(now);
        let held = self.held.get(name.as_str())?;
        Some(held.row(name, now))
    }

    /// All that are held, by name.
    pub fn leases(&mut self, now: Instant) -> Vec<LeaseRow> {
        self.expire(now);
        let rows = self.held.iter().map(|(name, held)| held.row(name, now));
        rows.collect()
    }

    fn expire(&mut self, now: Instant) {
        self.held.retain(|_, held| held.until > now);
    }
}

impl HeldLease {
    fn row(&self, name: &LeaseName, now: Instant) -> LeaseRow {
        let left = self.until.saturating_duration_since(now);
        LeaseRow {
            name: name.clone(),
            node: self.node,
            token: self.token,
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{node, start};

    const TTL: Duration = Duration::from_secs(10);

    fn wish(name: &str, by: u8, token: Option<u64>) -> LeaseWish {
        LeaseWish {
            name: name.parse().unwrap(),
            node: node(by),
            candidate: CandidateId::from_random([by; 16]),
            ttl: TTL,
            token,
        }
    }

    fn given(decision: LeaseDecision) -> KeptLease {
        match decision {
            LeaseDecision::Given(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lease_is_one_candidates_until_it_runs_out_and_the_next_one_has_a_higher_token() {
        let (mut table, now) = (LeaseTable::default(), start());
        let first = given(table.ask(&wish("nightly", 1, None), now, 5));
        assert_eq!(first.token, 5_000_000);
        let late = now + TTL - Duration::from_millis(1);
        let other = wish("nightly", 2, None);
        assert_eq!(table.ask(&other, late, 5), LeaseDecision::NotHeld);
        // The same program on another node is another candidate.
        let mut stolen = wish("nightly", 2, Some(first.token));
        stolen.candidate = first.candidate;
        assert_eq!(table.ask(&stolen, late, 5), LeaseDecision::NotHeld);
        let renewal = wish("nightly", 1, Some(first.token));
        assert_eq!(table.ask(&renewal, late, 5), LeaseDecision::Renewed);
        assert_eq!(table.ask(&other, now + TTL, 5), LeaseDecision::NotHeld);
        let second = given(table.ask(&other, late + TTL, 3));
        assert_eq!(second.token, first.token + 1, "with the clock set back");
        assert_eq!(
            table.ask(&renewal, late + TTL, 9),
            LeaseDecision::NotHeld,
            "one that has run out is not renewed"
        );
    }

    #[test]
    fn only_its_holder_gives_a_lease_back() {
        let (mut table, now) = (LeaseTable::default(), start());
        let lease = given(table.ask(&wish("nightly", 1, None), now, 1));
        let mut release =
            |by: u8, token| table.release(&lease.name, node(by), lease.candidate, token, now);
        assert!(!release(2, lease.token));
        assert!(!release(1, lease.token + 1));
        assert!(release(1, lease.token));
        assert!(!release(1, lease.token));
        assert_eq!(table.leases(now), []);
    }

    #[test]
    fn a_member_and_a_hub_have_so_many_leases_and_no_more() {
        let (mut table, now) = (LeaseTable::default(), start());
        let mut count = 0;
        for member in 0..=u8::try_from(MAX_LEASES / MAX_MEMBER_LEASES).unwrap() {
            for _ in 0..MAX_MEMBER_LEASES {
                count += 1;
                let name = format!("lease-{count}");
                let decision = table.ask(&wish(&name, member, None), now, 1);
                let full = count > MAX_LEASES;
                assert_eq!(matches!(decision, LeaseDecision::Given(_)), !full);
                assert_eq!(decision == LeaseDecision::HubFull, full);
            }
            let over = table.ask(&wish("one-more", member, None), now, 1);
            assert!(matches!(
                over,
                LeaseDecision::MemberFull | LeaseDecision::HubFull
            ));
        }
        assert_eq!(table.leases(now).len(), MAX_LEASES);
        assert_eq!(table.leases(now + TTL), []);
        given(table.ask(&wish("one-more", 1, None), now + TTL, 1));
    }

    #[test]
    fn a_hub_started_again_gives_each_lease_its_whole_time_and_no_token_twice() {
        let (mut table, now) = (LeaseTable::default(), start());
        let lease = given(table.ask(&wish("nightly", 1, None), now, 7));
        let again = now + TTL * 3;
        let mut table = LeaseTable::restore([lease.clone()], 0, again);
        let other = wish("nightly", 2, None);
        let end = again + TTL;
        assert_eq!(
            table.ask(&other, end - Duration::from_millis(1), 7),
            LeaseDecision::NotHeld
        );
        assert!(given(table.ask(&other, end, 0)).token > lease.token);
    }

    #[test]
    fn a_lease_that_could_not_be_written_is_nobodys_and_its_token_is_not_given_again() {
        let (mut table, now) = (LeaseTable::default(), start());
        let lost = given(table.ask(&wish("nightly", 1, None), now, 7));
        table.take_back(&lost);
        let next = given(table.ask(&wish("nightly", 2, None), now, 7));
        assert!(next.token > lost.token);
        table.take_back(&lost);
        assert_eq!(table.leases(now).len(), 1);
    }
}
