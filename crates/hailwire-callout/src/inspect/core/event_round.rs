//! The round of an event that stands for itself: a head, a WebSocket frame, a text for or from a language model.
//!
//! Agents are asked one after the other, in their order; the first that stops the request ends the round.

use std::time::Instant;

use super::request_state::{AgentList, RequestState};
use crate::{
    Decision, Event, EventKind, Response, Text,
    guardrail::Findings,
    inspect::{CallError, Verdict},
    response::WebSocketDecision,
};

/// The status of what an agent found something in, left there and let pass.
const FOUND: u16 = 403;

/// What came of a round.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RoundVerdict {
    /// What becomes of the request.
    pub(crate) verdict: Verdict,
    /// What becomes of a WebSocket frame.
    pub(crate) websocket: WebSocketDecision,
    /// What is forwarded instead of a text.
    pub(crate) content: Option<String>,
    /// Which agent found what in a text.
    pub(crate) findings: Vec<(Text, Findings)>,
}

/// A round.
pub(super) struct EventRound {
    event: Event,
    /// Who is asked.
    agent: usize,
    out: RoundVerdict,
    over: bool,
}

impl EventRound {
    /// A round in which the first agent is asked now; none where the request does not pass.
    pub(super) fn new<A: AgentList>(
        now: Instant,
        event: Event,
        state: &mut RequestState<A>,
    ) -> Self {
        let mut round = Self {
            event,
            agent: 0,
            out: RoundVerdict::default(),
            over: false,
        };
        match state.stopped() {
            Some(decision) => {
                let decision = decision.clone();
                round.stop(decision, 1008);
            }
            None => round.ask(now, state),
        }
        round
    }

    /// Whether it is decided.
    pub(super) const fn is_over(&self) -> bool {
        self.over
    }

    /// What came of it.
    pub(super) fn into_verdict(self) -> RoundVerdict {
        self.out
    }

    /// The agent that is asked has answered, or has not. Gives what it decided where the request does not pass.
    pub(super) fn answered<A: AgentList>(
        &mut self,
        now: Instant,
        answer: Result<Response, CallError>,
        state: &mut RequestState<A>,
    ) -> Result<(), Decision> {
        let taken = match self.event.kind() {
            EventKind::Guardrail => self.take_text(answer, state),
            EventKind::WebSocketFrame => self.take_frame(answer, state),
            kind => self.take(kind, answer, state).map(drop),
        };
        if let Err(decision) = taken {
            let code = match state.has_decided(self.agent) {
                true => 1008,
                false => 1011,
            };
            self.stop(decision.clone(), code);
            return Err(decision);
        }
        self.agent += 1;
        if !self.over {
            self.ask(now, state);
        }
        Ok(())
    }

    /// Asks the next agent that is to be asked.
    fn ask<A: AgentList>(&mut self, now: Instant, state: &mut RequestState<A>) {
        while self.agent < state.count() {
            if state.asks(self.agent, self.event.kind()) {
                return state.ask(now, self.agent, self.event.clone());
            }
            self.agent += 1;
        }
        self.over = true;
    }

    fn stop(&mut self, decision: Decision, code: u16) {
        self.out.verdict.decision = decision;
        self.out.websocket = WebSocketDecision::Close {
            code,
            reason: String::new(),
        };
        self.over = true;
    }

    /// Adds an answer. Gives what it says of a WebSocket frame.
    fn take<A: AgentList>(
        &mut self,
        kind: EventKind,
        answer: Result<Response, CallError>,
        state: &mut RequestState<A>,
    ) -> Result<Option<WebSocketDecision>, Decision> {
        let Some(mut response) = state.checked(self.agent, kind, answer)? else {
            return Ok(None);
        };
        let websocket = response.websocket.take();
        state.take(self.agent, kind, response, false, &mut self.out.verdict)?;
        Ok(websocket)
    }

    fn take_frame<A: AgentList>(
        &mut self,
        answer: Result<Response, CallError>,
        state: &mut RequestState<A>,
    ) -> Result<(), Decision> {
        let kind = EventKind::WebSocketFrame;
        match self.take(kind, answer, state)?.unwrap_or_default() {
            WebSocketDecision::Allow => {}
            decision => {
                if state.keeps_back(self.agent, kind) {
                    self.out.websocket = decision;
                    self.over = true;
                }
            }
        }
        Ok(())
    }

    fn take_text<A: AgentList>(
        &mut self,
        answer: Result<Response, CallError>,
        state: &mut RequestState<A>,
    ) -> Result<(), Decision> {
        let (agent, kind) = (self.agent, EventKind::Guardrail);
        let mut findings = None;
        let answer = answer.and_then(|mut response| {
            findings = Findings::take(&mut response).map_err(|error| {
                CallError::Failed(format!("invalid guardrail findings: {error}"))
            })?;
            Ok(response)
        });
        let Some(mut response) = state.checked(agent, kind, answer)? else {
            return Ok(());
        };
        let left = |findings: &Findings| findings.detected && findings.redacted.is_none();
        if response.decision == Decision::Allow && findings.as_ref().is_some_and(left) {
            response.decision = Response::block(FOUND).decision;
        }
        state.take(agent, kind, response, false, &mut self.out.verdict)?;
        if let Some(findings) = findings {
            self.found(findings, state);
        }
        Ok(())
    }

    /// The text goes on as the agent left it.
    fn found<A: AgentList>(&mut self, findings: Findings, state: &RequestState<A>) {
        let agents = state.agents();
        if !agents.rule(self.agent).observe
            && let Some(text) = &findings.redacted
            && let Event::Guardrail(event) = &mut self.event
        {
            event.content.clone_from(text);
            self.out.content = Some(text.clone());
        }
        let name = agents.name(self.agent).clone();
        self.out.findings.push((name, findings));
    }
}
