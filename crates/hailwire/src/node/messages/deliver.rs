//! Hands messages to their agents: each is an ordinary call or send to the agent, whose end is its acknowledgement.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use hailwire_core::{
    delivery::AttemptOutcome,
    inbox_schedule::{AT_ONCE, MessageNumber},
    routing::CallOrigin,
};
use hailwire_wire::{
    AgentName, CallHeader, Code, NodeId, Status, frame::FrameKind, header, limits,
};
use tokio::time::Instant;

use super::{
    AttemptInHand, MessageStoreError, Messages, locked, millis, now_ms,
    rows::{self, MessageEnd, SettledAttempt, TakenMessage},
};
use crate::{
    admin::{MESSAGE_ATTEMPT_FIELD, MESSAGE_ID_FIELD},
    body::Body,
    clock,
    node::{NodeInner, embedded_call},
};

/// The longest that an agent may have a message in hand.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(3600);

/// How long a message that cannot be written down waits.
pub(super) const DISK_PAUSE: Duration = Duration::from_secs(5);

/// Hands over what is due, until the node ends.
pub(crate) async fn run(node: Arc<NodeInner>) {
    loop {
        let (changed, due) = {
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
            let changed = std::iter::from_fn(|| inbox.poll_changed());
            let changed: Vec<AgentName> = changed.collect();
            (changed, inbox.poll_timeout())
        };
        node.messages.tell_watches(changed);
        tokio::select! {
            () = node.messages.inbox_changed.notified() => {}
            () = clock::reached(due) => {}
        }
    }
}

async fn hand_over(node: Arc<NodeInner>, number: MessageNumber) {
    let messages = &node.messages;
    // Whoever withdraws it finds the attempt from before it is on disk.
    let in_hand = messages.begin_attempt(number);
    let taken = messages.store.run(move |db| rows::take(db, number)).await;
    let message = match taken {
        Ok(Some(message)) => message,
        // It has its end meanwhile.
        Ok(None) => {
            messages.end_attempt(number);
            locked(&messages.inbox).handle_end(number);
            return messages.inbox_changed.notify_one();
        }
        Err(error) => {
            tracing::error!(%error, "a message stays where it is");
            messages.end_attempt(number);
            return messages.again(number, DISK_PAUSE);
        }
    };
    messages.taken(&in_hand, number, &message);
    let withdrawn = || (AttemptOutcome::Lost, MessageEnd::default());
    let (outcome, end) = tokio::select! {
        biased;
        ended = attempt_delivery(&node, number, message) => ended,
        () = in_hand.interrupt.notified() => withdrawn(),
    };
    let end = Arc::new(end);
    while let Err(error) = messages.settle(node.id(), number, outcome, &end).await {
        tracing::error!(%error, "the end of a message was not written down, and is again");
        tokio::time::sleep(DISK_PAUSE).await;
    }
}

impl Messages {
    /// An attempt is about to begin.
    pub(super) fn begin_attempt(&self, number: MessageNumber) -> Arc<AttemptInHand> {
        let in_hand = Arc::new(AttemptInHand::default());
        locked(&self.in_hand).insert(number, in_hand.clone());
        in_hand
    }

    /// It is on disk that the attempt has begun.
    pub(super) fn taken(
        &self,
        in_hand: &AttemptInHand,
        number: MessageNumber,
        message: &TakenMessage,
    ) {
        // Nobody else says it of this attempt.
        let _ = in_hand.known.set((message.id, message.attempt));
        locked(&self.progress).handle_begun(clock::now(), number, message.origin);
        self.progress_changed.notify_one();
    }

    /// The attempt is over.
    pub(super) fn end_attempt(&self, number: MessageNumber) {
        locked(&self.in_hand).remove(&number);
        locked(&self.progress).handle_ended(number);
    }

    /// Writes down how an attempt ended. Where it cannot, the message stays in hand.
    pub(super) async fn settle(
        &self,
        own: NodeId,
        number: MessageNumber,
        outcome: AttemptOutcome,
        end: &Arc<MessageEnd>,
    ) -> Result<(), MessageStoreError> {
        self.end_attempt(number);
        let (policy, end) = (self.policy, end.clone());
        let settled = self
            .store
            .run(move |db| rows::settle(db, own, &policy, number, outcome, &end, now_ms()))
            .await?;
        match settled {
            SettledAttempt::Ended(Some(waited)) => self.ended(own, number, &waited),
            // Somebody removed it meanwhile.
            SettledAttempt::Ended(None) => {}
            SettledAttempt::Again(pause) => self.again(number, pause),
        }
        Ok(())
    }

    /// The agent has given a piece of its answer.
    fn give_piece(&self, number: MessageNumber, piece: &[u8]) {
        locked(&self.progress).handle_piece(number, piece);
        self.progress_changed.notify_one();
    }

    pub(super) fn again(&self, number: MessageNumber, pause: Duration) {
        locked(&self.inbox).handle_again(clock::now() + pause, number);
        self.inbox_changed.notify_one();
    }
}

async fn attempt_delivery(
    node: &Arc<NodeInner>,
    number: MessageNumber,
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
    // Before those of the sender, of which none has the last word on them: a program sees names in upper case, and the first of those that are
    // equal then.
    let own = [
        (MESSAGE_ID_FIELD, message.id.to_string()),
        (MESSAGE_ATTEMPT_FIELD, message.attempt.to_string()),
    ];
    header
        .headers
        .splice(0..0, own.map(|(name, value)| (name.to_owned(), value)));
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
        let mut bytes = BytesMut::new();
        while let Some(chunk) = answer.chunk().await? {
            if bytes.len() + chunk.len() > limits::MAX_SEND_BODY {
                return Err(answer_too_large());
            }
            node.messages.give_piece(number, &chunk);
            bytes.extend_from_slice(&chunk);
        }
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
                ..MessageEnd::default()
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

fn answer_too_large() -> Status {
    let what = format!(
        "the answer has more than {} bytes, which is the most that is kept",
        limits::MAX_SEND_BODY
    );
    Status::new(Code::ResourceExhausted, what)
}

/// Addresses a message to its agent here.
fn address(header: &mut CallHeader, node: &NodeInner, agent: &AgentName, origin: CallOrigin) {
    header.to = match origin {
        CallOrigin::Local => format!("{agent}@{}", node.id()),
        CallOrigin::Peer(_) => agent.to_string(),
    };
}
