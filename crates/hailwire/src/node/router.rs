//! Calls on their way, from a header to the stream that carries it on; [`hailwire_core::routing`] decides where they go.
//!
//! A call from this machine goes to a local member of the name if one has room, else to a peer that
//! offers it, else nodes that are not connected are asked: those that offer it by what a hub knows,
//! and the trusted peers. A call from a peer goes to local agents only, and only where the grants
//! allow: nodes do not forward for one another.

use std::{pin::pin, sync::Arc};

use futures_core::future::BoxFuture;
use hailwire_core::routing::{
    CallOrigin, PickedMember, RouteDecision, RouteRequest, RouteSearch, SearchAction,
};
use hailwire_pool::AffinityKey;
use hailwire_wire::{
    AgentName, CallHeader, Code, NodeId, Priority, Status,
    address::{self, NodeRef},
    frame::FrameKind,
    header::{self, RegisterHeader},
    offers::OfferPage,
};
use tokio::{
    net::{UnixStream, unix::UCred},
    time::{Instant, timeout},
};

use super::{
    NodeInner, leaving, local, manage, messages, now_unix,
    registry::{MemberKey, MemberLease, MemberTarget, MemberUse, not_found},
    resolve,
    trust::untrusted,
    tunnel,
    tunnel::greeted,
    waiting_calls::{self, LONGEST_WAIT, QueuedCall},
};
use crate::{
    admin,
    agent::{Caller, RequestKind, SharedHandler, check_register, is_private},
    carrier::{SendStream, budget::PeerAccount},
    session::{self, CallStream, FrameReader, OpenedStream, Session, StreamDispatcher, refuse},
};

/// Where a call goes.
#[derive(Debug)]
pub(crate) struct CallRoute {
    pub(crate) to: CallDestination,
    /// Gives the member back when the call has ended.
    pub(crate) picked: Option<MemberLease>,
}

#[derive(Debug)]
pub(crate) enum CallDestination {
    /// A handler in this process.
    Handler(SharedHandler),
    /// The other end of a session: an attached program, or this peer.
    Session(Session, Option<NodeId>),
}

/// A call's way, as far as it can be told without waiting, which it can of nearly every call.
pub(crate) enum RouteProgress<'a> {
    Now(Result<CallRoute, Status>),
    Later(BoxFuture<'a, Result<CallRoute, Status>>),
}

/// How a member is reached.
enum MemberReach {
    /// By a handler or a program of this machine.
    Here(CallDestination),
    /// By the tunnel to a peer.
    Peer(NodeId),
}

impl MemberTarget {
    fn reach(&self) -> MemberReach {
        match self {
            Self::Handler { handler, .. } => {
                MemberReach::Here(CallDestination::Handler(handler.clone()))
            }
            Self::Attached { session, .. } => {
                MemberReach::Here(CallDestination::Session(session.clone(), None))
            }
            Self::Peer { id, .. } => MemberReach::Peer(*id),
        }
    }
}

/// What dispatches the streams of one session: what may be asked on it depends on who is at the other end.
#[derive(Debug)]
pub(crate) struct NodeDispatcher {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) origin: CallOrigin,
    /// What the system says of a program on this machine.
    pub(crate) program: Option<UCred>,
}

impl StreamDispatcher for NodeDispatcher {
    async fn dispatch(self: Arc<Self>, session: Session, opening: OpenedStream) {
        match (opening.kind, self.origin) {
            (FrameKind::REGISTER, CallOrigin::Local) => register(&self, session, opening).await,
            (FrameKind::CALL | FrameKind::SEND | FrameKind::STREAM, _) => {
                carry(&self.node, &session, opening, self.origin).await;
            }
            (kind, _) => {
                let status = Status::new(
                    Code::PermissionDenied,
                    format!("{kind:?} is not for a peer"),
                );
                refuse(opening.send, opening.reader, &status).await;
            }
        }
    }

    /// What a program, or an untrusted peer that came by itself, offers in this way is nobody's business. An inviter offers
    /// before this node trusts it.
    fn offers(&self, session: &Session, page: OfferPage) {
        if let CallOrigin::Peer(id) = self.origin
            && (session.dialled() || self.node.trust.is_trusted(id))
        {
            self.node.peers.lists.queue_page(id, session, page);
        }
    }
}

