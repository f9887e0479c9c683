//! A lease of a connection for one event: how a slot is chosen, and what is recorded when the event ends.

use std::time::Duration;

use hailwire_pool::{Availability, BreakerPermit, NoSlot, Outcome};

use super::{
    PausedPolicy, PoolError, PoolShared,
    body_slots::BodyKey,
    clock,
    connection_slot::{BorrowedConnection, MAX_NUMBER},
};
use crate::{
    control::HealthState,
    event::{Event, EventKind},
    host::{Connection, ConnectionState, RequestError},
    response::Response,
};

/// A lease of a slot on a connection, counted until it is finished or dropped. Dropping it says nothing about the agent.
///
/// It borrows the connection without counting a reference, of which a thread can do a few at once cheaply: who waits for an
/// answer keeps a clone of the connection instead.
#[must_use = "the place is given back when the call is dropped"]
pub struct ConnectionLease<'a> {
    borrowed: BorrowedConnection,
    hold: SlotGuard<'a>,
}

impl<'a> ConnectionLease<'a> {
    /// The connection.
    #[inline]
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.borrowed.connection
    }

    /// Releases the slot and reports how the request went and how long it took; `None` for one that timed out.
    ///
    /// # Errors
    ///
    /// What the failure of the request means for the caller.
    #[inline]
    pub fn finish(
        self,
        answer: Option<Result<Response, RequestError>>,
        took: Duration,
    ) -> Result<Response, PoolError> {
        self.hold.finish(answer, took)
    }

    /// Releases the slot and reports this answer, and how long it took.
    #[inline]
    pub fn answered(mut self, response: &Response, took: Duration) {
        self.hold.answered(response, took);
    }

    /// The connection to wait on, and the guard of its slot.
    pub(super) fn keep(self) -> (Connection, SlotGuard<'a>) {
        (self.borrowed.connection.clone(), self.hold)
    }
}

/// Holds a slot of a connection until the request ends.
pub(super) struct SlotGuard<'a> {
    shared: &'a PoolShared,
    slot: usize,
    permit: BreakerPermit,
    kind: EventKind,
    /// When it was let in.
    since: Duration,
    /// The request's hash, where it ends with this event.
    ends: Option<u64>,
    /// The body, where this is a chunk of one.
    body: Option<BodyKey>,
    settled: bool,
}

impl SlotGuard<'_> {
    #[inline]
    pub(super) fn finish(
        mut self,
        answer: Option<Result<Response, RequestError>>,
        took: Duration,
    ) -> Result<Response, PoolError> {
        let error = match answer {
            Some(Ok(response)) => {
                self.answered(&response, took);
                return Ok(response);
            }
            None => PoolError::Timeout,
            Some(Err(RequestError::Paused | RequestError::Full)) => PoolError::Overload,
            Some(Err(RequestError::TooLarge)) => PoolError::TooLarge,
            Some(Err(error)) => PoolError::Failed(error),
        };
        self.failed(&error, took);
        Err(error)
    }

    #[inline]
    fn answered(&mut self, response: &Response, took: Duration) {
        let Self { shared, slot, .. } = *self;
        self.settled = true;
        shared.breaker.succeeded(self.permit);
        let now = self.since + took;
        shared.slots.record(slot, Outcome::Success, now);
        shared.metrics.answered(self.kind, &response.decision, took);
    }

    fn failed(&mut self, error: &PoolError, took: Duration) {
        let Self { shared, slot, .. } = *self;
        self.settled = true;
        if is_agent_failure(error) {
            let now = self.since + took;
            shared.breaker.failed(self.permit, now);
            shared.slots.record(slot, Outcome::Failure, now);
        } else {
            shared.breaker.abandoned(self.permit);
        }
        shared.metrics.failed(self.kind, error);
    }
}

