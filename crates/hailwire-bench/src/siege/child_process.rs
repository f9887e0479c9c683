//! A process of the siege: an attacker, or the agent that is called.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use hailwire::{Agent, Client, DataDir, Request, Response};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::attack::{self, AttackCounters, AttackOrders, AttackReport};
use crate::{BenchError, measure::process};

/// The `nice` value of an attacker, which lets the other processes run first.
const NICE: i32 = 10;

/// What a child process of a siege does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SiegeProcessRole {
    /// The agent that honest callers call.
    Agent,
    /// An attacker.
    Attack,
}

/// Runs a child process of a siege: the agent, attached to the node of a data folder, or an attacker, as the line on standard input says.
///
/// # Errors
///
/// [`BenchError`], before it has started.
pub async fn run_process(role: SiegeProcessRole, data: &DataDir) -> Result<(), BenchError> {
    match role {
        SiegeProcessRole::Agent => agent(data).await,
        SiegeProcessRole::Attack => attack().await,
    }
}

/// Serves `echo` until the process is ended.
async fn agent(data: &DataDir) -> Result<(), BenchError> {
    let client = Client::attach(data)
        .await
        .map_err(BenchError::failed("attaching to the node"))?;
    let agent = Agent::new("echo").map_err(BenchError::failed("creating the agent"))?;
    let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
    let _serving = client
        .serve(agent, echo)
        .await
        .map_err(BenchError::failed("serving"))?;
    say("{}")?;
    let gone = client.closed().await;
    Err(BenchError::Reported(format!("the node is gone: {gone}")))
}

/// Attacks until its time is over or standard input ends, and prints the result.
async fn attack() -> Result<(), BenchError> {
    let _ = rustix::process::nice(NICE);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let line = lines
        .next_line()
        .await
        .map_err(BenchError::io("reading standard input"))?;
    let orders: AttackOrders = serde_json::from_str(&line.unwrap_or_default())
        .map_err(BenchError::failed("reading the orders"))?;
    let (begun, counters) = (Instant::now(), AttackCounters::default());
    let time = Duration::from_secs_f64(orders.seconds);
    let failed = tokio::select! {
        done = Box::pin(attack::run(&orders, &counters)) => done.err().map(|error| error.with_cause()),
        () = tokio::time::sleep(time) => None,
        _ = lines.next_line() => None,
    };
    let (did, refused) = counters.taken();
    let report = AttackReport {
        seconds: begun.elapsed().as_secs_f64(),
        cpu_s: process::usage(std::process::id()).cpu.as_secs_f64(),
        did,
        refused,
        failed: failed.unwrap_or_default(),
    };
    say(&serde_json::to_string(&report).map_err(|e| BenchError::Invalid(e.to_string()))?)
}

fn say(line: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(BenchError::io("writing standard output"))
}
