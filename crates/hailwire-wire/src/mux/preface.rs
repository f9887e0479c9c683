//! The twelve bytes ahead of all frames.

use super::MuxError;

/// Length of the preface.
pub const PREFACE: usize = 12;

/// The major version: peers that differ refuse each other.
pub const MAJOR: u8 = 1;

/// The minor version: a higher one adds frames that an older peer skips.
pub const MINOR: u8 = 0;

const MAGIC: &[u8; 8] = b"hailmux/";

/// Which side of the connection this is. It decides nothing but the parity of stream ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MuxRole {
    /// The side that connected: odd stream ids.
    Client,
    /// The side that listened: even stream ids.
    Server,
}

impl MuxRole {
    /// The id of the first stream that this side opens.
    #[must_use]
    pub const fn first_id(self) -> u64 {
        match self {
            Self::Client => 1,
            Self::Server => 2,
        }
    }

    /// The other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    const fn letter(self) -> u8 {
        match self {
            Self::Client => b'C',
            Self::Server => b'S',
        }
    }
}

/// The preface that `role` writes.
#[must_use]
pub const fn preface(role: MuxRole) -> [u8; PREFACE] {
    let [a, b, c, d, e, f, g, h] = *MAGIC;
    [a, b, c, d, e, f, g, h, MAJOR, MINOR, role.letter(), 0]
}

/// Reads the peer's preface from the start of `bytes`; `None` while it is incomplete. Wrong bytes
/// are refused as soon as they are seen.
///
/// # Errors
///
/// [`MuxError::NotMux`], [`MuxError::Version`], [`MuxError::SameRole`].
pub fn parse_preface(bytes: &[u8], ours: MuxRole) -> Result<Option<()>, MuxError> {
    let bytes = bytes.get(..PREFACE).unwrap_or(bytes);
    let not_mux = || MuxError::NotMux {
        began: bytes.to_vec(),
    };
    if bytes.iter().zip(MAGIC).any(|(a, b)| a != b) {
        return Err(not_mux());
    }
    if let Some(&theirs) = bytes.get(MAGIC.len())
        && theirs != MAJOR
    {
        return Err(MuxError::Version {
            ours: MAJOR,
            theirs,
        });
    }
    let &[.., role, _] = bytes else {
        return Ok(None);
    };
    if bytes.len() < PREFACE {
        return Ok(None);
    }
    if role == ours.letter() {
        return Err(MuxError::SameRole);
    }
    if role == ours.other().letter() {
        Ok(Some(()))
    } else {
        Err(not_mux())
    }
}
