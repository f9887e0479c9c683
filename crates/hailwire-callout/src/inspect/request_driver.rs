//! Carries out what a request's core decides: sends events to endpoints, waits for their answers, counts and logs.
//!
//! A [`RequestDriver`] owns the [`RequestCore`] of one request and the calls that are under way for it. Events that stand for themselves are
//! awaited where they are shown; chunks of bodies leave when they are shown, and their calls are kept here in their order, by
//! body and agent. Of an agent's calls about a body only the first is polled: the answers to those behind it are wanted later.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker, ready},
    time,
};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::{
    AgentRule, BodyVerdict, CallError, CountedCheckpoint,
    core::{
        AgentAsk, AgentList, AgentReport, CallId, RequestAction, RequestCore, RequestPart,
        RoundVerdict,
    },
};
use crate::{
    Event, EventKind, Response, Text,
    capabilities::Capabilities,
    event::{BodyChunk, RequestComplete},
    pool::StartSignal,
};

/// The agents of a request, with their counters.
pub(super) type RequestAgents = Arc<[CountedCheckpoint]>;

/// The calls of one request, and the core that decides about them.
pub(super) struct RequestDriver {
    core: RequestCore<RequestAgents>,
    /// What the proxy calls the request, in logs.
    request: Text,
    request_body: BodyCalls,
    response_body: BodyCalls,
    /// A chunk was answered when it was sent.
    answered_at_once: bool,
}

/// The calls about one body.
#[derive(Default)]
struct BodyCalls {
    /// By agent; none before the first call.
    agents: Vec<AgentCalls>,
    /// When the first is given up on.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The calls to one agent about a body, in their order.
#[derive(Default)]
struct AgentCalls {
    /// The number of the first one.
    first: u32,
    calls: VecDeque<QueuedCall>,
}

/// A call about a body.
enum QueuedCall {
    /// Its answer was there when it was sent.
    Answered,
    UnderWay {
        /// Never locked: it lets an exchange be shared between threads, which a future may not be.
        call: Mutex<BoxFuture<'static, Result<Response, CallError>>>,
        /// When its time begins, where it was sent while others were unanswered.
        start: Option<StartSignal>,
    },
}

impl AgentList for RequestAgents {
    fn count(&self) -> usize {
        self.len()
    }

    fn name(&self, agent: usize) -> &Text {
        &self[agent].point.name
    }

    fn rule(&self, agent: usize) -> &AgentRule {
        &self[agent].point.rule
    }

    fn endpoints(&self, agent: usize) -> usize {
        self[agent].point.endpoints.len()
    }

    fn capabilities(&self, agent: usize, endpoint: usize) -> Option<Arc<Capabilities>> {
        self[agent].point.endpoints.get(endpoint)?.capabilities()
    }

    fn longest_wait(
        &self,
        agent: usize,
        endpoint: usize,
        deadline: time::Duration,
    ) -> time::Duration {
        let endpoint = self[agent].point.endpoints.get(endpoint);
        endpoint.map_or(deadline, |endpoint| endpoint.longest_wait(deadline))
    }
}

impl RequestDriver {
    pub(super) fn new(points: RequestAgents) -> Self {
        Self {
            core: RequestCore::new(points),
            request: Text::new(),
            request_body: BodyCalls::default(),
            response_body: BodyCalls::default(),
            answered_at_once: false,
        }
    }

    /// What was decided, and what is.
    pub(super) const fn core(&self) -> &RequestCore<RequestAgents> {
        &self.core
    }

    /// What the proxy calls the request, in logs.
    pub(super) fn name(&mut self, request: &str) {
        self.request = Text::from(request);
    }

    /// Shows an event that stands for itself to one agent after the other.
    pub(super) async fn round(&mut self, event: Event) -> RoundVerdict {
        let mut at = now();
        self.core.handle_event(at, event);
        let agents = Arc::clone(self.core.agents());
        while let Some(ask) = self.carry_out(at) {
            let answered = self.within_timeout(answer(&agents, ask)).await;
            at = now();
            match answered {
                Some((call, answer)) => self.core.handle_answer(at, call, answer),
                None => self.core.handle_timeout(at, RequestPart::Whole),
            }
        }
        self.core.poll_round().unwrap_or_default()
    }

    /// Tells agents that keep records that the request has ended.
    pub(super) async fn complete(&mut self, event: &RequestComplete) {
        let mut at = now();
        self.core.handle_complete(at, event);
        let agents = Arc::clone(self.core.agents());
        let mut told = FuturesUnordered::new();
        loop {
            while let Some(ask) = self.carry_out(at) {
                told.push(answer(&agents, ask));
            }
            if !self.core.is_asking() {
                return;
            }
            let answered = self.within_timeout(told.next()).await;
            at = now();
            match answered {
                Some(Some((call, answer))) => self.core.handle_answer(at, call, answer),
                Some(None) => return,
                None => self.core.handle_timeout(at, RequestPart::Whole),
            }
        }
    }

