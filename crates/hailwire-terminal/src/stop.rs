//! The signals that stop a long-running command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::CommandFailure;

/// Handles SIGTERM and Ctrl-C from when it was created.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP and SIGQUIT, if they are handled.
    others: [Option<Signal>; 2],
}

/// The signal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// SIGTERM.
    Terminate,
    /// SIGINT, as Ctrl-C sends it.
    Interrupt,
}

impl StopSignals {
    /// Handles both from now on.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn new() -> Result<Self, CommandFailure> {
        Ok(Self {
            terminate: notice(SignalKind::terminate())?,
            interrupt: notice(SignalKind::interrupt())?,
            others: [None, None],
        })
    }

    /// Also handles a closed terminal (SIGHUP) and Ctrl-\ (SIGQUIT), for a command that has to clean up. An ignored
    /// SIGHUP (`nohup`) stays ignored.
    pub fn of_every_kind() -> Result<Self, CommandFailure> {
        let hangup = match ignores_hangup() {
            true => None,
            false => Some(notice(SignalKind::hangup())?),
        };
        Ok(Self {
            others: [hangup, Some(notice(SignalKind::quit())?)],
            ..Self::new()?
        })
    }

    /// Waits for either. Cancel safe.
    pub async fn asked(&mut self) -> StopRequest {
        let [hangup, quit] = &mut self.others;
        tokio::select! {
            _ = self.terminate.recv() => StopRequest::Terminate,
            () = minded(hangup) => StopRequest::Terminate,
            () = minded(quit) => StopRequest::Terminate,
            _ = self.interrupt.recv() => StopRequest::Interrupt,
        }
    }

    /// Waits for a Ctrl-C, at which the command ends at once. Cancel safe.
    pub async fn interrupted(&mut self) -> CommandFailure {
        self.interrupt.recv().await;
        CommandFailure::interrupted()
    }
}

async fn minded(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP, the signal with number 1, was ignored when this process was started: `proc(5)`, the lowest bit of
/// `SigIgn`.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

/// Handles a signal from now on.
pub fn notice(kind: SignalKind) -> Result<Signal, CommandFailure> {
    signal(kind).map_err(|error| CommandFailure::io("cannot handle signals", &error))
}
