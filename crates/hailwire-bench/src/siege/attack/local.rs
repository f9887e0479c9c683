//! A local program that attaches and breaks the rules: thousands of streams, malformed frames.

use std::{path::Path, time::Duration};

use hailwire_wire::mux::{MuxRole, preface};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    task::JoinSet,
    time::timeout,
};

use super::{AttackCounters, AttackOrders, PAUSE_AFTER_REFUSAL, pace};
use crate::{
    BenchError,
    siege::peer::{XorshiftBytes, call},
};

/// Streams that one connection opens, more than it may.
const MAX_STREAMS: u64 = 5_000;

/// Connections that break the rules, each second.
const MALFORMED_PER_SECOND: f64 = 20.0;

/// How many of those are open at a time.
const MAX_MALFORMED_BYTES: usize = 100;

/// Programs that open streams.
const PROGRAMS: usize = 2;

/// How long streams are held.
const HOLD_TIME: Duration = Duration::from_secs(5);

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let mut programs = JoinSet::new();
    for _ in 0..PROGRAMS {
        let (socket, counters) = (orders.socket.clone(), counters.clone());
        programs.spawn(async move {
            loop {
                if let Err(error) = streams(&socket, &counters).await {
                    counters.refused(&format!("streams: {}", error.with_cause()));
                }
                tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
            }
        });
    }
    let mut noise = XorshiftBytes::new()?;
    let mut pace = pace(MALFORMED_PER_SECOND);
    let mut waiting = JoinSet::new();
    loop {
        pace.tick().await;
        while waiting.try_join_next().is_some() {}
        if waiting.len() < MAX_MALFORMED_BYTES {
            let (socket, counters) = (orders.socket.clone(), counters.clone());
            let bytes = broken(&mut noise);
            waiting.spawn(async move {
                if let Err(error) = malformed(&socket, &bytes, &counters).await {
                    counters.refused(&format!("malformed: {}", error.with_cause()));
                }
            });
        }
    }
}

/// A frame of the multiplexer (spec/mux.md).
fn frame(kind: u8, flags: u8, stream: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind, flags];
    out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

async fn attach(socket: &Path) -> Result<UnixStream, BenchError> {
    let mut io = UnixStream::connect(socket)
        .await
        .map_err(BenchError::io("attaching to the node"))?;
    let hello = preface(MuxRole::Client);
    io.write_all(&hello)
        .await
        .map_err(BenchError::io("attaching to the node"))?;
    Ok(io)
}

/// Opens streams, a third with half a frame, a third with a body that does not end, a third with a call whose answer is
/// never read.
async fn streams(socket: &Path, counters: &AttackCounters) -> Result<(), BenchError> {
    let mut io = attach(socket).await?;
    // The control stream comes first.
    let hello = [0x01, 0, 0, 0x0c, 0x81, 0xa8];
    let hello = [&hello[..], b"versions", &[0x91, 0x01]].concat();
    let hello = frame(1, 0x30, 1, &hello);
    io.write_all(&hello)
        .await
        .map_err(BenchError::io("sending HELLO"))?;
    for number in 0..MAX_STREAMS {
        let opening = match number % 3 {
            0 => vec![0x02, 0],
            1 => [&call("echo", "")[..], &[0x11, 0xff, 0xff, 0xff, 1, 2, 3]].concat(),
            _ => call("node", "agents").to_vec(),
        };
        let opening = frame(1, 0x10, 3 + 2 * number, &opening);
        match timeout(HOLD_TIME, io.write_all(&opening)).await {
            Err(_) => return Err(BenchError::Unsupported("not read for 5 s")),
            Ok(written) => written.map_err(|_| BenchError::Unsupported("hung up"))?,
        }
        counters.did("streams", 1);
        if number % 500 == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let mut said = Vec::new();
    let _ = timeout(HOLD_TIME, io.read_to_end(&mut said)).await;
    Ok(())
}

/// Frames that break a rule.
fn broken(noise: &mut XorshiftBytes) -> Vec<u8> {
    match noise.below(4) {
        // A frame of unknown kind is skipped, and may be longer than what comes.
        0 => noise.bytes(1_000),
        // Longer than a frame may be.
        1 => vec![0x01, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1],
        // A stream that cannot exist.
        2 => frame(1, 0, 4, b"x"),
        _ => frame(4, 0, 0, b"one"),
    }
}

/// One connection that breaks a rule; the node has to close it.
async fn malformed(
    socket: &Path,
    bytes: &[u8],
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let mut io = attach(socket).await?;
    counters.did("malformed connections", 1);
    let _ = io.write_all(bytes).await;
    let mut said = Vec::new();
    match timeout(HOLD_TIME, io.read_to_end(&mut said)).await {
        Err(_) => counters.did("stayed 5 s", 1),
        Ok(_) => counters.refused("malformed: hung up"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_the_multiplexer_is_twelve_bytes_and_its_payload() {
        let bytes = frame(1, 0x21, 1, b"ping");
        assert_eq!(bytes[..12], [1, 0x21, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(&bytes[12..], b"ping");
    }
}
