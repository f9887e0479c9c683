//! Processes that a measurement starts and that end with it: each under a shell that kills it when
//! this process is gone, however it ended.

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::BenchError;

/// How long a process may take to be ready, and to end.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a program until standard input ends, and then ends it.
const KILL_WITH_PARENT: &str =
    r#""$@" </dev/null & child=$!; read -r _; kill -9 "$child" 2>/dev/null; wait"#;

/// Bytes of a log's end that are shown.
const LOG_TAIL_BYTES: usize = 600;

/// One of them. Dropping it ends it.
pub(crate) struct TiedProcess {
    name: String,
    pid: u32,
    shell: Child,
}

impl TiedProcess {
    /// Starts a program and waits for the first line that it prints. `shell` is a command that runs
    /// `sh` where the program is to run; its standard error goes to `log`.
    pub(crate) async fn start(
        name: &str,
        shell: std::process::Command,
        program: &Path,
        args: &[String],
        log: &Path,
    ) -> Result<Self, BenchError> {
        let file = File::create(log).map_err(BenchError::io("creating a log file"))?;
        let mut shell = Command::from(shell)
            .args(["-c", KILL_WITH_PARENT, "sh"])
            .arg(program)
            .args(args)
            .env_remove("HAIL_DATA")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            // Ctrl-C is handled by this process, which ends the others in order.
            .process_group(0)
            .kill_on_drop(false)
            .spawn()
            .map_err(BenchError::io(format!("starting {name}")))?;
        let ended = |reason: String| BenchError::Failed {
            what: name.to_owned(),
            reason,
        };
        let stdout = shell.stdout.take().ok_or_else(|| ended("no pipe".into()))?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(READY_TIMEOUT, lines.next_line()).await;
        let Ok(Ok(Some(_))) = line else {
            return Err(ended(log_tail(log)));
        };
        // What it prints later is discarded, so that its pipe does not fill up.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let family = crate::measure::process::process_tree(shell.id().unwrap_or_default());
        let pid = *family.get(1).ok_or_else(|| ended("it ended".into()))?;
        Ok(Self {
            name: name.to_owned(),
            pid,
            shell,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The program's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends it, and returns when it is gone.
    pub(crate) async fn end(mut self) {
        drop(self.shell.stdin.take());
        let _ = tokio::time::timeout(READY_TIMEOUT, self.shell.wait()).await;
    }
}

/// The last lines of a log, on one.
pub(crate) fn log_tail(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(LOG_TAIL_BYTES)..];
    let text = String::from_utf8_lossy(tail);
    text.lines().rev().take(3).collect::<Vec<_>>().join(" / ")
}

/// Runs a command to its end and reads the JSON that it prints.
pub(crate) async fn printed_json(command: std::process::Command) -> Result<Value, BenchError> {
    let words: Vec<String> = command
        .get_args()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let out = Command::from(command)
        .env_remove("HAIL_DATA")
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(BenchError::io("running hail"))?;
    serde_json::from_slice(&out.stdout).map_err(|_| BenchError::Failed {
        what: words.join(" "),
        reason: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

/// The arguments of `hail` on a data folder, with its answers as JSON.
pub(crate) fn hail_args(data: &Path, words: &[&str]) -> Vec<String> {
    let front = ["--json".into(), "--data".into(), data.display().to_string()];
    let words = words.iter().map(ToString::to_string);
    front.into_iter().chain(words).collect()
}

/// A folder that is gone with its value.
pub(crate) fn temporary_folder(prefix: &str) -> Result<TempDir, BenchError> {
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir()
        .map_err(BenchError::io("creating a temporary folder"))
}
