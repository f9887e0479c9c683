//! `hail`, the command line of Hailwire.
//!
//! A run has three steps, each in its own place: what was typed ([`args`]), what to do ([`plan`],
//! which does no I/O), and doing it ([`commands`], one file per command). Data goes to stdout and
//! everything else to stderr; a failure says what happened, its code and what to try. That, and whatever
//! else this program shares with those beside it, lives in [`hailwire_terminal`].

mod args;
mod commands;
mod plan;
mod serve;

use std::process::ExitCode;

use clap::Parser as _;
use hailwire_terminal::{global::Surroundings, runtime};

/// Gives memory back after a burst, which glibc's does not (docs/decisions/0027-what-peers-may-hold.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    let around = Surroundings::of_process();
    let output = cli.global.output(&around);
    let done = plan::plan(cli, &around).and_then(commands::run);
    runtime::end(done, output)
}
