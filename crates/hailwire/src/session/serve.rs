//! Serves one opened stream with a handler: the callee's side of a call.
//!
//! The handler's future is polled together with the stream's "stopped" signal and the deadline;
//! whichever comes first decides. A small answer leaves in one write: head, body and end.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    CallHeader, Code, Status,
    frame::{self, FRAME_PREFIX, FrameKind},
    header::{self, AnswerHead},
    limits,
};
use tokio::time::Instant;

use super::{FrameReader, SMALL_BODY, deadline_exceeded, now, write_data};
use crate::{
    agent::{self, Caller, Request, RequestKind, Response, SharedHandler},
    body::Body,
    carrier::{SendStream, WriteError},
};

/// Small chunks that are ready at once are collected up to this size.
const COALESCE: usize = 16 * 1024;

/// How long a refused opener is given to read its refusal before its body is cut off.
const REFUSAL_LINGER: Duration = Duration::from_secs(1);

/// Runs `handler` for one call, send or stream and writes its answer.
///
/// Returns how the call ended, as far as that says something of who serves: `cancelled` where the caller ended it, with
/// whatever code.
pub(crate) async fn serve(
    kind: RequestKind,
    header: Box<CallHeader>,
    caller: Caller,
    mut send: SendStream,
    reader: Box<FrameReader>,
    handler: &SharedHandler,
) -> Code {
    let deadline = header.deadline().map(|left| Instant::now() + left);
    send.set_priority(header.priority);
    // Both sides of a raw stream may wait for the other to speak first, so it is accepted before
    // its handler runs.
    if kind == RequestKind::Stream
        && let Err(error) = Box::pin(accept(&mut send)).await
    {
        return given_up(send, write_code(&error));
    }
    let (body, overrun) = match kind {
        RequestKind::Send => {
            let (body, overrun) = Body::one_way(reader);
            (body, Some(overrun))
        }
        RequestKind::Call | RequestKind::Stream => (Body::wire(reader), None),
    };
    let request = Request {
        kind,
        header,
        caller,
        body,
    };
    let work = agent::within(deadline, unwound(handler.handle(request)));
    let outcome = tokio::select! {
        biased;
        result = work => Some(result),
        code = send.stopped() => {
            return given_up(send, code.unwrap_or(Code::Cancelled));
        }
        () = until(deadline) => None,
    };
    match outcome {
        Some(Ok(response)) => match overrun.map_or(Ok(()), |overrun| overrun.check()) {
            Ok(()) => answer(kind, response, send, deadline).await,
            Err(status) => end(send, &status).await,
        },
        Some(Err(status)) => end(send, &status).await,
        None => end(send, &deadline_exceeded()).await,
    }
}

/// The handler's outcome; a panic becomes an error of this one call.
async fn unwound(work: impl Future<Output = Result<Response, Status>>) -> Result<Response, Status> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        // Nothing of the handler's is used after a panic but its drop.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}

/// What the caller of a handler that panicked is told.
pub(crate) fn panicked() -> Status {
    Status::new(Code::Internal, "the agent's handler panicked")
        .with_hint("the agent's own log says where")
}

/// Accepts an opening with a `HEAD` that says nothing more.
pub(crate) async fn accept(send: &mut SendStream) -> Result<(), WriteError> {
    let mut out = BytesMut::new();
    frame::put(
        &mut out,
        FrameKind::HEAD,
        &header::encode(&AnswerHead::default()),
    );
    send.write(out.freeze()).await
}

/// Answers an opening with an error.
pub(crate) async fn refuse(send: SendStream, mut reader: Box<FrameReader>, status: &Status) {
    end(send, status).await;
    // Stopping the body at once could overtake the answer; let the caller end it by itself.
    let drain = async { while let Ok(Some(_)) = reader.next().await {} };
    let _ = tokio::time::timeout(REFUSAL_LINGER, drain).await;
    reader.stop(Code::Ok);
}

async fn answer(
    kind: RequestKind,
    response: Response,
    mut send: SendStream,
    deadline: Option<Instant>,
) -> Code {
    let Response { head, mut body } = response;
    if kind == RequestKind::Send {
        return end(send, &Status::ok()).await;
    }
    let mut ahead = BytesMut::new();
    // A raw stream has its head: it was accepted before its handler ran.
    if kind == RequestKind::Call && head != AnswerHead::default() {
        let encoded = header::encode(&head);
        if encoded.len() > limits::MAX_HEADER || head.headers.len() > limits::MAX_HEADER_FIELDS {
            let status = Status::new(Code::Internal, "the head of the answer exceeds its bound");
            return end(send, &status).await;
        }
        frame::put(&mut ahead, FrameKind::HEAD, &encoded);
    }
    // Nearly every answer is small and there: it leaves in one write. For the others there is more, in
    // a box, because what is large is moved slowly.
    let next = loop {
        match now(pin!(body.chunk())) {
            Some(Ok(Some(chunk))) if ahead.len() + chunk.len() <= SMALL_BODY => {
                ahead.reserve(2 * FRAME_PREFIX + chunk.len());
                frame::put(&mut ahead, FrameKind::DATA, &chunk);
            }
            Some(Ok(None)) => break None,
            next => break Some(next),
        }
    };
    if let Some(next) = next {
        return Box::pin(stream((body, next), ahead, send, deadline)).await;
    }
    frame::put(&mut ahead, FrameKind::END, &[]);
    let written = within(deadline, pin!(send.write(ahead.freeze()))).await;
    match written {
        Some(Ok(())) => {
            send.finish();
            Code::Ok
        }
        Some(Err(error)) => given_up(send, write_code(&error)),
        None => abandon(send, Code::DeadlineExceeded),
    }
}

