//! The listening side: one port for all carriers over TCP.
//!
//! Everybody is taken from the kernel's queue at once, so that nobody waits behind those who say nothing.
//! Handshakes have slots, shared out by where they come from ([`admission`](crate::admission)): who is
//! silent, or has not said its TLS greeting whole, makes way first, and who never says a first byte is let go after [`FIRST_BYTE`]. Should all be
//! taken, the addresses at which peers were found have some left.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hailwire_wire::NodeId;
use rustls::{ServerConfig, server::Acceptor};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    CarrierConnection, REVERSE, TcpCarrier, TcpError, TlsIdentity, chosen, h2, identity,
    large_reads::LargeReads, pairs::PairTable, socket, within_time, ws,
};
use hailwire_core::{RemoteSource, admission::AdmissionShares};

use crate::admission::{AdmissionGate, AdmissionSlot};

/// Handshakes under way at once. An HTTP/2 connection has two.
const HANDSHAKES: AdmissionShares = AdmissionShares {
    all: 128,
    per_host: 32,
    per_network: 64,
    spared_new: Duration::ZERO,
    spared_busy: Duration::from_secs(3),
};

/// Handshakes of addresses at which peers were found before, where all others are taken.
const KNOWN: AdmissionShares = AdmissionShares {
    all: 64,
    per_host: 16,
    per_network: 32,
    ..HANDSHAKES
};

/// How long somebody who connected may say nothing.
const FIRST_BYTE: Duration = Duration::from_secs(3);

/// A pause after the system refused to accept, as when it is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections from other nodes.
#[derive(Debug)]
pub struct CarrierListener {
    socket: TcpListener,
    config: Arc<ServerConfig>,
    handshakes: AdmissionGate,
    of_known: AdmissionGate,
    known: KnownAddress,
    pairs: PairTable<TlsStream<LargeReads>>,
}

impl CarrierListener {
    /// Listens at `address`; port 0 lets the system choose one.
    ///
    /// # Errors
    ///
    /// The system refuses the address.
    pub async fn bind(address: SocketAddr, identity: &TlsIdentity) -> io::Result<Self> {
        let protocols = TcpCarrier::ALL.map(TcpCarrier::protocol);
        let protocols = protocols.into_iter().chain([REVERSE]).map(<[u8]>::to_vec);
        Ok(Self {
            socket: hailwire_socket::tcp::bind(address)?,
            config: identity.listening(protocols.collect()),
            handshakes: AdmissionGate::new(HANDSHAKES),
            of_known: AdmissionGate::new(KNOWN),
            known: KnownAddress(Box::new(|_| false)),
            pairs: PairTable::default(),
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

    /// Says at which addresses peers were found before. They get in where untrusted peers have taken every other
    /// place. By default none.
    pub fn know(&mut self, known: impl Fn(IpAddr) -> bool + Send + Sync + 'static) {
        self.known = KnownAddress(Box::new(known));
    }

    /// The next connection, before its handshake: so one slow peer holds up nobody else. At most 128
    /// handshakes are under way, 32 of one IPv4 address or IPv6 /64; the oldest silent one makes way.
    ///
    /// # Cancel safety
    ///
    /// A connection is either returned or stays in the kernel's queue.
    pub async fn accept(&self) -> IncomingConnection {
        loop {
            match self.socket.accept().await {
                Ok((io, remote)) => {
                    let Some(slot) = self.slot(remote.ip()) else {
                        tracing::debug!(%remote, "a TCP connection was let go: too many handshakes");
                        continue;
                    };
                    return IncomingConnection {
                        io,
                        remote,
                        config: self.config.clone(),
                        pairs: self.pairs.clone(),
                        slot,
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

impl CarrierListener {
    fn slot(&self, from: IpAddr) -> Option<AdmissionSlot> {
        let slot = self.handshakes.enter(RemoteSource::address(from));
        let of_known = || self.of_known.enter(RemoteSource::address(from));
        slot.or_else(|| (self.known.0)(from).then(of_known).flatten())
    }
}

/// Whether a peer was found at an address before.
struct KnownAddress(Box<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl fmt::Debug for KnownAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known")
    }
}

/// A TCP connection whose far side is not known yet.
#[derive(Debug)]
pub struct IncomingConnection {
    io: TcpStream,
    remote: SocketAddr,
    config: Arc<ServerConfig>,
    pairs: PairTable<TlsStream<LargeReads>>,
    /// Its place among the handshakes under way.
    slot: AdmissionSlot,
}

impl IncomingConnection {
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
    pub async fn handshake(self) -> Result<Option<(NodeId, CarrierConnection)>, TcpError> {
        let Self {
            io,
            remote,
            config,
            pairs,
            slot,
        } = self;
        let handshake = within_time(async {
            socket::prepare(&io).map_err(TcpError::Unreachable)?;
            spoken(&io).await?;
            let hello = LazyConfigAcceptor::new(Acceptor::default(), LargeReads::new(io));
            let begun = hello.await.map_err(TcpError::of_handshake)?;
            // Half a greeting is as cheap as silence.
            slot.goes_on();
            let tls = begun
                .into_stream(config)
                .await
                .map_err(TcpError::of_handshake)?;
            let session = tls.get_ref().1;
            let peer = identity::proved(session.peer_certificates()).ok_or(TcpError::WrongPeer)?;
            if session.alpn_protocol() == Some(REVERSE) {
                second(tls, peer, &pairs).await?;
                return Ok(None);
            }
            let connection = match chosen(session.alpn_protocol()) {
                Some(TcpCarrier::Ws) => {
                    CarrierConnection::Mux(Box::pin(ws::server(tls, remote)).await?)
                }
                Some(TcpCarrier::H2) => {
                    let second =
                        move |token| within_time(async move { pairs.wanted((peer, token)).await });
                    let connection = h2::H2Connection::server(tls, remote, second);
                    CarrierConnection::H2(Box::pin(connection).await?)
                }
                None => return Err(TcpError::NoCarrier),
            };
            Ok(Some((peer, connection)))
        });
        tokio::select! {
            shaken = handshake => shaken,
            () = slot.displaced() => Err(TcpError::MadeWay),
        }
    }
}

/// Waits for the first byte, which stays unread. That the socket is readable would not do: it may be said
/// of one that has nothing to read.
async fn spoken(io: &TcpStream) -> Result<(), TcpError> {
    let first = tokio::time::timeout(FIRST_BYTE, io.peek(&mut [0])).await;
    match first {
        Ok(Ok(0)) => Err(TcpError::Tls(io::ErrorKind::UnexpectedEof.into())),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(TcpError::Tls(error)),
        Err(_) => Err(TcpError::TimedOut),
    }
}

/// Brings the second connection of a pair to the first one.
async fn second(
    mut tls: TlsStream<LargeReads>,
    peer: NodeId,
    pairs: &PairTable<TlsStream<LargeReads>>,
) -> Result<(), TcpError> {
    let mut token = h2::PairToken::default();
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
