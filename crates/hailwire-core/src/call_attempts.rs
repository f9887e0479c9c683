//! One call that may be made more than once: when it is made again, and whose result counts.
//!
//! A *retry* follows an attempt that failed in a way that another may not; a *hedge* is made beside one that takes long. Both
//! are further attempts and have the same bounds: [`AttemptPolicy::most_further`], the [`RetryBudget`] that all calls of the
//! program share, and the deadline, at or past which nothing is started. The first good answer wins, whichever attempt it is
//! of; a failure that would be the same again ends the call, as in gRPC (proposal A6). A failure that says after which time another
//! try may help ([`Status::retry_after`]) is not followed by one before that.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use hailwire_wire::{Code, Status};

use crate::{backoff::Backoff, retry_budget::RetryBudget};

/// Most further attempts of one call.
pub const MAX_FURTHER_ATTEMPTS: u32 = 10;

/// The first and the longest pause before a retry, each shortened by up to a half at random, so that calls which failed
/// together do not come back together.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

/// The longest that whoever refused a call may ask for before another try: what asks for more is told to the caller at once.
pub const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Which further attempts a call allows; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptPolicy {
    /// How many at most; no more than [`MAX_FURTHER_ATTEMPTS`].
    pub retries: u32,
    /// How long the newest attempt may take before another is made beside it. With this, one further attempt is allowed even
    /// where `retries` is 0.
    pub hedge_after: Option<Duration>,
}

