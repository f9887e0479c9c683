//! Tells when a file may have changed, by inotify (`inotify(7)`): nothing is done until the system says so.
//!
//! Its folder is watched and not the file, because editors put a new file in the place of the old one, and because the file
//! need not exist yet.

use std::{
    ffi::{CString, OsString},
    io,
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use rustix::{
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};
use tokio::net::unix::pipe;

/// Room for events that are read at once.
const BUFFER: usize = 4096;

/// Watches one file.
#[derive(Debug)]
pub(crate) struct FileWatch {
    inotify: pipe::Receiver,
    name: CString,
}

impl FileWatch {
    /// Watches the file at `path`, whose folder must exist.
    ///
    /// # Errors
    ///
    /// The system refuses, or has none to spare.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let changes = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE;
        let folder = super::agents_file::folder_of(path);
        inotify::add_watch(&inotify, &folder, changes)?;
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        Ok(Self {
            // Tokio's `AsyncFd` has no safe constructor; this takes any descriptor that can be read.
            inotify: pipe::Receiver::from_owned_fd_unchecked(inotify)?,
            name: CString::new(name.as_bytes())?,
        })
    }

    /// Resolves once the file may have changed since this was last called, or since it is watched. Cancel safe.
    ///
    /// # Errors
    ///
    /// The system gives no events any more.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        loop {
            self.inotify.readable().await?;
            let mut read = Ok(false);
            // All is read, so that there is nothing more until the system says so.
            let _ = self.inotify.try_io(|| {
                read = self.read_all();
                Err::<(), _>(io::ErrorKind::WouldBlock.into())
            });
            if read? {
                return Ok(());
            }
        }
    }

    /// Reads all events that are there; whether one is about the file.
    fn read_all(&self) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut changed = false;
        loop {
            match events.next() {
                // An event without a name says that events were lost.
                Ok(event) => {
                    changed |= event.file_name().is_none_or(|name| name == &*self.name);
                }
                Err(Errno::WOULDBLOCK) => return Ok(changed),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    #[tokio::test]
    async fn a_change_of_the_file_is_told_and_none_of_another() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("agents.kdl");
        let watch = FileWatch::new(&path).unwrap();
        let changed = || tokio::time::timeout(Duration::from_secs(20), watch.changed());
        fs::write(&path, "new").unwrap();
        changed().await.unwrap().unwrap();
        fs::write(temp.path().join("other"), "").unwrap();
        assert!(!watch.read_all().unwrap());
        fs::write(temp.path().join("another"), "").unwrap();
        fs::rename(temp.path().join("another"), &path).unwrap();
        changed().await.unwrap().unwrap();
        fs::remove_file(&path).unwrap();
        changed().await.unwrap().unwrap();
        assert!(!watch.read_all().unwrap());
        assert!(FileWatch::new(&temp.path().join("none/agents.kdl")).is_err());
    }
}
