//! A tunnel over the carrier that somebody asks for: a call that names one, or a `PING`.
//!
//! What is configured is not looked at, since it was asked for by name. The tunnel that is made is an
//! ordinary one: it stays, and where no other is up it takes all calls. A peer has at most one over TCP,
//! so that asking for the other carrier over TCP puts a new one in its place; calls on the old one
//! finish there. However many ask at once, one dials.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use hailwire_core::Transport;
use hailwire_wire::{Code, NodeId, Status};
use tokio::sync::watch;

use super::{
    NodeInner, dial, hubs, peers::DialOutcome, trust::untrusted, tunnel, tunnel::unreachable,
};
use crate::{config::Carrier, session::Session};

type RequestedDialTable = HashMap<(NodeId, Carrier), watch::Receiver<DialOutcome>>;

/// Dials under way over a carrier that was asked for.
#[derive(Debug, Default)]
pub(super) struct RequestedDials(Mutex<RequestedDialTable>);

impl RequestedDials {
    fn lock(&self) -> std::sync::MutexGuard<'_, RequestedDialTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tunnel over one carrier, brought up if need be; and whether it was up.
///
/// # Errors
///
/// `unavailable` when the peer does not listen there or does not answer, `permission_denied` when it
/// is not trusted.
pub(super) async fn tunnel_over(
    node: &Arc<NodeInner>,
    id: NodeId,
    carrier: Carrier,
) -> Result<(Session, bool), Status> {
    if let Some(session) = node.peers.up_over(id, carrier) {
        return Ok((session, true));
    }
    let mut outcome = dial_requested(node, id, carrier);
    let gone = || unreachable(node, id, "the attempt was given up");
    let dialled = outcome.wait_for(Option::is_some).await;
    let dialled = dialled.ok().and_then(|outcome| outcome.clone());
    Ok((dialled.ok_or_else(gone)??, false))
}

/// Dials, or waits for whoever does already. In a task of its own, so that a caller who gives up does
/// not undo the work that others wait for.
fn dial_requested(
    node: &Arc<NodeInner>,
    id: NodeId,
    carrier: Carrier,
) -> watch::Receiver<DialOutcome> {
    let mut dials = node.peers.requested_dials.lock();
    if let Some(under_way) = dials.get(&(id, carrier))
        && under_way.has_changed().is_ok()
    {
        return under_way.clone();
    }
    let (tell, told) = watch::channel(None);
    dials.insert((id, carrier), told.clone());
    let node = node.clone();
    tokio::spawn(async move {
        let outcome = Box::pin(dial_over(&node, id, carrier)).await;
        // Nobody may be waiting any more.
        let _ = tell.send(Some(outcome));
        node.peers.requested_dials.lock().remove(&(id, carrier));
    });
    told
}

async fn dial_over(node: &Arc<NodeInner>, id: NodeId, carrier: Carrier) -> Result<Session, Status> {
    // Whoever asked may have looked before the dial ahead of this one came up.
    if let Some(session) = node.peers.up_over(id, carrier) {
        return Ok(session);
    }
    if !hubs::trusts(node, id).await {
        return Err(untrusted(id));
    }
    let transport = Transport::of(carrier).unwrap_or(Transport::Udp);
    let places = tunnel::places(node, id).await;
    let missing = match transport {
        Transport::Udp => !places.by_udp(),
        Transport::Tcp => places.tcp.is_empty(),
    };
    if missing {
        return Err(no_place(node, id, carrier, transport));
    }
    dial::dial_by(node, id, &places, transport, carrier).await
}

fn no_place(node: &NodeInner, id: NodeId, carrier: Carrier, transport: Transport) -> Status {
    let (node, carrier) = (node.trust.label(id), carrier.name());
    let (what, hint) = match transport {
        Transport::Tcp => (
            format!(
                "node {node} cannot be reached over {carrier}: as far as is known here it does not listen on TCP"
            ),
            "start it with `--listen-tcp ADDRESS:PORT` (`listen { tcp … }`), or leave the carrier open",
        ),
        Transport::Udp => (
            format!(
                "node {node} cannot be reached over {carrier}: no UDP address of it is known here"
            ),
            "it was met over TCP only; a hub or a new ticket tells its addresses, or leave the carrier open",
        ),
    };
    Status::new(Code::Unavailable, what).with_hint(hint)
}
