//! The state of a request with each of its agents, and what their answers change.
//!
//! Everything that an answer, or its absence, means for a request is decided here, once, for heads and bodies alike: which
//! agent is asked, where, what its answer changes, and what its rule says where there is none.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    action::{AgentAsk, AgentReport, CallId, FaultCause, RequestAction, RequestPart},
    endpoint_search::{EndpointSearch, due},
};
use crate::{
    Decision, Event, EventKind, Response, Text,
    capabilities::Capabilities,
    control::CancelReason,
    inspect::{
        AgentFault, CallError, Verdict,
        policy::{self, AgentRule, FallbackAction},
    },
    response::Audit,
};

/// What is known of the agents of a request, each by its place in their order.
pub(crate) trait AgentList {
    /// How many there are.
    fn count(&self) -> usize;

    /// The name of one.
    fn name(&self, agent: usize) -> &Text;

    /// The rule of one.
    fn rule(&self, agent: usize) -> &AgentRule;

    /// How many endpoints one has.
    fn endpoints(&self, agent: usize) -> usize;

    /// What an agent has said of itself at an endpoint.
    fn capabilities(&self, agent: usize, endpoint: usize) -> Option<Arc<Capabilities>>;

    /// How long an endpoint waits at most for an answer that has this deadline.
    fn longest_wait(&self, agent: usize, endpoint: usize, deadline: Duration) -> Duration;
}

/// The agents of one request, and how far it has come with them.
pub(super) struct RequestState<A> {
    agents: A,
    progress: Box<[AgentProgress]>,
    id: Text,
    stopped: Option<Decision>,
    sequence: u32,
    actions: VecDeque<RequestAction>,
}

/// What is known of a request at one agent.
#[derive(Default)]
struct AgentProgress {
    /// Where it was asked first.
    endpoint: Option<usize>,
    /// It is not asked any more: it observes, and would have blocked.
    silent: bool,
    /// It decided.
    decided: bool,
    /// What it is asked, besides bodies.
    call: Option<WholeCall>,
}

/// An event that stands for itself, at an agent.
struct WholeCall {
    sequence: u32,
    search: EndpointSearch,
    due: Instant,
}

impl<A> RequestState<A> {
    pub(super) const fn agents(&self) -> &A {
        &self.agents
    }

    pub(super) const fn id(&self) -> &Text {
        &self.id
    }

    /// What was decided, where it does not pass.
    pub(super) const fn stopped(&self) -> Option<&Decision> {
        self.stopped.as_ref()
    }

    /// Takes the id of its request from the first event.
    pub(super) fn begin(&mut self, id: &str) {
        if self.id.is_empty() {
            self.id = Text::from(id);
        }
    }

    /// The request does not pass. The first decision is final.
    pub(super) fn stop(&mut self, decision: &Decision) {
        if self.stopped.is_none() {
            self.stopped = Some(decision.clone());
        }
    }

    /// Where an agent was asked first.
    pub(super) fn endpoint(&self, agent: usize) -> Option<usize> {
        self.progress[agent].endpoint
    }

    /// Where an agent was asked: what follows goes there.
    pub(super) fn found(&mut self, agent: usize, endpoint: usize) {
        self.progress[agent].endpoint = Some(endpoint);
    }

    pub(super) fn has_decided(&self, agent: usize) -> bool {
        self.progress[agent].decided
    }

    pub(super) fn push(&mut self, action: RequestAction) {
        self.actions.push_back(action);
    }

    pub(super) fn poll_action(&mut self) -> Option<RequestAction> {
        self.actions.pop_front()
    }

    /// Tells an agent that its answers are not wanted, if it was asked.
    pub(super) fn cancel(&mut self, agent: usize, reason: CancelReason) {
        if let Some(endpoint) = self.endpoint(agent) {
            self.push(RequestAction::Cancel {
                agent,
                endpoint,
                reason,
            });
        }
    }

    /// Ends what agents know of the request; `complete` says that they were told that it has ended.
    pub(super) fn end(&mut self, complete: bool) {
        let reason = match self.stopped {
            Some(_) => CancelReason::BlockedByAgent,
            None => CancelReason::ClientDisconnect,
        };
        for agent in 0..self.progress.len() {
            let Some(endpoint) = self.endpoint(agent) else {
                continue;
            };
            if !complete && !self.has_decided(agent) {
                self.cancel(agent, reason);
            }
            self.push(RequestAction::Forget { agent, endpoint });
        }
        self.forget_calls();
    }

