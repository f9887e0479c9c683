//! Serves an agent at the addresses that an operator gives: `unix:PATH`, `grpc:ADDRESS`, `reverse:PATH`.

use std::{
    fmt,
    future::Future,
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    str::FromStr,
    sync::Arc,
};

use hailwire_callout::{
    Agent,
    agent::{self, ServeOptions, reverse::DialOptions, uds},
};
use thiserror::Error;
use tokio::{net::TcpListener, task::JoinSet};

/// An address at which an agent is served.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// On a Unix socket at this path.
    Unix(PathBuf),
    /// Over gRPC at this address.
    Grpc(SocketAddr),
    /// By dialling a host that listens on a Unix socket at this path; dialled again whenever the connection ends.
    Reverse(PathBuf),
}

/// An address that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ListenAddressError {
    /// It begins with none of `unix:`, `grpc:` and `reverse:`.
    #[error("invalid address \"{0}\"; use unix:PATH, grpc:ADDRESS or reverse:PATH")]
    Kind(String),
    /// The path is empty.
    #[error("\"{0}\" has no path")]
    Path(String),
    /// It is not a host with a port.
    #[error("invalid address \"{0}\"; use HOST:PORT")]
    Address(String),
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        let (kind, rest) = text
            .split_once(':')
            .ok_or_else(|| ListenAddressError::Kind(text.to_owned()))?;
        let path = || match rest {
            "" => Err(ListenAddressError::Path(text.to_owned())),
            path => Ok(PathBuf::from(path)),
        };
        match kind {
            "unix" => path().map(Self::Unix),
            "reverse" => path().map(Self::Reverse),
            "grpc" => {
                let address = rest
                    .to_socket_addrs()
                    .ok()
                    .and_then(|mut found| found.next());
                address
                    .map(Self::Grpc)
                    .ok_or_else(|| ListenAddressError::Address(rest.to_owned()))
            }
            _ => Err(ListenAddressError::Kind(text.to_owned())),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Grpc(address) => write!(f, "grpc:{address}"),
            Self::Reverse(path) => write!(f, "reverse:{}", path.display()),
        }
    }
}

/// Why an agent cannot be served, or is served no longer.
#[derive(Debug, Error)]
pub enum RunError {
    /// An address is in use, or does not exist.
    #[error("cannot listen at {address}")]
    Bind {
        /// Which address.
        address: ListenAddress,
        /// The cause.
        source: io::Error,
    },
    /// A socket has failed, or a host does not want this agent.
    #[error("{address}: {reason}")]
    Ended {
        /// Which address.
        address: ListenAddress,
        /// The reason.
        reason: String,
    },
    /// No address was given.
    #[error("no address to listen at was given")]
    NoAddress,
}

/// Addresses that are bound, before anybody is served there.
#[derive(Debug)]
pub struct BoundListeners(Vec<BoundListener>);

#[derive(Debug)]
enum BoundListener {
    Unix(uds::UdsListener),
    Grpc(TcpListener, SocketAddr),
    Reverse(PathBuf),
}

impl BoundListeners {
    /// Binds all of them, or none.
    ///
    /// # Errors
    ///
    /// [`RunError::Bind`], [`RunError::NoAddress`].
    pub async fn bind(listen: Vec<ListenAddress>) -> Result<Self, RunError> {
        let mut listeners = Vec::with_capacity(listen.len());
        for at in listen {
            let failed = |source| RunError::Bind {
                address: at.clone(),
                source,
            };
            listeners.push(match &at {
                ListenAddress::Unix(path) => {
                    BoundListener::Unix(uds::UdsListener::bind(path).map_err(failed)?)
                }
                ListenAddress::Grpc(address) => {
                    let listener = TcpListener::bind(address).await.map_err(failed)?;
                    let address = listener.local_addr().map_err(failed)?;
                    BoundListener::Grpc(listener, address)
                }
                ListenAddress::Reverse(path) => BoundListener::Reverse(path.clone()),
            });
        }
        if listeners.is_empty() {
            return Err(RunError::NoAddress);
        }
        Ok(Self(listeners))
    }

