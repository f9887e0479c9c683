//! How a request is made: a slot on a connection, its timeout, and what is recorded of it.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{AgentPool, ConnectionLease, PoolError, StartSignal, lease};
use crate::{event::Event, response::Response};

impl AgentPool {
    /// Asks the agent about an event; all events of a request go to one connection. Waits for at most `deadline`, or the
    /// timeout of the event's phase if that is less.
    ///
    /// Until the first attempt to connect has ended, it waits for that too.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the agent is told that nobody waits, and nothing stays counted.
    pub async fn request(&self, event: Event, deadline: Duration) -> Result<Response, PoolError> {
        self.request_as(None, event, deadline, None).await
    }

    /// Like [`AgentPool::request`], and new requests of one session go to one connection as long as that can serve.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    pub async fn request_in_session(
        &self,
        session: &str,
        event: Event,
        deadline: Duration,
    ) -> Result<Response, PoolError> {
        self.request_as(Some(session), event, deadline, None).await
    }

    /// Like [`AgentPool::request`], behind others that are answered first: its time begins when its start signal is given.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    pub async fn request_queued(
        &self,
        event: Event,
        deadline: Duration,
        turn: &StartSignal,
    ) -> Result<Response, PoolError> {
        self.request_as(None, event, deadline, Some(turn)).await
    }

    /// The longest that a request with this deadline may take, were the agent degraded as much as the pool heeds.
    #[must_use]
    pub fn longest_wait(&self, deadline: Duration) -> Duration {
        stretched(deadline, self.shared.config.stretch.max(1.0))
    }

    /// Chooses the connection for an event and leases a slot on it, without sending: for callers that send
    /// for themselves.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    #[inline]
    pub fn select(
        &self,
        session: Option<&str>,
        event: &Event,
    ) -> Result<ConnectionLease<'_>, PoolError> {
        lease::select(&self.shared, session, event)
    }

    async fn request_as(
        &self,
        session: Option<&str>,
        event: Event,
        deadline: Duration,
        turn: Option<&StartSignal>,
    ) -> Result<Response, PoolError> {
        let started = Instant::now();
        let shared = &self.shared;
        let kind = event.kind();
        let deadline = deadline.min(shared.config.timeouts.of(kind));
        let call = match self.select(session, &event) {
            Err(PoolError::Down) if !shared.attempted.load(Ordering::Acquire) => {
                let tried = shared.until(|| shared.attempted.load(Ordering::Acquire));
                let _ = timeout_at(far_deadline(started, deadline), tried).await;
                self.select(session, &event)
            }
            selected => selected,
        }
        .inspect_err(|error| shared.metrics.failed(kind, error))?;
        let (connection, hold) = call.keep();
        let deadline = match shared.config.stretch {
            most if most > 1.0 => stretched(deadline, connection.timeout_multiplier().min(most)),
            _ => deadline,
        };
        let asked = connection.request(event);
        let answer = match turn {
            None => timeout_at(far_deadline(started, deadline), asked)
                .await
                .ok(),
            Some(turn) => turn.within(deadline, asked).await,
        };
        hold.finish(answer, started.elapsed())
    }
}

/// So much longer; what is a day and more is long enough.
fn stretched(time: Duration, by: f32) -> Duration {
    const DAY: Duration = Duration::from_secs(86_400);
    match time < DAY {
        true => time.mul_f32(by),
        false => time,
    }
}

/// A moment, however far away.
pub(super) fn far_deadline(from: Instant, after: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(30 * 365 * 86_400);
    from + after.min(YEARS)
}
