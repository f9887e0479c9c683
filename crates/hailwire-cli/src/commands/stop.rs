//! How a command that runs until it is stopped notices that it is.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGTERM and Ctrl-C, noticed from when this was made.
pub(super) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// SIGTERM.
    Terminate,
    /// SIGINT, as Ctrl-C sends it.
    Interrupt,
}

impl Stop {
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self {
            terminate: notice(SignalKind::terminate())?,
            interrupt: notice(SignalKind::interrupt())?,
        })
    }

    /// Waits for either. Cancel safe.
    pub(super) async fn asked(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Terminate,
            _ = self.interrupt.recv() => Asked::Interrupt,
        }
    }

    /// Waits for a Ctrl-C, which then is the command's end at once. Cancel safe.
    pub(super) async fn interrupted(&mut self) -> Failure {
        self.interrupt.recv().await;
        Failure::interrupted()
    }
}

impl Asked {
    /// How a command ends that has nothing left to do then.
    pub(super) fn end(self) -> Result<(), Failure> {
        match self {
            Self::Terminate => Ok(()),
            Self::Interrupt => Err(Failure::interrupted()),
        }
    }
}

/// Notices a signal from now on.
pub(super) fn notice(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::io("signals cannot be noticed", &error))
}
