//! Which handler runs when.
//!
//! Events of one *lane* run one after the other, in their order: the head and body of a request, those of
//! its response, and everything else of a request (WebSocket frames among it) are a lane each. Lanes run side by side,
//! up to the agent's `max_concurrency`; events beyond wait, first come first served.
//!
//! A handler is polled once where its event was read. Most answer then, and cost no task. One that does not
//! gets a task, which goes on with the lane's next event when it is done. A cancel drops a request's
//! handlers and what waits behind them; so does the end of the connection, which drops the [`EventDispatcher`].
//!
//! A handler that panics blocks its request with 500, and nothing else.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use foldhash::fast::RandomState;
use futures_util::FutureExt as _;
use tokio::task::AbortHandle;

use super::Agent;
use crate::{
    Text,
    control::CancelReason,
    event::{Event, EventKind},
    response::Response,
    stream::PIECES,
};

/// How many events of one connection may wait, beside the pieces of a body that the window of each running lane lets come. Whoever
/// reads them stops while there is no room ([`EventDispatcher::has_room`]); an answer makes some.
pub(crate) const WAITING: usize = 1024;

/// A piece of a body below this size is copied when it has to wait.
const SMALL: usize = 64 << 10;

/// Where an answer goes.
pub(crate) trait ReplySink: Send + 'static {
    /// Called at most once, and not for what was cancelled.
    fn answer(self, response: Response);
}

/// The handlers of one connection. They end when it is dropped.
pub(crate) struct EventDispatcher<A: Agent, P: ReplySink> {
    lanes: Arc<HandlerQueues<A, P>>,
}

struct HandlerQueues<A: Agent, P: ReplySink> {
    agent: Arc<A>,
    max: usize,
    /// Some handler runs in a task. While it is false, there is nothing to look up.
    busy: AtomicBool,
    running: Mutex<QueueTable<P>>,
}

struct QueueTable<P> {
    lanes: HashMap<QueueKey, HandlerQueue<P>, RandomState>,
    /// Events of lanes that wait for another to end.
    queue: VecDeque<(Event, P)>,
    waiting: usize,
    started: u64,
}

struct HandlerQueue<P> {
    /// Tells it from later lanes of the same name.
    number: u64,
    task: Option<AbortHandle>,
    queue: VecDeque<(Event, P)>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct QueueKey(Text, QueueKind);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum QueueKind {
    Request,
    Response,
    Rest,
}

impl QueueKind {
    const ALL: [Self; 3] = [Self::Request, Self::Response, Self::Rest];
}

type HandlerFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

impl<A: Agent, P: ReplySink> EventDispatcher<A, P> {
    pub(crate) fn new(agent: Arc<A>) -> Self {
        let max = match agent.limits().max_concurrency {
            0 => usize::MAX,
            max => max as usize,
        };
        let running = QueueTable {
            lanes: HashMap::default(),
            queue: VecDeque::new(),
            waiting: 0,
            started: 0,
        };
        Self {
            lanes: Arc::new(HandlerQueues {
                agent,
                max,
                busy: AtomicBool::new(false),
                running: Mutex::new(running),
            }),
        }
    }

    /// Begins with an event. Its answer is placed before this returns, or later by a task.
    ///
    /// Needs a Tokio runtime.
    pub(crate) fn event(&self, event: Event, place: P) {
        let lanes = &self.lanes;
        if lanes.busy.load(Ordering::Acquire) {
            let mut running = lanes.lock();
            let key = key(&event);
            if let Some(lane) = running.lanes.get_mut(&key) {
                lane.queue.push_back((apart(event), place));
                running.waiting += 1;
                return;
            }
            if running.lanes.len() >= lanes.max {
                running.queue.push_back((apart(event), place));
                running.waiting += 1;
                return;
            }
        }
        let key = key(&event);
        let mut handler = handle(lanes.agent.clone(), event);
        match handler
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(response) => place.answer(response),
            Poll::Pending => {
                let mut running = lanes.lock();
                lanes.start(&mut running, key, handler, place);
            }
        }
    }