/// Sees one call, send or stream that came in a session to its end.
async fn carry(
    node: &Arc<NodeInner>,
    session: &Session,
    opening: OpenedStream,
    origin: CallOrigin,
) {
    let kind = opening.kind;
    let (header, send, reader) = opening.into_call();
    let mut header = match header {
        Ok(header) => header,
        Err(status) => return Box::pin(refuse(send, reader, &status)).await,
    };
    if reader.is_early() && !may_be_replayed(kind, &header) {
        return Box::pin(refuse(send, reader, &too_early())).await;
    }
    if header.from.node.is_some() {
        return Box::pin(refuse(send, reader, &states_a_key())).await;
    }
    let arrived = Instant::now();
    let deadline = header.deadline().map(|left| arrived + left);
    // What is for the node itself, as the ticket of an untrusted peer is, is no sign of traffic.
    let traffic = !is_for_node(&header);
    if traffic {
        node.programs.spin.touch(arrived);
    }
    let durable = header.durable.is_durable();
    let route = match durable {
        true => keep_message(node, kind, &header, origin),
        false => match place(node, Some(session), &mut header, origin, deadline) {
            RouteProgress::Now(route) => route,
            RouteProgress::Later(route) => {
                tokio::select! {
                    biased;
                    route = route => route,
                    // The caller gave up while its call waited.
                    _ = send.stopped() => return,
                }
            }
        },
    };
    let CallRoute { to, picked } = match route {
        Ok(route) => route,
        Err(status) => {
            // Trust was looked up on the way; only who was refused is looked at again.
            let status = match origin {
                CallOrigin::Peer(peer) if !node.trust.is_trusted(peer) => {
                    Box::pin(refuse_untrusted(node, session, peer)).await
                }
                _ => status,
            };
            return Box::pin(refuse(send, reader, &status)).await;
        }
    };
    let code = match to {
        CallDestination::Handler(handler) => {
            // What says that a message is kept is the answer to a call.
            let kind = match durable {
                true => RequestKind::Call,
                false => request_kind(kind),
            };
            session::serve(kind, header, caller(origin), send, reader, &handler).await
        }
        CallDestination::Session(onward, peer) => {
            // A stream lives long, and what comes on it is as good a sign of more as a call.
            let moved = || {
                if kind == FrameKind::STREAM {
                    node.programs.spin.touch(Instant::now());
                }
            };
            let socket = match kind {
                FrameKind::STREAM => Box::pin(connected(&onward, picked.as_ref())).await,
                _ => None,
            };
            if let Some(socket) = socket {
                send.set_priority(header.priority);
                let _in_flight = onward.count();
                let stream = (send, reader);
                Box::pin(session::connect(stream, socket, deadline, &onward, &moved)).await
            } else {
                set_onward(&mut header, origin, picked.as_ref(), deadline);
                let caller = (session.account(), send, reader);
                let onward = open_onward(node, &onward, peer, header.priority, deadline);
                Box::pin(relay(onward, kind, &header, caller, deadline, &moved)).await
            }
        }
    };
    let ended = Instant::now();
    if traffic {
        node.programs.spin.touch(ended);
    }
    if let Some(picked) = picked {
        node.registry.finish(picked, code, ended);
    }
}

/// A durable message goes to this node itself, which keeps it. What a peer may not call, it may not ask to be kept either.
fn keep_message(
    node: &Arc<NodeInner>,
    kind: FrameKind,
    header: &CallHeader,
    origin: CallOrigin,
) -> Result<CallRoute, Status> {
    if let CallOrigin::Peer(peer) = origin {
        let request = RouteRequest::parse(header, origin)?;
        node.trust.check(peer, &request.address.agent)?;
    }
    Ok(CallRoute {
        to: CallDestination::Handler(messages::acceptor(node, kind, origin)),
        picked: None,
    })
}

