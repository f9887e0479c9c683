//! Batches of durable messages that a hub holds for a node that is away, sealed so that only that node reads them
//! (`spec/held.md`).
//!
//! ```text
//!  0             1                33
//! +-------------+----------------+---------------------------------------------+
//! | version (1) |  HPKE enc (32) | HPKE ciphertext and tag (a size class + 16) |
//! +-------------+----------------+---------------------------------------------+
//! ```
//!
//! HPKE (RFC 9180) in base mode hides the batch from the hub; an Ed25519 signature within it, over receiver, time and batch, says who
//! wrote it. The receiver's X25519 key is that of its node: the other form of the same curve point, so that a peer needs nothing but the key
//! that it trusts. What is sealed is filled with zeros up to one of five sizes.

use bytes::Bytes;
use ed25519_dalek::VerifyingKey;
use hpke::{
    Deserializable as _, OpModeR, OpModeS, Serializable as _, aead::ChaCha20Poly1305,
    kdf::HkdfSha256, kem::X25519HkdfSha256,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    address::NodeId,
    header, limits,
    messages::{MessageBatch, decode_batch},
    signed::{self, KeyPair, SignatureDomain},
};

/// The version of sealed batches.
pub const VERSION: u8 = 1;

/// Ahead of the keys of sender and receiver in HPKE's `info`.
const INFO: &[u8] = b"hailwire held v1\0";

/// Bytes of the length ahead of the signed content.
const LENGTH: usize = 4;

/// Bytes of a sealed batch that are not of its size class: version, encapsulated key, tag.
pub const OVERHEAD: usize = 1 + 32 + 16;

/// The sizes that a batch is filled up to.
pub const SIZE_CLASSES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

type Kem = X25519HkdfSha256;
type PrivateKey = <Kem as hpke::Kem>::PrivateKey;
type PublicKey = <Kem as hpke::Kem>::PublicKey;
type EncappedKey = <Kem as hpke::Kem>::EncappedKey;

/// What is signed and sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldContent {
    /// For whom it is: a receiver cannot pass it on as if it were for another.
    pub to: NodeId,
    /// When it was sealed, in milliseconds since 1970 by the sender's clock.
    pub sealed_ms: u64,
    /// An encoded [`MessageBatch`].
    #[serde(with = "serde_bytes")]
    batch: Vec<u8>,
}

impl HeldContent {
    /// A batch for `to`.
    #[must_use]
    pub fn new(to: NodeId, sealed_ms: u64, batch: &MessageBatch) -> Self {
        Self {
            to,
            sealed_ms,
            batch: header::encode(batch),
        }
    }

    /// The batch.
    ///
    /// # Errors
    ///
    /// [`HeldError::Malformed`].
    pub fn batch(&self) -> Result<MessageBatch, HeldError> {
        decode_batch(&self.batch).map_err(|_| HeldError::Malformed)
    }

    /// Seals it to its receiver in the name of `sender`. `random` is 32 fresh random bytes, of which HPKE makes the key pair of
    /// this one sealing (RFC 9180, 7.1.3).
    ///
    /// # Errors
    ///
    /// [`HeldError::TooLarge`], and [`HeldError::Key`] where the receiver's key is no point of the curve.
    pub fn seal(&self, sender: &KeyPair, random: [u8; 32]) -> Result<Vec<u8>, HeldError> {
        let signed = sender.seal(SignatureDomain::Held, &header::encode(self));
        let needed = LENGTH + signed.len();
        let class = SIZE_CLASSES.into_iter().find(|class| needed <= *class);
        let class = class.ok_or(HeldError::TooLarge)?;
        let length = u32::try_from(signed.len()).map_err(|_| HeldError::TooLarge)?;
        let mut plain = Vec::with_capacity(class);
        plain.extend_from_slice(&length.to_be_bytes());
        plain.extend_from_slice(&signed);
        plain.resize(class, 0);
        let (enc, sealed) = hpke::single_shot_seal_with_rng::<ChaCha20Poly1305, HkdfSha256, Kem>(
            &OpModeS::Base,
            &public_key(self.to)?,
            &info(sender.id(), self.to),
            &plain,
            &[VERSION],
            &mut GivenRandom(random),
        )
        .map_err(|_| HeldError::Key)?;
        Ok([&[VERSION][..], &enc.to_bytes(), &sealed].concat())
    }

