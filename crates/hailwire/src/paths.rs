//! The data folder: where a node keeps its key, its trust and its socket.
//!
//! ```text
//! DIR/key          the node's Ed25519 seed, 64 hex digits and a newline, mode 0600
//! DIR/node.db      trust, aliases, invitations, hubs (SQLite)
//! DIR/hail.kdl     configuration, optional
//! DIR/lock         held while a node runs; holds its process id
//! DIR/hail.log     what a node in the background writes
//! DIR/run/         mode 0700
//! DIR/run/hail.sock  the local socket
//! ```
//!
//! A Unix socket's path holds at most 107 bytes (`sun_path`, unix(7)). Where `DIR/run/hail.sock` is
//! longer, the socket lies in a folder of the same mode under `$XDG_RUNTIME_DIR` or the temporary
//! folder, named by a hash of `DIR`.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Longest path that fits `sun_path` with its terminating zero.
const MAX_SOCKET_PATH: usize = 107;

/// A node's data folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    root: PathBuf,
}

impl DataDir {
    /// The folder at `root`, which need not exist yet. A relative path is taken from the current
    /// folder once, now.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self {
            root: std::path::absolute(&root).unwrap_or(root),
        }
    }

    /// `$HAIL_DATA`, else `$XDG_DATA_HOME/hailwire`, else `~/.local/share/hailwire`.
    ///
    /// `None` when no home is known either.
    #[must_use]
    pub fn from_env() -> Option<Self> {
        let set = |name: &str| {
            env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        set("HAIL_DATA")
            .or_else(|| set("XDG_DATA_HOME").map(|home| home.join("hailwire")))
            .or_else(|| set("HOME").map(|home| home.join(".local/share/hailwire")))
            .map(Self::new)
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The key file.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.root.join("key")
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.root.join("node.db")
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.root.join("hail.kdl")
    }

    /// The single-instance lock.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The log of a node in the background.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.root.join("hail.log")
    }

    /// The local socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let near = self.root.join("run/hail.sock");
        if near.as_os_str().len() <= MAX_SOCKET_PATH {
            return near;
        }
        let base = env::var_os("XDG_RUNTIME_DIR").map_or_else(env::temp_dir, PathBuf::from);
        let hash = fnv1a(self.root.as_os_str().as_encoded_bytes());
        base.join(format!("hailwire-{hash:016x}")).join("hail.sock")
    }

    /// Makes the folder and the socket's folder, both private to this user.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, or the socket's folder belongs to somebody else.
    pub fn create(&self) -> io::Result<()> {
        private_dir(&self.root)?;
        match self.socket().parent() {
            Some(run) => private_dir(run),
            None => Ok(()),
        }
    }
}

/// Makes a folder of mode 0700, or takes an existing one of this user and closes it to others.
fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    let meta = fs::metadata(path)?;
    let uid = rustix::process::getuid().as_raw();
    if meta.uid() != uid {
        let message = format!(
            "{} belongs to user {}, not to {uid}",
            path.display(),
            meta.uid()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Has a database and its companions readable by this user alone: made so before SQLite opens it, which
/// gives what it puts beside it the same mode, and closed where an earlier version left it open.
///
/// # Errors
///
/// The file cannot be made, or a mode cannot be changed.
pub(crate) fn private_database(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let file = Path::new(&name);
        match fs::symlink_metadata(file) {
            Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o077 != 0 => {
                fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// FNV-1a, to name a folder after a path: no secret depends on it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_always_fits() {
        let long = DataDir::new(format!("/tmp/{}", "x".repeat(200)));
        assert!(long.socket().as_os_str().len() <= MAX_SOCKET_PATH);
        let other = DataDir::new(format!("/tmp/{}y", "x".repeat(200)));
        assert_ne!(long.socket(), other.socket());
        assert!(DataDir::new("/tmp/a").socket().ends_with("a/run/hail.sock"));
    }

    #[test]
    fn folders_are_private() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::new(temp.path().join("node"));
        dir.create().unwrap();
        for path in [dir.root().to_owned(), dir.root().join("run")] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700);
        }
    }
}
