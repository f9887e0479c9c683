//! What is to be done for a request, and what is reported of it.

use std::time::Duration;

use crate::{
    Event, EventKind,
    control::CancelReason,
    inspect::{AgentFault, CallError},
};

/// What is to be done.
#[derive(Debug)]
pub(crate) enum RequestAction {
    /// Ask an agent.
    Ask(AgentAsk),
    /// The time of a queued call begins now.
    StartDeadline(CallId),
    /// Nobody waits any more for what an agent was asked of a body: its calls end.
    Abandon {
        /// The agent.
        agent: usize,
        /// The body.
        part: RequestPart,
    },
    /// Tell an agent that its answers are not wanted.
    Cancel {
        /// The agent.
        agent: usize,
        /// Where it was asked.
        endpoint: usize,
        /// Why.
        reason: CancelReason,
    },
    /// Nothing more comes to an endpoint about the request.
    Forget {
        /// The agent.
        agent: usize,
        /// Where it was asked.
        endpoint: usize,
    },
    /// Count it, and write it to the log.
    Report {
        /// The agent.
        agent: usize,
        /// What it was asked about.
        kind: EventKind,
        /// What became of that.
        report: AgentReport,
    },
}

/// An event to be sent to an agent, whose answer [`handle_answer`](super::RequestCore::handle_answer) takes.
#[derive(Debug)]
pub(crate) struct AgentAsk {
    /// What is answered.
    pub(crate) call: CallId,
    /// Which of the agent's endpoints; one that there is not is down.
    pub(crate) endpoint: usize,
    /// The event.
    pub(crate) event: Event,
    /// How long the answer may take, from now or, where it is queued, from [`RequestAction::StartDeadline`].
    pub(crate) deadline: Duration,
    /// It is sent behind others that are answered first.
    pub(crate) queued: bool,
    /// Another endpoint was asked before.
    pub(crate) again: bool,
}

/// A call: one event at one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CallId {
    /// The agent.
    pub(crate) agent: usize,
    /// What part of the request it is about.
    pub(crate) part: RequestPart,
    /// Which of the calls about that part: they are counted up, without a gap for a body.
    pub(crate) sequence: u32,
}

/// What of a request is decided for itself, and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum RequestPart {
    /// An event that stands for itself.
    Whole,
    /// The request's body.
    RequestBody,
    /// The response's body.
    ResponseBody,
}

impl RequestPart {
    /// What an event of a kind is part of.
    pub(crate) const fn of(kind: EventKind) -> Self {
        match kind {
            EventKind::RequestBody => Self::RequestBody,
            EventKind::ResponseBody => Self::ResponseBody,
            _ => Self::Whole,
        }
    }
}

/// What became of an event at an agent.
#[derive(Debug, PartialEq)]
pub(crate) enum AgentReport {
    /// It stopped the request.
    Stopped,
    /// It observes, and would have stopped the request.
    WouldStop,
    /// It did not answer, and the request is blocked.
    Blocked(AgentFault, FaultCause),
    /// It did not answer, and what it was asked about passes.
    Bypassed(AgentFault, FaultCause),
    /// It observes and did not answer, and the request would have been blocked.
    WouldBlock(AgentFault, FaultCause),
    /// It was not told that the request has ended.
    Untold(CallError),
}

/// Why there is no answer, for the log.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum FaultCause {
    /// There is none.
    #[error(transparent)]
    Unanswered(CallError),
    /// It cannot be meant.
    #[error("{0}")]
    Invalid(&'static str),
    /// The agent was not asked.
    #[error("the body is too large")]
    TooLarge,
}
