//! How often each member may ask, and how many of its searches may be under way.
//!
//! A look-up costs the directory some microseconds, a page of a search up to some milliseconds, a record a
//! write to disk; so each kind has a quota of its own. What is refused costs a signature check and nothing
//! in the directory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use hailwire_wire::NodeId;

use crate::{config::Bounds, throttle::Throttle};

#[derive(Debug)]
pub(crate) struct Quotas {
    records: Mutex<Throttle<NodeId>>,
    lookups: Mutex<Throttle<NodeId>>,
    searches: Mutex<Throttle<NodeId>>,
    searches_at_once: usize,
    under_way: Arc<Mutex<HashMap<NodeId, usize>>>,
}

/// Why somebody has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Records,
    Lookups,
    Searches,
    SearchesAtOnce,
}

impl Exceeded {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Records => "too many records from this node",
            Self::Lookups => "too many look-ups by this node",
            Self::Searches => "too many searches by this node",
            Self::SearchesAtOnce => "this node has as many searches under way as it may",
        }
    }
}

impl Quotas {
    pub(crate) fn new(bounds: &Bounds) -> Self {
        let throttle = |per_minute| Mutex::new(Throttle::new(per_minute));
        Self {
            records: throttle(bounds.records_per_minute),
            lookups: throttle(bounds.lookups_per_minute),
            searches: throttle(bounds.searches_per_minute),
            searches_at_once: bounds.searches_at_once,
            under_way: Arc::default(),
        }
    }

    pub(crate) fn record(&self, node: NodeId, now: Instant) -> Result<(), Exceeded> {
        admit(&self.records, node, now, Exceeded::Records)
    }

    pub(crate) fn lookup(&self, node: NodeId, now: Instant) -> Result<(), Exceeded> {
        admit(&self.lookups, node, now, Exceeded::Lookups)
    }

    /// Lets a search begin; it is under way until what this gives is dropped.
    pub(crate) fn search(&self, node: NodeId, now: Instant) -> Result<UnderWay, Exceeded> {
        let turn = {
            let mut under_way = lock(&self.under_way);
            let count = under_way.entry(node).or_default();
            if *count >= self.searches_at_once {
                return Err(Exceeded::SearchesAtOnce);
            }
            *count += 1;
            UnderWay {
                node,
                all: self.under_way.clone(),
            }
        };
        admit(&self.searches, node, now, Exceeded::Searches)?;
        Ok(turn)
    }
}

/// A search of a member.
#[derive(Debug)]
pub(crate) struct UnderWay {
    node: NodeId,
    all: Arc<Mutex<HashMap<NodeId, usize>>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        if let Some(count) = all.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.node);
            }
        }
    }
}

fn admit(
    throttle: &Mutex<Throttle<NodeId>>,
    node: NodeId,
    now: Instant,
    exceeded: Exceeded,
) -> Result<(), Exceeded> {
    match lock(throttle).admit(node, now) {
        true => Ok(()),
        false => Err(exceeded),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_two_searches_under_way_and_others_have_theirs() {
        let now = Instant::now();
        let quotas = Quotas::new(&Bounds::default());
        let id = |byte| NodeId::from_bytes([byte; 32]);
        let first = quotas.search(id(1), now).unwrap();
        let second = quotas.search(id(1), now).unwrap();
        let third = quotas.search(id(1), now).map(drop);
        assert_eq!(third, Err(Exceeded::SearchesAtOnce));
        drop(quotas.search(id(2), now).unwrap());
        drop(first);
        drop(quotas.search(id(1), now).unwrap());
        drop(second);
        assert!(lock(&quotas.under_way).is_empty());
    }

    #[test]
    fn each_kind_of_question_has_its_own_quota() {
        let now = Instant::now();
        let bounds = Bounds {
            records_per_minute: 1,
            lookups_per_minute: 1,
            searches_per_minute: 1,
            ..Bounds::default()
        };
        let quotas = Quotas::new(&bounds);
        let id = NodeId::from_bytes([1; 32]);
        assert_eq!(quotas.record(id, now), Ok(()));
        assert_eq!(quotas.lookup(id, now), Ok(()));
        assert!(quotas.search(id, now).is_ok());
        assert_eq!(quotas.record(id, now), Err(Exceeded::Records));
        assert_eq!(quotas.lookup(id, now), Err(Exceeded::Lookups));
        let again = quotas.search(id, now).map(drop);
        assert_eq!(again, Err(Exceeded::Searches));
        assert!(
            lock(&quotas.under_way).is_empty(),
            "a refused search is not under way"
        );
    }
}
