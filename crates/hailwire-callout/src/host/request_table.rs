//! Which request waits for which answer: the core of a connection, without I/O.
//!
//! Each request is an *entry*, named by a [`RequestTicket`]: a slot and how often that slot was used before, so that an answer
//! which comes late finds nobody. An entry is *queued* until it may leave and *sent* after.
//!
//! Entries of one request that have to keep their order stand in a *queue*:
//!
//! - toward a Hailwire agent, the chunks of one direction of a body. Several may be under way, as long as their
//!   bytes stay within the window; an answer gives its bytes back. Other events need no queue: an answer says its
//!   ticket's number.
//! - toward other implementations, all events of a request, one at a time, since an answer says the request and no more.
//!   When nobody waits for the one under way, the queue stays taken until its answer comes after all: the next
//!   event must not be given that answer. The last [`MAX_ORPHANS`] such queues are kept. An agent that owes an answer so, and gives
//!   none to anything, is given up after a while ([`super::link::ConnectionLink::overdue`]).
//!
//! An entry that is sent takes one of the agent's slots, of which there are `max_concurrency`; the chunks
//! that share a window share one. Without a free slot, or while the agent has paused, entries wait in one queue.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    task::Waker,
};

use foldhash::fast::RandomState;

use super::{OverloadPolicy, RequestError};
use crate::{
    Text,
    event::{Event, EventKind},
    response::Response,
    stream::MIN_CHUNK_COST,
};

/// How many abandoned events toward other implementations are remembered.
pub(crate) const MAX_ORPHANS: usize = 1024;

/// How many requests an agent may pause one by one.
pub(crate) const MAX_PAUSED: usize = 4096;

/// How many callers may wait on one connection, sent and queued together.
pub(crate) const MAX_ENTRIES: usize = 1 << 16;

/// Names one request on a connection, for as long as the connection lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestTicket {
    index: u32,
    generation: u32,
}

