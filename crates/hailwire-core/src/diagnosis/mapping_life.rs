//! How long a NAT keeps a mapping that nobody uses (RFC 4787, 4.3), from which of several survived their silence (RFC 5780, 4.6).

use std::time::Duration;

use super::{Finding, FindingLevel};

/// How long mappings are left alone, each one of its own.
pub const LIFETIME_STEPS: [Duration; 5] = [
    Duration::from_secs(10),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(120),
];

/// A mapping that lives shorter is worth a note: each path must be kept alive more often than most networks need.
const SHORT: Duration = Duration::from_secs(30);

/// One that lives shorter is lost with two keep-alives, which a node sends every 5 s.
const TOO_SHORT: Duration = Duration::from_secs(10);

/// The steps that are not longer than `longest`; at least the shortest.
pub fn lifetime_steps(longest: Duration) -> impl Iterator<Item = Duration> {
    let steps = LIFETIME_STEPS.into_iter().enumerate();
    let fit = steps.filter(move |(place, step)| *place == 0 || *step <= longest);
    fit.map(|(_, step)| step)
}

/// What was seen of mappings that were left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingLife {
    /// Not even a fresh one was answered at, so nothing is known.
    Unknown,
    /// They were there after `lasts`, and gone after `gone_after`, where that was seen.
    Seen {
        /// The longest silence that one survived; zero for none.
        lasts: Duration,
        /// The shortest that one did not.
        gone_after: Option<Duration>,
    },
}

impl MappingLife {
    /// From each silence and whether its mapping was there afterwards. An answer is proof; that none came may be a loss, so the
    /// longest one that survived counts.
    #[must_use]
    pub fn of(steps: &[(Duration, bool)]) -> Self {
        let survived = steps.iter().filter(|(_, there)| *there);
        let lasts = survived.map(|(step, _)| *step).max().unwrap_or_default();
        let gone = steps.iter().filter(|(step, there)| !there && *step > lasts);
        Self::Seen {
            lasts,
            gone_after: gone.map(|(step, _)| *step).min(),
        }
    }

    pub(super) fn finding(self) -> Finding {
        match self {
            Self::Unknown => Finding::mapping_life_unknown(),
            Self::Seen {
                lasts,
                gone_after: Some(gone),
            } if gone <= SHORT => {
                let mut finding = Finding::mapping_short(lasts, gone);
                if gone <= TOO_SHORT {
                    finding.level = FindingLevel::Warning;
                }
                finding
            }
            Self::Seen { lasts, .. } => Finding::mapping_lasts(lasts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(steps: &[(u64, bool)]) -> (&'static str, FindingLevel) {
        let seconds = |(step, there): &(u64, bool)| (Duration::from_secs(*step), *there);
        let steps: Vec<_> = steps.iter().map(seconds).collect();
        let finding = MappingLife::of(&steps).finding();
        (finding.code, finding.level)
    }

    #[test]
    fn a_mapping_that_is_gone_before_half_a_minute_is_short() {
        let all = |lives: u64| LIFETIME_STEPS.map(|step| (step.as_secs(), step.as_secs() <= lives));
        assert_eq!(found(&all(5)), ("mapping-short", FindingLevel::Warning));
        assert_eq!(found(&all(10)), ("mapping-short", FindingLevel::Note));
        assert_eq!(found(&all(20)), ("mapping-short", FindingLevel::Note));
        assert_eq!(found(&all(30)), ("mapping-lasts", FindingLevel::Good));
        assert_eq!(found(&all(500)), ("mapping-lasts", FindingLevel::Good));
        // One answer was lost.
        let lost = [(10, true), (15, false), (30, true), (60, false)];
        assert_eq!(found(&lost).0, "mapping-lasts");
        let unknown = MappingLife::Unknown.finding();
        assert_eq!(unknown.code, "mapping-life-unknown");
    }

    #[test]
    fn no_step_is_longer_than_was_asked_for_but_the_first() {
        let steps = |longest| lifetime_steps(Duration::from_secs(longest)).count();
        assert_eq!([0, 10, 29, 30, 119, 9999].map(steps), [1, 1, 2, 3, 4, 5]);
    }
}
