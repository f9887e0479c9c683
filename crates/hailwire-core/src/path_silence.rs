//! How long a path of a tunnel may be silent before another one takes its place.
//!
//! A NAT that forgets a path, or a firewall that begins to block it, says nothing: packets vanish, while the tunnel's relay still works. With calls in
//! flight each path is asked every third of the time that it may be silent, so that one lost answer does not give it up. At rest it is
//! asked as seldom as the engine does by itself, which costs next to nothing.

use std::time::{Duration, Instant};

/// How long the timers stay short after the last call: one soon follows another.
const LINGER: Duration = Duration::from_secs(10);

/// The timers of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTimers {
    /// Silence after which it is given up.
    pub max_idle: Duration,
    /// How often it is asked.
    pub keep_alive: Duration,
}

/// The timers of the paths to one peer.
#[derive(Debug)]
pub struct PathSilence {
    short: PathTimers,
    long: PathTimers,
    /// Until when they are short.
    until: Option<Instant>,
}

impl PathSilence {
    /// A path may be silent for `silence` with calls in flight, and has the `long` timers at rest.
    #[must_use]
    pub fn new(silence: Duration, long: PathTimers) -> Self {
        let max_idle = silence.min(long.max_idle);
        let short = PathTimers {
            max_idle,
            keep_alive: (max_idle / 3).min(long.keep_alive),
        };
        Self {
            short,
            long,
            until: None,
        }
    }

    /// The timers from now on. `busy` says whether calls are in flight. A tunnel without a second path keeps the `long` ones: what is its only way
    /// is not given up after a moment.
    pub fn tick(&mut self, now: Instant, busy: bool) -> PathTimers {
        if busy {
            self.until = Some(now + LINGER);
        }
        match self.until {
            Some(until) if now < until => self.short,
            _ => {
                self.until = None;
                self.long
            }
        }
    }

    /// Whether there is nothing to look at while no call is in flight.
    #[must_use]
    pub fn may_rest(&self) -> bool {
        self.until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::start;

    const LONG: PathTimers = PathTimers {
        max_idle: Duration::from_secs(15),
        keep_alive: Duration::from_secs(5),
    };

    #[test]
    fn timers_are_short_while_calls_are_in_flight_and_a_while_after() {
        let mut silence = PathSilence::new(Duration::from_secs(3), LONG);
        let short = PathTimers {
            max_idle: Duration::from_secs(3),
            keep_alive: Duration::from_secs(1),
        };
        let begun = start();
        let after = |ms| begun + Duration::from_millis(ms);
        assert_eq!(silence.tick(begun, false), LONG);
        assert!(silence.may_rest());
        assert_eq!(silence.tick(after(1), true), short);
        assert_eq!(silence.tick(after(9_000), false), short);
        assert_eq!(silence.tick(after(9_500), true), short);
        assert_eq!(silence.tick(after(19_499), false), short);
        assert!(!silence.may_rest());
        assert_eq!(silence.tick(after(19_500), false), LONG);
        assert!(silence.may_rest());
    }

    #[test]
    fn short_timers_are_never_longer_than_the_long_ones() {
        let mut silence = PathSilence::new(Duration::from_secs(60), LONG);
        assert_eq!(silence.tick(start(), true), LONG);
    }
}
