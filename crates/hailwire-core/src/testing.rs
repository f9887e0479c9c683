//! What tests of several modules need.

use std::time::Instant;

/// Some instant to count from.
#[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
pub(crate) fn start() -> Instant {
    Instant::now()
}
