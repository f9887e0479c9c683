//! Starts the timeout of a request that was sent behind others.
//!
//! Chunks of a body leave while those before them are unanswered, and are answered in their order. So what a chunk may take
//! is counted from when it is the first that is unanswered: an agent that is slow with one has not been slow with those behind it, and
//! one that stalls with a chunk behind others has stalled as with any.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::request::far_deadline;

/// Says when the timeout of a queued request starts. Clones share one signal.
///
/// Whoever awaits the request calls [`start`](Self::start) when it is the first unanswered one, and then polls it.
#[derive(Clone, Debug, Default)]
pub struct StartSignal(Arc<OnceLock<Instant>>);

impl StartSignal {
    /// It has come, now. Once it has, this does nothing.
    pub fn start(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Waits for something until so much time has passed since its turn came. `None` where that is over.
    ///
    /// # Cancel safety
    ///
    /// What is waited for is dropped.
    pub async fn within<T>(&self, time: Duration, asked: impl Future<Output = T>) -> Option<T> {
        let mut asked = pin!(asked);
        let mut over = None;
        poll_fn(|context| {
            if let Poll::Ready(answer) = asked.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            let Some(since) = self.0.get() else {
                return Poll::Pending;
            };
            let over =
                over.get_or_insert_with(|| Box::pin(sleep_until(far_deadline(*since, time))));
            over.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}
