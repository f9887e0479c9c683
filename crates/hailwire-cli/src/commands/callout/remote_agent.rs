//! Inspection agents on other nodes: a raw stream through the node is used as a connection.

use futures_util::future::BoxFuture;
use hailwire::{Body, Client, Code, DataDir, RawStream, Request, RequestKind, Response, Status};
use hailwire_callout::{
    Agent,
    agent::{self, ServeOptions},
    host::{
        ConnectError, ConnectOptions, Connection,
        dialect::{self, Dialect},
    },
    pool::Connector,
};
use std::{io, path::PathBuf, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::UnixStream,
    sync::Mutex,
};

use crate::commands::body::{QUEUED_CHUNKS, pump};

/// Bytes on their way between a stream and an agent of this process, each way.
const PIPE_BYTES: usize = 64 << 10;

/// A client of this machine's node, which attaches again after the node was away.
pub(super) struct LocalNodeClient {
    data: DataDir,
    client: Mutex<Option<Client>>,
}

impl LocalNodeClient {
    /// A client of the node on a data folder; it attaches when it is first used.
    pub(super) fn at(data: DataDir) -> Self {
        Self {
            data,
            client: Mutex::new(None),
        }
    }

    /// Opens a raw stream to an agent. A client whose node is gone is not used again.
    async fn stream(&self, address: &str) -> Result<RawStream, ConnectError> {
        let client = {
            let mut kept = self.client.lock().await;
            match &*kept {
                Some(client) => client.clone(),
                None => {
                    let attached = Client::attach(&self.data).await;
                    let client = attached.map_err(|error| {
                        ConnectError::Io(io::Error::new(io::ErrorKind::NotConnected, error))
                    })?;
                    kept.insert(client).clone()
                }
            }
        };
        let opened = client.stream(address).open().await;
        if let Err(status) = &opened
            && status.code == Code::Unavailable
        {
            *self.client.lock().await = None;
        }
        opened.map_err(|status| match status.code {
            Code::PermissionDenied => ConnectError::Refused(status.message),
            _ => ConnectError::Io(io::Error::new(io::ErrorKind::NotConnected, status.message)),
        })
    }
}

/// An agent that is attached to a node of the overlay.
pub(super) struct RemoteAgent {
    node: Arc<LocalNodeClient>,
    address: String,
    dialect: Option<Dialect>,
}

impl RemoteAgent {
    pub(super) fn new(
        node: Arc<LocalNodeClient>,
        address: String,
        dialect: Option<Dialect>,
    ) -> Self {
        Self {
            node,
            address,
            dialect,
        }
    }
}

impl Connector for RemoteAgent {
    fn connect<'a>(
        &'a self,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<Connection, ConnectError>> {
        let open = || async {
            self.node
                .stream(&self.address)
                .await
                .map(RawStream::into_io)
        };
        Box::pin(dialect::connect_over(open, self.dialect, options))
    }

    fn endpoint(&self) -> String {
        format!("hail {}", self.address)
    }
}

/// Splices a proxy's stream with a connection to the agent's socket.
pub(super) async fn splice(request: Request, socket: PathBuf) -> Result<Response, Status> {
    only_streams(&request)?;
    let connected = UnixStream::connect(&socket).await;
    let connected = connected.map_err(|error| {
        let what = "the inspection agent is not running";
        Status::new(Code::Unavailable, what).with_details(error.to_string())
    })?;
    Ok(joined(request, connected.into_split()))
}

/// Answers a proxy's stream by an agent of this process.
pub(in crate::commands) fn answered_by<A: Agent>(
    agent: Arc<A>,
    request: Request,
) -> Result<Response, Status> {
    only_streams(&request)?;
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    tokio::spawn(async move {
        if let Err(error) = agent::serve(agent, far, &ServeOptions::default()).await {
            tracing::debug!(%error, "a proxy's connection ended");
        }
    });
    Ok(joined(request, tokio::io::split(near)))
}

fn only_streams(request: &Request) -> Result<(), Status> {
    if request.kind() == RequestKind::Stream {
        return Ok(());
    }
    let status = Status::new(
        Code::Unimplemented,
        "an inspection agent accepts raw streams only",
    );
    Err(status.with_hint("a proxy names it as: hail \"NAME@NODE\""))
}

/// Copies both ways between a proxy's stream and the two halves of a connection.
fn joined<R, W>(request: Request, (read, write): (R, W)) -> Response
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (sender, body) = Body::channel(QUEUED_CHUNKS);
    tokio::spawn(pump(read, sender));
    tokio::spawn(drain(request.into_body(), write));
    Response::new(body)
}

/// Writes a body to a socket, until either side has ended.
async fn drain(mut from: Body, mut to: impl AsyncWrite + Unpin) {
    while let Ok(Some(chunk)) = from.chunk().await {
        if to.write_all(&chunk).await.is_err() {
            return;
        }
    }
    // A socket that is gone needs no shutdown.
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests;
