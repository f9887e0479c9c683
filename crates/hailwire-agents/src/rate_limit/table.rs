//! The bounded table of keys beneath each limit.
//!
//! A key is stored as a hash of 128 bits with a random seed in each process, so an entry has the same size whatever the
//! client sends. An entry is one number, the time at which the next request is expected (GCRA's *theoretical arrival
//! time*). An entry whose time has passed is equivalent to no entry, and is dropped by the next sweep.
//!
//! A full table evicts no key that is still counted. New keys are then counted in a *sketch* (Cormode and Muthukrishnan's
//! count-min, with conservative update): four rows of such times, in each of which a key has one cell. The earliest of
//! its four times is used, and it is never earlier than the exact one: so no key exceeds its limit, and a request is
//! refused wrongly only if keys that are as busy collide with its key in every row. A client cannot choose collisions,
//! since the hash is seeded.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use governor::{
    nanos::Nanos,
    state::{StateStore, keyed::ShrinkableKeyedStateStore},
};

/// The hash of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyHash(u64, u64);

/// Hashes keys with two random seeds.
#[derive(Debug, Default)]
pub(super) struct KeyHasher(RandomState, RandomState);

impl KeyHasher {
    pub(super) fn of(&self, value: impl Hash) -> KeyHash {
        KeyHash(self.0.hash_one(&value), self.1.hash_one(&value))
    }
}

/// Shards, each with a lock, so that requests seldom wait for one another.
const SHARDS: usize = 16;
/// Rows of the sketch.
const SKETCH_ROWS: usize = 4;

/// A bounded table of keys and their theoretical arrival times.
#[derive(Debug)]
pub(super) struct KeyTable {
    shards: [Mutex<TableShard>; SHARDS],
    /// Entries of each shard.
    capacity: usize,
}

#[derive(Debug, Default)]
struct TableShard {
    entries: HashMap<KeyHash, Nanos>,
    sketch: CountMinSketch,
}

/// The rows one after the other; empty until the first new key in a full table.
#[derive(Debug, Default)]
struct CountMinSketch(Vec<Nanos>);

impl CountMinSketch {
    /// The cells of a key, one in each row, from bits of the hash that do not select the shard.
    fn cells(&self, key: KeyHash) -> [usize; SKETCH_ROWS] {
        let width = self.0.len() / SKETCH_ROWS;
        let mask = width.wrapping_sub(1);
        let bits = [key.0, key.1, key.1 >> 32, key.0 ^ key.1.rotate_left(20)];
        std::array::from_fn(|row| row * width + (bits[row] as usize & mask))
    }

    /// The time for a key, never earlier than its exact time.
    fn time(&self, key: KeyHash) -> Option<Nanos> {
        if self.0.is_empty() {
            return None;
        }
        let times = self.cells(key).map(|cell| self.0[cell]);
        times.into_iter().min_by_key(|time| time.as_u64())
    }

    fn raise(&mut self, key: KeyHash, to: Nanos, width: usize) {
        if self.0.is_empty() {
            self.0.resize(SKETCH_ROWS * width, Nanos::from(0_u64));
        }
        for cell in self.cells(key) {
            let time = &mut self.0[cell];
            if time.as_u64() < to.as_u64() {
                *time = to;
            }
        }
    }

    /// Frees its memory when all its times have passed.
    fn sweep(&mut self, drop_below: Nanos) {
        if self
            .0
            .iter()
            .all(|time| time.as_u64() <= drop_below.as_u64())
        {
            self.0 = Vec::new();
        }
    }
}

impl KeyTable {
    /// A table for about this many keys.
    pub(super) fn new(keys: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            capacity: keys.div_ceil(SHARDS).max(1),
        }
    }

    fn shard(&self, key: KeyHash) -> MutexGuard<'_, TableShard> {
        // The remainder is below the number of shards.
        let shard = &self.shards[(key.0 >> 32) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cells in a row of a shard's sketch.
    fn width(&self) -> usize {
        self.capacity.next_power_of_two().clamp(64, 1 << 20)
    }
}

impl StateStore for KeyTable {
    type Key = KeyHash;

    fn measure_and_replace<T, F, E>(&self, key: &KeyHash, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut shard = self.shard(*key);
        let TableShard { entries, sketch } = &mut *shard;
        if let Some(time) = entries.get_mut(key) {
            let (answer, next) = decide(Some(*time))?;
            *time = next;
            return Ok(answer);
        }
        // A key that was counted in the sketch keeps that count when it gets an entry.
        let (answer, next) = decide(sketch.time(*key))?;
        if entries.len() < self.capacity {
            entries.insert(*key, next);
        } else {
            sketch.raise(*key, next, self.width());
        }
        Ok(answer)
    }
}

