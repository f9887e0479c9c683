//! Agents: what is called, and how a program offers one.
//!
//! An agent is a name with a [`Handler`]: an asynchronous function from a [`Request`] to a
//! [`Response`], or any [`tower::Service`] ([`from_service`]). The handler's future is the call:
//! when the caller cancels, its deadline passes or its machine vanishes, the future is dropped.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use hailwire_wire::{
    AgentName, CallHeader, Code, NodeId, Status,
    address::AddressError,
    header::{AgentOffer, AnswerHead, OfferedGroup, RegisterHeader},
    limits,
};

use hailwire_pool::PriorityPolicy;
use tokio::time::Instant;

use crate::{agent_schema::AgentSchema, body::Body};

tokio::task_local! {
    /// Until when the answer of the call that a handler serves is wanted.
    static WANTED_UNTIL: Option<Instant>;
    /// The agent whose handler runs.
    static SERVING: Arc<AgentName>;
}

/// The agent in whose handler this is, unless the handler has left it to another task.
pub(crate) fn serving() -> Option<AgentName> {
    SERVING.try_with(|name| (**name).clone()).ok()
}

/// A handler whose calls say which agent makes them.
struct NamedHandler<H> {
    name: Arc<AgentName>,
    handler: H,
}

impl<H: Handler> ErasedHandler for NamedHandler<H> {
    fn handle(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Response, Status>> + Send>> {
        let handled = Handler::handle(&self.handler, request);
        Box::pin(SERVING.scope(self.name.clone(), handled))
    }
}

/// A handler as it stands in the tables of a node or a program.
pub(crate) fn shared(agent: &Agent, handler: impl Handler) -> SharedHandler {
    Arc::new(NamedHandler {
        name: Arc::new(agent.name().clone()),
        handler,
    })
}

/// Runs a handler, so that the calls which it makes inherit what is left of its time.
pub(crate) fn within<F: Future>(
    deadline: Option<Instant>,
    handler: F,
) -> impl Future<Output = F::Output> {
    WANTED_UNTIL.scope(deadline, handler)
}

/// The earlier of a call's own deadline and that of the call whose handler makes it.
pub(crate) fn inherited(own: Option<Instant>) -> Option<Instant> {
    let served = WANTED_UNTIL.try_with(|until| *until).ok().flatten();
    own.into_iter().chain(served).min()
}

/// A description of an agent to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub(crate) register: RegisterHeader,
}

impl Agent {
    /// An agent of this name, without description, tags or a bound on its concurrency.
    ///
    /// # Errors
    ///
    /// The name breaks the grammar of [`AgentName`]: 1 to 64 of `a-z 0-9 . _ -`. That a name is
    /// taken by the node itself (`node`) is told when it is served.
    pub fn new(name: &str) -> Result<Self, AddressError> {
        Ok(Self {
            register: RegisterHeader {
                name: name.parse()?,
                description: String::new(),
                tags: Vec::new(),
                version: String::new(),
                max_concurrency: 0,
                socket: String::new(),
                schema: String::new(),
                priority: 0,
                overflow: 0,
                pinned_ms: 0,
                slow_start_ms: 0,
                max_waiting: None,
            },
        })
    }

    /// One line for people, at most [`limits::MAX_DESCRIPTION`] bytes; empty by default. A longer one
    /// is refused when the agent is served.
    #[must_use]
    pub fn describe(mut self, text: impl Into<String>) -> Self {
        self.register.description = text.into();
        self
    }

