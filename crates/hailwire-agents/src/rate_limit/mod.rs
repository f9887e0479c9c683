//! An agent that lets so many requests pass in so long.
//!
//! Limits are counted by the generic cell rate algorithm (ITU-T I.371, as `governor` has it): one number a key, an
//! even pace, and a burst that may come at once. A request has to pass every limit, in the order in which they are
//! written; what an earlier one has counted stays counted when a later one refuses.
//!
//! A refused request is answered 429 (RFC 6585, 4) with `retry-after`. Passed and refused ones carry `ratelimit` and
//! `ratelimit-policy` of draft-ietf-httpapi-ratelimit-headers in their response.
//!
//! Memory is bounded: [`Settings::keys`] entries of about 40 bytes for each limit.

mod limit;
mod settings;
mod table;

pub use limit::{Limit, LimitError, Per};
pub use settings::{Settings, SettingsError};

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use governor::{
    RateLimiter,
    clock::{Clock, DefaultClock, Reference as _},
    middleware::StateInformationMiddleware,
};
use hailwire_callout::{
    Agent, Decision, Response,
    event::{Configure, RequestHeaders},
    response::{Audit, HeaderOp},
};

use table::{Keys, Table};

/// The rate limiter.
///
/// A host may push other settings: an object `{"limits": ["100/s per client-ip"]}` replaces the limits, and all
/// counts begin anew.
pub struct RateLimit<C: Clock = DefaultClock> {
    clock: C,
    keys: Keys,
    now: Mutex<Arc<Active<C>>>,
    refused: AtomicU64,
}

impl RateLimit {
    /// One that tells the time by the system's monotonic clock.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::with_clock(settings, DefaultClock::default())
    }
}

/// The limits in force.
struct Active<C: Clock> {
    settings: Settings,
    counters: Vec<Counter<C>>,
    began: C::Instant,
    /// When idle keys were last dropped, in nanoseconds since it began.
    swept: AtomicU64,
}

struct Counter<C: Clock> {
    limit: Limit,
    limiter: RateLimiter<table::Key, Table, C, StateInformationMiddleware>,
}

/// What one limit says of a request.
struct Standing<'a> {
    limit: &'a Limit,
    remaining: u32,
    /// Until it may come again, where it may not now.
    wait: Option<Duration>,
}

impl<C: Clock + Clone> RateLimit<C> {
    /// One that tells the time by this clock.
    #[must_use]
    pub fn with_clock(settings: Settings, clock: C) -> Self {
        let active = Arc::new(Active::new(settings, &clock));
        Self {
            clock,
            keys: Keys::default(),
            now: Mutex::new(active),
            refused: AtomicU64::new(0),
        }
    }

    /// How many requests were refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many keys are counted now, of all limits.
    #[must_use]
    pub fn keys(&self) -> usize {
        let len = |counter: &Counter<C>| counter.limiter.len();
        self.active().counters.iter().map(len).sum()
    }

    fn active(&self) -> Arc<Active<C>> {
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn decide(&self, event: &RequestHeaders) -> Response {
        let active = self.active();
        active.sweep(&self.clock);
        let mut standings = Vec::with_capacity(active.counters.len());
        for counter in &active.counters {
            let key = self.key(&counter.limit.per, event);
            let (remaining, wait) = match counter.limiter.check_key(&key) {
                Ok(state) => (state.remaining_burst_capacity(), None),
                Err(until) => (0, Some(until.wait_time_from(self.clock.now()))),
            };
            standings.push(Standing {
                limit: &counter.limit,
                remaining,
                wait,
            });
            if wait.is_some() {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return refuse(&active.settings, &standings);
            }
        }
        let mut response = Response::allow();
        if active.settings.headers && !standings.is_empty() {
            let set = |(name, value)| HeaderOp::Set { name, value };
            response.response_headers = fields(&standings).map(set).into();
        }
        response
    }

    fn key(&self, per: &Per, event: &RequestHeaders) -> table::Key {
        match per {
            Per::ClientIp => match event.metadata().client_ip.parse::<IpAddr>() {
                Ok(address) => self.keys.of(network(address)),
                Err(_) => self.keys.of(event.metadata().client_ip),
            },
            Per::Header(name) => self.keys.of(event.headers().get(name)),
            Per::Route => self.keys.of(event.metadata().route_id),
            Per::Everyone => self.keys.of(()),
        }
    }
}

/// The address, or its network of 64 bits where it has one, as number.
fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

impl<C: Clock + Clone> Active<C> {
    fn new(settings: Settings, clock: &C) -> Self {
        let counter = |limit: &Limit| Counter {
            limit: limit.clone(),
            limiter: RateLimiter::new(limit.quota(), Table::new(settings.keys), clock.clone()),
        };
        Self {
            counters: settings.limits.iter().map(counter).collect(),
            settings,
            began: clock.now(),
            swept: AtomicU64::new(0),
        }
    }

