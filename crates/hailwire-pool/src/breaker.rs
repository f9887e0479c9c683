//! A circuit breaker: after enough failures in a row nothing is tried for a while, then a few.
//!
//! ```text
//!            `failures` in a row                   `open` passes
//!  closed ───────────────────────▶ open ──────────────────────────▶ half-open
//!    ▲                              ▲                                 │   │
//!    │                              │  a probe fails                  │   │
//!    │                              └─────────────────────────────────┘   │
//!    │  `successes` probes succeed                                        │
//!    └────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Half-open, at most `probes` calls are under way at once. The whole state is one word, so that a
//! closed breaker costs a call one load on its way in and one on its way out:
//!
//! ```text
//!  63   62 61      54 53     46 45     40 39                      0
//! +-------+----------+---------+---------+-------------------------+
//! | state |  epoch   |  count  | probes  |  until (milliseconds)   |
//! +-------+----------+---------+---------+-------------------------+
//! ```
//!
//! `count` is failures in a row while closed, and successes while half-open. `epoch` grows with
//! each transition: a call that was let in before one says nothing after it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// When a breaker opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures in a row that open it. Default 5; 0 is read as 1.
    pub failures: u8,
    /// Successes while half-open that close it. Default 2; 0 is read as 1.
    pub successes: u8,
    /// How long it stays open. Default 30 s.
    pub open: Duration,
    /// Calls at once while half-open. Default 1; at least 1 and at most 63 are let in.
    pub probes: u8,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            successes: 2,
            open: Duration::from_secs(30),
            probes: 1,
        }
    }
}

/// What a breaker does, as seen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything passes.
    Closed,
    /// Nothing passes before that moment.
    Open {
        /// When it lets a probe in; may have passed.
        until: Duration,
    },
    /// Probes pass.
    HalfOpen,
}

/// One call was let in. Give it back with what the call showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a probe that is not given back keeps others out"]
pub struct BreakerPermit {
    epoch: u8,
    probe: bool,
}

impl BreakerPermit {
    /// Whether the call is one of the few of a half-open breaker.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.probe
    }
}

/// The state machine.
#[derive(Debug)]
pub struct CircuitBreaker {
    word: AtomicU64,
    config: BreakerConfig,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new(BreakerConfig::default())
    }
}

