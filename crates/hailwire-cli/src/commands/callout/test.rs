//! `hail callout test`: what a configuration lets through.

use std::path::PathBuf;

use hailwire::Code;
use hailwire_callout::{
    EventKind,
    inspect::{Config, Inspector, config::AgentConfig},
};
use hailwire_terminal::{failure::Failure, log, table::Table, text};
use serde::Serialize;
use tracing::Level;

use super::{
    Places, READY, load,
    probes::{self, Fared, LARGE, PROBES, PROMPTS},
    replaced,
};
use crate::commands::Run;

/// What was tried.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// The agent that was replaced; empty for the configured ones as they are.
    pub(super) agent: String,
    /// What was sent, or what went wrong.
    pub(super) probe: &'static str,
    /// Where it went wrong, for an agent that was replaced.
    pub(super) at: String,
    #[serde(flatten)]
    pub(super) fared: Fared,
    /// What the configuration says should become of it; empty where it says nothing.
    pub(super) expected: String,
    /// Whether it passed and should not have.
    pub(super) forbidden: bool,
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
    log::start(run.log.unwrap_or(Level::ERROR), run.output.colour_errors);
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
        let fared = probes::run(inspector.exchange(), probe, None).await;
        rows.push(as_configured(config, probe.name, probe.hostile, fared));
    }
    let texts = inspector.exchange().wants(EventKind::Guardrail);
    for prompt in PROMPTS.iter().filter(|_| texts) {
        let fared = probes::prompt(inspector.exchange(), prompt).await;
        let hostile = prompt.hostile.then_some(EventKind::Guardrail);
        rows.push(as_configured(config, prompt.name, hostile, fared));
    }
    let counters = config
        .agents
        .iter()
        .filter_map(|agent| inspector.counters(&agent.name));
    let bypasses = counters.map(|tally| tally.bypasses()).sum();
    rows.append(&mut replaced::all(config, texts).await?);
    Ok(Report {
        ready,
        bypasses,
        let_through: rows.iter().filter(|row| row.fared.passed).count(),
        forbidden: rows.iter().filter(|row| row.forbidden).count(),
        rows,
    })
}

/// What is shown to the configured agents. What is hostile should not pass where a firewall, or for texts a guardrail,
/// looks at it.
fn as_configured(
    config: &Config,
    probe: &'static str,
    hostile: Option<EventKind>,
    fared: Fared,
) -> Row {
    let guards = |agent: &AgentConfig, kind: EventKind| {
        let guard = match kind {
            EventKind::Guardrail => "guardrail",
            _ => "waf",
        };
        agent.kind.as_deref() == Some(guard)
            && !agent.rule.observe
            && agent.rule.events.is_none_or(|events| events.contains(kind))
    };
    let guarded = hostile.is_some_and(|kind| config.agents.iter().any(|agent| guards(agent, kind)));
    let expected = match (hostile, guarded) {
        (Some(EventKind::Guardrail), true) => "blocked or redacted",
        (Some(_), true) => "blocked",
        (None, _) => "passed",
        _ => "",
    };
    Row {
        agent: String::new(),
        probe,
        at: String::new(),
        expected: expected.to_owned(),
        forbidden: guarded && fared.passed,
        fared,
    }
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
