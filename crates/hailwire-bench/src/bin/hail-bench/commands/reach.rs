//! `hail bench reach`: who reaches whom.

use hailwire_bench::reach::{self, ReachOptions};
use hailwire_terminal::{failure::CommandFailure, output::Output};

use super::{bench::caused, recorded};

/// Measures all pairs. Ctrl-C ends it early and keeps the results so far.
pub(super) async fn run(output: Output, order: ReachOptions) -> Result<(), CommandFailure> {
    let tell = |what: &str| output.note(what);
    let ended = Box::pin(reach::run(&order, recorded::interrupt(), tell)).await;
    let ended = ended.map_err(|error| caused(&error))?;
    let missed = "pairs are not as theory says";
    recorded::show(output, &order.out, &ended, missed, reach::record::FILE)
}
