//! Sessions: two parties speaking the session protocol over one carrier.
//!
//! A session opens a stream for each piece of work and answers the streams that the far side
//! opens. It knows frames, deadlines and cancels; it does not know who may call whom, which is the
//! business of its [`StreamDispatcher`]. One stream, the control stream, carries greetings, liveness,
//! offers and GOING_AWAY ([`control`]).
//!
//! The rules of each stream are in `spec/session.md`. Nobody waits for the greeting before working,
//! so the first call on a new connection costs no round trip of its own.

mod answer;
mod control;
mod outgoing;
mod serve;
mod socket;
mod splice;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use hailwire_wire::{
    CallHeader, Code, Priority, Status,
    frame::{self, FRAME_PREFIX, FrameKind},
    header::{self, GoingAway, Hello},
    offers::OfferPage,
};
use tokio::{sync::watch, time::Instant};

pub(crate) use crate::frame_reader::{FrameReader, connection_status, deadline_exceeded, now};
pub use answer::Answer;
pub(crate) use answer::{AbortOnDrop, ExpectedAnswer};
pub(crate) use outgoing::OfferList;
pub(crate) use serve::{accept, end, in_time, panicked, refuse, serve};
pub(crate) use socket::connect;
pub(crate) use splice::splice;

use hailwire_wire::limits::MAX_HEADER;

use crate::{
    body::Body,
    carrier::{
        CarrierConnection, ConnectionError, RecvStream, SendStream, WriteError,
        budget::{AccountCharge, PeerAccount},
    },
};

/// How long a stream may stay open before its first frame is whole.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// A body up to this size travels in the same write as its header.
const SMALL_BODY: usize = 4 * 1024;

/// A known body of at most this is written before its answer is read: it fits every carrier's first
/// window, so that it does not wait for a far side that waits for its answer to be read.
const WRITTEN_AT_ONCE: usize = hailwire_wire::limits::MUX_INITIAL_WINDOW as usize;

/// What one stream of a peer is charged: its tasks here, and the chunks under way in its splice and on
/// the socket of the program that serves it.
const STREAM: usize = 40 * 1024;

/// What one connection of a peer is charged apart from unread and unsent bytes.
const CONNECTION: usize = 128 * 1024;

/// Largest `DATA` frame that is written.
pub(crate) const MAX_DATA_WRITE: usize = 1024 * 1024;

/// One side of a session. Cheap to clone; ends when its connection does.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    shared: Arc<SessionShared>,
}

#[derive(Debug)]
struct SessionShared {
    connection: CarrierConnection,
    /// Whether this side made the connection.
    dialled: bool,
    hello: watch::Sender<Option<Arc<Hello>>>,
    /// Whether the far side has offered anything yet.
    offered: watch::Sender<bool>,
    outgoing: outgoing::ControlQueue,
    /// Streams open in either direction, the control stream apart.
    in_flight: AtomicU64,
    /// The far side takes no new work.
    peer_going_away: AtomicBool,
    /// This side takes no new work.
    going_away: AtomicBool,
    /// The connection is gone, as far as this side knows.
    ended: AtomicBool,
    /// Why this side has closed it, where something was wrong.
    closed_with: OnceLock<Status>,
    started: Instant,
    /// Where what the far side makes this one hold is charged; a program of this machine has none.
    account: Option<Arc<PeerAccount>>,
    /// What this connection itself costs.
    _held: Option<AccountCharge>,
}

/// What a session does with the streams that the far side opens.
pub(crate) trait StreamDispatcher: Send + Sync + 'static {
    /// Takes one opened stream and sees it to its end.
    fn dispatch(
        self: Arc<Self>,
        session: Session,
        opening: OpenedStream,
    ) -> impl Future<Output = ()> + Send;

    /// Hears one page of what the far side offers. Called by the task that reads the control stream, so
    /// it does little.
    fn offers(&self, _session: &Session, _page: OfferPage) {}
}

