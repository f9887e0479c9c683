//! Requests of sealed batches: few at once, because each is large, and none of them on a thread that serves others.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::HeldStore;
use crate::{directory::DirectoryError, queue::QueueClosed, throttle::client_network};

/// Requests at once: what they take of memory is some three times [`MAX_HELD_REQUEST`](hailwire_wire::limits::MAX_HELD_REQUEST) each.
const AT_ONCE: usize = 16;

/// Of these from one network, so that one whose requests come slowly leaves room for others.
const OF_ONE_NETWORK: usize = 4;

/// The store of sealed batches, and the requests that are under way.
#[derive(Clone, Debug)]
pub(crate) struct HeldBatches {
    store: Arc<Mutex<HeldStore>>,
    under_way: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl HeldBatches {
    pub(crate) fn new(store: HeldStore) -> Self {
        Self {
            store: Arc::new(Mutex::new(store)),
            under_way: Arc::default(),
        }
    }

    /// A turn for a request from `address`, if there is one now.
    pub(crate) fn turn(&self, address: IpAddr) -> Option<HeldTurn> {
        let network = client_network(address);
        let mut under_way = lock(&self.under_way);
        let all: usize = under_way.values().sum();
        let of_network = under_way.get(&network).copied().unwrap_or_default();
        if all >= AT_ONCE || of_network >= OF_ONE_NETWORK {
            return None;
        }
        under_way.insert(network, of_network + 1);
        Some(HeldTurn {
            network,
            under_way: self.under_way.clone(),
        })
    }

    /// Asks the store, on a thread that may wait for the disk.
    ///
    /// # Errors
    ///
    /// [`QueueClosed`] where the hub ends.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut HeldStore) -> Result<T, DirectoryError> + Send + 'static,
    ) -> Result<Result<T, DirectoryError>, QueueClosed> {
        let store = self.store.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&mut lock(&store)));
        asked.await.map_err(|_| QueueClosed)
    }
}

/// The turn of one request; given back when dropped.
#[derive(Debug)]
pub(crate) struct HeldTurn {
    network: IpAddr,
    under_way: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Drop for HeldTurn {
    fn drop(&mut self) {
        let mut under_way = lock(&self.under_way);
        if let Some(count) = under_way.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.network);
            }
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{config::HoldBounds, held::DATABASE};

    #[test]
    fn one_network_has_a_part_of_the_turns_and_all_have_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(DATABASE);
        let batches = HeldBatches::new(HeldStore::open(&path, HoldBounds::default()).unwrap());
        let from = |last: u8| IpAddr::from(Ipv4Addr::new(192, 0, 2, last));
        let of_one: Vec<_> = (0..OF_ONE_NETWORK).map(|_| batches.turn(from(1))).collect();
        assert!(of_one.iter().all(Option::is_some));
        assert!(batches.turn(from(1)).is_none());
        let of_others: Vec<_> = (2..=255)
            .map_while(|last| batches.turn(from(last)))
            .collect();
        assert_eq!(of_others.len(), AT_ONCE - OF_ONE_NETWORK);
        drop(of_one);
        assert!(batches.turn(from(1)).is_some());
    }
}
