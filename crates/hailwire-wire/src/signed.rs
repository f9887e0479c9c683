//! Signed statements: who said it, that they said it, and the exact bytes that were said.
//!
//! ```text
//!  0            32                96
//! +------------+-----------------+----------------------+
//! | key (32)   | signature (64)  |  body (MessagePack)  |
//! +------------+-----------------+----------------------+
//! ```
//!
//! The signature is Ed25519 (RFC 8032, checked strictly: no small-order keys, no second encoding)
//! over `domain ‖ body`. The domain ends in a zero byte and names what is signed and its version,
//! so that a signature made for one purpose proves nothing for another. The body is kept exactly
//! as it was signed and handed on unchanged; nobody encodes it again, so a field from a newer
//! version survives an older hub.

use std::fmt;

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use thiserror::Error;

use crate::address::NodeId;

/// Bytes ahead of the body: key and signature.
pub const ENVELOPE: usize = 32 + 64;

/// What a signature is for. Two purposes never share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureDomain {
    /// A [`crate::record`].
    Record,
    /// Permission for one request to a hub ([`crate::directory`]).
    Request,
    /// A batch that a hub holds ([`crate::held`]).
    Held,
}

impl SignatureDomain {
    /// The bytes that are signed ahead of the body.
    #[must_use]
    pub const fn prefix(self) -> &'static [u8] {
        match self {
            Self::Record => b"hailwire record v1\0",
            Self::Request => b"hailwire request v1\0",
            Self::Held => b"hailwire held v1\0",
        }
    }

    fn message(self, body: &[u8]) -> Vec<u8> {
        [self.prefix(), body].concat()
    }
}

/// An Ed25519 key pair, of a node or of a hub. The private half is wiped when it is dropped and
/// never printed.
#[derive(Clone)]
pub struct KeyPair(SigningKey);

impl KeyPair {
    /// The key pair that grows from a secret seed of 32 random bytes (RFC 8032, 5.1.5).
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The public half.
    #[must_use]
    pub fn id(&self) -> NodeId {
        NodeId::from_bytes(self.0.verifying_key().to_bytes())
    }

    /// The secret scalar of this key for X25519, before clamping (RFC 8032, 5.1.5): never to be shown.
    pub(crate) fn agreement_scalar(&self) -> [u8; 32] {
        self.0.to_scalar_bytes()
    }

    /// Signs `body` and puts it into its envelope.
    #[must_use]
    pub fn seal(&self, domain: SignatureDomain, body: &[u8]) -> Vec<u8> {
        let signature = self.0.sign(&domain.message(body));
        let mut envelope = Vec::with_capacity(ENVELOPE + body.len());
        envelope.extend_from_slice(self.id().as_bytes());
        envelope.extend_from_slice(&signature.to_bytes());
        envelope.extend_from_slice(body);
        envelope
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({}, secret)", self.id())
    }
}

/// Checks an envelope and gives its signer and its body.
///
/// # Errors
///
/// [`SignatureError`].
pub fn open(domain: SignatureDomain, envelope: &[u8]) -> Result<(NodeId, &[u8]), SignatureError> {
    let (key, rest) = envelope
        .split_first_chunk::<32>()
        .ok_or(SignatureError::Truncated)?;
    let (signature, body) = rest
        .split_first_chunk::<64>()
        .ok_or(SignatureError::Truncated)?;
    VerifyingKey::from_bytes(key)
        .and_then(|k| k.verify_strict(&domain.message(body), &Signature::from_bytes(signature)))
        .map_err(|_| SignatureError::Forged)?;
    Ok((NodeId::from_bytes(*key), body))
}

/// Why an envelope is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SignatureError {
    /// Shorter than a key and a signature.
    #[error("too short to be signed")]
    Truncated,
    /// The key did not sign these bytes for this purpose.
    #[error("the signature does not match")]
    Forged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_body_opens_for_its_purpose_only() {
        let key = KeyPair::from_seed(&[1; 32]);
        let sealed = key.seal(SignatureDomain::Record, b"body");
        assert_eq!(
            open(SignatureDomain::Record, &sealed),
            Ok((key.id(), b"body".as_slice()))
        );
        assert_eq!(
            open(SignatureDomain::Request, &sealed),
            Err(SignatureError::Forged)
        );
    }

    #[test]
    fn every_altered_bit_is_noticed() {
        let sealed = KeyPair::from_seed(&[2; 32]).seal(SignatureDomain::Record, b"ab");
        for index in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[index] ^= 1;
            assert_eq!(
                open(SignatureDomain::Record, &altered),
                Err(SignatureError::Forged),
                "{index}"
            );
        }
        for length in 0..ENVELOPE {
            let cut = open(SignatureDomain::Record, &sealed[..length]);
            assert_eq!(cut, Err(SignatureError::Truncated));
        }
    }

    #[test]
    fn a_key_of_small_order_signs_nothing() {
        // The neutral element as key, R and S = 0 pass a lax check for any message.
        let mut forged = vec![0; ENVELOPE];
        forged[0] = 1;
        forged[32] = 1;
        assert_eq!(
            open(SignatureDomain::Record, &forged),
            Err(SignatureError::Forged)
        );
    }

    #[test]
    fn the_private_half_is_never_printed() {
        let seed = [0x5a; 32];
        let text = format!("{:?}", KeyPair::from_seed(&seed));
        assert!(!text.contains("5a5a") && !text.contains("90, 90"), "{text}");
    }
}
