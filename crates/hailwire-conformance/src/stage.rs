//! What a case has at hand: a data folder with a socket, the peer, and a way to accept it.

use std::{fs::DirBuilder, io, os::unix::fs::DirBuilderExt as _, path::PathBuf};

use hailwire_wire::Code;
use tempfile::TempDir;
use tokio::net::UnixListener;

use crate::{
    failure::{Failure, Outcome, holds, same},
    link::{Awaited, Link},
    node::{PlayedNode, node_hello},
    pattern::Pattern,
    peer_process::PeerProcess,
};

/// One case's own world. What it made is gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    command: Vec<String>,
    folder: TempDir,
    listener: Option<UnixListener>,
    peer: Option<PeerProcess>,
    awaited: Awaited,
    pub(crate) pattern: Pattern,
    note: String,
}

impl Stage {
    /// A data folder with a node's socket, and no peer yet.
    pub(crate) fn new(command: &[String], awaited: Awaited) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("hail-").tempdir()?;
        DirBuilder::new()
            .mode(0o700)
            .create(folder.path().join("run"))?;
        let mut stage = Self {
            command: command.to_vec(),
            folder,
            listener: None,
            peer: None,
            awaited,
            pattern: Pattern::new(),
            note: String::new(),
        };
        stage.listen()?;
        Ok(stage)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/hail.sock")
    }

    /// Listens where the peer looks for its node.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        self.listener = Some(UnixListener::bind(self.socket())?);
        Ok(())
    }

    /// No node is there any more.
    pub(crate) fn stop_listening(&mut self) -> io::Result<()> {
        self.listener = None;
        std::fs::remove_file(self.socket())
    }

    /// Starts the peer, unless it runs.
    pub(crate) fn start(&mut self) -> Outcome {
        if self.peer.is_none() {
            let failed = |error| Failure::driver(format_args!("{:?}: {error}", self.command));
            let peer = PeerProcess::start(&self.command, self.folder.path());
            self.peer = Some(peer.map_err(failed)?);
        }
        Ok(())
    }

    /// The peer.
    pub(crate) fn peer(&mut self) -> Outcome<&mut PeerProcess> {
        let missing = || Failure::driver("the peer was not started");
        self.peer.as_mut().ok_or_else(missing)
    }

    /// Accepts a connection of the peer, which is started if need be; fails where the peer ends instead.
    pub(crate) async fn accept(&mut self) -> Outcome<Link> {
        self.start()?;
        self.awaits("the peer to connect");
        let (Some(listener), Some(peer)) = (&self.listener, &mut self.peer) else {
            return Err(Failure::driver("nobody listens"));
        };
        tokio::select! {
            accepted = listener.accept() => {
                let (io, _) = accepted.map_err(Failure::driver)?;
                Ok(Link::new(io, self.awaited.clone()))
            }
            ended = peer.exit() => {
                let status = ended.map_err(Failure::driver)?;
                Err(Failure::new("the peer to connect", format_args!("its end with {status}")))
            }
        }
    }

    /// Accepts the peer and its agent.
    pub(crate) async fn attach(&mut self) -> Outcome<PlayedNode> {
        self.accept().await?.accept_peer(&node_hello()).await
    }

    /// Accepts the peer and its agent, and waits until the peer knows: from then on it attaches again when its connection is lost.
    pub(crate) async fn attach_for_good(&mut self) -> Outcome<PlayedNode> {
        let mut node = self.attach().await?;
        node.still_works().await?;
        Ok(node)
    }

    /// Accepts the peer again, after its connection was lost.
    pub(crate) async fn attach_again(&mut self) -> Outcome<PlayedNode> {
        let attached = self.attach().await;
        attached.map_err(|failure| failure.within("attaching again"))
    }

    /// Ends the peer, so that the next connection is that of a new one.
    pub(crate) async fn restart_peer(&mut self) -> Outcome {
        self.end().await;
        self.peer = None;
        self.stop_listening()
            .and_then(|()| self.listen())
            .map_err(Failure::driver)
    }

    /// Says what is awaited from here on.
    pub(crate) fn awaits(&self, what: impl std::fmt::Display) {
        self.awaited.set(what);
    }

    /// Waits for the peer's end, and checks its exit code.
    pub(crate) async fn exits_with(&mut self, code: i32) -> Outcome {
        self.awaits(format_args!("the peer to exit with {code}"));
        let status = self.peer()?.exit().await.map_err(Failure::driver)?;
        same("the exit code", Some(code), status.code())
    }

    /// Waits until the peer has ended as one that was turned away: exit code 1, and a line on stderr. Returns the line's message.
    pub(crate) async fn turned_away(&mut self, expected: Option<Code>) -> Outcome<String> {
        self.exits_with(1).await?;
        let stderr = self.peer()?.stderr();
        let lines = stderr
            .lines()
            .filter_map(|line| line.strip_prefix("error: "));
        let told = lines.filter_map(|line| line.split_once(": ")).next_back();
        let Some((name, message)) = told else {
            let wanted = "a line `error: CODE: MESSAGE` on stderr";
            return Err(Failure::new(wanted, format_args!("`{}`", stderr.trim())));
        };
        let known = Code::ALL.iter().any(|code| code.name() == name);
        holds("the name of a code in `error: CODE: MESSAGE`", known, name)?;
        if let Some(code) = expected {
            same("the code on stderr", code.name(), name)?;
        }
        Ok(message.to_owned())
    }

    /// Ends the peer, whatever it is at.
    pub(crate) async fn end(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.kill().await;
        }
    }

    /// Adds a figure to the case's line.
    pub(crate) fn note(&mut self, figure: impl std::fmt::Display) {
        if !self.note.is_empty() {
            self.note += ", ";
        }
        self.note += &figure.to_string();
    }

    /// The figures of the case, and what the peer wrote to stderr last.
    pub(crate) fn told(&self) -> (String, String) {
        let stderr = self.peer.as_ref().map(PeerProcess::stderr);
        (self.note.clone(), stderr.unwrap_or_default())
    }
}
