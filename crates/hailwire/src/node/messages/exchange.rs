//! Sends peers what waits for them, and takes what they send: batches of messages and receipts (`spec/messages.md`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use hailwire_core::{
    delivery::SenderNews, held_copies, inbox_schedule::MessageNumber,
    message_exchange::OfferedLane, message_quotas::WaitingMessage,
};
use hailwire_wire::{
    Code, NodeId, Status, header,
    limits::{self, MAX_BATCH, MAX_BATCH_BYTES},
    messages::{
        BatchAnswer, MessageBatch, MessageId, MessageProgress, MessageReceipt, OfferedMessage,
        decode_batch, is_offered_again,
    },
};
use tokio::time::timeout;

use super::{
    decided::{self, BatchWay},
    held, lane, locked, millis, now_ms,
    rows::{self, LearnedMessage, MessageEnd, NewMessage, OpenEntry},
    tasks,
    withdrawal::{self, Withdrawn},
};
use crate::{
    admin::{self, method},
    agent::{Request, Response},
    clock,
    node::{NodeInner, tunnel},
};

/// How long a batch may take on its way, and until it is answered: the largest message over a link of 1.2 Mbit/s.
const PATIENCE: Duration = Duration::from_secs(120);

/// Batches that are taken in at once, of as many peers: what they hold in memory is so many times [`MAX_BATCH_BYTES`].
pub(super) const RECEIVED_AT_ONCE: usize = 8;

/// Most bytes of a batch, unless one message alone has more.
const BATCH_BYTES: usize = 1024 * 1024;

/// Largest answer to a batch: a status for each message.
const MAX_ANSWER: usize = MAX_BATCH * 1024;

/// Sends what waits, until the node ends.
pub(crate) async fn run(node: Arc<NodeInner>) {
    loop {
        let due = {
            let mut exchange = locked(&node.messages.exchange);
            let now = clock::now();
            while let Some(peer) = exchange.poll_batch(now) {
                let look = exchange.is_look(peer);
                tokio::spawn(send_batch(node.clone(), peer, look));
            }
            while let Some(peer) = exchange.poll_copy(now) {
                tokio::spawn(copy_to_hub(node.clone(), peer));
            }
            exchange.poll_timeout()
        };
        tokio::select! {
            () = node.messages.exchange_changed.notified() => {}
            () = clock::reached(due) => {}
        }
    }
}

async fn send_batch(node: Arc<NodeInner>, peer: NodeId, look: bool) {
    let outcome = exchange_batch(&node, peer, look).await;
    let now = clock::now();
    let mut exchange = locked(&node.messages.exchange);
    match outcome {
        Ok(BatchOutcome::Nothing { awaiting: false }) => exchange.handle_answered(now, peer, false),
        Ok(BatchOutcome::Nothing { awaiting: true }) => exchange.handle_awaiting(now, peer),
        Ok(BatchOutcome::Answered { taken, full }) => {
            exchange.handle_answered(now, peer, true);
            for lane in &taken {
                exchange.handle_lane_taken(peer, lane);
            }
            for (lane, retry_after) in full {
                exchange.handle_lane_full(now, peer, lane, retry_after);
            }
        }
        Ok(BatchOutcome::Full) => exchange.handle_failed(now, peer),
        Err(status) => {
            tracing::debug!(%peer, %status, "messages wait");
            exchange.handle_unreachable(now, peer);
            drop(exchange);
            node.messages.exchange_changed.notify_one();
            return;
        }
    }
    drop(exchange);
    locked(&node.messages.held_copies).handle_reached(peer);
    node.messages.exchange_changed.notify_one();
}

async fn copy_to_hub(node: Arc<NodeInner>, peer: NodeId) {
    held::leave_copy(&node, peer).await;
    locked(&node.messages.exchange).handle_copied(peer);
    node.messages.exchange_changed.notify_one();
}

enum BatchOutcome {
    /// There was nothing to send; `awaiting` is whether the peer owes receipts.
    Nothing { awaiting: bool },
    /// There may be more.
    Answered {
        /// Lanes of which the peer took something.
        taken: Vec<OfferedLane>,
        /// Lanes for which it has no room, each with the time after which to come back, if that was said.
        full: HashMap<OfferedLane, Option<Duration>>,
    },
    /// The peer takes nothing for now.
    Full,
}

