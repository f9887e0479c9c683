//! The proxy's side: one connection to an agent.
//!
//! A [`Connection`] is the same whatever carries it: a Unix socket, gRPC, a connection that the agent opened.
//! [`link`] is the half that they share: who waits for which answer, how much an agent takes at once, which
//! chunks of a body may be under way, how the agent is. A transport writes what it is handed and says what came.

pub mod dialect;
mod foreign;
pub mod grpc;
mod link;
mod request_table;
pub mod reverse;
mod stream;
pub mod uds;

use std::{fmt, sync::Arc, time::Duration};

use serde_json::Value;
use thiserror::Error;
use tokio::sync::mpsc;

pub(crate) use link::{ConnectionLink, EventTransport, LinkSettings, open};
pub(crate) use request_table::{MAX_ENTRIES, RequestTicket};
pub use stream::over;

use crate::{
    capabilities::Capabilities,
    control::{CancelReason, HealthState, Notice},
    event::Event,
    response::Response,
    wire::Encoding,
};

/// One connection to an agent. Clones are the same connection; it ends when the last of them is dropped.
#[derive(Clone)]
pub struct Connection(Arc<link::ConnectionHandle>);

impl Connection {
    /// Asks the agent about an event, and returns what it answers. How long to wait is the caller's.
    ///
    /// The event leaves when this is called, not when the future is polled. It may be called concurrently, for one
    /// request too: chunks of a body leave in the order of the calls.
    /// Toward a Hailwire agent they are pipelined, as far as the window of their request and direction goes;
    /// toward others one event of a request is under way, and the rest wait here.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, its slot is released and the agent is told that nobody waits. An answer
    /// that comes later is not looked at.
    ///
    /// # Errors
    ///
    /// [`RequestError`]. Nothing has been decided then.
    pub fn request(
        &self,
        event: Event,
    ) -> impl Future<Output = Result<Response, RequestError>> + Send + '_ {
        let asking = self.0.link.request(event);
        async move { asking?.await }
    }

    /// The agent's capabilities.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.0.link.capabilities()
    }

    /// How the connection is. Reads one atomic.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.0.link.state()
    }

    /// By how much the agent, which is degraded, wants deadlines stretched: 1 and more. Reads one atomic.
    #[must_use]
    pub fn timeout_multiplier(&self) -> f32 {
        self.0.link.timeout_multiplier()
    }

    /// How many callers wait for an answer. Reads one atomic.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.0.link.in_flight()
    }

    /// Tells the agent that nobody waits for what was asked about a request; whoever does gets
    /// [`RequestError::Cancelled`].
    pub fn cancel(&self, id: &str, reason: CancelReason) {
        self.0.link.cancel(id, reason);
    }

    /// How long the agent takes to say that it is there.
    ///
    /// # Errors
    ///
    /// [`RequestError::Closed`].
    pub async fn ping(&self) -> Result<Duration, RequestError> {
        self.0.link.ping().await
    }

    /// Ends the connection. Whoever waits gets [`RequestError::Closed`].
    pub fn close(&self) {
        self.0.link.close();
    }

    /// Returns when the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn closed(&self) {
        self.0.link.closed().await;
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("agent", &self.capabilities().agent_id)
            .field("state", &self.state())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Events may be sent.
    Open {
        /// What the agent last said of its health.
        health: HealthState,
        /// The agent has asked for nothing new.
        paused: bool,
    },
    /// The agent finishes what it has and takes no new request.
    Draining,
    /// It has ended.
    Closed,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The connection has ended.
    #[error("the connection to the agent has ended")]
    Closed,
    /// The agent accepts no new requests: it has paused the host, is draining, or is unhealthy.
    #[error("the agent accepts no new requests")]
    Paused,
    /// The agent is at its concurrency limit.
    #[error("the agent is at its concurrency limit")]
    Full,
    /// The body is larger than the agent accepts, or the event than a frame holds.
    #[error("larger than the agent accepts")]
    TooLarge,
    /// What the agent answered cannot be read.
    #[error("the answer could not be decoded: {0}")]
    Malformed(String),
    /// The agent does not want it, or the transport cannot carry it.
    #[error("refused: {0}")]
    Refused(String),
    /// [`Connection::cancel`] was called.
    #[error("cancelled")]
    Cancelled,
}

/// What happens to a new request while the agent has as many as it takes, or has paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverloadPolicy {
    /// It waits, in the order of the calls.
    #[default]
    Wait,
    /// It fails at once, with [`RequestError::Full`] or [`RequestError::Paused`]. Chunks of bodies wait all the same.
    Fail,
}

/// How a connection is opened.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// What the host is called. Default `hailwire`.
    pub host_id: String,
    /// Its version. Default that of this crate.
    pub host_version: String,
    /// The encodings that are offered, the best first. Default MessagePack, JSON.
    pub encodings: Vec<Encoding>,
    /// The agent's configuration: told in the handshake, and to an agent that takes configuration as an event
    /// that it has to accept. Default none.
    pub config: Option<Value>,
    /// The version of that configuration.
    pub config_version: Option<String>,
    /// Whether what only Hailwire speaks is offered. Default true.
    pub extensions: bool,
    /// How long everything until the first event may take. Default 5 s.
    pub connect_timeout: Duration,
    /// What happens to more than the agent takes. Default it waits.
    pub overload: OverloadPolicy,
    /// How long an agent of another implementation may owe an answer that nobody waits for any more, and answer nothing else; after that,
    /// and before twice that, the connection is given up, and whoever waits gets [`RequestError::Closed`]. Until the answer comes nothing
    /// more is asked about its request there. Default 10 s.
    pub late: Duration,
    /// Where the agent's notices go besides. One that finds no room is dropped. Default nowhere.
    pub notices: Option<mpsc::Sender<Notice>>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            host_id: "hailwire".to_owned(),
            host_version: env!("CARGO_PKG_VERSION").to_owned(),
            encodings: vec![Encoding::MessagePack, Encoding::Json],
            config: None,
            config_version: None,
            extensions: true,
            connect_timeout: Duration::from_secs(5),
            overload: OverloadPolicy::default(),
            late: Duration::from_secs(10),
            notices: None,
        }
    }
}

/// Why a connection could not be opened.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The agent cannot be reached, or went away.
    #[error("the agent cannot be reached")]
    Io(#[from] std::io::Error),
    /// The agent did not finish the handshake in time.
    #[error("the agent did not answer within {0:?}")]
    Timeout(Duration),
    /// What the agent sent is no handshake.
    #[error("invalid handshake: {0}")]
    Handshake(String),
    /// The agent does not want this host.
    #[error("refused by the agent: {0}")]
    Refused(String),
    /// The agent does not accept its configuration.
    #[error("the agent does not accept its configuration: {0}")]
    Configuration(String),
}
