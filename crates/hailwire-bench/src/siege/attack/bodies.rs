//! Peers that may call nothing: endless bodies to the agent `node`, and answers that are never read.

use std::time::Duration;

use bytes::Bytes;
use hailwire::{
    Priority,
    carrier::{CarrierConnection, SendStream},
};
use hailwire_wire::frame::{FrameKind, prefix};
use tokio::{task::JoinSet, time::timeout};

use super::{AttackCounters, AttackOrders, PAUSE_AFTER_REFUSAL, pace};
use crate::{
    BenchError,
    siege::peer::{self, KeySeed, NodeAddress, call, frame_of},
};

/// Streams with an endless body on each connection.
const STREAMS: usize = 64;

/// Answers that are never read, on each connection.
const UNREAD_ANSWERS: usize = 500;

/// The length that a body claims: as much as a frame's length can say.
const CLAIMED_LENGTH: usize = 0xff_ffff;

/// One write.
const CHUNK: usize = 16 * 1024;

/// Writes a second on each connection: 4 MB/s.
const PER_SECOND: f64 = 250.0;

/// How long a connection is held on which nothing more can be written.
const HOLD_TIME: Duration = Duration::from_secs(5);

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let mut all = JoinSet::new();
    for (number, seed) in orders.seeds.iter().enumerate() {
        let (address, seed, counters) = (orders.victim, seed.clone(), counters.clone());
        all.spawn(async move {
            loop {
                let flooded = Box::pin(flood(address, &seed, number == 0, &counters)).await;
                if let Err(error) = flooded {
                    counters.refused(&error.with_cause());
                }
                tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
            }
        });
    }
    while all.join_next().await.is_some() {}
    Ok(())
}

/// One connection, until it is refused or nothing more can be written.
async fn flood(
    address: NodeAddress,
    seed: &KeySeed,
    by_quic: bool,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let endpoint;
    let connection = if by_quic {
        endpoint = seed.endpoint().await?;
        address.quic(&endpoint).await?
    } else {
        address.ws(&seed.identity()?).await?
    };
    counters.did("connections", 1);
    let _control = peer::greet(&connection).await?;
    let unread = ask_and_do_not_read(&connection, counters).await;
    let written = write_without_end(&connection, counters).await;
    drop(unread);
    connection.close(hailwire::Code::Cancelled, "again");
    written
}

/// Streams whose answers wait.
async fn ask_and_do_not_read(
    connection: &CarrierConnection,
    counters: &AttackCounters,
) -> Vec<impl Sized> {
    let mut unread = Vec::new();
    let ask = async {
        for _ in 0..UNREAD_ANSWERS {
            let Ok((mut send, recv)) = connection.open(Priority::Low).await else {
                break;
            };
            let asked = [call("node", "agents"), frame_of(FrameKind::DATA, b"{}")];
            if send.write_many(&mut asked.clone()).await.is_err() {
                break;
            }
            send.finish();
            counters.did("unread answers", 1);
            unread.push((send, recv));
        }
    };
    // Where no more may be opened, it waits.
    let _ = timeout(HOLD_TIME, ask).await;
    unread
}

/// Bodies without end, on all streams in turn.
async fn write_without_end(
    connection: &CarrierConnection,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let mut streams: Vec<Option<(SendStream, hailwire::carrier::RecvStream)>> = Vec::new();
    let claim = Bytes::copy_from_slice(&prefix(FrameKind::DATA, CLAIMED_LENGTH));
    for number in 0..STREAMS {
        let opened = timeout(HOLD_TIME, connection.open(Priority::Medium)).await;
        let Ok(opened) = opened else { break };
        let (mut send, recv) = opened.map_err(BenchError::failed("opening a stream"))?;
        let method = ["agents", "status", "join", "trust.list"][number % 4];
        let mut frames = [call("node", method), claim.clone()];
        let opening = send.write_many(&mut frames);
        if timeout(HOLD_TIME, opening)
            .await
            .is_ok_and(|done| done.is_ok())
        {
            counters.did("streams", 1);
            streams.push(Some((send, recv)));
        }
    }
    let chunk = Bytes::from(vec![b'x'; CHUNK]);
    let mut pace = pace(PER_SECOND);
    let mut waits = 0;
    for turn in 0_usize.. {
        pace.tick().await;
        let len = streams.len().max(1);
        let Some(address) = streams.get_mut(turn % len) else {
            return Err(BenchError::Unsupported("no stream is left"));
        };
        let Some((send, _)) = address else {
            waits += 1;
            if waits > 4 * STREAMS {
                return Err(BenchError::Unsupported("all streams are refused or full"));
            }
            continue;
        };
        match timeout(Duration::from_millis(20), send.write(chunk.clone())).await {
            Ok(Ok(())) => {
                waits = 0;
                counters.did("bytes", CHUNK as u64);
            }
            Ok(Err(error)) => {
                counters.refused(&error.to_string());
                *address = None;
            }
            // The connection is full: it is held as it is.
            Err(_) => {
                waits += 1;
                if waits > STREAMS {
                    tokio::time::sleep(HOLD_TIME).await;
                    return Err(BenchError::Unsupported("all streams are full"));
                }
            }
        }
    }
    Ok(())
}