    /// Answers to the events that were sent whole are taken no more.
    pub(super) fn forget_calls(&mut self) {
        for progress in &mut self.progress {
            progress.call = None;
        }
    }

    /// Whether an event that was sent whole has no answer.
    pub(super) fn is_asking(&self) -> bool {
        self.progress.iter().any(|agent| agent.call.is_some())
    }

    /// When the first of these is given up on.
    pub(super) fn due(&self) -> Option<Instant> {
        let calls = self.progress.iter().flat_map(|agent| &agent.call);
        calls.map(|call| call.due).min()
    }

    /// An agent whose call is to be given up on.
    pub(super) fn overdue(&self, now: Instant) -> Option<CallId> {
        let calls = self.progress.iter().enumerate();
        let mut overdue = calls.filter_map(|(agent, progress)| {
            let call = progress.call.as_ref().filter(|call| call.due <= now)?;
            Some(CallId {
                agent,
                part: RequestPart::Whole,
                sequence: call.sequence,
            })
        });
        overdue.next()
    }

    fn report(&mut self, agent: usize, kind: EventKind, report: AgentReport) {
        self.push(RequestAction::Report {
            agent,
            kind,
            report,
        });
    }
}

impl<A: AgentList> RequestState<A> {
    pub(super) fn new(agents: A) -> Self {
        Self {
            progress: (0..agents.count())
                .map(|_| AgentProgress::default())
                .collect(),
            agents,
            id: Text::new(),
            stopped: None,
            sequence: 0,
            actions: VecDeque::new(),
        }
    }

    /// How many agents there are.
    pub(super) fn count(&self) -> usize {
        self.agents.count()
    }

    pub(super) fn rule(&self, agent: usize) -> &AgentRule {
        self.agents.rule(agent)
    }

    /// Whether an agent is asked about events of a kind.
    pub(super) fn asks(&self, agent: usize, kind: EventKind) -> bool {
        let wants = || {
            let known = self.capabilities(agent);
            self.rule(agent).wants(kind, known.as_deref())
        };
        !self.progress[agent].silent && wants()
    }

    /// The agent's capabilities at the endpoint that this request uses.
    pub(super) fn capabilities(&self, agent: usize) -> Option<Arc<Capabilities>> {
        match self.endpoint(agent) {
            Some(endpoint) => self.agents.capabilities(agent, endpoint),
            None => (0..self.agents.endpoints(agent))
                .find_map(|endpoint| self.agents.capabilities(agent, endpoint)),
        }
    }

    /// When a call is given up on that an endpoint is asked now.
    pub(super) fn due_at(
        &self,
        now: Instant,
        agent: usize,
        endpoint: usize,
        deadline: Duration,
    ) -> Instant {
        due(now, self.agents.longest_wait(agent, endpoint, deadline))
    }

    /// Asks an agent about an event that stands for itself, at the endpoint used before.
    pub(super) fn ask(&mut self, now: Instant, agent: usize, event: Event) {
        let deadline = self.rule(agent).phase(event.kind()).timeout;
        let endpoints = self.agents.endpoints(agent);
        let search = EndpointSearch::new(now, &event, self.endpoint(agent), endpoints, deadline);
        self.sequence = self.sequence.wrapping_add(1);
        self.ask_endpoint(now, agent, search, (event, deadline), false);
    }

    fn ask_endpoint(
        &mut self,
        now: Instant,
        agent: usize,
        search: EndpointSearch,
        (event, deadline): (Event, Duration),
        again: bool,
    ) {
        let (sequence, endpoint) = (self.sequence, search.current());
        self.push(RequestAction::Ask(AgentAsk {
            call: CallId {
                agent,
                part: RequestPart::Whole,
                sequence,
            },
            endpoint,
            event,
            deadline,
            queued: false,
            again,
        }));
        self.progress[agent].call = Some(WholeCall {
            sequence,
            due: self.due_at(now, agent, endpoint, deadline),
            search,
        });
    }

