//! Bodies: what follows a header, in either direction, as chunks of bytes.
//!
//! A body is known whole ([`Body::from`] bytes), fed through a bounded channel
//! ([`Body::channel`]), or read off a session's stream. Whoever reads it sees the same three
//! things: chunks, the end, or a [`Status`] that says why the end will not come. Reading slowly is
//! back-pressure: nothing between writer and reader grows.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{Code, Status, frame::FrameEvent, limits};
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::{carrier::ReadWaiting, frame_reader::FrameReader};

/// A stream of byte chunks with a definite end.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hailwire::Status> {
/// use hailwire::Body;
///
/// // Known whole.
/// let mut body = Body::from("hail");
/// assert_eq!(body.bytes(1024).await?, "hail");
///
/// // Fed chunk by chunk: at most four wait, then the writer does.
/// let (sender, mut body) = Body::channel(4);
/// tokio::spawn(async move {
///     sender.send("one ").await?;
///     sender.send("two").await?;
///     sender.finish().await
/// });
/// assert_eq!(body.bytes(1024).await?, "one two");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Body(BodyKind);

#[derive(Debug, Default)]
enum BodyKind {
    #[default]
    Empty,
    Full(Bytes),
    Channel(mpsc::Receiver<BodyItem>),
    Wire(WireBody),
    OneWay(Box<OneWay>),
    Failed(Status),
}

/// The body that follows on a stream. Dropped before its end, it says that no more of it is wanted, and that the answer is not
/// given up by it: code 0, as `spec/session.md` has it.
#[derive(Debug)]
struct WireBody {
    reader: Box<FrameReader>,
    ended: bool,
}

impl WireBody {
    fn new(reader: Box<FrameReader>) -> Self {
        Self {
            reader,
            ended: false,
        }
    }

    fn poll_chunk(
        &mut self,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        let chunk = ready!(poll_data(&mut self.reader, waiting, cx));
        self.ended = !matches!(chunk, Ok(Some(_)));
        Poll::Ready(chunk)
    }
}

impl Drop for WireBody {
    fn drop(&mut self) {
        if !self.ended {
            self.reader.stop(Code::Ok);
        }
    }
}

/// The body of a one-way message on a stream, read up to its bound.
#[derive(Debug)]
struct OneWay {
    body: WireBody,
    left: usize,
    overrun: OverrunFlag,
}

/// Tells whether the reader of a one-way message met its bound, for a reader may keep that to
/// itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverrunFlag(Arc<AtomicBool>);

impl OverrunFlag {
    /// The refusal of a message past its bound.
    pub(crate) fn check(&self) -> Result<(), Status> {
        if self.0.load(Ordering::Relaxed) {
            return Err(message_too_long());
        }
        Ok(())
    }
}

#[derive(Debug)]
enum BodyItem {
    Chunk(Bytes),
    End,
    Abort(Status),
}

