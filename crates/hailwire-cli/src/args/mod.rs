//! The command line: the table of commands, flags and their help.
//!
//! Every value is parsed here, once, into a type that is always valid, so that a mistake is
//! reported before anything happens. Decisions are made in [`crate::plan`].
//! Help, man pages and completions all come from this one table, and from those of the companion programs for the
//! commands that they execute.

pub(crate) mod agent;
pub(crate) mod callout;
pub(crate) mod inbox;
pub(crate) mod lead;
pub(crate) mod node;
pub(crate) mod other;
pub(crate) mod task;
pub(crate) mod topics;
mod value;

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};
use hailwire_terminal::{global::GlobalArgs, programs};

pub(crate) use hailwire_terminal::global::duration;
pub(crate) use value::HeaderField;

/// The network for software agents: call an agent by name, wherever it runs
#[derive(Debug, Parser)]
#[command(
    name = "hail",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 success, 1 failure, 2 usage, 64 plus the status code (69 not found, \
                  78 unavailable, 68 deadline exceeded, …), 130 interrupted. See `hail man`."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, in the order in which a new user needs them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(node::UpArgs),
    Down(node::DownArgs),
    Status(node::StatusArgs),
    Top(node::TopArgs),
    Logs(node::LogsArgs),
    Id(node::IdArgs),
    Invite(node::InviteArgs),
    Join(node::JoinArgs),
    Leave(node::LeaveArgs),
    Trust(node::TrustArgs),
    Peers(node::PeersArgs),
    Doctor(node::DoctorArgs),
    Agents(agent::AgentsArgs),
    Describe(agent::DescribeArgs),
    Serve(agent::ServeArgs),
    Call(agent::CallArgs),
    Dispatch(agent::DispatchArgs),
    Send(agent::SendArgs),
    Inbox(inbox::InboxArgs),
    Task(task::TaskArgs),
    Pub(topics::PubArgs),
    Sub(topics::SubArgs),
    Topics(topics::TopicsArgs),
    Lead(lead::LeadArgs),
    Leases(lead::LeasesArgs),
    State(topics::StateArgs),
    Stream(agent::StreamArgs),
    Ping(agent::PingArgs),
    Callout(callout::CalloutArgs),
    Hub(other::HubArgs),
    Demo(other::DemoArgs),
    #[command(about = programs::BENCH_COMMAND.about)]
    Bench(ForwardedArgs),
    #[command(about = programs::LAB_COMMAND.about)]
    Lab(ForwardedArgs),
    Config(other::ConfigArgs),
    Service(other::ServiceArgs),
    Completions(other::CompletionsArgs),
    Man(other::ManArgs),
    Help(other::HelpArgs),
    Version(other::VersionArgs),
}

/// A command that a companion program executes: it is given all arguments of this process and parses them itself.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct ForwardedArgs {
    /// Options and arguments
    #[arg(
        value_name = "ARGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) args: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_table_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_has_help() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no help");
            for arg in command.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{path} {} has no help",
                    arg.get_id()
                );
            }
            for inner in command.get_subcommands() {
                check(inner, &path);
            }
        }
        let mut root = Cli::command();
        root.build();
        check(&root, "");
    }

    #[test]
    fn global_flags_stand_before_or_after_the_command() {
        for line in [["hail", "--json", "status"], ["hail", "status", "--json"]] {
            assert!(Cli::try_parse_from(line).unwrap().global.json);
        }
    }
}
