//! The processes of the demonstration and the folder that they live in.
//!
//! A [`DemoProcesses`] owns both: [`DemoProcesses::close`] kills and reaps every process, then removes the folder.
//! If it is dropped without that, the processes are killed too; if this process is killed, they
//! end when their stdin does.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use hailwire::{Code, DataDir, NodeId, NodeName, Status};
use hailwire_lab::real::NamespaceNetwork;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use tracing::Level;

use super::{
    process::{NodeRole, ProcessReady, ProcessRole, ProcessSetup},
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
pub(super) const ORCHESTRATOR: &str = "orchestrator";

/// The node whose agents the scenes call, where there is no other machine.
pub(super) const NEIGHBOUR: &str = "neighbour";

/// The address of every process that is in no network of the lab.
pub(super) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// All processes, in the order of their start.
#[derive(Debug)]
pub(super) struct DemoProcesses {
    folder: TempDir,
    /// The level of the processes' logs.
    log: Option<Level>,
    processes: Vec<DemoProcess>,
    workers: Vec<WorkerNode>,
    neighbour: Option<ProcessReady>,
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
    /// Without processes; those that are started log at this level.
    pub(super) fn new(log: Option<Level>) -> Result<Self, CommandFailure> {
        let folder = tempfile::Builder::new()
            .prefix("hail-demo-")
            .tempdir()
            .map_err(|error| CommandFailure::io("cannot create a temporary folder", &error))?;
        Ok(Self {
            folder,
            log,
            processes: Vec::new(),
            workers: Vec::new(),
            neighbour: None,
        })
    }

    /// Starts the hub, the orchestrator's node, the neighbour and the workers on this machine, and waits until all are
    /// ready.
    ///
    /// # Cancel safety
    ///
    /// Processes that were started are kept.
    pub(super) async fn fill(
        &mut self,
        workers: usize,
        agents: usize,
    ) -> Result<(), CommandFailure> {
        let members = u32::try_from(workers + 2).unwrap_or(u32::MAX);
        let hub = ProcessRole::Hub {
            members,
            listen: (LOOPBACK, 0).into(),
        };
        let ticket = self.begin(HUB, hub, None).await?.ready().await?.ticket;
        let mut node = async |name: &str, work, scenes| {
            let role = NodeRole {
                name: node_name(name)?,
                ticket: ticket.clone(),
                listen: LOOPBACK,
                work,
                scenes,
            };
            self.begin(name, ProcessRole::Node(Box::new(role)), None)
                .await
        };
        let orchestrator = node(ORCHESTRATOR, Vec::new(), false).await?;
        let neighbour = node(NEIGHBOUR, Vec::new(), true).await?;
        let mut started = Vec::new();
        for number in 1..=workers {
            let share = agents / workers + usize::from(number <= agents % workers);
            let work = WorkKind::shared_out(share);
            started.push(node(&format!("worker-{number}"), work, false).await?);
        }
        orchestrator.ready().await?;
        self.neighbour = Some(neighbour.ready().await?);
        for process in started {
            let (name, number) = (process.name.clone(), process.number);
            let id = process.ready().await?.id;
            self.workers.push(WorkerNode {
                name,
                id,
                process: number,
            });
        }
        Ok(())
    }

    /// Starts one more process and waits until it is ready; in a host of a network of the lab where one is given.
    pub(super) async fn add(
        &mut self,
        name: &str,
        role: ProcessRole,
        network: Option<&NamespaceNetwork>,
    ) -> Result<ProcessReady, CommandFailure> {
        self.begin(name, role, network).await?.ready().await
    }

    /// The node that serves the agents of the scenes on this machine; none before [`DemoProcesses::fill`].
    pub(super) fn neighbour(&self) -> Option<&ProcessReady> {
        self.neighbour.as_ref()
    }

    /// The data folder of a process.
    pub(super) fn data(&self, name: &str) -> DataDir {
        DataDir::new(self.folder.path().join(name))
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

    /// Starts a process, in the host of its name where a network is given.
    async fn begin(
        &mut self,
        name: &str,
        role: ProcessRole,
        network: Option<&NamespaceNetwork>,
    ) -> Result<StartedProcess, CommandFailure> {
        let failed = |error| CommandFailure::io(format!("cannot start {name}"), &error);
        let data = self.folder.path().join(name);
        let log = self.folder.path().join(format!("{name}.log"));
        let log_file = File::create(&log).map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut command: Command = match network {
            None => Command::new(program),
            Some(network) => {
                let inside = network.command(name, program);
                inside
                    .map_err(|error| CommandFailure::caused(Code::Internal, &error))?
                    .into()
            }
        };
        let mut child = command
            .args(["demo", "--part"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            // Ctrl-C is handled by this process, which ends the others in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let pid = child.id().unwrap_or(0);
        let number = self.processes.len();
        self.processes.push(DemoProcess {
            name: name.to_owned(),
            child,
            pid,
            _stdin: None,
            peak_rss: 0,
        });
        let setup = serde_json::to_string(&ProcessSetup {
            data,
            log: self.log.map(|level| level.to_string()),
            role,
        });
        let mut line = setup.map_err(|error| CommandFailure::general(error.to_string()))?;
        line.push('\n');
        let mut stdin = stdin.ok_or_else(|| CommandFailure::general("a pipe is missing"))?;
        stdin.write_all(line.as_bytes()).await.map_err(failed)?;
        if let Some(process) = self.processes.last_mut() {
            process._stdin = Some(stdin);
        }
        let stdout = stdout.ok_or_else(|| CommandFailure::general("a pipe is missing"))?;
        Ok(StartedProcess {
            name: name.to_owned(),
            number,
            stdout,
            log,
        })
    }
}

/// The name of a node, checked.
pub(super) fn node_name(name: &str) -> Result<NodeName, CommandFailure> {
    name.parse()
        .map_err(|error| CommandFailure::general(format!("{name}: {error}")))
}

/// A process that may not be ready yet.
#[derive(Debug)]
struct StartedProcess {
    name: String,
    number: usize,
    stdout: ChildStdout,
    log: PathBuf,
}

impl StartedProcess {
    async fn ready(self) -> Result<ProcessReady, CommandFailure> {
        let Self { name, log, .. } = self;
        let mut line = String::new();
        let mut stdout = BufReader::new(self.stdout);
        let what = match tokio::time::timeout(START_TIMEOUT, stdout.read_line(&mut line)).await {
            Err(_) => format!("{name} did not start within {} s", START_TIMEOUT.as_secs()),
            Ok(_) => match serde_json::from_str(&line) {
                Ok(ready) => return Ok(ready),
                Err(_) => format!("{name} ended before it was ready"),
            },
        };
        let log = std::fs::read(log).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL)..];
        let status = Status::new(Code::Unavailable, what)
            .with_details(String::from_utf8_lossy(tail).into_owned());
        Err(CommandFailure::from(status)
            .hint("run it with -vv --keep, and see the logs of its processes"))
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
