//! The built-in agent `node`: how a node is asked and told things ([`crate::admin`]).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hailwire_core::{
    dial_address::AddressOrigin,
    grants::{Grant, GrantTerms, stated},
    names::NamedBy,
    pending::PendingPeer,
    routing::{CallOrigin, requested_carrier},
};
use hailwire_wire::{
    Address, AgentName, CallHeader, Code, NodeId, NodeName, Status, address::NodeRef,
    directory::SearchRequest, frame::FrameKind, header::AgentOffer,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    NodeInner, describe, doctor, hubs, join,
    join::{said_names, texts},
    leases, messages, now_unix, offers,
    registry::MemberTarget,
    requested_dials, resolve,
    router::{self, RouteProgress},
    sockets, status,
    store::{TrustOrigin, TrustRow},
    topics,
    trust::{NewPeer, store_status},
    tunnel,
};
use crate::{
    admin::{self, AgentRow, AgentsQuery, BareCalls, method},
    agent::{Request, Response, SharedHandler, is_private},
    config::Carrier,
    session::{Session, deadline_exceeded},
};

/// Largest management request of a program of this machine: room for all patterns of topics that there may be.
const MAX_REQUEST: usize = 512 * 1024;

/// Largest request of another node: a ticket's secret or a search.
const MAX_PEER_REQUEST: usize = 8 * 1024;

/// How long another node's request may take, from its first byte to its answer.
const PEER_PATIENCE: Duration = Duration::from_secs(10);

/// How long a tunnel that has just come up may take to say which path it uses.
const PATH_CHOSEN_WITHIN: Duration = Duration::from_millis(500);

/// The handler of one call to `node`, for whoever is at the other end of `session`, or for the program that embeds the node.
pub(super) fn management(
    node: &Arc<NodeInner>,
    session: Option<&Session>,
    origin: CallOrigin,
) -> SharedHandler {
    let (node, session) = (node.clone(), session.cloned());
    Arc::new(move |request: Request| manage(node.clone(), session.clone(), origin, request))
}

