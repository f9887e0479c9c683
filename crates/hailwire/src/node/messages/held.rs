//! Leaves sealed copies of what waits for a peer at a hub, and takes what others left there (`spec/held.md`).
//!
//! A copy changes nothing of what is kept here: the messages in it wait until the peer says that it has them, or how they ended. What is
//! fetched is taken in by the checks of a batch that came over a tunnel of its sender.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hailwire_core::held_copies::CopyDigest;
use hailwire_wire::{
    NodeId, header,
    held::{HeldContent, HeldError},
    limits::{CLOCK_TOLERANCE_S, MAX_BATCH, MAX_HELD_AGE_S},
    messages::{MessageBatch, MessageId, OfferedMessage, is_offered_again},
};
use sha2::{Digest as _, Sha256};

use super::{
    decided::BatchWay,
    exchange::{Turn, for_the_way, take_in},
    locked, now_ms, rows, withdrawal,
};
use crate::{
    clock,
    hub::HubError,
    key::random,
    node::{NodeInner, hubs::HubLink},
};

/// How long a hub may take to take a copy or to hand one out.
const HUB_PATIENCE: Duration = Duration::from_secs(15);

/// Most bytes of messages and receipts in a copy, so that it has a size class.
const COPY_BYTES: usize = 960 * 1024;

/// Bytes of the id of a withdrawn message in a batch.
const WITHDRAWAL_BYTES: usize = 18;

/// Copies that are fetched from one hub after one registration; what is left waits for the next.
const FETCHED_AT_ONCE: usize = 256;

/// Seals what waits for a peer that cannot be reached, and leaves it at the first hub that holds it.
pub(super) async fn leave_copy(node: &Arc<NodeInner>, peer: NodeId) {
    let hubs = node.hubs.all();
    let connected: Vec<_> = hubs.iter().filter(|hub| hub.is_connected()).collect();
    if connected.is_empty() {
        return;
    }
    let begun = clock::now();
    if locked(&node.messages.held_copies).is_refused(begun, peer) {
        return;
    }
    let waiting = node.messages.store.run(move |db| waiting(db, peer));
    let Ok(mut batch) = waiting.await else {
        return;
    };
    if batch == MessageBatch::default() {
        return;
    }
    let digest = digest(&batch);
    if !locked(&node.messages.held_copies).is_due(begun, peer, digest) {
        return;
    }
    let now = now_ms();
    let ids: Vec<MessageId> = batch.messages.iter().map(|message| message.id).collect();
    let messages = batch.messages.into_iter();
    batch.messages = messages.map(|m| for_the_way(m, now)).collect();
    let mut fresh = [0; 32];
    random(&mut fresh);
    let sealed = match HeldContent::new(peer, now, &batch).seal(&node.setup.key.pair(), fresh) {
        Ok(sealed) => Bytes::from(sealed),
        Err(error) => {
            tracing::debug!(%peer, %error, "no copy is left at a hub");
            locked(&node.messages.held_copies).handle_refused(begun, peer);
            return;
        }
    };
    for hub in connected {
        let hold = hub.client().hold(peer, sealed.clone());
        match hub.asked(node, HUB_PATIENCE, hold).await {
            Ok(until) => {
                let time =
                    Duration::from_secs(until.saturating_sub(now / 1000).min(MAX_HELD_AGE_S));
                tracing::debug!(%peer, hub = %hub.client().url(), "a hub holds what waits");
                note_held(node, peer, ids).await;
                locked(&node.messages.held_copies).handle_held(begun, peer, digest, time);
                return;
            }
            Err(error) => tracing::debug!(%peer, %error, "a hub does not hold what waits"),
        }
    }
    locked(&node.messages.held_copies).handle_refused(begun, peer);
}

/// Has their senders see that a hub holds these.
async fn note_held(node: &NodeInner, peer: NodeId, ids: Vec<MessageId>) {
    let noted = node
        .messages
        .store
        .run(move |db| rows::note_held(db, peer, &ids, now_ms()));
    if let Err(error) = noted.await {
        tracing::warn!(%peer, %error, "that a hub holds messages is not written down");
    }
    node.messages.note_change();
}

/// What waits for a peer, withdrawals first: where they fill a batch, no message goes with them, as in one that goes over a tunnel.
fn waiting(db: &rusqlite::Connection, peer: NodeId) -> rusqlite::Result<MessageBatch> {
    let withdrawals = withdrawal::to_tell(db, peer, MAX_BATCH)?;
    let most = if withdrawals.len() < MAX_BATCH {
        MAX_BATCH
    } else {
        0
    };
    let room = COPY_BYTES - withdrawals.len() * WITHDRAWAL_BYTES;
    let next = rows::next_batch(db, peer, &[], most, room)?;
    Ok(MessageBatch {
        messages: next.messages,
        receipts: next.receipts,
        withdrawals,
        ..MessageBatch::default()
    })
}

