//! TLS 1.3 of the plain subjects: a certificate made at start, pinned by the loading program.

use std::{net::SocketAddr, sync::Arc};

use data_encoding::HEXLOWER;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    version::TLS13,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

use super::{ReadyAddress, failed};
use crate::{BenchError, work::ConnectionStart};

/// The name in the certificate.
const NAME: &str = "bench.hailwire";

/// Sessions that a server keeps, enough for every agent of the largest scenario.
const SESSIONS: usize = 4_096;

/// The acceptor of a server, and its certificate in hex.
pub(super) fn acceptor(alpn: &[u8]) -> Result<(TlsAcceptor, String), BenchError> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])
        .map_err(failed("making a certificate"))?;
    let der = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let hex = HEXLOWER.encode(&der);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(vec![der], key)
        })
        .map_err(failed("setting up TLS"))?;
    config.alpn_protocols = vec![alpn.to_vec()];
    config.session_storage = rustls::server::ServerSessionMemoryCache::new(SESSIONS);
    config.send_tls13_tickets = 1;
    Ok((TlsAcceptor::from(Arc::new(config)), hex))
}

/// The server of a plain subject, as the loading program knows it.
#[derive(Clone)]
pub(super) struct TlsTarget {
    pub(super) address: SocketAddr,
    certificate: String,
    alpn: &'static [u8],
    /// Keeps TLS sessions.
    known: TlsConnector,
}

impl TlsTarget {
    pub(super) fn new(ready: &ReadyAddress, alpn: &'static [u8]) -> Result<Self, BenchError> {
        Ok(Self {
            address: ready.socket()?,
            known: connector(&ready.certificate, alpn, true)?,
            certificate: ready.certificate.clone(),
            alpn,
        })
    }

    /// The connector of a new connection: with a TLS session cache of its own, or without one when cold.
    /// To be resumed it connects once before. `no_early` says why it sends no early data.
    pub(super) fn connector(
        &self,
        start: ConnectionStart,
        no_early: &'static str,
    ) -> Result<TlsConnector, BenchError> {
        match start {
            ConnectionStart::Cold => connector(&self.certificate, self.alpn, false),
            ConnectionStart::Resumed => connector(&self.certificate, self.alpn, true),
            ConnectionStart::Warm => Ok(self.known.clone()),
            ConnectionStart::ZeroRtt => Err(BenchError::Unsupported(no_early)),
        }
    }

    pub(super) async fn connect(
        &self,
        tls: &TlsConnector,
    ) -> Result<TlsStream<TcpStream>, BenchError> {
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(BenchError::io("connecting"))?;
        let _ = stream.set_nodelay(true);
        let name = ServerName::try_from(NAME).map_err(failed("parsing the name"))?;
        tls.connect(name, stream)
            .await
            .map_err(BenchError::io("the TLS handshake"))
    }
}

/// The connector of a client that trusts one certificate; with or without a TLS session cache.
fn connector(
    certificate: &str,
    alpn: &[u8],
    keeps_sessions: bool,
) -> Result<TlsConnector, BenchError> {
    let der = HEXLOWER
        .decode(certificate.as_bytes())
        .map_err(|_| BenchError::Invalid("not a certificate".into()))?;
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from(der))
        .map_err(failed("parsing the certificate"))?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(failed("setting up TLS"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    if !keeps_sessions {
        config.resumption = Resumption::disabled();
    }
    Ok(TlsConnector::from(Arc::new(config)))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_reads_back_and_what_is_none_is_refused() {
        let (_, certificate) = acceptor(b"h2").unwrap();
        assert!(connector(&certificate, b"h2", true).is_ok());
        for text in ["zz", "000fff"] {
            assert!(connector(text, b"h2", true).is_err(), "{text}");
        }
    }
}