impl Body {
    /// A body without bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// A body that is fed chunk by chunk. At most `capacity` chunks, at least one, wait to be read;
    /// the sender then waits. The memory that it costs is theirs: chunks are handed on, not copied.
    #[must_use]
    pub fn channel(capacity: usize) -> (BodySender, Self) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (BodySender(sender), Self(BodyKind::Channel(receiver)))
    }

    /// Its bytes, where it is known whole and none were read.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        match &self.0 {
            BodyKind::Empty => Some(Bytes::new()),
            BodyKind::Full(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// The body that follows on a stream whose header was read.
    pub(crate) fn wire(reader: Box<FrameReader>) -> Self {
        Self(BodyKind::Wire(WireBody::new(reader)))
    }

    /// The body of a one-way message; reading it past [`limits::MAX_SEND_BODY`] fails with
    /// `resource_exhausted`.
    pub(crate) fn one_way(reader: Box<FrameReader>) -> (Self, OverrunFlag) {
        let overrun = OverrunFlag::default();
        let body = OneWay {
            body: WireBody::new(reader),
            left: limits::MAX_SEND_BODY,
            overrun: overrun.clone(),
        };
        (Self(BodyKind::OneWay(Box::new(body))), overrun)
    }

    /// The next chunk, never empty; `None` at the end.
    ///
    /// # Errors
    ///
    /// The writer gave up, or the way to it broke. Every later call returns the same error.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Status> {
        let mut waiting = ReadWaiting::default();
        poll_fn(|cx| self.poll_chunk(&mut waiting, cx)).await
    }

    /// As [`Body::chunk`], for a future of the caller's that holds `waiting` from its first poll to its last.
    pub(crate) fn poll_chunk(
        &mut self,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        let result = ready!(match &mut self.0 {
            BodyKind::Empty => return Poll::Ready(Ok(None)),
            BodyKind::Failed(status) => return Poll::Ready(Err(status.clone())),
            BodyKind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = BodyKind::Empty;
                return Poll::Ready(Ok(Some(bytes).filter(|b| !b.is_empty())));
            }
            BodyKind::Channel(receiver) => receiver.poll_recv(cx).map(item_chunk),
            BodyKind::Wire(body) => body.poll_chunk(waiting, cx),
            BodyKind::OneWay(body) => body.poll_chunk(waiting, cx),
        });
        match &result {
            Ok(Some(_)) => {}
            Ok(None) => self.0 = BodyKind::Empty,
            Err(status) => self.0 = BodyKind::Failed(status.clone()),
        }
        Poll::Ready(result)
    }

    /// All of it in one piece.
    ///
    /// # Errors
    ///
    /// As [`Body::chunk`]; `resource_exhausted` when it is longer than `limit` bytes, of which the
    /// rest is then not read.
    ///
    /// # Cancel safety
    ///
    /// What was read is lost.
    pub async fn bytes(&mut self, limit: usize) -> Result<Bytes, Status> {
        let Some(first) = self.chunk().await? else {
            return Ok(Bytes::new());
        };
        check_limit(first.len(), limit)?;
        let Some(second) = self.chunk().await? else {
            return Ok(first);
        };
        let mut all = BytesMut::with_capacity(first.len() + second.len());
        all.extend_from_slice(&first);
        let mut next = Some(second);
        while let Some(chunk) = next {
            check_limit(all.len() + chunk.len(), limit)?;
            all.extend_from_slice(&chunk);
            next = self.chunk().await?;
        }
        Ok(all.freeze())
    }

    /// The whole body, if it is known without waiting.
    pub(crate) fn take_known(&mut self) -> Option<Bytes> {
        match &mut self.0 {
            BodyKind::Empty => Some(Bytes::new()),
            BodyKind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = BodyKind::Empty;
                Some(bytes)
            }
            BodyKind::Channel(_)
            | BodyKind::Wire(_)
            | BodyKind::OneWay(_)
            | BodyKind::Failed(_) => None,
        }
    }
}

impl OneWay {
    fn poll_chunk(
        &mut self,
        waiting: &mut ReadWaiting,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        let chunk = ready!(self.body.poll_chunk(waiting, cx))?;
        let Some(left) = self.left.checked_sub(chunk.as_ref().map_or(0, Bytes::len)) else {
            self.overrun.0.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(message_too_long()));
        };
        self.left = left;
        Poll::Ready(Ok(chunk))
    }
}

