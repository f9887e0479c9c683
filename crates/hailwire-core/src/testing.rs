//! What tests of several modules need.
//!
//! A machine that is followed through random orders of events keeps the seeds that once failed, in a list `KEPT` beside
//! its test, each with what was wrong; [`for_each_seed`] runs those first.

use std::{
    panic::{self, AssertUnwindSafe, Location},
    time::Instant,
};

use hailwire_wire::NodeId;
use rand_pcg::{Pcg32, rand_core::Rng as _};

/// Some instant to count from.
#[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

/// A node's key, made of one byte.
pub(crate) fn node(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

/// Numbers below a bound, drawn from a seed; each kind of run has a stream of its own.
pub(crate) fn draws(seed: u64, stream: u64) -> impl FnMut(u32) -> u32 {
    let mut random = Pcg32::new(seed, stream);
    move |most| random.next_u32() % most
}

/// Follows a machine through the seeds that once failed, and then through the first `seeds` of all, or as many fewer as
/// `HAILWIRE_SEEDS` says when they are compiled. A failure says which seed it was and where to keep it.
#[track_caller]
pub(crate) fn for_each_seed(kept: &[u64], seeds: u64, follow: impl Fn(u64)) {
    let most = option_env!("HAILWIRE_SEEDS").map_or(seeds, |most| {
        most.parse().expect("HAILWIRE_SEEDS is a number")
    });
    let beside = Location::caller();
    for seed in kept.iter().copied().chain(0..seeds.min(most)) {
        // What is followed begins anew with each seed, so that a panic leaves nothing behind.
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn seeds_that_once_failed_are_run_before_all_others_and_a_failure_ends_the_run() {
        let run = RefCell::new(Vec::new());
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
            for_each_seed(&[77, 5], 4, |seed| {
                run.borrow_mut().push(seed);
                // Not a panic of its own, which would print where it was.
                if seed == 2 {
                    panic::resume_unwind(Box::new("the cause"));
                }
            });
        }));
        let cause = outcome.expect_err("a seed has failed");
        assert_eq!(cause.downcast_ref::<&str>(), Some(&"the cause"));
        assert_eq!(run.into_inner(), [77, 5, 0, 1, 2]);
    }
}
