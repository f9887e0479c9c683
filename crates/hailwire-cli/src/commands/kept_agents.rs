//! The agents that a node keeps: a supervisor beside it serves those of `agents.kdl` in the data folder.
//!
//! The supervisor is `hail serve --file agents.kdl` as a child process. It is there while the file names an agent: the system tells
//! when the file changes (`inotify(7)`), and a supervisor that has nothing to serve ends by itself. One that dies is started again
//! after a pause. It ends with the node, however that ends: the kernel tells it (`prctl(2)`, PR_SET_PDEATHSIG), and a lock of
//! the data folder keeps the next node's supervisor waiting until the last one is gone.

use std::{io, path::PathBuf, process::Stdio, time::Duration};

use hailwire_core::backoff::Backoff;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout, Command},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::CommandContext;
use crate::serve::{agents_file, file_watch::FileWatch, processes::GUARDED_BY};

/// First and longest pause before a supervisor that died is started again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// How long a supervisor must have run for its end to count as the first.
const QUIET: Duration = Duration::from_secs(60);

/// How long the supervisor may take to end its programs when the node ends.
const END_TIME: Duration = Duration::from_secs(5);

/// How long a start of the node waits until its agents can be called.
const READY_TIME: Duration = Duration::from_secs(5);

/// Sees to it that the agents of the data folder are served.
#[derive(Debug)]
pub(super) struct KeptAgents {
    stop: watch::Sender<bool>,
    ready: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl KeptAgents {
    /// Starts the task on the current runtime, whose thread must be the one that lives as long as this process: the
    /// supervisor ends with the thread that has started it.
    pub(super) fn start(run: &CommandContext) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (told, ready) = watch::channel(false);
        let task = SupervisorTask {
            data: run.data.root().to_owned(),
            file: run.data.root().join(agents_file::FILE_NAME),
            stopped,
            ready: told,
        };
        Self {
            stop,
            ready,
            task: tokio::spawn(task.keep()),
        }
    }

    /// Waits until the agents can be called, or are known to fail, for a bounded time.
    pub(super) async fn started(&mut self) {
        let _ = timeout(READY_TIME, asked(&mut self.ready)).await;
    }

    /// Ends the supervisor with its programs, and waits for that.
    pub(super) async fn finish(self) {
        self.stop.send_replace(true);
        // The task neither panics nor is it aborted elsewhere.
        let _ = self.task.await;
    }
}

struct SupervisorTask {
    data: PathBuf,
    file: PathBuf,
    stopped: watch::Receiver<bool>,
    ready: watch::Sender<bool>,
}

impl SupervisorTask {
    async fn keep(self) {
        let watch = match FileWatch::new(&self.file) {
            Ok(watch) => Some(watch),
            Err(error) => {
                tracing::warn!(%error, "changes of agents.kdl are not noticed while it names no agent");
                None
            }
        };
        let mut backoff = Backoff::new(PAUSES).forgetting_after(QUIET);
        let mut stopped = self.stopped.clone();
        loop {
            let pause = match self.file.exists() {
                true => match self.supervise().await {
                    Supervised::Stopped => return,
                    Supervised::NothingToDo => None,
                    Supervised::Died(why) => {
                        let pause = backoff.fail(Instant::now().into_std());
                        tracing::error!(why, ?pause, "the supervisor of agents.kdl ended");
                        Some(pause)
                    }
                },
                false => None,
            };
            self.ready.send_replace(true);
            let changed = async {
                match &watch {
                    Some(watch) if watch.changed().await.is_ok() => {}
                    _ => std::future::pending().await,
                }
            };
            let paused = async {
                match pause {
                    Some(pause) => sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = paused => {}
                () = changed, if pause.is_none() => {}
                () = asked(&mut stopped) => return,
            }
        }
    }

    /// Runs one supervisor to its end.
    async fn supervise(&self) -> Supervised {
        let mut stopped = self.stopped.clone();
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => return Supervised::Died(error.to_string()),
        };
        let told = self.told(child.stdout.take());
        tokio::select! {
            exit = child.wait() => match exit {
                Ok(exit) if exit.success() => Supervised::NothingToDo,
                Ok(exit) => Supervised::Died(exit.to_string()),
                Err(error) => Supervised::Died(error.to_string()),
            },
            () = told => Supervised::NothingToDo,
            () = asked(&mut stopped) => {
                end(&mut child).await;
                Supervised::Stopped
            }
        }
    }

    /// Waits for the line that says that the agents are on offer. Never resolves.
    async fn told(&self, stdout: Option<ChildStdout>) {
        if let Some(stdout) = stdout {
            let _ = BufReader::new(stdout)
                .read_until(b'\n', &mut Vec::new())
                .await;
            self.ready.send_replace(true);
        }
        std::future::pending::<()>().await;
    }

    fn spawn(&self) -> io::Result<Child> {
        // The file that this process was started from, even if it has been replaced.
        Command::new("/proc/self/exe")
            .arg0("hail")
            .arg("--data")
            .arg(&self.data)
            .args(["serve", "--file"])
            .arg(&self.file)
            .arg("--beside-node")
            .arg(std::process::id().to_string())
            .env_remove(GUARDED_BY)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // A Ctrl-C is for the node, which ends the supervisor when its calls have ended.
            .process_group(0)
            .spawn()
    }
}

enum Supervised {
    /// The node ends.
    Stopped,
    /// The file names no agent.
    NothingToDo,
    Died(String),
}

/// Resolves once this is true. Cancel safe.
async fn asked(what: &mut watch::Receiver<bool>) {
    let _ = what.wait_for(|is| *is).await;
}

async fn end(child: &mut Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if timeout(END_TIME, child.wait()).await.is_err() {
        tracing::warn!("the supervisor of agents.kdl still ends its programs");
    }
}