/// Finds who takes a call, by `deadline`, and brings up the tunnel to it: the one way of a call of any origin, whether it came
/// in a `session` or from the program that embeds the node.
///
/// It awaits nothing itself, since each `await` on the way of every call would hand its route on once more.
pub(crate) fn place<'a>(
    node: &'a Arc<NodeInner>,
    session: Option<&Session>,
    header: &mut CallHeader,
    origin: CallOrigin,
    deadline: Option<Instant>,
) -> RouteProgress<'a> {
    if is_for_node(header) {
        let handler = manage::management(node, session, origin);
        return RouteProgress::Now(Ok(CallRoute {
            to: CallDestination::Handler(handler),
            picked: None,
        }));
    }
    node.programs.count_call(origin);
    let progress = route(node, header, origin, deadline);
    // It was for this node.
    header.carrier.clear();
    progress
}

/// Where a call goes that is for no node itself, with the tunnel to it brought up.
pub(super) fn route<'a>(
    node: &'a Arc<NodeInner>,
    header: &CallHeader,
    origin: CallOrigin,
    deadline: Option<Instant>,
) -> RouteProgress<'a> {
    let (request, decision) = match decide(node, header, origin) {
        Ok(decided) => decided,
        Err(status) => return RouteProgress::Now(Err(status)),
    };
    if let Some(route) = known_route(node, &request, &decision) {
        return RouteProgress::Now(route);
    }
    RouteProgress::Later(Box::pin(async move {
        let route = pin!(route_in_turn(node, &request, decision, origin, deadline));
        session::in_time(deadline, route).await
    }))
}

fn decide(
    node: &NodeInner,
    header: &CallHeader,
    origin: CallOrigin,
) -> Result<(RouteRequest, RouteDecision), Status> {
    let request = RouteRequest::parse(header, origin)?;
    if node.is_closing() {
        return Err(Status::new(Code::Unavailable, "this node is shutting down"));
    }
    let private = is_private(&request.address.agent);
    let may_call = |peer, agent: &AgentName| {
        node.trust.check(peer, agent)?;
        match private {
            true => Err(not_found(agent)),
            false => Ok(()),
        }
    };
    let meant = |who: &NodeRef| resolve::meant_now(node, who);
    let decision = match request.decide(origin, node.id(), may_call, meant)? {
        // Nobody elsewhere is asked for it.
        RouteDecision::Search if private => RouteDecision::Deliver,
        decision => decision,
    };
    Ok((request, decision))
}

/// The route of a decision, where nothing has to be waited for.
fn known_route(
    node: &NodeInner,
    request: &RouteRequest,
    decision: &RouteDecision,
) -> Option<Result<CallRoute, Status>> {
    let agent = &request.address.agent;
    match decision {
        RouteDecision::Deliver => match local_route(node, request) {
            // It may wait.
            Err(status) if status.code == Code::ResourceExhausted && request.member == 0 => None,
            route => Some(route),
        },
        // A tunnel over that carrier may have to be brought up.
        _ if request.carrier.is_some() => None,
        RouteDecision::Dial(id) => {
            let to = CallDestination::Session(node.peers.up_for_call(*id)?, Some(*id));
            Some(Ok(CallRoute { to, picked: None }))
        }
        RouteDecision::Search => {
            let picked = node.registry.pick(agent, false, &[], affinity_of(request));
            let picked = picked.ok()?;
            let to = match picked.value().reach() {
                MemberReach::Here(to) => to,
                MemberReach::Peer(id) => {
                    CallDestination::Session(node.peers.up_for_call(id)?, Some(id))
                }
            };
            Some(Ok(CallRoute {
                to,
                picked: Some(picked),
            }))
        }
        RouteDecision::Resolve(_) => None,
    }
}

