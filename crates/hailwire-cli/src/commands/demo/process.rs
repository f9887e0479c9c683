//! One process of the demonstration: the hub, the orchestrator's node, or a worker.
//!
//! It is `hail demo --part`, started by `hail demo`, and communicates with it over its standard streams:
//! the first line of stdin is its [`ProcessSetup`], so that the ticket in it is not visible to other processes; the first
//! line of stdout is its [`ProcessReady`]. It ends when stdin does, so that it never outlives its parent,
//! however that ends.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use hailwire::{
    Agent, Body, BodySender, Code, Config, DataDir, Node, NodeId, NodeName, Request, Response,
    ServeHandle, Status,
    admin::{self, method},
};
use hailwire_hub::{Hub, MemberTrust, TlsMode};
use hailwire_terminal::{
    failure::CommandFailure,
    log::{self, LogStyle},
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Stdin};
use tracing::Level;

use super::{
    scene_agents,
    work::{PATTERN_FIELD, WorkInProgress, WorkKind},
};
use crate::commands::CommandContext;

/// How long the ticket to the hub is valid.
const TICKET_LIFE: Duration = Duration::from_secs(600);

/// Chunks of an answer that wait to be sent.
const ANSWER_QUEUE: usize = 4;

/// The role of a process and its data folder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProcessSetup {
    pub(super) data: PathBuf,
    /// The level of its log.
    pub(super) log: Option<String>,
    pub(super) role: ProcessRole,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ProcessRole {
    /// The hub, with a ticket for this many nodes.
    Hub { members: u32, listen: SocketAddr },
    /// A node, which joins the hub and serves agents.
    Node(Box<NodeRole>),
}

/// A node of the demonstration.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeRole {
    pub(super) name: NodeName,
    /// Of the hub that it joins; empty for none.
    pub(super) ticket: String,
    /// The address that it listens at.
    pub(super) listen: IpAddr,
    /// The agents that process documents.
    pub(super) work: Vec<WorkKind>,
    /// Whether it serves the agents of the scenes.
    pub(super) scenes: bool,
}

/// What a process prints once it is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProcessReady {
    pub(super) id: NodeId,
    /// The hub's ticket; empty for a node.
    pub(super) ticket: String,
    /// Where peers find a node; empty for the hub.
    pub(super) addresses: Vec<String>,
}

/// Runs a process until stdin ends.
pub(in crate::commands) async fn run(run: &CommandContext) -> Result<(), CommandFailure> {
    let mut stdin = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    let no_setup =
        |error| CommandFailure::io("there is no description of the process on stdin", &error);
    stdin.read_line(&mut line).await.map_err(no_setup)?;
    let setup: ProcessSetup = serde_json::from_str(&line).map_err(|error| {
        CommandFailure::usage(format!(
            "cannot read the description of the process on stdin: {error}"
        ))
    })?;
    let level = setup.log.as_deref().and_then(|level| level.parse().ok());
    log::start(level.unwrap_or(Level::WARN), LogStyle::Plain);
    tokio::select! {
        done = live(run, setup) => done,
        () = end_of(stdin) => Ok(()),
    }
}

async fn end_of(mut stdin: BufReader<Stdin>) {
    let mut buffer = [0; 64];
    while let Ok(1..) = stdin.read(&mut buffer).await {}
}

async fn live(run: &CommandContext, setup: ProcessSetup) -> Result<(), CommandFailure> {
    match setup.role {
        ProcessRole::Hub { members, listen } => {
            let (hub, ticket) = start_hub(setup.data, listen, members).await?;
            let ready = ProcessReady {
                id: hub.id(),
                ticket,
                addresses: Vec::new(),
            };
            tell(run, &ready)?;
            std::future::pending().await
        }
        ProcessRole::Node(role) => {
            let node = Box::pin(start_node(setup.data, &role)).await?;
            let _working = serve(&node, &role.work).await?;
            let _in_scenes = match role.scenes {
                true => scene_agents::serve(&node.client()).await?,
                false => Vec::new(),
            };
            let status: admin::NodeStatus =
                Box::pin(node.client().admin(method::STATUS, &())).await?;
            let ready = ProcessReady {
                id: node.id(),
                ticket: String::new(),
                addresses: status.addresses,
            };
            tell(run, &ready)?;
            std::future::pending().await
        }
    }
}

