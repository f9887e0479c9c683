//! What peers may make this node hold, in bytes: each one, and all together.
//!
//! Each peer has a promise, which nobody can use up for it, over all its connections, streams and
//! carriers. What goes beyond is lent out of one pool for all: first come, first served, but nobody may
//! have more than [`ALPHA`] times what is left (the dynamic threshold of Choudhury and Hahne, 1998). So one
//! peer alone has nearly all of the pool, many that want it share it, and something always remains for
//! who comes next. An untrusted peer has a small promise and borrows nothing.
//!
//! What is charged is what a peer can grow at will: connections, streams, unread and unsent bytes.
//! Whoever is refused is told (`resource_exhausted`) or waits.
//!
//! With [`MemoryBudget::default`], 64 peers that do their worst hold 64 * [`PEER`] + [`POOL`] = 160 MiB of what is
//! charged. What lies in the windows of QUIC and HTTP/2 is charged a little later, by `node/unread.rs`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Bytes that each peer is promised.
pub const PEER: usize = 3 << 19;

/// Bytes that each untrusted peer is promised.
pub const UNTRUSTED: usize = 5 << 17;

/// Bytes that are lent beyond promises, to all peers together.
pub const POOL: usize = 64 << 20;

/// Nobody borrows more than so many times what remains.
pub const ALPHA: usize = 8;

/// Room that follows what is used grows by so much where there is no room to double.
pub const STEP: usize = 64 << 10;

/// What all peers share.
#[derive(Debug)]
pub struct MemoryBudget {
    pool: usize,
    lent: AtomicUsize,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(POOL)
    }
}

impl MemoryBudget {
    /// A budget that lends so many bytes.
    #[must_use]
    pub const fn new(pool: usize) -> Self {
        Self {
            pool,
            lent: AtomicUsize::new(0),
        }
    }

    /// Bytes that are lent now.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.lent.load(Relaxed)
    }

    /// Lends so many more bytes to somebody whose loan they make `loan`.
    fn lend(&self, more: usize, loan: usize) -> bool {
        let lend = |lent: usize| may_lend(self.pool, lent, more, loan).then(|| lent + more);
        more == 0 || self.lent.fetch_update(Relaxed, Relaxed, lend).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.lent.fetch_sub(bytes, Relaxed);
    }
}

/// Whether `more` bytes may be lent to somebody who would then have borrowed `loan`.
fn may_lend(pool: usize, lent: usize, more: usize, loan: usize) -> bool {
    let left = pool.checked_sub(lent.saturating_add(more));
    left.is_some_and(|left| loan <= left.saturating_mul(ALPHA))
}

/// What one peer holds.
#[derive(Debug)]
pub struct PeerAccount {
    budget: Arc<MemoryBudget>,
    /// What it may hold without borrowing.
    promised: AtomicUsize,
    used: AtomicUsize,
}

impl PeerAccount {
    /// The account of a peer.
    #[must_use]
    pub fn peer(budget: Arc<MemoryBudget>) -> Arc<Self> {
        Self::with(budget, PEER)
    }

    /// The account of an untrusted peer, which borrows nothing until [`PeerAccount::welcome`].
    #[must_use]
    pub fn untrusted(budget: Arc<MemoryBudget>) -> Arc<Self> {
        Self::with(budget, UNTRUSTED)
    }

    fn with(budget: Arc<MemoryBudget>, promised: usize) -> Arc<Self> {
        Arc::new(Self {
            budget,
            promised: AtomicUsize::new(promised),
            used: AtomicUsize::new(0),
        })
    }

    /// The untrusted peer has become a peer.
    pub fn welcome(&self) {
        // An untrusted peer has borrowed nothing, so no loan changes with this.
        self.promised.store(PEER, Relaxed);
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Room for so many bytes, until that is dropped; none where there is none.
    #[must_use]
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Option<AccountCharge> {
        self.take(bytes).then(|| AccountCharge {
            account: self.clone(),
            bytes,
        })
    }

    fn take(&self, bytes: usize) -> bool {
        let promised = self.promised.load(Relaxed);
        let borrows = promised >= PEER;
        let mut used = self.used.load(Relaxed);
        loop {
            let wanted = used.saturating_add(bytes);
            let loan = wanted.saturating_sub(promised);
            let more = loan - used.saturating_sub(promised);
            if (loan > 0 && !borrows) || !self.budget.lend(more, loan) {
                return false;
            }
            match self
                .used
                .compare_exchange_weak(used, wanted, Relaxed, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => used = now,
            }
            self.budget.give_back(more);
        }
    }

    fn give_back(&self, bytes: usize) {
        let promised = self.promised.load(Relaxed);
        let used = self.used.fetch_sub(bytes, Relaxed);
        let loan = |used: usize| used.saturating_sub(promised);
        self.budget.give_back(loan(used) - loan(used - bytes));
    }
}

/// Room that somebody has in an [`PeerAccount`], given back when dropped.
#[derive(Debug)]
pub struct AccountCharge {
    account: Arc<PeerAccount>,
    bytes: usize,
}

impl AccountCharge {
    /// How much it is.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it so much; unchanged where there is no room for more.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes && !self.account.take(bytes - self.bytes) {
            return false;
        }
        if bytes < self.bytes {
            self.account.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }

    /// Follows what is used: doubles while more than half of the room is, by [`STEP`] where there is
    /// no room to double, and halves once less than an eighth is, down to `least`. Whether
    /// anything changed.
    pub fn follow(&mut self, used: usize, least: usize) -> bool {
        let room = self.bytes;
        if used > room / 2 {
            return self.resize(2 * room) || (used + STEP > room && self.resize(room + STEP));
        }
        room > least && used < room / 8 && self.resize((room / 2).max(least))
    }
}

impl Drop for AccountCharge {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many steps as an account gives.
    fn fill(account: &Arc<PeerAccount>) -> Vec<AccountCharge> {
        std::iter::from_fn(|| account.hold(STEP)).collect()
    }

    #[test]
    fn sixty_four_peers_that_take_all_they_get_hold_no_more_than_the_stated_sum() {
        let budget = Arc::new(MemoryBudget::default());
        let accounts: Vec<_> = (0..64).map(|_| PeerAccount::peer(budget.clone())).collect();
        let held: Vec<_> = accounts.iter().map(fill).collect();
        let used: usize = accounts.iter().map(|account| account.used()).sum();
        assert!(used <= 64 * PEER + POOL, "{used}");
        assert!(budget.lent() <= POOL);
        // Each has what it was promised, however late it came.
        assert!(accounts.iter().all(|account| account.used() >= PEER));
        let late = PeerAccount::peer(budget.clone());
        assert!(fill(&late).len() >= PEER / STEP);
        drop(held);
        assert_eq!(budget.lent(), 0);
        assert!(accounts.iter().all(|account| account.used() == 0));
    }

    #[test]
    fn one_peer_alone_has_nearly_all_of_the_pool_and_leaves_some_to_the_next() {
        let budget = Arc::new(MemoryBudget::default());
        let (first, second) = (
            PeerAccount::peer(budget.clone()),
            PeerAccount::peer(budget.clone()),
        );
        let held = fill(&first);
        assert!(first.used() > POOL * 8 / 10);
        let next = fill(&second);
        assert!(second.used() > PEER + POOL / 20, "{}", second.used());
        drop(held);
        // What was given back is there for the others.
        let more = fill(&second);
        assert!(second.used() > POOL * 8 / 10);
        drop((next, more));
        assert_eq!(budget.lent(), 0);
    }

    #[test]
    fn an_untrusted_peer_borrows_nothing_until_it_is_welcome() {
        let budget = Arc::new(MemoryBudget::default());
        let account = PeerAccount::untrusted(budget.clone());
        let mut held = fill(&account);
        assert_eq!((account.used(), budget.lent()), (UNTRUSTED, 0));
        account.welcome();
        held.extend(fill(&account));
        assert!(account.used() > PEER);
        drop(held);
        assert_eq!((account.used(), budget.lent()), (0, 0));
    }

    #[test]
    fn room_that_grows_and_shrinks_is_given_back_whole() {
        let budget = Arc::new(MemoryBudget::new(4 << 20));
        let account = PeerAccount::peer(budget.clone());
        let mut held = account.hold(STEP).unwrap();
        assert!(held.resize(2 << 20));
        assert_eq!(budget.lent(), (2 << 20) - PEER);
        assert!(!held.resize(64 << 20));
        assert_eq!(held.bytes(), 2 << 20);
        assert!(held.resize(0));
        assert_eq!((account.used(), budget.lent()), (0, 0));
    }

    #[test]
    fn many_threads_lose_nothing() {
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let accounts = [
            PeerAccount::peer(budget.clone()),
            PeerAccount::peer(budget.clone()),
        ];
        std::thread::scope(|scope| {
            for account in accounts.iter().cycle().take(8) {
                scope.spawn(move || {
                    for _ in 0..200 {
                        drop(fill(account));
                    }
                });
            }
        });
        assert_eq!(budget.lent(), 0);
        assert!(accounts.iter().all(|account| account.used() == 0));
    }
}