async fn manage(
    node: Arc<NodeInner>,
    session: Option<Session>,
    origin: CallOrigin,
    mut request: Request,
) -> Result<Response, Status> {
    if let (CallOrigin::Peer(peer), Some(session)) = (origin, &session) {
        let answer = manage_for_peer(&node, session, peer, request);
        let answer = tokio::time::timeout(PEER_PATIENCE, answer).await;
        return answer.unwrap_or_else(|_| Err(deadline_exceeded()));
    }
    if request.header.method == method::TOPIC_PUBLISH {
        return topics::publish(&node, request).await;
    }
    let body = request.body.bytes(MAX_REQUEST).await?;
    let name = request.header.method;
    match name.as_str() {
        method::STATUS => {
            json(&status::of(&node, parse::<Option<admin::StatusRequest>>(&body)?).await)
        }
        method::AGENTS => json(&agent_rows(&node, &parse(&body)?).await),
        method::DESCRIBE => json(&describe::describe(&node, &parse(&body)?).await?),
        method::INVITE => json(&join::invite(&node, &parse(&body)?)?),
        method::JOIN => json(&join::join(&node, parse(&body)?).await?),
        method::LEAVE => json(&hubs::leave_hub(&node, &parse(&body)?).await?),
        method::TRUST_LIST => json(&trusted(&node)),
        method::TRUST_ADD => json(&trust_add(
            &node,
            &parse(&body)?,
            TrustOrigin::Manual,
            None,
        )?),
        method::TRUST_APPROVE => json(&trust_approve(&node, &parse(&body)?)?),
        method::TRUST_REMOVE => json(&trust_remove(&node, &parse(&body)?)?),
        method::TRUST_PENDING => json(&pending_peers(&node)),
        method::PING => json(&ping(&node, &parse(&body)?).await?),
        method::RESOLVE => json(&resolved_address(&node, &parse(&body)?).await?),
        method::CONFIG => {
            let mut rows = node.config().in_force();
            rows.push(sockets::granted_buffers(&node));
            json(&rows)
        }
        method::DIAGNOSE => json(&Box::pin(doctor::diagnose(&node, &parse(&body)?)).await?),
        method::MESSAGE_LIST => json(&messages::manage::list(&node, parse(&body)?).await?),
        method::MESSAGE_SHOW => json(&messages::manage::show(&node, &parse(&body)?).await?),
        method::MESSAGE_WAIT => json(&messages::manage::wait(&node, &parse(&body)?).await?),
        method::MESSAGE_RETRY => json(&messages::manage::retry(&node, &parse(&body)?).await?),
        method::MESSAGE_DROP => json(&messages::manage::remove(&node, &parse(&body)?).await?),
        method::MESSAGE_TAKE => json(&messages::manage::take(&node, &parse(&body)?).await?),
        method::MESSAGE_BACKLOG => messages::watch_backlog(&node, &parse(&body)?),
        method::MESSAGE_ACK => json(&messages::manage::judge(&node, parse(&body)?).await?),
        method::LEASE_ASK => json(&leases::ask(&node, parse(&body)?).await?),
        method::LEASE_RELEASE => json(&leases::release(&node, parse(&body)?).await?),
        method::LEASE_LIST => json(&leases::list(&node, &parse(&body)?).await?),
        method::TOPIC_SUBSCRIBE => topics::subscribe(&node, session, &parse(&body)?).await,
        method::TOPIC_LIST => json(&topics::list(&node).await?),
        method::TOPIC_KEEP => json(&topics::keep(&node, &parse(&body)?).await?),
        method::TOPIC_UNKEEP => {
            let pattern: String = parse(&body)?;
            json(&topics::unkeep(&node, &pattern).await?)
        }
        method::TOPIC_CONFIRM => json(&topics::confirm(&node, &parse(&body)?).await?),
        method::TOPIC_FORGET => {
            let name: String = parse(&body)?;
            json(&topics::forget(&node, &name).await?)
        }
        method::TASK_CANCEL => json(&messages::cancel(&node, &parse(&body)?).await?),
        method::TASK_PROGRESS => json(&messages::report(&node, parse(&body)?).await?),
        method::SHUTDOWN => {
            let shutdown: admin::ShutdownRequest = parse(&body)?;
            node.lifecycle
                .stop
                .send_replace(Some(Duration::from_millis(shutdown.grace_ms)));
            json(&())
        }
        _ => Err(Status::new(
            Code::Unimplemented,
            format!("the node has no method `{name}`"),
        )
        .with_hint("this program may be newer than the node: restart the node")),
    }
}

/// What another node may ask: little, and briefly.
async fn manage_for_peer(
    node: &Arc<NodeInner>,
    session: &Session,
    peer: NodeId,
    mut request: Request,
) -> Result<Response, Status> {
    if request.header.method == method::MESSAGES && node.trust.is_trusted(peer) {
        return messages::received(node, peer, request).await;
    }
    if request.header.method == method::TOPICS && node.trust.is_trusted(peer) {
        return topics::subscribed_by_peer(node, peer, request).await;
    }
    if request.header.method == method::TOPIC_REPLAY && node.trust.is_trusted(peer) {
        return topics::replayed_by_peer(node, peer, request).await;
    }
    let body = request.body.bytes(MAX_PEER_REQUEST).await?;
    let name = request.header.method;
    match name.as_str() {
        method::JOIN => join::redeemed(node, session, peer, &body)
            .await
            .map(Response::new),
        method::AGENTS if node.trust.is_trusted(peer) => {
            let query: AgentsQuery = parse(&body)?;
            let allow = node.trust.grant(peer);
            let mut rows = local_agents(node, &query);
            rows.retain(|row| row.name.parse().is_ok_and(|name| allow.allows(&name)));
            json(&rows)
        }
        method::DESCRIBE if node.trust.is_trusted(peer) => {
            json(&describe::describe_for_peer(node, peer, &parse(&body)?)?)
        }
        method::REACH if node.trust.is_trusted(peer) => {
            json(&doctor::reach_report(node, peer).await)
        }
        _ if node.trust.is_trusted(peer) => Err(Status::new(
            Code::PermissionDenied,
            format!("`{name}` is only for programs on the node's own machine"),
        )),
        _ => Err(router::refuse_untrusted(node, session, peer).await),
    }
}

