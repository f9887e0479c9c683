//! Load on an agent of one's own: `hail bench call`.
//!
//! Either an open loop, in which calls are due at a rate whatever becomes of earlier ones, so that a slow answer is not hidden by
//! a caller that waits for it; or a closed one, in which so many callers call again as soon as they have an answer.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire::{Client, Code, Status};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    measure::{NextMessage, OpenLoop, TimeHistogram},
    subject::load::wait_until,
};

/// The longest answer that is read; a longer one counts as failed.
const MAX_ANSWER: usize = 64 << 20;

/// When calls are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadShape {
    /// So many a second, whatever becomes of earlier ones.
    Rate(f64),
    /// So many callers, each of which calls again as soon as it has its answer.
    Callers(u32),
}

/// What is called, and how.
#[derive(Clone, Debug)]
pub struct AgentLoad {
    /// The address, `agent` or `agent@node`.
    pub to: String,
    /// Its method; empty for none.
    pub method: String,
    /// The body of each call.
    pub body: Bytes,
    /// When calls are made.
    pub shape: LoadShape,
    /// For how long calls are made that count.
    pub duration: Duration,
    /// For how long calls are made before that, which do not count.
    pub warm_up: Duration,
    /// How long each call may take.
    pub timeout: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadResult {
    /// Calls that were answered, of those that count.
    pub answered: u64,
    /// Calls that failed, by the name of their code.
    pub failed: BTreeMap<&'static str, u64>,
    /// From the first call that counts to the last answer, in seconds.
    pub seconds: f64,
    /// Answered calls a second.
    pub per_second: f64,
    /// Bytes of all answers.
    pub bytes: u64,
    /// Microseconds from when a call was due to its whole answer, at these shares.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p90_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// See `p50_us`.
    pub p999_us: f64,
    /// See `p50_us`.
    pub max_us: f64,
}

impl LoadResult {
    /// Calls that failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}

/// Puts the load on the agent. Safe to drop: the calls under way are cancelled then.
pub async fn run(client: &Client, load: AgentLoad) -> LoadResult {
    let load = Arc::new(load);
    if !load.warm_up.is_zero() {
        calls(client, &load, load.warm_up).await;
    }
    let begun = Instant::now();
    let counts = calls(client, &load, load.duration).await;
    counts.result(begun.elapsed())
}

/// Counts while calls are made.
#[derive(Debug, Default)]
struct LoadCounts {
    times: TimeHistogram,
    bytes: u64,
    failed: BTreeMap<&'static str, u64>,
}

impl LoadCounts {
    fn count(&mut self, took: Duration, outcome: Result<u64, Code>) {
        match outcome {
            Ok(bytes) => {
                self.times.record(took);
                self.bytes += bytes;
            }
            Err(code) => *self.failed.entry(code.name()).or_default() += 1,
        }
    }

    fn add(&mut self, other: &Self) {
        self.times.add(&other.times);
        self.bytes += other.bytes;
        for (code, count) in &other.failed {
            *self.failed.entry(code).or_default() += count;
        }
    }

