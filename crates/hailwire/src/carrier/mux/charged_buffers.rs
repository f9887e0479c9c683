//! What a peer with an account may make one connection hold: unread and unsent bytes.
//!
//! Both begin with what fits a busy connection and follow what is used ([`AccountCharge::follow`]). Where there is no
//! room, the connection is not read while more is unread, and writers wait while more is unsent.

use std::sync::Arc;

use crate::carrier::budget::{AccountCharge, PeerAccount};

/// Unread bytes that every connection has room for.
const UNREAD: usize = 128 * 1024;

/// Unsent bytes that every connection has room for: those of one writer.
const QUEUED: usize = hailwire_wire::limits::MUX_SEND_QUEUE;

#[derive(Debug)]
pub(super) struct ChargedBuffers {
    unread: AccountCharge,
    queued: AccountCharge,
}

impl ChargedBuffers {
    /// What a connection begins with; none where the account has no room for it.
    pub(super) fn of(account: &Arc<PeerAccount>) -> Option<Self> {
        Some(Self {
            unread: account.hold(UNREAD)?,
            queued: account.hold(QUEUED)?,
        })
    }

    pub(super) const fn unread(&self) -> usize {
        self.unread.bytes()
    }

    pub(super) const fn queued(&self) -> usize {
        self.queued.bytes()
    }

    /// Takes in how much is unread and unsent. Whether anything changed.
    pub(super) fn fit(&mut self, unread: usize, queued: usize) -> bool {
        let unread = self.unread.follow(unread, UNREAD);
        self.queued.follow(queued, QUEUED) || unread
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::budget::{MemoryBudget, PEER, STEP};

    #[test]
    fn room_follows_what_is_used_and_stops_at_the_account() {
        let budget = Arc::new(MemoryBudget::new(0));
        let account = PeerAccount::peer(budget);
        let mut rooms = ChargedBuffers::of(&account).unwrap();
        assert!(!rooms.fit(UNREAD / 2, QUEUED / 2), "nothing needs more");
        assert!(rooms.fit(UNREAD, 0));
        assert_eq!(rooms.unread(), 2 * UNREAD);
        for _ in 0..100 {
            rooms.fit(rooms.unread(), rooms.queued());
        }
        let all = rooms.unread() + rooms.queued();
        assert!(all <= PEER && all > PEER - STEP, "{all}");
        assert_eq!(account.used(), all);
        while rooms.fit(0, 0) {}
        assert_eq!((rooms.unread(), rooms.queued()), (UNREAD, QUEUED));
        drop(rooms);
        assert_eq!(account.used(), 0);
    }
}
