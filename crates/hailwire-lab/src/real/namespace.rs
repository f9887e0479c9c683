//! A network namespace that lives as long as somebody holds it.
//!
//! It has no name and no mark in the file system: it is a descriptor. When the process that made it
//! ends, however it ends, the kernel closes the descriptor and takes the namespace with every
//! device, route and rule in it, as soon as the last program inside has ended too. So there is
//! nothing to clean up after a crash, and two labs cannot meet.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace.
#[derive(Debug)]
pub(super) struct NetworkNamespace {
    own: OwnedFd,
}

impl NetworkNamespace {
    /// A new one, with nothing in it but a loopback device that is down.
    pub(super) fn new() -> io::Result<Self> {
        // A thread of its own: it alone moves into the namespace, and ends.
        let made = thread::spawn(|| -> io::Result<OwnedFd> {
            #[expect(
                deprecated,
                reason = "what may be unsafe in it is FILES, which is not asked for; NEWNET is safe"
            )]
            rustix::thread::unshare(UnshareFlags::NEWNET)?;
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        });
        let own = made
            .join()
            .map_err(|_| io::Error::other("the thread panicked"))??;
        Ok(Self { own })
    }

    /// Does something in the namespace, on a thread of its own; sockets and devices that it makes
    /// belong to the namespace for good.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| -> io::Result<T> {
                self.enter()?;
                Ok(work())
            });
            thread
                .join()
                .map_err(|_| io::Error::other("the work in a namespace panicked"))?
        })
    }

    /// Moves the calling thread into it.
    pub(super) fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.own.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    /// One more descriptor of it, which programs inherit that are started while it is open.
    pub(super) fn inheritable(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::dup(&self.own)?)
    }

    /// Where other programs of this user can open it, while this process lives.
    pub(super) fn path(&self) -> PathBuf {
        let (process, descriptor) = (std::process::id(), self.own.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{descriptor}"))
    }

    /// Runs a program in the namespace that reads what to do from its standard input.
    pub(super) fn feed(&self, program: &str, args: &[&str], input: &str) -> io::Result<()> {
        self.within(|| feed(program, args, input))?
    }

    /// Sets a kernel setting of the namespace; `name` is its path under `/proc/sys/net`.
    pub(super) fn set(&self, name: &str, value: &str) -> io::Result<()> {
        let path = format!("/proc/sys/net/{name}");
        self.within(|| fs::write(&path, value))?
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    }
}

fn feed(program: &str, args: &[&str], input: &str) -> io::Result<()> {
    let failed = |what: String| io::Error::other(format!("`{program}` {what}"));
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early says why on its stderr.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(failed(format!(
            "failed: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        ))),
    }
}
