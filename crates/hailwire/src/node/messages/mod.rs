//! Messages that hold: kept on disk by the sender's node until the receiver's has them, and by that one until their agent has done
//! them. What becomes of each is decided in [`hailwire_core::delivery`], which is next in [`hailwire_core::inbox_schedule`] and
//! [`hailwire_core::message_exchange`]; here it is written down, sent and handed over.

mod backlog;
mod bodies;
mod decided;
mod deliver;
mod exchange;
mod held;
pub(super) mod manage;
mod rows;
mod schema;
mod store;
mod tasks;
#[cfg(test)]
mod turned_clocks;
mod withdrawal;

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hailwire_core::{
    delivery::DeliveryPolicy,
    held_copies::HeldCopies,
    inbox_schedule::{InboxSchedule, MessageNumber},
    message_exchange::MessageExchange,
    message_quotas::{MessageQuotas, QuotaDirection, WaitingMessage},
    progress_reports::ProgressReports,
    routing::CallOrigin,
};
use hailwire_pool::AffinityKey;
use hailwire_wire::{
    AgentName, CallHeader, Code, NodeId, Status,
    address::{self, NodeRef},
    frame::FrameKind,
    header, limits,
    messages::{MessageId, MessageState},
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use self::rows::{LearnedMessage, MessageEnd, NewMessage, OpenEntry};
use super::{NodeInner, hubs, manage::millis, resolve, tunnel};
use crate::{
    admin::{self, SendReceipt},
    agent::{Request, Response, SharedHandler},
    config::MessageSettings,
    key::random,
};

pub(super) use store::MessageStore;
pub use store::MessageStoreError;

/// For how long a message is worth anything where its sender does not say: seven days.
const DEFAULT_EXPIRY: Duration = Duration::from_secs(7 * 24 * 3600);

/// For how long it is remembered that a message which never came was withdrawn, or refused: longer than a hub holds a copy of it.
const REMEMBERED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// For how long a sender may have its row kept.
const LONGEST_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long after an end it is looked whether something that ended is kept no longer.
const LOOK_AFTER_END: Duration = Duration::from_secs(60);

/// Between two looks for what is too old, where something may be: the system's clock may be set meanwhile.
const LONGEST_LOOK: Duration = Duration::from_secs(3600);

/// How long other nodes are asked for the agent of a message that names no node.
const OTHERS_PATIENCE: Duration = Duration::from_secs(5);

/// Durable messages of one node.
#[derive(Debug)]
pub(super) struct Messages {
    store: MessageStore,
    policy: DeliveryPolicy,
    /// For how long the rows of what has its end are kept.
    keep: Duration,
    inbox: Mutex<InboxSchedule>,
    /// Agents of which it is to be seen how many messages they take; `None` for all.
    unseen: Mutex<Option<HashSet<AgentName>>>,
    exchange: Mutex<MessageExchange>,
    /// What hubs hold for peers that are away.
    held_copies: Mutex<HeldCopies>,
    /// What came and waits here, and what waits to leave.
    came: Mutex<MessageQuotas>,
    leaving: Mutex<MessageQuotas>,
    /// Messages that somebody took by hand, and until when.
    leases: Mutex<HashMap<MessageNumber, Instant>>,
    /// Attempts that are under way, those by hand too.
    in_hand: Mutex<HashMap<MessageNumber, Arc<AttemptInHand>>>,
    /// What senders are to be told of them.
    progress: Mutex<ProgressReports>,
    progress_changed: Notify,
    /// Peers that send a batch at the moment, at most [`exchange::RECEIVED_AT_ONCE`].
    receiving: Mutex<HashSet<NodeId>>,
    inbox_changed: Notify,
    exchange_changed: Notify,
    /// When something expires, or a lease ends, or old rows are removed.
    look_at: Mutex<Option<Instant>>,
    look_changed: Notify,
    /// Told when any message has another state.
    state_changed: tokio::sync::watch::Sender<u64>,
    /// Agents of which somebody is told what waits.
    backlog_watches: Mutex<HashMap<AgentName, tokio::sync::watch::Sender<u64>>>,
    backlog_places: Arc<tokio::sync::Semaphore>,
}

/// An attempt that is under way.
#[derive(Debug, Default)]
pub(super) struct AttemptInHand {
    interrupt: Notify,
    /// Which message, and how often it was handed over, once that is written down.
    known: std::sync::OnceLock<(MessageId, u32)>,
}

impl AttemptInHand {
    fn notify_one(&self) {
        self.interrupt.notify_one();
    }

    fn id(&self) -> Option<MessageId> {
        self.known.get().map(|(id, _)| *id)
    }

    /// From 1; 0 while it is not written down.
    fn number(&self) -> u32 {
        self.known.get().map_or(0, |(_, attempt)| *attempt)
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Messages {
    /// Opens the database of messages of node `own`.
    ///
    /// # Errors
    ///
    /// [`MessageStoreError`].
    pub(super) fn open(
        path: &Path,
        own: NodeId,
        settings: &MessageSettings,
    ) -> Result<Self, MessageStoreError> {
        let (policy, bounds) = (settings.policy(), settings.quotas());
        let keep = settings.keep;
        let begin = |db: &rusqlite::Connection| {
            let (open, peers) = rows::begin(db, own, &policy, now_ms())?;
            Ok((
                open,
                peers,
                rows::leaving(db, own)?,
                rows::next_expiry(db, keep)?,
            ))
        };
        let (store, (open, peers, leaving, expiry)) =
            MessageStore::open(path, "messages", schema::SCHEMA, begin)?;
        let messages = Self {
            store,
            policy,
            keep,
            inbox: Mutex::default(),
            unseen: Mutex::default(),
            exchange: Mutex::default(),
            held_copies: Mutex::default(),
            came: Mutex::new(MessageQuotas::new(QuotaDirection::Came, bounds)),
            leaving: Mutex::new(MessageQuotas::new(QuotaDirection::Leaving, bounds)),
            leases: Mutex::default(),
            in_hand: Mutex::default(),
            progress: Mutex::default(),
            progress_changed: Notify::new(),
            receiving: Mutex::default(),
            inbox_changed: Notify::new(),
            exchange_changed: Notify::new(),
            look_at: Mutex::default(),
            look_changed: Notify::new(),
            state_changed: tokio::sync::watch::Sender::new(0),
            backlog_watches: Mutex::default(),
            backlog_places: Arc::new(tokio::sync::Semaphore::new(backlog::MAX_BACKLOG_WATCHES)),
        };
        for entry in open {
            locked(&messages.came).add(&entry.waiting);
            messages.wait_in_inbox(entry);
        }
        if let Some(expiry) = expiry {
            messages.look_by(expiry);
        }
        let now = crate::clock::now();
        for peer in peers {
            locked(&messages.exchange).handle_waiting(now, peer);
        }
        for waiting in leaving {
            locked(&messages.leaving).add(&waiting);
        }
        Ok(messages)
    }

    fn wait_in_inbox(&self, entry: OpenEntry) {
        let now = crate::clock::now();
        locked(&self.inbox).handle_stored(now, entry.number, &entry.agent, entry.lane);
        // Only now is there anything to be said of the agent.
        if let Some(unseen) = locked(&self.unseen).as_mut() {
            unseen.insert(entry.agent);
        }
    }

    /// Writes what was begun, and nothing after that.
    pub(super) async fn close(&self) {
        self.store.close().await;
    }

    /// Local agents have come or gone.
    pub(super) fn agents_changed(&self) {
        locked(&self.unseen).take();
        self.inbox_changed.notify_one();
    }

    /// There is a tunnel to a peer.
    pub(super) fn peer_reachable(&self, peer: NodeId) {
        locked(&self.exchange).handle_reachable(crate::clock::now(), peer);
        self.exchange_changed.notify_one();
    }

    /// More is known of messages that were sent to a peer.
    fn learned(&self, peer: NodeId, learned: Vec<LearnedMessage>) {
        let (mut exchange, now) = (locked(&self.exchange), crate::clock::now());
        let mut offers = false;
        for LearnedMessage { message, .. } in learned.iter().filter(|known| known.ended) {
            offers |= exchange.handle_room(now, peer, &message.sender.1, &message.receiver.1);
        }
        drop(exchange);
        if offers {
            self.exchange_changed.notify_one();
        }
        let left = learned.into_iter().filter(|known| known.left);
        let left: Vec<WaitingMessage> = left.map(|known| known.message).collect();
        self.left(&left);
    }

    /// These messages wait no more to leave.
    fn left(&self, left: &[WaitingMessage]) {
        if left.is_empty() {
            return;
        }
        let (mut leaving, now) = (locked(&self.leaving), crate::clock::now());
        for waited in left {
            leaving.release(now, waited);
        }
        drop(leaving);
        self.note_change();
    }

    fn wait_for_peer(&self, peer: NodeId) {
        locked(&self.exchange).handle_waiting(crate::clock::now(), peer);
        self.exchange_changed.notify_one();
    }

    /// Looks for what has expired at this time of the system's clock, unless it does so before.
    fn look_by(&self, unix_ms: u64) {
        let left = Duration::from_millis(unix_ms.saturating_sub(now_ms()));
        self.look_after(left.min(LONGEST_LOOK));
    }

    fn look_after(&self, left: Duration) {
        let at = Instant::now() + left;
        let mut look_at = locked(&self.look_at);
        if look_at.is_none_or(|before| at < before) {
            *look_at = Some(at);
            self.look_changed.notify_one();
        }
    }

    fn note_change(&self) {
        self.state_changed.send_modify(|changes| *changes += 1);
    }

    /// A message of the inbox has its end.
    async fn end(
        &self,
        own: NodeId,
        number: MessageNumber,
        state: MessageState,
        end: MessageEnd,
    ) -> Result<(), MessageStoreError> {
        let ended = self
            .store
            .run(move |db| rows::end_message(db, own, number, state, &end, now_ms()))
            .await?;
        if let Some(waited) = ended {
            self.ended(own, number, &waited);
        }
        Ok(())
    }

    fn ended(&self, own: NodeId, number: MessageNumber, waited: &WaitingMessage) {
        locked(&self.inbox).handle_end(number);
        locked(&self.came).release(crate::clock::now(), waited);
        let origin = waited.sender.0;
        self.look_after(LOOK_AFTER_END);
        if origin != own {
            self.wait_for_peer(origin);
        }
        self.inbox_changed.notify_one();
        self.note_change();
    }
}

/// What a program of this machine is told that sends a durable message or call, or what a peer is told that tries.
pub(super) fn acceptor(
    node: &Arc<NodeInner>,
    kind: FrameKind,
    origin: CallOrigin,
) -> SharedHandler {
    let node = node.clone();
    Arc::new(move |request: Request| {
        let node = node.clone();
        async move { accept(&node, kind, origin, request).await }
    })
}

async fn accept(
    node: &Arc<NodeInner>,
    kind: FrameKind,
    origin: CallOrigin,
    mut request: Request,
) -> Result<Response, Status> {
    let refuse = |what: &str, hint: &str| {
        Err(Status::new(Code::InvalidArgument, what).with_hint(hint.to_owned()))
    };
    if origin != CallOrigin::Local {
        return refuse(
            "a durable message comes from its sender's own node, in a batch",
            "let the program send it to its own node",
        );
    }
    if kind == FrameKind::STREAM {
        return refuse("a raw stream cannot be durable", "make a call or a send");
    }
    let mut header = std::mem::take(&mut *request.header);
    let options = KeptOptions::take(&mut header, node.messages.keep)?;
    let (receiver, agent) = receiver(node, &header).await?;
    let body = request.body.bytes(limits::MAX_SEND_BODY).await?;
    let now = now_ms();
    let expiry = header.deadline().unwrap_or(DEFAULT_EXPIRY);
    let sender = header
        .from
        .agent
        .as_ref()
        .map(AgentName::to_string)
        .unwrap_or_default();
    let key = (!header.idempotency_key.is_empty()).then(|| {
        [&sender, &header.to, &header.idempotency_key]
            .map(String::as_str)
            .join("\n")
    });
    let own = node.id();
    let message = NewMessage {
        id: new_id(now),
        node: receiver,
        target: header.to.clone(),
        agent: agent.clone(),
        sender,
        call: kind == FrameKind::CALL,
        durable: header.durable,
        header: stored_header(header, &agent),
        body: body.to_vec(),
        key,
        stored_at: now,
        expires_at: now.saturating_add(millis(expiry)),
        keep: options.keep,
        max_attempts: options.attempts,
        number: 0,
    };
    let quotas = match receiver == own {
        true => &node.messages.came,
        false => &node.messages.leaving,
    };
    let waiting = message.waiting(own);
    let release = || locked(quotas).release(crate::clock::now(), &waiting);
    locked(quotas).reserve(crate::clock::now(), &waiting)?;
    let (sender, durable) = (message.sender.clone(), message.durable);
    let expires_at = message.expires_at;
    let stored = node
        .messages
        .store
        .run(move |db| rows::send(db, own, &message))
        .await;
    let stored = match stored {
        Ok(stored) => stored,
        Err(error) => {
            release();
            return Err(not_stored(&error));
        }
    };
    if stored.known {
        release();
    }
    node.messages.look_by(expires_at);
    match stored.number {
        Some(number) => {
            let lane = lane(own, sender, durable, number);
            node.messages.wait_in_inbox(OpenEntry {
                number,
                agent,
                lane,
                waiting,
            });
            node.messages.inbox_changed.notify_one();
        }
        None if stored.known || receiver == own => {}
        None => node.messages.wait_for_peer(receiver),
    }
    let receipt = SendReceipt {
        id: stored.id.to_string(),
        state: stored.state.name().to_owned(),
        known: stored.known,
    };
    super::manage::json(&receipt)
}

/// Fields of a durable call that are for the sender's node.
#[derive(Debug)]
struct KeptOptions {
    /// In milliseconds.
    keep: u64,
    attempts: u32,
}

impl KeptOptions {
    /// Takes them out of a header, and what only a receiver's node may say.
    fn take(header: &mut CallHeader, usual: Duration) -> Result<Self, Status> {
        let number = |name: &str, bounds: std::ops::RangeInclusive<u64>| {
            let Some(text) = header.field(name) else {
                return Ok(None);
            };
            let parsed = text.parse::<u64>().ok();
            let within = parsed.filter(|number| bounds.contains(number));
            within.map(Some).ok_or_else(|| {
                let (least, most) = (bounds.start(), bounds.end());
                let what = format!("`{name}` is `{text}`, and not from {least} to {most}");
                Status::new(Code::InvalidArgument, what)
            })
        };
        let keep = number(admin::KEEP_FIELD, 0..=millis(LONGEST_KEPT))?;
        let most = u64::from(limits::MAX_MESSAGE_ATTEMPTS);
        let attempts = number(admin::ATTEMPTS_FIELD, 1..=most)?.unwrap_or_default();
        let options = Self {
            keep: keep.unwrap_or(millis(usual)),
            attempts: u32::try_from(attempts).unwrap_or(limits::MAX_MESSAGE_ATTEMPTS),
        };
        header
            .headers
            .retain(|(name, _)| name != admin::KEEP_FIELD && name != admin::ATTEMPTS_FIELD);
        Ok(options)
    }
}

fn lane(
    origin: NodeId,
    sender: String,
    durable: header::Durability,
    number: MessageNumber,
) -> hailwire_core::inbox_schedule::MessageLane {
    use hailwire_core::inbox_schedule::MessageLane;
    match durable {
        header::Durability::AnyOrder => MessageLane::Alone(number),
        _ => MessageLane::Sender(origin, sender),
    }
}

/// The node that is to have a message, and the agent there.
async fn receiver(
    node: &Arc<NodeInner>,
    header: &CallHeader,
) -> Result<(NodeId, AgentName), Status> {
    let bad = |error: &dyn std::fmt::Display| Status::new(Code::InvalidArgument, error.to_string());
    let parsed: hailwire_wire::Address = header.to.parse().map_err(|error| bad(&error))?;
    if parsed.agent.as_str() == crate::admin::AGENT {
        return Err(bad(&"the node itself takes no durable messages"));
    }
    let receiver = match &parsed.node {
        Some(who) => resolve::resolve(node, who).await?,
        None => {
            let affinity =
                (!header.affinity.is_empty()).then(|| AffinityKey::of(header.affinity.as_bytes()));
            let find = || node.registry.node_for_message(&parsed.agent, affinity);
            let found = match find() {
                Some(found) => Some(found),
                None => {
                    let asked = tunnel::ask_others(node, &parsed.agent);
                    // It goes on where it takes longer, and finds it for whoever sends next.
                    let _ = timeout(OTHERS_PATIENCE, asked).await;
                    find()
                }
            };
            found.ok_or_else(|| {
                let what = format!("no agent `{}` is here now", parsed.agent);
                Status::new(Code::NotFound, what).with_hint(
                    "name its node (`agent@node`), and it may be away or not started yet",
                )
            })?
        }
    };
    if receiver != node.id() && !hubs::trusts(node, receiver).await {
        let who = NodeRef::Id(receiver);
        return Err(Status::new(
            Code::PermissionDenied,
            format!("{who} is not a trusted peer"),
        )
        .with_hint("`hail join TICKET` makes two nodes trust each other"));
    }
    Ok((receiver, parsed.agent))
}

/// What of a header is kept with a message: not where it goes, which its row says.
fn stored_header(mut header: CallHeader, agent: &AgentName) -> Vec<u8> {
    header.to = agent.to_string();
    header.carrier.clear();
    // A member's number ends with its attachment.
    header.member = 0;
    header.from.node = None;
    header::encode_call(&header)
}

fn new_id(now: u64) -> MessageId {
    let mut drawn = [0; 10];
    random(&mut drawn);
    MessageId::new(now, drawn)
}

fn not_stored(error: &MessageStoreError) -> Status {
    let code = match error.full {
        true => Code::ResourceExhausted,
        false => Code::Internal,
    };
    let hint = match error.full {
        true => "make room on the disk of the node's data folder; nothing was accepted",
        false => "nothing was accepted; the node's log says more",
    };
    Status::new(code, error.to_string()).with_hint(hint)
}

/// What is said of a message whose last attempt nobody heard the end of.
pub(super) fn gone_status(attempts: u32) -> Status {
    let what = format!(
        "it may have happened: whoever had it was gone before it said so, {attempts} times"
    );
    Status::new(Code::Unknown, what)
}

/// Looks for what is too old, and forgets what ended long ago. Does nothing while there is nothing.
pub(super) async fn keep_clean(node: Arc<NodeInner>) {
    let (messages, own) = (&node.messages, node.id());
    loop {
        let due = *locked(&messages.look_at);
        tokio::select! {
            () = messages.look_changed.notified() => continue,
            () = crate::clock::reached(due.map(Instant::into_std)) => {}
        }
        *locked(&messages.look_at) = None;
        messages.end_leases(own).await;
        let keep = messages.keep;
        let cleaned = messages.store.run(move |db| {
            let now = now_ms();
            let expired = rows::expire(db, own, now)?;
            rows::forget(db, now, keep)?;
            Ok((expired, rows::next_expiry(db, keep)?))
        });
        match cleaned.await {
            Ok((expired, next)) => {
                for (number, waited) in &expired.came {
                    messages.ended(own, *number, waited);
                }
                messages.left(&expired.sent);
                if let Some(next) = next {
                    messages.look_by(next);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "messages that are too old are kept");
                messages.look_after(LONGEST_LOOK);
            }
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, millis)
}

pub(super) use backlog::watch_backlog;
pub(super) use deliver::run as deliver;
pub(super) use exchange::{received, run as exchange};
pub(super) use held::fetch;
pub(super) use tasks::{report, run as report_progress};
pub(super) use withdrawal::cancel;

/// The agent's name in an address, for messages.
fn agent_named(text: &str) -> Result<AgentName, Status> {
    let name = address::split(text).map_or(text, |(agent, _)| agent);
    name.parse()
        .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))
}
