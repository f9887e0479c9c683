//! `hail bench changes`: what a change of the network costs.

use hailwire_bench::changes::{self, ChangesOptions};
use hailwire_terminal::{failure::CommandFailure, output::Output};

use super::{bench::caused, recorded};

/// Measures all changes. Ctrl-C ends it early and keeps the results so far.
pub(super) async fn run(output: Output, order: ChangesOptions) -> Result<(), CommandFailure> {
    let tell = |what: &str| output.note(what);
    let ended = Box::pin(changes::run(&order, recorded::interrupt(), tell)).await;
    let ended = ended.map_err(|error| caused(&error))?;
    let missed = "changes took longer than they may or lost something";
    recorded::show(output, &order.out, &ended, missed, changes::record::FILE)
}
