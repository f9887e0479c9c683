//! The file that declares agents, `agents.kdl`: what it may say, and what is wrong with one.
//!
//! ```kdl
//! max-programs 4096
//! agent "word-count" {
//!     command "wc" "-w"
//!     describe "counts words"
//!     tag "text" "english"
//!     version "1.2"
//!     schema "word-count.json"
//!     max 8
//!     grace "2s"
//!     folder "/srv/texts"
//!     env { LANG "C" }
//!     user "www-data"
//! }
//! agent "shout" {
//!     command "python3" "shout.py"
//!     lines #true
//!     keys #true
//!     restart min="200ms" max="1m"
//! }
//! agent "nightly" {
//!     command "./nightly"
//!     on-message #true
//!     idle "30s"
//! }
//! ```
//!
//! A file is valid as a whole, or its first mistake is told with line, column and what to write. Whether a program or a user exists
//! is no question of the text: [`DeclaredAgent::missing`] looks. A file has at most [`MAX_FILE`] bytes and [`MAX_AGENTS`] agents.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read as _},
    ops::RangeInclusive,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use hailwire::admin;
use hailwire_kdl::{DurationText, FileError, KdlNode, TextMistake};
use hailwire_wire::{AgentName, limits};

use super::{
    agent_spec::{
        AgentSpec, DEFAULT_IDLE, MAX_GROUP_TIME, MAX_WOKEN, ONE_POLICY, OnMessage, RestartDelays,
        default_max,
    },
    program_file::find_program,
    program_user::find_user,
    schema_file,
};

/// The file's name in the data folder.
pub(crate) const FILE_NAME: &str = "agents.kdl";

/// Largest file in bytes: a thousand for each agent.
pub(crate) const MAX_FILE: u64 = 1024 * 1024;

/// Most agents of a file. A node has at most [`limits::MAX_AGENTS_PER_NODE`], of which some are left for others.
pub(crate) const MAX_AGENTS: usize = 1000;

/// Programs that run at once, of all agents together, unless the file says otherwise.
pub(crate) const DEFAULT_MAX_PROGRAMS: u32 = 4096;

/// Most variables that a file gives to one agent's program.
const MAX_VARIABLES: usize = 256;

/// Most words of a command.
const MAX_WORDS: usize = 1024;

/// What `grace` and the delays of `restart` may be.
const GRACES: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
const DELAYS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);

/// What `idle` may be.
const IDLES: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(24 * 3600);

/// The settings of an agent.
const SETTINGS: [&str; 20] = [
    "command",
    "describe",
    "tag",
    "version",
    "schema",
    "max",
    "queue",
    "group-priority",
    "overflow",
    "pinned",
    "slow-start",
    "lines",
    "keys",
    "on-message",
    "idle",
    "grace",
    "restart",
    "folder",
    "env",
    "user",
];

/// Settings of what callers are answered, which a program with `on-message` says by itself when it attaches.
const NOT_WOKEN: [&str; 12] = [
    "describe",
    "tag",
    "version",
    "schema",
    "queue",
    "group-priority",
    "overflow",
    "pinned",
    "slow-start",
    "lines",
    "keys",
    "restart",
];

/// A valid file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentsFile {
    pub(crate) agents: Vec<DeclaredAgent>,
    pub(crate) max_programs: u32,
}

/// An agent and where it stands in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredAgent {
    pub(crate) spec: AgentSpec,
    /// The place of `command` in bytes.
    command_at: usize,
    /// The place of `user` in bytes.
    user_at: usize,
    /// The place of `schema` in bytes.
    schema_at: usize,
}

