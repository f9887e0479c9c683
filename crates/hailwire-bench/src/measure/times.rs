//! A histogram of times, read as quantiles and as a curve.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::work::MeasuredWork;

/// The longest time that is recorded as it is: a minute, in nanoseconds.
const MAX_TIME_NS: u64 = 60_000_000_000;

/// Shares at which the curve of a distribution is read.
const CURVE_QUANTILES: [f64; 24] = [
    0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95,
    0.97, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0,
];

/// Times in an HdrHistogram of three digits, from a nanosecond to a minute.
#[derive(Clone, Debug)]
pub struct TimeHistogram(Histogram<u64>);

impl Default for TimeHistogram {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "constant bounds that the crate accepts")]
        Self(Histogram::new_with_bounds(1, MAX_TIME_NS, 3).expect("valid bounds"))
    }
}

impl TimeHistogram {
    /// Records one time; more than a minute counts as a minute.
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanos.clamp(1, MAX_TIME_NS));
    }

    /// Adds the times of another histogram.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can fall outside.
        let _ = self.0.add(&other.0);
    }

    /// How many times were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that a share of all reach or stay below, in microseconds.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }

    /// How many took at most `time`.
    #[must_use]
    pub fn within(&self, time: Duration) -> u64 {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.count_between(0, nanos.min(MAX_TIME_NS))
    }

    /// Quantiles as figures, and the curve.
    #[must_use]
    pub fn measured(&self) -> MeasuredWork {
        if self.0.is_empty() {
            return MeasuredWork::default();
        }
        let named = [
            ("p50_us", 0.5),
            ("p90_us", 0.9),
            ("p95_us", 0.95),
            ("p99_us", 0.99),
            ("p999_us", 0.999),
            ("max_us", 1.0),
        ];
        let mut measured = MeasuredWork {
            distribution: CURVE_QUANTILES
                .iter()
                .map(|share| (*share, self.quantile_us(*share)))
                .collect(),
            ..MeasuredWork::default()
        };
        for (name, share) in named {
            measured = measured.with(name, self.quantile_us(share));
        }
        measured.with("count", self.count() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_taken() {
        let mut times = TimeHistogram::default();
        for ms in 1..=1000 {
            times.record(Duration::from_millis(ms));
        }
        let near = |share: f64, ms: f64| (times.quantile_us(share) / 1e3 - ms).abs() < ms / 500.0;
        assert!(near(0.5, 500.0) && near(0.99, 990.0) && near(1.0, 1000.0));
        assert_eq!(times.within(Duration::from_millis(100)), 100);
        let measured = times.measured();
        assert_eq!(measured.figure("count"), 1000.0);
        assert!(measured.distribution.windows(2).all(|w| w[0].1 <= w[1].1));
        assert_eq!(TimeHistogram::default().measured(), MeasuredWork::default());
    }
}
