//! Invitations: how two nodes come to trust each other.
//!
//! The inviter issues a ticket that holds a secret and where to find it. The joiner dials that
//! place, which must prove to be the inviter's key, and calls `node`/`join` with the secret. The
//! inviter takes one use of the ticket and trusts the joiner; only then does the joiner trust the
//! inviter. A ticket that is used up, expired or unknown is refused with its reason.

use std::{net::SocketAddr, sync::Arc};

use hailwire_core::{
    dial_address::{AddressCandidates, AddressOrigin},
    grants::{Grant, GrantTerms, agent_names, stated},
    names::NamedBy,
};
use hailwire_wire::{
    AgentName, Code, NodeId, NodeName, Status, header,
    ticket::{Invitation, NodeTicket, SHOWN_AGAIN, Ticket, TicketError, TicketSecret},
};
use serde::{Deserialize, Serialize};

use super::{
    NodeInner, dial, dial_targets, hubs, listen, now_unix, offers, resolve,
    store::{TrustOrigin, TrustRow},
    trust::{NewPeer, store_status},
    tunnel,
    tunnel::greeted,
};
use crate::{admin, key::random, session::Session};

/// Longest life of an invitation.
const MAX_LIFE_S: u64 = 30 * 24 * 3600;

/// Most uses of one invitation.
const MAX_USES: u32 = 10_000;

/// Largest answer of an inviter.
const MAX_ANSWER: usize = 16 * 1024;

/// What a joiner says, in MessagePack, with the method `join`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RedeemRequest {
    secret: TicketSecret,
    #[serde(default)]
    name: Option<NodeName>,
    #[serde(default)]
    addresses: Vec<SocketAddr>,
    #[serde(default)]
    tcp: Vec<SocketAddr>,
    #[serde(default)]
    relay: Option<String>,
}

/// What the inviter answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RedeemAnswer {
    #[serde(default)]
    name: Option<NodeName>,
}

/// Issues a ticket.
pub(super) fn invite(
    node: &NodeInner,
    invite: &admin::InviteRequest,
) -> Result<admin::InviteAnswer, Status> {
    let refuse = |what: &str| Err(Status::new(Code::InvalidArgument, what));
    if !(1..=MAX_USES).contains(&invite.uses) {
        return refuse("a ticket has 1 to 10000 uses");
    }
    if !(1..=MAX_LIFE_S).contains(&invite.expires_s) {
        return refuse("a ticket lives between a second and 30 days");
    }
    let allow = stated(&invite.allow)?.unwrap_or(Grant::All);
    let offer = agent_names(&invite.offer)?;
    let mut bytes = [0; 16];
    random(&mut bytes);
    let secret = TicketSecret::from_random(bytes);
    let now = node.trust.latest(now_unix());
    let expires = now.saturating_add(invite.expires_s);
    let own = listen::own_addresses(node);
    let ticket = Ticket::Node(NodeTicket {
        node: node.id(),
        secret: secret.clone(),
        expires,
        name: node.name(),
        addresses: own.udp,
        tcp: own.tcp,
        // Only members of its hub may use a relay, and they find it there; others learn of no hub.
        relay: None,
        hub_key: None,
    });
    let text = ticket
        .to_text()
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    let invitation = Invitation {
        digest: secret.digest(),
        uses_left: invite.uses,
        expires,
        allow: allow.names().to_vec(),
        offer,
    };
    node.trust.invite(&invitation, now)?;
    Ok(admin::InviteAnswer {
        ticket: text,
        expires_at: expires,
        uses: invite.uses,
        allow: texts(allow.names()),
    })
}

/// Uses a ticket, of a node or of a hub.
pub(super) async fn join(
    node: &Arc<NodeInner>,
    join: admin::JoinRequest,
) -> Result<admin::JoinAnswer, Status> {
    let ticket: Ticket = join.ticket.trim().parse().map_err(|error: TicketError| {
        Status::new(Code::InvalidArgument, error.to_string())
            .with_hint("copy the ticket whole, as `hail invite` or `hail hub invite` printed it")
    })?;
    let alias = match join.alias.as_str() {
        "" => None,
        text => Some(
            text.parse::<NodeName>()
                .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?,
        ),
    };
    let said = PeerChoices {
        alias: alias.map(|name| (name, NamedBy::User)),
        terms: stated(&join.allow)?.map_or(GrantTerms::Offered(Grant::All), GrantTerms::Stated),
        bare: said_names(&join.offer)?,
    };
    match ticket {
        Ticket::Node(ticket) => join_node(node, ticket, said).await,
        Ticket::Hub(ticket) => hubs::join_hub(node, ticket, join.yes).await,
    }
}

async fn join_node(
    node: &Arc<NodeInner>,
    ticket: NodeTicket,
    said: PeerChoices,
) -> Result<admin::JoinAnswer, Status> {
    if ticket.node == node.id() {
        return Err(
            Status::new(Code::InvalidArgument, "this ticket is this node's own")
                .with_hint("give it to the other node"),
        );
    }
    let mut pauses = SHOWN_AGAIN.into_iter();
    let (session, redeemed) = loop {
        match shown(node, &ticket).await {
            Err(status) if status.code == Code::ResourceExhausted => {
                let Some(pause) = pauses.next() else {
                    return Err(status);
                };
                tracing::debug!(%status, "the inviter had no place; it is asked again");
                tokio::time::sleep(pause).await;
            }
            outcome => break outcome?,
        }
    };
    let claimed = not_own(node, redeemed.name.or(ticket.name));
    let peer = NewPeer {
        id: ticket.node,
        alias: said.alias.or(claimed),
        terms: said.terms,
        bare: said.bare,
        via: TrustOrigin::Ticket,
        known: AddressOrigin::Told,
        addresses: ticket.addresses,
        tcp: ticket.tcp,
        relay: ticket.relay,
    };
    // The answer may have overtaken it on a stream of its own.
    greeted(&session).await?;
    let row = node.trust.add(peer, now_unix()).map_err(store_status)?;
    up_with(node, &row, &session, true);
    tracing::info!(peer = %row.id, "joined");
    resolve::ask_ahead(node, row.alias.clone());
    let allow = texts(row.allow.names());
    let name = row.alias.map(String::from).unwrap_or_default();
    Ok(admin::JoinAnswer::Node {
        id: row.id,
        name,
        allow,
    })
}