impl CircuitBreaker {
    /// A closed one.
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        let config = BreakerConfig {
            failures: config.failures.max(1),
            successes: config.successes.max(1),
            probes: config.probes.clamp(1, MAX_PROBES),
            ..config
        };
        Self {
            word: AtomicU64::new(BreakerWord::default().pack()),
            config,
        }
    }

    /// What it does now. An open one whose time has passed is called open until a call comes.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        let state = BreakerWord::unpack(self.word.load(Ordering::Acquire));
        match state.kind {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Open => BreakerState::Open {
                until: Duration::from_millis(state.until_ms),
            },
            BreakerPhase::HalfOpen => BreakerState::HalfOpen,
        }
    }

    /// Asks for one call; `None` where it may not be made.
    #[inline]
    #[must_use]
    pub fn enter(&self, now: Duration) -> Option<BreakerPermit> {
        let word = self.word.load(Ordering::Acquire);
        let state = BreakerWord::unpack(word);
        match state.kind {
            BreakerPhase::Closed => Some(BreakerPermit {
                epoch: state.epoch,
                probe: false,
            }),
            BreakerPhase::Open | BreakerPhase::HalfOpen => self.enter_as_probe(word, now),
        }
    }

    /// The call was answered.
    #[inline]
    pub fn succeeded(&self, permit: BreakerPermit) {
        let state = BreakerWord::unpack(self.word.load(Ordering::Acquire));
        // Closed without failures is the usual case, and a plain load keeps the line shared.
        if state.kind == BreakerPhase::Closed && state.count == 0 {
            return;
        }
        self.change(permit, |state| match state.kind {
            BreakerPhase::Closed => BreakerWord { count: 0, ..state },
            BreakerPhase::HalfOpen if state.count + 1 >= self.config.successes => BreakerWord {
                epoch: state.epoch.wrapping_add(1),
                ..BreakerWord::default()
            },
            BreakerPhase::HalfOpen => BreakerWord {
                count: state.count + 1,
                probes: state.probes.saturating_sub(1),
                ..state
            },
            BreakerPhase::Open => state,
        });
    }

    /// The call failed, in a way that speaks against whoever was called.
    pub fn failed(&self, permit: BreakerPermit, now: Duration) {
        let open = |state: BreakerWord| BreakerWord {
            kind: BreakerPhase::Open,
            epoch: state.epoch.wrapping_add(1),
            count: 0,
            probes: 0,
            until_ms: millis_up(now.saturating_add(self.config.open)),
        };
        self.change(permit, |state| match state.kind {
            BreakerPhase::Closed if state.count + 1 >= self.config.failures => open(state),
            BreakerPhase::Closed => BreakerWord {
                count: state.count + 1,
                ..state
            },
            BreakerPhase::HalfOpen => open(state),
            BreakerPhase::Open => state,
        });
    }

    /// The call showed nothing: it was cancelled, or never made.
    #[inline]
    pub fn abandoned(&self, permit: BreakerPermit) {
        if permit.probe {
            self.change(permit, |state| BreakerWord {
                probes: state.probes.saturating_sub(1),
                ..state
            });
        }
    }

    fn enter_as_probe(&self, mut word: u64, now: Duration) -> Option<BreakerPermit> {
        loop {
            let state = BreakerWord::unpack(word);
            let next = match state.kind {
                BreakerPhase::Closed => {
                    return Some(BreakerPermit {
                        epoch: state.epoch,
                        probe: false,
                    });
                }
                BreakerPhase::Open if millis(now) < state.until_ms => return None,
                BreakerPhase::Open => BreakerWord {
                    kind: BreakerPhase::HalfOpen,
                    epoch: state.epoch.wrapping_add(1),
                    count: 0,
                    probes: 1,
                    until_ms: 0,
                },
                BreakerPhase::HalfOpen if state.probes >= self.config.probes => return None,
                BreakerPhase::HalfOpen => BreakerWord {
                    probes: state.probes + 1,
                    ..state
                },
            };
            match self.word.compare_exchange_weak(
                word,
                next.pack(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    return Some(BreakerPermit {
                        epoch: next.epoch,
                        probe: true,
                    });
                }
                Err(current) => word = current,
            }
        }
    }

    /// Applies what a call showed, unless the state has moved on since it was let in.
    fn change(&self, permit: BreakerPermit, next: impl Fn(BreakerWord) -> BreakerWord) {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let state = BreakerWord::unpack(word);
            if state.epoch != permit.epoch {
                return;
            }
            let changed = next(state).pack();
            if changed == word {
                return;
            }
            match self.word.compare_exchange_weak(
                word,
                changed,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(current) => word = current,
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BreakerPhase {
    #[default]
    Closed,
    Open,
    HalfOpen,
}

/// The state, unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BreakerWord {
    kind: BreakerPhase,
    epoch: u8,
    count: u8,
    probes: u8,
    until_ms: u64,
}

const MAX_PROBES: u8 = 63;
const UNTIL_BITS: u32 = 40;
const UNTIL_MASK: u64 = (1 << UNTIL_BITS) - 1;

impl BreakerWord {
    #[inline]
    fn unpack(word: u64) -> Self {
        let byte = |shift: u32| u8::try_from(word >> shift & 0xff).unwrap_or(u8::MAX);
        Self {
            kind: match word >> 62 {
                0 => BreakerPhase::Closed,
                1 => BreakerPhase::Open,
                _ => BreakerPhase::HalfOpen,
            },
            epoch: byte(54),
            count: byte(46),
            probes: byte(UNTIL_BITS) & MAX_PROBES,
            until_ms: word & UNTIL_MASK,
        }
    }

    #[inline]
    fn pack(self) -> u64 {
        (self.kind as u64) << 62
            | u64::from(self.epoch) << 54
            | u64::from(self.count) << 46
            | u64::from(self.probes & MAX_PROBES) << UNTIL_BITS
            | self.until_ms.min(UNTIL_MASK)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up, so that nothing is due early.
fn millis_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn open_at(now: Duration) -> CircuitBreaker {
        let breaker = CircuitBreaker::default();
        for _ in 0..5 {
            let permit = breaker.enter(now).unwrap();
            breaker.failed(permit, now);
        }
        breaker
    }

    #[test]
    fn a_state_survives_its_word() {
        for state in [
            BreakerWord::default(),
            BreakerWord {
                kind: BreakerPhase::HalfOpen,
                epoch: 255,
                count: 254,
                probes: 63,
                until_ms: UNTIL_MASK,
            },
        ] {
            assert_eq!(BreakerWord::unpack(state.pack()), state);
        }
    }

    #[test]
    fn the_fifth_failure_in_a_row_opens_it() {
        let breaker = CircuitBreaker::default();
        for _ in 0..3 {
            for _ in 0..4 {
                breaker.failed(breaker.enter(at(0)).unwrap(), at(0));
            }
            breaker.succeeded(breaker.enter(at(0)).unwrap());
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        for _ in 0..5 {
            breaker.failed(breaker.enter(at(1)).unwrap(), at(1));
        }
        assert_eq!(breaker.state(), BreakerState::Open { until: at(31) });
        assert_eq!(breaker.enter(at(30)), None);
    }

    #[test]
    fn one_probe_at_a_time_and_the_second_success_closes_it() {
        let breaker = open_at(at(0));
        for _ in 0..2 {
            let probe = breaker.enter(at(30)).unwrap();
            assert!(probe.is_probe());
            assert_eq!(breaker.enter(at(30)), None, "one probe is under way");
            breaker.succeeded(probe);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(!breaker.enter(at(30)).unwrap().is_probe());
    }

    #[test]
    fn a_failed_probe_opens_it_again_for_as_long() {
        let breaker = open_at(at(0));
        breaker.failed(breaker.enter(at(40)).unwrap(), at(41));
        assert_eq!(breaker.state(), BreakerState::Open { until: at(71) });
    }

    #[test]
    fn an_abandoned_probe_makes_room_for_another() {
        let breaker = open_at(at(0));
        breaker.abandoned(breaker.enter(at(30)).unwrap());
        assert!(breaker.enter(at(30)).unwrap().is_probe());
    }

    #[test]
    fn calls_from_before_it_opened_say_nothing_after() {
        let breaker = CircuitBreaker::default();
        let early: Vec<_> = (0..8).map(|_| breaker.enter(at(0)).unwrap()).collect();
        for permit in &early[..5] {
            breaker.failed(*permit, at(1));
        }
        breaker.succeeded(early[5]);
        assert_eq!(breaker.state(), BreakerState::Open { until: at(31) });
        let probe = breaker.enter(at(31)).unwrap();
        breaker.failed(early[6], at(32));
        breaker.succeeded(early[7]);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.succeeded(probe);
        breaker.succeeded(breaker.enter(at(33)).unwrap());
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_probe_from_before_it_opened_again_frees_nobody_elses_place() {
        let config = BreakerConfig {
            probes: 2,
            ..BreakerConfig::default()
        };
        let breaker = CircuitBreaker::new(config);
        for _ in 0..5 {
            breaker.failed(breaker.enter(at(0)).unwrap(), at(0));
        }
        let (first, second) = (
            breaker.enter(at(30)).unwrap(),
            breaker.enter(at(30)).unwrap(),
        );
        breaker.failed(first, at(30));
        let _third = breaker.enter(at(60)).unwrap();
        let _fourth = breaker.enter(at(60)).unwrap();
        breaker.abandoned(second);
        assert_eq!(breaker.enter(at(60)), None);
    }

    #[test]
    fn odd_settings_are_read_as_the_nearest_sensible_ones() {
        let breaker = CircuitBreaker::new(BreakerConfig {
            failures: 0,
            successes: 0,
            open: Duration::MAX,
            probes: 0,
        });
        breaker.failed(breaker.enter(at(0)).unwrap(), at(0));
        assert!(matches!(breaker.state(), BreakerState::Open { .. }));
        assert_eq!(breaker.enter(at(1 << 20)), None);
    }

    #[test]
    fn as_many_probes_as_are_allowed_are_under_way_at_once_and_no_more() {
        let breaker = CircuitBreaker::new(BreakerConfig {
            failures: 1,
            successes: 9,
            probes: 3,
            ..BreakerConfig::default()
        });
        breaker.failed(breaker.enter(at(0)).unwrap(), at(0));
        let mut probes: Vec<_> = (0..3).map(|_| breaker.enter(at(30)).unwrap()).collect();
        assert_eq!(breaker.enter(at(30)), None, "three are under way");
        // Each that is back makes room for one, whatever it showed.
        breaker.succeeded(probes.remove(0));
        probes.push(breaker.enter(at(30)).unwrap());
        assert_eq!(breaker.enter(at(30)), None);
        breaker.abandoned(probes.remove(0));
        probes.push(breaker.enter(at(30)).unwrap());
        assert_eq!(breaker.enter(at(30)), None);
        assert!(probes.iter().all(BreakerPermit::is_probe));
    }

    #[test]
    fn calls_that_stay_out_through_a_whole_outage_say_nothing_after_it() {
        let breaker = CircuitBreaker::new(BreakerConfig {
            failures: 1,
            successes: 1,
            ..BreakerConfig::default()
        });
        // Let in before the breaker opened, and before each time that it opened and closed again.
        let mut early = vec![breaker.enter(at(0)).unwrap()];
        for outage in 0..20 {
            let now = at(100 * outage);
            breaker.failed(breaker.enter(now).unwrap(), now);
            let probe = breaker.enter(now + at(30)).unwrap();
            breaker.succeeded(probe);
            assert_eq!(breaker.state(), BreakerState::Closed);
            for permit in &early {
                breaker.failed(*permit, now + at(31));
                assert_eq!(breaker.state(), BreakerState::Closed, "outage {outage}");
            }
            // What the probe showed counts once.
            breaker.failed(probe, now + at(31));
            assert_eq!(breaker.state(), BreakerState::Closed, "outage {outage}");
            early.push(breaker.enter(now + at(31)).unwrap());
        }
    }

    #[test]
    fn an_abandoned_call_that_was_no_probe_makes_no_room_for_one() {
        let breaker = open_at(at(0));
        let probe = breaker.enter(at(30)).unwrap();
        let plain = BreakerPermit {
            probe: false,
            ..probe
        };
        breaker.abandoned(plain);
        assert_eq!(breaker.enter(at(30)), None);
        breaker.abandoned(probe);
        assert!(breaker.enter(at(30)).is_some());
    }

    #[test]
    fn it_is_open_to_the_millisecond_and_never_a_moment_less_than_was_asked_for() {
        let breaker = CircuitBreaker::new(BreakerConfig {
            failures: 1,
            open: Duration::from_micros(1_500),
            ..BreakerConfig::default()
        });
        breaker.failed(breaker.enter(Duration::ZERO).unwrap(), Duration::ZERO);
        let until = Duration::from_millis(2);
        assert_eq!(breaker.state(), BreakerState::Open { until });
        assert_eq!(breaker.enter(Duration::from_micros(1_999)), None);
        assert!(breaker.enter(until).is_some());
    }

    #[test]
    fn settings_of_zero_are_read_as_one_and_more_probes_than_fit_as_what_fits() {
        let breaker = CircuitBreaker::new(BreakerConfig {
            failures: 0,
            successes: 0,
            probes: 0,
            open: Duration::ZERO,
        });
        breaker.failed(breaker.enter(at(1)).unwrap(), at(1));
        assert_eq!(breaker.state(), BreakerState::Open { until: at(1) });
        let probe = breaker.enter(at(1)).unwrap();
        assert_eq!(breaker.enter(at(1)), None);
        breaker.succeeded(probe);
        assert_eq!(breaker.state(), BreakerState::Closed);

        let many = CircuitBreaker::new(BreakerConfig {
            failures: 1,
            probes: u8::MAX,
            ..BreakerConfig::default()
        });
        many.failed(many.enter(at(0)).unwrap(), at(0));
        let let_in = (0..100).filter(|_| many.enter(at(30)).is_some()).count();
        assert_eq!(let_in, usize::from(MAX_PROBES));
    }
}