impl RequestTicket {
    /// As one number, for the wire.
    pub(crate) const fn number(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// From the wire. It may name nobody.
    pub(crate) const fn from_number(number: u64) -> Self {
        Self {
            index: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

/// How answers find their requests, and how much may be in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestRules {
    /// Answers carry the number of their ticket: the other side is Hailwire.
    pub(crate) numbered: bool,
    /// Bytes of one direction of a body that may be under way, toward ours; one chunk always may.
    pub(crate) window: u64,
    /// Places; 0 for any number.
    pub(crate) max_in_flight: u32,
    /// What happens to more.
    pub(crate) overload: OverloadPolicy,
}

/// An entry that may leave now.
pub(crate) type ReadyEvent = (RequestTicket, Event);

pub(super) struct RequestTable {
    rules: RequestRules,
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    queues: HashMap<OrderKey, OrderedQueue, RandomState>,
    orphans: VecDeque<Text>,
    /// Entries that wait for a slot, or until the agent resumes.
    queue: VecDeque<RequestTicket>,
    taken: u32,
    entries: u32,
    /// How many answers have come.
    heard: u64,
    paused: bool,
    paused_requests: HashSet<Text>,
    closed: bool,
}

#[derive(Default)]
struct RequestSlot {
    generation: u32,
    entry: Option<PendingRequest>,
}

struct PendingRequest {
    id: Text,
    scope: Option<OrderScope>,
    bytes: u64,
    /// While it is queued.
    event: Option<Box<Event>>,
    answer: Option<Result<Response, RequestError>>,
    waker: Option<Waker>,
}

type OrderKey = (Text, OrderScope);

/// Which of a request's ordered queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OrderScope {
    All,
    RequestBody,
    ResponseBody,
}

#[derive(Default)]
struct OrderedQueue {
    sent: u32,
    bytes: u64,
    /// Its entries hold one of the agent's slots, or wait for it.
    has_slot: bool,
    /// Its first entry waits for a slot; none may overtake it.
    held: bool,
    orphaned: bool,
    current: Option<RequestTicket>,
    waiting: VecDeque<RequestTicket>,
}

/// What became of a new request.
pub(super) enum EnterOutcome {
    /// It may leave now.
    Send(RequestTicket, Event),
    /// It is kept until it may.
    Queued(RequestTicket),
}

/// What an entry was whose caller is gone.
pub(super) enum ForgetOutcome {
    /// The agent has heard of it. Whoever waited for something else of its request is to be woken.
    Sent(Text, Vec<Waker>),
    /// It has not, or has answered.
    Unsent,
}

impl RequestTable {
    pub(super) fn new(rules: RequestRules) -> Self {
        Self {
            rules,
            slots: Vec::new(),
            free: Vec::new(),
            queues: HashMap::default(),
            orphans: VecDeque::new(),
            queue: VecDeque::new(),
            taken: 0,
            entries: 0,
            heard: 0,
            paused: false,
            paused_requests: HashSet::new(),
            closed: false,
        }
    }

    /// How many wait, sent and queued.
    pub(super) const fn entries(&self) -> u32 {
        self.entries
    }

    /// How many answers have come, where the agent owes one that nobody waits for.
    pub(super) fn owed(&self) -> Option<u64> {
        (!self.orphans.is_empty()).then_some(self.heard)
    }

    /// Whether chunks of a body must be handed to the transport while the table is held, since only that
    /// keeps their order.
    pub(super) const fn ordered(&self, kind: EventKind) -> bool {
        self.rules.numbered && matches!(kind, EventKind::RequestBody | EventKind::ResponseBody)
    }

    /// Enters a new request.
    pub(super) fn enter(&mut self, event: Event) -> Result<EnterOutcome, RequestError> {
        if self.closed {
            return Err(RequestError::Closed);
        }
        if self.entries as usize >= MAX_ENTRIES {
            return Err(RequestError::Full);
        }
        let kind = event.kind();
        let id = event.id();
        let scope = match kind {
            _ if !self.rules.numbered => Some(OrderScope::All),
            EventKind::RequestBody => Some(OrderScope::RequestBody),
            EventKind::ResponseBody => Some(OrderScope::ResponseBody),
            _ => None,
        };
        let body = matches!(kind, EventKind::RequestBody | EventKind::ResponseBody);
        let fails = self.rules.overload == OverloadPolicy::Fail && !body;
        let paused = self.paused_for(id);
        if fails && starts(kind) && paused {
            return Err(RequestError::Paused);
        }
        if fails && !self.has_free_slot() {
            return Err(RequestError::Full);
        }
        let bytes = match &event {
            Event::RequestBody(chunk) | Event::ResponseBody(chunk) => {
                MIN_CHUNK_COST.max(chunk.data.len() as u64)
            }
            _ => 0,
        };
        let id = Text::from(id);
        let key = scope.map(|scope| (id.clone(), scope));
        let ticket = self.insert(PendingRequest {
            id,
            scope,
            bytes,
            event: None,
            answer: None,
            waker: None,
        });
        if let Some(key) = &key
            && !self.queue_has_room(key, bytes)
        {
            self.hold(ticket, event);
            self.queues
                .entry(key.clone())
                .or_default()
                .waiting
                .push_back(ticket);
            return Ok(EnterOutcome::Queued(ticket));
        }
        if self.admit(ticket, key, bytes, paused && (body || starts(kind))) {
            Ok(EnterOutcome::Send(ticket, event))
        } else {
            self.hold(ticket, event);
            self.queue.push_back(ticket);
            Ok(EnterOutcome::Queued(ticket))
        }
    }

    /// An answer by number. Returns whom to wake; `None` where nobody waits.
    pub(super) fn answer(
        &mut self,
        ticket: RequestTicket,
        answer: Result<Response, RequestError>,
        ready: &mut Vec<ReadyEvent>,
    ) -> Option<Waker> {
        let entry = self.entry(ticket)?;
        if entry.answer.is_some() {
            return None;
        }
        self.heard += 1;
        let entry = self.entry(ticket)?;
        entry.answer = Some(answer);
        let waker = entry.waker.take();
        let was_sent = entry.event.take().is_none();
        let key = entry.scope.map(|scope| (entry.id.clone(), scope));
        let bytes = entry.bytes;
        if was_sent {
            self.release(key.as_ref(), bytes, ready);
        } else {
            self.unqueue(ticket, key.as_ref(), ready);
        }
        waker
    }

    /// Whose answer one is that says the request and no more; `None` where nobody waits.
    pub(super) fn find(&mut self, id: &str, ready: &mut Vec<ReadyEvent>) -> Option<RequestTicket> {
        let key = (Text::from(id), OrderScope::All);
        let queue = self.queues.get_mut(&key)?;
        if let Some(ticket) = queue.current {
            return Some(ticket);
        }
        if queue.orphaned {
            self.heard += 1;
            queue.orphaned = false;
            self.orphans.retain(|orphan| *orphan != key.0);
            self.pump_queue(&key, ready);
            self.pump(ready);
        }
        None
    }

    /// The answer, once it is there, or who waits for it.
    pub(super) fn poll(
        &mut self,
        ticket: RequestTicket,
        waker: &Waker,
    ) -> Option<Result<Response, RequestError>> {
        let Some(entry) = self.entry(ticket) else {
            return Some(Err(RequestError::Closed));
        };
        match entry.answer.take() {
            Some(answer) => {
                self.vacate(ticket);
                Some(answer)
            }
            None => {
                match &mut entry.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                None
            }
        }
    }

    /// The caller is gone.
    pub(super) fn forget(
        &mut self,
        ticket: RequestTicket,
        ready: &mut Vec<ReadyEvent>,
    ) -> ForgetOutcome {
        let Some(entry) = self.vacate(ticket) else {
            return ForgetOutcome::Unsent;
        };
        if entry.answer.is_some() {
            return ForgetOutcome::Unsent;
        }
        let key = entry.scope.map(|scope| (entry.id.clone(), scope));
        if entry.event.is_some() {
            self.unqueue(ticket, key.as_ref(), ready);
            return ForgetOutcome::Unsent;
        }
        if self.rules.numbered {
            // The agent drops all that it does for the request.
            self.taken -= u32::from(key.is_none()).min(self.taken);
            let wakers = self.cancel(&entry.id, ready);
            return ForgetOutcome::Sent(entry.id, wakers);
        }
        if let Some(key) = key {
            self.orphan(&key, ready);
        }
        self.pump(ready);
        ForgetOutcome::Sent(entry.id, Vec::new())
    }

    /// Nobody waits for a request any more; whoever did is told so. Returns whom to wake.
    pub(super) fn cancel(&mut self, id: &str, ready: &mut Vec<ReadyEvent>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut places = 0;
        for entry in self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut()) {
            if entry.id != *id || entry.answer.is_some() {
                continue;
            }
            entry.answer = Some(Err(RequestError::Cancelled));
            wakers.extend(entry.waker.take());
            let was_sent = entry.event.take().is_none();
            places += u32::from(was_sent && entry.scope.is_none());
        }
        self.taken = self.taken.saturating_sub(places);
        let slots = &self.slots;
        self.queue.retain(|ticket| {
            let entry = slots.get(ticket.index as usize);
            entry
                .and_then(|slot| slot.entry.as_ref())
                .is_some_and(|entry| entry.answer.is_none())
        });
        let id = Text::from(id);
        for scope in [OrderScope::RequestBody, OrderScope::ResponseBody] {
            if let Some(queue) = self.queues.remove(&(id.clone(), scope)) {
                self.taken -= u32::from(queue.has_slot).min(self.taken);
            }
        }
        let key = (id, OrderScope::All);
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.waiting.clear();
            queue.held = false;
            if queue.sent > 0 {
                self.orphan(&key, ready);
            } else if !queue.orphaned {
                self.queues.remove(&key);
            }
        }
        self.pump(ready);
        wakers
    }

