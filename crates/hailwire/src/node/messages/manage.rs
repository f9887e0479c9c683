//! What a program of this machine asks about messages: what waits, what was sent and became of it, and messages taken by hand.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hailwire_core::{delivery::AttemptOutcome, task_state::TaskState};
use hailwire_wire::{
    Code, Status, header,
    messages::{MessageId, MessageState},
};
use tokio::time::Instant;

use super::{
    Messages,
    deliver::DISK_PAUSE,
    locked, now_ms,
    rows::{self, MessageEnd},
};
use crate::{
    admin::{
        MessageDetail, MessageQuery, MessageRow, MessageSelector, MessageTake, MessageVerdict,
        MessageWait,
    },
    clock,
    node::NodeInner,
};

/// Most rows of one list.
const MAX_ROWS: u32 = 1000;

/// Most messages taken by hand at once.
const MAX_TAKEN: u32 = 64;

/// The longest that a program waits for a message's end in one request.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// For how long a message is taken by hand where it is not said.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// The shortest time between two looks for leases that have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The longest that one may be taken by hand.
const LONGEST_LEASE: Duration = Duration::from_secs(3600);

pub(super) fn failed(error: &super::MessageStoreError) -> Status {
    let what = error.to_string();
    match error.full {
        true => Status::new(Code::ResourceExhausted, what)
            .with_hint("make room on the disk of the node's data folder, and do it again"),
        false => Status::new(Code::Internal, what),
    }
}

pub(super) fn id_of(text: &str) -> Result<MessageId, Status> {
    let parsed = text.parse::<MessageId>();
    parsed.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))
}

pub(super) fn unknown(id: MessageId) -> Status {
    Status::new(Code::NotFound, format!("no message `{id}` is known here"))
        .with_hint("`hail inbox ls` lists what came, `hail inbox sent` what was sent; ended ones are kept for seven days")
}

pub(in crate::node) async fn list(
    node: &NodeInner,
    query: MessageQuery,
) -> Result<Vec<MessageRow>, Status> {
    let states: Vec<MessageState> = query
        .states
        .iter()
        .map(|name| state_named(name))
        .collect::<Result<_, _>>()?;
    let most = match query.most {
        0 => MAX_ROWS,
        most => most.min(MAX_ROWS),
    };
    let tasks = query.tasks.map(|names| {
        let states = names.iter().map(|name| task_named(name));
        states.collect::<Result<Vec<TaskState>, Status>>()
    });
    let tasks = tasks.transpose()?;
    let listed = node.messages.store.run(move |db| match query.sent {
        true => rows::list_sent(db, &query.agent, &states, tasks.as_deref(), most),
        false => rows::list_inbox(db, &query.agent, &states, most),
    });
    listed.await.map_err(|error| failed(&error))
}

fn state_named(name: &str) -> Result<MessageState, Status> {
    MessageState::from_name(name).ok_or_else(|| {
        let names = MessageState::ALL.map(MessageState::name).join(", ");
        let what = format!("`{name}` is not the state of a message: {names}");
        Status::new(Code::InvalidArgument, what)
    })
}

fn task_named(name: &str) -> Result<TaskState, Status> {
    TaskState::from_name(name).ok_or_else(|| {
        let names = TaskState::ALL.map(TaskState::name).join(", ");
        let what = format!("`{name}` is not the state of a task: {names}");
        Status::new(Code::InvalidArgument, what)
    })
}

pub(in crate::node) async fn show(
    node: &NodeInner,
    selector: &MessageSelector,
) -> Result<MessageDetail, Status> {
    let id = id_of(&selector.id)?;
    let own = node.id();
    let found = node.messages.store.run(move |db| rows::show(db, own, id));
    let found = found.await;
    let found = found
        .map_err(|error| failed(&error))?
        .ok_or_else(|| unknown(id))?;
    let sent = header::decode_call(&Bytes::from(found.header)).unwrap_or_default();
    let head = match found.head.is_empty() {
        true => header::AnswerHead::default(),
        false => header::decode_answer(&found.head).unwrap_or_default(),
    };
    Ok(MessageDetail {
        row: found.row,
        method: sent.method,
        content_type: sent.content_type,
        headers: sent.headers,
        body: found.body.as_slice().into(),
        answer_type: head.content_type,
        answer: found.answer.as_slice().into(),
        partial_bytes: found.partial.len() as u64,
        partial: found.partial.as_slice().into(),
    })
}

