//! Tasks: durable calls, by the id that their node gave them (`spec/messages.md`). What becomes of one is the node's; here it is asked for.

use std::time::Duration;

use hailwire_wire::{CallHeader, Code, Status};

use super::{Call, Client};
use crate::admin::{
    self, MessageDetail, MessageQuery, MessageRow, MessageSeen, MessageSelector, MessageWait,
    SendReceipt, TaskProgressReport, method,
};

/// How long one request waits; the node is asked again.
const WAIT: Duration = Duration::from_secs(60);

impl Call {
    /// Sends it as a task: a durable call ([`Call::durable`]) whose id is returned once it is on disk. With `in_order` it begins after what
    /// this program sent to the same agent before has its end.
    ///
    /// # Errors
    ///
    /// As [`Call::durable`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the task may have been accepted or not. With an idempotency key it can be submitted again.
    pub async fn submit(self, in_order: bool) -> Result<SendReceipt, Status> {
        self.durable(true, in_order).await
    }

    /// For how long this machine's node keeps a durable call or send once it has its end: seven days by default, 30 days at most.
    pub fn keep(self, after_end: Duration) -> Self {
        let ms = after_end.as_millis();
        self.header(admin::KEEP_FIELD, ms.to_string())
    }

    /// How often a durable call or send is handed to its agent at most, before it is given up; as often as the receiver's node says by
    /// default, at most [`MAX_MESSAGE_ATTEMPTS`](hailwire_wire::limits::MAX_MESSAGE_ATTEMPTS).
    pub fn attempts(self, most: u32) -> Self {
        self.header(admin::ATTEMPTS_FIELD, most.to_string())
    }
}

impl Client {
    /// What is known of a task, or of any durable message.
    ///
    /// # Errors
    ///
    /// `invalid_argument` (no id), `not_found` (never known here, or forgotten).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if it is dropped.
    pub async fn task(&self, id: &str) -> Result<MessageDetail, Status> {
        let selector = MessageSelector { id: id.to_owned() };
        self.admin(method::MESSAGE_SHOW, &selector).await
    }

    /// The tasks that were submitted from this machine, newest first, up to 1,000; in these states alone where any is named:
    /// `submitted`, `working`, `completed`, `failed`, `cancelled` or `rejected`.
    ///
    /// # Errors
    ///
    /// `invalid_argument` (no such state).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if it is dropped.
    pub async fn tasks(&self, states: &[&str]) -> Result<Vec<MessageRow>, Status> {
        let query = MessageQuery {
            sent: true,
            tasks: Some(states.iter().map(ToString::to_string).collect()),
            ..MessageQuery::default()
        };
        self.admin(method::MESSAGE_LIST, &query).await
    }

    /// Waits until a task has its end, for as long as that takes. [`Client::task_news`] tells of progress before.
    ///
    /// # Errors
    ///
    /// As [`Client::task`], and `unavailable` where the node is gone. How the task ended is no error here.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if it is dropped: the task goes on.
    pub async fn wait_task(&self, id: &str) -> Result<MessageDetail, Status> {
        self.wait(id, None).await
    }

    /// Waits until more is known of a task than `seen`: another attempt, progress, more of its answer, or its end.
    ///
    /// # Errors
    ///
    /// As [`Client::wait_task`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if it is dropped: what is new stays so.
    pub async fn task_news(&self, id: &str, seen: MessageSeen) -> Result<MessageDetail, Status> {
        self.wait(id, Some(seen)).await
    }

    async fn wait(&self, id: &str, seen: Option<MessageSeen>) -> Result<MessageDetail, Status> {
        let request = MessageWait {
            id: id.to_owned(),
            state: String::new(),
            seen,
            timeout_ms: u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX),
        };
        loop {
            match self.admin(method::MESSAGE_WAIT, &request).await {
                Err(status) if status.code == Code::DeadlineExceeded => {}
                outcome => return outcome,
            }
        }
    }

    /// Withdraws a task, or any durable message, that was sent from this machine. One that has not left has its end at once; else the receiver's node
    /// is told until it has written that down: what waits there ends, and the handler of an agent that has it in hand is dropped. It ends as
    /// `cancelled`, or as the agent answered before. Withdrawing again changes nothing.
    ///
    /// # Errors
    ///
    /// `not_found`, and `failed_precondition` where it has another end already.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may be withdrawn or not.
    pub async fn cancel_task(&self, id: &str) -> Result<MessageRow, Status> {
        let selector = MessageSelector { id: id.to_owned() };
        self.admin(method::TASK_CANCEL, &selector).await
    }

    /// Says how far this program is with the message that it was handed in a call with this header: `done` of `total`, which is 0 where it
    /// does not know, in units of its own, and what it is at, of which 256 bytes are kept. The sender sees the last that was said, once
    /// a second at most.
    ///
    /// # Errors
    ///
    /// `failed_precondition` where the header is of no durable message, or of an attempt that is over: nobody waits for this handler any more.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have been said or not.
    pub async fn report_progress(
        &self,
        header: &CallHeader,
        done: u64,
        total: u64,
        text: &str,
    ) -> Result<(), Status> {
        let Some(id) = header.field(admin::MESSAGE_ID_FIELD) else {
            let what = "the call is no durable message, so nobody keeps its progress";
            return Err(Status::new(Code::FailedPrecondition, what)
                .with_hint("`hail task submit` makes a durable one"));
        };
        let attempt = header.field(admin::MESSAGE_ATTEMPT_FIELD);
        let report = TaskProgressReport {
            id: id.to_owned(),
            attempt: attempt
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            done,
            total,
            text: text.to_owned(),
        };
        self.admin(method::TASK_PROGRESS, &report).await
    }
}
