//! Which of the lists of offers that peers send is entered when: the newest of each, no faster than it costs little.
//!
//! A list is cheap to send and dear to enter: up to 1,024 names find their groups. So a page is kept as it
//! came, in the place of what is older, and one task enters lists, a few a second for each peer and so
//! many for all. Whatever is replaced before its turn is never looked at, and the last list always has its
//! turn: newest wins.
//!
//! For each peer at most one list that is whole and one that lacks pages are kept, whichever connection
//! they come on, so a peer takes `2 * MAX_OFFER_PAGES` frames here however many connections it has.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use hailwire_wire::{
    NodeId,
    offers::{OfferPage, OfferPages, OffersError},
};

use crate::rate_limit::{Rate, RateLimit};

/// Lists of one peer that are entered.
pub const PER_PEER: Rate = Rate {
    burst: 4,
    pause: Duration::from_millis(250),
};

/// Lists of all peers that are entered.
const ALL_PEERS: Rate = Rate {
    burst: 64,
    pause: Duration::from_millis(16),
};

/// Peers that have sent a list and have no tunnel yet; one more, and one of them is forgotten.
const MAX_CLOSED: usize = 64;

/// A whole list and where its last page came from.
#[derive(Debug)]
pub struct OfferedList<S> {
    pages: OfferPages,
    /// Where its last page came from.
    pub from: S,
}

impl<S> OfferedList<S> {
    /// The agents on it.
    ///
    /// # Errors
    ///
    /// [`OffersError`]: it cannot be read, or names too many.
    pub fn agents(&self) -> Result<Vec<hailwire_wire::header::AgentOffer>, OffersError> {
        self.pages.agents()
    }
}

/// Whose list is to be entered.
#[derive(Debug)]
pub enum OfferTurn<S> {
    /// That of this peer, now.
    Now(NodeId, OfferedList<S>),
    /// None before this time.
    At(Instant),
    /// None that has come.
    Idle,
}

/// Decides which list is entered when.
#[derive(Debug)]
pub struct OfferQueue<S> {
    peers: HashMap<NodeId, PeerOffers<S>>,
    /// Those with a list to enter, by the time from which on it may be.
    turns: BTreeSet<(Instant, NodeId)>,
    /// Whose list has its turn now.
    entering: Option<NodeId>,
    all: RateLimit,
}

/// What one peer has sent.
#[derive(Debug)]
struct PeerOffers<S> {
    /// The start of the peer that counts the lists.
    start: u64,
    /// The number of the newest whole list.
    newest: u64,
    growing: Option<OfferPages>,
    whole: Option<OfferedList<S>>,
    /// Whether it has a tunnel.
    open: bool,
    turn: Option<Instant>,
    limit: RateLimit,
}

impl<S: Clone> Default for OfferQueue<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Clone> OfferQueue<S> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            peers: HashMap::new(),
            turns: BTreeSet::new(),
            entering: None,
            all: RateLimit::new(ALL_PEERS),
        }
    }

    fn peer(&mut self, id: NodeId) -> &mut PeerOffers<S> {
        if !self.peers.contains_key(&id) {
            let mut closed = self.peers.iter().filter(|(_, peer)| !peer.open);
            if let Some((&one, _)) = closed.nth(MAX_CLOSED - 1) {
                self.peers.remove(&one);
            }
        }
        self.peers.entry(id).or_insert_with(|| PeerOffers {
            start: 0,
            newest: 0,
            growing: None,
            whole: None,
            open: false,
            turn: None,
            limit: RateLimit::new(PER_PEER),
        })
    }

    /// Hears a page of the peer's start `start`. Returns whether there is a turn more.
    pub fn heard(
        &mut self,
        id: NodeId,
        start: u64,
        page: OfferPage,
        from: &S,
        now: Instant,
    ) -> bool {
        let peer = self.peer(id);
        let Some(pages) = peer.heard(start, page) else {
            return false;
        };
        peer.whole = Some(OfferedList {
            pages,
            from: from.clone(),
        });
        self.schedule(id, now)
    }

    /// The peer has a tunnel: its lists are entered from now on.
    pub fn open(&mut self, id: NodeId, now: Instant) {
        self.peer(id).open = true;
        self.schedule(id, now);
    }

    /// The list that had its turn is entered.
    pub fn entered(&mut self) {
        self.entering = None;
    }

    /// Those whose newest list waits for its turn, or has it just now.
    #[must_use]
    pub fn waiting(&self) -> HashSet<NodeId> {
        let turns = self.turns.iter().map(|(_, id)| *id);
        turns.chain(self.entering).collect()
    }

    /// The newest whole list of a peer that waits for its turn.
    #[must_use]
    pub fn waiting_list(&self, id: NodeId) -> Option<&OfferedList<S>> {
        self.peers.get(&id)?.whole.as_ref()
    }

    fn schedule(&mut self, id: NodeId, now: Instant) -> bool {
        let peer = self.peer(id);
        if !peer.open || peer.whole.is_none() || peer.turn.is_some() {
            return false;
        }
        let turn = peer.limit.next(now).max(now);
        peer.turn = Some(turn);
        self.turns.insert((turn, id))
    }

    /// The peer has no tunnel any more.
    pub fn forget(&mut self, id: NodeId) {
        if let Some(turn) = self.peers.remove(&id).and_then(|peer| peer.turn) {
            self.turns.remove(&(turn, id));
        }
    }

    /// Whose list is to be entered. Whoever enters it says so with [`OfferQueue::entered`].
    pub fn turn(&mut self, now: Instant) -> OfferTurn<S> {
        let Some((turn, id)) = self.turns.first().copied() else {
            return OfferTurn::Idle;
        };
        let at = turn.max(self.all.next(now));
        if at > now {
            return OfferTurn::At(at);
        }
        self.turns.pop_first();
        let Some(peer) = self.peers.get_mut(&id) else {
            return OfferTurn::At(now);
        };
        peer.turn = None;
        let Some(list) = peer.whole.take() else {
            return OfferTurn::At(now);
        };
        peer.limit.done(now);
        self.all.done(now);
        self.entering = Some(id);
        OfferTurn::Now(id, list)
    }
}

impl<S> PeerOffers<S> {
    /// Takes a page, and gives the list that is whole with it.
    fn heard(&mut self, start: u64, page: OfferPage) -> Option<OfferPages> {
        if start != self.start {
            self.start = start;
            self.newest = 0;
            self.growing = None;
        }
        let number = page.number();
        if number != 0 && number <= self.newest {
            return None;
        }
        let growing = match self.growing.take() {
            Some(growing) if growing.number() > number && number != 0 => {
                self.growing = Some(growing);
                return None;
            }
            Some(mut growing) if growing.number() == number && number != 0 => {
                growing.add(page);
                growing
            }
            _ => OfferPages::of(page),
        };
        if !growing.is_whole() {
            self.growing = Some(growing);
            return None;
        }
        self.newest = self.newest.max(number);
        Some(growing)
    }
}

#[cfg(test)]
mod tests;
