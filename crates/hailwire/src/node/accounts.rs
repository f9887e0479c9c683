//! The account of each peer: what it makes this node hold ([`MemoryBudget`]).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use hailwire_wire::NodeId;

use crate::carrier::budget::{MemoryBudget, PeerAccount};

/// Accounts of peers and untrusted peers that hold something.
#[derive(Debug, Default)]
pub(super) struct PeerAccounts {
    budget: Arc<MemoryBudget>,
    by_peer: Mutex<HashMap<NodeId, Weak<PeerAccount>>>,
}

impl PeerAccounts {
    /// The account that all connections of a node share, over whichever carrier.
    pub(super) fn of(&self, id: NodeId, trusted: bool) -> Arc<PeerAccount> {
        let mut by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = by_peer.get(&id).and_then(Weak::upgrade) {
            return account;
        }
        if by_peer.len() == by_peer.capacity() {
            by_peer.retain(|_, account| account.strong_count() > 0);
        }
        let budget = self.budget.clone();
        let account = if trusted {
            PeerAccount::peer(budget)
        } else {
            PeerAccount::untrusted(budget)
        };
        by_peer.insert(id, Arc::downgrade(&account));
        account
    }

    /// An untrusted peer has become a peer.
    pub(super) fn welcome(&self, id: NodeId) {
        let by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = by_peer.get(&id).and_then(Weak::upgrade) {
            account.welcome();
        }
    }
}
