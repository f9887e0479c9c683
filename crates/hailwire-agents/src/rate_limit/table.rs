//! The bounded table of keys beneath each limit.
//!
//! A key is a hash of 128 bits, keyed anew in each process, so an entry has the same size whatever the client
//! sends. An entry is one number, the time at which the next request is expected (GCRA's *theoretical arrival
//! time*). One whose time has come says no more than none, and is dropped when the table is swept.
//!
//! A table that is full of clients that are still counted gives none of them up. Newcomers are then counted in a
//! *sketch* (Cormode and Muthukrishnan's count-min, with conservative update): four rows of numbers like those, in each of
//! which a key has one place. The earliest of its four is taken for its own, and never is before it: so no newcomer passes
//! more often than its limit says, and one is refused wrongly only where others that were as busy meet it in every row.
//! Which ones those are nobody can choose, since the hash is keyed.

use std::{
    collections::HashMap,
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
/// Rows of a sketch.
const ROWS: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<Shard>; SHARDS],
    /// Entries of each shard.
    capacity: usize,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<Key, Nanos>,
    sketch: Sketch,
}

/// Rows one after the other; none until the first newcomer to a full table.
#[derive(Debug, Default)]
struct Sketch(Vec<Nanos>);

impl Sketch {
    /// The places of a key, one in each row; bits of the hash that choose no shard.
    fn places(&self, key: Key) -> [usize; ROWS] {
        let width = self.0.len() / ROWS;
        let mask = width.wrapping_sub(1);
        let bits = [key.0, key.1, key.1 >> 32, key.0 ^ key.1.rotate_left(20)];
        std::array::from_fn(|row| row * width + (bits[row] as usize & mask))
    }

    /// The time that is taken for a key's own, which is not before it.
    fn time(&self, key: Key) -> Option<Nanos> {
        if self.0.is_empty() {
            return None;
        }
        let times = self.places(key).map(|place| self.0[place]);
        times.into_iter().min_by_key(|time| time.as_u64())
    }

    fn raise(&mut self, key: Key, to: Nanos, width: usize) {
        if self.0.is_empty() {
            self.0.resize(ROWS * width, Nanos::from(0_u64));
        }
        for place in self.places(key) {
            let time = &mut self.0[place];
            if time.as_u64() < to.as_u64() {
                *time = to;
            }
        }
    }

    /// Gives its room back when all its times have come.
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

impl Table {
    /// One for so many keys, about.
    pub(super) fn new(keys: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            capacity: keys.div_ceil(SHARDS).max(1),
        }
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        // The remainder is below the number of shards.
        let shard = &self.shards[(key.0 >> 32) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers in a row of a shard's sketch.
    fn width(&self) -> usize {
        self.capacity.next_power_of_two().clamp(64, 1 << 20)
    }
}

impl StateStore for Table {
    type Key = Key;

    fn measure_and_replace<T, F, E>(&self, key: &Key, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut shard = self.shard(*key);
        let Shard { entries, sketch } = &mut *shard;
        if let Some(time) = entries.get_mut(key) {
            let (answer, next) = decide(Some(*time))?;
            *time = next;
            return Ok(answer);
        }
        // A newcomer that was counted in the sketch takes that with it when there is room.
        let (answer, next) = decide(sketch.time(*key))?;
        if entries.len() < self.capacity {
            entries.insert(*key, next);
        } else {
            sketch.raise(*key, next, self.width());
        }
        Ok(answer)
    }
}

impl ShrinkableKeyedStateStore<Key> for Table {
    fn retain_recent(&self, drop_below: Nanos) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let Shard { entries, sketch } = &mut *shard;
            entries.retain(|_, next| *next > drop_below);
            if entries.capacity() > 4 * entries.len().max(64) {
                entries.shrink_to_fit();
            }
            sketch.sweep(drop_below);
        }
    }

    fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard>| {
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

    /// A limit as GCRA counts it: so long between two, and so much earlier at most.
    const PACE: u64 = 100;
    const EARLY: u64 = 4 * PACE;

    fn conforms(time: Option<u64>, now: u64) -> Option<u64> {
        let time = time.unwrap_or(now);
        (now >= time.saturating_sub(EARLY)).then(|| time.max(now) + PACE)
    }

    fn asks(table: &Table, key: Key, now: u64) -> bool {
        let decide = |time: Option<Nanos>| {
            let next = conforms(time.map(|time| time.as_u64()), now).ok_or(())?;
            Ok::<_, ()>(((), Nanos::from(next)))
        };
        table.measure_and_replace(&key, decide).is_ok()
    }

    fn keys(random: &mut Pcg64, count: usize) -> Vec<Key> {
        (0..count)
            .map(|_| Key(random.next_u64(), random.next_u64()))
            .collect()
    }

    #[test]
    fn nobody_passes_more_often_than_its_limit_says_however_full_the_table_is() {
        for seed in 0..2_000_u128 {
            let mut random = Pcg64::new(seed, 7);
            let below = |random: &mut Pcg64, most: u64| random.next_u64() % most;
            let table = Table::new(1 + below(&mut random, 64) as usize);
            let count = 20 + below(&mut random, 200) as usize;
            let keys = keys(&mut random, count);
            let mut exact: HashMap<Key, u64> = HashMap::new();
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
    fn newcomers_to_a_full_table_are_let_through_and_counted_each_by_itself() {
        let (mut wrong, mut asked) = (0, 0);
        for seed in 0..200_u128 {
            let mut random = Pcg64::new(seed, 11);
            let table = Table::new(1_024);
            for key in keys(&mut random, 4_096) {
                let _ = asks(&table, key, 0);
            }
            // Those that filled it are still counted, and a quarter as many newcomers come, five times each.
            let newcomers = keys(&mut random, 256);
            for key in &newcomers {
                let passed = (0..20).filter(|_| asks(&table, *key, 0)).count();
                assert!(passed <= 5, "seed {seed}: {passed}");
                wrong += 5 - passed;
                asked += 5;
            }
        }
        // The 3,072 that had no room asked once, and the newcomers five times each.
        let share = wrong as f64 / f64::from(asked);
        println!(
            "refused wrongly: {wrong} of {asked}, {:.3} %",
            share * 100.0
        );
        assert!(share < 0.25, "{wrong} of {asked}");
    }

    #[test]
    fn with_a_quarter_as_many_newcomers_as_places_hardly_one_is_refused_wrongly() {
        let (mut wrong, mut asked) = (0, 0);
        for seed in 0..1_000_u128 {
            let mut random = Pcg64::new(seed, 13);
            let table = Table::new(1_024);
            // Full, and nobody else has come yet.
            let mut fill = keys(&mut random, 1_024);
            while table.len() < 1_024 {
                let key = fill
                    .pop()
                    .unwrap_or_else(|| Key(random.next_u64(), random.next_u64()));
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
    fn a_sketch_gives_its_room_back_and_a_newcomer_takes_its_count_with_it() {
        let table = Table::new(16);
        let mut random = Pcg64::new(1, 1);
        let all = keys(&mut random, 64);
        let newcomer = Key(random.next_u64(), random.next_u64());
        all.iter().for_each(|key| assert!(asks(&table, *key, 0)));
        let passed = (0..20).filter(|_| asks(&table, newcomer, 0)).count();
        assert!(passed <= 5);
        // The others are forgotten, and the newcomer is still counted.
        table.retain_recent(Nanos::from(PACE));
        assert_eq!(table.len(), 0);
        assert!(!asks(&table, newcomer, PACE / 2));
        table.retain_recent(Nanos::from(100 * PACE));
        assert!(
            table
                .shards
                .iter()
                .all(|shard| shard.lock().unwrap().sketch.0.is_empty())
        );
    }
}
