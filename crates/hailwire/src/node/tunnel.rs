//! The life of a tunnel: how it comes up, what it says, how its silence and its end are noticed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use hailwire_core::{
    RemoteSource, Transport,
    admission::AdmissionShares,
    dial_address::{AddressCandidates, AddressOrigin},
    dial_patience::SHORT_PATIENCE,
    grants::{Grant, takes_bare},
    liveness::{BusyConnection, LivenessAction, LivenessMonitor},
    peer_table::{PeerConnection, PeerRemains},
    routing::CallOrigin,
};
use hailwire_wire::{
    AgentName, CallHeader, Code, NodeId, Status, directory::SearchRequest, frame::FrameKind,
    header::Hello, record::NodeRecord,
};
use iroh::endpoint::IncomingAddr;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use super::{
    NodeInner, additional, dial, dial_targets, hubs, network_return, offers,
    overlay::{self, NodeAddresses},
    peers::{ConnectStep, DialOutcome},
    reconnect, requested_dials,
    router::NodeDispatcher,
    store::TrustRow,
};
use crate::{
    admin,
    admission::{AdmissionGate, AdmissionSlot, HandshakeAdmission, HandshakeSlots},
    body::Body,
    carrier::{CarrierConnection, quic},
    clock,
    config::Carrier,
    panics,
    session::{OfferList, Session},
};

/// Sessions of nodes that are not trusted, at once. The oldest makes way for the next; one that redeems a
/// ticket has a moment for it.
const UNTRUSTED_SLOTS: AdmissionShares = AdmissionShares {
    all: 32,
    per_host: 16,
    per_network: 24,
    spared_new: Duration::ZERO,
    spared_busy: Duration::from_millis(500),
};

/// How long an untrusted peer may stay.
const UNTRUSTED_STAY: Duration = Duration::from_secs(30);

/// How long a new tunnel's greeting may take.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// Nodes asked at once for an agent that no connected peer offers.
const MAX_SEARCHED_NODES: usize = 16;

/// Untrusted peers that are here.
#[derive(Debug)]
pub(super) struct UntrustedPeers {
    gate: AdmissionGate,
    /// Those that have not been welcomed yet.
    slots: Mutex<HashMap<NodeId, Arc<AdmissionSlot>>>,
    /// Told when one of them may have become a peer.
    welcomed: Notify,
}

impl UntrustedPeers {
    pub(super) fn new() -> Self {
        Self {
            gate: AdmissionGate::new(UNTRUSTED_SLOTS),
            slots: Mutex::default(),
            welcomed: Notify::new(),
        }
    }

