//! What a peer with an account may make one connection hold: unread and unsent bytes.
//!
//! Both begin with what fits a busy connection, double while more than half of them is in use and the
//! account has room, and shrink again once an eighth is enough. Where there is no room, the
//! connection is not read while more is unread, and writers wait while more is unsent.

use std::sync::Arc;

use crate::carrier::budget::{Account, Held};

/// Unread bytes that every connection has room for.
const UNREAD: usize = 128 * 1024;

/// Unsent bytes that every connection has room for: those of one writer.
const QUEUED: usize = hailwire_wire::limits::MUX_SEND_QUEUE;

/// Added where there is no room to double.
const STEP: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Rooms {
    unread: Held,
    queued: Held,
}

impl Rooms {
    /// What a connection begins with; none where the account has no room for it.
    pub(super) fn of(account: &Arc<Account>) -> Option<Self> {
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
        let unread = fit(&mut self.unread, unread, UNREAD);
        fit(&mut self.queued, queued, QUEUED) || unread
    }
}

fn fit(held: &mut Held, used: usize, least: usize) -> bool {
    let room = held.bytes();
    if used > room / 2 {
        return held.resize(2 * room) || (used > room - STEP && held.resize(room + STEP));
    }
    room > least && used < room / 8 && held.resize((room / 2).max(least))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::budget::{Budget, PEER};

    #[test]
    fn room_follows_what_is_used_and_stops_at_the_account() {
        let budget = Arc::new(Budget::new(0));
        let account = Account::peer(budget);
        let mut rooms = Rooms::of(&account).unwrap();
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
