//! The bytes that subjects move, and how the receiver checks them.

use bytes::Bytes;

use crate::BenchError;

/// Size of the chunks in which a large answer is made.
pub(crate) const CHUNK: usize = 256 * 1024;

/// `count` bytes, each its own position modulo 251.
pub(crate) fn pattern(count: u64) -> impl Iterator<Item = Bytes> + Send {
    // One period longer than a chunk, so that every chunk is a slice without a copy.
    let source: Bytes = (0..CHUNK + 251)
        .map(|i| (i % 251) as u8)
        .collect::<Vec<_>>()
        .into();
    (0..count).step_by(CHUNK).map(move |at| {
        let len = (count - at).min(CHUNK as u64) as usize;
        let phase = (at % 251) as usize;
        source.slice(phase..phase + len)
    })
}

/// Checks a chunk that begins at `at`, at its ends and in its middle, and returns where it ends.
pub(crate) fn check_pattern(at: u64, chunk: &[u8]) -> Result<u64, BenchError> {
    let wrong_at = |i: usize| {
        chunk
            .get(i)
            .is_some_and(|b| *b != ((at + i as u64) % 251) as u8)
    };
    if [0, chunk.len() / 2, chunk.len().saturating_sub(1)]
        .into_iter()
        .any(wrong_at)
    {
        return Err(BenchError::Invalid(format!(
            "the stream is damaged near byte {at}"
        )));
    }
    Ok(at + chunk.len() as u64)
}

/// A message of a size.
pub(crate) fn message(bytes: usize) -> Bytes {
    (0..bytes)
        .map(|i| (i % 253) as u8)
        .collect::<Vec<_>>()
        .into()
}

pub(crate) fn check_echo(sent: &Bytes, got: &Bytes) -> Result<(), BenchError> {
    if sent == got {
        Ok(())
    } else {
        Err(BenchError::Invalid(
            "an echo differs from its message".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_whole_and_damage_is_seen() {
        let count = 3 * CHUNK as u64 + 17;
        let mut at = 0;
        for chunk in pattern(count) {
            at = check_pattern(at, &chunk).unwrap();
        }
        assert_eq!(at, count);
        assert!(check_pattern(1, &[0, 1, 2]).is_err());
        assert!(check_echo(&message(10), &message(11)).is_err());
    }
}
