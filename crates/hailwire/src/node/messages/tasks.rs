//! How far an agent is with a message: said by a program of this machine, told to the sender's node at the pace of
//! [`hailwire_core::progress_reports`], and kept there beside the message.

use hailwire_core::{
    progress_reports::{ProgressReport, SaidProgress},
    task_state::TaskState,
};
use hailwire_wire::{
    Code, NodeId, Status, limits,
    messages::{MessageProgress, MessageState},
};
use rusqlite::{Connection, OptionalExtension as _, Result, Row, params};

use super::{
    Messages, locked, now_ms,
    rows::{self, Id, Key, state_of, time_of},
};
use crate::{
    admin::{MessageRow, TaskProgress, TaskProgressReport},
    clock,
    node::NodeInner,
};

pub(super) use super::withdrawal::cancelled_status;

/// Most bytes of answers that the progress in one batch has.
const PARTIAL_BYTES: usize = 512 * 1024;

/// What a row of what was sent says of progress.
pub(super) fn sent_row(row: &Row<'_>, common: MessageRow) -> Result<MessageRow> {
    let progress = time_of(row, "progress_at")?.map(|at_ms| {
        Ok::<_, rusqlite::Error>(TaskProgress {
            at_ms,
            done: row.get::<_, i64>("done")?.cast_unsigned(),
            total: row.get::<_, i64>("total")?.cast_unsigned(),
            text: row.get("progress_text")?,
        })
    });
    let task = match common.call {
        true => TaskState::of(state_of(row, "state")?, common.attempts).name(),
        false => "",
    };
    let keep = row.get::<_, i64>("keep")?.cast_unsigned();
    Ok(MessageRow {
        task: task.to_owned(),
        started_at_ms: time_of(row, "started_at")?,
        withdrawn_at_ms: time_of(row, "withdrawn_at")?,
        kept_until_ms: common.ended_at_ms.map(|ended| ended.saturating_add(keep)),
        progress: progress.transpose()?,
        ..common
    })
}

/// Calls in these states as a condition; in any where none is named.
pub(super) fn condition(states: &[TaskState]) -> String {
    let mut any = Vec::new();
    for state in MessageState::ALL {
        for (attempts, which) in [(0, "attempts = 0"), (1, "attempts > 0")] {
            if states.is_empty() || states.contains(&TaskState::of(state, attempts)) {
                any.push(format!("(state = {} AND {which})", state as u8));
            }
        }
    }
    format!("call = 1 AND ({})", any.join(" OR "))
}