/// Waits until a message that was sent from here has its end, or the stated state.
pub(in crate::node) async fn wait(
    node: &NodeInner,
    request: &MessageWait,
) -> Result<MessageDetail, Status> {
    let patience = match request.timeout_ms {
        0 => LONGEST_WAIT,
        ms => Duration::from_millis(ms).min(LONGEST_WAIT),
    };
    let until = Instant::now() + patience;
    let wanted = match request.state.as_str() {
        "" => None,
        name => Some(state_named(name)?),
    };
    let selector = MessageSelector {
        id: request.id.clone(),
    };
    let mut changes = node.messages.state_changed.subscribe();
    loop {
        changes.borrow_and_update();
        let detail = show(node, &selector).await?;
        let state = state_named(&detail.row.state)?;
        let news = request.seen.as_ref().is_some_and(|seen| {
            let row = &detail.row;
            let at = row.progress.as_ref().map_or(0, |progress| progress.at_ms);
            (seen.attempts, seen.progress_at_ms, seen.partial_bytes)
                != (row.attempts, at, detail.partial_bytes)
        });
        if news || state.is_final() || wanted.is_some_and(|wanted| state >= wanted) {
            return Ok(detail);
        }
        let changed = tokio::time::timeout_at(until, changes.changed()).await;
        if !matches!(changed, Ok(Ok(()))) {
            return Err(Status::new(
                Code::DeadlineExceeded,
                format!(
                    "message `{}` is {} and has no end yet",
                    request.id,
                    state.name()
                ),
            )
            .with_hint("it is kept all the same: ask again later"));
        }
    }
}

/// Has a message that was given up tried again, from the first attempt on.
pub(in crate::node) async fn retry(
    node: &NodeInner,
    selector: &MessageSelector,
) -> Result<MessageRow, Status> {
    let id = id_of(&selector.id)?;
    let (messages, own) = (&node.messages, node.id());
    let retried = messages
        .store
        .run(move |db| rows::retry(db, own, id, now_ms()))
        .await;
    let entry = retried.map_err(|error| failed(&error))?.ok_or_else(|| {
        Status::new(
            Code::FailedPrecondition,
            format!("message `{id}` is not one that was given up here"),
        )
        .with_hint("`hail inbox dead` lists those")
    })?;
    locked(&messages.came).add(&entry.waiting);
    messages.wait_in_inbox(entry);
    messages.inbox_changed.notify_one();
    Ok(show(node, selector).await?.row)
}

/// Removes a message: one that waits here, or was given up here, or was sent from here and never left.
pub(in crate::node) async fn remove(
    node: &NodeInner,
    selector: &MessageSelector,
) -> Result<MessageRow, Status> {
    let id = id_of(&selector.id)?;
    let (messages, own) = (&node.messages, node.id());
    let before = show(node, selector).await?.row;
    let open = messages
        .store
        .run(move |db| rows::open_number(db, id))
        .await;
    match open.map_err(|error| failed(&error))? {
        Some(number) => {
            let end = MessageEnd::default();
            let ended = messages.end(own, number, MessageState::Dropped, end).await;
            ended.map_err(|error| failed(&error))?;
            messages.interrupt(own, number).await;
            Ok(show(node, selector).await?.row)
        }
        None => {
            let removed = messages
                .store
                .run(move |db| rows::remove(db, own, id))
                .await;
            let (removed, left) = removed.map_err(|error| failed(&error))?;
            messages.left(left.as_slice());
            match removed {
                true => Ok(MessageRow {
                    state: MessageState::Dropped.name().to_owned(),
                    ..before
                }),
                false => Err(Status::new(
                    Code::FailedPrecondition,
                    format!(
                        "message `{id}` is {} and cannot be removed here",
                        before.state
                    ),
                )
                .with_hint(
                    "one that has left is removed at its receiver: `hail inbox drop` there",
                )),
            }
        }
    }
}

