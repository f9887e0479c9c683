//! Programs as agents: what `hail serve NAME -- CMD…` does with each call.
//!
//! By default ([`each_call`]) every call runs CMD in a process group of its own: the body goes to
//! its stdin, its stdout is the answer as it appears, and an exit status other than 0 is an error
//! with the tail of stderr as its details. With `--lines` ([`lines`]) one process is kept and each
//! call is one line to it and one line back.
//!
//! Promises:
//!
//! - At most `--max` programs run at once, those included that are being ended.
//! - Whatever a call has started ends with it: when it is cancelled, when its deadline passes, and when its program
//!   ends; SIGTERM, and SIGKILL after a grace ([`reaper`]). So does the end of `hail serve` itself, even by SIGKILL
//!   (`commands/guarded.rs`).
//! - Nothing is held whole: chunks pass through pipes of the system and channels of
//!   [`QUEUED_CHUNKS`] chunks; of stderr the last [`tail::MAX`] bytes are kept.
//! - Nothing that a caller writes becomes an argument of CMD or a variable outside `HAIL_…`
//!   ([`environment`]).
//! - With `--lines` an answer belongs to its question or is an error ([`dialogue`] says how far).
//!
//! [`environment`], [`outcome`], [`tail`], [`backoff`], [`question`], [`dialogue`] and [`kin`] decide and do no I/O;
//! [`each_call`], [`lines`], [`rest`], [`processes`] and [`reaper`] act.

pub(crate) mod backoff;
pub(crate) mod dialogue;
pub(crate) mod each_call;
pub(crate) mod environment;
pub(crate) mod kin;
pub(crate) mod lines;
pub(crate) mod outcome;
pub(crate) mod processes;
pub(crate) mod question;
pub(crate) mod reaper;
pub(crate) mod rest;
pub(crate) mod tail;

use std::{ffi::OsString, process::Stdio, time::Duration};

use hailwire_wire::{Code, Status};
use tokio::{process::Command, sync::OwnedSemaphorePermit};

use self::reaper::{ReaperHandle, Running, StartFailure};

/// Chunks of an answer that wait for a slow caller; then CMD waits.
pub(crate) const QUEUED_CHUNKS: usize = 4;

/// Programs that run at once unless `--max` says otherwise. Each is a process of whatever size, and callers choose how
/// many there are: this many small ones are no load for a small machine, and large ones want a number of their own.
pub(crate) const DEFAULT_MAX: u32 = 64;

/// The program behind an agent.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl Program {
    /// Starts the program for a call in `slot`, with all three streams piped.
    fn start(
        &self,
        environment: &[(String, String)],
        reaper: &ReaperHandle,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Result<Running, Status> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let failed = |failure: StartFailure| match failure {
            StartFailure::System(error) => {
                let program = self.program.to_string_lossy();
                let message = format!("the agent's program `{program}` cannot be started");
                Status::new(Code::FailedPrecondition, message)
                    .with_details(error.to_string())
                    .with_hint("its operator can check the command line of `hail serve`")
            }
            stopping @ StartFailure::Stopping => stopping.into(),
        };
        reaper.spawn(&mut command, self.grace, slot).map_err(failed)
    }
}

/// A pipe that was asked for is there.
fn piped<T>(pipe: Option<T>) -> Result<T, Status> {
    pipe.ok_or_else(|| Status::new(Code::Internal, "a pipe to the agent's program is missing"))
}
