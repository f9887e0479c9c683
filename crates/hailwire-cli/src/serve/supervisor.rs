//! Keeps agents on offer: one, or those of a file, over one connection to the node and across its restarts.
//!
//! One task owns all of it. Nothing is done while nothing happens: the node's connection, the file and questions wake it. A
//! change of the file touches the agents that it changes and no other. Of a changed agent, calls that run finish with the
//! program that they began with, and new calls get the new one; no call finds it gone meanwhile.
//!
//! An agent that cannot be served fails alone: its state says why, and the others are served.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use hailwire::{AttachError, Client, Code, DataDir, ServeHandle, Status};
use hailwire_core::backoff::Backoff;
use hailwire_kdl::FileError;
use hailwire_terminal::failure::CommandFailure;
use hailwire_wire::AgentName;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use super::{
    agent_spec::AgentSpec,
    agents_file::AgentsFile,
    backoff::AttachBackoff,
    command_agent::{CommandAgent, ProgramContext, program},
    control::{
        ServedAgent, ServedAgents, ServedState, SupervisorControl, SupervisorRequest, not_kept,
    },
    file_watch::FileWatch,
    program_slot::AgentCounters,
    wake_agent::WakeAgent,
};

/// First and longest pause before an agent that the node refused is offered again.
const OFFER_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Agents that are kept on offer.
pub(crate) struct AgentSupervisor {
    data: DataDir,
    context: ProgramContext,
    /// `None` for one agent of the command line.
    file: Option<SupervisedFile>,
    stop: ServeStop,
    agents: BTreeMap<AgentName, SupervisedAgent>,
    node: Option<AttachedNode>,
    attach: AttachBackoff,
    attach_at: Instant,
    refused: Backoff,
    /// When agents that the node refused are offered again.
    offer_at: Option<Instant>,
}

/// How serving ends.
#[derive(Clone, Debug)]
pub(crate) struct ServeStop {
    /// True once this process is to stop.
    pub(crate) asked: watch::Receiver<bool>,
    /// How long calls under way may take then.
    pub(crate) drain: Duration,
}

/// The file that says which agents there are.
pub(crate) struct SupervisedFile {
    pub(crate) path: PathBuf,
    pub(crate) control: SupervisorControl,
    pub(crate) requests: mpsc::Receiver<SupervisorRequest>,
    /// Tells when the file changes; `None` where the system refuses.
    pub(crate) watch: Option<FileWatch>,
    /// Whether a file that is gone means no agents, and no agents are the end of the supervisor: whoever has started it
    /// watches the file as well.
    pub(crate) ends_when_empty: bool,
    /// Why the file as it is now is not served; empty if it is.
    pub(crate) error: String,
}

struct AttachedNode {
    client: Client,
    /// The private agent lives as long as this.
    _control: Option<ServeHandle>,
}

struct SupervisedAgent {
    spec: AgentSpec,
    counters: Arc<AgentCounters>,
    /// `None` where its program is not there.
    program: Option<SuppliedProgram>,
    handle: Option<ServeHandle>,
    state: OfferState,
}

/// What answers for an agent.
enum SuppliedProgram {
    /// Its calls are answered here.
    Command(Box<CommandAgent>),
    /// It is started for messages, and does the rest by itself.
    Wake(WakeAgent),
}

#[derive(Debug)]
enum OfferState {
    Starting,
    Serving,
    Failed(Status),
}

/// What woke the supervisor.
enum Wake {
    NodeGone(Status),
    AttachNow,
    OfferNow,
    FileChanged,
    Asked(SupervisorRequest),
    Stopped,
}

impl AgentSupervisor {
    /// Without agents, and not attached.
    pub(crate) fn new(
        data: DataDir,
        context: ProgramContext,
        file: Option<SupervisedFile>,
        stop: ServeStop,
    ) -> Self {
        Self {
            data,
            context,
            file,
            stop,
            agents: BTreeMap::new(),
            node: None,
            attach: AttachBackoff::default(),
            attach_at: Instant::now(),
            refused: Backoff::new(OFFER_PAUSES),
            offer_at: None,
        }
    }

