//! `hail bench topologies`: agents that work together over eleven machines.

use hailwire_bench::topologies::{self, TopologiesOptions};
use hailwire_terminal::{failure::CommandFailure, output::Output};

use super::{bench::caused, recorded};

/// Measures all of it. Ctrl-C ends it early and keeps the results so far.
pub(super) async fn run(output: Output, order: TopologiesOptions) -> Result<(), CommandFailure> {
    let tell = |what: &str| output.note(what);
    let ended = Box::pin(topologies::run(&order, recorded::interrupt(), tell)).await;
    let ended = ended.map_err(|error| caused(&error))?;
    let missed = "figures are not as they should be";
    recorded::show(output, &order.out, &ended, missed, topologies::record::FILE)
}
