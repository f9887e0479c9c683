//! The half of a connection that is the same for every transport.
//!
//! A transport gives [`open`] an [`EventTransport`], which takes what is to be sent and does not wait, and gets a [`ConnectionLink`],
//! which it tells what came. Its driver holds the link; the connection ends when the driver says [`ConnectionLink::end`],
//! which it does also when it is asked to close.
//!
//! One lock guards the table of who waits ([`super::request_table`]); it is held for a few loads and stores, and never while
//! anything waits. How the connection is and how much is in flight are atomics besides, for whoever chooses among
//! connections.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::sync::{Notify, mpsc, oneshot};

use super::{
    Connection, ConnectionState, OverloadPolicy, RequestError, RequestTicket,
    request_table::{EnterOutcome, ForgetOutcome, ReadyEvent, RequestRules, RequestTable, starts},
};
use crate::{
    Text,
    capabilities::Capabilities,
    control::{Cancel, CancelReason, FlowControl, HealthState, Notice, Ping},
    event::{Event, EventKind},
    response::Response,
};

/// How many pings may be unanswered; the oldest is given up.
const MAX_PINGS: usize = 16;

/// Sends events, cancels and pings over one transport. Nothing here waits.
pub(crate) trait EventTransport: Send + Sync + 'static {
    /// Sends an event. `alone` says that nothing else is in flight, so that waiting for company gains nothing.
    ///
    /// # Errors
    ///
    /// [`RequestError::TooLarge`] or [`RequestError::Refused`] for what cannot be carried.
    fn event(&self, ticket: RequestTicket, event: Event, alone: bool) -> Result<(), RequestError>;

    /// Says that nobody waits.
    fn cancel(&self, cancel: Cancel);

    /// Asks whether the agent lives. Default: the answer is there at once, since the transport looks itself.
    ///
    /// Returns whether [`ConnectionLink::pong`] will say when it came.
    fn ping(&self, ping: Ping) -> bool {
        let _ = ping;
        false
    }

    /// Makes the driver end the connection. Called at most once.
    fn close(&self);
}

/// The parameters that a handshake agreed on.
#[derive(Debug)]
pub(crate) struct LinkSettings {
    pub(crate) capabilities: Capabilities,
    /// Answers are told by ticket ([`ConnectionLink::answer`]), and bodies pipelined; else by request
    /// ([`ConnectionLink::answer_request`]), one at a time.
    pub(crate) numbered: bool,
    /// Bytes of one direction of a body that may be under way, where they are numbered.
    pub(crate) window: u64,
    pub(crate) overload: OverloadPolicy,
    /// [`ConnectOptions::late`](super::ConnectOptions::late).
    pub(crate) late: Duration,
    pub(crate) notices: Option<mpsc::Sender<Notice>>,
}

/// A connection over a transport, and the transport's end of it.
pub(crate) fn open(
    outlet: impl EventTransport,
    settings: LinkSettings,
) -> (Connection, ConnectionLink) {
    let limits = settings.capabilities.limits;
    let rules = RequestRules {
        numbered: settings.numbered,
        window: settings.window,
        max_in_flight: limits.max_concurrency,
        overload: settings.overload,
    };
    let link = ConnectionLink(Arc::new(LinkShared {
        capabilities: settings.capabilities,
        numbered: settings.numbered,
        state: AtomicU32::new(PackedState::default().pack()),
        in_flight: AtomicU32::new(0),
        table: Mutex::new(RequestTable::new(rules)),
        outlet: Box::new(outlet),
        notices: settings.notices,
        pings: Mutex::new(Vec::new()),
        sequence: AtomicU64::new(0),
        late: settings.late,
        owing: Notify::new(),
        closing: AtomicBool::new(false),
        ended: Notify::new(),
    }));
    (
        Connection(Arc::new(ConnectionHandle { link: link.clone() })),
        link,
    )
}

