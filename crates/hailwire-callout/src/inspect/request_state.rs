//! The state of a request with each of its agents, and what their answers change.
//!
//! Everything that an answer, or its absence, means for a request is decided here, once, for heads and bodies alike: which
//! agent is asked, where, what its answer changes, and what its rule says where there is none.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{
    AgentClient, AgentFault, CallError, Checkpoint, CountedCheckpoint, FallbackAction, Verdict,
    policy,
};
use crate::{
    Decision, Event, EventKind, Response, Text, capabilities::Capabilities, control::CancelReason,
    pool::StartSignal,
};

/// The agents of one exchange, and how far it has come with them.
pub(super) struct RequestState {
    points: Arc<[CountedCheckpoint]>,
    states: Box<[AgentProgress]>,
    id: Text,
    request: Text,
    over: Option<Decision>,
}

/// What an exchange knows of one agent.
#[derive(Default)]
struct AgentProgress {
    /// Where it was asked first.
    endpoint: Option<usize>,
    /// It is not asked any more: it observes, and would have blocked.
    silent: bool,
    /// It decided.
    decided: bool,
}

impl RequestState {
    pub(super) fn new(points: Arc<[CountedCheckpoint]>) -> Self {
        Self {
            states: points.iter().map(|_| AgentProgress::default()).collect(),
            points,
            id: Text::new(),
            request: Text::new(),
            over: None,
        }
    }

    /// Takes the ids of its request from the first event that has them.
    pub(super) fn begin(&mut self, id: &Text) {
        if self.id.is_empty() {
            self.id = id.clone();
        }
        if self.request.is_empty() {
            self.request = id.clone();
        }
    }

    /// What the proxy calls the request, in logs.
    pub(super) fn names(&mut self, request: &str) {
        self.request = Text::from(request);
    }

    pub(super) const fn id(&self) -> &Text {
        &self.id
    }

    pub(super) const fn request(&self) -> &Text {
        &self.request
    }

    /// How many agents there are.
    pub(super) fn count(&self) -> usize {
        self.points.len()
    }

    pub(super) fn point(&self, n: usize) -> &Checkpoint {
        &self.points[n].point
    }

    /// What was decided, where it does not pass.
    pub(super) const fn over(&self) -> Option<&Decision> {
        self.over.as_ref()
    }

    pub(super) fn stop(&mut self, decision: Decision) {
        self.over = Some(decision);
    }

    /// Where an agent was asked first.
    pub(super) fn endpoint(&self, n: usize) -> Option<usize> {
        self.states[n].endpoint
    }

    pub(super) fn has_decided(&self, n: usize) -> bool {
        self.states[n].decided
    }

    /// Whether an agent is asked about events of a kind.
    pub(super) fn asks(&self, n: usize, kind: EventKind) -> bool {
        let wants = || {
            let known = self.capabilities(n);
            self.points[n].point.rule.wants(kind, known.as_deref())
        };
        !self.states[n].silent && wants()
    }

    /// The agent's capabilities at the endpoint that this exchange uses.
    pub(super) fn capabilities(&self, n: usize) -> Option<Arc<Capabilities>> {
        let endpoints = &self.points[n].point.endpoints;
        match self.states[n].endpoint {
            Some(endpoint) => endpoints.get(endpoint)?.capabilities(),
            None => endpoints
                .iter()
                .find_map(|endpoint| endpoint.capabilities()),
        }
    }

    /// Where an agent was asked, if it was.
    pub(super) fn asked(&self, n: usize) -> Option<&Arc<dyn AgentClient>> {
        self.points[n].point.endpoints.get(self.states[n].endpoint?)
    }

    /// Asks one agent one thing. `None` where it does not answer and that is allowed.
    pub(super) async fn one(
        &mut self,
        n: usize,
        event: Event,
        verdict: &mut Verdict,
    ) -> Result<Option<Response>, Decision> {
        let kind = event.kind();
        let timeout = self.point(n).rule.phase(kind).timeout;
        let asking = self.asking(n, event, EndpointChoice::Any, timeout);
        let (endpoint, answer) = asking.await;
        self.found(n, endpoint);
        let Some(mut response) = self.checked(n, kind, answer)? else {
            return Ok(None);
        };
        let websocket = response.websocket.take();
        self.take(n, kind, response, false, verdict)?;
        Ok(Some(Response {
            websocket,
            ..Response::default()
        }))
    }

    /// A request to one agent, at the endpoint used before. It is sent when it is polled first.
    pub(super) fn asking(
        &self,
        n: usize,
        event: Event,
        free: EndpointChoice,
        deadline: Duration,
    ) -> CallFuture {
        self.points[n].counters.count_asked(event.kind());
        let (points, endpoint) = (Arc::clone(&self.points), self.states[n].endpoint);
        Box::pin(
            async move { request_from(&points[n].point, endpoint, free, event, deadline).await },
        )
    }

    /// Where an agent was asked: what follows goes there.
    pub(super) fn found(&mut self, n: usize, endpoint: usize) {
        self.states[n].endpoint = Some(endpoint);
    }

    /// The answer if it is valid; `None` where there is none and that is allowed.
    pub(super) fn checked(
        &mut self,
        n: usize,
        kind: EventKind,
        answer: Result<Response, CallError>,
    ) -> Result<Option<Response>, Decision> {
        let (fault, why) = match answer {
            Ok(response) => match policy::check(&response) {
                Ok(()) => return Ok(Some(response)),
                Err(lie) => (AgentFault::Error, lie.to_owned()),
            },
            Err(unanswered) => (fault_of(&unanswered), unanswered.to_string()),
        };
        self.fault(n, kind, fault, &why).map(|()| None)
    }