async fn exchange_batch(
    node: &Arc<NodeInner>,
    peer: NodeId,
    look: bool,
) -> Result<BatchOutcome, Status> {
    let store = &node.messages.store;
    let own = node.id();
    let resting = locked(&node.messages.exchange).resting_lanes(clock::now(), peer);
    // A message is read once there is a way for it.
    let session = tunnel::tunnel_to(node, peer).await?;
    let (withdrawals, next, awaiting) = store
        .run(move |db| {
            let withdrawals = withdrawal::to_tell(db, peer, MAX_BATCH)?;
            // An offer may still be on its way of what is withdrawn, and what follows would overtake it: all of them go first.
            let most = if withdrawals.len() < MAX_BATCH {
                MAX_BATCH
            } else {
                0
            };
            let batch = rows::next_batch(db, peer, &resting, most, BATCH_BYTES)?;
            Ok((withdrawals, batch, rows::is_awaiting(db, peer)?))
        })
        .await
        .map_err(|error| super::not_stored(&error))?;
    let rows::NextBatch {
        messages,
        lanes,
        receipts,
        left_out,
    } = next;
    let reports = Reports::take(&node.messages, peer);
    let nothing = messages.is_empty() && receipts.is_empty() && withdrawals.is_empty();
    let nothing = nothing && reports.progress.is_empty();
    if nothing && !(look && awaiting) {
        return Ok(BatchOutcome::Nothing { awaiting });
    }
    let now = now_ms();
    let messages: Vec<OfferedMessage> = messages.into_iter().map(|m| for_the_way(m, now)).collect();
    let ids: Vec<MessageId> = messages.iter().map(|message| message.id).collect();
    let told: Vec<MessageId> = receipts.iter().map(|receipt| receipt.id).collect();
    let withdrawn = withdrawals.clone();
    let batch = MessageBatch {
        messages,
        receipts,
        withdrawals,
        progress: reports.progress.clone(),
        left_out,
    };
    let _asking = session.count();
    let body = header::encode(&batch);
    let asked = tunnel::ask_node(&session, method::MESSAGES, body, MAX_ANSWER);
    let bytes = timeout(PATIENCE, asked)
        .await
        .map_err(|_| crate::session::deadline_exceeded())??;
    let answer: BatchAnswer = header::decode(&bytes).map_err(|error| {
        Status::new(
            Code::Internal,
            format!("the answer to messages cannot be read: {error}"),
        )
    })?;
    reports.noted();
    let mut withdrawals = answer.withdrawals.iter();
    let refused = withdrawals.any(|status| is_offered_again(status.code));
    let (mut taken, mut full) = (Vec::new(), HashMap::new());
    for (lane, status) in lanes.into_iter().zip(&answer.messages) {
        match is_offered_again(status.code) {
            true => drop(full.insert(lane, status.retry_after())),
            false if taken.last() == Some(&lane) => {}
            false => taken.push(lane),
        }
    }
    let learned = store
        .run(move |db| {
            rows::note_told(db, peer, &told)?;
            let noted = withdrawn.into_iter().zip(&answer.withdrawals);
            let noted = noted.filter(|(_, status)| status.code == Code::Ok);
            let noted: Vec<MessageId> = noted.map(|(id, _)| id).collect();
            withdrawal::told(db, peer, &noted)?;
            let mut learned = Vec::new();
            for (id, status) in ids.into_iter().zip(answer.messages) {
                let news = match status.code {
                    Code::Ok => SenderNews::Kept,
                    code if is_offered_again(code) => continue,
                    _ => SenderNews::Refused,
                };
                let end = MessageEnd {
                    status: Some(status),
                    ..MessageEnd::default()
                };
                learned.extend(rows::learn(db, own, peer, id, news, &end, now_ms())?);
            }
            Ok(learned)
        })
        .await;
    let learned = learned.map_err(|error| super::not_stored(&error))?;
    node.messages.learned(peer, learned);
    Ok(match (refused, nothing) {
        (true, _) => BatchOutcome::Full,
        (false, true) => BatchOutcome::Nothing { awaiting },
        (false, false) => BatchOutcome::Answered { taken, full },
    })
}

