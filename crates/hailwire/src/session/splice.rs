//! Joins two streams into one: the router's part of a call that goes on elsewhere.
//!
//! After the header has been rewritten nothing is decoded any more: chunks pass from one carrier to
//! the other as they are, each side's flow control holds back the other's writer, and resets and
//! stops travel on with their codes.

use std::sync::Arc;

use bytes::Bytes;
use hailwire_wire::{
    Code, Status,
    limits::{MUX_SEND_FLOOR, MUX_SEND_QUEUE},
};
use tokio::time::Instant;

use super::{
    FrameReader, deadline_exceeded,
    serve::{end, until, write_code},
};
use crate::carrier::{
    ReadError, RecvStream, SendStream, WriteError,
    budget::{AccountCharge, PeerAccount},
};

/// Most bytes moved at once in one direction: the memory that a spliced call costs.
const CHUNK: usize = 64 * 1024;

/// Moves bytes both ways until the answer has ended, then lets go of both streams.
///
/// `caller` has sent its header, `callee` has been sent one. What of the body waits for a callee that does not read
/// is charged to `payer`. `moved` is called after each chunk. Returns how the call
/// ended as far as a relay that does not read the answer can tell what it says of the callee: `cancelled` where the
/// caller ended it, with whatever code, or lost its connection.
pub(crate) async fn splice(
    caller: (SendStream, Box<FrameReader>),
    callee: (SendStream, RecvStream),
    payer: Option<&Arc<PeerAccount>>,
    deadline: Option<Instant>,
    moved: &(impl Fn() + Sync),
) -> Code {
    let (mut caller_send, caller_reader) = caller;
    let (mut callee_send, mut callee_recv) = callee;
    // It lasts as long as the call: what was written when the body has ended may still wait.
    let mut waiting = SpliceBuffer::new(payer, &mut callee_send);
    let (rest, caller_recv) = caller_reader.into_parts();
    let mut forwarded = false;
    let outcome = {
        let up = forward_body(rest, caller_recv, callee_send, &mut waiting, moved);
        let down = forward_answer(&mut callee_recv, &mut caller_send, &mut forwarded, moved);
        tokio::pin!(up, down);
        let mut up_done = None;
        let outcome = loop {
            tokio::select! {
                biased;
                code = &mut down => break code,
                body = &mut up, if up_done.is_none() => up_done = Some(body),
                () = until(deadline) => break Err(AnswerFailure::callee(Code::DeadlineExceeded)),
            }
        };
        // An answer that breaks off after the body has is no fault of whoever gives it.
        let body_broke = matches!(up_done, Some((_, BodyBroken(true))));
        outcome.map_err(|failed| AnswerFailure {
            by_caller: failed.by_caller || body_broke,
            ..failed
        })
    };
    match outcome {
        Ok(()) => {
            caller_send.finish();
            Code::Ok
        }
        Err(AnswerFailure { code, by_caller }) => {
            callee_recv.stop(code);
            fail(caller_send, code, forwarded).await;
            if by_caller { Code::Cancelled } else { code }
        }
    }
}

/// Room for the part of a body that waits for its reader: few bytes, which are in what each stream is charged
/// with, and as many more as the account of who sends it has room for.
struct SpliceBuffer {
    /// Nothing for a program of this machine, whose streams have all the room there is.
    more: Option<AccountCharge>,
}

impl SpliceBuffer {
    fn new(payer: Option<&Arc<PeerAccount>>, to: &mut SendStream) -> Self {
        let more = payer.and_then(|account| account.hold(0));
        if more.is_some() {
            to.set_queue(MUX_SEND_FLOOR);
        }
        Self { more }
    }

    async fn write(&mut self, to: &mut SendStream, chunk: Bytes) -> Result<(), WriteError> {
        if let Some(more) = &mut self.more {
            let room = |more: &AccountCharge| MUX_SEND_FLOOR + more.bytes();
            while room(more) < MUX_SEND_QUEUE
                && to.queued() + chunk.len() > room(more)
                && more.resize(4 * room(more) - MUX_SEND_FLOOR)
            {
                to.set_queue(room(more));
            }
        }
        to.write(chunk).await
    }
}

/// Why an answer did not come whole.
#[derive(Clone, Copy, Debug)]
struct AnswerFailure {
    code: Code,
    /// Whether the caller's side ended it. What it says then is of its own choice.
    by_caller: bool,
}

impl AnswerFailure {
    const fn callee(code: Code) -> Self {
        Self {
            code,
            by_caller: false,
        }
    }

    const fn caller(code: Code) -> Self {
        Self {
            code,
            by_caller: true,
        }
    }
}

/// Whether the caller's body broke off.
struct BodyBroken(bool);

/// The caller's body toward the callee. Returns the reading half, still alive, so that the caller's
/// stream is not stopped before its answer has ended.
async fn forward_body(
    rest: Bytes,
    mut from: RecvStream,
    mut to: SendStream,
    waiting: &mut SpliceBuffer,
    moved: &(impl Fn() + Sync),
) -> (RecvStream, BodyBroken) {
    let mut next = Some(rest).filter(|rest| !rest.is_empty());
    loop {
        let chunk = match next.take() {
            Some(chunk) => Ok(Some(chunk)),
            None => tokio::select! {
                chunk = from.read(CHUNK) => chunk,
                code = to.stopped() => {
                    from.stop(code.unwrap_or(Code::Ok));
                    return (from, BodyBroken(false));
                }
            },
        };
        match chunk {
            Ok(Some(chunk)) => match waiting.write(&mut to, chunk).await {
                Ok(()) => moved(),
                Err(WriteError::Stopped(code)) => {
                    from.stop(code);
                    return (from, BodyBroken(false));
                }
                Err(_) => return (from, BodyBroken(false)),
            },
            Ok(None) => {
                to.finish();
                return (from, BodyBroken(false));
            }
            Err(error) => {
                to.reset(read_code(&error));
                return (from, BodyBroken(true));
            }
        }
    }
}

/// The callee's answer toward the caller.
async fn forward_answer(
    from: &mut RecvStream,
    to: &mut SendStream,
    forwarded: &mut bool,
    moved: &(impl Fn() + Sync),
) -> Result<(), AnswerFailure> {
    loop {
        let chunk = tokio::select! {
            biased;
            chunk = from.read(CHUNK) => chunk,
            code = to.stopped() => return Err(AnswerFailure::caller(code.unwrap_or(Code::Cancelled))),
        };
        match chunk {
            Ok(Some(chunk)) => {
                *forwarded = true;
                to.write(chunk)
                    .await
                    .map_err(|error| AnswerFailure::caller(write_code(&error)))?;
                moved();
            }
            Ok(None) => return Ok(()),
            Err(error) => return Err(AnswerFailure::callee(read_code(&error))),
        }
    }
}

/// Tells the caller that the call failed: in words while the answer has not begun, by a reset after.
async fn fail(mut send: SendStream, code: Code, forwarded: bool) {
    if forwarded || matches!(code, Code::Ok | Code::Cancelled) {
        return send.reset(code);
    }
    let status = match code {
        Code::DeadlineExceeded => deadline_exceeded(),
        Code::Unavailable => {
            Status::new(code, "the agent or its node went away before it answered")
                .with_hint("call it again; `hail status` shows which agents and tunnels are up")
        }
        code => Status::new(code, "the far side reset the call"),
    };
    end(send, &status).await;
}

fn read_code(error: &ReadError) -> Code {
    match error {
        ReadError::Reset(code) => *code,
        ReadError::Stopped => Code::Cancelled,
        ReadError::Connection(_) => Code::Unavailable,
    }
}
