//! `hail bench soak`: half an hour on the move.

use hailwire_bench::soak::{self, SoakOptions};
use hailwire_terminal::{failure::CommandFailure, output::Output};

use super::{bench::caused, recorded};

/// Soaks. Ctrl-C ends it early and keeps the results so far.
pub(super) async fn run(output: Output, order: SoakOptions) -> Result<(), CommandFailure> {
    let tell = |what: &str| output.note(what);
    let ended = Box::pin(soak::run(&order, recorded::interrupt(), tell)).await;
    let ended = ended.map_err(|error| caused(&error))?;
    let missed = "of the soak's claims do not hold";
    recorded::show(output, &order.out, &ended, missed, soak::record::FILE)
}
