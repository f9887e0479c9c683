//! TCP connections that say nothing, or half of something.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{Orders, Tally, pace};
use crate::BenchError;

/// Connections held at the node, and at the hub.
const HELD: [usize; 2] = [200, 100];

/// The beginning of a TLS record that says that it is long.
const HALF: &[u8] = &[0x16, 0x03, 0x01, 0x01, 0xf4, 0x01, 0x00];

pub(super) async fn run(orders: &Orders, tally: &Tally) -> Result<(), BenchError> {
    let hub = orders.hub.address()?;
    let mut pace = pace(100.0);
    let mut held: [JoinSet<()>; 2] = Default::default();
    loop {
        pace.tick().await;
        for (place, (held, most)) in held.iter_mut().zip(HELD).enumerate() {
            while held.try_join_next().is_some() {}
            if held.len() < most {
                let address = if place == 0 { orders.victim.tcp } else { hub };
                held.spawn(hold(address, held.len() % 2 == 0, tally.clone()));
            }
        }
    }
}

/// Holds one connection until the far side hangs up.
async fn hold(address: SocketAddr, says_half: bool, tally: Tally) {
    let begun = std::time::Instant::now();
    let connected = TcpStream::connect(address);
    let connected = tokio::time::timeout(Duration::from_secs(10), connected).await;
    let Ok(Ok(mut socket)) = connected else {
        return tally.refused("not connected");
    };
    tally.did("connections held", 1);
    if says_half {
        let _ = socket.write_all(HALF).await;
    }
    let _ = socket.read(&mut [0; 1_024]).await;
    let after = match begun.elapsed().as_secs() {
        0..=1 => "hung up at once",
        2..=9 => "hung up within 10 s",
        _ => "hung up after 10 s or more",
    };
    tally.refused(after);
}
