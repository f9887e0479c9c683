//! A byte stream between two hosts in virtual time: what TCP would carry, without TCP.
//!
//! Each direction cuts what is written into segments and sends them over the links between the
//! hosts. One that is lost, or dropped by a full queue, is sent again a round trip later, and what
//! follows waits for it: the head-of-line blocking of a byte stream, without a congestion control of
//! its own. A writer waits while [`STREAM_WINDOW`] bytes are unread.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::{
    link::{Link, LinkShape, PacketOutcome},
    topology::{FirewallPolicy, Topology},
};

/// Most bytes of one direction that are written and not yet read.
pub const STREAM_WINDOW: usize = 1 << 20;

/// Payload of a segment, and its headers.
const SEGMENT_PAYLOAD: usize = 1448;
const SEGMENT_HEADERS: u32 = 52;

/// One end of a byte stream. Dropping it ends both directions.
#[derive(Debug)]
pub struct VirtualStream {
    reads: Arc<Mutex<StreamDirection>>,
    writes: Arc<Mutex<StreamDirection>>,
    origin: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct StreamDirection {
    links: [Link; 2],
    round_trip: Duration,
    /// Segments by arrival, which never runs backwards.
    bytes_in_transit: VecDeque<(Duration, Bytes)>,
    unread: usize,
    ended: Option<Duration>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

pub(super) fn connect(
    topology: &Topology,
    seed: u64,
    from: &str,
    to: &str,
    port: u16,
) -> io::Result<(VirtualStream, VirtualStream)> {
    let site = |host: &str| {
        let number = topology.site_of(host).ok_or(io::ErrorKind::NotFound)?;
        topology.sites.get(number).ok_or(io::ErrorKind::NotFound)
    };
    let (near, far) = (site(from)?, site(to)?);
    let together = topology.site_of(from) == topology.site_of(to);
    let lets_out = match &near.firewall {
        Some(FirewallPolicy::OnlyTcp443) => port == 443,
        Some(wall) => wall.only_host().is_none_or(|only| only == to),
        None => true,
    };
    let lets_in = far.nats.is_empty()
        && far
            .firewall
            .as_ref()
            .is_none_or(FirewallPolicy::lets_tcp_in);
    let refused = !lets_out || !lets_in;
    if refused && !together {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let nothing = LinkShape::default();
    let shapes: [&LinkShape; 4] = match together {
        true => [&nothing; 4],
        false => [&near.up, &far.down, &far.up, &near.down],
    };
    let round_trip = shapes.iter().map(|shape| shape.delay).sum();
    let link = |number: usize| Link::new(shapes[number].clone(), seed + number as u64);
    let direction = |first: usize| {
        Arc::new(Mutex::new(StreamDirection {
            links: [link(first), link(first + 1)],
            round_trip,
            bytes_in_transit: VecDeque::new(),
            unread: 0,
            ended: None,
            reader: None,
            writer: None,
        }))
    };
    let (out, back) = (direction(0), direction(2));
    let origin = Instant::now();
    let end = |reads: &Arc<_>, writes: &Arc<_>| VirtualStream {
        reads: Arc::clone(reads),
        writes: Arc::clone(writes),
        origin,
        timer: None,
    };
    Ok((end(&back, &out), end(&out, &back)))
}

impl StreamDirection {
    fn lock(own: &Mutex<Self>) -> MutexGuard<'_, Self> {
        own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&mut self, now: Duration, bytes: &[u8]) -> usize {
        let room = STREAM_WINDOW.saturating_sub(self.unread);
        let taken = bytes.len().min(room);
        for segment in bytes[..taken].chunks(SEGMENT_PAYLOAD) {
            let at = self.arrival(now, segment.len());
            self.bytes_in_transit
                .push_back((at, Bytes::copy_from_slice(segment)));
            self.unread += segment.len();
        }
        self.wake_reader();
        taken
    }

    /// When a segment has arrived, sent again as often as it takes, behind those before it.
    fn arrival(&mut self, now: Duration, length: usize) -> Duration {
        let bytes = SEGMENT_HEADERS + u32::try_from(length).unwrap_or(0);
        let mut sent = now;
        let at = loop {
            let mut at = Some(sent);
            for link in &mut self.links {
                at = at.and_then(
                    |at| match link.pass(at, bytes.min(link.shape().mtu.into())) {
                        PacketOutcome::Arrives { at, .. } => Some(at),
                        PacketOutcome::Dropped(_) => None,
                    },
                );
            }
            match at {
                Some(at) => break at,
                None => sent += self.round_trip.max(Duration::from_millis(1)),
            }
        };
        let before = self
            .bytes_in_transit
            .back()
            .map_or(Duration::ZERO, |(at, _)| *at);
        at.max(before)
    }

    fn end(&mut self, now: Duration) {
        if self.ended.is_none() {
            let delay: Duration = self.links.iter().map(|link| link.shape().delay).sum();
            let last = self
                .bytes_in_transit
                .back()
                .map_or(Duration::ZERO, |(at, _)| *at);
            self.ended = Some(last.max(now + delay));
        }
        self.wake_reader();
    }

    fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Drop for VirtualStream {
    fn drop(&mut self) {
        let now = self.origin.elapsed();
        StreamDirection::lock(&self.writes).end(now);
        let mut reads = StreamDirection::lock(&self.reads);
        // Nobody reads any more: the far side's writes fail.
        reads.end(now);
        if let Some(writer) = reads.writer.take() {
            writer.wake();
        }
    }
}

impl AsyncRead for VirtualStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let now = self.origin.elapsed();
            let mut reads = StreamDirection::lock(&self.reads);
            let next = reads.bytes_in_transit.front().map(|(at, _)| *at);
            match next.or(reads.ended) {
                Some(at) if at <= now => {
                    take(&mut reads, now, buffer);
                    return Poll::Ready(Ok(()));
                }
                Some(at) => {
                    drop(reads);
                    let at = self.origin + at;
                    let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
                    timer.as_mut().reset(at);
                    ready!(timer.as_mut().poll(context));
                }
                None => {
                    reads.reader = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}

/// What has arrived, as far as it fits.
fn take(reads: &mut StreamDirection, now: Duration, buffer: &mut ReadBuf<'_>) {
    while let Some((at, segment)) = reads.bytes_in_transit.front_mut() {
        let length = segment.len().min(buffer.remaining());
        if *at > now || length == 0 {
            break;
        }
        buffer.put_slice(&segment[..length]);
        segment.advance(length);
        reads.unread -= length;
        if segment.is_empty() {
            reads.bytes_in_transit.pop_front();
        }
    }
    if let Some(writer) = reads.writer.take() {
        writer.wake();
    }
}

impl AsyncWrite for VirtualStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let now = self.origin.elapsed();
        let mut writes = StreamDirection::lock(&self.writes);
        if writes.ended.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        match writes.write(now, bytes) {
            0 if !bytes.is_empty() => {
                writes.writer = Some(context.waker().clone());
                Poll::Pending
            }
            taken => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        StreamDirection::lock(&self.writes).end(self.origin.elapsed());
        Poll::Ready(Ok(()))
    }
}
