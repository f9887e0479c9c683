//! How long to wait before attaching to the node again.

use std::time::Duration;

/// Delays that double from 100 ms to 5 s and are reset by a success.
#[derive(Debug)]
pub(crate) struct AttachBackoff {
    next: Duration,
}

impl AttachBackoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(5);

    /// The delay before the next attempt.
    pub(crate) fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(Self::LAST);
        wait
    }

    /// An attempt succeeded.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

impl Default for AttachBackoff {
    fn default() -> Self {
        Self { next: Self::FIRST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_seconds_and_begin_anew_after_a_success() {
        let mut backoff = AttachBackoff::default();
        let waits: Vec<u128> = (0..8).map(|_| backoff.wait().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        backoff.succeeded();
        assert_eq!(backoff.wait(), Duration::from_millis(100));
    }
}
