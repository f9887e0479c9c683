//! The core in virtual time, with agents that exist in numbers only.

mod bodies;
mod rounds;
mod seeded;
mod seeds;

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::*;
use crate::{
    capabilities::{AgentLimits, Capabilities},
    event::{Guardrail, ResponseHeaders, WebSocketFrame},
    inspect::{AgentFault, AgentRule, FallbackAction},
    response::{BodyMutation, HeaderOp},
};

const MS: Duration = Duration::from_millis(1);

/// What a call may take by [`rule`].
const DEADLINE: Duration = Duration::from_millis(100);

/// Some instant to count from: the same for all.
pub(super) fn start() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START
}

/// So many milliseconds later.
fn at(ms: u64) -> Instant {
    start() + Duration::from_millis(ms)
}

/// An agent: what the core is told of it.
#[derive(Clone, Debug)]
struct TestAgent {
    name: Text,
    rule: AgentRule,
    endpoints: usize,
    capabilities: Option<Arc<Capabilities>>,
    /// By how much its endpoints may stretch a deadline.
    stretch: u32,
}

impl TestAgent {
    fn new(rule: AgentRule) -> Self {
        Self {
            name: Text::from("agent"),
            rule,
            endpoints: 1,
            capabilities: None,
            stretch: 1,
        }
    }

    fn stating(mut self, limits: AgentLimits) -> Self {
        self.capabilities = Some(Arc::new(Capabilities {
            events: EventKind::ALL.into_iter().collect(),
            limits,
            ..Capabilities::default()
        }));
        self
    }

    fn at_endpoints(mut self, endpoints: usize) -> Self {
        self.endpoints = endpoints;
        self
    }
}

impl AgentList for Vec<TestAgent> {
    fn count(&self) -> usize {
        self.len()
    }

    fn name(&self, agent: usize) -> &Text {
        &self[agent].name
    }

    fn rule(&self, agent: usize) -> &AgentRule {
        &self[agent].rule
    }

    fn endpoints(&self, agent: usize) -> usize {
        self[agent].endpoints
    }

    fn capabilities(&self, agent: usize, _: usize) -> Option<Arc<Capabilities>> {
        self[agent].capabilities.clone()
    }

    fn longest_wait(&self, agent: usize, _: usize, deadline: Duration) -> Duration {
        deadline * self[agent].stretch
    }
}

type TestCore = RequestCore<Vec<TestAgent>>;

/// A rule that says the same at every fault.
fn rule(action: FallbackAction) -> AgentRule {
    let mut rule = AgentRule::default();
    for phase in &mut rule.phases {
        phase.on = [action; 4];
        phase.timeout = DEADLINE;
    }
    rule
}

fn blocking() -> AgentRule {
    rule(FallbackAction::Block(503))
}

fn core<const N: usize>(rules: [AgentRule; N]) -> TestCore {
    RequestCore::new(rules.map(TestAgent::new).to_vec())
}

/// An event that stands for itself.
fn head() -> Event {
    Event::ResponseHeaders(ResponseHeaders::new("c", 200, [("server", "a")]))
}

fn text(content: &str) -> Event {
    Event::Guardrail(Guardrail {
        correlation_id: Text::from("c"),
        content: content.to_owned(),
        ..Guardrail::default()
    })
}

fn frame() -> Event {
    Event::WebSocketFrame(WebSocketFrame {
        correlation_id: Text::from("c"),
        ..WebSocketFrame::default()
    })
}

fn chunk(data: impl Into<Bytes>, is_last: bool) -> BodyChunk {
    let data = data.into();
    BodyChunk {
        correlation_id: Text::from("c"),
        transferred: data.len() as u64,
        data,
        is_last,
        total_size: None,
        index: 0,
    }
}

fn complete() -> RequestComplete {
    RequestComplete {
        correlation_id: Text::from("c"),
        ..RequestComplete::default()
    }
}

fn allow() -> Result<Response, CallError> {
    Ok(Response::allow())
}

fn block(status: u16) -> Result<Response, CallError> {
    Ok(Response::block(status))
}

fn blocked(status: u16) -> Decision {
    Response::block(status).decision
}

fn wants_more() -> Result<Response, CallError> {
    Ok(Response {
        needs_more: true,
        ..Response::allow()
    })
}

fn mutated(data: &'static str) -> Result<Response, CallError> {
    let mutation = Some(BodyMutation {
        index: 0,
        data: Some(Bytes::from(data)),
    });
    Ok(Response {
        request_body: mutation.clone(),
        response_body: mutation,
        ..Response::allow()
    })
}

/// What an event shows of a body.
fn shown(event: &Event) -> Option<&BodyChunk> {
    match event {
        Event::RequestBody(chunk) | Event::ResponseBody(chunk) => Some(chunk),
        _ => None,
    }
}

fn actions(core: &mut TestCore) -> Vec<RequestAction> {
    std::iter::from_fn(|| core.poll_action()).collect()
}

/// What is to be asked; everything else that is to be done is left out.
fn asks(core: &mut TestCore) -> Vec<AgentAsk> {
    let asks = actions(core).into_iter().filter_map(|action| match action {
        RequestAction::Ask(ask) => Some(ask),
        _ => None,
    });
    asks.collect()
}

/// The one thing that is to be asked.
#[track_caller]
fn ask(core: &mut TestCore) -> AgentAsk {
    let mut asks = asks(core);
    assert_eq!(asks.len(), 1, "{asks:?}");
    asks.remove(0)
}

/// What is to be done, in words; for asks, which agent, endpoint and data.
fn words(core: &mut TestCore) -> Vec<String> {
    let words = actions(core).into_iter().map(|action| match action {
        RequestAction::Ask(ask) => {
            let data = shown(&ask.event).map(|chunk| chunk.data.clone());
            let data = String::from_utf8(data.unwrap_or_default().to_vec());
            let queued = if ask.queued { " queued" } else { "" };
            let AgentAsk { call, endpoint, .. } = ask;
            format!("ask {}/{endpoint} {}{queued}", call.agent, data.unwrap())
        }
        RequestAction::StartDeadline(call) => format!("start {}/{}", call.agent, call.sequence),
        RequestAction::Abandon { agent, .. } => format!("abandon {agent}"),
        RequestAction::Cancel { agent, reason, .. } => format!("cancel {agent} {reason:?}"),
        RequestAction::Forget { agent, .. } => format!("forget {agent}"),
        RequestAction::Report { agent, report, .. } => format!("report {agent} {report:?}"),
    });
    words.collect()
}