    /// Drops idle keys, once in [`SWEEP`].
    fn sweep(&self, clock: &C) {
        let now = clock.now().duration_since(self.began).as_u64();
        let due = self
            .swept
            .load(Ordering::Relaxed)
            .saturating_add(SWEEP.as_nanos() as u64);
        let mine = now >= due
            && self
                .swept
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
                    (at < now && now - at >= SWEEP.as_nanos() as u64).then_some(now)
                })
                .is_ok();
        if mine {
            for counter in &self.counters {
                counter.limiter.retain_recent();
            }
        }
    }
}

/// How often idle keys are dropped.
const SWEEP: Duration = Duration::from_secs(10);

fn refuse(settings: &Settings, standings: &[Standing<'_>]) -> Response {
    let mut headers = BTreeMap::new();
    let Some((limit, wait)) = standings
        .last()
        .and_then(|last| Some((last.limit, last.wait?)))
    else {
        return Response::allow();
    };
    headers.insert("retry-after".to_owned(), seconds(wait).to_string());
    if settings.headers {
        headers.extend(fields(standings));
    }
    Response {
        decision: Decision::Block {
            status: settings.status,
            body: Some("too many requests\n".to_owned()),
            headers,
        },
        audit: Audit {
            tags: vec!["rate-limit".to_owned()],
            rule_ids: vec![limit.name.clone()],
            confidence: Some(1.0),
            reason_codes: vec!["RATE_LIMITED".to_owned()],
            ..Audit::default()
        },
        ..Response::default()
    }
}

/// `ratelimit` and `ratelimit-policy`, lists of items whose parameters are `q` and `w`, quota and window, and `r` and `t`,
/// remaining and seconds until there is more.
fn fields(standings: &[Standing<'_>]) -> [(String, String); 2] {
    let mut now = String::new();
    let mut policy = String::new();
    for Standing {
        limit,
        remaining,
        wait,
    } in standings
    {
        let comma = if now.is_empty() { "" } else { ", " };
        let missing = limit.burst.get().saturating_sub(*remaining);
        let pace = limit.window / limit.count.get();
        let reset = seconds(wait.unwrap_or(pace * missing.min(1)));
        now += &format!("{comma}\"{}\";r={remaining};t={reset}", limit.name);
        let window = limit.window.as_secs();
        policy += &format!("{comma}\"{}\";q={};w={window}", limit.name, limit.count);
    }
    [
        ("ratelimit".to_owned(), now),
        ("ratelimit-policy".to_owned(), policy),
    ]
}

/// Whole seconds, upwards.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

impl<C> Agent for RateLimit<C>
where
    C: Clock + Clone + Send + Sync + 'static,
    C::Instant: Send + Sync,
{
    fn name(&self) -> &str {
        "hailwire-rate-limit"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        self.decide(&event)
    }

    async fn configure(&self, event: Configure) -> Response {
        let settings = self.active().settings.clone();
        match settings.pushed(&event.config) {
            Ok(None) => Response::allow(),
            Ok(Some(settings)) => {
                let active = Arc::new(Active::new(settings, &self.clock));
                *self.now.lock().unwrap_or_else(PoisonError::into_inner) = active;
                Response::allow()
            }
            Err(error) => {
                let mut response = Response::block(500);
                response.audit.reason_codes = vec![error.to_string()];
                response
            }
        }
    }
}

#[cfg(test)]
mod tests;