    /// Takes an agent up, in place of one of the same name.
    ///
    /// # Errors
    ///
    /// `failed_precondition`: its program is not there. The agent is kept, and its state says so.
    pub(crate) fn declare(&mut self, spec: AgentSpec) -> Result<(), Status> {
        let before = self.agents.remove(&spec.name);
        let (counters, mut handle) = match before {
            Some(before) => (before.counters, before.handle),
            None => (Arc::default(), None),
        };
        let (program, state, done) = match supplied(&spec, &self.context, &counters) {
            Ok(program) => {
                if matches!(program, SuppliedProgram::Wake(_)) {
                    handle = None;
                }
                (Some(program), OfferState::Starting, Ok(()))
            }
            Err(status) => {
                handle = None;
                (None, OfferState::Failed(status.clone()), Err(status))
            }
        };
        let agent = SupervisedAgent {
            counters,
            program,
            handle,
            state,
            spec,
        };
        self.agents.insert(agent.spec.name.clone(), agent);
        done
    }

    /// Attaches to the node and offers all agents.
    ///
    /// # Errors
    ///
    /// The node cannot be reached. What becomes of each agent says its state.
    pub(crate) async fn attach(&mut self) -> Result<(), AttachError> {
        let client = Client::attach(&self.data).await?;
        let control = match &self.file {
            Some(file) => match file.control.offer(&client).await {
                Ok(handle) => Some(handle),
                Err(status) => {
                    tracing::warn!(%status, "the supervisor cannot be asked anything");
                    None
                }
            },
            None => None,
        };
        self.node = Some(AttachedNode {
            client,
            _control: control,
        });
        self.attach.succeeded();
        for name in self.names() {
            self.offer(&name).await;
        }
        Ok(())
    }

    /// Why the first agent that has failed has.
    pub(crate) fn failure(&self) -> Option<Status> {
        self.agents.values().find_map(|agent| match &agent.state {
            OfferState::Failed(status) => Some(status.clone()),
            OfferState::Starting | OfferState::Serving => None,
        })
    }

    /// Serves until it is to stop and calls under way have ended, an agent of the command line is refused for good, or a supervisor that ends with its
    /// last agent has none.
    ///
    /// # Errors
    ///
    /// Why the agent was refused.
    pub(crate) async fn run(&mut self) -> Result<(), Status> {
        loop {
            if self.is_over() {
                return Ok(());
            }
            match self.woken().await {
                Wake::NodeGone(status) => self.detached(&status),
                Wake::AttachNow => self.attach_again().await?,
                Wake::OfferNow => self.offer_refused().await?,
                Wake::FileChanged => {
                    // Whoever watches is told in the log.
                    let _ = self.reload().await;
                }
                Wake::Asked(request) => self.answer(request).await,
                Wake::Stopped => {
                    self.drain().await;
                    return Ok(());
                }
            }
        }
    }

    /// Takes all agents back in order: no new calls come, and those under way may end within their time.
    async fn drain(&mut self) {
        let agents = self.agents.values_mut();
        let handles = agents.filter_map(|agent| agent.handle.take());
        let drained: JoinSet<()> = handles.map(ServeHandle::drain).collect();
        let _ = timeout(self.stop.drain, drained.join_all()).await;
    }

    fn is_over(&self) -> bool {
        let file = self.file.as_ref();
        let ends = file.is_some_and(|file| file.ends_when_empty && file.error.is_empty());
        ends && self.agents.is_empty()
    }

