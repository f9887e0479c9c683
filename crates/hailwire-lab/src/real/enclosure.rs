//! Programs of a network that end with this process, however it ends.
//!
//! They live in a PID namespace of their own, and its first process does nothing but read a pipe
//! whose other end this process holds. When this process ends, even by SIGKILL, the kernel closes the
//! pipe, the first process ends, and the kernel ends every other one in the namespace
//! (`pid_namespaces(7)`): what a script has put into the background, what has made itself a daemon,
//! what has moved to another host. That first process is a shell, of which the kernel takes orphans
//! back by itself because it ignores `SIGCHLD`.
//!
//! Programs are children of this process all the same, so that exit codes, signals and the terminal
//! are as without a lab, and none of them is the namespace's first process, whom unhandled signals
//! do not reach. They see a `/proc` of their own, where the system lets it be mounted; in a
//! container that hides parts of `/proc` it may not be, and they see the one outside.

use std::{
    io::{self, Read as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
};

use rustix::thread::UnshareFlags;

use super::namespace::NetworkNamespace;

/// What the first process does. Mounts made in here are not seen outside.
const INIT_SCRIPT: &str = "trap '' CHLD
    { mount --make-rslave / && mount -t proc proc /proc && echo own; } 2>/dev/null
    exec 1>&-
    read -r end";

/// A PID namespace with whatever has been started in it. Dropping it ends all of that with SIGKILL,
/// without waiting for it.
#[derive(Debug)]
pub struct ProcessEnclosure {
    first: Child,
}

/// The inside of an [`ProcessEnclosure`]. It belongs to one thread: that thread's child processes are inside,
/// in the host that it has entered last.
#[derive(Debug)]
pub struct EnclosureHandle<'a> {
    hosts: Vec<(&'a str, &'a NetworkNamespace, PathBuf)>,
}

impl ProcessEnclosure {
    /// Makes one, and does `work` on a thread whose child processes are inside.
    pub(super) fn start<'a, T: Send>(
        hosts: Vec<(&'a str, &'a NetworkNamespace)>,
        work: impl FnOnce(&EnclosureHandle<'a>) -> T + Send,
    ) -> io::Result<(Self, T)> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                #[expect(
                    deprecated,
                    reason = "what may be unsafe in it is FILES, which is not asked for"
                )]
                rustix::thread::unshare(UnshareFlags::NEWPID | UnshareFlags::NEWNS)?;
                let (own, inside) = Self::begin(hosts)?;
                let done = work(&inside);
                Ok((own, done))
            });
            let panicked = |_| Err(io::Error::other("the work in an enclosure panicked"));
            thread.join().unwrap_or_else(panicked)
        })
    }

    /// Starts the first process, which holds the hosts' namespaces where programs inside can see them.
    fn begin<'a>(
        hosts: Vec<(&'a str, &'a NetworkNamespace)>,
    ) -> io::Result<(Self, EnclosureHandle<'a>)> {
        // Open across the start of a program, unlike the originals.
        let held = hosts.iter().map(|(_, host)| host.inheritable());
        let held: Vec<OwnedFd> = held.collect::<io::Result<_>>()?;
        let first = Command::new("sh")
            .args(["-c", INIT_SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C is for the programs.
            .process_group(0)
            .spawn()?;
        // From here on an error ends it.
        let mut own = Self { first };
        let mut says = String::new();
        if let Some(mut out) = own.first.stdout.take() {
            out.read_to_string(&mut says)?;
        }
        let process = match says.is_empty() {
            true => own.first.id(),
            false => 1,
        };
        let path = |held: &OwnedFd| format!("/proc/{process}/fd/{}", held.as_raw_fd()).into();
        let hosts = hosts.into_iter().zip(&held);
        let hosts = hosts.map(|((name, host), held)| (name, host, path(held)));
        let inside = EnclosureHandle {
            hosts: hosts.collect(),
        };
        Ok((own, inside))
    }

    /// Ends everything inside with SIGKILL and waits until it is gone.
    ///
    /// `children` are those that were started inside and have not been waited for; one that is missing
    /// among them is waited for without end, because the kernel keeps the namespace for it.
    ///
    /// # Errors
    ///
    /// Where a child cannot be waited for.
    pub fn end(mut self, children: impl IntoIterator<Item = Child>) -> io::Result<()> {
        self.first.kill()?;
        for mut child in children {
            child.wait()?;
        }
        self.first.wait().map(drop)
    }
}

impl Drop for ProcessEnclosure {
    fn drop(&mut self) {
        // Gone already where `end` was called.
        let _ = self.first.kill();
    }
}

impl EnclosureHandle<'_> {
    /// Moves this thread into a host: what it starts from now on is there. `false` where there is no
    /// such host.
    ///
    /// # Errors
    ///
    /// Where the kernel does not let it.
    pub fn enter(&self, host: &str) -> io::Result<bool> {
        match self.hosts.iter().find(|(name, ..)| *name == host) {
            Some((_, host, _)) => host.enter().map(|()| true),
            None => Ok(false),
        }
    }

    /// Where programs inside can open the namespace of each host, with `nsenter --net=PATH`.
    pub fn namespace_paths(&self) -> impl Iterator<Item = (&str, &std::path::Path)> {
        let hosts = self.hosts.iter();
        hosts.map(|(name, _, path)| (*name, path.as_path()))
    }
}
