//! Runs the handlers of one connection in order.
//!
//! Events of one *queue* run one after the other, in their order: the head and body of a request, those of
//! its response, and everything else of a request (such as WebSocket frames) are a queue each. Queues run concurrently,
//! up to the agent's `max_concurrency`; events beyond wait, first come first served.
//!
//! A handler is polled once where its event was read. Most answer then, and cost no task. One that does not
//! gets a task, which goes on with the queue's next event when it is done. A cancel drops a request's
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
    stream::MAX_WINDOW_CHUNKS,
};

/// How many events of one connection may wait, beside the chunks of a body that the window of each running queue lets come. Whoever
/// reads them stops while there is no room ([`EventDispatcher::has_room`]); an answer makes some.
pub(crate) const MAX_WAITING: usize = 1024;

/// A chunk of a body below this size is copied when it has to wait.
const COPY_BELOW: usize = 64 << 10;

/// Receives the answer to one event.
pub(crate) trait ReplySink: Send + 'static {
    /// Called at most once, and not for what was cancelled.
    fn answer(self, response: Response);
}

/// The handlers of one connection. They end when it is dropped.
pub(crate) struct EventDispatcher<A: Agent, P: ReplySink> {
    queues: Arc<HandlerQueues<A, P>>,
}

struct HandlerQueues<A: Agent, P: ReplySink> {
    agent: Arc<A>,
    max: usize,
    /// Some handler runs in a task. While it is false, there is nothing to look up.
    busy: AtomicBool,
    running: Mutex<QueueTable<P>>,
}

struct QueueTable<P> {
    queues: HashMap<QueueKey, HandlerQueue<P>, RandomState>,
    /// Events of queues that wait for another to end.
    backlog: VecDeque<(Event, P)>,
    waiting: usize,
    started: u64,
}

