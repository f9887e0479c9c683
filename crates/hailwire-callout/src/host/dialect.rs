//! The dialects that call themselves version 2 over a Unix socket, told apart.
//!
//! An agent does not speak first, so the host does, in a way that two of the three understand: the handshake of the
//! running wire, with the keys beside it that the documented one looks for. Each ignores the other's, and the
//! answer shows which it was. An agent that answers nothing, closes, or answers what is no handshake is asked in the
//! older framing, over a connection of its own. [`UdsEndpoint`] remembers what it was and begins with that the next time.
//!
//! | dialect | who speaks it | what it cannot do |
//! |---|---|---|
//! | [`Dialect::Crate`] | the protocol's own crate, whatever its version, and we | – |
//! | [`Dialect::Documented`] | the Go kit's `v2` | WebSocket frames, guardrails, configuration |
//! | [`Dialect::V1`] | the kits for Python, TypeScript, and Go's root package | more than one event at a time, cancels, notices |
//!
//! The two that are not ours are in `foreign/`. gRPC servers that send their headers late need no dialect: [`super::grpc`].

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use super::{
    ConnectError, ConnectOptions, Connection,
    foreign::{documented, v1},
    stream,
};
use crate::stream::{SocketReader, SocketWriter, split};

/// How long an agent that says nothing is taken to be thinking, while there are other dialects to try.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The wire that runs, of the published crate and ours: `crate`.
    Crate,
    /// The wire that is documented: `documented`.
    Documented,
    /// The older framing: `v1`.
    V1,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Crate, Self::Documented, Self::V1];

    /// As operators write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crate => "crate",
            Self::Documented => "documented",
            Self::V1 => "v1",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no dialect's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown dialect {0:?}; use crate, documented or v1")]
pub struct UnknownDialect(String);

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, UnknownDialect> {
        Self::ALL
            .into_iter()
            .find(|dialect| dialect.name() == name)
            .ok_or_else(|| UnknownDialect(name.to_owned()))
    }
}

/// An agent at a Unix socket, whatever it speaks.
#[derive(Debug)]
pub struct UdsEndpoint {
    path: PathBuf,
    fixed: Option<Dialect>,
    /// What worked last: its index in [`Dialect::ALL`], or [`UNKNOWN`].
    known: AtomicU8,
}

const UNKNOWN: u8 = u8::MAX;

impl UdsEndpoint {
    /// Whoever listens at a path. Its dialect is told apart unless it is given.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, dialect: Option<Dialect>) -> Self {
        Self {
            path: path.into(),
            fixed: dialect,
            known: AtomicU8::new(UNKNOWN),
        }
    }

    /// What is spoken, as far as it is known.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        let known = || Dialect::ALL.get(usize::from(self.known.load(Ordering::Relaxed)));
        self.fixed.or_else(|| known().copied())
    }

    /// Connects.
    ///
    /// What worked last is tried first. When it does not work any more, because another agent listens there now,
    /// the others are tried after it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] of the dialect that was given, or of the running wire when none works.
    ///
    /// # Cancel safety
    ///
    /// The socket is closed.
    pub async fn connect(&self, options: &ConnectOptions) -> Result<Connection, ConnectError> {
        if let Some(dialect) = self.fixed {
            return connect(&self.path, dialect, options).await;
        }
        if let Some(dialect) = self.dialect() {
            let again = connect(&self.path, dialect, options).await;
            if !again.as_ref().is_err_and(may_be_another) {
                return again;
            }
        }
        let (connection, dialect) = connect_any(&self.path, options).await?;
        let place = Dialect::ALL.iter().position(|known| *known == dialect);
        let place = place.and_then(|place| u8::try_from(place).ok());
        self.known
            .store(place.unwrap_or(UNKNOWN), Ordering::Relaxed);
        Ok(connection)
    }
}

