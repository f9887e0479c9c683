//! Locks of files of agents: one process serves the agents of a file, and one at a time changes it.
//!
//! The locks lie in the data folder and not beside the file, which may be in anybody's project, and which editors replace. They are
//! held by `flock(2)`, so that they end with their process however it ends.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use hailwire::DataDir;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

/// Held by whoever serves the agents of a file, or changes it.
#[derive(Debug)]
pub(crate) struct FileLock(#[expect(dead_code, reason = "its lock ends when it is dropped")] File);

/// What is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockFor {
    Serving,
    Editing,
}

/// A short name for a file's path: different for different paths, and a valid part of an agent's name.
pub(crate) fn short_name(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_bytes());
    data_encoding::HEXLOWER.encode(&digest[..8])
}

/// Locks now. `Err(process)` where another process holds the lock: its process id, if that is known.
///
/// # Errors
///
/// The lock's file cannot be made.
pub(crate) fn try_lock(
    data: &DataDir,
    path: &Path,
    what: LockFor,
) -> io::Result<Result<FileLock, String>> {
    let file = open(data, path, what)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => held(file).map(Ok),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut process = String::new();
            file.take(32).read_to_string(&mut process)?;
            Ok(Err(process.trim().to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Waits until nobody else holds the lock. If dropped, a thread goes on waiting until the end of this process.
///
/// # Errors
///
/// The lock's file cannot be made.
pub(crate) async fn lock(data: &DataDir, path: &Path, what: LockFor) -> io::Result<FileLock> {
    let file = open(data, path, what)?;
    let (send, locked) = oneshot::channel();
    // Not a thread of the runtime, whose end would wait for it.
    std::thread::Builder::new().spawn(move || {
        let lock = flock(&file, FlockOperation::LockExclusive);
        let _ = send.send(lock.map_err(io::Error::from).and_then(|()| held(file)));
    })?;
    locked
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the thread that waits for a lock is gone")))
}

fn open(data: &DataDir, path: &Path, what: LockFor) -> io::Result<File> {
    data.create()?;
    let kind = match what {
        LockFor::Serving => "serving",
        LockFor::Editing => "editing",
    };
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(lock_path(data, path, kind))
}

fn lock_path(data: &DataDir, path: &Path, kind: &str) -> PathBuf {
    let name = format!("{kind}-{}.lock", short_name(path));
    data.root().join("run").join(name)
}

/// Notes whose it is.
fn held(mut file: File) -> io::Result<FileLock> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(FileLock(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_holds_a_lock_and_the_next_gets_it() {
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::new(temp.path().join("node"));
        let path = Path::new("/srv/agents.kdl");
        let held = try_lock(&data, path, LockFor::Serving).unwrap().unwrap();
        let other = try_lock(&data, path, LockFor::Serving).unwrap();
        assert_eq!(other.unwrap_err(), std::process::id().to_string());
        for (path, what) in [
            (path, LockFor::Editing),
            (Path::new("/srv/others.kdl"), LockFor::Serving),
        ] {
            assert!(try_lock(&data, path, what).unwrap().is_ok());
        }
        let next = lock(&data, path, LockFor::Serving);
        tokio::pin!(next);
        tokio::select! { biased; _ = &mut next => panic!("two at a time"), () = tokio::task::yield_now() => {} }
        drop(held);
        next.await.unwrap();
    }
}
