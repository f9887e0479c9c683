//! A peer that sends new lists of its agents without pause, some under the names of others.

use hailwire_wire::{
    frame::FrameKind,
    header::{self, AgentOffer, AgentOffers},
};

use super::{AttackCounters, AttackOrders, PAUSE_AFTER_REFUSAL, pace};
use crate::{
    BenchError,
    siege::peer::{self, frame_of},
};

/// Lists a second.
const PER_SECOND: f64 = 400.0;

/// Agents of a list.
const AGENTS: usize = 20;

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let endpoint = orders.seed(0)?.endpoint().await?;
    let mut pace = pace(PER_SECOND);
    loop {
        let flood = async {
            let connection = orders.victim.quic(&endpoint).await?;
            let (mut control, mut heard) = peer::greet(&connection).await?;
            counters.did("connections", 1);
            // The node's answers are read: only the number of lists is excessive.
            let reading =
                tokio::spawn(async move { while let Ok(Some(_)) = heard.read(1 << 16).await {} });
            let flooded = async {
                for turn in 0_usize.. {
                    pace.tick().await;
                    let list = header::encode(&list(turn)?);
                    let frame = frame_of(FrameKind::OFFERS, &list);
                    control
                        .write(frame)
                        .await
                        .map_err(BenchError::failed("sending a list"))?;
                    counters.did("lists", 1);
                }
                Ok(())
            };
            let flooded: Result<(), BenchError> = flooded.await;
            reading.abort();
            flooded
        };
        if let Err(error) = flood.await {
            counters.refused(&error.with_cause());
        }
        tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
    }
}

fn list(turn: usize) -> Result<AgentOffers, BenchError> {
    let offer = |number: usize| {
        let name = match number {
            0 => "echo".to_owned(),
            number => format!("agent-{number}-{}", turn % 7),
        };
        Ok(AgentOffer {
            group: hailwire_wire::header::OfferedGroup::default(),
            name: name.parse().map_err(BenchError::failed("parsing a name"))?,
            description: format!("list {turn}").repeat(10),
            tags: vec!["flood".to_owned()],
            version: turn.to_string(),
        })
    };
    let agents = (0..AGENTS).map(offer).collect::<Result<_, BenchError>>()?;
    Ok(AgentOffers {
        agents,
        ..AgentOffers::default()
    })
}
