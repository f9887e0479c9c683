//! Hubs and nodes to test with.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, SystemTime},
};

use hailwire::hub::{HubClient, HubError, tls::HubPins};
use hailwire_hub::{Hub, HubConfig, TlsMode};
use hailwire_wire::{
    directory::{HubRefusal, RefusalReason, RequestPermit, SignedRequest},
    header::AgentOffer,
    record::{NodeRecord, SignedRecord},
    signed::KeyPair,
    ticket::{HubTicket, Ticket},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A hub over a folder of its own.
pub(crate) struct TestHub {
    pub(crate) hub: Hub,
    pub(crate) folder: TempDir,
}

impl TestHub {
    pub(crate) async fn plain() -> Self {
        Self::with(|config| config.tls = TlsMode::Plain).await
    }

    pub(crate) async fn https() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut HubConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path());
        change(&mut config);
        Self {
            hub: Hub::start(config).await.unwrap(),
            folder,
        }
    }

    pub(crate) async fn ticket(&self, uses: u32) -> HubTicket {
        let text = self
            .hub
            .invite(uses, Duration::from_secs(600))
            .await
            .unwrap();
        match text.parse().unwrap() {
            Ticket::Hub(ticket) => ticket,
            Ticket::Node(_) => panic!("a node's ticket"),
        }
    }

    /// A client that has not joined.
    pub(crate) fn unjoined_node(&self, seed: u8) -> TestNode {
        let key = key(seed);
        let pins = HubPins::default();
        let client = HubClient::new(
            self.hub.url().clone(),
            Some(self.hub.id()),
            key.clone(),
            &pins,
        );
        TestNode {
            key,
            pins,
            client: client.unwrap(),
        }
    }

    /// A client that has joined.
    pub(crate) async fn member(&self, seed: u8) -> TestNode {
        let node = self.unjoined_node(seed);
        node.client.join(self.ticket(1).await.secret).await.unwrap();
        node
    }
}

pub(crate) fn config(folder: &Path) -> HubConfig {
    let mut config = HubConfig::new(folder);
    config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config
}

/// A node, as far as a hub sees it.
pub(crate) struct TestNode {
    pub(crate) key: KeyPair,
    pub(crate) pins: HubPins,
    pub(crate) client: HubClient,
}

impl TestNode {
    pub(crate) fn record(&self, name: Option<&str>, sequence: u64) -> SignedRecord {
        record(name, sequence).sign(&self.key).unwrap()
    }

    /// Publishes and gives the reason of a refusal.
    pub(crate) async fn publish(&self, record: &SignedRecord) -> Result<(), RefusalReason> {
        self.client.publish(record).await.map(drop).map_err(reason)
    }
}

pub(crate) fn key(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

pub(crate) fn record(name: Option<&str>, sequence: u64) -> NodeRecord {
    let now = unix_now();
    NodeRecord {
        name: name.map(|name| name.parse().unwrap()),
        addresses: vec!["192.0.2.1:7440".parse().unwrap()],
        tcp: Vec::new(),
        relay: None,
        agents: vec![AgentOffer {
            group: hailwire_wire::header::OfferedGroup::default(),
            name: "grep".parse().unwrap(),
            description: "finds lines".into(),
            tags: vec!["text".into()],
            version: "1".into(),
        }],
        sequence,
        issued: now,
        expires: now + 7200,
    }
}

pub(crate) fn reason(error: HubError) -> RefusalReason {
    match error {
        HubError::Refused(refusal) => refusal.reason,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// A request of one's own making, over plain HTTP: status and body of the answer.
pub(crate) async fn raw(
    hub: &Hub,
    method: &str,
    path: &str,
    authorization: Option<&str>,
    body: &[u8],
) -> (u16, Vec<u8>) {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nhost: hub\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    if let Some(authorization) = authorization {
        request.push_str(&format!("authorization: {authorization}\r\n"));
    }
    request.push_str("\r\n");
    let mut tcp = TcpStream::connect(hub.tcp_addr()).await.unwrap();
    tcp.write_all(request.as_bytes()).await.unwrap();
    // The hub may answer and close before it has read a body that is too large.
    let _ = tcp.write_all(body).await;
    let mut answer = Vec::new();
    let _ = tcp.read_to_end(&mut answer).await;
    let head = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap();
    let status = std::str::from_utf8(&answer[9..12])
        .unwrap()
        .parse()
        .unwrap();
    (status, answer[head + 4..].to_vec())
}

/// Asks and expects a refusal: its HTTP status and reason.
pub(crate) async fn refusal(
    hub: &Hub,
    asked: &SignedRequest<'_>,
    authorization: Option<&str>,
) -> (u16, RefusalReason) {
    let (status, body) = raw(hub, asked.method, asked.path, authorization, asked.body).await;
    let refusal: HubRefusal = serde_json::from_slice(&body).unwrap();
    assert_eq!(refusal.code, refusal.reason.code().name());
    (status, refusal.reason)
}

/// Permission for a request, now.
pub(crate) fn permit(asked: &SignedRequest<'_>, key: &KeyPair) -> String {
    RequestPermit::new(asked, unix_now()).sign(key)
}
