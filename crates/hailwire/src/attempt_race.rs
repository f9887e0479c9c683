//! Runs connection attempts in a race ([`DialRace`] decides when each starts), until one is up.

use std::time::Duration;

use hailwire_core::dial_race::{DialAction, DialRace};
use tokio::task::JoinSet;

use crate::clock;

/// What the first attempt that is up came to, and the attempts that still run; or the errors of all. Dropping the future aborts all of them.
pub(crate) async fn run<A, T, E, F>(
    attempts: impl IntoIterator<Item = A>,
    delay: Duration,
    start: impl Fn(A) -> F,
) -> Result<(T, JoinSet<Result<T, E>>), Vec<E>>
where
    F: Future<Output = Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let mut race = DialRace::new(clock::now(), attempts, delay);
    let mut running = JoinSet::new();
    let mut errors = Vec::new();
    loop {
        while let Some(DialAction::Start(attempt)) = race.poll_action() {
            running.spawn(start(attempt));
        }
        if race.is_lost() {
            return Err(errors);
        }
        tokio::select! {
            Some(done) = running.join_next() => match done {
                Ok(Ok(up)) => {
                    race.handle_success();
                    return Ok((up, running));
                }
                Ok(Err(error)) => {
                    errors.push(error);
                    race.handle_failure(clock::now());
                }
                Err(_) => race.handle_failure(clock::now()),
            },
            () = clock::reached(race.poll_timeout()) => race.handle_timeout(clock::now()),
        }
    }
}
