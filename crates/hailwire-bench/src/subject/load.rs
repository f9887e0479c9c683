//! How work is done: the same for every subject.
//!
//! The clock of each message runs in the process that sends it, from when it is due to when its answer
//! has been checked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire::Priority;
use tokio::task::JoinSet;

use super::{
    PreparedTarget, StreamProgress, SubjectConnection, SubjectTarget, failed,
    pattern::{check_echo, message},
};
use crate::{
    BenchError,
    measure::{NextMessage, OpenLoop, TimeHistogram},
    work::{ConnectionStart, MeasuredWork, WorkRequest},
};

/// An answer that takes longer is lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The same in a mix, where the network is saturated on purpose.
const MIX_ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// A message of the mix counts as delivered when it is answered within this.
const DELIVERED_WITHIN: Duration = Duration::from_secs(1);

/// Streams of the lowest priority that keep the network busy beside the mix.
const BULK_STREAMS: usize = 4;

/// The granularity of the runtime's timer; the rest of a wait is busy polling.
const CLOCK_STEP: Duration = Duration::from_millis(2);

/// Does work on one subject, and keeps its warm connections.
pub(super) struct SubjectLoad {
    target: SubjectTarget,
    warm: Vec<SubjectConnection>,
}

impl SubjectLoad {
    pub(super) fn new(target: SubjectTarget) -> Self {
        Self {
            target,
            warm: Vec::new(),
        }
    }

    pub(super) async fn stop(self) {
        self.target.stop().await;
    }

    pub(super) async fn run(&mut self, work: &WorkRequest) -> Result<MeasuredWork, BenchError> {
        match *work {
            WorkRequest::Establish {
                agents,
                connections,
                start,
                bytes,
            } => self.establish(agents, connections, start, bytes).await,
            WorkRequest::Latency {
                per_second,
                seconds,
                bytes,
                connections,
            } => {
                let links = self.warm(connections.max(1), false).await?;
                let open = OpenLoop::new(per_second, seconds);
                let (times, lost) =
                    open_loop(&links, open, bytes, Priority::default(), ANSWER_TIMEOUT).await;
                Ok(with_lost(times.measured(), lost))
            }
            WorkRequest::Rate {
                in_flight,
                seconds,
                bytes,
                agents,
                connections,
            } => {
                self.target.agents(agents).await?;
                let links = self.shared(agents, connections).await?;
                rate(&links, agents, in_flight.max(1), seconds, bytes).await
            }
            WorkRequest::Bulk { bytes, seconds } => self.bulk(bytes, seconds).await,
            WorkRequest::Dispatch {
                agents,
                connections,
                start,
                at_once,
                bytes,
            } => {
                self.dispatch(agents, connections, start, at_once, bytes)
                    .await
            }
            WorkRequest::Open { count } => {
                let links = self.warm(1, false).await?;
                opened(pick(&links, 0)?, count).await
            }
            WorkRequest::Hold {
                agents,
                connections,
                bytes,
            } => {
                self.target.agents(agents).await?;
                let links = self.shared(agents, connections).await?;
                let body = message(bytes);
                for agent in 0..agents {
                    echo(pick(&links, agent)?, number(agents, agent), &body).await?;
                }
                Ok(MeasuredWork::default().with("count", f64::from(agents)))
            }
            WorkRequest::Mix {
                per_second,
                seconds,
                bytes,
            } => {
                let links = self.warm(1, false).await?;
                mix(pick(&links, 0)?, per_second, seconds, bytes).await
            }
            WorkRequest::Operation { .. } => Err(BenchError::Unsupported(
                "this subject does not do operations of callouts",
            )),
        }
    }

    async fn bulk(&mut self, bytes: u64, seconds: f64) -> Result<MeasuredWork, BenchError> {
        let links = self.warm(1, false).await?;
        let link = pick(&links, 0)?;
        let chosen = self.target.choose().await?;
        let (packets, received) = (
            self.target.packets(link).await?,
            self.target.received().await?,
        );
        let mut measured = bulk(link, bytes, seconds).await?;
        if let (Some(before), Some(after)) = (packets, self.target.packets(link).await?)
            && let Some(percent) = after.lost_percent_since(&before)
        {
            measured = measured.with("lost_percent", percent);
        }
        if let (Some(before), Some(after)) = (received, self.target.received().await?) {
            let [udp, tcp] = [0, 1].map(|i| after[i].saturating_sub(before[i]) as f64);
            measured = measured.with("over_tcp_share", tcp / (udp + tcp).max(1.0));
        }
        Ok(match chosen {
            Some(seconds) => measured.with("choosing_s", seconds),
            None => measured,
        })
    }

