//! One process of a measurement, as the run sees it.

use std::{process::Stdio, time::Duration};

use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

use crate::{
    BenchError,
    work::{MeasuredWork, WorkRequest},
};

/// How long a program may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a program may take to end after its standard input has.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// How much longer than expected a unit of work may take.
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that serves or loads. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct SubjectProcess {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    /// The last line that it wrote to standard error.
    complaint: JoinHandle<String>,
    /// What it reported when it was ready, as JSON.
    pub(crate) ready: serde_json::Value,
}

#[derive(Deserialize)]
struct ReadyLine {
    ready: serde_json::Value,
}

impl SubjectProcess {
    /// Starts a program and waits until it is ready.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the program is killed.
    pub(crate) async fn start(
        name: &str,
        command: std::process::Command,
    ) -> Result<Self, BenchError> {
        let mut command = Command::from(command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is handled by the run, which ends its processes in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::io(format!("starting {name}")))?;
        let no_pipe = || failed(name, "it has no pipes");
        let orders = child.stdin.take().ok_or_else(no_pipe)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(no_pipe)?).lines();
        let errors = child.stderr.take().ok_or_else(no_pipe)?;
        let mut process = Self {
            name: name.to_owned(),
            child,
            orders: Some(orders),
            answers,
            complaint: tokio::spawn(complaint(errors)),
            ready: serde_json::Value::Null,
        };
        let line = process.line(READY_TIMEOUT).await?;
        let ready: Result<ReadyLine, _> = serde_json::from_str(&line);
        process.ready = ready
            .map_err(|_| {
                failed(
                    name,
                    format!("expected a line with `ready` but got: {line}"),
                )
            })?
            .ready;
        Ok(process)
    }

    /// A field of what it reported when it was ready; empty where it has none.
    pub(crate) fn said(&self, name: &str) -> String {
        self.ready[name].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Has work done.
    pub(crate) async fn ask(&mut self, work: &WorkRequest) -> Result<MeasuredWork, BenchError> {
        let line = serde_json::to_string(work).map_err(|e| BenchError::Invalid(e.to_string()))?;
        let gone = || failed(&self.name, "it has ended");
        let orders = self.orders.as_mut().ok_or_else(gone)?;
        let written = orders.write_all(format!("{line}\n").as_bytes()).await;
        written.map_err(BenchError::io(self.name.clone()))?;
        let expected = Duration::from_secs_f64(work.estimate_s(0.2).max(0.0));
        let line = self.line(expected + WORK_TIMEOUT).await?;
        let measured: MeasuredWork = serde_json::from_str(&line)
            .map_err(|error| failed(&self.name, format!("{error}: {line}")))?;
        if let Some(reason) = measured.failed {
            return Err(BenchError::Reported(reason));
        }
        let checked = measured.answers(work);
        checked.map_err(|reason| failed(&self.name, reason))?;
        Ok(measured)
    }

    /// Lets it end by itself, and kills it if it does not; returns whether it ended by itself.
    pub(crate) async fn end(mut self) -> bool {
        self.orders = None;
        let ended = tokio::time::timeout(END_TIMEOUT, self.child.wait()).await;
        if ended.is_err() {
            let _ = self.child.kill().await;
        }
        ended.is_ok()
    }

    async fn line(&mut self, within: Duration) -> Result<String, BenchError> {
        let next = tokio::time::timeout(within, self.answers.next_line()).await;
        let late = |_| {
            failed(
                &self.name,
                format!("no answer within {} s", within.as_secs()),
            )
        };
        let line = next
            .map_err(late)?
            .map_err(BenchError::io(self.name.clone()))?;
        match line {
            Some(line) => Ok(line),
            None => Err(self.ended().await),
        }
    }

    /// Why it has ended: its own error, where it printed one.
    async fn ended(&mut self) -> BenchError {
        let said = tokio::time::timeout(Duration::from_secs(1), &mut self.complaint).await;
        let said = said.ok().and_then(Result::ok).unwrap_or_default();
        // The code of a failure without one of its own.
        let said = said.trim_end_matches(" (unknown)");
        match said.strip_prefix("error: ").unwrap_or(said) {
            "" => failed(&self.name, "it ended"),
            reason => BenchError::Reported(reason.to_owned()),
        }
    }
}

/// The first line of an error, else the last line of all.
async fn complaint(errors: ChildStderr) -> String {
    let mut lines = BufReader::new(errors).lines();
    let mut kept = String::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if !kept.starts_with("error: ") {
            kept = line;
        }
    }
    kept
}

fn failed(name: &str, reason: impl Into<String>) -> BenchError {
    BenchError::Failed {
        what: name.to_owned(),
        reason: reason.into(),
    }
}
