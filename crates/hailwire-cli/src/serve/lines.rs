//! One process for all calls, one line for each request and answer.
//!
//! A task owns the process and takes calls one after another, the most urgent first: it writes the request and a newline to
//! stdin and answers with the next line of stdout, newline included. The process is started by the
//! first call and again by the first call after its end. Whose an answer is decides [`LineDialogue`]; what
//! may be asked, [`question()`]. A process ends, and the call that it works on is answered with an error,
//! when it writes what nobody asked for. A call that is cancelled while the process works on it ends the
//! process too, because its line would otherwise answer the next call.

use std::{
    collections::HashMap,
    hash::BuildHasher as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hailwire_core::{
    backoff::Backoff,
    call_queue::{CallQueue, CallTicket, QueueRoom},
};
use hailwire_terminal::text;
use hailwire_wire::{Code, Priority, Status};
use rustix::io::ioctl_fionread;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStdin, ChildStdout},
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    task::JoinHandle,
    time::Instant,
};

pub(crate) use super::line_dialogue::MAX_LINE;
use super::{
    AgentProgram,
    agent_spec::RestartDelays,
    each_call::keep_tail,
    line_dialogue::{DialogueError, LineDialogue, SettledState},
    line_question::question,
    outcome, piped, program_activity,
    program_slot::{AgentCounters, ProgramLimit, ProgramSlot},
    reaper::{ReaperHandle, RunningProgram},
    tail::TailBuffer,
};

/// Calls that wait for the process, the most urgent first; further ones are refused with `resource_exhausted`.
const MAX_WAITING: usize = 1024;

/// Most bytes read from the process at once.
const READ_SIZE: usize = 64 * 1024;

/// How long a program that has just written is busy-polled: most are about to wait again.
const BUSY_POLL_TIME: Duration = Duration::from_micros(200);

/// The interval between two polls after that.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How the lines are exchanged.
#[derive(Clone)]
pub(crate) struct LineOptions {
    /// Each request begins with a key with which its answer must begin.
    pub(crate) keys: bool,
    /// How long a program that answers nothing is left alone.
    pub(crate) restart: RestartDelays,
    /// Called when the program had to be ended for what it wrote.
    pub(crate) tell: Arc<dyn Fn(&str) + Send + Sync>,
    /// How many programs may run, this one among them.
    pub(crate) limit: Arc<ProgramLimit>,
    pub(crate) counters: Arc<AgentCounters>,
}

/// Exchanges lines with one process. Clones share it; the process ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct LineProgram {
    waiting: Arc<Mutex<WaitingLines>>,
    /// One word for each call that waits.
    came: mpsc::Sender<()>,
}

/// The calls that wait for the process.
#[derive(Debug, Default)]
struct WaitingLines {
    order: CallQueue<()>,
    exchanges: HashMap<CallTicket, LineExchange>,
}

impl WaitingLines {
    /// Lets a call wait. Returns whether there is one more, and not one in the place of another.
    fn enter(&mut self, exchange: LineExchange, priority: Priority) -> Result<bool, Status> {
        let room = QueueRoom {
            all: MAX_WAITING,
            each: MAX_WAITING,
        };
        let entered = self
            .order
            .enter(room, (), priority)
            .map_err(|_| too_many())?;
        self.exchanges.insert(entered.ticket, exchange);
        let Some(displaced) = entered.displaced else {
            return Ok(true);
        };
        if let Some(exchange) = self.exchanges.remove(&displaced) {
            let _ = exchange.reply.send(Err(too_many()));
        }
        Ok(false)
    }

    fn next(&mut self) -> Option<LineExchange> {
        let (ticket, ()) = self.order.next_call()?;
        self.exchanges.remove(&ticket)
    }
}

fn locked(waiting: &Mutex<WaitingLines>) -> MutexGuard<'_, WaitingLines> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn too_many() -> Status {
    Status::new(
        Code::ResourceExhausted,
        "too many calls wait for this agent's program",
    )
}

#[derive(Debug)]
struct LineExchange {
    question: Bytes,
    reply: oneshot::Sender<Result<Bytes, Status>>,
}