    /// Adds a word to find it by: at most [`limits::MAX_TAGS`] of at most [`limits::MAX_NAME`] bytes;
    /// none by default. More are refused when the agent is served.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.register.tags.push(tag.into());
        self
    }

    /// The agent's own version, at most [`limits::MAX_NAME`] bytes; empty by default. Nothing is
    /// decided by it.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.register.version = version.into();
        self
    }

    /// Calls that it takes at once; further ones go to another member of the name, or wait ([`Agent::max_waiting`]). 0, the default,
    /// means no bound. The node keeps count, so it holds for this member whoever calls.
    #[must_use]
    pub fn max_concurrency(mut self, calls: u32) -> Self {
        self.register.max_concurrency = calls;
        self
    }

    /// Calls that may wait at the node while all members of the name have as many as they take; further ones are refused with
    /// `resource_exhausted`. They are served by their priority, and leave when their deadline is over or their caller gives up. 1,024 by default, at
    /// most 4,096; 0 for none. Of several members the highest counts.
    #[must_use]
    pub fn max_waiting(mut self, calls: u32) -> Self {
        self.register.max_waiting = Some(calls);
        self
    }

    /// It takes calls while no member of its name with a lower number is in service and has room. 0, the default, is the lowest. A member is this,
    /// overflow or pinned, in the words of NATS' priority groups.
    #[must_use]
    pub fn priority(mut self, number: u8) -> Self {
        self.register.priority = number;
        self
    }

    /// It takes calls only while each of the other members of its name has so many under way at least, or none of them is in service. 0, the default, means
    /// that it takes them always.
    #[must_use]
    pub fn overflow(mut self, calls: u32) -> Self {
        self.register.overflow = calls;
        self
    }

    /// Of the members of its name that are pinned, one takes all calls of a node, until it is gone or out of service, or had none for `idle`, up to an hour and rounded
    /// up to a millisecond; then another does. Not so by default.
    #[must_use]
    pub fn pinned(mut self, idle: Duration) -> Self {
        self.register.pinned_ms = whole_millis(idle).max(1);
        self
    }

    /// For so long it gets fewer calls than the other members, a tenth at first and then ever more: after it has come, was down or was ejected. Zero,
    /// the default, for none; an hour at most. For a program that is slow while it is cold. Alone it gets all calls.
    #[must_use]
    pub fn slow_start(mut self, window: Duration) -> Self {
        self.register.slow_start_ms = whole_millis(window);
        self
    }

    /// An absolute path of at most [`limits::MAX_SOCKET_PATH`] bytes, none by default: the handler does nothing with a raw stream
    /// but connect it to the Unix socket there, and a node beside this process may do so by itself, which saves a process
    /// on the way. Its agent then sees neither header nor caller.
    ///
    /// The handler is needed all the same: calls and messages come to it, and raw streams where the node cannot connect, sees
    /// other files than this process, runs as another user, is embedded, or is older. Streams that the node has connected end
    /// with this process. A path that is relative or too long is refused when the agent is served.
    #[must_use]
    pub fn streams_to(mut self, socket: impl Into<String>) -> Self {
        self.register.socket = socket.into();
        self
    }

    /// States its methods, for `hail describe`; none by default. It takes at most [`limits::MAX_SCHEMA`] bytes of JSON, and those of all agents of a
    /// node [`limits::MAX_SCHEMAS`]; more is refused when the agent is served. Nothing that is called is checked against it.
    #[must_use]
    pub fn schema(mut self, schema: &AgentSchema) -> Self {
        self.register.schema = schema.to_text();
        self
    }

    /// The agent's name.
    #[must_use]
    pub fn name(&self) -> &AgentName {
        &self.register.name
    }
}

/// Checks what a registration states against the bounds of the protocol.
pub(crate) fn check_register(register: &RegisterHeader) -> Result<(), Status> {
    let refuse = |what: &str| Err(Status::new(Code::InvalidArgument, what));
    if register.name.as_str() == crate::admin::AGENT {
        return refuse("the agent name `node` belongs to the node itself");
    }
    if register.description.len() > limits::MAX_DESCRIPTION {
        return refuse("the description is longer than 256 bytes");
    }
    if register.tags.len() > limits::MAX_TAGS
        || register.tags.iter().any(|tag| tag.len() > limits::MAX_NAME)
    {
        return refuse("an agent has at most 16 tags of at most 64 bytes");
    }
    if register.version.len() > limits::MAX_NAME {
        return refuse("the version is longer than 64 bytes");
    }
    let socket = &register.socket;
    let is_path = socket.starts_with('/') && !socket.contains('\0');
    if !socket.is_empty() && (!is_path || socket.len() > limits::MAX_SOCKET_PATH) {
        return refuse("the socket for raw streams is an absolute path of at most 107 bytes");
    }
    let policies = [
        register.priority > 0,
        register.overflow > 0,
        register.pinned_ms > 0,
    ];
    if policies.iter().filter(|said| **said).count() > 1 {
        return refuse("a member has a priority, or is overflow, or is pinned: one of them");
    }
    if register.max_waiting > Some(limits::MAX_WAITING_CALLS) {
        let most = limits::MAX_WAITING_CALLS;
        return Err(Status::new(
            Code::InvalidArgument,
            format!("an agent lets at most {most} calls wait"),
        ));
    }
    if register.pinned_ms.max(register.slow_start_ms) > limits::MAX_GROUP_MS {
        return refuse(
            "a slow start, and the time that a member is pinned without a call, is an hour at most",
        );
    }
    if !register.schema.is_empty()
        && let Err(error) = AgentSchema::parse(&register.schema)
    {
        return refuse(&error.to_string());
    }
    Ok(())
}

/// Whether only programs of the same machine may call an agent of this name ([`crate::admin::PRIVATE_PREFIX`]).
pub(crate) fn is_private(name: &AgentName) -> bool {
    name.as_str().starts_with(crate::admin::PRIVATE_PREFIX)
}

/// How others see an agent.
pub(crate) fn offer(register: &RegisterHeader) -> AgentOffer {
    AgentOffer {
        name: register.name.clone(),
        description: register.description.clone(),
        tags: register.tags.clone(),
        version: register.version.clone(),
        group: OfferedGroup::default(),
    }
}

/// When a member takes calls beside the others.
pub(crate) fn policy(register: &RegisterHeader) -> PriorityPolicy {
    match (register.overflow, register.pinned_ms) {
        (0, 0) => PriorityPolicy::Prioritised(register.priority),
        (0, idle) => PriorityPolicy::Pinned {
            idle: Duration::from_millis(idle),
        },
        (above, _) => PriorityPolicy::Overflow { above },
    }
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Who calls, as the node vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A program on this machine.
    Local,
    /// Another node, with the key that its tunnel has proved.
    Peer(NodeId),
}

