//! The program under test: started with a data folder of its own, watched, and always gone at the end.

use std::{
    fs, io,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStderr, Command},
    task::JoinHandle,
};

/// Bytes of stderr that are kept: its end.
const MAX_STDERR: usize = 16 * 1024;

/// The last that the peer wrote to stderr.
#[derive(Clone, Debug, Default)]
pub(crate) struct StderrTail(Arc<Mutex<Vec<u8>>>);

impl StderrTail {
    fn add(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(bytes);
        let beyond = tail.len().saturating_sub(MAX_STDERR);
        tail.drain(..beyond);
    }

    pub(crate) fn text(&self) -> String {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).into_owned()
    }
}

/// A running peer, in a process group of its own. It and whatever it started is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    child: Child,
    group: Option<Pid>,
    stderr: StderrTail,
    reading: Option<JoinHandle<()>>,
}

impl PeerProcess {
    /// Starts the peer.
    pub(crate) fn start(command: &[String], data: &Path) -> io::Result<Self> {
        let [program, arguments @ ..] = command else {
            return Err(io::Error::other("no command was given"));
        };
        let mut child = Command::new(program)
            .args(arguments)
            .env("HAIL_DATA", data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let stderr = StderrTail::default();
        let pipe = child.stderr.take();
        let reading = Some(tokio::spawn(read(pipe, stderr.clone())));
        Ok(Self {
            child,
            group,
            stderr,
            reading,
        })
    }

    /// Asks it to end in order.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It may be gone already.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Waits until it has ended, and all that it wrote was read.
    pub(crate) async fn exit(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        if let Some(reading) = &mut self.reading {
            // It ends with the pipe, or panics; what it kept stays.
            let _ = reading.await;
            self.reading = None;
        }
        Ok(status)
    }

    /// Ends it at once, and waits until it is gone.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        // That it cannot be waited for is said where its exit code is asked for.
        let _ = self.exit().await;
    }

    /// What it wrote to stderr last.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// The most memory that a process of the group had so far, in KiB; none where the system does not tell.
    pub(crate) fn peak_memory_kib(&self) -> Option<u64> {
        let group = self.group?.as_raw_nonzero().get().to_string();
        let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
        let of_group = processes.filter(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // The name in parentheses may hold anything; the third field behind it is the group.
            let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
            fields.and_then(|fields| fields.split(' ').nth(2)) == Some(group.as_str())
        });
        let peaks = of_group.filter_map(|entry| {
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        });
        peaks.max()
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

async fn read(pipe: Option<ChildStderr>, tail: StderrTail) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = pipe.read(&mut buffer).await {
        tail.add(buffer.get(..len).unwrap_or_default());
    }
}
