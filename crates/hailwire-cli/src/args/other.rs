//! The hub, the demonstration, and the commands about `hail` itself.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;
use hailwire::config::ByteSize;
use hailwire_wire::{HubUrl, address::NodeRef};

use super::duration;

/// Run a hub: directory, relay and address discovery
///
/// Without a subcommand the hub runs in the foreground until Ctrl-C or SIGTERM.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct HubArgs {
    #[command(subcommand)]
    pub(crate) command: Option<HubCommand>,
    #[command(flatten)]
    pub(crate) run: HubRunArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HubCommand {
    /// Run the hub; the same as `hail hub`
    Run(HubRunArgs),
    /// Print a ticket with which a node can become a member of the hub
    Invite {
        /// How many times the ticket can be used
        #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
        uses: u32,
        /// Time until the ticket expires
        #[arg(long, value_name = "D", value_parser = duration, default_value = "1h")]
        expires: Duration,
    },
    /// Stop the hub and wait until it has exited
    Down,
    /// Show where the hub is reached, whether it runs, and how many members it has
    Status,
    /// List members, or remove one
    Members {
        #[command(subcommand)]
        command: Option<HubMembersCommand>,
    },
    /// List open tickets, or revoke one
    Tickets {
        #[command(subcommand)]
        command: Option<HubTicketsCommand>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum HubMembersCommand {
    /// List members; the same as without a command
    Ls,
    /// End a membership; the node can join again with another ticket
    Rm {
        /// The member's key or name
        #[arg(value_name = "MEMBER")]
        who: NodeRef,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum HubTicketsCommand {
    /// List open tickets; the same as without a command
    Ls,
    /// End a ticket, so that nobody can join with it any more
    Revoke {
        /// The ticket's id, as the list shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HubRunArgs {
    /// Run in the background; logs go to hub.log in the data folder
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// TCP address of the directory and the relay
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:7443")]
    pub(crate) listen: SocketAddr,
    /// UDP port of address discovery [default: same as the TCP port]
    #[arg(long, value_name = "PORT")]
    pub(crate) udp_port: Option<u16>,
    /// URL under which nodes reach the hub, as tickets state it [default: made from --listen]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<HubUrl>,
    /// Public TLS certificate chain in PEM [default: a certificate signed by the hub's own key,
    /// which tickets carry]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the public certificate in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Speak plain HTTP, on loopback only, for tests or behind a reverse proxy on this machine
    #[arg(long, conflicts_with = "tls_cert")]
    pub(crate) plain: bool,
    /// Whom members trust because of their membership
    #[arg(long, value_name = "WHO", value_enum, default_value_t = HubTrustPolicy::Nobody)]
    pub(crate) trust: HubTrustPolicy,
    /// Whose agents a member sees [default: those of all members if they trust each other, else those of
    /// nodes that trust it]
    #[arg(long, value_name = "WHOSE", value_enum)]
    pub(crate) listing: Option<HubListingPolicy>,
    /// Bytes a second that the relay carries in all, as "20MiB"; members that want more than that share it equally
    /// [default: no bound]
    #[arg(long, value_name = "SIZE", value_parser = relay_rate)]
    pub(crate) relay_rate: Option<ByteSize>,
    /// Bytes a second that the relay carries for each member [default: no bound]
    #[arg(long, value_name = "SIZE", value_parser = relay_rate)]
    pub(crate) relay_rate_each: Option<ByteSize>,
    /// Sealed messages that the hub holds for members that are away, as "1GiB"; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = hold_size, default_value = "256MiB")]
    pub(crate) hold: u64,
    /// TCP address at which Prometheus reads the hub's metrics, over plain HTTP [default: none]
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Set by `hail hub -d` for the process that it starts
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// The lowest rate of a relay: one of its largest frames a second.
const LOWEST_RELAY_RATE: ByteSize = ByteSize::kib(64);

/// The highest.
const HIGHEST_RELAY_RATE: ByteSize = ByteSize::gib(1);

fn relay_rate(text: &str) -> Result<ByteSize, String> {
    let rate: ByteSize = text.parse()?;
    if rate < LOWEST_RELAY_RATE {
        return Err(format!("expected at least {LOWEST_RELAY_RATE}"));
    }
    if rate > HIGHEST_RELAY_RATE {
        return Err(format!("expected at most {HIGHEST_RELAY_RATE}"));
    }
    Ok(rate)
}

/// What a hub holds in bytes; nothing is a size too.
fn hold_size(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        text => super::topics::size(text),
    }
}

/// Whom the members of a hub trust because of their membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HubTrustPolicy {
    /// Nobody: trust needs a ticket of the node
    Nobody,
    /// Each other
    Members,
}

/// Whose agents a member of a hub sees there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HubListingPolicy {
    /// Those of all members
    Members,
    /// Those of members that trust it
    Trusted,
}

/// Demonstrate the whole system on this machine
///
/// Starts a hub, an orchestrator and worker nodes as processes of their own, sends real documents
/// to 50 agents, kills one worker half-way, and checks every answer.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Folder with documents for the workers [default: 828 excerpts of Hailwire's own pages, which are in the program]
    #[arg(long, value_name = "DIR")]
    pub(crate) input: Option<PathBuf>,
    /// Show also what happens in between, and a table of agents, times and memory
    #[arg(long)]
    pub(crate) details: bool,
    /// Write all of it to this file, as one page of HTML
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Worker nodes
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(2..=16))]
    pub(crate) workers: u32,
    /// Agents, spread over the workers
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(6..=1000))]
    pub(crate) agents: u32,
    /// Keep the data folders of the demonstration and print where they are
    #[arg(long)]
    pub(crate) keep: bool,
    /// Set by `hail demo` for the processes that it starts
    #[arg(long, hide = true, exclusive = true)]
    pub(crate) part: bool,
}

