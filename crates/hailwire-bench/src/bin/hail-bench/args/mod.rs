//! The command line: the commands of `hail` that this program carries out, with their flags and help.

pub(crate) mod bench;
pub(crate) mod lab;
pub(crate) mod report;

use clap::{Parser, Subcommand};
use hailwire_terminal::global::GlobalArgs;

/// Measurements and networks to test in: the program behind `hail bench` and `hail lab`
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
    Bench(bench::BenchArgs),
    Lab(lab::LabArgs),
    /// Print the table of these commands as JSON, for `hail`
    #[command(hide = true)]
    Outline,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use hailwire_terminal::{outline, programs};

    use super::*;

    #[test]
    fn hail_completes_and_documents_these_commands_as_this_program_would() {
        assert_eq!(outline::verify(&programs::BENCH, Cli::command()), Ok(()));
    }
}
