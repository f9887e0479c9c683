//! A member's health, as one atomic word.
//!
//! The state is small enough for 64 bits, so that each transition is one compare-and-swap and no
//! reader ever sees half of one:
//!
//! ```text
//!  63        56 55        48 47                                 0
//! +------------+------------+------------------------------------+
//! |  failures  |   trips    |          until (milliseconds)      |
//! +------------+------------+------------------------------------+
//! ```
//!
//! `failures` counts failures in a row, `trips` how often in a row the member went down. With no
//! trip, `until` is when a suspect takes its turns again; with one, it is when the next probe is
//! due. Whoever takes the probe moves `until` by one more back-off in the same step, so that there
//! is one probe per back-off, even when a probe never comes back.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::availability::Availability;

/// When a member is taken out of service, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// Failures in a row after which the member is down. Default 3; 0 is read as 1.
    pub failures_to_down: u8,
    /// The first back-off, which doubles with each failed probe; also how long a suspect is passed
    /// over. Default 1 s; less than a millisecond is read as one.
    pub backoff: Duration,
    /// The longest back-off. Default 60 s; raised to `backoff` if it is less.
    pub backoff_max: Duration,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            failures_to_down: 3,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
        }
    }
}

impl HealthConfig {
    /// How long a member stays down after going down for the `trips`-th time in a row.
    #[must_use]
    pub fn backoff_after(&self, trips: u8) -> Duration {
        let first = self.backoff.max(Duration::from_millis(1));
        let factor = 1_u32
            .checked_shl(u32::from(trips.saturating_sub(1)))
            .unwrap_or(u32::MAX);
        first
            .saturating_mul(factor)
            .min(self.backoff_max.max(first))
    }
}

/// How a member fares, as seen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberHealth {
    /// The last call that said anything about it succeeded, or none did yet.
    Healthy,
    /// It failed of late, and is passed over until then while a healthy one can serve.
    Suspect {
        /// When it takes its turns again.
        until: Duration,
    },
    /// It failed too often in a row and gets no call until then, and a single one after it.
    Down {
        /// When the next probe is due; may have passed.
        until: Duration,
    },
}

/// The state of the machine, unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HealthWord {
    failures: u8,
    trips: u8,
    until_ms: u64,
}

const UNTIL_BITS: u32 = 48;
const UNTIL_MASK: u64 = (1 << UNTIL_BITS) - 1;

impl HealthWord {
    fn unpack(word: u64) -> Self {
        let [failures, trips, ..] = word.to_be_bytes();
        Self {
            failures,
            trips,
            until_ms: word & UNTIL_MASK,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.failures) << (UNTIL_BITS + 8)
            | u64::from(self.trips) << UNTIL_BITS
            | self.until_ms.min(UNTIL_MASK)
    }

    fn after_failure(self, probe: bool, now: Duration, config: &HealthConfig) -> Self {
        let failures = self.failures.saturating_add(1);
        let trips = match self.trips {
            // Calls that were under way when the member went down fail too; they are the same news.
            1.. if !probe => return Self { failures, ..self },
            trips @ 1.. => trips.saturating_add(1),
            0 if failures >= config.failures_to_down.max(1) => 1,
            0 => 0,
        };
        let until = now.saturating_add(config.backoff_after(trips));
        Self {
            failures,
            trips,
            until_ms: millis_up(until),
        }
    }

    fn health(self) -> MemberHealth {
        let until = Duration::from_millis(self.until_ms);
        match self {
            Self { trips: 1.., .. } => MemberHealth::Down { until },
            Self { failures: 1.., .. } => MemberHealth::Suspect { until },
            _ => MemberHealth::Healthy,
        }
    }
}

/// What was taken with a probe, so that an abandoned one can be put back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeClaim {
    before: u64,
    claimed: u64,
}

/// Whether a call may go to a member.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallAdmission {
    Call,
    Probe(ProbeClaim),
    Refused,
}

/// The state machine.
#[derive(Debug, Default)]
pub(crate) struct HealthCell(AtomicU64);

impl HealthCell {
    pub(crate) fn health(&self) -> MemberHealth {
        self.load().health()
    }

    pub(crate) fn failures(&self) -> u8 {
        self.load().failures
    }

    pub(crate) fn availability(&self, now: Duration) -> Availability {
        match self.load().health() {
            MemberHealth::Healthy => Availability::Available,
            MemberHealth::Suspect { until } | MemberHealth::Down { until } if now >= until => {
                Availability::Available
            }
            MemberHealth::Suspect { .. } => Availability::Degraded,
            MemberHealth::Down { .. } => Availability::Unavailable,
        }
    }

    /// Asks for one call, and takes the probe where that is what the call would be.
    pub(crate) fn admit(&self, now: Duration, config: &HealthConfig) -> CallAdmission {
        let before = self.0.load(Ordering::Acquire);
        let state = HealthWord::unpack(before);
        let MemberHealth::Down { until } = state.health() else {
            return CallAdmission::Call;
        };
        if now < until {
            return CallAdmission::Refused;
        }
        let next = now.saturating_add(config.backoff_after(state.trips));
        let claimed = HealthWord {
            until_ms: millis_up(next),
            ..state
        }
        .pack();
        match self
            .0
            .compare_exchange(before, claimed, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => CallAdmission::Probe(ProbeClaim { before, claimed }),
            Err(_) => CallAdmission::Refused,
        }
    }

    /// Whether it was down until now.
    pub(crate) fn succeeded(&self) -> bool {
        // Healthy is the usual case, and a plain load keeps the cache line shared.
        let before = self.0.load(Ordering::Acquire);
        if before != 0 {
            self.0.store(0, Ordering::Release);
        }
        HealthWord::unpack(before).trips > 0
    }

