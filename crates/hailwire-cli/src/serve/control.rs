//! What a supervisor of agents can be asked: the methods of its private agent, and how they are called.
//!
//! A supervisor serves, beside its agents, one whose name begins with [`admin::PRIVATE_PREFIX`], so that only programs of this
//! machine can call it and no list names it. The name is made of the file's path: `hail serve ls --file F` finds the supervisor of F.

use std::{path::Path, sync::Arc};

use hailwire::{
    Agent, Body, BodySender, Client, Code, Request, Response, ServeHandle, Status, admin,
};
use hailwire_wire::AgentName;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{agent_log::SharedLog, supervisor_lock::short_name};

/// Questions that wait for the supervisor.
const QUEUED_REQUESTS: usize = 16;

/// Largest question and answer in bytes.
const MAX_QUESTION: usize = 8 * 1024;
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// Calls that follow the log at once.
const MAX_FOLLOWERS: usize = 64;

/// Bytes of log lines that are sent at once.
const LOG_PAGE: usize = 64 * 1024;

/// The methods.
pub(crate) mod method {
    /// Nothing → [`super::ServedAgents`].
    pub(crate) const LIST: &str = "list";
    /// Nothing → [`super::ServedAgents`], once the file as it is now is served.
    pub(crate) const RELOAD: &str = "reload";
    /// [`super::RestartRequest`] → `null`.
    pub(crate) const RESTART: &str = "restart";
    /// [`super::LogsRequest`] → lines, each a [`super::super::program_log::LogLine`].
    pub(crate) const LOGS: &str = "logs";
}

/// The agents of a file, and what is wrong with it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ServedAgents {
    pub(crate) agents: Vec<ServedAgent>,
    /// Why the file as it is now is not served; empty if it is.
    pub(crate) error: String,
}

/// One agent, as `hail serve ls --json` prints it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServedAgent {
    pub(crate) name: AgentName,
    pub(crate) state: ServedState,
    /// Why it failed, or is not started again yet; empty otherwise.
    pub(crate) why: String,
    /// Milliseconds until its program may be started again; null unless its state is `restarting`.
    pub(crate) restart_in_ms: Option<u64>,
    pub(crate) command: Vec<String>,
    pub(crate) folder: String,
    pub(crate) lines: bool,
    /// Programs that run, those included that are being ended.
    pub(crate) processes: u64,
    /// Calls that run.
    pub(crate) running: u64,
    /// Calls since the supervisor knows the agent.
    pub(crate) calls: u64,
    /// How often a program with `lines` was started again.
    pub(crate) restarts: u64,
}

/// What an agent of a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ServedState {
    /// It can be called; with `on-message`: its program runs.
    Serving,
    /// Its program is started for the next message.
    Sleeping,
    /// It is being offered to the node.
    Starting,
    /// Its program answered nothing and is left alone for a while.
    Restarting,
    /// It cannot be called, and `why` says why.
    Failed,
    /// Nobody serves the file.
    Stopped,
}

impl ServedState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Sleeping => "sleeping",
            Self::Starting => "starting",
            Self::Restarting => "restarting",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RestartRequest {
    pub(crate) name: AgentName,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LogsRequest {
    /// `None`: of all agents.
    pub(crate) name: Option<AgentName>,
    /// Whether the answer goes on with lines as they are written.
    pub(crate) follow: bool,
}

/// A question that the supervisor's task answers.
#[derive(Debug)]
pub(crate) enum SupervisorRequest {
    List(oneshot::Sender<ServedAgents>),
    Reload(oneshot::Sender<Result<ServedAgents, Status>>),
    Restart(AgentName, oneshot::Sender<Result<(), Status>>),
}

/// Where questions go. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SupervisorControl {
    requests: mpsc::Sender<SupervisorRequest>,
    log: SharedLog,
    followers: Arc<Semaphore>,
    name: String,
}

impl SupervisorControl {
    /// For the supervisor of the file at `path`, which takes its questions from the receiver.
    pub(crate) fn new(path: &Path, log: SharedLog) -> (Self, mpsc::Receiver<SupervisorRequest>) {
        let (requests, receiver) = mpsc::channel(QUEUED_REQUESTS);
        let control = Self {
            requests,
            log,
            followers: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
            name: agent_name(path),
        };
        (control, receiver)
    }

