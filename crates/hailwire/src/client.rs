//! The client: how a program calls agents and offers its own.
//!
//! The same type stands for a node embedded in this process ([`crate::Node::client`]) and for one
//! that runs beside it ([`Client::attach`]); what can be done with it does not differ.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use hailwire_wire::{
    AgentName, CallHeader, Code, NodeId, Priority, Status,
    frame::{Event, FrameKind},
    header::{self, Hello, VERSION},
};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::{net::UnixStream, sync::oneshot, time::Instant};

use crate::{
    admin,
    agent::{Agent, Caller, Handler, Request, SharedHandler},
    body::{Body, BodySender},
    carrier::{Connection, mux},
    node::{self, Destination, Inner, Origin, Route},
    paths::DataDir,
    session::{self, Answer, Dispatch, IncomingCall, Opening, Session},
};

/// Largest management answer.
const MAX_ADMIN_ANSWER: usize = 8 * 1024 * 1024;

/// Chunks that may wait on a stream's sending half.
const STREAM_QUEUE: usize = 16;

/// A handle on a node. Cheap to clone; an attached program detaches when the last clone, and every
/// [`Answer`] and [`Serving`] that came of it, is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Embedded(Arc<Inner>),
    Attached(Arc<Attached>),
}

/// Why a program cannot attach to a node.
#[derive(Debug, Error)]
pub enum AttachError {
    /// No node runs on this data folder.
    #[error("no node is running with the data folder {data_dir}")]
    NotRunning {
        /// The folder.
        data_dir: String,
    },
    /// The socket is there and cannot be used.
    #[error("the local socket {path} cannot be used")]
    Socket {
        /// Where it is.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The node and this program share no version of the protocol, or it turned us away.
    #[error("the node turned this program away: {0}")]
    Refused(Status),
}

impl Client {
    /// Attaches to the node that runs on a data folder, and waits for its greeting.
    ///
    /// One attachment is one connection on the node's Unix socket, whatever is done on it. It ends with
    /// the node and is not made again by itself; [`Client::closed`] tells.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use hailwire::{Client, DataDir};
    ///
    /// let data = DataDir::from_env().ok_or("no data folder is known")?;
    /// let client = Client::attach(&data).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing stays attached.
    pub async fn attach(data: &DataDir) -> Result<Self, AttachError> {
        let path = data.socket();
        let stream = UnixStream::connect(&path)
            .await
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    AttachError::NotRunning {
                        data_dir: data.root().display().to_string(),
                    }
                }
                _ => AttachError::Socket {
                    path: path.display().to_string(),
                    source,
                },
            })?;
        let connection = Connection::Mux(mux::Connection::client(stream));
        let hello = Hello {
            versions: vec![VERSION],
            software: concat!("hailwire/", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Hello::default()
        };
        let agents = Arc::new(Agents::default());
        let session = Session::start(connection, true, hello, agents.clone());
        session.greeted().await.map_err(AttachError::Refused)?;
        Ok(Self {
            inner: Kind::Attached(Arc::new(Attached { session, agents })),
        })
    }

    pub(crate) fn embedded(node: Arc<Inner>) -> Self {
        Self {
            inner: Kind::Embedded(node),
        }
    }

    /// Prepares a call to `agent` or `agent@node`. Nothing happens until [`Call::send`], which
    /// also tells whether the address is one.
    ///
    /// `agent` alone is found here first, then at trusted peers. `node` is a peer's key, the alias that
    /// this node keeps for it, or a name that it holds at a hub.
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::Status> {
    /// use std::time::Duration;
    ///
    /// let mut answer = client
    ///     .call("word-count@laptop")
    ///     .body("the quick brown fox")
    ///     .deadline(Duration::from_secs(5))
    ///     .send()
    ///     .await?;
    /// while let Some(chunk) = answer.chunk().await? {
    ///     println!("{chunk:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn call(&self, address: impl Into<String>) -> Call {
        Call {
            client: self.clone(),
            kind: FrameKind::CALL,
            header: CallHeader {
                to: address.into(),
                ..CallHeader::default()
            },
            deadline: None,
            body: Body::empty(),
        }
    }

    /// Sends a one-way message; resolves once the agent has taken it, so the agent has to be up. A
    /// message has at most [`MAX_SEND_BODY`](hailwire_wire::limits::MAX_SEND_BODY) bytes: a longer
    /// one is a call or a stream.
    ///
    /// # Errors
    ///
    /// The status with which the agent or the way to it refused; `resource_exhausted` for a message
    /// that is too long.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the message may have been taken or not.
    pub async fn send(
        &self,
        address: impl Into<String>,
        body: impl Into<Body>,
    ) -> Result<(), Status> {
        self.call(address).body(body).one_way().await
    }

    /// Prepares a raw stream to `agent` or `agent@node`: bytes both ways at once. Nothing happens until
    /// [`StreamBuilder::open`].
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::Status> {
    /// let mut stream = client.stream("echo@laptop").open().await?;
    /// stream.send.send("one").await?;
    /// let answer = stream.recv.chunk().await?;
    /// stream.send.finish().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream(&self, address: impl Into<String>) -> StreamBuilder {
        let mut call = self.call(address);
        call.kind = FrameKind::STREAM;
        StreamBuilder { call }
    }

    /// Offers an agent for as long as the returned [`Serving`] lives. Several offers of one name,
    /// of one program or of many, form a group; an attached program offers a second member of a name
    /// on a second attachment. The calls run in tasks of this process's runtime.
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use hailwire::{Agent, Request, Response};
    ///
    /// let shout = |mut request: Request| async move {
    ///     let text = request.body_mut().bytes(64 * 1024).await?;
    ///     Ok(Response::new(text.to_ascii_uppercase()))
    /// };
    /// let agent = Agent::new("shout")?.describe("returns a text in capitals").max_concurrency(8);
    /// let mut serving = client.serve(agent, shout).await?;
    /// println!("the node is gone: {}", serving.closed().await);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `invalid_argument` for a description past its bounds, `already_exists` when this attached
    /// program serves the name already, `resource_exhausted` when the node has 1,024 agents,
    /// `unavailable` when it is gone.
    ///
    /// # Cancel safety
    ///
    /// If dropped before it resolves, serve the name again on a new [`Client`].
    pub async fn serve(&self, agent: Agent, handler: impl Handler) -> Result<Serving, Status> {
        let handler: SharedHandler = Arc::new(handler);
        match &self.inner {
            Kind::Embedded(node) => serve_embedded(node, agent, handler),
            Kind::Attached(attached) => serve_attached(attached, agent, handler).await,
        }
    }

    /// Asks the node itself, with a method and the types of [`crate::admin`]. Without a bound on its
    /// time; an answer has at most 8 MiB.
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::Status> {
    /// use hailwire::admin::{self, method};
    ///
    /// let status: admin::Status = client.admin(method::STATUS, &()).await?;
    /// println!("{} has {} tunnels", status.id, status.tunnels.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The status with which the node refused; `internal` when its answer is not a `Resp`.
    ///
    /// # Cancel safety
    ///
    /// If dropped, what was asked for may have been done or not.
    pub async fn admin<Req: Serialize + Sync, Resp: DeserializeOwned>(
        &self,
        method: &str,
        request: &Req,
    ) -> Result<Resp, Status> {
        let internal = |error: serde_json::Error| Status::new(Code::Internal, error.to_string());
        let body = serde_json::to_vec(request).map_err(internal)?;
        let mut answer = self
            .call(admin::AGENT)
            .method(method)
            .body(body)
            .send()
            .await?;
        let bytes = answer.bytes(MAX_ADMIN_ANSWER).await?;
        serde_json::from_slice(&bytes).map_err(internal)
    }

    /// Resolves when the node is gone, with the reason. For a client of an embedded node it never
    /// resolves. Safe to drop.
    pub async fn closed(&self) -> Status {
        match &self.inner {
            Kind::Embedded(_) => std::future::pending().await,
            Kind::Attached(attached) => {
                session::connection_status(&attached.session.closed().await)
            }
        }
    }
}