    /// Nobody waits for a request any more: its handlers are dropped.
    pub(crate) fn cancel(&self, id: &str, reason: CancelReason) {
        let lanes = &self.lanes;
        if lanes.busy.load(Ordering::Acquire) {
            let mut running = lanes.lock();
            for part in QueueKind::ALL {
                if let Some(lane) = running.lanes.remove(&QueueKey(Text::from(id), part)) {
                    running.waiting -= lane.queue.len();
                    if let Some(task) = lane.task {
                        task.abort();
                    }
                }
            }
            let before = running.queue.len();
            running.queue.retain(|(event, _)| event.id() != id);
            running.waiting -= before - running.queue.len();
            lanes.refill(&mut running);
        }
        lanes.agent.cancelled(id, reason);
    }

    /// Whether more events should be read.
    pub(crate) fn has_room(&self) -> bool {
        if !self.lanes.busy.load(Ordering::Acquire) {
            return true;
        }
        let running = self.lanes.lock();
        // A request that is slow fills its own window, and leaves others their room.
        running.waiting < WAITING + PIECES * running.lanes.len()
    }
}

impl<A: Agent, P: ReplySink> Drop for EventDispatcher<A, P> {
    fn drop(&mut self) {
        let mut running = self.lanes.lock();
        running.queue.clear();
        for (_, lane) in running.lanes.drain() {
            if let Some(task) = lane.task {
                task.abort();
            }
        }
    }
}

impl<A: Agent, P: ReplySink> HandlerQueues<A, P> {
    fn lock(&self) -> MutexGuard<'_, QueueTable<P>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane of its own task.
    fn start(
        self: &Arc<Self>,
        running: &mut QueueTable<P>,
        key: QueueKey,
        handler: HandlerFuture,
        place: P,
    ) {
        running.started += 1;
        let number = running.started;
        let lanes = self.clone();
        // The task takes the lock that is held here before it looks for its lane.
        let task = tokio::spawn(lanes.run(key.clone(), number, handler, place));
        let lane = HandlerQueue {
            number,
            task: Some(task.abort_handle()),
            queue: VecDeque::new(),
        };
        running.lanes.insert(key, lane);
        self.busy.store(true, Ordering::Release);
    }

    async fn run(self: Arc<Self>, key: QueueKey, number: u64, handler: HandlerFuture, place: P) {
        let (mut handler, mut place) = (handler, place);
        loop {
            let response = handler.await;
            place.answer(response);
            let Some((event, after)) = self.next(&key, number) else {
                return;
            };
            handler = handle(self.agent.clone(), event);
            place = after;
        }
    }

    /// The next event of a lane; without one the lane ends, and others may begin.
    fn next(self: &Arc<Self>, key: &QueueKey, number: u64) -> Option<(Event, P)> {
        let mut running = self.lock();
        let lane = running.lanes.get_mut(key)?;
        if lane.number != number {
            return None;
        }
        if let Some(next) = lane.queue.pop_front() {
            running.waiting -= 1;
            return Some(next);
        }
        running.lanes.remove(key);
        self.refill(&mut running);
        None
    }

    /// Begins with what waited for a lane to end.
    fn refill(self: &Arc<Self>, running: &mut QueueTable<P>) {
        while running.lanes.len() < self.max
            && let Some((event, place)) = running.queue.pop_front()
        {
            let key = key(&event);
            if let Some(lane) = running.lanes.get_mut(&key) {
                lane.queue.push_back((event, place));
                continue;
            }
            running.waiting -= 1;
            let handler = handle(self.agent.clone(), event);
            self.start(running, key, handler, place);
        }
        if running.lanes.is_empty() {
            self.busy.store(false, Ordering::Release);
        }
    }
}

