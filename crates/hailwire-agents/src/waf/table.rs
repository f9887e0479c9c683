//! The table of requests whose bodies are being read: bounded, and every entry expires.
//!
//! An entry is created with a request's head, and removed with the end of its body, its completion, a cancel, or after
//! [`TableLimits::idle`] without an event. A full table first evicts idle entries and *decided* ones, whose answer cannot change
//! any more, and then refuses new ones: a body that is not inspected must not pass.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hailwire_callout::Text;

/// The bounds of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableLimits {
    pub(super) entries: usize,
    pub(super) idle: Duration,
}

/// Shards, each with a lock, so that requests seldom wait for one another.
const SHARDS: usize = 16;

/// A bounded table of request states by correlation id.
#[derive(Debug)]
pub(super) struct RequestTable<T> {
    shards: [Mutex<HashMap<Text, RequestEntry<T>>>; SHARDS],
    hasher: RandomState,
    limits: TableLimits,
}

#[derive(Debug)]
struct RequestEntry<T> {
    seen: Instant,
    state: Arc<Mutex<T>>,
}

/// The table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableFull;

impl<T> RequestTable<T> {
    pub(super) fn new(limits: TableLimits) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            limits,
        }
    }

    fn shard(&self, id: &str) -> MutexGuard<'_, HashMap<Text, RequestEntry<T>>> {
        // The remainder is below the number of shards.
        let shard = &self.shards[self.hasher.hash_one(id) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a request, created if there is none; idle and decided entries are evicted if needed.
    pub(super) fn entry(
        &self,
        id: &str,
        now: Instant,
        decided: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Result<Arc<Mutex<T>>, TableFull> {
        let mut shard = self.shard(id);
        if let Some(entry) = shard.get_mut(id) {
            entry.seen = now;
            return Ok(Arc::clone(&entry.state));
        }
        let most = self.limits.entries.div_ceil(SHARDS).max(1);
        if shard.len() >= most {
            shard.retain(|_, entry| {
                // An entry that is in use is neither.
                let decided = entry.state.try_lock().is_ok_and(|state| decided(&state));
                !decided && now.saturating_duration_since(entry.seen) < self.limits.idle
            });
        }
        if shard.len() >= most {
            return Err(TableFull);
        }
        let state = Arc::new(Mutex::new(make()));
        let seen = now;
        shard.insert(
            Text::from(id),
            RequestEntry {
                seen,
                state: Arc::clone(&state),
            },
        );
        Ok(state)
    }

    /// Removes a request.
    pub(super) fn remove(&self, id: &str) {
        self.shard(id).remove(id);
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        let len = |shard: &Mutex<HashMap<_, _>>| {
            shard.lock().unwrap_or_else(PoisonError::into_inner).len()
        };
        self.shards.iter().map(len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_refuses_until_something_is_decided_or_has_been_idle_for_long() {
        let limits = TableLimits {
            entries: 16,
            idle: Duration::from_secs(60),
        };
        let table = RequestTable::new(limits);
        let start = Instant::now();
        let decided = |decided: &bool| *decided;
        let enter = |id: &str, now| table.entry(id, now, decided, || false);
        let full = (0..1_000)
            .filter(|n| enter(&n.to_string(), start).is_err())
            .count();
        assert_eq!((full, table.len()), (984, 16));
        assert!(enter("x", start + Duration::from_secs(59)).is_err());
        assert!(enter("x", start + Duration::from_secs(60)).is_ok());
        table.remove("x");
        assert_eq!(table.len(), 15);

        let table = RequestTable::new(limits);
        let enter = |id: &str| table.entry(id, start, decided, || true);
        assert!(
            (0..1_000).all(|n| enter(&n.to_string()).is_ok()),
            "decided entries are evicted"
        );
        assert!(table.len() <= 16);
    }
}
