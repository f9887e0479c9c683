//! `hail bench siege`: a node and a hub under attack.

use std::path::Path;

use hailwire::DataDir;
use hailwire_bench::siege::{self, Order};
use hailwire_terminal::{failure::Failure, output::Output};
use serde_json::json;

use super::bench::caused;

/// Carries a siege out. Ctrl-C ends it early and keeps what was seen.
pub(super) async fn run(output: Output, order: Order) -> Result<(), Failure> {
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
        _ if ended.interrupted => Err(Failure::interrupted()),
        [] => Ok(()),
        [first, ..] => Err(Failure::general(format!(
            "{} of the aims were missed, the first: {first}",
            ended.missed.len()
        ))
        .hint("the summary says which, and siege.jsonl holds every figure")),
    }
}

/// Plays a part of a siege.
pub(super) async fn part(data: &Path, name: String) -> Result<(), Failure> {
    let played = Box::pin(siege::part(&name, &DataDir::new(data))).await;
    played.map_err(|error| caused(&error))
}
