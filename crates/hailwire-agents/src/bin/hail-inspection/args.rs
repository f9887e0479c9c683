//! The command line: the commands of `hail` that this program runs, with their options and help.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use hailwire_agents::{ListenAddress, rate_limit, waf};
use hailwire_terminal::global::GlobalArgs;

/// Inspection agents: the part of hail that is run as `hail callout waf` and `hail callout rate-limit`
#[derive(Debug, Parser)]
#[command(
    name = "hail",
    bin_name = "hail",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Callout(Callout),
    /// Print the table of these commands as JSON, for `hail`
    #[command(hide = true)]
    Outline,
}

/// Run an inspection agent that comes with hail
#[derive(Debug, Args)]
pub(crate) struct Callout {
    #[command(subcommand)]
    pub(crate) command: CalloutCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CalloutCommand {
    Waf(CalloutWaf),
    RateLimit(CalloutRateLimit),
}

/// Where a built-in agent is served.
#[derive(Debug, Args)]
pub(crate) struct ServedAt {
    /// Address to listen on: unix:PATH or grpc:ADDRESS; or reverse:PATH, to connect to a proxy that listens; repeatable
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub(crate) listen: Vec<ListenAddress>,
    /// Token that is shown to the proxies of reverse:PATH
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

/// Run the web application firewall that comes with hail, as an inspection agent
///
/// It looks for attacks in the headers of requests, and in their bodies as they arrive.
#[derive(Debug, Args)]
pub(crate) struct CalloutWaf {
    #[command(flatten)]
    pub(crate) at: ServedAt,
    /// Folder of rules, or one file [default: the built-in rules]
    #[arg(long, value_name = "DIR")]
    pub(crate) rules: Option<PathBuf>,
    /// Paranoia level, 1 to 4: a higher one finds more attacks and raises more false alarms
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) paranoia: u8,
    /// Score at which a request is blocked; a critical rule scores 5
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) threshold: u32,
    /// Block nothing, and only report in the audit what was found
    #[arg(long)]
    pub(crate) detect_only: bool,
    /// What to do with a request of which a part cannot be inspected; it is reported and counted either way
    #[arg(long, value_name = "DECISION", default_value = "block")]
    pub(crate) unread: UnreadDecision,
    /// Exception to --unread: content-encoding, charset, content-type, part-encoding, xml-dtd, xml-nesting or binary;
    /// repeatable [default: binary with --unread block]
    #[arg(long, value_name = "KIND")]
    pub(crate) unread_except: Vec<waf::UnreadKind>,
}

/// What to do with a request of which a part cannot be inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnreadDecision {
    Block,
    Allow,
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
    /// What to do with limits that a proxy pushes: deny, tighten (they apply in addition) or allow (they replace these)
    /// [default: deny; allow without limits of its own]
    #[arg(long, value_name = "DECISION")]
    pub(crate) configure: Option<rate_limit::PushPolicy>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use hailwire_terminal::{outline, programs};

    use super::*;

    #[test]
    fn hail_completes_and_documents_these_commands_as_this_program_would() {
        assert_eq!(
            outline::verify(&programs::INSPECTION, Cli::command()),
            Ok(())
        );
    }
}