impl AttemptPolicy {
    /// How many further attempts are allowed.
    #[must_use]
    pub fn most_further(&self) -> u32 {
        let hedges = u32::from(self.hedge_after.is_some());
        self.retries.max(hedges).min(MAX_FURTHER_ATTEMPTS)
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptAction {
    /// Make the call; attempts are counted from 0.
    Start(u32),
    /// The call has this attempt's result, and the others are cancelled. Nothing comes after it.
    Finish(u32),
}

/// The attempts of one call.
#[derive(Debug)]
pub struct CallAttempts {
    policy: AttemptPolicy,
    deadline: Option<Instant>,
    /// How many were started.
    started: u32,
    /// Those that have not ended.
    running: BTreeSet<u32>,
    backoff: Backoff,
    /// When the next one starts, if the budget has one.
    next: Option<Instant>,
    finished: bool,
    actions: VecDeque<AttemptAction>,
}

impl CallAttempts {
    /// One whose first attempt starts now. Nothing starts at or past the deadline; whoever carries the actions out ends the
    /// call then.
    #[must_use]
    pub fn new(
        now: Instant,
        policy: AttemptPolicy,
        deadline: Option<Instant>,
        budget: &mut RetryBudget,
    ) -> Self {
        budget.add_call();
        let mut attempts = Self {
            policy,
            deadline,
            started: 0,
            running: BTreeSet::new(),
            backoff: Backoff::new(PAUSES),
            next: None,
            finished: false,
            actions: VecDeque::new(),
        };
        attempts.start(now);
        attempts
    }

    /// An attempt has a good answer.
    pub fn handle_answer(&mut self, attempt: u32) {
        if self.running.remove(&attempt) {
            self.finish(attempt);
        }
    }

    /// An attempt failed. `draw` is any number, by which the pause is shortened. Where none runs, and the budget is spent or the pause
    /// would reach the deadline, this failure is the result at once.
    pub fn handle_failure(
        &mut self,
        now: Instant,
        attempt: u32,
        status: &Status,
        draw: u32,
        budget: &RetryBudget,
    ) {
        if !self.running.remove(&attempt) || self.finished {
            return;
        }
        let asked = status.retry_after().unwrap_or_default();
        if !is_worth_a_retry(status.code) || asked > LONGEST_RETRY_AFTER {
            return self.finish(attempt);
        }
        if self.running.is_empty() {
            // What was due beside it is not due before this one's pause is over.
            self.next = None;
        }
        let pause = shortened(self.backoff.fail(now), draw);
        if budget.has_one() {
            self.schedule(now + pause.max(asked));
        }
        if self.running.is_empty() && self.next.is_none() {
            self.finish(attempt);
        }
    }

    /// It is this late. Where nothing may start, as the budget is spent, and no attempt runs, the newest failure is the result.
    pub fn handle_timeout(&mut self, now: Instant, budget: &mut RetryBudget) {
        if self.finished || self.next.is_none_or(|at| at > now) {
            return;
        }
        self.next = None;
        let in_time = self.deadline.is_none_or(|deadline| now < deadline);
        if in_time && budget.take() {
            return self.start(now);
        }
        if self.running.is_empty() {
            self.finish(self.started - 1);
        }
    }

    /// What is to be done next; nothing where all was given.
    pub fn poll_action(&mut self) -> Option<AttemptAction> {
        self.actions.pop_front()
    }

    /// When [`CallAttempts::handle_timeout`] is to be called.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    fn start(&mut self, now: Instant) {
        let attempt = self.started;
        self.started += 1;
        self.running.insert(attempt);
        self.actions.push_back(AttemptAction::Start(attempt));
        if let Some(after) = self.policy.hedge_after {
            self.schedule(now + after);
        }
    }

    /// Has a further attempt start then, or earlier where one is due earlier, if there may be one.
    fn schedule(&mut self, at: Instant) {
        let allowed = self.started <= self.policy.most_further();
        let in_time = self.deadline.is_none_or(|deadline| at < deadline);
        if allowed && in_time {
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    fn finish(&mut self, attempt: u32) {
        if !self.finished {
            self.finished = true;
            self.next = None;
            self.actions.push_back(AttemptAction::Finish(attempt));
        }
    }
}

/// Whether another attempt may end otherwise, within the same deadline.
pub(crate) const fn is_worth_a_retry(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::ResourceExhausted | Code::Aborted
    )
}

/// The pause, or as little as half of it.
fn shortened(pause: Duration, draw: u32) -> Duration {
    pause - (pause / 2).mul_f64(f64::from(draw) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    const MS: Duration = Duration::from_millis(1);

    fn policy(retries: u32, hedge_after: Option<Duration>) -> AttemptPolicy {
        AttemptPolicy {
            retries,
            hedge_after,
        }
    }

    fn failed(code: Code) -> Status {
        Status::new(code, "")
    }

    fn actions(attempts: &mut CallAttempts) -> Vec<AttemptAction> {
        std::iter::from_fn(|| attempts.poll_action()).collect()
    }

    #[test]
    fn a_failure_that_may_pass_is_retried_after_a_pause_and_another_is_not() {
        let (now, mut budget) = (start(), RetryBudget::default());
        let mut attempts = CallAttempts::new(now, policy(2, None), None, &mut budget);
        assert_eq!(actions(&mut attempts), [AttemptAction::Start(0)]);
        assert_eq!(attempts.poll_timeout(), None);
        attempts.handle_failure(now, 0, &failed(Code::Unavailable), 0, &budget);
        assert_eq!(attempts.poll_timeout(), Some(now + 25 * MS));
        attempts.handle_timeout(now + 24 * MS, &mut budget);
        assert_eq!(actions(&mut attempts), []);
        let later = now + 25 * MS;
        attempts.handle_timeout(later, &mut budget);
        assert_eq!(actions(&mut attempts), [AttemptAction::Start(1)]);
        attempts.handle_failure(later, 1, &failed(Code::Unavailable), u32::MAX, &budget);
        assert_eq!(attempts.poll_timeout(), Some(later + 25 * MS), "half of 50");
        attempts.handle_timeout(later + 25 * MS, &mut budget);
        assert_eq!(actions(&mut attempts), [AttemptAction::Start(2)]);
        attempts.handle_failure(later + 25 * MS, 2, &failed(Code::Unavailable), 0, &budget);
        assert_eq!(actions(&mut attempts), [AttemptAction::Finish(2)]);
        let mut attempts = CallAttempts::new(now, policy(2, None), None, &mut budget);
        attempts.handle_failure(now, 0, &failed(Code::InvalidArgument), 0, &budget);
        assert_eq!(actions(&mut attempts)[1..], [AttemptAction::Finish(0)]);
    }

    #[test]
    fn a_hedge_is_made_beside_a_slow_attempt_and_the_first_answer_wins() {
        let (now, mut budget) = (start(), RetryBudget::default());
        for winner in [0, 1] {
            let hedging = policy(0, Some(40 * MS));
            let mut attempts = CallAttempts::new(now, hedging, None, &mut budget);
            attempts.handle_timeout(now + 40 * MS, &mut budget);
            assert_eq!(
                actions(&mut attempts),
                [AttemptAction::Start(0), AttemptAction::Start(1)]
            );
            assert_eq!(attempts.poll_timeout(), None, "one hedge and no more");
            attempts.handle_answer(winner);
            attempts.handle_answer(1 - winner);
            assert_eq!(actions(&mut attempts), [AttemptAction::Finish(winner)]);
        }
        // One that fails waits for the other.
        let mut attempts = CallAttempts::new(now, policy(0, Some(MS)), None, &mut budget);
        attempts.handle_timeout(now + MS, &mut budget);
        attempts.handle_failure(now + MS, 1, &failed(Code::Unavailable), 0, &budget);
        assert_eq!(actions(&mut attempts).len(), 2);
        attempts.handle_answer(0);
        assert_eq!(actions(&mut attempts), [AttemptAction::Finish(0)]);
    }

    #[test]
    fn who_says_when_to_come_back_is_not_asked_before_and_not_at_all_where_that_is_too_late() {
        let (now, mut budget) = (start(), RetryBudget::default());
        let busy = failed(Code::ResourceExhausted).with_retry_after(300 * MS);
        let retrying = policy(2, Some(200 * MS));
        let mut attempts = CallAttempts::new(now, retrying, None, &mut budget);
        attempts.handle_failure(now, 0, &busy, 0, &budget);
        assert_eq!(attempts.poll_timeout(), Some(now + 300 * MS), "nor a hedge");
        let late = Some(now + 300 * MS);
        let mut attempts = CallAttempts::new(now, retrying, late, &mut budget);
        attempts.handle_failure(now, 0, &busy, 0, &budget);
        assert_eq!(actions(&mut attempts)[1..], [AttemptAction::Finish(0)]);
        // Nor is it asked after an hour because it says so.
        let mut attempts = CallAttempts::new(now, retrying, None, &mut budget);
        let hour = busy.clone().with_retry_after(Duration::from_secs(3600));
        attempts.handle_failure(now, 0, &hour, 0, &budget);
        assert_eq!(actions(&mut attempts)[1..], [AttemptAction::Finish(0)]);
        // A spent budget is not waited for.
        let mut attempts = CallAttempts::new(now, retrying, None, &mut budget);
        while budget.take() {}
        attempts.handle_failure(now, 0, &busy, 0, &budget);
        assert_eq!(actions(&mut attempts)[1..], [AttemptAction::Finish(0)]);
    }

    #[test]
    fn nothing_starts_at_or_past_the_deadline_and_the_last_failure_is_told_at_once() {
        let (now, mut budget) = (start(), RetryBudget::default());
        let deadline = Some(now + 25 * MS);
        let mut attempts = CallAttempts::new(now, policy(3, None), deadline, &mut budget);
        attempts.handle_failure(now, 0, &failed(Code::Unavailable), 0, &budget);
        assert_eq!(actions(&mut attempts)[1..], [AttemptAction::Finish(0)]);
        // A timer that fires late.
        let mut attempts = CallAttempts::new(now, policy(3, Some(MS)), deadline, &mut budget);
        attempts.handle_timeout(now + 25 * MS, &mut budget);
        assert_eq!(actions(&mut attempts), [AttemptAction::Start(0)]);
    }

    /// A call of a run: when its attempts end, and how.
    struct RunningCall {
        attempts: CallAttempts,
        policy: AttemptPolicy,
        deadline: Option<Instant>,
        ends: Vec<(Instant, u32, Option<Code>)>,
        failed: Vec<(u32, Code)>,
        started: u32,
        /// No attempt follows the newest failure before this, unless another runs.
        not_before: Instant,
        result: Option<u32>,
    }

    #[test]
    fn budgets_and_deadlines_hold_and_each_call_has_one_result_whatever_fails() {
        for_each_seed(&[], 2_000, |seed| {
            let mut draw = draws(seed, 17);
            let mut now = start();
            let mut budget = RetryBudget::default();
            let calls = 1 + draw(120);
            let failing = draw(101);
            let mut running: Vec<RunningCall> = Vec::new();
            let mut further = 0;
            let mut made = 0;
            while made < calls || running.iter().any(|call| call.result.is_none()) {
                if made < calls && draw(3) > 0 {
                    made += 1;
                    let policy = AttemptPolicy {
                        retries: draw(5),
                        hedge_after: (draw(2) == 0).then(|| MS * draw(50)),
                    };
                    let deadline = (draw(2) == 0).then(|| now + MS * (1 + draw(200)));
                    running.push(RunningCall {
                        attempts: CallAttempts::new(now, policy, deadline, &mut budget),
                        policy,
                        deadline,
                        ends: Vec::new(),
                        failed: Vec::new(),
                        started: 0,
                        not_before: now,
                        result: None,
                    });
                } else {
                    now += MS * draw(20);
                }
                for call in running.iter_mut().filter(|call| call.result.is_none()) {
                    if call.deadline.is_some_and(|deadline| deadline <= now) {
                        // Whoever makes the call ends it.
                        call.result = Some(u32::MAX);
                        continue;
                    }
                    call.ends.sort_by_key(|(at, ..)| *at);
                    while let Some((at, attempt, code)) = call.ends.first().copied()
                        && at <= now
                    {
                        call.ends.remove(0);
                        match code {
                            None => call.attempts.handle_answer(attempt),
                            Some(code) => {
                                call.failed.push((attempt, code));
                                let by = draw(u32::MAX);
                                let after = MS * [0, draw(300)][draw(2) as usize];
                                let status = failed(code).with_retry_after(after);
                                call.not_before = now + after;
                                let attempts = &mut call.attempts;
                                attempts.handle_failure(now, attempt, &status, by, &budget);
                            }
                        }
                    }
                    call.attempts.handle_timeout(now, &mut budget);
                    while let Some(action) = call.attempts.poll_action() {
                        assert_eq!(call.result, None, "nothing comes after a result");
                        match action {
                            AttemptAction::Start(attempt) => {
                                assert_eq!(attempt, call.started);
                                assert!(call.deadline.is_none_or(|deadline| now < deadline));
                                assert!(!call.ends.is_empty() || call.not_before <= now);
                                call.started += 1;
                                further += u32::from(attempt > 0);
                                let code = (draw(100) < failing).then(|| match draw(4) {
                                    0 => Code::InvalidArgument,
                                    1 => Code::ResourceExhausted,
                                    _ => Code::Unavailable,
                                });
                                call.ends.push((now + MS * draw(100), attempt, code));
                            }
                            AttemptAction::Finish(attempt) => {
                                assert!(attempt < call.started);
                                call.result = Some(attempt);
                            }
                        }
                    }
                    assert!(call.started <= 1 + call.policy.most_further());
                    if call.result.is_none() {
                        let waits = call.attempts.poll_timeout().is_some();
                        assert!(waits || !call.ends.is_empty(), "it would hang");
                    }
                }
                assert!(further <= 10 + made / 5, "{further} for {made} calls");
            }
        });
    }
}
