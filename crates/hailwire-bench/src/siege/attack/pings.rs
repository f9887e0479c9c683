//! WebSocket pings whose pongs are never read, at a node's port and at a hub's relay.

use std::{sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{Orders, PAUSE, Tally, pace};
use crate::{
    BenchError,
    siege::peer::{Place, Seed, failed, hub_tls},
};

/// A masked ping of 125 bytes, the longest there is (RFC 6455, 5.5), whose mask is zero.
const PING: usize = 2 + 4 + 125;

/// Pings in one write.
const AT_ONCE: usize = 250;

/// Writes a second on each connection: 3 MB/s, which nobody who is read would send.
const PER_SECOND: f64 = 100.0;

/// A connection on which nothing more can be written is held so long.
const HELD: Duration = Duration::from_secs(10);

/// Connections to the node, and to the relay.
const CONNECTIONS: [usize; 2] = [3, 2];

pub(super) async fn run(orders: &Orders, tally: &Tally) -> Result<(), BenchError> {
    let mut all = JoinSet::new();
    for _ in 0..CONNECTIONS[0] {
        let (place, seed, tally) = (orders.victim, Seed::draw()?, tally.clone());
        all.spawn(async move {
            loop {
                let flooded = Box::pin(at_node(place, &seed, &tally)).await;
                if let Err(error) = flooded {
                    tally.refused(&format!("node: {}", error.told()));
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    for _ in 0..CONNECTIONS[1] {
        let (hub, tally) = (orders.hub.clone(), tally.clone());
        all.spawn(async move {
            loop {
                if let Err(error) = Box::pin(at_relay(&hub, &tally)).await {
                    tally.refused(&format!("relay: {}", error.told()));
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    while all.join_next().await.is_some() {}
    Ok(())
}

async fn at_node(place: Place, seed: &Seed, tally: &Tally) -> Result<(), BenchError> {
    let tls = place.tls(&seed.identity()?, b"http/1.1").await?;
    flood(tls, "/hailwire", "hailwire", "node", tally).await
}

async fn at_relay(hub: &super::HubPlace, tally: &Tally) -> Result<(), BenchError> {
    let ticket = hub.read()?;
    let key = ticket
        .key
        .ok_or(BenchError::Unsupported("a hub without a key"))?;
    let host = ticket.url.host();
    let io = TcpStream::connect((host, ticket.url.port())).await;
    let io = io.map_err(BenchError::io("connecting"))?;
    let name = ServerName::try_from(host.to_owned()).map_err(failed("the name"))?;
    let tls = TlsConnector::from(Arc::new(hub_tls(host, key)?))
        .connect(name, io)
        .await
        .map_err(BenchError::io("TLS"))?;
    let protocols = "iroh-relay-v1, iroh-relay-v2";
    flood(tls, "/relay", protocols, "relay", tally).await
}

/// Asks for a WebSocket, then pings until the far side has enough.
async fn flood<IO: AsyncRead + AsyncWrite + Unpin>(
    mut io: IO,
    path: &str,
    protocols: &str,
    at: &str,
    tally: &Tally,
) -> Result<(), BenchError> {
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: {protocols}\r\n\r\n"
    );
    let asked = io.write_all(head.as_bytes()).await;
    asked.map_err(BenchError::io("asking"))?;
    let mut answer = [0; 12];
    let read = timeout(HELD, io.read_exact(&mut answer)).await;
    read.map_err(|_| BenchError::Unsupported("no answer to the upgrade"))?
        .map_err(BenchError::io("the upgrade"))?;
    if &answer != b"HTTP/1.1 101" {
        return Err(BenchError::Told(String::from_utf8_lossy(&answer).into()));
    }
    tally.did(&format!("{at}: WebSockets"), 1);
    let mut ping = vec![0x89, 0x80 | 125, 0, 0, 0, 0];
    ping.resize(PING, b'p');
    let pings = ping.repeat(AT_ONCE);
    let mut pace = pace(PER_SECOND);
    loop {
        pace.tick().await;
        match timeout(HELD, io.write_all(&pings)).await {
            Err(_) => {
                tally.refused(&format!("{at}: not read for 10 s"));
                return Ok(());
            }
            Ok(written) => written.map_err(BenchError::io("pinging"))?,
        }
        tally.did(&format!("{at}: pings"), AT_ONCE as u64);
    }
}
