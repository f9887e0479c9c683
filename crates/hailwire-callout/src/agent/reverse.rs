//! An agent that dials its host and registers there.

use std::{
    future::poll_fn,
    hash::{BuildHasher as _, RandomState},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use super::{
    Agent, ServeError, ServeOptions,
    serve::{capabilities, extensions},
    session,
};
use crate::{
    stream::{self, FrameReceiver, FrameSender},
    wire::{
        Encoding,
        frame::FrameType,
        handshake::{self, RegistrationRequest, RegistrationResponse, WireExtensions},
    },
};

/// How an agent dials.
#[derive(Clone, Debug)]
pub struct DialOptions {
    /// What shows that it may. Default none.
    pub token: Option<String>,
    /// Anything that the host should know. Default null.
    pub metadata: Value,
    /// The first pause between attempts; each is twice as long as the one before, and shortened by up to half, so
    /// that many agents do not come at once. Default 100 ms.
    pub least_pause: Duration,
    /// The longest pause. Default 30 s.
    pub longest_pause: Duration,
    /// How it is served.
    pub serve: ServeOptions,
}

impl Default for DialOptions {
    fn default() -> Self {
        Self {
            token: None,
            metadata: Value::Null,
            least_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(30),
            serve: ServeOptions::default(),
        }
    }
}

/// Dials the host that listens at a Unix socket, and serves it; again and again, when the connection ends.
///
/// # Errors
///
/// [`ServeError::Refused`] when the host does not want this agent. Anything else is tried again.
///
/// # Cancel safety
///
/// The connection is closed, and every handler of it is dropped.
pub async fn dial<A: Agent>(
    agent: Arc<A>,
    path: impl AsRef<Path>,
    options: &DialOptions,
) -> Result<(), ServeError> {
    let path = path.as_ref();
    let mut pause = options.least_pause;
    loop {
        let started = Instant::now();
        match once(agent.clone(), path, options).await {
            Ok(()) => tracing::info!(host = %path.display(), "host disconnected"),
            Err(ServeError::Refused(why)) => return Err(ServeError::Refused(why)),
            Err(error) => {
                tracing::info!(host = %path.display(), error = &error as &dyn std::error::Error, "host unreachable");
            }
        }
        if started.elapsed() > options.longest_pause {
            pause = options.least_pause;
        }
        tokio::time::sleep(shortened(pause)).await;
        pause = (pause * 2).min(options.longest_pause);
    }
}

async fn once<A: Agent>(
    agent: Arc<A>,
    path: &Path,
    options: &DialOptions,
) -> Result<(), ServeError> {
    let socket = UnixStream::connect(path).await?;
    let (read, write) = stream::split(socket)?;
    halves(agent, read, write, options).await
}

/// Registers with a host over a pair of byte streams, and serves it until it leaves.
///
/// # Errors
///
/// [`ServeError`].
///
/// # Cancel safety
///
/// As [`dial`].
pub async fn register<A, T>(agent: Arc<A>, io: T, options: &DialOptions) -> Result<(), ServeError>
where
    A: Agent,
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (read, write) = tokio::io::split(io);
    halves(agent, read, write, options).await
}

async fn halves<A, R, W>(
    agent: Arc<A>,
    read: R,
    write: W,
    options: &DialOptions,
) -> Result<(), ServeError>
where
    A: Agent,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut incoming = FrameReceiver::new(read);
    let outgoing = FrameSender::new(write);
    let limit = options.serve.handshake_timeout;
    let settled = tokio::time::timeout(limit, greet(&*agent, &mut incoming, &outgoing, options))
        .await
        .unwrap_or(Err(ServeError::Timeout(limit)))?;
    Ok(session::run(agent, incoming, outgoing, settled).await?)
}

async fn greet<A, R, W>(
    agent: &A,
    incoming: &mut FrameReceiver<R>,
    outgoing: &FrameSender<W>,
    options: &DialOptions,
) -> Result<session::AgentSessionParams, ServeError>
where
    A: Agent,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let registration = RegistrationRequest {
        agent_id: agent.name().to_owned(),
        capabilities: capabilities(agent),
        auth_token: options.token.clone(),
        metadata: options.metadata.clone(),
        extensions: options.serve.extensions.then(|| WireExtensions {
            encodings: options.serve.encodings.clone(),
            ..extensions(&options.serve)
        }),
        ..RegistrationRequest::default()
    };
    let code = FrameType::Handshake.code();
    outgoing
        .frame(code, |out| handshake::encode(&registration, out))
        .map_err(|error| ServeError::Handshake(error.to_string()))?;
    poll_fn(|context| outgoing.poll_write(context)).await?;
    let (code, payload) = stream::frame(incoming).await?;
    if code != FrameType::HandshakeAnswer.code() {
        let said = format!("expected a handshake answer, got frame type {code:#04x}");
        return Err(ServeError::Handshake(said));
    }
    let answer: RegistrationResponse =
        handshake::decode(&payload).map_err(|error| ServeError::Handshake(error.to_string()))?;
    if !answer.success {
        return Err(ServeError::Refused(answer.error.unwrap_or_default()));
    }
    let ours = answer.extensions.filter(|_| options.serve.extensions);
    let encoding = ours
        .as_ref()
        .and_then(|ours| ours.encodings.first().copied())
        .unwrap_or_default();
    if encoding != Encoding::Json && !options.serve.encodings.contains(&encoding) {
        let said = format!("the host chose the encoding {encoding:?}, which was not offered");
        return Err(ServeError::Handshake(said));
    }
    Ok(session::AgentSessionParams {
        host_id: answer.proxy_id,
        host_version: answer.proxy_version,
        encoding,
        numbered: ours.is_some_and(|ours| ours.raw_bodies),
    })
}

/// By up to half.
fn shortened(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) as u32;
    pause - pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}
