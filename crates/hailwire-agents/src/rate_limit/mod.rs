//! An agent that limits the rate of requests.
//!
//! Limits are counted by the generic cell rate algorithm (ITU-T I.371, implemented by `governor`): one number for each
//! key, an even rate, and a burst that may arrive at once. A request has to pass every limit, in the order of the
//! configuration; what an earlier limit has counted stays counted when a later one refuses the request.
//!
//! A refused request is answered with 429 (RFC 6585, section 4) and `retry-after`. Every response carries `ratelimit`
//! and `ratelimit-policy` of draft-ietf-httpapi-ratelimit-headers.
//!
//! Different spellings of a key are counted as one key ([`key`]).
//!
//! Memory is bounded: [`RateLimitSettings::keys`] entries of about 40 bytes for each limit. Once these are full, each limit has four
//! more numbers of 8 bytes for each entry, in which new keys are counted approximately ([`table`]).

mod key;
mod limit;
mod settings;
mod table;

pub use limit::{KeySource, RateLimit, RateLimitError};
pub use settings::{PushPolicy, PushPolicyError, RateLimitSettings, RateLimitSettingsError};

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

use table::{KeyHasher, KeyTable};

/// The agent that limits rates.
///
/// A host may push limits, as far as [`RateLimitSettings::configure`] allows it: an object `{"limits": ["100/s per client-ip"]}`. Limits
/// that were in force before keep their counts.
pub struct RateLimitAgent<C: Clock = DefaultClock> {
    clock: C,
    keys: KeyHasher,
    /// What the operator configured.
    settings: RateLimitSettings,
    now: Mutex<Arc<ActiveLimits<C>>>,
    refused: AtomicU64,
}

impl RateLimitAgent {
    /// An agent that uses the system's monotonic clock.
    #[must_use]
    pub fn new(settings: RateLimitSettings) -> Self {
        Self::with_clock(settings, DefaultClock::default())
    }
}

/// The limits in force.
struct ActiveLimits<C: Clock> {
    settings: RateLimitSettings,
    counters: Vec<Arc<LimitCounter<C>>>,
    began: C::Instant,
    /// When idle keys were last dropped, in nanoseconds since `began`.
    swept: AtomicU64,
}

struct LimitCounter<C: Clock> {
    limit: RateLimit,
    limiter: RateLimiter<table::KeyHash, KeyTable, C, StateInformationMiddleware>,
}

/// The state of one limit after it counted a request.
struct LimitStatus<'a> {
    limit: &'a RateLimit,
    remaining: u32,
    /// How long the client has to wait, if the request is refused.
    wait: Option<Duration>,
}

impl<C: Clock + Clone> RateLimitAgent<C> {
    /// An agent that uses this clock.
    #[must_use]
    pub fn with_clock(settings: RateLimitSettings, clock: C) -> Self {
        let active = Arc::new(ActiveLimits::new(settings.clone(), &[], &clock));
        Self {
            clock,
            keys: KeyHasher::default(),
            settings,
            now: Mutex::new(active),
            refused: AtomicU64::new(0),
        }
    }

    /// How many requests have been refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many keys all limits hold now.
    #[must_use]
    pub fn keys(&self) -> usize {
        let len = |counter: &Arc<LimitCounter<C>>| counter.limiter.len();
        self.active().counters.iter().map(len).sum()
    }

    fn active(&self) -> Arc<ActiveLimits<C>> {
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn decide(&self, event: &RequestHeaders) -> Response {
        let active = self.active();
        active.sweep(&self.clock);
        let mut statuses = Vec::with_capacity(active.counters.len());
        for counter in &active.counters {
            let (remaining, wait) = self.count(counter, event);
            statuses.push(LimitStatus {
                limit: &counter.limit,
                remaining,
                wait,
            });
            if wait.is_some() {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return refuse(&active.settings, &statuses);
            }
        }
        let mut response = Response::allow();
        if active.settings.headers && !statuses.is_empty() {
            let set = |(name, value)| HeaderOp::Set { name, value };
            response.response_headers = fields(&statuses).map(set).into();
        }
        response
    }

    /// Counts a request for each of its keys: the smallest number of requests left, and the longest time to wait.
    fn count(&self, counter: &LimitCounter<C>, event: &RequestHeaders) -> (u32, Option<Duration>) {
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

    /// Applies limits that a host pushes, as far as the operator allows it.
    fn push(&self, config: &serde_json::Value) -> Result<(), RateLimitSettingsError> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(settings) = self.settings.pushed(config, &now.settings.limits)? {
            *now = Arc::new(ActiveLimits::new(settings, &now.counters, &self.clock));
        }
        Ok(())
    }
}

impl<C: Clock + Clone> ActiveLimits<C> {
    /// Limits that were in force before keep their counts, so pushing them again resets nothing.
    fn new(settings: RateLimitSettings, before: &[Arc<LimitCounter<C>>], clock: &C) -> Self {
        let counter = |limit: &RateLimit| {
            let known = before.iter().find(|counter| counter.limit == *limit);
            known.cloned().unwrap_or_else(|| {
                let table = KeyTable::new(settings.keys);
                Arc::new(LimitCounter {
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

    /// Drops idle keys, at most once in [`SWEEP_INTERVAL`].
    fn sweep(&self, clock: &C) {
        let now = clock.now().duration_since(self.began).as_u64();
        let due = self
            .swept
            .load(Ordering::Relaxed)
            .saturating_add(SWEEP_INTERVAL.as_nanos() as u64);
        let mine = now >= due
            && self
                .swept
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
                    (at < now && now - at >= SWEEP_INTERVAL.as_nanos() as u64).then_some(now)
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
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

fn refuse(settings: &RateLimitSettings, statuses: &[LimitStatus<'_>]) -> Response {
    let mut headers = BTreeMap::new();
    let Some((limit, wait)) = statuses
        .last()
        .and_then(|last| Some((last.limit, last.wait?)))
    else {
        return Response::allow();
    };
    headers.insert("retry-after".to_owned(), seconds(wait).to_string());
    if settings.headers {
        headers.extend(fields(statuses));
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

/// `ratelimit` and `ratelimit-policy`, lists of items with the parameters `q` and `w` (quota and window), and `r` and `t`
/// (requests remaining, and seconds until there are more).
fn fields(statuses: &[LimitStatus<'_>]) -> [(String, String); 2] {
    let mut now = String::new();
    let mut policy = String::new();
    for LimitStatus {
        limit,
        remaining,
        wait,
    } in statuses
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

/// Whole seconds, rounded up.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

impl<C> Agent for RateLimitAgent<C>
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
                tracing::warn!(error = %error, "limits pushed by a host were refused");
                let status = if matches!(error, RateLimitSettingsError::Denied) {
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
