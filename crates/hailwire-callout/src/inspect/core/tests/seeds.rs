//! Seeds of random runs: numbers drawn from them, and those that once failed before all others.

#[path = "../../../../../hailwire-core/src/testing/seeds.rs"]
mod runs;

use rand_pcg::{Pcg32, rand_core::Rng as _};

pub(super) use runs::for_each_seed;

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
