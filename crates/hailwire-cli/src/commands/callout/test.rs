//! `hail callout test`: what a configuration lets through.

use std::path::PathBuf;

use hailwire::Code;
use hailwire_callout::{
    EventKind,
    inspect::{Config, Inspector, config::AgentConfig},
};
use hailwire_terminal::{failure::CommandFailure, log, table::TextTable, text};
use serde::Serialize;
use tracing::Level;

use super::{
    EndpointConnectors, READY_TIMEOUT, fault_trials, load,
    probes::{self, LARGE, PROBES, PROMPTS, ProbeResult},
};
use crate::commands::CommandContext;

/// A test and its result.
#[derive(Debug, Serialize)]
pub(super) struct TestRow {
    /// The agent that was replaced; empty for the configured ones.
    pub(super) agent: String,
    /// The request, or the fault.
    pub(super) probe: &'static str,
    /// The event of the fault, for an agent that was replaced.
    pub(super) at: String,
    #[serde(flatten)]
    pub(super) result: ProbeResult,
    /// The decision that the configuration demands; empty if it demands none.
    pub(super) expected: String,
    /// Whether it passed although it should not have.
    pub(super) forbidden: bool,
    /// Whether anything else happened than the configuration demands: it was forbidden, or a harmless request was
    /// blocked, or a fault was answered in another way.
    pub(super) unexpected: bool,
}

#[derive(Debug, Serialize)]
struct TestReport {
    ready: bool,
    rows: Vec<TestRow>,
    bypasses: u64,
    let_through: usize,
    forbidden: usize,
    unexpected: usize,
}

pub(in crate::commands) async fn run(
    run: &CommandContext,
    path: PathBuf,
    small: bool,
) -> Result<(), CommandFailure> {
    log::start(run.log.unwrap_or(Level::ERROR), run.output.log_style());
    let config = load(&path)?;
    let interrupted = async {
        match tokio::signal::ctrl_c().await {
            Ok(()) => CommandFailure::interrupted(),
            Err(error) => CommandFailure::io("cannot handle Ctrl-C", &error),
        }
    };
    let report = tokio::select! {
        report = try_out(run, &config, small) => report?,
        failure = interrupted => return Err(failure),
    };
    run.output
        .value(&report, |report| for_people(run, report))?;
    report.verdict().map_or(Ok(()), Err)
}

impl TestReport {
    /// Why the test has failed; nothing where it has not.
    fn verdict(&self) -> Option<CommandFailure> {
        let away = "not every agent is connected";
        let unexpected = format!(
            "{} of {} probes did not behave as configured",
            self.unexpected,
            self.rows.len()
        );
        let failed = match (self.ready, self.unexpected) {
            (true, 0) => return None,
            (false, 0) => {
                CommandFailure::general(away).hint("start what is missing, and test again")
            }
            (true, _) => CommandFailure::general(unexpected).hint("see the rows marked with !"),
            (false, _) => CommandFailure::general(format!("{away}, and {unexpected}"))
                .hint("start what is missing, and see the rows marked with !"),
        };
        Some(failed)
    }

    /// What the probes showed, in a line.
    fn summary(&self) -> String {
        let tried = self.rows.len();
        let which = match self.unexpected {
            0 => format!("all {tried} probes behaved as configured"),
            n => format!("{n} of {tried} probes did not behave as configured"),
        };
        let (allowed, uninspected) = (self.let_through, self.bypasses);
        let blocked = tried - allowed;
        format!("{which}: {allowed} allowed, {blocked} blocked, {uninspected} uninspected\n")
    }
}

async fn try_out(
    run: &CommandContext,
    config: &Config,
    small: bool,
) -> Result<TestReport, CommandFailure> {
    let connectors = EndpointConnectors::new(run);
    let inspector = Inspector::from_config(config, &|agent, place| connectors.reach(agent, place))
        .map_err(|error| CommandFailure::caused(Code::FailedPrecondition, &error))?;
    let ready = inspector.ready(READY_TIMEOUT).await;
    if !ready {
        run.output
            .note("not every agent is connected; the configuration decides requests that are not answered");
    }
    let mut rows = Vec::new();
    let large = LARGE.iter().filter(|_| !small);
    for probe in PROBES.iter().chain(large) {
        let result = probes::run(inspector.exchange(), probe, None).await;
        rows.push(as_configured(config, probe.name, probe.hostile, result));
    }
    let texts = inspector.exchange().wants(EventKind::Guardrail);
    for prompt in PROMPTS.iter().filter(|_| texts) {
        let result = probes::prompt(inspector.exchange(), prompt).await;
        let hostile = prompt.hostile.then_some(EventKind::Guardrail);
        rows.push(as_configured(config, prompt.name, hostile, result));
    }
    let counters = config
        .agents
        .iter()
        .filter_map(|agent| inspector.counters(&agent.name));
    let bypasses = counters.map(|tally| tally.bypasses()).sum();
    rows.append(&mut fault_trials::all(config, texts).await?);
    Ok(TestReport {
        ready,
        bypasses,
        let_through: rows.iter().filter(|row| row.result.passed).count(),
        forbidden: rows.iter().filter(|row| row.forbidden).count(),
        unexpected: rows.iter().filter(|row| row.unexpected).count(),
        rows,
    })
}

/// The requests for the configured agents. Hostile ones should not pass if a firewall, or for texts a guardrail, inspects
/// them.
fn as_configured(
    config: &Config,
    probe: &'static str,
    hostile: Option<EventKind>,
    result: ProbeResult,
) -> TestRow {
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
    TestRow {
        agent: String::new(),
        probe,
        at: String::new(),
        expected: expected.to_owned(),
        forbidden: guarded && result.passed,
        unexpected: (guarded && result.passed) || (hostile.is_none() && !result.passed),
        result,
    }
}

fn for_people(run: &CommandContext, report: &TestReport) -> String {
    let mut table = TextTable::new(["", "AGENT", "PROBE", "AT", "OUTCOME", "EXPECTED", "TOOK"]);
    for row in &report.rows {
        let took: Vec<String> = row
            .result
            .took
            .iter()
            .map(|(phase, micros)| {
                let time = text::time(std::time::Duration::from_micros(*micros));
                format!("{phase} {time}")
            })
            .collect();
        table.row([
            if row.unexpected { "!" } else { "" }.to_owned(),
            row.agent.clone(),
            row.probe.to_owned(),
            row.at.clone(),
            row.result.outcome.clone(),
            row.expected.clone(),
            took.join(", "),
        ]);
    }
    let mut out = table.render(run.output.table_style());
    out.push_str(&report.summary());
    out
}