impl LineProgram {
    /// Starts the task on the current runtime; the process starts with the first call.
    pub(crate) fn start(
        program: AgentProgram,
        options: LineOptions,
        reaper: ReaperHandle,
    ) -> (Self, JoinHandle<()>) {
        let (came, coming) = mpsc::channel(MAX_WAITING);
        let waiting = Arc::<Mutex<WaitingLines>>::default();
        // Whatever was in the way of an earlier one is over.
        options.counters.resume();
        let task = LineExchangeTask {
            program,
            backoff: Backoff::new((options.restart.min, options.restart.max)),
            options,
            reaper,
            ended: false,
            told: 0,
        };
        let serving = tokio::spawn(task.serve(waiting.clone(), coming));
        (Self { waiting, came }, serving)
    }

    /// Exchanges one line, before those that wait by its share. `body` may end with a line's end and must have none elsewhere.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for more than one line, `resource_exhausted` for too many calls at once,
    /// `unavailable` when the program ended instead of answering, `internal` when its output cannot be identified as
    /// the answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before the answer ends the process; the next call starts it again.
    pub(crate) async fn exchange(&self, body: &[u8], priority: Priority) -> Result<Bytes, Status> {
        let question = Bytes::copy_from_slice(question(body)?);
        let (reply, answer) = oneshot::channel();
        let exchange = LineExchange { question, reply };
        let more = locked(&self.waiting).enter(exchange, priority)?;
        if more && let Err(TrySendError::Full(())) = self.came.try_send(()) {
            // There is a word for each that waits, and no more than those wait.
            return Err(too_many());
        }
        answer.await.unwrap_or_else(|_| {
            Err(Status::new(
                Code::Unavailable,
                "the agent's program is being stopped",
            ))
        })
    }
}

/// The task that owns the process.
struct LineExchangeTask {
    program: AgentProgram,
    options: LineOptions,
    reaper: ReaperHandle,
    backoff: Backoff,
    /// Whether the last process ended by itself or for what it wrote.
    ended: bool,
    /// How many faults of the program there were.
    told: u64,
}

