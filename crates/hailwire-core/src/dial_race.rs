//! Connection attempts that race, as addresses do in Happy Eyeballs (RFC 8305).
//!
//! Attempts start in order, each a *connection attempt delay* (section 5) after the one before it, or at once when one
//! that runs has failed. Whoever is up first wins, and none starts any more. The same race is run twice: between the
//! transports of a peer ([`dial_order`]), and between its addresses over TCP.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::{Carrier, Transport};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialAction<A> {
    /// Begin this attempt.
    Start(A),
}

/// A race of attempts of the kind `A`.
#[derive(Debug)]
pub struct DialRace<A> {
    waiting: VecDeque<A>,
    delay: Duration,
    /// When the next one starts.
    next: Instant,
    running: usize,
    won: bool,
    actions: VecDeque<DialAction<A>>,
}

impl<A> DialRace<A> {
    /// A race whose first attempt starts now.
    pub fn new(now: Instant, attempts: impl IntoIterator<Item = A>, delay: Duration) -> Self {
        let mut race = Self {
            waiting: attempts.into_iter().collect(),
            delay,
            next: now,
            running: 0,
            won: false,
            actions: VecDeque::new(),
        };
        race.handle_timeout(now);
        race
    }

    /// It is this late.
    pub fn handle_timeout(&mut self, now: Instant) {
        while now >= self.next
            && let Some(attempt) = self.start()
        {
            // A timer that was late does not start several at once.
            self.next = now + self.delay;
            self.actions.push_back(DialAction::Start(attempt));
        }
    }

    /// An attempt that was started has failed.
    pub fn handle_failure(&mut self, now: Instant) {
        self.running = self.running.saturating_sub(1);
        self.next = self.next.min(now);
        self.handle_timeout(now);
    }

    /// An attempt that was started is up: the race is won.
    pub fn handle_success(&mut self) {
        self.won = true;
        self.waiting.clear();
        self.actions.clear();
    }

    /// What is to be done next; nothing where all was given.
    pub fn poll_action(&mut self) -> Option<DialAction<A>> {
        self.actions.pop_front()
    }

    /// When [`DialRace::handle_timeout`] is to be called; `None` where nobody waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.next)
    }

    /// Whether all attempts have failed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.won && self.running == 0 && self.waiting.is_empty()
    }

    fn start(&mut self) -> Option<A> {
        let attempt = self.waiting.pop_front()?;
        self.running += 1;
        Some(attempt)
    }
}

