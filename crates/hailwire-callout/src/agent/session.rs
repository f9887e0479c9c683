//! One connection of an agent over a pair of byte streams, after the handshake.
//!
//! One task reads, runs what answers at once, and writes the answers to all that one read brought with one
//! system call. What takes longer answers from a task of its own.
//!
//! An event that cannot be read is answered with a block of status 500, never with an allow; when not even its request
//! can be found in it, the connection ends. So it does at a frame of a type that was not agreed upon.

use std::{
    future::poll_fn,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use super::{Agent, EventDispatcher, HostHandle, ReplySink};
use crate::{
    Text,
    control::Notice,
    event::{Event, EventKind},
    response::Response,
    stream::{FrameReceiver, FrameSender},
    wire::{
        self, DecodeError, Encoding,
        frame::{FrameError, FrameType},
        raw, salvage,
    },
};

/// The parameters that a handshake agreed on.
pub(super) struct AgentSessionParams {
    pub(super) host_id: String,
    pub(super) host_version: String,
    pub(super) encoding: Encoding,
    /// Both sides are Hailwire.
    pub(super) numbered: bool,
}

/// Serves until the host leaves.
pub(super) async fn run<A, R, W>(
    agent: Arc<A>,
    incoming: FrameReceiver<R>,
    outgoing: FrameSender<W>,
    settled: AgentSessionParams,
) -> io::Result<()>
where
    A: Agent,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (host, notices) = HostHandle::new(settled.host_id, settled.host_version);
    agent.connected(host);
    let mut session = AgentSession {
        incoming,
        answers: Arc::new(AnswerBuffer {
            outgoing,
            encoding: settled.encoding,
            reading: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
        }),
        dispatch: EventDispatcher::new(agent),
        notices,
        numbered: settled.numbered,
        gathers: false,
    };
    poll_fn(|context| session.poll(context)).await
}

struct AgentSession<A: Agent, R, W: AsyncWrite + Unpin + Send + 'static> {
    incoming: FrameReceiver<R>,
    answers: Arc<AnswerBuffer<W>>,
    dispatch: EventDispatcher<A, SessionReply<W>>,
    notices: mpsc::Receiver<Notice>,
    numbered: bool,
    /// It was woken, and lets whoever runs next add to what it will write.
    gathers: bool,
}

/// Where answers are gathered.
struct AnswerBuffer<W> {
    outgoing: FrameSender<W>,
    encoding: Encoding,
    /// The session is reading, and will write afterwards.
    reading: AtomicBool,
    /// The session reads no more until something has been answered.
    stalled: AtomicBool,
}

