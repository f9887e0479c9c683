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
//! | [`dispatch`] | which document next, what again, when half-way is (no I/O) |
//! | [`tally`], [`summary`] | what it cost and what it comes to (no I/O) |
//! | [`work`] | the three kinds of work, and their checks (no I/O) |
//! | [`documents`] | the documents |
//! | [`part`] | one of the processes |
//! | [`house`] | all of them, and their folder |
//! | [`orchestrate`] | the calls |
//! | [`show`] | the live table |

mod dispatch;
mod documents;
mod house;
mod orchestrate;
pub(super) mod part;
mod show;
mod summary;
mod tally;
mod work;

use std::time::{Duration, Instant};

use hailwire::{Client, Code, Status};
use tokio::signal::unix::{SignalKind, signal};

use self::{
    dispatch::Dispatch,
    documents::Documents,
    house::House,
    orchestrate::Orchestrator,
    show::Show,
    summary::{Summary, rows},
};
use hailwire_terminal::{failure::Failure, log};
use tracing::Level;

use super::{Run, connect};
use crate::args::other::Demo;

/// Calls in flight at once.
const CONCURRENCY: usize = 16;

/// Runs the demonstration until it is done, interrupted or out of time.
pub(super) async fn run(run: &Run, demo: &Demo) -> Result<(), Failure> {
    log::start(run.log.unwrap_or(Level::WARN), run.output.colour_errors);
    let begun = Instant::now();
    let documents = documents::collect(demo.input.as_deref())?;
    let mut house = House::new()?;
    let mut show = Show::new(run.output);
    let done = tokio::select! {
        done = perform(begun, demo, &documents, &mut house, &mut show) => done,
        interrupted = interruption() => Err(interrupted),
        late = out_of_time(run.timeout) => Err(late),
    };
    show.end();
    // However it went: no process and no folder is left.
    let kept = house.close(demo.keep).await;
    if let Some(folder) = &kept {
        run.output
            .note(&format!("data folders: {}", folder.display()));
    }
    let (mut summary, failure) = done?;
    summary.data_dir = kept.map_or_else(String::new, |folder| folder.display().to_string());
    run.output
        .value(&summary, |summary| summary.for_people(run.output.colour))?;
    failure.map_or(Ok(()), Err)
}

/// The demonstration itself; a summary, and why it is no success if it is none.
async fn perform(
    begun: Instant,
    demo: &Demo,
    documents: &Documents,
    house: &mut House,
    show: &mut Show,
) -> Result<(Summary, Option<Failure>), Failure> {
    let (workers, agents) = (demo.workers as usize, demo.agents as usize);
    show.note(&format!(
        "starting a hub, an orchestrator and {workers} workers with {agents} agents"
    ));
    house.fill(workers, agents).await?;
    let client = Client::attach(&house.orchestrator())
        .await
        .map_err(connect::failure)?;
    let start = begun.elapsed();

    let dispatch = Dispatch::new(documents.list.len(), workers, CONCURRENCY);
    show.note(&format!(
        "{} documents for word-count, grep and sha256: {} calls, {CONCURRENCY} at once",
        documents.list.len(),
        dispatch.total(),
    ));
    show.begin(dispatch.total());
    let mut orchestrator = Orchestrator {
        client,
        documents: &documents.list,
        house,
        show,
        dispatch,
        paths: vec![String::new(); workers],
        killed: None,
    };
    orchestrator.run().await?;
    let ran = begun.elapsed() - start;
    orchestrator.look().await;

    let Orchestrator {
        house,
        dispatch,
        paths,
        killed,
        ..
    } = orchestrator;
    let killed = killed.map(|worker| house.workers()[worker].name.clone());
    let mut summary = Summary {
        documents: documents.list.len(),
        document_bytes: documents.list.iter().map(documents::Document::len).sum(),
        skipped: documents.skipped,
        workers,
        agents,
        killed: killed.unwrap_or_default(),
        rows: rows(&dispatch, house.workers(), &paths),
        processes: house.processes(),
        start_ms: millis(start),
        run_ms: millis(ran),
        wall_ms: millis(begun.elapsed()),
        ..Summary::default()
    };
    summary.count(&dispatch);
    Ok((summary, verdict(&dispatch)))
}

/// Why a run is no success.
fn verdict(dispatch: &Dispatch) -> Option<Failure> {
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
        "{} of {} answers were verified; {} were wrong, {} never came",
        counts.verified,
        dispatch.total(),
        counts.wrong,
        counts.lost
    );
    let mut status = Status::new(code, what);
    if let Some(last) = &counts.last_failure {
        status = status.with_details(format!("the last call that failed: {last}"));
    }
    Some(Failure::from(status).hint("run it again with -vv to see each failed call"))
}

/// Resolves at Ctrl-C and at the other polite ways to end a program.
async fn interruption() -> Failure {
    let signals = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = signals.map(signal) else {
        return Failure::general("signals cannot be noticed");
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Failure::interrupted()
}

async fn out_of_time(limit: Option<Duration>) -> Failure {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            Failure::timed_out(limit)
        }
        None => std::future::pending().await,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