/// Progress that is on its way, which goes again unless it is noted.
struct Reports<'a> {
    messages: &'a super::Messages,
    numbers: Vec<u64>,
    progress: Vec<MessageProgress>,
}

impl<'a> Reports<'a> {
    fn take(messages: &'a super::Messages, peer: NodeId) -> Self {
        let (numbers, progress) = messages.reports(peer).into_iter().unzip();
        Self {
            messages,
            numbers,
            progress,
        }
    }

    fn noted(mut self) {
        let numbers = std::mem::take(&mut self.numbers);
        self.messages.reported(&numbers, true);
    }
}

impl Drop for Reports<'_> {
    fn drop(&mut self) {
        self.messages.reported(&self.numbers, false);
    }
}

/// The time that is left, so that clocks need not agree.
pub(super) fn for_the_way(mut message: OfferedMessage, now: u64) -> OfferedMessage {
    if let Ok(mut header) = header::decode_call(&Bytes::from(message.header.clone()))
        && header.deadline_ms.is_some()
    {
        // The time of its storing is in its id.
        let mut stored = [0; 8];
        stored[2..].copy_from_slice(&message.id.as_bytes()[..6]);
        let spent = now.saturating_sub(u64::from_be_bytes(stored));
        header.deadline_ms = header.deadline_ms.map(|left| left.saturating_sub(spent));
        message.header = header::encode_call(&header);
    }
    message
}

/// Takes a batch of a trusted peer. What is answered `ok` is on disk.
pub(crate) async fn received(
    node: &Arc<NodeInner>,
    peer: NodeId,
    mut request: Request,
) -> Result<Response, Status> {
    let Some(_turn) = Turn::take(node, peer) else {
        return Err(Status::new(
            Code::ResourceExhausted,
            "another batch of this peer, or as many of others as are taken at once, are being written down",
        ));
    };
    let body = timeout(PATIENCE, request.body.bytes(MAX_BATCH_BYTES)).await;
    let body = body.map_err(|_| crate::session::deadline_exceeded())??;
    let batch = decode_batch(&body)
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    drop(body);
    let answer = take_in(node, peer, batch, BatchWay::Tunnel).await?;
    Ok(Response::new(Bytes::from(header::encode(&answer))))
}

