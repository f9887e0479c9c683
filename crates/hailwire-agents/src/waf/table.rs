//! The requests whose bodies are being read: bounded, and nothing stays for ever.
//!
//! An entry is made with a request's head, and ends with its body, its completion, a cancel, or after
//! [`Limits::idle`] without a word of it. A table that is full first forgets those and the ones that are *spent*, whose
//! answer cannot change any more, and then refuses: a body that nobody reads must not pass.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hailwire_callout::Text;

/// Bounds of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) entries: usize,
    pub(super) idle: Duration,
}

/// Locks, so that requests seldom wait for one another.
const SHARDS: usize = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Table<T> {
    shards: [Mutex<HashMap<Text, Entry<T>>>; SHARDS],
    hasher: RandomState,
    limits: Limits,
}

#[derive(Debug)]
struct Entry<T> {
    seen: Instant,
    state: Arc<Mutex<T>>,
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<T> Table<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            limits,
        }
    }

    fn shard(&self, id: &str) -> MutexGuard<'_, HashMap<Text, Entry<T>>> {
        // The remainder is below the number of shards.
        let shard = &self.shards[self.hasher.hash_one(id) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a request; made where there is none, in place of idle and spent ones if need be.
    pub(super) fn entry(
        &self,
        id: &str,
        now: Instant,
        spent: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Result<Arc<Mutex<T>>, Full> {
        let mut shard = self.shard(id);
        if let Some(entry) = shard.get_mut(id) {
            entry.seen = now;
            return Ok(Arc::clone(&entry.state));
        }
        let most = self.limits.entries.div_ceil(SHARDS).max(1);
        if shard.len() >= most {
            shard.retain(|_, entry| {
                // One that is at work is neither.
                let spent = entry.state.try_lock().is_ok_and(|state| spent(&state));
                !spent && now.saturating_duration_since(entry.seen) < self.limits.idle
            });
        }
        if shard.len() >= most {
            return Err(Full);
        }
        let state = Arc::new(Mutex::new(make()));
        let seen = now;
        shard.insert(
            Text::from(id),
            Entry {
                seen,
                state: Arc::clone(&state),
            },
        );
        Ok(state)
    }

    /// Forgets a request.
    pub(super) fn remove(&self, id: &str) {
        self.shard(id).remove(id);
    }

    /// How many there are.
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
    fn a_full_table_refuses_until_something_is_spent_or_has_been_idle_for_long() {
        let limits = Limits {
            entries: 16,
            idle: Duration::from_secs(60),
        };
        let table = Table::new(limits);
        let start = Instant::now();
        let spent = |spent: &bool| *spent;
        let enter = |id: &str, now| table.entry(id, now, spent, || false);
        let full = (0..1_000)
            .filter(|n| enter(&n.to_string(), start).is_err())
            .count();
        assert_eq!((full, table.len()), (984, 16));
        assert!(enter("x", start + Duration::from_secs(59)).is_err());
        assert!(enter("x", start + Duration::from_secs(60)).is_ok());
        table.remove("x");
        assert_eq!(table.len(), 15);

        let table = Table::new(limits);
        let enter = |id: &str| table.entry(id, start, spent, || true);
        assert!(
            (0..1_000).all(|n| enter(&n.to_string()).is_ok()),
            "the spent make room"
        );
        assert!(table.len() <= 16);
    }
}
