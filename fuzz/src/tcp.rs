//! What a node must hold to, whatever reaches its TCP port: it lives, and takes the next connection.
//!
//! The first byte of an input says how far the rest gets: as bytes on the bare TCP connection, inside TLS
//! with a key that the node does not know, behind a WebSocket's upgrade, or behind HTTP/2's preface; the
//! whole in one piece or in two.
//!
//! In a file of its own: `hailwire`'s tests call it too, with inputs drawn from a seed.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::{
    ClientConfig,
    client::AlwaysResolvesClientRawPublicKeys,
    crypto::ring::{default_provider, sign::any_eddsa_type},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName},
    sign::CertifiedKey,
    version::TLS13,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::anybody::Anybody;

/// How long a node may take to say what it says to an input; one that waits for more says nothing.
const ANSWER: Duration = Duration::from_millis(20);

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A WebSocket's upgrade, as a node sends it.
const UPGRADE: &[u8] = b"GET /hailwire HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n\
Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: hailwire\r\n\r\n";

/// HTTP/2's preface, and settings that change nothing (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Somebody who connects to a node.
#[derive(Debug)]
pub struct Caller {
    node: SocketAddr,
    key: Arc<CertifiedKey>,
}

impl Caller {
    /// One whom `node` does not know.
    pub fn of(node: SocketAddr) -> Self {
        // An Ed25519 seed as RFC 8410 writes it.
        let mut key = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".to_vec();
        key.extend([9; 32]);
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(key)).expect("a key");
        let public = CertificateDer::from(key.public_key().expect("its public half").to_vec());
        Self {
            node,
            key: Arc::new(CertifiedKey::new(vec![public], key)),
        }
    }

    /// Connects, sends what an input says, and reads what the node answers at once.
    ///
    /// # Panics
    ///
    /// If the node takes no connection.
    pub async fn feed(&self, input: &[u8]) {
        let (how, bytes) = input
            .split_first()
            .map_or((0, input), |(how, rest)| (*how, rest));
        let connected = timeout(PATIENCE, TcpStream::connect(self.node)).await;
        let io = connected
            .expect("the node listens")
            .expect("the node listens");
        let (protocol, ahead): (&[u8], &[u8]) = match how & 7 {
            0 | 1 => return talk(io, b"", bytes, how).await,
            2 => (b"h2", b""),
            3 => (b"h2", PREFACE),
            4 => (b"http/1.1", b""),
            5 | 6 => (b"http/1.1", UPGRADE),
            _ => (b"hailwire-h2-reverse", b""),
        };
        let connector = TlsConnector::from(self.tls(protocol));
        let name = ServerName::try_from("node.invalid").expect("a name");
        // A node that has as many strangers as it takes may hang up instead.
        if let Ok(Ok(tls)) = timeout(PATIENCE, connector.connect(name, io)).await {
            talk(tls, ahead, bytes, how).await;
        }
    }

    fn tls(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        let resolver = AlwaysResolvesClientRawPublicKeys::new(self.key.clone());
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody { raw_keys: false }))
            .with_client_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.enable_sni = false;
        Arc::new(config)
    }
}

async fn talk(mut io: impl AsyncRead + AsyncWrite + Unpin, ahead: &[u8], bytes: &[u8], how: u8) {
    let cut = if how & 0x80 == 0 { 0 } else { bytes.len() / 2 };
    let exchange = async {
        for part in [ahead, &bytes[..cut], &bytes[cut..]] {
            io.write_all(part).await?;
            io.flush().await?;
            tokio::task::yield_now().await;
        }
        io.shutdown().await?;
        io.read_to_end(&mut Vec::new()).await
    };
    // Whatever it says, and if it says nothing.
    let _ = timeout(ANSWER, exchange).await;
}
