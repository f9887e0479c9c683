//! A leader by lease: of many programs that want to do something, one does it.
//!
//! The lease is a hub's. When to ask, to renew and to stop is decided in [`LeaseCandidate`]; here it is carried out. The program stops as
//! soon as it cannot be sure any more that it leads, by the later of the machine's two clocks: the one that nobody sets stands still while
//! a laptop sleeps, the time of day does not.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::BoxFuture;
use hailwire_core::lease_candidate::{CandidateAction, LeaseCandidate, LeaseNews};
use hailwire_wire::{
    Code, Status,
    address::LeaseName,
    lease::{CandidateId, LeaseAnswer, LeaseRelease, LeaseReleased, LeaseRequest},
    limits::{MAX_LEASE_MS, MIN_LEASE_MS},
};
use thiserror::Error;

use crate::{
    admin::{LeaseAsk, LeaseGiveBack, method},
    client::Client,
    clock,
};

/// How long the clocks are left unread at most, so that a machine that has slept finds out.
const CLOCKS_READ_EVERY: Duration = Duration::from_millis(500);

/// Prepares to lead under a name, which all that compete for it give. Nothing happens until [`Lead::run`].
pub fn lead(client: &Client, name: impl Into<String>) -> Lead {
    Lead {
        client: client.clone(),
        name: name.into(),
        hub: String::new(),
        ttl: Duration::from_secs(15),
    }
}

/// A candidacy being prepared.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is run"]
pub struct Lead {
    client: Client,
    name: String,
    hub: String,
    ttl: Duration,
}

/// The time in which this program leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The fencing token: higher than that of whoever led before. What is guarded should refuse who comes with a lower one than it has
    /// seen, since no program can know that it did not stand still for a minute.
    pub token: u64,
}

/// Why a program does not lead, or not to the end.
#[derive(Clone, Debug, Error)]
pub enum LeadError {
    /// It can be a candidate nowhere.
    #[error("the lease cannot be asked for: {0}")]
    Refused(Status),
    /// It led, and could not be sure any more that it does. The work was dropped.
    #[error("the lease was lost")]
    Lost {
        /// The fencing token with which it led.
        token: u64,
    },
}

impl Lead {
    /// How long the lease lasts without being renewed, from 1 s to 10 min. It is renewed after a third. A shorter one passes on sooner where
    /// a leader dies, and ends sooner where the hub is away. Default 15 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Asks the hub with this URL. Default: the only one that the node is a member of.
    pub fn hub(mut self, url: impl Into<String>) -> Self {
        self.hub = url.into();
        self
    }

