//! A histogram in fixed memory, to which any number of threads record.
//!
//! Buckets are log-linear, as in HDR histograms: below 16 each value has its own, and each power of two from there
//! on is divided into 16, so that a value is known to a sixteenth. Values are whole numbers up to 2^32 - 1, larger
//! ones count as that; in microseconds these are 71 minutes. 464 buckets, 3.7 KB, which are there from the first value on.
//!
//! To record is one addition to one bucket. What else one asks of a histogram, also how many values there are and
//! their sum, is worked out of the buckets by whoever asks; the sum takes each value as its bucket's middle and so is
//! right to 3 %.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

const SUB_BUCKETS: u64 = 16;
const SUB_BUCKET_BITS: u32 = SUB_BUCKETS.trailing_zeros();
const BUCKETS: usize = 16 * (33 - SUB_BUCKET_BITS as usize);
const MAX_VALUE: u64 = u32::MAX as u64;

/// A histogram.
#[derive(Debug, Default)]
pub struct LatencyHistogram(OnceLock<BucketArray>);

type BucketArray = Box<[AtomicU64; BUCKETS]>;

impl LatencyHistogram {
    /// Counts a value.
    #[inline]
    pub fn record(&self, value: u64) {
        let buckets = self.0.get_or_init(none);
        if let Some(bucket) = buckets.get(index(value)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many values were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.filled().map(|(_, count)| count).sum()
    }

    /// The sum of all values, to 3 %.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.filled()
            .map(|(bucket, count)| {
                let (low, high) = range(bucket);
                count.saturating_mul(low.midpoint(high))
            })
            .fold(0, u64::saturating_add)
    }

    /// The value that this part of all values, 0 to 1, does not exceed, to a sixteenth above; `None` if there
    /// are none.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let count = self.count();
        let rank = (count as f64 * part.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.filled().find_map(|(bucket, count)| {
            seen += count;
            (seen >= rank).then(|| range(bucket).1)
        })
    }

    /// How many values are less than 2^`power`: exact.
    #[must_use]
    pub fn below_power(&self, power: u32) -> u64 {
        let limit = 1_u64.checked_shl(power).unwrap_or(u64::MAX);
        self.filled()
            .take_while(|(bucket, _)| range(*bucket).0 < limit)
            .map(|(_, count)| count)
            .sum()
    }

    fn filled(&self) -> impl Iterator<Item = (usize, u64)> {
        let buckets = self.0.get().into_iter().flat_map(|buckets| buckets.iter());
        buckets
            .map(|bucket| bucket.load(Ordering::Relaxed))
            .enumerate()
            .filter(|(_, count)| *count > 0)
    }
}

#[cold]
fn none() -> BucketArray {
    Box::new([const { AtomicU64::new(0) }; BUCKETS])
}

/// A value's bucket.
#[inline]
fn index(value: u64) -> usize {
    let value = value.min(MAX_VALUE);
    // The values below 32 fall into the first two rows, which are as wide as each other.
    let row = (value | SUB_BUCKETS).ilog2() - SUB_BUCKET_BITS;
    let part = value >> row;
    usize::try_from(u64::from(row) * SUB_BUCKETS + part).unwrap_or(0)
}

/// The least and the greatest value of a bucket.
fn range(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    let row = (bucket / SUB_BUCKETS).saturating_sub(1);
    let part = bucket - row * SUB_BUCKETS;
    (part << row, ((part + 1) << row) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_the_range_of_its_bucket_and_the_ranges_meet() {
        for power in 0..32 {
            for off in [0_i64, 1, -1, 3, 1000, -7] {
                let value = (1_u64 << power).saturating_add_signed(off);
                let (low, high) = range(index(value));
                assert!(low <= value && value <= high, "{value}: {low} to {high}");
                assert!(high - low <= low / 16);
            }
        }
        for bucket in 1..BUCKETS {
            assert_eq!(range(bucket - 1).1 + 1, range(bucket).0);
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_right_to_a_sixteenth() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for value in 1..=100_000 {
            histogram.record(value);
        }
        for (part, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            let found = histogram.quantile(part).unwrap() as f64;
            assert!((exact..=exact * 1.0625).contains(&found), "{part}: {found}");
        }
        assert_eq!(histogram.count(), 100_000);
        assert_eq!(histogram.below_power(10), 1_023);
        let exact = 100_000_u64 * 100_001 / 2;
        assert!(histogram.sum().abs_diff(exact) < exact / 32);
    }
}