/// Keeps how far an agent at `peer` is. What is older than what is known changes nothing. Returns whether anything did.
pub(super) fn learn_progress(
    db: &Connection,
    peer: NodeId,
    told: &MessageProgress,
    now: u64,
) -> Result<bool> {
    let known = db
        .prepare_cached(
            "SELECT attempts, length(partial), call FROM sent \
             WHERE id = ?1 AND node = ?2 AND state IN (0, 1)",
        )?
        .query_row(params![Id(&told.id), Key(&peer)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((attempt, length, call)): Option<(u32, i64, bool)> = known else {
        return Ok(false);
    };
    if told.attempt == 0 || told.attempt < attempt {
        return Ok(false);
    }
    if told.attempt > attempt {
        db.prepare_cached(
            "UPDATE sent SET attempts = ?2, partial = x'', done = 0, total = 0, progress_text = '', \
             progress_at = NULL, started_at = ?3 WHERE id = ?1",
        )?
        .execute(params![Id(&told.id), told.attempt, now.cast_signed()])?;
    }
    if told.done > 0 || told.total > 0 || !told.text.is_empty() {
        db.prepare_cached(
            "UPDATE sent SET done = ?2, total = ?3, progress_text = ?4, progress_at = ?5 WHERE id = ?1",
        )?
        .execute(params![
            Id(&told.id),
            told.done.cast_signed(),
            told.total.cast_signed(),
            told.text,
            now.cast_signed(),
        ])?;
    }
    let length = match told.attempt > attempt {
        true => 0,
        false => length.cast_unsigned(),
    };
    // What a repeated report has before what is known is the same.
    let known = length.checked_sub(told.offset);
    let known = known.and_then(|known| usize::try_from(known).ok());
    if let Some(piece) = known.and_then(|known| told.partial.get(known..))
        && call
        && !piece.is_empty()
    {
        // Two blobs that are joined are a text.
        db.prepare_cached("UPDATE sent SET partial = CAST(partial || ?2 AS BLOB) WHERE id = ?1")?
            .execute(params![Id(&told.id), piece])?;
    }
    Ok(true)
}

impl Messages {
    /// Reports for a node, as they go over the wire.
    pub(super) fn reports(&self, peer: NodeId) -> Vec<(u64, MessageProgress)> {
        let now = clock::now();
        let reports = locked(&self.progress).take(now, peer, limits::MAX_BATCH, PARTIAL_BYTES);
        let in_hand = locked(&self.in_hand);
        let told = |report: ProgressReport| {
            let attempt = in_hand.get(&report.number)?;
            let told = MessageProgress {
                id: attempt.id()?,
                attempt: attempt.number(),
                done: report.said.done,
                total: report.said.total,
                text: report.said.text,
                offset: report.offset as u64,
                partial: report.partial,
            };
            Some((report.number, told))
        };
        reports.into_iter().filter_map(told).collect()
    }

    /// What became of reports that were to be told.
    pub(super) fn reported(&self, numbers: &[u64], noted: bool) {
        let mut progress = locked(&self.progress);
        for number in numbers {
            progress.handle_outcome(*number, noted);
        }
        drop(progress);
        self.progress_changed.notify_one();
    }

    /// Keeps reports of messages whose sender is of this machine.
    async fn report_here(&self, own: NodeId) {
        let reports = self.reports(own);
        let numbers: Vec<u64> = reports.iter().map(|(number, _)| *number).collect();
        let written = self.store.run(move |db| {
            for (_, told) in &reports {
                learn_progress(db, own, told, now_ms())?;
            }
            Ok(())
        });
        let noted = written.await.is_ok();
        self.reported(&numbers, noted);
        self.note_change();
    }
}

/// Tells senders how far agents are, until the node ends.
pub(crate) async fn run(node: std::sync::Arc<NodeInner>) {
    let (messages, own) = (&node.messages, node.id());
    loop {
        let mut here = false;
        let due = {
            let mut progress = locked(&messages.progress);
            while let Some(peer) = progress.poll_peer(clock::now()) {
                match peer == own {
                    true => here = true,
                    false => messages.wait_for_peer(peer),
                }
            }
            progress.poll_timeout()
        };
        if here {
            messages.report_here(own).await;
            continue;
        }
        tokio::select! {
            () = messages.progress_changed.notified() => {}
            () = clock::reached(due) => {}
        }
    }
}

/// An agent of this machine says how far it is with a message that it has in hand.
pub(in crate::node) async fn report(
    node: &NodeInner,
    report: TaskProgressReport,
) -> std::result::Result<(), Status> {
    let id = super::manage::id_of(&report.id)?;
    let messages = &node.messages;
    let open = messages
        .store
        .run(move |db| rows::open_number(db, id))
        .await;
    let number = open.map_err(|error| super::manage::failed(&error))?;
    let mut text = report.text;
    text.truncate(text.floor_char_boundary(limits::MAX_PROGRESS_TEXT));
    let said = SaidProgress {
        done: report.done,
        total: report.total,
        text,
    };
    let same_attempt = |number: &u64| {
        let in_hand = locked(&messages.in_hand);
        let attempt = in_hand.get(number).map(|attempt| attempt.number());
        attempt.is_some_and(|attempt| report.attempt == 0 || report.attempt == attempt)
    };
    let told = number
        .filter(same_attempt)
        .is_some_and(|number| locked(&messages.progress).handle_said(number, said));
    messages.progress_changed.notify_one();
    match told {
        true => Ok(()),
        false => {
            let what = format!("no agent of this machine has message `{id}` in hand now");
            Err(Status::new(Code::FailedPrecondition, what)
                .with_hint("it may have been withdrawn, or handed over again: end this attempt"))
        }
    }
}