    /// Shows a chunk of a body, and does not wait.
    pub(super) fn show(&mut self, kind: EventKind, chunk: BodyChunk) {
        let at = now();
        self.core.handle_chunk(at, kind, chunk);
        self.carry_out(at);
    }

    /// What becomes of the next chunk of a body; `None` when none is under way.
    pub(super) fn poll_shown(
        &mut self,
        kind: EventKind,
        context: &mut Context<'_>,
    ) -> Poll<Option<BodyVerdict>> {
        let (part, at) = (RequestPart::of(kind), now());
        loop {
            if let Some(verdict) = self.core.poll_verdict(kind) {
                return Poll::Ready(Some(verdict));
            }
            if !self.core.is_under_way(kind) {
                return Poll::Ready(None);
            }
            self.decide(at, part);
            self.poll_calls(at, part, context);
            if let Some(verdict) = self.core.poll_verdict(kind) {
                return Poll::Ready(Some(verdict));
            }
            ready!(self.poll_timeout(part, context));
            let late = now();
            self.core.handle_timeout(late, part);
            self.carry_out(late);
        }
    }

    /// Decides what was answered about a body, also about what is sent meanwhile and answered at once.
    fn decide(&mut self, at: time::Instant, part: RequestPart) {
        loop {
            self.core.decide(at, part);
            self.answered_at_once = false;
            self.carry_out(at);
            if !self.answered_at_once {
                return;
            }
        }
    }

    /// Takes the answers that are there, in their order.
    fn poll_calls(&mut self, at: time::Instant, part: RequestPart, context: &mut Context<'_>) {
        for agent in 0..self.body(part).agents.len() {
            while let Poll::Ready((sequence, answer)) =
                self.body(part).agents[agent].poll_first(context)
            {
                let call = CallId {
                    agent,
                    part,
                    sequence,
                };
                self.core.handle_answer(at, call, answer);
                self.decide(at, part);
            }
        }
    }

    /// Whether a call about a body is to be given up on.
    fn poll_timeout(&mut self, part: RequestPart, context: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.core.poll_timeout(part) else {
            return Poll::Pending;
        };
        let due = Instant::from_std(due);
        let timer = &mut self.body(part).timer;
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(context)
    }

    /// Waits for something about an event that stands for itself. `None` where that is to be given up on.
    async fn within_timeout<T>(&self, answered: impl Future<Output = T>) -> Option<T> {
        let mut answered = pin!(answered);
        // What is there at once needs no timer.
        let there = poll_fn(|context| Poll::Ready(answered.as_mut().poll(context)));
        if let Poll::Ready(answer) = there.await {
            return Some(answer);
        }
        match self.core.poll_timeout(RequestPart::Whole) {
            Some(due) => timeout_at(Instant::from_std(due), answered).await.ok(),
            None => Some(answered.await),
        }
    }

    /// Carries out what is to be done. Gives the next event that is to be awaited where it was shown, and is to be called again then.
    fn carry_out(&mut self, at: time::Instant) -> Option<AgentAsk> {
        while let Some(action) = self.core.poll_action() {
            match action {
                RequestAction::Ask(ask) => {
                    let AgentAsk { call, again, .. } = ask;
                    if !again {
                        let counters = &self.core.agents()[call.agent].counters;
                        counters.count_asked(ask.event.kind());
                    }
                    if call.part == RequestPart::Whole {
                        return Some(ask);
                    }
                    self.send(at, ask);
                }
                RequestAction::StartDeadline(call) => {
                    if let Some(calls) = self.body(call.part).agents.get(call.agent) {
                        calls.start(call.sequence);
                    }
                }
                RequestAction::Abandon { agent, part } => {
                    if let Some(calls) = self.body(part).agents.get_mut(agent) {
                        calls.calls.clear();
                    }
                }
                RequestAction::Cancel {
                    agent,
                    endpoint,
                    reason,
                } => {
                    let endpoints = &self.core.agents()[agent].point.endpoints;
                    if let Some(endpoint) = endpoints.get(endpoint) {
                        endpoint.cancel(self.core.id(), reason);
                    }
                }
                RequestAction::Forget { agent, endpoint } => {
                    let endpoints = &self.core.agents()[agent].point.endpoints;
                    if let Some(endpoint) = endpoints.get(endpoint) {
                        endpoint.done(self.core.id());
                    }
                }
                RequestAction::Report {
                    agent,
                    kind,
                    report,
                } => self.report(agent, kind, &report),
            }
        }
        None
    }

