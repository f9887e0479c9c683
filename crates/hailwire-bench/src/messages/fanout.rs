//! What is published to many subscribers, at most once: `hail pub` through one node, and NATS core beside it, in one run.
//!
//! One publisher, and subscribers that share at most [`CONNECTIONS`] connections. A window bounds the messages that are under way: the next is
//! published once an earlier one has come to all, or was told to be lost. So the rate is what is delivered, and losses are counted where they are told, and again as what did not come.

mod nats;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hailwire::{Client, TopicEvent};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    MessageOptions,
    record::{FanoutSpeed, MessageRecord},
    speed::{NatsServer, nats_server},
    survival::{DESK, TwoNodes},
};
use crate::{BenchError, measure::millis};

/// How many subscribe.
const SUBSCRIBERS: [u32; 3] = [1, 100, 1000];

/// Connections that the subscribers share.
const CONNECTIONS: u32 = 10;

/// Bytes of a message's body; the first say when it was published.
const BODY: usize = 128;

/// Messages that are under way.
const WINDOW: usize = 256;

/// How long nothing may come before what is missing counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the subscribers of a row share.
#[derive(Clone)]
struct Deliveries {
    begun: Instant,
    subscribers: u64,
    /// Deliveries and told losses.
    done: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    window: Arc<Semaphore>,
    expected: u64,
    all: Arc<tokio::sync::Notify>,
}

impl Deliveries {
    fn new(subscribers: u32, messages: u64) -> Self {
        Self {
            begun: Instant::now(),
            subscribers: u64::from(subscribers),
            done: Arc::default(),
            lost: Arc::default(),
            window: Arc::new(Semaphore::new(WINDOW)),
            expected: messages * u64::from(subscribers),
            all: Arc::default(),
        }
    }

    /// The body of a message that is published now.
    fn body(&self) -> Vec<u8> {
        let mut body = vec![7; BODY];
        let now = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        body[..8].copy_from_slice(&now.to_be_bytes());
        body
    }

    /// How long a message that came was on its way.
    fn took(&self, body: &[u8]) -> Option<Duration> {
        let at = body.first_chunk::<8>()?;
        let at = Duration::from_nanos(u64::from_be_bytes(*at));
        Some(self.begun.elapsed().saturating_sub(at))
    }

    fn note_done(&self, count: u64, lost: bool) {
        if lost {
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
        let before = self.done.fetch_add(count, Ordering::Relaxed);
        let after = before + count;
        let whole = after / self.subscribers - before / self.subscribers;
        self.window.add_permits(usize::try_from(whole).unwrap_or(0));
        if after >= self.expected {
            self.all.notify_waiters();
        }
    }

    /// Waits for the room of one more message.
    async fn room(&self) -> Result<(), BenchError> {
        let room = tokio::time::timeout(PATIENCE, self.window.acquire()).await;
        let stalled = || BenchError::Unsupported("messages that were published do not come");
        let room = room.map_err(|_| stalled())?;
        room.map_err(|_| stalled())?.forget();
        Ok(())
    }

    async fn all(&self) {
        let mut all = std::pin::pin!(self.all.notified());
        all.as_mut().enable();
        if self.done.load(Ordering::Relaxed) < self.expected {
            let _ = tokio::time::timeout(PATIENCE, all).await;
        }
    }
}

pub(super) async fn measure(
    order: &MessageOptions,
    keep: &mut dyn FnMut(MessageRecord) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let folder = order.folder()?;
    let server = nats_server(folder.path())?;
    for subscribers in SUBSCRIBERS {
        // As many deliveries in each row.
        let messages = u64::from(order.deliveries / subscribers).max(100);
        let nodes = TwoNodes::start(order, "").await?;
        let client = nodes.attach(DESK).await?;
        let mut programs = Vec::new();
        for _ in 0..CONNECTIONS.min(subscribers) {
            programs.push(nodes.attach(DESK).await?);
        }
        keep(MessageRecord::Fanout(
            hail(&client, &programs, subscribers, messages).await?,
        ))?;
        drop((client, programs));
        nodes.end().await;
        match &server {
            Some(NatsServer { at, .. }) => keep(MessageRecord::Fanout(
                nats::measure(*at, subscribers, messages).await?,
            ))?,
            None => keep(MessageRecord::Skipped(
                "NATS core: nats-server is not installed (`peers/install nats`)".to_owned(),
            ))?,
        }
    }
    Ok(())
}

async fn hail(
    client: &Client,
    programs: &[Client],
    subscribers: u32,
    messages: u64,
) -> Result<FanoutSpeed, BenchError> {
    let failed = || BenchError::failed("a subscriber");
    let deliveries = Deliveries::new(subscribers, messages);
    let mut reading = JoinSet::new();
    for (_, program) in (0..subscribers).zip(programs.iter().cycle()) {
        let mut subscription = program
            .subscribe(["bench.fanout"])
            .await
            .map_err(failed())?;
        let deliveries = deliveries.clone();
        reading.spawn(async move {
            let (mut times, mut seen) = (Vec::new(), 0);
            while seen < messages {
                match subscription.next().await {
                    Ok(Some(TopicEvent::Message(message))) => {
                        seen += 1;
                        times.extend(deliveries.took(&message.body));
                        deliveries.note_done(1, false);
                    }
                    Ok(Some(TopicEvent::Missed(lost))) => {
                        seen += lost;
                        deliveries.note_done(lost, true);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
            times
        });
    }
    let begun = Instant::now();
    let mut publisher = client.publisher();
    for _ in 0..messages {
        deliveries.room().await?;
        let one = client.publish("bench.fanout").body(deliveries.body());
        publisher
            .publish(one)
            .await
            .map_err(BenchError::failed("publishing"))?;
    }
    publisher
        .finish()
        .await
        .map_err(BenchError::failed("publishing"))?;
    deliveries.all().await;
    let took = begun.elapsed();
    row("hail pub, one node", &deliveries, messages, took, reading).await
}

/// The row of what was measured, once all subscribers have ended.
async fn row(
    system: &str,
    deliveries: &Deliveries,
    messages: u64,
    took: Duration,
    mut reading: JoinSet<Vec<Duration>>,
) -> Result<FanoutSpeed, BenchError> {
    let came = deliveries.done.load(Ordering::Relaxed) - deliveries.lost.load(Ordering::Relaxed);
    let mut times = Vec::new();
    // Whoever still waits after the patience waits for what is lost.
    let all = deliveries.done.load(Ordering::Relaxed) >= deliveries.expected;
    if !all {
        reading.abort_all();
    }
    while let Some(read) = reading.join_next().await {
        times.extend(read.unwrap_or_default());
    }
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().map(millis);
    Ok(FanoutSpeed {
        system: system.to_owned(),
        subscribers: u32::try_from(deliveries.subscribers).unwrap_or(u32::MAX),
        messages,
        published_per_s: messages as f64 / took.as_secs_f64(),
        delivered_per_s: came as f64 / took.as_secs_f64(),
        told_lost: deliveries.lost.load(Ordering::Relaxed),
        not_come: deliveries.expected - came.min(deliveries.expected),
        p50_ms: at(50),
        p99_ms: at(99),
    })
}