impl ShrinkableKeyedStateStore<KeyHash> for KeyTable {
    fn retain_recent(&self, drop_below: Nanos) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let TableShard { entries, sketch } = &mut *shard;
            entries.retain(|_, next| *next > drop_below);
            if entries.capacity() > 4 * entries.len().max(64) {
                entries.shrink_to_fit();
            }
            sketch.sweep(drop_below);
        }
    }

    fn len(&self) -> usize {
        let len = |shard: &Mutex<TableShard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.entries.len()
        };
        self.shards.iter().map(len).sum()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use rand_pcg::{Pcg64, rand_core::Rng as _};

    use super::*;

    /// A limit in terms of GCRA: the time between two requests, and how much earlier a request may arrive.
    const PACE: u64 = 100;
    const EARLY: u64 = 4 * PACE;

    fn conforms(time: Option<u64>, now: u64) -> Option<u64> {
        let time = time.unwrap_or(now);
        (now >= time.saturating_sub(EARLY)).then(|| time.max(now) + PACE)
    }

    fn asks(table: &KeyTable, key: KeyHash, now: u64) -> bool {
        let decide = |time: Option<Nanos>| {
            let next = conforms(time.map(|time| time.as_u64()), now).ok_or(())?;
            Ok::<_, ()>(((), Nanos::from(next)))
        };
        table.measure_and_replace(&key, decide).is_ok()
    }

    fn keys(random: &mut Pcg64, count: usize) -> Vec<KeyHash> {
        (0..count)
            .map(|_| KeyHash(random.next_u64(), random.next_u64()))
            .collect()
    }

    #[test]
    fn no_key_exceeds_its_limit_however_full_the_table_is() {
        for seed in 0..2_000_u128 {
            let mut random = Pcg64::new(seed, 7);
            let below = |random: &mut Pcg64, most: u64| random.next_u64() % most;
            let table = KeyTable::new(1 + below(&mut random, 64) as usize);
            let count = 20 + below(&mut random, 200) as usize;
            let keys = keys(&mut random, count);
            let mut exact: HashMap<KeyHash, u64> = HashMap::new();
            let mut now = 0;
            for step in 0..1_500 {
                now += below(&mut random, 20);
                if step % 200 == 0 {
                    table.retain_recent(Nanos::from(now));
                }
                let key = keys[below(&mut random, keys.len() as u64) as usize];
                if asks(&table, key, now) {
                    let next = conforms(exact.get(&key).copied(), now);
                    assert!(next.is_some(), "seed {seed}: {key:?} at {now}");
                    exact.extend(next.map(|next| (key, next)));
                }
            }
        }
    }

    #[test]
    fn new_keys_in_a_full_table_are_admitted_and_counted_separately() {
        let (mut wrong, mut asked) = (0, 0);
        for seed in 0..200_u128 {
            let mut random = Pcg64::new(seed, 11);
            let table = KeyTable::new(1_024);
            for key in keys(&mut random, 4_096) {
                let _ = asks(&table, key, 0);
            }
            // The keys that filled it are still counted, and a quarter as many new keys arrive, five times each.
            let new_keys = keys(&mut random, 256);
            for key in &new_keys {
                let passed = (0..20).filter(|_| asks(&table, *key, 0)).count();
                assert!(passed <= 5, "seed {seed}: {passed}");
                wrong += 5 - passed;
                asked += 5;
            }
        }
        // The 3,072 keys without an entry asked once, and the new keys five times each.
        let share = wrong as f64 / f64::from(asked);
        println!(
            "refused wrongly: {wrong} of {asked}, {:.3} %",
            share * 100.0
        );
        assert!(share < 0.25, "{wrong} of {asked}");
    }

    #[test]
    fn with_a_quarter_as_many_new_keys_as_entries_hardly_any_request_is_refused_wrongly() {
        let (mut wrong, mut asked) = (0, 0);
        for seed in 0..1_000_u128 {
            let mut random = Pcg64::new(seed, 13);
            let table = KeyTable::new(1_024);
            // The table is full, and no other key has arrived yet.
            let mut fill = keys(&mut random, 1_024);
            while table.len() < 1_024 {
                let key = fill
                    .pop()
                    .unwrap_or_else(|| KeyHash(random.next_u64(), random.next_u64()));
                if table.shard(key).entries.len() < table.capacity {
                    let _ = asks(&table, key, 0);
                }
            }
            for key in keys(&mut random, 256) {
                let passed = (0..6).filter(|_| asks(&table, key, 0)).count();
                assert!(passed <= 5);
                wrong += 5 - passed;
                asked += 5;
            }
        }
        let share = wrong as f64 / f64::from(asked);
        println!(
            "refused wrongly: {wrong} of {asked}, {:.4} %",
            share * 100.0
        );
        assert!(share < 0.005, "{wrong} of {asked}");
    }

    #[test]
    fn a_sketch_frees_its_memory_and_a_new_key_keeps_its_count() {
        let table = KeyTable::new(16);
        let mut random = Pcg64::new(1, 1);
        let all = keys(&mut random, 64);
        let new_key = KeyHash(random.next_u64(), random.next_u64());
        all.iter().for_each(|key| assert!(asks(&table, *key, 0)));
        let passed = (0..20).filter(|_| asks(&table, new_key, 0)).count();
        assert!(passed <= 5);
        // The others are dropped, and the new key is still counted.
        table.retain_recent(Nanos::from(PACE));
        assert_eq!(table.len(), 0);
        assert!(!asks(&table, new_key, PACE / 2));
        table.retain_recent(Nanos::from(100 * PACE));
        assert!(
            table
                .shards
                .iter()
                .all(|shard| shard.lock().unwrap().sketch.0.is_empty())
        );
    }
}
