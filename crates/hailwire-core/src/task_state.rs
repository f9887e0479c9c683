//! What a durable call is called as a task: the states of A2A 1.0, to which those of MCP map one to one.
//!
//! A task is a durable call as its sender's node knows it. Nothing of this is written down: it follows from the message's state, and from whether an
//! attempt is known to have begun.

use hailwire_wire::messages::MessageState;

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Accepted, and no agent is known to have begun.
    Submitted,
    /// An agent has begun, or did before its node was restarted.
    Working,
    /// Done; the answer is kept.
    Completed,
    /// It will not be done, or nobody knows whether it was.
    Failed,
    /// Its sender withdrew it before it was done.
    Cancelled,
    /// No agent was handed it: the receiver's node, or its trust, would not have it.
    Rejected,
}

impl TaskState {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::Submitted,
        Self::Working,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Rejected,
    ];

    /// The state of a durable call in this state, whose agent was handed it so often.
    #[must_use]
    pub const fn of(state: MessageState, attempts: u32) -> Self {
        match (state, attempts) {
            (MessageState::Stored | MessageState::Delivered | MessageState::Taken, 0) => {
                Self::Submitted
            }
            (MessageState::Stored | MessageState::Delivered | MessageState::Taken, _) => {
                Self::Working
            }
            (MessageState::Acknowledged | MessageState::Answered, _) => Self::Completed,
            (MessageState::Dead, 0) => Self::Rejected,
            (
                MessageState::Dead
                | MessageState::Expired
                | MessageState::Unknown
                | MessageState::Dropped,
                _,
            ) => Self::Failed,
            (MessageState::Cancelled, _) => Self::Cancelled,
        }
    }

    /// The word for people and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
        }
    }

    /// The state of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_its_end_when_its_message_has_and_each_name_is_that_of_one_state() {
        for state in MessageState::ALL {
            for attempts in [0, 1, 5] {
                let open = matches!(
                    TaskState::of(state, attempts),
                    TaskState::Submitted | TaskState::Working
                );
                assert_eq!(open, !state.is_final(), "{state:?} {attempts}");
            }
        }
        for state in TaskState::ALL {
            assert_eq!(TaskState::from_name(state.name()), Some(state));
        }
    }
}
