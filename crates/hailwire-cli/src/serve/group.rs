//! Ending process groups: SIGTERM, then SIGKILL after a grace.
//!
//! A [`Running`] owns a child and its group. Dropping it before the child was waited for, which is
//! how a cancelled call looks from here, hands both to the [`Reaper`], whose one task ends the
//! group and collects the child. Before `hail serve` exits it asks the reaper to finish, which first
//! tells everything that runs to stop, so that no process outlives it.

use std::{io, process::ExitStatus, time::Duration};

use hailwire::{Code, Status};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::Child,
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};

/// Ends abandoned process groups.
#[derive(Debug)]
pub(crate) struct Reaper {
    sender: mpsc::UnboundedSender<Abandoned>,
    stopping: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// What whoever starts programs needs of the [`Reaper`]. Cheap to clone; keeps nothing alive.
///
/// The channel behind it has no bound of its own: it holds at most one entry per running program,
/// of which `--max` and the node's own bounds limit the number.
#[derive(Clone, Debug)]
pub(crate) struct ReaperHandle {
    sender: mpsc::WeakUnboundedSender<Abandoned>,
    stopping: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Abandoned {
    child: Child,
    grace: Duration,
}

impl Reaper {
    /// Starts the reaper's task on the current runtime.
    pub(crate) fn start() -> Self {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut ending = JoinSet::new();
            loop {
                tokio::select! {
                    next = receiver.recv() => match next {
                        Some(abandoned) => drop(ending.spawn(end(abandoned))),
                        None => break,
                    },
                    Some(_) = ending.join_next() => {}
                }
            }
            while ending.join_next().await.is_some() {}
        });
        Self {
            sender,
            stopping: watch::Sender::new(false),
            task,
        }
    }

    /// A handle for whoever starts programs.
    pub(crate) fn handle(&self) -> ReaperHandle {
        ReaperHandle {
            sender: self.sender.downgrade(),
            stopping: self.stopping.subscribe(),
        }
    }

    /// Tells everything that runs to stop, lets nothing start any more, and waits until every
    /// group has ended.
    pub(crate) async fn finish(self) {
        self.stopping.send_replace(true);
        drop(self.sender);
        // The task neither panics nor is it aborted by anybody else.
        let _ = self.task.await;
    }
}

impl ReaperHandle {
    /// Resolves once [`Reaper::finish`] was called, or the reaper is gone.
    pub(crate) async fn stopping(&mut self) {
        let _ = self.stopping.wait_for(|stopping| *stopping).await;
    }
}

/// A running program and its process group.
#[derive(Debug)]
pub(crate) struct Running {
    child: Option<Child>,
    grace: Duration,
    reaper: mpsc::UnboundedSender<Abandoned>,
}

impl Running {
    /// Takes charge of a child that leads a process group of its own.
    ///
    /// # Errors
    ///
    /// `unavailable` once the reaper finishes; the group is then ended at once.
    pub(crate) fn new(
        child: Child,
        grace: Duration,
        reaper: &ReaperHandle,
    ) -> Result<Self, Status> {
        match reaper.sender.upgrade() {
            Some(reaper) => Ok(Self {
                child: Some(child),
                grace,
                reaper,
            }),
            None => {
                signal(group(&child), Signal::KILL);
                Err(Status::new(Code::Unavailable, "the agent is being stopped"))
            }
        }
    }

    /// Time between SIGTERM and SIGKILL.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// The child, for its pipes.
    pub(crate) fn child(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Waits for the child's end, after which its group is left alone: what a program that
    /// succeeded has put in the background is meant to stay.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost; the group still ends when this is dropped.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let Some(child) = &mut self.child else {
            return Err(io::Error::other("the child was waited for already"));
        };
        let status = child.wait().await?;
        self.child = None;
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let abandoned = Abandoned {
                child,
                grace: self.grace,
            };
            if let Err(mpsc::error::SendError(abandoned)) = self.reaper.send(abandoned) {
                // The reaper is gone with its runtime: no grace can be given any more.
                signal(group(&abandoned.child), Signal::KILL);
            }
        }
    }
}

/// Ends one group.
async fn end(abandoned: Abandoned) {
    let Abandoned { mut child, grace } = abandoned;
    let group = group(&child);
    signal(group, Signal::TERM);
    let ended = tokio::time::timeout(grace, child.wait()).await;
    // Others of the group may have ignored SIGTERM. Right after the leader was collected its number
    // cannot have been given to a new group in all likelihood: numbers are handed out in turn.
    signal(group, Signal::KILL);
    if ended.is_err() {
        // It was killed, so this ends.
        let _ = child.wait().await;
    }
}

/// The group that a child leads; `None` once it was collected.
fn group(child: &Child) -> Option<Pid> {
    child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw)
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // It fails only when the whole group is gone, which is what was wanted.
        let _ = kill_process_group(group, signal);
    }
}