    /// Sends a chunk of a body. Who waits for its answer is said later.
    fn send(&mut self, at: time::Instant, ask: AgentAsk) {
        let (call, start) = (ask.call, ask.queued.then(StartSignal::default));
        let (agents, signal) = (Arc::clone(self.core.agents()), start.clone());
        let mut asking: BoxFuture<'static, _> = Box::pin(async move {
            match signal {
                Some(start) => queued_answer(&agents, ask, start).await,
                None => answer(&agents, ask).await.1,
            }
        });
        let mut nobody = Context::from_waker(Waker::noop());
        let queued = match asking.as_mut().poll(&mut nobody) {
            Poll::Ready(answer) => {
                self.core.handle_answer(at, call, answer);
                self.answered_at_once = true;
                QueuedCall::Answered
            }
            Poll::Pending => QueuedCall::UnderWay {
                call: Mutex::new(asking),
                start,
            },
        };
        let count = self.core.agents().len();
        let body = self.body(call.part);
        if body.agents.is_empty() {
            body.agents.resize_with(count, AgentCalls::default);
        }
        body.agents[call.agent].put(call.sequence, queued);
    }

    fn report(&self, agent: usize, kind: EventKind, report: &AgentReport) {
        let CountedCheckpoint { point, counters } = &self.core.agents()[agent];
        let request = match self.request.is_empty() {
            true => self.core.id(),
            false => &self.request,
        };
        let (agent, phase) = (&point.name, kind.name());
        match report {
            AgentReport::Stopped => {
                counters.count_stopped(kind);
                debug!(%request, %agent, phase, "stopped");
            }
            AgentReport::WouldStop => {
                counters.count_observed(kind);
                debug!(%request, %agent, phase, "would have been stopped");
            }
            AgentReport::Blocked(fault, why) => {
                counters.count_blocked(kind, *fault);
                debug!(%request, %agent, phase, fault = fault.name(), %why, "blocked");
            }
            AgentReport::Bypassed(fault, why) => {
                counters.count_bypassed(kind, *fault);
                warn!(%request, %agent, phase, fault = fault.name(), %why, "passes uninspected");
            }
            AgentReport::WouldBlock(fault, why) => {
                counters.count_observed(kind);
                debug!(%request, %agent, phase, fault = fault.name(), %why, "would have been blocked");
            }
            AgentReport::Untold(error) => {
                debug!(%request, %agent, %error, "an agent was not told that a request has ended");
            }
        }
    }

    const fn body(&mut self, part: RequestPart) -> &mut BodyCalls {
        match part {
            RequestPart::ResponseBody => &mut self.response_body,
            RequestPart::RequestBody | RequestPart::Whole => &mut self.request_body,
        }
    }
}

impl Drop for RequestDriver {
    fn drop(&mut self) {
        self.core.handle_end();
        self.carry_out(now());
    }
}

impl AgentCalls {
    /// A call that was sent. One of the number of the first takes its place.
    fn put(&mut self, sequence: u32, call: QueuedCall) {
        if self.calls.is_empty() {
            self.first = sequence;
        }
        match self.calls.front_mut() {
            Some(first) if self.first == sequence => *first = call,
            _ => self.calls.push_back(call),
        }
    }

    fn start(&self, sequence: u32) {
        let ahead = sequence.wrapping_sub(self.first) as usize;
        if let Some(QueuedCall::UnderWay {
            start: Some(start), ..
        }) = self.calls.get(ahead)
        {
            start.start();
        }
    }

    /// The answer to the first call, and its number.
    fn poll_first(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<(u32, Result<Response, CallError>)> {
        loop {
            let answer = match self.calls.front_mut() {
                None => return Poll::Pending,
                Some(QueuedCall::Answered) => None,
                Some(QueuedCall::UnderWay { call, .. }) => {
                    let call = call.get_mut().unwrap_or_else(PoisonError::into_inner);
                    Some(ready!(call.as_mut().poll(context)))
                }
            };
            let sequence = self.first;
            self.calls.pop_front();
            self.first = self.first.wrapping_add(1);
            if let Some(answer) = answer {
                return Poll::Ready((sequence, answer));
            }
        }
    }
}

/// Asks an endpoint, and says which call its answer is to.
async fn answer(
    agents: &[CountedCheckpoint],
    ask: AgentAsk,
) -> (CallId, Result<Response, CallError>) {
    let endpoints = &agents[ask.call.agent].point.endpoints;
    let answer = match endpoints.get(ask.endpoint) {
        Some(endpoint) => endpoint.request(ask.event, ask.deadline).await,
        None => Err(CallError::Down),
    };
    (ask.call, answer)
}

/// Asks an endpoint behind others that are answered first.
async fn queued_answer(
    agents: &[CountedCheckpoint],
    ask: AgentAsk,
    start: StartSignal,
) -> Result<Response, CallError> {
    let endpoints = &agents[ask.call.agent].point.endpoints;
    match endpoints.get(ask.endpoint) {
        Some(endpoint) => {
            let asked = endpoint.request_queued(ask.event, ask.deadline, start);
            asked.await
        }
        None => Err(CallError::Down),
    }
}

/// The time, as cores are told it.
fn now() -> time::Instant {
    Instant::now().into_std()
}
