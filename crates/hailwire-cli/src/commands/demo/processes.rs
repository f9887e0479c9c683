//! The processes of the demonstration and the folder that they live in.
//!
//! A [`DemoProcesses`] owns both: [`DemoProcesses::close`] kills and reaps every process, then removes the folder.
//! If it is dropped without that, the processes are killed too; if this process is killed, they
//! end when their stdin does.

use std::{fs::File, path::PathBuf, process::Stdio, time::Duration};

use hailwire::{Code, DataDir, NodeId, NodeName, Status};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{
    process::{ProcessReady, ProcessRole, ProcessSetup},
    summary::ProcessSummary,
    work::WorkKind,
};
use hailwire_terminal::failure::CommandFailure;

/// How long a process may take to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a process's log that are shown when it fails.
const LOG_TAIL: usize = 2000;

/// The name of the hub's process.
const HUB: &str = "hub";

/// The name of the orchestrator's process.
const ORCHESTRATOR: &str = "orchestrator";

/// All processes, in the order of their start: the hub, the orchestrator's node, the workers.
#[derive(Debug)]
pub(super) struct DemoProcesses {
    folder: TempDir,
    processes: Vec<DemoProcess>,
    workers: Vec<WorkerNode>,
}

/// A worker node.
#[derive(Clone, Debug)]
pub(super) struct WorkerNode {
    pub(super) name: String,
    pub(super) id: NodeId,
    process: usize,
}

#[derive(Debug)]
struct DemoProcess {
    name: String,
    child: Child,
    pid: u32,
    /// Kept open as long as the process is to run.
    _stdin: Option<ChildStdin>,
    /// The highest resident memory seen, in bytes.
    peak_rss: u64,
}

impl DemoProcesses {
    /// Without processes.
    pub(super) fn new() -> Result<Self, CommandFailure> {
        let folder = tempfile::Builder::new()
            .prefix("hail-demo-")
            .tempdir()
            .map_err(|error| CommandFailure::io("cannot create a temporary folder", &error))?;
        Ok(Self {
            folder,
            processes: Vec::new(),
            workers: Vec::new(),
        })
    }

    /// Starts every process and waits until all are ready.
    ///
    /// # Cancel safety
    ///
    /// Processes that were started are kept.
    pub(super) async fn fill(
        &mut self,
        workers: usize,
        agents: usize,
    ) -> Result<(), CommandFailure> {
        let members = u32::try_from(workers + 1).unwrap_or(u32::MAX);
        let stdout = self.start(HUB, ProcessRole::Hub { members }).await?;
        let ProcessReady { ticket, .. } = self.ready(0, stdout).await?;
        let mut started = Vec::new();
        for number in 0..=workers {
            let (name, agents) = match number {
                0 => (ORCHESTRATOR.to_owned(), Vec::new()),
                n => {
                    let share = agents / workers + usize::from(n <= agents % workers);
                    (format!("worker-{n}"), WorkKind::shared_out(share))
                }
            };
            let node: NodeName = name
                .parse()
                .map_err(|error| CommandFailure::general(format!("{name}: {error}")))?;
            let role = ProcessRole::Node {
                name: node,
                ticket: ticket.clone(),
                agents,
            };
            let stdout = self.start(&name, role).await?;
            started.push((name, self.processes.len() - 1, stdout));
        }
        for (name, process, stdout) in started {
            let ProcessReady { id, .. } = self.ready(process, stdout).await?;
            if name != ORCHESTRATOR {
                self.workers.push(WorkerNode { name, id, process });
            }
        }
        Ok(())
    }

    /// The data folder of the orchestrator's node.
    pub(super) fn orchestrator(&self) -> DataDir {
        DataDir::new(self.folder.path().join(ORCHESTRATOR))
    }

    pub(super) fn workers(&self) -> &[WorkerNode] {
        &self.workers
    }

    /// Kills a worker with SIGKILL.
    pub(super) fn kill(&mut self, worker: usize) -> Result<(), CommandFailure> {
        let process = &mut self.processes[self.workers[worker].process];
        process.read_peak_rss();
        process
            .child
            .start_kill()
            .map_err(|error| CommandFailure::io(format!("cannot kill {}", process.name), &error))
    }

