//! One agent whose program sleeps until a durable message waits for it (`--on-message`): the program is started, takes messages by
//! itself, and is ended when there is nothing more to do. When is decided in [`hailwire_core::wake_schedule`]; here the node is asked what
//! waits, and programs are started and ended.
//!
//! What the programs write goes into the agent's log, or to this process's stderr where there is none.

use std::{
    collections::HashMap, future::Future, os::fd::AsFd as _, pin::Pin, process::Stdio, sync::Arc,
    sync::atomic::Ordering::Relaxed, time::Duration,
};

use hailwire::{
    Answer, Client, Code, Status,
    admin::{self, BacklogWatch, MessageBacklog},
};
use hailwire_core::{
    backoff::Backoff,
    wake_schedule::{WakeAction, WakeBacklog, WakeEnd, WakeLimits, WakeNumber, WakeSchedule},
};
use hailwire_wire::AgentName;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    AgentProgram,
    agent_log::AgentLog,
    agent_spec::{AgentSpec, OnMessage},
    command_agent::ProgramContext,
    each_call::keep_tail,
    outcome,
    program_slot::{AgentCounters, ProgramSlot},
    reaper::{ReaperHandle, RunningProgram},
    tail::TailBuffer,
};

/// First and longest pause before the node is asked again what waits, where it ended its answer.
const ASK_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Longest line in which the node says what waits.
const MAX_LINE: usize = 4096;

/// How long what a program wrote last is read once no process of it is left.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// An agent whose program is started for messages. Its programs end when this is dropped.
#[derive(Debug)]
pub(crate) struct WakeAgent {
    agent: AgentName,
    watches: mpsc::Sender<BacklogReader>,
    task: JoinHandle<()>,
}

impl WakeAgent {
    /// Starts the task that keeps its programs. It starts none before [`WakeAgent::attach`].
    pub(crate) fn new(
        spec: &AgentSpec,
        on_message: OnMessage,
        program: AgentProgram,
        context: &ProgramContext,
        counters: &Arc<AgentCounters>,
    ) -> Self {
        let (watches, receiver) = mpsc::channel(1);
        let limits = WakeLimits {
            programs: usize::try_from(spec.max).unwrap_or(1).max(1),
            idle: on_message.idle,
        };
        let waking = WakingPrograms {
            agent: spec.name.clone(),
            program,
            context: context.clone(),
            counters: counters.clone(),
            schedule: WakeSchedule::new(limits),
            running: JoinSet::new(),
            stops: HashMap::new(),
            in_vain: false,
            watches: receiver,
            reader: None,
            asking: None,
            ask: Backoff::new(ASK_PAUSES),
        };
        Self {
            agent: spec.name.clone(),
            watches,
            task: tokio::spawn(waking.run()),
        }
    }

    /// Asks the node what waits, from now on.
    ///
    /// # Errors
    ///
    /// Why the node does not say it.
    pub(crate) async fn attach(&self, client: &Client) -> Result<(), Status> {
        let reader = BacklogReader::ask(client.clone(), self.agent.clone()).await?;
        let ended = |_| Status::new(Code::Unavailable, "the agent is being stopped");
        self.watches.send(reader).await.map_err(ended)
    }
}

impl Drop for WakeAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a node says of what waits for an agent.
struct BacklogReader {
    client: Client,
    answer: Answer,
    rest: Vec<u8>,
}

impl BacklogReader {
    async fn ask(client: Client, agent: AgentName) -> Result<Self, Status> {
        let request = BacklogWatch {
            agent: agent.to_string(),
        };
        let body = serde_json::to_vec(&request)
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let call = client.call(admin::AGENT);
        let answer = call.method(admin::method::MESSAGE_BACKLOG).body(body);
        let answer = answer.send().await?;
        Ok(Self {
            client,
            answer,
            rest: Vec::new(),
        })
    }

    /// The next line. If dropped, nothing is lost.
    async fn next(&mut self) -> Result<WakeBacklog, Status> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let row: MessageBacklog = serde_json::from_slice(&line)
                    .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
                let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
                return Ok(WakeBacklog {
                    ready: number(row.ready),
                    waiting: number(row.waiting),
                    in_hand: number(row.in_hand),
                    taken: row.taken,
                });
            }
            if self.rest.len() > MAX_LINE {
                let what = "what the node says of messages that wait is too long";
                return Err(Status::new(Code::Internal, what));
            }
            match self.answer.chunk().await? {
                Some(chunk) => self.rest.extend_from_slice(&chunk),
                None => {
                    let what = "the node says no more what waits";
                    return Err(Status::new(Code::Unavailable, what));
                }
            }
        }
    }
}

