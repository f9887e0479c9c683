//! QUIC packets as somebody makes them who has no key but those that everybody can derive.
//!
//! The keys of an Initial follow from its destination connection id (RFC 9001, 5.2), so whoever can send a
//! datagram can encrypt one as it ought to be: what it says reaches the engine, the TLS library and the
//! node. In a file of its own, because `hailwire`'s tests make packets with it too.

use std::sync::Arc;

use rustls::{
    ClientConfig, Side,
    client::AlwaysResolvesClientRawPublicKeys,
    crypto::ring::{
        cipher_suite::TLS13_AES_128_GCM_SHA256, default_provider, sign::any_eddsa_type,
    },
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName},
    quic::{ClientConnection, Keys, Version},
    sign::CertifiedKey,
};

use super::anybody::Anybody;

/// Version 1 of QUIC (RFC 9000, 15).
pub const V1: u32 = 1;

/// An Initial packet, in the clear.
#[derive(Clone, Debug)]
pub struct Initial<'a> {
    pub version: u32,
    /// Up to 20 bytes by RFC 9000; up to 255 can be written.
    pub destination: &'a [u8],
    pub source: &'a [u8],
    pub token: &'a [u8],
    pub number: u32,
    /// What is encrypted.
    pub frames: &'a [u8],
    /// How long the datagram is made with PADDING frames, where it would be shorter.
    pub padded: usize,
}

impl<'a> Initial<'a> {
    /// One from `destination`, as a client begins with.
    pub fn new(destination: &'a [u8], frames: &'a [u8]) -> Self {
        Self {
            version: V1,
            destination,
            source: b"source-1",
            token: b"",
            number: 0,
            frames,
            padded: 1200,
        }
    }

    /// The same with a token.
    pub fn with_token(self, token: &'a [u8]) -> Self {
        Self { token, ..self }
    }

    /// The datagram that carries it, encrypted.
    pub fn datagram(&self) -> Vec<u8> {
        let mut packet = vec![0xc3];
        packet.extend(self.version.to_be_bytes());
        for id in [self.destination, self.source] {
            let id = &id[..id.len().min(255)];
            packet.push(id.len() as u8);
            packet.extend(id);
        }
        packet.extend(variable(self.token.len()));
        packet.extend(self.token);
        // Length, number and tag: what the payload does not hold.
        let rest = packet.len() + 2 + 4 + 16;
        let mut payload = self.frames.to_vec();
        // Four bytes at least, so that there is something to sample.
        payload.resize(
            payload.len().max(self.padded.saturating_sub(rest)).max(4),
            0,
        );
        packet.extend((0x4000 | (4 + payload.len() + 16) as u16).to_be_bytes());
        let number_at = packet.len();
        packet.extend(self.number.to_be_bytes());
        let keys = keys(self.destination).local;
        let tag = keys
            .packet
            .encrypt_in_place(self.number.into(), &packet, &mut payload)
            .expect("of a packet's size");
        packet.extend(payload);
        packet.extend(tag.as_ref());
        let (header, protected) = packet.split_at_mut(number_at);
        let (number, sampled) = protected.split_at_mut(4);
        keys.header
            .encrypt_in_place(&sampled[..16], &mut header[0], number)
            .expect("a sample of 16 bytes");
        packet
    }
}

/// The keys of Initials to this connection id, for the side that dials.
pub fn keys(destination: &[u8]) -> Keys {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().expect("of TLS 1.3");
    let quic = suite.quic.expect("for QUIC");
    Keys::initial(Version::V1, suite, quic, destination, Side::Client)
}

/// A number as RFC 9000, 16, writes it.
pub fn variable(number: usize) -> Vec<u8> {
    match number {
        0..0x40 => vec![number as u8],
        0x40..0x4000 => (0x4000 | number as u16).to_be_bytes().to_vec(),
        _ => (0x8000_0000 | number as u32).to_be_bytes().to_vec(),
    }
}

/// A CRYPTO frame.
pub fn crypto(offset: usize, data: &[u8]) -> Vec<u8> {
    [&[0x06][..], &variable(offset), &variable(data.len()), data].concat()
}

/// The ClientHello of somebody who dials a node and has a key to show.
pub fn client_hello() -> Vec<u8> {
    // An Ed25519 seed as RFC 8410 writes it.
    let mut key = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".to_vec();
    key.extend([9; 32]);
    let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(key)).expect("a key");
    let public = CertificateDer::from(key.public_key().expect("its public half").to_vec());
    let shown = Arc::new(CertifiedKey::new(vec![public], key));
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody { raw_keys: true }))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(shown)));
    config.alpn_protocols = vec![b"hailwire".to_vec()];
    config.enable_sni = false;
    let name = ServerName::try_from("node.invalid").expect("a name");
    // Initial source connection id, and room for streams and data.
    let parameters =
        b"\x0f\x08source-1\x04\x04\x80\x10\x00\x00\x08\x02\x40\x64\x01\x04\x80\x00\x75\x30";
    let mut client =
        ClientConnection::new(Arc::new(config), Version::V1, name, parameters.to_vec())
            .expect("a client");
    let mut hello = Vec::new();
    assert!(client.write_hs(&mut hello).is_none(), "no keys yet");
    hello
}