/// What the clones of a connection share: it ends with them.
pub(super) struct ConnectionHandle {
    pub(super) link: ConnectionLink,
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// The shared half. Clones are the same.
#[derive(Clone)]
pub(crate) struct ConnectionLink(Arc<LinkShared>);

struct LinkShared {
    capabilities: Capabilities,
    numbered: bool,
    /// [`PackedState`], packed.
    state: AtomicU32,
    in_flight: AtomicU32,
    table: Mutex<RequestTable>,
    outlet: Box<dyn EventTransport>,
    notices: Option<mpsc::Sender<Notice>>,
    pings: Mutex<Vec<(u64, oneshot::Sender<()>)>>,
    sequence: AtomicU64,
    late: Duration,
    /// The agent owes an answer that nobody waits for.
    owing: Notify,
    /// The driver was told to end the connection.
    closing: AtomicBool,
    ended: Notify,
}

/// For callers.
impl ConnectionLink {
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    pub(crate) fn state(&self) -> ConnectionState {
        PackedState::unpack(self.0.state.load(Ordering::Acquire)).into()
    }

    pub(crate) fn timeout_multiplier(&self) -> f32 {
        let state = PackedState::unpack(self.0.state.load(Ordering::Relaxed));
        (f32::from(state.stretch) / 100.0).max(1.0)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// Sends an event, or queues it. The answer is what the returned future yields; to drop it is to cancel.
    pub(crate) fn request(&self, event: Event) -> Result<AnswerFuture<'_>, RequestError> {
        let kind = event.kind();
        let state = PackedState::unpack(self.0.state.load(Ordering::Acquire));
        if state.closed {
            return Err(RequestError::Closed);
        }
        if starts(kind) && !state.takes_new() {
            return Err(RequestError::Paused);
        }
        if let Event::RequestBody(chunk) | Event::ResponseBody(chunk) = &event {
            let size = chunk.transferred.max(chunk.total_size.unwrap_or(0));
            if size > self.0.capabilities.limits.max_body_size {
                return Err(RequestError::TooLarge);
            }
        }
        let mut table = self.table();
        if kind == EventKind::RequestComplete {
            table.ended(event.id());
        }
        let entered = table.enter(event)?;
        self.count(&table);
        let (ticket, sent) = match entered {
            EnterOutcome::Queued(ticket) => (ticket, Ok(())),
            EnterOutcome::Send(ticket, event) => {
                let alone = table.entries() == 1;
                // Only under the lock do the chunks of a body keep their order.
                let kept = table.ordered(kind).then_some(table);
                let sent = self.0.outlet.event(ticket, event, alone);
                drop(kept);
                (ticket, sent)
            }
        };
        let answer = AnswerFuture {
            link: self,
            ticket: Some(ticket),
        };
        if let Err(error) = sent {
            // It has not left, so there is nothing to cancel.
            self.answer(ticket, Err(error));
        }
        Ok(answer)
    }

    pub(crate) fn cancel(&self, id: &str, reason: CancelReason) {
        let mut ready = Vec::new();
        let mut table = self.table();
        let wakers = table.cancel(id, &mut ready);
        // Under the lock: what is asked next about the request must not be cancelled too.
        self.0.outlet.cancel(cancel(Text::from(id), reason));
        self.owes(&table);
        self.send(table, ready);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) async fn ping(&self) -> Result<Duration, RequestError> {
        let started = Instant::now();
        let sequence = self.0.sequence.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        {
            let mut pings = self.pings();
            if self.state() == ConnectionState::Closed {
                return Err(RequestError::Closed);
            }
            pings.retain(|(_, sender)| !sender.is_closed());
            if pings.len() >= MAX_PINGS {
                pings.remove(0);
            }
            pings.push((sequence, sender));
        }
        let ping = Ping {
            sequence,
            timestamp_ms: now_ms(),
        };
        if self.0.outlet.ping(ping) {
            answer.await.map_err(|_| RequestError::Closed)?;
        }
        Ok(started.elapsed())
    }

    pub(crate) fn close(&self) {
        if !self.0.closing.swap(true, Ordering::AcqRel) {
            self.0.outlet.close();
        }
    }