/// As [`route_slowly`]; a call that finds all members of its group full waits for one.
async fn route_in_turn(
    node: &Arc<NodeInner>,
    request: &RouteRequest,
    decision: RouteDecision,
    origin: CallOrigin,
    deadline: Option<Instant>,
) -> Result<CallRoute, Status> {
    let agent = &request.address.agent;
    let local_only = match decision {
        RouteDecision::Deliver => Some(true),
        RouteDecision::Search => Some(false),
        RouteDecision::Dial(_) | RouteDecision::Resolve(_) => None,
    };
    let routed = route_slowly(node, request, decision).await;
    let Some(local_only) = local_only.filter(|_| request.member == 0) else {
        return routed;
    };
    let full = match routed {
        Err(status) if status.code == Code::ResourceExhausted => status,
        routed => return routed,
    };
    let queue = &node.registry;
    let Some(queued) = queue.enter_queue(agent, local_only, origin, request.priority)? else {
        return Err(full);
    };
    let turn = wait_for_turn(node, request, local_only, queued);
    match deadline {
        Some(_) => turn.await,
        // So that agents which call each other in a circle, and have no place left, do not wait for ever.
        None => timeout(LONGEST_WAIT, turn)
            .await
            .unwrap_or_else(|_| Err(waiting_calls::too_long(agent))),
    }
}

/// Waits until it is a call's turn, and there is a member for it.
async fn wait_for_turn(
    node: &Arc<NodeInner>,
    request: &RouteRequest,
    local_only: bool,
    mut queued: QueuedCall,
) -> Result<CallRoute, Status> {
    let agent = &request.address.agent;
    loop {
        let has_room = || node.registry.has_room(agent, local_only);
        queued.place(agent, has_room).await?;
        let affinity = affinity_of(request);
        let picked = node.registry.pick_in_turn(agent, local_only, affinity);
        let picked = match picked {
            Err(status) if status.code == Code::ResourceExhausted => {
                queued.wait_again();
                continue;
            }
            picked => picked?,
        };
        queued.taken();
        let to = match picked.value().reach() {
            MemberReach::Here(to) => to,
            MemberReach::Peer(id) => {
                let tunnel = tunnel::tunnel_for_call(node, id, request.carrier, false);
                CallDestination::Session(tunnel.await?, Some(id))
            }
        };
        let picked = Some(picked);
        return Ok(CallRoute { to, picked });
    }
}

async fn route_slowly(
    node: &Arc<NodeInner>,
    request: &RouteRequest,
    decision: RouteDecision,
) -> Result<CallRoute, Status> {
    let id = match decision {
        RouteDecision::Deliver => return local_route(node, request),
        RouteDecision::Search => return search_route(node, request).await,
        RouteDecision::Dial(id) => id,
        RouteDecision::Resolve(who) => resolve::resolve(node, &who).await?,
    };
    if id == node.id() {
        return local_route(node, request);
    }
    let tunnel = tunnel::tunnel_for_call(node, id, request.carrier, request.replayable);
    let to = CallDestination::Session(tunnel.await?, Some(id));
    Ok(CallRoute { to, picked: None })
}

/// Notes that an untrusted peer wants to be let in, by the name of its greeting, and what it is told.
pub(super) async fn refuse_untrusted(node: &NodeInner, session: &Session, peer: NodeId) -> Status {
    // Its call may have overtaken its greeting. Without one it has no name.
    let _ = greeted(session).await;
    let hello = session.peer_hello();
    let name = hello.map(|hello| hello.name.clone()).unwrap_or_default();
    let from = session.connection().stats().remote;
    node.trust.note_untrusted(peer, &name, &from, now_unix());
    untrusted(peer)
}

fn local_route(node: &NodeInner, request: &RouteRequest) -> Result<CallRoute, Status> {
    let agent = &request.address.agent;
    let picked = match request.member {
        0 => node.registry.pick(agent, true, &[], affinity_of(request))?,
        number => node.registry.pick_number(agent, number)?,
    };
    let MemberReach::Here(to) = picked.value().reach() else {
        return Err(not_found(agent));
    };
    Ok(CallRoute {
        to,
        picked: Some(picked),
    })
}

