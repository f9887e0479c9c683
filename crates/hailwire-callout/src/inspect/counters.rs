//! Counters of one agent.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::AgentFault;
use crate::{EventKind, Text};

/// Counters of one agent; each only grows.
#[derive(Debug, Default)]
pub struct AgentCounters {
    phases: [PhaseCounters; EventKind::ALL.len()],
}

#[derive(Debug, Default)]
struct PhaseCounters {
    asked: AtomicU64,
    stopped: AtomicU64,
    observed: AtomicU64,
    blocked: [AtomicU64; AgentFault::ALL.len()],
    bypassed: [AtomicU64; AgentFault::ALL.len()],
}

impl AgentCounters {
    /// Events of a phase that were asked about.
    #[must_use]
    pub fn asked(&self, kind: EventKind) -> u64 {
        self.read(kind, |counts| &counts.asked)
    }

    /// Requests that the agent blocked, redirected or challenged.
    #[must_use]
    pub fn stopped(&self, kind: EventKind) -> u64 {
        self.read(kind, |counts| &counts.stopped)
    }

    /// Requests that would have been blocked, were the agent not in mode `observe`; by its decision or by a fault.
    #[must_use]
    pub fn observed(&self, kind: EventKind) -> u64 {
        self.read(kind, |counts| &counts.observed)
    }

    /// Requests that were blocked because the agent did not answer.
    #[must_use]
    pub fn blocked(&self, kind: EventKind, fault: AgentFault) -> u64 {
        self.read(kind, |counts| &counts.blocked[fault as usize])
    }

    /// Requests that passed although the agent did not answer.
    #[must_use]
    pub fn bypassed(&self, kind: EventKind, fault: AgentFault) -> u64 {
        self.read(kind, |counts| &counts.bypassed[fault as usize])
    }

    /// All bypasses.
    #[must_use]
    pub fn bypasses(&self) -> u64 {
        let pairs = EventKind::ALL
            .into_iter()
            .flat_map(|kind| AgentFault::ALL.map(|fault| (kind, fault)));
        pairs.map(|(kind, fault)| self.bypassed(kind, fault)).sum()
    }

    pub(super) fn count_asked(&self, kind: EventKind) {
        self.add(kind, |counts| &counts.asked);
    }

    pub(super) fn count_stopped(&self, kind: EventKind) {
        self.add(kind, |counts| &counts.stopped);
    }

    pub(super) fn count_observed(&self, kind: EventKind) {
        self.add(kind, |counts| &counts.observed);
    }

    pub(super) fn count_blocked(&self, kind: EventKind, fault: AgentFault) {
        self.add(kind, |counts| &counts.blocked[fault as usize]);
    }

    pub(super) fn count_bypassed(&self, kind: EventKind, fault: AgentFault) {
        self.add(kind, |counts| &counts.bypassed[fault as usize]);
    }

    fn read(&self, kind: EventKind, of: impl Fn(&PhaseCounters) -> &AtomicU64) -> u64 {
        of(&self.phases[kind as usize]).load(Relaxed)
    }

    fn add(&self, kind: EventKind, of: impl Fn(&PhaseCounters) -> &AtomicU64) {
        of(&self.phases[kind as usize]).fetch_add(1, Relaxed);
    }
}

/// A family of counters: its name, what it counts, and its value for an agent and phase.
type CounterFamily = (
    &'static str,
    &'static str,
    fn(&AgentCounters, EventKind) -> u64,
);

/// The same for each fault.
type FaultFamily = (
    &'static str,
    &'static str,
    fn(&AgentCounters, EventKind, AgentFault) -> u64,
);

const FAMILIES: [CounterFamily; 3] = [
    (
        "hail_callout_asked_total",
        "Events that an agent was asked about.",
        AgentCounters::asked,
    ),
    (
        "hail_callout_stopped_total",
        "Requests that an agent blocked, redirected or challenged.",
        AgentCounters::stopped,
    ),
    (
        "hail_callout_observed_total",
        "Requests that an agent in mode observe would have blocked.",
        AgentCounters::observed,
    ),
];

const FAULTS: [FaultFamily; 2] = [
    (
        "hail_callout_fault_blocked_total",
        "Requests that were blocked because an agent did not answer.",
        AgentCounters::blocked,
    ),
    (
        "hail_callout_bypassed_total",
        "Requests that passed although an agent did not answer.",
        AgentCounters::bypassed,
    ),
];

pub(super) fn to_prometheus(agents: &[(&Text, &Arc<AgentCounters>)]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, agents);
    out
}

fn write(out: &mut String, agents: &[(&Text, &Arc<AgentCounters>)]) -> std::fmt::Result {
    for (name, help, value) in FAMILIES {
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter")?;
        for (agent, tally) in agents {
            for kind in EventKind::ALL {
                let (agent, phase) = (label(agent), kind.name());
                let value = value(tally, kind);
                writeln!(out, "{name}{{agent=\"{agent}\",phase=\"{phase}\"}} {value}")?;
            }
        }
    }
    for (name, help, value) in FAULTS {
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter")?;
        for (agent, tally) in agents {
            for (kind, fault) in EventKind::ALL
                .into_iter()
                .flat_map(|kind| AgentFault::ALL.map(|fault| (kind, fault)))
            {
                let (agent, phase) = (label(agent), kind.name());
                let (value, fault) = (value(tally, kind, fault), fault.name());
                writeln!(
                    out,
                    "{name}{{agent=\"{agent}\",phase=\"{phase}\",fault=\"{fault}\"}} {value}"
                )?;
            }
        }
    }
    Ok(())
}

/// A label's value, escaped.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
