//! The measurement of one pair.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hailwire::Client;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    ExpectedReach, expectation, networks::ReachNetwork, processes::ReachProcesses,
    record::ReachPair,
};
use crate::{
    lab_nodes::{call_count, path_kind},
    measure::{Spread, millis},
};

/// Deadline of the first call. Longer than it may take, so that what it took is seen.
const DEADLINE: Duration = Duration::from_secs(15);

/// How long a pair that theory gives a direct path is watched for it.
const WATCHED: Duration = Duration::from_secs(8);

/// How long a pair that theory gives none is watched for one after its first answer.
const WATCHED_IN_VAIN: Duration = Duration::from_millis(300);

/// The time between two looks at the path.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Small calls whose median is taken.
const CALLS: usize = 20;

/// Bytes of the large body.
const LARGE_BODY: usize = 2 << 20;

/// Measures a pair, of which the first host of `near` calls the second of `far`.
pub(super) async fn measure(
    processes: &ReachProcesses,
    near: &ReachNetwork,
    far: &ReachNetwork,
    costs: bool,
) -> ReachPair {
    let [from, _] = near.hosts();
    let [_, to] = far.hosts();
    let mut pair = ReachPair {
        from: near.name.to_owned(),
        to: far.name.to_owned(),
        expected: expectation::expected(near, far),
        answered_ms: None,
        direct_ms: None,
        path: String::new(),
        label_ms: 0.0,
        call_ms: None,
        mbit_s: None,
        failed: None,
    };
    let Some(client) = processes.client(&from) else {
        pair.failed = Some(format!("the node {from} is not attached"));
        return pair;
    };
    let begun = Instant::now();
    match call(client, &to, "x".into()).await {
        Ok(took) => pair.answered_ms = Some(millis(took)),
        Err(reason) => {
            pair.failed = Some(reason);
            return pair;
        }
    }
    watch(client, &to, begun, &mut pair).await;
    let label = match pair.path.as_str() {
        "direct" => processes.direct_ms(&from, &to),
        _ => processes.relayed_ms([(near, &from), (far, &to)]),
    };
    pair.label_ms = label;
    if costs {
        let measured = measure_costs(client, &to, &mut pair).await;
        pair.failed = measured.err();
    }
    pair
}

/// Looks at the path until it is direct, or for as long as that makes sense.
async fn watch(client: &Client, to: &str, begun: Instant, pair: &mut ReachPair) {
    let limit = match pair.expected {
        ExpectedReach::Direct => WATCHED,
        ExpectedReach::Relay => begun.elapsed() + WATCHED_IN_VAIN,
    };
    let mut again = interval(LOOK_INTERVAL);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while begun.elapsed() < limit {
        again.tick().await;
        // One that fails is followed by another; what counts is where it ends.
        let Ok(path) = path_kind(client, to).await else {
            continue;
        };
        pair.path = path;
        if pair.path == "direct" {
            pair.direct_ms = Some(millis(begun.elapsed()));
            return;
        }
    }
}

async fn measure_costs(client: &Client, to: &str, pair: &mut ReachPair) -> Result<(), String> {
    let mut times = Vec::new();
    for _ in 0..CALLS {
        times.push(millis(call(client, to, "x".into()).await?));
    }
    pair.call_ms = Spread::of(times).map(|times| times.median);
    let took = call(client, to, vec![7; LARGE_BODY].into()).await?;
    let bits = f64::from(u32::try_from(LARGE_BODY).unwrap_or(u32::MAX)) * 8.0;
    pair.mbit_s = Some(bits / 1e6 / took.as_secs_f64());
    Ok(())
}

async fn call(client: &Client, to: &str, body: Bytes) -> Result<Duration, String> {
    call_count(client, to, body, DEADLINE).await
}