    /// Opens what a hub says that `sender` left for the node of `receiver`.
    ///
    /// # Errors
    ///
    /// [`HeldError`]: nothing is believed then.
    pub fn open(receiver: &KeyPair, sender: NodeId, sealed: &[u8]) -> Result<Self, HeldError> {
        if sealed.len() > limits::MAX_HELD {
            return Err(HeldError::TooLarge);
        }
        let (version, rest) = sealed.split_first().ok_or(HeldError::Malformed)?;
        if *version != VERSION {
            return Err(HeldError::Version(*version));
        }
        let (enc, cipher) = rest.split_first_chunk::<32>().ok_or(HeldError::Malformed)?;
        let secret = receiver.agreement_scalar();
        let secret = PrivateKey::from_bytes(&secret).map_err(|_| HeldError::Key)?;
        let enc = EncappedKey::from_bytes(enc).map_err(|_| HeldError::Sealed)?;
        let plain = hpke::single_shot_open::<ChaCha20Poly1305, HkdfSha256, Kem>(
            &OpModeR::Base,
            &secret,
            &enc,
            &info(sender, receiver.id()),
            cipher,
            &[VERSION],
        )
        .map_err(|_| HeldError::Sealed)?;
        let (length, rest) = plain
            .split_first_chunk::<LENGTH>()
            .ok_or(HeldError::Malformed)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let envelope = rest.get(..length).ok_or(HeldError::Malformed)?;
        let (signer, body) =
            signed::open(SignatureDomain::Held, envelope).map_err(|_| HeldError::Forged)?;
        let content: Self =
            header::decode(&Bytes::copy_from_slice(body)).map_err(|_| HeldError::Malformed)?;
        if signer != sender || content.to != receiver.id() {
            return Err(HeldError::Forged);
        }
        Ok(content)
    }
}

fn info(sender: NodeId, receiver: NodeId) -> Vec<u8> {
    [INFO, sender.as_bytes(), receiver.as_bytes()].concat()
}

fn public_key(node: NodeId) -> Result<PublicKey, HeldError> {
    let key = VerifyingKey::from_bytes(node.as_bytes()).map_err(|_| HeldError::Key)?;
    if key.is_weak() {
        return Err(HeldError::Key);
    }
    PublicKey::from_bytes(&key.to_montgomery().to_bytes()).map_err(|_| HeldError::Key)
}

/// Random bytes that somebody else drew, handed out once.
struct GivenRandom([u8; 32]);

impl hpke::rand_core::TryRng for GivenRandom {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        use sha2::{Digest as _, Sha256};
        // HPKE draws 32 bytes once; were it to draw again, it would get others.
        for chunk in bytes.chunks_mut(32) {
            chunk.copy_from_slice(&self.0[..chunk.len()]);
            self.0 = Sha256::digest(self.0).into();
        }
        Ok(())
    }
}

impl hpke::rand_core::TryCryptoRng for GivenRandom {}

/// Why a batch is not sealed, or what was sealed is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeldError {
    /// It has no size class.
    #[error("the batch is larger than a hub may hold")]
    TooLarge,
    /// Not a key to which something can be sealed.
    #[error("the node's key is not one to which something can be sealed")]
    Key,
    /// A version that this program does not know.
    #[error("version {0} of sealed batches is not known here")]
    Version(u8),
    /// It was not sealed to this node by this sender, or was altered.
    #[error("it is not sealed to this node, or was altered")]
    Sealed,
    /// The sender did not sign it for this receiver.
    #[error("its sender did not sign it for this node")]
    Forged,
    /// Not the form that is stated.
    #[error("what was sealed is not a batch of messages")]
    Malformed,
}

#[cfg(test)]
mod tests;
