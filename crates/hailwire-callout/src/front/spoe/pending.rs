//! Exchanges whose request has been answered and whose response is still to come.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{Text, event::RequestComplete, inspect::Exchange};

/// Which HTTP request: by the unique id that HAProxy gives it, or, where its configuration has none, by the engine and
/// the stream there. Since version 3.1 the latter differ between a request and its response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TransactionKey {
    Id(Bytes),
    Stream { engine: Bytes, stream: u64 },
}

/// A request whose response has not come.
pub(super) struct PendingResponse {
    /// Our id of it.
    pub(super) id: Text,
    /// Its exchange.
    pub(super) exchange: Option<Exchange>,
    /// It asks for a head only.
    pub(super) head: bool,
    since: Instant,
    body: u64,
}

impl fmt::Debug for PendingResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingResponse")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl PendingResponse {
    pub(super) fn new(id: Text, body: u64) -> Self {
        Self {
            id,
            exchange: None,
            head: false,
            since: Instant::now(),
            body,
        }
    }

    /// Tells the agents that the request has ended, as far as HAProxy lets us know.
    pub(super) async fn complete(&mut self, exchange: &mut Exchange, status: u16) {
        let duration = self.since.elapsed().as_millis();
        let complete = RequestComplete {
            correlation_id: self.id.clone(),
            status,
            duration_ms: duration.try_into().unwrap_or(u64::MAX),
            request_body_size: self.body,
            ..RequestComplete::default()
        };
        exchange.complete(complete).await;
    }
}

/// All of them.
pub(super) struct PendingTable {
    most: usize,
    patience: Duration,
    of: Mutex<PendingByAge>,
}

/// By key, and in the order in which they came; of what has gone, the order still has the key.
#[derive(Default)]
struct PendingByAge {
    by_key: HashMap<TransactionKey, PendingResponse>,
    order: VecDeque<(Instant, TransactionKey)>,
}

impl PendingTable {
    pub(super) fn new(most: usize, patience: Duration) -> Self {
        Self {
            most,
            patience,
            of: Mutex::default(),
        }
    }

    /// One more; those that waited too long go, and the oldest where there are too many.
    pub(super) fn put(&self, key: TransactionKey, waiting: PendingResponse) {
        let now = waiting.since;
        let mut gone = Vec::new();
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let PendingByAge { by_key, order } = &mut *of;
        order.push_back((now, key.clone()));
        gone.extend(by_key.insert(key, waiting));
        while let Some((since, key)) = order.front() {
            let is_this = |waiting: &PendingResponse| waiting.since == *since;
            let there = by_key.get(key).is_some_and(is_this);
            let late = now.saturating_duration_since(*since) > self.patience;
            if there && !late && by_key.len() <= self.most {
                break;
            }
            if there {
                gone.extend(by_key.remove(key));
            }
            order.pop_front();
        }
        // What has gone in the middle stays in the order until as much again has come.
        if order.len() > 2 * by_key.len() + 64 {
            order.retain(|(since, key)| by_key.get(key).is_some_and(|w| w.since == *since));
        }
        drop(of);
        if !gone.is_empty() {
            tracing::debug!(
                count = gone.len(),
                "pending requests without a response dropped"
            );
        }
    }

    /// The one of a key.
    pub(super) fn take(&self, key: &TransactionKey) -> Option<PendingResponse> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of.by_key.remove(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stream: u64) -> TransactionKey {
        TransactionKey::Stream {
            engine: Bytes::new(),
            stream,
        }
    }

    fn waiting(since: Instant) -> PendingResponse {
        PendingResponse {
            since,
            ..PendingResponse::new(Text::from("id"), 0)
        }
    }

    #[test]
    fn beyond_the_bound_the_oldest_goes() {
        let table = PendingTable::new(2, Duration::from_secs(60));
        let begin = Instant::now();
        for n in 0..3 {
            table.put(key(n), waiting(begin + Duration::from_millis(n)));
        }
        assert!(table.take(&key(0)).is_none());
        assert!(table.take(&key(1)).is_some() && table.take(&key(2)).is_some());
    }

    #[test]
    fn what_waited_too_long_goes_when_another_comes() {
        let table = PendingTable::new(9, Duration::from_secs(1));
        let begin = Instant::now();
        table.put(key(0), waiting(begin));
        table.put(key(1), waiting(begin + Duration::from_secs(2)));
        assert!(table.take(&key(0)).is_none());
        assert!(table.take(&key(1)).is_some());
    }

    #[test]
    fn what_came_and_went_leaves_nothing_behind() {
        let table = PendingTable::new(9, Duration::from_secs(60));
        let begin = Instant::now();
        table.put(key(0), waiting(begin));
        for n in 1..10_000 {
            table.put(key(n), waiting(begin + Duration::from_millis(n)));
            assert!(table.take(&key(n)).is_some());
        }
        let of = table.of.lock().unwrap();
        assert!(of.order.len() <= 68 && of.by_key.len() == 1);
    }
}
