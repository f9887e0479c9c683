//! When a node publishes its record at a hub: at the start, at each change, now and then, and after a failure again,
//! later and later.
//!
//! A hub takes so many records a minute from a node and no more, so however often something changes, records are
//! published at a bounded rate; the last change always is.

use std::time::{Duration, Instant};

use crate::{
    backoff::Backoff,
    rate_limit::{Rate, RateLimit},
};

/// How often a record is published when nothing changes.
pub const REFRESH_EVERY: Duration = Duration::from_secs(5 * 60);

/// First and longest pause after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// How often a record is published whatever changes: half as often as a hub takes them, because one whose
/// name is taken is published twice.
pub const PUBLISH_RATE: Rate = Rate {
    burst: 8,
    pause: Duration::from_secs(2),
};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubAction {
    /// Publish the record as it is now, and say how that went.
    Publish,
}

/// The registration at one hub.
#[derive(Debug)]
pub struct HubRegistration {
    limit: RateLimit,
    retry: Backoff,
    /// When the record is published next, as far as the rate allows.
    due: Instant,
    publishing: bool,
    /// Whether something changed since the record was taken that is being published.
    changed: bool,
    action: Option<HubAction>,
}

impl HubRegistration {
    /// One that publishes at once.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let mut registration = Self {
            limit: RateLimit::new(PUBLISH_RATE),
            retry: Backoff::new(RETRY),
            due: now,
            publishing: false,
            changed: false,
            action: None,
        };
        registration.handle_timeout(now);
        registration
    }

    /// What is published has changed.
    pub fn handle_change(&mut self, now: Instant) {
        self.changed = true;
        self.due = self.due.min(now);
        self.handle_timeout(now);
    }

    /// The record was published.
    pub fn handle_published(&mut self, now: Instant) {
        self.retry.reset();
        self.ended(now, REFRESH_EVERY);
    }

    /// The hub did not answer, or refused the record.
    pub fn handle_failure(&mut self, now: Instant) {
        let pause = self.retry.fail(now);
        self.ended(now, pause);
    }

    /// It is this late.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.publishing && now >= self.next(now) {
            self.publishing = true;
            self.changed = false;
            self.limit.done(now);
            self.action = Some(HubAction::Publish);
        }
    }

    /// What is to be done; nothing where it was given.
    pub fn poll_action(&mut self) -> Option<HubAction> {
        self.action.take()
    }

    /// When [`HubRegistration::handle_timeout`] is to be called; `None` while a record is being published.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.publishing).then(|| self.next(self.due))
    }

    fn ended(&mut self, now: Instant, pause: Duration) {
        self.publishing = false;
        self.due = if self.changed { now } else { now + pause };
        self.handle_timeout(now);
    }

    fn next(&self, now: Instant) -> Instant {
        self.due.max(self.limit.next(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    const SECOND: Duration = Duration::from_secs(1);

    fn publishes(registration: &mut HubRegistration) -> bool {
        registration.poll_action() == Some(HubAction::Publish)
    }

    #[test]
    fn a_record_is_published_at_the_start_at_a_change_and_now_and_then() {
        let begin = start();
        let mut one = HubRegistration::new(begin);
        assert!(publishes(&mut one) && !publishes(&mut one));
        assert_eq!(one.poll_timeout(), None, "it is being published");
        one.handle_published(begin);
        assert_eq!(one.poll_timeout(), Some(begin + REFRESH_EVERY));
        let change = begin + 100 * SECOND;
        one.handle_change(change);
        assert!(publishes(&mut one));
        // Something changes before the hub has answered: that record is published after this one.
        one.handle_change(change);
        assert!(!publishes(&mut one));
        one.handle_published(change);
        assert!(publishes(&mut one));
        one.handle_published(change);
        assert!(!publishes(&mut one));
        one.handle_timeout(change + REFRESH_EVERY);
        assert!(publishes(&mut one));
    }

    #[test]
    fn a_hub_that_is_away_is_tried_later_and_later() {
        let mut now = start();
        let mut one = HubRegistration::new(now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(publishes(&mut one));
            one.handle_failure(now);
            let next = one.poll_timeout().unwrap();
            pauses.push((next - now).as_millis());
            now = next;
            one.handle_timeout(now);
        }
        assert_eq!(
            pauses,
            [
                500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000
            ]
        );
        one.handle_published(now);
        one.handle_change(now + SECOND);
        assert!(publishes(&mut one));
        one.handle_failure(now + SECOND);
        assert_eq!(one.poll_timeout(), Some(now + SECOND + RETRY.0));
    }

    /// Changes, answers and late timers in a random order.
    fn follow(seed: u64) {
        let mut below = draws(seed, 9);
        let begin = start();
        let mut now = begin;
        let mut one = HubRegistration::new(now);
        let (mut published, mut in_flight) = (Vec::new(), false);
        // Whether the newest state is in the record that was published or is on its way.
        let mut stale = true;
        for step in 0..120 {
            if publishes(&mut one) {
                assert!(!in_flight, "seed {seed}, step {step}: one at a time");
                in_flight = true;
                stale = false;
                published.push(now);
            }
            match below(5) {
                0 => {
                    stale = true;
                    one.handle_change(now);
                }
                1 | 2 if in_flight => {
                    in_flight = false;
                    if below(3) == 0 {
                        stale = true;
                        one.handle_failure(now);
                    } else {
                        one.handle_published(now);
                    }
                }
                _ => match one.poll_timeout() {
                    Some(at) => {
                        now =
                            now.max(at) + Duration::from_millis(u64::from(below(2) * below(5_000)));
                        one.handle_timeout(now);
                    }
                    None => now += Duration::from_millis(u64::from(below(2_000))),
                },
            }
        }
        for window in published.windows(PUBLISH_RATE.burst as usize + 1) {
            let took = window[window.len() - 1] - window[0];
            assert!(
                took >= PUBLISH_RATE.pause,
                "seed {seed}: {took:?} for nine records"
            );
        }
        // Left alone with a hub that answers, it ends with the newest state published.
        for _ in 0..4 {
            if publishes(&mut one) {
                (in_flight, stale) = (true, false);
            }
            if in_flight {
                in_flight = false;
                one.handle_published(now);
            } else if let Some(at) = one.poll_timeout() {
                now = now.max(at);
                one.handle_timeout(now);
            }
        }
        assert!(!stale, "seed {seed}: the last change is not published");
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[];

    #[test]
    fn the_last_change_is_published_and_the_rate_holds_whatever_comes() {
        for_each_seed(KEPT, 10_000, follow);
    }

    #[test]
    fn a_record_is_refreshed_every_five_minutes() {
        assert_eq!(REFRESH_EVERY, 300 * SECOND);
    }
}