struct HandlerQueue<P> {
    /// Distinguishes it from later queues with the same key.
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
            queues: HashMap::default(),
            backlog: VecDeque::new(),
            waiting: 0,
            started: 0,
        };
        Self {
            queues: Arc::new(HandlerQueues {
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
    pub(crate) fn event(&self, event: Event, reply: P) {
        let queues = &self.queues;
        if queues.busy.load(Ordering::Acquire) {
            let mut running = queues.lock();
            let key = key(&event);
            if let Some(queue) = running.queues.get_mut(&key) {
                queue.queue.push_back((apart(event), reply));
                running.waiting += 1;
                return;
            }
            if running.queues.len() >= queues.max {
                running.backlog.push_back((apart(event), reply));
                running.waiting += 1;
                return;
            }
        }
        let key = key(&event);
        let mut handler = handle(queues.agent.clone(), event);
        match handler
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(response) => reply.answer(response),
            Poll::Pending => {
                let mut running = queues.lock();
                queues.start(&mut running, key, handler, reply);
            }
        }
    }

    /// Nobody waits for a request any more: its handlers are dropped.
    pub(crate) fn cancel(&self, id: &str, reason: CancelReason) {
        let queues = &self.queues;
        if queues.busy.load(Ordering::Acquire) {
            let mut running = queues.lock();
            for part in QueueKind::ALL {
                if let Some(queue) = running.queues.remove(&QueueKey(Text::from(id), part)) {
                    running.waiting -= queue.queue.len();
                    if let Some(task) = queue.task {
                        task.abort();
                    }
                }
            }
            let before = running.backlog.len();
            running.backlog.retain(|(event, _)| event.id() != id);
            running.waiting -= before - running.backlog.len();
            queues.refill(&mut running);
        }
        queues.agent.cancelled(id, reason);
    }

    /// Whether more events should be read.
    pub(crate) fn has_room(&self) -> bool {
        if !self.queues.busy.load(Ordering::Acquire) {
            return true;
        }
        let running = self.queues.lock();
        // A request that is slow fills its own window, and leaves others their room.
        running.waiting < MAX_WAITING + MAX_WINDOW_CHUNKS * running.queues.len()
    }
}

impl<A: Agent, P: ReplySink> Drop for EventDispatcher<A, P> {
    fn drop(&mut self) {
        let mut running = self.queues.lock();
        running.backlog.clear();
        for (_, queue) in running.queues.drain() {
            if let Some(task) = queue.task {
                task.abort();
            }
        }
    }
}

impl<A: Agent, P: ReplySink> HandlerQueues<A, P> {
    fn lock(&self) -> MutexGuard<'_, QueueTable<P>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task of a queue.
    fn start(
        self: &Arc<Self>,
        running: &mut QueueTable<P>,
        key: QueueKey,
        handler: HandlerFuture,
        reply: P,
    ) {
        running.started += 1;
        let number = running.started;
        let queues = self.clone();
        // The task takes the lock that is held here before it looks for its queue.
        let task = tokio::spawn(queues.run(key.clone(), number, handler, reply));
        let queue = HandlerQueue {
            number,
            task: Some(task.abort_handle()),
            queue: VecDeque::new(),
        };
        running.queues.insert(key, queue);
        self.busy.store(true, Ordering::Release);
    }

    async fn run(self: Arc<Self>, key: QueueKey, number: u64, handler: HandlerFuture, reply: P) {
        let (mut handler, mut reply) = (handler, reply);
        loop {
            let response = handler.await;
            reply.answer(response);
            let Some((event, after)) = self.next(&key, number) else {
                return;
            };
            handler = handle(self.agent.clone(), event);
            reply = after;
        }
    }

    /// The next event of a queue; without one the queue ends, and others may begin.
    fn next(self: &Arc<Self>, key: &QueueKey, number: u64) -> Option<(Event, P)> {
        let mut running = self.lock();
        let queue = running.queues.get_mut(key)?;
        if queue.number != number {
            return None;
        }
        if let Some(next) = queue.queue.pop_front() {
            running.waiting -= 1;
            return Some(next);
        }
        running.queues.remove(key);
        self.refill(&mut running);
        None
    }

    /// Begins with what waited for a queue to end.
    fn refill(self: &Arc<Self>, running: &mut QueueTable<P>) {
        while running.queues.len() < self.max
            && let Some((event, reply)) = running.backlog.pop_front()
        {
            let key = key(&event);
            if let Some(queue) = running.queues.get_mut(&key) {
                queue.queue.push_back((event, reply));
                continue;
            }
            running.waiting -= 1;
            let handler = handle(self.agent.clone(), event);
            self.start(running, key, handler, reply);
        }
        if running.queues.is_empty() {
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

/// An event that waits. A small chunk of a body gets memory of its own: it would keep the whole buffer that it was read into, with
/// what has been answered long since.
fn apart(mut event: Event) -> Event {
    if let Event::RequestBody(piece) | Event::ResponseBody(piece) = &mut event
        && piece.data.len() < COPY_BELOW
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
        for (size, kept) in [(COPY_BELOW - 1, false), (COPY_BELOW, true)] {
            let buffer = Bytes::from(vec![b'a'; 4 * COPY_BELOW]);
            dispatch.event(piece(buffer.slice(..size)), Nowhere);
            assert_eq!(buffer.is_unique(), !kept, "{size}");
        }
    }

    #[tokio::test]
    async fn what_one_request_lets_wait_takes_no_room_from_others() {
        let dispatch = EventDispatcher::new(Arc::new(Stuck));
        for n in 0..100_u8 {
            let id = Bytes::copy_from_slice(&[b'0' + n / 10, b'0' + n % 10]);
            for _ in 0..MAX_WINDOW_CHUNKS {
                let Event::RequestBody(mut one) = piece(Bytes::from_static(b"a")) else {
                    unreachable!()
                };
                one.correlation_id = Text::try_from(id.clone()).unwrap();
                dispatch.event(Event::RequestBody(one), Nowhere);
            }
            assert!(dispatch.has_room(), "{n}");
        }
        // A host that does not keep to its window is read no further.
        for _ in 0..2 * (MAX_WAITING + MAX_WINDOW_CHUNKS) {
            dispatch.event(piece(Bytes::from_static(b"0")), Nowhere);
        }
        assert!(!dispatch.has_room());
    }
}