/// What can be called: here, at connected peers, and at trusted nodes that a hub knows.
async fn agent_rows(node: &NodeInner, query: &AgentsQuery) -> Vec<AgentRow> {
    let mut rows = local_agents(node, query);
    if query.local_only {
        return rows;
    }
    let search = search(query);
    for (_, members) in node.registry.members() {
        for member in members.iter() {
            if let MemberTarget::Peer { id, offer, bare } = member.value()
                && search.matches(offer)
            {
                let takes = bare_of_peer(node, &offer.name, *bare, true);
                rows.push(AgentRow {
                    members: member.stands_for(),
                    group: vec![node.registry.member_row(member)],
                    ..remote_row(node, *id, offer, takes)
                });
            }
        }
    }
    for (id, record) in hubs::search_hubs(node, &search).await {
        if id == node.id() {
            continue;
        }
        for offer in record.agents.iter().filter(|offer| search.matches(offer)) {
            if !rows
                .iter()
                .any(|row| row.node == id && row.name == offer.name.as_str())
            {
                // Whom only a hub vouches for is not restricted.
                let trusted = node.trust.is_trusted(id);
                let bare = !trusted || node.trust.takes_bare(id, &offer.name);
                let takes = bare_of_peer(node, &offer.name, bare, false);
                rows.push(remote_row(node, id, offer, takes));
            }
        }
    }
    rows.sort_by(|a, b| (!a.local, &a.name, &a.node_name).cmp(&(!b.local, &b.name, &b.node_name)));
    rows
}

pub(super) fn local_agents(node: &NodeInner, query: &AgentsQuery) -> Vec<AgentRow> {
    let search = search(query);
    let mut rows = Vec::new();
    for (name, members) in node.registry.members() {
        if is_private(&name) {
            continue;
        }
        let locals: Vec<_> = members
            .iter()
            .filter_map(|m| Some((m, m.value().local_offer()?)))
            .collect();
        let Some((_, offer)) = locals.first().filter(|(_, offer)| search.matches(offer)) else {
            continue;
        };
        rows.push(AgentRow {
            local: true,
            bare: BareCalls::First,
            members: u32::try_from(locals.len()).unwrap_or(u32::MAX),
            member_numbers: locals
                .iter()
                .filter_map(|(member, _)| member.key().number())
                .collect(),
            in_flight: locals
                .iter()
                .map(|(member, _)| u64::from(member.in_flight()))
                .sum(),
            waiting: node.registry.waiting(&name) as u64,
            group: locals
                .iter()
                .map(|(member, _)| node.registry.member_row(member))
                .collect(),
            ..row(
                node.id(),
                node.name().map(String::from).unwrap_or_default(),
                offer,
            )
        });
    }
    rows
}

fn remote_row(node: &NodeInner, id: NodeId, offer: &AgentOffer, bare: BareCalls) -> AgentRow {
    AgentRow {
        bare,
        ..row(id, known_as(node, id), offer)
    }
}

/// Which calls that name no node a peer's agent gets: as [`super::router`] picks.
fn bare_of_peer(node: &NodeInner, agent: &AgentName, takes: bool, connected: bool) -> BareCalls {
    let before = match connected {
        true => node.registry.has_local(agent),
        false => node.registry.knows(agent),
    };
    match (takes, before) {
        (false, _) => BareCalls::Never,
        (true, true) => BareCalls::Next,
        (true, false) => BareCalls::First,
    }
}

