//! Ciphers of TLS 1.3: which one is offered first, and so used between two nodes of this program.
//!
//! All of ring's are offered; the one that the dialling side names first is taken (RFC 8446, 4.1.1, and what
//! rustls does about it). With AES instructions the AES ciphers take less than half of what ChaCha20-Poly1305
//! (RFC 8439) takes, without them it is the other way round; of the two AES-128 opens a packet sooner.
//! `docs/decisions/0015-quic-settings.md` has the figures.
//!
//! iroh seals the tokens of its Retry packets (RFC 9000, 8.1.2) with the first cipher of this list and a key
//! of 32 bytes, whichever cipher that is. ring's AES-128 panics at such a key, which an untrusted peer brings about
//! with one datagram that carries a token. So AES-128 is offered with an AEAD that takes keys of both
//! lengths ([`AeadForBothLengths`]).

use std::sync::LazyLock;

use rustls::{
    CipherSuite, CipherSuiteCommon, ConnectionTrafficSecrets, SupportedCipherSuite,
    Tls13CipherSuite,
    crypto::{
        CryptoProvider,
        cipher::{
            AeadKey, Iv, MessageDecrypter, MessageEncrypter, Tls13AeadAlgorithm,
            UnsupportedOperationError,
        },
        ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256},
    },
};

use crate::config::TlsCipher;

/// What TLS computes with, with this cipher first.
pub(crate) fn provider(first: TlsCipher) -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    if let Some(aes_128) = AES_128.as_ref() {
        for offered in &mut provider.cipher_suites {
            if offered.suite() == aes_128.common.suite {
                *offered = SupportedCipherSuite::Tls13(aes_128);
            }
        }
    }
    let first = suite(first);
    // Stable: the others keep their order.
    provider
        .cipher_suites
        .sort_by_key(|offered| offered.suite() != first);
    provider
}

/// ring's AES-128, with an AEAD that no length of key makes panic.
static AES_128: LazyLock<Option<Tls13CipherSuite>> = LazyLock::new(|| {
    let ring = TLS13_AES_128_GCM_SHA256.tls13()?;
    let long = TLS13_CHACHA20_POLY1305_SHA256.tls13()?;
    Some(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: ring.common.suite,
            hash_provider: ring.common.hash_provider,
            confidentiality_limit: ring.common.confidentiality_limit,
        },
        hkdf_provider: ring.hkdf_provider,
        // Once a process.
        aead_alg: Box::leak(Box::new(AeadForBothLengths {
            short: ring.aead_alg,
            long: long.aead_alg,
        })),
        quic: ring.quic,
    })
});

/// AES-128-GCM where the key has its length, which is all that TLS ever asks for; ChaCha20-Poly1305 for the
/// keys of 32 bytes of address validation. rustls makes keys of no other length than a cipher's own or 32.
struct AeadForBothLengths {
    short: &'static dyn Tls13AeadAlgorithm,
    long: &'static dyn Tls13AeadAlgorithm,
}

impl AeadForBothLengths {
    fn of(&self, key: &AeadKey) -> &'static dyn Tls13AeadAlgorithm {
        if key.as_ref().len() == self.short.key_len() {
            self.short
        } else {
            self.long
        }
    }
}

impl Tls13AeadAlgorithm for AeadForBothLengths {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        self.of(&key).encrypter(key, iv)
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.of(&key).decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.short.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.of(&key).extract_keys(key, iv)
    }

    fn fips(&self) -> bool {
        self.short.fips()
    }
}

/// The cipher suite of a setting.
pub(crate) fn suite(cipher: TlsCipher) -> CipherSuite {
    let (number, _) = cipher.suite();
    CipherSuite::from(number)
}

#[cfg(test)]
mod tests {
    use rustls::{
        ContentType, ProtocolVersion,
        crypto::cipher::{InboundOpaqueMessage, OutboundChunks, OutboundPlainMessage},
    };

    use super::*;

    const ALL: [TlsCipher; 4] = [
        TlsCipher::Auto,
        TlsCipher::Aes128,
        TlsCipher::Aes256,
        TlsCipher::Chacha20,
    ];

    #[test]
    fn the_chosen_one_is_first_and_the_others_are_still_offered() {
        let all = rustls::crypto::ring::default_provider().cipher_suites;
        for cipher in ALL {
            let offered = provider(cipher).cipher_suites;
            assert_eq!(offered.first().unwrap().suite(), suite(cipher));
            assert_eq!(offered.len(), all.len());
        }
    }

    #[test]
    fn the_first_cipher_seals_and_opens_with_a_key_of_32_bytes_whichever_it_is() {
        for cipher in ALL {
            let first = provider(cipher)
                .cipher_suites
                .iter()
                .find_map(|s| s.tls13());
            let aead = first.unwrap().aead_alg;
            let key = || AeadKey::from([7; 32]);
            let message = OutboundPlainMessage {
                typ: ContentType::ApplicationData,
                version: ProtocolVersion::TLSv1_3,
                payload: OutboundChunks::Single(b"a token"),
            };
            let sealed = aead
                .encrypter(key(), Iv::from([1; 12]))
                .encrypt(message, 0)
                .unwrap();
            let opened = |payload: &mut [u8]| {
                let message = InboundOpaqueMessage::new(
                    ContentType::ApplicationData,
                    ProtocolVersion::TLSv1_3,
                    payload,
                );
                let mut open = aead.decrypter(key(), Iv::from([1; 12]));
                open.decrypt(message, 0)
                    .map(|plain| plain.payload.to_vec())
                    .ok()
            };
            let mut token = sealed.payload.as_ref().to_vec();
            assert_eq!(opened(&mut token.clone()).unwrap(), b"a token");
            token[0] ^= 1;
            assert_eq!(opened(&mut token), None, "forged");
            for length in 0..64 {
                assert_eq!(opened(&mut vec![0; length]), None, "of {length} bytes");
            }
        }
    }
}
