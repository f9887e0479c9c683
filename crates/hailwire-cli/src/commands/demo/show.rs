//! The display while the workers are busy: on a terminal a progress bar, with `--details` below a live table and notes;
//! elsewhere with `--details` a line from time to time, and nothing with `--json`.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    dispatch::DocumentDispatch,
    summary::{AgentSummary, table},
};
use hailwire_terminal::output::Output;

/// The time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// The live view.
#[derive(Debug)]
pub(super) struct LiveView {
    output: Output,
    details: bool,
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
}

impl LiveView {
    pub(super) fn new(output: Output, details: bool) -> Self {
        Self {
            output,
            details,
            bar: None,
            last_line: None,
        }
    }

    /// Prints a note, with `--details`.
    pub(super) fn note(&self, text: &str) {
        if !self.details {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.note(text)),
            None => self.output.note(text),
        }
    }

    /// Starts the progress display.
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

    /// Updates the display.
    pub(super) fn update(
        &mut self,
        dispatch: &DocumentDispatch,
        rows: impl FnOnce() -> Vec<AgentSummary>,
    ) {
        if let Some(bar) = &self.bar {
            if self.details {
                let table = table(&rows()).render(self.output.table_style());
                bar.set_message(table.trim_end().to_owned());
            }
            bar.set_position(dispatch.settled());
            return;
        }
        if self.last_line.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        self.last_line = Some(Instant::now());
        self.note(&format!(
            "{} of {} answers, {} retried",
            dispatch.settled(),
            dispatch.total(),
            dispatch.counts.redispatched
        ));
    }

    /// Removes the live table.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
