//! From program to program: each attached to the node of its side, two nodes between them.
//!
//! Four processes: this one with the agents or the load, and a node as a child process of the
//! same program. The usage of a process includes its children, so the node is counted too.

use std::process::Stdio;

use hailwire::{Client, DataDir};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use super::{ReadyAddress, ReadyMessage, Subject, SubjectSetup, failed, session};
use crate::{BenchError, work::ConnectionStart};

/// A node in a process of its own. It ends when its standard input does, that is with this process.
pub(super) struct NodeProcess {
    pub(super) ready: ReadyAddress,
    _child: Child,
}

impl NodeProcess {
    pub(super) async fn start(options: &SubjectSetup) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::io("finding this program"))?;
        let mut command = Command::new(program);
        command
            .args(["bench", "subject", "serve", &Subject::Node.name()])
            .args(["--listen", &options.listen.to_string()]);
        if let Some(peer) = &options.peer {
            command.args(["--peer", peer]);
        }
        if let Some(hub) = &options.hub {
            command.args(["--hub", hub]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::io("starting a node"))?;
        let ended = || BenchError::Invalid("the node ended at once".into());
        let stdout = child.stdout.take().ok_or_else(ended)?;
        let line = BufReader::new(stdout).lines().next_line().await;
        let line = line.map_err(BenchError::io("reading from the node"))?;
        let line = line.ok_or_else(ended)?;
        let ready: ReadyMessage<ReadyAddress> =
            serde_json::from_str(&line).map_err(failed("starting the node"))?;
        Ok(Self {
            ready: ready.ready,
            _child: child,
        })
    }

    pub(super) async fn attach(&self) -> Result<Client, BenchError> {
        Client::attach(&DataDir::new(&self.ready.data))
            .await
            .map_err(failed("attaching to the node"))
    }
}

/// A program with agents, attached.
pub(super) struct ServedProgram {
    pub(super) ready: ReadyAddress,
    _agents: session::OfferedAgents,
    _node: NodeProcess,
}

pub(super) async fn serve(options: &SubjectSetup) -> Result<ServedProgram, BenchError> {
    let node = NodeProcess::start(options).await?;
    let agents = session::OfferedAgents::serve(node.attach().await?, &node.ready.seed).await?;
    Ok(ServedProgram {
        ready: node.ready.clone(),
        _agents: agents,
        _node: node,
    })
}

/// A program that calls, attached.
pub(super) struct ProgramTarget {
    link: session::SessionConnection,
    _node: NodeProcess,
}

impl ProgramTarget {
    pub(super) async fn new(
        ready: &ReadyAddress,
        options: &SubjectSetup,
    ) -> Result<Self, BenchError> {
        let peer = serde_json::to_string(ready).map_err(failed("parsing the peer"))?;
        let options = SubjectSetup {
            peer: Some(peer),
            ..options.clone()
        };
        let node = NodeProcess::start(&options).await?;
        Ok(Self {
            link: session::SessionConnection::attached(node.attach().await?),
            _node: node,
        })
    }

    pub(super) async fn agents(&self, count: u32) -> Result<(), BenchError> {
        if count > 1 {
            session::set_up(self.link.client(), "agents", count).await?;
        }
        Ok(())
    }

    pub(super) fn prepare(
        &self,
        start: ConnectionStart,
        alone: bool,
    ) -> Result<session::SessionConnection, BenchError> {
        if start == ConnectionStart::Warm && !alone {
            Ok(self.link.clone())
        } else {
            Err(BenchError::Unsupported(
                "a program has one connection to its node, and the node one tunnel",
            ))
        }
    }
}
