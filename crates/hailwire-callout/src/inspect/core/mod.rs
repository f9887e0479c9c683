//! The state of a request at its agents: decides, is told the time, and does no I/O.
//!
//! A [`RequestCore`] is one request and its response. It is told what the proxy shows ([`RequestCore::handle_event`],
//! [`RequestCore::handle_chunk`], [`RequestCore::handle_complete`]) and what agents answer ([`RequestCore::handle_answer`]), and says what is to be done
//! ([`RequestCore::poll_action`]) and what becomes of the request ([`RequestCore::poll_round`], [`RequestCore::poll_verdict`]). It holds no
//! connection, no future, no lock and no clock; the shell around it is `inspect/request_driver.rs`.
//!
//! | module | decides |
//! |---|---|
//! | `request_state` | what an answer, or its absence, means for the request; which agent is asked about which event |
//! | `event_round` | whom an event that stands for itself is shown to, one agent after the other |
//! | `body_pipeline` | in which order the chunks of a body pass the agents |
//! | `agent_stage` | what of a body one agent is sent and when, what is held back, what goes on |
//! | `endpoint_search` | which endpoint of an agent is asked, and for how long |
//!
//! # What it promises
//!
//! - A decision against a request is final: nothing is asked after it, and all that is under way has it.
//! - Each event is answered by an agent or decided by its rule, once.
//! - Chunks come out in the order in which they went in, one verdict for each.
//! - An answer that nobody waits for any more, or a timer that is late, changes nothing.
//! - After [`RequestCore::handle_end`] nothing is asked.
//!
//! # Parts
//!
//! A caller waits for one part of a request at a time, the other ones stand still: an event that stands for itself, or a body. An
//! answer to a chunk is kept until [`RequestCore::decide`] is called for its body; so the chunks that a caller shows in a row are
//! all sent before the first answer decides anything.
//!
//! # Deadlines
//!
//! Here it is decided how long an answer may take (the phase's timeout, of which the endpoints that were asked before have used
//! some) and from when that counts (from when the event was sent, or became the first that is unanswered). The clock that runs it out
//! is the endpoint's: only the pool knows which connection it chose, whose agent may have asked for more time, and its breaker
//! must see a timeout as the failure of the agent and not as a caller who gave up. So [`RequestCore::poll_timeout`] is a second after the
//! longest that the endpoint may take; an endpoint that has not said anything by then breaks its promise, and the event is
//! decided as one that timed out. A request is decided in bounded time whatever its endpoints do.

mod action;
mod agent_stage;
mod body_pipeline;
mod endpoint_search;
mod event_round;
mod request_state;

use std::time::Instant;

use self::{body_pipeline::BodyPipeline, event_round::EventRound, request_state::RequestState};
use super::{BodyVerdict, CallError};
use crate::{
    Decision, Event, EventKind, Response, Text,
    event::{BodyChunk, RequestComplete},
};

pub(super) use action::{AgentAsk, AgentReport, CallId, RequestAction, RequestPart};
pub(super) use agent_stage::gathered;
pub(super) use event_round::RoundVerdict;
pub(super) use request_state::AgentList;

/// One request, its response, and how far both have come with the agents `A`.
pub(super) struct RequestCore<A> {
    state: RequestState<A>,
    round: Option<EventRound>,
    request: BodyPipeline,
    response: BodyPipeline,
    complete: bool,
    ended: bool,
}

impl<A> RequestCore<A> {
    /// The agents.
    pub(super) const fn agents(&self) -> &A {
        self.state.agents()
    }

    /// The id of the request; empty before its first event.
    pub(super) const fn id(&self) -> &Text {
        self.state.id()
    }

    /// What was decided, where the request does not pass.
    pub(super) const fn stopped(&self) -> Option<&Decision> {
        self.state.stopped()
    }

    /// Whether more of a body should be shown before a verdict is taken.
    pub(super) const fn has_room(&self, kind: EventKind) -> bool {
        match kind {
            EventKind::RequestBody => self.request.has_room(),
            EventKind::ResponseBody => self.response.has_room(),
            _ => true,
        }
    }

    /// Whether verdicts on a body are to come.
    pub(super) fn is_under_way(&self, kind: EventKind) -> bool {
        match kind {
            EventKind::RequestBody => self.request.is_under_way(),
            EventKind::ResponseBody => self.response.is_under_way(),
            _ => false,
        }
    }

    /// Whether agents that were told that the request has ended have not answered.
    pub(super) fn is_asking(&self) -> bool {
        self.state.is_asking()
    }

    /// What is to be done next; nothing where all was given.
    pub(super) fn poll_action(&mut self) -> Option<RequestAction> {
        self.state.poll_action()
    }

    /// When [`RequestCore::handle_timeout`] is to be called for a part that is waited for; `None` where nothing is unanswered.
    pub(super) fn poll_timeout(&self, part: RequestPart) -> Option<Instant> {
        match part {
            RequestPart::Whole => self.state.due(),
            RequestPart::RequestBody => self.request.due(),
            RequestPart::ResponseBody => self.response.due(),
        }
    }

