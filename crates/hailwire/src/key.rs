//! The node's key: an Ed25519 seed in a file that nobody else can read.
//!
//! It is made at first start, written whole to a temporary file, flushed, and only then linked to
//! its name, so that neither a crash nor a second process can leave half a key or replace one.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use hailwire_wire::signed::KeyPair;
use thiserror::Error;

/// The node's secret. It is never printed, and leaves this type only toward the TLS layer.
#[derive(Clone)]
pub struct NodeKey {
    seed: [u8; 32],
}

impl NodeKey {
    /// Reads the key at `path`, or makes one there.
    ///
    /// # Errors
    ///
    /// [`KeyError`].
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        match Self::load(path) {
            Err(KeyError::Io(error)) if error.kind() == io::ErrorKind::NotFound => create(path),
            loaded => loaded,
        }
    }

    /// Reads the key at `path`.
    ///
    /// # Errors
    ///
    /// [`KeyError`].
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let meta = fs::metadata(path)?;
        if meta.mode() & 0o077 != 0 {
            return Err(KeyError::Exposed {
                path: path.display().to_string(),
            });
        }
        let text = fs::read_to_string(path)?;
        let seed = data_encoding::HEXLOWER
            .decode(text.trim_end().as_bytes())
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| KeyError::Malformed {
                path: path.display().to_string(),
            })?;
        Ok(Self { seed })
    }

    /// The key that signs records and permits.
    #[must_use]
    pub fn pair(&self) -> KeyPair {
        KeyPair::from_seed(&self.seed)
    }

    pub(crate) fn iroh(&self) -> iroh::SecretKey {
        iroh::SecretKey::from_bytes(&self.seed)
    }

    /// The key as TLS libraries read it: PKCS #8 (RFC 8410, 7).
    pub(crate) fn pkcs8(&self) -> Vec<u8> {
        /// Version 0, the algorithm Ed25519, and an octet string within one of 32 bytes.
        const AHEAD: [u8; 16] = [
            0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22,
            0x04, 0x20,
        ];
        [&AHEAD[..], &self.seed].concat()
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey(…)")
    }
}

/// Why there is no key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("the key file cannot be used")]
    Io(#[from] io::Error),
    /// Others could have read it.
    #[error(
        "the key file {path} can be read by others: run `chmod 600` on it, or remove it to get a new key"
    )]
    Exposed {
        /// Where it is.
        path: String,
    },
    /// It does not hold 64 hex digits.
    #[error("the key file {path} is damaged: 64 hex digits are expected")]
    Malformed {
        /// Where it is.
        path: String,
    },
}

fn create(path: &Path) -> Result<NodeKey, KeyError> {
    let mut seed = [0; 32];
    random(&mut seed);
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        writeln!(file, "{}", data_encoding::HEXLOWER.encode(&seed))?;
        file.sync_all()?;
        // Unlike a rename, a link fails where a key is already: the first one stays.
        fs::hard_link(&temporary, path)
    };
    let written = write();
    let _ = fs::remove_file(&temporary);
    match written {
        Ok(()) => Ok(NodeKey { seed }),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => NodeKey::load(path),
        Err(error) => Err(error.into()),
    }
}

/// Fills `bytes` from the operating system.
pub(crate) fn random(bytes: &mut [u8]) {
    #[expect(
        clippy::expect_used,
        reason = "without a random source no key or secret can be made"
    )]
    getrandom::fill(bytes).expect("the operating system's random source");
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = NodeKey::load_or_create(&path).unwrap();
        let second = NodeKey::load_or_create(&path).unwrap();
        assert_eq!(first.pair().id(), second.pair().id());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        NodeKey::load_or_create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            NodeKey::load(&path),
            Err(KeyError::Exposed { .. })
        ));
    }

    #[test]
    fn a_damaged_key_is_refused_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        NodeKey::load_or_create(&path).unwrap();
        fs::write(&path, "abc").unwrap();
        assert!(matches!(
            NodeKey::load_or_create(&path),
            Err(KeyError::Malformed { .. })
        ));
        assert_eq!(fs::read_to_string(&path).unwrap(), "abc");
    }

    #[test]
    fn a_key_is_never_printed() {
        let dir = tempfile::tempdir().unwrap();
        let key = NodeKey::load_or_create(&dir.path().join("key")).unwrap();
        assert_eq!(format!("{key:?}"), "NodeKey(…)");
    }
}
