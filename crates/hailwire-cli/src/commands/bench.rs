//! `hail bench`: measurements that anyone can rerun.

use hailwire_bench::{part::Part, smoke as suite};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::Run;
use crate::{args::other::Smoke, failure::Failure};

/// Steps of the progress bar.
const STEPS: u64 = 1000;

/// Where the results of a run are.
#[derive(Debug, Serialize)]
struct Written {
    dir: String,
    summary: String,
}

/// Runs the smoke suite and prints its summary.
pub(super) async fn smoke(run: &Run, smoke: Smoke) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::io("this program cannot find itself", &error))?;
    let plan = suite::Plan {
        part_command: [&program.display().to_string(), "bench", "part"]
            .map(ToString::to_string)
            .to_vec(),
        out: smoke.out,
        repeats: smoke.repeats,
        scale: smoke.scale,
        peers: smoke.peers,
    };
    // Draws nothing where stderr is not a terminal.
    let bar = ProgressBar::new(STEPS);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} % · {eta} left · {msg}")
    {
        bar.set_style(style);
    }
    let done = suite::run(&plan, |what, share| {
        bar.set_message(what.to_owned());
        bar.set_position((share * STEPS as f64) as u64);
    })
    .await;
    bar.finish_and_clear();
    let summary = done.map_err(|error| caused(&error))?;
    let written = Written {
        dir: plan.out.display().to_string(),
        summary,
    };
    run.output.value(&written, |written| {
        format!("{}\nresults: {}\n", written.summary, written.dir)
    })
}

/// Plays one party of a measurement, until standard input ends.
pub(super) async fn part(part: String) -> Result<(), Failure> {
    let part: Part = serde_json::from_str(&part).map_err(Failure::usage)?;
    hailwire_bench::part::play(part)
        .await
        .map_err(|error| caused(&error))
}

pub(super) fn caused(error: &dyn std::error::Error) -> Failure {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text += &format!(": {source}");
        cause = source.source();
    }
    Failure::general(text)
}
