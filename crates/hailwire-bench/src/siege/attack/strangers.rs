//! Strangers that show tickets that nobody made, and stay.

use std::time::Duration;

use hailwire_wire::ticket::Secret;
use tokio::task::JoinSet;

use super::{Orders, Tally, pace};
use crate::{
    BenchError,
    siege::peer::{self, Place, Seed},
};

/// New ones a second.
const PER_SECOND: f64 = 8.0;

/// At a time.
const MOST: usize = 48;

/// How long each stays after it was refused, where it is let.
const STAYS: Duration = Duration::from_secs(15);

pub(super) async fn run(orders: &Orders, tally: &Tally) -> Result<(), BenchError> {
    let mut pace = pace(PER_SECOND);
    let mut here = JoinSet::new();
    for turn in 0_usize.. {
        pace.tick().await;
        while here.try_join_next().is_some() {}
        if here.len() >= MOST {
            continue;
        }
        let (place, tally) = (orders.victim, tally.clone());
        here.spawn(async move {
            let come = async {
                if turn % 2 == 0 {
                    Box::pin(by_quic(place, &tally)).await
                } else {
                    Box::pin(by_tcp(place, &tally)).await
                }
            };
            if let Err(error) = come.await {
                tally.refused(&error.told());
            }
        });
    }
    Ok(())
}

async fn by_quic(place: Place, tally: &Tally) -> Result<(), BenchError> {
    let endpoint = Seed::draw()?.endpoint().await?;
    let connection = place.quic(&endpoint).await?;
    let shown = show(&connection, tally).await;
    endpoint.close().await;
    shown
}

async fn by_tcp(place: Place, tally: &Tally) -> Result<(), BenchError> {
    let identity = Seed::draw()?.identity()?;
    let connection = place.ws(&identity).await?;
    show(&connection, tally).await
}

/// Shows a wrong ticket, then stays as long as it is let.
async fn show(connection: &hailwire::carrier::Connection, tally: &Tally) -> Result<(), BenchError> {
    tally.did("connections", 1);
    let _control = peer::greet(connection).await?;
    let wrong = Secret::from_random(peer::random()?);
    if let Err(error) = peer::redeem(connection, wrong).await {
        tally.refused(&error.told());
    } else {
        tally.did("tickets taken", 1);
    }
    let gone = tokio::time::timeout(STAYS, connection.closed()).await;
    tally.did(
        if gone.is_ok() {
            "were hung up on"
        } else {
            "stayed 15 s"
        },
        1,
    );
    Ok(())
}