    async fn woken(&mut self) -> Wake {
        let gone = async {
            match &self.node {
                Some(node) => node.client.closed().await,
                None => std::future::pending().await,
            }
        };
        let (attached, attach_at, offer_at) = (self.node.is_some(), self.attach_at, self.offer_at);
        let offers = async {
            match offer_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let of_file = async {
            match &mut self.file {
                Some(file) => file.woken().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stopped(&mut self.stop.asked) => Wake::Stopped,
            status = gone => Wake::NodeGone(status),
            () = sleep_until(attach_at), if !attached => Wake::AttachNow,
            () = offers, if attached => Wake::OfferNow,
            wake = of_file => wake,
        }
    }

    fn detached(&mut self, status: &Status) {
        self.tell(&format!("{status}; attaching again"));
        self.node = None;
        for agent in self.agents.values_mut() {
            agent.handle = None;
            if agent.program.is_some() {
                agent.state = OfferState::Starting;
            }
        }
        self.attach_at = Instant::now() + self.attach.wait();
    }

    async fn attach_again(&mut self) -> Result<(), Status> {
        if let Err(error) = self.attach().await {
            tracing::debug!(%error, "not attached yet");
            self.attach_at = Instant::now() + self.attach.wait();
            return Ok(());
        }
        (self.context.tell)(&format!("{} is served again", self.about()));
        self.of_command_line()
    }

    async fn offer_refused(&mut self) -> Result<(), Status> {
        self.offer_at = None;
        for name in self.names() {
            let agent = self.agents.get(&name);
            let refused = |agent: &SupervisedAgent| {
                agent.program.is_some() && matches!(agent.state, OfferState::Failed(_))
            };
            if agent.is_some_and(refused) {
                self.offer(&name).await;
            }
        }
        self.of_command_line()
    }

    /// An agent of the command line that is refused for good is the end.
    fn of_command_line(&self) -> Result<(), Status> {
        match self.failure() {
            Some(status) if self.file.is_none() && is_final(status.code) => Err(status),
            _ => Ok(()),
        }
    }

    /// Offers an agent as it is declared, if its program and the node are there.
    async fn offer(&mut self, name: &AgentName) {
        let (Some(node), Some(agent)) = (&self.node, self.agents.get_mut(name)) else {
            return;
        };
        let offered = match (&agent.program, &mut agent.handle) {
            (None, _) => return,
            (Some(SuppliedProgram::Wake(wake)), _) => wake.attach(&node.client).await,
            (Some(SuppliedProgram::Command(command)), Some(handle)) => {
                command.offer_anew(handle, &agent.spec).await
            }
            (Some(SuppliedProgram::Command(command)), None) => command
                .offer(&node.client, &agent.spec)
                .await
                .map(|handle| agent.handle = Some(handle)),
        };
        agent.state = match offered {
            Ok(()) => OfferState::Serving,
            Err(status) => {
                if self.offer_at.is_none() && !is_final(status.code) {
                    let now = Instant::now();
                    self.offer_at = Some(now + self.refused.fail(now.into_std()));
                }
                OfferState::Failed(status)
            }
        };
    }

    /// Reads the file again and serves what it says. A mistake changes nothing.
    ///
    /// # Errors
    ///
    /// The mistake.
    pub(crate) async fn reload(&mut self) -> Result<(), Status> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        match file.read().await {
            Ok(read) => {
                file.error.clear();
                self.apply(read).await;
                Ok(())
            }
            Err(status) => {
                let text = &status.message;
                if file.error != *text {
                    file.error.clone_from(text);
                    let hint = match status.hint.as_str() {
                        "" => String::new(),
                        hint => format!("\nhint: {hint}"),
                    };
                    (self.context.tell)(&format!("the agents stay as they are: {text}{hint}"));
                }
                Err(status)
            }
        }
    }

    async fn apply(&mut self, read: AgentsFile) {
        let max = usize::try_from(read.max_programs).unwrap_or(usize::MAX);
        self.context.limit.set(max);
        let declared = read.agents.into_iter().map(|agent| agent.spec);
        let declared: BTreeMap<AgentName, AgentSpec> =
            declared.map(|spec| (spec.name.clone(), spec)).collect();
        for name in self.names() {
            if !declared.contains_key(&name) {
                self.agents.remove(&name);
                if let Some(log) = &self.context.log {
                    log.forget(&name);
                }
            }
        }
        for (name, spec) in declared {
            let same = self.agents.get(&name).is_some_and(|agent| {
                agent.spec == spec && !matches!(agent.state, OfferState::Failed(_))
            });
            if same {
                continue;
            }
            if let Err(status) = self.declare(spec) {
                self.tell(&format!("agent {name}: {status}"));
            }
            self.offer(&name).await;
        }
    }

    async fn answer(&mut self, request: SupervisorRequest) {
        // Whoever asked may be gone.
        match request {
            SupervisorRequest::List(reply) => drop(reply.send(self.served())),
            SupervisorRequest::Reload(reply) => {
                let done = self.reload().await;
                let _ = reply.send(done.map(|()| self.served()));
            }
            SupervisorRequest::Restart(name, reply) => {
                let _ = reply.send(self.restart(&name).await);
            }
        }
    }

    /// Begins an agent anew: its program is looked for again, one that is kept is replaced once its call has ended, and one that is
    /// left alone for a while may be started at once.
    async fn restart(&mut self, name: &AgentName) -> Result<(), Status> {
        let agent = self.agents.get(name).ok_or_else(|| not_kept(name))?;
        self.declare(agent.spec.clone())?;
        self.offer(name).await;
        match self.agents.get(name).map(|agent| &agent.state) {
            Some(OfferState::Failed(status)) => Err(status.clone()),
            _ => Ok(()),
        }
    }

    /// What every agent does.
    pub(crate) fn served(&self) -> ServedAgents {
        let now = Instant::now();
        let file = self.file.as_ref();
        ServedAgents {
            agents: self.agents.values().map(|agent| agent.row(now)).collect(),
            error: file.map(|file| file.error.clone()).unwrap_or_default(),
        }
    }

    fn names(&self) -> Vec<AgentName> {
        self.agents.keys().cloned().collect()
    }

    /// Tells the operator.
    fn tell(&self, text: &str) {
        (self.context.tell)(&format!("{}: {text}", self.about()));
    }

    /// The agent of the command line, or the file.
    fn about(&self) -> String {
        match (&self.file, self.agents.keys().next()) {
            (Some(file), _) => file.path.display().to_string(),
            (None, Some(name)) => name.to_string(),
            (None, None) => String::new(),
        }
    }
}

impl SupervisedFile {
    async fn woken(&mut self) -> Wake {
        let watched = async {
            match &self.watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = watched => {
                if let Err(error) = changed {
                    tracing::warn!(%error, "the file is not watched any more");
                    self.watch = None;
                }
                Wake::FileChanged
            }
            request = self.requests.recv() => match request {
                Some(request) => Wake::Asked(request),
                // This holds a sender.
                None => std::future::pending().await,
            },
        }
    }

