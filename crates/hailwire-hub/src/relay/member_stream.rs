//! What a member sends to the relay, at the member's share of the relay's rate.
//!
//! [`RelayShare`] decides; this waits. Frames with datagrams wait here for their turn, and are dropped beyond what passes within
//! 100 ms, so a sender's congestion control learns of it as of any full link. All else, pings and their answers, goes ahead: a connection
//! whose member sends too much stays alive. The connection is read all the time.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use hailwire_core::relay_share::RelayShare;
use hailwire_websocket::WebSocket;
use hailwire_wire::NodeId;
use iroh_relay::{
    ExportKeyingMaterial,
    protos::{common::FrameType, streams::StreamError},
    server::streams::MaybeTlsStream,
};
use tokio::time::{Sleep, sleep_until};

/// A member's connection, as messages.
#[derive(Debug)]
pub(super) struct MemberStream {
    socket: WebSocket<MaybeTlsStream>,
    limit: Option<MemberLimit>,
}

/// How much of what a member sends is carried, and what waits for that.
#[derive(Debug)]
struct MemberLimit {
    member: NodeId,
    share: Arc<Mutex<RelayShare<NodeId>>>,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// When the first may be tried again.
    again: Option<Pin<Box<Sleep>>>,
    dropped: Arc<AtomicU64>,
}

impl MemberStream {
    pub(super) fn new(socket: WebSocket<MaybeTlsStream>) -> Self {
        Self {
            socket,
            limit: None,
        }
    }

    /// From here on it gets the member's share; `dropped` counts the frames beyond it.
    pub(super) fn limit(
        &mut self,
        member: NodeId,
        share: Arc<Mutex<RelayShare<NodeId>>>,
        dropped: Arc<AtomicU64>,
    ) {
        self.limit = Some(MemberLimit {
            member,
            share,
            waiting: VecDeque::new(),
            bytes: 0,
            again: None,
            dropped,
        });
    }
}

impl MemberLimit {
    /// The first frame that waits, once it may pass.
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        loop {
            let Some(first) = self.waiting.front() else {
                return Poll::Pending;
            };
            if let Some(again) = &mut self.again {
                std::task::ready!(again.as_mut().poll(cx));
                self.again = None;
            }
            let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
            match share.pass(self.member, first.len(), Instant::now()) {
                Ok(()) => {
                    let first = self.waiting.pop_front().unwrap_or_default();
                    self.bytes -= first.len();
                    return Poll::Ready(first);
                }
                Err(again) => self.again = Some(Box::pin(sleep_until(again.into()))),
            }
        }
    }

    /// Keeps a frame until it may pass, if that is soon.
    fn push(&mut self, frame: Bytes) {
        let share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        let most = share.worth_keeping(self.member);
        drop(share);
        if !self.waiting.is_empty() && self.bytes + frame.len() > most {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.bytes += frame.len();
        self.waiting.push_back(frame);
    }
}

/// Whether a message carries datagrams for another member.
fn is_carried(message: &Bytes) -> bool {
    // The kind is a variable-length integer, of one byte for all kinds that there are.
    let kind = message.first().copied().map(u32::from);
    let datagrams = [
        FrameType::ClientToRelayDatagram,
        FrameType::ClientToRelayDatagramBatch,
    ];
    datagrams.map(u32::from).iter().any(|d| kind == Some(*d))
}

impl Stream for MemberStream {
    type Item = Result<Bytes, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(limit) = &mut this.limit
                && let Poll::Ready(frame) = limit.poll_waiting(cx)
            {
                return Poll::Ready(Some(Ok(frame)));
            }
            let next = std::task::ready!(Pin::new(&mut this.socket).poll_next(cx));
            match (next, &mut this.limit) {
                (Some(Ok(message)), Some(limit)) if is_carried(&message) => limit.push(message),
                (next, _) => {
                    return Poll::Ready(next.map(|next| next.map_err(StreamError::from_std)));
                }
            }
        }
    }
}

impl Sink<Bytes> for MemberStream {
    type Error = StreamError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let ready = Pin::new(&mut self.socket).poll_ready(cx);
        ready.map_err(StreamError::from_std)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Bytes) -> Result<(), StreamError> {
        let sent = Pin::new(&mut self.socket).start_send(message);
        sent.map_err(StreamError::from_std)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        flushed.map_err(StreamError::from_std)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let closed = Pin::new(&mut self.socket).poll_close(cx);
        closed.map_err(StreamError::from_std)
    }
}

impl ExportKeyingMaterial for MemberStream {
    fn export_keying_material<T: AsMut<[u8]>>(
        &self,
        output: T,
        label: &[u8],
        context: Option<&[u8]>,
    ) -> Option<T> {
        let io = self.socket.get_ref();
        io.export_keying_material(output, label, context)
    }
}