/// Gives the client back where the node does not answer.
type AskedAgain = Pin<Box<dyn Future<Output = Result<BacklogReader, Client>> + Send>>;

/// The programs of one agent, and what is known of what waits for it.
struct WakingPrograms {
    agent: AgentName,
    program: AgentProgram,
    context: ProgramContext,
    counters: Arc<AgentCounters>,
    schedule: WakeSchedule,
    /// Each ends once no process of it is left, and says how it went.
    running: JoinSet<(WakeNumber, String)>,
    stops: HashMap<WakeNumber, oneshot::Sender<()>>,
    /// Whether the last that ended had taken nothing.
    in_vain: bool,
    watches: mpsc::Receiver<BacklogReader>,
    reader: Option<BacklogReader>,
    /// The node is asked again, after a pause.
    asking: Option<AskedAgain>,
    ask: Backoff,
}

/// What has happened.
enum WakeEvent {
    Attached(BacklogReader),
    AskedAgain(Result<BacklogReader, Client>),
    Said(Result<WakeBacklog, Status>),
    Ended(WakeNumber, String),
    Time,
    Stop,
}

impl WakingPrograms {
    async fn run(mut self) {
        loop {
            self.carry_out();
            match self.event().await {
                WakeEvent::Attached(reader) | WakeEvent::AskedAgain(Ok(reader)) => {
                    self.schedule.handle_detached();
                    self.asking = None;
                    self.reader = Some(reader);
                }
                WakeEvent::AskedAgain(Err(client)) => self.ask_again(client),
                WakeEvent::Said(Ok(backlog)) => {
                    self.ask.reset();
                    self.schedule.handle_backlog(now(), backlog);
                }
                WakeEvent::Said(Err(status)) => {
                    tracing::debug!(agent = %self.agent, %status, "what waits is not known");
                    self.schedule.handle_detached();
                    if let Some(reader) = self.reader.take() {
                        self.ask_again(reader.client);
                    }
                }
                WakeEvent::Ended(number, how) => self.ended(number, &how),
                WakeEvent::Time => {}
                WakeEvent::Stop => return,
            }
        }
    }

    async fn event(&mut self) -> WakeEvent {
        let said = async {
            match &mut self.reader {
                Some(reader) => reader.next().await,
                None => std::future::pending().await,
            }
        };
        let asked = async {
            match &mut self.asking {
                Some(asking) => asking.await,
                None => std::future::pending().await,
            }
        };
        let due = self.schedule.poll_timeout();
        let time = async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        let mut reaper = self.context.reaper.clone();
        tokio::select! {
            reader = self.watches.recv() => match reader {
                Some(reader) => WakeEvent::Attached(reader),
                None => WakeEvent::Stop,
            },
            said = said => WakeEvent::Said(said),
            asked = asked => WakeEvent::AskedAgain(asked),
            Some(ended) = self.running.join_next() => match ended {
                Ok((number, how)) => WakeEvent::Ended(number, how),
                // None panics or is aborted.
                Err(_) => WakeEvent::Time,
            },
            () = time => WakeEvent::Time,
            () = reaper.stopping() => WakeEvent::Stop,
        }
    }

    /// Asks the same node again after a pause; where it is gone, the supervisor attaches anew.
    fn ask_again(&mut self, client: Client) {
        let pause = self.ask.fail(now());
        let agent = self.agent.clone();
        self.asking = Some(Box::pin(async move {
            sleep(pause).await;
            let asked = BacklogReader::ask(client.clone(), agent).await;
            asked.map_err(|_| client)
        }));
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.schedule.poll_action(now()) {
            match action {
                WakeAction::Start(number) => self.start(number),
                WakeAction::End(number) => {
                    self.note("nothing waits any more: the program is ended");
                    if let Some(stop) = self.stops.remove(&number) {
                        // It may be ending by itself.
                        let _ = stop.send(());
                    }
                }
            }
        }
        if self.schedule.paused(now()).is_none() {
            self.counters.resume();
        }
    }

