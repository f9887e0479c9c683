//! Which slot a request has, so that all that belongs to it goes to the same one.
//!
//! The table maps 64-bit hashes to slots: numbers below [`SLOT_LIMIT`], whatever the caller means by them. It holds
//! hashes and no names: two requests whose hashes agree in 45 bits and more share a slot. The caller
//! hashes with a seed of its own, so that nobody outside can choose ids that do, or that crowd one another out.
//!
//! # Shape
//!
//! An entry is one atomic word, and eight entries are a set, one cache line:
//!
//! ```text
//!  63                           28 27        16 15               0
//! +-------------------------------+------------+------------------+
//! |              tag              |    slot    |  used (seconds)  |
//! +-------------------------------+------------+------------------+
//! ```
//!
//! A hash has one set in each level, and the next level, eight times as large, is made when a set of the ones before is full: a
//! pool that has few requests at once keeps 32 KiB. At the last level a hash has two sets, so that hardly
//! any is full before all are; where both are, the entry that was used longest ago is taken. An entry that was not used
//! for longer than the time to live is as good as none.
//!
//! Every operation is a handful of loads, and at most one compare-and-swap that succeeds; none waits. Two threads
//! that put the same hash at the same moment agree, except when a third frees an entry between them.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How much is remembered, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffinityConfig {
    /// How long an entry stays that is not used. Default 5 min; from 1 s to 9 h.
    pub ttl: Duration,
    /// Entries that are kept; beyond them, the least lately used may be evicted. Default 100,000; it is
    /// rounded up to what the levels hold: 4,096, 36,864 or, at most, 299,008, of 8 bytes each.
    pub entries: usize,
}

impl Default for AffinityConfig {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(300),
            entries: 100_000,
        }
    }
}

/// The table.
#[derive(Debug)]
pub struct AffinityTable {
    levels: Box<[TableLevel]>,
    /// Where an entry goes that finds none free, which no level is small enough to let happen.
    spare: AtomicU64,
    ttl: u16,
    /// Entries used less long ago than this are not stamped anew.
    restamp: u16,
}

