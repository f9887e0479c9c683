//! Commands about inspection agents: those that a proxy asks about each request.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use hailwire_agents::{ListenAddress, rate_limit, waf};
use hailwire_wire::AgentName;

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
    Waf(CalloutWaf),
    RateLimit(CalloutRateLimit),
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

/// Where an agent of the house is served.
#[derive(Debug, Args)]
pub(crate) struct ServedAt {
    /// unix:PATH, grpc:ADDRESS, or reverse:PATH for a proxy that is dialled; repeatable
    #[arg(long, value_name = "PLACE", required = true)]
    pub(crate) listen: Vec<ListenAddress>,
    /// What is shown to proxies that are dialled
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

/// Run the web application firewall that comes with hail, as an inspection agent
///
/// It looks for attacks in the heads of requests, and in their bodies while they come.
#[derive(Debug, Args)]
pub(crate) struct CalloutWaf {
    #[command(flatten)]
    pub(crate) at: ServedAt,
    /// Folder of rules, or one file [default: those that come with it]
    #[arg(long, value_name = "DIR")]
    pub(crate) rules: Option<PathBuf>,
    /// 1 to 4: how many false alarms are accepted for finding more
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) paranoia: u8,
    /// Score at which a request is blocked; a critical rule scores 5
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) threshold: u32,
    /// Block nothing, and only say in the audit what was found
    #[arg(long)]
    pub(crate) detect_only: bool,
    /// What becomes of a request of which something is not read: block or allow; it is said and counted either way
    #[arg(long, value_name = "DECISION", default_value = "block", value_parser = ["block", "allow"])]
    pub(crate) unread: String,
    /// What the opposite of --unread holds for: content-encoding, charset, content-type, part-encoding, xml-dtd,
    /// xml-nesting or binary; repeatable [default: binary where --unread is block]
    #[arg(long, value_name = "KIND")]
    pub(crate) unread_except: Vec<waf::UnreadKind>,
}

/// Run the rate limiter that comes with hail, as an inspection agent
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limits").required(true))]
pub(crate) struct CalloutRateLimit {
    #[command(flatten)]
    pub(crate) at: ServedAt,
    /// Limit, such as "100/s burst 20 per client-ip"; repeatable
    #[arg(long, value_name = "LIMIT", group = "limits")]
    pub(crate) limit: Vec<String>,
    /// File of limits
    #[arg(long, value_name = "FILE", group = "limits", conflicts_with = "limit")]
    pub(crate) config: Option<PathBuf>,
    /// What becomes of limits that a proxy pushes: deny, tighten (they are counted besides) or allow
    /// [default: deny, or allow where there are no limits]
    #[arg(long, value_name = "DECISION")]
    pub(crate) configure: Option<rate_limit::PushPolicy>,
}
