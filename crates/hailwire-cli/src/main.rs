//! `hail`, the command line of Hailwire.
//!
//! A run has three steps, each in its own place: what was typed ([`args`]), what to do ([`plan`],
//! which does no I/O), and doing it ([`commands`], one file per command). Data goes to stdout and
//! everything else to stderr ([`output`]); a failure says what happened, its code and what to try
//! ([`failure`]).

mod args;
mod commands;
mod failure;
mod output;
mod plan;
#[cfg(test)]
mod reference;
mod serve;
mod table;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

/// Gives memory back after a burst, which glibc's does not (docs/decisions/0027-what-peers-may-hold.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    let around = plan::Surroundings::of_process();
    let output = plan::plan_output(&cli.global, &around);
    let done = plan::plan(cli, &around).and_then(commands::run);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.exit())
        }
    }
}
