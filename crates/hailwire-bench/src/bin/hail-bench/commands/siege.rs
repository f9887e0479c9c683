//! `hail bench siege`: a node and a hub under attack.

use std::path::Path;

use hailwire::DataDir;
use hailwire_bench::siege::{self, SiegeOptions, SiegeProcessRole};
use hailwire_terminal::{failure::CommandFailure, output::Output};

use super::{bench::caused, recorded};

/// Runs a siege. Ctrl-C ends it early and keeps the results so far.
pub(super) async fn run(output: Output, order: SiegeOptions) -> Result<(), CommandFailure> {
    let tell = |what: &str| output.note(what);
    let ended = Box::pin(siege::run(&order, recorded::interrupt(), tell)).await;
    let ended = ended.map_err(|error| caused(&error))?;
    let missed = "of the targets were missed";
    recorded::show(output, &order.out, &ended, missed, siege::record::FILE)
}

/// Runs a child process of a siege.
pub(super) async fn run_process(data: &Path, role: SiegeProcessRole) -> Result<(), CommandFailure> {
    let ended = Box::pin(siege::run_process(role, &DataDir::new(data))).await;
    ended.map_err(|error| caused(&error))
}