fn trusted(node: &NodeInner) -> Vec<admin::TrustedPeer> {
    let mut rows: Vec<_> = node
        .trust
        .rows()
        .into_iter()
        .map(|row| trusted_row(node, row))
        .collect();
    rows.sort_by(|a, b| (&a.alias, a.id).cmp(&(&b.alias, b.id)));
    rows
}

fn trusted_row(node: &NodeInner, row: TrustRow) -> admin::TrustedPeer {
    admin::TrustedPeer {
        id: row.id,
        named_by: match row.alias {
            Some(_) => row.named_by.name().to_owned(),
            None => String::new(),
        },
        alias: row.alias.map(String::from).unwrap_or_default(),
        allow: texts(row.allow.names()),
        offer: texts(row.bare.names()),
        via: row.via.name().to_owned(),
        since: row.since,
        connected: node.peers.has(row.id),
    }
}

fn trust_add(
    node: &NodeInner,
    add: &admin::TrustAdd,
    via: TrustOrigin,
    claimed: Option<NodeName>,
) -> Result<admin::TrustedPeer, Status> {
    if add.id == node.id() {
        return Err(Status::new(
            Code::InvalidArgument,
            "this is the node's own key",
        ));
    }
    let bad = |error: &dyn std::fmt::Display| Status::new(Code::InvalidArgument, error.to_string());
    let alias = match add.alias.as_str() {
        "" => claimed.map(|name| (name, NamedBy::Peer)),
        text => Some((text.parse().map_err(|error| bad(&error))?, NamedBy::User)),
    };
    let places = |texts: &[String]| {
        let parsed = texts.iter().map(|text| {
            text.parse()
                .map_err(|_| bad(&format!("`{text}` is not IP:PORT")))
        });
        parsed.collect::<Result<Vec<SocketAddr>, _>>()
    };
    let (addresses, tcp) = (places(&add.addresses)?, places(&add.tcp)?);
    let peer = NewPeer {
        id: add.id,
        alias,
        terms: stated(&add.allow)?.map_or(GrantTerms::Offered(Grant::All), GrantTerms::Stated),
        bare: said_names(&add.offer)?,
        via,
        known: AddressOrigin::Typed,
        addresses,
        tcp,
        relay: None,
    };
    let row = node.trust.add(peer, now_unix()).map_err(store_status)?;
    for (id, session) in node.peers.all() {
        if id == row.id {
            session.send_offers(offers::offers_to(node, id));
            // What it offers may go elsewhere now.
            offers::mark_bare(node, id);
        }
    }
    Ok(trusted_row(node, row))
}

fn trust_approve(node: &NodeInner, add: &admin::TrustAdd) -> Result<admin::TrustedPeer, Status> {
    let Some(pending) = node
        .trust
        .pending_rows()
        .into_iter()
        .find(|row| row.id == add.id)
    else {
        return Err(
            Status::new(Code::NotFound, "no node with this key is waiting")
                .with_hint("`hail trust pending` lists who is; `hail trust add` needs no request"),
        );
    };
    let claimed = pending.claim.parse().ok();
    let claimed = claimed.filter(|name| node.name().as_ref() != Some(name));
    trust_add(node, add, TrustOrigin::Approved, claimed)
}

fn trust_remove(node: &NodeInner, who: &admin::PeerSelector) -> Result<(), Status> {
    let reference = node_ref(&who.who)?;
    let missing = || {
        Status::new(
            Code::NotFound,
            format!("`{reference}` is not a trusted peer"),
        )
        .with_hint("`hail trust ls` lists them")
    };
    let id = node.trust.find(&reference).ok_or_else(missing)?;
    node.trust.remove(id, now_unix()).map_err(store_status)?;
    for (peer, session) in node.peers.all() {
        if peer == id {
            session.close(Code::PermissionDenied, "this node no longer trusts yours");
        }
    }
    node.peers.lists.forget(id);
    node.registry.clear_offers(id);
    Ok(())
}

