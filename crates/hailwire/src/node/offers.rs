//! What peers offer: hears their lists, and enters each when it has its turn ([`hailwire_core::offer_queue`] decides).

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hailwire_core::offer_queue::{OfferQueue, OfferTurn, OfferedList};
use hailwire_wire::{AgentName, Code, NodeId, offers::OfferPage};
use tokio::sync::{Notify, watch};

use super::NodeInner;
use crate::{
    clock,
    session::{OfferList, Session},
};

/// How long a call waits for lists that have not had their turn.
const MAX_TURN: Duration = Duration::from_millis(500);

/// The lists that peers have sent and that are not entered yet.
#[derive(Debug)]
pub(super) struct OfferLists {
    waiting: Mutex<OfferQueue<Session>>,
    more: Notify,
    /// How many lists were entered. Told also when one has come.
    entered: watch::Sender<u64>,
    /// Numbers the lists of this node.
    number: AtomicU64,
}

impl OfferLists {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::new(OfferQueue::new()),
            more: Notify::new(),
            entered: watch::Sender::new(0),
            number: AtomicU64::new(1),
        }
    }

    /// Hears a page from a peer, trusted or not.
    pub(super) fn queue_page(&self, id: NodeId, session: &Session, page: OfferPage) {
        let start = session.peer_hello().map_or(0, |hello| hello.instance);
        let now = clock::now();
        if self.lock().heard(id, start, page, session, now) {
            self.more.notify_one();
            self.entered.send_modify(|_| ());
        }
    }

    /// The peer has a tunnel: its lists are entered from now on.
    pub(super) fn open(&self, id: NodeId) {
        self.lock().open(id, clock::now());
        self.more.notify_one();
    }

    /// The peer has no tunnel any more.
    pub(super) fn forget(&self, id: NodeId) {
        self.lock().forget(id);
    }

    fn waiting(&self) -> HashSet<NodeId> {
        self.lock().waiting()
    }

    /// The list that had its turn is entered.
    fn had_its_turn(&self) {
        self.lock().entered();
        self.entered.send_modify(|entered| *entered += 1);
    }

    /// Tells when a list has come, and when one was entered.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.entered.subscribe()
    }

    /// How many lists were entered.
    #[cfg(test)]
    pub(super) fn entered(&self) -> u64 {
        *self.entered.borrow()
    }

    fn lock(&self) -> MutexGuard<'_, OfferQueue<Session>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number for a list of offers, higher than that of each earlier one. Taken before what is offered
/// is looked at, so that of two lists the one with the higher number is not the older.
pub(super) fn next_list(node: &NodeInner) -> u64 {
    node.peers.lists.number.fetch_add(1, Ordering::Relaxed)
}

/// What is offered to a peer.
pub(super) fn offers_to(node: &NodeInner, id: NodeId) -> OfferList {
    let number = next_list(node);
    OfferList::new(node.registry.offers(&node.trust.grant(id)), number)
}

/// Waits until a list of the peer has been entered.
pub(super) async fn offers_entered(node: &NodeInner, id: NodeId) {
    let mut entered = node.peers.lists.subscribe();
    while !node.registry.has_offers(id) {
        // The sender lives in the node.
        if entered.changed().await.is_err() {
            return;
        }
    }
}

/// Waits until the lists that wait now have had their turn, or an agent is known, and at most
/// [`MAX_TURN`]: an agent that has just come may be on one of them.
pub(super) async fn lists_had_their_turn(node: &NodeInner, agent: &AgentName) {
    let mut entered = node.peers.lists.subscribe();
    let mut waiting = node.peers.lists.waiting();
    let turns = async {
        while !waiting.is_empty() && !node.registry.knows(agent) {
            // The sender lives in the node.
            if entered.changed().await.is_err() {
                return;
            }
            let now = node.peers.lists.waiting();
            waiting.retain(|id| now.contains(id));
        }
    };
    // Where one sends lists without end, it is not waited for any longer.
    let _ = tokio::time::timeout(MAX_TURN, turns).await;
}

/// Asks anew which of a peer's agents take calls that name no node: what it may do here has changed.
pub(super) fn mark_bare(node: &NodeInner, id: NodeId) {
    let bare = |agent: &AgentName| node.trust.takes_bare(id, agent);
    node.registry.mark_bare(id, bare);
}

fn enter_list(node: &NodeInner, id: NodeId, list: &OfferedList<Session>) {
    let agents = match list.agents() {
        Ok(agents) => agents,
        Err(error) => {
            let from = &list.from;
            return from.close(Code::InvalidArgument, &error.to_string());
        }
    };
    node.peers.note_agents(id, agents.len());
    let bare = |agent: &AgentName| node.trust.takes_bare(id, agent);
    node.registry.set_offers(id, agents, bare);
    if !node.peers.has(id) {
        // It went meanwhile.
        node.registry.clear_offers(id);
    }
}

/// Enters lists as they have their turn.
pub(super) async fn enter(node: Arc<NodeInner>) {
    loop {
        let turn = node.peers.lists.lock().turn(clock::now());
        match turn {
            OfferTurn::Now(id, list) => {
                enter_list(&node, id, &list);
                node.peers.lists.had_its_turn();
                // Entering a long one takes a millisecond or two.
                tokio::task::yield_now().await;
            }
            OfferTurn::At(instant) => tokio::select! {
                () = clock::reached(Some(instant)) => {}
                () = node.peers.lists.more.notified() => {}
            },
            OfferTurn::Idle => node.peers.lists.more.notified().await,
        }
    }
}

#[cfg(test)]
mod over_tunnels;
