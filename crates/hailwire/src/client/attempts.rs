//! A call that is made again, or beside itself: carries out what [`CallAttempts`] decides.

use std::{future::pending, sync::PoisonError};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use hailwire_core::call_attempts::{AttemptAction, AttemptPolicy, CallAttempts};
use hailwire_wire::{CallHeader, Code, Status, frame::FrameKind};
use tokio::time::{self, Instant};

use super::{Client, ClientKind, call::attempt};
use crate::{body::Body, session::Answer};

/// The body of a call that allows further attempts, if it may be made twice at all.
pub(super) fn repeatable(header: &CallHeader, body: &Body) -> Result<Bytes, Status> {
    let refused = |why: &str, hint: &str| {
        let message = format!("the call of `{}` cannot be made again: {why}", header.to);
        Err(Status::new(Code::InvalidArgument, message).with_hint(hint))
    };
    if header.durable.is_durable() {
        return refused(
            "it is durable, so its node makes it again as often as need be",
            "leave retries and hedging out",
        );
    }
    if header.idempotency_key.is_empty() {
        return refused(
            "it has no idempotency key",
            "give it one that is the same only for the same work",
        );
    }
    let whole = body.whole();
    whole.map_or_else(
        || refused("its body is a stream", "give the body as bytes"),
        Ok,
    )
}

/// Makes a call and what further attempts it allows, until one has an answer that begins or the last has failed. Each attempt
/// keeps the deadline by itself, and no pause reaches it.
pub(super) async fn call(
    client: &Client,
    kind: FrameKind,
    header: &CallHeader,
    body: &Bytes,
    policy: AttemptPolicy,
    at: Option<Instant>,
) -> Result<Answer, Status> {
    let budget = match &client.inner {
        ClientKind::Embedded(node) => node.retry_budget(),
        ClientKind::Attached(attached) => &attached.retry_budget,
    };
    let budget = || budget.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline = at.map(Instant::into_std);
    let now = || Instant::now().into_std();
    let mut attempts = CallAttempts::new(now(), policy, deadline, &mut budget());
    let mut running = FuturesUnordered::new();
    let mut ended = Vec::new();
    loop {
        while let Some(action) = attempts.poll_action() {
            match action {
                AttemptAction::Start(number) => {
                    let header = Box::new(header.clone());
                    let body = Body::from(body.clone());
                    let made = attempt(client, kind, header, body, at);
                    running.push(async move { (number, made.await) });
                }
                AttemptAction::Finish(number) => {
                    let place = ended.iter().position(|(ended, _)| *ended == number);
                    let missing = || {
                        let message = "an attempt that has not ended was chosen";
                        Err(Status::new(Code::Internal, message))
                    };
                    return place.map_or_else(missing, |place| ended.swap_remove(place).1);
                }
            }
        }
        let due = attempts.poll_timeout();
        let timer = async {
            match due {
                Some(due) => time::sleep_until(due.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            Some((number, result)) = running.next() => {
                match &result {
                    Ok(_) => attempts.handle_answer(number),
                    Err(status) => {
                        attempts.handle_failure(now(), number, status, draw(), &budget());
                    }
                }
                ended.push((number, result));
            }
            () = timer => attempts.handle_timeout(now(), &mut budget()),
        }
    }
}

/// A number at random, or one that leaves a pause as it is.
fn draw() -> u32 {
    getrandom::u32().unwrap_or(0)
}
