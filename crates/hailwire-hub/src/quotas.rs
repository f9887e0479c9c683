//! Rate limits of each member, and how many searches it may run at once.
//!
//! A look-up costs the directory some microseconds, a page of a search up to some milliseconds, a record a
//! write to disk; so each kind has a quota of its own. A refused request costs a signature check and nothing
//! in the directory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use hailwire_wire::NodeId;

use crate::{config::HubBounds, throttle::KeyedThrottle};

#[derive(Debug)]
pub(crate) struct MemberQuotas {
    records: Mutex<KeyedThrottle<NodeId>>,
    lookups: Mutex<KeyedThrottle<NodeId>>,
    leases: Mutex<KeyedThrottle<NodeId>>,
    searches: Mutex<KeyedThrottle<NodeId>>,
    searches_at_once: usize,
    active_searches: Arc<Mutex<HashMap<NodeId, usize>>>,
}

/// The quota that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaExceeded {
    Records,
    Lookups,
    Leases,
    Searches,
    SearchesAtOnce,
}

impl QuotaExceeded {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Records => "too many records from this node",
            Self::Lookups => "too many look-ups by this node",
            Self::Leases => "too many requests for leases by this node",
            Self::Searches => "too many searches by this node",
            Self::SearchesAtOnce => "this node runs too many searches at once",
        }
    }
}

impl MemberQuotas {
    pub(crate) fn new(bounds: &HubBounds) -> Self {
        let throttle = |per_minute| Mutex::new(KeyedThrottle::new(per_minute));
        Self {
            records: throttle(bounds.records_per_minute),
            lookups: throttle(bounds.lookups_per_minute),
            leases: throttle(bounds.lease_requests_per_minute),
            searches: throttle(bounds.searches_per_minute),
            searches_at_once: bounds.searches_at_once,
            active_searches: Arc::default(),
        }
    }

    pub(crate) fn record(&self, node: NodeId, now: Instant) -> Result<(), QuotaExceeded> {
        admit(&self.records, node, now, QuotaExceeded::Records)
    }

    pub(crate) fn lookup(&self, node: NodeId, now: Instant) -> Result<(), QuotaExceeded> {
        admit(&self.lookups, node, now, QuotaExceeded::Lookups)
    }

    pub(crate) fn lease(&self, node: NodeId, now: Instant) -> Result<(), QuotaExceeded> {
        admit(&self.leases, node, now, QuotaExceeded::Leases)
    }

    /// Admits a search; it counts as active until the returned guard is dropped.
    pub(crate) fn search(&self, node: NodeId, now: Instant) -> Result<ActiveSearch, QuotaExceeded> {
        let active = {
            let mut active_searches = lock(&self.active_searches);
            let count = active_searches.entry(node).or_default();
            if *count >= self.searches_at_once {
                return Err(QuotaExceeded::SearchesAtOnce);
            }
            *count += 1;
            ActiveSearch {
                node,
                all: self.active_searches.clone(),
            }
        };
        admit(&self.searches, node, now, QuotaExceeded::Searches)?;
        Ok(active)
    }
}

/// Counts one active search of a member until it is dropped.
#[derive(Debug)]
pub(crate) struct ActiveSearch {
    node: NodeId,
    all: Arc<Mutex<HashMap<NodeId, usize>>>,
}

impl Drop for ActiveSearch {
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
    throttle: &Mutex<KeyedThrottle<NodeId>>,
    node: NodeId,
    now: Instant,
    exceeded: QuotaExceeded,
) -> Result<(), QuotaExceeded> {
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
    fn a_member_runs_two_searches_at_once_and_others_have_their_own() {
        let now = Instant::now();
        let quotas = MemberQuotas::new(&HubBounds::default());
        let id = |byte| NodeId::from_bytes([byte; 32]);
        let first = quotas.search(id(1), now).unwrap();
        let second = quotas.search(id(1), now).unwrap();
        let third = quotas.search(id(1), now).map(drop);
        assert_eq!(third, Err(QuotaExceeded::SearchesAtOnce));
        drop(quotas.search(id(2), now).unwrap());
        drop(first);
        drop(quotas.search(id(1), now).unwrap());
        drop(second);
        assert!(lock(&quotas.active_searches).is_empty());
    }

    #[test]
    fn each_kind_of_request_has_its_own_quota() {
        let now = Instant::now();
        let bounds = HubBounds {
            records_per_minute: 1,
            lookups_per_minute: 1,
            lease_requests_per_minute: 1,
            searches_per_minute: 1,
            ..HubBounds::default()
        };
        let quotas = MemberQuotas::new(&bounds);
        let id = NodeId::from_bytes([1; 32]);
        assert_eq!(quotas.record(id, now), Ok(()));
        assert_eq!(quotas.lookup(id, now), Ok(()));
        assert_eq!(quotas.lease(id, now), Ok(()));
        assert!(quotas.search(id, now).is_ok());
        assert_eq!(quotas.record(id, now), Err(QuotaExceeded::Records));
        assert_eq!(quotas.lookup(id, now), Err(QuotaExceeded::Lookups));
        assert_eq!(quotas.lease(id, now), Err(QuotaExceeded::Leases));
        let again = quotas.search(id, now).map(drop);
        assert_eq!(again, Err(QuotaExceeded::Searches));
        assert!(
            lock(&quotas.active_searches).is_empty(),
            "a refused search is not active"
        );
    }
}
