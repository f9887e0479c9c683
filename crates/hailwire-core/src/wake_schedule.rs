//! When a program that sleeps is started for what waits for its agent, and when it is ended again.
//!
//! The program takes messages of its agent by itself. It is started while a message can be taken and fewer programs run than there are
//! messages that can be taken or are in hand, up to [`WakeLimits::programs`] at once, those included that are being ended. All are ended once
//! nothing waits and nothing is in hand for [`WakeLimits::idle`].
//!
//! Nobody says which program took what, so starts are paid for: as many are free as may run at once, and each message that is taken pays
//! for one more, as does an end that was asked for or that came when nothing was left to take. Where nothing is left to pay with, the last
//! programs ended without having taken anything: then one is started at a time, after a pause of 1 s that doubles up to a minute, until a
//! message is taken. So a program that fails at once is started ever more seldom, and never more often than that and
//! the messages that others take.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::backoff::Backoff;

/// First and longest pause after a program that ended without having taken anything.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The number of a program that was started, which none has twice.
pub type WakeNumber = u64;

/// How many programs run, and for how long in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeLimits {
    /// Most programs at once, at least 1.
    pub programs: usize,
    /// How long nothing waits and nothing is in hand before they are ended.
    pub idle: Duration,
}

/// What is to be done for an agent, as its node says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeBacklog {
    /// Messages that can be taken now.
    pub ready: usize,
    /// Messages that are not in hand, those included that are due later or come after one that is in hand.
    pub waiting: usize,
    /// Messages in hand.
    pub in_hand: usize,
    /// Messages that were taken so far. It counts from anything, but goes on for as long as the node is not lost.
    pub taken: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeAction {
    /// Start a program, and tell its end by this number.
    Start(WakeNumber),
    /// Ask this program to end, and tell when it has.
    End(WakeNumber),
}

/// What the end of a program means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeEnd {
    /// It was asked to, or nothing was left to do, or it took something.
    Expected,
    /// It took nothing although something waits: the next one is started after so long.
    InVain(Duration),
}

/// The programs of one agent.
#[derive(Debug)]
pub struct WakeSchedule {
    limits: WakeLimits,
    /// `None` while the node is away.
    backlog: Option<WakeBacklog>,
    programs: BTreeMap<WakeNumber, WokenProgram>,
    last_number: WakeNumber,
    /// Starts that are paid for.
    paid: usize,
    backoff: Backoff,
    failed: Option<Instant>,
    /// Since when nothing waits and nothing is in hand.
    quiet: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct WokenProgram {
    started: Instant,
    ending: bool,
}

impl WakeSchedule {
    /// Without programs, and nothing known of what waits.
    #[must_use]
    pub fn new(limits: WakeLimits) -> Self {
        Self {
            limits,
            backlog: None,
            programs: BTreeMap::new(),
            last_number: 0,
            paid: limits.programs,
            backoff: Backoff::new(PAUSES),
            failed: None,
            quiet: None,
        }
    }

    /// The node says what waits.
    pub fn handle_backlog(&mut self, now: Instant, backlog: WakeBacklog) {
        let before = self.backlog.replace(backlog);
        let taken = before.map_or(0, |before| backlog.taken.saturating_sub(before.taken));
        if taken > 0 {
            self.pay(usize::try_from(taken).unwrap_or(usize::MAX));
            self.backoff.reset();
            self.failed = None;
        }
        match backlog.waiting == 0 && backlog.in_hand == 0 {
            true => _ = self.quiet.get_or_insert(now),
            false => self.quiet = None,
        }
    }

    /// The node is away: nothing is started or ended until it says again what waits.
    pub const fn handle_detached(&mut self) {
        self.backlog = None;
        self.quiet = None;
    }

    /// A program has ended, with all that it started, or could not be started.
    pub fn handle_end(&mut self, now: Instant, number: WakeNumber) -> WakeEnd {
        let Some(program) = self.programs.remove(&number) else {
            return WakeEnd::Expected;
        };
        let left = self.backlog.is_some_and(|backlog| backlog.ready > 0);
        if program.ending || !left {
            self.pay(1);
            return WakeEnd::Expected;
        }
        if self.paid > 0 {
            return WakeEnd::Expected;
        }
        // Those that were started before the last failure have their part in that one.
        if self.failed.is_none_or(|failed| program.started > failed) {
            self.failed = Some(now);
            return WakeEnd::InVain(self.backoff.fail(now));
        }
        WakeEnd::InVain(self.backoff.wait(now))
    }

