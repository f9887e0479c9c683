//! Where streams and the task that owns the two HTTP/2 connections meet.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
    server::SendResponse,
};
use hailwire_wire::{
    Code, Priority,
    capsule::{Capsule, ConnectionHalf},
    limits::{H2_MAX_STREAMS, MUX_MAX_DATAGRAMS},
};
use http::{Method, Request, Uri};

use super::{codes, outgoing::H2Opener, unread::ConnectionReads};
use crate::carrier::{ConnectionError, ConnectionLimits, ConnectionStats, UnreadBytes};

/// Stops that wait to be told to a peer that does not read its control stream, before it counts as
/// gone.
const MAX_STOPS: usize = 4 * H2_MAX_STREAMS;

/// Bodies kept after their readers have gone, until their ends have come.
const LINGERING: usize = 256;

/// What still comes on a stream that nobody reads any more.
///
/// Dropping it would reset the stream in both directions, and whatever the far side sends until it knows
/// counts against the connection: for h2 it belongs to a stream that was never there.
#[derive(Debug)]
pub(super) struct LingeringStream {
    pub(super) body: RecvStream,
    /// The far side is told only if it goes on: mostly its end is under way.
    pub(super) unsent_stop: Option<(StreamKey, Code)>,
}

/// What is shared by a connection's streams, its handles and its task.
#[derive(Debug)]
pub(super) struct H2Shared {
    state: Mutex<H2State>,
    over: AtomicBool,
    /// For the forward connection and the reverse one.
    outgoing: [H2Opener; 2],
    sent: AtomicU64,
    received: AtomicU64,
    reads: AtomicU64,
    pub(super) readers: Arc<ConnectionReads>,
    /// The connection on which this side opens streams.
    pub(super) opens_on: ConnectionHalf,
    pub(super) remote: String,
}

/// What is behind the mutex.
#[derive(Debug)]
pub(super) struct H2State {
    pub(super) ended: Option<ConnectionError>,
    /// The peer was told, or need not be.
    pub(super) done: bool,
    /// The connection's task, while it sleeps.
    driver: Option<Waker>,
    cells: HashMap<StreamKey, Arc<StreamCell>>,
    /// Opened by the peer and not yet accepted.
    incoming: VecDeque<AcceptedStream>,
    /// Streams that the peer opened and that somebody here holds.
    accepted: usize,
    /// Streams opened here that somebody holds.
    opened: usize,
    /// With what streams are opened; none before the connection for that is there.
    pub(super) opener: Option<SendRequest<Bytes>>,
    /// What the peer may have; none while nobody has said.
    pub(super) limits: Option<ConnectionLimits>,
    datagrams_in: VecDeque<Bytes>,
    pub(super) datagrams_out: VecDeque<Bytes>,
    pub(super) stops: VecDeque<Capsule>,
    pub(super) close: Option<Capsule>,
    lingering: VecDeque<LingeringStream>,
    /// Somebody wants to know the round-trip time.
    pub(super) ping: bool,
    pub(super) rtt: Option<Duration>,
    open: Vec<Waker>,
    accept: Vec<Waker>,
    datagram: Vec<Waker>,
    closed: Vec<Waker>,
}

/// A stream's connection and number there.
pub(super) type StreamKey = (ConnectionHalf, u32);

/// A stream that the peer has opened.
#[derive(Debug)]
pub(super) struct AcceptedStream {
    pub(super) cell: Arc<StreamCell>,
    pub(super) priority: Priority,
    pub(super) body: RecvStream,
    pub(super) respond: SendResponse<Bytes>,
}

/// What the halves of a stream and the connection's task tell each other.
#[derive(Debug, Default)]
pub(super) struct StreamCell(Mutex<CellState>);

#[derive(Debug, Default)]
pub(super) struct CellState {
    /// None while the far side has not heard of it.
    pub(super) key: Option<StreamKey>,
    /// The peer wants no more of what is sent here.
    pub(super) stopped: Option<Code>,
    /// The reader here wants no more, and the far side has not heard of the stream.
    pub(super) unwanted: Option<Code>,
    /// The answer's head, until the reader takes it.
    pub(super) answer: Option<ResponseFuture>,
    wakers: Vec<Waker>,
}

