//! What the commands share that measure until Ctrl-C and hold the results to targets.

use std::path::Path;

use hailwire_bench::recorded_run::RecordedOutcome;
use hailwire_terminal::{failure::CommandFailure, output::Output};
use serde_json::json;

/// Resolves at Ctrl-C.
pub(super) async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Prints how a run ended. It is a failure where it was stopped, or where a target was missed: `missed` says what was, after how
/// many, and `file` has every figure.
pub(super) fn show(
    output: Output,
    out: &Path,
    ended: &RecordedOutcome,
    missed: &str,
    file: &str,
) -> Result<(), CommandFailure> {
    let value = json!({
        "dir": out,
        "missed": ended.missed,
        "interrupted": ended.interrupted,
    });
    output.value(&value, |_| ended.summary.clone())?;
    output.note(&format!("results: {}", out.display()));
    match ended.missed.as_slice() {
        _ if ended.interrupted => Err(CommandFailure::interrupted()),
        [] => Ok(()),
        [first, ..] => Err(CommandFailure::general(format!(
            "{} {missed}, the first: {first}",
            ended.missed.len()
        ))
        .hint(format!(
            "the summary lists them, and {file} has every figure"
        ))),
    }
}
