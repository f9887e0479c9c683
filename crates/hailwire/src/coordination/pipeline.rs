//! Stages, each an agent that works on what the one before has answered.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::{StreamExt as _, stream::BoxStream};
use hailwire_wire::Status;

use super::{MAX_ANSWER, MAX_IN_FLIGHT};
use crate::client::Call;

/// One stage of a [`pipeline`].
pub struct Stage {
    call: Box<dyn FnMut(Bytes) -> Call + Send>,
    in_flight: usize,
    max_answer: usize,
}

impl Stage {
    /// A stage that makes this call of what the stage before has answered.
    pub fn new(call: impl FnMut(Bytes) -> Call + Send + 'static) -> Self {
        Self {
            call: Box::new(call),
            in_flight: 4,
            max_answer: MAX_ANSWER,
        }
    }

    /// Most items in this stage, those included that wait for the next: from 1 to [`MAX_IN_FLIGHT`]. Default 4.
    #[must_use]
    pub fn in_flight(mut self, most: usize) -> Self {
        self.in_flight = most.clamp(1, MAX_IN_FLIGHT);
        self
    }

    /// Largest answer in bytes; a larger one is `resource_exhausted`. Default [`MAX_ANSWER`].
    #[must_use]
    pub fn max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage")
            .field("in_flight", &self.in_flight)
            .field("max_answer", &self.max_answer)
            .finish_non_exhaustive()
    }
}

/// Why an item did not come through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stage {stage} failed: {status}")]
pub struct StageFailure {
    /// Which stage, counted from 0.
    pub stage: usize,
    /// How its call ended.
    pub status: Status,
}

/// What became of one input.
#[derive(Clone, Debug)]
pub struct PipelineItem {
    /// Which input, counted from 0.
    pub index: u64,
    /// What the last stage answered, or which stage failed. What fails in a stage is not seen by those after it.
    pub outcome: Result<Bytes, StageFailure>,
}

/// Sends each input through the stages, one after the other; what comes out is in the order of the inputs.
///
/// All stages work at once, on different items, and each holds so many and no more. Where one is slow, those before it fill up and then
/// wait, and no further input is taken.
///
/// ```no_run
/// # async fn example(client: hailwire::Client) {
/// use bytes::Bytes;
/// use futures_util::stream;
/// use hailwire::coordination::{Stage, pipeline};
///
/// let (first, second) = (client.clone(), client);
/// let stages = vec![
///     Stage::new(move |url| first.call("fetch").body(url)).in_flight(16),
///     Stage::new(move |page| second.call("summarise").body(page)).in_flight(2),
/// ];
/// let urls = stream::iter(["https://a.example", "https://b.example"].map(Bytes::from));
/// let mut summaries = pipeline(urls, stages);
/// while let Some(item) = summaries.next().await {
///     println!("{}: {:?}", item.index, item.outcome);
/// }
/// # }
/// ```
pub fn pipeline(
    inputs: impl Stream<Item = Bytes> + Send + 'static,
    stages: impl IntoIterator<Item = Stage>,
) -> Piped {
    let first = inputs.enumerate().map(|(index, input)| PipelineItem {
        index: index as u64,
        outcome: Ok(input),
    });
    let mut items: BoxStream<'static, PipelineItem> = first.boxed();
    for (number, stage) in stages.into_iter().enumerate() {
        items = through(items, number, stage);
    }
    Piped { items }
}

fn through(
    items: BoxStream<'static, PipelineItem>,
    number: usize,
    stage: Stage,
) -> BoxStream<'static, PipelineItem> {
    let Stage {
        mut call,
        in_flight,
        max_answer,
    } = stage;
    let worked_on = items.map(move |item| {
        let PipelineItem { index, outcome } = item;
        let prepared = outcome.map(&mut call);
        async move {
            let outcome = match prepared {
                Ok(call) => answered(call, max_answer).await.map_err(|status| {
                    let stage = number;
                    StageFailure { stage, status }
                }),
                Err(failure) => Err(failure),
            };
            PipelineItem { index, outcome }
        }
    });
    worked_on.buffered(in_flight).boxed()
}

async fn answered(call: Call, max_answer: usize) -> Result<Bytes, Status> {
    call.send().await?.bytes(max_answer).await
}

/// What comes out of a [`pipeline`]. Dropping it cancels what is in it.
#[must_use = "nothing happens before it is polled"]
pub struct Piped {
    items: BoxStream<'static, PipelineItem>,
}

impl Piped {
    /// The next item; `None` after the last.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop: no item is lost.
    pub async fn next(&mut self) -> Option<PipelineItem> {
        self.items.next().await
    }
}

impl Stream for Piped {
    type Item = PipelineItem;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<PipelineItem>> {
        self.items.poll_next_unpin(context)
    }
}

impl fmt::Debug for Piped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piped").finish_non_exhaustive()
    }
}