    pub(crate) fn failed(&self, probe: bool, now: Duration, config: &HealthConfig) {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let next = HealthWord::unpack(word)
                .after_failure(probe, now, config)
                .pack();
            match self
                .0
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(current) => word = current,
            }
        }
    }

    /// Puts an abandoned probe back, unless something has happened since.
    pub(crate) fn abandoned(&self, probe: ProbeClaim) {
        let ProbeClaim { before, claimed } = probe;
        let _ = self
            .0
            .compare_exchange(claimed, before, Ordering::AcqRel, Ordering::Acquire);
    }

    fn load(&self) -> HealthWord {
        HealthWord::unpack(self.0.load(Ordering::Acquire))
    }
}

/// Whole milliseconds, rounded up, so that nothing is due early.
fn millis_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000))
        .unwrap_or(u64::MAX)
        .min(UNTIL_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: HealthConfig = HealthConfig {
        failures_to_down: 3,
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_secs(10),
    };

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn down_at(now: Duration) -> HealthCell {
        let cell = HealthCell::default();
        for _ in 0..3 {
            cell.failed(false, now, &CONFIG);
        }
        cell
    }

    #[test]
    fn a_state_survives_its_word() {
        for state in [
            HealthWord::default(),
            HealthWord {
                failures: 1,
                trips: 2,
                until_ms: 3,
            },
            HealthWord {
                failures: u8::MAX,
                trips: u8::MAX,
                until_ms: UNTIL_MASK,
            },
        ] {
            assert_eq!(HealthWord::unpack(state.pack()), state);
        }
    }

    #[test]
    fn one_failure_makes_suspect_and_the_third_takes_out_of_service() {
        let cell = HealthCell::default();
        cell.failed(false, at(5), &CONFIG);
        assert_eq!(cell.health(), MemberHealth::Suspect { until: at(1005) });
        assert_eq!(cell.availability(at(1004)), Availability::Degraded);
        assert_eq!(cell.availability(at(1005)), Availability::Available);
        cell.failed(false, at(6), &CONFIG);
        cell.failed(false, at(7), &CONFIG);
        assert_eq!(cell.health(), MemberHealth::Down { until: at(1007) });
        assert_eq!(cell.availability(at(1006)), Availability::Unavailable);
    }

    #[test]
    fn success_heals_at_once() {
        let cell = down_at(at(0));
        cell.succeeded();
        assert_eq!(cell.health(), MemberHealth::Healthy);
        assert_eq!(cell.failures(), 0);
    }

    #[test]
    fn calls_that_die_with_the_member_do_not_lengthen_its_back_off() {
        let cell = down_at(at(0));
        for _ in 0..500 {
            cell.failed(false, at(10), &CONFIG);
        }
        assert_eq!(cell.health(), MemberHealth::Down { until: at(1000) });
        assert_eq!(cell.failures(), u8::MAX);
    }

    #[test]
    fn the_back_off_doubles_with_each_failed_probe_up_to_its_bound() {
        let cell = down_at(at(0));
        let (mut now, mut waits) = (at(0), Vec::new());
        for _ in 0..300 {
            let MemberHealth::Down { until } = cell.health() else {
                panic!("not down")
            };
            waits.push((until - now).as_secs());
            now = until;
            assert!(matches!(cell.admit(now, &CONFIG), CallAdmission::Probe(_)));
            cell.failed(true, now, &CONFIG);
        }
        assert_eq!(
            waits.iter().take(6).copied().collect::<Vec<_>>(),
            [1, 2, 4, 8, 10, 10]
        );
        assert!(waits.iter().skip(6).all(|wait| *wait == 10));
    }

    #[test]
    fn one_probe_is_let_through_per_back_off() {
        let cell = down_at(at(0));
        assert!(matches!(
            cell.admit(at(999), &CONFIG),
            CallAdmission::Refused
        ));
        assert!(matches!(
            cell.admit(at(1000), &CONFIG),
            CallAdmission::Probe(_)
        ));
        assert!(matches!(
            cell.admit(at(1000), &CONFIG),
            CallAdmission::Refused
        ));
        // The first probe never came back.
        assert!(matches!(
            cell.admit(at(2000), &CONFIG),
            CallAdmission::Probe(_)
        ));
    }

    #[test]
    fn an_abandoned_probe_is_due_again() {
        let cell = down_at(at(0));
        let CallAdmission::Probe(probe) = cell.admit(at(1000), &CONFIG) else {
            panic!("no probe")
        };
        cell.abandoned(probe);
        let CallAdmission::Probe(probe) = cell.admit(at(1000), &CONFIG) else {
            panic!("no probe")
        };
        cell.succeeded();
        cell.abandoned(probe);
        assert_eq!(cell.health(), MemberHealth::Healthy);
    }

    #[test]
    fn odd_settings_are_read_as_the_nearest_sensible_ones() {
        let zero = HealthConfig {
            failures_to_down: 0,
            backoff: Duration::ZERO,
            backoff_max: Duration::ZERO,
        };
        assert_eq!(zero.backoff_after(1), at(1));
        assert_eq!(zero.backoff_after(255), at(1));
        let cell = HealthCell::default();
        cell.failed(false, at(0), &zero);
        assert_eq!(cell.health(), MemberHealth::Down { until: at(1) });
        let endless = HealthConfig {
            backoff_max: Duration::MAX,
            ..CONFIG
        };
        cell.failed(true, Duration::MAX, &endless);
        assert!(matches!(cell.health(), MemberHealth::Down { .. }));
    }
}