    /// Adds an answer to the verdict. Gives what is forwarded instead of a chunk, where that is changed.
    pub(super) fn take(
        &mut self,
        n: usize,
        kind: EventKind,
        mut response: Response,
        undecided: bool,
        verdict: &mut Verdict,
    ) -> Result<Option<Bytes>, Decision> {
        let CountedCheckpoint { point, counters } = &self.points[n];
        if response.audit != crate::response::Audit::default() {
            verdict.audits.push((point.name.clone(), response.audit));
        }
        let stops = response.decision != Decision::Allow && !undecided;
        if point.rule.observe {
            if stops {
                counters.count_observed(kind);
                self.states[n].silent = true;
                debug!(request = %self.request, agent = %point.name, phase = kind.name(), "would have been stopped");
            }
            return Ok(None);
        }
        verdict
            .request_headers
            .append(&mut response.request_headers);
        verdict
            .response_headers
            .append(&mut response.response_headers);
        verdict
            .routing_metadata
            .append(&mut response.routing_metadata);
        if stops {
            counters.count_stopped(kind);
            self.states[n].decided = true;
            debug!(request = %self.request, agent = %point.name, phase = kind.name(), "stopped");
            return Err(response.decision);
        }
        let mutation = match kind {
            EventKind::RequestBody => response.request_body,
            EventKind::ResponseBody => response.response_body,
            _ => None,
        };
        Ok(mutation.and_then(|mutation| mutation.data))
    }

    /// What happens where there is no answer.
    pub(super) fn fault(
        &self,
        n: usize,
        kind: EventKind,
        fault: AgentFault,
        why: &str,
    ) -> Result<(), Decision> {
        let CountedCheckpoint { point, counters } = &self.points[n];
        let (request, agent, phase) = (&self.request, &point.name, kind.name());
        match point.rule.on(kind, fault) {
            FallbackAction::Block(_) if point.rule.observe => {
                counters.count_observed(kind);
                debug!(%request, %agent, phase, fault = fault.name(), why, "would have been blocked");
                Ok(())
            }
            FallbackAction::Allow => {
                if !point.rule.observe {
                    counters.count_bypassed(kind, fault);
                    warn!(%request, %agent, phase, fault = fault.name(), why, "passes uninspected");
                }
                Ok(())
            }
            FallbackAction::Block(status) => {
                counters.count_blocked(kind, fault);
                debug!(%request, %agent, phase, fault = fault.name(), why, "blocked");
                Err(Decision::Block {
                    status,
                    body: None,
                    headers: BTreeMap::new(),
                })
            }
        }
    }

    /// Whether an agent observes; what it would have done is counted then.
    pub(super) fn shadow(&self, n: usize, kind: EventKind) -> bool {
        let CountedCheckpoint { point, counters } = &self.points[n];
        match point.rule.observe {
            true => counters.count_observed(kind),
            false => counters.count_stopped(kind),
        }
        point.rule.observe
    }

    /// Ends what agents know of the request; `complete` says that they were told that it has ended.
    pub(super) fn end(&self, complete: bool) {
        let reason = match self.over {
            Some(_) => CancelReason::BlockedByAgent,
            None => CancelReason::ClientDisconnect,
        };
        for n in 0..self.count() {
            let Some(endpoint) = self.asked(n) else {
                continue;
            };
            if !complete && !self.has_decided(n) {
                endpoint.cancel(&self.id, reason);
            }
            endpoint.done(&self.id);
        }
    }
}

/// A request in flight: the endpoint tried last, and its answer.
pub(super) type CallFuture = BoxFuture<'static, (usize, Result<Response, CallError>)>;

/// Which endpoints an event may be sent to: one that stands for itself may go to any, a chunk of a body goes where the
/// ones before it went.
pub(super) enum EndpointChoice {
    Any,
    Same,
    /// The same endpoint, behind events that are not answered: its timeout counts from the start signal.
    Pipelined(StartSignal),
}

/// Tries one endpoint after the other, within the deadline. Returns the last one tried.
///
/// The next endpoint is tried where one is full, down or fails, and only where the event may go to any.
async fn request_from(
    point: &Checkpoint,
    endpoint: Option<usize>,
    free: EndpointChoice,
    event: Event,
    deadline: Duration,
) -> (usize, Result<Response, CallError>) {
    let first = endpoint.unwrap_or(0);
    if let EndpointChoice::Pipelined(turn) = free {
        let answer = match point.endpoints.get(first) {
            Some(asked) => asked.request_queued(event, deadline, turn).await,
            None => Err(CallError::Down),
        };
        return (first, answer);
    }
    let free = matches!(free, EndpointChoice::Any);
    let others = (0..point.endpoints.len()).filter(|n| *n != first && free);
    let begin = Instant::now();
    let mut last = (first, Err(CallError::Down));
    for n in std::iter::once(first).chain(others) {
        let Some(asked) = point.endpoints.get(n) else {
            break;
        };
        let left = deadline.saturating_sub(begin.elapsed());
        last = (n, asked.request(event.clone(), left).await);
        match &last.1 {
            Err(CallError::Overload | CallError::Down | CallError::Failed(_)) => {}
            _ => break,
        }
    }
    last
}

const fn fault_of(unanswered: &CallError) -> AgentFault {
    match unanswered {
        CallError::Timeout => AgentFault::Timeout,
        CallError::Overload => AgentFault::Overload,
        CallError::TooLarge => AgentFault::BodyTooLarge,
        CallError::Down | CallError::Failed(_) => AgentFault::Error,
    }
}
