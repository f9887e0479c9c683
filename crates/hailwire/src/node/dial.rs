//! Dialling: carriers race as addresses do in Happy Eyeballs (RFC 8305).
//!
//! [`hailwire_core::dial_race`] decides which attempt starts when: QUIC first, TCP after the connection attempt delay
//! (`connection-attempt-delay`), or at once when QUIC has failed; where TCP worked last, TCP first. Whoever is up first and greeted is the
//! tunnel. A QUIC dial that lost the race goes on: if it comes up after all, it is the peer's second tunnel.

use std::{net::SocketAddr, sync::Arc};

use hailwire_core::{Transport, dial_race::dial_order};
use hailwire_wire::{Code, NodeId, Status, address::NodeRef};
use iroh::endpoint::OutgoingZeroRttConnection;
use tokio::time::timeout;

use super::{
    NodeInner,
    early_sessions::EarlySessionGuard,
    overlay::{self, NodeAddresses, ReachedNode},
    tunnel,
    tunnel::{greeted, unreachable},
};
use crate::{
    attempt_race,
    carrier::{
        CarrierConnection, quic,
        tcp::{self, TcpCarrier},
    },
    config::Carrier,
    session::Session,
};

/// The carriers over TCP that a configuration allows, the preferred one first.
pub(super) fn tcp_carriers(carrier: Carrier) -> &'static [TcpCarrier] {
    match carrier {
        Carrier::Auto => &TcpCarrier::ALL,
        Carrier::Quic => &[],
        Carrier::H2 => &[TcpCarrier::H2],
        Carrier::Ws => &[TcpCarrier::Ws],
    }
}

/// The carriers that may be used with a peer, by the configuration.
pub(super) fn carrier_for(node: &NodeInner, id: NodeId) -> Carrier {
    let mut peers = node.config().peers.iter();
    let about = peers.find(|peer| match &peer.who {
        NodeRef::Id(key) => *key == id,
        alias @ NodeRef::Name(_) => node.trust.find(alias) == Some(id),
    });
    about.map_or(node.config().carrier, |peer| peer.carrier)
}

/// Dials a node wherever it may be, trusted or not, and greets it.
pub(super) async fn dial_at(
    node: &Arc<NodeInner>,
    id: NodeId,
    places: &NodeAddresses,
) -> Result<Session, Status> {
    let carrier = carrier_for(node, id);
    let (udp, tcp) = (places.by_udp(), !places.tcp.is_empty());
    let order = dial_order(carrier, udp, tcp, node.peers.worked(id));
    if order.is_empty() {
        let reason = format!("no address of it is known for carrier `{}`", carrier.name());
        return Err(unreachable(node, id, &reason));
    }
    let start = |transport| {
        let (node, places) = (node.clone(), places.clone());
        async move {
            let session = dial_by(&node, id, &places, transport, carrier).await?;
            Ok((transport, session))
        }
    };
    let raced = attempt_race::run(order, node.config().connection_attempt_delay, start).await;
    let ((transport, session), mut others) = raced.map_err(|why| all_failed(node, id, why))?;
    node.peers.note_worked(id, transport);
    if transport == Transport::Tcp {
        // QUIC may come up after all, as the peer's second tunnel.
        others.detach_all();
    }
    Ok(session)
}

/// Dials a node over UDP or TCP, and greets it. A trusted one has its tunnel then.
pub(super) async fn dial_by(
    node: &Arc<NodeInner>,
    id: NodeId,
    places: &NodeAddresses,
    transport: Transport,
    carrier: Carrier,
) -> Result<Session, Status> {
    let connection = match transport {
        Transport::Udp => {
            let _held_back = node.sockets.held_back.hold(id, &places.held_back);
            let early = node.config().quic.zero_rtt && node.trust.is_trusted(id);
            let dial = Box::pin(overlay::dial(&node.sockets.endpoint, id, places, early)).await;
            match dial.map_err(|reason| unreachable(node, id, &reason))? {
                ReachedNode::Full(connection) => quic_connection(node, connection),
                ReachedNode::Early(early) => return dial_early(node, id, early).await,
            }
        }
        Transport::Tcp => {
            let dial = dial_tcp(node, id, &places.tcp, carrier).await;
            dial.map_err(|reason| unreachable(node, id, &reason))?
        }
    };
    let session = tunnel::start_session(node, id, connection, true);
    let early_session = node.trust.is_trusted(id).then(|| {
        let early_session = node.peers.early.admit(id, &session);
        early_session.prove();
        early_session
    });
    greet(node, id, &session, early_session).await?;
    Ok(session)
}

