//! The listening side: one port for all carriers over TCP.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hailwire_wire::NodeId;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;

use super::{
    Connection, Identity, TcpCarrier, TcpError, chosen, identity, socket, within_time, ws,
};

/// Handshakes under way at once; further connections wait in the kernel's queue.
const HANDSHAKES: usize = 128;

/// A pause after the system refused to accept, as when it is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections from other nodes.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    config: Arc<ServerConfig>,
    handshakes: Arc<Semaphore>,
}

impl Listener {
    /// Listens at `address`; port 0 lets the system choose one.
    ///
    /// # Errors
    ///
    /// The system refuses the address.
    pub async fn bind(address: SocketAddr, identity: &Identity) -> io::Result<Self> {
        let protocols = [TcpCarrier::Ws].map(|carrier| carrier.protocol().to_vec());
        Ok(Self {
            socket: TcpListener::bind(address).await?,
            config: identity.listening(protocols.to_vec()),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES)),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The next connection, before its handshake: so one slow stranger holds up nobody else. Waits
    /// while 128 handshakes are under way.
    ///
    /// # Cancel safety
    ///
    /// A connection is either returned or stays in the kernel's queue.
    pub async fn accept(&self) -> Incoming {
        loop {
            let permit = self.handshakes.clone().acquire_owned().await;
            match self.socket.accept().await {
                Ok((io, remote)) => {
                    return Incoming {
                        io,
                        remote,
                        config: self.config.clone(),
                        _permit: permit.ok(),
                    };
                }
                Err(error) => {
                    tracing::debug!(%error, "a TCP connection was not accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// A TCP connection whose far side is not known yet.
#[derive(Debug)]
pub struct Incoming {
    io: TcpStream,
    remote: SocketAddr,
    config: Arc<ServerConfig>,
    /// Its place among the handshakes under way.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Incoming {
    /// Where it comes from.
    #[must_use]
    pub const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Learns who is there, and makes a connection of it.
    ///
    /// # Errors
    ///
    /// [`TcpError`]. The TCP connection is closed.
    ///
    /// # Cancel safety
    ///
    /// A dropped future closes the TCP connection.
    pub async fn handshake(self) -> Result<(NodeId, Connection), TcpError> {
        let remote = self.remote;
        within_time(async move {
            socket::prepare(&self.io).map_err(TcpError::Unreachable)?;
            let tls = TlsAcceptor::from(self.config)
                .accept(self.io)
                .await
                .map_err(TcpError::of_handshake)?;
            let session = tls.get_ref().1;
            let peer = identity::proved(session.peer_certificates()).ok_or(TcpError::WrongPeer)?;
            match chosen(session.alpn_protocol()) {
                Some(TcpCarrier::Ws) => {
                    let connection = Box::pin(ws::server(tls, remote)).await?;
                    Ok((peer, Connection::Mux(connection)))
                }
                Some(TcpCarrier::H2) | None => Err(TcpError::NoCarrier),
            }
        })
        .await
    }
}