fn pending_peers(node: &NodeInner) -> Vec<admin::UntrustedPeer> {
    let row = |row: PendingPeer| admin::UntrustedPeer {
        id: row.id,
        claims: row.claim,
        from: row.from,
        at: row.at,
        attempts: row.attempts,
    };
    node.trust.pending_rows().into_iter().map(row).collect()
}

async fn ping(
    node: &Arc<NodeInner>,
    ping: &admin::PingRequest,
) -> Result<admin::PingAnswer, Status> {
    let id = resolve::resolve(node, &node_ref(&ping.who)?).await?;
    let carrier: Carrier = match ping.carrier.as_str() {
        "" => Carrier::Auto,
        text => text
            .parse()
            .map_err(|error: &str| Status::new(Code::InvalidArgument, error))?,
    };
    match ping_once(node, id, carrier).await {
        // Its tunnel was that of a peer that has gone; it may be back.
        Err((status, true)) if status.code == Code::Unavailable => {
            let again = ping_once(node, id, carrier).await;
            again.map_err(|(status, _)| status)
        }
        pong => pong.map_err(|(status, _)| status),
    }
}

/// One ping; an error comes with whether it was over a tunnel that was up already.
async fn ping_once(
    node: &Arc<NodeInner>,
    id: NodeId,
    carrier: Carrier,
) -> Result<admin::PingAnswer, (Status, bool)> {
    let start = tokio::time::Instant::now();
    let made = match carrier {
        Carrier::Auto => {
            let reused = node.peers.up(id).is_some();
            tunnel::tunnel_to(node, id)
                .await
                .map(|session| (session, reused))
        }
        one => requested_dials::tunnel_over(node, id, one).await,
    };
    let (session, reused) = made.map_err(|status| (status, false))?;
    let why = match carrier {
        Carrier::Auto => carrier_reason(node, &session),
        _ => "asked for".to_owned(),
    };
    let connect = start.elapsed();
    let answers = async {
        // Counted like a call, so that a silent peer is noticed.
        let _asking = session.count();
        let rtt = session.ping().await?;
        Ok((rtt, trusts_us(&session).await?))
    };
    let (rtt, trusted) = answers.await.map_err(|status| (status, reused))?;
    path_chosen(&session).await;
    Ok(admin::PingAnswer {
        id,
        name: known_as(node, id),
        rtt_us: micros(rtt),
        path: status::path(&session),
        carrier: session.connection().carrier().to_owned(),
        why,
        reused,
        connect_us: if reused { 0 } else { micros(connect) },
        trusted,
    })
}

fn carrier_reason(node: &NodeInner, session: &Session) -> String {
    let shown = node.peers.shown().into_iter();
    let mut why = shown.filter(|shown| shown.first.is(session));
    why.next()
        .map(|shown| shown.reason.to_string())
        .unwrap_or_default()
}

