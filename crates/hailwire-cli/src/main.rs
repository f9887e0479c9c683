//! `hail`, the command line of Hailwire.
//!
//! A run has three steps, each in its own place: parse the arguments ([`args`]), decide what to do
//! ([`plan`], which does no I/O), and do it ([`commands`], one file per command). Data goes to stdout and
//! everything else to stderr; a failure says what happened, its code and what to try. What this program
//! shares with its companion programs is in [`hailwire_terminal`].

mod args;
mod commands;
mod known_names;
mod plan;
mod serve;

use std::process::ExitCode;

use hailwire_terminal::{global::ProcessSurroundings, runtime};

/// Returns memory to the system after a burst, which glibc's allocator does not (docs/decisions/0027-what-peers-may-hold.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    commands::completions::answer_shell();
    let cli: args::Cli = runtime::parse();
    let around = ProcessSurroundings::of_process();
    let output = cli.global.output(&around);
    let done = plan::plan(cli, &around).and_then(commands::run);
    runtime::end(done, output)
}
