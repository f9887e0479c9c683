//! The two halves of a stream.
//!
//! A stream that is opened here is told to the far side with its first bytes, its end or its reset.
//! One that the far side opened is answered with a head at the same moment. So head and bytes leave
//! in one write, and a stream that nobody used was never there.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use h2::{client::ResponseFuture, server::SendResponse};
use hailwire_wire::{Code, Priority, capsule::ConnectionHalf};
use http::{Response, StatusCode};

use super::{
    H2Handle, codes, path,
    shared::{AcceptedStream, H2Shared, LingeringStream, StreamCell, request},
    unread::StreamReads,
};
use crate::carrier::{
    ConnectionError, ReadError, ReadWaiting, ReadWaitingKind, WriteError,
    write_queues::YIELDING_BYTES,
};

/// Chunks that are this small together are written as one frame.
const JOINED: usize = 16 * 1024;

/// Bytes at the beginning of a stream that are handed over without asking for credit: every stream
/// is promised as many (RFC 9113, 6.9.2).
const PROMISED: usize = 16 * 1024;

/// Bytes of credit asked for at once.
const GRANT: usize = 64 * 1024;

/// What both halves hold of a stream.
#[derive(Debug)]
struct H2Stream {
    handle: Arc<H2Handle>,
    cell: Arc<StreamCell>,
    opened_here: bool,
}

impl H2Stream {
    fn shared(&self) -> &H2Shared {
        &self.handle.shared
    }

    /// The connection that it is on.
    fn half(&self) -> ConnectionHalf {
        let opens_on = self.shared().opens_on;
        match (opens_on, self.opened_here) {
            (half, true) => half,
            (ConnectionHalf::Forward, false) => ConnectionHalf::Reverse,
            (ConnectionHalf::Reverse, false) => ConnectionHalf::Forward,
        }
    }
}

impl Drop for H2Stream {
    fn drop(&mut self) {
        let key = self.cell.lock().key;
        self.shared().forget(key, self.opened_here);
    }
}

/// The halves of a stream for which a place was taken.
pub(super) fn opened(handle: &Arc<H2Handle>, priority: Priority) -> (H2SendStream, H2RecvStream) {
    let stream = Arc::new(H2Stream {
        handle: handle.clone(),
        cell: Arc::default(),
        opened_here: true,
    });
    halves(
        stream,
        priority,
        SendingState::Untold,
        ReceivingState::Untold,
    )
}

/// The halves of a stream that the far side opened.
pub(super) fn accepted(
    handle: &Arc<H2Handle>,
    arrived: AcceptedStream,
) -> (H2SendStream, H2RecvStream) {
    let stream = Arc::new(H2Stream {
        handle: handle.clone(),
        cell: arrived.cell,
        opened_here: false,
    });
    halves(
        stream,
        arrived.priority,
        SendingState::Unanswered(arrived.respond),
        ReceivingState::Body(arrived.body),
    )
}

fn halves(
    stream: Arc<H2Stream>,
    priority: Priority,
    sending: SendingState,
    receiving: ReceivingState,
) -> (H2SendStream, H2RecvStream) {
    let send = H2SendStream {
        stream: stream.clone(),
        sending: Mutex::new(sending),
        ended: false,
        priority: AtomicU8::new(priority as u8),
        written: 0,
        has_turn: false,
    };
    let recv = H2RecvStream {
        reader: StreamReads::new(&stream.shared().readers),
        stream,
        receiving,
        rest: Bytes::new(),
        end: None,
        stopped: false,
    };
    (send, recv)
}

/// The writing half of an HTTP/2 stream.
#[derive(Debug)]
pub struct H2SendStream {
    stream: Arc<H2Stream>,
    /// Behind a mutex because [`SendStream::stopped`] changes it and has no more than `&self`.
    sending: Mutex<SendingState>,
    ended: bool,
    priority: AtomicU8,
    written: u64,
    /// Whether the write under way goes on although a more urgent one waits: it is its turn.
    has_turn: bool,
}

/// h2 takes nothing more on a stream; [`SendStream::poll_refused`] knows why.
struct WriteRefused;

/// How far the sending direction has come.
#[derive(Debug)]
enum SendingState {
    /// Opened here; the far side has not heard of it.
    Untold,
    /// Opened by the far side; its head was not answered.
    Unanswered(SendResponse<Bytes>),
    /// Its head is sent.
    Body(h2::SendStream<Bytes>),
}

