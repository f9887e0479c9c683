//! Programs as agents: how `hail serve NAME -- CMD…` answers calls.
//!
//! By default ([`each_call`]) every call runs CMD in a process group of its own: the body goes to
//! its stdin, its stdout is the answer as it appears, and an exit status other than 0 is an error
//! with the tail of stderr as its details. With `--lines` ([`lines`]) one process is kept and each
//! call is one line to it and one line back.
//!
//! Promises:
//!
//! - At most `--max` programs run at once, including those that are being ended.
//! - All processes that a call started end with it: when it is cancelled, when its deadline passes, and when its program
//!   ends; SIGTERM, and SIGKILL after a grace ([`reaper`]). So does the end of `hail serve` itself, even by SIGKILL
//!   (`commands/process_guard.rs`).
//! - No body is held in memory as a whole: chunks pass through pipes of the system and channels of
//!   [`QUEUED_CHUNKS`] chunks; of stderr the last [`tail::MAX`] bytes are kept.
//! - Nothing that a caller writes becomes an argument of CMD or a variable outside `HAIL_…`
//!   ([`environment`]).
//! - With `--lines` a caller gets the answer to its own request or an error ([`line_dialogue`] states the limits).
//!
//! [`environment`], [`outcome`], [`tail`], [`backoff`], [`line_question`], [`line_dialogue`] and [`process_owners`] decide and do no I/O;
//! [`each_call`], [`lines`], [`program_activity`], [`processes`] and [`reaper`] act.

pub(crate) mod backoff;
pub(crate) mod each_call;
pub(crate) mod environment;
pub(crate) mod line_dialogue;
pub(crate) mod line_question;
pub(crate) mod lines;
pub(crate) mod outcome;
pub(crate) mod process_owners;
pub(crate) mod processes;
pub(crate) mod program_activity;
pub(crate) mod reaper;
pub(crate) mod tail;

use std::{ffi::OsString, process::Stdio, time::Duration};

use hailwire_wire::{Code, Status};
use tokio::{process::Command, sync::OwnedSemaphorePermit};

use self::reaper::{ReaperHandle, RunningProgram, StartFailure};

/// Chunks of an answer that are queued for a slow caller; then CMD waits.
pub(crate) const QUEUED_CHUNKS: usize = 4;

/// Programs that run at once unless `--max` says otherwise. Each is a process of any size, and callers choose how
/// many there are: a small machine can run this many small ones, and large ones need a limit of their own.
pub(crate) const DEFAULT_MAX: u32 = 64;

/// The program behind an agent.
#[derive(Clone, Debug)]
pub(crate) struct AgentProgram {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl AgentProgram {
    /// Starts the program for a call in `slot`, with all three streams piped.
    fn start(
        &self,
        environment: &[(String, String)],
        reaper: &ReaperHandle,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Result<RunningProgram, Status> {
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
                let message = format!("cannot start the agent's program `{program}`");
                Status::new(Code::FailedPrecondition, message)
                    .with_details(error.to_string())
                    .with_hint("its operator can check the command line of `hail serve`")
            }
            stopping @ StartFailure::Stopping => stopping.into(),
        };
        reaper.spawn(&mut command, self.grace, slot).map_err(failed)
    }
}

/// Takes a pipe, which exists because it was requested.
fn piped<T>(pipe: Option<T>) -> Result<T, Status> {
    pipe.ok_or_else(|| Status::new(Code::Internal, "a pipe to the agent's program is missing"))
}
