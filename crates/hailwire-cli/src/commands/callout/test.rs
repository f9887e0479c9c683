//! `hail callout test`: what a configuration lets through.

use std::{path::PathBuf, sync::Arc};

use hailwire::{Code, config::LogLevel};
use hailwire_callout::{
    Decision, Kind,
    inspect::{
        Action, Config, Inspector,
        config::{AgentConfig, Place},
    },
};
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    Places, READY,
    faults::{self, When, Wrong},
    load,
    probes::{self, Fared, LARGE, PHASES, PROBES, Probe},
};
use crate::{
    commands::{Run, log},
    failure::Failure,
    table::Table,
    text,
};

/// What was tried.
#[derive(Debug, Serialize)]
struct Row {
    /// The agent that was replaced; empty for the configured ones as they are.
    agent: String,
    /// What was sent, or what went wrong.
    probe: &'static str,
    /// Where it went wrong, for an agent that was replaced.
    at: String,
    #[serde(flatten)]
    fared: Fared,
    /// What the configuration says should become of it; empty where it says nothing.
    expected: String,
    /// Whether it passed and should not have.
    forbidden: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    ready: bool,
    rows: Vec<Row>,
    bypasses: u64,
    let_through: usize,
    forbidden: usize,
}

pub(in crate::commands) async fn run(run: &Run, path: PathBuf, small: bool) -> Result<(), Failure> {
    log::start(run.log.unwrap_or(LogLevel::Error), run.output.colour_errors);
    let config = load(&path)?;
    let interrupted = async {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Failure::interrupted(),
            Err(error) => Failure::io("Ctrl-C cannot be noticed", &error),
        }
    };
    let report = tokio::select! {
        report = try_out(run, &config, small) => report?,
        failure = interrupted => return Err(failure),
    };
    let forbidden = report.forbidden;
    run.output
        .value(&report, |report| for_people(run, report))?;
    match forbidden {
        0 => Ok(()),
        n => Err(
            Failure::general(format!("{n} passed that the configuration forbids"))
                .hint("the rows marked with ! say which"),
        ),
    }
}

async fn try_out(run: &Run, config: &Config, small: bool) -> Result<Report, Failure> {
    let places = Places::new(run);
    let inspector = Inspector::from_config(config, &|agent, place| places.reach(agent, place))
        .map_err(|error| Failure::caused(Code::FailedPrecondition, &error))?;
    let ready = inspector.ready(READY).await;
    if !ready {
        run.output
            .note("not every agent is there; what is not answered is decided by the configuration");
    }
    let mut rows = Vec::new();
    let large = LARGE.iter().filter(|_| !small);
    for probe in PROBES.iter().chain(large) {
        let fared = probes::run(inspector.exchange(), probe).await;
        rows.push(as_configured(config, probe, fared));
    }
    let tallies = config
        .agents
        .iter()
        .filter_map(|agent| inspector.tally(&agent.name));
    let bypasses = tallies.map(|tally| tally.bypasses()).sum();
    rows.append(&mut go_wrong(config).await?);
    Ok(Report {
        ready,
        bypasses,
        let_through: rows.iter().filter(|row| row.fared.passed).count(),
        forbidden: rows.iter().filter(|row| row.forbidden).count(),
        rows,
    })
}

/// A request to the configured agents. A hostile one should not pass where a firewall looks at it.
fn as_configured(config: &Config, probe: &Probe, fared: Fared) -> Row {
    let guards = |agent: &AgentConfig, kind: Kind| {
        agent.kind.as_deref() == Some("waf")
            && !agent.rule.observe
            && agent.rule.events.is_none_or(|events| events.contains(kind))
    };
    let guarded = probe
        .hostile
        .is_some_and(|kind| config.agents.iter().any(|agent| guards(agent, kind)));
    let expected = match (probe.hostile, guarded) {
        (Some(_), true) => "blocked",
        (None, _) => "passed",
        _ => "",
    };
    Row {
        agent: String::new(),
        probe: probe.name,
        at: String::new(),
        expected: expected.to_owned(),
        forbidden: guarded && fared.passed,
        fared,
    }
}

/// Every agent in turn replaced by one that goes wrong, in every phase.
async fn go_wrong(config: &Config) -> Result<Vec<Row>, Failure> {
    let folder = tempfile::tempdir()
        .map_err(|error| Failure::io("no folder for the agents that go wrong", &error))?;
    let mut tried = JoinSet::new();
    let kinds = [
        (Kind::RequestHeaders, false),
        (Kind::RequestBody, false),
        (Kind::RequestBody, true),
        (Kind::ResponseHeaders, false),
        (Kind::ResponseBody, false),
        (Kind::ResponseBody, true),
    ];
    let mut order = 0_usize;
    for agent in &config.agents {
        for wrong in Wrong::ALL {
            for (kind, mid_body) in kinds {
                let asked = agent.rule.events.is_none_or(|events| events.contains(kind));
                if !asked {
                    continue;
                }
                let socket = folder.path().join(format!("{order}.sock"));
                let when = When { kind, mid_body };
                let (agent, place) = (agent.clone(), order);
                tried.spawn(async move { (place, goes_wrong(agent, wrong, when, socket).await) });
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
async fn goes_wrong(
    agent: AgentConfig,
    wrong: Wrong,
    when: When,
    socket: PathBuf,
) -> Result<Row, Failure> {
    let expected = match agent.rule.on(when.kind, wrong.fault()) {
        _ if agent.rule.observe => Decision::Allow,
        Action::Allow => Decision::Allow,
        Action::Block(status) => hailwire_callout::Response::block(status).decision,
    };
    let mut alone = AgentConfig {
        places: vec![Place::BinaryUds(socket.clone())],
        dialect: None,
        config: None,
        ..agent
    };
    alone.pool.connections = Some(1);
    // Both pieces of a body have to reach it, each by itself.
    alone.rule.request_body.mode = hailwire_callout::inspect::BodyMode::Stream;
    alone.rule.response_body.mode = hailwire_callout::inspect::BodyMode::Stream;
    let name = alone.name.clone();
    let config = Config {
        agents: vec![alone],
        ..Config::default()
    };
    let faulty = tokio::spawn(faults::serve(socket, wrong, when));
    let inspector = Inspector::from_config(&config, &|_, _| None)
        .map_err(|error| Failure::caused(Code::Internal, &error))?;
    let inspector = Arc::new(inspector);
    if !inspector.ready(READY).await {
        return Err(Failure::general(
            "an agent that should go wrong does not even start",
        ));
    }
    let fared = probes::run(inspector.exchange(), &PHASES).await;
    faulty.abort();
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

fn for_people(run: &Run, report: &Report) -> String {
    let mut table = Table::new(["", "AGENT", "PROBE", "AT", "OUTCOME", "EXPECTED", "TOOK"]);
    for row in &report.rows {
        let took: Vec<String> = row
            .fared
            .took
            .iter()
            .map(|(phase, micros)| {
                let time = text::time(std::time::Duration::from_micros(*micros));
                format!("{phase} {time}")
            })
            .collect();
        table.row([
            if row.forbidden { "!" } else { "" }.to_owned(),
            row.agent.clone(),
            row.probe.to_owned(),
            row.at.clone(),
            row.fared.outcome.clone(),
            row.expected.clone(),
            took.join(", "),
        ]);
    }
    let mut out = table.render(run.output.colour);
    let (tried, passed) = (report.rows.len(), report.let_through);
    out.push_str(&format!(
        "{passed} of {tried} passed, {} uninspected, {} against the configuration\n",
        report.bypasses, report.forbidden
    ));
    out
}
