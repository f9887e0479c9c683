//! The processes of the demonstration and the folder that they live in.
//!
//! A [`House`] owns both: [`House::close`] kills and reaps every process, then removes the folder.
//! Should it be dropped without that, the processes are killed all the same; should this process be
//! killed, they notice the end of their stdin.

use std::{fs::File, path::PathBuf, process::Stdio, time::Duration};

use hailwire::{Code, DataDir, NodeId, NodeName, Status};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{
    part::{Ready, Role, Setup},
    summary::Process,
    work::Work,
};
use hailwire_terminal::failure::Failure;

/// How long a process may take until it works.
const START: Duration = Duration::from_secs(30);

/// Bytes of a process's log that are shown when it fails.
const LOG_TAIL: usize = 2000;

/// The hub's name among the parts.
const HUB: &str = "hub";

/// The orchestrator's.
const ORCHESTRATOR: &str = "orchestrator";

/// All processes, in the order of their start: the hub, the orchestrator's node, the workers.
#[derive(Debug)]
pub(super) struct House {
    folder: TempDir,
    parts: Vec<Part>,
    workers: Vec<Worker>,
}

/// A worker node.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) name: String,
    pub(super) id: NodeId,
    part: usize,
}

#[derive(Debug)]
struct Part {
    name: String,
    child: Child,
    pid: u32,
    /// Open as long as the part is to live.
    _stdin: Option<ChildStdin>,
    /// The highest resident memory seen, in bytes.
    peak_rss: u64,
}

impl House {
    /// An empty house.
    pub(super) fn new() -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("hail-demo-")
            .tempdir()
            .map_err(|error| Failure::io("no temporary folder can be made", &error))?;
        Ok(Self {
            folder,
            parts: Vec::new(),
            workers: Vec::new(),
        })
    }

    /// Starts every process and waits until all work.
    ///
    /// # Cancel safety
    ///
    /// What was started stays in the house.
    pub(super) async fn fill(&mut self, workers: usize, agents: usize) -> Result<(), Failure> {
        let members = u32::try_from(workers + 1).unwrap_or(u32::MAX);
        let stdout = self.start(HUB, Role::Hub { members }).await?;
        let Ready { ticket, .. } = self.ready(0, stdout).await?;
        let mut started = Vec::new();
        for number in 0..=workers {
            let (name, agents) = match number {
                0 => (ORCHESTRATOR.to_owned(), Vec::new()),
                n => {
                    let share = agents / workers + usize::from(n <= agents % workers);
                    (format!("worker-{n}"), Work::shared_out(share))
                }
            };
            let node: NodeName = name
                .parse()
                .map_err(|error| Failure::general(format!("{name}: {error}")))?;
            let role = Role::Node {
                name: node,
                ticket: ticket.clone(),
                agents,
            };
            let stdout = self.start(&name, role).await?;
            started.push((name, self.parts.len() - 1, stdout));
        }
        for (name, part, stdout) in started {
            let Ready { id, .. } = self.ready(part, stdout).await?;
            if name != ORCHESTRATOR {
                self.workers.push(Worker { name, id, part });
            }
        }
        Ok(())
    }

    /// The data folder of the orchestrator's node.
    pub(super) fn orchestrator(&self) -> DataDir {
        DataDir::new(self.folder.path().join(ORCHESTRATOR))
    }

    pub(super) fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Kills a worker with SIGKILL.
    pub(super) fn kill(&mut self, worker: usize) -> Result<(), Failure> {
        let part = &mut self.parts[self.workers[worker].part];
        part.look();
        part.child
            .start_kill()
            .map_err(|error| Failure::io(format!("{} cannot be killed", part.name), &error))
    }

    /// The memory of every process, this one last.
    pub(super) fn processes(&mut self) -> Vec<Process> {
        let row = |name: &str, pid, peak_rss_bytes| Process {
            name: name.to_owned(),
            pid,
            peak_rss_bytes,
        };
        let mut rows: Vec<Process> = self
            .parts
            .iter_mut()
            .map(|part| {
                part.look();
                row(&part.name, part.pid, part.peak_rss)
            })
            .collect();
        let own = std::process::id();
        rows.push(row("demo", own, peak_rss(own).unwrap_or(0)));
        rows
    }

    /// Ends every process and removes the folder, unless it is to be kept; gives where it is then.
    pub(super) async fn close(mut self, keep: bool) -> Option<PathBuf> {
        for part in &mut self.parts {
            // One that has ended already needs no killing.
            let _ = part.child.start_kill();
        }
        for part in &mut self.parts {
            let _ = part.child.wait().await;
        }
        if keep {
            self.folder.disable_cleanup(true);
            return Some(self.folder.path().to_owned());
        }
        if let Err(error) = self.folder.close() {
            tracing::warn!(%error, "the folder of the demonstration is left");
        }
        None
    }

    async fn start(&mut self, name: &str, role: Role) -> Result<ChildStdout, Failure> {
        let failed = |error| Failure::io(format!("{name} cannot be started"), &error);
        let data = self.folder.path().join(name);
        let log = File::create(self.log(name)).map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .args(["demo", "--part"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C at the terminal is for this process, which ends the others in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let pid = child.id().unwrap_or(0);
        self.parts.push(Part {
            name: name.to_owned(),
            child,
            pid,
            _stdin: None,
            peak_rss: 0,
        });
        let setup = serde_json::to_string(&Setup { data, role });
        let mut line = setup.map_err(|error| Failure::general(error.to_string()))?;
        line.push('\n');
        let mut stdin = stdin.ok_or_else(|| Failure::general("a pipe is missing"))?;
        stdin.write_all(line.as_bytes()).await.map_err(failed)?;
        if let Some(part) = self.parts.last_mut() {
            part._stdin = Some(stdin);
        }
        stdout.ok_or_else(|| Failure::general("a pipe is missing"))
    }

    async fn ready(&self, part: usize, stdout: ChildStdout) -> Result<Ready, Failure> {
        let name = &self.parts[part].name;
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout);
        let what = match tokio::time::timeout(START, stdout.read_line(&mut line)).await {
            Err(_) => format!("{name} did not start within {} s", START.as_secs()),
            Ok(_) => match serde_json::from_str(&line) {
                Ok(ready) => return Ok(ready),
                Err(_) => format!("{name} ended before it worked"),
            },
        };
        let log = std::fs::read(self.log(name)).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL)..];
        let status = Status::new(Code::Unavailable, what)
            .with_details(String::from_utf8_lossy(tail).into_owned());
        Err(Failure::from(status).hint("run it with -v to see what its processes do"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }
}

impl Part {
    fn look(&mut self) {
        // One that is gone has told its peak before.
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
