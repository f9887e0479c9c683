//! Commands that offer, find and call agents.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use hailwire::config::Carrier;
use hailwire_wire::{Address, AgentName, Priority, limits::MAX_WAITING_CALLS};

use super::{HeaderField, duration, inbox::DurableArgs};
use crate::{known_names, serve::agent_spec::MAX_GROUP_TIME};

/// List the agents that can be called, here and on trusted peers
#[derive(Debug, Args)]
pub(crate) struct AgentsArgs {
    /// Words that the name, description or tags must contain
    #[arg(value_name = "WORDS")]
    pub(crate) words: Vec<String>,
    /// Tag that the agent must have; repeatable
    #[arg(long, value_name = "T")]
    pub(crate) tag: Vec<String>,
    /// Only agents of this node
    #[arg(long)]
    pub(crate) local: bool,
}

/// Describe an agent: its methods, what they take and answer, and examples
///
/// The agent's own node is asked, which tells it to whoever may call the agent.
#[derive(Debug, Args)]
pub(crate) struct DescribeArgs {
    /// AGENT or AGENT@NODE
    #[arg(value_name = "AGENT[@NODE]", add = ArgValueCompleter::new(known_names::agents))]
    pub(crate) agent: Address,
}

/// Serve a program as an agent
///
/// Each call runs CMD with the body on stdin and streams its stdout back as it appears. The call's
/// fields are in the environment: HAIL_METHOD, HAIL_FROM, HAIL_TYPE, HAIL_DEADLINE_MS and
/// HAIL_HEADER_NAME for each header; HAIL_DATA leads `hail` to this node. An exit status other than 0 is an error with the tail of
/// stderr as its details. All processes that CMD started end with its call.
///
/// With --on-message CMD answers no calls: it is started while durable messages wait for NAME, and takes them by itself, as the library does or
/// with `hail inbox take`. HAIL_AGENT is NAME, HAIL_WAITING how many wait.
///
/// The agent is served until this command ends. With --keep it is written into agents.kdl in the data folder instead, and
/// the node serves it from then on, also after a restart.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ServeCommand>,
    #[command(flatten)]
    pub(crate) run: ServeRunArgs,
}

/// What can be done with agents that are kept.
#[derive(Debug, Subcommand)]
pub(crate) enum ServeCommand {
    /// List the agents of a file and what they do
    Ls(KeptFileArgs),
    /// Take an agent out of the file; its calls that run may finish
    Rm {
        /// Name of the agent
        #[arg(value_name = "NAME")]
        name: AgentName,
        #[command(flatten)]
        file: KeptFileArgs,
    },
    /// Begin an agent anew: look for its program again, and replace one that is kept by --lines
    Restart {
        /// Name of the agent
        #[arg(value_name = "NAME")]
        name: AgentName,
        #[command(flatten)]
        file: KeptFileArgs,
    },
    /// Print what the programs of agents wrote on stderr: the last 64 KiB of each
    Logs {
        /// Name of the agent [default: all agents of the file]
        #[arg(value_name = "NAME")]
        name: Option<AgentName>,
        /// Go on with new lines until Ctrl-C
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        file: KeptFileArgs,
    },
}