fn tell(run: &CommandContext, ready: &ProcessReady) -> Result<(), CommandFailure> {
    let mut line = serde_json::to_string(ready).map_err(|error| {
        CommandFailure::general(format!("cannot describe the process: {error}"))
    })?;
    line.push('\n');
    run.output.text(&line)
}

async fn start_hub(
    data: PathBuf,
    listen: SocketAddr,
    members: u32,
) -> Result<(Hub, String), CommandFailure> {
    let mut config = hailwire_hub::HubConfig::new(data);
    config.listen = listen;
    config.tls = TlsMode::OwnKey;
    config.trust = MemberTrust::Members;
    let hub = Hub::start(config)
        .await
        .map_err(|error| CommandFailure::caused(Code::Unavailable, &error))?;
    let ticket = hub
        .invite(members, TICKET_LIFE)
        .await
        .map_err(|error| CommandFailure::caused(Code::Internal, &error))?;
    Ok((hub, ticket))
}

async fn start_node(data: PathBuf, role: &NodeRole) -> Result<Node, CommandFailure> {
    let mut config = Config::default();
    config.node.name = Some(role.name.clone());
    config.listen.udp = vec![SocketAddr::from((role.listen, 0))];
    let node = Node::builder()
        .data_dir(DataDir::new(data))
        .config(config)
        .start()
        .await
        .map_err(|error| CommandFailure::caused(Code::Unavailable, &error))?;
    if role.ticket.is_empty() {
        return Ok(node);
    }
    let join = admin::JoinRequest {
        ticket: role.ticket.clone(),
        // The demo's own hub.
        yes: true,
        ..admin::JoinRequest::default()
    };
    let client = node.client();
    let _: admin::JoinAnswer = Box::pin(client.admin(method::JOIN, &join)).await?;
    Ok(node)
}

async fn serve(node: &Node, agents: &[WorkKind]) -> Result<Vec<ServeHandle>, CommandFailure> {
    let client = node.client();
    let mut serving = Vec::new();
    for (number, &work) in agents.iter().enumerate() {
        let agent = Agent::new(work.name())
            .map_err(|error| CommandFailure::general(error.to_string()))?
            .describe(work.description())
            .tag("demo")
            .version(env!("CARGO_PKG_VERSION"));
        let handler = move |request: Request| answer(work, number, request);
        serving.push(client.serve(agent, handler).await?);
    }
    Ok(serving)
}

/// Answers one call: the work is done while the document arrives.
async fn answer(work: WorkKind, number: usize, request: Request) -> Result<Response, Status> {
    let fields = &request.header().headers;
    let pattern = fields.iter().find(|(name, _)| name == PATTERN_FIELD);
    let pattern = pattern.map(|(_, value)| value.clone()).unwrap_or_default();
    if work == WorkKind::Grep && pattern.is_empty() {
        let status = Status::new(Code::InvalidArgument, "the pattern for grep is missing");
        return Err(status.with_hint(format!("give it in the header field `{PATTERN_FIELD}`")));
    }
    let (sender, body) = Body::channel(ANSWER_QUEUE);
    tokio::spawn(async move {
        let work = WorkInProgress::new(work, &pattern);
        if let Err(status) = stream(work, request.into_body(), &sender).await {
            return sender.abort(status).await;
        }
        // The caller is gone, so the error cannot be delivered.
        let _ = sender.finish().await;
    });
    Ok(Response::new(body)
        .content_type("text/plain")
        .header("member", number.to_string()))
}

async fn stream(
    mut work: WorkInProgress,
    mut document: Body,
    sender: &BodySender,
) -> Result<(), Status> {
    while let Some(chunk) = document.chunk().await? {
        sender.send(work.take(&chunk)).await?;
    }
    sender.send(work.finish()).await
}
