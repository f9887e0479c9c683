//! Counters of one agent.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::metrics::MetricType;

use super::AgentFault;
use crate::{
    EventKind,
    exposition::{MetricFamilies, MetricValue},
};

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

/// A family of counters: its name, what it counts, and its value for a phase.
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
        "callout_asked_total",
        "Events that an agent was asked about.",
        AgentCounters::asked,
    ),
    (
        "callout_stopped_total",
        "Requests that an agent blocked, redirected or challenged.",
        AgentCounters::stopped,
    ),
    (
        "callout_observed_total",
        "Requests that an agent in mode observe would have blocked.",
        AgentCounters::observed,
    ),
];

const FAULTS: [FaultFamily; 2] = [
    (
        "callout_fault_blocked_total",
        "Requests that were blocked because an agent did not answer.",
        AgentCounters::blocked,
    ),
    (
        "callout_bypassed_total",
        "Requests that passed although an agent did not answer.",
        AgentCounters::bypassed,
    ),
];

impl AgentCounters {
    /// Adds all of them to a scrape.
    pub(super) fn expose(&self, agent: &str, families: &mut MetricFamilies) {
        for (name, help, value) in FAMILIES {
            let family = families.own(name, MetricType::Counter, help, None);
            for kind in EventKind::ALL {
                let value = MetricValue::Counter(value(self, kind));
                family.sample(agent, [("phase", kind.name())], value);
            }
        }
        for (name, help, value) in FAULTS {
            let family = families.own(name, MetricType::Counter, help, None);
            for kind in EventKind::ALL {
                for fault in AgentFault::ALL {
                    let value = MetricValue::Counter(value(self, kind, fault));
                    let labels = [("phase", kind.name()), ("fault", fault.name())];
                    family.sample(agent, labels, value);
                }
            }
        }
    }
}
