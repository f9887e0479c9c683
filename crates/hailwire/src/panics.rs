//! What a panic costs: the work in which it happened, not the node.
//!
//! A task that panics ends by itself; tokio keeps the others going, and what the task held is dropped: its
//! stream is reset, its connection ends. The loops on which a node depends are begun again instead
//! ([`supervised`]). Each such panic is counted and logged. A panic inside the QUIC engine while it holds one of
//! its locks costs its connection, in `patches/noq`; a process that is about to abort all the same, `hail up`
//! begins again in place. `docs/decisions/0028-panics.md` says why.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::Poll,
    time::Duration,
};

/// A pause before a loop that panicked is begun again, so that one that always does costs little.
const PAUSE: Duration = Duration::from_millis(100);

/// Panics of this process that cost no more than the work in which they happened.
static CONTAINED: AtomicU64 = AtomicU64::new(0);

/// How many there were since this process began.
pub(crate) fn contained() -> u64 {
    CONTAINED.load(Ordering::Relaxed)
}

/// Runs a loop until it ends by itself, and begins it again after a panic.
pub(crate) async fn supervised<W: Future<Output = ()>>(
    what: &'static str,
    mut begin: impl FnMut() -> W,
) {
    while panicked(what, begin()).await {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Runs some work; whether it panicked.
pub(crate) async fn panicked(what: &'static str, work: impl Future<Output = ()>) -> bool {
    let mut work = pin!(work);
    let outcome = poll_fn(|cx| {
        // Nothing of the work is used after a panic but its drop.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    });
    let Err(panic) = outcome.await else {
        return false;
    };
    let count = CONTAINED.fetch_add(1, Ordering::Relaxed) + 1;
    tracing::error!(what, count, panic = words(&*panic), "a panic was contained");
    true
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no words")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_begun_again_and_each_time_is_counted() {
        let rounds = Cell::new(0);
        let before = contained();
        supervised("a loop of a test", || async {
            rounds.set(rounds.get() + 1);
            tokio::task::yield_now().await;
            assert!(rounds.get() > 3, "this panic is part of a test");
        })
        .await;
        assert_eq!(rounds.get(), 4);
        assert!(contained() >= before + 3);
    }
}
