//! One event's hold on a connection: how it comes by it, and what it leaves behind.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hailwire_pool::{NoSeat, Outcome, Permit, Standing};

use super::{Paused, PoolError, Shared, clock};
use crate::{
    control::HealthState,
    event::{Event, Kind},
    host::{AskError, Connection, LinkState},
    response::Response,
};

/// A place on a connection, counted until it is finished or dropped. Dropping it says nothing about the agent.
#[must_use = "the place is given back when the call is dropped"]
pub struct Call<'a> {
    shared: &'a Shared,
    connection: Arc<Connection>,
    seat: usize,
    permit: Permit,
    kind: Kind,
    /// The request's hash, where it ends with this event.
    ends: Option<u64>,
    settled: bool,
}

impl Call<'_> {
    /// The connection.
    #[inline]
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Gives the place back and says how the ask went, `None` for one whose time was over.
    ///
    /// # Errors
    ///
    /// What the ask's failure means for the caller.
    pub fn finish(
        &mut self,
        answer: Option<Result<Response, AskError>>,
        took: Duration,
    ) -> Result<Response, PoolError> {
        let shared = self.shared;
        if self.settled {
            return Err(PoolError::Down);
        }
        self.settled = true;
        let now = clock::coarse();
        let result = match answer {
            None => Err(PoolError::Timeout),
            Some(Ok(response)) => Ok(response),
            Some(Err(AskError::Paused | AskError::Full)) => Err(PoolError::Overload),
            Some(Err(AskError::TooLarge)) => Err(PoolError::TooLarge),
            Some(Err(error)) => Err(PoolError::Failed(error)),
        };
        match &result {
            Ok(response) => {
                shared.breaker.succeeded(self.permit);
                shared.seats.settle(self.seat, Outcome::Success, now);
                shared.metrics.answered(self.kind, &response.decision, took);
            }
            Err(error) => {
                if speaks_against(error) {
                    shared.breaker.failed(self.permit, now);
                    shared.seats.settle(self.seat, Outcome::Failure, now);
                } else {
                    shared.breaker.abandoned(self.permit);
                }
                shared.metrics.failed(self.kind, error);
            }
        }
        result
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let shared = self.shared;
        if !self.settled {
            shared.breaker.abandoned(self.permit);
            shared.metrics.phase(self.kind).abandoned.increment();
        }
        if let Some(hash) = self.ends {
            shared.affinity.remove(hash, clock::coarse());
        }
        shared.seats.leave(self.seat);
        shared.emptier();
    }
}

/// Whether a failure is the agent's.
fn speaks_against(error: &PoolError) -> bool {
    match error {
        PoolError::Timeout | PoolError::Failed(AskError::Closed | AskError::Malformed(_)) => true,
        PoolError::Overload | PoolError::TooLarge | PoolError::Down | PoolError::Failed(_) => false,
    }
}

#[inline]
pub(super) fn select<'a>(
    shared: &'a Shared,
    session: Option<&str>,
    event: &Event,
) -> Result<Call<'a>, PoolError> {
    let now = clock::coarse();
    let permit = shared.breaker.enter(now).ok_or(PoolError::Down)?;
    let hash = shared.hash(event.id());
    let session = session.map(|session| shared.hash(session));
    match place(shared, hash, session, event, now) {
        Ok((seat, connection)) => Ok(Call {
            shared,
            connection,
            seat,
            permit,
            kind: event.kind(),
            ends: matches!(event, Event::RequestComplete(_)).then_some(hash),
            settled: false,
        }),
        Err(error) => {
            shared.breaker.abandoned(permit);
            Err(error)
        }
    }
}

type Seated = (usize, Arc<Connection>);