    /// Their addresses; port 0 has been replaced by the port that the system chose.
    pub fn addresses(&self) -> impl Iterator<Item = ListenAddress> {
        self.0.iter().map(BoundListener::address)
    }

    /// Serves an agent at all of them until `shutdown` completes or one of them fails. `token` authenticates the agent to
    /// the hosts that are dialled.
    ///
    /// # Errors
    ///
    /// [`RunError::Ended`].
    ///
    /// # Cancel safety
    ///
    /// Every connection is closed, and every handler dropped.
    pub async fn run<A: Agent>(
        self,
        agent: Arc<A>,
        token: Option<String>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let mut serving = JoinSet::new();
        for listener in self.0 {
            let address = listener.address();
            let (agent, token) = (Arc::clone(&agent), token.clone());
            serving.spawn(async move { (address, listener.serve(agent, token).await) });
        }
        tokio::select! {
            () = shutdown => Ok(()),
            ended = serving.join_next() => match ended {
                Some(Ok((address, reason))) => Err(RunError::Ended { address, reason }),
                // A panic of a server task is passed on.
                Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Some(Err(_)) | None => Ok(()),
            },
        }
    }
}

impl BoundListener {
    fn address(&self) -> ListenAddress {
        match self {
            Self::Unix(listener) => ListenAddress::Unix(listener.path().to_owned()),
            Self::Grpc(_, address) => ListenAddress::Grpc(*address),
            Self::Reverse(path) => ListenAddress::Reverse(path.clone()),
        }
    }

    /// Serves until the listener fails, and returns the reason.
    async fn serve<A: Agent>(self, agent: Arc<A>, token: Option<String>) -> String {
        match self {
            Self::Unix(listener) => {
                match agent::uds::serve(agent, listener, &ServeOptions::default()).await {
                    Ok(()) => "the socket was closed".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            Self::Grpc(listener, _) => {
                let options = agent::grpc::GrpcServeOptions::default();
                let never = std::future::pending();
                match agent::grpc::serve(agent, listener, options, never).await {
                    Ok(()) => "the socket was closed".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            Self::Reverse(path) => {
                let options = DialOptions {
                    token,
                    ..DialOptions::default()
                };
                match agent::reverse::dial(agent, path, &options).await {
                    Ok(()) => "the host closed the connection".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
        }
    }
}

/// Binds addresses and serves an agent there until `shutdown` completes: [`BoundListeners::bind`] and [`BoundListeners::run`] in one.
///
/// # Errors
///
/// [`RunError`].
///
/// # Cancel safety
///
/// Every connection is closed, and every handler dropped.
pub async fn run(
    listen: Vec<ListenAddress>,
    agent: impl Agent,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    BoundListeners::bind(listen)
        .await?
        .run(Arc::new(agent), None, shutdown)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_prints_as_it_was_written() {
        for text in [
            "unix:/run/a.sock",
            "grpc:127.0.0.1:50051",
            "grpc:[::1]:1",
            "reverse:x.sock",
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        let wrong = |text: &str| text.parse::<ListenAddress>().unwrap_err();
        assert_eq!(
            wrong("/run/a.sock"),
            ListenAddressError::Kind("/run/a.sock".to_owned())
        );
        assert_eq!(wrong("tcp:1"), ListenAddressError::Kind("tcp:1".to_owned()));
        assert_eq!(wrong("unix:"), ListenAddressError::Path("unix:".to_owned()));
        assert_eq!(
            wrong("grpc:here"),
            ListenAddressError::Address("here".to_owned())
        );
    }

    #[tokio::test]
    async fn no_address_and_an_address_in_use_are_refused() {
        assert!(matches!(
            BoundListeners::bind(Vec::new()).await,
            Err(RunError::NoAddress)
        ));
        let dir = tempfile::tempdir().unwrap();
        let at = ListenAddress::Unix(dir.path().join("a.sock"));
        let first = BoundListeners::bind(vec![at.clone()]).await.unwrap();
        assert!(matches!(
            BoundListeners::bind(vec![at.clone()]).await,
            Err(RunError::Bind { .. })
        ));
        drop(first);
        assert!(BoundListeners::bind(vec![at]).await.is_ok());
    }
}
