//! The caller's side of a call: its answer, chunk by chunk.

use std::{
    any::Any,
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Code, Status,
    frame::{FrameEvent, FrameKind},
    header::{self, AnswerHead},
};
use tokio::{
    task::AbortHandle,
    time::{Instant, Sleep, sleep_until},
};

use super::{FrameReader, InFlight, deadline_exceeded};
use crate::{
    body::Body,
    carrier::{ReadWaiting, RecvStream},
};

/// What is dropped when an answer has ended: the attachment of the program that asked, or the lease of the member
/// that answers.
pub(crate) type AnswerGuard = Arc<dyn Any + Send + Sync>;

/// The streamed answer of a call.
///
/// Dropping it before its end cancels the call: the handler's future on the far side is dropped.
/// Reading slowly holds back the agent; between the two wait at most the windows of the carriers.
#[derive(Debug)]
pub struct Answer {
    /// Boxed, because an answer is handed from future to future, and each hand-over would move all of it.
    state: Box<AnswerState>,
}

#[derive(Debug)]
struct AnswerState {
    head: AnswerHead,
    source: AnswerSource,
    deadline: Option<Instant>,
    /// The first chunk, when reading the head met it.
    first: Option<Bytes>,
    /// How it ended, once it has.
    ended: Option<Result<(), Status>>,
    /// What lasts as long as the answer does.
    guard: Option<AnswerGuard>,
}

#[derive(Debug)]
enum AnswerSource {
    Wire(WireAnswer),
    /// From a handler in this process.
    Local {
        body: Body,
        task: AbortOnDrop,
    },
}

#[derive(Debug)]
struct WireAnswer {
    reader: FrameReader,
    /// Writes the body of the call; ends with the answer.
    pump: Option<AbortOnDrop>,
    in_flight: Option<InFlight>,
}

/// An answer on a stream, before anything of it was read.
#[derive(Debug)]
pub(crate) struct ExpectedAnswer(Answer);

/// A task that ends with its owner.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ExpectedAnswer {
    pub(super) fn new(recv: RecvStream, pump: Option<AbortHandle>, in_flight: InFlight) -> Self {
        let wire = WireAnswer {
            reader: FrameReader::new(recv),
            pump: pump.map(AbortOnDrop),
            in_flight: Some(in_flight),
        };
        Self(Answer::new(
            AnswerHead::default(),
            AnswerSource::Wire(wire),
            None,
        ))
    }

    /// Reads up to the head, the first chunk or the end.
    ///
    /// # Errors
    ///
    /// The status with which the call ended, if it ended without an answer.
    pub(crate) async fn begin(self, deadline: Option<Instant>) -> Result<Answer, Status> {
        let Self(mut answer) = self;
        answer.state.deadline = deadline;
        match answer.next_event().await {
            Some(AnswerEvent::Head(head)) => answer.state.head = head,
            Some(AnswerEvent::Chunk(chunk)) => answer.state.first = Some(chunk),
            None => answer.state.outcome()?,
        }
        Ok(answer)
    }
}

enum AnswerEvent {
    Head(AnswerHead),
    Chunk(Bytes),
}

impl Answer {
    /// An answer made in this process.
    pub(crate) fn local(
        head: AnswerHead,
        body: Body,
        task: AbortOnDrop,
        deadline: Option<Instant>,
    ) -> Self {
        Self::new(head, AnswerSource::Local { body, task }, deadline)
    }

    fn new(head: AnswerHead, source: AnswerSource, deadline: Option<Instant>) -> Self {
        let state = Box::new(AnswerState {
            head,
            source,
            deadline,
            first: None,
            ended: None,
            guard: None,
        });
        Self { state }
    }

    /// The same answer, which drops this when it has ended.
    pub(crate) fn holding(mut self, guard: AnswerGuard) -> Self {
        self.state.guard = Some(guard).filter(|_| self.state.ended.is_none());
        self
    }