/// Takes a place: the request's own, its session's, or a new one.
#[inline]
fn place(
    shared: &Shared,
    hash: u64,
    session: Option<u64>,
    event: &Event,
    now: Duration,
) -> Result<Seated, PoolError> {
    let known = shared.affinity.seat(hash, now);
    if let Some(known) = known {
        if let Some(connection) = open(shared, known) {
            let (seat, _) = unpack(known);
            shared.seats.rejoin(seat);
            return Ok((seat, connection));
        }
        if goes_on(event) {
            return Err(PoolError::Failed(AskError::Closed));
        }
        shared.metrics.displaced.increment();
    }
    let (seat, connection) = fresh(shared, hash, session, now)?;
    let mine = pack(shared, seat);
    if known.is_some() {
        shared.affinity.replace(hash, mine, now);
        return Ok((seat, connection));
    }
    let placed = shared.affinity.place(hash, mine, now);
    if placed == mine {
        return Ok((seat, connection));
    }
    // Another event of this request was placed at the same moment, and first.
    match open(shared, placed) {
        Some(other) => {
            shared.seats.leave(seat);
            let (seat, _) = unpack(placed);
            shared.seats.rejoin(seat);
            Ok((seat, other))
        }
        None => Ok((seat, connection)),
    }
}

/// A place for what is new.
#[inline]
fn fresh(
    shared: &Shared,
    lot: u64,
    session: Option<u64>,
    now: Duration,
) -> Result<Seated, PoolError> {
    let Some(session) = session else {
        return choose(shared, lot);
    };
    if let Some(known) = shared.sticky.seat(session, now) {
        let (seat, _) = unpack(known);
        if shared.seats.standing(seat) != Standing::Out
            && let Some(connection) = open(shared, known)
            && shared.seats.enter(seat).is_ok()
        {
            return Ok((seat, connection));
        }
    }
    let (seat, connection) = choose(shared, lot)?;
    shared.sticky.replace(session, pack(shared, seat), now);
    Ok((seat, connection))
}

#[inline]
fn choose(shared: &Shared, lot: u64) -> Result<Seated, PoolError> {
    let mut except = None;
    loop {
        match shared.seats.choose_but(lot, except) {
            Ok(seat) => {
                let link = shared.links.get(seat);
                if let Some(connection) = link.and_then(|link| link.connection.load_full()) {
                    return Ok((seat, connection));
                }
                // It ended between the choice and the look.
                shared.seats.leave(seat);
                if except.replace(seat).is_some() {
                    return Err(PoolError::Down);
                }
            }
            Err(NoSeat::Full) => return Err(PoolError::Overload),
            Err(NoSeat::Closed) => return Err(PoolError::Down),
            Err(NoSeat::Out) => return paused(shared),
        }
    }
}

/// A place where the agent has paused, since nobody else can serve.
#[cold]
fn paused(shared: &Shared) -> Result<Seated, PoolError> {
    let pausing = |connection: &Connection| {
        matches!(
            connection.state(),
            LinkState::Open {
                health: HealthState::Healthy | HealthState::Degraded,
                paused: true
            }
        )
    };
    let links = shared.links.iter().enumerate();
    let paused = links
        .filter_map(|(seat, link)| Some((seat, link.connection.load_full()?)))
        .filter(|(_, connection)| pausing(connection))
        .min_by_key(|(seat, _)| shared.seats.load(*seat));
    let Some((seat, connection)) = paused else {
        return Err(PoolError::Down);
    };
    if shared.config.paused == Paused::Fail {
        return Err(PoolError::Overload);
    }
    match shared.seats.enter(seat) {
        Ok(()) => Ok((seat, connection)),
        Err(NoSeat::Full) => Err(PoolError::Overload),
        Err(NoSeat::Closed | NoSeat::Out) => Err(PoolError::Down),
    }
}

/// The connection that a place means, if it is still that one and open.
#[inline]
fn open(shared: &Shared, place: u16) -> Option<Arc<Connection>> {
    let connection = shared.placed(place)?;
    (connection.state() != LinkState::Closed).then_some(connection)
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

/// Six bits for the seat and six for its connection's number.
pub(super) const GENERATIONS: u8 = 63;

#[inline]
fn pack(shared: &Shared, seat: usize) -> u16 {
    let link = shared.links.get(seat);
    let generation = link.map_or(0, |link| link.generation.load(Ordering::Acquire));
    u16::try_from(seat & 63).unwrap_or(0) << 6 | u16::from(generation & GENERATIONS)
}

#[inline]
pub(super) fn unpack(place: u16) -> (usize, u8) {
    let generation = u8::try_from(place & u16::from(GENERATIONS)).unwrap_or(0);
    (usize::from(place >> 6), generation)
}
