//! Whom a node believes to be its hub: a pinned key, or a public certificate.
//!
//! A hub without a public certificate signs its own with its Ed25519 key, and its ticket names
//! that key. So the key itself is what is checked: a certificate that holds it, and a TLS
//! handshake that is signed with it, prove the hub; names and dates in such a certificate mean
//! nothing. Every other certificate has to pass the ordinary check against Mozilla's roots.
//!
//! A key is pinned for one host, so that one hub cannot pose as another.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, PoisonError, RwLock},
};

use hailwire_wire::NodeId;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// What stands ahead of the key in the `SubjectPublicKeyInfo` of an Ed25519 key (RFC 8410, 4).
const ED25519_SPKI: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The hub keys that a node has pinned, by host. Clones share one set, and what is pinned later
/// counts at once for the verifiers made earlier. Starts empty; grows by one entry per joined hub.
#[derive(Clone, Debug, Default)]
pub struct HubPins(Arc<RwLock<HashMap<String, Vec<NodeId>>>>);

impl HubPins {
    /// Pins a hub's key for a host: a name or an IP address without brackets.
    pub fn pin(&self, host: &str, key: NodeId) {
        let mut pins = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let keys = pins.entry(host.to_ascii_lowercase()).or_default();
        if !keys.contains(&key) {
            keys.push(key);
        }
    }

    /// Forgets all keys of a host.
    pub fn unpin(&self, host: &str) {
        let mut pins = self.0.write().unwrap_or_else(PoisonError::into_inner);
        pins.remove(&host.to_ascii_lowercase());
    }

    fn contains(&self, host: &str, key: &NodeId) -> bool {
        let pins = self.0.read().unwrap_or_else(PoisonError::into_inner);
        pins.get(&host.to_ascii_lowercase())
            .is_some_and(|keys| keys.contains(key))
    }

    /// A verifier for any TLS client; the overlay's endpoint takes it so:
    ///
    /// ```
    /// use std::sync::Arc;
    /// let pins = hailwire::hub::tls::HubPins::default();
    /// let tls = iroh::tls::CaTlsConfig::custom_server_cert_verifier(Arc::new(move |provider| {
    ///     pins.verifier(provider)
    /// }));
    /// ```
    ///
    /// # Errors
    ///
    /// When the provider supports none of the algorithms that certificates use.
    pub fn verifier(
        &self,
        provider: Arc<CryptoProvider>,
    ) -> io::Result<Arc<dyn ServerCertVerifier>> {
        let roots = RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        };
        let public = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(io::Error::other)?;
        Ok(Arc::new(PinnedServerVerifier {
            pins: self.clone(),
            public,
            provider,
        }))
    }
}

/// Accepts a certificate that holds a pinned key, and any that passes the public check.
pub struct PinnedServerVerifier {
    pins: HubPins,
    public: Arc<WebPkiServerVerifier>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for PinnedServerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedServerVerifier")
            .field("pins", &self.pins)
            .finish_non_exhaustive()
    }
}

impl ServerCertVerifier for PinnedServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(key) = ed25519_key(end_entity)?
            && self.pins.contains(&server_name.to_str(), &key)
        {
            return Ok(ServerCertVerified::assertion());
        }
        self.public
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The key of a certificate if it is an Ed25519 key.
fn ed25519_key(certificate: &CertificateDer<'_>) -> Result<Option<NodeId>, Error> {
    let parsed = ParsedCertificate::try_from(certificate)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let info = parsed.subject_public_key_info();
    let key = info
        .as_ref()
        .strip_prefix(&ED25519_SPKI)
        .and_then(|key| key.try_into().ok());
    Ok(key.map(NodeId::from_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_pinned_for_its_host_only_and_for_clones_at_once() {
        let pins = HubPins::default();
        let clone = pins.clone();
        let key = NodeId::from_bytes([1; 32]);
        pins.pin("Hub.Example", key);
        assert!(clone.contains("hub.example", &key));
        assert!(!clone.contains("other.example", &key));
        assert!(!clone.contains("hub.example", &NodeId::from_bytes([2; 32])));
        pins.unpin("hub.example");
        assert!(!clone.contains("hub.example", &key));
    }
}
