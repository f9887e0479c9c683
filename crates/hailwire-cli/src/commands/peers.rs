//! `hail peers`: whom this node trusts, and the tunnels to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use hailwire::{
    Client, NodeId,
    admin::{self, StatusRequest, TrustedPeer, TunnelStatus, method},
};
use hailwire_terminal::{failure::CommandFailure, table::TextTable, text};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    CommandContext, connect,
    status::{carrier, tunnel_cells},
};

/// The time between two looks of `--watch`. What comes and goes between them is not seen.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// One row of `hail peers --json`.
#[derive(Debug, Clone, Serialize)]
struct PeerRow {
    #[serde(flatten)]
    trusted: TrustedPeer,
    /// The tunnel that takes new calls, while one is up.
    tunnel: Option<TunnelStatus>,
}

/// What `--watch` tells of a peer: it is told again once any of it has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenTunnel {
    carrier: String,
    path: String,
    remote: String,
}

pub(super) async fn list(run: &CommandContext) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let peers = rows(&client, true).await?;
    print(run, &peers)
}

/// The list, and then a line for each change: with `--json` the row of `hail peers --json`, which says where there is no tunnel any more.
pub(super) async fn watch(run: &CommandContext) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.tick().await;
    let peers = rows(&client, true).await?;
    if run.output.json {
        for peer in &peers {
            run.output.value(peer, |_| String::new())?;
        }
    } else {
        print(run, &peers)?;
    }
    let mut seen = tunnels(&peers);
    loop {
        looks.tick().await;
        let peers = rows(&client, false).await?;
        let now = tunnels(&peers);
        for peer in changed(&seen, &now) {
            if let Some(row) = peers.iter().find(|row| row.trusted.id == peer) {
                run.output.value(row, change_line)?;
            }
        }
        seen = now;
    }
}

/// The trusted peers; `measure` asks each how long it takes to answer.
async fn rows(client: &Client, measure: bool) -> Result<Vec<PeerRow>, CommandFailure> {
    let trusted: Vec<TrustedPeer> = client.admin(method::TRUST_LIST, &()).await?;
    let request = StatusRequest { measure };
    let status: admin::NodeStatus = client.admin(method::STATUS, &request).await?;
    let row = |trusted: TrustedPeer| {
        let tunnels = status.tunnels.iter();
        let tunnel = tunnels
            .filter(|tunnel| tunnel.peer == trusted.id)
            .max_by_key(|tunnel| tunnel.carries)
            .cloned();
        PeerRow { trusted, tunnel }
    };
    Ok(trusted.into_iter().map(row).collect())
}

fn tunnels(peers: &[PeerRow]) -> BTreeMap<NodeId, SeenTunnel> {
    let seen = |row: &PeerRow| {
        let tunnel = row.tunnel.as_ref()?;
        let seen = SeenTunnel {
            carrier: carrier(tunnel),
            path: tunnel.path.kind.clone(),
            remote: tunnel.path.remote.clone(),
        };
        Some((row.trusted.id, seen))
    };
    peers.iter().filter_map(seen).collect()
}

/// Peers whose tunnel is another than before, or gone.
fn changed(
    before: &BTreeMap<NodeId, SeenTunnel>,
    now: &BTreeMap<NodeId, SeenTunnel>,
) -> Vec<NodeId> {
    let all: BTreeSet<&NodeId> = before.keys().chain(now.keys()).collect();
    let differs = |id: &&NodeId| before.get(id) != now.get(id);
    all.into_iter().filter(differs).copied().collect()
}

fn change_line(PeerRow { trusted, tunnel }: &PeerRow) -> String {
    let name = match trusted.alias.as_str() {
        "" => trusted.id.short(),
        alias => text::one_line(alias),
    };
    let what = match tunnel {
        None => "no tunnel".to_owned(),
        Some(tunnel) if tunnel.path.kind.is_empty() => format!("{}, no path yet", tunnel.carrier),
        Some(tunnel) => format!(
            "{}, {} {}",
            carrier(tunnel),
            tunnel.path.kind,
            text::one_line(&tunnel.path.remote)
        ),
    };
    format!("{name}: {what}\n")
}

fn print(run: &CommandContext, peers: &[PeerRow]) -> Result<(), CommandFailure> {
    let table = |peers: &[PeerRow]| {
        let mut table = TextTable::new([
            "NAME",
            "ID",
            "CARRIER",
            "PATH",
            "REMOTE",
            ">PING",
            ">LOSS",
            ">SENT",
            ">RECEIVED",
        ]);
        for PeerRow { trusted, tunnel } in peers {
            let [path, remote, rtt, loss, sent, received] = match tunnel {
                Some(tunnel) => tunnel_cells(tunnel),
                None => [
                    "no tunnel".to_owned(),
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                ],
            };
            let id = trusted.id.short();
            let carrier = tunnel.as_ref().map(carrier).unwrap_or_default();
            table.row([
                trusted.alias.clone(),
                id,
                carrier,
                path,
                remote,
                rtt,
                loss,
                sent,
                received,
            ]);
        }
        table
    };
    run.output.rows(
        peers,
        table,
        "no trusted peers; see `hail invite` and `hail join`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_that_comes_changes_or_goes_is_told_once() {
        let id = |byte| NodeId::from_bytes([byte; 32]);
        let seen = |path: &str| SeenTunnel {
            carrier: "quic".to_owned(),
            path: path.to_owned(),
            remote: "192.0.2.1:7".to_owned(),
        };
        let before = BTreeMap::from([
            (id(1), seen("relay")),
            (id(2), seen("direct")),
            (id(3), seen("direct")),
        ]);
        let now = BTreeMap::from([
            (id(1), seen("direct")),
            (id(2), seen("direct")),
            (id(4), seen("relay")),
        ]);
        assert_eq!(changed(&before, &now), [id(1), id(3), id(4)]);
        assert_eq!(changed(&now, &now), []);
    }
}