/// Dials the inviter and shows it the ticket's secret.
async fn shown(
    node: &Arc<NodeInner>,
    ticket: &NodeTicket,
) -> Result<(Session, RedeemAnswer), Status> {
    // A second connection to a peer would make way for its tunnel, or the other way round.
    let session = match node.peers.up(ticket.node) {
        Some(tunnel) => tunnel,
        None => dial_ticket(node, ticket).await?,
    };
    let redeemed = redeem_at(node, &session, ticket.secret.clone()).await?;
    Ok((session, redeemed))
}

async fn dial_ticket(node: &Arc<NodeInner>, ticket: &NodeTicket) -> Result<Session, Status> {
    let mut candidates = AddressCandidates::default();
    candidates.add(AddressOrigin::Told, &ticket.addresses, &ticket.tcp);
    candidates.relays.extend(ticket.relay.clone());
    hubs::candidates_at_hubs(node, ticket.node, &mut candidates).await;
    let places = dial_targets::dialled(node, ticket.node, candidates).await;
    if places.is_empty() {
        return Err(out_of_reach(ticket.node));
    }
    dial::dial_at(node, ticket.node, &places).await
}

/// Makes the session of a peer its tunnel, or where it is that already, says what the peer may call
/// from now on.
fn up_with(node: &Arc<NodeInner>, row: &TrustRow, session: &Session, dialled: bool) {
    let mut tunnels = node.peers.all().into_iter();
    if !tunnels.any(|(id, tunnel)| id == row.id && tunnel.is(session)) {
        return tunnel::up(node, row.id, session, dialled);
    }
    session.send_offers(offers::offers_to(node, row.id));
    offers::mark_bare(node, row.id);
}

/// A name that a peer gives itself, unless it is this node's own.
fn not_own(node: &NodeInner, claimed: Option<NodeName>) -> Option<(NodeName, NamedBy)> {
    let name = claimed.filter(|name| node.name().as_ref() != Some(name))?;
    Some((name, NamedBy::Peer))
}

async fn redeem_at(
    node: &NodeInner,
    session: &Session,
    secret: TicketSecret,
) -> Result<RedeemAnswer, Status> {
    let own = listen::own_addresses(node);
    let redeem = RedeemRequest {
        secret,
        name: node.name(),
        addresses: own.udp,
        tcp: own.tcp,
        // As in a ticket.
        relay: None,
    };
    let body = header::encode(&redeem);
    let bytes = tunnel::ask_node(session, admin::method::JOIN, body, MAX_ANSWER).await?;
    header::decode(&bytes).map_err(|error| Status::new(Code::Internal, error.to_string()))
}

/// The inviter's part: an untrusted peer shows its secret. Its greeting, which may have been overtaken by that, is waited for: it says
/// which start of the node this tunnel is with.
pub(super) async fn redeemed(
    node: &Arc<NodeInner>,
    session: &Session,
    id: NodeId,
    payload: &[u8],
) -> Result<Vec<u8>, Status> {
    let redeem: RedeemRequest = header::decode(payload)
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    node.peers.untrusted.redeems(id);
    greeted(session).await?;
    let now = now_unix();
    let invitation = node.trust.redeem(&redeem.secret, now)?;
    let offer = invitation.offer;
    let known = node.trust.is_trusted(id);
    let peer = NewPeer {
        id,
        alias: not_own(node, redeem.name),
        terms: GrantTerms::Offered(Grant::of(invitation.allow)),
        // A ticket says it of whoever comes, and no more of a peer of which it was said before.
        bare: (!known && !offer.is_empty()).then_some(offer),
        via: TrustOrigin::Ticket,
        known: AddressOrigin::Told,
        addresses: redeem.addresses,
        tcp: redeem.tcp,
        relay: redeem.relay,
    };
    let row = node.trust.add(peer, now).map_err(store_status)?;
    tracing::info!(peer = %id, "joined by ticket");
    up_with(node, &row, session, false);
    resolve::ask_ahead(node, row.alias);
    Ok(header::encode(&RedeemAnswer { name: node.name() }))
}

/// What a ticket's reader is told whose places are none that this node lets itself be sent to.
pub(super) fn out_of_reach(id: NodeId) -> Status {
    let reason = "it names no address that can be reached from this network, nor a relay of a hub of this node";
    let hint = "join the hub that the other node is in first; or trust it by key, with where it is: \
                `hail trust add KEY --address IP:PORT`";
    Status::new(
        Code::Unavailable,
        format!("node {} cannot be reached: {reason}", id.short()),
    )
    .with_hint(hint)
}

/// What this node's user said of a peer that is joined.
struct PeerChoices {
    alias: Option<(NodeName, NamedBy)>,
    terms: GrantTerms,
    bare: Option<Vec<AgentName>>,
}

/// The names of `--offer`, if it was given.
pub(super) fn said_names(texts: &[String]) -> Result<Option<Vec<AgentName>>, Status> {
    let names = agent_names(texts)?;
    Ok((!names.is_empty()).then_some(names))
}

pub(super) fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests;
