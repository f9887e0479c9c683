//! Programs as agents: what `hail serve NAME -- CMD…` does with each call.
//!
//! By default ([`each_call`]) every call runs CMD in a process group of its own: the body goes to
//! its stdin, its stdout is the answer as it appears, and an exit status other than 0 is an error
//! with the tail of stderr as its details. With `--lines` ([`lines`]) one process is kept and each
//! call is one line to it and one line back.
//!
//! Promises:
//!
//! - A call that is cancelled, or whose deadline passes, ends the whole process group: SIGTERM, and
//!   SIGKILL after a grace ([`group`]). So does the end of `hail serve` itself.
//! - Nothing is held whole: chunks pass through pipes of the system and channels of
//!   [`QUEUED_CHUNKS`] chunks; of stderr the last [`tail::MAX`] bytes are kept.
//! - Nothing that a caller writes becomes an argument of CMD or a variable outside `HAIL_…`
//!   ([`environment`]).
//!
//! [`environment`], [`outcome`], [`tail`] and [`backoff`] decide and do no I/O; [`each_call`],
//! [`lines`] and [`group`] act.

pub(crate) mod backoff;
pub(crate) mod each_call;
pub(crate) mod environment;
pub(crate) mod group;
pub(crate) mod lines;
pub(crate) mod outcome;
pub(crate) mod tail;

use std::{ffi::OsString, process::Stdio, time::Duration};

use hailwire_wire::{Code, Status};
use tokio::process::{Child, Command};

/// Chunks of an answer that wait for a slow caller; then CMD waits.
pub(crate) const QUEUED_CHUNKS: usize = 4;

/// The program behind an agent.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl Program {
    /// Starts the program in a process group of its own, with all three streams piped.
    fn spawn(&self, environment: &[(String, String)]) -> Result<Child, Status> {
        Command::new(&self.program)
            .args(&self.args)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| {
                let program = self.program.to_string_lossy();
                let message = format!("the agent's program `{program}` cannot be started");
                Status::new(Code::FailedPrecondition, message)
                    .with_details(error.to_string())
                    .with_hint("its operator can check the command line of `hail serve`")
            })
    }
}

/// A pipe that was asked for is there.
fn piped<T>(pipe: Option<T>) -> Result<T, Status> {
    pipe.ok_or_else(|| Status::new(Code::Internal, "a pipe to the agent's program is missing"))
}