/// Equal for copies with the same contents.
fn digest(batch: &MessageBatch) -> CopyDigest {
    let messages = batch.messages.iter().map(|message| (0, &message.id));
    let receipts = batch.receipts.iter().map(|receipt| (1, &receipt.id));
    let withdrawals = batch.withdrawals.iter().map(|id| (2, id));
    let all = messages.chain(receipts).chain(withdrawals);
    let hash = all.fold(Sha256::new(), |hash, (kind, id)| {
        hash.chain_update([kind]).chain_update(id.as_bytes())
    });
    hash.finalize().into()
}

/// Takes what a hub holds for this node. What cannot be opened, or is of a node that is not trusted, is deleted there.
pub(in crate::node) async fn fetch(node: &Arc<NodeInner>, hub: &HubLink) {
    let mut after = 0;
    for _ in 0..FETCHED_AT_ONCE {
        match fetch_next(node, hub, after).await {
            Ok(Some(number)) => after = number,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(hub = %hub.client().url(), %error, "held messages wait at the hub");
                return;
            }
        }
    }
}

/// Takes the first batch whose number is above `after`; returns its number.
async fn fetch_next(
    node: &Arc<NodeInner>,
    hub: &HubLink,
    after: u64,
) -> Result<Option<u64>, HubError> {
    let next = hub.client().next_held(after);
    let Some(held) = hub.asked(node, HUB_PATIENCE, next).await? else {
        return Ok(None);
    };
    if held.number <= after {
        return Err(HubError::Answer("a held batch that was handed out before"));
    }
    let is_done = match open(node, held.from, &held.sealed.0) {
        Ok(batch) => take_held(node, held.from, batch).await,
        Err(reason) => {
            tracing::warn!(hub = %hub.client().url(), from = %held.from, reason, "a held batch is thrown away");
            true
        }
    };
    if is_done {
        let delete = hub.client().delete_held(held.number);
        hub.asked(node, HUB_PATIENCE, delete).await?;
    }
    Ok(Some(held.number))
}

/// Whether it is taken in, and of no more use at the hub.
async fn take_held(node: &Arc<NodeInner>, sender: NodeId, batch: MessageBatch) -> bool {
    let Some(_turn) = Turn::take(node, sender) else {
        return false;
    };
    match take_in(node, sender, batch, BatchWay::Hub).await {
        Ok(answer) => {
            let mut statuses = answer.messages.iter().chain(&answer.withdrawals);
            !statuses.any(|status| is_offered_again(status.code))
        }
        Err(status) => {
            tracing::debug!(%sender, %status, "a held batch waits at its hub");
            false
        }
    }
}

/// What is in a batch that a hub says is of `sender`, without what has had its time.
fn open(node: &NodeInner, sender: NodeId, sealed: &[u8]) -> Result<MessageBatch, String> {
    if !node.trust.is_trusted(sender) {
        return Err("its sender is not trusted".to_owned());
    }
    let content = HeldContent::open(&node.setup.key.pair(), sender, sealed);
    let opened = content.and_then(|content| Ok((content.sealed_ms, content.batch()?)));
    let (sealed_ms, batch) = opened.map_err(|error: HeldError| error.to_string())?;
    in_time(batch, sealed_ms, now_ms())
}

/// A batch without the messages whose time is over, and with what is left of that of the others.
fn in_time(mut batch: MessageBatch, sealed_ms: u64, now: u64) -> Result<MessageBatch, String> {
    if sealed_ms > now.saturating_add(CLOCK_TOLERANCE_S * 1000) {
        return Err("it is of a time that is still to come".to_owned());
    }
    let age = now.saturating_sub(sealed_ms);
    if age > MAX_HELD_AGE_S * 1000 {
        return Err("it is older than a hub may hold it".to_owned());
    }
    let messages = batch.messages.into_iter();
    batch.messages = messages.filter_map(|m| aged(m, age)).collect();
    Ok(batch)
}

/// A message after so many milliseconds at a hub; `None` where that was all the time it had.
fn aged(mut message: OfferedMessage, age: u64) -> Option<OfferedMessage> {
    let Ok(mut call) = header::decode_call(&Bytes::from(message.header.clone())) else {
        // It is refused as one that came over a tunnel is.
        return Some(message);
    };
    let default = super::millis(super::DEFAULT_EXPIRY);
    let left = call.deadline_ms.unwrap_or(default).saturating_sub(age);
    if left == 0 {
        return None;
    }
    call.deadline_ms = Some(left);
    message.header = header::encode_call(&call);
    Some(message)
}

#[cfg(test)]
mod tests;