    fn start(&mut self, number: WakeNumber) {
        let waiting = self.schedule.waiting();
        if std::mem::take(&mut self.in_vain) {
            self.counters.restarts.fetch_add(1, Relaxed);
        }
        let place = Arc::new(Semaphore::new(1));
        let held = place.clone().try_acquire_owned().ok();
        let slot = self.context.limit.slot(&self.counters, held);
        let variables = [
            ("HAIL_AGENT".to_owned(), self.agent.to_string()),
            ("HAIL_WAITING".to_owned(), waiting.to_string()),
        ];
        let started =
            slot.and_then(|slot| self.program.wake(&variables, &self.context.reaper, slot));
        match started {
            Ok(running) => {
                self.note(&format!("started: {waiting} messages wait"));
                let (stop, stopped) = oneshot::channel();
                self.stops.insert(number, stop);
                let (log, reaper) = (self.program.log.clone(), self.context.reaper.clone());
                self.running.spawn(async move {
                    let how = follow(running, log, (stopped, reaper), &place).await;
                    (number, how)
                });
            }
            Err(status) => self.ended(number, &status.to_string()),
        }
    }

    fn ended(&mut self, number: WakeNumber, how: &str) {
        self.stops.remove(&number);
        match self.schedule.handle_end(now(), number) {
            WakeEnd::Expected => self.note(&format!("ended: {how}")),
            WakeEnd::InVain(pause) => {
                self.in_vain = true;
                let why = format!("it took no message: {how}");
                let seconds = pause.as_secs_f64().ceil();
                self.note(&format!("{why}; started again in {seconds} s"));
                self.counters.pause(Instant::now() + pause, why);
            }
        }
    }

    /// One line for the operator: in the agent's log, or told where there is none.
    fn note(&self, text: &str) {
        match &self.program.log {
            Some(log) => log.note(text),
            None => (self.context.tell)(&format!("{}: {text}", self.agent)),
        }
    }
}

/// Follows a program until none of its processes is left, and says how it ended.
async fn follow(
    mut running: RunningProgram,
    log: Option<AgentLog>,
    (stopped, mut reaper): (oneshot::Receiver<()>, ReaperHandle),
    place: &Semaphore,
) -> String {
    let child = running.child();
    let (stdout, stderr) = child
        .map(|child| (child.stdout.take(), child.stderr.take()))
        .unwrap_or_default();
    let output = async {
        let (mut out, mut err) = (TailBuffer::default(), TailBuffer::default());
        let out = async {
            if let Some(stdout) = stdout {
                keep_tail(stdout, &mut out, log.as_ref()).await;
            }
        };
        let err = async {
            if let Some(stderr) = stderr {
                keep_tail(stderr, &mut err, log.as_ref()).await;
            }
        };
        tokio::join!(out, err);
    };
    let ended = async {
        let how = tokio::select! {
            exit = running.wait() => match exit {
                Ok(exit) => outcome::ended(exit),
                Err(error) => error.to_string(),
            },
            // Whoever could ask may be gone, too.
            _ = stopped => "nothing waited".to_owned(),
            () = reaper.stopping() => "the agent is being stopped".to_owned(),
        };
        drop(running);
        // Free once no process is left. It is never closed.
        let _ = place.acquire().await;
        how
    };
    tokio::pin!(output, ended);
    tokio::select! {
        how = &mut ended => {
            // A process that hides may hold it open.
            let _ = timeout(OUTPUT_PATIENCE, output).await;
            how
        }
        () = &mut output => ended.await,
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl AgentProgram {
    /// Starts the program for messages that wait.
    fn wake(
        &self,
        environment: &[(String, String)],
        reaper: &ReaperHandle,
        slot: ProgramSlot,
    ) -> Result<RunningProgram, Status> {
        let mut command = self.command();
        command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        if self.log.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        } else {
            let own = std::io::stderr().as_fd().try_clone_to_owned();
            command.stdout(own.map_or_else(|_| Stdio::null(), Stdio::from));
        }
        let spawned = reaper.spawn(&mut command, self.grace, Some(slot));
        spawned.map_err(|failure| self.not_started(failure))
    }
}
