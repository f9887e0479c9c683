//! Where streams and the task that owns the byte stream meet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use hailwire_wire::Code;
use hailwire_wire::mux::{Mux, MuxEvent, ReceiveLimits, StreamKey};

use super::charged_buffers::ChargedBuffers;

/// What is behind the mutex.
#[derive(Debug)]
pub(super) struct MuxState {
    pub(super) mux: Mux,
    /// The task that owns the byte stream, while it sleeps.
    pub(super) driver: Option<Waker>,
    /// The task has ended, and with it the byte stream.
    pub(super) done: bool,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Reads that brought bytes.
    pub(super) reads: u64,
    /// When a ping was sent that has no answer so far.
    pub(super) pinged: Option<Instant>,
    /// What the last one measured.
    pub(super) rtt: Option<Duration>,
    /// The driver does not read, because the peer has used up its room.
    pub(super) full: bool,
    /// What the peer may have at most, whatever its account says.
    pub(super) most: ReceiveLimits,
    /// What it may have by its account; without bound where it has none.
    pub(super) buffers: Option<ChargedBuffers>,
    pub(super) open: Vec<Waker>,
    pub(super) accept: Vec<Waker>,
    pub(super) datagram: Vec<Waker>,
    pub(super) closed: Vec<Waker>,
    /// By the index of a stream's key. One left behind by an earlier stream does no harm: its task
    /// looks once in vain.
    streams: Vec<StreamWakers>,
}

/// Who waits on one stream.
#[derive(Debug, Default)]
pub(super) struct StreamWakers {
    pub(super) read: Option<Waker>,
    pub(super) write: Option<Waker>,
    pub(super) ended: Vec<Waker>,
}

impl MuxState {
    /// Measures the round trip, unless that is under way.
    pub(super) fn ping(&mut self) {
        if self.pinged.is_none() && self.mux.ping(*b"how long") {
            self.pinged = Some(Instant::now());
        }
    }

    /// Asks the peer's account for more room where it needs some, or gives back what it does not need.
    pub(super) fn fit(&mut self) {
        let (unread, queued) = (self.mux.unread(), self.mux.queued());
        if let Some(rooms) = &mut self.buffers
            && rooms.fit(unread, queued)
        {
            self.apply_limits();
        }
    }

    /// Tells the multiplexer what the peer may have by now.
    pub(super) fn apply_limits(&mut self) {
        let mut room = self.most;
        if let Some(rooms) = &self.buffers {
            room.unread = room.unread.min(rooms.unread());
            room.queued = room.queued.min(rooms.queued());
        }
        self.mux.set_receive_limits(room);
    }

    pub(super) fn stream(&mut self, key: StreamKey) -> &mut StreamWakers {
        if self.streams.len() <= key.index() {
            self.streams
                .resize_with(key.index() + 1, StreamWakers::default);
        }
        #[expect(clippy::indexing_slicing, reason = "resized just above")]
        &mut self.streams[key.index()]
    }

    /// Moves to `wakes` whoever has something to do after a change of the multiplexer.
    fn collect(&mut self, wakes: &mut Vec<Waker>) {
        while let Some(event) = self.mux.poll_event() {
            match event {
                MuxEvent::Incoming => wakes.append(&mut self.accept),
                MuxEvent::OpenAllowed => wakes.append(&mut self.open),
                MuxEvent::Datagram => wakes.append(&mut self.datagram),
                MuxEvent::Readable(key) => wakes.extend(self.stream(key).read.take()),
                MuxEvent::Writable(key) => wakes.extend(self.stream(key).write.take()),
                MuxEvent::SendEnded(key) => wakes.append(&mut self.stream(key).ended),
                MuxEvent::Pong(_) => {
                    if let Some(since) = self.pinged.take() {
                        self.rtt = Some(since.elapsed());
                    }
                }
                MuxEvent::Ended => self.collect_all(wakes),
            }
        }
        if self.mux.live_streams() == 0 && self.streams.capacity() > 64 {
            self.streams = Vec::new();
        }
    }

    fn collect_all(&mut self, wakes: &mut Vec<Waker>) {
        for waiting in [&mut self.open, &mut self.accept, &mut self.datagram] {
            wakes.append(waiting);
        }
        for stream in &mut self.streams {
            wakes.extend(stream.read.take());
            wakes.extend(stream.write.take());
            wakes.append(&mut stream.ended);
        }
        wakes.extend(self.driver.take());
    }
}

/// Remembers the task of `cx` once.
pub(super) fn note(wakers: &mut Vec<Waker>, cx: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

#[derive(Debug)]
pub(super) struct MuxShared {
    state: Mutex<MuxState>,
}

impl MuxShared {
    /// Changes the state, then wakes whoever that concerns, the driver excepted.
    pub(super) fn with_driver_awake<R>(
        &self,
        wakes: &mut Vec<Waker>,
        change: impl FnOnce(&mut MuxState) -> R,
    ) -> R {
        let mut state = self.lock();
        let result = change(&mut state);
        state.collect(wakes);
        drop(state);
        wakes.drain(..).for_each(Waker::wake);
        result
    }

    /// Changes the state, then wakes whoever that concerns.
    fn with<R>(&self, change: impl FnOnce(&mut MuxState) -> R) -> R {
        let mut wakes = Vec::new();
        let mut state = self.lock();
        let result = change(&mut state);
        state.fit();
        state.collect(&mut wakes);
        let reads_again = state.full && state.mux.wants_input();
        let driver = if reads_again || state.mux.has_output() {
            state.driver.take()
        } else {
            None
        };
        drop(state);
        driver.into_iter().chain(wakes).for_each(Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, MuxState> {
        // A panic elsewhere cannot leave the multiplexer half-changed in a way that matters more
        // than letting everybody else end in order.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the user's side holds: the connection closes when the last one goes.
#[derive(Debug)]
pub(super) struct MuxHandle {
    pub(super) shared: Arc<MuxShared>,
}

impl MuxHandle {
    pub(super) fn new(mux: Mux) -> Self {
        let state = MuxState {
            mux,
            driver: None,
            done: false,
            sent: 0,
            received: 0,
            reads: 0,
            pinged: None,
            rtt: None,
            full: false,
            most: ReceiveLimits::default(),
            buffers: None,
            open: Vec::new(),
            accept: Vec::new(),
            datagram: Vec::new(),
            closed: Vec::new(),
            streams: Vec::new(),
        };
        Self {
            shared: Arc::new(MuxShared {
                state: Mutex::new(state),
            }),
        }
    }

    pub(super) fn with<R>(&self, change: impl FnOnce(&mut MuxState) -> R) -> R {
        self.shared.with(change)
    }
}

impl Drop for MuxHandle {
    fn drop(&mut self) {
        let why = "nobody holds the connection any more";
        self.with(|state| state.mux.close(Code::Cancelled, why));
    }
}
