//! One call for each of many inputs, so many in flight and no more.

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::{
    StreamExt as _,
    future::{BoxFuture, FutureExt as _},
    stream::{BoxStream, FuturesUnordered},
};
use hailwire_wire::Status;

use super::{MAX_ANSWER, MAX_IN_FLIGHT};
use crate::client::Call;

/// How a [`map`] goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// Most calls in flight, those included whose answers wait to be read: from 1 to [`MAX_IN_FLIGHT`]; beyond, the nearest of the
    /// two. Default 16.
    pub in_flight: usize,
    /// Whether answers come in the order of the calls, or as they are done. Default: in order.
    pub ordered: bool,
    /// Largest answer in bytes; a larger one is `resource_exhausted`. So a map holds [`MapLimits::in_flight`] times that at most.
    /// Default [`MAX_ANSWER`].
    pub max_answer: usize,
}

impl Default for MapLimits {
    fn default() -> Self {
        Self {
            in_flight: 16,
            ordered: true,
            max_answer: MAX_ANSWER,
        }
    }
}

/// What came of one call.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Which call, counted from 0.
    pub index: u64,
    /// Where it went.
    pub to: String,
    /// The whole answer, or the status with which the call failed.
    pub outcome: Result<Bytes, Status>,
}

/// Makes calls as a stream gives them, and gives their answers as a stream.
///
/// **Back-pressure**: no call is taken from `calls` before there is a place for it, and a place is free once an answer has been read. So a
/// slow reader slows the calls, and slow agents slow whoever makes the inputs.
///
/// ```no_run
/// # async fn example(client: hailwire::Client) {
/// use futures_util::{StreamExt as _, stream};
/// use hailwire::coordination::{MapLimits, map};
///
/// let pages = stream::iter(1..=1000);
/// let calls = pages.map(move |page| client.call("summarise").body(format!("page {page}")));
/// let mut replies = map(calls, MapLimits { in_flight: 32, ..MapLimits::default() });
/// while let Some(reply) = replies.next().await {
///     println!("{}: {:?}", reply.index, reply.outcome);
/// }
/// # }
/// ```
pub fn map(calls: impl Stream<Item = Call> + Send + 'static, limits: MapLimits) -> Replies {
    Replies {
        calls: Some(calls.boxed()),
        limits,
        running: FuturesUnordered::new(),
        done: BTreeMap::new(),
        taken: 0,
        given: 0,
    }
}

/// The answers of a [`map`]. Dropping it cancels the calls in flight; no further one is made.
#[must_use = "no call is made before it is polled"]
pub struct Replies {
    /// `None` once there are no more.
    calls: Option<BoxStream<'static, Call>>,
    limits: MapLimits,
    running: FuturesUnordered<BoxFuture<'static, Reply>>,
    /// Answers whose turn has not come.
    done: BTreeMap<u64, Reply>,
    taken: u64,
    given: u64,
}

impl Replies {
    /// The next answer; `None` after the last.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop: no answer is lost.
    pub async fn next(&mut self) -> Option<Reply> {
        poll_fn(|context| self.poll_next_unpin(context)).await
    }

    /// How many calls are in flight, those included whose answers wait to be read.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.running.len() + self.done.len()
    }

    fn fill(&mut self, context: &mut Context<'_>) {
        let most = self.limits.in_flight.clamp(1, MAX_IN_FLIGHT);
        while self.in_flight() < most
            && let Some(calls) = &mut self.calls
        {
            match calls.poll_next_unpin(context) {
                Poll::Ready(Some(call)) => {
                    let (index, max_answer) = (self.taken, self.limits.max_answer);
                    self.taken += 1;
                    self.running.push(made(call, index, max_answer).boxed());
                }
                Poll::Ready(None) => self.calls = None,
                Poll::Pending => return,
            }
        }
    }
}

async fn made(call: Call, index: u64, max_answer: usize) -> Reply {
    let to = call.to().to_owned();
    let outcome = match call.send().await {
        Ok(mut answer) => answer.bytes(max_answer).await,
        Err(status) => Err(status),
    };
    Reply { index, to, outcome }
}

impl Stream for Replies {
    type Item = Reply;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Reply>> {
        let this = self.get_mut();
        this.fill(context);
        loop {
            if let Some(reply) = this.done.remove(&this.given) {
                this.given += 1;
                return Poll::Ready(Some(reply));
            }
            match this.running.poll_next_unpin(context) {
                Poll::Ready(Some(reply)) if this.limits.ordered => {
                    this.done.insert(reply.index, reply);
                }
                Poll::Ready(Some(reply)) => return Poll::Ready(Some(reply)),
                Poll::Ready(None) if this.calls.is_none() => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies")
            .field("limits", &self.limits)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
