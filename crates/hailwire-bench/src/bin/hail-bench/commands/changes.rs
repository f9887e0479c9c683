//! `hail bench changes`: what a change of the network costs.

use hailwire_bench::changes::{self, ChangesOptions};
use hailwire_terminal::{failure::CommandFailure, output::Output};
use serde_json::json;

use super::bench::caused;

/// Measures all changes. Ctrl-C ends it early and keeps the results so far.
pub(super) async fn run(output: Output, order: ChangesOptions) -> Result<(), CommandFailure> {
    let stop = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let tell = |what: &str| output.note(what);
    let ended = Box::pin(changes::run(&order, stop, tell)).await;
    let ended = ended.map_err(|error| caused(&error))?;
    let value = json!({
        "dir": order.out,
        "missed": ended.missed,
        "interrupted": ended.interrupted,
    });
    output.value(&value, |_| ended.summary.clone())?;
    output.note(&format!("results: {}", order.out.display()));
    match ended.missed.as_slice() {
        _ if ended.interrupted => Err(CommandFailure::interrupted()),
        [] => Ok(()),
        [first, ..] => Err(CommandFailure::general(format!(
            "{} changes took longer than they may or lost something, the first: {first}",
            ended.missed.len()
        ))
        .hint("the summary lists them, and changes.jsonl has every figure")),
    }
}