/// Searches for whoever takes a call that names no node ([`RouteSearch`] decides).
async fn search_route(node: &Arc<NodeInner>, request: &RouteRequest) -> Result<CallRoute, Status> {
    let (agent, carrier) = (&request.address.agent, request.carrier);
    let mut search = RouteSearch::new(carrier);
    let mut action = SearchAction::Pick;
    let (mut picked, mut to) = (None, None);
    loop {
        action = match action {
            SearchAction::Pick => {
                let excluded = search.excluded().iter().copied();
                let excluded: Vec<MemberKey> = excluded.map(MemberKey::Peer).collect();
                let found = node
                    .registry
                    .pick(agent, false, &excluded, affinity_of(request));
                let found = found.map(|member| {
                    let who = match member.value().reach() {
                        MemberReach::Here(here) => {
                            to = Some(here);
                            PickedMember::Local
                        }
                        MemberReach::Peer(id) => PickedMember::Peer(id),
                    };
                    picked = Some(member);
                    who
                });
                search.handle_pick(found)
            }
            SearchAction::AskOthers => {
                tunnel::ask_others(node, agent).await;
                search.handle_asked()
            }
            SearchAction::Dial(id) => {
                let tunnel = tunnel::tunnel_for_call(node, id, carrier, false).await;
                let outcome =
                    tunnel.map(|session| to = Some(CallDestination::Session(session, Some(id))));
                if let Err(status) = &outcome {
                    tracing::debug!(%agent, peer = %id, %status, "a member cannot be reached");
                }
                let (next, failed) = search.handle_dialled(id, outcome);
                if failed && let Some(member) = picked.take() {
                    node.registry
                        .finish(member, Code::Unavailable, Instant::now());
                }
                next
            }
            SearchAction::Deliver => {
                let to = to.ok_or_else(|| not_found(agent))?;
                return Ok(CallRoute { to, picked });
            }
            SearchAction::Refuse(status) => return Err(status),
        };
    }
}

/// What a call has in common with those that are to go to the same member.
fn affinity_of(request: &RouteRequest) -> Option<AffinityKey> {
    let key = request.affinity.as_ref()?;
    Some(AffinityKey::of(key.as_bytes()))
}

/// A connection to the socket that takes a member's raw streams, if it has said so, still takes work, and there is a way.
async fn connected(program: &Session, picked: Option<&MemberLease>) -> Option<UnixStream> {
    let MemberTarget::Attached { register, .. } = picked?.value() else {
        return None;
    };
    let path = register.socket.as_str();
    if path.is_empty() || !program.takes_work() {
        return None;
    }
    let connected = UnixStream::connect(path).await;
    connected
        .inspect_err(|error| tracing::debug!(path, %error, "left to the program"))
        .ok()
}

/// Opens a stream to a program or a peer. Where the peer takes no more calls on this tunnel it is another one's, as nothing was sent yet.
pub(crate) async fn open_onward(
    node: &Arc<NodeInner>,
    onward: &Session,
    peer: Option<NodeId>,
    priority: Priority,
    deadline: Option<Instant>,
) -> Result<CallStream, Status> {
    let opened = onward.open_stream(priority).await;
    match (opened, peer) {
        (Err(_), Some(id)) => {
            let again = Box::pin(async {
                let other = tunnel::tunnel_to(node, id).await?;
                other.open_stream(priority).await
            });
            session::in_time(deadline, pin!(again)).await
        }
        (opened, _) => opened,
    }
}

/// Passes a call on over the stream that is being opened for it. Returns how it ended.
async fn relay(
    onward: impl Future<Output = Result<CallStream, Status>>,
    kind: FrameKind,
    header: &CallHeader,
    (payer, send, reader): (Option<&Arc<PeerAccount>>, SendStream, Box<FrameReader>),
    deadline: Option<Instant>,
    moved: &(impl Fn() + Sync),
) -> Code {
    let begun = async { onward.await?.relay(kind, header).await };
    match begun.await {
        Ok((callee_send, callee_recv, _in_flight)) => {
            send.set_priority(header.priority);
            let callee = (callee_send, callee_recv);
            session::splice((send, reader), callee, payer, deadline, moved).await
        }
        Err(status) => {
            let code = status.code;
            refuse(send, reader, &status).await;
            code
        }
    }
}

