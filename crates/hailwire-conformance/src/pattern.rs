//! The pattern of bodies: byte number `i` is `(i × 31 + (i >> 8)) mod 251`, so that a byte that is lost, doubled or moved is noticed.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// After so many bytes the pattern begins anew.
const PERIOD: usize = 251 * 256;

/// The pattern, told or compared from any offset without computing each byte.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// Twice the period, so that one period from any offset lies together.
    twice: Vec<u8>,
}

impl Pattern {
    pub(crate) fn new() -> Self {
        let byte = |i: usize| ((i * 31 + (i >> 8)) % 251) as u8;
        Self {
            twice: (0..2 * PERIOD).map(|i| byte(i % PERIOD)).collect(),
        }
    }

    /// As many bytes from `offset` on as lie together, at most `most`.
    pub(crate) fn part(&self, offset: u64, most: usize) -> &[u8] {
        let start = (offset % PERIOD as u64) as usize;
        let end = start + most.min(PERIOD);
        self.twice.get(start..end).unwrap_or_default()
    }

    /// The first `len` bytes.
    pub(crate) fn bytes(&self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            out.extend_from_slice(self.part(out.len() as u64, len - out.len()));
        }
        out
    }

    /// Whether these bytes are the pattern from `offset` on.
    pub(crate) fn is_at(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut at = offset;
        bytes.chunks(PERIOD).all(|chunk| {
            let same = self.part(at, chunk.len()) == chunk;
            at += chunk.len() as u64;
            same
        })
    }

    /// The SHA-256 of the first `len` bytes, in hex.
    pub(crate) fn sha256(&self, len: u64) -> String {
        let (mut hash, mut at) = (Sha256::new(), 0);
        while at < len {
            let most = usize::try_from(len - at).unwrap_or(usize::MAX);
            let part = self.part(at, most);
            hash.update(part);
            at += part.len() as u64;
        }
        HEXLOWER.encode(&hash.finalize())
    }
}

/// The SHA-256 of some bytes, in hex.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_that_of_the_page_at_every_offset() {
        let pattern = Pattern::new();
        let all = pattern.bytes(300_000);
        for (i, byte) in all.iter().enumerate() {
            assert_eq!(usize::from(*byte), (i * 31 + (i >> 8)) % 251);
        }
        assert!(pattern.is_at(5, &all[5..200_000]));
        assert!(!pattern.is_at(4, &all[5..200_000]));
        assert_eq!(pattern.sha256(300_000), sha256(&all));
        assert_eq!(sha256(b"").get(..8), Some("e3b0c442"));
    }
}
