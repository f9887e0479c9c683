//! A call or a raw stream: prepared, then made.

use std::time::Duration;

use hailwire_core::call_attempts::AttemptPolicy;
use hailwire_wire::{
    AgentName, CallHeader, Code, Priority, Status, frame::FrameKind, header::Durability,
};
use tokio::time::Instant;

use super::{Client, ClientKind, attempts};
use crate::{
    agent,
    body::{Body, BodySender},
    config::Carrier,
    node::embedded_call,
    session::{self, Answer},
};

/// Largest answer to a durable message.
const MAX_RECEIPT: usize = 4096;

/// Chunks that may wait on a stream's sending half.
const STREAM_QUEUE: usize = 16;

/// A call being prepared.
#[derive(Debug)]
#[must_use = "nothing happens until it is sent"]
pub struct Call {
    client: Client,
    kind: FrameKind,
    header: Box<CallHeader>,
    deadline: Option<Duration>,
    body: Body,
    further: AttemptPolicy,
}

impl Call {
    /// The most that [`Call::retries`] may ask for; of more, so many are made.
    pub const MAX_RETRIES: u32 = hailwire_core::call_attempts::MAX_FURTHER_ATTEMPTS;

    pub(super) fn new(client: Client, to: String) -> Self {
        Self {
            client,
            kind: FrameKind::CALL,
            header: Box::new(CallHeader {
                to,
                ..CallHeader::default()
            }),
            deadline: None,
            body: Body::empty(),
            further: AttemptPolicy::default(),
        }
    }

    /// Where it goes, as it was given to [`Client::call`].
    #[must_use]
    pub fn to(&self) -> &str {
        &self.header.to
    }