    /// What was sent in a queue is not waited for any more, and its answer may come all the same.
    fn orphan(&mut self, key: &OrderKey, ready: &mut Vec<ReadyEvent>) {
        let Some(queue) = self.queues.get_mut(key) else {
            return;
        };
        let has_slot = queue.has_slot;
        queue.has_slot = false;
        queue.sent = 0;
        queue.bytes = 0;
        queue.current = None;
        queue.orphaned = true;
        self.taken -= u32::from(has_slot).min(self.taken);
        self.orphans.push_back(key.0.clone());
        if self.orphans.len() > MAX_ORPHANS
            && let Some(oldest) = self.orphans.pop_front()
        {
            let key = (oldest, OrderScope::All);
            if let Some(queue) = self.queues.get_mut(&key) {
                queue.orphaned = false;
            }
            self.pump_queue(&key, ready);
        }
    }

    /// The agent wants nothing new, of one request or of any, or goes on.
    pub(super) fn pause(&mut self, id: Option<Text>, paused: bool, ready: &mut Vec<ReadyEvent>) {
        match id {
            None => self.paused = paused,
            Some(id) if paused => {
                if self.paused_requests.len() < MAX_PAUSED {
                    self.paused_requests.insert(id);
                }
            }
            Some(id) => {
                self.paused_requests.remove(&id);
            }
        }
        if !paused {
            let keys: Vec<OrderKey> = self.queues.keys().cloned().collect();
            for key in keys {
                self.pump_queue(&key, ready);
            }
            self.pump(ready);
        }
    }

