//! The life of a tunnel: how it comes up, what it says, how its silence and its end are noticed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use hailwire_wire::{
    AgentName, Code, NodeId, Status, directory::Search, header::Hello, record::Record,
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::Instant,
};

use super::{
    Inner, beside,
    choice::Way,
    overlay::{self, Places},
    peers::{Connect, Left, way_of},
    router::{Door, Origin},
};
use crate::{
    carrier::{Connection, quic},
    config::Carrier,
    session::Session,
};

/// Sessions of nodes that are not trusted, at once.
const MAX_STRANGERS: usize = 32;

/// How long a stranger may stay.
const STRANGER_STAY: Duration = Duration::from_secs(30);

/// Handshakes under way at once.
const MAX_HANDSHAKES: usize = 128;

/// How long a new tunnel's greeting may take.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// How often tunnels with calls in flight are looked at.
const SILENCE_TICK: Duration = Duration::from_secs(1);

/// Nothing received for this long while calls are in flight: the peer is asked whether it lives.
const SILENCE_PING: Duration = Duration::from_secs(1);

/// Nothing received for this long while calls are in flight: the peer is gone.
const SILENCE_DEAD: Duration = Duration::from_secs(5);

/// Nodes asked at once for an agent that no connected peer offers.
const MAX_ASKED: usize = 16;

/// Strangers that may still come in.
#[derive(Debug)]
pub(super) struct Strangers {
    seats: Arc<Semaphore>,
    /// Told when one of them may have become a peer.
    welcomed: Notify,
}

pub(super) fn strangers() -> Strangers {
    Strangers {
        seats: Arc::new(Semaphore::new(MAX_STRANGERS)),
        welcomed: Notify::new(),
    }
}

impl Inner {
    /// The tunnel to a trusted peer, brought up if need be.
    ///
    /// # Errors
    ///
    /// `unavailable` when the peer cannot be reached, `permission_denied` when it is not trusted.
    pub(crate) async fn tunnel(self: &Arc<Self>, id: NodeId) -> Result<Session, Status> {
        match self.peers.connect(id, self.carrier_for(id)) {
            Connect::Up(session) => Ok(session),
            Connect::Wait(mut outcome) => match outcome.wait_for(Option::is_some).await {
                Ok(outcome) => outcome
                    .clone()
                    .unwrap_or_else(|| Err(unreachable(id, "it was given up"))),
                Err(_) => Err(unreachable(id, "the attempt was given up")),
            },
            Connect::Dial(tell) => {
                // In a task of its own, so that a caller who gives up does not undo the work that
                // others wait for.
                let node = self.clone();
                let dial = tokio::spawn(async move {
                    let outcome = node.dial_peer(id).await;
                    if outcome.is_err() {
                        node.peers.failed(id);
                    }
                    // Nobody else may be waiting.
                    let _ = tell.send(Some(outcome.clone()));
                    outcome
                });
                dial.await
                    .unwrap_or_else(|_| Err(unreachable(id, "the attempt failed")))
            }
        }
    }

    /// As [`Inner::tunnel`] for a call, over the `carrier` that it asks for. It is counted by whether it found one, and need not wait for
    /// the peer's greeting. One that may be made `twice` need not even wait for the handshake where the
    /// peer was met before.
    pub(super) async fn tunnel_for_call(
        self: &Arc<Self>,
        id: NodeId,
        carrier: Option<Carrier>,
        twice: bool,
    ) -> Result<Session, Status> {
        if let Some(carrier) = carrier {
            let (session, found) = self.tunnel_over(id, carrier).await?;
            self.peers.count(found);
            return Ok(session);
        }
        if let Some(session) = self.peers.up_for_call(id) {
            return Ok(session);
        }
        self.peers.count(false);
        tokio::select! {
            biased;
            tunnel = self.tunnel(id) => tunnel,
            early = self.peers.early.wait(id, twice) => Ok(early),
        }
    }

    async fn dial_peer(self: &Arc<Self>, id: NodeId) -> Result<Session, Status> {
        if !self.trust.is_trusted(id) && !self.vouched_for(id).await {
            return Err(Status::new(
                Code::PermissionDenied,
                format!("{id} is not a trusted peer"),
            )
            .with_hint("`hail join TICKET` makes two nodes trust each other"));
        }
        let most = self.config.limits.max_tunnels as usize;
        if !self.peers.has(id) && self.peers.len() >= most {
            return Err(Status::new(
                Code::ResourceExhausted,
                "this node has as many tunnels as it may",
            )
            .with_hint("raise `limits { max-tunnels }` in hail.kdl"));
        }
        let places = self.places(id).await;
        if places.is_empty() {
            return Err(unreachable(id, "no address of it is known"));
        }
        let session = self.dial_at(id, &places).await?;
        // A peer that dialled at the same time may have won.
        Ok(self.peers.up(id).unwrap_or(session))
    }

