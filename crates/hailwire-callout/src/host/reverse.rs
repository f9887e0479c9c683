//! Agents that dial: the host listens, and each agent that registers becomes a connection.
//!
//! The socket has mode 0600. An agent says who it is and shows a token, which is compared in constant time with
//! every one that is known. Hailwire peers agree on an encoding and on their extensions; others speak JSON.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use subtle::{Choice, ConstantTimeEq as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

use super::{
    ConnectError, ConnectOptions, Connection,
    foreign::documented,
    stream::{StreamParams, configure, start},
};
use crate::{
    agent::uds,
    stream::{self, FrameReceiver, FrameSender, WINDOW},
    wire::{
        Encoding,
        frame::FrameType,
        handshake::{self, RegistrationRequest, RegistrationResponse, WireExtensions},
    },
};

/// How many agents may be in their handshake; more are not accepted meanwhile.
const MAX_HANDSHAKES: usize = 64;

/// Whom a host takes, and how.
#[derive(Clone, Debug)]
pub struct ReverseOptions {
    /// The tokens that agents may show, by the agent's id. Default none.
    pub tokens: HashMap<String, String>,
    /// Tokens that any agent may show. Default none.
    pub shared_tokens: Vec<String>,
    /// Which agents may register; `None` for any. Default any.
    pub allowed_agents: Option<Vec<String>>,
    /// Whether an agent may come without a token while none is known for it. Default false.
    pub anonymous: bool,
    /// How long a handshake may take. Default 10 s.
    pub handshake_timeout: Duration,
    /// As for a connection that the host opens.
    pub connect: ConnectOptions,
}

impl Default for ReverseOptions {
    fn default() -> Self {
        Self {
            tokens: HashMap::new(),
            shared_tokens: Vec::new(),
            allowed_agents: None,
            anonymous: false,
            handshake_timeout: Duration::from_secs(10),
            connect: ConnectOptions::default(),
        }
    }
}

/// A Unix socket that agents dial.
#[derive(Debug)]
pub struct ReverseListener {
    socket: uds::UdsListener,
    options: Arc<ReverseOptions>,
    handshakes: JoinSet<Result<Connection, ConnectError>>,
}

impl ReverseListener {
    /// Listens at a path. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    ///
    /// As [`uds::UdsListener::bind`].
    pub fn bind(path: impl AsRef<Path>, options: ReverseOptions) -> io::Result<Self> {
        Ok(Self {
            socket: uds::UdsListener::bind(path)?,
            options: Arc::new(options),
            handshakes: JoinSet::new(),
        })
    }

    /// The next agent that has registered. One that is refused, or says nothing, keeps no other waiting.
    ///
    /// Which agent it is, is in the connection's capabilities.
    ///
    /// # Errors
    ///
    /// Of the socket.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn accept(&mut self) -> io::Result<Connection> {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => match done {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(error)) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "registration of an agent failed");
                    }
                    Err(_) => {}
                },
                stream = self.socket.accept(), if self.handshakes.len() < MAX_HANDSHAKES => {
                    let stream = stream?;
                    let options = self.options.clone();
                    self.handshakes.spawn(async move {
                        let (read, write) = stream::split(stream)?;
                        let limit = options.handshake_timeout;
                        let connect = |_| std::future::ready(Some(options.connect.clone()));
                        tokio::time::timeout(limit, halves(read, write, &options, connect))
                            .await
                            .unwrap_or(Err(ConnectError::Timeout(limit)))
                    });
                }
            }
        }
    }
}

/// Accepts an agent that registers over a pair of byte streams.
///
/// # Errors
///
/// [`ConnectError`]; [`ConnectError::Refused`] for an agent that may not.
///
/// # Cancel safety
///
/// The streams are dropped.
pub async fn over<T>(io: T, options: &ReverseOptions) -> Result<Connection, ConnectError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    over_for(io, options, |_| {
        std::future::ready(Some(options.connect.clone()))
    })
    .await
}

/// Like [`over`], and whoever knows which agent it is supplies the connection's options: by its id, once it has shown that it
/// may register. `None` refuses it, as one that nobody wants. The agent waits for its answer meanwhile, as long as a
/// handshake may take.
///
/// # Errors
///
/// As [`over`].
///
/// # Cancel safety
///
/// The streams are dropped.
pub async fn over_for<T, F>(
    io: T,
    options: &ReverseOptions,
    connect: impl FnOnce(String) -> F,
) -> Result<Connection, ConnectError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    F: Future<Output = Option<ConnectOptions>>,
{
    let (read, write) = tokio::io::split(io);
    let limit = options.handshake_timeout;
    tokio::time::timeout(limit, halves(read, write, options, connect))
        .await
        .unwrap_or(Err(ConnectError::Timeout(limit)))
}

