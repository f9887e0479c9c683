//! The handshake of an agent that listens.

use std::{future::poll_fn, io, sync::Arc, time::Duration};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Agent, events, features, session};
use crate::{
    capabilities::Capabilities,
    stream::{self, FrameReceiver, FrameSender, WINDOW},
    wire::{
        Encoding,
        frame::FrameType,
        handshake::{self, HandshakeRequest, HandshakeResponse, WireExtensions},
    },
};

/// How an agent is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The encodings that it speaks. A host that speaks none of them gets JSON. Default both.
    pub encodings: Vec<Encoding>,
    /// Whether what only Hailwire speaks is agreed to. Default true.
    pub extensions: bool,
    /// Bytes in flight of one direction of a request's body. Default 512 KiB.
    pub window: u32,
    /// How long a handshake may take. Default 10 s.
    pub handshake_timeout: Duration,
    /// How many hosts may be connected through one listener; more are not accepted meanwhile. Default 16,384.
    pub max_connections: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            encodings: vec![Encoding::MessagePack, Encoding::Json],
            extensions: true,
            window: WINDOW,
            handshake_timeout: Duration::from_secs(10),
            max_connections: 16 << 10,
        }
    }
}

/// Why a connection of an agent has ended.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The stream failed, or what came through it is not the protocol.
    #[error("connection to the host lost")]
    Io(#[from] io::Error),
    /// The host did not finish the handshake in time.
    #[error("no handshake from the host within {0:?}")]
    Timeout(Duration),
    /// What the host sent is no handshake.
    #[error("invalid handshake: {0}")]
    Handshake(String),
    /// The host does not want this agent.
    #[error("refused by the host: {0}")]
    Refused(String),
}

/// Serves an agent over a pair of byte streams that a host opened, until the host leaves.
///
/// # Errors
///
/// [`ServeError`].
///
/// # Cancel safety
///
/// The connection is closed, and every handler of it is dropped.
pub async fn serve<A, T>(agent: Arc<A>, io: T, options: &ServeOptions) -> Result<(), ServeError>
where
    A: Agent,
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (read, write) = tokio::io::split(io);
    halves(agent, read, write, options).await
}

pub(super) async fn halves<A, R, W>(
    agent: Arc<A>,
    read: R,
    write: W,
    options: &ServeOptions,
) -> Result<(), ServeError>
where
    A: Agent,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut incoming = FrameReceiver::new(read);
    let outgoing = FrameSender::new(write);
    let greeting = greet(&*agent, &mut incoming, &outgoing, options);
    let settled = tokio::time::timeout(options.handshake_timeout, greeting)
        .await
        .unwrap_or(Err(ServeError::Timeout(options.handshake_timeout)))?;
    Ok(session::run(agent, incoming, outgoing, settled).await?)
}

/// The capabilities of an agent.
pub(crate) fn capabilities<A: Agent>(agent: &A) -> Capabilities {
    let limits = agent.limits();
    Capabilities {
        agent_id: agent.name().to_owned(),
        name: agent.name().to_owned(),
        version: agent.version().to_owned(),
        events: events::<A>(),
        features: features::<A>(&limits),
        limits,
    }
}

/// The extensions that an agent offers or agrees to.
pub(super) fn extensions(options: &ServeOptions) -> WireExtensions {
    WireExtensions {
        raw_bodies: true,
        window: options.window,
        ..WireExtensions::default()
    }
}

async fn greet<A, R, W>(
    agent: &A,
    incoming: &mut FrameReceiver<R>,
    outgoing: &FrameSender<W>,
    options: &ServeOptions,
) -> Result<session::AgentSessionParams, ServeError>
where
    A: Agent,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (code, payload) = stream::frame(incoming).await?;
    if code != FrameType::Handshake.code() {
        let said = format!("expected a handshake frame, got frame type {code:#04x}");
        return Err(ServeError::Handshake(said));
    }
    let mut welcome = HandshakeResponse {
        capabilities: capabilities(agent),
        ..HandshakeResponse::default()
    };
    let hello = handshake::decode::<HandshakeRequest>(&payload).map_err(|error| error.to_string());
    let hello = hello.and_then(|hello| {
        if hello.supported_versions.contains(&crate::VERSION) {
            Ok(hello)
        } else {
            Err(format!("version {} is spoken", crate::VERSION))
        }
    });
    let refused = match &hello {
        Ok(hello) => {
            welcome.encoding = choose(&hello.supported_encodings, options);
            let ours = hello.extensions.as_ref().filter(|_| options.extensions);
            welcome.extensions = ours
                .filter(|ours| ours.raw_bodies)
                .map(|ours| WireExtensions {
                    window: ours.window.min(options.window),
                    ..extensions(options)
                });
            None
        }
        Err(error) => {
            welcome.success = false;
            welcome.error = Some(error.clone());
            Some(error.clone())
        }
    };
    let code = FrameType::HandshakeAnswer.code();
    outgoing
        .frame(code, |out| handshake::encode(&welcome, out))
        .map_err(|error| ServeError::Handshake(error.to_string()))?;
    poll_fn(|context| outgoing.poll_write(context)).await?;
    match (hello, refused) {
        (Ok(hello), None) => Ok(session::AgentSessionParams {
            host_id: hello.proxy_id,
            host_version: hello.proxy_version,
            encoding: welcome.encoding,
            numbered: welcome.extensions.is_some(),
        }),
        (_, refused) => Err(ServeError::Handshake(refused.unwrap_or_default())),
    }
}

/// The first encoding of the host's that is spoken here.
fn choose(offered: &[Encoding], options: &ServeOptions) -> Encoding {
    let spoken = |encoding: &&Encoding| options.encodings.contains(encoding);
    offered.iter().find(spoken).copied().unwrap_or_default()
}
