//! The two TCP connections of one HTTP/2 connection find each other.
//!
//! Either may be the first to arrive. Whoever comes first leaves a place to meet under the peer's key
//! and the token; whoever comes second takes it away. A place is left for as long as somebody waits at
//! it, that is for the time of a handshake, so there are at most as many as handshakes under way and
//! connections that wait for their second half.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hailwire_wire::NodeId;
use tokio::sync::oneshot;

use super::{TcpError, h2};

/// Whose pair, and which.
type PairName = (NodeId, h2::PairToken);

/// Places where halves of pairs wait for each other.
#[derive(Debug)]
pub(super) struct PairTable<T>(Arc<Mutex<HashMap<PairName, FirstHalf<T>>>>);

impl<T> Clone for PairTable<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for PairTable<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Who came first.
#[derive(Debug)]
enum FirstHalf<T> {
    /// The one that wants the other.
    Wanted(oneshot::Sender<T>),
    /// The other, which is told once it was taken.
    Brought(T, oneshot::Sender<()>),
}

/// Takes a place away again, should whoever waits at it give up.
struct WaitingHalf<'a, T> {
    pairs: &'a PairTable<T>,
    name: PairName,
}

impl<T> Drop for WaitingHalf<'_, T> {
    fn drop(&mut self) {
        self.pairs.lock().remove(&self.name);
    }
}

impl<T> PairTable<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<PairName, FirstHalf<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the second connection of a pair.
    pub(super) async fn wanted(&self, name: PairName) -> Result<T, TcpError> {
        let used = || TcpError::Carrier {
            carrier: "h2",
            reason: "its token was used before".to_owned(),
        };
        let (send, receive) = oneshot::channel();
        match self.lock().entry(name) {
            Entry::Vacant(place) => drop(place.insert(FirstHalf::Wanted(send))),
            Entry::Occupied(place) => match place.remove() {
                FirstHalf::Brought(second, taken) => {
                    let _ = taken.send(());
                    return Ok(second);
                }
                FirstHalf::Wanted(_) => return Err(used()),
            },
        }
        let _waiting = WaitingHalf { pairs: self, name };
        receive.await.map_err(|_| used())
    }

    /// Brings the second connection of a pair, and waits until it was taken; false where another was
    /// brought under that name.
    pub(super) async fn brought(&self, name: PairName, second: T) -> bool {
        let (taken, receive) = oneshot::channel();
        match self.lock().entry(name) {
            Entry::Vacant(place) => drop(place.insert(FirstHalf::Brought(second, taken))),
            Entry::Occupied(place) => {
                return match place.remove() {
                    FirstHalf::Wanted(first) => first.send(second).is_ok(),
                    FirstHalf::Brought(..) => false,
                };
            }
        }
        let _waiting = WaitingHalf { pairs: self, name };
        receive.await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: PairName = (NodeId::from_bytes([1; 32]), [2; 16]);
    const OTHER: PairName = (NodeId::from_bytes([3; 32]), [2; 16]);

    #[tokio::test]
    async fn the_halves_of_a_pair_meet_whichever_is_first() {
        let pairs = PairTable::default();
        let (second, taken) = tokio::join!(pairs.wanted(NAME), pairs.brought(NAME, "one"));
        assert_eq!((second.unwrap(), taken), ("one", true));
        let (taken, second) = tokio::join!(pairs.brought(NAME, "two"), pairs.wanted(NAME));
        assert_eq!((second.unwrap(), taken), ("two", true));
        assert!(pairs.lock().is_empty());
    }

    #[tokio::test]
    async fn a_token_is_of_one_peer_and_good_once() {
        let pairs = PairTable::default();
        {
            let mut theirs = std::pin::pin!(pairs.brought(OTHER, "theirs"));
            let mut first = std::pin::pin!(pairs.brought(NAME, "first"));
            std::future::poll_fn(|cx| {
                assert!(theirs.as_mut().poll(cx).is_pending());
                assert!(first.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            // Under the same name again: both are turned away.
            assert!(!pairs.brought(NAME, "again").await);
            assert!(!first.await);
            assert_eq!(pairs.lock().len(), 1);
        }
        assert!(pairs.lock().is_empty(), "whoever gives up leaves nothing");
    }
}
