//! Commands that offer, find and call agents.

use std::{ffi::OsString, time::Duration};

use clap::Args;
use clap_complete::ArgValueCompleter;
use hailwire::config::Carrier;
use hailwire_wire::{Address, AgentName, Priority};

use super::{HeaderField, duration};
use crate::known_names;

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

/// Serve a program as an agent
///
/// Each call runs CMD with the body on stdin and streams its stdout back as it appears. The call's
/// fields are in the environment: HAIL_METHOD, HAIL_FROM, HAIL_TYPE, HAIL_DEADLINE_MS and
/// HAIL_HEADER_NAME for each header. An exit status other than 0 is an error with the tail of
/// stderr as its details. All processes that CMD started end with its call.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Name of the agent
    #[arg(value_name = "NAME")]
    pub(crate) name: AgentName,
    /// One-line description, at most 256 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) describe: Option<String>,
    /// Tag by which the agent can be found; repeatable
    #[arg(long, value_name = "T")]
    pub(crate) tag: Vec<String>,
    /// Version of the agent
    #[arg(long, value_name = "TEXT")]
    pub(crate) agent_version: Option<String>,
    /// Most concurrent calls and processes; further calls are refused [default: 64; with --lines unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max: Option<u32>,
    /// Keep one process and exchange one line per call, one call after another; without HAIL_ variables
    #[arg(long)]
    pub(crate) lines: bool,
    /// With --lines: prefix each request line with a key and a tab, which CMD must repeat before its answer
    #[arg(long, requires = "lines")]
    pub(crate) keys: bool,
    /// Time between SIGTERM and SIGKILL for processes that outlive their call
    #[arg(long, value_name = "D", value_parser = duration, default_value = "2s")]
    pub(crate) grace: Duration,
    /// The program and its arguments, after `--`
    #[arg(value_name = "CMD", required = true, last = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
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
    pub(crate) envelope: CallHeaderArgs,
    /// Print times, path and RTT on stderr when the answer is complete
    #[arg(long)]
    pub(crate) stats: bool,
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
    /// Number of pings
    #[arg(short = 'c', long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Time between two pings
    #[arg(short = 'i', long, value_name = "D", value_parser = duration, default_value = "500ms")]
    pub(crate) interval: Duration,
}
