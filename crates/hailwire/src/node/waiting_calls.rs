//! Calls that wait until a member of their group takes another one; [`CallQueue`] decides who is next.
//!
//! Whoever finds all members full enters the queue of the group and looks once more, so that no place is missed which becomes free meanwhile; the
//! pool tells of each one after that ([`SlotWatch`]). A place goes to one call, which has to take it: where it is gone by then the call waits again
//! where it was, and where the call is gone the next one has it. Calls that come while others wait go behind them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hailwire_core::{
    call_queue::{CallQueue, CallQueueFull, CallTicket, QueueRoom},
    routing::CallOrigin,
};
use hailwire_pool::SlotWatch;
use hailwire_wire::{AgentName, Code, Priority, Status};
use tokio::{sync::oneshot, time::timeout};

/// Calls that wait at a node, whatever they wait for.
const MAX_WAITING_HERE: usize = 16_384;

/// How long a call waits that has no deadline of its own.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// After which time a call that waits looks by itself: a member that was out of service is back without anybody saying so.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The same for one that found its place gone; each look doubles it.
const LOOK_SOON: Duration = Duration::from_millis(10);

/// What a call that waits is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// There is a place.
    Place,
    /// A more urgent call has taken its place in the queue.
    Displaced,
}

/// The calls that wait for one group.
#[derive(Debug)]
pub(crate) struct WaitingCalls {
    /// Those in the queue, and those that were told of a place and have not taken it yet.
    count: AtomicUsize,
    queue: Mutex<TellingQueue>,
    /// The same of all groups of the node.
    here: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct TellingQueue {
    order: CallQueue<CallOrigin>,
    tell: HashMap<CallTicket, oneshot::Sender<Told>>,
}

impl SlotWatch for WaitingCalls {
    fn slot_freed(&self) {
        if self.is_waiting() {
            self.tell_next();
        }
    }
}

impl WaitingCalls {
    /// None waits. `here` counts those of all groups.
    pub(super) fn new(here: Arc<AtomicUsize>) -> Self {
        Self {
            count: AtomicUsize::new(0),
            queue: Mutex::default(),
            here,
        }
    }

    /// Whether a call that comes now has to wait behind others.
    pub(super) fn is_waiting(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Lets a call wait. Whoever calls looks afterwards whether there is a place by now ([`WaitingCalls::tell_next`]).
    ///
    /// # Errors
    ///
    /// `resource_exhausted` where no more may.
    pub(super) fn enter(
        self: &Arc<Self>,
        agent: &AgentName,
        most: usize,
        origin: CallOrigin,
        priority: Priority,
    ) -> Result<QueuedCall, Status> {
        let each = match origin {
            CallOrigin::Local => most,
            // Half of it is for others.
            CallOrigin::Peer(_) => most.div_ceil(2),
        };
        let room = QueueRoom { all: most, each };
        if self.here.load(Ordering::Relaxed) >= MAX_WAITING_HERE {
            return Err(too_many(agent, MAX_WAITING_HERE));
        }
        let (tell, told) = oneshot::channel();
        let mut queue = self.lock();
        let entered = queue.order.enter(room, origin, priority);
        let entered = entered.map_err(|CallQueueFull { waiting }| too_many(agent, waiting))?;
        queue.tell.insert(entered.ticket, tell);
        let displaced = entered.displaced.and_then(|out| queue.tell.remove(&out));
        drop(queue);
        if let Some(displaced) = displaced {
            // It leaves the count by itself.
            let _ = displaced.send(Told::Displaced);
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        self.here.fetch_add(1, Ordering::Relaxed);
        Ok(QueuedCall {
            waiting: self.clone(),
            ticket: entered.ticket,
            origin,
            told: Some(told),
            look: LOOK_AGAIN,
        })
    }

    /// There may be a place: tells the call whose turn it is.
    pub(super) fn tell_next(&self) {
        let mut queue = self.lock();
        while let Some((ticket, _)) = queue.order.next_call() {
            let tell = queue.tell.remove(&ticket);
            if tell.is_some_and(|tell| tell.send(Told::Place).is_ok()) {
                return;
            }
        }
    }

    /// The group is gone: all look for themselves.
    pub(super) fn tell_all(&self) {
        for _ in 0..self.len() {
            self.tell_next();
        }
    }

    fn lock(&self) -> MutexGuard<'_, TellingQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits. Dropping it takes it out, and passes a place on that it was told of.
#[derive(Debug)]
pub(super) struct QueuedCall {
    waiting: Arc<WaitingCalls>,
    ticket: CallTicket,
    origin: CallOrigin,
    /// Nothing once it was told.
    told: Option<oneshot::Receiver<Told>>,
    look: Duration,
}

impl QueuedCall {
    /// Waits until there may be a place for it. `has_room` says whether there is one.
    ///
    /// # Errors
    ///
    /// `resource_exhausted`, where a more urgent call has taken its place in the queue.
    ///
    /// # Cancel safety
    ///
    /// It waits on where it was.
    pub(super) async fn place(
        &mut self,
        agent: &AgentName,
        has_room: impl Fn() -> bool,
    ) -> Result<(), Status> {
        while let Some(told) = &mut self.told {
            match timeout(self.look, told).await {
                Ok(told) => {
                    self.told = None;
                    return match told {
                        Ok(Told::Place) => Ok(()),
                        Ok(Told::Displaced) => Err(displaced(agent)),
                        // Nobody drops what is to be told without telling it.
                        Err(_) => Ok(()),
                    };
                }
                Err(_) => {
                    self.look = LOOK_AGAIN.min(2 * self.look);
                    if has_room() {
                        self.waiting.tell_next();
                    }
                }
            }
        }
        Ok(())
    }

    /// The place was gone: it waits again, before those that came later.
    pub(super) fn wait_again(&mut self) {
        let (tell, told) = oneshot::channel();
        let mut queue = self.waiting.lock();
        queue.order.put_back(self.ticket, self.origin);
        queue.tell.insert(self.ticket, tell);
        self.told = Some(told);
        self.look = LOOK_SOON;
    }

    /// It has its place, or wants none any more though others may.
    pub(super) fn taken(self) {}
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        if let Some(told) = &mut self.told {
            let mut queue = self.waiting.lock();
            let was_waiting = queue.order.leave(self.ticket).is_some();
            queue.tell.remove(&self.ticket);
            drop(queue);
            if !was_waiting && told.try_recv() == Ok(Told::Place) {
                self.waiting.tell_next();
            }
        }
        self.waiting.count.fetch_sub(1, Ordering::SeqCst);
        self.waiting.here.fetch_sub(1, Ordering::Relaxed);
    }
}

fn too_many(agent: &AgentName, waiting: usize) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "all members of `{agent}` are at their limit of calls, and {waiting} calls wait already"
        ),
    )
    .with_hint("call again later, or start another member of the same name")
}

/// What a call is told that has no deadline and has waited for [`LONGEST_WAIT`].
pub(super) fn too_long(agent: &AgentName) -> Status {
    let waited = LONGEST_WAIT.as_secs();
    Status::new(
        Code::ResourceExhausted,
        format!("all members of `{agent}` were at their limit of calls for {waited} s"),
    )
    .with_hint("give the call a deadline, by which it waits; agents that call each other in a circle need more places")
}

fn displaced(agent: &AgentName) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!("all members of `{agent}` are at their limit of calls, and more urgent calls wait"),
    )
    .with_hint("call again later, or start another member of the same name")
}