    /// Warm connections for agents that share them, or that have one each.
    async fn shared(
        &mut self,
        agents: u32,
        connections: u32,
    ) -> Result<Vec<SubjectConnection>, BenchError> {
        match connections {
            0 => self.warm(agents, true).await,
            shared => self.warm(shared, false).await,
        }
    }

    /// At least `count` connections that have carried a message.
    async fn warm(
        &mut self,
        count: u32,
        alone: bool,
    ) -> Result<Vec<SubjectConnection>, BenchError> {
        let count = if self.target.shares_one_connection() && !alone {
            1
        } else {
            count as usize
        };
        let hello = Bytes::from_static(b"hello");
        if alone {
            self.target.expect(count as u32).await?;
        }
        while self.warm.len() < count {
            let first = self.warm.is_empty();
            let prepared = self
                .target
                .prepare(ConnectionStart::Warm, alone && !first)
                .await?;
            let link = self.target.connect(prepared).await?;
            echo(&link, 0, &hello).await?;
            self.warm.push(link);
        }
        Ok(self.warm.iter().take(count).cloned().collect())
    }

    /// Prepares `count` new connections at once.
    async fn prepare(
        &self,
        count: u32,
        start: ConnectionStart,
        alone: bool,
    ) -> Result<Vec<PreparedTarget>, BenchError> {
        self.target.expect(count).await?;
        all((0..count).map(|_| self.target.prepare(start, alone))).await
    }

    async fn establish(
        &mut self,
        agents: u32,
        connections: u32,
        start: ConnectionStart,
        bytes: usize,
    ) -> Result<MeasuredWork, BenchError> {
        let shared = if self.target.shares_one_connection() {
            connections.min(1)
        } else {
            connections
        };
        let count = if shared == 0 {
            agents
        } else {
            shared.min(agents)
        };
        if shared > 0 {
            self.target.agents(agents).await?;
        }
        let prepared = self.prepare(count, start, true).await?;
        let body = message(bytes);
        let (mut opened, mut answered) = (TimeHistogram::default(), TimeHistogram::default());
        let begun = Instant::now();
        let connects = prepared.into_iter().enumerate().map(|(i, prepared)| {
            let (target, body) = (&self.target, &body);
            async move {
                let link = target.connect(prepared).await?;
                let open = begun.elapsed();
                let mine = (i as u32..agents).step_by(count as usize);
                let own = |agent| {
                    if shared == 0 {
                        0
                    } else {
                        number(agents, agent)
                    }
                };
                let echoes = mine.map(|agent| timed_echo(&link, own(agent), body, begun));
                let times = all(echoes).await?;
                Ok::<_, BenchError>((link, open, times))
            }
        });
        let mut links = Vec::new();
        for (link, open, times) in all(connects).await? {
            opened.record(open);
            times.into_iter().for_each(|time| answered.record(time));
            links.push(link);
        }
        let mut measured = answered.measured();
        measured = measured.with("all_us", answered.quantile_us(1.0));
        if !self.target.shares_one_connection() && start != ConnectionStart::ZeroRtt {
            measured = measured.with("opened_p50_us", opened.quantile_us(0.5));
        }
        self.target.release(links).await;
        Ok(measured)
    }

    async fn dispatch(
        &mut self,
        agents: u32,
        connections: u32,
        start: ConnectionStart,
        at_once: bool,
        bytes: usize,
    ) -> Result<MeasuredWork, BenchError> {
        if start != ConnectionStart::Warm && at_once {
            return self.establish(agents, connections, start, bytes).await;
        }
        let body = message(bytes);
        let mut times = TimeHistogram::default();
        if start != ConnectionStart::Warm {
            let prepared = self.prepare(agents, start, true).await?;
            let (begun, mut links) = (Instant::now(), Vec::new());
            for prepared in prepared {
                let own = Instant::now();
                let link = self.target.connect(prepared).await?;
                times.record(timed_echo(&link, 0, &body, own).await?);
                links.push(link);
            }
            let all_us = micros(begun.elapsed());
            self.target.release(links).await;
            return Ok(times.measured().with("all_us", all_us));
        }
        self.target.agents(agents).await?;
        let links = self.shared(agents, connections).await?;
        let begun = Instant::now();
        if at_once {
            let mut echoes = Vec::new();
            for agent in 0..agents {
                echoes.push(timed_echo(
                    pick(&links, agent)?,
                    number(agents, agent),
                    &body,
                    begun,
                ));
            }
            for time in all(echoes).await? {
                times.record(time);
            }
        } else {
            for agent in 0..agents {
                let link = pick(&links, agent)?;
                let own = Instant::now();
                times.record(timed_echo(link, number(agents, agent), &body, own).await?);
            }
        }
        Ok(times.measured().with("all_us", micros(begun.elapsed())))
    }
}

