//! One event's hold on a connection: how it comes by it, and what it leaves behind.

use std::time::Duration;

use hailwire_pool::{Availability, BreakerPermit, NoSlot, Outcome};

use super::{
    PausedPolicy, PoolError, PoolShared, clock,
    lanes::BodyKey,
    line::{BorrowedConnection, NUMBERS},
};
use crate::{
    control::HealthState,
    event::{Event, EventKind},
    host::{Connection, ConnectionState, RequestError},
    response::Response,
};

/// A place on a connection, counted until it is finished or dropped. Dropping it says nothing about the agent.
///
/// It borrows the connection without counting a reference, of which a thread can do a few at once cheaply: who waits for an
/// answer keeps a clone of the connection instead.
#[must_use = "the place is given back when the call is dropped"]
pub struct ConnectionLease<'a> {
    lent: BorrowedConnection,
    hold: SlotGuard<'a>,
}

impl<'a> ConnectionLease<'a> {
    /// The connection.
    #[inline]
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.lent.connection
    }

    /// Gives the place back and says how the ask went and how long it took; `None` for one whose time was over.
    ///
    /// # Errors
    ///
    /// What the ask's failure means for the caller.
    #[inline]
    pub fn finish(
        self,
        answer: Option<Result<Response, RequestError>>,
        took: Duration,
    ) -> Result<Response, PoolError> {
        self.hold.finish(answer, took)
    }

    /// Gives the place back and says that this was answered, and how long it took.
    #[inline]
    pub fn answered(mut self, response: &Response, took: Duration) {
        self.hold.answered(response, took);
    }

    /// The connection to wait on, and the place on it.
    pub(super) fn keep(self) -> (Connection, SlotGuard<'a>) {
        (self.lent.connection.clone(), self.hold)
    }
}

/// A place on a connection.
pub(super) struct SlotGuard<'a> {
    shared: &'a PoolShared,
    seat: usize,
    permit: BreakerPermit,
    kind: EventKind,
    /// When it was let in.
    since: Duration,
    /// The request's hash, where it ends with this event.
    ends: Option<u64>,
    /// The body, where this is a piece of one.
    lane: Option<BodyKey>,
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
        let Self { shared, seat, .. } = *self;
        self.settled = true;
        shared.breaker.succeeded(self.permit);
        let now = self.since + took;
        shared.seats.settle(seat, Outcome::Success, now);
        shared.metrics.answered(self.kind, &response.decision, took);
    }

    fn failed(&mut self, error: &PoolError, took: Duration) {
        let Self { shared, seat, .. } = *self;
        self.settled = true;
        if speaks_against(error) {
            let now = self.since + took;
            shared.breaker.failed(self.permit, now);
            shared.seats.settle(seat, Outcome::Failure, now);
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
        if self.lane.is_none_or(|lane| shared.lanes.part(lane)) {
            shared.seats.leave(self.seat);
        }
        shared.emptier();
    }
}

/// Whether a failure is the agent's.
fn speaks_against(error: &PoolError) -> bool {
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
    match place(shared, hash, session, event, now) {
        Ok(SlotConnection { place, lent }) => {
            let hold = SlotGuard {
                shared,
                seat: seat_of(place),
                permit,
                kind: event.kind(),
                since: now,
                ends: matches!(event, Event::RequestComplete(_)).then_some(hash),
                lane: lane(shared, hash, place, event),
                settled: false,
            };
            Ok(ConnectionLease { lent, hold })
        }
        Err(error) => {
            shared.breaker.abandoned(permit);
            Err(error)
        }
    }
}

/// The body that an event is a piece of. Behind another one it gives back the place that it was given.
#[inline]
fn lane(shared: &PoolShared, hash: u64, place: u16, event: &Event) -> Option<BodyKey> {
    let (lane, first) = shared.lanes.join(hash, place, event.kind())?;
    if !first {
        shared.seats.leave(seat_of(place));
    }
    Some(lane)
}

/// A place on a connection, as the table knows it.
struct SlotConnection {
    place: u16,
    lent: BorrowedConnection,
}

