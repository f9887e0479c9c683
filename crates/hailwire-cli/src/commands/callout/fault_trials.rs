//! Replaces each agent in turn by a faulty one: in every phase, and in mid-body.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use hailwire::Code;
use hailwire_callout::{
    Decision, EventKind, Response,
    inspect::{
        BodyMode, Config, Exchange, FallbackAction, Inspector,
        config::{AgentConfig, AgentEndpoint},
    },
    pool::PausedPolicy,
};
use tokio::task::JoinSet;

use super::{
    READY_TIMEOUT,
    faults::{self, FaultTrigger, FaultyAgentState, FaultyBehaviour, OCCUPYING_REQUEST_ID},
    probes::{self, PHASES},
    test::TestRow,
};
use hailwire_terminal::failure::CommandFailure;

/// The events at which an agent can misbehave, in the order of a request.
const TRIGGERS: [(EventKind, bool); 7] = [
    (EventKind::RequestHeaders, false),
    (EventKind::RequestBody, false),
    (EventKind::RequestBody, true),
    (EventKind::Guardrail, false),
    (EventKind::ResponseHeaders, false),
    (EventKind::ResponseBody, false),
    (EventKind::ResponseBody, true),
];

/// Longer than any step here takes.
const UNLIMITED_TIMEOUT: Duration = Duration::from_secs(600);