    fn result(self, elapsed: Duration) -> LoadResult {
        let seconds = elapsed.as_secs_f64();
        let answered = self.times.count();
        let at = |share| match answered {
            0 => 0.0,
            _ => self.times.quantile_us(share),
        };
        LoadResult {
            answered,
            seconds,
            per_second: answered as f64 / seconds.max(f64::MIN_POSITIVE),
            bytes: self.bytes,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: at(1.0),
            failed: self.failed,
        }
    }
}

async fn calls(client: &Client, load: &Arc<AgentLoad>, duration: Duration) -> LoadCounts {
    match load.shape {
        LoadShape::Rate(per_second) => {
            let open = OpenLoop::new(per_second, duration.as_secs_f64());
            at_rate(client, load, open).await
        }
        LoadShape::Callers(callers) => by_callers(client, load, callers, duration).await,
    }
}

/// Each call is measured from when it was due.
async fn at_rate(client: &Client, load: &Arc<AgentLoad>, mut open: OpenLoop) -> LoadCounts {
    let begun = Instant::now();
    let mut counts = LoadCounts::default();
    let mut under_way = JoinSet::new();
    loop {
        while let Some(ended) = under_way.try_join_next() {
            open.ended();
            note(&mut counts, ended);
        }
        match open.next(begun.elapsed()) {
            NextMessage::Send { due } => {
                let (client, load) = (client.clone(), load.clone());
                under_way.spawn(async move {
                    let outcome = call(&client, &load).await;
                    (begun.elapsed().saturating_sub(due), outcome)
                });
            }
            NextMessage::Wait { until } => wait_until(begun, until).await,
            NextMessage::Full => {
                if let Some(ended) = under_way.join_next().await {
                    open.ended();
                    note(&mut counts, ended);
                }
            }
            NextMessage::Done => break,
        }
    }
    while let Some(ended) = under_way.join_next().await {
        note(&mut counts, ended);
    }
    counts
}

fn note(
    counts: &mut LoadCounts,
    ended: Result<(Duration, Result<u64, Code>), tokio::task::JoinError>,
) {
    // A task that panicked is a fault of this program.
    let (took, outcome) = ended.unwrap_or((Duration::ZERO, Err(Code::Internal)));
    counts.count(took, outcome);
}

async fn by_callers(
    client: &Client,
    load: &Arc<AgentLoad>,
    callers: u32,
    duration: Duration,
) -> LoadCounts {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (client, load) = (client.clone(), load.clone());
        tasks.spawn(async move {
            let mut counts = LoadCounts::default();
            while begun.elapsed() < duration {
                let due = Instant::now();
                let outcome = call(&client, &load).await;
                counts.count(due.elapsed(), outcome);
            }
            counts
        });
    }
    let mut counts = LoadCounts::default();
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok(done) => counts.add(&done),
            Err(_) => counts.count(Duration::ZERO, Err(Code::Internal)),
        }
    }
    counts
}

/// One call, with its whole answer.
async fn call(client: &Client, load: &AgentLoad) -> Result<u64, Code> {
    let outcome = async {
        let call = client
            .call(load.to.clone())
            .method(load.method.clone())
            .deadline(load.timeout)
            .body(load.body.clone());
        let mut answer = call.send().await?;
        let mut bytes = 0_usize;
        while let Some(chunk) = answer.chunk().await? {
            bytes += chunk.len();
            if bytes > MAX_ANSWER {
                return Err(Status::new(
                    Code::ResourceExhausted,
                    "the answer is too long",
                ));
            }
        }
        Ok(bytes as u64)
    };
    outcome.await.map_err(|status| status.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_counted_by_its_code_and_has_no_time() {
        let mut counts = LoadCounts::default();
        for ms in 1..=100 {
            counts.count(Duration::from_millis(ms), Ok(10));
        }
        counts.count(Duration::from_secs(9), Err(Code::Unavailable));
        let mut all = LoadCounts::default();
        all.add(&counts);
        all.count(Duration::ZERO, Err(Code::Unavailable));
        let result = all.result(Duration::from_secs(2));
        assert_eq!((result.answered, result.bytes), (100, 1000));
        assert_eq!(result.failed, [("unavailable", 2)].into());
        assert_eq!(result.failures(), 2);
        assert!((result.per_second - 50.0).abs() < 1e-9);
        assert!(
            (result.p50_us - 50_000.0).abs() < 100.0,
            "{}",
            result.p50_us
        );
        assert!(
            (result.max_us - 100_000.0).abs() < 200.0,
            "{}",
            result.max_us
        );

        let none = LoadCounts::default().result(Duration::from_secs(1));
        assert_eq!((none.answered, none.max_us), (0, 0.0));
    }
}
