//! How much a tunnel moves in a second.

use std::time::{Duration, Instant};

use hailwire::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{Failure, ask, counters};

/// How long one repeat measures.
const TIME: Duration = Duration::from_secs(4);

/// How long endless answers run before they are measured: windows grow, paths are learnt.
const WARM: Duration = Duration::from_secs(2);

pub(crate) async fn measure(client: &Client, work: &str) -> Result<(), Failure> {
    let begun = (processor_ms(), counters(client).await?);
    let mut line = match work {
        "one" => endless(client, 1).await?,
        "sixteen" => endless(client, 16).await?,
        "calls" => calls(client, 64, 1_000).await?,
        "many-calls" => calls(client, 512, 1_000).await?,
        _ => calls(client, 4, 1_000_000).await?,
    };
    let tunnel = counters(client).await?;
    let (processor, before) = begun;
    line["work"] = json!(work);
    line["rtt_us"] = json!(tunnel.path.rtt_us);
    line["carrier"] = json!(tunnel.carrier);
    line["processor_ms"] = json!(processor_ms() - processor);
    line["sent_packets"] = json!(tunnel.sent_packets - before.sent_packets);
    line["received_bytes"] = json!(tunnel.received_bytes - before.received_bytes);
    println!("{line}");
    Ok(())
}

/// So many answers without end at a time.
async fn endless(client: &Client, at_once: usize) -> Result<Value, Failure> {
    let start = Instant::now();
    let mut reading = JoinSet::new();
    for _ in 0..at_once {
        let call = client.call("bytes@far").method("endless");
        reading.spawn(async move {
            let mut answer = call.send().await?;
            let mut bytes = 0;
            while start.elapsed() < WARM + TIME {
                let chunk = answer.chunk().await?.ok_or("it ended")?;
                if start.elapsed() >= WARM {
                    bytes += chunk.len();
                }
            }
            Ok::<usize, Failure>(bytes)
        });
    }
    let bytes = sum(reading).await?;
    let seconds = (start.elapsed() - WARM).as_secs_f64();
    Ok(json!({ "at_once": at_once, "bytes_per_second": (bytes as f64 / seconds).round() }))
}

/// So many questions at a time, again and again.
async fn calls(client: &Client, at_once: usize, size: usize) -> Result<Value, Failure> {
    ask(client, size, 0).await?;
    let start = Instant::now();
    let mut asking = JoinSet::new();
    for _ in 0..at_once {
        let client = client.clone();
        asking.spawn(async move {
            let mut answers = 0;
            while start.elapsed() < TIME {
                ask(&client, size, 0).await?;
                answers += 1;
            }
            Ok::<usize, Failure>(answers)
        });
    }
    let answers = sum(asking).await? as f64;
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({
        "at_once": at_once,
        "bytes": size,
        "calls_per_second": (answers / seconds).round(),
        "bytes_per_second": (answers * size as f64 / seconds).round(),
    }))
}

async fn sum(mut tasks: JoinSet<Result<usize, Failure>>) -> Result<usize, Failure> {
    let mut all = 0;
    while let Some(one) = tasks.join_next().await {
        all += one??;
    }
    Ok(all)
}

/// Processor time of this process so far (proc_pid_stat(5)).
fn processor_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let field = |at: usize| {
        let field = after_name.split_whitespace().nth(at);
        field.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    (field(11) + field(12)) * 1000 / rustix::param::clock_ticks_per_second()
}
