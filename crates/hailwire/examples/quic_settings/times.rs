//! Times of single answers.

use std::time::{Duration, Instant};

use hailwire::Client;
use serde_json::json;

use crate::{Failure, ask, counters};

/// Bytes of an answer.
const SIZES: [usize; 5] = [1_000, 64_000, 128_000, 256_000, 1_000_000];

/// Answers of each size in one repeat.
const ANSWERS: usize = 300;

/// Pause before each question of the paced measurement.
const PACE: Duration = Duration::from_millis(5);

pub(crate) async fn measure(client: &Client, work: &str) -> Result<(), Failure> {
    let pause = if work == "paced" {
        PACE
    } else {
        Duration::ZERO
    };
    for size in SIZES {
        let asked_with = if work == "echoes" { size } else { 0 };
        answers(client, size, asked_with, pause).await?;
    }
    Ok(())
}

/// Asks again and again, one at a time, with so many bytes and a pause before each.
async fn answers(
    client: &Client,
    size: usize,
    asked_with: usize,
    pause: Duration,
) -> Result<(), Failure> {
    ask(client, size, asked_with).await?;
    let before = counters(client).await?;
    let mut times = Vec::new();
    for _ in 0..ANSWERS {
        tokio::time::sleep(pause).await;
        let start = Instant::now();
        ask(client, size, asked_with).await?;
        times.push(start.elapsed());
    }
    let after = counters(client).await?;
    times.sort();
    let at = |share: f64| {
        let index = (share * (times.len() - 1) as f64).round() as usize;
        times.get(index).map(|time| time.as_micros())
    };
    let line = json!({
        "work": "answers",
        "pause_us": pause.as_micros(),
        "asked_with": asked_with,
        "bytes": size,
        "answers": times.len(),
        "p50_us": at(0.5),
        "p90_us": at(0.9),
        "p99_us": at(0.99),
        "max_us": at(1.0),
        "slower_than_20_ms": times.iter().filter(|time| time.as_millis() >= 20).count(),
        "sent_packets": after.sent_packets - before.sent_packets,
        "lost_packets": after.lost_packets - before.lost_packets,
        "received_bytes": after.received_bytes - before.received_bytes,
    });
    println!("{line}");
    Ok(())
}