    /// A connection of a trusted peer that resumes a TLS session: what comes before its handshake is
    /// complete may be a replay, and only then is it a tunnel.
    async fn arrived_early(
        self: &Arc<Self>,
        id: NodeId,
        early: iroh::endpoint::IncomingZeroRttConnection,
    ) {
        let room = overlay::room(&self.config.quic);
        let connection = quic::Connection::accepted_early(early, room);
        if self.is_closing() {
            let connection = Connection::Quic(connection);
            return connection.close(Code::Unavailable, "the node is shutting down");
        }
        let session = self.start_session(id, Connection::Quic(connection.clone()), false);
        match tokio::time::timeout(GREETING_TIMEOUT, connection.complete()).await {
            Ok(Ok(_)) if greeted(&session).await.is_ok() => self.up(id, &session, false),
            _ => session.close(Code::Unavailable, "the handshake was not completed"),
        }
    }

    /// A new connection from a node that has proved to be `id`, over whichever carrier.
    pub(super) async fn arrived(self: &Arc<Self>, id: NodeId, connection: Connection) {
        if self.is_closing() {
            return connection.close(Code::Unavailable, "the node is shutting down");
        }
        if !self.trust.is_trusted(id) {
            return accept_stranger(self, id, connection).await;
        }
        let session = self.start_session(id, connection, false);
        if greeted(&session).await.is_ok() {
            self.up(id, &session, false);
        }
    }

    pub(super) fn start_session(
        self: &Arc<Self>,
        id: NodeId,
        connection: Connection,
        dialled: bool,
    ) -> Session {
        self.start_session_as(self.hello(), id, connection, dialled)
    }

    pub(super) fn start_session_as(
        self: &Arc<Self>,
        hello: Hello,
        id: NodeId,
        connection: Connection,
        dialled: bool,
    ) -> Session {
        let door = Arc::new(Door {
            node: self.clone(),
            origin: Origin::Peer(id),
            program: None,
        });
        let account = self.accounts.of(id, self.trust.is_trusted(id));
        Session::start_charged(connection, dialled, hello, door, Some(account))
    }

    /// Makes a greeted session of a trusted peer its tunnel, or one more connection of it where an
    /// accepted one says that it is to be that, and looks after it until it ends. The one place where a
    /// tunnel begins, and so where trust is asked for the last time and where the number of tunnels is
    /// bounded.
    pub(super) fn up(self: &Arc<Self>, id: NodeId, session: &Session, dialled: bool) {
        if !self.trust.is_trusted(id) {
            return session.close(Code::PermissionDenied, "this node does not trust yours");
        }
        self.accounts.welcome(id);
        if !dialled && beside::is_beside(session) {
            self.up_beside(id, session, dialled);
            return;
        }
        let most = self.config.limits.max_tunnels as usize;
        if !self.peers.has(id) && self.peers.len() >= most {
            return session.close(Code::ResourceExhausted, "no more tunnels");
        }
        if !self.peers.enter(id, session, dialled, self.carrier_for(id)) {
            return;
        }
        self.strangers.welcomed.notify_waiters();
        let carrier = session.connection().carrier();
        tracing::info!(peer = %id, carrier, dialled, "tunnel up");
        let allow = self.trust.row(id).map(|row| row.allow).unwrap_or_default();
        session.send_offers(&self.registry.offers(&allow));
        tokio::spawn(look_after(self.clone(), id, session.clone()));
        if dialled {
            self.keep_connections(id, session);
        }
    }

    /// Everywhere that a peer may be: where it was last, and what the hubs know.
    pub(super) async fn places(&self, id: NodeId) -> Places {
        let mut places = Places::default();
        if let Some(row) = self.trust.row(id) {
            places.addresses = row.addresses;
            places.tcp = row.tcp;
            places.relays.extend(row.relay);
        }
        self.places_from_hubs(id, &mut places).await;
        places
    }