/// Show and check the configuration
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the configuration file
    Show {
        /// Print every setting with its effective value, including defaults
        #[arg(long)]
        effective: bool,
    },
    /// Print the path of the configuration file
    Path,
    /// Check the configuration file; exits with 0 if it is valid
    Check,
}

/// Install or remove the systemd user service that runs the node
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Write the unit and print what to run next
    Install {
        #[command(flatten)]
        unit: UnitArgs,
        /// Also run systemctl, to start the service now and at every login, or start of the machine
        #[arg(long)]
        enable: bool,
        /// Further arguments of the command that the service runs, after `--`
        #[arg(value_name = "ARGS", last = true)]
        args: Vec<OsString>,
    },
    /// Print the unit that would be written
    Show {
        #[command(flatten)]
        unit: UnitArgs,
        /// Further arguments of the command that the service runs, after `--`
        #[arg(value_name = "ARGS", last = true)]
        args: Vec<OsString>,
    },
    /// Remove the unit
    Uninstall {
        #[command(flatten)]
        unit: UnitArgs,
        /// Also run systemctl, to stop the service first
        #[arg(long)]
        disable: bool,
    },
}

/// Which unit a command is about.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct UnitArgs {
    /// What the service runs: the node with its kept agents, a hub, or `hail callout serve`
    #[arg(value_name = "WHAT", value_enum, default_value_t = ServiceKind::Node)]
    pub(crate) what: ServiceKind,
    /// For the machine and not for this user: with a user of its own, its data in /var/lib, and none of the rights that it does
    /// not need
    #[arg(long)]
    pub(crate) system: bool,
}

/// What a service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceKind {
    /// `hail up`
    Node,
    /// `hail hub`
    Hub,
    /// `hail callout serve`
    Callout,
}

/// Print the help of a command, or of hail
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// The command, for example `call` or `trust add`
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Print the version
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {}

/// Print the completions of a shell
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Print the manual page, or write one page per command into a folder
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder to write to; created if it is missing
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
