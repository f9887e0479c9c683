//! `hail bench`: measurements that anyone can rerun.

use std::{path::PathBuf, time::Duration};

use hailwire_bench::{
    BenchError,
    run::{self as measuring, RunSettings},
    subject::{self, ReadyAddress, Subject, SubjectSetup},
    suite::SuiteOrder,
};
use hailwire_terminal::{failure::CommandFailure, output::Output};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::recorded::interrupt;

/// Steps of the progress bar.
const STEPS: u64 = 1000;

/// The output of `hail bench run`.
#[derive(Debug, Serialize)]
struct RunResultFiles {
    dir: String,
    lines: usize,
    skipped: usize,
    interrupted: bool,
}

/// Runs a suite. Ctrl-C ends it early and keeps what was measured.
pub(super) async fn run(
    output: Output,
    order: SuiteOrder,
    out: PathBuf,
) -> Result<(), CommandFailure> {
    let program = std::env::current_exe()
        .map_err(|error| CommandFailure::io("cannot find the path of this program", &error))?;
    let settings = RunSettings { program, out };
    // Draws nothing where stderr is not a terminal.
    let bar = ProgressBar::new(STEPS);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} % · {msg}") {
        bar.set_style(style);
    }
    output.note(&format!(
        "expected to take about {}; Ctrl-C keeps what was measured",
        about(measuring::expected(&order))
    ));
    let tell = |what: &str, share: f64, left: Duration| {
        bar.set_message(format!("{} left · {what}", for_people(left)));
        bar.set_position((share * STEPS as f64) as u64);
    };
    let ended = Box::pin(measuring::run(&order, &settings, interrupt(), tell)).await;
    bar.finish_and_clear();
    let ended = ended.map_err(|error| caused(&error))?;
    let written = RunResultFiles {
        dir: settings.out.display().to_string(),
        lines: ended.lines,
        skipped: ended.skipped,
        interrupted: ended.interrupted,
    };
    output.note(&format!(
        "repeats measured: {}; cells not measured: {}; results: {}",
        written.lines, written.skipped, written.dir
    ));
    if output.json {
        output.value(&written, |_| String::new())?;
        super::report::write(&settings.out)?;
    } else {
        super::report::draw(output, &settings.out)?;
    }
    if ended.interrupted {
        return Err(CommandFailure::interrupted());
    }
    Ok(())
}

/// `5 h 10 min`, `7 min`, `50 s`.
fn about(expected: Duration) -> String {
    let minutes = expected.as_secs().div_ceil(60);
    match (minutes / 60, minutes % 60) {
        (0, 0..=1) => format!("{} s", expected.as_secs()),
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

fn for_people(left: Duration) -> String {
    let seconds = left.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// Serves a subject until standard input ends.
pub(super) async fn serve(subject: Subject, options: SubjectSetup) -> Result<(), CommandFailure> {
    let served = Box::pin(subject::serve(subject, &options)).await;
    served.map_err(|error| caused(&error))
}

/// Loads a subject: does the work of each line of standard input.
pub(super) async fn load(
    subject: Subject,
    ready: String,
    options: SubjectSetup,
) -> Result<(), CommandFailure> {
    let ready: ReadyAddress = serde_json::from_str(&ready).map_err(|error| {
        CommandFailure::usage(format!(
            "cannot read what the serving program printed: {error}"
        ))
    })?;
    let loaded = Box::pin(subject::load(subject, &ready, &options)).await;
    loaded.map_err(|error| caused(&error))
}

pub(super) fn caused(error: &BenchError) -> CommandFailure {
    CommandFailure::general(error.with_cause())
}