    /// A request has ended; what the agent paused of it is forgotten.
    pub(super) fn ended(&mut self, id: &str) {
        if !self.paused_requests.is_empty() {
            self.paused_requests.remove(id);
        }
    }

    /// The connection has ended: nobody is answered any more. Returns whom to wake.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        self.queues.clear();
        self.orphans.clear();
        self.queue.clear();
        self.taken = 0;
        let mut wakers = Vec::new();
        for entry in self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut()) {
            entry.event = None;
            entry.answer.get_or_insert(Err(RequestError::Closed));
            wakers.extend(entry.waker.take());
        }
        wakers
    }

    fn insert(&mut self, entry: PendingRequest) -> RequestTicket {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RequestSlot::default());
            self.slots.len() as u32 - 1
        });
        self.entries += 1;
        let mut generation = 0;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.entry = Some(entry);
            generation = slot.generation;
        }
        RequestTicket { index, generation }
    }

    fn entry(&mut self, ticket: RequestTicket) -> Option<&mut PendingRequest> {
        let slot = self.slots.get_mut(ticket.index as usize)?;
        if slot.generation != ticket.generation {
            return None;
        }
        slot.entry.as_mut()
    }

    fn vacate(&mut self, ticket: RequestTicket) -> Option<PendingRequest> {
        let slot = self.slots.get_mut(ticket.index as usize)?;
        if slot.generation != ticket.generation {
            return None;
        }
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(ticket.index);
        self.entries -= 1;
        Some(entry)
    }

    fn hold(&mut self, ticket: RequestTicket, event: Event) {
        if let Some(entry) = self.entry(ticket) {
            entry.event = Some(Box::new(event));
        }
    }

    fn paused_for(&self, id: &str) -> bool {
        self.paused || (!self.paused_requests.is_empty() && self.paused_requests.contains(id))
    }

    const fn has_free_slot(&self) -> bool {
        self.rules.max_in_flight == 0 || self.taken < self.rules.max_in_flight
    }

    fn queue_has_room(&self, key: &OrderKey, bytes: u64) -> bool {
        let Some(queue) = self.queues.get(key) else {
            return true;
        };
        queue.waiting.is_empty() && self.room(queue, bytes)
    }

    fn room(&self, queue: &OrderedQueue, bytes: u64) -> bool {
        if queue.held || queue.orphaned {
            return false;
        }
        queue.sent == 0 || (self.rules.numbered && queue.bytes + bytes <= self.rules.window)
    }

    /// Takes what an entry needs to leave. Without a free slot it returns false, and the entry holds its queue.
    fn admit(
        &mut self,
        ticket: RequestTicket,
        key: Option<OrderKey>,
        bytes: u64,
        paused: bool,
    ) -> bool {
        let free = self.has_free_slot();
        let Some(key) = key else {
            let leaves = free && !paused;
            self.taken += u32::from(leaves);
            return leaves;
        };
        let queue = self.queues.entry(key).or_default();
        if paused || !(queue.has_slot || free) {
            queue.held = true;
            return false;
        }
        self.taken += u32::from(!queue.has_slot);
        queue.has_slot = true;
        queue.sent += 1;
        queue.bytes += bytes;
        queue.current = Some(ticket);
        true
    }

    /// An entry that was sent needs nothing any more.
    fn release(&mut self, key: Option<&OrderKey>, bytes: u64, ready: &mut Vec<ReadyEvent>) {
        let Some(key) = key else {
            self.taken = self.taken.saturating_sub(1);
            return self.pump(ready);
        };
        if let Some(queue) = self.queues.get_mut(key) {
            queue.sent = queue.sent.saturating_sub(1);
            queue.bytes = queue.bytes.saturating_sub(bytes);
            queue.current = None;
            if queue.sent == 0 && queue.has_slot {
                queue.has_slot = false;
                self.taken = self.taken.saturating_sub(1);
            }
        }
        self.pump_queue(key, ready);
        self.pump(ready);
    }

    /// A queued entry is gone.
    fn unqueue(
        &mut self,
        ticket: RequestTicket,
        key: Option<&OrderKey>,
        ready: &mut Vec<ReadyEvent>,
    ) {
        if let Some(at) = self.queue.iter().position(|queued| *queued == ticket) {
            self.queue.remove(at);
            if let Some(queue) = key.and_then(|key| self.queues.get_mut(key)) {
                queue.held = false;
            }
        } else if let Some(queue) = key.and_then(|key| self.queues.get_mut(key)) {
            queue.waiting.retain(|waiting| *waiting != ticket);
        }
        if let Some(key) = key {
            self.pump_queue(key, ready);
        }
        self.pump(ready);
    }

    /// Sends what a queue has room for.
    fn pump_queue(&mut self, key: &OrderKey, ready: &mut Vec<ReadyEvent>) {
        loop {
            let Some(queue) = self.queues.get(key) else {
                return;
            };
            let Some(ticket) = queue.waiting.front().copied() else {
                if queue.sent == 0 && !queue.held && !queue.orphaned {
                    self.queues.remove(key);
                }
                return;
            };
            let bytes = self.entry(ticket).map_or(0, |entry| entry.bytes);
            match self.queues.get_mut(key) {
                Some(queue) if !queue.held => queue.waiting.pop_front(),
                _ => return,
            };
            let full = self
                .queues
                .get(key)
                .is_some_and(|queue| !self.room(queue, bytes));
            if full {
                if let Some(queue) = self.queues.get_mut(key) {
                    queue.waiting.push_front(ticket);
                }
                return;
            }
            let paused = self.waits_for_agent(ticket);
            if self.admit(ticket, Some(key.clone()), bytes, paused) {
                self.leave(ticket, ready);
            } else {
                self.queue.push_back(ticket);
            }
        }
    }

    /// Sends what there are free slots for.
    fn pump(&mut self, ready: &mut Vec<ReadyEvent>) {
        let mut at = 0;
        while self.has_free_slot()
            && let Some(ticket) = self.queue.get(at).copied()
        {
            if self.waits_for_agent(ticket) {
                at += 1;
                continue;
            }
            self.queue.remove(at);
            let Some(entry) = self.entry(ticket) else {
                continue;
            };
            let (key, bytes) = (
                entry.scope.map(|scope| (entry.id.clone(), scope)),
                entry.bytes,
            );
            self.taken += 1;
            if let Some(key) = &key
                && let Some(queue) = self.queues.get_mut(key)
            {
                queue.held = false;
                queue.has_slot = true;
                queue.sent += 1;
                queue.bytes += bytes;
                queue.current = Some(ticket);
            }
            self.leave(ticket, ready);
            if let Some(key) = &key {
                self.pump_queue(key, ready);
            }
        }
    }

    fn waits_for_agent(&mut self, ticket: RequestTicket) -> bool {
        if !self.paused && self.paused_requests.is_empty() {
            return false;
        }
        let Some(entry) = self.entry(ticket) else {
            return false;
        };
        let waits = entry.event.as_deref().is_some_and(|event| {
            let kind = event.kind();
            starts(kind) || matches!(kind, EventKind::RequestBody | EventKind::ResponseBody)
        });
        let id = entry.id.clone();
        waits && self.paused_for(&id)
    }

    fn leave(&mut self, ticket: RequestTicket, ready: &mut Vec<ReadyEvent>) {
        if let Some(event) = self.entry(ticket).and_then(|entry| entry.event.take()) {
            ready.push((ticket, *event));
        }
    }
}

