//! How far a run is, and how long it will still take.

use std::time::Duration;

/// Work behind and before us, in expected seconds. Told the time; draws nothing.
#[derive(Clone, Debug)]
pub struct Progress {
    whole: f64,
    behind: f64,
    /// Share of the whole that is behind when what runs now ends.
    pub what: String,
}

impl Progress {
    /// Of a run that is expected to take `whole` seconds.
    #[must_use]
    pub fn new(whole: f64) -> Self {
        Self {
            whole: whole.max(f64::MIN_POSITIVE),
            behind: 0.0,
            what: String::new(),
        }
    }

    /// Something that was expected to take so long is behind.
    pub fn done(&mut self, seconds: f64) {
        self.behind = (self.behind + seconds).min(self.whole);
    }

    /// Share of the whole that is behind, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.behind / self.whole
    }

    /// Time left after `elapsed`: what was expected, stretched as what is behind was.
    #[must_use]
    pub fn left(&self, elapsed: Duration) -> Duration {
        let elapsed = elapsed.as_secs_f64();
        // A little of the expectation stands in until there is experience.
        let experience = 5.0_f64.min(self.whole);
        let stretch = (elapsed + experience) / (self.behind + experience);
        Duration::from_secs_f64((self.whole - self.behind) * stretch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_learns_from_the_time_taken() {
        let mut progress = Progress::new(100.0);
        assert_eq!(progress.left(Duration::ZERO), Duration::from_secs(100));
        progress.done(50.0);
        let slow = progress.left(Duration::from_secs(100)).as_secs_f64();
        assert!((90.0..100.0).contains(&slow), "{slow}");
        progress.done(80.0);
        assert_eq!(progress.share(), 1.0);
        assert_eq!(progress.left(Duration::from_secs(300)), Duration::ZERO);
    }
}
