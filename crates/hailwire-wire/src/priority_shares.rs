//! Which priority is served next where several wait: for room on a connection, or for a place in an agent.
//!
//! Each priority has a share of what there is, by [`WEIGHTS`]; what one does not use goes to the others. A priority for which
//! nothing waited for a while is not behind those for which something did, and of equal ones the highest is first. So a critical message among bulk
//! leaves at once, and low still gets its part where all others take as much as they can. It is weighted fair queueing in virtual time (Demers,
//! Keshav, Shenker 1989), with one queue a priority.

use crate::header::Priority;

/// Levels of priority.
pub const LEVELS: usize = Priority::ALL.len();

/// The shares of low, medium, high and critical, in hundredths where something waits for all four.
pub const WEIGHTS: [u64; LEVELS] = [3, 9, 24, 64];

/// What a unit of each level costs in virtual time: 100 over its weight, in thousandths, so that whole numbers do.
const COSTS: [u64; LEVELS] = [
    100_000 / WEIGHTS[0],
    100_000 / WEIGHTS[1],
    100_000 / WEIGHTS[2],
    100_000 / WEIGHTS[3],
];

/// What each priority was served, in virtual time. Whether its units are bytes or calls is for whoever counts.
#[derive(Clone, Debug, Default)]
pub struct PriorityShares {
    passed: [u64; LEVELS],
}

impl PriorityShares {
    /// Which of the levels for which something waits is next, where each would be served at most `most` units at once; `None` where nothing
    /// waits. The levels are those of [`Priority::ALL`].
    pub fn next(&mut self, waits: [bool; LEVELS], most: u32) -> Option<usize> {
        let waiting = (0..LEVELS).rev().filter(|level| waits[*level]);
        // Who would be through with it first.
        let next = waiting.min_by_key(|level| {
            let served = COSTS[*level] * u64::from(most);
            self.passed[*level].saturating_add(served)
        })?;
        let now = self.passed[next];
        // Who wants nothing saves nothing up.
        for (level, passed) in self.passed.iter_mut().enumerate() {
            if !waits[level] {
                *passed = (*passed).max(now);
            }
        }
        Some(next)
    }

    /// A level was served so many units.
    pub fn served(&mut self, level: usize, units: usize) {
        if let (Some(passed), Some(cost)) = (self.passed.get_mut(level), COSTS.get(level)) {
            *passed = passed.saturating_add(cost.saturating_mul(units as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u32 = crate::limits::MUX_MAX_DATA as u32;

    /// What each level sent of `frames`, where those of `has` always have something; of different sizes.
    fn shares(has: [bool; LEVELS], frames: u32) -> [f64; LEVELS] {
        let sizes = [16_000, 9_000, 1_000, 300];
        let (mut shares, mut sent) = (PriorityShares::default(), [0_usize; LEVELS]);
        for _ in 0..frames {
            let level = shares.next(has, FRAME).unwrap();
            shares.served(level, sizes[level]);
            sent[level] += sizes[level];
        }
        let all: usize = sent.iter().sum();
        sent.map(|bytes| bytes as f64 / all as f64)
    }

    #[test]
    fn every_priority_gets_its_share_of_bytes_and_what_is_unused_goes_to_the_others() {
        for mask in 1..1_u32 << LEVELS {
            let has: [bool; LEVELS] = std::array::from_fn(|level| mask >> level & 1 == 1);
            let weights: u64 = (0..LEVELS).filter(|i| has[*i]).map(|i| WEIGHTS[i]).sum();
            for (level, share) in shares(has, 100_000).into_iter().enumerate() {
                let fair = match has[level] {
                    true => WEIGHTS[level] as f64 / weights as f64,
                    false => 0.0,
                };
                assert!((share - fair).abs() < 0.01, "{has:?}: {level} has {share}");
                assert!(!has[level] || share >= 0.02, "{has:?}: {level} starves");
            }
        }
    }

    #[test]
    fn critical_is_next_whenever_it_comes_after_a_pause_and_saves_nothing_up() {
        let mut shares = PriorityShares::default();
        let others = [true, true, true, false];
        for i in 0..1000 {
            let level = shares.next(others, FRAME).unwrap();
            shares.served(level, 16_000);
            if i % 10 == 0 {
                assert_eq!(shares.next([true; LEVELS], FRAME), Some(3));
                shares.served(3, 1_000);
            }
        }
        // After all that quiet a burst has its share and no more: of 600 KB of critical, low has sent something.
        let mut low = 0;
        for _ in 0..100 {
            let level = shares.next([true, false, false, true], FRAME).unwrap();
            shares.served(level, 16_000);
            low += u32::from(level == 0);
        }
        assert!((2..10).contains(&low), "{low} of 100");
        assert_eq!(shares.next([false; LEVELS], FRAME), None);
    }

    #[test]
    fn the_counters_do_not_overflow() {
        let mut shares = PriorityShares::default();
        shares.served(0, usize::MAX);
        shares.served(0, usize::MAX);
        shares.served(9, 1);
        assert_eq!(shares.next([true, true, false, false], FRAME), Some(1));
    }
}
