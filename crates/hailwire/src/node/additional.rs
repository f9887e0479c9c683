//! Additional connections of a tunnel: who dials them, and who takes them.
//!
//! The side that dialled a tunnel sees to it that it has as many connections as the setting `pool` says,
//! which may depend on how many agents the peer offers; [`hailwire_core::additional_connections`] decides when. A peer that does not say that it takes such connections is asked for none.
//!
//! The far side takes a connection by its first `OFFERS`, and calls are placed on it only then: so none is on
//! a connection that is refused. It may be refused where there is no tunnel beside which it could stand, where
//! there is no room, and to an untrusted peer.

use std::sync::Arc;

use hailwire_wire::{
    Code, NodeId, Status,
    header::{ADDITIONAL_CONNECTIONS, Hello},
    limits,
};
use tokio::{sync::watch, task::JoinSet, time::timeout};

use hailwire_core::{
    additional_connections::{AdditionalAction, AdditionalConnections},
    peer_table::TunnelSize,
};

use super::{
    NodeInner, dial, offers, overlay, tunnel,
    tunnel::{GREETING_TIMEOUT, greeted, look_after, unreachable},
};
use crate::{
    clock,
    config::Carrier,
    session::{Session, connection_status},
};

/// Sees to it that a tunnel that this node has dialled has its connections, for as long as it is up.
pub(super) fn keep_connections(node: &Arc<NodeInner>, id: NodeId, first: &Session) {
    let most = node.config().pool.size(limits::MAX_AGENTS_PER_NODE);
    if most > 1
        && takes_more(first)
        && let Ok(carrier) = first.connection().carrier().parse()
        && let Some(size) = node.peers.watch_size(id, first)
    {
        tokio::spawn(Box::pin(keep(node.clone(), id, carrier, size)));
    }
}

/// Most connections that a tunnel may have here.
fn most_connections(node: &NodeInner) -> usize {
    let own = node.config().pool.size(limits::MAX_AGENTS_PER_NODE);
    own.max(limits::MAX_CONNECTIONS)
}

/// Takes a greeted session of a trusted peer that is to stand beside others, or closes it with the
/// reason. Returns whether it was taken.
pub(super) fn up_additional(
    node: &Arc<NodeInner>,
    id: NodeId,
    session: &Session,
    dialled: bool,
) -> bool {
    let most = most_connections(node);
    let entered = match node.is_closing() {
        true => Err(Status::new(Code::Unavailable, "the node is shutting down")),
        false => node.peers.enter_additional(id, session, dialled, most),
    };
    if let Err(status) = entered {
        tracing::debug!(peer = %id, %status, "an additional connection was refused");
        session.close(status.code, &status.message);
        return false;
    }
    if !node.trust.is_trusted(id) {
        // It was removed a moment ago, perhaps before this one could be closed with the others.
        session.close(Code::PermissionDenied, "this node does not trust yours");
    }
    let carrier = session.connection().carrier();
    tracing::debug!(peer = %id, carrier, dialled, "one more connection");
    session.send_offers(offers::offers_to(node, id));
    tokio::spawn(look_after(node.clone(), id, session.clone()));
    true
}

/// Dials one more connection, and waits until it is taken.
async fn dial_additional(node: Arc<NodeInner>, id: NodeId, carrier: Carrier) -> Result<(), Status> {
    let places = tunnel::places(&node, id).await;
    let connection = if carrier.takes_udp() {
        let dial = Box::pin(overlay::dial_whole(&node.sockets.endpoint, id, &places)).await;
        dial.map(|connection| dial::quic_connection(&node, connection))
    } else {
        dial::dial_tcp(&node, id, &places.tcp, carrier).await
    };
    let connection = connection.map_err(|reason| unreachable(&node, id, &reason))?;
    let hello = Hello {
        additional: true,
        ..node.hello()
    };
    let session = tunnel::start_session_as(&node, hello, id, connection, true);
    if let Err(status) = taken(&session).await {
        session.close(status.code, &status.message);
        return Err(status);
    }
    match up_additional(&node, id, &session, true) {
        true => Ok(()),
        false => Err(unreachable(&node, id, "there is no tunnel to it any more")),
    }
}

/// Whether an accepted session is to stand beside others, by its greeting.
pub(super) fn is_additional(session: &Session) -> bool {
    session.peer_hello().is_some_and(|hello| hello.additional)
}

/// Whether a peer takes connections beside the first.
fn takes_more(first: &Session) -> bool {
    let hello = first.peer_hello();
    hello.is_some_and(|hello| {
        hello
            .features
            .iter()
            .any(|feature| feature == ADDITIONAL_CONNECTIONS)
    })
}

/// Waits until the far side takes a connection.
async fn taken(session: &Session) -> Result<(), Status> {
    greeted(session).await?;
    let mut offered = session.peer_offered();
    tokio::select! {
        biased;
        // The sender lives in the session.
        told = timeout(GREETING_TIMEOUT, offered.wait_for(|offered| *offered)) => match told {
            Ok(_) => Ok(()),
            Err(_) => Err(Status::new(Code::Unavailable, "the peer did not take it in time")),
        },
        error = session.closed() => Err(connection_status(&error)),
    }
}

/// Dials what a tunnel lacks ([`AdditionalConnections`] decides) until it is down.
async fn keep(
    node: Arc<NodeInner>,
    id: NodeId,
    carrier: Carrier,
    mut size: watch::Receiver<TunnelSize>,
) {
    let mut additional = AdditionalConnections::default();
    let mut dials = JoinSet::new();
    while !node.is_closing() {
        let now = clock::now();
        let TunnelSize {
            connections,
            agents,
        } = *size.borrow_and_update();
        additional.handle_tunnel(now, connections, node.config().pool.size(agents));
        if let Some(AdditionalAction::Dial(missing)) = additional.poll_action() {
            for _ in 0..missing {
                dials.spawn(Box::pin(dial_additional(node.clone(), id, carrier)));
            }
        }
        tokio::select! {
            changed = size.changed() => if changed.is_err() {
                // The tunnel is down, or another has taken its place.
                return;
            },
            Some(done) = dials.join_next() => {
                if let Ok(Err(status)) = &done {
                    tracing::debug!(peer = %id, %status, "no additional connection");
                }
                let taken = matches!(done, Ok(Ok(())));
                let connections = size.borrow().connections;
                additional.handle_dialled(clock::now(), taken, connections);
            }
            () = clock::reached(additional.poll_timeout(now)) => additional.handle_timeout(clock::now()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