    /// What is asked of the agent, at most [`MAX_METHOD`](hailwire_wire::limits::MAX_METHOD) bytes;
    /// empty by default.
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.header.method = method.into();
        self
    }

    /// Adds a field of the application's own. Names may repeat and keep their order; at most
    /// [`MAX_HEADER_FIELDS`](hailwire_wire::limits::MAX_HEADER_FIELDS), and 64 KiB for the whole header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.header.headers.push((name.into(), value.into()));
        self
    }

    /// States the media type of the body; empty, meaning bytes, by default.
    pub fn content_type(mut self, media_type: impl Into<String>) -> Self {
        self.header.content_type = media_type.into();
        self
    }

    /// How long the whole answer may take, from [`Call::send`] on: its last byte too. Both ends
    /// enforce it, in milliseconds. No bound by default; but a call that a [`Handler`](crate::Handler) makes before it returns, in its own task, has no
    /// more time than is left of the call that it serves, as in gRPC.
    pub fn deadline(mut self, left: Duration) -> Self {
        self.deadline = Some(left);
        self
    }

    /// How urgent; [`Priority::Medium`] by default. It orders what waits on one connection, in both
    /// directions.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.header.priority = priority;
        self
    }

    /// Passes the call on over this carrier and no other, whichever takes new calls. A tunnel over it is
    /// brought up if need be. Default: [`Carrier::Auto`], as the node decides. For an agent of the same
    /// machine it means nothing. A peer has one tunnel over TCP at a time, so calls that ask for `h2` and
    /// `ws` in turn each make a new one.
    pub fn carrier(mut self, carrier: Carrier) -> Self {
        self.header.carrier = match carrier {
            Carrier::Auto => String::new(),
            one => one.name().to_owned(),
        };
        self
    }

    /// Has this member of the group take it and no other: one of
    /// [`AgentRow::member_numbers`](crate::admin::AgentRow::member_numbers) of the node that the address names, or of
    /// this one where it names none. Default: 0, whichever that node picks.
    ///
    /// A number is of a registration, so whoever registers again has another one. A node that is older than
    /// this field picks any member.
    pub fn member(mut self, number: u64) -> Self {
        self.header.member = number;
        self
    }

    /// Marks the call as one that may be tried again: equal keys mean the same work. The agent reads
    /// it; nothing is repeated unless [`Call::retries`] or [`Call::hedge_after`] ask for it. Empty by default.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.header.idempotency_key = key.into();
        self
    }

    /// Makes the call again, up to `most` times, where it ended before its answer began with `unavailable`, `resource_exhausted` or
    /// `aborted`: after 25 ms, then twice as long each time up to a second, each shortened by up to a half at random. 0 by
    /// default, at most [`MAX_RETRIES`](Self::MAX_RETRIES).
    ///
    /// Only a call with an [idempotency key](Self::idempotency_key) and a body that is known whole may be, and nothing starts
    /// past the deadline. All calls of this client and of its clones share a budget besides, so that a failure does not
    /// multiply the load that caused it: 10 further attempts, and one more for every five calls that allow some; where it is
    /// spent when one is due, the last failure is returned.
    pub const fn retries(mut self, most: u32) -> Self {
        self.further.retries = most;
        self
    }

    /// Makes the call a second time beside the first where its answer has not begun after so long, and again after as long for
    /// as many times as [`Call::retries`] allows; without those there is one further attempt, which follows a failure too. The first answer is returned and the other attempts are cancelled. A group's
    /// member that has the call already is busier by it, so another one that is as near takes the next; one on another node only
    /// where those here are full, and none where [`Call::affinity`] or [`Call::member`] bind it. Its bounds are those of retries.
    pub const fn hedge_after(mut self, slow: Duration) -> Self {
        self.further.hedge_after = Some(slow);
        self
    }

    /// Has calls of one group with equal keys go to the same member of it, here or on another node, as long as that is not down and has
    /// room; then they go to the next in the key's own order, and come back. At most
    /// [`MAX_AFFINITY`](hailwire_wire::limits::MAX_AFFINITY) bytes; empty, the default, for whichever is nearest and least loaded. The
    /// agent can read it. A node that is older than this field picks any member.
    pub fn affinity(mut self, key: impl Into<String>) -> Self {
        self.header.affinity = key.into();
        self
    }

    /// Sends it as a durable message instead: resolves once this machine's node has it on disk, and says by which id. The node keeps it until the
    /// agent's node has it, and that one until the agent has done it, however often either of them is restarted; it is handed over
    /// again where the agent was gone before it said so. The deadline is how long it is worth anything, a week by default.
    /// With `in_order` it comes after what this program sent to the same agent before. An idempotency
    /// key makes sending twice harmless: the second has the id of the first. [`Call::one_way`] wants no answer; here the answer is
    /// kept if `answered`, for [`admin::method::MESSAGE_WAIT`](crate::admin::method::MESSAGE_WAIT).
    ///
    /// # Errors
    ///
    /// `invalid_argument` (address), `not_found` (no such node; no such agent where none is named), `permission_denied` (not a
    /// trusted peer), `resource_exhausted` (the inbox or the disk is full, the body is larger than
    /// [`MAX_SEND_BODY`](hailwire_wire::limits::MAX_SEND_BODY)), `internal` (the disk). Nothing is accepted then.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the message may have been accepted or not.
    pub async fn durable(
        mut self,
        answered: bool,
        in_order: bool,
    ) -> Result<crate::admin::SendReceipt, Status> {
        self.kind = match answered {
            true => FrameKind::CALL,
            false => FrameKind::SEND,
        };
        self.header.durable = match in_order {
            true => Durability::InOrder,
            false => Durability::AnyOrder,
        };
        if let Some(expiry) = self.deadline.take() {
            self.header.set_deadline(expiry);
        }
        let mut answer = self.send().await?;
        let receipt = answer.bytes(MAX_RECEIPT).await?;
        serde_json::from_slice(&receipt).map_err(|error| {
            Status::new(
                Code::Internal,
                format!("what the node says of the message cannot be read: {error}"),
            )
        })
    }

    /// Which agent calls, as it says of itself. Whoever is called can read it, and durable messages are counted by it. A call that a handler makes
    /// says by itself which agent's handler that is; other calls are nameless by default.
    pub fn from_agent(mut self, agent: &AgentName) -> Self {
        self.header.from.agent = Some(agent.clone());
        self
    }

    /// The `traceparent` of W3C trace context, passed on to the agent; empty by default.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.header.traceparent = traceparent.into();
        self
    }

    /// The `tracestate` of W3C trace context, passed on to the agent beside the [`traceparent`](Self::traceparent); empty by default.
    pub fn tracestate(mut self, tracestate: impl Into<String>) -> Self {
        self.header.tracestate = tracestate.into();
        self
    }

    /// The body; empty by default. One from [`Body::channel`] may still be written while the answer
    /// arrives.
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Makes the call and waits until its answer begins: its head, its first byte, or its end.
    ///
    /// # Errors
    ///
    /// The status with which the call ended, if it ended without an answer: from the agent, or
    /// `invalid_argument` (address, header), `not_found` (agent, node), `permission_denied` (trust,
    /// grant), `resource_exhausted` (every member is busy), `unavailable` (peer, agent or node cannot
    /// be reached, or died), `deadline_exceeded`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future, or later the [`Answer`], cancels the call: the handler's future is
    /// dropped on the far side.
    pub async fn send(self) -> Result<Answer, Status> {
        let Self {
            client,
            kind,
            mut header,
            deadline,
            body,
            further,
        } = self;
        if header.from.agent.is_none() {
            header.from.agent = agent::serving();
        }
        let now = Instant::now();
        let own = deadline.map(|left| now + left);
        // What is kept on disk outlasts whoever sends it.
        let at = match header.durable.is_durable() {
            true => own,
            false => agent::inherited(own),
        };
        if further.most_further() == 0 {
            return attempt(&client, kind, header, body, at).await;
        }
        let body = attempts::repeatable(&header, &body)?;
        Box::pin(attempts::call(&client, kind, &header, &body, further, at)).await
    }

    /// Sends it as a one-way message instead: resolves once the agent has taken it. This is
    /// [`Client::send`] with a method, fields or a priority.
    ///
    /// # Errors
    ///
    /// The status with which the agent or the way to it refused.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the message may have been taken or not.
    pub async fn one_way(mut self) -> Result<(), Status> {
        self.kind = FrameKind::SEND;
        let mut answer = self.send().await?;
        while answer.chunk().await?.is_some() {}
        Ok(())
    }
}

