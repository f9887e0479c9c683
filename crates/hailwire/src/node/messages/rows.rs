//! What is read from and written to the database of messages: one function for each thing that happens to one.

use std::time::Duration;

use hailwire_core::{
    delivery::{
        AfterAttempt, AttemptOutcome, DeliveryPolicy, SenderNews, after_attempt,
        receiver_state_at_start, sender_state,
    },
    inbox_schedule::{MessageLane, MessageNumber},
    message_exchange::OfferedLane,
    message_quotas::WaitingMessage,
    task_state::TaskState,
};
use hailwire_wire::{
    AgentName, NodeId, Status,
    header::Durability,
    messages::{MessageId, MessageReceipt, MessageState, OfferedMessage},
};
use rusqlite::{
    Connection, OptionalExtension as _, Result, Row, ToSql, params,
    types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef},
};

use super::{
    bodies::{self, BodyOf},
    decided, tasks,
};
use crate::admin::MessageRow;

/// A message that a program of this machine sends.
#[derive(Debug)]
pub(super) struct NewMessage {
    pub(super) id: MessageId,
    /// The receiver's node.
    pub(super) node: NodeId,
    pub(super) target: String,
    pub(super) agent: AgentName,
    /// Which program sends, as it calls itself.
    pub(super) sender: String,
    pub(super) call: bool,
    pub(super) durable: Durability,
    pub(super) header: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// Sends with equal keys are the same.
    pub(super) key: Option<String>,
    pub(super) stored_at: u64,
    pub(super) expires_at: u64,
    /// For how many milliseconds its row is kept after its end.
    pub(super) keep: u64,
    /// How often it is tried at most; 0 for as often as the receiver's node says.
    pub(super) max_attempts: u32,
    /// Its number at its sender's node, where it came from another one; else 0.
    pub(super) number: u64,
}

impl NewMessage {
    /// How it is counted, as one that programs of `origin` sent.
    pub(super) fn waiting(&self, origin: NodeId) -> WaitingMessage {
        WaitingMessage {
            sender: (origin, self.sender.clone()),
            receiver: (self.node, self.agent.to_string()),
            size: self.body.len() as u64,
        }
    }

    pub(super) fn lane(&self) -> OfferedLane {
        OfferedLane {
            sender: self.sender.clone(),
            agent: self.agent.to_string(),
        }
    }
}

/// A message that is on disk now, or was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredMessage {
    pub(super) id: MessageId,
    pub(super) state: MessageState,
    /// In the inbox of this node, if it is for an agent of this node and was not there before.
    pub(super) number: Option<MessageNumber>,
    pub(super) known: bool,
}

/// An entry of the inbox that has no end yet.
#[derive(Debug)]
pub(super) struct OpenEntry {
    pub(super) number: MessageNumber,
    pub(super) agent: AgentName,
    pub(super) lane: MessageLane,
    pub(super) waiting: WaitingMessage,
}

/// A message that an agent is handed.
#[derive(Debug)]
pub(super) struct TakenMessage {
    pub(super) origin: NodeId,
    pub(super) id: MessageId,
    pub(super) agent: AgentName,
    pub(super) call: bool,
    pub(super) header: Vec<u8>,
    pub(super) body: Vec<u8>,
    pub(super) attempt: u32,
    pub(super) expires_at: u64,
}

/// How a message ended, for its row and its receipt.
#[derive(Clone, Debug, Default)]
pub(super) struct MessageEnd {
    pub(super) status: Option<Status>,
    pub(super) head: Vec<u8>,
    pub(super) answer: Vec<u8>,
    /// How often an agent was handed it, as its sender is told.
    pub(super) attempts: u32,
}

pub(super) struct Key<'a>(pub(super) &'a NodeId);

impl ToSql for Key<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Blob(self.0.as_bytes())))
    }
}

pub(super) struct Id<'a>(pub(super) &'a MessageId);

impl ToSql for Id<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Blob(self.0.as_bytes())))
    }
}

struct StoredState(MessageState);

impl FromSql for StoredState {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let number = i64::column_result(value)?;
        MessageState::from_number(number.cast_unsigned())
            .map(Self)
            .ok_or(FromSqlError::InvalidType)
    }
}

pub(super) fn state_of(row: &Row<'_>, column: &str) -> Result<MessageState> {
    row.get(column).map(|StoredState(state)| state)
}

pub(super) fn id_of(row: &Row<'_>) -> Result<MessageId> {
    row.get("id").map(MessageId::from_bytes)
}

pub(super) fn node_of(row: &Row<'_>, column: &str) -> Result<NodeId> {
    row.get(column).map(NodeId::from_bytes)
}

fn agent_of(row: &Row<'_>) -> Result<AgentName> {
    let text: String = row.get("agent")?;
    text.parse().map_err(|_| FromSqlError::InvalidType.into())
}