    /// An endpoint has answered an event that stands for itself, or has not. Gives the answer and the endpoint that it is from,
    /// unless another one is asked; `None` also for an answer that nobody waits for.
    pub(super) fn whole_answer(
        &mut self,
        now: Instant,
        call: CallId,
        answer: Result<Response, CallError>,
    ) -> Option<(usize, Result<Response, CallError>)> {
        let current = &mut self.progress.get_mut(call.agent)?.call;
        let mut asked = current.take_if(|asked| asked.sequence == call.sequence)?;
        let endpoint = asked.search.current();
        if let Err(error) = &answer
            && let Some(next) = asked.search.next(now, error)
        {
            // Its own number: what the endpoint before it may still say is late.
            self.sequence = self.sequence.wrapping_add(1);
            self.ask_endpoint(now, call.agent, asked.search, next, true);
            return None;
        }
        Some((endpoint, answer))
    }

    /// The answer if it is valid; `None` where there is none and that is allowed.
    pub(super) fn checked(
        &mut self,
        agent: usize,
        kind: EventKind,
        answer: Result<Response, CallError>,
    ) -> Result<Option<Response>, Decision> {
        let (fault, cause) = match answer {
            Ok(response) => match policy::check(&response) {
                Ok(()) => return Ok(Some(response)),
                Err(lie) => (AgentFault::Error, FaultCause::Invalid(lie)),
            },
            Err(error) => (fault_of(&error), FaultCause::Unanswered(error)),
        };
        self.fault(agent, kind, fault, cause).map(|()| None)
    }

    /// Adds an answer to the verdict. Gives what is forwarded instead of a chunk, where that is changed.
    pub(super) fn take(
        &mut self,
        agent: usize,
        kind: EventKind,
        mut response: Response,
        undecided: bool,
        verdict: &mut Verdict,
    ) -> Result<Option<Bytes>, Decision> {
        if response.audit != Audit::default() {
            let name = self.agents.name(agent).clone();
            verdict.audits.push((name, response.audit));
        }
        let stops = response.decision != Decision::Allow && !undecided;
        if self.rule(agent).observe {
            if stops {
                self.progress[agent].silent = true;
                self.report(agent, kind, AgentReport::WouldStop);
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
            self.progress[agent].decided = true;
            self.report(agent, kind, AgentReport::Stopped);
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
        &mut self,
        agent: usize,
        kind: EventKind,
        fault: AgentFault,
        cause: FaultCause,
    ) -> Result<(), Decision> {
        let rule = self.rule(agent);
        match (rule.on(kind, fault), rule.observe) {
            (FallbackAction::Block(_), true) => {
                self.report(agent, kind, AgentReport::WouldBlock(fault, cause));
                Ok(())
            }
            (FallbackAction::Allow, true) => Ok(()),
            (FallbackAction::Allow, false) => {
                self.report(agent, kind, AgentReport::Bypassed(fault, cause));
                Ok(())
            }
            (FallbackAction::Block(status), false) => {
                self.report(agent, kind, AgentReport::Blocked(fault, cause));
                Err(Decision::Block {
                    status,
                    body: None,
                    headers: BTreeMap::new(),
                })
            }
        }
    }

    /// An agent does not let a WebSocket frame pass. False where it observes, and the frame passes all the same.
    pub(super) fn keeps_back(&mut self, agent: usize, kind: EventKind) -> bool {
        let observes = self.rule(agent).observe;
        let report = match observes {
            true => AgentReport::WouldStop,
            false => AgentReport::Stopped,
        };
        self.report(agent, kind, report);
        !observes
    }

    /// An agent has answered to the end of a request, or has not: it decides nothing.
    pub(super) fn told(&mut self, agent: usize, answer: Result<Response, CallError>) {
        if let Err(error) = answer {
            let report = AgentReport::Untold(error);
            self.report(agent, EventKind::RequestComplete, report);
        }
    }
}

const fn fault_of(unanswered: &CallError) -> AgentFault {
    match unanswered {
        CallError::Timeout => AgentFault::Timeout,
        CallError::Overload => AgentFault::Overload,
        CallError::TooLarge => AgentFault::BodyTooLarge,
        CallError::Down | CallError::Failed(_) => AgentFault::Error,
    }
}
