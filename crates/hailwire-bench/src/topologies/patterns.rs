//! Star, hierarchy, ring, mesh, and a dispatch of a thousand calls.

use std::time::{Duration, Instant};

use futures_util::stream;
use hailwire::{
    Call, Client, Status,
    coordination::{MapLimits, gather, map},
};

use super::{
    TopologiesOptions,
    machines::{LEAD, Machines, PASS, RTT_MS, WORK, number},
    record::{Shape, TopologyLine, TopologyRow},
};
use crate::{BenchError, measure::TimeHistogram};

/// Machines beside the centre.
const MACHINES: usize = 10;

/// Numbers of agents: those of the published tables, and ten and a hundred.
const AGENTS: [u32; 7] = [3, 6, 10, 12, 24, 48, 100];

/// Calls of a dispatch.
const DISPATCHED: u32 = 1_000;

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(60);

pub(super) async fn measure(
    order: &TopologiesOptions,
    keep: &mut impl FnMut(TopologyLine) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut machines = Machines::start(&order.program, MACHINES, None).await?;
    let agents = machines.agents(MACHINES as u32).await?;
    // The first calls of a node that was just started have to bring up the tunnels.
    machines = machines.restart_centre().await?;
    let by_key = machines.by_key(&agents).await?;
    let mut first = Tally::default();
    first.once(dispatch(&machines.centre.client, &by_key)).await;
    keep(first.row(Shape::DispatchNew, MACHINES as u32, DISPATCHED.into()))?;
    let known = rounds(order.rounds, || dispatch(&machines.centre.client, &agents)).await;
    keep(known.row(Shape::DispatchKnown, MACHINES as u32, DISPATCHED.into()))?;
    for count in AGENTS {
        if order.most_agents.is_some_and(|most| count > most) {
            continue;
        }
        let agents = machines.agents(count).await?;
        for shape in [Shape::Star, Shape::Hierarchy, Shape::Ring, Shape::Mesh] {
            let tally = rounds(order.rounds, || {
                work(&machines.centre.client, shape, &agents)
            });
            keep(tally.await.row(shape, count, shape.calls(count)))?;
        }
    }
    machines.end().await;
    Ok(())
}

/// Does something once without counting it, and then so often.
async fn rounds<F: Future<Output = Result<(), Status>>>(count: u32, once: impl Fn() -> F) -> Tally {
    let mut warm = Tally::default();
    warm.once(once()).await;
    let mut tally = Tally {
        failed: warm.failed,
        ..Tally::default()
    };
    for _ in 0..count {
        tally.once(once()).await;
    }
    tally
}

#[derive(Default)]
struct Tally {
    times: TimeHistogram,
    failed: Option<String>,
}

impl Tally {
    async fn once(&mut self, work: impl Future<Output = Result<(), Status>>) {
        let begun = Instant::now();
        match Box::pin(work).await {
            Ok(()) => self.times.record(begun.elapsed()),
            Err(status) => self.failed = Some(status.to_string()),
        }
    }

    fn row(self, shape: Shape, agents: u32, calls: u64) -> TopologyLine {
        TopologyLine::Topology(TopologyRow {
            shape,
            agents,
            rtt_ms: RTT_MS,
            calls,
            rounds: self.times.count(),
            p50_ms: self.times.quantile_us(0.5) / 1000.0,
            p99_ms: self.times.quantile_us(0.99) / 1000.0,
            failed: self.failed,
        })
    }
}

fn called(client: &Client, to: &str, method: &str, list: &[String]) -> Call {
    let list: String = list.iter().map(|to| format!("{to}\n")).collect();
    let call = client.call(to).method(method).deadline(DEADLINE);
    call.body(list)
}

/// Whether as many did their work as were asked.
async fn all_did(calls: Vec<Call>, expected: u64) -> Result<(), Status> {
    let mut done = 0;
    for reply in gather(calls).all().await {
        done += number(reply)?;
    }
    match done == expected {
        true => Ok(()),
        false => Err(Status::new(
            hailwire::Code::Internal,
            format!("{done} of {expected} did their work"),
        )),
    }
}

async fn work(client: &Client, shape: Shape, agents: &[String]) -> Result<(), Status> {
    let count = agents.len();
    let (calls, expected) = match shape {
        Shape::Star | Shape::DispatchKnown | Shape::DispatchNew => {
            let calls = agents.iter().map(|to| called(client, to, WORK, &[]));
            (calls.collect(), count)
        }
        Shape::Hierarchy => {
            let teams = agents.chunks(Shape::team(count));
            let calls = teams.map(|team| called(client, &team[0], LEAD, team));
            (calls.collect(), count)
        }
        Shape::Ring => {
            let first = called(client, &agents[0], PASS, &agents[1..]);
            (vec![first], count)
        }
        Shape::Mesh => {
            let calls = agents.iter().map(|to| {
                let others: Vec<_> = agents
                    .iter()
                    .filter(|other| *other != to)
                    .cloned()
                    .collect();
                called(client, to, LEAD, &others)
            });
            (calls.collect(), count * (count - 1))
        }
    };
    all_did(calls, expected as u64).await
}

async fn dispatch(client: &Client, agents: &[String]) -> Result<(), Status> {
    let calls: Vec<Call> = agents
        .iter()
        .cycle()
        .take(DISPATCHED as usize)
        .map(|to| called(client, to, WORK, &[]))
        .collect();
    let limits = MapLimits {
        in_flight: DISPATCHED as usize,
        ordered: false,
        ..MapLimits::default()
    };
    let mut replies = map(stream::iter(calls), limits);
    while let Some(reply) = replies.next().await {
        number(reply)?;
    }
    Ok(())
}
