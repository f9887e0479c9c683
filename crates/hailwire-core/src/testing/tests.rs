//! What runs the seeds is tried itself.

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe},
};

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