/// Takes messages of an agent by hand; each is handed over again where no verdict comes in time.
pub(in crate::node) async fn take(
    node: &Arc<NodeInner>,
    request: &MessageTake,
) -> Result<Vec<MessageDetail>, Status> {
    let agent = super::agent_named(&request.agent)?;
    let lease = match request.lease_ms {
        0 => DEFAULT_LEASE,
        ms => Duration::from_millis(ms).min(LONGEST_LEASE),
    };
    let mut taken = Vec::new();
    for _ in 0..request.most.clamp(1, MAX_TAKEN) {
        let next = locked(&node.messages.inbox).take(clock::now(), &agent);
        let Some(number) = next else { break };
        let messages = &node.messages;
        messages.inbox_changed.notify_one();
        // Whoever withdraws it finds it taken from before that is on disk.
        let in_hand = messages.begin_attempt(number);
        locked(&messages.leases).insert(number, Instant::now() + lease);
        let message = messages.store.run(move |db| rows::take(db, number)).await;
        let gone = |messages: &Messages| {
            messages.end_attempt(number);
            locked(&messages.leases).remove(&number);
        };
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => {
                gone(messages);
                locked(&messages.inbox).handle_end(number);
                messages.inbox_changed.notify_one();
                continue;
            }
            Err(error) => {
                // It is in nobody's hand.
                gone(messages);
                messages.again(number, DISK_PAUSE);
                return match taken.is_empty() {
                    true => Err(failed(&error)),
                    false => Ok(taken),
                };
            }
        };
        messages.taken(&in_hand, number, &message);
        node.messages.look_after(lease);
        let id = message.id.to_string();
        taken.push(show(node, &MessageSelector { id }).await?);
    }
    Ok(taken)
}

/// Says what became of a message that was taken by hand.
pub(in crate::node) async fn judge(
    node: &NodeInner,
    verdict: MessageVerdict,
) -> Result<MessageRow, Status> {
    let id = id_of(&verdict.id)?;
    let messages = &node.messages;
    let open = messages
        .store
        .run(move |db| rows::open_number(db, id))
        .await;
    let open = open.map_err(|error| failed(&error))?;
    let taken = open.and_then(|number| {
        let lease = locked(&messages.leases).remove(&number);
        lease.map(|until| (number, until))
    });
    let Some((number, until)) = taken else {
        return Err(Status::new(
            Code::FailedPrecondition,
            format!("message `{id}` is not taken by hand now"),
        )
        .with_hint("its time may be up, and it goes to the next taker: take it again"));
    };
    let (outcome, end) = match verdict.failed {
        None => {
            let answered = !verdict.answer.is_empty();
            let answer = verdict.answer.into_bytes();
            let end = MessageEnd {
                answer,
                ..MessageEnd::default()
            };
            (AttemptOutcome::Done { answered }, end)
        }
        Some(reason) => {
            let code = match verdict.retry {
                true => Code::Aborted,
                false => Code::FailedPrecondition,
            };
            let end = MessageEnd {
                status: Some(Status::new(code, reason)),
                ..MessageEnd::default()
            };
            (AttemptOutcome::Refused(code), end)
        }
    };
    let end = Arc::new(end);
    let settled = messages.settle(node.id(), number, outcome, &end).await;
    if let Err(error) = settled {
        locked(&messages.leases).insert(number, until);
        return Err(failed(&error));
    }
    let id = verdict.id;
    Ok(show(node, &MessageSelector { id }).await?.row)
}

impl Messages {
    /// Messages that were taken by hand, and of which nobody has said in time what became, go on.
    pub(super) async fn end_leases(&self, own: hailwire_wire::NodeId) {
        let now = Instant::now();
        let late: Vec<u64> = {
            // One whose taking is not on disk yet has no end to be written.
            let in_hand = locked(&self.in_hand);
            let on_disk = |number: &u64| {
                in_hand
                    .get(number)
                    .is_none_or(|attempt| attempt.number() > 0)
            };
            let mut leases = locked(&self.leases);
            let late = leases.extract_if(|number, until| *until <= now && on_disk(number));
            late.map(|(number, _)| number).collect()
        };
        let next = locked(&self.leases).values().min().copied();
        if let Some(next) = next {
            self.look_after(next.saturating_duration_since(now).max(LOOK_AGAIN));
        }
        for number in late {
            self.end_lease(own, number).await;
        }
    }

    /// Nobody says any more what became of a message that was taken by hand.
    pub(super) async fn end_lease(&self, own: hailwire_wire::NodeId, number: u64) {
        let end = Arc::new(MessageEnd::default());
        let settled = self.settle(own, number, AttemptOutcome::Lost, &end).await;
        if let Err(error) = settled {
            tracing::error!(%error, "the end of a lease was not written down, and is again");
            locked(&self.leases).insert(number, Instant::now() + DISK_PAUSE);
            self.look_after(DISK_PAUSE);
        }
    }
}