/// The file of agents that a command is about.
#[derive(Debug, Args)]
pub(crate) struct KeptFileArgs {
    /// File that declares the agents [default: agents.kdl in the data folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeRunArgs {
    /// Name of the agent
    #[arg(value_name = "NAME", required_unless_present = "file")]
    pub(crate) name: Option<AgentName>,
    /// Keep the agent: write it into agents.kdl in the data folder, and have the node serve it, also after a restart
    #[arg(long)]
    pub(crate) keep: bool,
    /// Serve all agents that this file declares, and follow its changes
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "name", "keep", "describe", "tag", "agent_version", "schema", "max", "queue", "group_priority", "overflow", "pinned", "slow_start", "lines", "keys", "on_message", "idle", "grace", "folder", "env", "user",
            "command",
        ]
    )]
    pub(crate) file: Option<PathBuf>,
    /// One-line description, at most 256 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) describe: Option<String>,
    /// Tag by which the agent can be found; repeatable
    #[arg(long, value_name = "T")]
    pub(crate) tag: Vec<String>,
    /// Version of the agent
    #[arg(long, value_name = "TEXT")]
    pub(crate) agent_version: Option<String>,
    /// File that states its methods, as JSON: {"methods": [{"name": …, "inputSchema": …}]}, or a JSON Schema of the only method's body; at most 48 KiB
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// Most concurrent calls and processes; further calls wait [default: 64; with --lines unlimited; with --on-message 1, and 64 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max: Option<u32>,
    /// Most calls that wait while all members of NAME have as many as they take, by their priority; further ones are refused [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_WAITING_CALLS)))]
    pub(crate) queue: Option<u32>,
    /// Take calls while no member of NAME with a lower number is in service and has room [default: 0]
    #[arg(long, value_name = "N", conflicts_with_all = ["overflow", "pinned"])]
    pub(crate) group_priority: Option<u8>,
    /// Take calls only while each other member of NAME has so many under way
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "pinned")]
    pub(crate) overflow: Option<u32>,
    /// Of the pinned members of NAME one takes all calls, until it is gone or had none for so long, up to 1h
    #[arg(long, value_name = "IDLE", value_parser = group_time, num_args = 0..=1, default_missing_value = "1m")]
    pub(crate) pinned: Option<Duration>,
    /// Get fewer calls than other members of NAME at first, a tenth and then ever more for so long, up to 1h
    #[arg(long, value_name = "D", value_parser = group_time)]
    pub(crate) slow_start: Option<Duration>,
    /// Keep one process and exchange one line per call, one call after another; without HAIL_ variables
    #[arg(long)]
    pub(crate) lines: bool,
    /// With --lines: prefix each request line with a key and a tab, which CMD must repeat before its answer
    #[arg(long, requires = "lines")]
    pub(crate) keys: bool,
    /// Start CMD while durable messages wait for NAME, which it takes by itself, and end it when none do
    #[arg(long, conflicts_with_all = ["describe", "tag", "agent_version", "schema", "queue", "lines", "group_priority", "overflow", "pinned", "slow_start"])]
    pub(crate) on_message: bool,
    /// With --on-message: end CMD once for so long no message waited and none was in hand [default: 30s]
    #[arg(long, value_name = "D", value_parser = duration, requires = "on_message")]
    pub(crate) idle: Option<Duration>,
    /// Time between SIGTERM and SIGKILL for processes that outlive their call
    #[arg(long, value_name = "D", value_parser = duration, default_value = "2s")]
    pub(crate) grace: Duration,
    /// When it is to end: how long calls under way may take while others go to other members; a second Ctrl-C ends it at once
    #[arg(long, value_name = "D", value_parser = duration, default_value = "10s")]
    pub(crate) drain: Duration,
    /// Folder in which CMD runs [default: the current folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Environment variable of CMD; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<HeaderField>,
    /// User that CMD runs as; only root may choose one
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Set by `hail up` for the supervisor that it starts: the process id of the node
    #[arg(long, hide = true, requires = "file")]
    pub(crate) beside_node: Option<u32>,
    /// The program and its arguments, after `--`
    #[arg(value_name = "CMD", required_unless_present = "file", last = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

/// A time that a member says of its place in a group.
fn group_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time.is_zero() || time > MAX_GROUP_TIME {
        true => Err("it is more than nothing and at most 1h".to_owned()),
        false => Ok(time),
    }
}

/// The header options of a call, a send and a stream.
#[derive(Debug, Args)]
pub(crate) struct CallHeaderArgs {
    /// Method to call, for an agent that has several
    #[arg(short, long, value_name = "NAME")]
    pub(crate) method: Option<String>,
    /// critical, high, medium or low
    #[arg(short, long, value_name = "P", default_value = "medium")]
    pub(crate) priority: Priority,
    /// Header field for the agent; repeatable
    #[arg(short = 'H', long = "header", value_name = "K=V")]
    pub(crate) headers: Vec<HeaderField>,
    /// Media type of the body
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) content_type: Option<String>,
    /// Carrier to reach another node over: quic, h2 or ws [default: the one that takes new calls]
    #[arg(long, value_name = "CARRIER")]
    pub(crate) carrier: Option<Carrier>,
    /// Idempotency key: calls with equal keys are the same work and may be retried
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// Affinity key: calls of a group with equal keys go to the same member, as long as it can take them
    #[arg(long, value_name = "KEY")]
    pub(crate) affinity: Option<String>,
    /// Which agent sends it, as the receiver sees it and as durable messages are counted [default: a nameless program]
    #[arg(long, value_name = "AGENT")]
    pub(crate) from: Option<AgentName>,
}