/// A stream whose first frame has arrived.
#[derive(Debug)]
pub(crate) struct OpenedStream {
    pub(crate) kind: FrameKind,
    /// The payload of the first frame, not yet decoded.
    pub(crate) payload: Bytes,
    pub(crate) send: SendStream,
    /// Boxed, because it goes from hand to hand.
    pub(crate) reader: Box<FrameReader>,
}

impl OpenedStream {
    /// The header of a call, send or stream, or what its opener is to be told of it; and the two halves of the stream. The frame
    /// is let go of: it is a slice of the whole batch in which it came.
    pub(crate) fn into_call(
        self,
    ) -> (
        Result<Box<CallHeader>, Status>,
        SendStream,
        Box<FrameReader>,
    ) {
        let header = header::decode_call(&self.payload)
            .map(Box::new)
            .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()));
        (header, self.send, self.reader)
    }
}

impl Session {
    /// Starts a session on a fresh connection and serves what the far side opens until it ends.
    ///
    /// `dialled` says whether this side made the connection; it then opens the control stream.
    pub(crate) fn start<D: StreamDispatcher>(
        connection: CarrierConnection,
        dialled: bool,
        hello: Hello,
        dispatch: Arc<D>,
    ) -> Self {
        Self::start_charged(connection, dialled, hello, dispatch, None)
    }

    /// As [`Session::start`]; what the far side makes this one hold is charged to its account. Where that
    /// has no room for one more connection, this one is closed at once.
    pub(crate) fn start_charged<D: StreamDispatcher>(
        connection: CarrierConnection,
        dialled: bool,
        hello: Hello,
        dispatch: Arc<D>,
        account: Option<Arc<PeerAccount>>,
    ) -> Self {
        let held = account.as_ref().map(|account| {
            let held = account.hold(CONNECTION);
            held.filter(|_| connection.charge(account))
        });
        if let Some(None) = held {
            let why = "as much is held for this node as may be";
            connection.close(Code::ResourceExhausted, why);
        }
        let session = Self {
            shared: Arc::new(SessionShared {
                connection,
                dialled,
                hello: watch::Sender::new(None),
                offered: watch::Sender::new(false),
                outgoing: outgoing::ControlQueue::default(),
                in_flight: AtomicU64::new(0),
                peer_going_away: AtomicBool::new(false),
                going_away: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                closed_with: OnceLock::new(),
                started: Instant::now(),
                account,
                _held: held.flatten(),
            }),
        };
        let control = control::ControlTask::new(session.clone(), hello, dispatch.clone());
        tokio::spawn(accept_streams(session.clone(), dialled, control, dispatch));
        session
    }

    /// Opens a call, send or stream and writes its header and body.
    ///
    /// The answer's first frame is not awaited.
    ///
    /// # Errors
    ///
    /// `unavailable` when the connection is gone or the far side takes no new work.
    ///
    /// # Cancel safety
    ///
    /// A dropped future resets the stream: the far side sees a cancel.
    pub(crate) async fn open(
        &self,
        kind: FrameKind,
        header: &CallHeader,
        body: Body,
    ) -> Result<ExpectedAnswer, Status> {
        let stream = self.open_stream(header.priority).await?;
        stream.begin(kind, header, body).await
    }

    /// Opens a stream and counts it. Where this fails, nothing was sent.
    ///
    /// # Errors
    ///
    /// `unavailable` when the connection is gone or the far side takes no new work.
    pub(crate) async fn open_stream(&self, priority: Priority) -> Result<CallStream, Status> {
        if self.shared.peer_going_away.load(Ordering::Relaxed) {
            return Err(Status::new(
                Code::Unavailable,
                "the far side takes no more calls on this connection",
            ));
        }
        let (send, recv) = self
            .connection()
            .open(priority)
            .await
            .map_err(|error| connection_status(&error))?;
        Ok(CallStream {
            send,
            recv,
            in_flight: self.count(),
        })
    }

