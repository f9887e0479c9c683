//! A process of the siege: an attacker, or the agent that is called.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use hailwire::{Agent, Client, DataDir, Request, Response};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{
    attack::{self, Orders, Report, Tally},
    peer::failed,
};
use crate::{BenchError, measure::process};

/// How much an attacker gives way to others.
const NICE: i32 = 10;

/// Plays `agent`, on the node of a data folder, or `attack`, as the line on standard input says.
///
/// # Errors
///
/// [`BenchError`], before it is under way.
pub async fn part(name: &str, data: &DataDir) -> Result<(), BenchError> {
    match name {
        "agent" => agent(data).await,
        "attack" => attack().await,
        _ => Err(BenchError::Unsupported("there is no such part")),
    }
}

/// Serves `echo` until the process is ended.
async fn agent(data: &DataDir) -> Result<(), BenchError> {
    let client = Client::attach(data).await.map_err(failed("attaching"))?;
    let agent = Agent::new("echo").map_err(failed("the agent"))?;
    let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
    let _serving = client.serve(agent, echo).await.map_err(failed("serving"))?;
    say("{}")?;
    let gone = client.closed().await;
    Err(BenchError::Told(format!("the node is gone: {gone}")))
}

/// Attacks until its time is over or standard input ends, and says what came of it.
async fn attack() -> Result<(), BenchError> {
    let _ = rustix::process::nice(NICE);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let line = lines
        .next_line()
        .await
        .map_err(BenchError::io("standard input"))?;
    let orders: Orders =
        serde_json::from_str(&line.unwrap_or_default()).map_err(failed("the orders"))?;
    let (begun, tally) = (Instant::now(), Tally::default());
    let time = Duration::from_secs_f64(orders.seconds);
    let failed = tokio::select! {
        done = Box::pin(attack::run(&orders, &tally)) => done.err().map(|error| error.told()),
        () = tokio::time::sleep(time) => None,
        _ = lines.next_line() => None,
    };
    let (did, refused) = tally.taken();
    let report = Report {
        seconds: begun.elapsed().as_secs_f64(),
        cpu_s: process::usage(std::process::id()).cpu.as_secs_f64(),
        did,
        refused,
        failed: failed.unwrap_or_default(),
    };
    say(&serde_json::to_string(&report).map_err(|e| BenchError::Wrong(e.to_string()))?)
}

fn say(line: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(BenchError::io("standard output"))
}