impl H2SendStream {
    pub(in crate::carrier) async fn write(&mut self, chunk: Bytes) -> Result<(), WriteError> {
        let handle = self.stream.handle.clone();
        let outgoing = handle.shared.outgoing(self.stream.half());
        let mut rest = chunk;
        let mut waiting = None;
        self.has_turn = false;
        poll_fn(|cx| {
            let beginning = self.written < YIELDING_BYTES;
            let written = self.poll_write(&mut rest, cx);
            if written.is_pending() && beginning && waiting.is_none() {
                waiting = Some(outgoing.queues.wait(self.priority()));
            }
            written
        })
        .await
    }

    pub(in crate::carrier) async fn write_many(
        &mut self,
        chunks: &mut [Bytes],
    ) -> Result<(), WriteError> {
        let total: usize = chunks.iter().map(Bytes::len).sum();
        if total <= JOINED && chunks.len() > 1 {
            let mut joined = BytesMut::with_capacity(total);
            for chunk in chunks {
                joined.extend_from_slice(chunk);
            }
            return self.write(joined.freeze()).await;
        }
        for chunk in chunks {
            self.write(chunk.clone()).await?;
        }
        Ok(())
    }

    fn poll_write(
        &mut self,
        rest: &mut Bytes,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WriteError>> {
        self.failed()?;
        let written = self.poll_progress(rest, cx);
        if written.is_pending() {
            self.stream.cell.note(cx);
            // It may have ended before the task was there to be found.
            self.failed()?;
        }
        written
    }

    /// Why no more can be written, if so.
    fn failed(&self) -> Result<(), WriteError> {
        if let Some(code) = self.stream.cell.lock().stopped {
            return Err(WriteError::Stopped(code));
        }
        if let Some(ended) = self.stream.shared().ended() {
            return Err(ended.into());
        }
        if self.ended {
            return Err(WriteError::Ended);
        }
        Ok(())
    }

    fn poll_progress(
        &mut self,
        rest: &mut Bytes,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WriteError>> {
        let handle = self.stream.handle.clone();
        let outgoing = handle.shared.outgoing(self.stream.half());
        let priority = self.priority();
        let promised = self.written == 0 && rest.len() <= PROMISED;
        if rest.is_empty() && self.head().is_err() {
            return self.poll_refused(cx).map(Err);
        }
        while !rest.is_empty() {
            if !self.has_turn {
                self.has_turn = ready!(outgoing.queues.poll_clear(priority, cx));
            }
            if !promised {
                ready!(outgoing.poll_writable(priority, cx));
            }
            let Ok(send) = self.head() else {
                return self.poll_refused(cx).map(Err);
            };
            let len = if promised {
                rest.len()
            } else {
                match ready!(poll_credit(send, rest.len().min(GRANT), cx)) {
                    Some(len) => len,
                    None => return self.poll_refused(cx).map(Err),
                }
            };
            outgoing.add(len);
            if send.send_data(rest.split_to(len), false).is_err() {
                return self.poll_refused(cx).map(Err);
            }
            self.written += len as u64;
        }
        Poll::Ready(Ok(()))
    }

    /// The stream after its head was sent.
    fn head(&mut self) -> Result<&mut h2::SendStream<Bytes>, WriteRefused> {
        let priority = self.priority();
        let sending = self
            .sending
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let body = match sending {
            SendingState::Untold => {
                let head = request(path(), priority);
                let begun = self.stream.shared().begin(&self.stream.cell, head);
                Some(begun.map_err(|()| WriteRefused)?)
            }
            SendingState::Unanswered(respond) => {
                let answered = respond.send_response(Response::new(()), false);
                Some(answered.map_err(|_| WriteRefused)?)
            }
            SendingState::Body(_) => None,
        };
        if let Some(body) = body {
            *sending = SendingState::Body(body);
        }
        match sending {
            SendingState::Body(body) => Ok(body),
            _ => Err(WriteRefused),
        }
    }

    /// Why h2 takes no more: the far side has reset the stream, or the connection is gone, of which
    /// the connection's task knows the reason in a moment.
    fn poll_refused(&self, cx: &mut Context<'_>) -> Poll<WriteError> {
        ready!(self.poll_reset(cx)).map_or(Poll::Pending, |code| {
            self.stream.cell.tell(|cell| {
                cell.stopped.get_or_insert(code);
            });
            Poll::Ready(WriteError::Stopped(code))
        })
    }

    /// Ready with a code when the far side has reset the stream; with none when the connection is
    /// gone.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<Option<Code>> {
        let reset = match &mut *self.lock() {
            SendingState::Untold => return Poll::Pending,
            SendingState::Unanswered(respond) => respond.poll_reset(cx),
            SendingState::Body(body) => body.poll_reset(cx),
        };
        reset.map(|reason| reason.ok().map(codes::of_reset))
    }

    fn lock(&self) -> MutexGuard<'_, SendingState> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::carrier) fn set_priority(&self, priority: Priority) {
        self.priority.store(priority as u8, Ordering::Relaxed);
    }

