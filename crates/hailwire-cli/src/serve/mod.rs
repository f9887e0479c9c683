//! Programs as agents: how `hail serve` answers calls, of one agent or of those of a file.
//!
//! By default ([`each_call`]) every call runs CMD in a process group of its own: the body goes to
//! its stdin, its stdout is the answer as it appears, and an exit status other than 0 is an error
//! with the tail of stderr as its details. With `--lines` ([`lines`]) one process is kept and each
//! call is one line to it and one line back. With `--on-message` ([`wake_agent`]) CMD answers no calls: it is started while durable messages
//! wait, and takes them by itself.
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
//! An agent is declared by an [`agent_spec`], of the command line or of a file ([`agents_file`]); [`command_agent`] makes of it what answers
//! calls, and a [`supervisor`] keeps any number of those on offer, and can be asked about them ([`control`]).
//!
//! [`environment`], [`outcome`], [`tail`], [`backoff`], [`line_question`], [`line_dialogue`], [`process_owners`], [`program_log`] and
//! [`agents_file_edit`] decide and do no I/O; [`each_call`], [`lines`], [`program_activity`], [`processes`] and [`reaper`] act.

pub(crate) mod agent_log;
pub(crate) mod agent_spec;
pub(crate) mod agents_file;
pub(crate) mod agents_file_edit;
pub(crate) mod backoff;
pub(crate) mod command_agent;
pub(crate) mod control;
pub(crate) mod each_call;
pub(crate) mod environment;
pub(crate) mod file_watch;
pub(crate) mod line_dialogue;
pub(crate) mod line_question;
pub(crate) mod lines;
pub(crate) mod outcome;
pub(crate) mod process_owners;
pub(crate) mod processes;
pub(crate) mod program_activity;
pub(crate) mod program_file;
pub(crate) mod program_log;
pub(crate) mod program_slot;
pub(crate) mod program_user;
pub(crate) mod reaper;
pub(crate) mod schema_file;
pub(crate) mod supervisor;
pub(crate) mod supervisor_lock;
pub(crate) mod tail;
pub(crate) mod wake_agent;

use std::{ffi::OsString, path::PathBuf, process::Stdio, time::Duration};

use hailwire_wire::{Code, Status};
use tokio::process::Command;

use self::{
    agent_log::AgentLog,
    program_slot::ProgramSlot,
    program_user::ProgramUser,
    reaper::{ReaperHandle, RunningProgram, StartFailure},
};

/// Chunks of an answer that are queued for a slow caller; then CMD waits.
pub(crate) const QUEUED_CHUNKS: usize = 4;

/// The program behind an agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentProgram {
    /// As it was declared: what the program sees as its own name.
    pub(crate) program: OsString,
    /// Where it was found; `None` leaves the search to the system.
    pub(crate) file: Option<PathBuf>,
    pub(crate) args: Vec<OsString>,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// Where it runs; `None`: where this process does.
    pub(crate) folder: Option<PathBuf>,
    /// Variables beside those of this process.
    pub(crate) environment: Vec<(String, String)>,
    /// Whom it runs as; `None`: as this process does.
    pub(crate) user: Option<ProgramUser>,
    /// Where its stderr goes, beside the last bytes that callers get.
    pub(crate) log: Option<AgentLog>,
}

impl AgentProgram {
    /// Starts the program for a call in `slot`, with all three streams piped.
    fn start(
        &self,
        environment: &[(String, String)],
        reaper: &ReaperHandle,
        slot: Option<ProgramSlot>,
    ) -> Result<RunningProgram, Status> {
        let mut command = self.command();
        command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawned = reaper.spawn(&mut command, self.grace, slot);
        spawned.map_err(|failure| self.not_started(failure))
    }

    fn not_started(&self, failure: StartFailure) -> Status {
        match failure {
            StartFailure::System(error) => {
                let program = self.program.to_string_lossy();
                let message = format!("cannot start the agent's program `{program}`");
                Status::new(Code::FailedPrecondition, message)
                    .with_details(error.to_string())
                    .with_hint("its operator can check the command line of `hail serve`")
            }
            stopping @ StartFailure::Stopping => stopping.into(),
        }
    }

    /// The program with what the operator says of it, and nothing of a call.
    fn command(&self) -> Command {
        let mut command = match &self.file {
            Some(file) => Command::new(file),
            None => Command::new(&self.program),
        };
        command.arg0(&self.program).args(&self.args);
        if let Some(folder) = &self.folder {
            command.current_dir(folder).env("PWD", folder);
        }
        if let Some(user) = &self.user {
            // Its other groups are given up with this, as the standard library says.
            command.uid(user.uid).gid(user.gid);
            command.env("HOME", &user.home);
            command.env("USER", &user.name).env("LOGNAME", &user.name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Takes a pipe, which exists because it was requested.
fn piped<T>(pipe: Option<T>) -> Result<T, Status> {
    pipe.ok_or_else(|| Status::new(Code::Internal, "a pipe to the agent's program is missing"))
}
