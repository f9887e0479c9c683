//! The configuration of a proxy's agents, in [KDL 2](https://kdl.dev), as operators of this protocol know it.
//!
//! ```kdl
//! agents {
//!     agent "waf" type="waf" {
//!         binary-uds "/run/hail/waf.sock"
//!         hail "waf@edge-2"
//!         events "request_headers" "request_body"
//!         buffer-size 65536
//!         timeout-ms 50
//!         on-timeout "block"
//!         phase "request_body" { timeout-ms 200; on-error "allow" }
//!     }
//! }
//! listen { ext-proc "127.0.0.1:9000"; reverse "/run/hail/agents.sock"; token "…" }
//! ```
//!
//! Agents are asked in the order of the file. An agent has one or several *endpoints*; the first is asked while it is
//! there and has room, then the next. A mistake in the file is reported with line and column, and an unknown
//! name is answered with the nearest known one.
//!
//! [`SETTINGS`] lists every setting with its default; `docs/reference/callout.md` is held to it by a test.

mod address;
mod parse;
mod settings;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use hailwire_pool::Strategy;

use super::{AgentRule, FallbackAction};
use crate::{host::dialect::Dialect, pool::PoolConfig};

pub use address::ListenAddress;
pub use hailwire_kdl::{FileError as ConfigError, MAX_FILE, SettingRow};
pub use settings::SETTINGS;

/// Whom a proxy asks, and where it listens for those who ask it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// `agents { agent … }`: in the order in which they are asked. At most [`Config::MAX_AGENTS`].
    pub agents: Vec<AgentConfig>,
    /// `listen { … }`.
    pub listen: ListenConfig,
}

/// `agent "…" { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentConfig {
    /// Its name: 1 to 64 of letters, digits and `-_.`.
    pub name: String,
    /// `type`: what it is, for people.
    pub kind: Option<String>,
    /// Its endpoints, the nearest first. 1 to [`Config::MAX_ENDPOINTS`].
    pub endpoints: Vec<AgentEndpoint>,
    /// What it is asked, and what happens when it does not answer.
    pub rule: AgentRule,
    /// `dialect`: which of those that call themselves v2 it speaks. Default: told apart.
    pub dialect: Option<Dialect>,
    /// `connect-timeout-ms`: how long a connection may take to stand. Default 5 s.
    pub connect_timeout: Duration,
    /// `pool { … }`.
    pub pool: PoolSettings,
    /// `circuit-breaker { … }`. Default: the pool's own.
    pub breaker: BreakerSettings,
    /// `config { … }`: what is pushed to the agent. Default: nothing.
    pub config: Option<serde_json::Value>,
}

/// The endpoint of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AgentEndpoint {
    /// `unix-socket "PATH"`: a Unix socket, JSON.
    UnixSocket(PathBuf),
    /// `binary-uds "PATH"`: a Unix socket, MessagePack where the agent speaks it, bodies as they are where it is one
    /// of ours.
    BinaryUds(PathBuf),
    /// `grpc "HOST:PORT" { … }`.
    Grpc {
        /// The host and its port.
        address: String,
        /// What is said about TLS; plain text without.
        tls: Option<TlsFiles>,
    },
    /// `reverse ["ID"]`: the agent connects to `listen.reverse` and registers under this id. Default: its name.
    Reverse(String),
    /// `hail "NAME@NODE"`: an agent that is attached to a node of the overlay.
    Hail {
        /// The name that it is attached under.
        agent: String,
        /// The node.
        node: String,
    },
}

/// Files in PEM, read whenever a connection is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsFiles {
    /// `ca-cert`: who signs the agent's certificate.
    pub ca: PathBuf,
    /// `client-cert` and `client-key`: what is shown to the agent.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// `server-name`: the name in the agent's certificate. Default: the host in the address.
    pub name: Option<String>,
}

impl fmt::Display for AgentEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnixSocket(path) => write!(f, "unix-socket {}", path.display()),
            Self::BinaryUds(path) => write!(f, "binary-uds {}", path.display()),
            Self::Grpc { address, .. } => write!(f, "grpc {address}"),
            Self::Reverse(id) => write!(f, "reverse {id}"),
            Self::Hail { agent, node } => write!(f, "hail {agent}@{node}"),
        }
    }
}