    /// Brings up tunnels to nodes that have none until one of them offers `agent`: to those of
    /// which a hub knows that they do, and to trusted peers.
    pub(super) async fn ask_unconnected(self: &Arc<Self>, agent: &AgentName) {
        let unconnected = |id: &NodeId| !self.peers.has(*id);
        let trusted = self.trust.rows().into_iter().map(|row| row.id);
        let mut waiting: VecDeque<NodeId> = trusted.filter(unconnected).collect();
        let mut dials = JoinSet::new();
        let mut holders = std::pin::pin!(self.holders_at_hubs(agent));
        let mut searching = true;
        loop {
            while dials.len() < MAX_ASKED
                && let Some(id) = waiting.pop_front()
            {
                dials.spawn(ask_offers(self.clone(), id));
            }
            tokio::select! {
                found = &mut holders, if searching => {
                    searching = false;
                    // The likely ones first; a peer that is being dialled is waited for, not
                    // dialled twice.
                    waiting.retain(|id| !found.contains(id));
                    found.into_iter().filter(unconnected).for_each(|id| waiting.push_front(id));
                }
                Some(_) = dials.join_next() => if self.registry.knows(agent) {
                    // The others go on coming up by themselves.
                    return dials.detach_all();
                },
                else => return,
            }
        }
    }

    /// Nodes that offer `agent` by what the hubs know, and that are trusted or vouched for.
    async fn holders_at_hubs(&self, agent: &AgentName) -> HashSet<NodeId> {
        let search = Search {
            words: vec![agent.to_string()],
            ..Search::default()
        };
        let found = self.search_hubs(&search).await.into_iter();
        let offers = |record: &Record| record.agents.iter().any(|offer| offer.name == *agent);
        found
            .filter(|(id, record)| *id != self.id && offers(record))
            .map(|(id, _)| id)
            .collect()
    }
}

/// Brings up the tunnel to a node and learns what it offers.
async fn ask_offers(node: Arc<Inner>, id: NodeId) -> Option<()> {
    let session = node.tunnel(id).await.ok()?;
    let mut offers = session.peer_offers();
    let told = tokio::time::timeout(GREETING_TIMEOUT, offers.wait_for(Option::is_some));
    let offers = told.await.ok()?.ok()?.clone()?;
    // `look_after` enters the offers; doing it here too spares waiting for it.
    node.registry.set_offers(id, &offers);
    Some(())
}

/// Accepts tunnels until the endpoint closes.
pub(super) async fn accept(node: Arc<Inner>) {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    while let Some(incoming) = node.endpoint.accept().await {
        let Ok(permit) = handshakes.clone().try_acquire_owned() else {
            // Under a flood, let each address prove itself before it costs memory (RFC 9000, 8.1).
            if incoming.retry().is_err() {
                tracing::debug!("a connection was refused: too many handshakes");
            }
            continue;
        };
        tokio::spawn(accept_one(node.clone(), incoming, permit));
    }
}

async fn accept_one(
    node: Arc<Inner>,
    incoming: iroh::endpoint::Incoming,
    handshake: OwnedSemaphorePermit,
) {
    let early = match incoming.accept() {
        Ok(accepting) => accepting.into_0rtt(),
        Err(error) => return tracing::debug!(%error, "a connection was not accepted"),
    };
    if let Some(id) = resumed(&node, &early) {
        // Its handshake is not complete, so it keeps its place among them.
        Box::pin(node.arrived_early(id, early)).await;
        return drop(handshake);
    }
    let connection = match tokio::time::timeout(GREETING_TIMEOUT, early.handshake_completed()).await
    {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took too long"),
    };
    drop(handshake);
    let id = NodeId::from_bytes(*connection.remote_id().as_bytes());
    let connection = node.quic(connection);
    Box::pin(node.arrived(id, connection)).await;
}

/// The trusted peer that resumes a TLS session with this connection. A stranger may not be early.
fn resumed(node: &Inner, early: &iroh::endpoint::IncomingZeroRttConnection) -> Option<NodeId> {
    if !node.config.quic.zero_rtt {
        return None;
    }
    let id = NodeId::from_bytes(*early.remote_id().ok()?.as_bytes());
    node.trust.is_trusted(id).then_some(id)
}

