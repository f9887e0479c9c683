//! The life of a durable message: what each party may say of it, and when it is tried again.
//!
//! A message is kept by its sender's node until the receiver's node says that it has it on disk, and by the receiver's node until
//! its agent has answered, or never will. Both write a [`MessageState`] down before they act on it. What a party does
//! with a message that it knows already, that its sender has withdrawn, and after a restart, stands here, and so the model in this module's tests
//! walks through every order of events that two nodes can meet.

use std::time::Duration;

use hailwire_wire::{Code, limits::MAX_MESSAGE_ATTEMPTS, messages::MessageState};

/// How often a message is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryPolicy {
    /// Attempts before it is given up. Default 5.
    pub max_attempts: u32,
    /// Between the first attempt and the second; it doubles from then on. Default 1 s.
    pub first_pause: Duration,
    /// Longest pause between two attempts. Default 60 s.
    pub longest_pause: Duration,
}

impl Default for DeliveryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
        }
    }
}

impl DeliveryPolicy {
    /// The same for a message that asks for `most` attempts; 0 where it asks for none.
    #[must_use]
    pub const fn with_attempts(self, most: u32) -> Self {
        match most {
            0 => self,
            most if most > MAX_MESSAGE_ATTEMPTS => Self {
                max_attempts: MAX_MESSAGE_ATTEMPTS,
                ..self
            },
            max_attempts => Self {
                max_attempts,
                ..self
            },
        }
    }

    /// How long to wait after attempt number `attempt`, from 1.
    #[must_use]
    pub fn pause(&self, attempt: u32) -> Duration {
        let doubled = attempt.saturating_sub(1).min(20);
        let pause = self.first_pause.saturating_mul(1 << doubled);
        pause.min(self.longest_pause)
    }
}

/// How one attempt to hand a message to its agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// No agent took it: it counts as no attempt.
    NotBegun,
    /// The agent has done it, and said something (`answered`) or nothing.
    Done {
        /// Whether there is an answer.
        answered: bool,
    },
    /// The agent said that it failed.
    Refused(Code),
    /// Nobody knows: the agent is gone, did not end in time, or this node was restarted meanwhile.
    Lost,
}

impl AttemptOutcome {
    /// The outcome of an attempt that a status ended after the agent was given the message.
    #[must_use]
    pub const fn of_code(code: Code, answered: bool) -> Self {
        match code {
            Code::Ok => Self::Done { answered },
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown => {
                Self::Lost
            }
            refused => Self::Refused(refused),
        }
    }
}

/// What becomes of a message after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterAttempt {
    /// This is its end.
    Final(MessageState),
    /// It is tried again after this time.
    Again(Duration),
}

/// Whether trying again may help an agent that refused with this code.
const fn is_worth_repeating(code: Code) -> bool {
    matches!(
        code,
        Code::ResourceExhausted | Code::Aborted | Code::Internal | Code::NotFound
    )
}

/// What becomes of a message after attempt number `attempt`, from 1. One that its sender has `withdrawn` meanwhile is not tried again, and
/// has the end that the agent gave it, where it gave one.
#[must_use]
pub fn after_attempt(
    policy: &DeliveryPolicy,
    attempt: u32,
    outcome: AttemptOutcome,
    withdrawn: bool,
) -> AfterAttempt {
    let again = || AfterAttempt::Again(policy.pause(attempt));
    let last = attempt >= policy.max_attempts;
    match outcome {
        AttemptOutcome::NotBegun | AttemptOutcome::Lost if withdrawn => {
            AfterAttempt::Final(MessageState::Cancelled)
        }
        AttemptOutcome::Refused(code) if withdrawn && is_worth_repeating(code) => {
            AfterAttempt::Final(MessageState::Cancelled)
        }
        AttemptOutcome::NotBegun => AfterAttempt::Again(policy.first_pause),
        AttemptOutcome::Done { answered: true } => AfterAttempt::Final(MessageState::Answered),
        AttemptOutcome::Done { answered: false } => AfterAttempt::Final(MessageState::Acknowledged),
        AttemptOutcome::Refused(code) if last || !is_worth_repeating(code) => {
            AfterAttempt::Final(MessageState::Dead)
        }
        AttemptOutcome::Lost if last => AfterAttempt::Final(MessageState::Unknown),
        AttemptOutcome::Refused(_) | AttemptOutcome::Lost => again(),
    }
}

/// What a sender's node learns of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderNews {
    /// The receiver's node has it on disk.
    Kept,
    /// The receiver's node will not take it.
    Refused,
    /// Its time is up, and it was `offered` to the receiver's node, or never left.
    Expired {
        /// Whether it may have arrived.
        offered: bool,
    },
    /// The receiver's node says how it ended.
    Receipt(MessageState),
    /// Its sender wants it no more, and it was `offered` to the receiver's node, or never left.
    Withdrawn {
        /// Whether it may have arrived.
        offered: bool,
    },
}

/// The state of a message at its sender's node after some news; `None` where the news changes nothing.
///
/// What the receiver's node says counts for more than what the sender supposed: a message whose fate was unknown has one
/// as soon as its receipt comes.
#[must_use]
pub fn sender_state(now: MessageState, news: SenderNews) -> Option<MessageState> {
    use MessageState as S;
    let next = match (now, news) {
        (S::Stored | S::Delivered | S::Unknown, SenderNews::Receipt(end)) if end.is_final() => end,
        (S::Stored, SenderNews::Kept) => S::Delivered,
        (S::Stored, SenderNews::Refused) => S::Dead,
        (S::Stored, SenderNews::Expired { offered: false }) => S::Expired,
        (S::Stored, SenderNews::Expired { offered: true }) => S::Unknown,
        (S::Stored, SenderNews::Withdrawn { offered: false }) => S::Cancelled,
        _ => return None,
    };
    (next != now).then_some(next)
}

/// What a receiver's node does about a message that its sender has withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// It never came: that it is [`MessageState::Cancelled`] is written down, so that it is not taken when it comes yet.
    Remember,
    /// It waits, and ends as [`MessageState::Cancelled`].
    End,
    /// It is with its agent: that it is withdrawn is written down, and then the attempt is cut short.
    Interrupt,
    /// It has its end, of which the sender hears by its receipt.
    TooLate,
}

/// What a receiver's node does about a withdrawal, by what it has on disk of the message.
#[must_use]
pub const fn withdrawal(known: Option<MessageState>) -> Withdrawal {
    match known {
        None => Withdrawal::Remember,
        Some(MessageState::Stored | MessageState::Delivered) => Withdrawal::End,
        Some(MessageState::Taken) => Withdrawal::Interrupt,
        Some(_) => Withdrawal::TooLate,
    }
}

/// The state of a message at its receiver's node when that starts: `state` is what is on the disk, `attempt` how many were
/// begun, `withdrawn` whether its sender wants it no more. Whoever was handed the message before may have done it or not.
#[must_use]
pub fn receiver_state_at_start(
    policy: &DeliveryPolicy,
    state: MessageState,
    attempt: u32,
    withdrawn: bool,
) -> MessageState {
    match state {
        MessageState::Taken => {
            match after_attempt(policy, attempt, AttemptOutcome::Lost, withdrawn) {
                AfterAttempt::Final(end) => end,
                AfterAttempt::Again(_) => MessageState::Delivered,
            }
        }
        state => state,
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