/// What a body has given without waiting.
type NextChunk = Option<Result<Option<Bytes>, Status>>;

/// Writes an answer as it is made. What is ready at once leaves in one write.
async fn stream(
    (mut body, mut first): (Body, NextChunk),
    mut ahead: BytesMut,
    mut send: SendStream,
    deadline: Option<Instant>,
) -> Code {
    loop {
        let next = match first.take().or_else(|| now(pin!(body.chunk()))) {
            Some(next) => next,
            None => {
                let flushed = within(deadline, pin!(flush(&mut send, &mut ahead))).await;
                match flushed {
                    Some(Ok(())) => {}
                    Some(Err(error)) => return given_up(send, write_code(&error)),
                    None => return abandon(send, Code::DeadlineExceeded),
                }
                tokio::select! {
                    biased;
                    next = body.chunk() => next,
                    code = send.stopped() => return given_up(send, code.unwrap_or(Code::Cancelled)),
                    () = until(deadline) => return end(send, &deadline_exceeded()).await,
                }
            }
        };
        let chunk = match next {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return end_after(send, ahead, &Status::ok()).await,
            Err(status) => return end_after(send, ahead, &status).await,
        };
        let written = async {
            if chunk.len() <= SMALL_BODY {
                ahead.reserve(2 * FRAME_PREFIX + chunk.len());
                frame::put(&mut ahead, FrameKind::DATA, &chunk);
                if ahead.len() < COALESCE {
                    return Ok(());
                }
                return flush(&mut send, &mut ahead).await;
            }
            write_data(&mut send, ahead.split(), chunk).await
        };
        let written = within(deadline, pin!(written)).await;
        match written {
            Some(Ok(())) => {}
            Some(Err(error)) => return given_up(send, write_code(&error)),
            // A frame may be half written: only a reset can follow.
            None => return abandon(send, Code::DeadlineExceeded),
        }
    }
}

async fn flush(send: &mut SendStream, ahead: &mut BytesMut) -> Result<(), WriteError> {
    if ahead.is_empty() {
        return Ok(());
    }
    send.write(ahead.split().freeze()).await
}

/// Ends an answer with its status.
pub(crate) async fn end(send: SendStream, status: &Status) -> Code {
    // In a box: most answers end well, and this would be the larger part of what every call moves.
    Box::pin(end_after(send, BytesMut::new(), status)).await
}

/// Ends an answer, in one write with what is still to be sent ahead.
async fn end_after(mut send: SendStream, mut ahead: BytesMut, status: &Status) -> Code {
    let payload = if status.is_ok() {
        Vec::new()
    } else {
        header::encode(status)
    };
    frame::put(&mut ahead, FrameKind::END, &payload);
    // If the caller is gone nobody is left to tell, and its going may be all that failed.
    match send.write(ahead.freeze()).await {
        Ok(()) => {
            send.finish();
            status.code
        }
        Err(_) => Code::Cancelled,
    }
}

/// The caller takes no more. Its code says nothing of who serves.
fn given_up(send: SendStream, code: Code) -> Code {
    abandon(send, code);
    Code::Cancelled
}

fn abandon(mut send: SendStream, code: Code) -> Code {
    send.reset(code);
    code
}

pub(super) fn write_code(error: &WriteError) -> Code {
    match error {
        WriteError::Stopped(code) => *code,
        WriteError::Ended => Code::Cancelled,
        WriteError::Connection(_) => Code::Unavailable,
    }
}

/// Resolves when the deadline passes; never without one.
pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The future's result, or `deadline_exceeded` when the deadline passes first.
///
/// Takes the future pinned, because those that it is used for are large to move.
pub(crate) async fn in_time<T>(
    deadline: Option<Instant>,
    future: Pin<&mut impl Future<Output = Result<T, Status>>>,
) -> Result<T, Status> {
    let result = within(deadline, future).await;
    result.unwrap_or_else(|| Err(deadline_exceeded()))
}

/// The future's output, or `None` when the deadline passes first.
async fn within<F: Future>(deadline: Option<Instant>, future: Pin<&mut F>) -> Option<F::Output> {
    match deadline {
        Some(at) => tokio::time::timeout_at(at, future).await.ok(),
        None => Some(future.await),
    }
}
