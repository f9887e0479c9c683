//! How a command that runs until it is stopped notices that it is.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGTERM and Ctrl-C, noticed from when this was made.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP and SIGQUIT, where they are minded.
    others: [Option<Signal>; 2],
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// SIGTERM.
    Terminate,
    /// SIGINT, as Ctrl-C sends it.
    Interrupt,
}

impl Stop {
    /// Notices both from now on.
    ///
    /// # Errors
    ///
    /// Where the system refuses.
    pub fn new() -> Result<Self, Failure> {
        Ok(Self {
            terminate: notice(SignalKind::terminate())?,
            interrupt: notice(SignalKind::interrupt())?,
            others: [None, None],
        })
    }

    /// Also minds a closed terminal and Ctrl-\, for a command that may not just vanish. Whoever ignores the former
    /// (`nohup`) goes on doing so.
    pub fn of_every_kind() -> Result<Self, Failure> {
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
    pub async fn asked(&mut self) -> Asked {
        let [hangup, quit] = &mut self.others;
        tokio::select! {
            _ = self.terminate.recv() => Asked::Terminate,
            () = minded(hangup) => Asked::Terminate,
            () = minded(quit) => Asked::Terminate,
            _ = self.interrupt.recv() => Asked::Interrupt,
        }
    }

    /// Waits for a Ctrl-C, which then is the command's end at once. Cancel safe.
    pub async fn interrupted(&mut self) -> Failure {
        self.interrupt.recv().await;
        Failure::interrupted()
    }
}

impl Asked {
    /// How a command ends that has nothing left to do then.
    pub fn end(self) -> Result<(), Failure> {
        match self {
            Self::Terminate => Ok(()),
            Self::Interrupt => Err(Failure::interrupted()),
        }
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

/// Notices a signal from now on.
pub fn notice(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::io("signals cannot be noticed", &error))
}
