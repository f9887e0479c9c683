//! `hail demo`: the whole system at work on this machine, on real documents.
//!
//! A hub, an orchestrator's node and the workers run as processes of their own, on loopback, each
//! with a data folder under one temporary folder. The nodes become members of the hub, whose
//! members trust each other; the orchestrator finds the workers there by name. Every document goes
//! to `word-count`, `grep` and `sha256`, half-way one worker is killed, and each answer is checked
//! against a computation of the orchestrator's own.
//!
//! | file | holds |
//! |---|---|
//! | [`dispatch`] | which document is sent where, what is retried, when half the work is done (no I/O) |
//! | [`call_counters`], [`summary`] | counters and the summary (no I/O) |
//! | [`work`] | the three kinds of work, and their checks (no I/O) |
//! | [`documents`] | the documents |
//! | [`process`] | one of the processes |
//! | [`processes`] | all of them, and their folder |
//! | [`orchestrate`] | the calls |
//! | [`show`] | the live table |

mod call_counters;
mod dispatch;
mod documents;
mod orchestrate;
pub(super) mod process;
mod processes;
mod show;
mod summary;
mod work;

use std::time::{Duration, Instant};

use hailwire::{Client, Code, Status};
use tokio::signal::unix::{SignalKind, signal};

use self::{
    dispatch::DocumentDispatch,
    documents::DocumentSet,
    orchestrate::DemoOrchestrator,
    processes::DemoProcesses,
    show::LiveView,
    summary::{DemoSummary, rows},
};
use hailwire_terminal::{failure::CommandFailure, log};
use tracing::Level;

use super::{CommandContext, connect};
use crate::args::other::DemoArgs;

/// Calls in flight at once.
const CONCURRENCY: usize = 16;

/// Runs the demonstration until it is done, interrupted or out of time.
pub(super) async fn run(run: &CommandContext, demo: &DemoArgs) -> Result<(), CommandFailure> {
    log::start(run.log.unwrap_or(Level::WARN), run.output.log_style());
    let begun = Instant::now();
    let documents = documents::collect(demo.input.as_deref())?;
    let mut processes = DemoProcesses::new()?;
    let mut show = LiveView::new(run.output);
    let done = tokio::select! {
        done = perform(begun, demo, &documents, &mut processes, &mut show) => done,
        interrupted = interruption() => Err(interrupted),
        late = out_of_time(run.timeout) => Err(late),
    };
    show.end();
    // In every case no process and no folder is left.
    let kept = processes.close(demo.keep).await;
    if let Some(folder) = &kept {
        run.output
            .note(&format!("data folders: {}", folder.display()));
    }
    let (mut summary, failure) = done?;
    summary.data_dir = kept.map_or_else(String::new, |folder| folder.display().to_string());
    run.output
        .value(&summary, |summary| summary.for_people(run.output))?;
    failure.map_or(Ok(()), Err)
}

/// The demonstration itself; returns a summary, and the error of a failed run.
async fn perform(
    begun: Instant,
    demo: &DemoArgs,
    documents: &DocumentSet,
    processes: &mut DemoProcesses,
    show: &mut LiveView,
) -> Result<(DemoSummary, Option<CommandFailure>), CommandFailure> {
    let (workers, agents) = (demo.workers as usize, demo.agents as usize);
    show.note(&format!(
        "starting a hub, an orchestrator and {workers} workers with {agents} agents"
    ));
    processes.fill(workers, agents).await?;
    let client = Client::attach(&processes.orchestrator())
        .await
        .map_err(connect::failure)?;
    let start = begun.elapsed();

    let dispatch = DocumentDispatch::new(documents.list.len(), workers, CONCURRENCY);
    show.note(&format!(
        "{} documents for word-count, grep and sha256: {} calls, {CONCURRENCY} at once",
        documents.list.len(),
        dispatch.total(),
    ));
    show.begin(dispatch.total());
    let mut orchestrator = DemoOrchestrator {
        client,
        documents: &documents.list,
        processes,
        show,
        dispatch,
        paths: vec![String::new(); workers],
        killed: None,
    };
    orchestrator.run().await?;
    let ran = begun.elapsed() - start;
    orchestrator.read_status().await;

    let DemoOrchestrator {
        processes,
        dispatch,
        paths,
        killed,
        ..
    } = orchestrator;
    let killed = killed.map(|worker| processes.workers()[worker].name.clone());
    let mut summary = DemoSummary {
        documents: documents.list.len(),
        document_bytes: documents
            .list
            .iter()
            .map(documents::DemoDocument::len)
            .sum(),
        skipped: documents.skipped,
        workers,
        agents,
        killed: killed.unwrap_or_default(),
        rows: rows(&dispatch, processes.workers(), &paths),
        processes: processes.processes(),
        start_ms: millis(start),
        run_ms: millis(ran),
        wall_ms: millis(begun.elapsed()),
        ..DemoSummary::default()
    };
    summary.count(&dispatch);
    Ok((summary, verdict(&dispatch)))
}

/// The error of a run, if it failed.
fn verdict(dispatch: &DocumentDispatch) -> Option<CommandFailure> {
    if dispatch.is_complete() {
        return None;
    }
    let counts = &dispatch.counts;
    let code = if counts.wrong > 0 {
        Code::DataLoss
    } else {
        Code::Unavailable
    };
    let what = format!(
        "{} of {} answers were verified; {} were wrong, {} are missing",
        counts.verified,
        dispatch.total(),
        counts.wrong,
        counts.lost
    );
    let mut status = Status::new(code, what);
    if let Some(last) = &counts.last_failure {
        status = status.with_details(format!("the last call that failed: {last}"));
    }
    Some(CommandFailure::from(status).hint("run it again with -vv to see each failed call"))
}

/// Resolves at SIGINT and the other signals that ask a program to end.
async fn interruption() -> CommandFailure {
    let signals = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = signals.map(signal) else {
        return CommandFailure::general("cannot handle signals");
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    CommandFailure::interrupted()
}

async fn out_of_time(limit: Option<Duration>) -> CommandFailure {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            CommandFailure::timed_out(limit)
        }
        None => std::future::pending().await,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