/// Connects in one dialect.
///
/// # Errors
///
/// [`ConnectError`].
///
/// # Cancel safety
///
/// The socket is closed.
pub async fn connect(
    path: impl AsRef<Path>,
    dialect: Dialect,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError> {
    let path = path.as_ref();
    speak(&|| halves_of(path), dialect, options).await
}

/// Connects in the dialect that the agent speaks, and returns which it is.
///
/// An agent of the older framing that says nothing to a handshake costs a second of waiting.
///
/// # Errors
///
/// [`ConnectError`] of the running wire when none works.
///
/// # Cancel safety
///
/// The socket is closed.
pub async fn connect_any(
    path: impl AsRef<Path>,
    options: &ConnectOptions,
) -> Result<(Connection, Dialect), ConnectError> {
    let path = path.as_ref();
    find_out(&|| halves_of(path), options).await
}

/// Connects over pairs of byte streams that `open` opens, once for each dialect that is tried, in the dialect that is given or
/// else that the agent speaks.
///
/// # Errors
///
/// As [`connect`] and [`connect_any`], and those of `open`.
///
/// # Cancel safety
///
/// The streams are dropped.
pub async fn connect_over<I, O>(
    open: impl Fn() -> O,
    dialect: Option<Dialect>,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    O: Future<Output = Result<I, ConnectError>>,
{
    let halves = || async { open().await.map(tokio::io::split) };
    match dialect {
        Some(dialect) => speak(&halves, dialect, options).await,
        None => find_out(&halves, options)
            .await
            .map(|(connection, _)| connection),
    }
}

async fn halves_of(path: &Path) -> Result<(SocketReader, SocketWriter), ConnectError> {
    let socket = UnixStream::connect(path).await?;
    Ok(split(socket)?)
}

/// In one dialect.
async fn speak<R, W, O>(
    open: &impl Fn() -> O,
    dialect: Dialect,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
    O: Future<Output = Result<(R, W), ConnectError>>,
{
    let connecting = async {
        let (read, write) = open().await?;
        match dialect {
            Dialect::Crate => stream::halves(read, write, options).await,
            Dialect::Documented => match greet(read, write, options).await? {
                (connection, Dialect::Documented) => Ok(connection),
                (_, other) => Err(ConnectError::Handshake(format!("the agent speaks {other}"))),
            },
            Dialect::V1 => v1::connect(read, write, options).await,
        }
    };
    stream::within(options, connecting).await
}

/// In one after the other.
async fn find_out<R, W, O>(
    open: &impl Fn() -> O,
    options: &ConnectOptions,
) -> Result<(Connection, Dialect), ConnectError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
    O: Future<Output = Result<(R, W), ConnectError>>,
{
    let greeted = |options: ConnectOptions| async move {
        let greeting = async {
            let (read, write) = open().await?;
            greet(read, write, &options).await
        };
        stream::within(&options, greeting).await
    };
    let patient = ConnectOptions {
        connect_timeout: options.connect_timeout.min(PROBE_TIMEOUT),
        ..options.clone()
    };
    let first = match greeted(patient.clone()).await {
        Err(error) if may_be_another(&error) => error,
        decided => return decided,
    };
    match speak(open, Dialect::V1, &patient).await {
        Ok(connection) => return Ok((connection, Dialect::V1)),
        Err(error @ ConnectError::Configuration(_)) => return Err(error),
        Err(_) => {}
    }
    // It may only have been slow.
    match first {
        ConnectError::Timeout(_) if options.connect_timeout > PROBE_TIMEOUT => {
            greeted(options.clone()).await
        }
        error => Err(error),
    }
}

/// Says hello to both that know a handshake.
async fn greet<R, W>(
    read: R,
    write: W,
    options: &ConnectOptions,
) -> Result<(Connection, Dialect), ConnectError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let hello = stream::hello(options);
    let mut hello =
        serde_json::to_value(hello).map_err(|error| ConnectError::Handshake(error.to_string()))?;
    documented::introduce(&mut hello, &options.host_id);
    let greeted = stream::greet(read, write, &hello).await?;
    match documented::DocumentedHandshake::read(&greeted.answer) {
        Some(welcome) => {
            let (incoming, write) = (greeted.incoming, greeted.outgoing.into_io());
            let connection = documented::welcomed(incoming.into_parts(), write, welcome, options)?;
            Ok((connection, Dialect::Documented))
        }
        None => {
            let connection = stream::welcomed(greeted, options).await?;
            Ok((connection, Dialect::Crate))
        }
    }
}

/// Whether an agent that was spoken to in one dialect may be one of another.
fn may_be_another(error: &ConnectError) -> bool {
    match error {
        ConnectError::Timeout(_) | ConnectError::Handshake(_) | ConnectError::Refused(_) => true,
        // There is nobody, or whoever there is hung up.
        ConnectError::Io(error) => !matches!(
            error.kind(),
            std::io::ErrorKind::NotFound
                | std::io::ErrorKind::ConnectionRefused
                | std::io::ErrorKind::PermissionDenied
        ),
        ConnectError::Configuration(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialect_has_the_name_that_it_is_found_by() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.to_string().parse(), Ok(dialect));
        }
        assert!("v3".parse::<Dialect>().is_err());
    }
}
