//! Texts for and from a language model.

use super::{EndpointChoice, Exchange, RequestState};
use crate::{
    Decision, Event, EventKind, Response,
    event::Guardrail,
    guardrail::Findings,
    inspect::{CallError, TextVerdict, Verdict},
};

/// The status of what an agent found something in, left there and let pass.
const FOUND: u16 = 403;

impl Exchange {
    /// A text for or from a language model, before it goes on.
    ///
    /// An agent that found something has taken it out, and then the text goes on as it left it, to the next agent
    /// too; or it does not pass: with the agent's decision, or with 403 where that allows. Findings that cannot be
    /// read are an error of their agent. What happens where there is no answer is the phase's,
    /// `guardrail_inspect`.
    ///
    /// Cost: the text is copied for each agent.
    pub async fn guardrail(&mut self, mut event: Guardrail) -> TextVerdict {
        let mut out = TextVerdict::default();
        let state = &mut self.state;
        if let Some(decision) = state.over() {
            out.verdict.decision = decision.clone();
            return out;
        }
        state.begin(&event.correlation_id);
        for n in 0..state.count() {
            if !state.asks(n, EventKind::Guardrail) {
                continue;
            }
            match state.text(n, event.clone(), &mut out.verdict).await {
                Ok(None) => {}
                Ok(Some(findings)) => {
                    let point = state.point(n);
                    if !point.rule.observe
                        && let Some(text) = &findings.redacted
                    {
                        event.content.clone_from(text);
                        out.content = Some(text.clone());
                    }
                    out.findings.push((point.name.clone(), findings));
                }
                Err(decision) => {
                    state.stop(decision.clone());
                    out.verdict.decision = decision;
                    break;
                }
            }
        }
        out
    }
}

impl RequestState {
    /// Asks one agent about a text.
    async fn text(
        &mut self,
        n: usize,
        event: Guardrail,
        verdict: &mut Verdict,
    ) -> Result<Option<Findings>, Decision> {
        let kind = EventKind::Guardrail;
        let timeout = self.point(n).rule.phase(kind).timeout;
        let asking = self.asking(n, Event::Guardrail(event), EndpointChoice::Any, timeout);
        let (endpoint, answer) = asking.await;
        self.found(n, endpoint);
        let mut findings = None;
        let answer = answer.and_then(|mut response| {
            findings = Findings::take(&mut response).map_err(|error| {
                CallError::Failed(format!("invalid guardrail findings: {error}"))
            })?;
            Ok(response)
        });
        let Some(mut response) = self.checked(n, kind, answer)? else {
            return Ok(None);
        };
        let left = |findings: &Findings| findings.detected && findings.redacted.is_none();
        if response.decision == Decision::Allow && findings.as_ref().is_some_and(left) {
            response.decision = Response::block(FOUND).decision;
        }
        self.take(n, kind, response, false, verdict)?;
        Ok(findings)
    }
}
