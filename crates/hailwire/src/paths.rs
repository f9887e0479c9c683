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
//! Nobody but the user may write there: whoever could put a folder or a socket in our place would be told what is meant
//! for the node. So folders are made private or refused, links that another user made are not followed, and a
//! program looks whose the folder, the socket and the process at its other end are before it writes a byte.
//!
//! A Unix socket's path holds at most 107 bytes (`sun_path`, unix(7)), and the socket lies in the data folder however
//! long that path is: where it does not fit, it is given as `/proc/self/fd/N/hail.sock`, N being the open folder.

use std::{
    env, fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, open, statat};

/// Longest path that fits `sun_path` with its terminating zero.
const MAX_SOCKET_PATH: usize = 107;

/// The folder of the local socket, and the socket in it.
const RUN: &str = "run";
const SOCKET: &str = "hail.sock";

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

    /// The database of durable messages.
    #[must_use]
    pub fn messages(&self) -> PathBuf {
        self.root.join("messages.db")
    }

    /// The database of what is kept of topics.
    #[must_use]
    pub fn topics(&self) -> PathBuf {
        self.root.join("topics.db")
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
        self.root.join(RUN).join(SOCKET)
    }

    /// Makes the folder and the socket's folder, both private to this user.
    ///
    /// # Errors
    ///
    /// A folder cannot be made, belongs to somebody else, or is a link that somebody else made; the socket's may not be
    /// a link at all.
    pub fn create(&self) -> io::Result<()> {
        // A user may keep the data elsewhere and link to it.
        if let Ok(link) = fs::symlink_metadata(&self.root)
            && link.is_symlink()
            && link.uid() != me()
            && link.uid() != 0
        {
            return Err(foreign(&self.root, "is a link that another user made"));
        }
        let missing = self.root.ancestors().take_while(|folder| !folder.exists());
        let missing: Vec<&Path> = missing.collect();
        let made = private_dir(&self.root, OFlags::empty())
            .and_then(|_| private_dir(&self.root.join(RUN), OFlags::NOFOLLOW));
        if made.is_err() {
            // What was made on the way to a folder that cannot be made. A folder that is not empty stays.
            for folder in missing {
                let _ = fs::remove_dir(folder);
            }
        }
        made.map(drop)
    }

    /// Where the socket is to be bound.
    ///
    /// # Errors
    ///
    /// The folder is not there, or its path is too long and there is no `/proc`.
    pub(crate) fn to_bind(&self) -> io::Result<SocketPath> {
        let path = self.socket();
        if path.as_os_str().len() <= MAX_SOCKET_PATH {
            return Ok(SocketPath {
                path,
                _folder: None,
            });
        }
        let folder = private_dir(&self.root.join(RUN), OFlags::NOFOLLOW)?;
        through(folder, path)
    }

    /// Where a program finds the socket, and the user that the node at its other end must run as: the data folder's owner,
    /// who is this user unless this user is root.
    ///
    /// # Errors
    ///
    /// `NotFound` where no node has been; `PermissionDenied` where somebody else's socket may be in its place.
    pub(crate) fn to_connect(&self) -> io::Result<(SocketPath, u32)> {
        let owner = fs::metadata(&self.root)?.uid();
        if owner != me() && me() != 0 {
            return Err(foreign(&self.root, &format!("belongs to user {owner}")));
        }
        let run = self.root.join(RUN);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match open(&run, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                return Err(foreign(&run, "is not a folder"));
            }
            opened => opened?,
        };
        let of_folder = fstat(&folder)?;
        if of_folder.st_uid != owner {
            let why = format!("belongs to user {}, not to {owner}", of_folder.st_uid);
            return Err(foreign(&run, &why));
        }
        if of_folder.st_mode & 0o022 != 0 {
            return Err(foreign(&run, "can be written by others"));
        }
        let of_socket = statat(&folder, SOCKET, AtFlags::SYMLINK_NOFOLLOW)?;
        if kind(&of_socket) != FileType::Socket || of_socket.st_uid != owner {
            return Err(foreign(
                &self.socket(),
                "is not a socket of its owner's node",
            ));
        }
        Ok((through(folder, self.socket())?, owner))
    }
}

/// A path that fits an address of a Unix socket, for as long as this lives.
#[derive(Debug)]
pub(crate) struct SocketPath {
    path: PathBuf,
    /// The folder that the path leads through.
    _folder: Option<OwnedFd>,
}

impl SocketPath {
    /// The path, which leads there only as long as this is held: so no `AsRef`, which whoever takes a path by value would
    /// drop too early.
    pub(crate) fn as_path(&self) -> &Path {
        &self.path
    }
}

