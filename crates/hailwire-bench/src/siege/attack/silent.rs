//! TCP connections that send nothing, or half a TLS record.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{AttackCounters, AttackOrders, pace};
use crate::BenchError;

/// Connections held at the node, and at the hub.
const CONNECTIONS_HELD: [usize; 2] = [200, 100];

/// The beginning of a TLS record that claims to be long.
const HALF_CLIENT_HELLO: &[u8] = &[0x16, 0x03, 0x01, 0x01, 0xf4, 0x01, 0x00];

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let hub = orders.hub.address()?;
    let mut pace = pace(100.0);
    let mut held: [JoinSet<()>; 2] = Default::default();
    loop {
        pace.tick().await;
        for (listener, (held, most)) in held.iter_mut().zip(CONNECTIONS_HELD).enumerate() {
            while held.try_join_next().is_some() {}
            if held.len() < most {
                let address = if listener == 0 {
                    orders.victim.tcp
                } else {
                    hub
                };
                held.spawn(hold(address, held.len() % 2 == 0, counters.clone()));
            }
        }
    }
}

/// Holds one connection until the remote side closes it.
async fn hold(address: SocketAddr, says_half: bool, counters: AttackCounters) {
    let begun = std::time::Instant::now();
    let connected = TcpStream::connect(address);
    let connected = tokio::time::timeout(Duration::from_secs(10), connected).await;
    let Ok(Ok(mut socket)) = connected else {
        return counters.refused("not connected");
    };
    counters.did("connections held", 1);
    if says_half {
        let _ = socket.write_all(HALF_CLIENT_HELLO).await;
    }
    let _ = socket.read(&mut [0; 1_024]).await;
    let after = match begun.elapsed().as_secs() {
        0..=1 => "hung up at once",
        2..=9 => "hung up within 10 s",
        _ => "hung up after 10 s or more",
    };
    counters.refused(after);
}