/// A call being prepared.
#[derive(Debug)]
#[must_use = "nothing happens until it is sent"]
pub struct Call {
    client: Client,
    kind: FrameKind,
    header: CallHeader,
    deadline: Option<Duration>,
    body: Body,
}

impl Call {
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
    /// enforce it, in milliseconds. No bound by default.
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

    /// Marks the call as one that may be tried again: equal keys mean the same work. The agent reads
    /// it; the node repeats nothing by itself. Empty by default.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.header.idempotency_key = key.into();
        self
    }

    /// The `traceparent` of W3C trace context, passed on to the agent; empty by default.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.header.traceparent = traceparent.into();
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
        } = self;
        let at = deadline.map(|left| {
            header.set_deadline(left);
            Instant::now() + left
        });
        let call = std::pin::pin!(async {
            match &client.inner {
                Kind::Attached(attached) => {
                    let answer = attached.session.open(kind, &header, body).await?;
                    Ok(answer.begin(at).await?.keeping(client.clone()))
                }
                Kind::Embedded(node) => call_embedded(node, kind, header, body, at).await,
            }
        });
        node::within(at, call).await
    }
}

impl Call {
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

/// A raw stream being prepared.
#[derive(Debug)]
#[must_use = "nothing happens until it is opened"]
pub struct StreamBuilder {
    call: Call,
}

impl StreamBuilder {
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

