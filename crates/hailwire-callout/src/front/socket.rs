//! Listeners of the fronts: TCP, or a Unix socket.

use std::{future::Future, io, sync::Arc, time::Duration};

use futures_util::{Stream, stream};
use tokio::net::{TcpListener, UnixStream};
use tonic::transport::server::TcpIncoming;

use super::{ext_proc, spoe};
use crate::{agent::uds, inspect::config::ListenAddress};

/// The mode of a front's Unix socket: its owner and its group may connect.
const SOCKET_MODE: u32 = 0o660;

/// The pause after accepting has failed, for want of descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener of a front.
#[derive(Debug)]
pub enum FrontListener {
    /// TCP, without Nagle's algorithm.
    Tcp(TcpListener),
    /// A Unix socket of mode 0660. A file that nobody listens on any more is replaced; it goes with the socket.
    Unix(uds::UdsListener),
}

impl FrontListener {
    /// Listens at an address.
    ///
    /// # Errors
    ///
    /// Whatever the system says; of a Unix socket as [`uds::UdsListener::bind`].
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        Ok(match address {
            ListenAddress::Tcp(address) => Self::Tcp(TcpListener::bind(address).await?),
            ListenAddress::Unix(path) => {
                Self::Unix(uds::UdsListener::bind_mode(path, SOCKET_MODE)?)
            }
        })
    }

    /// Where it listens: of port 0, the one that the system chose.
    ///
    /// # Errors
    ///
    /// Whatever the system says.
    pub fn local_address(&self) -> io::Result<ListenAddress> {
        Ok(match self {
            Self::Tcp(listener) => ListenAddress::Tcp(listener.local_addr()?),
            Self::Unix(listener) => ListenAddress::Unix(listener.path().to_owned()),
        })
    }
}

impl ext_proc::ExtProcServer {
    /// Serves a socket until `stop` is ready; then no connection is accepted any more, connections are told to end, and this returns
    /// when they have.
    ///
    /// # Errors
    ///
    /// That connections cannot be taken any more.
    ///
    /// # Cancel safety
    ///
    /// As [`serve_until`](Self::serve_until).
    pub async fn serve_at(
        self,
        socket: FrontListener,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let served = match socket {
            FrontListener::Tcp(listener) => {
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                self.serve_until(incoming, stop).await
            }
            FrontListener::Unix(listener) => self.serve_until(taken(listener), stop).await,
        };
        served.map_err(io::Error::other)
    }
}

fn taken(listener: uds::UdsListener) -> impl Stream<Item = io::Result<UnixStream>> {
    stream::unfold(listener, |listener| async {
        let taken = listener.accept().await;
        if let Err(error) = &taken {
            tracing::warn!(%error, "accepting a connection from a proxy failed");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        Some((taken, listener))
    })
}

impl spoe::SpoeServer {
    /// Serves a socket until `stop` is ready; then no connection is accepted any more, a connection ends when it has nothing under
    /// way, and this returns when all have ended.
    ///
    /// # Errors
    ///
    /// The socket's.
    ///
    /// # Cancel safety
    ///
    /// As [`serve_until`](Self::serve_until).
    pub async fn serve_at(
        self: Arc<Self>,
        socket: FrontListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        match socket {
            FrontListener::Tcp(listener) => self.serve_until(listener, stop).await,
            FrontListener::Unix(listener) => self.serve_until(listener, stop).await,
        }
    }
}
