//! Peers that are not trusted and asked to be let in, for the operator to approve. Does no I/O and is told the time.
//!
//! Keys cost nothing, and what an untrusted peer calls itself is a claim that anybody can make. So the list is
//! shared out by where untrusted peers come from: a network has at most a quarter of it, and in a full list the
//! network with most rows loses one. Which one: neither of its first ones, so that who asked before a flood
//! stays, nor of its newest, so that who asks after one is seen; the flood displaces itself in between.
//! Who was silent for a week goes first.

use std::collections::BTreeMap;

use hailwire_wire::{NodeId, NodeName};

use crate::{RemoteSource, SourceNetwork};

/// Rows of all.
pub const MAX_PENDING: usize = 256;

/// Rows of one network.
pub const MAX_PENDING_OF_NETWORK: usize = 64;

/// Seconds of silence after which a row goes first.
const SILENT_AFTER_S: u64 = 7 * 24 * 3600;

/// An untrusted peer that tried to do something.
#[derive(Clone, Debug)]
pub struct PendingPeer {
    /// Its key.
    pub id: NodeId,
    /// What it calls itself; empty where that is no name.
    pub claim: String,
    /// Where it was last seen.
    pub from: String,
    network: SourceNetwork,
    /// Unix seconds of its last attempt.
    pub at: u64,
    /// How often it has tried.
    pub attempts: u32,
}

/// The list, the longest known first.
#[derive(Debug, Default)]
pub struct PendingPeers(Vec<PendingPeer>);

impl PendingPeers {
    /// An untrusted peer tried something, from this remote end of its connection.
    pub fn note(&mut self, now: u64, id: NodeId, claim: &str, from: &str) {
        if let Some(row) = self.0.iter_mut().find(|row| row.id == id) {
            row.at = now;
            row.attempts = row.attempts.saturating_add(1);
            from.clone_into(&mut row.from);
            return;
        }
        let network = RemoteSource::remote(from, id).into_network();
        self.make_room(now, &network);
        // The untrusted peer chose this text: keep it only if it is a name.
        let claim = claim.parse::<NodeName>().map(String::from);
        self.0.push(PendingPeer {
            id,
            claim: claim.unwrap_or_default(),
            from: from.to_owned(),
            network,
            at: now,
            attempts: 1,
        });
    }

    /// It is pending no longer.
    pub fn forget(&mut self, id: NodeId) {
        self.0.retain(|row| row.id != id);
    }

    /// All of them, the longest known first.
    #[must_use]
    pub fn rows(&self) -> &[PendingPeer] {
        &self.0
    }

