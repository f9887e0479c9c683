//! Who gets one of few slots, and who makes way. Does no I/O and is told the time.
//!
//! Somebody who is not known yet takes a slot for a while: a handshake that is under way, an untrusted peer who
//! may redeem a ticket. Whoever floods a node from few places must not keep others out. So:
//!
//! - No host and no network has more than its bound. At it, its own oldest makes way for its newcomer.
//! - In a full table a newcomer displaces somebody of the network that has most slots, as long as that one
//!   has at least two more than the newcomer's.
//! - Who makes way is the oldest that is not *spared*. A newcomer is spared for a moment, so that a flood
//!   does not undo everybody's work, and once more when it shows that it goes on. Only where a network has
//!   more than its share does being spared not help.
//! - Where nobody makes way, the newcomer is turned away.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{RemoteSource, SourceNetwork};

/// How many slots there are, and how they are shared out.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionShares {
    /// Slots in all.
    pub all: usize,
    /// For one IPv4 address or IPv6 /64.
    pub per_host: usize,
    /// For one IPv4 /24 or IPv6 /48.
    pub per_network: usize,
    /// How long a newcomer does not make way.
    pub spared_new: Duration,
    /// How long somebody does not make way who has shown that it goes on.
    pub spared_busy: Duration,
}

/// The number of a slot that was given; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdmissionSlotId(u64);

/// What a newcomer is told.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// It has this slot, and the other one has made way for it.
    Granted {
        /// Its slot.
        slot: AdmissionSlotId,
        /// Who has made way.
        displaced: Option<AdmissionSlotId>,
    },
    /// Nobody makes way.
    Full,
}

/// A table of slots, shared out by where its holders come from.
#[derive(Debug)]
pub struct AdmissionTable {
    shares: AdmissionShares,
    /// The oldest first.
    held: BTreeMap<AdmissionSlotId, HeldSlot>,
    next: u64,
}

#[derive(Debug)]
struct HeldSlot {
    from: RemoteSource,
    spared_until: Instant,
    busy: bool,
}

impl AdmissionTable {
    /// An empty one.
    #[must_use]
    pub const fn new(shares: AdmissionShares) -> Self {
        Self {
            shares,
            held: BTreeMap::new(),
            next: 0,
        }
    }

    /// Somebody asks for a slot.
    pub fn enter(&mut self, now: Instant, from: RemoteSource) -> Admission {
        let displaced = match self.crowded(&from) {
            None => None,
            Some(crowd) => match self.who_makes_way(now, &crowd) {
                Some(slot) => Some(slot),
                None => return Admission::Full,
            },
        };
        if let Some(slot) = displaced {
            self.held.remove(&slot);
        }
        let slot = AdmissionSlotId(self.next);
        self.next += 1;
        let held = HeldSlot {
            from,
            spared_until: now + self.shares.spared_new,
            busy: false,
        };
        self.held.insert(slot, held);
        Admission::Granted { slot, displaced }
    }

    /// Somebody shows that it goes on, which spares it once.
    pub fn goes_on(&mut self, now: Instant, slot: AdmissionSlotId) {
        if let Some(held) = self.held.get_mut(&slot)
            && !std::mem::replace(&mut held.busy, true)
        {
            held.spared_until = now + self.shares.spared_busy;
        }
    }

    /// Somebody needs its slot no more. Of one that made way nothing is left to leave.
    pub fn leave(&mut self, slot: AdmissionSlotId) {
        self.held.remove(&slot);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Among whom somebody has to make way for a newcomer; none where there is room.
    fn crowded(&self, from: &RemoteSource) -> Option<SlotContest> {
        let same_host = |held: &&HeldSlot| held.from.host == from.host;
        if self.held.values().filter(same_host).count() >= self.shares.per_host {
            return Some(SlotContest::SourceHost(from.clone()));
        }
        let mut networks: BTreeMap<&SourceNetwork, usize> = BTreeMap::new();
        for held in self.held.values() {
            *networks.entry(&held.from.network).or_default() += 1;
        }
        let own = networks.get(&from.network).copied().unwrap_or(0);
        if own >= self.shares.per_network {
            return Some(SlotContest::SourceNetwork(from.network.clone()));
        }
        if self.held.len() < self.shares.all {
            return None;
        }
        let most = networks.into_iter().max_by_key(|(_, count)| *count);
        Some(match most {
            Some((network, count)) if count > own + 1 => SlotContest::TooMany(network.clone()),
            _ => SlotContest::Everybody,
        })
    }

    fn who_makes_way(&self, now: Instant, crowd: &SlotContest) -> Option<AdmissionSlotId> {
        let mut crowded = self.held.iter().filter(|(_, held)| match crowd {
            SlotContest::SourceHost(from) => held.from.host == from.host,
            SlotContest::SourceNetwork(network) | SlotContest::TooMany(network) => {
                held.from.network == *network
            }
            SlotContest::Everybody => true,
        });
        let spared = |held: &HeldSlot| held.spared_until > now;
        let not_spared = crowded.clone().find(|(_, held)| !spared(held));
        let displaced = match crowd {
            SlotContest::TooMany(_) => not_spared.or_else(|| crowded.next()),
            _ => not_spared,
        };
        displaced.map(|(slot, _)| *slot)
    }
}

/// Among whom somebody has to make way.
#[derive(Debug)]
enum SlotContest {
    /// Whoever has the newcomer's host, which is at its bound.
    SourceHost(RemoteSource),
    /// The newcomer's network, which is at its bound.
    SourceNetwork(SourceNetwork),
    /// A network that has more than its share of a full table.
    TooMany(SourceNetwork),
    /// A full table in which all have their share.
    Everybody,
}

#[cfg(test)]
mod tests;