impl Drop for SlotGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let shared = self.shared;
        if !self.settled {
            shared.breaker.abandoned(self.permit);
            shared.metrics.phase(self.kind).abandoned.increment();
        }
        if let Some(hash) = self.ends {
            shared.affinity.remove(hash);
        }
        if self.body.is_none_or(|body| shared.body_slots.leave(body)) {
            shared.slots.release(self.slot);
        }
        shared.notify_drain();
    }
}

/// Whether a failure is the agent's.
fn is_agent_failure(error: &PoolError) -> bool {
    match error {
        PoolError::Timeout
        | PoolError::Failed(RequestError::Closed | RequestError::Malformed(_)) => true,
        PoolError::Overload | PoolError::TooLarge | PoolError::Down | PoolError::Failed(_) => false,
    }
}

#[inline]
pub(super) fn select<'a>(
    shared: &'a PoolShared,
    session: Option<&str>,
    event: &Event,
) -> Result<ConnectionLease<'a>, PoolError> {
    let now = clock::coarse();
    let permit = shared.breaker.enter(now).ok_or(PoolError::Down)?;
    let hash = shared.hash(event.id_bytes());
    let session = session.map(|session| shared.hash(session.as_bytes()));
    match bind_slot(shared, hash, session, event, now) {
        Ok(SlotConnection { slot_id, borrowed }) => {
            let hold = SlotGuard {
                shared,
                slot: slot_of(slot_id),
                permit,
                kind: event.kind(),
                since: now,
                ends: matches!(event, Event::RequestComplete(_)).then_some(hash),
                body: body_key(shared, hash, slot_id, event),
                settled: false,
            };
            Ok(ConnectionLease { borrowed, hold })
        }
        Err(error) => {
            shared.breaker.abandoned(permit);
            Err(error)
        }
    }
}

/// The body that an event is a chunk of. A chunk behind others releases its slot again: they share one.
#[inline]
fn body_key(shared: &PoolShared, hash: u64, slot_id: u16, event: &Event) -> Option<BodyKey> {
    let (body, first) = shared.body_slots.join(hash, slot_id, event.kind())?;
    if !first {
        shared.slots.release(slot_of(slot_id));
    }
    Some(body)
}

/// A slot and its connection, with the id under which the affinity table knows them.
struct SlotConnection {
    slot_id: u16,
    borrowed: BorrowedConnection,
}

/// Takes a slot: the request's own, its session's, or a new one.
#[inline]
fn bind_slot(
    shared: &PoolShared,
    hash: u64,
    session: Option<u64>,
    event: &Event,
    now: Duration,
) -> Result<SlotConnection, PoolError> {
    let known = shared.affinity.slot(hash, now);
    if let Some(known) = known {
        if let Some(bound) = bound_slot(shared, known) {
            return Ok(bound);
        }
        if continues_earlier(event) {
            return Err(PoolError::Failed(RequestError::Closed));
        }
    }
    let bound = new_slot(shared, hash, session, now)?;
    if known.is_some() {
        shared.metrics.displaced.increment();
        shared.affinity.rebind(hash, bound.slot_id, now);
        return Ok(bound);
    }
    let existing = shared.affinity.bind(hash, bound.slot_id, now);
    if existing == bound.slot_id {
        return Ok(bound);
    }
    // Another event of this request was bound at the same moment, and first.
    match bound_slot(shared, existing) {
        Some(other) => {
            shared.slots.release(slot_of(bound.slot_id));
            Ok(other)
        }
        None => Ok(bound),
    }
}

/// The slot of a request that has begun, if its connection is still the same one.
#[inline]
fn bound_slot(shared: &PoolShared, slot_id: u16) -> Option<SlotConnection> {
    let borrowed = open(shared, slot_id)?;
    shared.slots.reacquire(slot_of(slot_id));
    Some(SlotConnection { slot_id, borrowed })
}

