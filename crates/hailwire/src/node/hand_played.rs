//! A node that listens nowhere, and peers and programs that a test plays frame by frame, over pipes in memory.
//!
//! What a peer of another version or an attacker says is written by hand; the node is whole, and runs in virtual time as
//! those of [`super::virtual_nodes`] do.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hailwire_core::routing::CallOrigin;
use hailwire_wire::{
    CallHeader, Code, NodeId, Status,
    frame::FrameKind,
    header::{self, AgentOffer},
    mux::MuxRole,
    offers,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Node, NodeInner, router::NodeDispatcher, tunnel, virtual_nodes::VirtualNodes};
use crate::{
    Client, Config, DataDir,
    admin::{self, method},
    carrier::{CarrierConnection, mux::MuxConnection},
    session::{
        Session, now,
        tests::{RawPeer, ScriptedStream, connected, frames},
    },
};

/// A node in a folder of its own, alone on its network.
pub(crate) struct LoneNode {
    pub(crate) node: Node,
    _folder: tempfile::TempDir,
}

impl LoneNode {
    pub(crate) async fn named(name: &str) -> Self {
        Self::with(name, |_| {}).await
    }

    /// One with other settings.
    pub(crate) async fn with(name: &str, set: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let network = VirtualNodes::new("delay \"1ms\"", 1);
        let node = Box::pin(network.start_with(folder.path(), name, set)).await;
        Self {
            node,
            _folder: folder,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<NodeInner> {
        &self.node.inner
    }

    pub(crate) fn data(&self) -> DataDir {
        self.inner().setup.data.clone()
    }

    pub(crate) fn client(&self) -> Client {
        self.node.client()
    }

    pub(crate) async fn admin<A: DeserializeOwned>(
        &self,
        method: &str,
        request: &(impl Serialize + Sync),
    ) -> Result<A, Status> {
        self.client().admin(method, request).await
    }

    /// What is answered to a request that was written by hand.
    pub(crate) async fn asked(&self, method: &str, body: &str) -> Result<String, Status> {
        let call = self.client().call(admin::AGENT).method(method);
        let mut answer = call.body(body.to_owned()).send().await?;
        let bytes = answer.bytes(1 << 20).await?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Trusts a peer under an alias.
    pub(crate) async fn trust(&self, id: NodeId, alias: &str, allow: &[&str]) {
        let add = admin::TrustAdd {
            alias: alias.to_owned(),
            allow: allow.iter().map(ToString::to_string).collect(),
            ..nobody(id)
        };
        let _: admin::TrustedPeer = self.admin(method::TRUST_ADD, &add).await.unwrap();
    }

    /// A peer that dials this node and greets.
    pub(crate) async fn peer(&self, id: NodeId) -> HandPlayedPeer {
        HandPlayedPeer::greeted(self.dialled(id)).await
    }

    /// The far end of a connection with which somebody who has proved this key comes in.
    pub(crate) fn dialled(&self, id: NodeId) -> CarrierConnection {
        let (far, near) = tokio::io::duplex(64 * 1024);
        let over = |io, role| {
            let remote = "198.18.0.1:443".to_owned();
            CarrierConnection::Mux(MuxConnection::over(io, role, "ws", remote))
        };
        let (far, near) = (over(far, MuxRole::Client), over(near, MuxRole::Server));
        let node = self.inner().clone();
        tokio::spawn(async move { Box::pin(tunnel::arrived(&node, id, near)).await });
        far
    }

    /// A trusted peer whose tunnel is up.
    pub(crate) async fn friend(&self, id: NodeId, alias: &str) -> HandPlayedPeer {
        self.trust(id, alias, &[]).await;
        let mut changes = self.node.tunnel_changes();
        let peer = self.peer(id).await;
        changes
            .wait_for(|_| self.inner().peers.has(id))
            .await
            .unwrap();
        peer
    }

    /// A program that is attached.
    pub(crate) async fn program(&self) -> HandPlayedPeer {
        let (far, near) = connected();
        let dispatcher = Arc::new(NodeDispatcher {
            node: self.inner().clone(),
            origin: CallOrigin::Local,
            program: None,
        });
        let hello = self.inner().hello();
        let _session = Session::start(near, false, hello, dispatcher);
        HandPlayedPeer::greeted(far).await
    }
}

/// The far side of a session with a node.
pub(crate) struct HandPlayedPeer {
    pub(crate) raw: RawPeer,
    pub(crate) control: ScriptedStream,
}

impl HandPlayedPeer {
    async fn greeted(connection: CarrierConnection) -> Self {
        let raw = RawPeer(connection);
        let control = raw.greet().await;
        Self { raw, control }
    }

    /// Opens a stream with a header and a body, both whole. Gives the body of the answer, if it is one.
    pub(crate) async fn ask(
        &self,
        kind: FrameKind,
        header: &CallHeader,
        body: &[u8],
    ) -> Result<Bytes, Status> {
        let head = header::encode_call(header);
        let mut bytes = BytesMut::from(&frames(&[(kind, &head)])[..]);
        if !body.is_empty() {
            bytes.extend_from_slice(&frames(&[(FrameKind::DATA, body)]));
        }
        let mut stream = self.raw.open(bytes.freeze()).await;
        stream.send.finish();
        let (body, status) = stream.answer().await;
        match status.code {
            Code::Ok => Ok(body),
            _ => Err(status),
        }
    }

    /// Asks the node itself.
    pub(crate) async fn manage(&self, method: &str, body: &str) -> Result<Bytes, Status> {
        let header = CallHeader {
            to: admin::AGENT.to_owned(),
            method: method.to_owned(),
            ..CallHeader::default()
        };
        self.ask(FrameKind::CALL, &header, body.as_bytes()).await
    }

    /// Offers agents, and waits until the node knows of them.
    pub(crate) async fn offer(&mut self, host: &LoneNode, number: u64, names: &[&str]) {
        let offers = names.iter().map(|name| AgentOffer {
            group: hailwire_wire::header::OfferedGroup::default(),
            name: name.parse().unwrap(),
            description: format!("the peer's {name}"),
            tags: vec!["far".to_owned()],
            version: String::new(),
        });
        for (kind, payload) in offers::pages(offers.collect(), number) {
            self.control.write(&[(kind, &payload)]).await;
        }
        let last = names.last().unwrap().parse().unwrap();
        let mut entered = host.inner().peers.lists.subscribe();
        entered
            .wait_for(|_| host.inner().registry.knows(&last))
            .await
            .unwrap();
    }

    /// Takes the next stream that the node opens, with its first frame.
    pub(crate) async fn called(&self) -> (FrameKind, CallHeader, ScriptedStream) {
        let mut stream = self.raw.accept().await;
        let (kind, payload) = stream.frame().await.unwrap();
        (kind, header::decode_call(&payload).unwrap(), stream)
    }
}

/// The key of a peer.
pub(crate) fn key(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

/// What is stated of a peer where nothing is.
pub(crate) fn nobody(id: NodeId) -> admin::TrustAdd {
    admin::TrustAdd {
        id,
        alias: String::new(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: Vec::new(),
        tcp: Vec::new(),
    }
}

/// Whether a future has its output already.
pub(crate) fn is_ready<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    now(future).is_some()
}
