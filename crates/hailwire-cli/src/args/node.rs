//! Commands that start, stop, show and join a node.

use std::{net::SocketAddr, time::Duration};

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use hailwire::config::Carrier;
use hailwire_wire::{AgentName, HubUrl, NodeId, NodeName, address::AddressError};

use super::duration;
use crate::known_names;

/// Start this machine's node
///
/// The node's key is made at the first start. Without -d it stays in the foreground until Ctrl-C or
/// SIGTERM, then lets the calls in flight finish.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Run in the background; logs go to hail.log in the data folder
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Name to offer to peers and hubs
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<NodeName>,
    // Not a doc comment: rustdoc would read the IPv6 address as a link.
    #[arg(
        long,
        value_name = "ADDR",
        help = "UDP address to listen on; repeatable [default: 0.0.0.0:0 and [::]:0]"
    )]
    pub(crate) listen: Vec<SocketAddr>,
    /// TCP address to listen on, for HTTP/2 and WebSocket; repeatable [default: none]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen_tcp: Vec<SocketAddr>,
    /// Carrier of tunnels: auto, quic, h2 or ws [default: auto]
    #[arg(long, value_name = "CARRIER")]
    pub(crate) carrier: Option<Carrier>,
    /// Hub to register at, in addition to those joined; repeatable
    #[arg(long, value_name = "URL")]
    pub(crate) hub: Vec<HubUrl>,
    /// Time that calls in flight may take to finish when stopping [default: 10s]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Set by `hail up -d` for the process that it starts
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// Stop this machine's node and wait until it has exited
#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Time that calls in flight may take to finish
    #[arg(long, value_name = "D", value_parser = duration, default_value = "10s")]
    pub(crate) grace: Duration,
}

/// Show the node, its tunnels, agents and hubs
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {}

/// Watch the node's peers, paths, calls and rates
///
/// `q` quits; `s` sorts the peers by traffic, name or ping; the arrow keys scroll.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {}

/// Print what a node in the background has logged
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Go on with what is added, until Ctrl-C
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Lines from the end of the log to begin with
    #[arg(short = 'n', long, value_name = "N", default_value = "100")]
    pub(crate) lines: usize,
}

/// Print the node's key, which is its name in the network
#[derive(Debug, Args)]
pub(crate) struct IdArgs {}

/// Print a ticket with which another node can join this one
///
/// A ticket is a secret: anyone who has it can use it until it is used up or has expired.
#[derive(Debug, Args)]
pub(crate) struct InviteArgs {
    /// How many times the ticket can be used
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) uses: u32,
    /// Time until the ticket expires
    #[arg(long, value_name = "D", value_parser = duration, default_value = "10m")]
    pub(crate) expires: Duration,
    /// Agents that the joining node may call, comma-separated [default: all]
    #[arg(long, value_name = "AGENT", value_delimiter = ',')]
    pub(crate) allow: Vec<AgentName>,
    /// Agents of the joining node to which calls from here that name no node may go,
    /// comma-separated [default: all if it may call all agents here, else none]
    #[arg(long, value_name = "AGENT", value_delimiter = ',')]
    pub(crate) offer: Vec<AgentName>,
}

/// Join another node, or a hub, by its ticket
///
/// Afterwards both nodes trust each other. A node that is trusted already keeps its permissions here, unless --allow
/// changes them. What it may call is printed.
///
/// Where a hub's members trust each other, joining it lets each of them call every agent here; its ticket says
/// so, and this command asks first.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The ticket, or `-` to read it from stdin, so that it stays out of the shell's history
    #[arg(value_name = "TICKET")]
    pub(crate) ticket: String,
    /// Alias of the joined node on this node
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Option<NodeName>,
    /// Agents here that the joined node may call, comma-separated, or `*` for all [default: all; a node that
    /// is trusted already keeps its permissions]
    #[arg(long, value_name = "AGENT", value_delimiter = ',')]
    pub(crate) allow: Vec<AllowedAgent>,
    /// Agents of the joined node to which calls from here that name no node may go,
    /// comma-separated [default: all if it may call all agents here, else none]
    #[arg(long, value_name = "AGENT", value_delimiter = ',')]
    pub(crate) offer: Vec<AgentName>,
    /// Agree that the members of the hub trust each other, where its ticket says so
    #[arg(long)]
    pub(crate) yes: bool,
}

/// A value of `--allow`: an agent's name, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedAgent {
    All,
    Agent(AgentName),
}

impl std::str::FromStr for AllowedAgent {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "*" => Ok(Self::All),
            name => name.parse().map(Self::Agent),
        }
    }
}

impl std::fmt::Display for AllowedAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Agent(name) => name.fmt(f),
        }
    }
}

/// End this node's membership of a hub
///
/// Peers stay trusted, and tunnels that are up stay. A hub that is away cannot be told: it lists this node until its operator
/// removes it.
#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// The hub's URL [default: the only one]
    #[arg(value_name = "HUB")]
    pub(crate) hub: Option<HubUrl>,
}

/// List, add, remove and approve trusted peers
#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    #[command(subcommand)]
    pub(crate) command: TrustCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TrustCommand {
    /// List trusted peers
    Ls,
    /// Trust a node by its key
    Add(TrustAddArgs),
    /// Stop trusting a peer; its tunnel is closed at once
    Rm {
        /// The peer's key, alias or name
        #[arg(value_name = "PEER", add = ArgValueCompleter::new(known_names::peers))]
        who: String,
    },
    /// List nodes that asked to be trusted
    Pending,
    /// Trust a node that asked
    Approve(TrustAddArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TrustAddArgs {
    /// The node's key, as `hail id` prints it there
    #[arg(value_name = "ID")]
    pub(crate) id: NodeId,
    /// Alias of the peer on this node
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Option<NodeName>,
    /// Agents that it may call, comma-separated, or `*` for all [default: all; a node that is trusted already keeps its
    /// permissions]
    #[arg(long, value_name = "AGENT", value_delimiter = ',')]
    pub(crate) allow: Vec<AllowedAgent>,
    /// Its agents to which calls from here that name no node may go, comma-separated [default: all if
    /// it may call all agents here, else none]
    #[arg(long, value_name = "AGENT", value_delimiter = ',')]
    pub(crate) offer: Vec<AgentName>,
    /// UDP address of the peer, if no hub knows it; repeatable
    #[arg(long, value_name = "ADDR")]
    pub(crate) address: Vec<SocketAddr>,
    /// TCP address of the peer; repeatable
    #[arg(long, value_name = "ADDR")]
    pub(crate) tcp: Vec<SocketAddr>,
}

/// Find out what this network allows, why a path is as it is, and what to do
///
/// The hubs are asked over TCP and UDP, and with a peer's name that peer too. Fails where a fault is found.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// A peer's key, alias or name: why the path to it is no better
    #[arg(value_name = "PEER", add = ArgValueCompleter::new(known_names::peers))]
    pub(crate) peer: Option<String>,
    /// Measure how long the router keeps a UDP mapping that nobody uses, by silences of 10, 15, 30, 60 and 120 s at once;
    /// with a time, by none that are longer (10 s at least)
    #[arg(long, value_name = "D", value_parser = duration, num_args = 0..=1, require_equals = true, default_missing_value = "2m")]
    pub(crate) lifetime: Option<Duration>,
}

/// List trusted peers and the tunnels to them
#[derive(Debug, Args)]
pub(crate) struct PeersArgs {
    /// Then go on, and print a line whenever the tunnel to a peer comes up, changes its path or carrier, or ends
    #[arg(long)]
    pub(crate) watch: bool,
}
