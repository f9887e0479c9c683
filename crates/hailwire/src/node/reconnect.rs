//! A node that is back says so: it dials the peers to which it had tunnels when it ended.
//!
//! Whoever had a tunnel to a node that was killed sends into it until its silence is noticed, unless a greeting with another
//! instance number comes first ([`hailwire_core::peer_table`]). So the node notes in its database to whom it has tunnels,
//! and dials them at its start.

use std::sync::Arc;

use hailwire_wire::NodeId;
use tokio::task::JoinSet;

use super::{NodeInner, now_unix, store::StoreError, tunnel};

/// Most peers that are dialled at the start: those of the newest tunnels.
const MAX_PEERS: u32 = 256;

/// Dials at once.
const AT_ONCE: usize = 16;

/// Notes that there is a tunnel to a peer.
pub(super) fn note_connected(node: &NodeInner, id: NodeId) {
    noted(node.trust.store().put_connected(id, now_unix()));
}

/// Notes that there is none any more; not where the node itself ends.
pub(super) fn note_disconnected(node: &NodeInner, id: NodeId) {
    if !node.is_closing() {
        noted(node.trust.store().forget_connected(id));
    }
}

fn noted(written: Result<(), StoreError>) {
    if let Err(error) = written {
        tracing::warn!(%error, "after a restart a peer learns late that this node is back");
    }
}

/// Dials the peers to which there was a tunnel when the node ended.
pub(super) async fn run(node: Arc<NodeInner>) {
    let peers = match node.trust.store().take_connected(MAX_PEERS) {
        Ok(peers) => peers,
        Err(error) => return noted(Err(error)),
    };
    let mut dials = JoinSet::new();
    for id in peers {
        if dials.len() >= AT_ONCE {
            dials.join_next().await;
        }
        let node = node.clone();
        dials.spawn(async move {
            if let Err(status) = tunnel::tunnel_to(&node, id).await {
                tracing::debug!(peer = %id, %status, "a peer from before the start was not found");
            }
        });
    }
    while dials.join_next().await.is_some() {}
}