    /// What came of the event that was shown, once it is decided.
    pub(super) fn poll_round(&mut self) -> Option<RoundVerdict> {
        let round = self.round.take_if(|round| round.is_over())?;
        Some(round.into_verdict())
    }

    /// The verdict on the next chunk of a body, once it is decided.
    pub(super) fn poll_verdict(&mut self, kind: EventKind) -> Option<BodyVerdict> {
        self.body(RequestPart::of(kind)).poll_verdict()
    }

    /// Ends what agents know of the request.
    pub(super) fn handle_end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.round = None;
        self.state.end(self.complete);
        self.request.end(&mut self.state);
        self.response.end(&mut self.state);
    }

    const fn body(&mut self, part: RequestPart) -> &mut BodyPipeline {
        match part {
            RequestPart::ResponseBody => &mut self.response,
            RequestPart::RequestBody | RequestPart::Whole => &mut self.request,
        }
    }

    /// The request does not pass, and with it nothing that is under way.
    fn stop(&mut self, decision: &Decision) {
        self.state.stop(decision);
        self.request.stop(decision, &mut self.state);
        self.response.stop(decision, &mut self.state);
    }
}

impl<A: AgentList> RequestCore<A> {
    /// A request that no agent knows of.
    pub(super) fn new(agents: A) -> Self {
        Self {
            state: RequestState::new(agents),
            round: None,
            request: BodyPipeline::new(EventKind::RequestBody),
            response: BodyPipeline::new(EventKind::ResponseBody),
            complete: false,
            ended: false,
        }
    }

    /// Whether any agent is to be asked about events of a kind, as far as this request has come.
    pub(super) fn wants(&self, kind: EventKind) -> bool {
        let unseen = |agent| match kind {
            EventKind::RequestBody => self.request.is_unseen(agent),
            EventKind::ResponseBody => self.response.is_unseen(agent),
            _ => false,
        };
        let asks = |agent| !unseen(agent) && self.state.asks(agent, kind);
        self.stopped().is_none() && (0..self.state.count()).any(asks)
    }

    /// An event that stands for itself is shown. One that was not decided before is forgotten.
    pub(super) fn handle_event(&mut self, now: Instant, event: Event) {
        if self.ended {
            return;
        }
        self.state.begin(event.id());
        self.state.forget_calls();
        self.round = Some(EventRound::new(now, event, &mut self.state));
    }

    /// A chunk of a body is shown.
    pub(super) fn handle_chunk(&mut self, now: Instant, kind: EventKind, chunk: BodyChunk) {
        if self.ended {
            return;
        }
        self.state.begin(&chunk.correlation_id);
        let body = match kind {
            EventKind::ResponseBody => &mut self.response,
            _ => &mut self.request,
        };
        body.show(now, chunk, &mut self.state);
    }

    /// The request has ended: agents that keep records are told, and decide nothing.
    pub(super) fn handle_complete(&mut self, now: Instant, event: &RequestComplete) {
        if self.ended {
            return;
        }
        self.state.begin(&event.correlation_id);
        self.state.forget_calls();
        self.round = None;
        self.complete = true;
        for agent in 0..self.state.count() {
            if self.state.asks(agent, EventKind::RequestComplete) {
                let event = Event::RequestComplete(event.clone());
                self.state.ask(now, agent, event);
            }
        }
    }

    /// An endpoint has answered, or has not.
    pub(super) fn handle_answer(
        &mut self,
        now: Instant,
        call: CallId,
        answer: Result<Response, CallError>,
    ) {
        if self.ended {
            return;
        }
        let body = match call.part {
            RequestPart::Whole => return self.whole_answer(now, call, answer),
            RequestPart::RequestBody => &mut self.request,
            RequestPart::ResponseBody => &mut self.response,
        };
        body.answer(now, call, answer, &mut self.state);
    }

    /// Decides about the chunks of a body what was answered about them.
    pub(super) fn decide(&mut self, now: Instant, part: RequestPart) {
        let body = match part {
            RequestPart::Whole => return,
            RequestPart::RequestBody => &mut self.request,
            RequestPart::ResponseBody => &mut self.response,
        };
        if let Err(decision) = body.advance(now, &mut self.state) {
            self.stop(&decision);
        }
    }

    /// It is this late, and a part is waited for.
    pub(super) fn handle_timeout(&mut self, now: Instant, part: RequestPart) {
        if part != RequestPart::Whole {
            self.body(part).handle_timeout(now);
            return self.decide(now, part);
        }
        while let Some(call) = self.state.overdue(now) {
            self.whole_answer(now, call, Err(CallError::Timeout));
        }
    }

    fn whole_answer(&mut self, now: Instant, call: CallId, answer: Result<Response, CallError>) {
        let Some((endpoint, answer)) = self.state.whole_answer(now, call, answer) else {
            return;
        };
        let Some(round) = &mut self.round else {
            return self.state.told(call.agent, answer);
        };
        self.state.found(call.agent, endpoint);
        if let Err(decision) = round.answered(now, answer, &mut self.state) {
            self.stop(&decision);
        }
    }
}

#[cfg(test)]
mod tests;
