//! The bounded table of keys beneath each limit.
//!
//! A key is a hash of 128 bits, keyed anew in each process, so an entry has the same size whatever the client
//! sends. An entry is one number, the time at which the next request is expected (GCRA's *theoretical arrival
//! time*). One whose time has come says no more than none, and is dropped when the table is swept.
//!
//! A table that is full of clients that are still counted gives none of them up: newcomers share one entry, which
//! is strict toward them and costs nothing more.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher as _, Hash, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use governor::{
    nanos::Nanos,
    state::{StateStore, keyed::ShrinkableKeyedStateStore},
};

/// Whose requests are counted together, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u64, u64);

impl Key {
    /// The one that newcomers share when the table is full.
    const SHARED: Self = Self(0, 0);
}

/// How keys are made.
#[derive(Debug, Default)]
pub(super) struct Keys(RandomState, RandomState);

impl Keys {
    pub(super) fn of(&self, value: impl Hash) -> Key {
        Key(self.0.hash_one(&value), self.1.hash_one(&value))
    }
}

/// Locks, so that requests seldom wait for one another.
const SHARDS: usize = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<HashMap<Key, Nanos>>; SHARDS],
    /// Of each shard.
    capacity: usize,
}

impl Table {
    /// One for so many keys, about.
    pub(super) fn new(keys: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            capacity: keys.div_ceil(SHARDS).max(1),
        }
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, HashMap<Key, Nanos>> {
        // The remainder is below the number of shards.
        let shard = &self.shards[(key.0 >> 32) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateStore for Table {
    type Key = Key;

    fn measure_and_replace<T, F, E>(&self, key: &Key, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut shard = self.shard(*key);
        let full = shard.len() >= self.capacity;
        let key = if full && !shard.contains_key(key) {
            Key::SHARED
        } else {
            *key
        };
        match shard.entry(key) {
            Entry::Occupied(mut entry) => {
                let (answer, next) = decide(Some(*entry.get()))?;
                entry.insert(next);
                Ok(answer)
            }
            Entry::Vacant(entry) => {
                let (answer, next) = decide(None)?;
                entry.insert(next);
                Ok(answer)
            }
        }
    }
}

impl ShrinkableKeyedStateStore<Key> for Table {
    fn retain_recent(&self, drop_below: Nanos) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, next| *next > drop_below);
            if shard.capacity() > 4 * shard.len().max(64) {
                shard.shrink_to_fit();
            }
        }
    }

    fn len(&self) -> usize {
        let len = |shard: &Mutex<HashMap<_, _>>| {
            shard.lock().unwrap_or_else(PoisonError::into_inner).len()
        };
        self.shards.iter().map(len).sum()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
