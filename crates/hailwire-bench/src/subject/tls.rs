//! TLS 1.3 of the plain subjects: a certificate made at start, pinned by whoever loads.

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

use super::{Ready, failed};
use crate::{BenchError, work::Start};

/// The name in the certificate.
const NAME: &str = "bench.hailwire";

/// Sessions that a server keeps, enough for every agent of the largest scenario.
const SESSIONS: usize = 4_096;

/// A server's side, and its certificate in hex.
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
        .map_err(failed("TLS"))?;
    config.alpn_protocols = vec![alpn.to_vec()];
    config.session_storage = rustls::server::ServerSessionMemoryCache::new(SESSIONS);
    config.send_tls13_tickets = 1;
    Ok((TlsAcceptor::from(Arc::new(config)), hex))
}

/// The far side of a plain subject, as the loader knows it.
#[derive(Clone)]
pub(super) struct Far {
    pub(super) address: SocketAddr,
    certificate: String,
    alpn: &'static [u8],
    /// Keeps TLS sessions.
    known: TlsConnector,
}

impl Far {
    pub(super) fn new(ready: &Ready, alpn: &'static [u8]) -> Result<Self, BenchError> {
        Ok(Self {
            address: ready.socket()?,
            known: connector(&ready.certificate, alpn, true)?,
            certificate: ready.certificate.clone(),
            alpn,
        })
    }

    /// What a connection begins with: a memory of its own for TLS sessions, or none when cold. To be
    /// resumed it has to meet the far side once. `no_early` says why it sends no early data.
    pub(super) fn connector(
        &self,
        start: Start,
        no_early: &'static str,
    ) -> Result<TlsConnector, BenchError> {
        match start {
            Start::Cold => connector(&self.certificate, self.alpn, false),
            Start::Resumed => connector(&self.certificate, self.alpn, true),
            Start::Warm => Ok(self.known.clone()),
            Start::ZeroRtt => Err(BenchError::Unsupported(no_early)),
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
        let name = ServerName::try_from(NAME).map_err(failed("the name"))?;
        tls.connect(name, stream)
            .await
            .map_err(BenchError::io("TLS"))
    }
}

/// A client's side that trusts one certificate; with or without a memory for sessions.
fn connector(
    certificate: &str,
    alpn: &[u8],
    keeps_sessions: bool,
) -> Result<TlsConnector, BenchError> {
    let der = HEXLOWER
        .decode(certificate.as_bytes())
        .map_err(|_| BenchError::Wrong("not a certificate".into()))?;
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from(der))
        .map_err(failed("the certificate"))?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(failed("TLS"))?
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