/// Keeps an attached program's agent registered while its stream lives.
async fn register(dispatcher: &NodeDispatcher, session: Session, opening: OpenedStream) {
    let node = &dispatcher.node;
    let OpenedStream {
        payload,
        mut send,
        mut reader,
        ..
    } = opening;
    let mut register = match header::decode::<RegisterHeader>(&payload) {
        Ok(register) => register,
        Err(error) => {
            let status = Status::new(Code::InvalidArgument, error.to_string());
            return refuse(send, reader, &status).await;
        }
    };
    // It is a slice of the whole batch in which it came, which would stay for as long as the attachment.
    drop(payload);
    let name = register.name.clone();
    if let Err(status) = check_register(&register) {
        return refuse(send, reader, &status).await;
    }
    let same = |program| !register.socket.is_empty() && local::sees_what_we_see(program);
    if !dispatcher.program.as_ref().is_some_and(same) {
        register.socket.clear();
    }
    let (in_use, unused) = MemberUse::new();
    let target = MemberTarget::Attached {
        session: session.clone(),
        register: Arc::new(register),
        _in_use: in_use,
    };
    let number = match node.registry.add(target) {
        Ok(number) => number,
        Err(status) => return refuse(send, reader, &status).await,
    };
    let registered = AttachedAgent {
        node,
        name: &name,
        number,
    };
    tracing::info!(agent = %name, "attached");
    let accepted = session::accept(&mut send).await.is_ok();
    let drains = accepted && is_finished(&mut reader).await;
    if drains {
        leaving::announce(node, &name, number).await;
    }
    drop(registered);
    if drains {
        tracing::debug!(agent = %name, "drains");
        tokio::select! {
            _ = unused => drop(session::end(send, &Status::ok()).await),
            _ = send.stopped() => {}
        }
    }
    tracing::info!(agent = %name, "detached");
}

/// Waits until a program ends its registration; whether it did so in order, and waits to be told that no call is under way.
async fn is_finished(reader: &mut FrameReader) -> bool {
    loop {
        match reader.next_frame().await {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Takes the agent out again, however its attachment ends.
struct AttachedAgent<'a> {
    node: &'a NodeInner,
    name: &'a AgentName,
    number: u64,
}

impl Drop for AttachedAgent<'_> {
    fn drop(&mut self) {
        self.node.registry.remove(self.name, self.number);
    }
}

/// Makes a header that of the next hop: the bare agent name, the time that is left, and for an attached
/// program where the call came from.
pub(crate) fn set_onward(
    header: &mut CallHeader,
    origin: CallOrigin,
    picked: Option<&MemberLease>,
    deadline: Option<Instant>,
) {
    if let Some((agent, _)) = address::split(&header.to) {
        header.to.truncate(agent.len());
    }
    let attached =
        picked.is_some_and(|picked| matches!(picked.value(), MemberTarget::Attached { .. }));
    // From the carrier alone, whatever the header said before.
    header.from.node = caller(origin).node().filter(|_| attached);
    if attached {
        // It was for this node.
        header.member = 0;
    }
    if let Some(at) = deadline {
        header.set_deadline(at.saturating_duration_since(Instant::now()));
    }
}

/// Whether it does no harm when somebody who recorded a call makes it again.
fn may_be_replayed(kind: FrameKind, header: &CallHeader) -> bool {
    let once = kind == FrameKind::STREAM || is_for_node(header);
    !once && !header.idempotency_key.is_empty()
}

fn too_early() -> Status {
    Status::new(
        Code::FailedPrecondition,
        "this call came in a connection's first flight, which anybody may replay (RFC 8446, 8)",
    )
    .with_hint("only calls with an idempotency key may; send it when the handshake is complete")
}

/// Where a call came from is this node's to say: neither a peer nor a program may.
fn states_a_key() -> Status {
    Status::new(
        Code::InvalidArgument,
        "`from` states a node's key, which only the node that is called may",
    )
    .with_hint("state the agent's name alone, or nothing")
}

fn is_for_node(header: &CallHeader) -> bool {
    header.to == admin::AGENT
}

pub(super) fn caller(origin: CallOrigin) -> Caller {
    match origin {
        CallOrigin::Local => Caller::Local,
        CallOrigin::Peer(peer) => Caller::Peer(peer),
    }
}

pub(crate) fn request_kind(kind: FrameKind) -> RequestKind {
    match kind {
        FrameKind::SEND => RequestKind::Send,
        FrameKind::STREAM => RequestKind::Stream,
        _ => RequestKind::Call,
    }
}

#[cfg(test)]
mod tests;
