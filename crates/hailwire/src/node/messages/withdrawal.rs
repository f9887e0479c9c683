//! A sender that wants its message no more. What follows from that is decided in [`hailwire_core::delivery`]; here it is written down
//! at the sender's node before anybody is told, sent with the next batch, and carried out at the receiver's node.

use hailwire_core::{
    delivery::{SenderNews, Withdrawal, sender_state, withdrawal},
    inbox_schedule::MessageNumber,
    message_quotas::WaitingMessage,
};
use hailwire_wire::{
    Code, NodeId, Status,
    messages::{MessageId, MessageState},
};
use rusqlite::{Connection, OptionalExtension as _, Result, params};

use super::{
    Messages, decided, locked, now_ms,
    rows::{self, Id, Key, MessageEnd, id_of, node_of, state_of},
};
use crate::{
    admin::{MessageRow, MessageSelector},
    node::NodeInner,
};

/// Withdrawals of messages that never came, and refusals of held ones, which are remembered for one node.
pub(super) const REMEMBERED: usize = 10_000;

/// What is said of a message that its sender withdrew.
pub(super) fn cancelled_status(attempts: u32) -> Status {
    let what = match attempts {
        0 => "its sender withdrew it before an agent had it",
        _ => "its sender withdrew it; the agent that had it in hand may have done a part",
    };
    Status::new(Code::Cancelled, what)
}

/// What became of a wish to withdraw.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SenderWithdrawal {
    /// Nothing of this id was sent from here.
    NotSent,
    /// It has its end, this one.
    TooLate(MessageState),
    /// It never left, and has its end now.
    Ended(WaitingMessage),
    /// The receiver's node is to be told; it is this one where that has the message.
    Tell(NodeId),
}

/// Writes down that a message that was sent from here is wanted no more.
fn withdraw_sent(
    db: &Connection,
    own: NodeId,
    id: MessageId,
    now: u64,
) -> Result<SenderWithdrawal> {
    let known = db
        .prepare_cached("SELECT node, state, offered FROM sent WHERE id = ?1")?
        .query_row([Id(&id)], |row| {
            Ok((
                node_of(row, "node")?,
                state_of(row, "state")?,
                row.get("offered")?,
            ))
        })
        .optional()?;
    let Some((node, state, offered)) = known else {
        return Ok(SenderWithdrawal::NotSent);
    };
    if state.is_final() {
        return Ok(SenderWithdrawal::TooLate(state));
    }
    db.prepare_cached("UPDATE sent SET withdrawn_at = ?2 WHERE id = ?1 AND withdrawn_at IS NULL")?
        .execute(params![Id(&id), now.cast_signed()])?;
    let news = SenderNews::Withdrawn { offered };
    if sender_state(state, news).is_none() {
        return Ok(SenderWithdrawal::Tell(node));
    }
    let end = MessageEnd {
        status: Some(cancelled_status(0)),
        ..MessageEnd::default()
    };
    let learned = rows::learn(db, own, node, id, news, &end, now)?;
    told(db, node, &[id])?;
    let left = learned.filter(|learned| learned.left);
    let cancelled = SenderWithdrawal::TooLate(MessageState::Cancelled);
    Ok(left.map_or(cancelled, |left| SenderWithdrawal::Ended(left.message)))
}

/// The messages that are wanted no more and of which a peer is to be told, in their order.
pub(super) fn to_tell(db: &Connection, peer: NodeId, most: usize) -> Result<Vec<MessageId>> {
    db.prepare_cached(
        "SELECT id FROM sent WHERE node = ?1 AND withdrawn_at IS NOT NULL AND withdrawal_told = 0 \
         ORDER BY seq LIMIT ?2",
    )?
    .query_map(params![Key(&peer), most as i64], id_of)?
    .collect()
}

