//! Commands about inspection agents: those that a proxy asks about each request.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use hailwire_terminal::programs;
use hailwire_wire::AgentName;

use super::Carried;

/// Ask inspection agents about requests, near and far (Agent Protocol v2)
#[derive(Debug, Args)]
pub(crate) struct Callout {
    #[command(subcommand)]
    pub(crate) command: CalloutCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CalloutCommand {
    Serve(CalloutServe),
    Agent(CalloutAgent),
    Test(CalloutTest),
    #[command(about = programs::WAF_COMMAND.about)]
    Waf(Carried),
    #[command(about = programs::RATE_LIMIT_COMMAND.about)]
    RateLimit(Carried),
}

/// Serve the configured agents to proxies that do not speak the protocol themselves
///
/// Envoy asks by external processing, HAProxy by its stream processing offload engine. The configuration is read
/// anew when the file changes, and on SIGHUP; requests under way keep the one that they began with. Runs until
/// Ctrl-C or SIGTERM. Agents on other nodes need this machine's node (`hail up`).
#[derive(Debug, Args)]
pub(crate) struct CalloutServe {
    /// The agents and where to listen; see docs/reference/callout.md
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

/// Attach an inspection agent to this machine's node, so that proxies elsewhere can ask it
///
/// A proxy names it as `hail "NAME@NODE"`. Each of its connections is joined byte for byte to a connection to the agent's
/// Unix socket, so that whatever the agent speaks reaches the proxy unchanged.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub(crate) struct CalloutAgent {
    /// Unix socket on which the agent listens
    #[arg(long, value_name = "PATH", group = "which")]
    pub(crate) uds: Option<PathBuf>,
    /// Shell command that runs the agent; it listens on the Unix socket that HAIL_SOCKET names, and is started again
    /// when it ends
    #[arg(long, value_name = "CMD", group = "which", requires = "name")]
    pub(crate) exec: Option<String>,
    /// Name that proxies use [default: the socket's file name without its ending]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<AgentName>,
}

/// Try out what a configuration lets through
///
/// Sends harmless and hostile requests and bodies of 10 MB and 100 MB to the configured agents, then puts a slow, a crashing, a
/// lying and a garbling agent in the place of each, in every phase and in mid-body. Prints what passed and how
/// long each phase took; fails when anything passed that the configuration forbids.
#[derive(Debug, Args)]
pub(crate) struct CalloutTest {
    /// The agents; see docs/reference/callout.md
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Leave the bodies of 10 MB and 100 MB out
    #[arg(long)]
    pub(crate) small: bool,
}