/// An agent's number on a connection: 0 is the one that always exists.
fn number(agents: u32, agent: u32) -> u32 {
    if agents > 1 { agent + 1 } else { 0 }
}

fn pick(links: &[SubjectConnection], agent: u32) -> Result<&SubjectConnection, BenchError> {
    links
        .get(agent as usize % links.len().max(1))
        .ok_or_else(|| BenchError::Invalid("there is no connection".into()))
}

async fn echo(link: &SubjectConnection, agent: u32, body: &Bytes) -> Result<(), BenchError> {
    echo_at(link, agent, Priority::default(), body, ANSWER_TIMEOUT).await
}

async fn echo_at(
    link: &SubjectConnection,
    agent: u32,
    priority: Priority,
    body: &Bytes,
    patience: Duration,
) -> Result<(), BenchError> {
    let answer = tokio::time::timeout(patience, link.echo(agent, priority, body.clone()));
    let late = |_| BenchError::Invalid(format!("no answer within {} s", patience.as_secs()));
    check_echo(body, &answer.await.map_err(late)??)
}

async fn timed_echo(
    link: &SubjectConnection,
    agent: u32,
    body: &Bytes,
    since: Instant,
) -> Result<Duration, BenchError> {
    echo(link, agent, body).await?;
    Ok(since.elapsed())
}

/// Awaits all at once; the first failure ends it.
async fn all<T>(
    futures: impl IntoIterator<Item = impl Future<Output = Result<T, BenchError>>>,
) -> Result<Vec<T>, BenchError> {
    let futures: futures_util::stream::FuturesUnordered<_> = futures.into_iter().collect();
    futures_util::TryStreamExt::try_collect(futures).await
}

/// Runs a schedule; returns the times and how many messages were lost.
async fn open_loop(
    links: &[SubjectConnection],
    mut open: OpenLoop,
    bytes: usize,
    priority: Priority,
    patience: Duration,
) -> (TimeHistogram, u64) {
    let (mut times, mut lost) = (TimeHistogram::default(), 0);
    let (body, begun) = (message(bytes), Instant::now());
    let mut under_way = JoinSet::new();
    let mut turn = 0;
    let mut take = |open: &mut OpenLoop,
                    ended: Result<Option<Duration>, tokio::task::JoinError>| {
        open.ended();
        match ended {
            Ok(Some(time)) => times.record(time),
            _ => lost += 1,
        }
    };
    loop {
        match open.next(begun.elapsed()) {
            NextMessage::Send { due } => {
                let Ok(link) = pick(links, turn).cloned() else {
                    break;
                };
                turn = turn.wrapping_add(1);
                let body = body.clone();
                under_way.spawn(async move {
                    let done = echo_at(&link, 0, priority, &body, patience).await;
                    done.ok().map(|()| begun.elapsed() - due)
                });
            }
            NextMessage::Wait { until } => wait_until(begun, until).await,
            NextMessage::Full => {
                if let Some(ended) = under_way.join_next().await {
                    take(&mut open, ended);
                }
            }
            NextMessage::Done => break,
        }
        while let Some(ended) = under_way.try_join_next() {
            take(&mut open, ended);
        }
    }
    while let Some(ended) = under_way.join_next().await {
        take(&mut open, ended);
    }
    (times, lost)
}

/// Sleeps as long as the timer is precise enough, then polls the clock between other tasks: the runtime's
/// timer has a granularity of a millisecond, which is more than many answers take.
pub(crate) async fn wait_until(begun: Instant, until: Duration) {
    let left = until.saturating_sub(begun.elapsed());
    if left > CLOCK_STEP {
        tokio::time::sleep(left - CLOCK_STEP).await;
    }
    while begun.elapsed() < until {
        tokio::task::yield_now().await;
    }
}

fn with_lost(mut measured: MeasuredWork, lost: u64) -> MeasuredWork {
    if measured.figures.is_empty() && lost > 0 {
        measured.failed = Some(format!("all {lost} messages were lost"));
    }
    measured.with("lost_count", lost as f64)
}