    pub(crate) async fn closed(&self) {
        let ended = self.0.ended.notified();
        let mut ended = std::pin::pin!(ended);
        ended.as_mut().enable();
        if self.state() != ConnectionState::Closed {
            ended.await;
        }
    }
}

/// For transports.
impl ConnectionLink {
    /// Whether answers are told by ticket.
    pub(crate) fn is_numbered(&self) -> bool {
        self.0.numbered
    }

    /// An answer by ticket. What nobody waits for is dropped.
    pub(crate) fn answer(&self, ticket: RequestTicket, answer: Result<Response, RequestError>) {
        let mut ready = Vec::new();
        let mut table = self.table();
        let waker = table.answer(ticket, answer, &mut ready);
        self.send(table, ready);
        wake(waker);
    }

    /// An answer that says its request and no more.
    pub(crate) fn answer_request(&self, id: &str, answer: Result<Response, RequestError>) {
        let mut ready = Vec::new();
        let mut table = self.table();
        let waker = table
            .find(id, &mut ready)
            .and_then(|ticket| table.answer(ticket, answer, &mut ready));
        self.send(table, ready);
        wake(waker);
    }

    /// What the agent tells unasked: the state moves, and whoever wanted to know does.
    pub(crate) fn notice(&self, notice: Notice) {
        match &notice {
            Notice::Health(health) => self.change(|state| {
                state.health = health.state;
                state.stretch = match health.state {
                    HealthState::Degraded => hundredths(health.timeout_multiplier),
                    _ => 0,
                };
            }),
            Notice::Flow(flow) => {
                let (id, paused) = match flow {
                    FlowControl::Pause(id) => (id.clone(), true),
                    FlowControl::Resume(id) => (id.clone(), false),
                };
                if id.is_none() {
                    self.change(|state| state.paused = paused);
                }
                let mut ready = Vec::new();
                let mut table = self.table();
                table.pause(id, paused, &mut ready);
                self.send(table, ready);
            }
            Notice::Metrics(_) | Notice::ConfigUpdate(_) | Notice::Log(_) => {}
        }
        if let Some(notices) = &self.0.notices
            && let Err(error) = notices.try_send(notice)
        {
            tracing::debug!(agent = self.0.capabilities.agent_id, %error, "notice dropped: the queue is full");
        }
    }

    /// The agent lives.
    pub(crate) fn pong(&self, pong: Ping) {
        let mut pings = self.pings();
        if let Some(at) = pings
            .iter()
            .position(|(sequence, _)| *sequence == pong.sequence)
        {
            let (_, sender) = pings.swap_remove(at);
            drop(pings);
            let _ = sender.send(());
        }
    }

    /// Returns when the agent has owed an answer that nobody waits for, and has answered nothing else, for as long as
    /// [`ConnectOptions::late`](super::ConnectOptions::late) says, or up to twice that: the driver ends the connection then. Never, where answers
    /// are told by ticket, which leave nothing behind.
    pub(crate) async fn overdue(&self) {
        if self.is_numbered() {
            return std::future::pending().await;
        }
        loop {
            let owed = self.table().owed();
            let Some(heard) = owed else {
                self.0.owing.notified().await;
                continue;
            };
            tokio::time::sleep(self.0.late).await;
            if self.table().owed() == Some(heard) {
                let agent = &self.0.capabilities.agent_id;
                tracing::warn!(agent, late = ?self.0.late, "closing the connection: an agent has not answered an abandoned event");
                return;
            }
        }
    }

    /// The connection has ended. Whoever waits gets [`RequestError::Closed`].
    pub(crate) fn end(&self) {
        self.change(|state| state.closed = true);
        let wakers = self.table().close();
        self.pings().clear();
        wakers.into_iter().for_each(Waker::wake);
        self.0.ended.notify_waiters();
    }

    /// Sends what may leave now.
    fn send(&self, table: MutexGuard<'_, RequestTable>, ready: Vec<ReadyEvent>) {
        self.count(&table);
        if ready.is_empty() {
            return;
        }
        let (ordered, others): (Vec<ReadyEvent>, Vec<ReadyEvent>) = ready
            .into_iter()
            .partition(|(_, event)| table.ordered(event.kind()));
        let mut failed = Vec::new();
        let mut send = |(ticket, event)| {
            if let Err(error) = self.0.outlet.event(ticket, event, false) {
                failed.push((ticket, error));
            }
        };
        ordered.into_iter().for_each(&mut send);
        drop(table);
        others.into_iter().for_each(&mut send);
        for (ticket, error) in failed {
            self.answer(ticket, Err(error));
        }
    }