    /// Waits until this program leads, does `work`, and gives the lease back. While the hub is away it goes on asking, without a bound on
    /// its time.
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::coordination::LeadError> {
    /// use hailwire::coordination::lead;
    ///
    /// let count = lead(&client, "nightly-report")
    ///     .run(async |tenure| {
    ///         println!("leads with token {}", tenure.token);
    ///         42
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LeadError::Refused`] for a name or a time out of bounds, on a node without that hub, at a hub that has no leases or no room, and
    /// where the node is gone. [`LeadError::Lost`] once the lease could not be renewed in time: `work` was dropped before another
    /// program was given it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The lease is not given back then, and runs out.
    pub async fn run<T>(self, work: impl AsyncFnOnce(Tenure) -> T) -> Result<T, LeadError> {
        let asking = Candidacy::new(&self)?;
        let clock = TwoClocks::new();
        let mut candidate = LeaseCandidate::new(self.ttl, clock.now());
        let mut request: Option<BoxFuture<'static, Result<LeaseNews, Status>>> = None;
        let mut work = Some(work);
        let mut working = None;
        let mut token = 0;
        let mut gone = pin!(self.client.closed());
        loop {
            candidate.handle_timeout(clock.now());
            while let Some(action) = candidate.poll_action() {
                match action {
                    CandidateAction::Ask { token } => {
                        request = Some(Box::pin(asking.clone().ask(token, candidate.patience())));
                    }
                    CandidateAction::Lead { token: led_with } => {
                        token = led_with;
                        let begin = work.take();
                        working = begin.map(|work| Box::pin(work(Tenure { token })));
                    }
                    CandidateAction::StepDown => return Err(LeadError::Lost { token }),
                }
            }
            let due = candidate.poll_timeout();
            let pause = due.map_or(CLOCKS_READ_EVERY, |due| {
                let left = due.saturating_duration_since(clock.now());
                left.min(CLOCKS_READ_EVERY)
            });
            let is_due = || due.is_some_and(|due| clock.now() >= due);
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => {}
                news = answered(&mut request) => {
                    request = None;
                    let news = decided(news, working.is_some())?;
                    candidate.handle_news(news, clock.now());
                }
                // The work is not polled when it might be over.
                done = worked(&mut working, is_due) => if let Some(done) = done {
                    asking.give_back(token, candidate.patience()).await;
                    return Ok(done);
                },
                status = &mut gone, if working.is_none() => return Err(LeadError::Refused(status)),
            }
        }
    }
}

async fn answered<F: Future + Unpin>(request: &mut Option<F>) -> F::Output {
    match request {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

/// What the work gave; `None` without polling it where the candidate has to look at the time first.
async fn worked<F: Future + Unpin>(
    working: &mut Option<F>,
    is_due: impl Fn() -> bool,
) -> Option<F::Output> {
    poll_fn(|context| match working {
        None => Poll::Pending,
        Some(_) if is_due() => Poll::Ready(None),
        Some(working) => Pin::new(working).poll(context).map(Some),
    })
    .await
}

/// A refusal that will be the same next time ends a candidacy. A leader waits: its lease lasts until it has run out.
fn decided(news: Result<LeaseNews, Status>, leads: bool) -> Result<LeaseNews, LeadError> {
    match news {
        Ok(news) => Ok(news),
        Err(status) if leads => {
            tracing::debug!(%status, "a lease could not be renewed");
            Ok(LeaseNews::Unknown)
        }
        Err(status) => match status.code {
            Code::Unavailable | Code::DeadlineExceeded | Code::Internal => Ok(LeaseNews::Unknown),
            _ => Err(LeadError::Refused(status)),
        },
    }
}

/// What is asked in the name of one candidate.
#[derive(Clone)]
struct Candidacy {
    client: Client,
    hub: String,
    name: LeaseName,
    candidate: CandidateId,
    ttl_ms: u64,
}

impl Candidacy {
    fn new(lead: &Lead) -> Result<Self, LeadError> {
        let refused = |what: String| LeadError::Refused(Status::new(Code::InvalidArgument, what));
        let name = lead.name.parse::<LeaseName>();
        let name = name.map_err(|error| refused(error.to_string()))?;
        let ttl_ms = u64::try_from(lead.ttl.as_millis()).unwrap_or(u64::MAX);
        if !(MIN_LEASE_MS..=MAX_LEASE_MS).contains(&ttl_ms) {
            return Err(refused(format!(
                "a lease lasts from {MIN_LEASE_MS} to {MAX_LEASE_MS} ms"
            )));
        }
        let mut id = [0; 16];
        getrandom::fill(&mut id)
            .map_err(|error| LeadError::Refused(Status::new(Code::Internal, error.to_string())))?;
        Ok(Self {
            client: lead.client.clone(),
            hub: lead.hub.clone(),
            name,
            candidate: CandidateId::from_random(id),
            ttl_ms,
        })
    }

    async fn ask(self, token: Option<u64>, patience: Duration) -> Result<LeaseNews, Status> {
        let ask = LeaseAsk {
            hub: self.hub,
            request: LeaseRequest {
                name: self.name,
                candidate: self.candidate,
                ttl_ms: self.ttl_ms,
                token,
            },
        };
        let asked = self.client.admin(method::LEASE_ASK, &ask);
        let Ok(answer) = tokio::time::timeout(patience, asked).await else {
            return Ok(LeaseNews::Unknown);
        };
        let LeaseAnswer { held, lease } = answer?;
        Ok(match (held, lease) {
            (true, Some(lease)) => LeaseNews::Held { token: lease.token },
            (_, lease) => LeaseNews::NotHeld {
                left: Duration::from_millis(lease.map_or(0, |lease| lease.left_ms)),
            },
        })
    }

    /// Where that does not reach the hub, the lease runs out.
    async fn give_back(&self, token: u64, patience: Duration) {
        let give_back = LeaseGiveBack {
            hub: self.hub.clone(),
            release: LeaseRelease {
                name: self.name.clone(),
                candidate: self.candidate,
                token,
            },
        };
        let asked = self
            .client
            .admin::<_, LeaseReleased>(method::LEASE_RELEASE, &give_back);
        match tokio::time::timeout(patience, asked).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => tracing::debug!(%status, "a lease was not given back"),
            Err(_) => tracing::debug!("a lease was not given back in time"),
        }
    }
}

/// The later of two clocks: one that nobody sets, which stands still while the machine sleeps, and the time of day.
struct TwoClocks {
    started: Instant,
    started_at: SystemTime,
}

impl TwoClocks {
    fn new() -> Self {
        Self {
            started: clock::now(),
            started_at: SystemTime::now(),
        }
    }

    fn now(&self) -> Instant {
        let steady = clock::now().saturating_duration_since(self.started);
        let of_day = self.started_at.elapsed().unwrap_or(Duration::ZERO);
        self.started + steady.max(of_day)
    }
}
