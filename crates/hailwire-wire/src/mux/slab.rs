//! Streams by key: a slot is found without hashing, and a stale key finds nothing.

/// A stream of one [`Mux`](super::Mux), valid until both halves are dropped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    index: u32,
    generation: u32,
}

impl StreamKey {
    /// A small number that no other live stream has, for a table beside the multiplexer.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Debug)]
pub(super) struct StreamSlab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    next_generation: u32,
    live: usize,
}

/// Slots that an empty slab keeps.
const KEPT_CAPACITY: usize = 64;

impl<T> StreamSlab<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            live: 0,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.live
    }

    pub(super) fn insert(&mut self, value: T) -> StreamKey {
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        self.live += 1;
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(index as usize) {
            Some(slot) => *slot = (generation, Some(value)),
            None => self.slots.push((generation, Some(value))),
        }
        StreamKey { index, generation }
    }

    pub(super) fn find(&mut self, key: StreamKey) -> Option<&mut T> {
        match self.slots.get_mut(key.index())? {
            (generation, value) if *generation == key.generation => value.as_mut(),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, key: StreamKey) -> Option<T> {
        let (generation, slot) = self.slots.get_mut(key.index())?;
        let value = if *generation == key.generation {
            slot.take()?
        } else {
            return None;
        };
        self.live -= 1;
        if self.live == 0 && self.slots.len() > KEPT_CAPACITY {
            self.slots = Vec::new();
            self.free = Vec::new();
        } else {
            self.free.push(key.index);
        }
        Some(value)
    }

    /// Every live value.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (StreamKey, &mut T)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(index, (generation, value))| {
                let key = StreamKey {
                    index: index as u32,
                    generation: *generation,
                };
                value.as_mut().map(|value| (key, value))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = StreamSlab::new();
        let old = slab.insert('a');
        assert_eq!(slab.remove(old), Some('a'));
        let new = slab.insert('b');
        assert_eq!(old.index(), new.index());
        assert_eq!(slab.find(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.find(new), Some(&mut 'b'));
    }

    #[test]
    fn an_empty_slab_gives_its_memory_back() {
        let mut slab = StreamSlab::new();
        let keys: Vec<_> = (0..10 * KEPT_CAPACITY).map(|i| slab.insert(i)).collect();
        for key in keys {
            slab.remove(key);
        }
        assert_eq!(
            (slab.slots.capacity(), slab.free.capacity(), slab.len()),
            (0, 0, 0)
        );
    }
}
