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
    session::{self, Answer, Dispatch, Opening, Session},
};

/// Largest management answer.
const MAX_ADMIN_ANSWER: usize = 8 * 1024 * 1024;

/// Chunks that may wait on a stream's sending half.
const STREAM_QUEUE: usize = 16;

/// A handle on a node. Cheap to clone.
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
    /// Attaches to the node that runs on a data folder.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
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

    /// Prepares a call to `agent` or `agent@node`. Nothing happens until [`CallBuilder::send`].
    pub fn call(&self, address: impl Into<String>) -> CallBuilder {
        CallBuilder {
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

    /// Sends a one-way message; resolves once the agent has taken it.
    ///
    /// # Errors
    ///
    /// The status with which the agent or the way to it refused.
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

    /// Prepares a raw stream to `agent` or `agent@node`: bytes both ways at once.
    pub fn stream(&self, address: impl Into<String>) -> StreamBuilder {
        let mut call = self.call(address);
        call.kind = FrameKind::STREAM;
        StreamBuilder { call }
    }

    /// Offers an agent for as long as the returned [`Serving`] lives. Several offers of one name,
    /// of one program or of many, form a group.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for a description past its bounds, `already_exists` when this attached
    /// program serves the name already, `resource_exhausted` when the node is full.
    pub async fn serve(&self, agent: Agent, handler: impl Handler) -> Result<Serving, Status> {
        let handler: SharedHandler = Arc::new(handler);
        match &self.inner {
            Kind::Embedded(node) => serve_embedded(node, agent, handler),
            Kind::Attached(attached) => serve_attached(attached, agent, handler).await,
        }
    }

    /// Asks the node itself; see [`crate::admin`].
    ///
    /// # Errors
    ///
    /// The status with which the node refused.
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

    /// Resolves when the node is gone, with the reason. An embedded node is never gone while a
    /// client of it lives.
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
pub struct CallBuilder {
    client: Client,
    kind: FrameKind,
    header: CallHeader,
    deadline: Option<Duration>,
    body: Body,
}

impl CallBuilder {
    /// What is asked of the agent; empty by default.
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.header.method = method.into();
        self
    }

    /// Adds a field of the application's own.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.header.headers.push((name.into(), value.into()));
        self
    }

    /// States the media type of the body.
    pub fn content_type(mut self, media_type: impl Into<String>) -> Self {
        self.header.content_type = media_type.into();
        self
    }

    /// How long the whole answer may take, from [`CallBuilder::send`] on. No bound by default.
    pub fn deadline(mut self, left: Duration) -> Self {
        self.deadline = Some(left);
        self
    }

    /// How urgent; [`Priority::Medium`] by default.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.header.priority = priority;
        self
    }

    /// Marks the call as one that may be tried again: equal keys mean the same work.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.header.idempotency_key = key.into();
        self
    }

    /// W3C trace context to pass on.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.header.traceparent = traceparent.into();
        self
    }

    /// The body; empty by default.
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Makes the call and waits until its answer begins.
    ///
    /// # Errors
    ///
    /// The status with which the call ended, if it ended without an answer.
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

impl CallBuilder {
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
    call: CallBuilder,
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

    /// How urgent; [`Priority::Medium`] by default.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.call = self.call.priority(priority);
        self
    }

    /// How long the stream may live. No bound by default.
    pub fn deadline(mut self, left: Duration) -> Self {
        self.call = self.call.deadline(left);
        self
    }

    /// Opens the stream and waits until the agent accepts it.
    ///
    /// # Errors
    ///
    /// The status with which the agent or the way to it refused.
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

/// An agent on offer. Dropping it takes the offer back.
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
    /// Resolves when the offer has ended without being taken back: the node is gone.
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
        let Opening {
            kind,
            payload,
            send,
            reader,
        } = opening;
        let header = match header::decode_call(&payload) {
            Ok(header) => header,
            Err(error) => {
                let status = Status::new(Code::InvalidArgument, error.to_string());
                return session::refuse(send, reader, &status).await;
            }
        };
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