/// Takes a place: the request's own, its session's, or a new one.
#[inline]
fn place(
    shared: &PoolShared,
    hash: u64,
    session: Option<u64>,
    event: &Event,
    now: Duration,
) -> Result<SlotConnection, PoolError> {
    let known = shared.affinity.seat(hash, now);
    if let Some(known) = known {
        if let Some(seated) = again(shared, known) {
            return Ok(seated);
        }
        if goes_on(event) {
            return Err(PoolError::Failed(RequestError::Closed));
        }
    }
    let seated = fresh(shared, hash, session, now)?;
    if known.is_some() {
        shared.metrics.displaced.increment();
        shared.affinity.replace(hash, seated.place, now);
        return Ok(seated);
    }
    let placed = shared.affinity.place(hash, seated.place, now);
    if placed == seated.place {
        return Ok(seated);
    }
    // Another event of this request was placed at the same moment, and first.
    match again(shared, placed) {
        Some(other) => {
            shared.seats.leave(seat_of(seated.place));
            Ok(other)
        }
        None => Ok(seated),
    }
}

/// The place of a request that was begun, if its connection is still that one.
#[inline]
fn again(shared: &PoolShared, place: u16) -> Option<SlotConnection> {
    let lent = open(shared, place)?;
    shared.seats.rejoin(seat_of(place));
    Some(SlotConnection { place, lent })
}

/// A place for what is new.
#[inline]
fn fresh(
    shared: &PoolShared,
    lot: u64,
    session: Option<u64>,
    now: Duration,
) -> Result<SlotConnection, PoolError> {
    let Some(session) = session else {
        return choose(shared, lot);
    };
    if let Some(place) = shared.sticky.seat(session, now) {
        let seat = seat_of(place);
        if shared.seats.standing(seat) != Availability::Out
            && let Some(lent) = open(shared, place)
            && shared.seats.enter(seat).is_ok()
        {
            return Ok(SlotConnection { place, lent });
        }
    }
    let seated = choose(shared, lot)?;
    shared.sticky.replace(session, seated.place, now);
    Ok(seated)
}

#[inline]
fn choose(shared: &PoolShared, lot: u64) -> Result<SlotConnection, PoolError> {
    let mut except = None;
    loop {
        match shared.seats.choose_but(lot, except) {
            Ok(seat) => {
                if let Some(seated) = seated(shared, seat) {
                    return Ok(seated);
                }
                // It ended between the choice and the look.
                shared.seats.leave(seat);
                if except.replace(seat).is_some() {
                    return Err(PoolError::Down);
                }
            }
            Err(NoSlot::Full) => return Err(PoolError::Overload),
            Err(NoSlot::Closed) => return Err(PoolError::Down),
            Err(NoSlot::Out) => return paused(shared),
        }
    }
}

/// A place where the agent has paused, since nobody else can serve.
#[cold]
fn paused(shared: &PoolShared) -> Result<SlotConnection, PoolError> {
    let pausing = |connection: &Connection| {
        matches!(
            connection.state(),
            ConnectionState::Open {
                health: HealthState::Healthy | HealthState::Degraded,
                paused: true
            }
        )
    };
    let paused = (0..shared.seats.count())
        .filter_map(|seat| seated(shared, seat))
        .filter(|seated| pausing(&seated.lent.connection))
        .min_by_key(|seated| shared.seats.load(seat_of(seated.place)))
        .ok_or(PoolError::Down)?;
    if shared.config.paused == PausedPolicy::Fail {
        return Err(PoolError::Overload);
    }
    match shared.seats.enter(seat_of(paused.place)) {
        Ok(()) => Ok(paused),
        Err(NoSlot::Full) => Err(PoolError::Overload),
        Err(NoSlot::Closed | NoSlot::Out) => Err(PoolError::Down),
    }
}

/// The connection of a seat, unless it has ended, and what the table calls it.
#[inline]
fn seated(shared: &PoolShared, seat: usize) -> Option<SlotConnection> {
    let lent = shared.links.get(seat)?.lend()?;
    let place = u16::try_from(seat & 63).unwrap_or(0) << 6 | u16::from(lent.number);
    Some(SlotConnection { place, lent })
}

/// The connection that a place means, if it is still that one and has not ended.
#[inline]
pub(super) fn open(shared: &PoolShared, place: u16) -> Option<BorrowedConnection> {
    let lent = shared.links.get(seat_of(place))?.lend()?;
    (place & u16::from(NUMBERS) == u16::from(lent.number)).then_some(lent)
}

/// Whether an event goes on with something that only who saw its beginning can judge.
fn goes_on(event: &Event) -> bool {
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

/// A place has six bits for the seat and six for its connection's number.
#[inline]
fn seat_of(place: u16) -> usize {
    usize::from(place >> 6)
}
