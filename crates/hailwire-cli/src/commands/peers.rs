//! `hail peers`: whom this node trusts, and the tunnels to them.

use hailwire::admin::{self, StatusRequest, TrustedPeer, TunnelStatus, method};
use hailwire_terminal::{failure::CommandFailure, table::TextTable};
use serde::Serialize;

use super::{
    CommandContext, connect,
    status::{carrier, tunnel_cells},
};

/// One row of `hail peers --json`.
#[derive(Debug, Serialize)]
struct PeerRow {
    #[serde(flatten)]
    trusted: TrustedPeer,
    /// The tunnel that takes new calls, while one is up.
    tunnel: Option<TunnelStatus>,
}

pub(super) async fn run(run: &CommandContext) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let trusted: Vec<TrustedPeer> = client.admin(method::TRUST_LIST, &()).await?;
    let request = StatusRequest { measure: true };
    let status: admin::NodeStatus = client.admin(method::STATUS, &request).await?;
    let peers: Vec<PeerRow> = trusted
        .into_iter()
        .map(|trusted| {
            let tunnel = status
                .tunnels
                .iter()
                .filter(|tunnel| tunnel.peer == trusted.id)
                .max_by_key(|tunnel| tunnel.carries)
                .cloned();
            PeerRow { trusted, tunnel }
        })
        .collect();
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
        &peers,
        table,
        "no trusted peers; see `hail invite` and `hail join`",
    )
}