    fn priority(&self) -> Priority {
        let number = usize::from(self.priority.load(Ordering::Relaxed));
        Priority::ALL.get(number).copied().unwrap_or_default()
    }

    pub(in crate::carrier) fn finish(&mut self) {
        if self.failed().is_ok() {
            self.ended = true;
            if let Ok(send) = self.head() {
                // Fails only for a stream that the far side has reset.
                let _ = send.send_data(Bytes::new(), true);
            }
        }
    }

    pub(in crate::carrier) fn reset(&mut self, code: Code) {
        if std::mem::replace(&mut self.ended, true) || self.stream.shared().ended().is_some() {
            return;
        }
        if let Ok(send) = self.head() {
            // Credit that was not used goes back to the other streams.
            send.reserve_capacity(0);
            let _ = send.send_trailers(codes::trailers(code));
        }
    }

    pub(in crate::carrier) async fn stopped(&self) -> Option<Code> {
        poll_fn(|cx| {
            if let Poll::Ready(code) = self.known() {
                return Poll::Ready(code);
            }
            self.stream.cell.note(cx);
            if let Poll::Ready(Some(code)) = self.poll_reset(cx) {
                return Poll::Ready(Some(code));
            }
            self.known()
        })
        .await
    }

    /// Whether the direction was stopped, as far as the connection's task knows.
    fn known(&self) -> Poll<Option<Code>> {
        match self.failed() {
            Ok(()) => Poll::Pending,
            Err(WriteError::Stopped(code)) => Poll::Ready(Some(code)),
            Err(_) => Poll::Ready(None),
        }
    }
}

impl Drop for H2SendStream {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if matches!(&*self.lock(), SendingState::Untold) {
            // The far side has not heard of it, and need not.
            return self.stream.cell.tell(|_| {});
        }
        self.reset(Code::Cancelled);
    }
}

/// Credit for up to `want` bytes; none when h2 takes no more.
fn poll_credit(
    send: &mut h2::SendStream<Bytes>,
    want: usize,
    cx: &mut Context<'_>,
) -> Poll<Option<usize>> {
    send.reserve_capacity(want);
    loop {
        let have = send.capacity();
        if have > 0 {
            return Poll::Ready(Some(have.min(want)));
        }
        match ready!(send.poll_capacity(cx)) {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Poll::Ready(None),
        }
    }
}

/// The reading half of an HTTP/2 stream.
#[derive(Debug)]
pub struct H2RecvStream {
    reader: StreamReads,
    stream: Arc<H2Stream>,
    receiving: ReceivingState,
    /// What is left of a frame of which the reader wanted less.
    rest: Bytes,
    end: Option<ReceiveEnd>,
    stopped: bool,
}

/// How far the receiving direction has come.
#[derive(Debug)]
enum ReceivingState {
    /// Opened here; the far side has not heard of it.
    Untold,
    /// The far side has not answered.
    Head(ResponseFuture),
    /// Its head has come.
    Body(h2::RecvStream),
    /// Nobody reads any more.
    Over,
}

/// How the direction ended.
#[derive(Clone, Copy, Debug)]
enum ReceiveEnd {
    Finished,
    Reset(Code),
}

impl H2RecvStream {
    pub(in crate::carrier) fn poll_read(
        &mut self,
        max: usize,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        let Poll::Ready(read) = self.poll_chunk(max.max(1), cx) else {
            if !matches!(waiting.0, ReadWaitingKind::H2 { .. }) {
                let _counted = self.reader.waits();
                waiting.0 = ReadWaitingKind::H2 { _counted };
            }
            return Poll::Pending;
        };
        match &read {
            Ok(Some(bytes)) => self.reader.has_read(bytes.len()),
            Ok(None) | Err(_) => self.reader.end(),
        }
        waiting.0 = ReadWaitingKind::Nothing;
        Poll::Ready(read)
    }

