//! One call for each of many inputs: which input is read when, which call starts when, what is printed next.
//!
//! A plan is told what was read and how each call went, and answers with [`DispatchAction`]s. It promises that no more than
//! [`DispatchLimits::in_flight`] inputs are on their way, that a call is made again only where retries were allowed, that an
//! answer is recorded before it is printed, and that every input is printed once: in the order of the inputs, or as they are
//! done. Inputs are read only when there is a place for them, so whoever writes them waits; what is held in memory is bounded,
//! as are the answers ([`DispatchPlan::take_answer_bytes`]).
//!
//! What a [journal](crate::dispatch_journal) of an earlier run answered is not called again: such an input is printed in its turn.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use hailwire_wire::Code;

use crate::call_attempts::{LONGEST_RETRY_AFTER, is_worth_a_retry};

/// Largest input, and largest answer, in bytes.
pub const MAX_DISPATCH_BODY: usize = 16 * 1024 * 1024;

/// Most calls in flight.
pub const MAX_IN_FLIGHT: usize = 1024;

/// Most bytes of inputs that are held before no further one is read, and most of answers before all but the oldest wait. Each
/// may be passed by one body, of [`MAX_DISPATCH_BODY`] at most.
pub const MAX_HELD: usize = 64 * 1024 * 1024;

/// Most inputs that were read and are not printed yet: in order, one that is slow holds back those after it.
pub const MAX_OPEN: usize = 4096;

/// The pause before a first retry; each further one waits twice as long, up to [`LONGEST_PAUSE`].
pub const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause before a retry.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How a dispatch goes about it.
#[derive(Clone, Copy, Debug)]
pub struct DispatchLimits {
    /// Most inputs on their way at once, a retry that waits included: from 1 to [`MAX_IN_FLIGHT`].
    pub in_flight: usize,
    /// How often a call is made again.
    pub retries: u32,
    /// Whether results are printed in the order of the inputs.
    pub ordered: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchAction {
    /// Read the next input, then call [`DispatchPlan::handle_input`] or [`DispatchPlan::handle_end`].
    Read,
    /// Make the call for this input.
    Call {
        /// Which input, counted from 0.
        index: u64,
        /// How many calls were made for it before.
        retry: u32,
    },
    /// Write the answer of this input into the journal.
    Record(u64),
    /// Print the result of this input, which is held no longer.
    Print(u64),
}

/// An input that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchInput {
    /// One to be called for.
    New {
        /// Its size.
        bytes: usize,
    },
    /// One that the journal has the answer of.
    Recorded,
    /// One that cannot be sent, such as a file that is too large.
    Unusable,
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchOutcome {
    /// The whole answer is there.
    Answered,
    /// It ended with this code, and whoever ended it says perhaps after which time another try may help.
    Failed(Code, Option<Duration>),
    /// It ended in a way that would be the same the next time, such as an answer that is too large.
    Unusable,
}

/// Whether the next bytes of an answer may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerRoom {
    /// They may.
    Taken,
    /// Not now: ask again when something was printed.
    Wait,
    /// The answer is larger than [`MAX_DISPATCH_BODY`].
    TooLarge,
}

/// An input that was read and is not printed yet.
#[derive(Debug)]
struct OpenInput {
    finished: bool,
    retries: u32,
    input_bytes: usize,
    answer_bytes: usize,
}

/// The plan of one run.
#[derive(Debug)]
pub struct DispatchPlan {
    limits: DispatchLimits,
    /// How many inputs were read, which is the index of the next one.
    read: u64,
    reading: bool,
    ended: bool,
    open: BTreeMap<u64, OpenInput>,
    /// How many of those that are open are not finished.
    unfinished: usize,
    /// Which inputs are called for again when.
    pauses: BTreeSet<(Instant, u64)>,
    input_bytes: usize,
    answer_bytes: usize,
    actions: VecDeque<DispatchAction>,
}

impl DispatchPlan {
    /// One that begins with [`DispatchAction::Read`].
    #[must_use]
    pub fn new(limits: DispatchLimits) -> Self {
        let mut plan = Self {
            limits,
            read: 0,
            reading: false,
            ended: false,
            open: BTreeMap::new(),
            unfinished: 0,
            pauses: BTreeSet::new(),
            input_bytes: 0,
            answer_bytes: 0,
            actions: VecDeque::new(),
        };
        plan.read_on();
        plan
    }

