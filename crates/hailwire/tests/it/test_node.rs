//! Nodes to test with: embedded, on loopback, each in a data folder of its own.

use std::{net::SocketAddr, path::Path, time::Duration};

use hailwire::{
    Agent, Body, Client, Config, DataDir, Node, Request, Response, ServeHandle, StartError, Status,
    admin, admin::method,
};

/// Long enough for any step of a test on a busy machine; reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running node and the folder that it keeps its things in.
pub(crate) struct TestNode {
    pub(crate) node: Node,
    pub(crate) dir: tempfile::TempDir,
}

impl TestNode {
    /// A node of this name on loopback.
    pub(crate) async fn named(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = start(dir.path(), name).await.unwrap();
        Self { node, dir }
    }

    /// Two nodes, `alice` and `bob`, that trust each other.
    pub(crate) async fn pair() -> (Self, Self) {
        let (alice, bob) = tokio::join!(Self::named("alice"), Self::named("bob"));
        alice.befriend(&bob).await;
        (alice, bob)
    }

    pub(crate) fn client(&self) -> Client {
        self.node.client()
    }

    pub(crate) fn data(&self) -> DataDir {
        DataDir::new(self.dir.path())
    }

    /// A program beside the node.
    pub(crate) async fn attach(&self) -> Client {
        Client::attach(&self.data()).await.unwrap()
    }

    pub(crate) async fn invite(&self, uses: u32, allow: &[&str]) -> String {
        invite(&self.client(), uses, allow).await
    }

    pub(crate) async fn join(&self, ticket: &str) -> Result<admin::JoinAnswer, Status> {
        join(&self.client(), ticket).await
    }

    /// Makes both nodes trust each other.
    pub(crate) async fn befriend(&self, other: &Self) {
        other.join(&self.invite(1, &[]).await).await.unwrap();
    }

    pub(crate) async fn status(&self) -> admin::NodeStatus {
        status(&self.client()).await
    }

    /// What `find` finds in the node's status, once it does; asked again whenever the tunnels change.
    pub(crate) async fn once<T>(&self, find: impl Fn(admin::NodeStatus) -> Option<T>) -> T {
        let mut changes = self.node.tunnel_changes();
        let found = async {
            loop {
                if let Some(found) = find(self.status().await) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.expect("the status that is waited for")
    }

    /// Stops the node at once and starts it again in the same folder.
    pub(crate) async fn restart(self, name: &str) -> Self {
        self.node.shutdown(Duration::ZERO).await;
        let node = start(self.dir.path(), name).await.unwrap();
        Self {
            node,
            dir: self.dir,
        }
    }
}

/// The configuration of a node on loopback.
pub(crate) fn config(name: &str) -> Config {
    let mut config = Config::default();
    config.node.name = Some(name.parse().unwrap());
    config.listen.udp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    config
}

/// Starts a node of this name in a folder.
pub(crate) async fn start(dir: &Path, name: &str) -> Result<Node, StartError> {
    Node::builder()
        .data_dir(DataDir::new(dir))
        .config(config(name))
        .start()
        .await
}

/// Has a folder remember that its node was last at this address. Returns when nobody holds the address any more.
pub(crate) async fn was_at(dir: &Path, name: &str, address: SocketAddr) {
    let mut config = config(name);
    config.listen.udp = vec![address];
    let node = Node::builder().data_dir(DataDir::new(dir)).config(config);
    node.start().await.unwrap().shutdown(Duration::ZERO).await;
    // An endpoint closes its sockets on another thread, without saying when.
    let free = async {
        while std::net::UdpSocket::bind(address).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, free).await.unwrap();
}

/// A ticket of the node that a client belongs to.
pub(crate) async fn invite(client: &Client, uses: u32, allow: &[&str]) -> String {
    let allow = allow.iter().map(ToString::to_string).collect();
    let invite = admin::InviteRequest {
        uses,
        expires_s: 60,
        allow,
        offer: Vec::new(),
    };
    let invited: admin::InviteAnswer = client.admin(method::INVITE, &invite).await.unwrap();
    invited.ticket
}

/// Uses a ticket at the node that a client belongs to.
pub(crate) async fn join(client: &Client, ticket: &str) -> Result<admin::JoinAnswer, Status> {
    let join = admin::JoinRequest {
        ticket: ticket.to_owned(),
        ..admin::JoinRequest::default()
    };
    client.admin(method::JOIN, &join).await
}

pub(crate) async fn status(client: &Client) -> admin::NodeStatus {
    client.admin(method::STATUS, &()).await.unwrap()
}

/// Serves an agent that answers with what it is sent, chunk by chunk.
pub(crate) async fn serve_echo(client: &Client, name: &str) -> ServeHandle {
    let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
    client.serve(Agent::new(name).unwrap(), echo).await.unwrap()
}

/// Calls and collects the whole answer.
pub(crate) async fn call(
    client: &Client,
    to: &str,
    body: impl Into<Body>,
) -> Result<Vec<u8>, Status> {
    let mut answer = client.call(to).body(body).deadline(PATIENCE).send().await?;
    Ok(answer.bytes(1 << 30).await?.to_vec())
}
