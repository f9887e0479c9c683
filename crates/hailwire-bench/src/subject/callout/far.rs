//! Our agent on another node, and our host at it through the overlay.
//!
//! Five processes and what each waits for: the host (this one where it loads), its node, the node of the other machine,
//! `hail callout agent` attached to that, and the agent (this one where it serves). All of it is what a user runs, but
//! for the host, which is that of `ends` at another kind of connection.

use std::process::Stdio;

use futures_util::future::BoxFuture;
use hailwire::{Client, Stream};
use hailwire_callout::{
    host::{ConnectError, ConnectOptions, Connection, over},
    pool::Connector,
};
use hailwire_terminal::programs;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::{Wire, ends};
use crate::{
    BenchError,
    subject::{Options, Path, Ready, failed, processes::Beside, session},
    work::{Measured, Work},
};

/// The agent's name at its node.
const NAME: &str = "passing";

/// Runs the words that follow until standard input ends, however whoever writes there ends.
const UNTIL_STDIN_ENDS: &str = "\"$@\" & read -r _; kill $!; wait";

/// Our agent, attached to a node of its own.
pub(in crate::subject) struct Served {
    pub(in crate::subject) ready: Ready,
    _attached: Child,
    _agent: ends::Served,
    _node: Beside,
}

pub(in crate::subject) async fn serve(options: &Options) -> Result<Served, BenchError> {
    let node = Beside::start(options).await?;
    let agent = ends::serve(Wire::default()).await?;
    let attached = attach(&node.ready.data, &agent.ready.address).await?;
    Ok(Served {
        ready: node.ready.clone(),
        _attached: attached,
        _agent: agent,
        _node: node,
    })
}

/// `hail callout agent`, once it says that the agent is on offer.
async fn attach(data: &str, socket: &str) -> Result<Child, BenchError> {
    let program = programs::HAIL.find();
    let program = program.map_err(|missing| BenchError::Told(missing.to_string()))?;
    let mut child = Command::new("sh")
        .args(["-c", UNTIL_STDIN_ENDS, "sh"])
        .arg(program)
        .args(["--json", "--data", data])
        .args(["callout", "agent", "--name", NAME, "--uds", socket])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(BenchError::io("attaching the agent"))?;
    let ended = || BenchError::Wrong("the agent was not attached".into());
    let stdout = child.stdout.take().ok_or_else(ended)?;
    let line = BufReader::new(stdout).lines().next_line().await;
    line.map_err(BenchError::io("attaching the agent"))?
        .filter(|line| line.contains(NAME))
        .ok_or_else(ended)?;
    Ok(child)
}

/// The way to the agent. Every connection is a raw stream of its own.
struct Overlay {
    client: Client,
    address: String,
    _node: Beside,
}

impl Connector for Overlay {
    fn connect<'a>(
        &'a self,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<Connection, ConnectError>> {
        Box::pin(async move {
            let opened = self.client.stream(&self.address).open().await;
            let stream =
                opened.map_err(|status| ConnectError::Io(std::io::Error::other(status)))?;
            over(Stream::into_io(stream), options).await
        })
    }

    fn endpoint(&self) -> String {
        format!("hail {}", self.address)
    }
}

/// Our host, at the agent of [`serve`].
pub(in crate::subject) struct Far {
    client: Client,
    path: Option<Path>,
    ends: ends::Far,
}

impl Far {
    pub(in crate::subject) async fn new(
        ready: &Ready,
        options: &Options,
    ) -> Result<Self, BenchError> {
        let peer = serde_json::to_string(ready).map_err(failed("the peer"))?;
        let near = Options {
            peer: Some(peer),
            ..options.clone()
        };
        let node = Beside::start(&near).await?;
        let client = node.attach().await?;
        let overlay = Overlay {
            client: client.clone(),
            address: format!("{NAME}@{}", session::FAR),
            _node: node,
        };
        // The first connection brings the tunnel up.
        let ends = ends::Far::at(std::sync::Arc::new(overlay)).await?;
        Ok(Self {
            client,
            path: options.path,
            ends,
        })
    }

    pub(in crate::subject) async fn run(&mut self, work: &Work) -> Result<Measured, BenchError> {
        if let Some(path) = self.path {
            session::on_path(&self.client, path).await?;
        }
        self.ends.run(work).await
    }
}