    fn pay(&mut self, starts: usize) {
        self.paid = self.paid.saturating_add(starts).min(self.limits.programs);
    }

    /// What is to be done now. It counts as done.
    pub fn poll_action(&mut self, now: Instant) -> Option<WakeAction> {
        if self.idle_at().is_some_and(|at| at <= now)
            && let Some((number, program)) = self.programs.iter_mut().find(|(_, p)| !p.ending)
        {
            program.ending = true;
            return Some(WakeAction::End(*number));
        }
        match self.next_start() {
            NextStart::AtOnce => {}
            NextStart::At(at) if at <= now => {}
            NextStart::At(_) | NextStart::Unwanted => return None,
        }
        self.paid = self.paid.saturating_sub(1);
        self.last_number += 1;
        let (started, ending) = (now, false);
        self.programs
            .insert(self.last_number, WokenProgram { started, ending });
        Some(WakeAction::Start(self.last_number))
    }

    /// When [`WakeSchedule::poll_action`], which has given all that it has now, has more, unless this is told of something new.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let start = match self.next_start() {
            NextStart::At(at) => Some(at),
            NextStart::AtOnce | NextStart::Unwanted => None,
        };
        [self.idle_at(), start].into_iter().flatten().min()
    }

    /// How long the next program has to wait because the last ones took nothing; `None` where it may be started at once.
    #[must_use]
    pub fn paused(&self, now: Instant) -> Option<Duration> {
        let wait = self.backoff.wait(now);
        (self.paid == 0 && !wait.is_zero()).then_some(wait)
    }

    /// Messages that are not in hand, as far as is known.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.backlog.map_or(0, |backlog| backlog.waiting)
    }

    /// Until when the programs that run may do so.
    fn idle_at(&self) -> Option<Instant> {
        let runs = self.programs.values().any(|program| !program.ending);
        let quiet = self.quiet.filter(|_| runs)?;
        let last = self.programs.values().map(|program| program.started).max();
        Some(last.map_or(quiet, |last| last.max(quiet)) + self.limits.idle)
    }

    fn next_start(&self) -> NextStart {
        let Some(backlog) = self.backlog.filter(|backlog| backlog.ready > 0) else {
            return NextStart::Unwanted;
        };
        let serving = || self.programs.values().filter(|program| !program.ending);
        let wanted = backlog.ready.saturating_add(backlog.in_hand);
        if self.programs.len() >= self.limits.programs || serving().count() >= wanted {
            return NextStart::Unwanted;
        }
        if self.paid > 0 {
            return NextStart::AtOnce;
        }
        match self.failed {
            // One of those that were paid for takes something, which pays for the next, or ends.
            None if !self.programs.is_empty() => NextStart::Unwanted,
            None => NextStart::AtOnce,
            // The one that is tried may still take something.
            Some(failed) if serving().any(|program| program.started > failed) => {
                NextStart::Unwanted
            }
            Some(failed) => NextStart::At(failed + self.backoff.wait(failed)),
        }
    }
}

/// Whether and when another program is started.
#[derive(Clone, Copy, Debug)]
enum NextStart {
    Unwanted,
    AtOnce,
    At(Instant),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    const SECOND: Duration = Duration::from_secs(1);
    const IDLE: Duration = Duration::from_secs(30);

    fn schedule(programs: usize) -> WakeSchedule {
        WakeSchedule::new(WakeLimits {
            programs,
            idle: IDLE,
        })
    }

    fn ready(ready: usize, in_hand: usize, taken: u64) -> WakeBacklog {
        WakeBacklog {
            ready,
            waiting: ready,
            in_hand,
            taken,
        }
    }

    fn actions(schedule: &mut WakeSchedule, now: Instant) -> Vec<WakeAction> {
        std::iter::from_fn(|| schedule.poll_action(now)).collect()
    }

