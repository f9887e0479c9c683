//! Hands messages to their agents: each is an ordinary call or send to the agent, whose end is its acknowledgement.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use hailwire_core::{
    delivery::{AfterAttempt, AttemptOutcome, after_attempt},
    inbox_schedule::{AT_ONCE, MessageNumber},
    routing::CallOrigin,
};
use hailwire_wire::{
    AgentName, CallHeader, Code, NodeId, Status, frame::FrameKind, header, limits,
    messages::MessageState,
};
use tokio::time::Instant;

use super::{
    Messages, gone_status, locked, millis, now_ms,
    rows::{self, MessageEnd, TakenMessage},
};
use crate::{
    body::Body,
    clock,
    node::{NodeInner, embedded_call},
};

/// The longest that an agent may have a message in hand.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(3600);

/// The field in which an agent finds the id of its message.
const ID_FIELD: &str = "hail-message-id";

/// The field in which an agent finds how often the message was handed over, this time included.
const ATTEMPT_FIELD: &str = "hail-message-attempt";

/// How long a message that cannot be written down waits.
pub(super) const DISK_PAUSE: Duration = Duration::from_secs(5);

/// Hands over what is due, until the node ends.
pub(crate) async fn run(node: Arc<NodeInner>) {
    loop {
        let due = {
            let mut inbox = locked(&node.messages.inbox);
            let unseen = locked(&node.messages.unseen).replace(HashSet::new());
            let agents: Vec<AgentName> = match unseen {
                Some(some) => some.into_iter().collect(),
                None => inbox.agents().cloned().collect(),
            };
            for agent in agents {
                let capacity = node.registry.local_capacity(&agent, AT_ONCE);
                inbox.handle_agent(&agent, capacity);
            }
            while let Some(number) = inbox.poll_delivery(clock::now()) {
                tokio::spawn(hand_over(node.clone(), number));
            }
            inbox.poll_timeout()
        };
        tokio::select! {
            () = node.messages.inbox_changed.notified() => {}
            () = clock::reached(due) => {}
        }
    }
}

async fn hand_over(node: Arc<NodeInner>, number: MessageNumber) {
    let messages = &node.messages;
    let taken = messages.store.run(move |db| rows::take(db, number)).await;
    let message = match taken {
        Ok(Some(message)) => message,
        // It has its end meanwhile.
        Ok(None) => return locked(&messages.inbox).handle_end(number),
        Err(error) => {
            tracing::error!(%error, "a message stays where it is");
            return messages.again(number, DISK_PAUSE);
        }
    };
    let attempt = message.attempt;
    let (outcome, end) = attempt_delivery(&node, message).await;
    messages
        .settle(node.id(), number, attempt, outcome, end)
        .await;
}

impl Messages {
    /// Writes down how an attempt ended.
    pub(super) async fn settle(
        &self,
        own: NodeId,
        number: MessageNumber,
        attempt: u32,
        outcome: AttemptOutcome,
        end: MessageEnd,
    ) {
        let after = after_attempt(&self.policy, attempt, outcome);
        let written = match after {
            AfterAttempt::Final(state) => {
                let end = match state {
                    MessageState::Unknown => MessageEnd {
                        status: Some(gone_status(attempt)),
                        ..end
                    },
                    _ => end,
                };
                self.end(own, number, state, end).await
            }
            AfterAttempt::Again(pause) => {
                let begun = outcome != AttemptOutcome::NotBegun;
                let waits = self.store.run(move |db| match begun {
                    true => rows::wait_again(db, number),
                    false => rows::give_back(db, number),
                });
                let waits = waits.await;
                self.again(number, pause);
                waits
            }
        };
        if let Err(error) = written {
            tracing::error!(%error, "the end of a message was not written down: it is handed over again");
            self.again(number, DISK_PAUSE);
        }
    }

    pub(super) fn again(&self, number: MessageNumber, pause: Duration) {
        locked(&self.inbox).handle_again(clock::now() + pause, number);
        self.inbox_changed.notify_one();
    }
}

async fn attempt_delivery(
    node: &Arc<NodeInner>,
    message: TakenMessage,
) -> (AttemptOutcome, MessageEnd) {
    let failed = |status: Status, outcome| {
        let end = MessageEnd {
            status: Some(status),
            ..MessageEnd::default()
        };
        (outcome, end)
    };
    let origin = match message.origin == node.id() {
        true => CallOrigin::Local,
        false => CallOrigin::Peer(message.origin),
    };
    let header = header::decode_call(&Bytes::from(message.header));
    let mut header = match header {
        Ok(header) => Box::new(header),
        Err(error) => {
            let status = Status::new(Code::InvalidArgument, error.to_string());
            return failed(status, AttemptOutcome::Refused(Code::InvalidArgument));
        }
    };
    let left = message.expires_at.saturating_sub(now_ms());
    let left = Duration::from_millis(left.min(millis(ATTEMPT_LIMIT)));
    address(&mut header, node, &message.agent, origin);
    header.set_deadline(left);
    header
        .headers
        .push((ID_FIELD.to_owned(), message.id.to_string()));
    header
        .headers
        .push((ATTEMPT_FIELD.to_owned(), message.attempt.to_string()));
    let kind = match message.call {
        true => FrameKind::CALL,
        false => FrameKind::SEND,
    };
    let deadline = Some(Instant::now() + left);
    let route = embedded_call::find(node, &mut header, origin, deadline).await;
    let route = match route {
        Ok(route) => route,
        Err(status) if status.code == Code::PermissionDenied => {
            let outcome = AttemptOutcome::Refused(status.code);
            return failed(status, outcome);
        }
        Err(status) => return failed(status, AttemptOutcome::NotBegun),
    };
    let body = Body::from(message.body);
    let answered = async {
        let mut answer =
            embedded_call::make(node, route, origin, kind, header, body, deadline).await?;
        let bytes = answer.bytes(limits::MAX_SEND_BODY).await?;
        Ok::<_, Status>((answer.head().clone(), bytes))
    };
    match tokio::time::timeout(left, answered).await {
        Ok(Ok((head, bytes))) => {
            let end = MessageEnd {
                head: match head == header::AnswerHead::default() {
                    true => Vec::new(),
                    false => header::encode(&head),
                },
                answer: bytes.to_vec(),
                status: None,
            };
            let answered = message.call;
            (AttemptOutcome::Done { answered }, end)
        }
        Ok(Err(status)) => {
            let outcome = AttemptOutcome::of_code(status.code, false);
            failed(status, outcome)
        }
        Err(_) => failed(crate::session::deadline_exceeded(), AttemptOutcome::Lost),
    }
}

/// Addresses a message to its agent here.
fn address(header: &mut CallHeader, node: &NodeInner, agent: &AgentName, origin: CallOrigin) {
    header.to = match origin {
        CallOrigin::Local => format!("{agent}@{}", node.id()),
        CallOrigin::Peer(_) => agent.to_string(),
    };
}