/// Whether an event begins something that an agent may not have heard of.
pub(super) const fn starts(kind: EventKind) -> bool {
    matches!(kind, EventKind::RequestHeaders | EventKind::Guardrail)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::event::{BodyChunk, ResponseHeaders};

    fn rules(numbered: bool) -> RequestRules {
        RequestRules {
            numbered,
            window: 2 * MIN_CHUNK_COST + 1,
            max_in_flight: 2,
            overload: OverloadPolicy::Wait,
        }
    }

    fn piece(id: &str) -> Event {
        Event::RequestBody(BodyChunk {
            correlation_id: id.into(),
            data: Bytes::from_static(b"1234"),
            is_last: false,
            total_size: None,
            index: 0,
            transferred: 4,
        })
    }

    fn head(id: &str) -> Event {
        Event::ResponseHeaders(ResponseHeaders::new(id, 200, []))
    }

    /// The ticket, and whether it leaves at once.
    fn enter(table: &mut RequestTable, event: Event) -> (RequestTicket, bool) {
        match table.enter(event).unwrap() {
            EnterOutcome::Send(ticket, _) => (ticket, true),
            EnterOutcome::Queued(ticket) => (ticket, false),
        }
    }

    fn answer(table: &mut RequestTable, ticket: RequestTicket) -> Vec<RequestTicket> {
        let mut ready = Vec::new();
        table.answer(ticket, Ok(Response::allow()), &mut ready);
        table.poll(ticket, Waker::noop()).unwrap().unwrap();
        ready.into_iter().map(|(ticket, _)| ticket).collect()
    }

    #[test]
    fn pieces_leave_as_far_as_their_window_goes_and_share_a_place() {
        let mut table = RequestTable::new(rules(true));
        let sent: Vec<_> = (0..4).map(|_| enter(&mut table, piece("a"))).collect();
        assert_eq!(
            sent.iter().map(|s| s.1).collect::<Vec<_>>(),
            [true, true, false, false]
        );
        let (b, leaves) = enter(&mut table, piece("b"));
        assert!(leaves);
        let (c, leaves) = enter(&mut table, head("c"));
        assert!(!leaves, "both places are taken");
        assert_eq!(answer(&mut table, sent[0].0), [sent[2].0]);
        assert_eq!(answer(&mut table, b), [c]);
        for (ticket, _) in &sent[1..] {
            answer(&mut table, *ticket);
        }
        answer(&mut table, c);
        assert_eq!(
            (table.entries(), table.taken, table.queues.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn nothing_of_a_request_leaves_after_its_cancel() {
        for numbered in [true, false] {
            let mut table = RequestTable::new(rules(numbered));
            let tickets: Vec<_> = (0..5).map(|_| enter(&mut table, piece("a")).0).collect();
            let (other, _) = enter(&mut table, head("b"));
            let mut ready = Vec::new();
            table.cancel("a", &mut ready);
            assert!(ready.is_empty());
            for ticket in tickets {
                let answer = table.poll(ticket, Waker::noop());
                assert_eq!(answer, Some(Err(RequestError::Cancelled)));
            }
            assert_eq!((table.entries(), table.taken), (1, 1));
            answer(&mut table, other);
            assert_eq!((table.entries(), table.taken), (0, 0));
        }
    }

    #[test]
    fn a_dropped_ask_leaves_nothing_and_what_is_late_finds_nobody() {
        let mut table = RequestTable::new(rules(true));
        let (ticket, _) = enter(&mut table, head("a"));
        let mut ready = Vec::new();
        assert!(matches!(
            table.forget(ticket, &mut ready),
            ForgetOutcome::Sent(..)
        ));
        assert_eq!((table.entries(), table.taken), (0, 0));
        let (next, _) = enter(&mut table, head("a"));
        assert_eq!(next.index, ticket.index);
        assert!(
            table
                .answer(ticket, Ok(Response::block(403)), &mut ready)
                .is_none()
        );
        assert_eq!(table.poll(next, Waker::noop()), None);
    }

    #[test]
    fn abandoned_lines_are_remembered_and_bounded() {
        let mut table = RequestTable::new(rules(false));
        let mut ready = Vec::new();
        for n in 0..3 * MAX_ORPHANS {
            let (ticket, leaves) = enter(&mut table, head(&n.to_string()));
            assert!(leaves);
            table.forget(ticket, &mut ready);
        }
        assert_eq!((table.entries(), table.taken), (0, 0));
        assert_eq!(
            (table.queues.len(), table.orphans.len()),
            (MAX_ORPHANS, MAX_ORPHANS)
        );
        // The last one's next event waits for the answer that is owed.
        let id = (3 * MAX_ORPHANS - 1).to_string();
        let (next, leaves) = enter(&mut table, head(&id));
        assert!(!leaves);
        assert_eq!(table.find(&id, &mut ready), None);
        assert_eq!(ready.pop().map(|(ticket, _)| ticket), Some(next));
        assert_eq!(table.find(&id, &mut ready), Some(next));
    }
}
