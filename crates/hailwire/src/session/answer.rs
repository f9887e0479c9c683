//! The caller's side of a call: its answer, chunk by chunk.

use std::{any::Any, sync::Arc};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Code, Status,
    frame::{FrameEvent, FrameKind},
    header::{self, AnswerHead},
};
use tokio::{task::AbortHandle, time::Instant};

use super::{FrameReader, InFlight, in_time};
use crate::body::Body;

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

/// An answer on a stream, before anything of it was read.
#[derive(Debug)]
pub(crate) struct WireAnswer {
    reader: FrameReader,
    /// Writes the body of the call; ends with the answer.
    pump: Option<AbortOnDrop>,
    in_flight: Option<InFlight>,
}

/// A task that ends with its owner.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl WireAnswer {
    pub(super) fn new(reader: FrameReader, pump: Option<AbortHandle>, in_flight: InFlight) -> Self {
        Self {
            reader,
            pump: pump.map(AbortOnDrop),
            in_flight: Some(in_flight),
        }
    }

    /// Reads up to the head, the first chunk or the end.
    ///
    /// # Errors
    ///
    /// The status with which the call ended, if it ended without an answer.
    pub(crate) async fn begin(self, deadline: Option<Instant>) -> Result<Answer, Status> {
        let mut answer = Answer::new(AnswerHead::default(), AnswerSource::Wire(self), deadline);
        match answer.next_event().await? {
            Some(WireEvent::Head(head)) => answer.state.head = head,
            Some(WireEvent::Chunk(chunk)) => answer.state.first = Some(chunk),
            None => {}
        }
        Ok(answer)
    }
}

enum WireEvent {
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
            match self.next_event().await? {
                Some(WireEvent::Chunk(chunk)) => return Ok(Some(chunk)),
                Some(WireEvent::Head(_)) => {}
                None => return Ok(None),
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

    async fn next_event(&mut self) -> Result<Option<WireEvent>, Status> {
        if let Some(ended) = &self.state.ended {
            return ended.clone().map(|()| None);
        }
        // What was read with an earlier part needs no waiting and no deadline.
        if let AnswerSource::Wire(wire) = &mut self.state.source {
            let step = wire.reader.buffered().and_then(|event| match event {
                Some(event) => meaning(event).map(Some),
                None => Ok(None),
            });
            match step {
                Ok(Some(AnswerStep::Event(event))) => return Ok(Some(event)),
                Ok(Some(AnswerStep::End)) => {
                    self.end(Ok(()));
                    return Ok(None);
                }
                Ok(Some(AnswerStep::Skip) | None) => {}
                Err(status) => {
                    self.end(Err(status.clone()));
                    return Err(status);
                }
            }
        }
        let next = async {
            match &mut self.state.source {
                AnswerSource::Wire(wire) => next_wire(&mut wire.reader).await,
                AnswerSource::Local { body, .. } => {
                    body.chunk().await.map(|c| c.map(WireEvent::Chunk))
                }
            }
        };
        let event = in_time(self.state.deadline, std::pin::pin!(next)).await;
        match event {
            Ok(Some(event)) => Ok(Some(event)),
            Ok(None) => {
                self.end(Ok(()));
                Ok(None)
            }
            Err(status) => {
                self.end(Err(status.clone()));
                Err(status)
            }
        }
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

async fn next_wire(reader: &mut FrameReader) -> Result<Option<WireEvent>, Status> {
    loop {
        let Some(event) = reader.next().await? else {
            return Err(Status::new(Code::Unavailable, "the answer was cut short"));
        };
        match meaning(event)? {
            AnswerStep::Event(event) => return Ok(Some(event)),
            AnswerStep::End => return Ok(None),
            AnswerStep::Skip => {}
        }
    }
}

/// What a frame of an answer means to its reader.
enum AnswerStep {
    Event(WireEvent),
    End,
    /// Of a kind that this version does not know.
    Skip,
}

fn meaning(event: FrameEvent) -> Result<AnswerStep, Status> {
    match event {
        FrameEvent::Data(chunk) => Ok(AnswerStep::Event(WireEvent::Chunk(chunk))),
        FrameEvent::Frame(FrameKind::END, payload) => end_status(&payload),
        FrameEvent::Frame(FrameKind::HEAD, payload) => {
            let head = header::decode_answer(&payload)
                .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
            Ok(AnswerStep::Event(WireEvent::Head(head)))
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