impl LineExchangeTask {
    async fn serve(mut self, waiting: Arc<Mutex<WaitingLines>>, mut coming: mpsc::Receiver<()>) {
        let mut process: Option<LineProcess> = None;
        let mut stopping = self.reaper.clone();
        loop {
            let next = tokio::select! {
                // First, so that unrequested output is seen before a waiting request is sent.
                biased;
                () = stopping.stopping() => return,
                broken = unexpected_output(&mut process) => {
                    let answered = process.take().is_some_and(|process| process.answered);
                    self.note(broken);
                    self.over(answered, "the agent's program ended");
                    continue;
                }
                came = coming.recv() => came,
            };
            if next.is_none() {
                return;
            }
            let next = locked(&waiting).next();
            let Some(LineExchange { question, reply }) = next else {
                continue;
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

    /// Answers one call, and returns the process if it is kept; `None` once the agent is being stopped.
    async fn answer(
        &mut self,
        process: Option<LineProcess>,
        question: &[u8],
        mut reply: oneshot::Sender<Result<Bytes, Status>>,
        stopping: &mut ReaperHandle,
    ) -> Option<Option<LineProcess>> {
        let mut current = match process.map_or_else(|| self.begin(), Ok) {
            Ok(current) => current,
            Err(status) => {
                let _ = reply.send(Err(status));
                return Some(None);
            }
        };
        let answer = tokio::select! {
            answer = current.exchange(question, self.options.keys) => answer,
            // Dropping `current` ends the process.
            () = reply.closed() => return Some(None),
            () = stopping.stopping() => return None,
        };
        // If the caller is gone by now, its answer is dropped; no other caller could use it.
        match answer {
            Ok(line) => {
                current.answered = true;
                self.backoff.reset();
                let _ = reply.send(Ok(line));
                Some(Some(current))
            }
            Err(broken) => {
                self.note(broken);
                let answered = current.answered;
                let status = current.end(broken).await;
                self.over(answered, &status.message);
                let _ = reply.send(Err(status));
                Some(None)
            }
        }
    }

    /// Starts the process, unless the last ones answered nothing and it is to be left alone for now.
    fn begin(&mut self) -> Result<LineProcess, Status> {
        let LineOptions {
            counters, limit, ..
        } = &self.options;
        if let Some((left, why)) = counters.paused(Instant::now()) {
            let left = text::time(left);
            let what = format!("{why}; it may be started again in {left}");
            return Err(Status::new(Code::Unavailable, what));
        }
        let slot = limit.slot(counters, None)?;
        let started = LineProcess::start(&self.program, &self.reaper, slot);
        match &started {
            Ok(_) => {
                counters.resume();
                counters.restarts.fetch_add(u64::from(self.ended), Relaxed);
                self.ended = false;
            }
            Err(status) => self.over(false, &status.message),
        }
        started
    }

    /// The process has ended by itself, or for what it wrote. One that had answered is started again by the next call; one that
    /// had not is left alone for a while, because callers can cause any number of starts.
    fn over(&mut self, answered: bool, why: &str) {
        self.ended = true;
        if answered {
            return;
        }
        let now = Instant::now();
        let pause = self.backoff.fail(now.into_std());
        self.options.counters.pause(now + pause, why.to_owned());
        if let Some(log) = &self.program.log {
            let pause = text::time(pause);
            log.note(&format!("{why}; it may be started again in {pause}"));
        }
    }

    /// Reports a fault to the operator: the first, the second, the fourth and so on, because callers can cause any
    /// number.
    fn note(&mut self, broken: ExchangeError) {
        let ExchangeError::Fault(fault) = broken else {
            return;
        };
        self.told += 1;
        if self.told.is_power_of_two() {
            let (what, times) = (describe(fault), self.told);
            (self.options.tell)(&format!("{what}; it was ended ({times} times so far)"));
        }
    }
}

/// Resolves when a process without an outstanding request writes, or ends.
async fn unexpected_output(process: &mut Option<LineProcess>) -> ExchangeError {
    match process {
        Some(process) => process.unexpected_output().await,
        None => std::future::pending().await,
    }
}

/// The running process.
#[derive(Debug)]
struct LineProcess {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: JoinHandle<TailBuffer>,
    running: RunningProgram,
    pid: u32,
    /// Whether it has answered a call.
    answered: bool,
    dialogue: LineDialogue,
    buffer: BytesMut,
    keys: std::hash::RandomState,
    asked: u64,
}

/// Why an exchange failed.
#[derive(Clone, Copy, Debug)]
enum ExchangeError {
    /// The process closed a pipe: it has ended or is about to.
    Ended,
    /// It wrote something that is not, or may not be, the answer.
    Fault(DialogueError),
}

impl From<DialogueError> for ExchangeError {
    fn from(fault: DialogueError) -> Self {
        Self::Fault(fault)
    }
}

impl LineProcess {
    fn start(
        program: &AgentProgram,
        reaper: &ReaperHandle,
        slot: ProgramSlot,
    ) -> Result<Self, Status> {
        let mut running = program.start(&[], reaper, Some(slot))?;
        let child = piped(running.child())?;
        let pid = child.id().unwrap_or(0);
        let stdin = piped(child.stdin.take())?;
        let stdout = piped(child.stdout.take())?;
        let stderr = piped(child.stderr.take())?;
        let log = program.log.clone();
        let stderr = tokio::spawn(async move {
            let mut tail = TailBuffer::default();
            keep_tail(stderr, &mut tail, log.as_ref()).await;
            tail
        });
        Ok(Self {
            stdin,
            stdout,
            stderr,
            running,
            pid,
            answered: false,
            dialogue: LineDialogue::started(Instant::now().into_std()),
            buffer: BytesMut::new(),
            keys: std::hash::RandomState::new(),
            asked: 0,
        })
    }

    /// Sends the request once the process is idle, and returns its answer once it is idle again.
    async fn exchange(&mut self, question: &[u8], keys: bool) -> Result<Bytes, ExchangeError> {
        if !self.dialogue.is_ready() {
            self.wait_until_idle().await?;
        }
        if ioctl_fionread(&self.stdout).is_ok_and(|bytes| bytes > 0) {
            return Err(DialogueError::Unrequested.into());
        }
        let key = self.key(keys);
        let line = self.dialogue.ask(question, key);
        let mut unwritten = &line[..];
        loop {
            tokio::select! {
                written = self.stdin.write(unwritten), if !unwritten.is_empty() => {
                    unwritten = &unwritten[written.map_err(|_| ExchangeError::Ended)?..];
                    if unwritten.is_empty() {
                        self.dialogue.question_written();
                    }
                }
                output = read(&mut self.stdout, &mut self.buffer) => {
                    let output = output.ok_or(ExchangeError::Ended)?;
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
        match self.wait_until_idle().await? {
            SettledState::Answer(answer) => Ok(answer),
            // Only a process without a request settles without an answer.
            SettledState::Started => Err(ExchangeError::Ended),
        }
    }

    /// Observes the process until it is idle.
    async fn wait_until_idle(&mut self) -> Result<SettledState, ExchangeError> {
        let eager = Instant::now() + BUSY_POLL_TIME;
        loop {
            // In this order: a process that waits for input cannot write after that.
            let activity = program_activity::observe(self.pid, &self.stdin);
            let now = Instant::now();
            let quiet = !ioctl_fionread(&self.stdout).is_ok_and(|bytes| bytes > 0);
            if quiet && let Some(settled) = self.dialogue.observed(activity, now.into_std()) {
                return Ok(settled);
            }
            let pause = async {
                match now < eager {
                    true => tokio::task::yield_now().await,
                    false => tokio::time::sleep(POLL_INTERVAL).await,
                }
            };
            tokio::select! {
                biased;
                output = read(&mut self.stdout, &mut self.buffer) => match output {
                    Some(output) => {
                        self.dialogue.output(&output, now.into_std())?;
                    }
                    None => return self.dialogue.ended().ok_or(ExchangeError::Ended),
                },
                () = pause => {}
            }
        }
    }

    /// Resolves when the process writes or ends without an outstanding request. Cancel safe.
    async fn unexpected_output(&mut self) -> ExchangeError {
        match read(&mut self.stdout, &mut self.buffer).await {
            Some(_) => DialogueError::Unrequested.into(),
            None => ExchangeError::Ended,
        }
    }

    /// The key with which the answer to the next request must begin: only the program learns it.
    fn key(&mut self, wanted: bool) -> Bytes {
        if !wanted {
            return Bytes::new();
        }
        self.asked += 1;
        // SipHash with a secret key of this process.
        format!("{:016x}\t", self.keys.hash_one(self.asked)).into()
    }

    /// The status for the caller of an exchange that failed. Ends the process.
    async fn end(self, broken: ExchangeError) -> Status {
        let Self {
            stdin,
            stdout,
            stderr,
            mut running,
            ..
        } = self;
        if let ExchangeError::Fault(fault) = broken {
            let code = match fault {
                DialogueError::TooLong => Code::ResourceExhausted,
                _ => Code::Internal,
            };
            return Status::new(code, describe(fault))
                .with_hint("its operator can read about `hail serve --lines` in docs/guide/serving-programs.md");
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

/// Reads what the process has written; `None` at the end. Cancel safe.
async fn read(stdout: &mut ChildStdout, buffer: &mut BytesMut) -> Option<Bytes> {
    buffer.reserve(READ_SIZE);
    match stdout.read_buf(buffer).await {
        Ok(1..) => Some(buffer.split().freeze()),
        Ok(0) | Err(_) => None,
    }
}

fn describe(fault: DialogueError) -> String {
    match fault {
        DialogueError::Unrequested => {
            "the agent's program wrote more than one line for a request; it must answer each line with one line"
                .to_owned()
        }
        DialogueError::Early => "the agent's program answered before it was sent the whole request".to_owned(),
        DialogueError::OtherKey => {
            "the agent's program wrote a line without the key of the request".to_owned()
        }
        DialogueError::TooLong => {
            format!("the agent's program wrote a line longer than {MAX_LINE} bytes")
        }
    }
}

#[cfg(test)]
mod tests;