/// `pool { … }`: what is said about the connections to each endpoint; the rest is the preset's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSettings {
    /// `preset`.
    pub preset: Preset,
    /// `strategy`.
    pub strategy: Option<Strategy>,
    /// `connections`: 1 to 64.
    pub connections: Option<u32>,
    /// `max-in-flight`: requests at once on a connection, 1 to 65536.
    pub max_in_flight: Option<u32>,
    /// `max-timeout-multiplier`: by how much an agent that is degraded may stretch its time, 1 to 10. Default 1, not at all.
    pub stretch: Option<u8>,
    /// `drain-timeout-ms`: how long requests may take to finish on a connection that is given up.
    pub drain_timeout: Option<Duration>,
}

/// Settings of a pool that belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// For anything.
    #[default]
    Default,
    /// Many requests at once.
    HighThroughput,
    /// Few requests at once, each of which somebody waits for.
    LowLatency,
    /// Large bodies.
    BodyInspection,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Default,
        Self::HighThroughput,
        Self::LowLatency,
        Self::BodyInspection,
    ];

    /// The name, as in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::HighThroughput => "high_throughput",
            Self::LowLatency => "low_latency",
            Self::BodyInspection => "body_inspection",
        }
    }
}

impl Preset {
    /// The settings.
    #[must_use]
    pub fn pool(self) -> PoolConfig {
        match self {
            Self::Default => PoolConfig::default(),
            Self::HighThroughput => PoolConfig::high_throughput(),
            Self::LowLatency => PoolConfig::low_latency(),
            Self::BodyInspection => PoolConfig::body_inspection(),
        }
    }
}

impl FromStr for Preset {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|preset| preset.name() == text);
        found.ok_or("expected default, high_throughput, low_latency or body_inspection")
    }
}

/// `circuit-breaker { … }`: when an endpoint is not used for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerSettings {
    /// `failure-threshold`: failures in a row after which it opens.
    pub failures: Option<u8>,
    /// `success-threshold`: answers in a row after which it closes.
    pub successes: Option<u8>,
    /// `timeout-seconds`: how long it stays open.
    pub open_for: Option<Duration>,
    /// `half-open-max-requests`: requests that try whether it is well again.
    pub trials: Option<u8>,
}

/// `listen { … }`: where `hail callout serve` is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenConfig {
    /// `ext-proc`: for Envoy. At most [`Config::MAX_LISTEN`].
    pub ext_proc: Vec<ListenAddress>,
    /// `spoe`: for HAProxy. At most [`Config::MAX_LISTEN`].
    pub spoe: Vec<ListenAddress>,
    /// `reverse`: the Unix socket that agents connect to.
    pub reverse: Option<PathBuf>,
    /// `token`: an agent that connects says one of these. Default: none is asked for. At most
    /// [`Config::MAX_LISTEN`].
    pub tokens: Vec<AgentToken>,
    /// `on-unseen-body`: what becomes of a body that an agent wants and the proxy does not show. Default: block with 503.
    pub unseen_body: Option<FallbackAction>,
    /// `metrics`: HTTP, for Prometheus.
    pub metrics: Option<SocketAddr>,
}

/// A secret that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentToken(String);

impl AgentToken {
    /// The secret.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AgentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl FromStr for AgentToken {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.len() {
            8..=512 => Ok(Self(text.to_owned())),
            _ => Err("invalid token; use 8 to 512 bytes"),
        }
    }
}

impl Config {
    /// Most agents.
    pub const MAX_AGENTS: usize = 64;
    /// Most endpoints of one agent.
    pub const MAX_ENDPOINTS: usize = 8;
    /// Most addresses or tokens of one kind.
    pub const MAX_LISTEN: usize = 8;

    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: it cannot be read, is larger than [`MAX_FILE`], or is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&hailwire_kdl::read(path)?, path)
    }

    /// Parses the text of a file; `path` is only for messages.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for the first mistake.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        parse::config(text).map_err(|mistake| mistake.in_file(text, path))
    }
}
