//! Commands for inspection agents, which a proxy asks about each request.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use hailwire_terminal::programs;
use hailwire_wire::AgentName;

use super::ForwardedArgs;

/// Ask local and remote inspection agents about requests (Agent Protocol v2)
#[derive(Debug, Args)]
pub(crate) struct CalloutArgs {
    #[command(subcommand)]
    pub(crate) command: CalloutCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CalloutCommand {
    Serve(CalloutServeArgs),
    Agent(CalloutAgentArgs),
    Test(CalloutTestArgs),
    #[command(about = programs::WAF_COMMAND.about)]
    Waf(ForwardedArgs),
    #[command(about = programs::RATE_LIMIT_COMMAND.about)]
    RateLimit(ForwardedArgs),
}

/// Serve the configured agents to proxies that do not speak the protocol themselves
///
/// Envoy connects by external processing (ext_proc), HAProxy by its stream processing offload engine (SPOE). The configuration
/// is reloaded when the file changes, and on SIGHUP; requests in flight keep the one that they began with. Runs until
/// Ctrl-C or SIGTERM. Agents on other nodes need this machine's node (`hail up`).
#[derive(Debug, Args)]
pub(crate) struct CalloutServeArgs {
    /// Configuration file: the agents and where to listen; see docs/reference/callout.md
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

/// Attach an inspection agent to this machine's node, so that proxies elsewhere can ask it
///
/// A proxy names it as `hail "NAME@NODE"`. Each of its connections is spliced to a connection to the agent's Unix socket, so
/// that the bytes of either side reach the other unchanged.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub(crate) struct CalloutAgentArgs {
    /// Unix socket on which the agent listens
    #[arg(long, value_name = "PATH", group = "which")]
    pub(crate) uds: Option<PathBuf>,
    /// Shell command that runs the agent; it must listen on the Unix socket that HAIL_SOCKET names, and is restarted
    /// when it ends
    #[arg(long, value_name = "CMD", group = "which", requires = "name")]
    pub(crate) exec: Option<String>,
    /// Name that proxies use [default: the socket's file name without its extension]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<AgentName>,
}

/// Test which requests a configuration allows
///
/// Sends harmless and hostile requests and bodies of 10 MB and 100 MB to the configured agents, then replaces each agent by one that
/// is slow, crashes, answers with invalid statuses or sends garbage, in every phase and in mid-body. Prints what passed and how long each phase took. Fails if an agent is not
/// connected, if anything passed that the configuration forbids, or if a harmless request was blocked.
#[derive(Debug, Args)]
pub(crate) struct CalloutTestArgs {
    /// Configuration file; see docs/reference/callout.md
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Skip the bodies of 10 MB and 100 MB
    #[arg(long)]
    pub(crate) small: bool,
}