/// A peer has written down that these are wanted no more.
pub(super) fn told(db: &Connection, peer: NodeId, ids: &[MessageId]) -> Result<()> {
    for id in ids {
        db.prepare_cached("UPDATE sent SET withdrawal_told = 1 WHERE id = ?1 AND node = ?2")?
            .execute(params![Id(id), Key(&peer)])?;
    }
    Ok(())
}

/// What is to be done once withdrawals are on disk.
#[derive(Debug, Default)]
pub(super) struct Withdrawn {
    /// For each withdrawal whether it is written down.
    pub(super) statuses: Vec<Status>,
    /// Messages that have their end now.
    ended: Vec<(MessageNumber, WaitingMessage)>,
    /// Messages whose attempt is to be cut short.
    interrupted: Vec<MessageNumber>,
    /// Some never came, and wait to be told as ended.
    remembered: bool,
}

impl Withdrawn {
    /// Whether all are written down: nothing else of the batch may be taken before.
    pub(super) fn refused(&self) -> Option<&Status> {
        self.statuses.iter().find(|status| status.code != Code::Ok)
    }
}

/// Writes down that `origin` wants messages no more that are for agents of this node.
pub(super) fn receive(
    db: &Connection,
    own: NodeId,
    origin: NodeId,
    ids: &[MessageId],
    now: u64,
) -> Result<Withdrawn> {
    let mut withdrawn = Withdrawn::default();
    // Counted once for all of them, and only where one is to be remembered.
    let mut remembered: Option<usize> = None;
    for id in ids {
        let known = db
            .prepare_cached("SELECT seq, state FROM inbox WHERE origin = ?1 AND id = ?2")?
            .query_row(params![Key(&origin), Id(id)], |row| {
                let number = row.get::<_, i64>("seq")?.cast_unsigned();
                Ok((number, state_of(row, "state")?))
            })
            .optional()?;
        let number = known.map(|(number, _)| number).unwrap_or_default();
        let mut status = Status::ok();
        match withdrawal(known.map(|(_, state)| state)) {
            Withdrawal::Remember => {
                let count = match remembered {
                    Some(count) => count,
                    None => remembered_of(db, origin)?,
                };
                remembered = Some(count + 1);
                match count < REMEMBERED {
                    true => {
                        let status = cancelled_status(0);
                        remember(db, origin, *id, 0, MessageState::Cancelled, &status, now)?;
                    }
                    false => status = too_many(),
                }
                withdrawn.remembered = true;
            }
            Withdrawal::End => {
                let end = MessageEnd {
                    status: Some(cancelled_status(0)),
                    ..MessageEnd::default()
                };
                let cancelled = MessageState::Cancelled;
                let ended = rows::end_message(db, own, number, cancelled, &end, now)?;
                withdrawn.ended.extend(ended.map(|ended| (number, ended)));
            }
            Withdrawal::Interrupt => {
                db.prepare_cached("UPDATE inbox SET withdrawn = 1 WHERE seq = ?1")?
                    .execute([number.cast_signed()])?;
                withdrawn.interrupted.push(number);
            }
            Withdrawal::TooLate => {}
        }
        withdrawn.statuses.push(status);
    }
    Ok(withdrawn)
}

fn too_many() -> Status {
    let what = format!("{REMEMBERED} withdrawals of messages that never came are remembered here");
    Status::new(Code::ResourceExhausted, what).with_hint("they are forgotten after seven days")
}