pub(super) fn written(status: Option<&Status>) -> Option<Vec<u8>> {
    status.map(hailwire_wire::header::encode)
}

fn status_of(row: &Row<'_>) -> Result<Option<Status>> {
    let bytes: Option<Vec<u8>> = row.get("status")?;
    Ok(bytes.and_then(|bytes| hailwire_wire::header::decode(&bytes).ok()))
}

/// Keeps a message of a program of this machine; in the inbox too where it is for an agent of this node.
pub(super) fn send(db: &Connection, own: NodeId, message: &NewMessage) -> Result<StoredMessage> {
    if let Some(key) = &message.key {
        let known = db
            .prepare_cached("SELECT id, state FROM sent WHERE key = ?1")?
            .query_row([key], |row| Ok((id_of(row)?, state_of(row, "state")?)))
            .optional()?;
        if let Some((id, state)) = known {
            return Ok(StoredMessage {
                id,
                state,
                number: None,
                known: true,
            });
        }
    }
    let here = message.node == own;
    let state = match here {
        true => MessageState::Delivered,
        false => MessageState::Stored,
    };
    let (header, body): (&[u8], &[u8]) = match here {
        true => (&[], &[]),
        false => (&message.header, bodies::in_row(&message.body)),
    };
    db.prepare_cached(
        "INSERT INTO sent (id, node, target, call, header, body, size, key, state, stored_at, \
         expires_at, delivered_at, keep, max_attempts, agent, sender) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )?
    .execute(params![
        Id(&message.id),
        Key(&message.node),
        message.target,
        message.call,
        header,
        body,
        message.body.len() as i64,
        message.key,
        state as u8,
        message.stored_at.cast_signed(),
        message.expires_at.cast_signed(),
        here.then_some(message.stored_at.cast_signed()),
        message.keep.cast_signed(),
        message.max_attempts,
        message.agent.as_str(),
        message.sender,
    ])?;
    let number = match here {
        true => insert_inbox(db, own, message)?,
        false => {
            let seq = db.last_insert_rowid();
            bodies::keep(db, BodyOf::Sent, seq, &message.body)?;
            None
        }
    };
    Ok(StoredMessage {
        id: message.id,
        state,
        number,
        known: false,
    })
}

/// Keeps a message that came from a node; `None` where it is known already, whatever became of it.
pub(super) fn insert_inbox(
    db: &Connection,
    origin: NodeId,
    message: &NewMessage,
) -> Result<Option<MessageNumber>> {
    let inserted = db
        .prepare_cached(
            "INSERT OR IGNORE INTO inbox (origin, id, agent, sender, in_order, call, header, body, \
             size, state, stored_at, expires_at, max_attempts, number) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            Key(&origin),
            Id(&message.id),
            message.agent.as_str(),
            message.sender,
            message.durable != Durability::AnyOrder,
            message.call,
            message.header,
            bodies::in_row(&message.body),
            message.body.len() as i64,
            MessageState::Delivered as u8,
            message.stored_at.cast_signed(),
            message.expires_at.cast_signed(),
            message.max_attempts,
            decided::stored(message.number),
        ])?;
    if inserted == 0 {
        return Ok(None);
    }
    let seq = db.last_insert_rowid();
    bodies::keep(db, BodyOf::Inbox, seq, &message.body)?;
    Ok(Some(seq.cast_unsigned()))
}

