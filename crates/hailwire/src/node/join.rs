//! Invitations: how two nodes come to trust each other.
//!
//! The inviter issues a ticket that holds a secret and where to find it. The joiner dials that
//! place, which must prove to be the inviter's key, and calls `node`/`join` with the secret. The
//! inviter takes one use of the ticket and trusts the joiner; only then does the joiner trust the
//! inviter. A ticket that is used up, expired or unknown is refused with its reason.

use std::{net::SocketAddr, sync::Arc};

use hailwire_wire::{
    AgentName, CallHeader, Code, NodeName, Status,
    frame::FrameKind,
    header,
    ticket::{Invitation, NodeTicket, Secret, Ticket, TicketError},
};
use serde::{Deserialize, Serialize};

use super::{
    Inner, now_unix,
    overlay::Places,
    store::Via,
    trust::{NewPeer, store_status},
    tunnel::greeted,
};
use crate::{admin, body::Body, key::random, session::Session};

/// Longest life of an invitation.
const MAX_LIFE_S: u64 = 30 * 24 * 3600;

/// Most uses of one invitation.
const MAX_USES: u32 = 10_000;

/// Largest answer of an inviter.
const MAX_ANSWER: usize = 16 * 1024;

/// What a joiner says, in MessagePack, with the method `join`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Redeem {
    secret: Secret,
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
pub(super) struct Redeemed {
    #[serde(default)]
    name: Option<NodeName>,
}

impl Inner {
    /// Issues a ticket.
    pub(super) fn invite(&self, invite: &admin::Invite) -> Result<admin::Invited, Status> {
        let refuse = |what: &str| Err(Status::new(Code::InvalidArgument, what));
        if !(1..=MAX_USES).contains(&invite.uses) {
            return refuse("a ticket has 1 to 10000 uses");
        }
        if !(1..=MAX_LIFE_S).contains(&invite.expires_s) {
            return refuse("a ticket lives between a second and 30 days");
        }
        let allow = agent_names(&invite.allow)?;
        let mut bytes = [0; 16];
        random(&mut bytes);
        let secret = Secret::from_random(bytes);
        let now = now_unix();
        let expires = now + invite.expires_s;
        let relay = self.home_relay();
        let own = self.own_addresses();
        let ticket = Ticket::Node(NodeTicket {
            node: self.id,
            secret: secret.clone(),
            expires,
            name: self.name(),
            addresses: own.udp,
            tcp: own.tcp,
            relay: relay.as_ref().map(|(url, _)| url.clone()),
            hub_key: relay.and_then(|(_, key)| key),
        });
        let text = ticket
            .to_text()
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let invitation = Invitation {
            digest: secret.digest(),
            uses_left: invite.uses,
            expires,
            allow,
        };
        self.trust.invite(&invitation, now)?;
        Ok(admin::Invited {
            ticket: text,
            expires_at: expires,
            uses: invite.uses,
        })
    }

    /// Uses a ticket, of a node or of a hub.
    pub(super) async fn join(self: &Arc<Self>, join: admin::Join) -> Result<admin::Joined, Status> {
        let ticket: Ticket = join.ticket.trim().parse().map_err(|error: TicketError| {
            Status::new(Code::InvalidArgument, error.to_string()).with_hint(
                "copy the ticket whole, as `hail invite` or `hail hub invite` printed it",
            )
        })?;
        let alias = match join.alias.as_str() {
            "" => None,
            text => Some(
                text.parse::<NodeName>()
                    .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?,
            ),
        };
        match ticket {
            Ticket::Node(ticket) => self.join_node(ticket, alias).await,
            Ticket::Hub(ticket) => self.join_hub(ticket).await,
        }
    }

    async fn join_node(
        self: &Arc<Self>,
        ticket: NodeTicket,
        alias: Option<NodeName>,
    ) -> Result<admin::Joined, Status> {
        if ticket.node == self.id {
            return Err(
                Status::new(Code::InvalidArgument, "this ticket is this node's own")
                    .with_hint("give it to the other node"),
            );
        }
        let places = Places {
            addresses: ticket.addresses.clone(),
            tcp: ticket.tcp.clone(),
            relays: ticket.relay.iter().cloned().collect(),
        };
        if let Some(relay) = &ticket.relay {
            self.use_foreign_relay(relay, ticket.hub_key).await;
        }
        let session = self.dial_at(ticket.node, &places).await?;
        let redeemed = self.redeem_at(&session, ticket.secret).await?;
        let peer = NewPeer {
            id: ticket.node,
            alias: alias.or(redeemed.name).or(ticket.name),
            allow: Vec::new(),
            via: Via::Ticket,
            addresses: ticket.addresses,
            tcp: ticket.tcp,
            relay: ticket.relay,
        };
        // The answer may have overtaken it on a stream of its own.
        greeted(&session).await?;
        let row = self.trust.add(peer, now_unix()).map_err(store_status)?;
        self.up(row.id, &session, true);
        tracing::info!(peer = %row.id, "joined");
        let name = row.alias.map(String::from).unwrap_or_default();
        Ok(admin::Joined::Node { id: row.id, name })
    }

    async fn redeem_at(&self, session: &Session, secret: Secret) -> Result<Redeemed, Status> {
        let own = self.own_addresses();
        let redeem = Redeem {
            secret,
            name: self.name(),
            addresses: own.udp,
            tcp: own.tcp,
            relay: self.home_relay().map(|(url, _)| url),
        };
        let header = CallHeader {
            to: admin::AGENT.to_owned(),
            method: admin::method::JOIN.to_owned(),
            ..CallHeader::default()
        };
        let body = Body::from(header::encode(&redeem));
        let answer = session.open(FrameKind::CALL, &header, body).await?;
        let bytes = answer.begin(None).await?.bytes(MAX_ANSWER).await?;
        header::decode(&bytes).map_err(|error| Status::new(Code::Internal, error.to_string()))
    }

    /// The inviter's part: a stranger shows its secret. Its greeting, which may have been overtaken by that, is waited for: it says
    /// which start of the node this tunnel is with.
    pub(super) async fn redeemed(
        self: &Arc<Self>,
        session: &Session,
        id: hailwire_wire::NodeId,
        payload: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let redeem: Redeem = header::decode(payload)
            .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
        self.strangers.redeems(id);
        greeted(session).await?;
        let now = now_unix();
        let invitation = self.trust.redeem(&redeem.secret, now)?;
        let peer = NewPeer {
            id,
            alias: redeem.name,
            allow: invitation.allow,
            via: Via::Ticket,
            addresses: redeem.addresses,
            tcp: redeem.tcp,
            relay: redeem.relay,
        };
        self.trust.add(peer, now).map_err(store_status)?;
        tracing::info!(peer = %id, "joined by ticket");
        self.up(id, session, false);
        Ok(header::encode(&Redeemed { name: self.name() }))
    }
}

/// Parses what was typed as agent names.
pub(super) fn agent_names(texts: &[String]) -> Result<Vec<AgentName>, Status> {
    texts
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()
        .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))
}