    fn make_room(&mut self, now: u64, newcomer: &SourceNetwork) {
        let mut networks: BTreeMap<&SourceNetwork, usize> = BTreeMap::new();
        for row in &self.0 {
            *networks.entry(&row.network).or_default() += 1;
        }
        let own = networks.get(newcomer).copied().unwrap_or(0);
        // None: among all.
        let crowded = if own >= MAX_PENDING_OF_NETWORK {
            Some(newcomer)
        } else if self.0.len() >= MAX_PENDING {
            let most = networks.into_iter().max_by_key(|(_, rows)| *rows);
            most.filter(|(_, rows)| *rows > 1)
                .map(|(network, _)| network)
        } else {
            return;
        };
        let of_crowd = |row: &PendingPeer| crowded.is_none_or(|crowded| row.network == *crowded);
        let silent = |at: &usize| self.0[*at].at.saturating_add(SILENT_AFTER_S) < now;
        let rows = 0..self.0.len();
        let rows: Vec<usize> = rows.filter(|at| of_crowd(&self.0[*at])).collect();
        let goes = rows.iter().copied().find(silent);
        if let Some(goes) = goes.or_else(|| rows.get(rows.len() / 2).copied()) {
            self.0.remove(goes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn key(n: u64) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        NodeId::from_bytes(bytes)
    }

    fn has(pending: &PendingPeers, n: u64) -> bool {
        pending.rows().iter().any(|row| row.id == key(n))
    }

    #[test]
    fn a_flood_of_keys_from_one_network_displaces_neither_who_came_before_nor_who_comes_after() {
        for elsewhere in ["192.0.2.7:1", "203.0.113.7:1"] {
            let mut pending = PendingPeers::default();
            pending.note(NOW, key(0), "victim", "192.0.2.1:1");
            for n in 1..=10_000 {
                let from = format!("192.0.2.{}:1", n % 256);
                pending.note(NOW + n, key(n), "victim", &from);
                assert!(pending.rows().len() <= MAX_PENDING_OF_NETWORK);
            }
            pending.note(NOW + 20_000, key(20_000), "late", elsewhere);
            for n in 0..20 {
                pending.note(NOW + 20_001, key(30_000 + n), "victim", "192.0.2.1:1");
            }
            assert!(has(&pending, 0) && has(&pending, 20_000), "{elsewhere}");
        }
    }

    #[test]
    fn a_flood_from_many_networks_stays_within_the_list_and_leaves_the_first_of_each() {
        let mut pending = PendingPeers::default();
        for n in 0..100_000 {
            let from = format!("10.{}.{}.1:1", n % 7, n % 3);
            pending.note(NOW + n, key(n), "x", &from);
            assert!(pending.rows().len() <= MAX_PENDING);
        }
        assert!((0..21).all(|n| has(&pending, n)));
        // Each from a network of its own.
        for n in 0..1000 {
            let from = format!("2001:db8:{n:x}::1");
            pending.note(NOW, key(200_000 + n), "x", &format!("[{from}]:1"));
            assert!(pending.rows().len() <= MAX_PENDING);
            assert!(has(&pending, 200_000 + n), "whoever asks is seen");
        }
    }

    #[test]
    fn who_was_silent_for_a_week_goes_first_and_what_is_no_name_is_not_shown() {
        let mut pending = PendingPeers::default();
        pending.note(NOW, key(0), "a b", "192.0.2.1:1");
        for n in 1..=MAX_PENDING_OF_NETWORK as u64 {
            pending.note(NOW + SILENT_AFTER_S + 1, key(n), "x", "192.0.2.1:1");
        }
        assert!(!has(&pending, 0) && has(&pending, 32));
        pending.note(NOW, key(99), "a\u{202e}b", "192.0.2.1:1");
        assert!(pending.rows().iter().all(|row| row.claim.len() <= 1));
    }

    #[test]
    fn who_tries_again_has_one_row_with_its_first_claim_and_its_last_attempt() {
        let mut pending = PendingPeers::default();
        pending.note(NOW, key(1), "laptop", "192.0.2.1:1");
        pending.note(NOW, key(2), "desk", "192.0.2.1:1");
        pending.note(NOW + 5, key(1), "other", "203.0.113.9:2");
        let shown = |pending: &PendingPeers| -> Vec<(NodeId, String, String, u64, u32)> {
            let rows = pending.rows().iter().cloned();
            rows.map(|row| (row.id, row.claim, row.from, row.at, row.attempts))
                .collect()
        };
        let row = |n, claim: &str, from: &str, at, attempts| {
            (key(n), claim.to_owned(), from.to_owned(), at, attempts)
        };
        let desk = row(2, "desk", "192.0.2.1:1", NOW, 1);
        let laptop = row(1, "laptop", "203.0.113.9:2", NOW + 5, 2);
        assert_eq!(shown(&pending), [laptop, desk.clone()]);
        pending.forget(key(1));
        assert_eq!(shown(&pending), [desk]);
    }

    #[test]
    fn a_full_list_of_single_rows_loses_the_middle_one_and_of_a_crowd_the_crowds() {
        let mut pending = PendingPeers::default();
        let single = |n: u64| format!("10.{}.{}.1:1", n / 200, n % 200);
        let most = MAX_PENDING as u64;
        for n in 0..most {
            pending.note(NOW, key(n), "x", &single(n));
        }
        pending.note(NOW, key(most), "x", &single(most));
        assert_eq!(pending.rows().len(), MAX_PENDING);
        let missing = |pending: &PendingPeers| -> Vec<u64> {
            (0..=most).filter(|n| !has(pending, *n)).collect()
        };
        assert_eq!(missing(&pending), [most / 2]);
        // One network with three rows among as many others: it loses its second.
        let mut pending = PendingPeers::default();
        for n in 0..most {
            let from = if n % 100 == 7 { single(7) } else { single(n) };
            pending.note(NOW, key(n), "x", &from);
        }
        pending.note(NOW, key(most), "x", &single(most));
        assert_eq!(missing(&pending), [107]);
    }

    #[test]
    fn a_week_of_silence_is_a_whole_week() {
        for (silent, gone) in [(SILENT_AFTER_S, 32), (SILENT_AFTER_S + 1, 5)] {
            let mut pending = PendingPeers::default();
            for n in 0..MAX_PENDING_OF_NETWORK as u64 {
                let at = if n == 5 { NOW } else { NOW + silent };
                pending.note(at, key(n), "x", "192.0.2.1:1");
            }
            pending.note(NOW + silent, key(100), "x", "192.0.2.1:1");
            assert!(!has(&pending, gone), "{gone} goes after {silent} s");
            assert_eq!(pending.rows().len(), MAX_PENDING_OF_NETWORK);
        }
    }
}
