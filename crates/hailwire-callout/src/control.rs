//! Control messages, which pass beside the events of requests.
//!
//! From the agent: its health ([`AgentHealth`]), what it counted ([`MetricsReport`]), that it pauses or resumes its host
//! ([`FlowControl`]), that its configuration should change ([`ConfigUpdate`]). From the host: that it no longer waits for an
//! answer ([`Cancel`]), liveness checks ([`Ping`]), and commands to the agent as a whole ([`AgentCommand`]).

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::Text;

/// What an agent sends its host outside of answers.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is named like what it carries")]
pub enum Notice {
    Health(AgentHealth),
    Metrics(MetricsReport),
    ConfigUpdate(ConfigUpdate),
    Flow(FlowControl),
    Log(LogLine),
}

/// The health of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentHealth {
    /// The state.
    pub state: HealthState,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Requests in the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// While it drains: milliseconds until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_eta_ms: Option<u64>,
    /// While it is degraded: by how much deadlines should be stretched, 1 and more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_multiplier: Option<f32>,
}

/// The health of an agent as a state; on the wire a number from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum HealthState {
    /// It takes everything.
    #[default]
    Healthy,
    /// It takes everything, slower.
    Degraded,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It takes nothing.
    Unhealthy,
}

impl From<HealthState> for u8 {
    fn from(state: HealthState) -> Self {
        match state {
            HealthState::Healthy => 1,
            HealthState::Degraded => 2,
            HealthState::Draining => 3,
            HealthState::Unhealthy => 4,
        }
    }
}

impl TryFrom<u8> for HealthState {
    type Error = String;

    fn try_from(code: u8) -> Result<Self, String> {
        Ok(match code {
            1 => Self::Healthy,
            2 => Self::Degraded,
            3 => Self::Draining,
            4 => Self::Unhealthy,
            _ => return Err(format!("unknown health state {code}")),
        })
    }
}

/// What an agent counted since its last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricsReport {
    /// The agent.
    pub agent_id: String,
    /// When, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// Since when.
    pub interval_ms: u64,
    /// What only grows.
    #[serde(default)]
    pub counters: Vec<Metric<u64>>,
    /// What goes up and down.
    #[serde(default)]
    pub gauges: Vec<Metric<f64>>,
    /// Distributions.
    #[serde(default)]
    pub histograms: Vec<HistogramMetric>,
}

/// A counter or gauge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metric<T> {
    /// Its name, as Prometheus has them.
    pub name: String,
    /// What it says.
    #[serde(default)]
    pub help: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: T,
}

/// A distribution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramMetric {
    /// Its name, as Prometheus has them.
    pub name: String,
    /// What it says.
    #[serde(default)]
    pub help: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The sum of what was seen.
    pub sum: f64,
    /// How much was seen.
    pub count: u64,
    /// Cumulative, in ascending order.
    pub buckets: Vec<HistogramBucket>,
}

/// How much was at most so large.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistogramBucket {
    /// The upper bound: a number, or the text `+Inf`.
    pub le: serde_json::Value,
    /// How much was.
    pub count: u64,
}

/// A change of configuration that an agent asks its host for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigUpdate {
    /// What.
    pub update_type: ConfigUpdateKind,
    /// The id of this update.
    pub request_id: String,
    /// When, in milliseconds since 1970.
    pub timestamp_ms: u64,
}

/// The kind of a configuration update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are what they are called")]
pub enum ConfigUpdateKind {
    /// Its configuration anew.
    RequestReload,
    /// Other rules.
    RuleUpdate {
        rule_set: String,
        rules: Vec<RuleDefinition>,
        #[serde(default)]
        remove_rules: Vec<String>,
    },
    /// Another list.
    ListUpdate {
        list_id: String,
        #[serde(default)]
        add: Vec<String>,
        #[serde(default)]
        remove: Vec<String>,
    },
    /// To be started anew.
    RestartRequired {
        reason: String,
        grace_period_ms: u64,
    },
    /// To say that its configuration is wrong.
    ConfigError {
        error: String,
        #[serde(default)]
        field: Option<String>,
    },
}

/// A rule of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleDefinition {
    /// Its name.
    pub id: String,
    /// Which comes first.
    pub priority: i32,
    /// What it says.
    pub definition: serde_json::Value,
    /// Whether it is used.
    pub enabled: bool,
    /// For people.
    #[serde(default)]
    pub description: Option<String>,
    /// Such as `sqli`.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// Flow control: an agent pauses its host, or resumes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowControl {
    /// Nothing new, for one request or for all.
    Pause(Option<Text>),
    /// Go on.
    Resume(Option<Text>),
}

/// The host no longer waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The request.
    pub correlation_id: Text,
    /// Why.
    pub reason: CancelReason,
    /// When, in milliseconds since 1970.
    pub timestamp_ms: u64,
}

/// Why nobody waits; over a Unix socket a number from 0, over gRPC from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's words")]
pub enum CancelReason {
    #[default]
    ClientDisconnect,
    Timeout,
    BlockedByAgent,
    UpstreamError,
    ProxyShutdown,
    Manual,
}

/// A liveness check; the answer has the same fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Which one.
    pub sequence: u64,
    /// When, in milliseconds since 1970.
    pub timestamp_ms: u64,
}

/// A line for the host's log. Only over gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLine {
    /// 1 debug, 2 info, 3 warn, 4 error.
    pub level: u8,
    /// The line.
    pub message: String,
    /// The request that it is about.
    pub correlation_id: Option<String>,
}

/// A command of a host that concerns the agent as a whole. Only over gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentCommand {
    /// Finish what there is and expect nothing new.
    Drain {
        /// Within this time.
        within: Duration,
        /// Why.
        reason: DrainReason,
    },
    /// End.
    Shutdown {
        /// Within this time.
        within: Duration,
        /// Why.
        reason: ShutdownReason,
    },
}

/// Why an agent should finish what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's words")]
pub enum DrainReason {
    ConfigReload,
    Maintenance,
    HealthCheckFailed,
    #[default]
    Manual,
}

/// Why an agent should end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's words")]
pub enum ShutdownReason {
    #[default]
    Graceful,
    Immediate,
    ConfigReload,
    Upgrade,
}
