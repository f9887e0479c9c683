//! What a proxy does with its agents: which it consults, in which order, and what it does when one does not answer.
//!
//! An [`Inspector`] holds the agents in the order of the configuration. For each request a proxy takes an
//! [`Exchange`] from it and shows it what passes: the head of the request, the chunks of its body, the head and the
//! body of the response. Every call gives a [`Verdict`]: what becomes of the request, and which headers change.
//!
//! - Agents are asked one after the other. The first that blocks, redirects or challenges decides; those behind it
//!   are not asked any more. Changes to headers are put together; a body goes from one agent to the next,
//!   each sees it as the one before left it.
//! - An agent is asked about the events that the configuration lists for it, or, where it lists none, that its
//!   capabilities name.
//! - What is not answered is decided by the agent's [`AgentRule`]: per phase, and for a timeout, an error, an overload
//!   and a body that is too large each, `allow` or `block`. The default blocks. Whatever passes without having
//!   been inspected is counted and logged with the id of its request: a *bypass*.
//! - An invalid answer (an impossible status, a header with a line feed) is an error of its agent.
//! - An agent in mode `observe` changes nothing; what it would have blocked is counted.
//! - A body is shown chunk by chunk as it comes (`stream`) or whole (`buffer`). An agent that says `needs_more`
//!   has not decided: the chunks that it saw are held back until it has, up to the rule's `buffer_size`.
//!   After a bypass in mid-body an agent is not asked about the rest of that body: it would see one with a hole.
//! - Chunks of a body may be under way together ([`Exchange::show_request_body`]): each is sent as soon as it is shown, and
//!   verdicts come in the order of the chunks.
//! - A text for or from a language model goes on as agents leave it: what one found and did not take out does not pass.
//! - An exchange that is dropped before [`Exchange::complete`] cancels what its agents know of the request.
//!
//! What becomes of a request is decided in `core`, by the rules of `policy`; both do no I/O and read no clock. `request_driver` carries
//! out what was decided, and `counters` counts it.

pub mod config;
mod core;
mod counters;
mod endpoints;
mod exchange;
mod policy;
mod request_driver;
mod reverse_registry;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use thiserror::Error;

use crate::{
    Decision, Event, Response, Text,
    capabilities::Capabilities,
    control::CancelReason,
    exposition::MetricFamilies,
    guardrail::Findings,
    pool::StartSignal,
    response::{Audit, HeaderOp, WebSocketDecision},
};

pub use config::{Config, ConfigError};
pub use counters::AgentCounters;
pub use endpoints::{ConnectorFactory, UnreachableEndpoint};
pub use exchange::Exchange;
pub use policy::{AgentFault, AgentRule, BodyMode, BodyRule, FallbackAction, PhaseRule};
pub use reverse_registry::ReverseRegistry;

/// Sends events to an agent and returns its answers: the connections to one of its endpoints.
pub trait AgentClient: Send + Sync {
    /// Sends an event, and waits at most `deadline` for the answer.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the agent is told that nobody waits.
    fn request(
        &self,
        event: Event,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<Response, CallError>>;

    /// Sends a request behind others that are answered first. The deadline counts from the start signal, which the caller gives
    /// before it polls the future again.
    ///
    /// # Cancel safety
    ///
    /// As [`AgentClient::request`].
    fn request_queued(
        &self,
        event: Event,
        deadline: Duration,
        turn: StartSignal,
    ) -> BoxFuture<'_, Result<Response, CallError>> {
        let asked = self.request(event, Duration::MAX);
        Box::pin(async move {
            let answer = turn.within(deadline, asked).await;
            answer.unwrap_or(Err(CallError::Timeout))
        })
    }

    /// How long a request with this deadline waits at most for its answer: longer than that, where an agent that says that it is
    /// degraded is given more time. A request that waits longer is given up on a second later.
    fn longest_wait(&self, deadline: Duration) -> Duration {
        deadline
    }

    /// The agent's capabilities; `None` before the first connection.
    fn capabilities(&self) -> Option<Arc<Capabilities>>;

    /// Tells the agent that a request is over; it may forget it.
    fn cancel(&self, id: &str, reason: CancelReason);

    /// A request has ended: what is kept of it on this side may be forgotten.
    fn done(&self, id: &str) {
        let _ = id;
    }
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// Not within the deadline.
    #[error("no answer within the deadline")]
    Timeout,
    /// The endpoint is at its concurrency limit.
    #[error("too many requests in flight")]
    Overload,
    /// There is no connection, and the event was not sent.
    #[error("not connected")]
    Down,
    /// The event is too large to send.
    #[error("the event is too large to send")]
    TooLarge,
    /// Anything else: the connection ended meanwhile, or the answer was none.
    #[error("{0}")]
    Failed(String),
}