/// The socket in `folder`, which is named `path`: nobody can put another folder between a look at this one and its use.
fn through(folder: OwnedFd, path: PathBuf) -> io::Result<SocketPath> {
    let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    if short.exists() {
        let path = short.join(SOCKET);
        return Ok(SocketPath {
            path,
            _folder: Some(folder),
        });
    }
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        let why = format!("its path is longer than {MAX_SOCKET_PATH} bytes, and there is no /proc");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(SocketPath {
        path,
        _folder: None,
    })
}

/// Makes a folder of mode 0700, or takes an existing one of this user and closes it to others.
fn private_dir(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = match open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return Err(foreign(path, "is not a folder of its own"));
        }
        opened => opened?,
    };
    let found = fstat(&folder)?;
    if found.st_uid != me() {
        let why = format!("belongs to user {}, not to {}", found.st_uid, me());
        return Err(foreign(path, &why));
    }
    if found.st_mode & 0o077 != 0 {
        fchmod(&folder, Mode::RWXU)?;
    }
    Ok(folder)
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

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn foreign(path: &Path, why: &str) -> io::Error {
    let message = format!("{} {why}", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data folder whose socket's path is too long for an address.
    fn long(within: &Path) -> DataDir {
        DataDir::new(within.join("x".repeat(200)))
    }

    #[test]
    fn a_folder_that_cannot_be_made_leaves_nothing_behind() {
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::new(temp.path().join("a/b").join("x".repeat(300)));
        assert!(data.create().is_err());
        assert!(!temp.path().join("a").exists());

        // What was there stays, also an empty folder.
        fs::create_dir(temp.path().join("a")).unwrap();
        assert!(data.create().is_err());
        assert_eq!(fs::read_dir(temp.path().join("a")).unwrap().count(), 0);
    }

    #[test]
    fn a_socket_lies_in_the_data_folder_however_long_its_path_is() {
        let temp = tempfile::tempdir().unwrap();
        for data in [DataDir::new(temp.path().join("short")), long(temp.path())] {
            data.create().unwrap();
            let path = data.to_bind().unwrap();
            assert!(path.as_path().as_os_str().len() <= MAX_SOCKET_PATH);
            let listener = std::os::unix::net::UnixListener::bind(path.as_path()).unwrap();
            let (path, owner) = data.to_connect().unwrap();
            assert!(path.as_path().as_os_str().len() <= MAX_SOCKET_PATH);
            assert_eq!(owner, me());
            std::os::unix::net::UnixStream::connect(path.as_path()).unwrap();
            listener.accept().unwrap();
            assert!(fs::symlink_metadata(data.socket()).is_ok());
        }
    }

    #[test]
    fn nothing_is_connected_to_where_no_node_has_been() {
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::new(temp.path().join("node"));
        let kind = |data: &DataDir| data.to_connect().unwrap_err().kind();
        assert_eq!(kind(&data), io::ErrorKind::NotFound);
        data.create().unwrap();
        assert_eq!(kind(&data), io::ErrorKind::NotFound);
    }

    #[test]
    fn links_and_open_folders_are_not_gone_through() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let temp = tempfile::tempdir().unwrap();
        let elsewhere = DataDir::new(temp.path().join("elsewhere"));
        elsewhere.create().unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(elsewhere.socket()).unwrap();
        let denied = |data: &DataDir| {
            let error = data.to_connect().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        };

        // The socket's folder is a link.
        let linked = DataDir::new(temp.path().join("linked"));
        fs::create_dir(linked.root()).unwrap();
        symlink(elsewhere.root().join(RUN), linked.root().join(RUN)).unwrap();
        denied(&linked);
        assert_eq!(
            linked.create().unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
        // The socket is a link.
        let other = DataDir::new(temp.path().join("other"));
        other.create().unwrap();
        symlink(elsewhere.socket(), other.socket()).unwrap();
        denied(&other);
        // Others may write where the socket is.
        let run = elsewhere.root().join(RUN);
        fs::set_permissions(&run, fs::Permissions::from_mode(0o777)).unwrap();
        denied(&elsewhere);
        elsewhere.create().unwrap();
        elsewhere.to_connect().unwrap();
        // A user's own link to the data folder is the user's business.
        symlink(elsewhere.root(), temp.path().join("mine")).unwrap();
        let mine = DataDir::new(temp.path().join("mine"));
        mine.create().unwrap();
        mine.to_connect().unwrap();
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
