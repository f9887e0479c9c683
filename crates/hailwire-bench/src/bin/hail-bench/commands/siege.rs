//! `hail bench siege`: a node and a hub under attack.

use std::path::Path;

use hailwire::DataDir;
use hailwire_bench::siege::{self, SiegeOptions, SiegeProcessRole};
use hailwire_terminal::{failure::CommandFailure, output::Output};
use serde_json::json;

use super::bench::caused;

/// Runs a siege. Ctrl-C ends it early and keeps the results so far.
pub(super) async fn run(output: Output, order: SiegeOptions) -> Result<(), CommandFailure> {
    let stop = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let tell = |what: &str| output.note(what);
    let ended = Box::pin(siege::run(&order, stop, tell)).await;
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
            "{} of the targets were missed, the first: {first}",
            ended.missed.len()
        ))
        .hint("the summary lists them, and siege.jsonl has every figure")),
    }
}

/// Runs a child process of a siege.
pub(super) async fn run_process(data: &Path, role: SiegeProcessRole) -> Result<(), CommandFailure> {
    let ended = Box::pin(siege::run_process(role, &DataDir::new(data))).await;
    ended.map_err(|error| caused(&error))
}
