//! How far a run is, and how long it will still take.

use std::time::Duration;

use crate::result::{Part, Spent};

/// Expected seconds that stand in for experience at first.
const FIRST: f64 = 5.0;

/// Work behind and before us, in expected seconds. Told the time; draws nothing.
///
/// Each part (networks, starting, work, …) learns for itself: what is left of it was expected, stretched as
/// what is behind of it was.
#[derive(Clone, Debug)]
pub struct Progress {
    whole: Spent,
    behind: Spent,
    took: Spent,
}

impl Progress {
    /// Of a run that is expected to take so long.
    #[must_use]
    pub fn new(whole: Spent) -> Self {
        Self {
            whole,
            behind: Spent::default(),
            took: Spent::default(),
        }
    }

    /// Something that was expected to take `expected` seconds is behind, and took `took`.
    pub fn done(&mut self, part: Part, expected: f64, took: f64) {
        self.behind.add(part, expected);
        self.took.add(part, took);
    }

    /// Something that was expected to take so long will not be done.
    pub fn spared(&mut self, part: Part, expected: f64) {
        self.whole.add(part, -expected);
    }

    /// Share of the whole that is behind, 0 to 1, as the time goes.
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
        let left = |part| {
            let (whole, behind) = (self.whole.of(part), self.behind.of(part));
            let first = FIRST.min(whole.max(0.0));
            let stretch = (self.took.of(part) + first) / (behind + first).max(f64::MIN_POSITIVE);
            (whole - behind).max(0.0) * stretch
        };
        Duration::from_secs_f64(Part::ALL.into_iter().map(left).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(start_s: f64, work_s: f64) -> Progress {
        Progress::new(Spent {
            start_s,
            work_s,
            ..Spent::default()
        })
    }

    #[test]
    fn the_time_left_learns_from_the_time_taken() {
        let mut progress = whole(0.0, 100.0);
        assert_eq!(progress.left(), Duration::from_secs(100));
        progress.done(Part::Work, 50.0, 100.0);
        let slow = progress.left().as_secs_f64();
        assert!((90.0..100.0).contains(&slow), "{slow}");
        progress.done(Part::Work, 50.0, 100.0);
        assert_eq!(progress.share(), 1.0);
        assert_eq!(progress.left(), Duration::ZERO);
    }

    #[test]
    fn a_slow_start_says_nothing_of_the_work() {
        let mut progress = whole(10.0, 100.0);
        progress.done(Part::Start, 10.0, 60.0);
        assert_eq!(progress.left(), Duration::from_secs(100));
        progress.spared(Part::Work, 40.0);
        assert_eq!(progress.left(), Duration::from_secs(60));
        assert_eq!(progress.share(), 0.5);
    }
}