    /// Opens a `REGISTER` stream, or any whose payload is not a call's header.
    pub(crate) async fn open_with_payload(
        &self,
        kind: FrameKind,
        payload: &[u8],
    ) -> Result<(SendStream, FrameReader), Status> {
        let (mut send, recv) = self
            .connection()
            .open(Priority::High)
            .await
            .map_err(|error| connection_status(&error))?;
        check_write(write_first_frame(&mut send, kind, payload, Bytes::new()).await)?;
        Ok((send, FrameReader::new(recv)))
    }

    /// Whether this side made the connection.
    pub(crate) fn dialled(&self) -> bool {
        self.shared.dialled
    }

    /// Where what the far side makes this one hold is charged.
    pub(crate) fn account(&self) -> Option<&Arc<PeerAccount>> {
        self.shared.account.as_ref()
    }

    pub(crate) fn connection(&self) -> &CarrierConnection {
        &self.shared.connection
    }

    /// The far side's greeting, once it has arrived.
    pub(crate) fn peer_hello(&self) -> Option<Arc<Hello>> {
        self.shared.hello.borrow().clone()
    }

    /// Waits for the far side's greeting.
    ///
    /// # Errors
    ///
    /// Why the session ended before it came.
    pub(crate) async fn greeted(&self) -> Result<(), Status> {
        let mut hello = self.shared.hello.subscribe();
        tokio::select! {
            biased;
            // The sender lives in the session, which `self` holds.
            _ = hello.wait_for(Option::is_some) => Ok(()),
            error = self.closed() => {
                // A far side that says nothing is one that cannot be reached; whoever waits for it has set no deadline.
                Err(match self.shared.closed_with.get().cloned() {
                    Some(why) if why.code == Code::DeadlineExceeded => {
                        Status::new(Code::Unavailable, why.message)
                    }
                    Some(why) => why,
                    None => connection_status(&error),
                })
            }
        }
    }

    /// Whether the far side has offered anything on this session, be it nothing.
    pub(crate) fn peer_offered(&self) -> watch::Receiver<bool> {
        self.shared.offered.subscribe()
    }

    /// Tells the far side what is offered to it, in place of the earlier list. A list that could not be
    /// written before the next one came is left out.
    pub(crate) fn send_offers(&self, list: OfferList) {
        self.shared.outgoing.offers(list);
    }

    /// Round trip of a PING frame.
    ///
    /// # Errors
    ///
    /// `unavailable` when the connection is gone.
    pub(crate) async fn ping(&self) -> Result<Duration, Status> {
        let start = Instant::now();
        let answered = self.shared.outgoing.ping();
        tokio::select! {
            biased;
            pong = answered => pong.map(|()| start.elapsed()).map_err(|_| {
                Status::new(Code::Unavailable, "the session ended before the ping was answered")
            }),
            error = self.connection().closed() => Err(connection_status(&error)),
        }
    }

    /// Sends GOING_AWAY: the far side opens no more work, what runs may finish.
    pub(crate) fn go_away(&self, reason: &str) {
        if !self.shared.going_away.swap(true, Ordering::Relaxed) {
            let reason = reason.to_owned();
            let payload = header::encode(&GoingAway { reason });
            self.shared.outgoing.going_away(payload.into());
        }
    }

    /// Whether it makes sense to open a stream: neither has the far side sent GOING_AWAY nor is the connection
    /// gone, as far as was noticed. Cheap.
    pub(crate) fn takes_work(&self) -> bool {
        let going = &self.shared.peer_going_away;
        !going.load(Ordering::Relaxed) && !self.shared.ended.load(Ordering::Relaxed)
    }

