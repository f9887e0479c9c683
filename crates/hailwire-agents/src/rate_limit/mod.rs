//! An agent that lets so many requests pass in so long.
//!
//! Limits are counted by the generic cell rate algorithm (ITU-T I.371, as `governor` has it): one number a key, an
//! even pace, and a burst that may come at once. A request has to pass every limit, in the order in which they are
//! written; what an earlier one has counted stays counted when a later one refuses.
//!
//! A refused request is answered 429 (RFC 6585, 4) with `retry-after`. Passed and refused ones carry `ratelimit` and
//! `ratelimit-policy` of draft-ietf-httpapi-ratelimit-headers in their response.
//!
//! A client is counted as one however it writes what it is counted by ([`key`]).
//!
//! Memory is bounded: [`Settings::keys`] entries of about 40 bytes for each limit, and once these are full four numbers of
//! 8 bytes for each besides, in which newcomers are counted about ([`table`]).

mod key;
mod limit;
mod settings;
mod table;

pub use limit::{Limit, LimitError, Per};
pub use settings::{Pushed, PushedError, Settings, SettingsError};

use std::{
    collections::BTreeMap,
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
/// A host may push limits, as far as [`Settings::configure`] lets it: an object `{"limits": ["100/s per client-ip"]}`. Limits
/// that held before keep their counts.
pub struct RateLimit<C: Clock = DefaultClock> {
    clock: C,
    keys: Keys,
    /// The operator's.
    settings: Settings,
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
    counters: Vec<Arc<Counter<C>>>,
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
        let active = Arc::new(Active::new(settings.clone(), &[], &clock));
        Self {
            clock,
            keys: Keys::default(),
            settings,
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
        let len = |counter: &Arc<Counter<C>>| counter.limiter.len();
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
            let (remaining, wait) = self.count(counter, event);
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

    /// Counts a request for each of those that it is counted for: what is left to the one that has least, and how long the
    /// one waits that waits longest.
    fn count(&self, counter: &Counter<C>, event: &RequestHeaders) -> (u32, Option<Duration>) {
        let (mut least, mut longest) = (u32::MAX, None);
        for who in key::of(&counter.limit.per, event) {
            match counter.limiter.check_key(&self.keys.of(who)) {
                Ok(state) => least = least.min(state.remaining_burst_capacity()),
                Err(until) => {
                    least = 0;
                    longest = longest.max(Some(until.wait_time_from(self.clock.now())));
                }
            }
        }
        (least, longest)
    }

    /// Takes limits that a host pushes, as far as the operator lets it.
    fn push(&self, config: &serde_json::Value) -> Result<(), SettingsError> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(settings) = self.settings.pushed(config, &now.settings.limits)? {
            *now = Arc::new(Active::new(settings, &now.counters, &self.clock));
        }
        Ok(())
    }
}

impl<C: Clock + Clone> Active<C> {
    /// Limits that were counted before go on with their counts: pushing them again lets nobody off.
    fn new(settings: Settings, before: &[Arc<Counter<C>>], clock: &C) -> Self {
        let counter = |limit: &Limit| {
            let known = before.iter().find(|counter| counter.limit == *limit);
            known.cloned().unwrap_or_else(|| {
                let table = Table::new(settings.keys);
                Arc::new(Counter {
                    limit: limit.clone(),
                    limiter: RateLimiter::new(limit.quota(), table, clock.clone()),
                })
            })
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
        match self.push(&event.config) {
            Ok(()) => Response::allow(),
            Err(error) => {
                tracing::warn!(error = %error, "limits that a host pushes are refused");
                let status = if matches!(error, SettingsError::Denied) {
                    403
                } else {
                    500
                };
                Response {
                    decision: Decision::Block {
                        status,
                        body: Some(error.to_string()),
                        headers: BTreeMap::new(),
                    },
                    audit: Audit {
                        reason_codes: vec!["CONFIGURE_REFUSED".to_owned(), error.to_string()],
                        ..Audit::default()
                    },
                    ..Response::default()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