/// One agent as an inspector asks it.
#[derive(Clone)]
pub struct Checkpoint {
    /// Its name in the configuration.
    pub name: Text,
    /// What it is asked, and what happens when it does not answer.
    pub rule: AgentRule,
    /// Its endpoints, the nearest first: the next is asked where one is full or down.
    pub endpoints: Vec<Arc<dyn AgentClient>>,
}

/// The agents of a proxy.
pub struct Inspector {
    current: RwLock<Arc<[CountedCheckpoint]>>,
    counters: RwLock<HashMap<Text, Arc<AgentCounters>>>,
    pools: Mutex<Vec<Arc<endpoints::EndpointPool>>>,
}

/// A checkpoint with its counters.
struct CountedCheckpoint {
    point: Checkpoint,
    counters: Arc<AgentCounters>,
}

/// What becomes of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Whether it passes.
    pub decision: Decision,
    /// Changes to the request's headers, in this order.
    pub request_headers: Vec<HeaderOp>,
    /// Changes to the response's headers, in this order.
    pub response_headers: Vec<HeaderOp>,
    /// For the host's routing; of two agents that set a key the later counts.
    pub routing_metadata: std::collections::BTreeMap<String, String>,
    /// For records: which agent said what. Empty ones are left out.
    pub audits: Vec<(Text, Audit)>,
}

/// What becomes of a chunk of a body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BodyVerdict {
    /// What becomes of the request.
    pub verdict: Verdict,
    /// What is forwarded instead of the chunk: also earlier ones that were held back; empty while it is held back itself,
    /// or where the request does not pass. With the last chunk nothing stays held back.
    pub data: Bytes,
}

/// What becomes of a WebSocket frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebSocketVerdict {
    /// Whether it passes.
    pub decision: WebSocketDecision,
    /// For records.
    pub audits: Vec<(Text, Audit)>,
}

/// What becomes of a text for or from a language model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextVerdict {
    /// What becomes of the request.
    pub verdict: Verdict,
    /// What is forwarded instead of the text; `None` where it goes on as it is, or not at all.
    pub content: Option<String>,
    /// For records: which agent found what. Those that did not say are left out.
    pub findings: Vec<(Text, Findings)>,
}

impl Verdict {
    /// Whether the request passes.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.decision == Decision::Allow
    }

    /// What was said after it, about the same request.
    fn append(&mut self, mut later: Self) {
        if self.passes() {
            self.decision = later.decision;
        }
        self.request_headers.append(&mut later.request_headers);
        self.response_headers.append(&mut later.response_headers);
        self.routing_metadata.append(&mut later.routing_metadata);
        self.audits.append(&mut later.audits);
    }
}

impl Inspector {
    /// Agents, to be asked in this order.
    #[must_use]
    pub fn new(points: Vec<Checkpoint>) -> Self {
        let inspector = Self {
            current: RwLock::new(Arc::new([])),
            counters: RwLock::default(),
            pools: Mutex::default(),
        };
        inspector.replace(points);
        inspector
    }

    /// Other agents from now on. Exchanges that have begun keep those that they began with.
    ///
    /// Counters go on by the agents' names.
    pub fn replace(&self, points: Vec<Checkpoint>) {
        let mut counters = self
            .counters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let armed = points.into_iter().map(|point| CountedCheckpoint {
            counters: Arc::clone(counters.entry(point.name.clone()).or_default()),
            point,
        });
        let armed = armed.collect();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = armed;
    }

    /// Begins with a request.
    #[must_use]
    pub fn exchange(&self) -> Exchange {
        Exchange::new(Arc::clone(
            &self.current.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// What was counted for an agent.
    #[must_use]
    pub fn counters(&self, agent: &str) -> Option<Arc<AgentCounters>> {
        let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        counters.get(agent).cloned()
    }

    /// All that was counted, by the inspector and by its pools, and what agents reported, in the text format of OpenMetrics;
    /// its media type is [`CONTENT_TYPE`](crate::exposition::CONTENT_TYPE).
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        let mut families = MetricFamilies::default();
        {
            let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
            let mut agents: Vec<_> = counters.iter().collect();
            agents.sort_by(|a, b| a.0.cmp(b.0));
            for (agent, counters) in agents {
                counters.expose(agent, &mut families);
            }
        }
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        for pool in pools.iter() {
            pool.expose(&mut families);
        }
        drop(pools);
        families.encode()
    }
}

#[cfg(test)]
mod tests;
