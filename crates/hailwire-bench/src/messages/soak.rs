//! Half an hour of durable messages and of publishing, while the receiver's node is killed and started again every twenty seconds: nothing may be
//! lost, and the memory and the disks of both nodes must be flat.

use std::{
    collections::HashSet,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hailwire::{Code, Request, Response, Status, TopicEvent};
use tokio::{task::JoinSet, time::MissedTickBehavior};

use super::{
    MessageOptions,
    record::{MessageRecord, SoakEnd, SoakState},
    survival::{DESK, Draws, LAPTOP, Program, TwoNodes, locked, wait_for_ends},
};
use crate::{BenchError, measure::process::usage};

/// Between two restarts of the receiver's node.
const PERIOD: Duration = Duration::from_secs(20);

/// Programs that send, and how often each does: 200 messages a second together.
const SENDERS: u64 = 4;
const SEND_EVERY: Duration = Duration::from_millis(20);

/// Between two messages that are published.
const PUBLISH_EVERY: Duration = Duration::from_millis(5);

/// Bytes of each.
const BODY: usize = 1024;

/// What the nodes keep of messages that have their end: so long that none is looked for in vain, so short that a soak sees it go.
const SETTINGS: &str = "messages { keep \"10s\" }\n";

/// The agent.
const WORK: &str = "work";

/// What all tasks count.
#[derive(Debug, Default)]
struct SoakCounts {
    accepted: AtomicU64,
    published: AtomicU64,
    received: AtomicU64,
    done: Mutex<HashSet<u64>>,
}

/// Soaks for so long. `keep` is called with what each period comes to.
pub(super) async fn run(
    order: &MessageOptions,
    length: Duration,
    keep: &mut impl FnMut(MessageRecord) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut nodes = TwoNodes::start(order, SETTINGS).await?;
    let counts = Arc::<SoakCounts>::default();
    let mut readers = JoinSet::new();
    readers.spawn(serve(Program::beside(&nodes, LAPTOP), counts.clone()));
    readers.spawn(subscribe(Program::beside(&nodes, LAPTOP), counts.clone()));
    let mut writers = JoinSet::new();
    for sender in 0..SENDERS {
        writers.spawn(send(Program::beside(&nodes, DESK), sender, counts.clone()));
    }
    writers.spawn(publish(Program::beside(&nodes, DESK), counts.clone()));
    let (begun, mut draws) = (Instant::now(), Draws(order.seed));
    while begun.elapsed() < length {
        tokio::time::sleep(PERIOD).await;
        let [desk, laptop] = [DESK, LAPTOP].map(|name| nodes.pid(name).map_or(0, memory));
        let [desk_disk, laptop_disk] = [DESK, LAPTOP].map(|name| disk(&nodes.data(name)));
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        keep(MessageRecord::Soak(SoakState {
            at_s: begun.elapsed().as_secs(),
            accepted: read(&counts.accepted),
            done: locked(&counts.done).len() as u64,
            published: read(&counts.published),
            received: read(&counts.received),
            memory: [desk, laptop],
            disk: [desk_disk, laptop_disk],
        }))?;
        nodes.kill(LAPTOP, &mut draws).await?;
    }
    writers.abort_all();
    while writers.join_next().await.is_some() {}
    let mut desk = Program::beside(&nodes, DESK);
    wait_for_ends(&mut desk, order).await?;
    // A send that was cut off may have been accepted, and counts as neither.
    let accepted = counts.accepted.load(Ordering::Relaxed);
    let done = locked(&counts.done).len() as u64;
    readers.abort_all();
    keep(MessageRecord::SoakEnd(SoakEnd {
        accepted,
        lost: accepted.saturating_sub(done),
    }))?;
    nodes.end().await;
    Ok(())
}

fn memory(pid: u32) -> u64 {
    usage(pid).rss_bytes
}

/// What the files of a folder take.
fn disk(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| entry.metadata().ok());
    sizes
        .filter(std::fs::Metadata::is_file)
        .map(|file| file.len())
        .sum()
}

/// Serves the agent for ever.
async fn serve(program: Program, counts: Arc<SoakCounts>) {
    let handler = move |request: Request| {
        let counts = counts.clone();
        async move {
            let body = request.into_body().bytes(BODY).await?;
            let number = body.first_chunk().copied().map(u64::from_be_bytes);
            let bad = || Status::new(Code::InvalidArgument, "not a number");
            locked(&counts.done).insert(number.ok_or_else(bad)?);
            Ok(Response::new(""))
        }
    };
    program.serve(WORK, handler).await;
}

async fn subscribe(mut program: Program, counts: Arc<SoakCounts>) {
    loop {
        let client = program.client().await;
        if let Ok(mut subscription) = client.subscribe(["soak.>"]).await {
            while let Ok(Some(event)) = subscription.next().await {
                if let TopicEvent::Message(_) = event {
                    counts.received.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        program.forget();
    }
}

/// Sends for ever, each message until it is accepted.
async fn send(mut program: Program, sender: u64, counts: Arc<SoakCounts>) {
    let mut due = tokio::time::interval(SEND_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in (sender..).step_by(SENDERS as usize) {
        due.tick().await;
        let mut body = vec![7; BODY];
        body[..8].copy_from_slice(&number.to_be_bytes());
        loop {
            let call = program.client().await.call(format!("{WORK}@{LAPTOP}"));
            let call = call.idempotency_key(number.to_string()).body(body.clone());
            if call.durable(false, false).await.is_ok() {
                counts.accepted.fetch_add(1, Ordering::Relaxed);
                break;
            }
            program.forget();
        }
    }
}

async fn publish(mut program: Program, counts: Arc<SoakCounts>) {
    let mut due = tokio::time::interval(PUBLISH_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let client = program.client().await;
        match client.publish("soak.tick").body(vec![7; BODY]).send().await {
            Ok(_) => drop(counts.published.fetch_add(1, Ordering::Relaxed)),
            Err(_) => program.forget(),
        }
    }
}
