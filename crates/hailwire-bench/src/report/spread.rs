//! Whether two subjects, or two runs, differ.
//!
//! Two subjects of one run were interleaved, so their repeats are paired: the ratio is taken repeat by
//! repeat. They differ when every pair lies on the same side of 1; fewer than [`MIN_REPEATS`] pairs are not
//! judged. Two runs were not interleaved: they differ when their ranges
//! do not touch. Decision 0020 says why.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figure::BetterDirection;
use crate::measure::Spread;

/// The fewest repeats of which a difference is judged. With five pairs, chance alone puts all of them on
/// one side once in sixteen times; with three, once in four.
pub(crate) const MIN_REPEATS: usize = 3;

/// The result of a comparison, from the view of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceVerdict {
    /// The first is better, beyond the spread.
    Better,
    /// The first is worse, beyond the spread.
    Worse,
    /// The spread hides a difference, if there is one.
    NoDifference,
    /// There are too few repeats to say.
    TooFew,
}

impl DifferenceVerdict {
    /// In words.
    #[must_use]
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifference => "no difference",
            Self::TooFew => "too few repeats",
        }
    }
}

/// One divided by the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RatioSpread {
    /// Median, least and most.
    pub(crate) spread: Spread,
    /// Of how many pairs, or of the smaller number of repeats.
    pub(crate) count: usize,
}

impl RatioSpread {
    /// Paired repeat by repeat; nothing where no repeat has both, or the other is 0.
    #[must_use]
    pub(crate) fn paired(ours: &BTreeMap<u32, f64>, theirs: &BTreeMap<u32, f64>) -> Option<Self> {
        let ratios: Vec<f64> = ours
            .iter()
            .filter_map(|(repeat, value)| Some(value / theirs.get(repeat)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        let count = ratios.len();
        Some(Self {
            spread: Spread::of(ratios)?,
            count,
        })
    }

    /// Of two runs: the ratio of the medians, between the smallest and the largest that any two
    /// repeats give.
    #[must_use]
    pub(crate) fn unpaired(after: &Spread, before: &Spread, count: usize) -> Option<Self> {
        let spread = Spread {
            median: after.median / before.median,
            min: after.min / before.max,
            max: after.max / before.min,
        };
        let whole = [spread.median, spread.min, spread.max];
        whole
            .iter()
            .all(|ratio| ratio.is_finite())
            .then_some(Self { spread, count })
    }

    /// The verdict for a figure of which `better` is better.
    #[must_use]
    pub(crate) fn verdict(&self, better: BetterDirection) -> DifferenceVerdict {
        if self.count < MIN_REPEATS {
            return DifferenceVerdict::TooFew;
        }
        match (self.spread.max < 1.0, self.spread.min > 1.0, better) {
            (true, _, BetterDirection::Less) | (_, true, BetterDirection::More) => {
                DifferenceVerdict::Better
            }
            (true, _, BetterDirection::More) | (_, true, BetterDirection::Less) => {
                DifferenceVerdict::Worse
            }
            (false, false, _) => DifferenceVerdict::NoDifference,
        }
    }

    /// How many times as good the first is: above 1 it is ahead.
    #[must_use]
    pub(crate) fn lead(&self, better: BetterDirection) -> f64 {
        match better {
            BetterDirection::More => self.spread.median,
            BetterDirection::Less => 1.0 / self.spread.median,
        }
    }

    /// `0.71 × (0.63 – 0.73)`.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let Spread { median, min, max } = self.spread;
        format!("{} × ({} – {})", times(median), times(min), times(max))
    }
}

pub(crate) fn times(ratio: f64) -> String {
    if ratio.abs() < 9.995 {
        format!("{ratio:.2}")
    } else {
        super::figure::number(ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeats(values: &[f64]) -> BTreeMap<u32, f64> {
        (1..).zip(values.iter().copied()).collect()
    }

    fn verdict(ours: &[f64], theirs: &[f64], better: BetterDirection) -> DifferenceVerdict {
        RatioSpread::paired(&repeats(ours), &repeats(theirs))
            .unwrap()
            .verdict(better)
    }

    #[test]
    fn one_pair_on_the_other_side_hides_the_difference() {
        let theirs = [10.0, 10.0, 10.0, 10.0, 10.0];
        let ours = [5.0, 5.0, 5.0, 5.0, 5.0];
        assert_eq!(
            verdict(&ours, &theirs, BetterDirection::Less),
            DifferenceVerdict::Better
        );
        assert_eq!(
            verdict(&ours, &theirs, BetterDirection::More),
            DifferenceVerdict::Worse
        );
        let ours = [5.0, 5.0, 5.0, 5.0, 10.1];
        assert_eq!(
            verdict(&ours, &theirs, BetterDirection::Less),
            DifferenceVerdict::NoDifference
        );
    }

    #[test]
    fn pairs_are_compared_even_where_the_ranges_overlap() {
        let (ours, theirs) = ([10.0, 20.0, 30.0], [11.0, 22.0, 33.0]);
        assert_eq!(
            verdict(&ours, &theirs, BetterDirection::Less),
            DifferenceVerdict::Better
        );
    }

    #[test]
    fn two_repeats_say_nothing() {
        assert_eq!(
            verdict(&[1.0, 1.0], &[2.0, 2.0], BetterDirection::Less),
            DifferenceVerdict::TooFew
        );
    }

    #[test]
    fn a_division_by_nothing_is_no_ratio() {
        assert_eq!(
            RatioSpread::paired(&repeats(&[1.0]), &repeats(&[0.0])),
            None
        );
        assert_eq!(
            RatioSpread::paired(&repeats(&[1.0]), &BTreeMap::new()),
            None
        );
    }

    #[test]
    fn two_runs_differ_when_their_ranges_do_not_touch() {
        let spread = |min, median, max| Spread { median, min, max };
        let of = |after: Spread, before: Spread| {
            let ratio = RatioSpread::unpaired(&after, &before, 5).unwrap();
            ratio.verdict(BetterDirection::Less)
        };
        let before = spread(9.0, 10.0, 11.0);
        assert_eq!(of(spread(6.0, 7.0, 8.0), before), DifferenceVerdict::Better);
        assert_eq!(
            of(spread(12.0, 13.0, 14.0), before),
            DifferenceVerdict::Worse
        );
        assert_eq!(
            of(spread(8.0, 8.5, 9.5), before),
            DifferenceVerdict::NoDifference
        );
    }

    #[test]
    fn a_lead_above_one_is_ahead_whichever_way_is_better() {
        let ratio = RatioSpread::paired(&repeats(&[5.0]), &repeats(&[10.0])).unwrap();
        assert!((ratio.lead(BetterDirection::Less) - 2.0).abs() < 1e-9);
        assert!((ratio.lead(BetterDirection::More) - 0.5).abs() < 1e-9);
        assert_eq!(ratio.text(), "0.50 × (0.50 – 0.50)");
    }
}
