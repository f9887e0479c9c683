//! From program to program: each attached to the node of its side, two nodes between them.
//!
//! Four processes: this one with the agents or the load, and a node beside it, started here with the
//! same program. What is read of a process's use counts its children, so the node is counted too.

use std::process::Stdio;

use hailwire::{Client, DataDir};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use super::{IsReady, Options, Ready, Subject, failed, session};
use crate::{BenchError, work::Start};

/// A node beside this process. It ends when its standard input does, that is with this process.
pub(super) struct Beside {
    pub(super) ready: Ready,
    _child: Child,
}

impl Beside {
    pub(super) async fn start(options: &Options) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::io("this program"))?;
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
        let ended = || BenchError::Wrong("the node ended at once".into());
        let stdout = child.stdout.take().ok_or_else(ended)?;
        let line = BufReader::new(stdout).lines().next_line().await;
        let line = line.map_err(BenchError::io("the node"))?;
        let line = line.ok_or_else(ended)?;
        let ready: IsReady<Ready> = serde_json::from_str(&line).map_err(failed("the node"))?;
        Ok(Self {
            ready: ready.ready,
            _child: child,
        })
    }

    pub(super) async fn attach(&self) -> Result<Client, BenchError> {
        Client::attach(&DataDir::new(&self.ready.data))
            .await
            .map_err(failed("attaching"))
    }
}

/// A program with agents, attached.
pub(super) struct Served {
    pub(super) ready: Ready,
    _agents: session::Agents,
    _node: Beside,
}

pub(super) async fn serve(options: &Options) -> Result<Served, BenchError> {
    let node = Beside::start(options).await?;
    let agents = session::Agents::serve(node.attach().await?, &node.ready.seed).await?;
    Ok(Served {
        ready: node.ready.clone(),
        _agents: agents,
        _node: node,
    })
}

/// A program that calls, attached.
pub(super) struct Far {
    link: session::Link,
    _node: Beside,
}

impl Far {
    pub(super) async fn new(ready: &Ready, options: &Options) -> Result<Self, BenchError> {
        let peer = serde_json::to_string(ready).map_err(failed("the peer"))?;
        let options = Options {
            peer: Some(peer),
            ..options.clone()
        };
        let node = Beside::start(&options).await?;
        Ok(Self {
            link: session::Link::attached(node.attach().await?),
            _node: node,
        })
    }

    pub(super) async fn agents(&self, count: u32) -> Result<(), BenchError> {
        if count > 1 {
            session::set_up(self.link.client(), "agents", count).await?;
        }
        Ok(())
    }

    pub(super) fn prepare(&self, start: Start, alone: bool) -> Result<session::Link, BenchError> {
        if start == Start::Warm && !alone {
            Ok(self.link.clone())
        } else {
            Err(BenchError::Unsupported(
                "a program keeps one attachment to its node, and the node the tunnel",
            ))
        }
    }
}
