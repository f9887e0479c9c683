//! Seeds of random runs: numbers drawn from them, and those that once failed before all others.

use std::panic::{self, AssertUnwindSafe, Location};

use rand_pcg::{Pcg32, rand_core::Rng as _};

/// Numbers below a bound, drawn from a seed.
pub(super) struct Draws(Pcg32);

impl Draws {
    /// Each kind of run has a stream of its own.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self(Pcg32::new(seed, stream))
    }

    pub(super) fn below(&mut self, most: u32) -> u32 {
        self.0.next_u32() % most
    }

    /// True so many times in a hundred.
    pub(super) fn percent(&mut self, of: u32) -> bool {
        self.below(100) < of
    }

    pub(super) fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u32) as usize].clone()
    }
}

/// Runs the seeds that once failed, and then the first `seeds` of all, or as many fewer as `HAILWIRE_SEEDS` says when they are
/// compiled. A failure says which seed it was and where to keep it.
#[track_caller]
pub(super) fn for_each_seed(kept: &[u64], seeds: u64, follow: impl Fn(u64)) {
    let most = option_env!("HAILWIRE_SEEDS").map_or(seeds, |most| {
        most.parse().expect("HAILWIRE_SEEDS is a number")
    });
    let beside = Location::caller();
    for seed in kept.iter().copied().chain(0..seeds.min(most)) {
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| follow(seed)));
        if let Err(cause) = outcome {
            eprintln!(
                "seed {seed} failed; once it is mended, keep it: add it to `KEPT` at {}:{} and say what was wrong",
                beside.file(),
                beside.line()
            );
            panic::resume_unwind(cause);
        }
    }
}
