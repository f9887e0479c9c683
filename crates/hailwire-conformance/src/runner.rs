//! Runs cases, some side by side, each with a peer and a time limit of its own.
//!
//! SIGINT and SIGTERM end what runs, so that no peer and no folder is left behind.

use std::{
    io,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    time,
};

use crate::{
    case::Case,
    failure::{Failure, Outcome},
    link::Awaited,
    stage::Stage,
};

/// How long a peer that was killed may take to be gone.
const GONE: Duration = Duration::from_secs(5);

/// How one case ended.
#[derive(Debug)]
pub(crate) struct CaseResult {
    pub(crate) case: Case,
    pub(crate) outcome: Outcome,
    /// Figures that the case measured.
    pub(crate) note: String,
    /// What the peer wrote to stderr last.
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

/// Runs each case once, `jobs` at a time, and hands on each result as it comes.
pub(crate) fn run(
    cases: &[Case],
    command: &[String],
    jobs: usize,
    mut told: impl FnMut(&CaseResult),
) {
    let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (results, arriving) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, cases.len().max(1)) {
            let (next, stopped, results) = (&next, &stopped, results.clone());
            scope.spawn(move || {
                while !stopped.load(Ordering::Relaxed)
                    && let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    // Nobody listens only when the driver itself ends.
                    let _ = results.send(run_one(case, command, stopped));
                }
            });
        }
        drop(results);
        arriving.iter().for_each(|result| told(&result));
    });
}

fn run_one(case: &Case, command: &[String], stopped: &AtomicBool) -> CaseResult {
    let began = Instant::now();
    let (outcome, (note, stderr)) = match played(case, command, stopped) {
        Ok(ended) => ended,
        Err(error) => (Err(Failure::driver(error)), Default::default()),
    };
    CaseResult {
        case: *case,
        outcome,
        note,
        stderr,
        took: began.elapsed(),
    }
}

type PlayedCase = (Outcome, (String, String));

fn played(case: &Case, command: &[String], stopped: &AtomicBool) -> io::Result<PlayedCase> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let awaited = Awaited::default();
        let mut stage = Stage::new(command, awaited.clone())?;
        let limit = Duration::from_secs(case.seconds);
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let outcome = tokio::select! {
            outcome = time::timeout(limit, (case.script)(&mut stage)) => {
                outcome.unwrap_or_else(|_| {
                    let came = format_args!("nothing within {} s", case.seconds);
                    Err(Failure::new(awaited.text(), came))
                })
            }
            _ = async { tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () } } => {
                stopped.store(true, Ordering::Relaxed);
                Err(Failure::driver("it was told to end"))
            }
        };
        // What it wrote is read to its end.
        let _ = time::timeout(GONE, stage.end()).await;
        Ok((outcome, stage.told()))
    })
}
