//! What is seen while the demonstration runs: on a terminal a live table over a bar, elsewhere a
//! line now and then, and nothing with `--json`.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    dispatch::Dispatch,
    summary::{Row, table},
};
use hailwire_terminal::output::Output;

/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// The live view.
#[derive(Debug)]
pub(super) struct Show {
    output: Output,
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
}

impl Show {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            bar: None,
            last_line: None,
        }
    }

    /// Says that something happened.
    pub(super) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.note(text)),
            None => self.output.note(text),
        }
    }

    /// Begins to show progress.
    pub(super) fn begin(&mut self, total: usize) {
        if !self.output.progress {
            return;
        }
        let bar = ProgressBar::new(total as u64);
        if let Ok(style) = ProgressStyle::with_template("{msg}\n{wide_bar} {pos}/{len} answers") {
            bar.set_style(style);
        }
        self.bar = Some(bar);
    }

    /// Shows how things stand.
    pub(super) fn update(&mut self, dispatch: &Dispatch, rows: impl FnOnce() -> Vec<Row>) {
        if let Some(bar) = &self.bar {
            let table = table(&rows()).render(self.output.colour_errors);
            bar.set_message(table.trim_end().to_owned());
            bar.set_position(dispatch.settled());
            return;
        }
        if self.last_line.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        self.last_line = Some(Instant::now());
        self.output.note(&format!(
            "{} of {} answers, {} re-dispatched",
            dispatch.settled(),
            dispatch.total(),
            dispatch.counts.redispatched
        ));
    }

    /// Takes the live table away.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