    /// An input was read; its index is returned.
    pub fn handle_input(&mut self, input: DispatchInput) -> u64 {
        let index = self.read;
        self.read += 1;
        self.reading = false;
        let input_bytes = match input {
            DispatchInput::New { bytes } => bytes,
            DispatchInput::Recorded | DispatchInput::Unusable => 0,
        };
        let finished = !matches!(input, DispatchInput::New { .. });
        let open = OpenInput {
            finished,
            retries: 0,
            input_bytes,
            answer_bytes: 0,
        };
        self.open.insert(index, open);
        if finished {
            self.print(index);
        } else {
            self.unfinished += 1;
            self.input_bytes += input_bytes;
            self.actions
                .push_back(DispatchAction::Call { index, retry: 0 });
        }
        self.read_on();
        index
    }

    /// There are no more inputs.
    pub const fn handle_end(&mut self) {
        self.reading = false;
        self.ended = true;
    }

    /// How the call for an input went.
    pub fn handle_outcome(&mut self, now: Instant, index: u64, outcome: DispatchOutcome) {
        let Some(open) = self.open.get_mut(&index) else {
            return;
        };
        // Each call has a deadline of its own, so one that took too long may be in time the next time.
        if let DispatchOutcome::Failed(code, retry_after) = outcome
            && open.retries < self.limits.retries
            && (is_worth_a_retry(code) || code == Code::DeadlineExceeded)
        {
            let asked = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
            let pause = pause(open.retries).max(asked);
            open.retries += 1;
            self.answer_bytes -= open.answer_bytes;
            open.answer_bytes = 0;
            self.pauses.insert((now + pause, index));
            return;
        }
        open.finished = true;
        self.unfinished -= 1;
        self.input_bytes -= open.input_bytes;
        if outcome == DispatchOutcome::Answered {
            self.actions.push_back(DispatchAction::Record(index));
        }
        self.print(index);
        self.read_on();
    }

    /// It is this late.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, index)) = self.pauses.first().copied()
            && at <= now
        {
            self.pauses.pop_first();
            let retry = self.open.get(&index).map_or(0, |open| open.retries);
            self.actions
                .push_back(DispatchAction::Call { index, retry });
        }
    }

    /// More bytes of an answer arrived. The oldest input always has room, so that whatever waits gets on.
    pub fn take_answer_bytes(&mut self, index: u64, bytes: usize) -> AnswerRoom {
        let oldest = self.open.keys().next() == Some(&index);
        let Some(open) = self.open.get_mut(&index) else {
            return AnswerRoom::TooLarge;
        };
        if open.answer_bytes + bytes > MAX_DISPATCH_BODY {
            return AnswerRoom::TooLarge;
        }
        if !oldest && self.answer_bytes + bytes > MAX_HELD {
            return AnswerRoom::Wait;
        }
        open.answer_bytes += bytes;
        self.answer_bytes += bytes;
        AnswerRoom::Taken
    }

    /// What is to be done next; nothing where all was given.
    pub fn poll_action(&mut self) -> Option<DispatchAction> {
        self.actions.pop_front()
    }

    /// When [`DispatchPlan::handle_timeout`] is to be called; `None` where no retry waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pauses.first().map(|(at, _)| *at)
    }

    /// Whether every input was read and printed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ended && self.open.is_empty() && self.actions.is_empty()
    }

    /// How many inputs were read.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    /// How many inputs are on their way.
    #[must_use]
    pub const fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Prints what is finished: this input, or in order all up to the first that is not.
    fn print(&mut self, index: u64) {
        if !self.limits.ordered {
            return self.close(index);
        }
        while let Some((index, open)) = self.open.first_key_value()
            && open.finished
        {
            self.close(*index);
        }
    }

    fn close(&mut self, index: u64) {
        if let Some(open) = self.open.remove(&index) {
            self.answer_bytes -= open.answer_bytes;
            self.actions.push_back(DispatchAction::Print(index));
        }
    }

    fn read_on(&mut self) {
        let has_room = self.unfinished < self.limits.in_flight
            && self.open.len() < MAX_OPEN
            && self.input_bytes < MAX_HELD;
        if has_room && !self.reading && !self.ended {
            self.reading = true;
            self.actions.push_back(DispatchAction::Read);
        }
    }
}