/// Takes in what a trusted peer sent, on whichever way: what has the status `ok` is on disk.
pub(super) async fn take_in(
    node: &Arc<NodeInner>,
    peer: NodeId,
    batch: MessageBatch,
    way: BatchWay,
) -> Result<BatchAnswer, Status> {
    let now = now_ms();
    let numbers: Vec<u64> = batch
        .messages
        .iter()
        .map(|message| message.number)
        .collect();
    let ids: Vec<MessageId> = batch.messages.iter().map(|message| message.id).collect();
    let checked: Vec<Result<NewMessage, Status>> = batch
        .messages
        .into_iter()
        .map(|message| check(node, peer, message, now))
        .collect();
    let FoundRoom {
        kept,
        reserved,
        mut statuses,
    } = find_room(node, peer, checked, way);
    let decided = held_copies::decided_up_to(&numbers, &statuses, batch.left_out);
    let refused = refused_for_good(&ids, &numbers, &statuses);
    if !batch.receipts.is_empty() {
        node.messages.look_after(super::LOOK_AFTER_END);
    }
    let (receipts, withdrawals, progress) = (batch.receipts, batch.withdrawals, batch.progress);
    let own = node.id();
    let written = node
        .messages
        .store
        .run(move |db| {
            for told in &progress {
                tasks::learn_progress(db, peer, told, now)?;
            }
            let learned = learn_receipts(db, own, peer, &receipts, now)?;
            // Before messages, so that what follows a withdrawn one does not overtake it.
            let withdrawn = withdrawal::receive(db, own, peer, &withdrawals, now)?;
            if withdrawn.refused().is_some() {
                return Ok(TakenIn {
                    learned,
                    withdrawn,
                    ..TakenIn::default()
                });
            }
            let before = match way {
                BatchWay::Tunnel => None,
                BatchWay::Hub => Some(decided::newest(db, peer)?),
            };
            let is_old =
                |number: u64| before.is_some_and(|before| held_copies::is_decided(before, number));
            let mut written = Vec::with_capacity(kept.len());
            for message in kept {
                let entry = match is_old(message.number) {
                    true => None,
                    false => rows::insert_inbox(db, peer, &message)?,
                };
                written.push((message, entry));
            }
            let (mut known, mut new) = (Vec::new(), Vec::new());
            for (number, id, status) in refused {
                match rows::is_known(db, peer, id)? {
                    true => known.push(id),
                    false if !is_old(number) => new.push((number, id, status)),
                    false => {}
                }
            }
            // Over a tunnel the answer tells it, and what a hub hands out is older than what is decided, but for these.
            new.retain(|(number, ..)| way == BatchWay::Hub || *number > decided);
            withdrawal::remember_refused(db, peer, &new, now)?;
            decided::note(db, peer, decided)?;
            Ok(TakenIn {
                written,
                known,
                any_refused: !new.is_empty(),
                learned,
                withdrawn,
            })
        })
        .await;
    let release_all = || {
        for reserved in &reserved {
            locked(&node.messages.came).release(clock::now(), reserved);
        }
    };
    let TakenIn {
        written,
        known,
        any_refused,
        learned,
        withdrawn,
    } = written.map_err(|error| {
        release_all();
        super::not_stored(&error)
    })?;
    for (id, status) in ids.iter().zip(&mut statuses) {
        if known.contains(id) {
            *status = Status::ok();
        }
    }
    if let Some(status) = withdrawn.refused() {
        release_all();
        statuses.fill(status.clone());
    }
    node.messages.carry_out(own, peer, &withdrawn).await;
    if any_refused {
        node.messages.wait_for_peer(peer);
    }
    node.messages.learned(peer, learned);
    for ((message, number), waiting) in written.into_iter().zip(reserved) {
        let Some(number) = number else {
            locked(&node.messages.came).release(clock::now(), &waiting);
            continue;
        };
        node.messages.look_by(message.expires_at);
        node.messages.wait_in_inbox(OpenEntry {
            number,
            agent: message.agent,
            lane: lane(peer, message.sender, message.durable, number),
            waiting,
        });
    }
    node.messages.inbox_changed.notify_one();
    node.messages.note_change();
    Ok(BatchAnswer {
        messages: statuses,
        withdrawals: withdrawn.statuses,
    })
}

/// What is on disk of a batch.
#[derive(Default)]
struct TakenIn {
    /// Messages, each with its number here where it was not there before.
    written: Vec<(NewMessage, Option<MessageNumber>)>,
    /// Messages that would be refused now, and were taken before: they have their end, or will.
    known: Vec<MessageId>,
    /// Whether some that are refused for good are remembered, so that their sender is to be told.
    any_refused: bool,
    /// What is known now of messages that were sent to the peer.
    learned: Vec<LearnedMessage>,
    withdrawn: Withdrawn,
}

/// Which messages of a batch have room, how each of them is counted, and the status of every message.
struct FoundRoom {
    kept: Vec<NewMessage>,
    reserved: Vec<WaitingMessage>,
    statuses: Vec<Status>,
}

/// Takes room for the messages of a batch. After one that is to come again nothing of its lane is taken, so that the order
/// stays; from a hub, whose copy is not handed out again in parts, nothing at all.
fn find_room(
    node: &NodeInner,
    peer: NodeId,
    checked: Vec<Result<NewMessage, Status>>,
    way: BatchWay,
) -> FoundRoom {
    let mut kept = Vec::with_capacity(checked.len());
    let mut reserved = Vec::with_capacity(checked.len());
    let mut closed: HashMap<OfferedLane, Status> = HashMap::new();
    let (mut came, now) = (locked(&node.messages.came), clock::now());
    let mut find = |message: NewMessage| {
        // Mostly none is, and whose a message is need not be written out for it.
        let status = match way {
            _ if closed.is_empty() => None,
            BatchWay::Hub => closed.values().next(),
            BatchWay::Tunnel => closed.get(&message.lane()),
        };
        if let Some(status) = status {
            return status.clone();
        }
        let waiting = message.waiting(peer);
        match came.reserve(now, &waiting) {
            Ok(()) => {
                kept.push(message);
                reserved.push(waiting);
                Status::ok()
            }
            Err(full) => closed.entry(message.lane()).or_insert(full.into()).clone(),
        }
    };
    let found = checked.into_iter().map(|message| match message {
        Ok(message) => find(message),
        Err(status) => status,
    });
    let statuses = found.collect();
    FoundRoom {
        kept,
        reserved,
        statuses,
    }
}

