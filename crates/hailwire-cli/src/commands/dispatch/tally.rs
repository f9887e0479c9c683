//! What was answered and what was not: the progress bar, the summary, and how the command ends.

use std::{
    collections::BTreeMap,
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use hailwire::{Code, Status};
use hailwire_core::dispatch_plan::DispatchPlan;
use hailwire_terminal::{failure::CommandFailure, output::Output, text};
use indicatif::{ProgressBar, ProgressStyle};

/// Counts results.
#[derive(Debug)]
pub(super) struct Tally {
    output: Output,
    begun: Instant,
    journaled: bool,
    answered: u64,
    recorded: u64,
    failed: BTreeMap<u8, (Code, u64)>,
    bar: Option<ProgressBar>,
}

impl Tally {
    /// Begins to count, with a bar on stderr where that is a terminal, unless the results appear on one too.
    pub(super) fn new(output: Output, total: Option<u64>, journaled: bool) -> Self {
        let shown = output.progress && !std::io::stdout().is_terminal();
        Self {
            output,
            begun: Instant::now(),
            journaled,
            answered: 0,
            recorded: 0,
            failed: BTreeMap::new(),
            bar: shown.then(|| bar(total)),
        }
    }

    /// A result was printed.
    pub(super) fn count(&mut self, done: Result<(), Code>) {
        match done {
            Ok(()) => self.answered += 1,
            Err(code) => self.failed.entry(code.number()).or_insert((code, 0)).1 += 1,
        }
        self.show();
    }

    /// A result of the journal was printed.
    pub(super) fn count_recorded(&mut self) {
        self.recorded += 1;
        self.show();
    }

    /// Brings the bar up to date where nothing happens.
    pub(super) fn tick(&self, plan: &DispatchPlan) {
        if let Some(bar) = &self.bar {
            let failed = match self.failures() {
                0 => String::new(),
                failed => format!(", {failed} failed: {}", self.by_code()),
            };
            bar.set_message(format!("{} in flight{failed}", plan.unfinished()));
            bar.tick();
        }
    }

    /// Takes the bar away and prints the summary, unless nothing was begun before a `failure`.
    pub(super) fn end(&self, failure: bool) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if failure && self.answered + self.recorded + self.failures() == 0 {
            return;
        }
        self.output.note(&self.summary(self.begun.elapsed()));
    }

    /// How the command ends: with the code that most failures have.
    pub(super) fn outcome(&self) -> Result<(), CommandFailure> {
        // Of codes that are as many, the first.
        let most = self.failed.values().rev().max_by_key(|(_, count)| *count);
        let Some((code, _)) = most else {
            return Ok(());
        };
        let failed = self.failures();
        let all = failed + self.answered + self.recorded;
        let message = format!(
            "{failed} of {all} inputs were not answered: {}",
            self.by_code()
        );
        let hint = match self.journaled {
            true => "the same command calls for those again, and for no other",
            false => {
                "each has its reason in its result; with --journal FILE a second run calls for those alone"
            }
        };
        Err(CommandFailure::from(
            Status::new(*code, message).with_hint(hint),
        ))
    }

    /// The failure of a run that Ctrl-C ended.
    pub(super) fn interrupted(&self) -> CommandFailure {
        match self.journaled {
            true => CommandFailure::interrupted()
                .hint("the same command goes on where this one was interrupted"),
            false => CommandFailure::interrupted(),
        }
    }

    fn show(&self) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.answered + self.recorded + self.failures());
        }
    }

    fn failures(&self) -> u64 {
        self.failed.values().map(|(_, count)| count).sum()
    }

    fn by_code(&self) -> String {
        let codes = self.failed.values();
        let codes: Vec<_> = codes
            .map(|(code, count)| format!("{count} {code}"))
            .collect();
        codes.join(", ")
    }

    fn counts(&self) -> String {
        let mut counts = format!("{} answered", self.answered + self.recorded);
        if self.recorded > 0 {
            counts.push_str(&format!(" ({} of them in the journal)", self.recorded));
        }
        match self.failures() {
            0 => counts,
            failed => format!("{counts}, {failed} failed: {}", self.by_code()),
        }
    }

    fn summary(&self, took: Duration) -> String {
        let called = self.answered + self.failures();
        let rate = called as f64 / took.as_secs_f64().max(1e-6);
        format!("{}; {}, {rate:.0} calls/s", self.counts(), text::time(took))
    }
}

fn bar(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{wide_bar} {pos}/{len}  {per_sec}  {msg}",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {pos}  {per_sec}  {msg}",
        ),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_with_the_code_that_most_failures_have() {
        let mut tally = Tally::new(Output::default(), None, false);
        assert!(tally.outcome().is_ok());
        tally.count(Ok(()));
        tally.count(Err(Code::Unavailable));
        tally.count(Err(Code::NotFound));
        tally.count_recorded();
        let failure = tally.outcome().unwrap_err();
        assert_eq!(failure.status.code, Code::NotFound, "the first of equals");
        tally.count(Err(Code::Unavailable));
        let failure = tally.outcome().unwrap_err();
        assert_eq!(failure.exit(), 78);
        assert_eq!(
            failure.status.message,
            "3 of 5 inputs were not answered: 1 not_found, 2 unavailable"
        );
        assert_eq!(
            tally.summary(Duration::from_secs(2)),
            "2 answered (1 of them in the journal), 3 failed: 1 not_found, 2 unavailable; 2.00 s, 2 calls/s"
        );
    }
}
