//! Untrusted peers that present forged tickets and keep their connections open.

use std::time::Duration;

use hailwire_wire::ticket::TicketSecret;
use tokio::task::JoinSet;

use super::{AttackCounters, AttackOrders, pace};
use crate::{
    BenchError,
    siege::peer::{self, KeySeed, NodeAddress},
};

/// New connections a second.
const PER_SECOND: f64 = 8.0;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 48;

/// How long each stays after it was refused, unless it is closed before.
const HOLD_TIME: Duration = Duration::from_secs(15);

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let mut pace = pace(PER_SECOND);
    let mut here = JoinSet::new();
    for turn in 0_usize.. {
        pace.tick().await;
        while here.try_join_next().is_some() {}
        if here.len() >= MAX_CONNECTIONS {
            continue;
        }
        let (address, counters) = (orders.victim, counters.clone());
        here.spawn(async move {
            let come = async {
                if turn % 2 == 0 {
                    Box::pin(by_quic(address, &counters)).await
                } else {
                    Box::pin(by_tcp(address, &counters)).await
                }
            };
            if let Err(error) = come.await {
                counters.refused(&error.with_cause());
            }
        });
    }
    Ok(())
}

async fn by_quic(address: NodeAddress, counters: &AttackCounters) -> Result<(), BenchError> {
    let endpoint = KeySeed::draw()?.endpoint().await?;
    let connection = address.quic(&endpoint).await?;
    let shown = show(&connection, counters).await;
    endpoint.close().await;
    shown
}

async fn by_tcp(address: NodeAddress, counters: &AttackCounters) -> Result<(), BenchError> {
    let identity = KeySeed::draw()?.identity()?;
    let connection = address.ws(&identity).await?;
    show(&connection, counters).await
}

/// Presents a forged ticket, then stays until it is closed.
async fn show(
    connection: &hailwire::carrier::CarrierConnection,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    counters.did("connections", 1);
    let _control = peer::greet(connection).await?;
    let wrong = TicketSecret::from_random(peer::random()?);
    if let Err(error) = peer::redeem(connection, wrong).await {
        counters.refused(&error.with_cause());
    } else {
        counters.did("tickets taken", 1);
    }
    let gone = tokio::time::timeout(HOLD_TIME, connection.closed()).await;
    counters.did(
        if gone.is_ok() {
            "were hung up on"
        } else {
            "stayed 15 s"
        },
        1,
    );
    Ok(())
}
