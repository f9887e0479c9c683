//! Our agent on another node, and our host at it through the overlay.
//!
//! Five processes: the host (this one where it loads), its node, the node of the other machine,
//! `hail callout agent` attached to that, and the agent (this one where it serves). All of them are what a user runs, except
//! the host, which is that of `direct` over another kind of connection.

use std::process::Stdio;

use futures_util::future::BoxFuture;
use hailwire::{Client, RawStream};
use hailwire_callout::{
    host::{ConnectError, ConnectOptions, Connection, over},
    pool::Connector,
};
use hailwire_terminal::programs;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::{CalloutWire, direct};
use crate::{
    BenchError,
    subject::{NodePath, ReadyAddress, SubjectSetup, failed, processes::NodeProcess, session},
    work::{MeasuredWork, WorkRequest},
};

/// The agent's name at its node.
const NAME: &str = "passing";

/// Runs a command until standard input ends, also when its writer is killed.
const UNTIL_STDIN_ENDS: &str = "\"$@\" & read -r _; kill $!; wait";

/// Our agent, attached to a node of its own.
pub(in crate::subject) struct ServedRemoteAgent {
    pub(in crate::subject) ready: ReadyAddress,
    _attached: Child,
    _agent: direct::ServedAgent,
    _node: NodeProcess,
}

pub(in crate::subject) async fn serve(
    options: &SubjectSetup,
) -> Result<ServedRemoteAgent, BenchError> {
    let node = NodeProcess::start(options).await?;
    let agent = direct::serve(CalloutWire::default()).await?;
    let attached = attach(&node.ready.data, &agent.ready.address).await?;
    Ok(ServedRemoteAgent {
        ready: node.ready.clone(),
        _attached: attached,
        _agent: agent,
        _node: node,
    })
}

/// `hail callout agent`, once it says that the agent is on offer.
async fn attach(data: &str, socket: &str) -> Result<Child, BenchError> {
    let program = programs::HAIL.find();
    let program = program.map_err(|missing| BenchError::Reported(missing.to_string()))?;
    let mut child = Command::new("sh")
        .args(["-c", UNTIL_STDIN_ENDS, "sh"])
        .arg(program)
        .args(["--json", "--data", data])
        .args(["callout", "agent", "--name", NAME, "--uds", socket])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(BenchError::io("attaching the agent"))?;
    let ended = || BenchError::Invalid("the agent was not attached".into());
    let stdout = child.stdout.take().ok_or_else(ended)?;
    let line = BufReader::new(stdout).lines().next_line().await;
    line.map_err(BenchError::io("attaching the agent"))?
        .filter(|line| line.contains(NAME))
        .ok_or_else(ended)?;
    Ok(child)
}

/// Connects to the agent through the overlay. Every connection is a raw stream of its own.
struct OverlayConnector {
    client: Client,
    address: String,
    _node: NodeProcess,
}

impl Connector for OverlayConnector {
    fn connect<'a>(
        &'a self,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<Connection, ConnectError>> {
        Box::pin(async move {
            let opened = self.client.stream(&self.address).open().await;
            let stream =
                opened.map_err(|status| ConnectError::Io(std::io::Error::other(status)))?;
            over(RawStream::into_io(stream), options).await
        })
    }

    fn endpoint(&self) -> String {
        format!("hail {}", self.address)
    }
}

/// Our host, asking the agent of [`serve`].
pub(in crate::subject) struct RemoteCalloutTarget {
    client: Client,
    path: Option<NodePath>,
    ends: direct::CalloutTarget,
}

impl RemoteCalloutTarget {
    pub(in crate::subject) async fn new(
        ready: &ReadyAddress,
        options: &SubjectSetup,
    ) -> Result<Self, BenchError> {
        let peer = serde_json::to_string(ready).map_err(failed("parsing the peer"))?;
        let local = SubjectSetup {
            peer: Some(peer),
            ..options.clone()
        };
        let node = NodeProcess::start(&local).await?;
        let client = node.attach().await?;
        let overlay = OverlayConnector {
            client: client.clone(),
            address: format!("{NAME}@{}", session::REMOTE_NODE),
            _node: node,
        };
        // The first connection brings the tunnel up.
        let ends = direct::CalloutTarget::at(std::sync::Arc::new(overlay)).await?;
        Ok(Self {
            client,
            path: options.path,
            ends,
        })
    }

    pub(in crate::subject) async fn run(
        &mut self,
        work: &WorkRequest,
    ) -> Result<MeasuredWork, BenchError> {
        if let Some(path) = self.path {
            session::on_path(&self.client, path).await?;
        }
        self.ends.run(work).await
    }
}
