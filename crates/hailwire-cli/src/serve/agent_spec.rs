//! An agent as it is declared, on the command line or in a file: its program, and how it is offered.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use hailwire_wire::AgentName;

/// Programs that run at once for one agent unless `--max` says otherwise. Each is a process of any size, and callers choose
/// how many there are: a small machine can run this many small ones, and large ones need a limit of their own.
pub(crate) const DEFAULT_MAX: u32 = 64;

/// Time between SIGTERM and SIGKILL unless `--grace` says otherwise.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(2);

/// Programs of an agent with `on-message` that run at once unless `--max` says otherwise.
pub(crate) const DEFAULT_WOKEN: u32 = 1;

/// Most programs of an agent with `on-message`: as many as one agent may have messages in hand.
pub(crate) const MAX_WOKEN: u32 = 64;

/// How long nothing waits and nothing is in hand before the programs of an agent with `on-message` are ended.
pub(crate) const DEFAULT_IDLE: Duration = Duration::from_secs(30);

/// A program to serve as an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentSpec {
    pub(crate) name: AgentName,
    pub(crate) description: String,
    pub(crate) tags: Vec<String>,
    pub(crate) version: String,
    /// The file that states its methods; read whenever it is offered.
    pub(crate) schema: Option<PathBuf>,
    /// Calls at once, and processes; 0: unlimited.
    pub(crate) max: u32,
    /// Calls that wait for a place; nothing where the node's default holds.
    pub(crate) queue: Option<u32>,
    pub(crate) place: GroupPlace,
    pub(crate) lines: bool,
    pub(crate) keys: bool,
    /// The program takes durable messages by itself, and runs while there are any.
    pub(crate) on_message: Option<OnMessage>,
    pub(crate) grace: Duration,
    pub(crate) restart: RestartDelays,
    /// Where the program runs; `None`: where `hail` runs.
    pub(crate) folder: Option<PathBuf>,
    /// Variables beside those that `hail` runs with.
    pub(crate) environment: Vec<(String, String)>,
    /// The user that the program runs as; `None`: the one that `hail` runs as.
    pub(crate) user: Option<String>,
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
}

impl AgentSpec {
    /// An agent with the defaults of every setting.
    pub(crate) fn new(name: AgentName, program: OsString, args: Vec<OsString>) -> Self {
        Self {
            name,
            description: String::new(),
            tags: Vec::new(),
            version: String::new(),
            schema: None,
            max: DEFAULT_MAX,
            queue: None,
            place: GroupPlace::default(),
            lines: false,
            keys: false,
            on_message: None,
            grace: DEFAULT_GRACE,
            restart: RestartDelays::default(),
            folder: None,
            environment: Vec::new(),
            user: None,
            program,
            args,
        }
    }

    /// The folders in which its program is searched for.
    pub(crate) fn path_variable(&self) -> Option<OsString> {
        let own = self.environment.iter().find(|(name, _)| name == "PATH");
        own.map(|(_, path)| path.into())
            .or_else(|| std::env::var_os("PATH"))
    }

    /// The program with its arguments, for people.
    pub(crate) fn command(&self) -> Vec<String> {
        let words = [&self.program].into_iter().chain(&self.args);
        words
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }
}

/// The default of `max`: one process answers all calls of an agent with `lines`.
pub(crate) fn default_max(lines: bool, on_message: bool) -> u32 {
    match (lines, on_message) {
        (_, true) => DEFAULT_WOKEN,
        (true, false) => 0,
        (false, false) => DEFAULT_MAX,
    }
}

/// When an agent takes calls beside others of its name; at most one of the first three is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupPlace {
    /// Its number; lower ones go first.
    pub(crate) priority: u8,
    /// It takes calls once each of the others has so many; 0: always.
    pub(crate) overflow: u32,
    /// It takes all calls until it had none for so long.
    pub(crate) pinned: Option<Duration>,
    /// For so long it gets fewer calls after it has come.
    pub(crate) slow_start: Option<Duration>,
}

impl GroupPlace {
    /// Whether at most one policy is said.
    pub(crate) fn is_one(&self) -> bool {
        let said = [self.priority > 0, self.overflow > 0, self.pinned.is_some()];
        said.into_iter().filter(|said| *said).count() <= 1
    }
}

/// Longest time that a member is pinned without a call, and longest slow start.
pub(crate) const MAX_GROUP_TIME: Duration =
    Duration::from_millis(hailwire_wire::limits::MAX_GROUP_MS);

/// What is said where more than one policy is.
pub(crate) const ONE_POLICY: &str =
    "a member has a priority in its group, or is overflow, or is pinned: one of them";

/// How a program is started for durable messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnMessage {
    /// How long nothing waits and nothing is in hand before it is ended.
    pub(crate) idle: Duration,
}

/// How long a program that ended without having answered anything is left alone before it is started again: `min` after the
/// first time, doubled each time up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartDelays {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl Default for RestartDelays {
    fn default() -> Self {
        Self {
            min: Duration::from_millis(200),
            max: Duration::from_secs(60),
        }
    }
}