    /// Reads the file on another thread: a large one takes a while, in which calls go on.
    async fn read(&self) -> Result<AgentsFile, Status> {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || AgentsFile::load(&path)).await;
        let read = read.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        match read {
            Err(FileError::Read { source, .. })
                if self.ends_when_empty && source.kind() == std::io::ErrorKind::NotFound =>
            {
                AgentsFile::parse("", &self.path)
                    .map_err(|mistake| Status::new(Code::Internal, mistake.what))
            }
            read => read.map_err(|error| CommandFailure::file(&error).status),
        }
    }
}

impl SupervisedAgent {
    fn row(&self, now: Instant) -> ServedAgent {
        let paused = self.counters.paused(now);
        let (state, why, left) = match (&self.state, paused) {
            (OfferState::Failed(status), _) => (ServedState::Failed, status.message.clone(), None),
            (OfferState::Starting, _) => (ServedState::Starting, String::new(), None),
            (OfferState::Serving, Some((left, why))) => (ServedState::Restarting, why, Some(left)),
            (OfferState::Serving, None) => {
                let on_message = self.spec.on_message.is_some();
                let state = match on_message && self.counters.processes.load(Relaxed) == 0 {
                    true => ServedState::Sleeping,
                    false => ServedState::Serving,
                };
                (state, String::new(), None)
            }
        };
        let folder = self.spec.folder.as_deref();
        ServedAgent {
            name: self.spec.name.clone(),
            state,
            why,
            restart_in_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            command: self.spec.command(),
            folder: folder
                .map(|folder| folder.display().to_string())
                .unwrap_or_default(),
            lines: self.spec.lines,
            processes: self.counters.processes.load(Relaxed),
            running: self.counters.running.load(Relaxed),
            calls: self.counters.calls.load(Relaxed),
            restarts: self.counters.restarts.load(Relaxed),
        }
    }
}

/// Resolves when this process is to stop.
async fn stopped(asked: &mut watch::Receiver<bool>) {
    if asked.wait_for(|asked| *asked).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What answers for an agent as it is declared.
fn supplied(
    spec: &AgentSpec,
    context: &ProgramContext,
    counters: &Arc<AgentCounters>,
) -> Result<SuppliedProgram, Status> {
    Ok(match spec.on_message {
        Some(on_message) => {
            let program = program(spec, context)?;
            let wake = WakeAgent::new(spec, on_message, program, context, counters);
            SuppliedProgram::Wake(wake)
        }
        None => {
            let command = CommandAgent::new(spec, context, counters)?;
            SuppliedProgram::Command(Box::new(command))
        }
    })
}

/// Whether offering it again cannot help.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented
    )
}
