//! Four priorities on a line that is full: what critical calls wait, what each level gets, and how late calls end.

use std::time::{Duration, Instant};

use hailwire::{Client, Code, Priority, Status};
use tokio::task::JoinSet;

use super::{
    TopologiesOptions,
    machines::{Machines, RTT_MS, WORK},
    record::{PressureRow, TopologyLine},
};
use crate::{
    BenchError,
    measure::{NextMessage, OpenLoop, TimeHistogram},
};

/// The line between the two machines.
const RATE: &str = "20 Mbit/s";

/// Bytes of a message whose time is measured.
const SMALL: usize = 1_000;

/// Messages a second of each level.
const PER_SECOND: f64 = 20.0;

/// What a measured message may take.
const DEADLINE: Duration = Duration::from_secs(2);

/// Bytes of a call that fills the line.
const LARGE: usize = 32 * 1024;

/// Calls of each level that fill the line, at any time.
const LARGE_IN_FLIGHT: usize = 16;

/// How long the line is filled before anything is measured.
const FILLED: Duration = Duration::from_secs(2);

pub(super) async fn measure(
    order: &TopologiesOptions,
    keep: &mut impl FnMut(TopologyLine) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut machines = Machines::start(&order.program, 1, Some(RATE)).await?;
    let agents = machines.agents(1).await?;
    let client = &machines.centre.client;
    let to = &agents[0];
    call(client, to, Priority::Medium, SMALL, DEADLINE * 5)
        .await
        .map_err(BenchError::failed("a first call"))?;
    let seconds = f64::from(order.seconds);
    let alone = small(client, to, Priority::Critical, seconds).await;

    // The three lower levels fill the line, each as much as it can.
    let mut filling = JoinSet::new();
    for priority in [Priority::High, Priority::Medium, Priority::Low] {
        for _ in 0..LARGE_IN_FLIGHT {
            let (client, to) = (client.clone(), to.clone());
            let until = Instant::now() + FILLED + Duration::from_secs(order.seconds.into());
            filling.spawn(async move { (priority, fill(&client, &to, priority, until).await) });
        }
    }
    tokio::time::sleep(FILLED).await;
    let (critical, high, medium, low) = tokio::join!(
        small(client, to, Priority::Critical, seconds),
        small(client, to, Priority::High, seconds),
        small(client, to, Priority::Medium, seconds),
        small(client, to, Priority::Low, seconds),
    );
    let mut filled = [0_u64; Priority::ALL.len()];
    while let Some(ended) = filling.join_next().await {
        let (priority, bytes) = ended.map_err(BenchError::failed("filling the line"))?;
        filled[priority as usize] += bytes;
    }
    let all = filled.iter().sum::<u64>().max(1) as f64;
    for (priority, small) in [
        (Priority::Critical, critical),
        (Priority::High, high),
        (Priority::Medium, medium),
        (Priority::Low, low),
    ] {
        let is_critical = priority == Priority::Critical;
        keep(TopologyLine::Pressure(PressureRow {
            priority: priority.name().to_owned(),
            rtt_ms: RTT_MS,
            alone_p50_ms: is_critical.then(|| alone.times.quantile_us(0.5) / 1000.0),
            alone_p99_ms: is_critical.then(|| alone.times.quantile_us(0.99) / 1000.0),
            p50_ms: small.times.quantile_us(0.5) / 1000.0,
            p99_ms: small.times.quantile_us(0.99) / 1000.0,
            in_time: small.times.count(),
            deadline_exceeded: small.exceeded,
            failed: small.failed,
            share_percent: (!is_critical).then(|| filled[priority as usize] as f64 / all * 100.0),
        }))?;
    }
    machines.end().await;
    Ok(())
}

async fn call(
    client: &Client,
    to: &str,
    priority: Priority,
    bytes: usize,
    deadline: Duration,
) -> Result<(), Status> {
    let call = client.call(to).method(WORK).priority(priority);
    let call = call.deadline(deadline).body(vec![0; bytes]);
    let mut answer = Box::pin(call.send()).await?;
    answer.bytes(64).await.map(drop)
}

/// Fills the line until a time; returns how many bytes were taken.
async fn fill(client: &Client, to: &str, priority: Priority, until: Instant) -> u64 {
    let mut taken = 0;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if call(client, to, priority, LARGE, left).await.is_ok() {
            taken += LARGE as u64;
        }
    }
    taken
}

#[derive(Default)]
struct SmallCalls {
    times: TimeHistogram,
    exceeded: u64,
    failed: u64,
}

/// Small calls at a rate, each from when it was due.
async fn small(client: &Client, to: &str, priority: Priority, seconds: f64) -> SmallCalls {
    let mut open = OpenLoop::new(PER_SECOND, seconds);
    let begun = Instant::now();
    let (mut calls, mut ended) = (JoinSet::new(), SmallCalls::default());
    loop {
        match open.next(begun.elapsed()) {
            NextMessage::Send { due } => {
                let (client, to) = (client.clone(), to.to_owned());
                calls.spawn(async move {
                    let outcome = call(&client, &to, priority, SMALL, DEADLINE).await;
                    (outcome, (begun + due).elapsed())
                });
            }
            NextMessage::Wait { until } => tokio::time::sleep_until((begun + until).into()).await,
            // There are never that many.
            NextMessage::Full => tokio::task::yield_now().await,
            NextMessage::Done => break,
        }
    }
    while let Some(call) = calls.join_next().await {
        match call {
            Ok((Ok(()), time)) => ended.times.record(time),
            Ok((Err(status), _)) if status.code == Code::DeadlineExceeded => ended.exceeded += 1,
            _ => ended.failed += 1,
        }
    }
    ended
}