impl Caller {
    /// The key of the node that the call came from; `None` for this machine.
    #[must_use]
    pub const fn node(self) -> Option<NodeId> {
        match self {
            Self::Local => None,
            Self::Peer(id) => Some(id),
        }
    }
}

/// What kind of work a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A call: the response's body is its answer.
    Call,
    /// A one-way send: only the status goes back.
    Send,
    /// A raw stream: both bodies flow at once.
    Stream,
}

/// One call as its handler sees it.
#[derive(Debug)]
pub struct Request {
    pub(crate) kind: RequestKind,
    /// Boxed, as everywhere on a call's way: it is large, and moved from hand to hand.
    pub(crate) header: Box<CallHeader>,
    pub(crate) caller: Caller,
    pub(crate) body: Body,
}

impl Request {
    /// What kind of work this is.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        self.kind
    }

    /// Method, fields, priority, and the time that was left when the call arrived. The caller wrote
    /// all of it, `from` included; who it is says [`Request::caller`].
    #[must_use]
    pub fn header(&self) -> &CallHeader {
        &self.header
    }

    /// Who calls.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The body, to be read chunk by chunk or, with a bound, whole. Whatever is not read when the
    /// handler has ended is given up.
    pub fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    /// Only the body, for a handler that needs nothing else.
    #[must_use]
    pub fn into_body(self) -> Body {
        self.body
    }

    /// Header, caller and body.
    #[must_use]
    pub fn into_parts(self) -> (CallHeader, Caller, Body) {
        (*self.header, self.caller, self.body)
    }
}

/// What a handler answers.
#[derive(Debug, Default)]
pub struct Response {
    pub(crate) head: AnswerHead,
    pub(crate) body: Body,
}

impl Response {
    /// An answer with this body, without media type or fields. A body that is known whole leaves
    /// in as few packets as it can; one from [`Body::channel`] is streamed as it is written, and ends
    /// the call with the error that it was aborted with. A one-way send has no answer: its body is
    /// dropped.
    #[must_use]
    pub fn new(body: impl Into<Body>) -> Self {
        Self {
            head: AnswerHead::default(),
            body: body.into(),
        }
    }

    /// States the media type of the body; empty, meaning bytes, by default.
    #[must_use]
    pub fn content_type(mut self, media_type: impl Into<String>) -> Self {
        self.head.content_type = media_type.into();
        self
    }

    /// Adds a field to the head of the answer. At most [`limits::MAX_HEADER_FIELDS`], and 64 KiB for
    /// the whole head; the call ends with `internal` beyond that.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.head.headers.push((name.into(), value.into()));
        self
    }
}

/// Answers calls. Implemented by every `Fn(Request) -> Future<Output = Result<Response, Status>>`.
///
/// Calls run at the same time; [`Agent::max_concurrency`] bounds how many. A handler that panics ends
/// its own call and no other.
pub trait Handler: Send + Sync + 'static {
    /// Answers one call.
    ///
    /// # Errors
    ///
    /// The status is the outcome that the caller sees.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped at any point where it waits: when the caller cancels, when the deadline
    /// passes, and when caller or node are gone. A task that it has spawned goes on; such a task
    /// learns from [`BodySender::closed`](crate::BodySender::closed) that nobody reads any more.
    fn handle(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<Response, Status>> + Send + 'static;
}

impl<F, Fut> Handler for F
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, Status>> + Send + 'static,
{
    fn handle(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<Response, Status>> + Send + 'static {
        self(request)
    }
}

/// Makes a handler of a [`tower::Service`], which is cloned for each call and driven until ready.
///
/// ```
/// use hailwire::{Request, Response, Status, agent};
///
/// let echo = tower::service_fn(|request: Request| async move {
///     Ok::<_, Status>(Response::new(request.into_body()))
/// });
/// let handler = agent::from_service(echo);
/// # let _: &dyn std::any::Any = &handler;
/// ```
pub fn from_service<S>(service: S) -> impl Handler
where
    S: tower::Service<Request, Response = Response> + Clone + Send + Sync + 'static,
    S::Error: Into<Status> + Send,
    S::Future: Send,
{
    move |request: Request| {
        let service = service.clone();
        async move {
            tower::ServiceExt::oneshot(service, request)
                .await
                .map_err(Into::into)
        }
    }
}

/// The boxed form in which handlers of different types stand in one table.
pub(crate) type SharedHandler = Arc<dyn ErasedHandler>;

pub(crate) trait ErasedHandler: Send + Sync {
    fn handle(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Response, Status>> + Send>>;
}

impl<H: Handler> ErasedHandler for H {
    fn handle(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Response, Status>> + Send>> {
        Box::pin(Handler::handle(self, request))
    }
}

impl fmt::Debug for dyn ErasedHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}
