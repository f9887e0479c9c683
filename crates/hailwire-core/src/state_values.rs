//! Which of several nodes' values of a key counts: the one that was put last, and of two that were put at the same time that of the node with the
//! larger key.
//!
//! Each node keeps what its own programs put. Whoever reads merges what all of them keep, in whatever order it comes: the outcome is
//! the same. "Last" is by the clocks of the nodes, so where these differ by more than the time between two changes at different nodes, the earlier
//! of them may win. Changes at one node are in the order of its log.

use std::collections::BTreeMap;

use hailwire_wire::NodeId;

/// Most keys that are merged.
pub const MAX_MERGED_KEYS: usize = 262_144;

/// When and where a value was put; of two, the larger one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueStamp {
    /// By the clock of its node, milliseconds since 1970.
    pub at_ms: u64,
    /// The node.
    pub node: NodeId,
    /// Its number in that node's log.
    pub number: u64,
}

/// What a value that came has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    /// It counts from now on.
    Changed,
    /// Another counts.
    Superseded,
    /// There are [`MAX_MERGED_KEYS`].
    Full,
}

/// The values that count, by key. `V` is what is remembered of each; a deletion is a value like others.
#[derive(Debug)]
pub struct StateValues<V> {
    values: BTreeMap<String, (ValueStamp, V)>,
}

impl<V> Default for StateValues<V> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
        }
    }
}

impl<V> StateValues<V> {
    /// A node says what it keeps.
    pub fn handle_value(&mut self, key: &str, stamp: ValueStamp, value: V) -> MergeOutcome {
        if let Some(counts) = self.values.get_mut(key) {
            if counts.0 >= stamp {
                return MergeOutcome::Superseded;
            }
            *counts = (stamp, value);
            return MergeOutcome::Changed;
        }
        if self.values.len() >= MAX_MERGED_KEYS {
            return MergeOutcome::Full;
        }
        self.values.insert(key.to_owned(), (stamp, value));
        MergeOutcome::Changed
    }

    /// All values that count, by key in order.
    pub fn into_values(self) -> impl Iterator<Item = (String, V)> {
        let values = self.values.into_iter();
        values.map(|(key, (_, value))| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, node};

    #[test]
    fn in_whatever_order_values_come_the_same_ones_count() {
        for_each_seed(&[], 5_000, |seed| {
            let mut draw = draws(seed, 3);
            // Three nodes, each with a clock of its own that never goes back in its log.
            let mut put = Vec::new();
            let mut clocks = [draw(5), draw(5), draw(5)];
            for number in 1..40_u64 {
                let at = draw(3) as usize;
                clocks[at] += draw(3);
                let stamp = ValueStamp {
                    at_ms: u64::from(clocks[at]),
                    node: node(u8::try_from(at).unwrap()),
                    number,
                };
                put.push((format!("k{}", draw(4)), stamp, number));
            }
            let merged = |order: &[(String, ValueStamp, u64)]| {
                let mut values = StateValues::default();
                let mut counted: BTreeMap<String, ValueStamp> = BTreeMap::new();
                for (key, stamp, value) in order {
                    let changed = values.handle_value(key, *stamp, *value);
                    let before = counted.get(key);
                    let newer = before.is_none_or(|before| before < stamp);
                    assert_eq!(changed == MergeOutcome::Changed, newer);
                    if newer {
                        counted.insert(key.clone(), *stamp);
                    }
                }
                values.into_values().collect::<Vec<_>>()
            };
            let expected = merged(&put);
            for (key, value) in &expected {
                let of_key = put.iter().filter(|(other, ..)| other == key);
                let last = of_key.max_by_key(|(_, stamp, _)| (stamp.at_ms, stamp.node));
                let (_, last, _) = last.unwrap();
                let counts = put.iter().find(|(.., other)| other == value).unwrap();
                assert_eq!((counts.1.at_ms, counts.1.node), (last.at_ms, last.node));
            }
            for at in (1..put.len()).rev() {
                put.swap(at, draw(u32::try_from(at).unwrap() + 1) as usize);
            }
            // Each may also come again, as after another connection.
            put.extend_from_within(..5);
            assert_eq!(merged(&put), expected);
        });
    }

    #[test]
    fn what_is_merged_has_a_bound() {
        let mut values = StateValues::default();
        let stamp = |number| ValueStamp {
            at_ms: 1,
            node: node(1),
            number,
        };
        for number in 0..MAX_MERGED_KEYS as u64 {
            let outcome = values.handle_value(&number.to_string(), stamp(number), ());
            assert_eq!(outcome, MergeOutcome::Changed);
        }
        assert_eq!(values.handle_value("x", stamp(1), ()), MergeOutcome::Full);
        let again = values.handle_value("7", stamp(1 << 40), ());
        assert_eq!(again, MergeOutcome::Changed);
    }
}