    /// The memory of every process, this one last.
    pub(super) fn processes(&mut self) -> Vec<ProcessSummary> {
        let row = |name: &str, pid, peak_rss_bytes| ProcessSummary {
            name: name.to_owned(),
            pid,
            peak_rss_bytes,
        };
        let mut rows: Vec<ProcessSummary> = self
            .processes
            .iter_mut()
            .map(|process| {
                process.read_peak_rss();
                row(&process.name, process.pid, process.peak_rss)
            })
            .collect();
        let own = std::process::id();
        rows.push(row("demo", own, peak_rss(own).unwrap_or(0)));
        rows
    }

    /// Ends every process and removes the folder, unless it is to be kept; then its path is returned.
    pub(super) async fn close(mut self, keep: bool) -> Option<PathBuf> {
        for process in &mut self.processes {
            // One that has ended already cannot be killed.
            let _ = process.child.start_kill();
        }
        for process in &mut self.processes {
            let _ = process.child.wait().await;
        }
        if keep {
            self.folder.disable_cleanup(true);
            return Some(self.folder.path().to_owned());
        }
        if let Err(error) = self.folder.close() {
            tracing::warn!(%error, "cannot remove the folder of the demonstration");
        }
        None
    }

    async fn start(
        &mut self,
        name: &str,
        role: ProcessRole,
    ) -> Result<ChildStdout, CommandFailure> {
        let failed = |error| CommandFailure::io(format!("cannot start {name}"), &error);
        let data = self.folder.path().join(name);
        let log = File::create(self.log(name)).map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .args(["demo", "--part"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C is handled by this process, which ends the others in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let pid = child.id().unwrap_or(0);
        self.processes.push(DemoProcess {
            name: name.to_owned(),
            child,
            pid,
            _stdin: None,
            peak_rss: 0,
        });
        let setup = serde_json::to_string(&ProcessSetup { data, role });
        let mut line = setup.map_err(|error| CommandFailure::general(error.to_string()))?;
        line.push('\n');
        let mut stdin = stdin.ok_or_else(|| CommandFailure::general("a pipe is missing"))?;
        stdin.write_all(line.as_bytes()).await.map_err(failed)?;
        if let Some(process) = self.processes.last_mut() {
            process._stdin = Some(stdin);
        }
        stdout.ok_or_else(|| CommandFailure::general("a pipe is missing"))
    }

    async fn ready(
        &self,
        process: usize,
        stdout: ChildStdout,
    ) -> Result<ProcessReady, CommandFailure> {
        let name = &self.processes[process].name;
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout);
        let what = match tokio::time::timeout(START_TIMEOUT, stdout.read_line(&mut line)).await {
            Err(_) => format!("{name} did not start within {} s", START_TIMEOUT.as_secs()),
            Ok(_) => match serde_json::from_str(&line) {
                Ok(ready) => return Ok(ready),
                Err(_) => format!("{name} ended before it was ready"),
            },
        };
        let log = std::fs::read(self.log(name)).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL)..];
        let status = Status::new(Code::Unavailable, what)
            .with_details(String::from_utf8_lossy(tail).into_owned());
        Err(CommandFailure::from(status).hint("run it with -v to see what its processes do"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }
}

impl DemoProcess {
    fn read_peak_rss(&mut self) {
        // The peak of a process that is gone was read before.
        self.peak_rss = peak_rss(self.pid).unwrap_or(0).max(self.peak_rss);
    }
}

/// The highest resident memory of a process in bytes (`VmHWM`, proc(5)).
fn peak_rss(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    parse_peak(&status)
}

fn parse_peak(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_read_from_the_status_of_a_process() {
        let status = "Name:\thail\nVmPeak:\t  99 kB\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(parse_peak(status), Some(12345 * 1024));
        assert_eq!(parse_peak("Name:\tgone\n"), None);
        assert!(peak_rss(std::process::id()).unwrap() > 0);
    }
}