fn message_too_long() -> Status {
    let bound = limits::MAX_SEND_BODY;
    let what = format!("a one-way message has at most {bound} bytes");
    Status::new(Code::ResourceExhausted, what).with_hint("use a call or a stream")
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            Self::empty()
        } else {
            Self(BodyKind::Full(bytes))
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

/// The writing end of [`Body::channel`].
///
/// A body ends with [`BodySender::finish`]. A sender that is merely dropped aborts it, so that a
/// writer that failed is never mistaken for one that was done.
#[derive(Debug)]
pub struct BodySender(mpsc::Sender<BodyItem>);

impl BodySender {
    /// Adds a chunk; waits while the reader is behind. Empty chunks are skipped.
    ///
    /// # Errors
    ///
    /// `cancelled` when the reader is gone.
    ///
    /// # Cancel safety
    ///
    /// The chunk is added whole or not at all.
    pub async fn send(&self, chunk: impl Into<Bytes>) -> Result<(), Status> {
        let chunk = chunk.into();
        if chunk.is_empty() {
            return Ok(());
        }
        self.0
            .send(BodyItem::Chunk(chunk))
            .await
            .map_err(|_| reader_gone())
    }

    /// Ends the body; waits while the reader is behind.
    ///
    /// # Errors
    ///
    /// `cancelled` when the reader is gone.
    ///
    /// # Cancel safety
    ///
    /// If dropped before it resolves, the body ends as aborted.
    pub async fn finish(self) -> Result<(), Status> {
        self.0.send(BodyItem::End).await.map_err(|_| reader_gone())
    }

    /// Ends the body with an error, which the reader sees after the chunks already sent.
    ///
    /// # Cancel safety
    ///
    /// If dropped before it resolves, the reader sees `aborted` without this reason.
    pub async fn abort(self, status: Status) {
        // A reader that is gone no longer needs the reason.
        let _ = self.0.send(BodyItem::Abort(status)).await;
    }

    /// Waits until the reader is gone. Safe to drop; resolves at once when it is gone already.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Room for one chunk if there is some now, else the sender again; nothing when the reader is gone.
    pub(crate) fn try_reserve(self) -> Option<Result<ChunkPermit, Self>> {
        match self.0.try_reserve_owned() {
            Ok(permit) => Some(Ok(ChunkPermit(permit))),
            Err(TrySendError::Full(sender)) => Some(Err(Self(sender))),
            Err(TrySendError::Closed(_)) => None,
        }
    }

    /// Room for one chunk, waited for; nothing when the reader is gone. Dropping it drops the sender.
    pub(crate) async fn reserve(self) -> Option<ChunkPermit> {
        self.0.reserve_owned().await.ok().map(ChunkPermit)
    }
}

/// Room for one chunk, and the sender that it came from.
#[derive(Debug)]
pub(crate) struct ChunkPermit(mpsc::OwnedPermit<BodyItem>);

impl ChunkPermit {
    /// Adds a chunk, which is not empty.
    pub(crate) fn send(self, chunk: Bytes) -> BodySender {
        BodySender(self.0.send(BodyItem::Chunk(chunk)))
    }

    /// Ends the body, as [`BodySender::finish`].
    pub(crate) fn finish(self) {
        self.0.send(BodyItem::End);
    }
}

fn reader_gone() -> Status {
    Status::new(Code::Cancelled, "the reader of this body is gone")
}

fn item_chunk(item: Option<BodyItem>) -> Result<Option<Bytes>, Status> {
    match item {
        Some(BodyItem::Chunk(chunk)) => Ok(Some(chunk)),
        Some(BodyItem::End) => Ok(None),
        Some(BodyItem::Abort(status)) => Err(status),
        None => Err(Status::new(
            Code::Aborted,
            "the writer of this body went away before its end",
        )),
    }
}

/// The next body bytes of a stream on which nothing but `DATA` has meaning any more.
fn poll_data(
    reader: &mut FrameReader,
    waiting: &mut ReadWaiting,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Bytes>, Status>> {
    loop {
        match ready!(reader.poll_next(waiting, cx))? {
            Some(FrameEvent::Data(bytes)) => return Poll::Ready(Ok(Some(bytes))),
            Some(FrameEvent::Frame(..)) => {}
            None => return Poll::Ready(Ok(None)),
        }
    }
}

fn check_limit(len: usize, limit: usize) -> Result<(), Status> {
    if len <= limit {
        return Ok(());
    }
    Err(Status::new(
        Code::ResourceExhausted,
        format!("the body is longer than {limit} bytes"),
    )
    .with_hint("read it chunk by chunk, or allow more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_ends_only_when_it_is_finished() {
        let (sender, mut body) = Body::channel(4);
        sender.send("ab").await.unwrap();
        sender.send("c").await.unwrap();
        sender.finish().await.unwrap();
        assert_eq!(body.bytes(10).await.unwrap(), "abc");

        let (sender, mut body) = Body::channel(4);
        sender.send("ab").await.unwrap();
        drop(sender);
        assert_eq!(body.chunk().await.unwrap().unwrap(), "ab");
        assert_eq!(body.chunk().await.unwrap_err().code, Code::Aborted);
        assert_eq!(body.chunk().await.unwrap_err().code, Code::Aborted);
    }

    #[tokio::test]
    async fn a_body_past_its_limit_is_refused() {
        let mut body = Body::from("four");
        assert_eq!(
            body.bytes(3).await.unwrap_err().code,
            Code::ResourceExhausted
        );
        assert_eq!(Body::from("four").bytes(4).await.unwrap(), "four");
    }

    #[tokio::test]
    async fn a_sender_learns_that_its_reader_is_gone() {
        let (sender, body) = Body::channel(1);
        drop(body);
        assert_eq!(sender.send("x").await.unwrap_err().code, Code::Cancelled);
    }

    #[tokio::test]
    async fn a_body_that_is_known_is_taken_whole_and_once() {
        for (mut body, known) in [
            (Body::empty(), Some("")),
            (Body::from(""), Some("")),
            (Body::from("ab".to_owned()), Some("ab")),
            (Body::from(vec![b'a', b'b']), Some("ab")),
            (Body::from(&b"ab"[..]), Some("ab")),
            (Body::channel(1).1, None),
        ] {
            let taken = body.take_known();
            assert_eq!(taken.as_deref(), known.map(str::as_bytes));
            if known.is_some() {
                assert_eq!(body.chunk().await, Ok(None));
                assert_eq!(body.take_known().as_deref(), Some(&b""[..]));
            }
        }
    }

    #[tokio::test]
    async fn the_limit_is_that_of_all_chunks_together() {
        for (limit, fits) in [(5, true), (4, false), (1, false)] {
            let (sender, mut body) = Body::channel(4);
            for chunk in ["ab", "", "cd", "e"] {
                sender.send(chunk).await.unwrap();
            }
            sender.finish().await.unwrap();
            match body.bytes(limit).await {
                Ok(bytes) => assert!(fits && bytes == "abcde", "{limit}"),
                Err(status) => {
                    assert!(!fits, "{limit}");
                    let what = format!("the body is longer than {limit} bytes");
                    assert_eq!(status.message, what);
                }
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_was_broken_off_says_so_each_time() {
        let (sender, mut body) = Body::channel(2);
        let torn = Status::new(Code::DataLoss, "torn");
        sender.abort(torn.clone()).await;
        assert_eq!(body.chunk().await, Err(torn.clone()));
        assert_eq!(body.bytes(9).await, Err(torn));
    }

    #[tokio::test]
    async fn room_for_a_chunk_is_there_or_waited_for_or_never_comes() {
        let (sender, mut body) = Body::channel(1);
        let room = sender.try_reserve().unwrap().unwrap();
        let sender = room.send(Bytes::from_static(b"a"));
        // It is full.
        let sender = sender.try_reserve().unwrap().unwrap_err();
        let (room, first) = tokio::join!(sender.reserve(), body.chunk());
        assert_eq!(first.unwrap().unwrap(), "a");
        let sender = room.unwrap().send(Bytes::from_static(b"b"));
        drop(body);
        sender.closed().await;
        assert!(sender.try_reserve().is_none());
        let (sender, body) = Body::channel(1);
        drop(body);
        assert!(sender.reserve().await.is_none());
    }
}
