//! One process for all calls, a line for a line.
//!
//! A task owns the process and takes calls one after another: it writes the question and a newline to
//! stdin and answers with the next line of stdout, newline included. The process is started by the
//! first call and again by the first call after its end. Whose an answer is decides [`Dialogue`]; what
//! may be asked, [`question()`]. A process ends, and the call that it works on is answered with an error,
//! when it writes what nobody asked for. A call that is cancelled while the process works on it ends the
//! process too, because its line would otherwise answer the next call.

use std::{hash::BuildHasher as _, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{Code, Status};
use rustix::io::ioctl_fionread;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStdin, ChildStdout},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

pub(crate) use super::dialogue::MAX_LINE;
use super::{
    Program,
    dialogue::{Dialogue, Fault, Settled},
    each_call::keep_tail,
    outcome, piped,
    question::question,
    reaper::{ReaperHandle, Running},
    rest,
    tail::Tail,
};

/// Calls that wait for the process; further ones are refused with `resource_exhausted`.
const MAX_WAITING: usize = 1024;

/// Most bytes read from the process at once.
const READ_SIZE: usize = 64 * 1024;

/// How long a program that has just written is looked at without a pause: most are about to wait again.
const EAGER: Duration = Duration::from_micros(200);

/// Between two looks after that.
const LOOK: Duration = Duration::from_millis(1);

/// How the lines are exchanged.
#[derive(Clone)]
pub(crate) struct Manner {
    /// Each question begins with a key that its answer must bear.
    pub(crate) keys: bool,
    /// Told whenever the program had to be ended for what it wrote.
    pub(crate) tell: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Exchanges lines with one process. Clones share it; the process ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct Lines(mpsc::Sender<Exchange>);

#[derive(Debug)]
struct Exchange {
    question: Bytes,
    reply: oneshot::Sender<Result<Bytes, Status>>,
}

impl Lines {
    /// Starts the task on the current runtime; the process starts with the first call.
    pub(crate) fn start(
        program: Program,
        manner: Manner,
        reaper: ReaperHandle,
    ) -> (Self, JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let exchanger = Exchanger {
            program,
            manner,
            reaper,
            told: 0,
        };
        (Self(sender), tokio::spawn(exchanger.serve(receiver)))
    }

    /// Exchanges one line. `body` may end with a line's end and must have none elsewhere.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for more than one line, `resource_exhausted` for too many calls at once,
    /// `unavailable` when the program ended instead of answering, `internal` when it wrote what cannot be told
    /// to be the answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before the answer ends the process; the next call starts it again.
    pub(crate) async fn exchange(&self, body: &[u8]) -> Result<Bytes, Status> {
        let question = Bytes::copy_from_slice(question(body)?);
        let (reply, answer) = oneshot::channel();
        self.0.try_send(Exchange { question, reply }).map_err(|_| {
            Status::new(
                Code::ResourceExhausted,
                "too many calls wait for this agent's program",
            )
        })?;
        answer.await.unwrap_or_else(|_| {
            Err(Status::new(
                Code::Unavailable,
                "the agent's program is being stopped",
            ))
        })
    }
}

/// What the task goes by.
struct Exchanger {
    program: Program,
    manner: Manner,
    reaper: ReaperHandle,
    /// How often the operator was told of the program's faults.
    told: u64,
}

impl Exchanger {
    async fn serve(mut self, mut calls: mpsc::Receiver<Exchange>) {
        let mut process: Option<Process> = None;
        let mut stopping = self.reaper.clone();
        loop {
            let next = tokio::select! {
                // First, so that output out of turn is seen before a question that waits is asked.
                biased;
                () = stopping.stopping() => return,
                broken = unasked(&mut process) => {
                    process = None;
                    self.note(broken);
                    continue;
                }
                next = calls.recv() => next,
            };
            let Some(Exchange { question, reply }) = next else {
                return;
            };
            if reply.is_closed() {
                continue;
            }
            match self
                .answer(process.take(), &question, reply, &mut stopping)
                .await
            {
                Some(kept) => process = kept,
                None => return,
            }
        }
    }