    /// Streams open now in either direction, the control stream apart.
    pub(crate) fn in_flight(&self) -> u64 {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn age(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Ends the session now.
    pub(crate) fn close(&self, code: Code, reason: &str) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if code != Code::Ok {
            let _ = self.shared.closed_with.set(Status::new(code, reason));
        }
        self.connection().close(code, reason);
    }

    /// Whether the connection is gone.
    pub(crate) fn is_closed(&self) -> bool {
        now(pin!(self.closed())).is_some()
    }

    pub(crate) async fn closed(&self) -> ConnectionError {
        self.connection().closed().await
    }

    /// Whether both handles mean one session.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// What tells sessions apart, for as long as this handle is held.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    pub(crate) fn count(&self) -> InFlight {
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self.shared.clone())
    }
}

/// One open stream, counted while this lives.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<SessionShared>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The control task of an accepted session, until the far side's greeting claims it.
type GreetingTask<D> = Arc<Mutex<Option<control::ControlTask<D>>>>;

/// Streams that one connection may have begun before other tasks that are ready have their turn. Their answers then leave
/// together: with four instead, 64 small calls in flight over HTTP/2 or WebSocket were a seventh fewer a second
/// (`bench/results/2026-11-23-streams-at-once`).
const AT_ONCE: usize = 16;

/// The same of a connection with a [`CROWD`] of streams, which does not come before everybody else.
const AT_ONCE_OF_CROWD: usize = 4;

/// While more streams of a connection than that are open, sockets have their turn as well: what others have sent
/// meanwhile.
const CROWD: usize = 256;

/// Accepts streams until the connection ends, each in a task of its own.
async fn accept_streams<D: StreamDispatcher>(
    session: Session,
    dialled: bool,
    control: control::ControlTask<D>,
    dispatch: Arc<D>,
) {
    let greeting: GreetingTask<D> = Arc::default();
    if dialled {
        tokio::spawn(control.dial());
    } else {
        *lock(&greeting) = Some(control);
    }
    tokio::spawn(expect_greeting(session.clone()));
    let mut begun: usize = 0;
    // A stream's task needs no owner that aborts it: whatever it waits for ends with the
    // connection, the handler included, since a lost connection counts as a cancel.
    while let Ok((send, recv)) = session.connection().accept().await {
        begun = begun.wrapping_add(1);
        // The task of each open stream has a share of it.
        let crowded = Arc::strong_count(&greeting) > CROWD;
        if crowded && begun.is_multiple_of(AT_ONCE_OF_CROWD) {
            tokio::task::yield_now().await;
        } else if begun.is_multiple_of(AT_ONCE) {
            to_the_back().await;
        }
        let Some(charge) = StreamCharge::of(&session, STREAM) else {
            turn_away(send, recv);
            continue;
        };
        let stream = (send, Box::new(FrameReader::new(recv)), charge);
        // Boxed, because the runtime moves what it is given several times and this is large.
        let stream = run_stream(session.clone(), stream, greeting.clone(), dispatch.clone());
        tokio::spawn(Box::pin(stream));
    }
    session.shared.ended.store(true, Ordering::Relaxed);
}