async fn halves<R, W, F>(
    read: R,
    write: W,
    options: &ReverseOptions,
    connect: impl FnOnce(String) -> F,
) -> Result<Connection, ConnectError>
where
    F: Future<Output = Option<ConnectOptions>>,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut incoming = FrameReceiver::new(read);
    let outgoing = FrameSender::new(write);
    let (code, payload) = stream::frame(&mut incoming).await?;
    if code == documented::REGISTRATION {
        let parts = incoming.into_parts();
        return documented(parts, outgoing.into_io(), &payload, options).await;
    }
    if code != FrameType::Handshake.code() {
        let said = format!("expected a registration frame, got frame type {code:#04x}");
        return Err(ConnectError::Handshake(said));
    }
    let registration = handshake::decode::<RegistrationRequest>(&payload)
        .map_err(|error| ConnectError::Handshake(error.to_string()));
    let refused = |why: &str| ConnectError::Refused(why.to_owned());
    let checked = match registration {
        Err(error) => Err(error),
        Ok(registration) => match may_register(&registration, options) {
            Err(why) => Err(refused(why)),
            Ok(()) => match connect(registration.agent_id.clone()).await {
                Some(connect) => Ok((registration, connect)),
                None => Err(refused("no configuration names this agent")),
            },
        },
    };
    let connect = checked
        .as_ref()
        .map_or(&options.connect, |(_, connect)| connect);
    let mut answer = RegistrationResponse {
        success: checked.is_ok(),
        proxy_id: connect.host_id.clone(),
        proxy_version: connect.host_version.clone(),
        connection_id: connection_id(),
        ..RegistrationResponse::default()
    };
    match &checked {
        Ok((registration, connect)) => answer.extensions = agree(registration, connect),
        Err(error) => answer.error = Some(error.to_string()),
    }
    let code = FrameType::HandshakeAnswer.code();
    outgoing
        .frame(code, |out| handshake::encode(&answer, out))
        .map_err(|error| ConnectError::Handshake(error.to_string()))?;
    poll_fn(|context| outgoing.poll_write(context)).await?;
    let (registration, connect) = checked?;
    let mut capabilities = registration.capabilities;
    capabilities.agent_id = registration.agent_id;
    let settled = StreamParams {
        capabilities,
        encoding: answer
            .extensions
            .as_ref()
            .and_then(|ours| ours.encodings.first().copied())
            .unwrap_or_default(),
        window: answer
            .extensions
            .filter(|ours| ours.raw_bodies)
            .map(|ours| ours.window),
    };
    let connection = start(incoming, outgoing, settled, &connect);
    configure(&connection, &connect).await?;
    Ok(connection)
}

/// An agent that registers as the documentation has it.
async fn documented<R, W>(
    read: (R, BytesMut),
    write: W,
    payload: &[u8],
    options: &ReverseOptions,
) -> Result<Connection, ConnectError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let checked = documented::DocumentedRegistration::read(payload)
        .map_err(ConnectError::Handshake)
        .and_then(|registered| {
            let registration = RegistrationRequest {
                agent_id: registered.agent_id.clone(),
                auth_token: registered.auth_token.clone(),
                ..RegistrationRequest::default()
            };
            match may_register(&registration, options) {
                Ok(()) => Ok(registered),
                Err(why) => Err(ConnectError::Refused(why.to_owned())),
            }
        });
    match checked {
        Ok(registered) => {
            let id = connection_id();
            Ok(registered
                .accept(read, write, &id, &options.connect)
                .await?)
        }
        Err(error) => {
            documented::refuse(write, &error.to_string()).await?;
            Err(error)
        }
    }
}

/// What of an agent's offer is used.
fn agree(registration: &RegistrationRequest, options: &ConnectOptions) -> Option<WireExtensions> {
    let offered = registration
        .extensions
        .as_ref()
        .filter(|_| options.extensions)?;
    let spoken = |encoding: &&Encoding| offered.encodings.contains(encoding);
    let encoding = options.encodings.iter().find(spoken).copied();
    Some(WireExtensions {
        raw_bodies: offered.raw_bodies,
        window: offered.window.min(WINDOW),
        encodings: vec![encoding.unwrap_or_default()],
    })
}

fn may_register(
    registration: &RegistrationRequest,
    options: &ReverseOptions,
) -> Result<(), &'static str> {
    let id = &registration.agent_id;
    if registration.protocol_version != crate::VERSION {
        return Err("version 2 is spoken");
    }
    if id.is_empty() {
        return Err("empty agent id");
    }
    if let Some(allowed) = &options.allowed_agents
        && !allowed.contains(id)
    {
        return Err("this agent may not register");
    }
    let own = options.tokens.get(id);
    let known = || own.into_iter().chain(&options.shared_tokens);
    match &registration.auth_token {
        None if options.anonymous && own.is_none() => Ok(()),
        None => Err("a token is required"),
        Some(_) if known().next().is_none() && options.anonymous => Ok(()),
        Some(token) => {
            // Each is looked at, whichever it is.
            let is_known = known().fold(Choice::from(0), |found, known| {
                found | known.as_bytes().ct_eq(token.as_bytes())
            });
            if bool::from(is_known) {
                Ok(())
            } else {
                Err("invalid token")
            }
        }
    }
}

/// What a connection is called in the logs of both sides.
fn connection_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("reverse-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
