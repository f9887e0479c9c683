//! Runs a seeded test, the seeds that once failed first. Of use to other crates' tests too, so it names nothing of this one.

use std::panic::{self, AssertUnwindSafe, Location};

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
