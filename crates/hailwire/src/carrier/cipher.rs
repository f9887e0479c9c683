//! Ciphers of TLS 1.3: which one is offered first, and so used between two nodes of this program.
//!
//! All of ring's are offered; the one that the dialling side names first is taken (RFC 8446, 4.1.1, and what
//! rustls does about it). With AES instructions the AES ciphers take less than half of what ChaCha20-Poly1305
//! (RFC 8439) takes, without them it is the other way round; of the two AES-128 opens a packet sooner.
//! `docs/decisions/0015-quic-settings.md` has the figures.

use rustls::{CipherSuite, crypto::CryptoProvider};

use crate::config::Cipher;

/// What TLS computes with, with this cipher first.
pub(crate) fn provider(first: Cipher) -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    let first = suite(first);
    // Stable: the others keep their order.
    provider
        .cipher_suites
        .sort_by_key(|offered| offered.suite() != first);
    provider
}

/// The cipher suite of a setting.
pub(crate) fn suite(cipher: Cipher) -> CipherSuite {
    match cipher {
        Cipher::Auto if has_aes() => CipherSuite::TLS13_AES_128_GCM_SHA256,
        Cipher::Aes128 => CipherSuite::TLS13_AES_128_GCM_SHA256,
        Cipher::Aes256 => CipherSuite::TLS13_AES_256_GCM_SHA384,
        Cipher::Auto | Cipher::Chacha20 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    }
}

/// Whether this processor has instructions for AES and for GCM's multiplication, which ring then uses.
pub(crate) fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    {
        std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq")
    }
    #[cfg(target_arch = "aarch64")]
    {
        std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull")
    }
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_one_is_first_and_the_others_are_still_offered() {
        let all = rustls::crypto::ring::default_provider().cipher_suites;
        for cipher in [
            Cipher::Auto,
            Cipher::Aes128,
            Cipher::Aes256,
            Cipher::Chacha20,
        ] {
            let offered = provider(cipher).cipher_suites;
            assert_eq!(offered.first().unwrap().suite(), suite(cipher));
            assert_eq!(offered.len(), all.len());
        }
    }
}
