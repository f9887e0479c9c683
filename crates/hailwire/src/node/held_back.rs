//! Addresses of peers that are dialled only where a relay does not answer at once ([`hailwire_core::dial_address::held_back`] says which).
//!
//! The engine sends the first packets of a dial to every address that it has. It is given these a moment later, by way of the lookup that it makes
//! for each peer to which it has no path yet.

use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use hailwire_wire::NodeId;
use iroh::{
    EndpointAddr, EndpointId, TransportAddr,
    address_lookup::{self, AddressLookup, Item},
};
use tokio::time::{Instant, Sleep};

/// How long a relay has for itself. A relayed handshake takes less where its detour is within a continent.
const RELAY_FIRST: Duration = Duration::from_millis(400);

/// What is held back of dials under way.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldBackAddresses(Arc<Mutex<HashMap<EndpointId, HeldBack>>>);

#[derive(Clone, Debug)]
struct HeldBack {
    addresses: Vec<SocketAddr>,
    due: Instant,
}

impl HeldBackAddresses {
    /// Holds addresses of a peer back, in place of those before, until the dial is dropped that gets this.
    pub(super) fn hold(&self, id: NodeId, addresses: &[SocketAddr]) -> Option<HeldBackGuard> {
        let id = EndpointId::from_bytes(id.as_bytes()).ok()?;
        if addresses.is_empty() {
            return None;
        }
        let held = HeldBack {
            addresses: addresses.to_vec(),
            due: Instant::now() + RELAY_FIRST,
        };
        self.lock().insert(id, held);
        Some(HeldBackGuard {
            all: self.clone(),
            id,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<EndpointId, HeldBack>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A dial for which addresses are held back.
#[derive(Debug)]
pub(super) struct HeldBackGuard {
    all: HeldBackAddresses,
    id: EndpointId,
}

impl Drop for HeldBackGuard {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
    }
}

impl AddressLookup for HeldBackAddresses {
    fn resolve(
        &self,
        id: EndpointId,
    ) -> Option<Pin<Box<dyn Stream<Item = Result<Item, address_lookup::Error>> + Send>>> {
        let HeldBack { addresses, due } = self.lock().get(&id).cloned()?;
        let places = addresses.into_iter().map(TransportAddr::Ip);
        let found = Item::new(
            EndpointAddr::from_parts(id, places).into(),
            "held back",
            None,
        );
        Some(Box::pin(LaterItem {
            due: Box::pin(tokio::time::sleep_until(due)),
            found: Some(found),
        }))
    }
}

/// One item, when it is due.
struct LaterItem {
    due: Pin<Box<Sleep>>,
    found: Option<Item>,
}

impl Stream for LaterItem {
    type Item = Result<Item, address_lookup::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.found.is_some() {
            ready!(self.due.as_mut().poll(cx));
        }
        Poll::Ready(self.found.take().map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::key::NodeKey;

    #[tokio::test(start_paused = true)]
    async fn what_is_held_back_comes_once_and_late_and_only_while_the_dial_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let key = NodeKey::load_or_create(&folder.path().join("key")).unwrap();
        let (node, id) = (key.pair().id(), key.iroh().public());
        let held = HeldBackAddresses::default();
        assert!(held.resolve(id).is_none());
        assert!(held.hold(node, &[]).is_none());
        let address: SocketAddr = "192.168.7.5:7".parse().unwrap();
        let guard = held.hold(node, &[address]);
        let begun = Instant::now();
        let mut found = held.resolve(id).unwrap();
        let first = poll_fn(|cx| found.as_mut().poll_next(cx)).await;
        assert_eq!(begun.elapsed(), RELAY_FIRST);
        let first = first.unwrap().unwrap().into_endpoint_addr();
        assert_eq!(
            (first.id, first.ip_addrs().copied().collect::<Vec<_>>()),
            (id, vec![address])
        );
        assert!(poll_fn(|cx| found.as_mut().poll_next(cx)).await.is_none());
        drop(guard);
        assert!(held.resolve(id).is_none());
    }
}
