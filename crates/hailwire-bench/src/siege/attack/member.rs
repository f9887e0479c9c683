//! A member of the hub that searches and looks up without pause, and floods the relay with handshakes for a node
//! that does not trust it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _};
use hailwire::hub::{HubClient, tls::HubPins};
use hailwire_wire::{address::NodeRef, directory::SearchRequest};
use iroh::{EndpointId, dns::DnsResolver};
use iroh_relay::{
    client::ClientBuilder,
    protos::relay::{ClientToRelayMsg, Datagrams},
};
use tokio::{task::JoinSet, time::timeout};

use super::{AttackCounters, AttackOrders, PAUSE_AFTER_REFUSAL, datagrams::InitialForge, pace};
use crate::{BenchError, siege::peer::hub_tls};

/// Searches and look-ups a second, on each of [`SEARCH_TASKS`].
const PER_SECOND: f64 = 10.0;

/// At a time.
const SEARCH_TASKS: usize = 4;

/// Datagrams a second through the relay.
const DATAGRAMS_PER_SECOND: f64 = 500.0;

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let ticket = orders.hub.read()?;
    let seed = orders.seed(0)?;
    let client = HubClient::new(ticket.url, ticket.key, seed.pair(), &HubPins::default());
    let client = Arc::new(client.map_err(BenchError::failed("reaching the hub"))?);
    client
        .join(ticket.secret)
        .await
        .map_err(BenchError::failed("joining the hub"))?;
    let mut askers = JoinSet::new();
    for number in 0..SEARCH_TASKS {
        askers.spawn(ask(
            client.clone(),
            orders.victim.node,
            number,
            counters.clone(),
        ));
    }
    loop {
        if let Err(error) = Box::pin(relay(orders, counters)).await {
            counters.refused(&format!("relay: {}", error.with_cause()));
        }
        tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
    }
}

/// Searches, looks up, and lists members.
async fn ask(
    client: Arc<HubClient>,
    node: hailwire::NodeId,
    number: usize,
    counters: AttackCounters,
) {
    let mut pace = pace(PER_SECOND);
    for turn in number.. {
        pace.tick().await;
        let (what, asked) = match turn % 4 {
            0 | 1 => {
                let search = SearchRequest::default();
                ("searches", client.search(&search).await.map(drop))
            }
            2 => ("lists of members", client.members().await.map(drop)),
            _ => (
                "look-ups",
                client.lookup(&NodeRef::Id(node)).await.map(drop),
            ),
        };
        match asked {
            Ok(()) => counters.did(what, 1),
            Err(error) => counters.refused(&format!("{what}: {error}")),
        }
    }
}

/// Datagrams for the attacked node by way of the relay.
async fn relay(orders: &AttackOrders, counters: &AttackCounters) -> Result<(), BenchError> {
    let ticket = orders.hub.read()?;
    let key = ticket
        .key
        .ok_or(BenchError::Unsupported("a hub without a key"))?;
    let url: iroh::RelayUrl = ticket
        .url
        .to_string()
        .parse()
        .map_err(BenchError::failed("parsing the URL"))?;
    // The URL holds an IP address, so no name is resolved.
    let resolver = DnsResolver::with_nameserver(SocketAddr::from(([127, 0, 0, 1], 9)));
    let client = ClientBuilder::new(url, orders.seed(0)?.iroh(), resolver)
        .tls_client_config(hub_tls(ticket.url.host(), key)?)
        .connect()
        .await
        .map_err(BenchError::failed("connecting to the relay"))?;
    counters.did("relay connections", 1);
    let victim = orders.victim.node;
    let to =
        EndpointId::from_bytes(victim.as_bytes()).map_err(BenchError::failed("parsing the key"))?;
    let mut forge = InitialForge::new(orders)?;
    let (mut stream, mut sink) = client.split();
    let mut pace = pace(DATAGRAMS_PER_SECOND);
    for turn in 0_usize.. {
        tokio::select! {
            _ = pace.tick() => {}
            // Answers are read, so that the relay has no reason to stop.
            said = stream.next() => match said {
                Some(Ok(_)) => continue,
                _ => return Err(BenchError::Unsupported("hung up")),
            },
        }
        let token: &[u8] = if turn % 2 == 0 {
            b"nobody gave this token"
        } else {
            b""
        };
        let datagram = ClientToRelayMsg::Datagrams {
            dst_endpoint_id: to,
            datagrams: Datagrams::from(forge.initial(token)?),
        };
        let sent = timeout(Duration::from_secs(10), sink.send(datagram)).await;
        sent.map_err(|_| BenchError::Unsupported("not read for 10 s"))?
            .map_err(BenchError::failed("connecting to the relay"))?;
        counters.did("datagrams through the relay", 1);
    }
    Ok(())
}