/// Makes a call once, and waits until its answer begins.
pub(super) async fn attempt(
    client: &Client,
    kind: FrameKind,
    mut header: Box<CallHeader>,
    body: Body,
    at: Option<Instant>,
) -> Result<Answer, Status> {
    if let Some(at) = at {
        header.set_deadline(at.saturating_duration_since(Instant::now()));
    }
    // In a box, because callers hand this future on, as into a timeout, and each hand-over would move all of it.
    let mut call = Box::pin(async {
        match &client.inner {
            ClientKind::Attached(attached) => {
                let answer = attached.session.open(kind, &header, body).await?;
                Ok(answer.begin(at).await?.holding(attached.clone()))
            }
            ClientKind::Embedded(node) => embedded_call::call(node, kind, header, body, at).await,
        }
    });
    session::in_time(at, call.as_mut()).await
}

/// A raw stream being prepared.
#[derive(Debug)]
#[must_use = "nothing happens until it is opened"]
pub struct StreamBuilder {
    call: Call,
}

impl StreamBuilder {
    pub(super) fn new(mut call: Call) -> Self {
        call.kind = FrameKind::STREAM;
        Self { call }
    }

    /// What is asked of the agent; empty by default.
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.call = self.call.method(method);
        self
    }

    /// Adds a field of the application's own.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.call = self.call.header(name, value);
        self
    }

    /// States the media type of what is sent.
    pub fn content_type(mut self, media_type: impl Into<String>) -> Self {
        self.call = self.call.content_type(media_type);
        self
    }

    /// Marks the stream as one that may be opened again: equal keys mean the same work.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.call = self.call.idempotency_key(key);
        self
    }

    /// Goes where the calls with this key go, as [`Call::affinity`].
    pub fn affinity(mut self, key: impl Into<String>) -> Self {
        self.call = self.call.affinity(key);
        self
    }

    /// Goes to this member of the group, as [`Call::member`].
    pub fn member(mut self, number: u64) -> Self {
        self.call = self.call.member(number);
        self
    }

    /// The `traceparent` of W3C trace context; empty by default.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.call = self.call.traceparent(traceparent);
        self
    }

    /// The `tracestate` of W3C trace context; empty by default.
    pub fn tracestate(mut self, tracestate: impl Into<String>) -> Self {
        self.call = self.call.tracestate(tracestate);
        self
    }

    /// Goes over this carrier and no other, as [`Call::carrier`].
    pub fn carrier(mut self, carrier: Carrier) -> Self {
        self.call = self.call.carrier(carrier);
        self
    }

    /// Which agent opens it, as [`Call::from_agent`].
    pub fn from_agent(mut self, agent: &AgentName) -> Self {
        self.call = self.call.from_agent(agent);
        self
    }

    /// How urgent; [`Priority::Medium`] by default.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.call = self.call.priority(priority);
        self
    }

    /// How long the stream may live, from [`StreamBuilder::open`] on. No bound by default.
    pub fn deadline(mut self, left: Duration) -> Self {
        self.call = self.call.deadline(left);
        self
    }

    /// Opens the stream and waits until the agent has accepted it, which its side does before its handler runs. Media type and
    /// fields of its [`Response`](crate::Response) are not sent: a raw stream has only bytes.
    ///
    /// # Errors
    ///
    /// The status with which the agent or the way to it refused, as for [`Call::send`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the stream.
    pub async fn open(self) -> Result<RawStream, Status> {
        let (send, body) = Body::channel(STREAM_QUEUE);
        let recv = self.call.body(body).send().await?;
        Ok(RawStream { send, recv })
    }
}

/// Bytes both ways. Dropping it gives the stream up; [`BodySender::finish`] on `send` says that
/// this direction is done.
#[derive(Debug)]
pub struct RawStream {
    /// Toward the agent.
    pub send: BodySender,
    /// From the agent.
    pub recv: Answer,
}
