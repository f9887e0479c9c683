//! The capabilities of an agent.

use serde::{Deserialize, Serialize};

use crate::event::EventKind;

/// The identity, events, features and limits of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Which agent this is.
    pub agent_id: String,
    /// Its name for people.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The events that it wants.
    pub events: EventKinds,
    /// What it can do.
    pub features: Features,
    /// Its limits.
    pub limits: AgentLimits,
}

/// A set of event kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventKinds(u16);

impl EventKinds {
    /// With one more.
    #[must_use]
    pub const fn with(self, kind: EventKind) -> Self {
        Self(self.0 | 1 << kind as u16)
    }

    /// Whether it is among them.
    #[must_use]
    pub const fn contains(self, kind: EventKind) -> bool {
        self.0 & 1 << kind as u16 != 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = EventKind> {
        EventKind::ALL
            .into_iter()
            .filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<EventKind> for EventKinds {
    fn from_iter<I: IntoIterator<Item = EventKind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::default(), Self::with)
    }
}

/// What an agent can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "as on the wire")]
pub struct Features {
    /// Bodies in chunks.
    pub streaming_body: bool,
    /// WebSocket frames.
    pub websocket: bool,
    /// Texts for language models.
    pub guardrails: bool,
    /// Configuration over the connection.
    pub config_push: bool,
    /// Reports of metrics.
    pub metrics_export: bool,
    /// Requests side by side on a connection; 0 for any number.
    pub concurrent_requests: u32,
    /// Cancels end the work.
    pub cancellation: bool,
    /// It says when it wants no more.
    pub flow_control: bool,
    /// It says how it is.
    pub health_reporting: bool,
}

/// The limits of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentLimits {
    /// Bytes of a body; larger ones are not shown to it. Default 10 MiB.
    pub max_body_size: u64,
    /// Requests at once on a connection. Default 100.
    pub max_concurrency: u32,
    /// Bytes of a chunk of a body. Default 64 KiB.
    pub preferred_chunk_size: u64,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            max_body_size: 10 << 20,
            max_concurrency: 100,
            preferred_chunk_size: 64 << 10,
        }
    }
}