/// Where a call to an address would go, with the tunnel brought up.
async fn resolved_address(
    node: &Arc<NodeInner>,
    ask: &admin::ResolveRequest,
) -> Result<admin::ResolveAnswer, Status> {
    let address: Address = ask
        .who
        .parse()
        .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
    let before: Vec<NodeId> = node.peers.all().into_iter().map(|(id, _)| id).collect();
    let header = CallHeader {
        to: address.to_string(),
        carrier: ask.carrier.clone(),
        ..Default::default()
    };
    let carrier = requested_carrier(&header, CallOrigin::Local)?;
    let start = tokio::time::Instant::now();
    let mut resolve = None;
    if let Some(who) = &address.node {
        let id = resolve::resolve(node, who).await?;
        resolve = Some(start.elapsed());
        if id != node.id() {
            tunnel::tunnel_for_call(node, id, carrier, false).await?;
        }
    }
    let route = match router::route(node, &header, CallOrigin::Local, None) {
        RouteProgress::Now(route) => route?,
        RouteProgress::Later(route) => route.await?,
    };
    let took = start.elapsed();
    // Whoever is found by a bare name is found by way of its tunnel.
    let resolve = resolve.unwrap_or(took);
    let picked = route.picked.as_ref().map(|picked| picked.value());
    let remote = match (picked, &address.node) {
        (Some(MemberTarget::Peer { id, .. }), _) => Some(*id),
        (Some(_), _) | (None, None) => None,
        (None, Some(who)) => Some(resolve::resolve(node, who).await?),
    };
    let session = remote.and_then(|id| match carrier {
        Some(carrier) => node.peers.up_over(id, carrier),
        None => node.peers.up(id),
    });
    if let Some(session) = &session {
        path_chosen(session).await;
    }
    let carrier = session
        .as_ref()
        .map(|session| session.connection().carrier());
    Ok(admin::ResolveAnswer {
        node: remote.unwrap_or(node.id()),
        name: remote.map_or_else(String::new, |id| known_as(node, id)),
        local: remote.is_none(),
        reused: remote.is_none_or(|id| before.contains(&id)),
        resolve_us: micros(resolve),
        connect_us: micros(took - resolve),
        path: session.as_ref().map(status::path).unwrap_or_default(),
        carrier: carrier.unwrap_or_default().to_owned(),
    })
}

/// Waits until a session that has just come up says which path it uses, briefly.
async fn path_chosen(session: &Session) {
    let mut paths = session.connection().path_changes();
    let chosen = async {
        while session.connection().stats().remote.is_empty() {
            paths.changed().await;
        }
    };
    // Without one the answer says so.
    let _ = tokio::time::timeout(PATH_CHOSEN_WITHIN, chosen).await;
}

/// The alias of a peer, or the name that it gave itself; empty for none.
pub(super) fn known_as(node: &NodeInner, id: NodeId) -> String {
    node.trust.alias(id).map(String::from).unwrap_or_default()
}

/// Whether the far node lets this one call. Anybody's PING is answered, so a question is put that
/// only a trusted peer may ask, and that has an empty answer.
pub(super) async fn trusts_us(session: &Session) -> Result<bool, Status> {
    let header = CallHeader {
        to: admin::AGENT.to_owned(),
        method: method::AGENTS.to_owned(),
        ..CallHeader::default()
    };
    let nothing = AgentsQuery {
        tags: vec![String::new()],
        local_only: true,
        ..AgentsQuery::default()
    };
    let body = serde_json::to_vec(&nothing)
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    let answer = session.open(FrameKind::CALL, &header, body.into()).await?;
    match answer.begin(None).await {
        Ok(_) => Ok(true),
        Err(status) if status.code == Code::PermissionDenied => Ok(false),
        Err(status) => Err(status),
    }
}

impl MemberTarget {
    fn local_offer(&self) -> Option<AgentOffer> {
        match self {
            Self::Handler { register, .. } | Self::Attached { register, .. } => {
                Some(crate::agent::offer(register))
            }
            Self::Peer { .. } => None,
        }
    }
}

fn row(node: NodeId, node_name: String, offer: &AgentOffer) -> AgentRow {
    AgentRow {
        name: offer.name.to_string(),
        node,
        node_name,
        local: false,
        bare: BareCalls::Never,
        description: offer.description.clone(),
        tags: offer.tags.clone(),
        version: offer.version.clone(),
        members: 0,
        member_numbers: Vec::new(),
        in_flight: 0,
        waiting: 0,
        group: Vec::new(),
    }
}

fn search(query: &AgentsQuery) -> SearchRequest {
    SearchRequest {
        tags: query.tags.clone(),
        words: query.words.clone(),
        after: None,
    }
}

fn node_ref(text: &str) -> Result<NodeRef, Status> {
    text.parse()
        .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Status> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| Status::new(Code::InvalidArgument, format!("malformed request: {error}")))
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<Response, Status> {
    let body = serde_json::to_vec(value)
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(Response::new(body).content_type("application/json"))
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
