//! Arithmetic of measurements: spreads, distributions, schedules, and what a process has used.

mod open_loop;
pub mod process;
mod times;

use std::time::Duration;

pub use open_loop::{NextMessage, OpenLoop};
pub use times::TimeHistogram;

/// A time in milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// What may grow from the second quarter of a soak to the last: what an allocator keeps is not the same at any moment.
const MAX_GROWTH: f64 = 1.1;

/// The means of the second quarter and of the last; nothing where there are less than eight values.
pub(crate) fn quarters(values: &[u64]) -> Option<[f64; 2]> {
    let quarter = values.len() / 4;
    if quarter < 2 {
        return None;
    }
    let mean = |values: &[u64]| values.iter().sum::<u64>() as f64 / values.len() as f64;
    let second = &values[quarter..2 * quarter];
    Some([mean(second), mean(&values[values.len() - quarter..])])
}

/// By how many hundredths something grew from the second quarter of a soak to the last, if that is more than it may.
pub(crate) fn too_much_growth(values: &[u64]) -> Option<f64> {
    let [second, last] = quarters(values)?;
    (last > second * MAX_GROWTH).then(|| (last / second - 1.0) * 100.0)
}

/// Median, minimum and maximum of some repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median; of an even number the mean of the two middle values.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of at least one value.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            *values.get(middle)?
        } else {
            f64::midpoint(*values.get(middle - 1)?, *values.get(middle)?)
        };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_with_its_bounds() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!(
            spread,
            Spread {
                median: 2.5,
                min: 1.0,
                max: 10.0
            }
        );
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