fn remembered_of(db: &Connection, origin: NodeId) -> Result<usize> {
    let count: i64 = db
        .prepare_cached("SELECT count(*) FROM inbox WHERE origin = ?1 AND remembered = 1")?
        .query_row([Key(&origin)], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Keeps the end of a message that is not taken in, as if it had come and ended; of one that is known nothing changes.
fn remember(
    db: &Connection,
    origin: NodeId,
    id: MessageId,
    number: u64,
    state: MessageState,
    status: &Status,
    now: u64,
) -> Result<()> {
    db.prepare_cached(
        "INSERT OR IGNORE INTO inbox (origin, id, agent, sender, in_order, call, header, body, size, state, \
         stored_at, expires_at, ended_at, status, remembered, number) \
         VALUES (?1, ?2, '', '', 0, 0, x'', x'', 0, ?3, ?4, ?4, ?4, ?5, 1, ?6)",
    )?
    .execute(params![
        Key(&origin),
        Id(&id),
        state as u8,
        now.cast_signed(),
        rows::written(Some(status)),
        decided::stored(number),
    ])?;
    Ok(())
}

/// Keeps that messages which came by way of a hub are refused for good, so that receipts tell their sender, whom no answer reaches. Those
/// beyond [`REMEMBERED`] are refused again when they are offered again.
pub(super) fn remember_refused(
    db: &Connection,
    origin: NodeId,
    refused: &[(u64, MessageId, Status)],
    now: u64,
) -> Result<()> {
    if refused.is_empty() {
        return Ok(());
    }
    let room = REMEMBERED.saturating_sub(remembered_of(db, origin)?);
    for (number, id, status) in refused.iter().take(room) {
        remember(db, origin, *id, *number, MessageState::Dead, status, now)?;
    }
    Ok(())
}

impl Messages {
    /// Does what follows from withdrawals that are on disk.
    pub(super) async fn carry_out(&self, own: NodeId, origin: NodeId, withdrawn: &Withdrawn) {
        for (number, ended) in &withdrawn.ended {
            self.ended(own, *number, ended);
        }
        if withdrawn.remembered && origin != own {
            self.wait_for_peer(origin);
        }
        for number in &withdrawn.interrupted {
            self.interrupt(own, *number).await;
        }
    }

    /// Cuts an attempt short: the agent's handler is dropped, and whoever took the message by hand has it no more.
    pub(super) async fn interrupt(&self, own: NodeId, number: MessageNumber) {
        if let Some(interrupt) = locked(&self.in_hand).get(&number) {
            interrupt.notify_one();
        }
        let by_hand = locked(&self.leases).remove(&number).is_some();
        if by_hand {
            self.end_lease(own, number).await;
        }
    }
}

/// Withdraws a message that was sent from here. It has its end at once where it never left; else the receiver's node is told, now and
/// until it has written that down. Withdrawing twice, or what is cancelled already, changes nothing.
pub(in crate::node) async fn cancel(
    node: &NodeInner,
    selector: &MessageSelector,
) -> std::result::Result<MessageRow, Status> {
    let id = super::manage::id_of(&selector.id)?;
    let (messages, own) = (&node.messages, node.id());
    let asked = messages.store.run(move |db| {
        let now = now_ms();
        let asked = withdraw_sent(db, own, id, now)?;
        let here = match asked {
            SenderWithdrawal::Tell(receiver) if receiver == own => {
                told(db, own, &[id])?;
                Some(receive(db, own, own, &[id], now)?)
            }
            _ => None,
        };
        Ok((asked, here))
    });
    let (asked, here) = asked.await.map_err(|error| super::manage::failed(&error))?;
    if let Some(withdrawn) = here {
        messages.carry_out(own, own, &withdrawn).await;
    }
    match asked {
        SenderWithdrawal::NotSent => return Err(super::manage::unknown(id)),
        SenderWithdrawal::TooLate(state) if state != MessageState::Cancelled => {
            let what = format!("message `{id}` has its end already: it is {}", state.name());
            return Err(Status::new(Code::FailedPrecondition, what)
                .with_hint("`hail task status ID` shows what became of it"));
        }
        SenderWithdrawal::TooLate(_) => {}
        SenderWithdrawal::Ended(left) => messages.left(&[left]),
        SenderWithdrawal::Tell(receiver) if receiver != own => messages.wait_for_peer(receiver),
        SenderWithdrawal::Tell(_) => {}
    }
    messages.note_change();
    Ok(super::manage::show(node, selector).await?.row)
}
