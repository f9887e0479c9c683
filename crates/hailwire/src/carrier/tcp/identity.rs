//! Who is at the far end of a TCP connection: TLS 1.3 with raw public keys (RFC 7250).
//!
//! There is no certificate and no authority. Each side shows its node key, a bare
//! `SubjectPublicKeyInfo` of an Ed25519 key (RFC 8410), and signs the handshake with it (RFC 8446,
//! 4.4.3). The dialling side expects one key and ends the handshake at any other; the listening
//! side takes whatever key was proved and says whose it is. So a peer is as surely itself here as
//! it is over QUIC.
//!
//! The name under which the dialling side remembers a session for resumption is the peer's key in
//! text, below `hailwire.invalid` (RFC 2606). It is not sent: there is no SNI.

use std::sync::Arc;

use hailwire_wire::NodeId;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key},
    pki_types::{
        CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
    },
    server::{
        AlwaysResolvesServerRawPublicKeys,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};

use crate::{carrier::cipher, config::TlsCipher, key::NodeKey};

/// What stands ahead of the key in the `SubjectPublicKeyInfo` of an Ed25519 key (RFC 8410, 4).
const ED25519_SPKI: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The domain below which a peer's key is a name for TLS.
const DOMAIN: &str = ".hailwire.invalid";

/// A node's key, ready for TLS in both roles. Clones share it, and the sessions that can be
/// resumed: 256 of peers that were dialled, as many of peers that called.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl TlsIdentity {
    /// The identity of the node that holds `key`.
    #[must_use]
    pub fn new(key: &NodeKey) -> Self {
        Self::from_pkcs8(key.pkcs8())
    }

    #[expect(
        clippy::expect_used,
        reason = "a seed of 32 bytes is always a key, and ring knows TLS 1.3"
    )]
    fn from_pkcs8(key: Vec<u8>) -> Self {
        let key = PrivatePkcs8KeyDer::from(key);
        let key = rustls::crypto::ring::sign::any_eddsa_type(&key).expect("an Ed25519 key");
        let public = key.public_key().expect("its public half").to_vec();
        let shown = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key));
        let provider = Arc::new(cipher::provider(TlsCipher::Auto));
        let proof = Arc::new(PeerVerifier::new(&provider));
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(proof.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                shown.clone(),
            )));
        client.enable_sni = false;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_client_cert_verifier(proof)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(shown)));
        Self {
            client: Arc::new(client),
            server: Arc::new(server),
        }
    }

    /// What the dialling side uses for one list of protocols, with the far side's [`name_of`] as its name. For who
    /// speaks to a node without the carriers of this crate, such as a test that breaks their rules.
    #[must_use]
    pub fn dialling(&self, protocols: Vec<Vec<u8>>) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.client);
        config.alpn_protocols = protocols;
        Arc::new(config)
    }

    /// What the listening side uses.
    pub(super) fn listening(&self, protocols: Vec<Vec<u8>>) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.server);
        config.alpn_protocols = protocols;
        Arc::new(config)
    }
}

/// The name by which TLS knows a peer. It is not sent.
#[must_use]
#[expect(clippy::expect_used, reason = "52 letters and digits are a label")]
pub fn name_of(peer: &NodeId) -> ServerName<'static> {
    ServerName::try_from(format!("{peer}{DOMAIN}")).expect("a DNS name")
}

/// The key that a peer has proved to hold, once the handshake is complete.
pub(super) fn proved(certificates: Option<&[CertificateDer<'_>]>) -> Option<NodeId> {
    let [shown] = certificates? else {
        return None;
    };
    key_in(shown)
}

/// The key in a `SubjectPublicKeyInfo`, if it is an Ed25519 one.
fn key_in(shown: &[u8]) -> Option<NodeId> {
    let key = shown.strip_prefix(&ED25519_SPKI)?;
    Some(NodeId::from_bytes(key.try_into().ok()?))
}

/// Checks what the far side shows, in either role.
#[derive(Debug)]
struct PeerVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl PeerVerifier {
    const fn new(provider: &CryptoProvider) -> Self {
        Self {
            algorithms: provider.signature_verification_algorithms,
        }
    }

    fn signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if signed.scheme != SignatureScheme::ED25519 {
            return Err(PeerIncompatible::NoSignatureSchemesInCommon.into());
        }
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = name.to_str();
        let expected = name.strip_suffix(DOMAIN).and_then(|key| key.parse().ok());
        if more.is_empty() && expected.is_some() && key_in(shown) == expected {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Any key may call; whether it is let in is decided once it is known.
    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if more.is_empty() && key_in(shown).is_some() {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::BadEncoding.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    fn node(folder: &std::path::Path, name: &str) -> (NodeId, TlsIdentity) {
        let key = NodeKey::load_or_create(&folder.join(name)).unwrap();
        (key.pair().id(), TlsIdentity::new(&key))
    }

    #[test]
    fn two_nodes_settle_on_the_cipher_that_this_processor_is_best_at() {
        let folder = tempfile::tempdir().unwrap();
        let (_, near) = node(folder.path(), "near");
        let (far_id, far) = node(folder.path(), "far");
        let mut client = ClientConnection::new(near.client, name_of(&far_id)).unwrap();
        let mut server = ServerConnection::new(far.server).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            wire.clear();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }
        let settled = client.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(settled, cipher::suite(TlsCipher::Auto));
        if TlsCipher::Auto.first() == TlsCipher::Aes128 {
            assert_eq!(settled, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        }
    }

    #[test]
    fn two_nodes_settle_on_the_same_cipher_in_quics_handshake() {
        use rustls::quic::{ClientConnection, ServerConnection, Version};

        let folder = tempfile::tempdir().unwrap();
        let (_, near) = node(folder.path(), "near");
        let (far_id, far) = node(folder.path(), "far");
        let name = name_of(&far_id);
        let mut client = ClientConnection::new(near.client, Version::V1, name, vec![]).unwrap();
        let mut server = ServerConnection::new(far.server, Version::V1, vec![]).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            let _keys = client.write_hs(&mut wire);
            server.read_hs(&wire).unwrap();
            // Hello, then what goes under the next keys.
            loop {
                wire.clear();
                let keys = server.write_hs(&mut wire);
                client.read_hs(&wire).unwrap();
                if keys.is_none() {
                    break;
                }
            }
        }
        let settled = client.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(settled, cipher::suite(TlsCipher::Auto));
        if TlsCipher::Auto.first() == TlsCipher::Aes128 {
            assert_eq!(settled, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        }
    }
}
