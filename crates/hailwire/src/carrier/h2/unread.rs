//! What the peer has sent and nobody has read, from outside: the library that holds it does not say.
//!
//! A stream that somebody waits for is empty, since bytes come in order. So what is unread lies in the
//! others, at most a window in each, and is no more than what arrived since nothing was unread, less what
//! was read of it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use super::STREAM_WINDOW;
use crate::carrier::UnreadBytes;

/// What the readers of a connection have done.
#[derive(Debug, Default)]
pub(super) struct ConnectionReads {
    /// Streams that have not ended.
    open: AtomicUsize,
    /// Readers that wait for bytes.
    waiting: AtomicUsize,
    read: AtomicU64,
    /// What had arrived beyond what was read, when nothing was unread.
    rest: AtomicU64,
}

impl ConnectionReads {
    /// What is unread at most, of so many bytes that arrived on the connection.
    pub(super) fn unread(&self, arrived: u64) -> UnreadBytes {
        let read = self.read.load(Relaxed);
        let rest = arrived.saturating_sub(read);
        let open = self.open.load(Relaxed);
        let busy = open.saturating_sub(self.waiting.load(Relaxed)) as u64;
        let bytes = if busy == 0 {
            self.rest.store(rest, Relaxed);
            0
        } else {
            let since = rest.saturating_sub(self.rest.load(Relaxed));
            since.min(busy * u64::from(STREAM_WINDOW))
        };
        UnreadBytes { bytes, read }
    }
}

/// The reader of one stream.
#[derive(Debug)]
pub(super) struct StreamReads {
    all: Arc<ConnectionReads>,
    ended: bool,
}

impl StreamReads {
    pub(super) fn new(all: &Arc<ConnectionReads>) -> Self {
        all.open.fetch_add(1, Relaxed);
        Self {
            all: all.clone(),
            ended: false,
        }
    }

    /// It waits for bytes, until that is dropped.
    pub(super) fn waits(&self) -> ReadWait {
        self.all.waiting.fetch_add(1, Relaxed);
        ReadWait(self.all.clone())
    }

    pub(super) fn has_read(&self, bytes: usize) {
        self.all.read.fetch_add(bytes as u64, Relaxed);
    }

    /// The stream has ended, or nobody reads it any more.
    pub(super) fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.all.open.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for StreamReads {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug)]
pub(in crate::carrier) struct ReadWait(Arc<ConnectionReads>);

impl Drop for ReadWait {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(all: &ConnectionReads, arrived: u64) -> u64 {
        all.unread(arrived).bytes
    }

    #[test]
    fn what_waits_in_streams_that_nobody_reads_is_counted_and_nothing_else() {
        let all = Arc::new(ConnectionReads::default());
        assert_eq!(bytes(&all, 500), 0, "the connection's own beginning");
        let (mut first, second) = (StreamReads::new(&all), StreamReads::new(&all));
        let waits = (first.waits(), second.waits());
        assert_eq!(bytes(&all, 600), 0);
        // One gets bytes and reads a part; the other still waits.
        drop(waits.0);
        first.has_read(1_000);
        assert_eq!(bytes(&all, 101_600), 100_000);
        // No more than a window waits in one stream, whatever went by on others.
        assert_eq!(bytes(&all, 9_000_000), u64::from(STREAM_WINDOW));
        first.end();
        assert_eq!(bytes(&all, 9_000_000), 0);
        drop((waits.1, first));
        assert_eq!(bytes(&all, 9_000_700), 700);
        drop(second);
        assert_eq!(bytes(&all, 9_000_700), 0);
    }
}