#[derive(Debug)]
struct TableLevel {
    sets: OnceLock<Box<[EntrySet]>>,
    count: usize,
    /// There is no next one.
    last: bool,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct EntrySet([AtomicU64; ENTRIES_PER_SET]);

enum EntryLookup<'a> {
    /// It lies here.
    Known(&'a AtomicU64, u64),
    /// It may be put here.
    Free(&'a AtomicU64, u64),
}

const ENTRIES_PER_SET: usize = 8;
const FIRST_LEVEL: usize = 512;
const MAX_LEVELS: usize = 3;

/// Seats are less than this.
pub const SLOT_LIMIT: u16 = 1 << 12;

impl AffinityTable {
    /// An empty one, which has no memory yet.
    #[must_use]
    pub fn new(config: AffinityConfig) -> Self {
        let mut levels = Vec::new();
        let (mut count, mut room) = (FIRST_LEVEL, 0);
        while levels.len() < MAX_LEVELS && (levels.is_empty() || room < config.entries) {
            levels.push(TableLevel {
                sets: OnceLock::new(),
                count,
                last: false,
            });
            room += count * ENTRIES_PER_SET;
            count *= 8;
        }
        if let Some(last) = levels.last_mut() {
            last.last = true;
        }
        let ttl = u16::try_from(config.ttl.as_secs().clamp(1, 32_400)).unwrap_or(32_400);
        Self {
            levels: levels.into(),
            spare: AtomicU64::new(0),
            ttl,
            restamp: ttl / 8,
        }
    }

    /// The slot of a hash, whose time to live begins anew.
    #[inline]
    #[must_use]
    pub fn slot(&self, hash: u64, now: Duration) -> Option<u16> {
        let (entry, word) = self.find_fresh(hash, stamp(now))?;
        self.touch(entry, word, stamp(now));
        Some(slot_of(word))
    }

    /// Gives a hash a slot, unless it has one, and returns the one that it has.
    #[inline]
    pub fn bind(&self, hash: u64, slot: u16, now: Duration) -> u16 {
        self.put(hash, slot, now, false)
    }

    /// Gives a hash another slot, or its first.
    #[inline]
    pub fn rebind(&self, hash: u64, slot: u16, now: Duration) {
        self.put(hash, slot, now, true);
    }

    /// Forgets a hash; whether it had a slot, however old.
    #[inline]
    pub fn remove(&self, hash: u64) -> bool {
        self.find(hash, |_| true)
            .is_some_and(|(entry, word)| swap(entry, word, 0))
    }

    /// How many entries there are that are not too old. Looks at every entry.
    #[must_use]
    pub fn len(&self, now: Duration) -> usize {
        let sets = self.levels.iter().filter_map(|level| level.sets.get());
        sets.flat_map(|sets| sets.iter())
            .flat_map(|set| set.0.iter())
            .filter(|entry| !is_free(entry.load(Ordering::Relaxed), stamp(now), self.ttl))
            .count()
    }

    /// Whether there is no entry that is not too old.
    #[must_use]
    pub fn is_empty(&self, now: Duration) -> bool {
        self.len(now) == 0
    }

    /// Bytes of the levels that are there.
    #[must_use]
    pub fn memory(&self) -> usize {
        let there = self.levels.iter().filter_map(|level| level.sets.get());
        there.map(|sets| sets.len() * size_of::<EntrySet>()).sum()
    }

    #[inline]
    fn find_fresh(&self, hash: u64, now: u16) -> Option<(&AtomicU64, u64)> {
        self.find(hash, |word| !is_free(word, now, self.ttl))
    }

    #[inline]
    fn find(&self, hash: u64, wanted: impl Fn(u64) -> bool) -> Option<(&AtomicU64, u64)> {
        for level in &self.levels {
            // They are made in their order, so there is none behind one that is missing.
            let sets = level.sets.get()?;
            for set in level.candidates(sets, hash).into_iter().flatten() {
                for entry in &set.0 {
                    let word = entry.load(Ordering::Acquire);
                    if word >> TAG_SHIFT == tag(hash) && wanted(word) {
                        return Some((entry, word));
                    }
                }
            }
        }
        None
    }

    fn put(&self, hash: u64, slot: u16, now: Duration, replace: bool) -> u16 {
        let stamp = stamp(now);
        let slot = slot & (SLOT_LIMIT - 1);
        let fresh = tag(hash) << TAG_SHIFT | u64::from(slot) << 16 | u64::from(stamp);
        // Each further round means that another thread was faster with the same entry.
        for _ in 0..MAX_RETRIES {
            match self.look(hash, stamp) {
                EntryLookup::Known(entry, word) if !replace || slot_of(word) == slot => {
                    self.touch(entry, word, stamp);
                    return slot_of(word);
                }
                EntryLookup::Known(entry, word) | EntryLookup::Free(entry, word) => {
                    if swap(entry, word, fresh) {
                        return slot;
                    }
                }
            }
        }
        // Not remembered. As if it had been crowded out at once.
        slot
    }

    /// The entry of a hash, or one for it.
    #[inline]
    fn look(&self, hash: u64, now: u16) -> EntryLookup<'_> {
        let mut free = None;
        for level in &self.levels {
            let Some(sets) = level.sets.get() else {
                break;
            };
            for set in level.candidates(sets, hash).into_iter().flatten() {
                for entry in &set.0 {
                    let word = entry.load(Ordering::Acquire);
                    if word >> TAG_SHIFT == tag(hash) {
                        // One that is too old is where the new one goes, or there would be two.
                        return if is_free(word, now, self.ttl) {
                            EntryLookup::Free(entry, word)
                        } else {
                            EntryLookup::Known(entry, word)
                        };
                    }
                    if word == 0 && free.is_none() {
                        free = Some(entry);
                    }
                }
            }
        }
        match free {
            Some(entry) => EntryLookup::Free(entry, 0),
            None => self.make_room(hash, now),
        }
    }

    /// An entry for a hash whose sets are full: one that is too old, one of the next level, or the oldest.
    #[cold]
    fn make_room(&self, hash: u64, now: u16) -> EntryLookup<'_> {
        let mut oldest: Option<(&AtomicU64, u64)> = None;
        for level in &self.levels {
            let made = level.sets.get().is_some();
            let sets = level
                .sets
                .get_or_init(|| (0..level.count).map(|_| EntrySet::default()).collect());
            let sets = level.candidates(sets, hash).into_iter().flatten();
            for entry in sets.flat_map(|set| &set.0) {
                let word = entry.load(Ordering::Acquire);
                if is_free(word, now, self.ttl) {
                    return EntryLookup::Free(entry, word);
                }
                // Another thread has put it here since it was looked for.
                if word >> TAG_SHIFT == tag(hash) {
                    return EntryLookup::Known(entry, word);
                }
                if made && oldest.is_none_or(|(_, old)| age(word, now) > age(old, now)) {
                    oldest = Some((entry, word));
                }
            }
        }
        let (entry, word) = oldest.unwrap_or((&self.spare, 0));
        EntryLookup::Free(entry, word)
    }