/// Waits for the far side's greeting, and then makes the session of a trusted peer, which may be
/// called early, its tunnel. Calls to such a peer wait for neither: they are a round trip sooner back.
async fn greet(
    node: &Arc<NodeInner>,
    id: NodeId,
    session: &Session,
    early_session: Option<EarlySessionGuard>,
) -> Result<(), Status> {
    let outcome = greeted(session).await;
    match &outcome {
        Ok(()) if early_session.is_some() => tunnel::up(node, id, session, true),
        Ok(()) => {}
        // Calls may be on it.
        Err(status) => session.close(status.code, &status.message),
    }
    outcome
}

/// Begins a session with the first packet. Calls that may be made twice travel with it; all
/// others wait, as ever, until the handshake is complete.
async fn dial_early(
    node: &Arc<NodeInner>,
    id: NodeId,
    early: OutgoingZeroRttConnection,
) -> Result<Session, Status> {
    let room = overlay::connection_limits(&node.config().quic);
    let connection = quic::QuicConnection::dialled_early(early, room);
    let session =
        tunnel::start_session(node, id, CarrierConnection::Quic(connection.clone()), true);
    let early_session = node.peers.early.admit(id, &session);
    let taken = match timeout(overlay::DIAL_TIMEOUT, connection.complete()).await {
        Ok(Ok(taken)) => taken,
        Ok(Err(reason)) => return Err(unreachable(node, id, &reason)),
        Err(_) => {
            session.close(Code::Unavailable, "the peer did not answer");
            return Err(unreachable(node, id, &overlay::no_answer()));
        }
    };
    tracing::debug!(peer = %id, taken, "resumed, with a first flight");
    early_session.prove();
    greet(node, id, &session, Some(early_session)).await?;
    Ok(session)
}

/// A QUIC connection with the room that the configuration gives a peer.
pub(super) fn quic_connection(
    node: &NodeInner,
    connection: iroh::endpoint::Connection,
) -> CarrierConnection {
    let room = overlay::connection_limits(&node.config().quic);
    CarrierConnection::Quic(quic::QuicConnection::with_limits(connection, room))
}

/// Tries the addresses in a race.
pub(super) async fn dial_tcp(
    node: &NodeInner,
    id: NodeId,
    addresses: &[SocketAddr],
    carrier: Carrier,
) -> Result<CarrierConnection, String> {
    #[cfg(test)]
    if let Some(dialled) = super::virtual_nodes::dial(node.id(), id).await {
        return dialled;
    }
    let which = tcp_carriers(carrier);
    let start = |address| {
        let identity = node.sockets.tcp.identity.clone();
        async move { tcp::connect(&identity, id, address, which).await }
    };
    let race = attempt_race::run(
        addresses.iter().copied(),
        node.config().connection_attempt_delay,
        start,
    );
    match timeout(overlay::DIAL_TIMEOUT, race).await {
        Ok(Ok((connection, _))) => Ok(connection),
        Ok(Err(errors)) => Err(errors.last().map_or_else(
            || "no TCP address of it is known".to_owned(),
            |error| format!("over TCP: {}", overlay::whole(error)),
        )),
        Err(_) => Err("over TCP: no address of it answers".to_owned()),
    }
}

/// Brings up a peer's second tunnel, if nobody does already. Says nothing when it cannot.
pub(super) async fn bring_up(
    node: Arc<NodeInner>,
    id: NodeId,
    transport: Transport,
    carrier: Carrier,
) {
    if !node.peers.begin_second(id, transport) {
        return;
    }
    let places = tunnel::places(&node, id).await;
    let outcome = dial_by(&node, id, &places, transport, carrier).await;
    node.peers.end_second(id, transport);
    if let Err(status) = outcome {
        tracing::debug!(peer = %id, ?transport, %status, "no second tunnel");
    }
}

/// What came of all attempts, in one error that names the peer once.
fn all_failed(node: &NodeInner, id: NodeId, mut reasons: Vec<Status>) -> Status {
    if reasons.len() == 1
        && let Some(only) = reasons.pop()
    {
        return only;
    }
    let named = unreachable(node, id, "").message;
    let mut texts: Vec<&str> = Vec::new();
    for status in &reasons {
        let text = status.message.strip_prefix(&named);
        texts.push(text.unwrap_or(&status.message));
    }
    unreachable(node, id, &texts.join("; "))
}
