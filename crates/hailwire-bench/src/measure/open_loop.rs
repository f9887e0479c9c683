//! An open loop: messages are due at a stated rate, whether or not earlier ones have been answered.
//!
//! Latency is counted from when a message was due, so that a stall of the server counts for every
//! message that was due meanwhile (no coordinated omission). The loop is told the time and
//! decides what to send; `load` sends it.

use std::time::Duration;

/// Messages that may be in flight at once; a message that is due beyond them waits, and its wait counts.
pub(super) const MAX_IN_FLIGHT: u64 = 8_192;

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// Send the message that was due then.
    Send {
        /// Since the start.
        due: Duration,
    },
    /// Nothing is due before this.
    Wait {
        /// Since the start.
        until: Duration,
    },
    /// Too many are in flight: one has to end first.
    Full,
    /// All have been sent.
    Done,
}

/// A schedule and its progress.
#[derive(Clone, Debug)]
pub struct OpenLoop {
    per_second: f64,
    total: u64,
    sent: u64,
    ended: u64,
}

impl OpenLoop {
    /// `per_second` messages, for `seconds`; at least one.
    #[must_use]
    pub fn new(per_second: f64, seconds: f64) -> Self {
        Self {
            per_second: per_second.max(0.001),
            total: ((per_second * seconds) as u64).max(1),
            sent: 0,
            ended: 0,
        }
    }

    /// What to do at `now` since the start. [`NextMessage::Send`] counts the message as sent.
    pub fn next(&mut self, now: Duration) -> NextMessage {
        if self.sent == self.total {
            return NextMessage::Done;
        }
        let due = Duration::from_secs_f64(self.sent as f64 / self.per_second);
        if due > now {
            return NextMessage::Wait { until: due };
        }
        if self.sent - self.ended >= MAX_IN_FLIGHT {
            return NextMessage::Full;
        }
        self.sent += 1;
        NextMessage::Send { due }
    }

    /// A message has its answer, or will never have one.
    pub fn ended(&mut self) {
        self.ended += 1;
    }

    /// Sent and not ended.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.sent - self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::TimeHistogram;

    /// One server in virtual time that takes 1 ms for each message and stalls once.
    fn latencies(stall: Duration) -> TimeHistogram {
        let (mut open, mut times) = (OpenLoop::new(100.0, 10.0), TimeHistogram::default());
        let (mut now, mut free) = (Duration::ZERO, Duration::ZERO);
        let mut stalled = false;
        loop {
            match open.next(now) {
                NextMessage::Send { due } => {
                    let mut begin = now.max(free);
                    if begin >= Duration::from_secs(5) && !stalled {
                        stalled = true;
                        begin += stall;
                    }
                    free = begin + Duration::from_millis(1);
                    times.record(free - due);
                    open.ended();
                }
                NextMessage::Wait { until } => now = until,
                NextMessage::Full => unreachable!("one at a time"),
                NextMessage::Done => return times,
            }
        }
    }

    #[test]
    fn a_stall_is_charged_for_everybody_who_would_have_come_meanwhile() {
        let calm = latencies(Duration::ZERO);
        assert_eq!(calm.count(), 1000);
        assert!(calm.quantile_us(1.0) < 1_010.0);
        // 100 messages were due in the stalled second: a tenth of all waited, half of those 0.5 s.
        let stalled = latencies(Duration::from_secs(1));
        assert_eq!(stalled.count(), 1000);
        let late = 1000 - stalled.within(Duration::from_millis(500));
        assert!((50..=60).contains(&late), "{late} messages were late");
    }

    #[test]
    fn messages_are_due_evenly_and_a_late_sender_catches_up() {
        let mut open = OpenLoop::new(1000.0, 1.0);
        let first = NextMessage::Send {
            due: Duration::ZERO,
        };
        assert_eq!(open.next(Duration::ZERO), first);
        let until = Duration::from_millis(1);
        assert_eq!(open.next(Duration::ZERO), NextMessage::Wait { until });
        let late = Duration::from_millis(7);
        let due: Vec<Duration> = std::iter::from_fn(|| match open.next(late) {
            NextMessage::Send { due } => Some(due),
            _ => None,
        })
        .collect();
        assert_eq!(due, (1..=7).map(Duration::from_millis).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_under_way_has_a_bound_and_the_wait_still_counts() {
        let mut open = OpenLoop::new(1e6, 1.0);
        let late = Duration::from_secs(1);
        while let NextMessage::Send { .. } = open.next(late) {}
        assert_eq!(open.under_way(), MAX_IN_FLIGHT);
        assert_eq!(open.next(late), NextMessage::Full);
        open.ended();
        let next = open.next(late);
        assert!(matches!(next, NextMessage::Send { due } if due < Duration::from_millis(9)));
    }
}