/// At the start: what was in an agent's hands is nobody's. Returns what has no end yet, and the peers for which something waits.
pub(super) fn begin(
    db: &Connection,
    own: NodeId,
    policy: &DeliveryPolicy,
    now: u64,
) -> Result<(Vec<OpenEntry>, Vec<NodeId>)> {
    let taken: Vec<(MessageNumber, u32, u32, bool)> = db
        .prepare("SELECT seq, attempts, max_attempts, withdrawn FROM inbox WHERE state = ?1")?
        .query_map([MessageState::Taken as u8], |row| {
            let number = row.get::<_, i64>(0)?.cast_unsigned();
            Ok((number, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<Result<_>>()?;
    for (number, attempts, most, withdrawn) in taken {
        let policy = policy.with_attempts(most);
        let state = receiver_state_at_start(&policy, MessageState::Taken, attempts, withdrawn);
        match state.is_final() {
            true => {
                let end = MessageEnd {
                    status: end_status(state, attempts),
                    ..MessageEnd::default()
                };
                end_message(db, own, number, state, &end, now)?;
            }
            false => wait_again(db, number)?,
        }
    }
    let open = db
        .prepare(
            "SELECT seq, origin, id, agent, sender, in_order, size FROM inbox \
             WHERE state IN (1, 2) ORDER BY seq",
        )?
        .query_map([], |row| open_entry(row, own))?
        .collect::<Result<_>>()?;
    let peers = db
        .prepare(
            "SELECT node FROM sent WHERE state = 0 UNION \
             SELECT node FROM sent WHERE state = 1 AND node <> ?1 UNION \
             SELECT node FROM sent WHERE withdrawn_at IS NOT NULL AND withdrawal_told = 0 UNION \
             SELECT origin FROM inbox WHERE told = 0 AND ended_at IS NOT NULL AND origin <> ?1",
        )?
        .query_map([Key(&own)], |row| row.get(0).map(NodeId::from_bytes))?
        .collect::<Result<_>>()?;
    Ok((open, peers))
}

/// What is said of a message whose end its agent did not say.
fn end_status(state: MessageState, attempts: u32) -> Option<Status> {
    match state {
        MessageState::Unknown => Some(super::gone_status(attempts)),
        MessageState::Cancelled => Some(tasks::cancelled_status(attempts)),
        _ => None,
    }
}

fn open_entry(row: &Row<'_>, own: NodeId) -> Result<OpenEntry> {
    let number = row.get::<_, i64>("seq")?.cast_unsigned();
    let waiting = came(row, own)?;
    let (origin, sender) = &waiting.sender;
    let lane = match row.get("in_order")? {
        true => MessageLane::Sender(*origin, sender.clone()),
        false => MessageLane::Alone(number),
    };
    Ok(OpenEntry {
        number,
        agent: agent_of(row)?,
        lane,
        waiting,
    })
}

/// How a message of the inbox is counted, of whose row origin, sender, agent and size were read.
fn came(row: &Row<'_>, own: NodeId) -> Result<WaitingMessage> {
    Ok(WaitingMessage {
        sender: (node_of(row, "origin")?, row.get("sender")?),
        receiver: (own, row.get("agent")?),
        size: size_of(row)?,
    })
}

/// How a message that is to leave is counted, of whose row node, sender, agent and size were read.
pub(super) fn leaves(row: &Row<'_>, own: NodeId) -> Result<WaitingMessage> {
    Ok(WaitingMessage {
        sender: (own, row.get("sender")?),
        receiver: (node_of(row, "node")?, row.get("agent")?),
        size: size_of(row)?,
    })
}

fn size_of(row: &Row<'_>) -> Result<u64> {
    row.get::<_, i64>("size").map(i64::cast_unsigned)
}

/// What goes to a peer next.
#[derive(Debug, Default)]
pub(super) struct NextBatch {
    pub(super) messages: Vec<OfferedMessage>,
    /// Whose each of them is.
    pub(super) lanes: Vec<OfferedLane>,
    pub(super) receipts: Vec<MessageReceipt>,
    /// The lowest number of a message that rests although later ones go; 0 where there is none.
    pub(super) left_out: u64,
}

/// Whether a row of `sent` is of one of the lanes in a JSON array, which mostly has none.
const RESTS: &str =
    "?3 <> '[]' AND sender || char(10) || agent IN (SELECT value FROM json_each(?3))";

/// The next messages for a peer, in their order, but those of lanes that rest, and receipts of messages that came from it. They count as offered
/// from now on.
pub(super) fn next_batch(
    db: &Connection,
    peer: NodeId,
    resting: &[OfferedLane],
    most: usize,
    most_bytes: usize,
) -> Result<NextBatch> {
    let mut room = most_bytes;
    let (mut messages, mut lanes) = (Vec::new(), Vec::new());
    let mut last: i64 = 0;
    let names: serde_json::Value = resting
        .iter()
        .map(|OfferedLane { sender, agent }| format!("{sender}\n{agent}"))
        .collect();
    let names = names.to_string();
    let mut waiting = db.prepare_cached(&format!(
        "SELECT seq, id, call, header, body, max_attempts, sender, agent FROM sent \
         WHERE node = ?1 AND state = 0 AND withdrawn_at IS NULL AND NOT ({RESTS}) \
         ORDER BY seq LIMIT ?2"
    ))?;
    let mut rows = waiting.query(params![Key(&peer), most as i64, names])?;
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get("seq")?;
        let message = OfferedMessage {
            id: id_of(row)?,
            call: row.get("call")?,
            header: row.get("header")?,
            body: bodies::read(db, BodyOf::Sent, seq, row.get("body")?)?,
            attempts: row.get("max_attempts")?,
            number: seq.cast_unsigned(),
        };
        let size = message.header.len() + message.body.len() + 64;
        if size > room && !messages.is_empty() {
            break;
        }
        room = room.saturating_sub(size);
        last = seq;
        messages.push(message);
        lanes.push(OfferedLane {
            sender: row.get("sender")?,
            agent: row.get("agent")?,
        });
    }
    drop(rows);
    db.prepare_cached(&format!(
        "UPDATE sent SET offered = 1 WHERE node = ?1 AND state = 0 AND seq <= ?2 AND offered = 0 \
         AND withdrawn_at IS NULL AND NOT ({RESTS})"
    ))?
    .execute(params![Key(&peer), last, names])?;
    let mut left_out: Option<i64> = None;
    if !resting.is_empty() {
        left_out = db
            .prepare_cached(&format!(
                "SELECT min(seq) FROM sent WHERE node = ?1 AND state = 0 \
                 AND withdrawn_at IS NULL AND seq < ?2 AND {RESTS}"
            ))?
            .query_row(params![Key(&peer), last, names], |row| row.get(0))?;
    }
    let mut receipts = Vec::new();
    let mut ended = db.prepare_cached(
        "SELECT id, state, attempts, status, head, answer FROM inbox \
         WHERE origin = ?1 AND told = 0 AND ended_at IS NOT NULL ORDER BY seq LIMIT ?2",
    )?;
    let mut rows = ended.query(params![Key(&peer), most as i64])?;
    while let Some(row) = rows.next()? {
        let receipt = MessageReceipt {
            id: id_of(row)?,
            state: state_of(row, "state")?,
            attempts: row.get("attempts")?,
            status: status_of(row)?,
            head: row.get::<_, Option<_>>("head")?.unwrap_or_default(),
            answer: row.get::<_, Option<_>>("answer")?.unwrap_or_default(),
        };
        let size = receipt.answer.len() + receipt.head.len() + 256;
        if size > room && !(receipts.is_empty() && messages.is_empty()) {
            break;
        }
        room = room.saturating_sub(size);
        receipts.push(receipt);
    }
    Ok(NextBatch {
        messages,
        lanes,
        receipts,
        left_out: left_out.unwrap_or(0).cast_unsigned(),
    })
}

/// Whether a peer has messages of this node of which it has not said yet how they ended.
pub(super) fn is_awaiting(db: &Connection, peer: NodeId) -> Result<bool> {
    db.prepare_cached("SELECT EXISTS (SELECT 1 FROM sent WHERE node = ?1 AND state = 1)")?
        .query_row([Key(&peer)], |row| row.get(0))
}

/// A peer has noted how these messages of its ended.
pub(super) fn note_told(db: &Connection, peer: NodeId, receipts: &[MessageId]) -> Result<()> {
    for id in receipts {
        db.prepare_cached(
            "UPDATE inbox SET told = 1, answer = NULL WHERE origin = ?1 AND id = ?2",
        )?
        .execute(params![Key(&peer), Id(id)])?;
    }
    Ok(())
}

/// What follows from what is known now of a message that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LearnedMessage {
    /// How it was counted while it waited to leave.
    pub(super) message: WaitingMessage,
    /// It waits to leave no more.
    pub(super) left: bool,
    /// It has its end.
    pub(super) ended: bool,
}

/// Something is known of a message that was sent to `peer`. Returns what follows, if it changes anything.
pub(super) fn learn(
    db: &Connection,
    own: NodeId,
    peer: NodeId,
    id: MessageId,
    news: SenderNews,
    end: &MessageEnd,
    now: u64,
) -> Result<Option<LearnedMessage>> {
    let known = db
        .prepare_cached(
            "SELECT seq, state, node, sender, agent, size FROM sent WHERE id = ?1 AND node = ?2",
        )?
        .query_row(params![Id(&id), Key(&peer)], |row| {
            Ok((row.get("seq")?, state_of(row, "state")?, leaves(row, own)?))
        })
        .optional()?;
    let Some((seq, before, waiting)) = known else {
        return Ok(None);
    };
    let Some(next) = sender_state(before, news) else {
        return Ok(None);
    };
    let learned = LearnedMessage {
        message: waiting,
        left: before == MessageState::Stored,
        ended: next.is_final(),
    };
    if learned.left {
        bodies::remove(db, BodyOf::Sent, seq, learned.message.size)?;
    }
    if !next.is_final() {
        db.prepare_cached(
            "UPDATE sent SET state = ?2, delivered_at = ?3, header = x'', body = x'' WHERE seq = ?1",
        )?
        .execute(params![seq, next as u8, now.cast_signed()])?;
        return Ok(Some(learned));
    }
    db.prepare_cached(
        "UPDATE sent SET state = ?2, attempts = ?3, ended_at = ?4, status = ?5, head = ?6, answer = ?7, \
         header = x'', body = x'', partial = CASE WHEN ?2 = 4 THEN x'' ELSE partial END WHERE seq = ?1",
    )?
    .execute(params![
        seq,
        next as u8,
        end.attempts,
        now.cast_signed(),
        written(end.status.as_ref()),
        end.head,
        end.answer,
    ])?;
    Ok(Some(learned))
}

/// A hub holds a sealed copy of these for a peer; the first time counts.
pub(super) fn note_held(db: &Connection, peer: NodeId, ids: &[MessageId], now: u64) -> Result<()> {
    for id in ids {
        db.prepare_cached(
            "UPDATE sent SET held_at = ?3 WHERE id = ?1 AND node = ?2 AND held_at IS NULL",
        )?
        .execute(params![Id(id), Key(&peer), now.cast_signed()])?;
    }
    Ok(())
}

/// Whether a message of a peer is known here: it waits, or has ended and is still remembered.
pub(super) fn is_known(db: &Connection, origin: NodeId, id: MessageId) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM inbox WHERE origin = ?1 AND id = ?2 AND remembered = 0")?
        .exists(params![Key(&origin), Id(&id)])
}

/// Hands a message to whoever takes it: it is written down first, so that an attempt that nobody hears of again is counted.
pub(super) fn take(db: &Connection, number: MessageNumber) -> Result<Option<TakenMessage>> {
    let taken = db
        .prepare_cached(
            "UPDATE inbox SET state = 2, attempts = attempts + 1 WHERE seq = ?1 AND state = 1 \
             RETURNING origin, id, agent, call, header, body, attempts, expires_at",
        )?
        .query_row([number.cast_signed()], |row| {
            Ok(TakenMessage {
                origin: node_of(row, "origin")?,
                id: id_of(row)?,
                agent: agent_of(row)?,
                call: row.get("call")?,
                header: row.get("header")?,
                body: row.get("body")?,
                attempt: row.get("attempts")?,
                expires_at: row.get::<_, i64>("expires_at")?.cast_unsigned(),
            })
        });
    let Some(mut taken) = taken.optional()? else {
        return Ok(None);
    };
    taken.body = bodies::read(db, BodyOf::Inbox, number.cast_signed(), taken.body)?;
    Ok(Some(taken))
}

/// What was written down of an attempt that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SettledAttempt {
    /// The message has its end: how it was counted, unless it had one before.
    Ended(Option<WaitingMessage>),
    /// It is handed over again after this time.
    Again(Duration),
}

