//! `hail bench messages`: durable messages, measured and proved.

use hailwire_bench::messages::{self, MessageOptions};
use hailwire_lab::power_loss;
use hailwire_terminal::{failure::CommandFailure, output::Output};

use super::{bench::caused, recorded};

/// Measures and proves. Ctrl-C ends it early and keeps the results so far.
pub(super) async fn run(output: Output, order: MessageOptions) -> Result<(), CommandFailure> {
    if order.power_loss.is_some() {
        let lacking = |what: String| {
            CommandFailure::general(what).hint("run it as root, or without `--power-loss`")
        };
        power_loss::available().map_err(lacking)?;
        power_loss::in_mount_namespace().map_err(|error| lacking(error.to_string()))?;
    }
    let tell = |what: &str| output.note(what);
    let ended = Box::pin(messages::run(&order, recorded::interrupt(), tell)).await;
    let ended = ended.map_err(|error| caused(&error))?;
    let missed = "of what durable messages promise do not hold";
    recorded::show(output, &order.out, &ended, missed, messages::record::FILE)
}