    #[test]
    fn as_many_run_as_there_is_to_do_and_no_more_than_may() {
        let (now, mut wake) = (start(), schedule(2));
        assert_eq!(actions(&mut wake, now), [], "nothing is known yet");
        wake.handle_backlog(now, ready(1, 0, 0));
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(1)]);
        wake.handle_backlog(now, ready(0, 1, 1));
        assert_eq!(actions(&mut wake, now), []);
        wake.handle_backlog(now, ready(5, 1, 1));
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(2)]);
        wake.handle_backlog(now, ready(4, 2, 2));
        assert_eq!(wake.handle_end(now, 1), WakeEnd::Expected);
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(3)]);
    }

    #[test]
    fn programs_end_once_nothing_was_to_be_done_for_a_while_and_begin_again_with_the_next_message()
    {
        let (mut now, mut wake) = (start(), schedule(3));
        wake.handle_backlog(now, ready(2, 0, 0));
        assert_eq!(actions(&mut wake, now).len(), 2);
        now += 100 * IDLE;
        wake.handle_backlog(now, ready(0, 1, 2));
        assert_eq!(wake.poll_timeout(), None, "one is in hand");
        wake.handle_backlog(now, ready(0, 0, 2));
        assert_eq!(wake.poll_timeout(), Some(now + IDLE));
        // A message in between begins the time anew.
        wake.handle_backlog(now + SECOND, ready(0, 1, 3));
        wake.handle_backlog(now + 2 * SECOND, ready(0, 0, 3));
        now += 2 * SECOND + IDLE;
        assert_eq!(wake.poll_timeout(), Some(now));
        assert_eq!(actions(&mut wake, now - Duration::from_nanos(1)), []);
        let ends = [WakeAction::End(1), WakeAction::End(2)];
        assert_eq!(actions(&mut wake, now), ends);
        assert_eq!(wake.poll_timeout(), None);
        // Those that are being ended count, and do nothing for what comes now.
        wake.handle_backlog(now, ready(2, 0, 3));
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(3)]);
        assert_eq!(wake.handle_end(now, 1), WakeEnd::Expected);
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(4)]);
    }

    #[test]
    fn a_program_that_fails_at_once_is_started_ever_more_seldom_until_one_takes_something() {
        let (mut now, mut wake) = (start(), schedule(1));
        wake.handle_backlog(now, ready(3, 0, 0));
        let mut pauses = Vec::new();
        for number in 1..=8 {
            assert_eq!(actions(&mut wake, now), [WakeAction::Start(number)]);
            let WakeEnd::InVain(pause) = wake.handle_end(now, number) else {
                panic!("it took nothing");
            };
            pauses.push(pause.as_secs());
            assert_eq!(wake.paused(now), Some(pause));
            assert_eq!(actions(&mut wake, now), []);
            now += pause;
            assert_eq!(wake.poll_timeout(), Some(now));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(9)]);
        // What it took is told only after its end.
        assert_eq!(wake.handle_end(now, 9), WakeEnd::InVain(60 * SECOND));
        wake.handle_backlog(now, ready(2, 0, 1));
        assert_eq!(wake.paused(now), None);
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(10)]);
        assert_eq!(wake.handle_end(now, 10), WakeEnd::InVain(SECOND));
    }

    #[test]
    fn many_that_fail_together_have_failed_once_and_then_one_is_tried_at_a_time() {
        let (mut now, mut wake) = (start(), schedule(8));
        wake.handle_backlog(now, ready(20, 0, 0));
        assert_eq!(actions(&mut wake, now).len(), 8);
        for number in 1..=8 {
            assert_eq!(wake.handle_end(now, number), WakeEnd::InVain(SECOND));
        }
        now += SECOND;
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(9)]);
        assert_eq!(wake.poll_timeout(), None);
        wake.handle_backlog(now, ready(19, 1, 1));
        assert_eq!(actions(&mut wake, now), [WakeAction::Start(10)]);
    }

    #[test]
    fn nothing_is_begun_or_ended_while_the_node_is_away() {
        let (now, mut wake) = (start(), schedule(2));
        wake.handle_backlog(now, ready(1, 0, 7));
        assert_eq!(actions(&mut wake, now).len(), 1);
        wake.handle_backlog(now, ready(0, 0, 8));
        wake.handle_detached();
        assert_eq!(actions(&mut wake, now + 10 * IDLE), []);
        assert_eq!(wake.poll_timeout(), None);
        // The node counts from the beginning again.
        wake.handle_backlog(now + 10 * IDLE, ready(0, 0, 0));
        assert_eq!(wake.poll_timeout(), Some(now + 11 * IDLE));
    }

    /// A network that does whatever it likes: messages come, programs take them, finish them, crash, hang, and end when asked or later.
    struct Followed {
        wake: WakeSchedule,
        now: Instant,
        most: usize,
        ready: usize,
        in_hand: usize,
        taken: u64,
        /// Whether each was asked to end.
        running: BTreeMap<WakeNumber, bool>,
        starts: u64,
        /// Ends after which the next start is free: those asked for, and those with nothing left.
        excused: u64,
        began: Instant,
    }

    impl Followed {
        fn tell(&mut self) {
            self.wake
                .handle_backlog(self.now, ready(self.ready, self.in_hand, self.taken));
        }

        fn carry_out(&mut self) {
            while let Some(action) = self.wake.poll_action(self.now) {
                match action {
                    WakeAction::Start(number) => {
                        self.starts += 1;
                        assert!(self.running.insert(number, false).is_none());
                        assert!(self.ready > 0, "started for nothing");
                    }
                    WakeAction::End(number) => {
                        assert_eq!((self.ready, self.in_hand), (0, 0), "ended with work left");
                        assert_eq!(self.running.insert(number, true), Some(false));
                    }
                }
                assert!(self.running.len() <= self.most, "more than may");
            }
            assert!(self.wake.poll_timeout().is_none_or(|at| at > self.now));
            // In a span of time without a message taken, starts after the first ones are pauses of a second at least apart.
            let free = self.most as u64 + self.taken + self.excused;
            let pauses = (self.now - self.began).as_secs() + 1;
            assert!(self.starts <= free + pauses, "a storm of starts");
        }

        fn end(&mut self, number: WakeNumber) {
            let asked = self.running.remove(&number).unwrap();
            if asked || self.ready == 0 {
                self.excused += 1;
            }
            let end = self.wake.handle_end(self.now, number);
            assert!(!asked || end == WakeEnd::Expected);
        }
    }

    fn follow(seed: u64) {
        let mut below = draws(seed, 11);
        let most = 1 + below(4) as usize;
        let now = start();
        let mut f = Followed {
            wake: schedule(most),
            now,
            most,
            ready: 0,
            in_hand: 0,
            taken: 0,
            running: BTreeMap::new(),
            starts: 0,
            excused: 0,
            began: now,
        };
        // Some programs take nothing, ever.
        let broken = below(3) == 0;
        for _ in 0..400 {
            match below(8) {
                0 => f.ready += 1 + below(3) as usize,
                1 | 2 if !broken && f.ready > 0 && !f.running.is_empty() => {
                    f.ready -= 1;
                    f.in_hand += 1;
                    f.taken += 1;
                }
                3 if f.in_hand > 0 => {
                    f.in_hand -= 1;
                    // It may be to be done again.
                    f.ready += below(2) as usize;
                }
                4 | 5 if !f.running.is_empty() => {
                    let which = below(f.running.len() as u32) as usize;
                    let number = *f.running.keys().nth(which).unwrap();
                    f.tell();
                    f.end(number);
                }
                6 => f.now += Duration::from_millis(u64::from(below(3000))),
                _ => {
                    let next = f.wake.poll_timeout();
                    f.now = next.unwrap_or(f.now).max(f.now);
                }
            }
            f.tell();
            f.carry_out();
        }
        // Whatever has happened: what waits is started for once those that run have ended, and in the end all sleep.
        for number in f.running.keys().copied().collect::<Vec<_>>() {
            f.end(number);
        }
        f.ready = f.ready.max(1);
        f.tell();
        f.now += PAUSES.1;
        f.carry_out();
        assert!(!f.running.is_empty(), "what waits was forgotten");
        (f.ready, f.in_hand) = (0, 0);
        f.tell();
        f.now += IDLE;
        f.carry_out();
        assert!(f.running.values().all(|asked| *asked), "the idle bound");
    }

    #[test]
    fn never_more_than_may_never_a_storm_and_nothing_forgotten_whatever_happens() {
        for_each_seed(&[], 10_000, follow);
    }
}
