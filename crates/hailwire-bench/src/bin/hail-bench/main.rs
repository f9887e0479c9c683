//! `hail-bench`: measurements, and networks to test in.
//!
//! A user types `hail bench …` and `hail lab …`; `hail` becomes this program with the same arguments.

mod args;
mod commands;
mod plan;

use std::process::ExitCode;

use hailwire_terminal::{global::ProcessSurroundings, runtime};

/// The allocator of `hail`, so that a node measured here behaves as one there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli: args::Cli = runtime::parse();
    let around = ProcessSurroundings::of_process();
    let output = cli.global.output(&around);
    let done = plan::plan(cli, &around).and_then(commands::run);
    runtime::end(done, output)
}