async fn rate(
    links: &[SubjectConnection],
    agents: u32,
    in_flight: u32,
    seconds: f64,
    bytes: usize,
) -> Result<MeasuredWork, BenchError> {
    let (body, begun) = (message(bytes), Instant::now());
    let until = Duration::from_secs_f64(seconds);
    let done = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for worker in 0..in_flight {
        let (links, body, done) = (links.to_vec(), body.clone(), done.clone());
        workers.spawn(async move {
            let mut agent = worker % agents.max(1);
            while begun.elapsed() < until {
                echo(pick(&links, agent)?, number(agents, agent), &body).await?;
                done.fetch_add(1, Ordering::Relaxed);
                agent = (agent + in_flight) % agents.max(1);
            }
            Ok::<_, BenchError>(())
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.map_err(failed("a task"))??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let count = done.load(Ordering::Relaxed) as f64;
    Ok(MeasuredWork::default()
        .with("count", count)
        .with("seconds", seconds)
        .with("messages_per_s", count / seconds)
        .with("megabits_per_s", count * bytes as f64 * 8.0 / 1e6 / seconds))
}

/// Times how long requests take to be handed over: the first poll of each.
async fn opened(link: &SubjectConnection, count: u32) -> Result<MeasuredWork, BenchError> {
    let (mut times, body) = (TimeHistogram::default(), message(64));
    for _ in 0..count {
        let begun = Instant::now();
        let mut echo = std::pin::pin!(echo(link, 0, &body));
        let first = std::future::poll_fn(|cx| std::task::Poll::Ready(echo.as_mut().poll(cx))).await;
        times.record(begun.elapsed());
        match first {
            std::task::Poll::Ready(done) => done?,
            std::task::Poll::Pending => echo.await?,
        }
    }
    Ok(times.measured())
}

async fn bulk(
    link: &SubjectConnection,
    bytes: u64,
    seconds: f64,
) -> Result<MeasuredWork, BenchError> {
    let got = StreamProgress::default();
    let begun = Instant::now();
    let stream = link.bulk(Priority::default(), bytes, &got);
    if seconds > 0.0 {
        match tokio::time::timeout(Duration::from_secs_f64(seconds), stream).await {
            Ok(ended) => ended?,
            Err(_) if got.bytes() == 0 => {
                return Err(BenchError::Invalid(format!(
                    "nothing came within {seconds} s"
                )));
            }
            Err(_) => {}
        }
    } else {
        stream.await?;
        if got.bytes() != bytes {
            let short = format!("{} bytes instead of {bytes}", got.bytes());
            return Err(BenchError::Invalid(short));
        }
    }
    let (seconds, bytes) = (begun.elapsed().as_secs_f64(), got.bytes() as f64);
    Ok(MeasuredWork::default()
        .with("bytes", bytes)
        .with("seconds", seconds)
        .with("megabytes_per_s", bytes / 1e6 / seconds))
}

async fn mix(
    link: &SubjectConnection,
    per_second: f64,
    seconds: f64,
    bytes: usize,
) -> Result<MeasuredWork, BenchError> {
    let mut busy = JoinSet::new();
    for _ in 0..BULK_STREAMS {
        let link = link.clone();
        busy.spawn(async move {
            // More than any network transfers within the time; dropped at its end.
            link.bulk(Priority::Low, 1 << 40, &StreamProgress::default())
                .await
        });
    }
    // Wait until the network is saturated.
    tokio::time::sleep(Duration::from_secs_f64((seconds / 5.0).min(1.0))).await;
    let links = std::slice::from_ref(link);
    let run = |priority| {
        let open = OpenLoop::new(per_second, seconds);
        open_loop(links, open, bytes, priority, MIX_ANSWER_TIMEOUT)
    };
    let (critical, high, medium, low) = tokio::join!(
        run(Priority::Critical),
        run(Priority::High),
        run(Priority::Medium),
        run(Priority::Low)
    );
    if let Some(Ok(Err(error))) = busy.try_join_next() {
        return Err(error);
    }
    busy.shutdown().await;
    let answered = [&critical, &high, &medium, &low].map(|(times, _)| times.count());
    if answered.into_iter().sum::<u64>() == 0 {
        return Err(BenchError::Unsupported(
            "while streams saturated the network, none of its messages was answered within 4 s",
        ));
    }
    let mut measured = MeasuredWork::default();
    let named = [
        ("critical", critical),
        ("high", high),
        ("medium", medium),
        ("low", low),
    ];
    for (name, (times, lost)) in named {
        let whole = (times.count() + lost).max(1) as f64;
        let delivered = times.within(DELIVERED_WITHIN) as f64 / whole * 100.0;
        measured = measured
            .with(&format!("{name}_p50_us"), times.quantile_us(0.5))
            .with(&format!("{name}_p99_us"), times.quantile_us(0.99))
            .with(&format!("{name}_delivered_percent"), delivered)
            .with(&format!("{name}_count"), whole);
    }
    Ok(measured)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
