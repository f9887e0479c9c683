//! `hail-inspection`: the inspection agents that come with Hailwire, a web application firewall and a rate limiter.
//!
//! A user types `hail callout waf …` and `hail callout rate-limit …`; `hail` becomes this program with the same
//! arguments.

mod args;
mod plan;
mod serve;

use std::process::ExitCode;

use clap::CommandFactory as _;
use hailwire_terminal::{
    failure::CommandFailure,
    global::ProcessSurroundings,
    outline, programs,
    runtime::{self, on_all_cores},
};

use plan::{Action, Plan};

/// Gives memory back after a burst, which glibc's does not (docs/decisions/0027-what-peers-may-hold.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli: args::Cli = runtime::parse();
    let around = ProcessSurroundings::of_process();
    let output = cli.global.output(&around);
    runtime::end(plan::plan(cli, &around).and_then(run), output)
}

/// Runs what was planned.
fn run(plan: Plan) -> Result<(), CommandFailure> {
    let Plan { common, action } = plan;
    match action {
        Action::Waf(at, settings) => on_all_cores(serve::waf(&common, at, settings)),
        Action::RateLimit(at, limits) => on_all_cores(serve::rate_limit(&common, at, limits)),
        Action::Outline => outline::print(
            &programs::INSPECTION,
            &mut args::Cli::command(),
            common.output,
        ),
    }
}
