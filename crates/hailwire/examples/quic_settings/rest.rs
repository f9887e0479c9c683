//! What tunnels cost while nothing is asked, and how long one is believed in after its peer has vanished.

use std::time::{Duration, Instant};

use hailwire::{Client, admin, admin::method};
use serde_json::json;

use crate::{Failure, ask, counters, join};

/// Nodes of the far process: some to get going, the others are counted.
pub(crate) const CROWD: usize = 56;

/// Peers before the first look, so that what is made once is not counted.
const FIRST: usize = 16;

/// How long a tunnel at rest is watched.
const WATCHED: Duration = Duration::from_secs(11);

/// Joins a crowd and says how much memory each of it takes here.
pub(crate) async fn peers(client: &Client, tickets: &str) -> Result<(), Failure> {
    let mut before = 0;
    for (place, ticket) in tickets.split(',').enumerate() {
        if place == FIRST {
            before = resident()?;
        }
        join(client, ticket, &format!("p{place}")).await?;
    }
    let after = resident()?;
    let peers = CROWD - FIRST;
    let status: admin::NodeStatus = client.admin(method::STATUS, &()).await?;
    let line = json!({
        "work": "peers",
        "peers": peers,
        "tunnels": status.tunnels.len(),
        "bytes_each": after.saturating_sub(before) / peers as u64,
    });
    println!("{line}");
    Ok(())
}

/// Counts the packets of a tunnel at rest.
pub(crate) async fn packets(client: &Client) -> Result<(), Failure> {
    ask(client, 1000, 0).await?;
    // Path and MTU searches come to rest.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = counters(client).await?;
    tokio::time::sleep(WATCHED).await;
    let after = counters(client).await?;
    let sent = after.sent_packets - before.sent_packets;
    let line = json!({
        "work": "rest",
        "seconds": WATCHED.as_secs(),
        "sent_packets": sent,
        "sent_packets_a_minute": (sent as f64 * 60.0 / WATCHED.as_secs_f64()).round(),
        "sent_bytes": after.sent_bytes - before.sent_bytes,
        "received_bytes": after.received_bytes - before.received_bytes,
    });
    println!("{line}");
    Ok(())
}

/// Has the peer vanish without a word and waits until it is noticed.
pub(crate) async fn gone(client: &Client) -> Result<(), Failure> {
    let call = client.call("bytes@far").method("vanish");
    call.send().await?.bytes(10).await?;
    let start = Instant::now();
    loop {
        let status: admin::NodeStatus = client.admin(method::STATUS, &()).await?;
        if status.tunnels.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let line = json!({ "work": "gone", "noticed_after_ms": start.elapsed().as_millis() });
    println!("{line}");
    Ok(())
}

/// Memory of this process, in bytes (proc_pid_statm(5)).
fn resident() -> Result<u64, Failure> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split_whitespace().nth(1).ok_or("no statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