/// Lets the tasks run that are ready. `yield_now` of tokio looks at sockets and timers, too, which takes a system
/// call each time and nearly halved the rate of 64 small calls in flight.
async fn to_the_back() {
    let mut been = false;
    let again = poll_fn(|cx| {
        if std::mem::replace(&mut been, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    again.await;
}

/// What is charged for one stream of the far side, while it lasts; nothing to a program of this machine.
struct StreamCharge(Option<AccountCharge>);

impl StreamCharge {
    /// None where the account has no room.
    fn of(session: &Session, bytes: usize) -> Option<Self> {
        match &session.shared.account {
            None => Some(Self(None)),
            Some(account) => account.hold(bytes).map(|held| Self(Some(held))),
        }
    }

    /// Charges so much more. Whether there was room.
    fn add(&mut self, bytes: usize) -> bool {
        let Some(held) = &mut self.0 else {
            return true;
        };
        let whole = held.bytes() + bytes;
        held.resize(whole)
    }

    fn remove(&mut self, bytes: usize) {
        if let Some(held) = &mut self.0 {
            let _ = held.resize(held.bytes() - bytes);
        }
    }
}

/// Refuses a stream for which there is no room, without anything that waits.
fn turn_away(mut send: SendStream, mut recv: RecvStream) {
    send.reset(Code::ResourceExhausted);
    recv.stop(Code::ResourceExhausted);
}

/// Closes a session whose far side never says who it is.
async fn expect_greeting(session: Session) {
    if tokio::time::timeout(FIRST_FRAME_TIMEOUT, session.greeted())
        .await
        .is_err()
    {
        session.close(Code::DeadlineExceeded, "no greeting came");
    }
}

async fn run_stream<D: StreamDispatcher>(
    session: Session,
    (mut send, mut reader, mut charge): (SendStream, Box<FrameReader>, StreamCharge),
    greeting: GreetingTask<D>,
    dispatch: Arc<D>,
) {
    // The first frame has mostly come with the stream, and then no timer is needed. Where it has not,
    // what comes of it waits here.
    let ready = now(pin!(reader.opening()));
    let first = match ready {
        Some(first) => Ok(first),
        None if charge.add(MAX_HEADER) => {
            let first = tokio::time::timeout(FIRST_FRAME_TIMEOUT, reader.opening()).await;
            charge.remove(MAX_HEADER);
            first
        }
        None => {
            send.reset(Code::ResourceExhausted);
            return reader.stop(Code::ResourceExhausted);
        }
    };
    if let Ok(Ok(Some((_, header)))) = &first
        && header.len() > SMALL_BODY
        && !charge.add(header.len())
    {
        send.reset(Code::ResourceExhausted);
        return reader.stop(Code::ResourceExhausted);
    }
    match first {
        Ok(Ok(Some((FrameKind::HELLO, hello)))) => {
            let control = lock(&greeting).take();
            match control {
                // In a task of its own: it lives as long as the session, and the one that a call
                // may need is several times as large.
                Some(control) => drop(tokio::spawn(control.answer(send, *reader, hello))),
                None => session.close(Code::InvalidArgument, "a second greeting"),
            }
        }
        Ok(Ok(Some((kind, payload)))) => {
            let opening = OpenedStream {
                kind,
                payload,
                send,
                reader,
            };
            count_and_dispatch(session, opening, dispatch).await;
        }
        // An opener that left without a word needs no answer; dropping the halves resets them.
        Ok(Ok(None)) => {}
        Ok(Err(status)) => refuse(send, reader, &status).await,
        Err(_) => {
            let status = Status::new(
                Code::DeadlineExceeded,
                "the stream's first frame did not come",
            );
            refuse(send, reader, &status).await;
        }
    }
}

async fn count_and_dispatch<D: StreamDispatcher>(
    session: Session,
    opening: OpenedStream,
    dispatch: Arc<D>,
) {
    let _in_flight = session.count();
    if !opening.kind.is_opening() || opening.kind.name().is_none() {
        let status = Status::new(
            Code::Unimplemented,
            format!("unknown opening {:?}", opening.kind),
        )
        .with_hint("the far side speaks a newer version of the session protocol");
        refuse(opening.send, opening.reader, &status).await;
        return;
    }
    dispatch.dispatch(session, opening).await;
}

/// A stream on which nothing was written yet.
#[derive(Debug)]
pub(crate) struct CallStream {
    send: SendStream,
    recv: crate::carrier::RecvStream,
    in_flight: InFlight,
}

impl CallStream {
    /// Writes the header and the body of a call, send or stream.
    ///
    /// # Errors
    ///
    /// `unavailable` when the connection is gone.
    pub(crate) async fn begin(
        mut self,
        kind: FrameKind,
        header: &CallHeader,
        mut body: Body,
    ) -> Result<ExpectedAnswer, Status> {
        let encoded = encode_header(header)?;
        let mut pump = None;
        let known = body.take_known();
        if let Some(bytes) = known.clone()
            && bytes.len() <= WRITTEN_AT_ONCE
        {
            let written = write_first_frame(&mut self.send, kind, &encoded, bytes).await;
            self.send.finish();
            check_write(written)?;
        } else {
            let written = write_first_frame(&mut self.send, kind, &encoded, Bytes::new()).await;
            check_write(written)?;
            let body = known.map_or(body, Body::from);
            pump = Some(tokio::spawn(pump_body(body, self.send)).abort_handle());
        }
        Ok(ExpectedAnswer::new(self.recv, pump, self.in_flight))
    }

    /// Writes the header of a call whose body is passed on.
    ///
    /// # Errors
    ///
    /// `unavailable` when the connection is gone.
    pub(crate) async fn relay(
        mut self,
        kind: FrameKind,
        header: &CallHeader,
    ) -> Result<(SendStream, crate::carrier::RecvStream, InFlight), Status> {
        let encoded = encode_header(header)?;
        let written = write_first_frame(&mut self.send, kind, &encoded, Bytes::new()).await;
        check_write(written)?;
        Ok((self.send, self.recv, self.in_flight))
    }
}

/// Encodes a call's header, or says that it is too large to send.
fn encode_header(header: &CallHeader) -> Result<Vec<u8>, Status> {
    use hailwire_wire::limits;
    let refuse = |what: &str| Err(Status::new(Code::InvalidArgument, what));
    if header.method.len() > limits::MAX_METHOD {
        return refuse("the method name is longer than 128 bytes");
    }
    if header.affinity.len() > limits::MAX_AFFINITY {
        return refuse("the affinity key is longer than 256 bytes");
    }
    if header.headers.len() > limits::MAX_HEADER_FIELDS {
        return refuse("a call carries at most 128 header fields");
    }
    let encoded = header::encode_call(header);
    if encoded.len() > limits::MAX_HEADER {
        return refuse("the header is larger than 64 KiB");
    }
    Ok(encoded)
}

/// Writes the first frame and, if there is one, a body that is known whole.
async fn write_first_frame(
    send: &mut SendStream,
    kind: FrameKind,
    header: &[u8],
    body: Bytes,
) -> Result<(), WriteError> {
    let mut out =
        BytesMut::with_capacity(2 * FRAME_PREFIX + header.len() + SMALL_BODY.min(body.len()));
    frame::put(&mut out, kind, header);
    if body.len() <= SMALL_BODY {
        if !body.is_empty() {
            frame::put(&mut out, FrameKind::DATA, &body);
        }
        return send.write(out.freeze()).await;
    }
    write_data(send, out, body).await
}

/// Writes `ahead`, then `body` as `DATA` frames without copying it.
async fn write_data(
    send: &mut SendStream,
    mut ahead: BytesMut,
    mut body: Bytes,
) -> Result<(), WriteError> {
    while !body.is_empty() {
        let chunk = body.split_to(body.len().min(MAX_DATA_WRITE));
        ahead.put_slice(&frame::prefix(FrameKind::DATA, chunk.len()));
        send.write_many(&mut [ahead.split().freeze(), chunk])
            .await?;
    }
    Ok(())
}

/// Moves a caller's body onto its stream; a body that fails resets the stream.
async fn pump_body(mut body: Body, mut send: SendStream) {
    loop {
        let chunk = tokio::select! {
            chunk = body.chunk() => chunk,
            _ = send.stopped() => return,
        };
        match chunk {
            Ok(Some(chunk)) => {
                if write_data(&mut send, BytesMut::with_capacity(FRAME_PREFIX), chunk)
                    .await
                    .is_err()
                {
                    return;
                }
            }
            Ok(None) => return send.finish(),
            Err(status) => return send.reset(status.code),
        }
    }
}

/// A far side that wants no more of the body may still answer; only a lost connection ends a call.
fn check_write(result: Result<(), WriteError>) -> Result<(), Status> {
    match result {
        Ok(()) | Err(WriteError::Stopped(_) | WriteError::Ended) => Ok(()),
        Err(WriteError::Connection(error)) => Err(connection_status(&error)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
