//! A program that wants to lead, and for how long it may think that it does.
//!
//! It asks for a lease again and again until it has it, renews it after a third of its time, and leads no longer than it can be sure: the
//! time of a lease is counted from before the request for it was sent, by this machine's own clock, less an eighth ([`DRIFT_SHARE`]) for a
//! clock that runs slower than the hub's. So a candidate that hears nothing stops before the hub gives the lease to another. What it cannot
//! know is that its process stood still; what it guards asks for the fencing token for that reason.
//!
//! A lease that was lost stays lost: [`CandidateAction::StepDown`] is the last action, and who wants to lead again begins anew, with
//! another token.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// The part of a lease's time that is given up for clocks that do not run alike.
pub const DRIFT_SHARE: u32 = 8;

/// Shortest and longest pause before a candidate asks again for a lease that another holds.
pub const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateAction {
    /// Ask the hub, for this lease or for any, and say what it answered.
    Ask {
        /// The lease that is to be renewed.
        token: Option<u64>,
    },
    /// Begin what only one does.
    Lead {
        /// The fencing token.
        token: u64,
    },
    /// Stop it at once. Nothing follows.
    StepDown,
}

/// What a hub answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseNews {
    /// The lease is this candidate's.
    Held {
        /// Its fencing token.
        token: u64,
    },
    /// It is another's, or nobody's.
    NotHeld {
        /// For how long; zero where it is nobody's.
        left: Duration,
    },
    /// There was no answer, or none that decides.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateState {
    Waiting,
    Leading { token: u64, until: Instant },
    Over,
}

/// One candidate for one lease.
#[derive(Debug)]
pub struct LeaseCandidate {
    ttl: Duration,
    state: CandidateState,
    /// When the request that is under way was made.
    asked: Option<Instant>,
    /// When the next one is.
    due: Instant,
    actions: VecDeque<CandidateAction>,
}

impl LeaseCandidate {
    /// One that asks at once.
    #[must_use]
    pub fn new(ttl: Duration, now: Instant) -> Self {
        let mut candidate = Self {
            ttl,
            state: CandidateState::Waiting,
            asked: None,
            due: now,
            actions: VecDeque::new(),
        };
        candidate.handle_timeout(now);
        candidate
    }

    /// How long a request may take; one that takes longer is given up, and its answer is [`LeaseNews::Unknown`].
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.ttl / 4
    }

    /// The next action; `None` until something happens.
    pub fn poll_action(&mut self) -> Option<CandidateAction> {
        self.actions.pop_front()
    }

    /// When [`LeaseCandidate::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ask = self.asked.is_none().then_some(self.due);
        match self.state {
            CandidateState::Waiting => ask,
            CandidateState::Leading { until, .. } => Some(ask.map_or(until, |ask| ask.min(until))),
            CandidateState::Over => None,
        }
    }

    /// Time has passed. To be called with the later of what two clocks say where they differ, as after a suspension.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let CandidateState::Leading { until, .. } = self.state
            && now >= until
        {
            return self.step_down();
        }
        if self.state != CandidateState::Over && self.asked.is_none() && now >= self.due {
            self.asked = Some(now);
            let token = self.token();
            self.actions.push_back(CandidateAction::Ask { token });
        }
    }

    /// What came of the request under way.
    pub fn handle_news(&mut self, news: LeaseNews, now: Instant) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        match (self.state, news) {
            (CandidateState::Over, _) => {}
            (CandidateState::Waiting, LeaseNews::Held { token }) => self.begin(token, asked, now),
            (CandidateState::Waiting, LeaseNews::NotHeld { left }) => {
                self.due = now + left.clamp(ASK_AGAIN.0, ASK_AGAIN.1);
            }
            (CandidateState::Waiting, LeaseNews::Unknown) => {
                self.due = now + (self.ttl / 8).clamp(ASK_AGAIN.0, ASK_AGAIN.1);
            }
            (CandidateState::Leading { token, until }, LeaseNews::Held { token: held }) => {
                if held == token {
                    let until = until.max(self.sure_until(asked));
                    self.state = CandidateState::Leading { token, until };
                    self.due = asked + self.ttl / 3;
                } else {
                    self.step_down();
                }
            }
            (CandidateState::Leading { .. }, LeaseNews::NotHeld { .. }) => self.step_down(),
            (CandidateState::Leading { .. }, LeaseNews::Unknown) => self.due = now + self.ttl / 16,
        }
        self.handle_timeout(now);
    }

    fn begin(&mut self, token: u64, asked: Instant, now: Instant) {
        let until = self.sure_until(asked);
        if now >= until {
            // The answer came too late to be worth anything; as its holder this candidate may ask again.
            self.due = now;
            return;
        }
        self.state = CandidateState::Leading { token, until };
        self.due = asked + self.ttl / 3;
        self.actions.push_back(CandidateAction::Lead { token });
    }

    fn sure_until(&self, asked: Instant) -> Instant {
        asked + (self.ttl - self.ttl / DRIFT_SHARE)
    }

    fn token(&self) -> Option<u64> {
        match self.state {
            CandidateState::Leading { token, .. } => Some(token),
            _ => None,
        }
    }

    fn step_down(&mut self) {
        self.state = CandidateState::Over;
        // Whatever waited is overtaken by this.
        self.actions.clear();
        self.actions.push_back(CandidateAction::StepDown);
    }
}

#[cfg(test)]
mod tests;
