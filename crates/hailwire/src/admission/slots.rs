//! Who gets one of few slots, and who makes way. Does no I/O and is told the time.
//!
//! Somebody who is not known yet takes a slot for a while: a handshake that is under way, a stranger who
//! may redeem a ticket. Whoever floods a node from few places must not keep others out. So:
//!
//! - No host and no network has more than its bound. At it, its own oldest makes way for its newcomer.
//! - In a full table a newcomer displaces somebody of the network that has most slots, as long as that one
//!   has at least two more than the newcomer's.
//! - Who makes way is the oldest that is not *spared*. A newcomer is spared for a moment, so that a flood
//!   does not undo everybody's work, and once more when it shows that it goes on. Only where a network has
//!   more than its share does being spared not help.
//! - Where nobody makes way, the newcomer is turned away.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::source::{Network, Source};

/// How many slots there are, and how they are shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub(crate) all: usize,
    /// For one IPv4 address or IPv6 /64.
    pub(crate) per_host: usize,
    /// For one IPv4 /24 or IPv6 /48.
    pub(crate) per_network: usize,
    /// How long a newcomer does not make way.
    pub(crate) spared_new: Duration,
    /// How long somebody does not make way who has shown that it goes on.
    pub(crate) spared_busy: Duration,
}

/// The number of a slot that was given; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotId(u64);

/// What a newcomer is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It has this slot, and the other one has made way for it.
    In {
        slot: SlotId,
        displaced: Option<SlotId>,
    },
    /// Nobody makes way.
    Full,
}

#[derive(Debug)]
pub(crate) struct Slots {
    shares: Shares,
    /// The oldest first.
    held: BTreeMap<SlotId, Held>,
    next: u64,
}

#[derive(Debug)]
struct Held {
    from: Source,
    spared_until: Instant,
    busy: bool,
}

impl Slots {
    pub(crate) const fn new(shares: Shares) -> Self {
        Self {
            shares,
            held: BTreeMap::new(),
            next: 0,
        }
    }

    /// Somebody asks for a slot.
    pub(crate) fn enter(&mut self, now: Instant, from: Source) -> Admitted {
        let displaced = match self.crowded(&from) {
            None => None,
            Some(crowd) => match self.who_makes_way(now, &crowd) {
                Some(slot) => Some(slot),
                None => return Admitted::Full,
            },
        };
        if let Some(slot) = displaced {
            self.held.remove(&slot);
        }
        let slot = SlotId(self.next);
        self.next += 1;
        let held = Held {
            from,
            spared_until: now + self.shares.spared_new,
            busy: false,
        };
        self.held.insert(slot, held);
        Admitted::In { slot, displaced }
    }

    /// Somebody shows that it goes on, which spares it once.
    pub(crate) fn goes_on(&mut self, now: Instant, slot: SlotId) {
        if let Some(held) = self.held.get_mut(&slot)
            && !std::mem::replace(&mut held.busy, true)
        {
            held.spared_until = now + self.shares.spared_busy;
        }
    }

    /// Somebody needs its slot no more. Of one that made way nothing is left to leave.
    pub(crate) fn leave(&mut self, slot: SlotId) {
        self.held.remove(&slot);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Among whom somebody has to make way for a newcomer; none where there is room.
    fn crowded(&self, from: &Source) -> Option<Crowd> {
        let same_host = |held: &&Held| held.from.host == from.host;
        if self.held.values().filter(same_host).count() >= self.shares.per_host {
            return Some(Crowd::Host(from.clone()));
        }
        let mut networks: BTreeMap<&Network, usize> = BTreeMap::new();
        for held in self.held.values() {
            *networks.entry(&held.from.network).or_default() += 1;
        }
        let own = networks.get(&from.network).copied().unwrap_or(0);
        if own >= self.shares.per_network {
            return Some(Crowd::Network(from.network.clone()));
        }
        if self.held.len() < self.shares.all {
            return None;
        }
        let most = networks.into_iter().max_by_key(|(_, count)| *count);
        Some(match most {
            Some((network, count)) if count > own + 1 => Crowd::TooMany(network.clone()),
            _ => Crowd::Everybody,
        })
    }

    fn who_makes_way(&self, now: Instant, crowd: &Crowd) -> Option<SlotId> {
        let mut crowded = self.held.iter().filter(|(_, held)| match crowd {
            Crowd::Host(from) => held.from.host == from.host,
            Crowd::Network(network) | Crowd::TooMany(network) => held.from.network == *network,
            Crowd::Everybody => true,
        });
        let spared = |held: &Held| held.spared_until > now;
        let not_spared = crowded.clone().find(|(_, held)| !spared(held));
        let displaced = match crowd {
            Crowd::TooMany(_) => not_spared.or_else(|| crowded.next()),
            _ => not_spared,
        };
        displaced.map(|(slot, _)| *slot)
    }
}

/// Among whom somebody has to make way.
#[derive(Debug)]
enum Crowd {
    /// Whoever has the newcomer's host, which is at its bound.
    Host(Source),
    /// The newcomer's network, which is at its bound.
    Network(Network),
    /// A network that has more than its share of a full table.
    TooMany(Network),
    /// A full table in which all have their share.
    Everybody,
}
