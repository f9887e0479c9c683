//! The listening side: one port for all carriers over TCP.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hailwire_wire::NodeId;
use rustls::ServerConfig;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    Connection, Identity, REVERSE, TcpCarrier, TcpError, chosen, h2, identity, pairs::Pairs,
    socket, wide::Wide, within_time, ws,
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
    pairs: Pairs<TlsStream<Wide>>,
}

impl Listener {
    /// Listens at `address`; port 0 lets the system choose one.
    ///
    /// # Errors
    ///
    /// The system refuses the address.
    pub async fn bind(address: SocketAddr, identity: &Identity) -> io::Result<Self> {
        let protocols = TcpCarrier::ALL.map(TcpCarrier::protocol);
        let protocols = protocols.into_iter().chain([REVERSE]).map(<[u8]>::to_vec);
        Ok(Self {
            socket: TcpListener::bind(address).await?,
            config: identity.listening(protocols.collect()),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES)),
            pairs: Pairs::default(),
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
                        pairs: self.pairs.clone(),
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
    pairs: Pairs<TlsStream<Wide>>,
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
    /// None where this is the second TCP connection of an HTTP/2 one: it belongs to that from now on.
    ///
    /// # Errors
    ///
    /// [`TcpError`]. The TCP connection is closed.
    ///
    /// # Cancel safety
    ///
    /// A dropped future closes the TCP connection.
    pub async fn handshake(self) -> Result<Option<(NodeId, Connection)>, TcpError> {
        within_time(async move {
            socket::prepare(&self.io).map_err(TcpError::Unreachable)?;
            let tls = TlsAcceptor::from(self.config)
                .accept(Wide::new(self.io))
                .await
                .map_err(TcpError::of_handshake)?;
            let session = tls.get_ref().1;
            let peer = identity::proved(session.peer_certificates()).ok_or(TcpError::WrongPeer)?;
            if session.alpn_protocol() == Some(REVERSE) {
                second(tls, peer, &self.pairs).await?;
                return Ok(None);
            }
            let connection = match chosen(session.alpn_protocol()) {
                Some(TcpCarrier::Ws) => {
                    Connection::Mux(Box::pin(ws::server(tls, self.remote)).await?)
                }
                Some(TcpCarrier::H2) => {
                    let pairs = self.pairs;
                    let second =
                        move |token| within_time(async move { pairs.wanted((peer, token)).await });
                    let connection = h2::Connection::server(tls, self.remote, second);
                    Connection::H2(Box::pin(connection).await?)
                }
                None => return Err(TcpError::NoCarrier),
            };
            Ok(Some((peer, connection)))
        })
        .await
    }
}

/// Brings the second connection of a pair to the first one.
async fn second(
    mut tls: TlsStream<Wide>,
    peer: NodeId,
    pairs: &Pairs<TlsStream<Wide>>,
) -> Result<(), TcpError> {
    let mut token = h2::Token::default();
    tls.read_exact(&mut token).await.map_err(TcpError::Tls)?;
    if pairs.brought((peer, token), tls).await {
        Ok(())
    } else {
        Err(TcpError::Carrier {
            carrier: "h2",
            reason: "its token was used before".to_owned(),
        })
    }
}
