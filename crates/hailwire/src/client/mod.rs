//! The client: how a program calls agents and offers its own.
//!
//! The same type stands for a node embedded in this process ([`crate::Node::client`]) and for one
//! that runs beside it ([`Client::attach`]); what can be done with it does not differ.
//!
//! | module | holds |
//! |---|---|
//! | `call` | a call or a raw stream being prepared, and how it is made |
//! | `attempts` | calls that are made again, or beside themselves |
//! | `byte_stream` | a raw stream as bytes |
//! | `tasks` | durable calls by their ids, and saying how far one is |
//! | `topics`, `state` | publishing and subscribing; values that many share |
//! | `serving` | an agent on offer, and the attached program's side of being called |

mod attempts;
mod byte_stream;
mod call;
mod serving;
mod state;
mod tasks;
mod topics;

use std::{
    io,
    sync::{Arc, Mutex},
};

use hailwire_wire::{
    Code, Status,
    header::{Hello, VERSION},
};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::net::UnixStream;

pub use byte_stream::StreamIo;
pub use call::{Call, RawStream, StreamBuilder};
pub use serving::ServeHandle;
pub use state::{StateEvent, StateValue, StateWatch};
pub use topics::{Publication, Publisher, ReplayStart, Subscription, TopicEvent, TopicMessage};

use self::serving::{AttachedSession, ServedAgents, serve_attached, serve_embedded};
use crate::{
    admin,
    agent::{self, Agent, Handler},
    body::Body,
    carrier::{CarrierConnection, mux},
    node::{Node, NodeInner},
    paths::DataDir,
    session::{self, Session},
};

/// Largest management answer.
const MAX_ADMIN_ANSWER: usize = 8 * 1024 * 1024;

/// A handle on a node. Cheap to clone; an attached program detaches when the last clone, and every
/// [`Answer`](crate::Answer) and [`ServeHandle`] that came of it, is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    inner: ClientKind,
}

#[derive(Clone, Debug)]
enum ClientKind {
    Embedded(Arc<NodeInner>),
    Attached(Arc<AttachedSession>),
}

impl Node {
    /// A client of this node, without a socket between. It works until the node is shut down.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::embedded(self.inner().clone())
    }
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

/// Connects to the node's socket, if what is at its other end is the node of the data folder's owner: somebody else who
/// got there first would read every ticket and every body.
async fn connect(data: &DataDir) -> io::Result<UnixStream> {
    let (path, owner) = data.to_connect()?;
    let stream = UnixStream::connect(path.as_path()).await?;
    let other = stream.peer_cred()?.uid();
    if other == owner {
        return Ok(stream);
    }
    let why = format!("a process of user {other} listens there, not one of user {owner}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
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
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AttachError::NotRunning {
                data_dir: data.root().display().to_string(),
            },
            _ => AttachError::Socket {
                path: data.socket().display().to_string(),
                source,
            },
        };
        let stream = connect(data).await.map_err(failed)?;
        let (receiving, sending) = hailwire_socket::split(stream).map_err(failed)?;
        let io = tokio::io::join(receiving, sending);
        let connection = CarrierConnection::Mux(mux::MuxConnection::client(io));
        let hello = Hello {
            versions: vec![VERSION],
            software: concat!("hailwire/", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Hello::default()
        };
        let agents = Arc::new(ServedAgents::default());
        let session = Session::start(connection, true, hello, agents.clone());
        session.greeted().await.map_err(AttachError::Refused)?;
        Ok(Self {
            inner: ClientKind::Attached(Arc::new(AttachedSession {
                session,
                agents,
                retry_budget: Mutex::default(),
            })),
        })
    }

    pub(crate) fn embedded(node: Arc<NodeInner>) -> Self {
        Self {
            inner: ClientKind::Embedded(node),
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
        Call::new(self.clone(), address.into())
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
        StreamBuilder::new(self.call(address))
    }

    /// Offers an agent for as long as the returned [`ServeHandle`] lives. Several offers of one name,
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
    pub async fn serve(&self, agent: Agent, handler: impl Handler) -> Result<ServeHandle, Status> {
        let handler = agent::shared(&agent, handler);
        match &self.inner {
            ClientKind::Embedded(node) => serve_embedded(node, agent, handler),
            ClientKind::Attached(attached) => serve_attached(attached, agent, handler).await,
        }
    }

    /// Asks the node itself, with a method and the types of [`crate::admin`]. Without a bound on its
    /// time; an answer has at most 8 MiB.
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::Status> {
    /// use hailwire::admin::{self, method};
    ///
    /// let status: admin::NodeStatus = client.admin(method::STATUS, &()).await?;
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
            ClientKind::Embedded(_) => std::future::pending().await,
            ClientKind::Attached(attached) => {
                session::connection_status(&attached.session.closed().await)
            }
        }
    }
}

#[cfg(test)]
mod tests;