fn pause(retries: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << retries.min(16));
    doubled.min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    fn limits(in_flight: usize, retries: u32, ordered: bool) -> DispatchLimits {
        DispatchLimits {
            in_flight,
            retries,
            ordered,
        }
    }

    fn actions(plan: &mut DispatchPlan) -> Vec<DispatchAction> {
        std::iter::from_fn(|| plan.poll_action()).collect()
    }

    /// Reads inputs for as long as the plan wants some.
    fn read_all(plan: &mut DispatchPlan, bytes: usize) -> usize {
        let mut read = 0;
        while actions(plan).contains(&DispatchAction::Read) {
            plan.handle_input(DispatchInput::New { bytes });
            read += 1;
            assert!(read <= 2 * MAX_OPEN, "it reads without end");
        }
        read
    }

    #[test]
    fn a_slow_input_holds_back_a_bounded_number_of_those_after_it() {
        let now = start();
        let mut plan = DispatchPlan::new(limits(2, 0, true));
        assert_eq!(read_all(&mut plan, 1), 2);
        let mut newest = 1;
        loop {
            plan.handle_outcome(now, newest, DispatchOutcome::Answered);
            let next = actions(&mut plan);
            assert!(!next.contains(&DispatchAction::Print(newest)));
            if !next.contains(&DispatchAction::Read) {
                break;
            }
            newest = plan.handle_input(DispatchInput::New { bytes: 1 });
        }
        assert_eq!(newest + 1, MAX_OPEN as u64);
        plan.handle_outcome(now, 0, DispatchOutcome::Answered);
        let printed = actions(&mut plan).into_iter();
        let printed = printed.filter(|action| matches!(action, DispatchAction::Print(_)));
        assert_eq!(printed.count(), MAX_OPEN);
    }

    #[test]
    fn no_more_is_read_than_fits_however_many_calls_are_allowed() {
        let mut plan = DispatchPlan::new(limits(MAX_IN_FLIGHT, 0, false));
        assert_eq!(
            read_all(&mut plan, MAX_DISPATCH_BODY),
            MAX_HELD / MAX_DISPATCH_BODY
        );
    }

    #[test]
    fn answers_wait_beyond_what_may_be_held_and_the_oldest_never_does() {
        let now = start();
        let mut plan = DispatchPlan::new(limits(8, 0, true));
        read_all(&mut plan, 0);
        let part = MAX_DISPATCH_BODY;
        for index in 1..=4 {
            assert_eq!(plan.take_answer_bytes(index, part), AnswerRoom::Taken);
        }
        assert_eq!(plan.take_answer_bytes(5, 1), AnswerRoom::Wait);
        assert_eq!(plan.take_answer_bytes(0, part), AnswerRoom::Taken);
        assert_eq!(plan.take_answer_bytes(0, 1), AnswerRoom::TooLarge);
        plan.handle_outcome(now, 1, DispatchOutcome::Answered);
        assert_eq!(plan.take_answer_bytes(5, 1), AnswerRoom::Wait, "1 is held");
        plan.handle_outcome(now, 0, DispatchOutcome::Answered);
        assert_eq!(plan.take_answer_bytes(5, part), AnswerRoom::Taken);
    }

    #[test]
    fn a_retry_comes_after_a_pause_that_doubles_and_only_where_it_may_help() {
        let mut now = start();
        let mut plan = DispatchPlan::new(limits(1, 9, false));
        read_all(&mut plan, 1);
        let mut pauses = Vec::new();
        for retry in 1..=9 {
            plan.handle_outcome(now, 0, DispatchOutcome::Failed(Code::Unavailable, None));
            let at = plan.poll_timeout().unwrap();
            pauses.push(u32::try_from((at - now).as_millis()).unwrap());
            plan.handle_timeout(now);
            assert_eq!(actions(&mut plan), [], "the pause is kept");
            now = at;
            plan.handle_timeout(now);
            assert_eq!(
                actions(&mut plan),
                [DispatchAction::Call { index: 0, retry }]
            );
        }
        assert_eq!(pauses[..4], [200, 400, 800, 1600]);
        assert_eq!(pauses[8], 10_000);
        plan.handle_outcome(now, 0, DispatchOutcome::Failed(Code::Unavailable, None));
        assert_eq!(
            actions(&mut plan),
            [DispatchAction::Print(0), DispatchAction::Read]
        );
        plan.handle_input(DispatchInput::New { bytes: 1 });
        actions(&mut plan);
        plan.handle_outcome(now, 1, DispatchOutcome::Failed(Code::InvalidArgument, None));
        assert!(actions(&mut plan).contains(&DispatchAction::Print(1)));
    }

    #[test]
    fn who_says_when_to_come_back_is_called_then_and_after_a_minute_at_the_latest() {
        let mut plan = DispatchPlan::new(limits(1, 9, false));
        read_all(&mut plan, 1);
        let now = start();
        for (said, waits) in [(5, 5), (3600, 60)] {
            let said = Some(Duration::from_secs(said));
            plan.handle_outcome(
                now,
                0,
                DispatchOutcome::Failed(Code::ResourceExhausted, said),
            );
            let at = plan.poll_timeout().unwrap();
            assert_eq!(at - now, Duration::from_secs(waits));
            plan.handle_timeout(at);
            assert_eq!(actions(&mut plan).len(), 1);
        }
    }

    /// What a run of the plan did before it ended or was killed.
    #[derive(Default)]
    struct Run {
        printed: Vec<u64>,
        /// Calls that were begun, by input.
        begun: BTreeMap<u64, u32>,
        finished: bool,
    }

    /// Runs a plan over `inputs` inputs until it is done, or until `kill` events have happened.
    fn drive(
        seed: u64,
        below: &mut impl FnMut(u32) -> u32,
        limits: DispatchLimits,
        inputs: u64,
        recorded: &mut BTreeSet<u64>,
        kill: u32,
    ) -> Run {
        let mut plan = DispatchPlan::new(limits);
        let mut run = Run::default();
        let mut now = start();
        let before = recorded.clone();
        let mut calling: Vec<u64> = Vec::new();
        let mut reading = false;
        let mut failed = BTreeSet::new();
        for _ in 0..kill {
            while let Some(action) = plan.poll_action() {
                match action {
                    DispatchAction::Read => {
                        assert!(!reading, "seed {seed}: one is read at a time");
                        reading = true;
                    }
                    DispatchAction::Call { index, retry } => {
                        let begun = run.begun.entry(index).or_default();
                        assert_eq!(*begun, retry, "seed {seed}");
                        *begun += 1;
                        assert!(!recorded.contains(&index), "seed {seed}: called again");
                        calling.push(index);
                    }
                    DispatchAction::Record(index) => {
                        assert!(recorded.insert(index), "seed {seed}: recorded twice");
                    }
                    DispatchAction::Print(index) => {
                        let known = recorded.contains(&index) || failed.contains(&index);
                        assert!(
                            known,
                            "seed {seed}: {index} is printed before it is recorded"
                        );
                        run.printed.push(index);
                    }
                }
            }
            assert!(calling.len() <= limits.in_flight, "seed {seed}");
            assert!(plan.unfinished() <= limits.in_flight, "seed {seed}");
            if plan.is_done() {
                run.finished = true;
                return run;
            }
            let draw = below(3);
            if reading && (draw == 0 || calling.is_empty()) {
                reading = false;
                let next = plan.read();
                if next == inputs {
                    plan.handle_end();
                } else if before.contains(&next) {
                    plan.handle_input(DispatchInput::Recorded);
                } else if below(10) == 0 {
                    failed.insert(next);
                    plan.handle_input(DispatchInput::Unusable);
                } else {
                    plan.handle_input(DispatchInput::New { bytes: 1 });
                }
            } else if !calling.is_empty() && (draw == 1 || plan.poll_timeout().is_none()) {
                let which = below(u32::try_from(calling.len()).unwrap()) as usize;
                let index = calling.swap_remove(which);
                let outcome = match below(5) {
                    0 => DispatchOutcome::Failed(Code::Unavailable, None),
                    1 => DispatchOutcome::Failed(Code::InvalidArgument, None),
                    _ => DispatchOutcome::Answered,
                };
                if outcome != DispatchOutcome::Answered {
                    failed.insert(index);
                }
                plan.handle_outcome(now, index, outcome);
            } else if let Some(at) = plan.poll_timeout() {
                now = at;
                plan.handle_timeout(now);
            } else {
                assert!(reading, "seed {seed}: nothing goes on");
            }
        }
        run
    }

    /// A run that is killed at a random moment, and one that goes on with its journal.
    fn follow(seed: u64) {
        let mut below = draws(seed, 11);
        let limits = limits(1 + below(6) as usize, below(3), below(2) == 0);
        let inputs = u64::from(below(30));
        let mut recorded = BTreeSet::new();
        let kill = below(80);
        let first = drive(seed, &mut below, limits, inputs, &mut recorded, kill);
        let answered = recorded.clone();
        let run = drive(seed, &mut below, limits, inputs, &mut recorded, u32::MAX);
        assert!(run.finished, "seed {seed}");
        for (index, begun) in &run.begun {
            assert!(*begun <= 1 + limits.retries, "seed {seed}: {index}");
            assert!(
                !answered.contains(index),
                "seed {seed}: {index} was answered"
            );
        }
        let mut printed = run.printed.clone();
        printed.sort_unstable();
        let all: Vec<u64> = (0..inputs).collect();
        assert_eq!(printed, all, "seed {seed}: each is printed once");
        if limits.ordered {
            assert!(run.printed.is_sorted(), "seed {seed}");
            assert!(first.printed.is_sorted(), "seed {seed}");
        }
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[];

    #[test]
    fn each_input_is_answered_and_printed_once_whenever_a_run_is_killed() {
        for_each_seed(KEPT, 10_000, follow);
    }
}
