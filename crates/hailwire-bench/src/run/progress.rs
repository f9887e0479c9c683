//! How far a run is, and how long it will still take.

use std::time::Duration;

use crate::result::{PhaseSeconds, RunPhase};

/// Weight of the estimate against measured times, in seconds.
const FIRST_ESTIMATE_S: f64 = 5.0;

/// Work done and left, in expected seconds. It is told the time and draws nothing.
///
/// Each phase (networks, starting, work, …) is corrected separately: its expected time left is scaled by how long
/// its finished phase took compared with what was expected.
#[derive(Clone, Debug)]
pub struct RunProgress {
    whole: PhaseSeconds,
    behind: PhaseSeconds,
    took: PhaseSeconds,
}

impl RunProgress {
    /// A run with an expected time.
    #[must_use]
    pub fn new(whole: PhaseSeconds) -> Self {
        Self {
            whole,
            behind: PhaseSeconds::default(),
            took: PhaseSeconds::default(),
        }
    }

    /// Records a finished step that was expected to take `expected` seconds, and took `took`.
    pub fn done(&mut self, phase: RunPhase, expected: f64, took: f64) {
        self.behind.add(phase, expected);
        self.took.add(phase, took);
    }

    /// Records a step that will be skipped.
    pub fn spared(&mut self, phase: RunPhase, expected: f64) {
        self.whole.add(phase, -expected);
    }

    /// Share of the expected time that is done, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        let (took, left) = (self.took.sum(), self.left().as_secs_f64());
        if took + left > 0.0 {
            took / (took + left)
        } else {
            1.0
        }
    }

    /// Time left.
    #[must_use]
    pub fn left(&self) -> Duration {
        let left = |phase| {
            let (whole, behind) = (self.whole.of(phase), self.behind.of(phase));
            let first = FIRST_ESTIMATE_S.min(whole.max(0.0));
            let stretch = (self.took.of(phase) + first) / (behind + first).max(f64::MIN_POSITIVE);
            (whole - behind).max(0.0) * stretch
        };
        Duration::from_secs_f64(RunPhase::ALL.into_iter().map(left).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(start_s: f64, work_s: f64) -> RunProgress {
        RunProgress::new(PhaseSeconds {
            start_s,
            work_s,
            ..PhaseSeconds::default()
        })
    }

    #[test]
    fn the_time_left_learns_from_the_time_taken() {
        let mut progress = whole(0.0, 100.0);
        assert_eq!(progress.left(), Duration::from_secs(100));
        progress.done(RunPhase::Work, 50.0, 100.0);
        let slow = progress.left().as_secs_f64();
        assert!((90.0..100.0).contains(&slow), "{slow}");
        progress.done(RunPhase::Work, 50.0, 100.0);
        assert_eq!(progress.share(), 1.0);
        assert_eq!(progress.left(), Duration::ZERO);
    }

    #[test]
    fn a_slow_start_says_nothing_of_the_work() {
        let mut progress = whole(10.0, 100.0);
        progress.done(RunPhase::Start, 10.0, 60.0);
        assert_eq!(progress.left(), Duration::from_secs(100));
        progress.spared(RunPhase::Work, 40.0);
        assert_eq!(progress.left(), Duration::from_secs(60));
        assert_eq!(progress.share(), 0.5);
    }
}
