//! How many connections a tunnel gets besides its first one, and when they are dialled.
//!
//! Whoever dialled a tunnel sees to it that it has as many connections as is wanted: in the background once the first
//! one is up, and again when more are wanted or one is lost. A few are dialled at once. What failed or was lost is
//! dialled again after a pause, later and later.

use std::time::{Duration, Instant};

use crate::backoff::Backoff;

/// Connections that are dialled at once.
pub const AT_ONCE: usize = 8;

/// First and longest pause after a connection was lost or not taken.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// How long nothing must go wrong before a pause is the first one again.
const FORGET_AFTER: Duration = Duration::from_secs(180);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdditionalAction {
    /// Dial so many connections, and say of each how that went.
    Dial(usize),
}

/// The additional connections of one tunnel.
#[derive(Debug)]
pub struct AdditionalConnections {
    connections: usize,
    wanted: usize,
    retry: Backoff,
    dialling: usize,
    /// Whether one of those that are dialled together was not taken.
    failed: bool,
    action: Option<AdditionalAction>,
}

impl Default for AdditionalConnections {
    fn default() -> Self {
        Self {
            connections: 1,
            wanted: 1,
            retry: Backoff::new(RETRY).forgetting_after(FORGET_AFTER),
            dialling: 0,
            failed: false,
            action: None,
        }
    }
}

impl AdditionalConnections {
    /// The tunnel has so many connections now, of so many that are wanted.
    pub fn handle_tunnel(&mut self, now: Instant, connections: usize, wanted: usize) {
        if connections < self.connections {
            self.retry.fail(now);
        }
        self.connections = connections;
        self.wanted = wanted;
        self.handle_timeout(now);
    }

    /// One of those that were to be dialled was taken by the peer, or was not; the tunnel has so many `connections`
    /// now, of which nothing may have been told yet.
    pub fn handle_dialled(&mut self, now: Instant, taken: bool, connections: usize) {
        self.failed |= !taken;
        self.dialling = self.dialling.saturating_sub(1);
        if self.dialling == 0 && std::mem::take(&mut self.failed) {
            self.retry.fail(now);
        }
        self.handle_tunnel(now, connections, self.wanted);
    }

    /// It is this late.
    pub fn handle_timeout(&mut self, now: Instant) {
        let missing = self.missing().min(AT_ONCE);
        if missing > 0 && self.dialling == 0 && self.retry.is_over(now) {
            self.dialling = missing;
            self.action = Some(AdditionalAction::Dial(missing));
        }
    }

    /// What is to be done; nothing where it was given.
    pub fn poll_action(&mut self) -> Option<AdditionalAction> {
        self.action.take()
    }

    /// When [`AdditionalConnections::handle_timeout`] is to be called; `None` where the tunnel lacks nothing, or
    /// dials.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let waits = self.dialling == 0 && self.missing() > 0;
        waits.then(|| now + self.retry.wait(now))
    }

    fn missing(&self) -> usize {
        self.wanted.saturating_sub(self.connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    fn dials(one: &mut AdditionalConnections) -> usize {
        one.poll_action()
            .map_or(0, |AdditionalAction::Dial(number)| number)
    }

    #[test]
    fn a_tunnel_gets_what_it_lacks_a_few_at_once() {
        let now = start();
        let mut one = AdditionalConnections::default();
        one.handle_tunnel(now, 1, 12);
        assert_eq!(dials(&mut one), AT_ONCE);
        for number in 1..=AT_ONCE {
            one.handle_tunnel(now, 1 + number, 12);
            assert_eq!(dials(&mut one), 0, "some are being dialled");
            one.handle_dialled(now, true, 1 + number);
        }
        assert_eq!(dials(&mut one), 3);
        assert_eq!(one.poll_timeout(now), None);
    }

    #[test]
    fn what_is_lost_or_not_taken_is_dialled_after_a_pause_that_grows() {
        let mut now = start();
        let mut one = AdditionalConnections::default();
        one.handle_tunnel(now, 1, 2);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            assert_eq!(dials(&mut one), 1);
            one.handle_dialled(now, false, 1);
            assert_eq!(dials(&mut one), 0);
            let next = one.poll_timeout(now).unwrap();
            pauses.push((next - now).as_millis());
            now = next;
            one.handle_timeout(now);
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000]);
        assert_eq!(dials(&mut one), 1);
        one.handle_dialled(now, true, 2);
        // All is well for long enough.
        now += FORGET_AFTER;
        one.handle_tunnel(now, 1, 2);
        assert_eq!(one.poll_timeout(now), Some(now + RETRY.0));
        assert_eq!(dials(&mut one), 0);
        one.handle_timeout(now + RETRY.0);
        assert_eq!(dials(&mut one), 1);
    }

    /// Connections come, are refused and lost at random, and timers come late.
    fn follow(seed: u64) {
        let mut below = draws(seed, 13);
        let mut now = start();
        let mut one = AdditionalConnections::default();
        let (mut connections, mut wanted, mut dialling) = (1, 1, 0_usize);
        let mut last_trouble: Option<Instant> = None;
        for step in 0..150 {
            let more = dials(&mut one);
            if more > 0 {
                assert_eq!(dialling, 0, "seed {seed}, step {step}: one round at a time");
                assert!(
                    more <= AT_ONCE && connections + more <= wanted,
                    "seed {seed}"
                );
                let rested = last_trouble.is_none_or(|trouble| now >= trouble + RETRY.0);
                assert!(
                    rested,
                    "seed {seed}, step {step}: dialled at once after trouble"
                );
                dialling = more;
            }
            match below(6) {
                0 => {
                    wanted = 1 + below(20) as usize;
                    one.handle_tunnel(now, connections, wanted);
                }
                1 if connections > 1 => {
                    connections -= 1;
                    last_trouble = Some(now);
                    one.handle_tunnel(now, connections, wanted);
                }
                2 | 3 if dialling > 0 => {
                    dialling -= 1;
                    let taken = below(3) > 0;
                    if taken {
                        connections += 1;
                        // The news of the tunnel may come before or after, or with the next one.
                        if below(2) == 0 {
                            one.handle_tunnel(now, connections, wanted);
                        }
                    } else {
                        last_trouble = Some(now);
                    }
                    // A round counts as failed when its last one is done.
                    if dialling == 0 && one.failed {
                        last_trouble = Some(now);
                    }
                    one.handle_dialled(now, taken, connections);
                }
                _ => {
                    let late = Duration::from_millis(u64::from(below(2) * below(40_000)));
                    now = one.poll_timeout(now).unwrap_or(now) + late;
                    one.handle_timeout(now);
                }
            }
        }
        // Left alone with a peer that takes all, the tunnel has what is wanted in the end.
        for _ in 0..60 {
            dialling += dials(&mut one);
            if dialling > 0 {
                dialling -= 1;
                connections += 1;
                one.handle_dialled(now, true, connections);
            } else if let Some(at) = one.poll_timeout(now) {
                now = at;
                one.handle_timeout(now);
            }
        }
        assert!(
            connections >= wanted,
            "seed {seed}: {connections} of {wanted}"
        );
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[];

    #[test]
    fn a_tunnel_has_what_is_wanted_in_the_end_and_trouble_is_never_answered_at_once() {
        for_each_seed(KEPT, 10_000, follow);
    }
}