impl QueueKind {
    const fn of(kind: EventKind) -> Self {
        match kind {
            EventKind::RequestHeaders | EventKind::RequestBody => Self::Request,
            EventKind::ResponseHeaders | EventKind::ResponseBody => Self::Response,
            EventKind::RequestComplete
            | EventKind::WebSocketFrame
            | EventKind::Guardrail
            | EventKind::Configure => Self::Rest,
        }
    }
}

/// An event that waits. A small piece of a body gets memory of its own: it would keep the whole buffer that it was read into, with
/// what has been answered long since.
fn apart(mut event: Event) -> Event {
    if let Event::RequestBody(piece) | Event::ResponseBody(piece) = &mut event
        && piece.data.len() < SMALL
    {
        piece.data = Bytes::copy_from_slice(&piece.data);
        piece.correlation_id = Text::from(&*piece.correlation_id);
    }
    event
}

fn key(event: &Event) -> QueueKey {
    QueueKey(Text::from(event.id()), QueueKind::of(event.kind()))
}

/// The handler of an event.
fn handle<A: Agent>(agent: Arc<A>, event: Event) -> HandlerFuture {
    let answer = async move {
        match event {
            Event::RequestHeaders(event) => agent.request_headers(event).await,
            Event::RequestBody(event) => agent.request_body(event).await,
            Event::ResponseHeaders(event) => agent.response_headers(event).await,
            Event::ResponseBody(event) => agent.response_body(event).await,
            Event::RequestComplete(event) => agent.request_complete(event).await,
            Event::WebSocketFrame(event) => agent.websocket_frame(event).await,
            Event::Guardrail(event) => agent.guardrail(event).await,
            Event::Configure(event) => agent.configure(event).await,
        }
    };
    Box::pin(
        AssertUnwindSafe(answer)
            .catch_unwind()
            .map(|answer| answer.unwrap_or_else(|_| Response::block(500))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::BodyChunk;

    struct Stuck;

    impl Agent for Stuck {
        fn name(&self) -> &str {
            "stuck"
        }

        async fn request_body(&self, _: BodyChunk) -> Response {
            std::future::pending().await
        }
    }

    struct Nowhere;

    impl ReplySink for Nowhere {
        fn answer(self, _: Response) {
            unreachable!("nothing is answered");
        }
    }

    fn piece(data: Bytes) -> Event {
        let id = data.slice(..1);
        Event::RequestBody(BodyChunk {
            correlation_id: Text::try_from(id).unwrap(),
            data,
            is_last: false,
            total_size: None,
            index: 0,
            transferred: 0,
        })
    }

    #[tokio::test]
    async fn a_small_piece_that_waits_keeps_no_buffer_and_a_large_one_is_not_copied() {
        let dispatch = EventDispatcher::new(Arc::new(Stuck));
        dispatch.event(piece(Bytes::from_static(b"a")), Nowhere);
        for (size, kept) in [(SMALL - 1, false), (SMALL, true)] {
            let buffer = Bytes::from(vec![b'a'; 4 * SMALL]);
            dispatch.event(piece(buffer.slice(..size)), Nowhere);
            assert_eq!(buffer.is_unique(), !kept, "{size}");
        }
    }

    #[tokio::test]
    async fn what_one_request_lets_wait_takes_no_room_from_others() {
        let dispatch = EventDispatcher::new(Arc::new(Stuck));
        for n in 0..100_u8 {
            let id = Bytes::copy_from_slice(&[b'0' + n / 10, b'0' + n % 10]);
            for _ in 0..PIECES {
                let Event::RequestBody(mut one) = piece(Bytes::from_static(b"a")) else {
                    unreachable!()
                };
                one.correlation_id = Text::try_from(id.clone()).unwrap();
                dispatch.event(Event::RequestBody(one), Nowhere);
            }
            assert!(dispatch.has_room(), "{n}");
        }
        // A host that does not keep to its window is read no further.
        for _ in 0..2 * (WAITING + PIECES) {
            dispatch.event(piece(Bytes::from_static(b"0")), Nowhere);
        }
        assert!(!dispatch.has_room());
    }
}