/// Closed by default: a stranger whom no hub vouches for may redeem a ticket, briefly, and there
/// are few at once, each with little room.
async fn accept_stranger(node: &Arc<Inner>, id: NodeId, connection: Connection) {
    let Ok(seat) = node.strangers.seats.clone().try_acquire_owned() else {
        return connection.close(Code::ResourceExhausted, "too many strangers");
    };
    connection.narrow();
    let vouched = node.vouched_for(id).await;
    let session = node.start_session(id, connection.clone(), false);
    if greeted(&session).await.is_err() {
        return;
    }
    if beside::is_beside(&session) && !node.trust.is_trusted(id) {
        return session.close(Code::PermissionDenied, "a stranger has one connection");
    }
    if vouched {
        node.up(id, &session, false);
    }
    let stay = tokio::time::timeout(STRANGER_STAY, async {
        loop {
            let welcomed = node.strangers.welcomed.notified();
            if node.trust.is_trusted(id) {
                return;
            }
            tokio::select! {
                () = welcomed => {}
                _ = session.closed() => return,
            }
        }
    });
    let welcome = stay.await.is_ok();
    drop(seat);
    if welcome {
        connection.widen();
    } else {
        session.close(Code::PermissionDenied, "this node does not trust yours");
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

/// Follows what is offered on a connection until it ends, refuses what no session opens, then cleans up
/// after it. A list counts where it comes on the first connection of its tunnel, so that an older one on
/// another does not replace it.
pub(super) async fn look_after(node: Arc<Inner>, id: NodeId, session: Session) {
    let mut offers = session.peer_offers();
    let mut refusing = std::pin::pin!(session.connection().refuse_unidirectional());
    let mut refused = false;
    loop {
        let told = offers.borrow_and_update().clone();
        if let Some(offers) = told
            && node.peers.note_agents(id, &session, offers.agents.len())
        {
            node.registry.set_offers(id, &offers);
        }
        let found = session.connection().stats().remote.parse::<SocketAddr>();
        if let (Way::Udp, Ok(address)) = (way_of(&session), found) {
            node.trust.found_at(id, address);
        }
        tokio::select! {
            changed = offers.changed() => if changed.is_err() { break },
            () = &mut refusing, if !refused => refused = true,
            why = session.closed() => {
                tracing::debug!(peer = %id, %why, "connection down");
                break;
            }
        }
    }
    match node.peers.leave(id, &session) {
        Left::Others => {}
        Left::First(next) => next.say_offers_again(),
        Left::Nothing => {
            tracing::info!(peer = %id, "tunnel down");
            node.registry.clear_offers(id);
        }
    }
}

/// Tells every peer when the agents that it may call have changed.
pub(super) async fn announce(node: Arc<Inner>) {
    loop {
        node.registry.changed().await;
        node.hubs.publish();
        for (id, session) in node.peers.all() {
            if let Some(row) = node.trust.row(id) {
                session.send_offers(&node.registry.offers(&row.allow));
            }
        }
    }
}

/// Finds peers that have vanished while calls to them are in flight.
///
/// QUIC's own idle time-out is longer than a caller likes to wait.
pub(super) async fn watch_silence(node: Arc<Inner>) {
    let mut heard: HashMap<usize, Heard> = HashMap::new();
    let mut tick = tokio::time::interval(SILENCE_TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let now = tick.tick().await;
        node.peers.close_retired();
        let mut busy = HashMap::new();
        let superseded = node.peers.still_busy().into_iter();
        for (id, session) in node.peers.all().into_iter().chain(superseded) {
            if session.in_flight() == 0 {
                continue;
            }
            let received = session.connection().stats().received_bytes;
            let key = session.key();
            let before = heard.remove(&key).filter(|before| before.bytes == received);
            let since = before.map_or(now, |before| before.since);
            let last = Heard {
                bytes: received,
                since,
                _session: session.clone(),
            };
            busy.insert(key, last);
            let silence = now - since;
            if silence >= SILENCE_DEAD {
                tracing::warn!(peer = %id, "no sign of life with calls in flight");
                session.close(Code::Unavailable, "the peer gives no sign of life");
            } else if silence >= SILENCE_PING {
                tokio::spawn(async move { session.ping().await });
            }
        }
        heard = busy;
    }
}

/// What was received on a connection when it was last heard.
#[derive(Debug)]
struct Heard {
    bytes: u64,
    since: Instant,
    /// Held, so that its key is not given to another.
    _session: Session,
}

pub(super) fn unreachable(id: NodeId, reason: &str) -> Status {
    Status::new(
        Code::Unavailable,
        format!("node {} cannot be reached: {reason}", id.short()),
    )
    .with_hint(
        "see that it is up (`hail status` there) and that UDP passes, or let it listen on TCP \
         (`--listen-tcp`); a hub helps behind NATs",
    )
}
