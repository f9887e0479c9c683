//! The display while the demonstration runs: on a terminal a live table above a progress bar, elsewhere a
//! line from time to time, and nothing with `--json`.

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
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
}

impl LiveView {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            bar: None,
            last_line: None,
        }
    }

    /// Prints a note.
    pub(super) fn note(&self, text: &str) {
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
            let table = table(&rows()).render(self.output.table_style());
            bar.set_message(table.trim_end().to_owned());
            bar.set_position(dispatch.settled());
            return;
        }
        if self.last_line.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        self.last_line = Some(Instant::now());
        self.output.note(&format!(
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
