//! What was typed: the table of commands, flags and their help.
//!
//! Every value is parsed here, once, into a type that cannot be wrong, so that a mistake is
//! reported before anything happens. Nothing is decided here; that is [`crate::plan`]'s part.
//! Help, man pages, completions and `docs/reference/cli.md` all come from this one table.

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod callout;
pub(crate) mod lab;
pub(crate) mod node;
pub(crate) mod other;
pub(crate) mod report;
mod value;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

pub(crate) use value::{Field, duration};

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
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Data folder of the node [env: HAIL_DATA] [default: ~/.local/share/hailwire]
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        help_heading = "Global options"
    )]
    pub(crate) data: Option<PathBuf>,
    /// Print JSON on stdout, and failures as JSON on stderr
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Say more on stderr; twice for debugging, three times for every packet
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// Never use colours [env: NO_COLOR]
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) no_color: bool,
    /// Give up after this time, for example 250ms, 10s or 1h30m; for a call, its deadline
    #[arg(long, value_name = "D", value_parser = duration, global = true, help_heading = "Global options")]
    pub(crate) timeout: Option<Duration>,
}

/// The commands, in the order of a newcomer's day.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(node::Up),
    Down(node::Down),
    Status(node::Status),
    Id(node::Id),
    Invite(node::Invite),
    Join(node::Join),
    Trust(node::Trust),
    Peers(node::Peers),
    Agents(agent::Agents),
    Serve(agent::Serve),
    Call(agent::Call),
    Send(agent::Send),
    Stream(agent::Stream),
    Ping(agent::Ping),
    Callout(callout::Callout),
    Hub(other::Hub),
    Demo(other::Demo),
    Bench(bench::Bench),
    Lab(lab::Lab),
    Config(other::Config),
    Service(other::Service),
    Completions(other::Completions),
    Man(other::Man),
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
