//! An agent that listens on a Unix socket.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
};

use super::{Agent, ServeOptions, serve::halves};
use crate::stream::split;

/// A Unix socket to listen on. Its file has its mode, 0600 unless another is said, from the first moment, and goes with it.
#[derive(Debug)]
pub struct UdsListener {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
    /// The only user that may connect, besides the system's, where the mode lets nobody else.
    only: Option<u32>,
}

impl UdsListener {
    /// Listens at a path. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`] when somebody listens there, [`io::ErrorKind::AlreadyExists`] when there is
    /// something else; whatever the system says.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_mode(path, 0o600)
    }

    /// Like [`bind`](Self::bind), with another mode of the socket's file.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub fn bind_mode(path: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        refuse_what_lives(&path)?;
        // The name is given to a socket that has its mode already: at no time can others connect.
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new)?;
        let named = fs::set_permissions(&new, fs::Permissions::from_mode(mode))
            .and_then(|()| fs::metadata(&new))
            .and_then(|metadata| fs::rename(&new, &path).map(|()| metadata));
        match named {
            Ok(metadata) => Ok(Self {
                listener,
                path,
                inode: metadata.ino(),
                only: (mode & 0o077 == 0).then(|| metadata.uid()),
            }),
            Err(error) => {
                let _ = fs::remove_file(&new);
                Err(error)
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection.
    ///
    /// # Errors
    ///
    /// Whatever the system says, such as that there are no more descriptors.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            // Its mode keeps others out but for the moment before it has one, and where a system passes modes over.
            let user = stream.peer_cred().map(|peer| peer.uid());
            if self
                .only
                .is_none_or(|only| user.is_ok_and(|user| may_connect(user, only)))
            {
                return Ok(stream);
            }
            tracing::warn!("connection from a process of another user refused");
        }
    }
}

/// Whether a user may connect where only one other may: itself, and the system's.
const fn may_connect(user: u32, only: u32) -> bool {
    user == only || user == 0
}

impl Drop for UdsListener {
    fn drop(&mut self) {
        // Somebody else's may be there by now.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn refuse_what_lives(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Serves an agent to every host that connects. It returns when the socket fails.
///
/// # Errors
///
/// Of the socket. What happens to one connection ends that one.
///
/// # Cancel safety
///
/// Every connection is closed, and every handler is dropped.
pub async fn serve<A: Agent>(
    agent: Arc<A>,
    listener: UdsListener,
    options: &ServeOptions,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(options.max_connections));
    let mut connections = JoinSet::new();
    loop {
        let place = places.clone().acquire_owned().await;
        let stream = tokio::select! {
            stream = listener.accept() => stream,
            Some(_) = connections.join_next() => continue,
        };
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) if is_passing(&error) => {
                tracing::warn!(%error, "accepting a connection from a host failed");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (agent, options) = (agent.clone(), options.clone());
        connections.spawn(async move {
            let _place = place;
            let served = async {
                let (read, write) = split(stream)?;
                halves(agent, read, write, &options).await
            };
            match served.await {
                Ok(()) => tracing::debug!("host disconnected"),
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "connection to a host lost"
                    );
                }
            }
        });
    }
}

/// Whether others may be accepted later.
fn is_passing(error: &io::Error) -> bool {
    // EMFILE and ENFILE have no kind of their own.
    matches!(error.raw_os_error(), Some(23 | 24))
        || matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::OutOfMemory
                | io::ErrorKind::Interrupted
        )
}
