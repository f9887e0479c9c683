//! What peers offer: the newest list of each, entered no faster than it costs little.
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
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hailwire_wire::{
    AgentName, Code, NodeId,
    offers::{OffersError, Page, Pages},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

use super::{
    Inner,
    pace::{Paced, Rate},
};
use crate::session::{OfferList, Session};

/// Lists of one peer that are entered.
const EACH: Rate = Rate {
    burst: 4,
    pause: Duration::from_millis(250),
};

/// Lists of all peers that are entered.
const ALL: Rate = Rate {
    burst: 64,
    pause: Duration::from_millis(16),
};

/// How long a call waits for lists that have not had their turn.
const MAX_TURN: Duration = Duration::from_millis(500);

/// Peers that have sent a list and have no tunnel yet; one more, and one of them is forgotten.
const MAX_CLOSED: usize = 64;

/// The lists that peers have sent and that are not entered yet.
#[derive(Debug)]
pub(super) struct Lists {
    waiting: Mutex<Waiting<Session>>,
    more: Notify,
    entered: watch::Sender<u64>,
    /// Numbers the lists of this node.
    number: AtomicU64,
}

impl Lists {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::new(Waiting::new()),
            more: Notify::new(),
            entered: watch::Sender::new(0),
            number: AtomicU64::new(1),
        }
    }

    /// Hears a page from a peer, trusted or not.
    pub(super) fn heard(&self, id: NodeId, session: &Session, page: Page) {
        let start = session.peer_hello().map_or(0, |hello| hello.instance);
        let now = Instant::now();
        if self.lock().heard(id, start, page, session, now) {
            self.more.notify_one();
        }
    }

    /// The peer has a tunnel: its lists are entered from now on.
    pub(super) fn open(&self, id: NodeId) {
        self.lock().open(id, Instant::now());
        self.more.notify_one();
    }

    /// The peer has no tunnel any more.
    pub(super) fn forget(&self, id: NodeId) {
        self.lock().forget(id);
    }

    /// Those whose newest list waits for its turn, or has it just now.
    fn waiting(&self) -> HashSet<NodeId> {
        let waiting = self.lock();
        let turns = waiting.turns.iter().map(|(_, id)| *id);
        turns.chain(waiting.entering).collect()
    }

    /// The list that had its turn is entered.
    fn had_its_turn(&self) {
        self.lock().entering = None;
        self.entered.send_modify(|entered| *entered += 1);
    }

    /// How many lists were entered.
    #[cfg(test)]
    pub(super) fn entered(&self) -> u64 {
        *self.entered.borrow()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<Session>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A number for a list of offers, higher than that of each earlier one. Taken before what is offered
    /// is looked at, so that of two lists the one with the higher number is not the older.
    pub(super) fn next_list(&self) -> u64 {
        self.lists.number.fetch_add(1, Ordering::Relaxed)
    }

    /// What is offered to a peer.
    pub(super) fn offers_to(&self, id: NodeId) -> OfferList {
        let number = self.next_list();
        OfferList::new(self.registry.offers(&self.trust.grant(id)), number)
    }

    /// Waits until a list of the peer has been entered.
    pub(super) async fn offers_entered(&self, id: NodeId) {
        let mut entered = self.lists.entered.subscribe();
        while !self.registry.has_offers(id) {
            // The sender lives in the node.
            if entered.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until the lists that wait now have had their turn, or an agent is known, and at most
    /// [`MAX_TURN`]: an agent that has just come may be on one of them.
    pub(super) async fn lists_had_their_turn(&self, agent: &AgentName) {
        let mut entered = self.lists.entered.subscribe();
        let mut waiting = self.lists.waiting();
        let turns = async {
            while !waiting.is_empty() && !self.registry.knows(agent) {
                // The sender lives in the node.
                if entered.changed().await.is_err() {
                    return;
                }
                let now = self.lists.waiting();
                waiting.retain(|id| now.contains(id));
            }
        };
        // Where one sends lists without end, it is not waited for any longer.
        let _ = tokio::time::timeout(MAX_TURN, turns).await;
    }

    /// Asks anew which of a peer's agents take calls that name no node: what it may do here has changed.
    pub(super) fn mark_bare(&self, id: NodeId) {
        let bare = |agent: &AgentName| self.trust.takes_bare(id, agent);
        self.registry.mark_bare(id, bare);
    }

    fn enter_list(&self, id: NodeId, list: &List<Session>) {
        let agents = match list.agents() {
            Ok(agents) => agents,
            Err(error) => {
                let from = &list.from;
                return from.close(Code::InvalidArgument, &error.to_string());
            }
        };
        self.peers.note_agents(id, agents.len());
        let bare = |agent: &AgentName| self.trust.takes_bare(id, agent);
        self.registry.set_offers(id, agents, bare);
        if !self.peers.has(id) {
            // It went meanwhile.
            self.registry.clear_offers(id);
        }
    }
}

/// Enters lists as they have their turn.
pub(super) async fn enter(node: Arc<Inner>) {
    loop {
        let turn = node.lists.lock().turn(Instant::now());
        match turn {
            Turn::Now(id, list) => {
                node.enter_list(id, &list);
                node.lists.had_its_turn();
                // Entering a long one takes a millisecond or two.
                tokio::task::yield_now().await;
            }
            Turn::At(instant) => tokio::select! {
                () = sleep_until(instant) => {}
                () = node.lists.more.notified() => {}
            },
            Turn::Idle => node.lists.more.notified().await,
        }
    }
}

/// A whole list and where its last page came from.
#[derive(Debug)]
struct List<S> {
    pages: Pages,
    from: S,
}

impl<S> List<S> {
    fn agents(&self) -> Result<Vec<hailwire_wire::header::Offer>, OffersError> {
        self.pages.agents()
    }
}

/// Whose list is to be entered.
#[derive(Debug)]
enum Turn<S> {
    Now(NodeId, List<S>),
    At(Instant),
    Idle,
}

/// Decides which list is entered when.
#[derive(Debug)]
struct Waiting<S> {
    peers: HashMap<NodeId, Heard<S>>,
    /// Those with a list to enter, by the time from which on it may be.
    turns: BTreeSet<(Instant, NodeId)>,
    /// Whose list has its turn now.
    entering: Option<NodeId>,
    all: Paced,
}

/// What one peer has sent.
#[derive(Debug)]
struct Heard<S> {
    /// The start of the peer that counts the lists.
    start: u64,
    /// The number of the newest whole list.
    newest: u64,
    growing: Option<Pages>,
    whole: Option<List<S>>,
    /// Whether it has a tunnel.
    open: bool,
    turn: Option<Instant>,
    paced: Paced,
}

impl<S: Clone> Waiting<S> {
    fn new() -> Self {
        Self {
            peers: HashMap::new(),
            turns: BTreeSet::new(),
            entering: None,
            all: Paced::new(ALL),
        }
    }

    fn peer(&mut self, id: NodeId) -> &mut Heard<S> {
        if !self.peers.contains_key(&id) {
            let mut closed = self.peers.iter().filter(|(_, peer)| !peer.open);
            if let Some((&one, _)) = closed.nth(MAX_CLOSED - 1) {
                self.peers.remove(&one);
            }
        }
        self.peers.entry(id).or_insert_with(|| Heard {
            start: 0,
            newest: 0,
            growing: None,
            whole: None,
            open: false,
            turn: None,
            paced: Paced::new(EACH),
        })
    }

    /// Returns whether there is a turn more.
    fn heard(&mut self, id: NodeId, start: u64, page: Page, from: &S, now: Instant) -> bool {
        let peer = self.peer(id);
        let Some(pages) = peer.heard(start, page) else {
            return false;
        };
        peer.whole = Some(List {
            pages,
            from: from.clone(),
        });
        self.schedule(id, now)
    }

    fn open(&mut self, id: NodeId, now: Instant) {
        self.peer(id).open = true;
        self.schedule(id, now);
    }

    fn schedule(&mut self, id: NodeId, now: Instant) -> bool {
        let peer = self.peer(id);
        if !peer.open || peer.whole.is_none() || peer.turn.is_some() {
            return false;
        }
        let turn = peer.paced.next(now).max(now);
        peer.turn = Some(turn);
        self.turns.insert((turn, id))
    }

    fn forget(&mut self, id: NodeId) {
        if let Some(turn) = self.peers.remove(&id).and_then(|peer| peer.turn) {
            self.turns.remove(&(turn, id));
        }
    }

    fn turn(&mut self, now: Instant) -> Turn<S> {
        let Some((turn, id)) = self.turns.first().copied() else {
            return Turn::Idle;
        };
        let at = turn.max(self.all.next(now));
        if at > now {
            return Turn::At(at);
        }
        self.turns.pop_first();
        let Some(peer) = self.peers.get_mut(&id) else {
            return Turn::At(now);
        };
        peer.turn = None;
        let Some(list) = peer.whole.take() else {
            return Turn::At(now);
        };
        peer.paced.done(now);
        self.all.done(now);
        self.entering = Some(id);
        Turn::Now(id, list)
    }
}

impl<S> Heard<S> {
    /// Takes a page, and gives the list that is whole with it.
    fn heard(&mut self, start: u64, page: Page) -> Option<Pages> {
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
            _ => Pages::of(page),
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
mod over_tunnels;

#[cfg(test)]
mod tests;