    fn poll_chunk(
        &mut self,
        max: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        if self.stopped {
            return Poll::Ready(Err(ReadError::Stopped));
        }
        if self.rest.is_empty() && self.end.is_none() {
            if let Poll::Ready(step) = self.poll_step(cx) {
                step?;
            } else {
                self.stream.cell.note(cx);
                // Bytes may have come before the end of the connection did.
                if let Some(ended) = self.stream.shared().ended() {
                    return Poll::Ready(match self.poll_step(cx) {
                        Poll::Ready(step) => {
                            step.map_err(ReadError::from).and_then(|()| self.take(max))
                        }
                        Poll::Pending => Err(ended.into()),
                    });
                }
                if self.can_go_on() {
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(self.take(max))
    }

    /// Whether the far side has heard of the stream since this half has looked.
    fn can_go_on(&self) -> bool {
        matches!(self.receiving, ReceivingState::Untold) && self.stream.cell.lock().answer.is_some()
    }

    fn take(&mut self, max: usize) -> Result<Option<Bytes>, ReadError> {
        match self.end {
            _ if !self.rest.is_empty() => {
                let len = self.rest.len().min(max);
                Ok(Some(self.rest.split_to(len)))
            }
            Some(ReceiveEnd::Reset(code)) => Err(ReadError::Reset(code)),
            Some(ReceiveEnd::Finished) | None => Ok(None),
        }
    }

    /// Gets bytes or the end. Pending also where the connection is gone: its task knows why.
    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        loop {
            match &mut self.receiving {
                ReceivingState::Untold => match self.stream.cell.lock().answer.take() {
                    Some(answer) => self.receiving = ReceivingState::Head(answer),
                    None => return Poll::Pending,
                },
                ReceivingState::Head(answer) => match ready!(Pin::new(answer).poll(cx)) {
                    Ok(response) if response.status() == StatusCode::OK => {
                        self.receiving = ReceivingState::Body(response.into_body());
                    }
                    Ok(response) => {
                        tracing::debug!(status = %response.status(), "a stream was refused");
                        self.end = Some(ReceiveEnd::Reset(Code::Internal));
                    }
                    Err(error) => return self.poll_broken(&error),
                },
                ReceivingState::Body(body) => match ready!(body.poll_data(cx)) {
                    Some(Ok(bytes)) => {
                        // Cannot fail: as much was received.
                        let _ = body.flow_control().release_capacity(bytes.len());
                        self.rest = bytes;
                    }
                    Some(Err(error)) => return self.poll_broken(&error),
                    None => match ready!(body.poll_trailers(cx)) {
                        Ok(None) => self.end = Some(ReceiveEnd::Finished),
                        Ok(Some(trailers)) => {
                            self.end = Some(ReceiveEnd::Reset(codes::of_trailers(&trailers)));
                        }
                        Err(error) => return self.poll_broken(&error),
                    },
                },
                ReceivingState::Over => return Poll::Pending,
            }
            if self.end.is_some() || !self.rest.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_broken(&mut self, error: &h2::Error) -> Poll<Result<(), ConnectionError>> {
        match error.reason() {
            Some(reason) if error.is_reset() => {
                self.end = Some(ReceiveEnd::Reset(codes::of_reset(reason)));
                Poll::Ready(Ok(()))
            }
            _ => Poll::Pending,
        }
    }

    pub(in crate::carrier) fn stop(&mut self, code: Code) {
        let ended = match &self.receiving {
            ReceivingState::Body(body) => body.is_end_stream(),
            _ => false,
        };
        // What has ended already keeps its end.
        if self.end.is_some() || self.stopped || ended {
            return;
        }
        self.stopped = true;
        self.reader.end();
        self.rest = Bytes::new();
        let receiving = std::mem::replace(&mut self.receiving, ReceivingState::Over);
        let shared = self.stream.shared();
        let key = {
            let mut cell = self.stream.cell.lock();
            cell.unwanted = Some(code);
            cell.key
        };
        let (Some(key), None) = (key, shared.ended()) else {
            return;
        };
        let alone = Arc::strong_count(&self.stream) == 1;
        if alone && code == Code::Cancelled {
            // Both halves are gone, and h2 says so by itself.
            return;
        }
        let ReceivingState::Body(body) = receiving else {
            return shared.stop(key, code);
        };
        let untold = if code == Code::Ok {
            Some((key, code))
        } else {
            shared.stop(key, code);
            None
        };
        shared.linger(LingeringStream {
            body,
            unsent_stop: untold,
        });
    }
}

impl Drop for H2RecvStream {
    fn drop(&mut self) {
        self.stop(Code::Cancelled);
    }
}