/// Call an agent and stream its answer to stdout as it arrives
///
/// Ctrl-C cancels the call, which reaches the agent.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// AGENT (on this node first, then on trusted peers) or AGENT@NODE
    #[arg(value_name = "AGENT[@NODE]", add = ArgValueCompleter::new(known_names::agents))]
    pub(crate) to: Address,
    /// The body: text, @FILE for a file's content, or - for stdin; @@TEXT for a text that begins with @
    /// [default: what is piped in, else empty]
    #[arg(value_name = "BODY")]
    pub(crate) body: Option<OsString>,
    #[command(flatten)]
    pub(crate) kept: DurableArgs,
    #[command(flatten)]
    pub(crate) envelope: CallHeaderArgs,
    /// Call every member of the group, here and on the nodes that are known to offer it, and print each answer as it is whole
    #[arg(long, conflicts_with_all = ["stats", "replies", "durable", "affinity"])]
    pub(crate) all: bool,
    /// The same, and end as soon as N members have answered; the calls of the others are cancelled
    #[arg(long, value_name = "N", conflicts_with_all = ["stats", "durable", "affinity"], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) replies: Option<u32>,
    /// Make the call again, up to N times, where it ended with unavailable, resource_exhausted or aborted before its answer
    /// began; the body is read whole first, at most 16 MiB. Needs --idempotency-key
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(..=10), requires = "idempotency_key", conflicts_with_all = ["durable", "all", "replies"])]
    pub(crate) retry: u32,
    /// Make the call a second time where its answer has not begun after so long, at another member that is as near; the first
    /// answer counts and the other call is cancelled. Needs --idempotency-key
    #[arg(long, value_name = "D", value_parser = duration, requires = "idempotency_key", conflicts_with_all = ["durable", "all", "replies"])]
    pub(crate) hedge_after: Option<Duration>,
    /// Print times, path and RTT on stderr when the answer is complete
    #[arg(long, conflicts_with = "durable")]
    pub(crate) stats: bool,
}

/// Call an agent or a group once for each input, many at a time
///
/// An input is a line of stdin, or one of those that --lines or --values name, or each FILE. Each result is a line of JSON on
/// stdout, as soon as it is there; a summary goes to stderr. With --timeout each call has that time. With --journal the same
/// command goes on where an earlier one was interrupted, and calls for no input twice that was answered.
#[derive(Debug, Args)]
pub(crate) struct DispatchArgs {
    /// AGENT (on this node first, then on trusted peers) or AGENT@NODE
    #[arg(value_name = "AGENT[@NODE]", add = ArgValueCompleter::new(known_names::agents))]
    pub(crate) to: Address,
    /// Files, each of which is the body of one call, at most 16 MiB [default: each line of stdin is one]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// One call for each line of this file, or - for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    pub(crate) lines: Option<PathBuf>,
    /// One call for each JSON value in this file, or - for stdin: of a stream of values, or of one array
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "lines"])]
    pub(crate) values: Option<PathBuf>,
    /// Most calls at once, up to 1024
    #[arg(short = 'j', long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) in_flight: u16,
    /// Print results in the order of the inputs, not as they come
    #[arg(long)]
    pub(crate) ordered: bool,
    /// File in which answers are kept, from which the same command goes on
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// How often a call is made again that ended with unavailable, resource_exhausted, aborted or deadline_exceeded; needs
    /// --idempotency-key, of which each call gets its own: KEY:INDEX
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(..=100), requires = "idempotency_key")]
    pub(crate) retry: u32,
    /// Make the call a second time where its answer has not begun after so long, at another member that is as near; the first
    /// answer counts and the other call is cancelled. Needs --idempotency-key
    #[arg(long, value_name = "D", value_parser = duration, requires = "idempotency_key")]
    pub(crate) hedge_after: Option<Duration>,
    #[command(flatten)]
    pub(crate) envelope: CallHeaderArgs,
}

/// Send one message, acknowledged by the agent's node
#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// AGENT or AGENT@NODE
    #[arg(value_name = "AGENT[@NODE]", add = ArgValueCompleter::new(known_names::agents))]
    pub(crate) to: Address,
    /// The body, at most 16 MiB: text, @FILE for a file's content, or - for stdin; @@TEXT for a text that begins
    /// with @ [default: what is piped in, else empty]
    #[arg(value_name = "BODY")]
    pub(crate) body: Option<OsString>,
    #[command(flatten)]
    pub(crate) kept: DurableArgs,
    #[command(flatten)]
    pub(crate) envelope: CallHeaderArgs,
}

/// Open a raw stream: stdin goes to the agent, what it sends goes to stdout
#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    /// AGENT or AGENT@NODE
    #[arg(value_name = "AGENT[@NODE]", add = ArgValueCompleter::new(known_names::agents))]
    pub(crate) to: Address,
    #[command(flatten)]
    pub(crate) envelope: CallHeaderArgs,
}

/// Measure the round trip to a peer and show the path taken
#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    /// The peer's key, alias or name
    #[arg(value_name = "PEER", add = ArgValueCompleter::new(known_names::peers))]
    pub(crate) peer: String,
    /// Carrier to ping over: quic, h2 or ws [default: the one that takes new calls]
    #[arg(long, value_name = "CARRIER")]
    pub(crate) carrier: Option<Carrier>,
    /// Number of pings [default: 3, or 40 with --until-direct]
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
    /// Stop at the first ping that took a direct path, and fail where none of them did
    #[arg(long)]
    pub(crate) until_direct: bool,
    /// Time between two pings
    #[arg(short = 'i', long, value_name = "D", value_parser = duration, default_value = "500ms")]
    pub(crate) interval: Duration,
}