    /// Offers the private agent.
    ///
    /// # Errors
    ///
    /// Those of [`Client::serve`].
    pub(crate) async fn offer(&self, client: &Client) -> Result<ServeHandle, Status> {
        let agent = Agent::new(&self.name)
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let control = self.clone();
        let handler = move |request: Request| {
            let control = control.clone();
            async move { control.answer(request).await }
        };
        client.serve(agent, handler).await
    }

    async fn answer(self, mut request: Request) -> Result<Response, Status> {
        if request.caller().node().is_some() {
            let what = "a supervisor of agents answers programs of its own machine only";
            return Err(Status::new(Code::PermissionDenied, what));
        }
        let body = request.body_mut().bytes(MAX_QUESTION).await?;
        match request.header().method.as_str() {
            method::LIST => json(&self.ask(SupervisorRequest::List).await?),
            method::RELOAD => json(&self.ask(SupervisorRequest::Reload).await??),
            method::RESTART => {
                let RestartRequest { name } = parse(&body)?;
                let request = |reply| SupervisorRequest::Restart(name, reply);
                json(&self.ask(request).await??)
            }
            method::LOGS => self.logs(parse(&body)?).await,
            other => {
                let what = format!("a supervisor of agents has no method `{other}`");
                Err(Status::new(Code::Unimplemented, what))
            }
        }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> SupervisorRequest,
    ) -> Result<T, Status> {
        let stopping = || Status::new(Code::Unavailable, "the agents are being stopped");
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(request(reply)).await;
        sent.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())
    }

    async fn logs(self, request: LogsRequest) -> Result<Response, Status> {
        if let Some(name) = &request.name {
            let served = self.ask(SupervisorRequest::List).await?;
            if served.agents.iter().all(|agent| agent.name != *name) {
                return Err(not_kept(name));
            }
        }
        let Ok(follower) = self.followers.clone().try_acquire_owned() else {
            let what = format!("{MAX_FOLLOWERS} calls read the log already");
            return Err(Status::new(Code::ResourceExhausted, what));
        };
        let (sender, body) = Body::channel(1);
        // It ends with its reader, or with the log where it is not followed.
        tokio::spawn(async move {
            send_log(&self.log, &request, sender).await;
            drop(follower);
        });
        Ok(Response::new(body).content_type("application/x-ndjson"))
    }
}

/// The answer where a file has no such agent.
pub(crate) fn not_kept(name: &AgentName) -> Status {
    Status::new(Code::NotFound, format!("the file has no agent `{name}`"))
        .with_hint("list them with `hail serve ls`")
}

async fn send_log(log: &SharedLog, request: &LogsRequest, sender: BodySender) {
    let mut from = 0;
    loop {
        let page = log.page(from, request.name.as_ref(), LOG_PAGE);
        from = page.next;
        let mut text = String::new();
        for line in &page.lines {
            text.push_str(&serde_json::to_string(line).unwrap_or_default());
            text.push('\n');
        }
        if !text.is_empty() {
            if sender.send(text).await.is_err() {
                return;
            }
            continue;
        }
        if !request.follow {
            // A reader that is gone needs no end.
            let _ = sender.finish().await;
            return;
        }
        tokio::select! {
            () = log.written(from) => {}
            () = sender.closed() => return,
        }
    }
}

/// The name of the private agent of whoever serves the file at `path`.
fn agent_name(path: &Path) -> String {
    format!("{}serve-{}", admin::PRIVATE_PREFIX, short_name(path))
}

/// Prepares a question to the supervisor of the file at `path`.
///
/// # Errors
///
/// The question cannot be written as JSON.
pub(crate) fn question(
    client: &Client,
    path: &Path,
    method: &str,
    question: &impl Serialize,
) -> Result<hailwire::Call, Status> {
    let body = serde_json::to_vec(question)
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(client.call(agent_name(path)).method(method).body(body))
}

/// Asks the supervisor of the file at `path`.
///
/// # Errors
///
/// `not_found` where there is none; else what it says.
pub(crate) async fn ask<T: DeserializeOwned>(
    client: &Client,
    path: &Path,
    method: &str,
    request: &impl Serialize,
) -> Result<T, Status> {
    let mut answer = question(client, path, method, request)?.send().await?;
    parse(&answer.bytes(MAX_ANSWER).await?)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Status> {
    serde_json::from_slice(body)
        .map_err(|error| Status::new(Code::InvalidArgument, format!("malformed JSON: {error}")))
}

fn json(value: &impl Serialize) -> Result<Response, Status> {
    let body = serde_json::to_vec(value)
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(Response::new(body).content_type("application/json"))
}