    /// Until when it may take.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.state.deadline
    }

    /// Media type and fields that the agent put ahead of its answer; empty where it put none.
    #[must_use]
    pub fn head(&self) -> &AnswerHead {
        &self.state.head
    }

    /// The next chunk, never empty; `None` once the answer has ended with `ok`.
    ///
    /// # Errors
    ///
    /// The status with which the call ended. Every later call returns the same.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Status> {
        if let Some(first) = self.state.first.take() {
            return Ok(Some(first));
        }
        loop {
            match self.next_event().await {
                Some(AnswerEvent::Chunk(chunk)) => return Ok(Some(chunk)),
                Some(AnswerEvent::Head(_)) => {}
                None => return self.state.outcome().map(|()| None),
            }
        }
    }

    /// The whole answer in one piece.
    ///
    /// # Errors
    ///
    /// As [`Answer::chunk`], also where part of the answer has arrived; `resource_exhausted` when it is
    /// longer than `limit` bytes.
    ///
    /// # Cancel safety
    ///
    /// What was read is lost.
    pub async fn bytes(&mut self, limit: usize) -> Result<Bytes, Status> {
        let mut first: Option<Bytes> = None;
        let mut rest = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            let len = first.as_ref().map_or(0, Bytes::len) + rest.len() + chunk.len();
            if len > limit {
                return Err(Status::new(
                    Code::ResourceExhausted,
                    format!("the answer is longer than {limit} bytes"),
                )
                .with_hint("read it chunk by chunk, or allow more"));
            }
            match &first {
                None => first = Some(chunk),
                Some(_) => rest.extend_from_slice(&chunk),
            }
        }
        let first = first.unwrap_or_default();
        if rest.is_empty() {
            return Ok(first);
        }
        let mut all = BytesMut::with_capacity(first.len() + rest.len());
        all.extend_from_slice(&first);
        all.extend_from_slice(&rest);
        Ok(all.freeze())
    }

    /// What comes next; nothing once it has ended, and then the state says how.
    async fn next_event(&mut self) -> Option<AnswerEvent> {
        let mut waiting = ReadWaiting::default();
        let mut timer = pin!(None::<Sleep>);
        poll_fn(|cx| {
            if let Poll::Ready(event) = self.poll_event(&mut waiting, cx) {
                return Poll::Ready(event);
            }
            // What has come needs no timer.
            let Some(at) = self.state.deadline else {
                return Poll::Pending;
            };
            if timer.is_none() {
                timer.set(Some(sleep_until(at)));
            }
            if let Some(timer) = timer.as_mut().as_pin_mut() {
                ready!(timer.poll(cx));
            }
            self.end(Err(deadline_exceeded()));
            Poll::Ready(None)
        })
        .await
    }

    fn poll_event(
        &mut self,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Option<AnswerEvent>> {
        if self.state.ended.is_some() {
            return Poll::Ready(None);
        }
        let step = ready!(match &mut self.state.source {
            AnswerSource::Wire(wire) => poll_step(&mut wire.reader, waiting, cx),
            AnswerSource::Local { body, .. } => {
                let chunk = body.poll_chunk(waiting, cx);
                chunk.map_ok(|chunk| chunk.map(AnswerEvent::Chunk))
            }
        });
        Poll::Ready(match step {
            Ok(Some(event)) => Some(event),
            Ok(None) => {
                self.end(Ok(()));
                None
            }
            Err(status) => {
                self.end(Err(status));
                None
            }
        })
    }

    /// Lets go of everything that the call still holds.
    fn end(&mut self, ended: Result<(), Status>) {
        match &mut self.state.source {
            AnswerSource::Wire(wire) => {
                if ended.is_ok() {
                    wire.reader.close();
                } else {
                    wire.reader.stop(Code::Cancelled);
                }
                wire.pump = None;
                wire.in_flight = None;
            }
            AnswerSource::Local { body, task } => {
                *body = Body::empty();
                task.0.abort();
            }
        }
        self.state.guard = None;
        self.state.ended = Some(ended);
    }
}

impl AnswerState {
    /// How it ended; well where it has not.
    fn outcome(&self) -> Result<(), Status> {
        self.ended.clone().unwrap_or(Ok(()))
    }
}

/// The next that has a meaning on an answer's stream; nothing at its end.
fn poll_step(
    reader: &mut FrameReader,
    waiting: &mut ReadWaiting,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<AnswerEvent>, Status>> {
    loop {
        let Some(event) = ready!(reader.poll_next(waiting, cx))? else {
            let cut = Status::new(Code::Unavailable, "the answer was cut short");
            return Poll::Ready(Err(cut));
        };
        match meaning(event)? {
            AnswerStep::Event(event) => return Poll::Ready(Ok(Some(event))),
            AnswerStep::End => return Poll::Ready(Ok(None)),
            AnswerStep::Skip => {}
        }
    }
}

/// What a frame of an answer means to its reader.
enum AnswerStep {
    Event(AnswerEvent),
    End,
    /// Of a kind that this version does not know.
    Skip,
}

fn meaning(event: FrameEvent) -> Result<AnswerStep, Status> {
    match event {
        FrameEvent::Data(chunk) => Ok(AnswerStep::Event(AnswerEvent::Chunk(chunk))),
        FrameEvent::Frame(FrameKind::END, payload) => end_status(&payload),
        FrameEvent::Frame(FrameKind::HEAD, payload) => {
            let head = header::decode_answer(&payload)
                .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
            Ok(AnswerStep::Event(AnswerEvent::Head(head)))
        }
        FrameEvent::Frame(..) => Ok(AnswerStep::Skip),
    }
}

fn end_status(payload: &[u8]) -> Result<AnswerStep, Status> {
    if payload.is_empty() {
        return Ok(AnswerStep::End);
    }
    let status: Status =
        header::decode(payload).map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    if status.is_ok() {
        Ok(AnswerStep::End)
    } else {
        Err(status)
    }
}