    #[inline]
    fn touch(&self, entry: &AtomicU64, word: u64, now: u16) {
        if age(word, now) > self.restamp {
            swap(entry, word, word & !0xffff | u64::from(now));
        }
    }
}

const TAG_SHIFT: u32 = 28;
const MAX_RETRIES: usize = 16;

#[inline]
fn swap(entry: &AtomicU64, from: u64, to: u64) -> bool {
    entry
        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

impl TableLevel {
    /// The sets that a hash may lie in, told by the bits that are not in its tag.
    #[inline]
    fn candidates<'a>(&self, sets: &'a [EntrySet], hash: u64) -> [Option<&'a EntrySet>; 2] {
        let mask = sets.len() - 1;
        let first = usize::try_from(hash & 0x7fff).unwrap_or(0) & mask;
        if !self.last {
            return [sets.get(first), None];
        }
        let second = usize::try_from(hash >> 13 & 0x7fff).unwrap_or(0) & mask;
        // A hash whose two sets are one and the same takes that one's neighbour for the second.
        let second = if first == second { second ^ 1 } else { second };
        [sets.get(first), sets.get(second)]
    }
}

/// Never zero, so that no entry looks like none.
#[inline]
fn tag(hash: u64) -> u64 {
    (hash >> TAG_SHIFT).max(1)
}

#[inline]
fn slot_of(word: u64) -> u16 {
    u16::try_from(word >> 16 & 0xfff).unwrap_or(0)
}

#[inline]
fn is_free(word: u64, now: u16, ttl: u16) -> bool {
    word == 0 || age(word, now) > ttl
}

/// Seconds since an entry was used. A stamp that lies a little ahead comes from a thread that read the clock a
/// little later.
#[inline]
fn age(word: u64, now: u16) -> u16 {
    let used = u16::try_from(word & 0xffff).unwrap_or(0);
    let age = now.wrapping_sub(used);
    if age > u16::MAX - 60 { 0 } else { age }
}