impl AgentsFile {
    /// Reads a text. Relative folders are taken from `folder`, which is also where programs run that name none.
    ///
    /// # Errors
    ///
    /// The first mistake.
    pub(crate) fn parse(text: &str, folder: &Path) -> Result<Self, TextMistake> {
        let mut file = Self {
            agents: Vec::new(),
            max_programs: DEFAULT_MAX_PROGRAMS,
        };
        let mut names = HashSet::new();
        let mut limited = false;
        for node in hailwire_kdl::document(text)?.nodes() {
            match node.name().value() {
                "agent" => {
                    let agent = agent(node, folder)?;
                    if !names.insert(agent.spec.name.clone()) {
                        let what = format!("the agent `{}` is declared twice", agent.spec.name);
                        let hint = "one is enough: `max` says how many calls it takes at once";
                        return Err(TextMistake::of(node, what).hint(hint));
                    }
                    if file.agents.len() == MAX_AGENTS {
                        let what = format!("a file declares at most {MAX_AGENTS} agents");
                        return Err(TextMistake::of(node, what));
                    }
                    file.agents.push(agent);
                }
                "max-programs" if limited => {
                    return Err(TextMistake::of(node, "`max-programs` is set twice"));
                }
                "max-programs" => {
                    file.max_programs = hailwire_kdl::number(node, 1..=1_000_000)?;
                    limited = true;
                }
                _ => {
                    let known = ["agent", "max-programs"];
                    return Err(hailwire_kdl::unknown(node, "", &known));
                }
            }
        }
        Ok(file)
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// It cannot be read, is too large, may be written by other users, or has a mistake.
    pub(crate) fn load(path: &Path) -> Result<Self, FileError> {
        let text = read(path)?;
        Self::parse(&text, &folder_of(path)).map_err(|mistake| mistake.in_file(&text, path))
    }

    /// The first program or user that is not there, or schema that cannot be used.
    ///
    /// # Errors
    ///
    /// As [`AgentsFile::load`], and the missing one with its place.
    pub(crate) fn check(path: &Path) -> Result<Self, FileError> {
        let text = read(path)?;
        let file = Self::parse(&text, &folder_of(path)).map_err(|m| m.in_file(&text, path))?;
        match file.agents.iter().find_map(DeclaredAgent::missing) {
            Some(missing) => Err(missing.in_file(&text, path)),
            None => Ok(file),
        }
    }
}

impl DeclaredAgent {
    /// What is missing to run it.
    fn missing(&self) -> Option<TextMistake> {
        let folder = self.spec.folder.as_deref().unwrap_or(Path::new("/"));
        if !folder.is_dir() {
            let what = format!(
                "agent `{}`: there is no folder {}",
                self.spec.name,
                folder.display()
            );
            return Some(TextMistake::at(self.command_at, what));
        }
        let path = self.spec.path_variable();
        if let Err(missing) = find_program(&self.spec.program, folder, path.as_deref()) {
            let what = format!("agent `{}`: {missing}", self.spec.name);
            return Some(TextMistake::at(self.command_at, what).hint(missing.hint()));
        }
        let user = self.spec.user.as_deref().map(find_user);
        if let Some(Err(missing)) = user {
            return Some(TextMistake::at(self.user_at, missing));
        }
        let why = schema_file::read(self.spec.schema.as_deref()?).err()?;
        let what = format!("agent `{}`: {why}", self.spec.name);
        Some(TextMistake::at(self.schema_at, what))
    }
}

/// The text of a file that only this user, or root, may write: it says what this user runs.
pub(crate) fn read(path: &Path) -> Result<String, FileError> {
    let text = || {
        let meta = fs::metadata(path)?;
        let invalid = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if !meta.is_file() {
            return invalid("it is not a file".to_owned());
        }
        let me = rustix::process::geteuid().as_raw();
        if meta.uid() != me && meta.uid() != 0 {
            return invalid(format!("it belongs to user {}, not to you", meta.uid()));
        }
        if meta.mode() & 0o002 != 0 {
            return invalid("every user may write it; close it with `chmod o-w`".to_owned());
        }
        let mut text = Vec::new();
        File::open(path)?
            .take(MAX_FILE + 1)
            .read_to_end(&mut text)?;
        if text.len() as u64 > MAX_FILE {
            return invalid(format!("it is larger than {} KiB", MAX_FILE / 1024));
        }
        String::from_utf8(text).or_else(|_| invalid("it is not UTF-8 text".to_owned()))
    };
    text().map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The folder that a file lies in.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_owned()
}

fn agent(node: &KdlNode, folder: &Path) -> Result<DeclaredAgent, TextMistake> {
    let entry = hailwire_kdl::argument(node, &[])?;
    let name: AgentName = hailwire_kdl::value(node, entry)?;
    if name.as_str() == admin::AGENT || name.as_str().starts_with(admin::PRIVATE_PREFIX) {
        let what = format!("the agent name `{name}` belongs to the node itself");
        return Err(TextMistake::in_value(entry, what));
    }
    let mut agent = DeclaredAgent {
        spec: AgentSpec::new(name, "".into(), Vec::new()),
        command_at: node.name().span().offset(),
        user_at: node.name().span().offset(),
        schema_at: node.name().span().offset(),
    };
    agent.spec.folder = Some(folder.to_owned());
    let (mut max, mut keys_at) = (None, None);
    let (mut idle, mut not_woken) = (None, None);
    hailwire_kdl::settings(node, "agent", &SETTINGS, |inner| {
        let at = inner.name().span().offset();
        match inner.name().value() {
            "max" => max = Some(hailwire_kdl::number(inner, 1..=u32::MAX)?),
            "keys" => keys_at = hailwire_kdl::yes(inner)?.then_some(at),
            "idle" => idle = Some((idle_time(inner)?, at)),
            "command" => agent.command_at = at,
            "user" => agent.user_at = at,
            "schema" => agent.schema_at = at,
            _ => {}
        }
        if NOT_WOKEN.contains(&inner.name().value()) {
            not_woken.get_or_insert((inner.name().value().to_owned(), at));
        }
        setting(&mut agent.spec, inner, folder)
    })?;
    let spec = &mut agent.spec;
    if spec.program.is_empty() {
        let what = format!("the agent `{}` has no `command`", spec.name);
        let hint = "write: command \"PROGRAM\" \"ARGUMENT\" …";
        return Err(TextMistake::of(node, what).hint(hint));
    }
    if !spec.place.is_one() {
        return Err(TextMistake::of(node, ONE_POLICY));
    }
    if let Some(at) = keys_at.filter(|_| !spec.lines) {
        let mistake = TextMistake::at(at, "`keys` is for an agent with `lines`");
        return Err(mistake.hint("write also: lines #true"));
    }
    spec.max = max.unwrap_or(default_max(spec.lines, spec.on_message.is_some()));
    if let (None, Some((_, at))) = (spec.on_message, idle) {
        let mistake = TextMistake::at(at, "`idle` is for an agent with `on-message`");
        return Err(mistake.hint("write also: on-message #true"));
    }
    if let Some(on_message) = &mut spec.on_message {
        on_message.idle = idle.map_or(on_message.idle, |(idle, _)| idle);
        if let Some((name, at)) = not_woken {
            let what = format!("`{name}` is not for an agent with `on-message`");
            let hint = "its program is started for messages and attaches, or takes them, by itself";
            return Err(TextMistake::at(at, what).hint(hint));
        }
        if spec.max > MAX_WOKEN {
            let what = format!("with `on-message`, `max` is at most {MAX_WOKEN}");
            return Err(TextMistake::of(node, what));
        }
    }
    Ok(agent)
}

/// Takes over one setting; those that depend on others are left to [`agent`].
fn setting(spec: &mut AgentSpec, node: &KdlNode, folder: &Path) -> Result<(), TextMistake> {
    match node.name().value() {
        "command" => {
            let mut words = strings(node, MAX_WORDS)?.into_iter();
            spec.program = words.next().unwrap_or_default().into();
            spec.args = words.map(Into::into).collect();
            if spec.program.is_empty() {
                return Err(TextMistake::of(node, "the program's name is empty"));
            }
        }
        "describe" => spec.description = bounded(node, limits::MAX_DESCRIPTION)?,
        "version" => spec.version = bounded(node, limits::MAX_NAME)?,
        "tag" => {
            spec.tags = strings(node, limits::MAX_TAGS)?;
            if spec.tags.iter().any(|tag| tag.len() > limits::MAX_NAME) {
                let what = format!("a tag has at most {} bytes", limits::MAX_NAME);
                return Err(TextMistake::of(node, what));
            }
        }
        "queue" => {
            let calls = hailwire_kdl::number(node, 0..=limits::MAX_WAITING_CALLS)?;
            spec.queue = Some(calls);
        }
        "group-priority" => spec.place.priority = group_priority(node)?,
        "overflow" => spec.place.overflow = hailwire_kdl::number(node, 1..=u32::MAX)?,
        "pinned" => spec.place.pinned = Some(group_time(node)?),
        "slow-start" => spec.place.slow_start = Some(group_time(node)?),
        "lines" => spec.lines = hailwire_kdl::yes(node)?,
        "keys" => spec.keys = hailwire_kdl::yes(node)?,
        "on-message" => {
            let idle = DEFAULT_IDLE;
            spec.on_message = hailwire_kdl::yes(node)?.then_some(OnMessage { idle });
        }
        "grace" => {
            let DurationText(grace) = hailwire_kdl::single(node)?;
            spec.grace = hailwire_kdl::within(node, grace, GRACES, hailwire_kdl::written_time)?;
        }
        "restart" => spec.restart = restart(node)?,
        "schema" => spec.schema = Some(folder.join(bounded(node, 4096)?)),
        "folder" => spec.folder = Some(folder.join(bounded(node, 4096)?)),
        "env" => {
            hailwire_kdl::properties(node, &[])?;
            no_values(node)?;
            for variable in node.iter_children() {
                let name = variable.name().value().to_owned();
                let value = bounded(variable, 128 * 1024)?;
                check_variable(&name).map_err(|what| TextMistake::of(variable, what))?;
                if spec.environment.iter().any(|(other, _)| *other == name) {
                    return Err(TextMistake::of(variable, format!("`{name}` is set twice")));
                }
                if spec.environment.len() == MAX_VARIABLES {
                    let what = format!("`env` has at most {MAX_VARIABLES} variables");
                    return Err(TextMistake::of(variable, what));
                }
                spec.environment.push((name, value));
            }
        }
        "user" => spec.user = Some(bounded(node, 256)?),
        _ => {}
    }
    Ok(())
}

fn group_priority(node: &KdlNode) -> Result<u8, TextMistake> {
    let number = hailwire_kdl::number(node, 0..=u32::from(u8::MAX))?;
    Ok(u8::try_from(number).unwrap_or(u8::MAX))
}

fn group_time(node: &KdlNode) -> Result<Duration, TextMistake> {
    let DurationText(time) = hailwire_kdl::single(node)?;
    let times = Duration::from_millis(1)..=MAX_GROUP_TIME;
    hailwire_kdl::within(node, time, times, hailwire_kdl::written_time)
}

fn idle_time(node: &KdlNode) -> Result<Duration, TextMistake> {
    let DurationText(idle) = hailwire_kdl::single(node)?;
    hailwire_kdl::within(node, idle, IDLES, hailwire_kdl::written_time)
}

fn restart(node: &KdlNode) -> Result<RestartDelays, TextMistake> {
    hailwire_kdl::properties(node, &["min", "max"])?;
    no_values(node)?;
    let mut delays = RestartDelays::default();
    let delay = |name: &str, default: Duration| {
        let Some(entry) = hailwire_kdl::property(node, name) else {
            return Ok(default);
        };
        let DurationText(delay) = hailwire_kdl::value(node, entry)?;
        hailwire_kdl::within(node, delay, DELAYS, hailwire_kdl::written_time)
    };
    delays.min = delay("min", delays.min)?;
    delays.max = delay("max", delays.max.max(delays.min))?;
    if delays.min > delays.max {
        let what = "the delay `min` of `restart` is longer than `max`";
        return Err(TextMistake::of(node, what));
    }
    Ok(delays)
}

fn no_values(node: &KdlNode) -> Result<(), TextMistake> {
    match node.entries().iter().find(|entry| entry.name().is_none()) {
        Some(entry) => {
            let what = format!("`{}` takes no value", node.name().value());
            Err(TextMistake::in_value(entry, what))
        }
        None => Ok(()),
    }
}

/// Whether a file, or a command line, may give a program this variable.
///
/// # Errors
///
/// Why not.
pub(crate) fn check_variable(name: &str) -> Result<(), String> {
    match name {
        _ if name.is_empty() || name.contains(['=', '\0']) => {
            Err(format!("`{name}` cannot be the name of a variable"))
        }
        _ if name.starts_with("HAIL_") => Err(format!(
            "`{name}` cannot be set: variables that begin with HAIL_ describe the call"
        )),
        _ => Ok(()),
    }
}

/// The values of a node: at least one, and none with a zero byte, which no program can be given.
fn strings(node: &KdlNode, max: usize) -> Result<Vec<String>, TextMistake> {
    let words: Vec<String> = hailwire_kdl::several(node, max)?;
    match words.iter().any(|word| word.contains('\0')) {
        true => Err(TextMistake::of(node, "a value holds a zero byte")),
        false => Ok(words),
    }
}

/// The only value of a node, of at most `max` bytes.
fn bounded(node: &KdlNode, max: usize) -> Result<String, TextMistake> {
    let mut words = strings(node, 1)?;
    let text = words.pop().unwrap_or_default();
    match text.len() > max {
        true => {
            let what = format!("`{}` has at most {max} bytes", node.name().value());
            Err(TextMistake::of(node, what))
        }
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests;
