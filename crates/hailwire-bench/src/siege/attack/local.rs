//! A program on the machine that attaches and does not behave: thousands of streams, malformed frames.

use std::{path::Path, time::Duration};

use hailwire_wire::mux::{Role, preface};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    task::JoinSet,
    time::timeout,
};

use super::{Orders, PAUSE, Tally, pace};
use crate::{
    BenchError,
    siege::peer::{Noise, call},
};

/// Streams that one connection opens, more than it may.
const STREAMS: u64 = 5_000;

/// Connections that break the rules, each second.
const MALFORMED: f64 = 20.0;

/// Of those, at a time.
const MOST_MALFORMED: usize = 100;

/// Programs that open streams.
const PROGRAMS: usize = 2;

/// How long streams are held.
const HELD: Duration = Duration::from_secs(5);

pub(super) async fn run(orders: &Orders, tally: &Tally) -> Result<(), BenchError> {
    let mut programs = JoinSet::new();
    for _ in 0..PROGRAMS {
        let (socket, tally) = (orders.socket.clone(), tally.clone());
        programs.spawn(async move {
            loop {
                if let Err(error) = streams(&socket, &tally).await {
                    tally.refused(&format!("streams: {}", error.told()));
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    let mut noise = Noise::new()?;
    let mut pace = pace(MALFORMED);
    let mut waiting = JoinSet::new();
    loop {
        pace.tick().await;
        while waiting.try_join_next().is_some() {}
        if waiting.len() < MOST_MALFORMED {
            let (socket, tally) = (orders.socket.clone(), tally.clone());
            let bytes = broken(&mut noise);
            waiting.spawn(async move {
                if let Err(error) = malformed(&socket, &bytes, &tally).await {
                    tally.refused(&format!("malformed: {}", error.told()));
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
        .map_err(BenchError::io("attaching"))?;
    let hello = preface(Role::Client);
    io.write_all(&hello)
        .await
        .map_err(BenchError::io("attaching"))?;
    Ok(io)
}

/// Opens streams, a third with half a frame, a third with a body that does not end, a third with a call whose answer is
/// never read.
async fn streams(socket: &Path, tally: &Tally) -> Result<(), BenchError> {
    let mut io = attach(socket).await?;
    // The control stream comes first.
    let hello = [0x01, 0, 0, 0x0c, 0x81, 0xa8];
    let hello = [&hello[..], b"versions", &[0x91, 0x01]].concat();
    let hello = frame(1, 0x30, 1, &hello);
    io.write_all(&hello)
        .await
        .map_err(BenchError::io("greeting"))?;
    for number in 0..STREAMS {
        let opening = match number % 3 {
            0 => vec![0x02, 0],
            1 => [&call("echo", "")[..], &[0x11, 0xff, 0xff, 0xff, 1, 2, 3]].concat(),
            _ => call("node", "agents").to_vec(),
        };
        let opening = frame(1, 0x10, 3 + 2 * number, &opening);
        match timeout(HELD, io.write_all(&opening)).await {
            Err(_) => return Err(BenchError::Unsupported("not read for 5 s")),
            Ok(written) => written.map_err(|_| BenchError::Unsupported("hung up"))?,
        }
        tally.did("streams", 1);
        if number % 500 == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let mut said = Vec::new();
    let _ = timeout(HELD, io.read_to_end(&mut said)).await;
    Ok(())
}

/// What breaks a rule.
fn broken(noise: &mut Noise) -> Vec<u8> {
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

/// One connection that breaks a rule, and is to be ended for it.
async fn malformed(socket: &Path, bytes: &[u8], tally: &Tally) -> Result<(), BenchError> {
    let mut io = attach(socket).await?;
    tally.did("malformed connections", 1);
    let _ = io.write_all(bytes).await;
    let mut said = Vec::new();
    match timeout(HELD, io.read_to_end(&mut said)).await {
        Err(_) => tally.did("stayed 5 s", 1),
        Ok(_) => tally.refused("malformed: hung up"),
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
