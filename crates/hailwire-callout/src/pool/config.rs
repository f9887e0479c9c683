//! How a pool behaves.

use std::time::Duration;

use hailwire_pool::{AffinityConfig, BreakerConfig, Strategy};

use crate::{event::EventKind, host::ConnectOptions};

/// How the connections to one agent are kept and used.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Connections. Default 4, at least 1, at most 64.
    pub connections: usize,
    /// New events at once on a connection, or what the agent states if that is less. What goes on with a
    /// request that was begun is not counted against it. Default 100; 0 for no bound of the pool's own.
    pub max_concurrent: u32,
    /// Which connection a new request goes to. Default [`Strategy::LeastLoaded`].
    pub strategy: Strategy,
    /// How long, and of how many requests, is remembered which connection they have. Default 5 min, 100,000.
    pub affinity: AffinityConfig,
    /// The same for sessions ([`super::AgentPool::request_in_session`]).
    pub sticky: AffinityConfig,
    /// When an agent that fails is left alone.
    pub breaker: BreakerConfig,
    /// The longest that an answer is waited for.
    pub timeouts: Timeouts,
    /// By how much an agent that says that it is degraded may have the time of a request stretched, the caller's and the phase's
    /// alike. Default 1: not at all, since how long a client waits is not the agent's to say.
    pub stretch: f32,
    /// How long to wait before connecting again.
    pub reconnect: Backoff,
    /// How often a connection is asked for a sign of life. Default 10 s.
    pub ping: Duration,
    /// What becomes of a new request while the agent has paused on every connection.
    pub paused: PausedPolicy,
    /// How connections are opened. Its `notices` and `overload` are the pool's to set.
    pub connect: ConnectOptions,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            connections: 4,
            max_concurrent: 100,
            strategy: Strategy::LeastLoaded,
            affinity: AffinityConfig::default(),
            sticky: AffinityConfig::default(),
            breaker: BreakerConfig::default(),
            timeouts: Timeouts::default(),
            stretch: 1.0,
            reconnect: Backoff::default(),
            ping: Duration::from_secs(10),
            paused: PausedPolicy::default(),
            connect: ConnectOptions::default(),
        }
    }
}

impl PoolConfig {
    /// For many short requests: 8 connections, 256 at once on each, two choices.
    #[must_use]
    pub fn high_throughput() -> Self {
        Self {
            connections: 8,
            max_concurrent: 256,
            strategy: Strategy::TwoChoices,
            paused: PausedPolicy::Wait,
            ..Self::default()
        }
    }

    /// For answers that must come soon or not at all: 4 connections, few at once on each, the emptiest one, a tenth of
    /// a second for each answer, and no waiting while the agent has paused.
    #[must_use]
    pub fn low_latency() -> Self {
        Self {
            max_concurrent: 32,
            timeouts: Timeouts::all(Duration::from_millis(100)),
            reconnect: Backoff {
                most: Duration::from_secs(1),
                ..Backoff::default()
            },
            breaker: BreakerConfig {
                open: Duration::from_secs(5),
                ..BreakerConfig::default()
            },
            ..Self::default()
        }
    }

    /// For bodies: 4 connections, few at once on each, half a minute for each chunk, and waiting while the agent has
    /// paused.
    #[must_use]
    pub fn body_inspection() -> Self {
        let body = Duration::from_secs(30);
        Self {
            max_concurrent: 32,
            timeouts: Timeouts::default()
                .with(EventKind::RequestBody, body)
                .with(EventKind::ResponseBody, body),
            paused: PausedPolicy::Wait,
            ..Self::default()
        }
    }
}

/// What becomes of a new request while the agent has paused on every connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PausedPolicy {
    /// It fails with [`super::PoolError::Overload`], so that the policy for overload decides.
    #[default]
    Fail,
    /// It waits until the agent goes on or its time is over.
    Wait,
}

/// The longest that an answer is waited for, by the kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts([Duration; EventKind::ALL.len()]);

impl Default for Timeouts {
    /// One second, and 30 for a configuration.
    fn default() -> Self {
        Self::all(Duration::from_secs(1)).with(EventKind::Configure, Duration::from_secs(30))
    }
}

impl Timeouts {
    /// The same for every kind.
    #[must_use]
    pub const fn all(timeout: Duration) -> Self {
        Self([timeout; EventKind::ALL.len()])
    }

    /// With another one for one kind.
    #[must_use]
    pub fn with(mut self, kind: EventKind, timeout: Duration) -> Self {
        if let Some(place) = self.0.get_mut(kind as usize) {
            *place = timeout;
        }
        self
    }

    /// That of a kind.
    #[inline]
    #[must_use]
    pub fn of(&self, kind: EventKind) -> Duration {
        self.0.get(kind as usize).copied().unwrap_or_default()
    }
}

/// How long to wait before trying again: twice as long each time, with chance, and for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure. Default 50 ms; less than one is read as one.
    pub first: Duration,
    /// At most. Default 5 s.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(50),
            most: Duration::from_secs(5),
        }
    }
}

impl Backoff {
    /// How long to wait after so many failures in a row, from half of the whole to the whole as `random`, a random
    /// number, has it: hosts that lose an agent at the same moment do not come back at the same moment.
    #[must_use]
    pub fn delay(&self, failures: u32, lot: u64) -> Duration {
        let first = self.first.max(Duration::from_millis(1));
        let factor = 1_u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX);
        let whole = first.saturating_mul(factor).min(self.most.max(first));
        let half = whole / 2;
        let part = u32::try_from(lot % 1_024).unwrap_or(0);
        half + half / 1_024 * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_its_bound_and_spreads_over_half_of_it() {
        let backoff = Backoff::default();
        for (failures, whole) in [(1, 50), (2, 100), (3, 200), (8, 5_000), (4_000_000, 5_000)] {
            let whole = Duration::from_millis(whole);
            let delays: Vec<_> = (0..1_024).map(|lot| backoff.delay(failures, lot)).collect();
            assert!(
                delays
                    .iter()
                    .all(|delay| (whole / 2..=whole).contains(delay))
            );
            let spread = delays
                .iter()
                .max()
                .unwrap()
                .saturating_sub(*delays.iter().min().unwrap());
            assert!(spread > whole / 2 - whole / 500);
        }
    }

    #[test]
    fn a_timeout_is_that_of_its_phase() {
        let timeouts = PoolConfig::body_inspection().timeouts;
        assert_eq!(timeouts.of(EventKind::RequestBody), Duration::from_secs(30));
        assert_eq!(
            timeouts.of(EventKind::RequestHeaders),
            Duration::from_secs(1)
        );
    }
}