    /// Opens the stream and waits until the agent accepts it, which it does by returning its
    /// [`Response`](crate::Response). Nothing can be sent before, so an agent that reads the whole body
    /// first never accepts; a deadline ends the wait.
    ///
    /// # Errors
    ///
    /// The status with which the agent or the way to it refused, as for [`Call::send`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the stream.
    pub async fn open(self) -> Result<Stream, Status> {
        let (send, body) = Body::channel(STREAM_QUEUE);
        let recv = self.call.body(body).send().await?;
        Ok(Stream { send, recv })
    }
}

/// Bytes both ways. Dropping it gives the stream up; [`BodySender::finish`] on `send` says that
/// this direction is done.
#[derive(Debug)]
pub struct Stream {
    /// Toward the agent.
    pub send: BodySender,
    /// From the agent.
    pub recv: Answer,
}

/// An agent on offer. Dropping it takes the offer back; calls that run may finish.
#[must_use = "dropping it takes the offer back"]
pub struct Serving {
    name: AgentName,
    kind: ServingKind,
}

enum ServingKind {
    Embedded {
        node: Weak<Inner>,
        number: u64,
    },
    Attached {
        attached: Arc<Attached>,
        closed: oneshot::Receiver<Status>,
        _stream: tokio::task::JoinHandle<()>,
    },
}

impl Serving {
    /// Resolves when the offer has ended without being taken back: the node is gone. To be offered
    /// again the agent has to be served again, on a new [`Client`]. For an embedded node it never
    /// resolves. Safe to drop.
    pub async fn closed(&mut self) -> Status {
        match &mut self.kind {
            ServingKind::Embedded { .. } => std::future::pending().await,
            ServingKind::Attached { closed, .. } => closed
                .await
                .unwrap_or_else(|_| Status::new(Code::Unavailable, "the node is gone")),
        }
    }