    /// Tells [`overdue`](Self::overdue).
    fn owes(&self, table: &RequestTable) {
        if table.owed().is_some() {
            self.0.owing.notify_one();
        }
    }

    fn change(&self, change: impl Fn(&mut PackedState)) {
        let changed = |packed| {
            let mut state = PackedState::unpack(packed);
            change(&mut state);
            Some(state.pack())
        };
        let _ = self
            .0
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
    }

    fn count(&self, table: &RequestTable) {
        self.0.in_flight.store(table.entries(), Ordering::Relaxed);
    }

    fn table(&self) -> MutexGuard<'_, RequestTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pings(&self) -> MutexGuard<'_, Vec<(u64, oneshot::Sender<()>)>> {
        self.0.pings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to come. If it is dropped before the answer came, the request is cancelled.
pub(crate) struct AnswerFuture<'a> {
    link: &'a ConnectionLink,
    ticket: Option<RequestTicket>,
}

impl Future for AnswerFuture<'_> {
    type Output = Result<Response, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else {
            return Poll::Ready(Err(RequestError::Closed));
        };
        let mut table = self.link.table();
        match table.poll(ticket, context.waker()) {
            Some(answer) => {
                self.link.count(&table);
                drop(table);
                self.ticket = None;
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for AnswerFuture<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else {
            return;
        };
        let mut ready = Vec::new();
        let mut table = self.link.table();
        match table.forget(ticket, &mut ready) {
            ForgetOutcome::Sent(id, wakers) => {
                let outlet = &self.link.0.outlet;
                outlet.cancel(cancel(id, CancelReason::Timeout));
                self.link.owes(&table);
                self.link.send(table, ready);
                wakers.into_iter().for_each(Waker::wake);
            }
            ForgetOutcome::Unsent => self.link.send(table, ready),
        }
    }
}

/// The state of a connection, unpacked.
#[derive(Clone, Copy, Default)]
struct PackedState {
    closed: bool,
    paused: bool,
    health: HealthState,
    /// By how much the agent wants its deadlines stretched, in hundredths; 0 for not at all.
    stretch: u16,
}

impl PackedState {
    const CLOSED: u32 = 1 << 8;
    const PAUSED: u32 = 1 << 9;
    const STRETCH: u32 = 16;

    fn pack(self) -> u32 {
        let mut packed = u32::from(u8::from(self.health));
        packed |= if self.closed { Self::CLOSED } else { 0 };
        packed |= if self.paused { Self::PAUSED } else { 0 };
        packed | u32::from(self.stretch) << Self::STRETCH
    }

    fn unpack(packed: u32) -> Self {
        Self {
            closed: packed & Self::CLOSED != 0,
            paused: packed & Self::PAUSED != 0,
            health: HealthState::try_from(packed as u8).unwrap_or_default(),
            stretch: (packed >> Self::STRETCH) as u16,
        }
    }

    /// Whether it will, sooner or later.
    const fn takes_new(self) -> bool {
        matches!(self.health, HealthState::Healthy | HealthState::Degraded)
    }
}

/// What cannot be meant, or would be less than 1, is nothing.
fn hundredths(by: Option<f32>) -> u16 {
    match by {
        Some(by) if by > 1.0 => (by * 100.0).min(f32::from(u16::MAX)) as u16,
        _ => 0,
    }
}

impl From<PackedState> for ConnectionState {
    fn from(state: PackedState) -> Self {
        match state.health {
            _ if state.closed => Self::Closed,
            HealthState::Draining => Self::Draining,
            health => Self::Open {
                health,
                paused: state.paused,
            },
        }
    }
}

fn cancel(correlation_id: Text, reason: CancelReason) -> Cancel {
    Cancel {
        correlation_id,
        reason,
        timestamp_ms: now_ms(),
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
