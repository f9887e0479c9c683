//! Serving an agent wherever an operator says: `unix:PATH`, `grpc:ADDRESS`, `reverse:PATH`.

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

/// Where an agent is served.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// On a Unix socket at this path.
    Unix(PathBuf),
    /// Over gRPC at this address.
    Grpc(SocketAddr),
    /// At a host that listens on a Unix socket at this path, and is dialled again whenever it leaves.
    Reverse(PathBuf),
}

/// A place that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ListenError {
    /// It begins with none of the three words.
    #[error("\"{0}\" is no place to serve at: unix:PATH, grpc:ADDRESS and reverse:PATH are")]
    Kind(String),
    /// There is no path.
    #[error("\"{0}\" has no path")]
    Path(String),
    /// There is no address with a port.
    #[error("\"{0}\" is no address with a port")]
    Address(String),
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let (kind, rest) = text
            .split_once(':')
            .ok_or_else(|| ListenError::Kind(text.to_owned()))?;
        let path = || match rest {
            "" => Err(ListenError::Path(text.to_owned())),
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
                    .ok_or_else(|| ListenError::Address(rest.to_owned()))
            }
            _ => Err(ListenError::Kind(text.to_owned())),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Grpc(address) => write!(f, "grpc:{address}"),
            Self::Reverse(path) => write!(f, "reverse:{}", path.display()),
        }
    }
}

/// Why an agent is not served, or no longer.
#[derive(Debug, Error)]
pub enum RunError {
    /// A place is taken, or not there.
    #[error("{at}: cannot be served at")]
    Bind {
        /// Where.
        at: Listen,
        /// Why.
        source: io::Error,
    },
    /// A socket has failed, or a host does not want this agent.
    #[error("{at}: {why}")]
    Ended {
        /// Where.
        at: Listen,
        /// Why.
        why: String,
    },
    /// There is no place.
    #[error("no place to serve at was given")]
    Nowhere,
}

/// Places that are taken, before anybody is served.
#[derive(Debug)]
pub struct Places(Vec<Place>);

#[derive(Debug)]
enum Place {
    Unix(uds::UdsListener),
    Grpc(TcpListener, SocketAddr),
    Reverse(PathBuf),
}

impl Places {
    /// Takes them all, or none.
    ///
    /// # Errors
    ///
    /// [`RunError::Bind`], [`RunError::Nowhere`].
    pub async fn take(listen: Vec<Listen>) -> Result<Self, RunError> {
        let mut places = Vec::with_capacity(listen.len());
        for at in listen {
            let failed = |source| RunError::Bind {
                at: at.clone(),
                source,
            };
            places.push(match &at {
                Listen::Unix(path) => Place::Unix(uds::UdsListener::bind(path).map_err(failed)?),
                Listen::Grpc(address) => {
                    let listener = TcpListener::bind(address).await.map_err(failed)?;
                    let address = listener.local_addr().map_err(failed)?;
                    Place::Grpc(listener, address)
                }
                Listen::Reverse(path) => Place::Reverse(path.clone()),
            });
        }
        if places.is_empty() {
            return Err(RunError::Nowhere);
        }
        Ok(Self(places))
    }

    /// Where these are; a port 0 has become the one that the system chose.
    pub fn at(&self) -> impl Iterator<Item = Listen> {
        self.0.iter().map(Place::at)
    }

    /// Serves an agent at all of them until `shutdown` comes true or one of them fails. `token` is shown to the hosts
    /// that are dialled.
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
        for place in self.0 {
            let at = place.at();
            let (agent, token) = (Arc::clone(&agent), token.clone());
            serving.spawn(async move { (at, place.serve(agent, token).await) });
        }
        tokio::select! {
            () = shutdown => Ok(()),
            ended = serving.join_next() => match ended {
                Some(Ok((at, why))) => Err(RunError::Ended { at, why }),
                // A panic of ours goes on.
                Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Some(Err(_)) | None => Ok(()),
            },
        }
    }
}

impl Place {
    fn at(&self) -> Listen {
        match self {
            Self::Unix(listener) => Listen::Unix(listener.path().to_owned()),
            Self::Grpc(_, address) => Listen::Grpc(*address),
            Self::Reverse(path) => Listen::Reverse(path.clone()),
        }
    }

    /// Serves until it cannot, and says why.
    async fn serve<A: Agent>(self, agent: Arc<A>, token: Option<String>) -> String {
        match self {
            Self::Unix(listener) => {
                match agent::uds::serve(agent, listener, &ServeOptions::default()).await {
                    Ok(()) => "the socket is closed".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            Self::Grpc(listener, _) => {
                let options = agent::grpc::GrpcServeOptions::default();
                let never = std::future::pending();
                match agent::grpc::serve(agent, listener, options, never).await {
                    Ok(()) => "the socket is closed".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            Self::Reverse(path) => {
                let options = DialOptions {
                    token,
                    ..DialOptions::default()
                };
                match agent::reverse::dial(agent, path, &options).await {
                    Ok(()) => "the host has left".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
        }
    }
}

/// Takes places and serves an agent there until `shutdown` comes true: [`Places::take`] and [`Places::run`] in one.
///
/// # Errors
///
/// [`RunError`].
///
/// # Cancel safety
///
/// Every connection is closed, and every handler dropped.
pub async fn run(
    listen: Vec<Listen>,
    agent: impl Agent,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    Places::take(listen)
        .await?
        .run(Arc::new(agent), None, shutdown)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for text in [
            "unix:/run/a.sock",
            "grpc:127.0.0.1:50051",
            "grpc:[::1]:1",
            "reverse:x.sock",
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        let wrong = |text: &str| text.parse::<Listen>().unwrap_err();
        assert_eq!(
            wrong("/run/a.sock"),
            ListenError::Kind("/run/a.sock".to_owned())
        );
        assert_eq!(wrong("tcp:1"), ListenError::Kind("tcp:1".to_owned()));
        assert_eq!(wrong("unix:"), ListenError::Path("unix:".to_owned()));
        assert_eq!(wrong("grpc:here"), ListenError::Address("here".to_owned()));
    }

    #[tokio::test]
    async fn no_place_and_a_taken_place_are_refused() {
        assert!(matches!(
            Places::take(Vec::new()).await,
            Err(RunError::Nowhere)
        ));
        let dir = tempfile::tempdir().unwrap();
        let at = Listen::Unix(dir.path().join("a.sock"));
        let first = Places::take(vec![at.clone()]).await.unwrap();
        assert!(matches!(
            Places::take(vec![at.clone()]).await,
            Err(RunError::Bind { .. })
        ));
        drop(first);
        assert!(Places::take(vec![at]).await.is_ok());
    }
}
