//! The carriers over TCP, for where UDP does not get through.
//!
//! A TCP connection between two nodes begins with TLS 1.3 in which both prove their node keys
//! (`identity.rs`). ALPN (RFC 7301) then says which carrier runs on it, so that all of them share
//! one port:
//!
//! | protocol | carrier |
//! |---|---|
//! | `h2` | HTTP/2 (RFC 9113), a stream for each stream: [`h2`](super::h2) |
//! | `hailwire-h2-reverse` | the second connection of an HTTP/2 one; see [`h2`](super::h2) |
//! | `http/1.1` | WebSocket (RFC 6455), the multiplexer over binary messages: [`ws`](super::ws) |
//!
//! The listening side picks the first of this list that the dialling side offers. A connection that
//! offers none of them ends with the handshake.
//!
//! Nagle's algorithm is off. A peer that has vanished is noticed by the kernel (`socket.rs`). The
//! handshake, from the TCP connection to a usable carrier, has [`HANDSHAKE_TIME`].

mod identity;
mod large_reads;
mod listen;
mod pairs;
mod socket;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hailwire_wire::NodeId;
use rustls::ClientConfig;
use thiserror::Error;
use tokio::{io::AsyncWriteExt, task::JoinSet};
use tokio_rustls::{TlsConnector, client::TlsStream};

use self::large_reads::LargeReads;
pub use self::{
    identity::{TlsIdentity, name_of},
    listen::{CarrierListener, IncomingConnection},
};
use super::{CarrierConnection, h2, ws};
use crate::{
    key,
    outbound_tcp::{self, HttpProxies},
};

/// The protocol of the second connection of an HTTP/2 one.
const REVERSE: &[u8] = b"hailwire-h2-reverse";

/// How long a handshake may take as a whole, on either side.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// A carrier that runs over a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpCarrier {
    /// HTTP/2.
    H2,
    /// WebSocket.
    Ws,
}

impl TcpCarrier {
    /// Both, in the order in which the listening side prefers them.
    pub const ALL: [Self; 2] = [Self::H2, Self::Ws];

    /// Its name, as [`CarrierConnection::carrier`] gives it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::H2 => "h2",
            Self::Ws => "ws",
        }
    }

    /// Its protocol in ALPN.
    #[must_use]
    pub const fn protocol(self) -> &'static [u8] {
        match self {
            Self::H2 => b"h2",
            Self::Ws => b"http/1.1",
        }
    }
}

/// Dials a node, which must prove to be `peer`, and speaks one of the carriers in `which`.
///
/// # Errors
///
/// [`TcpError`].
///
/// # Cancel safety
///
/// A dropped future leaves nothing behind; the far side sees its handshake end.
pub async fn connect(
    identity: &TlsIdentity,
    peer: NodeId,
    address: SocketAddr,
    which: &[TcpCarrier],
) -> Result<CarrierConnection, TcpError> {
    let protocols = which.iter().map(|carrier| carrier.protocol().to_vec());
    let forward = identity.dialling(protocols.collect());
    let mut token = h2::PairToken::default();
    key::random(&mut token);
    let mut reverse = JoinSet::new();
    if which.contains(&TcpCarrier::H2) {
        // At once, so that a pair costs no more round trips than one.
        let config = identity.dialling(vec![REVERSE.to_vec()]);
        reverse.spawn(within_time(second(config, peer, address, token)));
    }
    within_time(async {
        let tls = encrypted(forward, &peer, address).await?;
        match chosen(tls.get_ref().1.alpn_protocol()) {
            Some(TcpCarrier::Ws) => Ok(CarrierConnection::Mux(
                Box::pin(ws::client(tls, address)).await?,
            )),
            Some(TcpCarrier::H2) => {
                let reverse = async move {
                    let joined = reverse.join_next().await;
                    joined
                        .and_then(Result::ok)
                        .unwrap_or(Err(TcpError::TimedOut))
                };
                let connection = h2::H2Connection::client(tls, address, token, reverse);
                Ok(CarrierConnection::H2(Box::pin(connection).await?))
            }
            None => Err(TcpError::NoCarrier),
        }
    })
    .await
}

/// The second connection of an HTTP/2 one, which names the first by its token.
async fn second(
    config: Arc<ClientConfig>,
    peer: NodeId,
    address: SocketAddr,
    token: h2::PairToken,
) -> Result<TlsStream<LargeReads>, TcpError> {
    let mut tls = encrypted(config, &peer, address).await?;
    tls.write_all(&token).await.map_err(TcpError::Tls)?;
    tls.flush().await.map_err(TcpError::Tls)?;
    Ok(tls)
}

/// A TCP connection whose far side has proved to be `peer`.
async fn encrypted(
    config: Arc<ClientConfig>,
    peer: &NodeId,
    address: SocketAddr,
) -> Result<TlsStream<LargeReads>, TcpError> {
    let io = outbound_tcp::connect_to(address, &HttpProxies::of_environment())
        .await
        .map_err(TcpError::Unreachable)?;
    socket::prepare(&io).map_err(TcpError::Unreachable)?;
    TlsConnector::from(config)
        .connect(name_of(peer), LargeReads::new(io))
        .await
        .map_err(TcpError::of_handshake)
}

/// The carrier that the two sides agreed on.
fn chosen(protocol: Option<&[u8]>) -> Option<TcpCarrier> {
    let protocol = protocol?;
    TcpCarrier::ALL
        .into_iter()
        .find(|carrier| carrier.protocol() == protocol)
}

async fn within_time<T>(work: impl Future<Output = Result<T, TcpError>>) -> Result<T, TcpError> {
    tokio::time::timeout(HANDSHAKE_TIME, work)
        .await
        .unwrap_or(Err(TcpError::TimedOut))
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum TcpError {
    /// TCP found nobody there.
    #[error("nobody answers there")]
    Unreachable(#[source] io::Error),
    /// The handshake took longer than [`HANDSHAKE_TIME`].
    #[error("no answer within {} s", HANDSHAKE_TIME.as_secs())]
    TimedOut,
    /// Too many handshakes were under way, and this one made way for another.
    #[error("it made way for another handshake")]
    MadeWay,
    /// The far side proved another key than the expected one, or none.
    #[error("the far side is another node than the one that was dialled")]
    WrongPeer,
    /// The two sides share no carrier.
    #[error("the far side speaks none of the carriers that were asked for")]
    NoCarrier,
    /// TLS failed.
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
    /// What followed TLS was not as it should be.
    #[error("the far side does not speak {carrier}: {reason}")]
    Carrier {
        /// Which carrier was agreed on.
        carrier: &'static str,
        /// What was wrong.
        reason: String,
    },
}

impl TcpError {
    /// Tells apart what a caller acts on differently.
    fn of_handshake(error: io::Error) -> Self {
        use rustls::{AlertDescription, Error as E};
        match error.get_ref().and_then(|cause| cause.downcast_ref::<E>()) {
            Some(E::InvalidCertificate(_)) => Self::WrongPeer,
            Some(
                E::NoApplicationProtocol
                | E::AlertReceived(AlertDescription::NoApplicationProtocol),
            ) => Self::NoCarrier,
            _ => Self::Tls(error),
        }
    }
}
