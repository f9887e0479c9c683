//! The time, for the machines of `hailwire-core`, which are told it: tokio's clock, so that it is virtual in tests.

use std::time::Instant;

/// What time it is.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Resolves at the time that a machine's `poll_timeout` names, and never where it names none.
pub(crate) async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