/// A slot for a new request.
#[inline]
fn new_slot(
    shared: &PoolShared,
    random: u64,
    session: Option<u64>,
    now: Duration,
) -> Result<SlotConnection, PoolError> {
    let Some(session) = session else {
        return choose_slot(shared, random);
    };
    if let Some(slot_id) = shared.sticky.slot(session, now) {
        let slot = slot_of(slot_id);
        if shared.slots.availability(slot) != Availability::Unavailable
            && let Some(borrowed) = open(shared, slot_id)
            && shared.slots.acquire(slot).is_ok()
        {
            return Ok(SlotConnection { slot_id, borrowed });
        }
    }
    let bound = choose_slot(shared, random)?;
    shared.sticky.rebind(session, bound.slot_id, now);
    Ok(bound)
}

#[inline]
fn choose_slot(shared: &PoolShared, random: u64) -> Result<SlotConnection, PoolError> {
    let mut except = None;
    loop {
        match shared.slots.choose_except(random, except) {
            Ok(slot) => {
                if let Some(bound) = slot_connection(shared, slot) {
                    return Ok(bound);
                }
                // It ended between the choice and the look.
                shared.slots.release(slot);
                if except.replace(slot).is_some() {
                    return Err(PoolError::Down);
                }
            }
            Err(NoSlot::Full) => return Err(PoolError::Overload),
            Err(NoSlot::Closed) => return Err(PoolError::Down),
            Err(NoSlot::Unavailable) => return paused_slot(shared),
        }
    }
}

/// A slot whose agent has paused, since no other can serve.
#[cold]
fn paused_slot(shared: &PoolShared) -> Result<SlotConnection, PoolError> {
    let pausing = |connection: &Connection| {
        matches!(
            connection.state(),
            ConnectionState::Open {
                health: HealthState::Healthy | HealthState::Degraded,
                paused: true
            }
        )
    };
    let paused = (0..shared.slots.count())
        .filter_map(|slot| slot_connection(shared, slot))
        .filter(|bound| pausing(&bound.borrowed.connection))
        .min_by_key(|bound| shared.slots.load(slot_of(bound.slot_id)))
        .ok_or(PoolError::Down)?;
    if shared.config.paused == PausedPolicy::Fail {
        return Err(PoolError::Overload);
    }
    match shared.slots.acquire(slot_of(paused.slot_id)) {
        Ok(()) => Ok(paused),
        Err(NoSlot::Full) => Err(PoolError::Overload),
        Err(NoSlot::Closed | NoSlot::Unavailable) => Err(PoolError::Down),
    }
}

/// The connection of a slot, unless it has ended, and what the table calls it.
#[inline]
fn slot_connection(shared: &PoolShared, slot: usize) -> Option<SlotConnection> {
    let borrowed = shared.connections.get(slot)?.load()?;
    let slot_id = u16::try_from(slot & 63).unwrap_or(0) << 6 | u16::from(borrowed.number);
    Some(SlotConnection { slot_id, borrowed })
}

/// The connection of a slot id, if it is still the same one and has not ended.
#[inline]
pub(super) fn open(shared: &PoolShared, slot_id: u16) -> Option<BorrowedConnection> {
    let borrowed = shared.connections.get(slot_of(slot_id))?.load()?;
    (slot_id & u16::from(MAX_NUMBER) == u16::from(borrowed.number)).then_some(borrowed)
}

/// Whether an event goes on with something that only who saw its beginning can judge.
fn continues_earlier(event: &Event) -> bool {
    match event {
        Event::RequestBody(chunk) | Event::ResponseBody(chunk) => chunk.index > 0,
        Event::WebSocketFrame(frame) => frame.index > 0,
        Event::RequestHeaders(_)
        | Event::ResponseHeaders(_)
        | Event::RequestComplete(_)
        | Event::Guardrail(_)
        | Event::Configure(_) => false,
    }
}

/// A slot id has six bits for the slot and six for its connection's number.
#[inline]
fn slot_of(slot_id: u16) -> usize {
    usize::from(slot_id >> 6)
}