    /// The agent's name.
    #[must_use]
    pub fn name(&self) -> &AgentName {
        &self.name
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        match &self.kind {
            ServingKind::Embedded { node, number } => {
                if let Some(node) = node.upgrade() {
                    node.registry.remove(&self.name, *number);
                }
            }
            ServingKind::Attached {
                attached, _stream, ..
            } => {
                _stream.abort();
                attached.agents.lock().remove(&self.name);
            }
        }
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

async fn call_embedded(
    node: &Arc<Inner>,
    kind: FrameKind,
    header: CallHeader,
    body: Body,
    deadline: Option<Instant>,
) -> Result<Answer, Status> {
    if header.to == admin::AGENT {
        let handler = node.own_management();
        return Box::pin(call_handler(handler, kind, header, body, deadline, None)).await;
    }
    node::count_call(node);
    let Route { to, picked } = node.route(&header, Origin::Local).await?;
    match to {
        Destination::Handler(handler) => {
            let give_back = picked.map(|picked| (node.clone(), picked));
            Box::pin(call_handler(
                handler, kind, header, body, deadline, give_back,
            ))
            .await
        }
        Destination::Session(session) => {
            let header = node::onward_header(header, Origin::Local, picked.as_ref(), deadline);
            let answer = session.open(kind, &header, body).await;
            let answer = match answer {
                Ok(answer) => answer.begin(deadline).await,
                Err(status) => Err(status),
            };
            let code = answer
                .as_ref()
                .map_or_else(|status| status.code, |_| Code::Ok);
            match (answer, picked) {
                // The member is busy until the answer has ended.
                (Ok(answer), picked) => Ok(answer.holding(picked)),
                (Err(status), Some(picked)) => {
                    node.registry.finish(picked, code);
                    Err(status)
                }
                (Err(status), None) => Err(status),
            }
        }
    }
}

/// Runs a handler of this process in a task that ends with the answer.
async fn call_handler(
    handler: SharedHandler,
    kind: FrameKind,
    header: CallHeader,
    body: Body,
    deadline: Option<Instant>,
    give_back: Option<(Arc<Inner>, node::Picked)>,
) -> Result<Answer, Status> {
    let caller = Caller { node: None };
    let request = Request {
        kind: node::request_kind(kind),
        header,
        caller,
        body,
    };
    let (tell, told) = oneshot::channel();
    let task = tokio::spawn(async move {
        // A caller that is gone needs no answer.
        let _ = tell.send(handler.handle(request).await);
    });
    let guard = session::AbortOnDrop(task.abort_handle());
    let response = told.await.unwrap_or_else(|_| Err(session::panicked()));
    if let Some((node, picked)) = give_back {
        let code = response
            .as_ref()
            .map_or_else(|status| status.code, |_| Code::Ok);
        node.registry.finish(picked, code);
    }
    let response = response?;
    Ok(Answer::local(response.head, response.body, guard, deadline))
}

fn serve_embedded(
    node: &Arc<Inner>,
    agent: Agent,
    handler: SharedHandler,
) -> Result<Serving, Status> {
    let name = agent.register.name.clone();
    let target = node::Target::Handler {
        handler,
        register: Arc::new(agent.register),
    };
    let number = node.registry.add(target)?;
    Ok(Serving {
        name,
        kind: ServingKind::Embedded {
            node: Arc::downgrade(node),
            number,
        },
    })
}

async fn serve_attached(
    attached: &Arc<Attached>,
    agent: Agent,
    handler: SharedHandler,
) -> Result<Serving, Status> {
    let name = agent.register.name.clone();
    if attached.agents.lock().contains_key(&name) {
        return Err(Status::new(
            Code::AlreadyExists,
            format!("this program serves `{name}` already"),
        )
        .with_hint("attach a second client to serve a second member of the group"));
    }
    attached.agents.lock().insert(name.clone(), handler);
    let registered = register(attached, &agent).await;
    let (send, reader) = match registered {
        Ok(stream) => stream,
        Err(status) => {
            attached.agents.lock().remove(&name);
            return Err(status);
        }
    };
    let (tell, closed) = oneshot::channel();
    // The registration lasts while its stream is open; aborting this task ends it.
    let stream = tokio::spawn(async move {
        let (_send, mut reader) = (send, reader);
        let why = loop {
            match reader.next().await {
                Ok(Some(Event::Frame(FrameKind::END, payload))) => {
                    break header::decode(&payload).unwrap_or_else(|_| Status::ok());
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    break Status::new(Code::Unavailable, "the node ended the registration");
                }
                Err(status) => break status,
            }
        };
        let _ = tell.send(why);
    });
    let kind = ServingKind::Attached {
        attached: attached.clone(),
        closed,
        _stream: stream,
    };
    Ok(Serving { name, kind })
}

async fn register(
    attached: &Attached,
    agent: &Agent,
) -> Result<(crate::carrier::SendStream, session::FrameReader), Status> {
    let payload = header::encode(&agent.register);
    let (send, mut reader) = attached
        .session
        .open_with_payload(FrameKind::REGISTER, &payload)
        .await?;
    match reader.next_frame().await? {
        Some((FrameKind::HEAD, _)) => Ok((send, reader)),
        Some((FrameKind::END, payload)) => Err(header::decode(&payload)
            .unwrap_or_else(|_| Status::new(Code::Internal, "the node refused without a reason"))),
        _ => Err(Status::new(Code::Unavailable, "the node is going away")),
    }
}

/// A session with the node beside this process.
#[derive(Debug)]
struct Attached {
    session: Session,
    agents: Arc<Agents>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.session.close(Code::Ok, "the program has detached");
    }
}

/// The agents that an attached program serves.
#[derive(Debug, Default)]
struct Agents(Mutex<HashMap<AgentName, SharedHandler>>);

impl Agents {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<AgentName, SharedHandler>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dispatch for Agents {
    async fn dispatch(self: Arc<Self>, _session: Session, opening: Opening) {
        let Some(call) = opening.into_call().await else {
            return;
        };
        let IncomingCall {
            kind,
            header,
            send,
            reader,
        } = call;
        let handler = self.lock().get(header.to.as_str()).cloned();
        let Some(handler) = handler else {
            let status = Status::new(
                Code::NotFound,
                format!("`{}` is no longer served here", header.to),
            );
            return session::refuse(send, reader, &status).await;
        };
        let (header, caller) = take_caller(header);
        session::serve(
            node::request_kind(kind),
            header,
            caller,
            send,
            reader,
            &handler,
        )
        .await;
    }
}

/// The node tells an attached program where a call came from as `agent@key`.
fn take_caller(mut header: CallHeader) -> (CallHeader, Caller) {
    let Some((agent, node)) = header.from.split_once('@') else {
        return (header, Caller { node: None });
    };
    let node = node.parse::<NodeId>().ok();
    header.from = agent.to_owned();
    (header, Caller { node })
}