/// The last 16 bits of the seconds, which come around after 18 hours. An entry of just that age that was
/// never used nor overwritten would count as fresh for a while, and cost one entry.
#[inline]
fn stamp(now: Duration) -> u16 {
    u16::try_from(now.as_secs() & 0xffff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// As evenly spread as a good hash (splitmix64).
    fn hash(n: u64) -> u64 {
        let mut x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    #[test]
    fn a_request_keeps_its_first_slot_until_it_is_removed() {
        let table = AffinityTable::new(AffinityConfig::default());
        assert_eq!(table.slot(hash(1), at(0)), None);
        assert_eq!(table.bind(hash(1), 3, at(0)), 3);
        assert_eq!(table.bind(hash(1), 1, at(0)), 3);
        assert_eq!(table.slot(hash(1), at(0)), Some(3));
        assert!(!table.is_empty(at(0)));
        table.rebind(hash(1), 2, at(0));
        assert_eq!(table.slot(hash(1), at(0)), Some(2));
        assert!(table.remove(hash(1)));
        assert!(!table.remove(hash(1)));
        assert!(table.is_empty(at(0)));
    }

    #[test]
    fn an_entry_lives_as_long_as_it_is_used() {
        let table = AffinityTable::new(AffinityConfig::default());
        table.bind(hash(1), 3, at(0));
        table.bind(hash(2), 3, at(0));
        for now in (0..3_000).step_by(100) {
            assert_eq!(table.slot(hash(1), at(now)), Some(3));
        }
        assert_eq!(table.slot(hash(2), at(3_000)), None);
        assert_eq!(table.len(at(3_000)), 1);
    }

    #[test]
    fn a_hundred_thousand_are_remembered_and_not_one_is_crowded_out() {
        let table = AffinityTable::new(AffinityConfig::default());
        for n in 0..100_000 {
            table.bind(hash(n), u16::try_from(n % 4).unwrap(), at(0));
        }
        let kept = |n: &u64| table.slot(hash(*n), at(1)) == u16::try_from(n % 4).ok();
        assert_eq!((0..100_000).filter(kept).count(), 100_000);
        assert_eq!(table.memory(), 299_008 * 8);
    }

    #[test]
    fn what_is_beyond_the_bound_takes_the_place_of_the_oldest() {
        let table = AffinityTable::new(AffinityConfig {
            entries: 4_096,
            ..AffinityConfig::default()
        });
        for n in 0..200_000_u64 {
            table.bind(hash(n), 0, at(n / 2_000));
        }
        assert_eq!(table.memory(), 4_096 * 8);
        assert!(table.len(at(100)) <= 4_096);
        assert_eq!(table.slot(hash(199_999), at(100)), Some(0));
        assert_eq!(table.slot(hash(0), at(100)), None);
    }

    #[test]
    fn few_requests_at_once_take_little_memory() {
        let table = AffinityTable::new(AffinityConfig::default());
        assert_eq!(table.memory(), 0);
        for n in 0..200_000 {
            table.bind(hash(n), 0, at(0));
            if n >= 200 {
                assert!(table.remove(hash(n - 200)));
            }
        }
        assert_eq!((table.len(at(0)), table.memory()), (200, 32 << 10));
    }

    #[test]
    fn a_stamp_from_a_little_ahead_is_fresh() {
        let table = AffinityTable::new(AffinityConfig::default());
        table.bind(hash(1), 3, at(65_536));
        assert_eq!(table.slot(hash(1), at(65_535)), Some(3));
    }

    /// A table of one level, in which every hash has two of 512 sets.
    fn small() -> AffinityTable {
        AffinityTable::new(AffinityConfig {
            entries: 4_096,
            ..AffinityConfig::default()
        })
    }

    /// The n-th hash that has these two sets of a small table.
    fn in_sets(n: u64, first: u64, second: u64) -> u64 {
        (n + 1) << TAG_SHIFT | second << 13 | first
    }

    #[test]
    fn an_entry_is_fresh_for_its_time_to_live_and_not_a_second_longer() {
        let table = AffinityTable::new(AffinityConfig::default());
        table.bind(hash(1), 3, at(0));
        table.bind(hash(2), 4, at(0));
        assert_eq!(table.len(at(300)), 2);
        assert_eq!(table.slot(hash(1), at(300)), Some(3));
        assert_eq!(table.slot(hash(2), at(301)), None);
        assert_eq!(table.len(at(301)), 1);
        // The next slot of one that is too old takes its place, and there are no two.
        assert_eq!(table.bind(hash(2), 5, at(301)), 5);
        assert_eq!(table.len(at(301)), 2);
        assert_eq!(table.slot(hash(2), at(301)), Some(5));
    }

    #[test]
    fn a_time_to_live_is_read_as_one_between_a_second_and_nine_hours() {
        for (ttl, seconds) in [(0, 1), (1, 1), (32_400, 32_400), (50_000, 32_400)] {
            let table = AffinityTable::new(AffinityConfig {
                ttl: at(ttl),
                ..AffinityConfig::default()
            });
            table.bind(hash(1), 3, at(7));
            assert_eq!(table.len(at(7 + seconds)), 1, "{ttl} s");
            assert!(table.is_empty(at(8 + seconds)), "{ttl} s");
        }
    }

    #[test]
    fn a_use_within_an_eighth_of_the_time_to_live_writes_nothing() {
        let table = AffinityTable::new(AffinityConfig::default());
        table.bind(hash(1), 3, at(100));
        let word = || table.find(hash(1), |_| true).map(|(_, word)| word).unwrap();
        let before = word();
        assert_eq!(table.slot(hash(1), at(137)), Some(3));
        assert_eq!(word(), before);
        assert_eq!(table.slot(hash(1), at(138)), Some(3));
        assert_eq!(word() & 0xffff, 138, "the time of the use, and else");
        assert_eq!(word() >> 16, before >> 16, "what was");
    }

    #[test]
    fn stamps_come_around_and_one_is_from_a_little_ahead_up_to_a_minute() {
        let table = AffinityTable::new(AffinityConfig::default());
        // Two hundred seconds, over the end of what the stamp counts.
        table.bind(hash(1), 3, at(65_436));
        assert_eq!(table.slot(hash(1), at(65_636)), Some(3));
        table.bind(hash(2), 4, at(160));
        table.bind(hash(3), 5, at(161));
        assert_eq!(table.slot(hash(2), at(100)), Some(4));
        assert_eq!(table.slot(hash(3), at(100)), None);
    }

    #[test]
    fn slots_and_hashes_at_their_bounds_are_remembered() {
        let table = AffinityTable::new(AffinityConfig::default());
        for (hash, slot) in [(0, 0), (u64::MAX, SLOT_LIMIT - 1), (1 << 63, 2_730)] {
            assert_eq!(table.bind(hash, slot, at(0)), slot);
            assert_eq!(table.slot(hash, at(0)), Some(slot));
        }
        // A hash whose upper bits are all zero shares its place with the one of 1, and is not lost.
        assert_eq!(table.slot(1 << TAG_SHIFT, at(0)), Some(0));
    }

    #[test]
    fn it_grows_by_levels_up_to_what_was_asked_for_and_never_beyond_three() {
        for (entries, room) in [
            (0, 4_096),
            (4_096, 4_096),
            (4_097, 36_864),
            (36_864, 36_864),
            (36_865, 299_008),
            (usize::MAX, 299_008),
        ] {
            let table = AffinityTable::new(AffinityConfig {
                entries,
                ..AffinityConfig::default()
            });
            for n in 0..60_000 {
                table.bind(hash(n), 0, at(0));
            }
            assert_eq!(table.memory(), room * 8, "{entries}");
        }
    }

    #[test]
    fn a_hash_finds_room_in_either_of_its_two_sets_and_in_no_other() {
        // Where both are one and the same, the neighbour is the second.
        for (first, second, neighbours) in [(7, 300, (7, 300)), (1, 1, (1, 0)), (6, 6, (6, 7))] {
            let table = small();
            for n in 0..16 {
                table.bind(in_sets(n, first, second), 9, at(n));
            }
            assert_eq!(table.len(at(20)), 16, "{first}, {second}");
            let sets = table.levels[0].sets.get().unwrap();
            for set in [neighbours.0, neighbours.1] {
                let taken = sets[set]
                    .0
                    .iter()
                    .filter(|entry| entry.load(Ordering::Relaxed) != 0);
                assert_eq!(taken.count(), 8, "set {set} of {first}, {second}");
            }
        }
    }

    #[test]
    fn where_both_sets_are_full_the_one_that_was_used_longest_ago_makes_way() {
        let table = small();
        let id = |n| in_sets(n, 7, 300);
        for n in 0..16 {
            table.bind(id(n), 9, at(200));
        }
        // All are used again but two, of which one is the elder; neither is too old.
        table.remove(id(11));
        table.bind(id(11), 9, at(150));
        table.remove(id(4));
        table.bind(id(4), 9, at(100));
        table.bind(id(16), 1, at(210));
        let gone = |now| -> Vec<u64> {
            let missing = |n: &u64| table.find(id(*n), |_| true).is_none();
            assert_eq!(table.len(at(now)), 16);
            (0..20).filter(missing).collect()
        };
        assert_eq!(gone(210), [4, 17, 18, 19]);
        table.bind(id(17), 1, at(210));
        assert_eq!(gone(210), [4, 11, 18, 19]);
        assert_eq!(table.slot(id(16), at(210)), Some(1));
    }

    #[test]
    fn what_is_too_old_makes_way_before_the_table_grows() {
        let table = AffinityTable::new(AffinityConfig::default());
        let id = |n| in_sets(n, 7, 300);
        for n in 0..8 {
            table.bind(id(n), 9, at(n));
        }
        // The first of them is too old; the others are not.
        table.bind(id(8), 1, at(301));
        assert_eq!(table.memory(), 32 << 10);
        assert_eq!((table.len(at(301)), table.slot(id(0), at(301))), (8, None));
        // A ninth has its place in the next level, and all stay.
        table.bind(id(9), 2, at(301));
        assert!(table.memory() > 32 << 10);
        assert_eq!(table.len(at(301)), 9);
        assert!((1..10).all(|n| table.slot(id(n), at(301)).is_some()));
    }
}