    /// Has one call answered, and says which process is kept; `None` once the agent is being stopped.
    async fn answer(
        &mut self,
        process: Option<Process>,
        question: &[u8],
        mut reply: oneshot::Sender<Result<Bytes, Status>>,
        stopping: &mut ReaperHandle,
    ) -> Option<Option<Process>> {
        let mut current = match process.map_or_else(|| self.begin(), Ok) {
            Ok(current) => current,
            Err(status) => {
                let _ = reply.send(Err(status));
                return Some(None);
            }
        };
        let answer = tokio::select! {
            answer = current.exchange(question, self.manner.keys) => answer,
            // Dropping `current` ends the process.
            () = reply.closed() => return Some(None),
            () = stopping.stopping() => return None,
        };
        // A caller that left meanwhile has lost nothing that another could use.
        match answer {
            Ok(line) => {
                let _ = reply.send(Ok(line));
                Some(Some(current))
            }
            Err(broken) => {
                self.note(broken);
                let _ = reply.send(Err(current.end(broken).await));
                Some(None)
            }
        }
    }

    fn begin(&self) -> Result<Process, Status> {
        Process::start(&self.program, &self.reaper)
    }

    /// Tells the operator of a fault: the first, the second, the fourth and so on, because callers choose how many
    /// there are.
    fn note(&mut self, broken: Broken) {
        let Broken::Fault(fault) = broken else { return };
        self.told += 1;
        if self.told.is_power_of_two() {
            let (what, times) = (describe(fault), self.told);
            (self.manner.tell)(&format!("{what}; it was ended ({times} times so far)"));
        }
    }
}

/// Resolves when a process that is not being asked anything writes, or ends.
async fn unasked(process: &mut Option<Process>) -> Broken {
    match process {
        Some(process) => process.unasked().await,
        None => std::future::pending().await,
    }
}

/// The running process.
#[derive(Debug)]
struct Process {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: JoinHandle<Tail>,
    running: Running,
    pid: u32,
    dialogue: Dialogue,
    buffer: BytesMut,
    keys: std::hash::RandomState,
    asked: u64,
}

/// Why an exchange failed.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// The process closed a pipe: it has ended or is about to.
    Ended,
    /// It wrote something that is no answer, or may not be the one.
    Fault(Fault),
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Process {
    fn start(program: &Program, reaper: &ReaperHandle) -> Result<Self, Status> {
        let mut running = program.start(&[], reaper, None)?;
        let child = piped(running.child())?;
        let pid = child.id().unwrap_or(0);
        let stdin = piped(child.stdin.take())?;
        let stdout = piped(child.stdout.take())?;
        let stderr = piped(child.stderr.take())?;
        let stderr = tokio::spawn(async move {
            let mut tail = Tail::default();
            keep_tail(stderr, &mut tail).await;
            tail
        });
        Ok(Self {
            stdin,
            stdout,
            stderr,
            running,
            pid,
            dialogue: Dialogue::started(Instant::now().into_std()),
            buffer: BytesMut::new(),
            keys: std::hash::RandomState::new(),
            asked: 0,
        })
    }

    /// Asks once the process rests, and returns its answer once it rests again.
    async fn exchange(&mut self, question: &[u8], keys: bool) -> Result<Bytes, Broken> {
        if !self.dialogue.is_ready() {
            self.settle().await?;
        }
        if ioctl_fionread(&self.stdout).is_ok_and(|bytes| bytes > 0) {
            return Err(Fault::Unasked.into());
        }
        let key = self.key(keys);
        let line = self.dialogue.ask(question, key);
        let mut unwritten = &line[..];
        loop {
            tokio::select! {
                written = self.stdin.write(unwritten), if !unwritten.is_empty() => {
                    unwritten = &unwritten[written.map_err(|_| Broken::Ended)?..];
                    if unwritten.is_empty() {
                        self.dialogue.question_written();
                    }
                }
                output = read(&mut self.stdout, &mut self.buffer) => {
                    let output = output.ok_or(Broken::Ended)?;
                    let now = Instant::now().into_std();
                    if let Some(answer) = self.dialogue.output(&output, now)? {
                        return Ok(answer);
                    }
                    if self.dialogue.is_settling() {
                        break;
                    }
                }
            }
        }
        match self.settle().await? {
            Settled::Answer(answer) => Ok(answer),
            // Only a process that was not asked settles without an answer.
            Settled::Started => Err(Broken::Ended),
        }
    }

    /// Looks at the process until it rests.
    async fn settle(&mut self) -> Result<Settled, Broken> {
        let eager = Instant::now() + EAGER;
        loop {
            // In this order: what waits for input cannot write after that.
            let rest = rest::look(self.pid, &self.stdin);
            let now = Instant::now();
            let quiet = !ioctl_fionread(&self.stdout).is_ok_and(|bytes| bytes > 0);
            if quiet && let Some(settled) = self.dialogue.looked(rest, now.into_std()) {
                return Ok(settled);
            }
            let pause = async {
                match now < eager {
                    true => tokio::task::yield_now().await,
                    false => tokio::time::sleep(LOOK).await,
                }
            };
            tokio::select! {
                biased;
                output = read(&mut self.stdout, &mut self.buffer) => match output {
                    Some(output) => {
                        self.dialogue.output(&output, now.into_std())?;
                    }
                    None => return self.dialogue.ended().ok_or(Broken::Ended),
                },
                () = pause => {}
            }
        }
    }

    /// Resolves when the process writes or ends although it was asked nothing. Cancel safe.
    async fn unasked(&mut self) -> Broken {
        match read(&mut self.stdout, &mut self.buffer).await {
            Some(_) => Fault::Unasked.into(),
            None => Broken::Ended,
        }
    }

    /// What the answer to the next question must begin with: nobody but the program learns it.
    fn key(&mut self, wanted: bool) -> Bytes {
        if !wanted {
            return Bytes::new();
        }
        self.asked += 1;
        // SipHash under a secret of this process's own.
        format!("{:016x}\t", self.keys.hash_one(self.asked)).into()
    }

    /// What to tell the caller of an exchange that failed. Ends the process.
    async fn end(self, broken: Broken) -> Status {
        let Self {
            stdin,
            stdout,
            stderr,
            mut running,
            ..
        } = self;
        if let Broken::Fault(fault) = broken {
            let code = match fault {
                Fault::TooLong => Code::ResourceExhausted,
                _ => Code::Internal,
            };
            return Status::new(code, describe(fault))
                .with_hint("its operator can read how `hail serve --lines` takes answers");
        }
        drop((stdin, stdout));
        let wait = tokio::time::timeout(running.grace(), running.wait()).await;
        let Ok(Ok(exit)) = wait else {
            return Status::new(Code::Unavailable, "the agent's program closed its output");
        };
        let tail = stderr.await.unwrap_or_default();
        let outcome = outcome::status(exit, &tail);
        if outcome.is_ok() {
            Status::new(
                Code::Unavailable,
                "the agent's program ended instead of answering",
            )
        } else {
            Status::new(Code::Unavailable, outcome.message).with_details(outcome.details)
        }
    }
}

/// What the process has written; `None` at the end. Cancel safe.
async fn read(stdout: &mut ChildStdout, buffer: &mut BytesMut) -> Option<Bytes> {
    buffer.reserve(READ_SIZE);
    match stdout.read_buf(buffer).await {
        Ok(1..) => Some(buffer.split().freeze()),
        Ok(0) | Err(_) => None,
    }
}

fn describe(fault: Fault) -> String {
    match fault {
        Fault::Unasked => {
            "the agent's program wrote a line that nobody asked for; it answers each line with one"
                .to_owned()
        }
        Fault::Early => "the agent's program answered before it was asked to the end".to_owned(),
        Fault::OtherKey => {
            "the agent's program wrote a line without the key of the question".to_owned()
        }
        Fault::TooLong => {
            format!("the agent's program wrote a line longer than {MAX_LINE} bytes")
        }
    }
}

#[cfg(test)]
mod tests;
