//! What a peer has not acknowledged on a QUIC connection, charged to its account.
//!
//! The engine keeps every byte until it is acknowledged, up to the send window. So a connection has room for a
//! few, which follows what is used ([`AccountCharge::follow`]); without that, writers wait. The engine is asked
//! once in so many bytes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use super::budget::{AccountCharge, PeerAccount};

/// Bytes that every connection has room for: an untrusted peer, too, may dial a second time.
const LEAST: usize = 128 * 1024;

/// How often it is looked whether the peer has acknowledged something, while writers wait.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct UnacknowledgedBytes {
    /// None where nobody is charged: then there is no bound here.
    held: Mutex<Option<AccountCharge>>,
    /// How much that is.
    room: AtomicUsize,
    written: AtomicU64,
    /// Of what was written, what was acknowledged when the engine was asked last.
    acknowledged: AtomicU64,
}

impl Default for UnacknowledgedBytes {
    fn default() -> Self {
        Self {
            held: Mutex::default(),
            room: AtomicUsize::new(usize::MAX),
            written: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
        }
    }
}

impl UnacknowledgedBytes {
    /// Charges an account from now on; false where it has no room to begin with.
    pub(super) fn charge(&self, account: &Arc<PeerAccount>) -> bool {
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
    pub(super) async fn writable(&self, engine: impl Fn() -> Option<u64>) {
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

    /// Gives back what is not needed for what `engine` says is not acknowledged. Asked now and then, not by
    /// writers: of those that had to wait, all is acknowledged a moment later.
    pub(super) fn shrink(&self, engine: impl Fn() -> u64) {
        let room = self.room.load(Relaxed);
        if room > LEAST
            && let Some(held) = &mut *self.lock()
            && let unacknowledged = engine()
            && unacknowledged <= room as u64 / 2
        {
            held.follow(unacknowledged as usize, LEAST);
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
        while used > held.bytes() / 2 && held.follow(used, LEAST) {}
        self.room.store(held.bytes(), Relaxed);
        used <= held.bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Option<AccountCharge>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::budget::{MemoryBudget, PEER};

    #[tokio::test(start_paused = true)]
    async fn room_follows_what_is_not_acknowledged_and_writers_wait_at_the_account() {
        let account = PeerAccount::peer(Arc::new(MemoryBudget::new(0)));
        let unsent = UnacknowledgedBytes::default();
        assert!(unsent.charge(&account));
        unsent.wrote(LEAST);
        unsent.writable(|| panic!("nobody is asked before")).await;
        unsent.wrote(1);
        unsent.writable(|| Some(LEAST as u64)).await;
        assert_eq!(account.used(), 2 * LEAST);
        // However much was written at once, it has room before anybody waits.
        let now = tokio::time::Instant::now();
        unsent.wrote(LEAST + 4);
        unsent.writable(|| Some(2 * LEAST as u64 + 4)).await;
        assert_eq!(now.elapsed(), Duration::ZERO);
        let mut most = 0;
        for _ in 0..100 {
            unsent.wrote(LEAST);
            let all = || Some(unsent.written.load(Relaxed));
            if tokio::time::timeout(Duration::from_secs(60), unsent.writable(all))
                .await
                .is_err()
            {
                break;
            }
            most = account.used();
        }
        assert!((PEER / 2..=PEER).contains(&most), "{most}");
        // It is acknowledged, or the connection ends: nobody waits any longer.
        unsent.writable(|| None).await;
        unsent.writable(|| Some(0)).await;
        assert_eq!(account.used(), most, "a writer takes nothing away");
        for _ in 0..10 {
            unsent.shrink(|| 0);
        }
        assert_eq!(account.used(), LEAST);
        drop(unsent);
        assert_eq!(account.used(), 0);
    }
}