    /// An untrusted peer redeems a ticket: it does not make way for a moment.
    pub(super) fn redeems(&self, id: NodeId) {
        if let Some(slot) = self.slots().get(&id) {
            slot.goes_on();
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<AdmissionSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often a tunnel is looked for whose peer takes no calls on it by the time it is up.
const SUPERSEDED_AT_MOST: u32 = 3;

/// The tunnel to a trusted peer, brought up if need be. Where both dial at once and the peer has said already that it goes on with the
/// other tunnel, that one is waited for.
///
/// # Errors
///
/// `unavailable` when the peer cannot be reached, `permission_denied` when it is not trusted.
pub(crate) async fn tunnel_to(node: &Arc<NodeInner>, id: NodeId) -> Result<Session, Status> {
    let mut tunnel = any_tunnel_to(node, id).await?;
    for _ in 1..SUPERSEDED_AT_MOST {
        if tunnel.takes_work() {
            break;
        }
        tunnel = any_tunnel_to(node, id).await?;
    }
    Ok(tunnel)
}

async fn any_tunnel_to(node: &Arc<NodeInner>, id: NodeId) -> Result<Session, Status> {
    let mut outcome = match node.peers.connect(id, dial::carrier_for(node, id)) {
        ConnectStep::Up(session) => return Ok(session),
        ConnectStep::Wait(outcome) => outcome,
        ConnectStep::Dial(tell) => {
            let outcome = tell.subscribe();
            // In a task of its own, so that a caller who gives up does not undo the work that others wait for.
            tokio::spawn(dial_and_tell(node.clone(), id, tell));
            outcome
        }
    };
    let dialled = async {
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        }
        .unwrap_or_else(|| Err(unreachable(node, id, "the attempt was given up")))
    };
    let Some(silent) = node.peers.unreachable_for(id) else {
        return dialled.await;
    };
    // The dial goes on without this caller.
    let dialled = tokio::time::timeout(SHORT_PATIENCE, dialled).await;
    dialled.unwrap_or_else(|_| {
        let silent = (silent + SHORT_PATIENCE).as_secs();
        let reason = format!("it has not answered for {silent} s");
        Err(unreachable(node, id, &reason))
    })
}

/// Asks the agent `node` at the other end of a session, and reads an answer of at most so many bytes. The caller bounds the time.
pub(super) async fn ask_node(
    session: &Session,
    method: &str,
    body: impl Into<Body>,
    most: usize,
) -> Result<Bytes, Status> {
    let header = CallHeader {
        to: admin::AGENT.to_owned(),
        method: method.to_owned(),
        ..CallHeader::default()
    };
    let answer = session.open(FrameKind::CALL, &header, body.into()).await?;
    answer.begin(None).await?.bytes(most).await
}

/// Dials a peer, and tells those who wait for it what came of it.
async fn dial_and_tell(node: Arc<NodeInner>, id: NodeId, tell: watch::Sender<DialOutcome>) {
    let dial = || Box::pin(dial_peer(&node, id));
    let outcome = network_return::dial_through_outages(&node.sockets.endpoint, dial).await;
    if let Err(why) = &outcome {
        node.peers.failed(id, why);
    }
    // Nobody may be waiting any more.
    let _ = tell.send(Some(outcome));
}

/// As [`tunnel_to`] for a call, over the `carrier` that it asks for. It is counted by whether it found one, and need not wait for
/// the peer's greeting. One that may be made `twice` need not even wait for the handshake where the
/// peer was met before.
pub(super) async fn tunnel_for_call(
    node: &Arc<NodeInner>,
    id: NodeId,
    carrier: Option<Carrier>,
    twice: bool,
) -> Result<Session, Status> {
    if let Some(carrier) = carrier {
        let (session, found) = requested_dials::tunnel_over(node, id, carrier).await?;
        node.peers.count(found);
        return Ok(session);
    }
    if let Some(session) = node.peers.up_for_call(id) {
        return Ok(session);
    }
    node.peers.count(false);
    // What leaves with the first packet waits for as long as the dial takes.
    let first_flight = twice && node.peers.unreachable_for(id).is_none();
    tokio::select! {
        biased;
        tunnel = tunnel_to(node, id) => tunnel,
        early = node.peers.early.wait(id, first_flight) => Ok(early),
    }
}

async fn dial_peer(node: &Arc<NodeInner>, id: NodeId) -> Result<Session, Status> {
    if !hubs::trusts(node, id).await {
        return Err(Status::new(
            Code::PermissionDenied,
            format!("{id} is not a trusted peer"),
        )
        .with_hint("`hail join TICKET` makes two nodes trust each other"));
    }
    let most = node.config().limits.max_tunnels as usize;
    if !node.peers.has(id) && node.peers.len() >= most {
        return Err(Status::new(
            Code::ResourceExhausted,
            "this node has as many tunnels as it may",
        )
        .with_hint("raise `limits { max-tunnels }` in hail.kdl"));
    }
    let places = places(node, id).await;
    if places.is_empty() {
        let reason = "no address of it is known that can be reached from this network";
        return Err(unreachable(node, id, reason));
    }
    let session = dial::dial_at(node, id, &places).await?;
    // A peer that dialled at the same time may have won.
    Ok(node.peers.up(id).unwrap_or(session))
}

/// A connection of a trusted peer that resumes a TLS session: what comes before its handshake is
/// complete may be a replay, and only then is it a tunnel.
async fn arrived_early(
    node: &Arc<NodeInner>,
    id: NodeId,
    early: iroh::endpoint::IncomingZeroRttConnection,
    slot: &AdmissionSlot,
) {
    let room = overlay::connection_limits(&node.config().quic);
    let connection = quic::QuicConnection::accepted_early(early, room);
    if node.is_closing() {
        let connection = CarrierConnection::Quic(connection);
        return connection.close(Code::Unavailable, "the node is shutting down");
    }
    let session = start_session(node, id, CarrierConnection::Quic(connection.clone()), false);
    let completed = async {
        let complete = tokio::time::timeout(GREETING_TIMEOUT, connection.complete()).await;
        matches!(complete, Ok(Ok(_))) && greeted(&session).await.is_ok()
    };
    let completed = tokio::select! {
        completed = completed => completed,
        () = slot.displaced() => false,
    };
    if completed {
        up(node, id, &session, false);
    } else {
        session.close(Code::Unavailable, "the handshake was not completed");
    }
}

/// A new connection from a node that has proved to be `id`, over whichever carrier.
pub(super) async fn arrived(node: &Arc<NodeInner>, id: NodeId, connection: CarrierConnection) {
    if node.is_closing() {
        return connection.close(Code::Unavailable, "the node is shutting down");
    }
    if !node.trust.is_trusted(id) {
        return accept_untrusted(node, id, connection).await;
    }
    let session = start_session(node, id, connection, false);
    if greeted(&session).await.is_ok() {
        up(node, id, &session, false);
    }
}

pub(super) fn start_session(
    node: &Arc<NodeInner>,
    id: NodeId,
    connection: CarrierConnection,
    dialled: bool,
) -> Session {
    start_session_as(node, node.hello(), id, connection, dialled)
}

pub(super) fn start_session_as(
    node: &Arc<NodeInner>,
    hello: Hello,
    id: NodeId,
    connection: CarrierConnection,
    dialled: bool,
) -> Session {
    let dispatcher = Arc::new(NodeDispatcher {
        node: node.clone(),
        origin: CallOrigin::Peer(id),
        program: None,
    });
    let account = node.peers.accounts.of(id, node.trust.is_trusted(id));
    Session::start_charged(connection, dialled, hello, dispatcher, Some(account))
}

/// Makes a greeted session of a trusted peer its tunnel, or one more connection of it where an
/// accepted one says that it is to be that, and looks after it until it ends. The one place where a
/// tunnel begins, and so where trust is asked for the last time and where the number of tunnels is
/// bounded.
pub(super) fn up(node: &Arc<NodeInner>, id: NodeId, session: &Session, dialled: bool) {
    if !node.trust.is_trusted(id) {
        return session.close(Code::PermissionDenied, "this node does not trust yours");
    }
    node.peers.accounts.welcome(id);
    if !dialled && additional::is_additional(session) {
        additional::up_additional(node, id, session, dialled);
        return;
    }
    let most = node.config().limits.max_tunnels as usize;
    if !node.peers.has(id) && node.peers.len() >= most {
        return session.close(Code::ResourceExhausted, "no more tunnels");
    }
    if !node
        .peers
        .enter(id, session, dialled, dial::carrier_for(node, id))
    {
        return;
    }
    node.peers.untrusted.welcomed.notify_waiters();
    reconnect::note_connected(node, id);
    let carrier = session.connection().carrier();
    tracing::info!(peer = %id, carrier, dialled, "tunnel up");
    session.send_offers(offers::offers_to(node, id));
    node.peers.note_agents(id, node.registry.offers_of(id));
    node.peers.lists.open(id);
    node.messages.peer_reachable(id);
    let looked_after = look_after(node.clone(), id, session.clone());
    tokio::spawn(panics::panicked("a tunnel", looked_after));
    if dialled {
        additional::keep_connections(node, id, session);
    }
}

/// Everywhere that a peer may be and this node goes: where it was last, and what it and the hubs say.
pub(super) async fn places(node: &NodeInner, id: NodeId) -> NodeAddresses {
    let mut candidates = AddressCandidates::default();
    if let Some(row) = node.trust.row(id) {
        candidates.add(AddressOrigin::Typed, &row.typed, &row.tcp);
        candidates.add(AddressOrigin::Found, &row.addresses, &[]);
        candidates.add(AddressOrigin::Told, &row.told, &row.told_tcp);
        candidates.relays.extend(row.relay);
    }
    hubs::candidates_at_hubs(node, id, &mut candidates).await;
    dial_targets::dialled(node, id, candidates).await
}

/// Waits for lists of offers that have not had their turn, and brings up tunnels to nodes that have none,
/// until one of them offers `agent`: to those of which a hub knows that they do, and to trusted peers.
pub(super) async fn ask_others(node: &Arc<NodeInner>, agent: &AgentName) {
    let unconnected = |id: &NodeId| !node.peers.has(*id);
    let takes = |row: &TrustRow| takes_bare(&row.allow, &row.bare, agent);
    let trusted = node.trust.rows().into_iter().filter(takes);
    let trusted = trusted.map(|row| row.id);
    let mut waiting: VecDeque<NodeId> = trusted.filter(unconnected).collect();
    let mut dials = JoinSet::new();
    let (asking, wanted) = (node.clone(), agent.clone());
    dials.spawn(async move {
        offers::lists_had_their_turn(&asking, &wanted).await;
        Some(())
    });
    let mut holders = std::pin::pin!(holders_at_hubs(node, agent));
    let mut searching = true;
    loop {
        // One of them waits for lists.
        while dials.len() <= MAX_SEARCHED_NODES
            && let Some(id) = waiting.pop_front()
        {
            dials.spawn(ask_offers(node.clone(), id));
        }
        tokio::select! {
            found = &mut holders, if searching => {
                searching = false;
                // The likely ones first; a peer that is being dialled is waited for, not
                // dialled twice.
                waiting.retain(|id| !found.contains(id));
                found.into_iter().filter(unconnected).for_each(|id| waiting.push_front(id));
            }
            Some(_) = dials.join_next() => if node.registry.knows(agent) {
                // The others go on coming up by themselves.
                return dials.detach_all();
            },
            else => return,
        }
    }
}

/// Nodes that offer `agent` by what the hubs know, and that are trusted or vouched for.
async fn holders_at_hubs(node: &NodeInner, agent: &AgentName) -> HashSet<NodeId> {
    let search = SearchRequest {
        words: vec![agent.to_string()],
        ..SearchRequest::default()
    };
    let found = hubs::search_hubs(node, &search).await.into_iter();
    let offers = |record: &NodeRecord| record.agents.iter().any(|offer| offer.name == *agent);
    found
        .filter(|(id, record)| *id != node.id() && offers(record))
        .filter(|(id, _)| !node.trust.is_trusted(*id) || node.trust.takes_bare(*id, agent))
        .map(|(id, _)| id)
        .collect()
}

/// Brings up the tunnel to a node and learns what it offers.
async fn ask_offers(node: Arc<NodeInner>, id: NodeId) -> Option<()> {
    tunnel_to(&node, id).await.ok()?;
    let entered = offers::offers_entered(&node, id);
    tokio::time::timeout(GREETING_TIMEOUT, entered).await.ok()
}

/// Accepts tunnels until the endpoint closes.
pub(super) async fn accept(node: Arc<NodeInner>) {
    let handshakes = HandshakeSlots::new();
    while let Some(incoming) = node.sockets.endpoint.accept().await {
        let remote = incoming.remote_addr();
        let known = || is_peers(&node, &remote);
        match handshakes.begin(source(&remote), incoming.remote_addr_validated(), known) {
            HandshakeAdmission::Admitted(slot) => {
                let arrives = accept_one(node.clone(), incoming, slot);
                tokio::spawn(panics::panicked("a connection over UDP", arrives));
            }
            HandshakeAdmission::ProveAddress => {
                if incoming.retry().is_err() {
                    tracing::debug!("a connection was refused: its address cannot be proved");
                }
            }
            HandshakeAdmission::Ignore => incoming.ignore(),
        }
    }
    if !node.is_closing() {
        tracing::error!("the QUIC endpoint has ended: nothing is heard over UDP any more");
        node.lifecycle.deaf.send_replace(true);
    }
}

/// Where a connection comes from.
fn source(remote: &IncomingAddr) -> RemoteSource {
    match remote {
        IncomingAddr::Ip(address) => RemoteSource::address(address.ip()),
        IncomingAddr::Relay { url, endpoint_id } => {
            RemoteSource::relayed(url.to_string(), NodeId::from_bytes(*endpoint_id.as_bytes()))
        }
        other => RemoteSource::other(format!("{other:?}")),
    }
}

/// Whether a peer was found there before.
fn is_peers(node: &NodeInner, remote: &IncomingAddr) -> bool {
    match remote {
        IncomingAddr::Ip(address) => node.trust.is_at(address.ip()),
        IncomingAddr::Relay { endpoint_id, .. } => node
            .trust
            .is_trusted(NodeId::from_bytes(*endpoint_id.as_bytes())),
        _ => false,
    }
}

async fn accept_one(node: Arc<NodeInner>, incoming: iroh::endpoint::Incoming, slot: AdmissionSlot) {
    let early = match incoming.accept() {
        Ok(accepting) => accepting.into_0rtt(),
        Err(error) => return tracing::debug!(%error, "a connection was not accepted"),
    };
    if let Some(id) = resumed(&node, &early) {
        // Its handshake is not complete, so it keeps its slot among them.
        return Box::pin(arrived_early(&node, id, early, &slot)).await;
    }
    let completed = tokio::time::timeout(GREETING_TIMEOUT, early.handshake_completed());
    let completed = tokio::select! {
        completed = completed => completed,
        () = slot.displaced() => return tracing::debug!("a handshake made way for another"),
    };
    let connection = match completed {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took too long"),
    };
    drop(slot);
    let id = NodeId::from_bytes(*connection.remote_id().as_bytes());
    let connection = dial::quic_connection(&node, connection);
    Box::pin(arrived(&node, id, connection)).await;
}

/// The trusted peer that resumes a TLS session with this connection. An untrusted peer may not be early.
fn resumed(node: &NodeInner, early: &iroh::endpoint::IncomingZeroRttConnection) -> Option<NodeId> {
    if !node.config().quic.zero_rtt {
        return None;
    }
    // One that does not resume has none yet, which the engine would warn of.
    early.peer_identity()?;
    let id = NodeId::from_bytes(*early.remote_id().ok()?.as_bytes());
    node.trust.is_trusted(id).then_some(id)
}

/// Closed by default: an untrusted peer whom no hub vouches for may redeem a ticket, briefly, and there
/// are few at once, each with little room.
async fn accept_untrusted(node: &Arc<NodeInner>, id: NodeId, connection: CarrierConnection) {
    let from = RemoteSource::remote(&connection.stats().remote, id);
    let Some(slot) = node.peers.untrusted.gate.enter(from) else {
        return connection.close(Code::ResourceExhausted, "too many untrusted peers");
    };
    let slot = Arc::new(slot);
    node.peers.untrusted.slots().insert(id, slot.clone());
    let stay = stay(node, id, connection, &slot);
    Box::pin(stay).await;
    let mut slots = node.peers.untrusted.slots();
    // Another connection of the same key may have come since.
    if slots.get(&id).is_some_and(|held| Arc::ptr_eq(held, &slot)) {
        slots.remove(&id);
    }
}

/// An untrusted peer's stay, until it is trusted, has made way for another, or has been here for long enough.
async fn stay(
    node: &Arc<NodeInner>,
    id: NodeId,
    connection: CarrierConnection,
    slot: &AdmissionSlot,
) {
    connection.narrow();
    let vouched = hubs::vouched_for(node, id).await;
    let session = start_session(node, id, connection.clone(), false);
    let greeted = tokio::select! {
        greeted = greeted(&session) => greeted.is_ok(),
        () = slot.displaced() => false,
    };
    if !greeted {
        return session.close(
            Code::ResourceExhausted,
            "another untrusted peer needs the place",
        );
    }
    if additional::is_additional(&session) && !node.trust.is_trusted(id) {
        return session.close(
            Code::PermissionDenied,
            "an untrusted peer has one connection",
        );
    }
    if vouched {
        up(node, id, &session, false);
    }
    let stay = tokio::time::timeout(UNTRUSTED_STAY, async {
        loop {
            let welcomed = node.peers.untrusted.welcomed.notified();
            if node.trust.is_trusted(id) {
                return true;
            }
            tokio::select! {
                () = welcomed => {}
                _ = session.closed() => return false,
                () = slot.displaced() => return false,
            }
        }
    });
    match stay.await {
        Ok(true) => connection.widen(),
        Ok(false) => session.close(
            Code::ResourceExhausted,
            "another untrusted peer needs the place",
        ),
        Err(_) => session.close(Code::PermissionDenied, "this node does not trust yours"),
    }
}

/// Waits for the far side's greeting.
pub(super) async fn greeted(session: &Session) -> Result<(), Status> {
    let pong = tokio::time::timeout(GREETING_TIMEOUT, session.greeted()).await;
    pong.unwrap_or_else(|_| {
        Err(Status::new(
            Code::Unavailable,
            "the peer did not greet in time",
        ))
    })
}

/// Looks after a connection until it ends: notes where the peer was found, refuses what no session opens, and
/// cleans up after it.
pub(super) async fn look_after(node: Arc<NodeInner>, id: NodeId, session: Session) {
    let mut refusing = std::pin::pin!(session.connection().refuse_unidirectional());
    let mut refused = false;
    let mut offered = session.peer_offered();
    let mut paths = session.connection().path_changes();
    loop {
        node.peers.look_at_path(id, &session);
        let found = session.connection().stats().remote.parse::<SocketAddr>();
        if let (Transport::Udp, Ok(address)) = (session.transport(), found) {
            node.trust.found_at(id, address);
        }
        tokio::select! {
            // By then the path is the one that the handshake ended on.
            _ = offered.wait_for(|offered| *offered), if !*offered.borrow() => {}
            () = &mut refusing, if !refused => refused = true,
            () = paths.changed() => {}
            why = session.closed() => {
                tracing::debug!(peer = %id, %why, "connection down");
                break;
            }
        }
    }
    node.peers.forget_path(&session);
    if matches!(node.peers.leave(id, &session), PeerRemains::Nothing) {
        tracing::info!(peer = %id, "tunnel down");
        if !node.peers.has(id) {
            node.peers.lists.forget(id);
            reconnect::note_disconnected(&node, id);
        }
        node.registry.clear_offers(id);
    }
}

/// Least time between two rounds of [`announce`], so that agents that come one after another are said in
/// few lists.
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(50);

/// Tells every peer when the agents that it may call have changed.
pub(super) async fn announce(node: Arc<NodeInner>) {
    loop {
        node.registry.changed().await;
        node.messages.agents_changed();
        node.hubs.publish();
        let number = offers::next_list(&node);
        // Most peers may call the same.
        let mut lists: Vec<(Grant, OfferList)> = Vec::new();
        for (id, session) in node.peers.all() {
            let grant = node.trust.grant(id);
            let made = lists.iter().find(|(made, _)| *made == grant);
            let list = made.map(|(_, list)| list.clone()).unwrap_or_else(|| {
                let list = OfferList::new(node.registry.offers(&grant), number);
                lists.push((grant, list.clone()));
                list
            });
            session.send_offers(list);
        }
        tokio::time::sleep(ANNOUNCE_PAUSE).await;
    }
}

/// Finds peers that have vanished while calls to them are in flight ([`hailwire_core::liveness`] decides).
pub(super) async fn watch_liveness(node: Arc<NodeInner>) {
    let mut monitor = LivenessMonitor::default();
    // Held from one look to the next, so that the key of none is given to another.
    let mut busy: HashMap<usize, (NodeId, Session)> = HashMap::new();
    loop {
        if let due @ Some(_) = monitor.poll_timeout() {
            clock::reached(due).await;
        }
        node.peers.close_retired();
        let superseded = node.peers.still_busy().into_iter();
        let all = node.peers.all().into_iter().chain(superseded);
        let carrying = all.filter(|(_, session)| session.in_flight() > 0);
        let found: HashMap<_, _> = carrying
            .map(|(id, session)| (session.key(), (id, session)))
            .collect();
        let looks = found.iter().map(|(key, (id, session))| BusyConnection {
            connection: *key,
            peer: *id,
            received: session.connection().stats().received_bytes,
        });
        monitor.handle_look(clock::now(), looks);
        let _until_now = std::mem::replace(&mut busy, found);
        while let Some(action) = monitor.poll_action() {
            act_on_silence(&node, &busy, action);
        }
    }
}

fn act_on_silence(
    node: &Arc<NodeInner>,
    busy: &HashMap<usize, (NodeId, Session)>,
    action: LivenessAction<usize>,
) {
    match action {
        LivenessAction::Ping(key) => {
            if let Some((_, session)) = busy.get(&key).cloned() {
                tokio::spawn(async move { session.ping().await });
            }
        }
        LivenessAction::Redial(peer) => {
            tokio::spawn(redial_silent(node.clone(), peer));
        }
        LivenessAction::Close(key) => {
            if let Some((peer, session)) = busy.get(&key) {
                tracing::warn!(%peer, "no sign of life with calls in flight");
                if node.peers.up(*peer).is_none_or(|up| up.is(session)) {
                    node.peers.fell_silent(*peer);
                }
                session.close(Code::Unavailable, "the peer gives no sign of life");
            }
        }
    }
}

async fn redial_silent(node: Arc<NodeInner>, id: NodeId) {
    if !node.is_closing()
        && let Err(status) = Box::pin(dial_peer(&node, id)).await
    {
        tracing::debug!(peer = %id, %status, "a silent peer was not found anew");
    }
}

pub(super) fn unreachable(node: &NodeInner, id: NodeId, reason: &str) -> Status {
    let peer = node.trust.label(id);
    Status::new(
        Code::Unavailable,
        format!("node {peer} cannot be reached: {reason}"),
    )
    .with_hint(
        "see that it is up (`hail status` there) and that UDP passes, or let it listen on TCP \
         (`--listen-tcp`); a hub helps behind NATs",
    )
}

#[cfg(test)]
mod tests;