/// The transports over which a peer is dialled, in order: UDP first, unless TCP is what worked last. `udp` and `tcp` say
/// whether an address for it is known.
#[must_use]
pub fn dial_order(
    carrier: Carrier,
    udp: bool,
    tcp: bool,
    worked: Option<Transport>,
) -> Vec<Transport> {
    let mut order = Vec::new();
    if udp && carrier.takes_udp() {
        order.push(Transport::Udp);
    }
    if tcp && carrier.takes_tcp() {
        order.push(Transport::Tcp);
    }
    if worked == Some(Transport::Tcp) {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    const DELAY: Duration = Duration::from_millis(250);

    fn started(race: &mut DialRace<u32>) -> Vec<u32> {
        let started = std::iter::from_fn(|| race.poll_action());
        started.map(|DialAction::Start(attempt)| attempt).collect()
    }

    #[test]
    fn quic_goes_first_and_what_worked_last_goes_before_it() {
        let both = [Transport::Udp, Transport::Tcp];
        assert_eq!(dial_order(Carrier::Auto, true, true, None), both);
        let again = dial_order(Carrier::Auto, true, true, Some(Transport::Udp));
        assert_eq!(again, both);
        let tcp_worked = dial_order(Carrier::Auto, true, true, Some(Transport::Tcp));
        assert_eq!(tcp_worked, [Transport::Tcp, Transport::Udp]);
    }

    #[test]
    fn what_has_no_address_or_is_not_allowed_is_not_dialled() {
        let tcp = Some(Transport::Tcp);
        let (udp_only, tcp_only) = ([Transport::Udp], [Transport::Tcp]);
        assert_eq!(dial_order(Carrier::Auto, false, true, None), tcp_only);
        assert_eq!(dial_order(Carrier::Auto, true, false, tcp), udp_only);
        assert_eq!(dial_order(Carrier::Quic, true, true, tcp), udp_only);
        assert_eq!(dial_order(Carrier::Ws, true, true, None), tcp_only);
        assert_eq!(dial_order(Carrier::H2, true, false, None), []);
    }

    #[test]
    fn each_attempt_starts_a_delay_after_the_one_before_or_at_once_when_one_failed() {
        let begin = start();
        let mut race = DialRace::new(begin, 0..4, DELAY);
        assert_eq!(started(&mut race), [0]);
        assert_eq!(race.poll_timeout(), Some(begin + DELAY));
        race.handle_timeout(begin + DELAY / 2);
        assert_eq!(started(&mut race), []);
        race.handle_failure(begin + DELAY / 2);
        assert_eq!(started(&mut race), [1]);
        assert_eq!(race.poll_timeout(), Some(begin + DELAY / 2 + DELAY));
        // A timer that comes much too late starts one, not all.
        race.handle_timeout(begin + 10 * DELAY);
        assert_eq!(started(&mut race), [2]);
        race.handle_success();
        assert_eq!(race.poll_timeout(), None);
        race.handle_failure(begin + 20 * DELAY);
        assert_eq!(started(&mut race), []);
        assert!(!race.is_lost());
    }

    #[test]
    fn a_race_in_which_all_failed_is_lost_and_one_of_nobody_from_the_start() {
        let begin = start();
        let mut race = DialRace::new(begin, 0..2, DELAY);
        race.handle_failure(begin);
        assert_eq!(started(&mut race), [0, 1]);
        assert!(!race.is_lost());
        race.handle_failure(begin);
        assert!(race.is_lost());
        assert!(DialRace::<u32>::new(begin, [], DELAY).is_lost());
    }

    /// Attempts that take a random time, and timers that come late.
    fn follow(seed: u64) {
        let mut below = draws(seed, 5);
        let begin = start();
        let attempts = 1 + below(6);
        // How long each takes, and whether it comes up.
        let outcomes: Vec<(Duration, bool)> = (0..attempts)
            .map(|_| (Duration::from_millis(u64::from(below(900))), below(4) == 0))
            .collect();
        let mut race = DialRace::new(begin, 0..attempts, DELAY);
        let mut now = begin;
        let mut running: Vec<(Instant, u32)> = Vec::new();
        let mut starts: Vec<Instant> = Vec::new();
        let mut last_failure = None;
        let winner = loop {
            for attempt in started(&mut race) {
                assert_eq!(
                    attempt as usize,
                    starts.len(),
                    "seed {seed}: in order, each once"
                );
                if let Some(before) = starts.last() {
                    let due = now >= *before + DELAY || last_failure == Some(now);
                    assert!(due, "seed {seed}: {attempt} starts too soon");
                }
                starts.push(now);
                running.push((now + outcomes[attempt as usize].0, attempt));
            }
            if race.is_lost() {
                break None;
            }
            running.sort_unstable();
            let done = running.first().map(|(at, _)| *at);
            let late = Duration::from_millis(u64::from(below(3) * below(300)));
            let timer = race.poll_timeout().map(|at| at.max(now) + late);
            now = [done, timer]
                .into_iter()
                .flatten()
                .min()
                .expect("it goes on");
            if done == Some(now) {
                let (_, attempt) = running.remove(0);
                if outcomes[attempt as usize].1 {
                    race.handle_success();
                    break Some(attempt);
                }
                last_failure = Some(now);
                race.handle_failure(now);
            } else {
                race.handle_timeout(now);
            }
        };
        let any = outcomes.iter().any(|(_, up)| *up);
        assert_eq!(winner.is_some(), any, "seed {seed}");
        if winner.is_none() {
            assert_eq!(starts.len(), outcomes.len(), "seed {seed}: all were tried");
        }
        assert_eq!(race.poll_timeout(), None, "seed {seed}");
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[];

    #[test]
    fn whatever_comes_up_first_wins_and_none_is_left_out_however_late_timers_come() {
        for_each_seed(KEPT, 10_000, follow);
    }
}
