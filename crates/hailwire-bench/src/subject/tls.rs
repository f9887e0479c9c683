//! TLS 1.3 of the plain subjects: a certificate made at start, pinned by whoever loads.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    version::TLS13,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::failed;
use crate::BenchError;

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
    let hex = hex(&der);
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

/// A client's side that trusts one certificate; with or without a memory for sessions.
pub(super) fn connector(
    certificate: &str,
    alpn: &[u8],
    keeps_sessions: bool,
) -> Result<TlsConnector, BenchError> {
    let der = unhex(certificate).ok_or_else(|| BenchError::Wrong("not a certificate".into()))?;
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

/// The name to ask for.
pub(super) fn name() -> Result<ServerName<'static>, BenchError> {
    ServerName::try_from(NAME).map_err(failed("the name"))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        use std::fmt::Write;
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_reads_back() {
        assert_eq!(unhex(&hex(&[0, 15, 255])), Some(vec![0, 15, 255]));
        assert_eq!(unhex("zz"), None);
    }
}