impl<A, R, W> AgentSession<A, R, W>
where
    A: Agent,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answers = self.answers.clone();
        let outgoing = &answers.outgoing;
        outgoing.attach(context.waker());
        answers.reading.store(true, Ordering::SeqCst);
        let (read, ended) = self.read(context)?;
        answers.reading.store(false, Ordering::SeqCst);
        let mut told = false;
        while let Poll::Ready(Some(notice)) = self.notices.poll_recv(context) {
            self.tell(&notice);
            told = true;
        }
        let woken = outgoing.was_woken();
        if outgoing.is_closing() {
            return Poll::Ready(Ok(()));
        }
        // Those that answer about now write together.
        if woken && !self.gathers && !read && !told && !ended && !outgoing.is_flush_due() {
            self.gathers = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.gathers = false;
        match outgoing.poll_write(context) {
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        if ended {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Reads what there is, and writes after each read. Returns whether there was anything, and whether the host
    /// has left.
    fn read(&mut self, context: &mut Context<'_>) -> io::Result<(bool, bool)> {
        let mut any = false;
        loop {
            while let Some((code, payload)) = self.incoming.next().map_err(invalid)? {
                any = true;
                self.frame(code, payload)?;
            }
            if any && let Poll::Ready(Err(error)) = self.answers.outgoing.poll_write(context) {
                return Err(error);
            }
            if !self.dispatch.has_room() {
                self.answers.stalled.store(true, Ordering::SeqCst);
                if !self.dispatch.has_room() {
                    return Ok((any, false));
                }
            }
            self.answers.stalled.store(false, Ordering::SeqCst);
            match self.incoming.poll_fill(context) {
                Poll::Pending => return Ok((any, false)),
                Poll::Ready(Ok(0)) => return Ok((any, true)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
    }

    fn frame(&mut self, code: u8, payload: Bytes) -> io::Result<()> {
        if self.numbered && matches!(code, raw::EVENT | raw::CHUNK) {
            return self.numbered_event(code, payload);
        }
        let Some(kind) = FrameType::from_code(code) else {
            let unknown = format!("unknown frame type {code:#04x}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, unknown));
        };
        match kind {
            FrameType::Event(kind) => self.event(kind, &payload),
            FrameType::Cancel => {
                if let Ok(cancel) = wire::decode_cancel(&payload) {
                    self.dispatch.cancel(&cancel.correlation_id, cancel.reason);
                }
                Ok(())
            }
            FrameType::Ping => {
                let code = FrameType::Pong.code();
                self.answers
                    .outgoing
                    .frame(code, |out| out.extend_from_slice(&payload))
                    .map_err(invalid)
            }
            other => {
                tracing::debug!(kind = ?other, "frame for the other direction ignored");
                Ok(())
            }
        }
    }

    fn event(&mut self, kind: EventKind, payload: &Bytes) -> io::Result<()> {
        let encoding = self.answers.encoding;
        match wire::decode_event(kind, payload.clone(), encoding) {
            Ok(event) => {
                let to = ReplyTo::Request(Text::from(event.id()));
                self.begin(event, to);
                Ok(())
            }
            Err(error) => {
                let Some(id) = salvage::event_id(payload, encoding) else {
                    return Err(invalid(error));
                };
                self.unreadable(&ReplyTo::Request(id), &error);
                Ok(())
            }
        }
    }

    fn numbered_event(&mut self, code: u8, payload: Bytes) -> io::Result<()> {
        let number = raw::take_number(&mut payload.clone()).map_err(invalid)?;
        let event = if code == raw::CHUNK {
            raw::take_chunk(payload).map(|(_, event)| event)
        } else {
            raw::take_event_head(payload).and_then(|(_, kind, payload)| {
                wire::decode_event(kind, payload, self.answers.encoding)
            })
        };
        match event {
            Ok(event) => self.begin(event, ReplyTo::Number(number)),
            Err(error) => self.unreadable(&ReplyTo::Number(number), &error),
        }
        Ok(())
    }

    fn begin(&mut self, event: Event, to: ReplyTo) {
        let reply = SessionReply {
            answers: self.answers.clone(),
            to,
        };
        self.dispatch.event(event, reply);
    }

    fn unreadable(&self, to: &ReplyTo, error: &DecodeError) {
        tracing::warn!(%error, "event could not be decoded; its request is blocked");
        self.answers.put(to, Response::block(500));
    }

    fn tell(&self, notice: &Notice) {
        let Some(kind) = wire::notice_type(notice) else {
            return;
        };
        let encoding = self.answers.encoding;
        let put = |out: &mut _| wire::encode_notice(notice, encoding, out);
        if let Err(error) = self.answers.outgoing.frame(kind.code(), put) {
            tracing::warn!(%error, "sending a notice failed");
        }
    }
}

/// What an answer is for.
enum ReplyTo {
    Number(u64),
    Request(Text),
}

/// Where the answer to one event goes.
struct SessionReply<W: AsyncWrite + Unpin + Send + 'static> {
    answers: Arc<AnswerBuffer<W>>,
    to: ReplyTo,
}

impl<W: AsyncWrite + Unpin + Send + 'static> ReplySink for SessionReply<W> {
    fn answer(self, response: Response) {
        let answers = &self.answers;
        answers.put(&self.to, response);
        if answers.reading.load(Ordering::SeqCst) {
            return;
        }
        // The session has one, its dispatch none: two are this reply alone.
        let alone = Arc::strong_count(answers) <= 2;
        if alone && !answers.stalled.load(Ordering::SeqCst) {
            answers.outgoing.write();
        } else {
            answers.outgoing.wake_driver();
        }
    }
}

impl<W: AsyncWrite + Unpin> AnswerBuffer<W> {
    fn put(&self, to: &ReplyTo, response: Response) {
        let put = match to {
            ReplyTo::Request(id) => self.outgoing.frame(FrameType::Response.code(), |out| {
                wire::encode_response(id, &response, self.encoding, out);
            }),
            ReplyTo::Number(number) => self.put_numbered(*number, response),
        };
        if let Err(error) = put {
            // Too large for a frame. Without an answer the host would wait; it is told no.
            tracing::warn!(%error, "answer could not be sent; its request is blocked");
            let refused = Response::block(500);
            let _ = match to {
                ReplyTo::Request(id) => self.outgoing.frame(FrameType::Response.code(), |out| {
                    wire::encode_response(id, &refused, self.encoding, out);
                }),
                ReplyTo::Number(number) => self.put_numbered(*number, refused),
            };
        }
    }

    fn put_numbered(&self, number: u64, mut response: Response) -> Result<(), FrameError> {
        let Some((kind, index, data)) = raw::answer_data(&response) else {
            return self.outgoing.frame(raw::ANSWER, |out| {
                raw::put_answer(number, "", &response, self.encoding, out);
            });
        };
        response.request_body = None;
        response.response_body = None;
        let head = |out: &mut _| {
            raw::put_answer_head(number, (kind, index), "", &response, self.encoding, out);
        };
        self.outgoing.frame_with(raw::ANSWER_DATA, head, data)
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