/// Runs all trials; `texts` says whether any agent is asked about texts.
pub(super) async fn all(config: &Config, texts: bool) -> Result<Vec<TestRow>, CommandFailure> {
    let folder = tempfile::tempdir()
        .map_err(|error| CommandFailure::io("cannot create a folder for faulty agents", &error))?;
    let mut tried = JoinSet::new();
    let mut order = 0_usize;
    for agent in &config.agents {
        let asked = |(kind, _): &(EventKind, bool)| match agent.rule.events {
            Some(events) => events.contains(*kind),
            None => *kind != EventKind::Guardrail || texts,
        };
        let connectors: Vec<_> = TRIGGERS.into_iter().filter(asked).collect();
        for behaviour in FaultyBehaviour::ALL {
            for (n, (kind, mid_body)) in connectors.iter().copied().enumerate() {
                if behaviour == FaultyBehaviour::Paused && n > 0 {
                    // A request that has begun continues with a paused agent.
                    continue;
                }
                let trial = FaultTrial {
                    agent: agent.clone(),
                    behaviour,
                    when: FaultTrigger { kind, mid_body },
                    first: connectors[0].0,
                    is_first: n == 0,
                    socket: folder.path().join(format!("{order}.sock")),
                };
                let place = order;
                tried.spawn(async move { (place, trial.run().await) });
                order += 1;
            }
        }
    }
    let mut rows = Vec::new();
    while let Some(row) = tried.join_next().await {
        let (place, row) = row.map_err(CommandFailure::general)?;
        rows.push((place, row?));
    }
    rows.sort_by_key(|(place, _)| *place);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// One agent, replaced by one that misbehaves at an event.
struct FaultTrial {
    agent: AgentConfig,
    behaviour: FaultyBehaviour,
    when: FaultTrigger,
    /// The first event that it is asked about.
    first: EventKind,
    is_first: bool,
    socket: PathBuf,
}

impl FaultTrial {
    async fn run(self) -> Result<TestRow, CommandFailure> {
        let expected = self.expected();
        let (behaviour, when) = (self.behaviour, self.when);
        let state = Arc::new(FaultyAgentState::default());
        let serving = faults::serve(self.socket.clone(), behaviour, when, Arc::clone(&state));
        let mut faulty = JoinSet::new();
        faulty.spawn(serving);
        let single = self.single();
        let mut patient = single.clone();
        for phase in &mut patient.rule.phases {
            phase.timeout = UNLIMITED_TIMEOUT;
        }
        let failed = |error| CommandFailure::caused(Code::Internal, &error);
        let inspector = Inspector::from_config(&only(patient), &|_, _| None).map_err(failed)?;
        if !inspector.ready(READY_TIMEOUT).await {
            return Err(CommandFailure::general("a faulty agent did not start"));
        }
        let other = inspector.exchange();
        let name = single.name.clone();
        // The connection is kept; from here on the configured timeouts apply.
        inspector
            .reload(&only(single), &|_, _| None)
            .map_err(failed)?;
        let injector = FaultInjector {
            behaviour,
            when,
            first: self.first,
            inspector,
            state,
            other: Mutex::new(Some(other)),
            occupying: Mutex::default(),
        };
        let exchange = injector.inspector.exchange();
        let result = probes::run(exchange, &PHASES, Some(&injector)).await;
        let mid_body = if when.mid_body { ", mid-body" } else { "" };
        let as_expected = result.decision == expected;
        Ok(TestRow {
            agent: name,
            probe: behaviour.name(),
            at: format!("{}{mid_body}", when.kind.name()),
            expected: match &expected {
                Decision::Block { status, .. } => format!("blocked {status}"),
                _ => "passed".to_owned(),
            },
            forbidden: result.passed && !as_expected,
            unexpected: !as_expected,
            result,
        })
    }

    /// The decision that the configuration demands for the request.
    fn expected(&self) -> Decision {
        let waits = self.agent.pool.preset.pool().paused == PausedPolicy::Wait;
        let fault = self.behaviour.fault(self.when, self.is_first, waits);
        match self.agent.rule.on(self.when.kind, fault) {
            _ if self.agent.rule.observe => Decision::Allow,
            FallbackAction::Allow => Decision::Allow,
            FallbackAction::Block(status) => Response::block(status).decision,
        }
    }

    /// The agent with its rule, at the endpoint of the faulty one.
    fn single(&self) -> AgentConfig {
        let mut single = AgentConfig {
            endpoints: vec![AgentEndpoint::BinaryUds(self.socket.clone())],
            dialect: None,
            config: None,
            ..self.agent.clone()
        };
        single.pool.connections = Some(1);
        // Both chunks of a body have to reach it separately.
        single.rule.request_body.mode = BodyMode::Stream;
        single.rule.response_body.mode = BodyMode::Stream;
        single
    }
}

fn only(agent: AgentConfig) -> Config {
    Config {
        agents: vec![agent],
        ..Config::default()
    }
}

/// Injects the faults that need action from outside before an event.
pub(super) struct FaultInjector {
    behaviour: FaultyBehaviour,
    when: FaultTrigger,
    first: EventKind,
    inspector: Inspector,
    state: Arc<FaultyAgentState>,
    /// A request without timeouts, which occupies the agent.
    other: Mutex<Option<Exchange>>,
    occupying: Mutex<JoinSet<()>>,
}

impl FaultInjector {
    /// To be called before an event: if it is the trigger, the agent is full, or has paused, when this returns.
    ///
    /// Boxed, since the request that occupies the agent is sent by the same functions (recursion).
    pub(super) fn before(&self, when: FaultTrigger) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match self.behaviour {
                _ if when != self.when => {}
                FaultyBehaviour::Full => self.occupy().await,
                FaultyBehaviour::Paused => {
                    self.state.pause();
                    while self.inspector.ready(Duration::ZERO).await {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                FaultyBehaviour::Slow
                | FaultyBehaviour::Crashing
                | FaultyBehaviour::Lying
                | FaultyBehaviour::Garbling => {}
            }
        })
    }

    async fn occupy(&self) {
        let other = {
            let mut other = self.other.lock().unwrap_or_else(PoisonError::into_inner);
            other.take()
        };
        if let Some(exchange) = other {
            {
                let occupying = self.occupying.lock();
                let mut occupying = occupying.unwrap_or_else(PoisonError::into_inner);
                occupying.spawn(probes::one(exchange, self.first, OCCUPYING_REQUEST_ID));
            }
            let occupied = self.state.occupied.notified();
            // If the agent is not occupied, the result shows it.
            let _ = tokio::time::timeout(READY_TIMEOUT, occupied).await;
        }
    }
}