impl StreamCell {
    pub(super) fn arrived(key: StreamKey) -> Self {
        Self(Mutex::new(CellState {
            key: Some(key),
            ..CellState::default()
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CellState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a task that waits for anything to happen to the stream.
    pub(super) fn note(&self, cx: &Context<'_>) {
        note(&mut self.lock().wakers, cx);
    }

    /// Changes something, and wakes whoever waits.
    pub(super) fn tell(&self, change: impl FnOnce(&mut CellState)) {
        let wakers = {
            let mut state = self.lock();
            change(&mut state);
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Remembers the task of `cx` once.
fn note(wakers: &mut Vec<Waker>, cx: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

impl H2Shared {
    pub(super) fn new(
        opens_on: ConnectionHalf,
        remote: String,
        room: Option<ConnectionLimits>,
    ) -> Self {
        let state = H2State {
            ended: None,
            done: false,
            driver: None,
            cells: HashMap::new(),
            incoming: VecDeque::new(),
            accepted: 0,
            opened: 0,
            opener: None,
            limits: room,
            datagrams_in: VecDeque::new(),
            datagrams_out: VecDeque::new(),
            stops: VecDeque::new(),
            close: None,
            lingering: VecDeque::new(),
            ping: true,
            rtt: None,
            open: Vec::new(),
            accept: Vec::new(),
            datagram: Vec::new(),
            closed: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
            over: AtomicBool::new(false),
            outgoing: <[H2Opener; 2]>::default(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            readers: Arc::default(),
            opens_on,
            remote,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, H2State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn outgoing(&self, half: ConnectionHalf) -> &H2Opener {
        let [forward, reverse] = &self.outgoing;
        match half {
            ConnectionHalf::Forward => forward,
            ConnectionHalf::Reverse => reverse,
        }
    }

    pub(super) fn note_written(&self, half: ConnectionHalf, count: usize) {
        self.sent.fetch_add(count as u64, Ordering::Relaxed);
        self.outgoing(half).written(count);
    }

    pub(super) fn note_read(&self, count: usize) {
        if count > 0 {
            self.received.fetch_add(count as u64, Ordering::Relaxed);
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Why the connection is over, if it is. Cheap while it is not.
    pub(super) fn ended(&self) -> Option<ConnectionError> {
        if self.over.load(Ordering::Acquire) {
            self.lock().ended.clone()
        } else {
            None
        }
    }

    /// Ends the connection for everybody here, unless it has ended.
    pub(super) fn end(&self, why: ConnectionError, close: Option<Capsule>) {
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(why);
        state.close = close;
        self.over.store(true, Ordering::Release);
        let incoming = std::mem::take(&mut state.incoming);
        state.opener = None;
        state.datagrams_out.clear();
        state.stops.clear();
        let mut wakers = Vec::new();
        wakers.append(&mut state.open);
        wakers.append(&mut state.accept);
        wakers.append(&mut state.datagram);
        wakers.extend(state.driver.take());
        let cells: Vec<_> = state.cells.values().cloned().collect();
        drop(state);
        drop(incoming);
        wakers.into_iter().for_each(Waker::wake);
        cells.iter().for_each(|cell| cell.tell(|_| {}));
    }

    /// Says that nothing more is to be told to the peer.
    pub(super) fn set_done(&self) {
        let closed = {
            let mut state = self.lock();
            state.done = true;
            std::mem::take(&mut state.closed)
        };
        closed.into_iter().for_each(Waker::wake);
    }

    /// Says who is to be woken when there is something to do for the connection's task.
    pub(super) fn set_driver(&self, cx: &Context<'_>) {
        self.lock().driver = Some(cx.waker().clone());
    }

    /// Changes the state and wakes the connection's task.
    pub(super) fn with_driver<R>(&self, change: impl FnOnce(&mut H2State) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state);
        let driver = state.driver.take();
        drop(state);
        driver.into_iter().for_each(Waker::wake);
        result
    }

    pub(super) fn poll_closed(&self, cx: &Context<'_>) -> Poll<ConnectionError> {
        let mut state = self.lock();
        match &state.ended {
            Some(ended) if state.done => Poll::Ready(ended.clone()),
            _ => {
                note(&mut state.closed, cx);
                Poll::Pending
            }
        }
    }

    // Streams.

    /// Takes one of the places of streams opened here.
    pub(super) fn poll_open(&self, cx: &Context<'_>) -> Poll<Result<(), ConnectionError>> {
        let mut state = self.lock();
        if let Some(ended) = &state.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        if state.opener.is_none() || state.opened >= H2_MAX_STREAMS {
            note(&mut state.open, cx);
            return Poll::Pending;
        }
        state.opened += 1;
        Poll::Ready(Ok(()))
    }

    /// Streams can be opened from now on.
    pub(super) fn set_opener(&self, opener: SendRequest<Bytes>) {
        let open = {
            let mut state = self.lock();
            if state.ended.is_some() {
                return;
            }
            state.opener = Some(opener);
            std::mem::take(&mut state.open)
        };
        open.into_iter().for_each(Waker::wake);
    }

    /// Tells the far side of a stream that was opened here. Fails where no more can be opened: then
    /// the connection is over, or ends with this.
    pub(super) fn begin(
        &self,
        cell: &Arc<StreamCell>,
        request: Request<()>,
    ) -> Result<SendStream<Bytes>, ()> {
        let opener = self.lock().opener.clone();
        let begun = opener.map(|mut opener| opener.send_request(request, false));
        let Some(Ok((answer, send))) = begun else {
            // Among other reasons because the numbers of streams are used up (RFC 9113, 5.1.1).
            let why = "no more streams can be opened".to_owned();
            self.end(ConnectionError::Lost(why), None);
            return Err(());
        };
        let key = (self.opens_on, send.stream_id().as_u32());
        self.lock().cells.insert(key, cell.clone());
        let mut unwanted = None;
        cell.tell(|cell| {
            cell.key = Some(key);
            cell.answer = Some(answer);
            unwanted = cell.unwanted;
        });
        if let Some(code) = unwanted {
            self.stop(key, code);
        }
        Ok(send)
    }

    /// Queues a stream that the peer has opened. HTTP/2 bounds how many are open; where more wait, the
    /// peer resets them as fast as it opens them.
    pub(super) fn arrived(&self, key: StreamKey, arrived: AcceptedStream) {
        let accept = {
            let mut state = self.lock();
            if state.ended.is_some() {
                return;
            }
            if state.incoming.len() >= H2_MAX_STREAMS {
                drop(state);
                return self.flooded();
            }
            state.cells.insert(key, arrived.cell.clone());
            state.incoming.push_back(arrived);
            if state.has_place() {
                std::mem::take(&mut state.accept)
            } else {
                Vec::new()
            }
        };
        accept.into_iter().for_each(Waker::wake);
    }

    fn flooded(&self) {
        let reason = "it resets streams faster than they are accepted";
        let close = Capsule::Close {
            code: Code::ResourceExhausted,
            reason: reason.to_owned(),
        };
        self.end(ConnectionError::Protocol(reason.to_owned()), Some(close));
    }

    pub(super) fn poll_accept(
        &self,
        cx: &Context<'_>,
    ) -> Poll<Result<AcceptedStream, ConnectionError>> {
        let mut state = self.lock();
        if let Some(ended) = &state.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        if state.has_place()
            && let Some(arrived) = state.incoming.pop_front()
        {
            state.accepted += 1;
            return Poll::Ready(Ok(arrived));
        }
        note(&mut state.accept, cx);
        Poll::Pending
    }

    /// Wakes whoever waits for a stream that may be accepted by now.
    pub(super) fn place_was_made(&self) {
        let accept = std::mem::take(&mut self.lock().accept);
        accept.into_iter().for_each(Waker::wake);
    }

    /// Forgets a stream of which nobody here holds a half.
    pub(super) fn forget(&self, key: Option<StreamKey>, opened_here: bool) {
        let wakers = {
            let mut state = self.lock();
            if let Some(key) = key {
                state.cells.remove(&key);
                if state.cells.is_empty() && state.cells.capacity() > 256 {
                    state.cells = HashMap::new();
                }
            }
            if opened_here {
                state.opened -= 1;
                std::mem::take(&mut state.open)
            } else {
                state.accepted -= 1;
                if state.incoming.is_empty() {
                    Vec::new()
                } else {
                    std::mem::take(&mut state.accept)
                }
            }
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tells the far side that nobody reads a stream any more.
    pub(super) fn stop(&self, (connection, stream): StreamKey, code: Code) {
        let capsule = Capsule::Stop {
            connection,
            stream,
            code,
        };
        let too_many = self.with_driver(|state| {
            if state.ended.is_none() {
                state.stops.push_back(capsule);
            }
            state.stops.len() > MAX_STOPS
        });
        if too_many {
            let why = "it does not read its control stream".to_owned();
            self.end(ConnectionError::Lost(why), None);
        }
    }

    /// Keeps a stream that nobody reads any more until its end has come.
    pub(super) fn linger(&self, lingering: LingeringStream) {
        let dropped = self.with_driver(|state| {
            state.lingering.push_back(lingering);
            let full = state.lingering.len() > LINGERING;
            full.then(|| state.lingering.pop_front())
        });
        drop(dropped);
    }

    /// Reads on where nobody does any more, and forgets what has ended.
    pub(super) fn poll_lingering(&self, cx: &mut Context<'_>) {
        let lingering = std::mem::take(&mut self.lock().lingering);
        if lingering.is_empty() {
            return;
        }
        let mut left: VecDeque<LingeringStream> = lingering
            .into_iter()
            .filter_map(|lingering| self.poll_one_lingering(lingering, cx))
            .collect();
        let mut state = self.lock();
        left.append(&mut state.lingering);
        state.lingering = left;
    }

    fn poll_one_lingering(
        &self,
        mut lingering: LingeringStream,
        cx: &mut Context<'_>,
    ) -> Option<LingeringStream> {
        loop {
            match lingering.body.poll_data(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    // Cannot fail: as much was received.
                    let _ = lingering.body.flow_control().release_capacity(bytes.len());
                    if let Some((key, code)) = lingering.unsent_stop.take() {
                        self.stop(key, code);
                    }
                }
                Poll::Ready(Some(Err(_)) | None) => return None,
                Poll::Pending => return Some(lingering),
            }
        }
    }

    /// The peer wants no more of what is sent on a stream. One that is over is none.
    pub(super) fn stop_arrived(&self, key: StreamKey, code: Code) {
        let cell = self.lock().cells.get(&key).cloned();
        if let Some(cell) = cell {
            cell.tell(|cell| {
                cell.stopped.get_or_insert(code);
            });
        }
    }

    // Datagrams.

    pub(super) fn send_datagram(&self, payload: Bytes) -> Result<(), ConnectionError> {
        self.with_driver(|state| {
            if let Some(ended) = &state.ended {
                return Err(ended.clone());
            }
            push_bounded(&mut state.datagrams_out, payload);
            Ok(())
        })
    }

    pub(super) fn datagram_arrived(&self, payload: Bytes) {
        let wakers = {
            let mut state = self.lock();
            push_bounded(&mut state.datagrams_in, payload);
            std::mem::take(&mut state.datagram)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn poll_datagram(&self, cx: &Context<'_>) -> Poll<Result<Bytes, ConnectionError>> {
        let mut state = self.lock();
        if let Some(payload) = state.datagrams_in.pop_front() {
            return Poll::Ready(Ok(payload));
        }
        if let Some(ended) = &state.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        note(&mut state.datagram, cx);
        Poll::Pending
    }

    pub(super) fn unread(&self) -> UnreadBytes {
        self.readers.unread(self.received.load(Ordering::Relaxed))
    }

    pub(super) fn stats(&self) -> ConnectionStats {
        let rtt = self.with_driver(|state| {
            state.ping = true;
            state.rtt
        });
        ConnectionStats {
            sent_bytes: self.sent.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            received_packets: self.reads.load(Ordering::Relaxed),
            rtt,
            remote: self.remote.clone(),
            ..ConnectionStats::default()
        }
    }
}

impl H2State {
    /// Whether the peer may have one more stream accepted.
    fn has_place(&self) -> bool {
        let room = self.limits.unwrap_or(ConnectionLimits::UNTRUSTED);
        self.accepted < room.streams as usize
    }
}

/// Queues one more, dropping the oldest where there is no room: a newer datagram is worth more.
fn push_bounded(queue: &mut VecDeque<Bytes>, payload: Bytes) {
    if queue.len() >= MUX_MAX_DATAGRAMS {
        queue.pop_front();
    }
    queue.push_back(payload);
}

/// The head of a request for a stream.
pub(super) fn request(path: &Uri, priority: Priority) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.clone();
    if priority != Priority::default() {
        request
            .headers_mut()
            .insert(codes::PRIORITY, codes::urgency(priority));
    }
    request
}