/// The number, id and status of each message that is not to be offered again.
fn refused_for_good(
    ids: &[MessageId],
    numbers: &[u64],
    statuses: &[Status],
) -> Vec<(u64, MessageId, Status)> {
    let all = numbers.iter().zip(ids).zip(statuses);
    all.filter(|(_, status)| status.code != Code::Ok && !is_offered_again(status.code))
        .map(|((number, id), status)| (*number, *id, status.clone()))
        .collect()
}

/// Writes down how messages ended.
fn learn_receipts(
    db: &rusqlite::Connection,
    own: NodeId,
    peer: NodeId,
    receipts: &[MessageReceipt],
    now: u64,
) -> rusqlite::Result<Vec<LearnedMessage>> {
    let mut learned = Vec::new();
    for receipt in receipts {
        let news = SenderNews::Receipt(receipt.state);
        let end = MessageEnd {
            status: receipt.status.clone(),
            head: receipt.head.clone(),
            answer: receipt.answer.clone(),
            attempts: receipt.attempts,
        };
        learned.extend(rows::learn(db, own, peer, receipt.id, news, &end, now)?);
    }
    Ok(learned)
}

/// Whether a peer's message may be kept: it could be called now.
fn check(
    node: &NodeInner,
    peer: NodeId,
    message: OfferedMessage,
    now: u64,
) -> Result<NewMessage, Status> {
    let bad = |what: String| Status::new(Code::InvalidArgument, what);
    if message.header.len() > limits::MAX_HEADER {
        return Err(bad("the header of a message is too long".to_owned()));
    }
    if message.body.len() > limits::MAX_SEND_BODY {
        return Err(bad("the message is larger than a send may be".to_owned()));
    }
    let mut header = header::decode_call(&Bytes::from(message.header))
        .map_err(|error| bad(error.to_string()))?;
    if header.from.node.is_some() {
        return Err(bad("`from` states a node's key".to_owned()));
    }
    let agent = super::agent_named(&header.to)?;
    if agent.as_str() == admin::AGENT || crate::agent::is_private(&agent) {
        return Err(Status::new(
            Code::NotFound,
            format!("no agent `{agent}` takes messages here"),
        ));
    }
    node.trust.check(peer, &agent)?;
    let expiry = header
        .deadline()
        .unwrap_or(super::DEFAULT_EXPIRY)
        .min(super::DEFAULT_EXPIRY);
    header.deadline_ms = None;
    let sender = header
        .from
        .agent
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    Ok(NewMessage {
        id: message.id,
        node: node.id(),
        target: header.to.clone(),
        sender,
        call: message.call,
        durable: header.durable,
        header: super::stored_header(header, &agent),
        agent,
        body: message.body,
        key: None,
        stored_at: now,
        expires_at: now.saturating_add(millis(expiry)),
        keep: 0,
        max_attempts: message.attempts.min(limits::MAX_MESSAGE_ATTEMPTS),
        number: message.number,
    })
}

/// One batch of a peer at a time.
pub(super) struct Turn<'a> {
    node: &'a NodeInner,
    peer: NodeId,
}

impl<'a> Turn<'a> {
    pub(super) fn take(node: &'a NodeInner, peer: NodeId) -> Option<Self> {
        let mut receiving = locked(&node.messages.receiving);
        let taken = receiving.len() < RECEIVED_AT_ONCE && receiving.insert(peer);
        taken.then_some(Self { node, peer })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        locked(&self.node.messages.receiving).remove(&self.peer);
    }
}
