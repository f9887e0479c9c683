//! What a peer has not acknowledged on a QUIC connection, charged to its account.
//!
//! The engine keeps every byte until it is acknowledged, up to the send window. So a connection has room for a
//! few, which doubles while more than half of it is in use and the account has more; without that,
//! writers wait. The engine is asked once in so many bytes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use super::budget::{Account, Held};

/// Bytes that every connection has room for: a stranger, too, may dial a second time.
const LEAST: usize = 128 * 1024;

/// How often it is looked whether the peer has acknowledged something, while writers wait.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Unsent {
    /// None where nobody is charged: then there is no bound here.
    held: Mutex<Option<Held>>,
    /// How much that is.
    room: AtomicUsize,
    written: AtomicU64,
    /// Of what was written, what was acknowledged when the engine was asked last.
    acknowledged: AtomicU64,
}

impl Default for Unsent {
    fn default() -> Self {
        Self {
            held: Mutex::default(),
            room: AtomicUsize::new(usize::MAX),
            written: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
        }
    }
}

impl Unsent {
    /// Charges an account from now on; false where it has no room to begin with.
    pub(super) fn charge(&self, account: &Arc<Account>) -> bool {
        let held = account.hold(LEAST);
        let charged = held.is_some();
        self.room.store(LEAST, Relaxed);
        *self.lock() = held;
        charged
    }

    /// So many bytes were handed to the engine.
    pub(super) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
    }

    /// Waits until there is room to write. `engine` says how much is not acknowledged; nothing once the
    /// connection is gone.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn room(&self, engine: impl Fn() -> Option<u64>) {
        while self.is_over() {
            let Some(unacknowledged) = engine() else {
                return;
            };
            if self.fit(unacknowledged) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Nothing is under way: what more than the least was held is given back.
    pub(super) fn rest(&self) {
        if self.room.load(Relaxed) > LEAST
            && let Some(held) = &mut *self.lock()
        {
            // To less always goes.
            let _ = held.resize(LEAST);
            self.room.store(held.bytes(), Relaxed);
        }
    }

    fn is_over(&self) -> bool {
        let written = self.written.load(Relaxed);
        let since = written.saturating_sub(self.acknowledged.load(Relaxed));
        since > self.room.load(Relaxed) as u64
    }

    /// Takes in what is not acknowledged, and follows it. Whether there is room.
    fn fit(&self, unacknowledged: u64) -> bool {
        let acknowledged = self.written.load(Relaxed).saturating_sub(unacknowledged);
        self.acknowledged.store(acknowledged, Relaxed);
        let used = usize::try_from(unacknowledged).unwrap_or(usize::MAX);
        let mut held = self.lock();
        let Some(held) = &mut *held else {
            return true;
        };
        let room = held.bytes();
        // Where the account has no more, it stays as it is.
        let _ = if used > room / 2 {
            held.resize(2 * room)
        } else {
            used >= room / 8 || held.resize((room / 2).max(LEAST))
        };
        self.room.store(held.bytes(), Relaxed);
        used <= held.bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::budget::{Budget, PEER};

    #[tokio::test(start_paused = true)]
    async fn room_follows_what_is_not_acknowledged_and_writers_wait_at_the_account() {
        let account = Account::peer(Arc::new(Budget::new(0)));
        let unsent = Unsent::default();
        assert!(unsent.charge(&account));
        unsent.wrote(LEAST);
        unsent.room(|| panic!("nobody is asked before")).await;
        unsent.wrote(1);
        unsent.room(|| Some(LEAST as u64)).await;
        assert_eq!(account.used(), 2 * LEAST);
        let mut most = 0;
        for _ in 0..100 {
            unsent.wrote(LEAST);
            let all = || Some(unsent.written.load(Relaxed));
            if tokio::time::timeout(Duration::from_secs(60), unsent.room(all))
                .await
                .is_err()
            {
                break;
            }
            most = account.used();
        }
        assert!((PEER / 2..=PEER).contains(&most), "{most}");
        // It is acknowledged, or the connection ends: nobody waits any longer.
        unsent.room(|| None).await;
        unsent.room(|| Some(0)).await;
        unsent.rest();
        assert_eq!(account.used(), LEAST);
        drop(unsent);
        assert_eq!(account.used(), 0);
    }
}
