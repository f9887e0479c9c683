//! The scenes of the demonstration: each shows one thing, takes its time and ends in one sentence.

use std::time::{Duration, Instant};

use hailwire_terminal::{failure::CommandFailure, output::Output, text};
use serde::Serialize;

/// How long a scene may take.
const LONGEST_SCENE: Duration = Duration::from_secs(30);

/// How a scene came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SceneOutcome {
    Shown,
    /// This machine does not have what it takes.
    LeftOut,
    Failed,
}

impl SceneOutcome {
    /// The sign before its line.
    pub(super) const fn sign(self) -> &'static str {
        match self {
            Self::Shown => "✓",
            Self::LeftOut => "–",
            Self::Failed => "✗",
        }
    }
}

/// A scene that is over.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SceneReport {
    pub(super) name: &'static str,
    pub(super) outcome: SceneOutcome,
    pub(super) took_ms: u64,
    /// What was seen, or why it was not.
    pub(super) text: String,
}

impl SceneReport {
    /// Its line for people.
    pub(super) fn line(&self) -> String {
        let Self { outcome, text, .. } = self;
        format!("{} {:>6}  {text}\n", outcome.sign(), self.took())
    }

    /// How long it took, in seconds; empty for one that was left out.
    pub(super) fn took(&self) -> String {
        match self.outcome {
            SceneOutcome::LeftOut => String::new(),
            _ => format!("{:.1} s", Duration::from_millis(self.took_ms).as_secs_f64()),
        }
    }
}

/// The scenes so far.
#[derive(Debug)]
pub(super) struct SceneList {
    output: Output,
    pub(super) reports: Vec<SceneReport>,
    /// Why the first scene failed that did.
    pub(super) failure: Option<CommandFailure>,
}

impl SceneList {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            reports: Vec::new(),
            failure: None,
        }
    }

    /// Plays a scene and prints its line.
    ///
    /// # Errors
    ///
    /// Stdout cannot be written. That the scene fails is not an error here: it is kept.
    pub(super) async fn play(
        &mut self,
        name: &'static str,
        scene: impl Future<Output = Result<String, CommandFailure>>,
    ) -> Result<(), CommandFailure> {
        let begun = Instant::now();
        let ended = match tokio::time::timeout(LONGEST_SCENE, Box::pin(scene)).await {
            Ok(ended) => ended,
            Err(_) => Err(CommandFailure::timed_out(LONGEST_SCENE)),
        };
        self.over(name, begun.elapsed(), ended)
    }

    /// Prints the line of a scene that was played.
    ///
    /// # Errors
    ///
    /// As [`SceneList::play`].
    pub(super) fn over(
        &mut self,
        name: &'static str,
        took: Duration,
        ended: Result<String, CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let (outcome, text) = match &ended {
            Ok(text) => (SceneOutcome::Shown, text.clone()),
            Err(failure) => (
                SceneOutcome::Failed,
                format!("{name}: {}", failure.status.message),
            ),
        };
        if let Err(failure) = ended {
            self.failure.get_or_insert(failure);
        }
        self.add(name, outcome, took, text)
    }

    /// Says that a scene is left out, and why.
    ///
    /// # Errors
    ///
    /// As [`SceneList::play`].
    pub(super) fn leave_out(
        &mut self,
        name: &'static str,
        what: &str,
        why: &str,
    ) -> Result<(), CommandFailure> {
        let text = format!("left out: {what} ({why})");
        self.add(name, SceneOutcome::LeftOut, Duration::ZERO, text)
    }

    fn add(
        &mut self,
        name: &'static str,
        outcome: SceneOutcome,
        took: Duration,
        text: String,
    ) -> Result<(), CommandFailure> {
        let report = SceneReport {
            name,
            outcome,
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            text,
        };
        if !self.output.json {
            self.output.text(&text::coloured(&report.line()))?;
        }
        self.reports.push(report);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hailwire::{Code, Status};

    use super::*;

    fn quiet() -> SceneList {
        SceneList::new(Output {
            json: true,
            ..Output::default()
        })
    }

    #[tokio::test]
    async fn the_first_failure_is_kept_and_the_scenes_after_it_are_played() {
        let mut scenes = quiet();
        for message in ["first", "second"] {
            let failure = CommandFailure::from(Status::new(Code::Unavailable, message));
            scenes.play("away", async { Err(failure) }).await.unwrap();
        }
        scenes
            .play("there", async { Ok("seen".to_owned()) })
            .await
            .unwrap();
        assert_eq!(scenes.failure.unwrap().status.message, "first");
        let lines: Vec<String> = scenes.reports.iter().map(SceneReport::line).collect();
        assert_eq!(
            lines,
            [
                "✗  0.0 s  away: first\n",
                "✗  0.0 s  away: second\n",
                "✓  0.0 s  seen\n"
            ]
        );
    }

    #[test]
    fn what_is_left_out_says_why_and_takes_no_time() {
        let mut scenes = quiet();
        scenes
            .leave_out("homes", "two homes", "needs root")
            .unwrap();
        assert_eq!(
            scenes.reports[0].line(),
            "–         left out: two homes (needs root)\n"
        );
    }
}
