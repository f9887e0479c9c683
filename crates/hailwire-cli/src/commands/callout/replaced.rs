//! Every agent in turn, replaced by one that goes wrong: in every phase, and in mid-body.

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
    READY,
    faults::{self, OCCUPIES, Standing, When, Wrong},
    probes::{self, PHASES},
    test::Row,
};
use hailwire_terminal::failure::Failure;

/// Where an agent can go wrong, in the order in which a request comes there.
const PLACES: [(EventKind, bool); 7] = [
    (EventKind::RequestHeaders, false),
    (EventKind::RequestBody, false),
    (EventKind::RequestBody, true),
    (EventKind::Guardrail, false),
    (EventKind::ResponseHeaders, false),
    (EventKind::ResponseBody, false),
    (EventKind::ResponseBody, true),
];

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(600);

/// All of them; `texts` says whether any agent is asked about texts.
pub(super) async fn all(config: &Config, texts: bool) -> Result<Vec<Row>, Failure> {
    let folder = tempfile::tempdir()
        .map_err(|error| Failure::io("no folder for the agents that go wrong", &error))?;
    let mut tried = JoinSet::new();
    let mut order = 0_usize;
    for agent in &config.agents {
        let asked = |(kind, _): &(EventKind, bool)| match agent.rule.events {
            Some(events) => events.contains(*kind),
            None => *kind != EventKind::Guardrail || texts,
        };
        let places: Vec<_> = PLACES.into_iter().filter(asked).collect();
        for wrong in Wrong::ALL {
            for (n, (kind, mid_body)) in places.iter().copied().enumerate() {
                if wrong == Wrong::Paused && n > 0 {
                    // What has begun goes on with an agent that has paused.
                    continue;
                }
                let trial = Trial {
                    agent: agent.clone(),
                    wrong,
                    when: When { kind, mid_body },
                    first: places[0].0,
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
        let (place, row) = row.map_err(Failure::general)?;
        rows.push((place, row?));
    }
    rows.sort_by_key(|(place, _)| *place);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// One agent, replaced by one that goes wrong at an event.
struct Trial {
    agent: AgentConfig,
    wrong: Wrong,
    when: When,
    /// The first event that it is asked about.
    first: EventKind,
    is_first: bool,
    socket: PathBuf,
}

impl Trial {
    async fn run(self) -> Result<Row, Failure> {
        let expected = self.expected();
        let (wrong, when) = (self.wrong, self.when);
        let standing = Arc::new(Standing::default());
        let serving = faults::serve(self.socket.clone(), wrong, when, Arc::clone(&standing));
        let mut faulty = JoinSet::new();
        faulty.spawn(serving);
        let alone = self.alone();
        let mut patient = alone.clone();
        for phase in &mut patient.rule.phases {
            phase.timeout = LONG;
        }
        let failed = |error| Failure::caused(Code::Internal, &error);
        let inspector = Inspector::from_config(&only(patient), &|_, _| None).map_err(failed)?;
        if !inspector.ready(READY).await {
            return Err(Failure::general(
                "an agent that should go wrong does not even start",
            ));
        }
        let other = inspector.exchange();
        let name = alone.name.clone();
        // The connection stays; from here on its deadlines count.
        inspector
            .reload(&only(alone), &|_, _| None)
            .map_err(failed)?;
        let trouble = Trouble {
            wrong,
            when,
            first: self.first,
            inspector,
            standing,
            other: Mutex::new(Some(other)),
            occupying: Mutex::default(),
        };
        let exchange = trouble.inspector.exchange();
        let fared = probes::run(exchange, &PHASES, Some(&trouble)).await;
        let mid_body = if when.mid_body { ", mid-body" } else { "" };
        let as_expected = fared.decision == expected;
        Ok(Row {
            agent: name,
            probe: wrong.name(),
            at: format!("{}{mid_body}", when.kind.name()),
            expected: match &expected {
                Decision::Block { status, .. } => format!("blocked {status}"),
                _ => "passed".to_owned(),
            },
            forbidden: fared.passed && !as_expected,
            fared,
        })
    }

    /// What the configuration says should become of the request.
    fn expected(&self) -> Decision {
        let waits = self.agent.pool.preset.pool().paused == PausedPolicy::Wait;
        let fault = self.wrong.fault(self.when, self.is_first, waits);
        match self.agent.rule.on(self.when.kind, fault) {
            _ if self.agent.rule.observe => Decision::Allow,
            FallbackAction::Allow => Decision::Allow,
            FallbackAction::Block(status) => Response::block(status).decision,
        }
    }

    /// The agent with its rule, at the endpoint of the one that goes wrong.
    fn alone(&self) -> AgentConfig {
        let mut alone = AgentConfig {
            endpoints: vec![AgentEndpoint::BinaryUds(self.socket.clone())],
            dialect: None,
            config: None,
            ..self.agent.clone()
        };
        alone.pool.connections = Some(1);
        // Both pieces of a body have to reach it, each by itself.
        alone.rule.request_body.mode = BodyMode::Stream;
        alone.rule.response_body.mode = BodyMode::Stream;
        alone
    }
}

fn only(agent: AgentConfig) -> Config {
    Config {
        agents: vec![agent],
        ..Config::default()
    }
}

/// What befalls an agent from outside before it is asked about an event.
pub(super) struct Trouble {
    wrong: Wrong,
    when: When,
    first: EventKind,
    inspector: Inspector,
    standing: Arc<Standing>,
    /// A request that waits long for its answers.
    other: Mutex<Option<Exchange>>,
    occupying: Mutex<JoinSet<()>>,
}

impl Trouble {
    /// Before an event: where it is the one, the agent is full, or has paused, when this returns.
    ///
    /// In a box, since what occupies the agent is shown to it by the same functions.
    pub(super) fn before(&self, when: When) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match self.wrong {
                _ if when != self.when => {}
                Wrong::Full => self.occupy().await,
                Wrong::Paused => {
                    self.standing.pause();
                    while self.inspector.ready(Duration::ZERO).await {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                Wrong::Slow | Wrong::Crashing | Wrong::Lying | Wrong::Garbling => {}
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
                occupying.spawn(probes::one(exchange, self.first, OCCUPIES));
            }
            let occupied = self.standing.occupied.notified();
            // Whoever is not occupied shows it in the outcome.
            let _ = tokio::time::timeout(READY, occupied).await;
        }
    }
}