/// Writes down what became of a message after an attempt.
pub(super) fn settle(
    db: &Connection,
    own: NodeId,
    policy: &DeliveryPolicy,
    number: MessageNumber,
    outcome: AttemptOutcome,
    end: &MessageEnd,
    now: u64,
) -> Result<SettledAttempt> {
    let taken = db
        .prepare_cached(
            "SELECT attempts, max_attempts, withdrawn FROM inbox WHERE seq = ?1 AND state = 2",
        )?
        .query_row([number.cast_signed()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((attempt, most, withdrawn)): Option<(u32, u32, bool)> = taken else {
        return Ok(SettledAttempt::Ended(None));
    };
    let policy = policy.with_attempts(most);
    match after_attempt(&policy, attempt, outcome, withdrawn) {
        AfterAttempt::Final(state) => {
            if outcome == AttemptOutcome::NotBegun {
                give_back(db, number)?;
            }
            let unsaid = end_status(state, attempt).map(|status| MessageEnd {
                status: Some(status),
                ..MessageEnd::default()
            });
            let end = unsaid.as_ref().unwrap_or(end);
            end_message(db, own, number, state, end, now).map(SettledAttempt::Ended)
        }
        AfterAttempt::Again(pause) => {
            match outcome {
                AttemptOutcome::NotBegun => give_back(db, number)?,
                _ => wait_again(db, number)?,
            }
            Ok(SettledAttempt::Again(pause))
        }
    }
}

/// A message that was taken waits again. One that nobody took after all counts no attempt.
fn wait_again(db: &Connection, number: MessageNumber) -> Result<()> {
    db.prepare_cached("UPDATE inbox SET state = 1 WHERE seq = ?1 AND state = 2")?
        .execute([number.cast_signed()])?;
    Ok(())
}

/// As [`wait_again`], and the attempt does not count.
fn give_back(db: &Connection, number: MessageNumber) -> Result<()> {
    db.prepare_cached(
        "UPDATE inbox SET state = 1, attempts = attempts - 1 WHERE seq = ?1 AND state = 2",
    )?
    .execute([number.cast_signed()])?;
    Ok(())
}

/// A message of the inbox has its end; that of a program of this machine has it at its sender at once. Returns how it was counted, or
/// `None` where it had an end already.
pub(super) fn end_message(
    db: &Connection,
    own: NodeId,
    number: MessageNumber,
    state: MessageState,
    end: &MessageEnd,
    now: u64,
) -> Result<Option<WaitingMessage>> {
    // What was given up may be tried again by hand.
    let keeps_body = matches!(state, MessageState::Dead | MessageState::Unknown);
    let ended = db
        .prepare_cached(
            "UPDATE inbox SET state = ?2, ended_at = ?3, status = ?4, head = ?5, answer = ?6, \
             body = CASE WHEN ?7 THEN body ELSE x'' END WHERE seq = ?1 AND ended_at IS NULL \
             RETURNING origin, id, sender, agent, size, attempts",
        )?
        .query_row(
            params![
                number.cast_signed(),
                state as u8,
                now.cast_signed(),
                written(end.status.as_ref()),
                end.head,
                end.answer,
                keeps_body,
            ],
            |row| Ok((id_of(row)?, came(row, own)?, row.get("attempts")?)),
        )
        .optional()?;
    let Some((id, waiting, attempts)) = ended else {
        return Ok(None);
    };
    if !keeps_body {
        bodies::remove(db, BodyOf::Inbox, number.cast_signed(), waiting.size)?;
    }
    if waiting.sender.0 == own {
        let news = SenderNews::Receipt(state);
        let end = MessageEnd {
            attempts,
            ..end.clone()
        };
        learn(db, own, own, id, news, &end, now)?;
        note_told(db, own, &[id])?;
    }
    Ok(Some(waiting))
}

/// What has its end since its time is up.
#[derive(Debug, Default)]
pub(super) struct Expired {
    /// In the inbox: each with its number.
    pub(super) came: Vec<(MessageNumber, WaitingMessage)>,
    /// Of what waited to leave.
    pub(super) sent: Vec<WaitingMessage>,
}

/// Gives up what waits and whose time is up, a thousand of each at most.
pub(super) fn expire(db: &Connection, own: NodeId, now: u64) -> Result<Expired> {
    let late: Vec<MessageNumber> = db
        .prepare_cached("SELECT seq FROM inbox WHERE state = 1 AND expires_at <= ?1 LIMIT 1000")?
        .query_map([now.cast_signed()], |row| {
            row.get::<_, i64>(0).map(i64::cast_unsigned)
        })?
        .collect::<Result<_>>()?;
    let mut expired = Expired::default();
    for number in late {
        let end = MessageEnd::default();
        let ended = end_message(db, own, number, MessageState::Expired, &end, now)?;
        expired.came.extend(ended.map(|ended| (number, ended)));
    }
    let late: Vec<(MessageId, NodeId, bool)> = db
        .prepare_cached(
            "SELECT id, node, offered FROM sent WHERE state = 0 AND expires_at <= ?1 LIMIT 1000",
        )?
        .query_map([now.cast_signed()], |row| {
            Ok((id_of(row)?, node_of(row, "node")?, row.get("offered")?))
        })?
        .collect::<Result<_>>()?;
    for (id, peer, offered) in late {
        let news = SenderNews::Expired { offered };
        let learned = learn(db, own, peer, id, news, &MessageEnd::default(), now)?;
        let left = learned.filter(|learned| learned.left);
        expired.sent.extend(left.map(|learned| learned.message));
    }
    Ok(expired)
}

/// What waits to leave.
pub(super) fn leaving(db: &Connection, own: NodeId) -> Result<Vec<WaitingMessage>> {
    db.prepare("SELECT node, sender, agent, size FROM sent WHERE state = 0")?
        .query_map([], |row| leaves(row, own))?
        .collect()
}

/// When the next message that waits expires, or the row of one that ended is too old.
pub(super) fn next_expiry(db: &Connection, keep: Duration) -> Result<Option<u64>> {
    let next: Option<i64> = db
        .prepare_cached(
            "SELECT min(at) FROM (\
             SELECT min(expires_at) AS at FROM inbox WHERE state = 1 UNION ALL \
             SELECT min(expires_at) FROM sent WHERE state = 0 UNION ALL \
             SELECT min(ended_at) + ?1 FROM inbox WHERE told = 1 UNION ALL \
             SELECT min(ended_at + keep) FROM sent WHERE ended_at IS NOT NULL)",
        )?
        .query_row([super::millis(keep).cast_signed()], |row| row.get(0))?;
    Ok(next.map(i64::cast_unsigned))
}

/// Forgets what was sent and is kept no longer, and what came, ended longer ago than `keep`, and whose sender knows it; but not what was decided
/// before something older of its sender was, nor too soon what never came.
pub(super) fn forget(db: &Connection, now: u64, keep: Duration) -> Result<()> {
    db.execute(
        "DELETE FROM sent WHERE ended_at IS NOT NULL AND ended_at + keep < ?1",
        [now.cast_signed()],
    )?;
    let before = |keep: Duration| now.saturating_sub(super::millis(keep)).cast_signed();
    let came_before = [before(keep), before(super::REMEMBERED_FOR.max(keep))];
    let old = "told = 1 AND ended_at < iif(remembered, ?2, ?1) AND (number = 0 OR number <= \
         coalesce((SELECT number FROM decided WHERE decided.origin = inbox.origin), 0))";
    db.execute(
        &format!("DELETE FROM inbox_body WHERE seq IN (SELECT seq FROM inbox WHERE {old})"),
        came_before,
    )?;
    db.execute(&format!("DELETE FROM inbox WHERE {old}"), came_before)?;
    Ok(())
}

/// One message with everything that is kept of it.
#[derive(Debug)]
pub(super) struct FoundMessage {
    pub(super) row: MessageRow,
    pub(super) header: Vec<u8>,
    pub(super) body: Vec<u8>,
    pub(super) head: Vec<u8>,
    pub(super) answer: Vec<u8>,
    /// What is known of the answer while it is not whole.
    pub(super) partial: Vec<u8>,
}

/// What a list says of a message, which is nothing large.
const SENT_COLUMNS: &str = "id, node, target, call, size, state, attempts, stored_at, expires_at, \
     held_at, delivered_at, ended_at, status, withdrawn_at, started_at, progress_at, done, total, progress_text, \
     keep";

/// See [`SENT_COLUMNS`].
const INBOX_COLUMNS: &str = "id, origin, agent, sender, call, size, state, attempts, stored_at, \
     expires_at, ended_at, status";

pub(super) fn time_of(row: &Row<'_>, column: &str) -> Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(i64::cast_unsigned))
}

/// What both tables say alike.
fn common_row(row: &Row<'_>) -> Result<MessageRow> {
    let status = status_of(row)?;
    Ok(MessageRow {
        id: id_of(row)?.to_string(),
        call: row.get("call")?,
        state: state_of(row, "state")?.name().to_owned(),
        attempts: row.get("attempts")?,
        bytes: row.get::<_, i64>("size")?.cast_unsigned(),
        stored_at_ms: time_of(row, "stored_at")?.unwrap_or_default(),
        expires_at_ms: time_of(row, "expires_at")?.unwrap_or_default(),
        ended_at_ms: time_of(row, "ended_at")?,
        code: status
            .as_ref()
            .map(|status| status.code.name().to_owned())
            .unwrap_or_default(),
        reason: status.map(|status| status.message).unwrap_or_default(),
        ..MessageRow::default()
    })
}

fn sent_row(row: &Row<'_>) -> Result<MessageRow> {
    Ok(MessageRow {
        sent: true,
        node: Some(node_of(row, "node")?),
        to: row.get("target")?,
        held_at_ms: time_of(row, "held_at")?,
        delivered_at_ms: time_of(row, "delivered_at")?,
        ..tasks::sent_row(row, common_row(row)?)?
    })
}

fn inbox_row(row: &Row<'_>) -> Result<MessageRow> {
    Ok(MessageRow {
        node: Some(node_of(row, "origin")?),
        to: row.get("agent")?,
        from: row.get("sender")?,
        delivered_at_ms: time_of(row, "stored_at")?,
        ..common_row(row)?
    })
}

/// What a durable call in the inbox is called as a task.
fn task_name(row: &MessageRow) -> String {
    let state = MessageState::from_name(&row.state);
    let task = state.map(|state| TaskState::of(state, row.attempts).name());
    task.unwrap_or_default().to_owned()
}

/// The states as a condition; all where none is named.
fn in_states(states: &[MessageState]) -> String {
    let numbers: Vec<String> = states
        .iter()
        .map(|state| (*state as u8).to_string())
        .collect();
    match numbers.is_empty() {
        true => "1".to_owned(),
        false => format!("state IN ({})", numbers.join(", ")),
    }
}

/// What was sent from here, newest first; to one target where `to` is not empty, and in `tasks`' states where they are asked for.
pub(super) fn list_sent(
    db: &Connection,
    to: &str,
    states: &[MessageState],
    tasks: Option<&[TaskState]>,
    most: u32,
) -> Result<Vec<MessageRow>> {
    let sql = format!(
        "SELECT {SENT_COLUMNS} FROM sent WHERE (?1 = '' OR target = ?1) AND {} AND {} ORDER BY seq DESC LIMIT ?2",
        in_states(states),
        tasks.map_or_else(|| "1".to_owned(), tasks::condition),
    );
    db.prepare_cached(&sql)?
        .query_map(params![to, most], sent_row)?
        .collect()
}

/// What is in the inbox, in its order; of one agent where `agent` is not empty.
pub(super) fn list_inbox(
    db: &Connection,
    agent: &str,
    states: &[MessageState],
    most: u32,
) -> Result<Vec<MessageRow>> {
    let sql = format!(
        "SELECT {INBOX_COLUMNS} FROM inbox WHERE (?1 = '' OR agent = ?1) AND {} ORDER BY seq LIMIT ?2",
        in_states(states)
    );
    db.prepare_cached(&sql)?
        .query_map(params![agent, most], inbox_row)?
        .collect()
}

/// One message, as its sender's node knows it, else as its receiver's does. Between two programs of this machine both are this node: the state and
/// the body are those of the inbox then. What another node sent with an id that this one gave out says nothing of the message that was sent.
pub(super) fn show(db: &Connection, own: NodeId, id: MessageId) -> Result<Option<FoundMessage>> {
    let found = |row: &Row<'_>, of: BodyOf, shown: MessageRow| {
        Ok(FoundMessage {
            row: shown,
            header: row.get("header")?,
            body: bodies::read(db, of, row.get("seq")?, row.get("body")?)?,
            head: row.get::<_, Option<_>>("head")?.unwrap_or_default(),
            answer: row.get::<_, Option<_>>("answer")?.unwrap_or_default(),
            partial: row.get("partial")?,
        })
    };
    let sent = db
        .prepare_cached(&format!(
            "SELECT {SENT_COLUMNS}, seq, header, body, head, answer, partial FROM sent WHERE id = ?1"
        ))?
        .query_row([Id(&id)], |row| found(row, BodyOf::Sent, sent_row(row)?))
        .optional()?;
    let came = db
        .prepare_cached(&format!(
            "SELECT {INBOX_COLUMNS}, seq, header, body, head, answer, x'' AS partial \
             FROM inbox WHERE id = ?1 AND (origin = ?2 OR NOT ?3) \
             ORDER BY remembered, seq LIMIT 1"
        ))?
        .query_row(params![Id(&id), Key(&own), sent.is_some()], |row| {
            found(row, BodyOf::Inbox, inbox_row(row)?)
        })
        .optional()?;
    Ok(match (sent, came) {
        (Some(sent), Some(came)) => Some(FoundMessage {
            header: came.header,
            body: came.body,
            row: MessageRow {
                task: match sent.row.call {
                    true => task_name(&came.row),
                    false => String::new(),
                },
                from: came.row.from,
                attempts: came.row.attempts,
                state: came.row.state,
                ..sent.row
            },
            head: sent.head,
            answer: sent.answer,
            partial: sent.partial,
        }),
        (sent, came) => sent.or(came),
    })
}

/// The number of a message of the inbox that has no end yet.
pub(super) fn open_number(db: &Connection, id: MessageId) -> Result<Option<MessageNumber>> {
    db.prepare_cached("SELECT seq FROM inbox WHERE id = ?1 AND state IN (1, 2)")?
        .query_row([Id(&id)], |row| Ok(row.get::<_, i64>(0)?.cast_unsigned()))
        .optional()
}

/// A message that was given up waits again, as if it had just come.
pub(super) fn retry(
    db: &Connection,
    own: NodeId,
    id: MessageId,
    now: u64,
) -> Result<Option<OpenEntry>> {
    db.prepare_cached(
        "UPDATE inbox SET state = 1, attempts = 0, withdrawn = 0, ended_at = NULL, status = NULL, \
         expires_at = ?2 + max(expires_at - stored_at, 0), stored_at = ?2 \
         WHERE id = ?1 AND state IN (5, 7) \
         RETURNING seq, origin, id, agent, sender, in_order, size",
    )?
    .query_row(params![Id(&id), now.cast_signed()], |row| {
        open_entry(row, own)
    })
    .optional()
}

/// Removes a message that was given up here, or was sent from here and never left. Returns whether there was one, and of the latter how it
/// was counted.
pub(super) fn remove(
    db: &Connection,
    own: NodeId,
    id: MessageId,
) -> Result<(bool, Option<WaitingMessage>)> {
    let came = db
        .prepare_cached(
            "UPDATE inbox SET state = 8, body = x'' WHERE id = ?1 AND state IN (5, 7) RETURNING seq, size",
        )?
        .query_row([Id(&id)], |row| Ok((row.get("seq")?, size_of(row)?)))
        .optional()?;
    if let Some((seq, size)) = came {
        bodies::remove(db, BodyOf::Inbox, seq, size)?;
    }
    let left = db
        .prepare_cached(
            "DELETE FROM sent WHERE id = ?1 AND state = 0 AND offered = 0 \
             RETURNING seq, node, sender, agent, size",
        )?
        .query_row([Id(&id)], |row| Ok((row.get("seq")?, leaves(row, own)?)))
        .optional()?;
    if let Some((seq, waiting)) = &left {
        bodies::remove(db, BodyOf::Sent, *seq, waiting.size)?;
    }
    let left = left.map(|(_, waiting): (i64, _)| waiting);
    Ok((came.is_some() || left.is_some(), left))
}
