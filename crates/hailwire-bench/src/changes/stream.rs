//! The reader of a stream of numbers: when each came.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hailwire::Client;
use tokio::task::JoinHandle;

use crate::lab_nodes::TICKS;

/// A stream that is read until this is dropped.
pub(super) struct NumberStream {
    seen: Arc<Mutex<NumbersSeen>>,
    reader: JoinHandle<()>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct NumbersSeen {
    arrivals: Vec<(Instant, u32)>,
    /// Bytes of a number that has not come whole.
    rest: Vec<u8>,
    /// Why it ended.
    pub(super) ended: Option<String>,
}

impl Drop for NumberStream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl NumberStream {
    /// Calls the agent of a node and reads.
    pub(super) fn read(client: &Client, node: &str) -> Self {
        let seen = Arc::new(Mutex::new(NumbersSeen::default()));
        let (call, shared) = (client.call(format!("{TICKS}@{node}")), Arc::clone(&seen));
        let reader = tokio::spawn(async move {
            let mut answer = match Box::pin(call.send()).await {
                Ok(answer) => answer,
                Err(status) => return lock(&shared).ended = Some(status.to_string()),
            };
            loop {
                match answer.chunk().await {
                    Ok(Some(chunk)) => lock(&shared).take(&chunk),
                    Ok(None) => return lock(&shared).ended = Some("the answer ended".into()),
                    Err(status) => return lock(&shared).ended = Some(status.to_string()),
                }
            }
        });
        Self { seen, reader }
    }

    /// What has come so far.
    pub(super) fn seen(&self) -> NumbersSeen {
        lock(&self.seen).clone()
    }

    /// How many numbers have come, or that it ended.
    pub(super) fn count(&self) -> Result<usize, String> {
        let seen = lock(&self.seen);
        match &seen.ended {
            Some(why) => Err(why.clone()),
            None => Ok(seen.arrivals.len()),
        }
    }
}

impl NumbersSeen {
    fn take(&mut self, chunk: &[u8]) {
        self.rest.extend_from_slice(chunk);
        let now = Instant::now();
        let whole = self.rest.len() / 4 * 4;
        for number in self.rest[..whole].chunks_exact(4) {
            let number = [number[0], number[1], number[2], number[3]];
            self.arrivals.push((now, u32::from_be_bytes(number)));
        }
        self.rest.drain(..whole);
    }

    /// The longest silence that ended after a moment; the one that has not ended counts too.
    pub(super) fn longest_silence(&self, after: Instant) -> Duration {
        let end = self.ended.is_none().then(Instant::now);
        let times = self.arrivals.iter().map(|(at, _)| *at).chain(end);
        let mut before: Option<Instant> = None;
        let mut longest = Duration::ZERO;
        for at in times {
            if let Some(before) = before.filter(|_| at >= after) {
                longest = longest.max(at - before);
            }
            before = Some(at);
        }
        longest
    }

    /// Numbers that never came, of those up to the last that did, and numbers that came twice.
    pub(super) fn lost_and_twice(&self) -> (u64, u64) {
        let mut numbers: Vec<u32> = self.arrivals.iter().map(|(_, number)| *number).collect();
        let all = numbers.len() as u64;
        numbers.sort_unstable();
        numbers.dedup();
        let distinct = numbers.len() as u64;
        let due = numbers.last().map_or(0, |last| u64::from(*last) + 1);
        (due - distinct, all - distinct)
    }
}

fn lock(seen: &Mutex<NumbersSeen>) -> MutexGuard<'_, NumbersSeen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_whole_from_any_pieces_and_what_is_missing_is_counted() {
        let mut seen = NumbersSeen::default();
        for piece in [&[0, 0][..], &[0, 0, 0, 0, 0, 1, 0], &[0, 0, 1, 0, 0, 0, 4]] {
            seen.take(piece);
        }
        let numbers: Vec<u32> = seen.arrivals.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [0, 1, 1, 4]);
        assert_eq!(seen.lost_and_twice(), (2, 1));
    }

    #[test]
    fn the_longest_silence_is_that_after_the_moment() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let seen = NumbersSeen {
            arrivals: vec![(at(0), 0), (at(5_000), 1), (at(5_020), 2), (at(6_020), 3)],
            ended: Some("over".into()),
            ..NumbersSeen::default()
        };
        assert_eq!(seen.longest_silence(at(5_010)), Duration::from_secs(1));
        assert_eq!(seen.longest_silence(at(4_000)), Duration::from_secs(5));
    }
}
