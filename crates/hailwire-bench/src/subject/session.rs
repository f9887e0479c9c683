//! The Hailwire session between embedded nodes, over each carrier.
//!
//! The serving node offers `echo`, `bulk`, and on demand `echo-0`, `echo-1`, …, an agent each. The
//! loading program has one node for work on a warm tunnel, and starts others where peers must not have
//! met before or each agent needs a connection of its own: two nodes have one tunnel, however many
//! agents they have. The tunnel of the warm node may have several connections (`--pool`).
//!
//! Keys of loading nodes are derived from a seed that the serving side makes, so that it trusts them
//! before they connect.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hailwire::{
    Agent, Client, Code, Config, DataDir, Node, NodeId, Priority, Request, Response, ServeHandle,
    Status,
    admin::{self, method},
    config::{ByteSize, TunnelPool},
};
use hailwire_wire::signed::KeyPair;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::{
    CongestionControl, NodePath as Way, PacketCounts, ReadyAddress, SubjectSetup, any_like, failed,
    pattern::{check_pattern, pattern},
};
use crate::{BenchError, work::ConnectionStart};

/// The alias of the node with the agents.
pub(super) const REMOTE_NODE: &str = "far";

/// Its first agent, from the other node.
const ECHO_ADDRESS: &str = "echo@far";
/// The agent through which the loading side asks for more agents and more trusted keys.
const SET_UP: &str = "set-up";
/// Keys that are trusted from the start.
const FIRST_KEYS: u32 = 4;
/// How long a hub may take to answer, and a path to be established.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a tunnel may take to get all of its connections.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(45);
/// How often a state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The least that `quic.stream-window` may be.
const MIN_WINDOW: u32 = 2 << 20;
/// How long a node may take to try both carriers for bulk.
const CARRIER_CHOICE_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of one answer of the bulk by which it chooses; a new call begins on the carrier of that moment.
const CARRIER_CHOICE_BYTES: u64 = 32_000_000;
/// Most nodes in one program.
const MAX_NODES: u32 = 1_000;

/// What moves a session's streams between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SessionCarrier {
    /// QUIC.
    Quic,
    /// HTTP/2 over TLS 1.3.
    H2,
    /// WebSocket over TLS 1.3.
    Ws,
    /// Chosen by the node, which listens on both UDP and TCP.
    Auto,
}

impl SessionCarrier {
    /// Whether the node chooses between UDP and TCP.
    #[must_use]
    pub fn may_choose(self) -> bool {
        self == Self::Auto
    }
}

/// A node that serves.
pub(super) struct ServedNode {
    pub(super) ready: ReadyAddress,
    node: Node,
    _agents: Option<OfferedAgents>,
    _home: TempDir,
}

impl ServedNode {
    pub(super) async fn stop(self) {
        self.node.shutdown(Duration::ZERO).await;
    }
}

/// Serves the agents in the node's own process.
pub(super) async fn serve(
    carrier: SessionCarrier,
    options: &SubjectSetup,
) -> Result<ServedNode, BenchError> {
    let mut served = serve_node_over(carrier, options).await?;
    let agents = OfferedAgents::serve(served.node.client(), &served.ready.seed).await?;
    served._agents = Some(agents);
    Ok(served)
}

/// A node without agents: one that others connect to, or one that knows `options.peer`.
pub(super) async fn serve_node(options: &SubjectSetup) -> Result<ServedNode, BenchError> {
    serve_node_over(SessionCarrier::Quic, options).await
}

async fn serve_node_over(
    carrier: SessionCarrier,
    options: &SubjectSetup,
) -> Result<ServedNode, BenchError> {
    let home = TempDir::new().map_err(BenchError::io("creating a temporary folder"))?;
    let data = home.path().join("far");
    let seed = draw_seed()?;
    if let Some(peer) = &options.peer {
        let peer: ReadyAddress = serde_json::from_str(peer).map_err(failed("parsing the peer"))?;
        let here = local_options(options, &peer)?;
        let node = local_node(carrier, &data, &peer, 0, &here).await?;
        let ready = ReadyAddress {
            data: data.display().to_string(),
            ..ReadyAddress::default()
        };
        return Ok(ServedNode {
            ready,
            node,
            _agents: None,
            _home: home,
        });
    }
    let mut config = config(carrier, options)?;
    config.node.name = REMOTE_NODE.parse().ok();
    let node = start(&data, config).await?;
    trust(&node.client(), &seed, 0..FIRST_KEYS).await?;
    join_hub(&node.client(), options).await?;
    let first = |sockets: Vec<std::net::SocketAddr>| {
        let first = sockets.first().map(ToString::to_string);
        first.unwrap_or_default()
    };
    let ready = ReadyAddress {
        address: first(node.sockets()),
        tcp: first(node.tcp_sockets()),
        id: node.id().to_string(),
        seed,
        data: data.display().to_string(),
        ..ReadyAddress::default()
    };
    Ok(ServedNode {
        ready,
        node,
        _agents: None,
        _home: home,
    })
}

/// The agents on offer. They end when this is dropped.
pub(super) struct OfferedAgents {
    _serving: Vec<ServeHandle>,
}

impl OfferedAgents {
    pub(super) async fn serve(client: Client, seed: &str) -> Result<Self, BenchError> {
        let mut serving = Vec::new();
        serving.push(
            offer_echo(&client, "echo")
                .await
                .map_err(failed("serving"))?,
        );
        let bulk = client.serve(agent("bulk").map_err(failed("serving"))?, answer_bulk);
        serving.push(bulk.await.map_err(failed("serving"))?);
        let set_up = SetupRequest {
            client: client.clone(),
            seed: seed.to_owned(),
            echoes: tokio::sync::Mutex::default(),
            trusted: AtomicU32::new(FIRST_KEYS),
        };
        let set_up = Arc::new(set_up);
        let handler = move |request: Request| {
            let set_up = set_up.clone();
            async move { set_up.answer(request).await }
        };
        let agent = agent(SET_UP).map_err(failed("serving"))?;
        serving.push(
            client
                .serve(agent, handler)
                .await
                .map_err(failed("serving"))?,
        );
        Ok(Self { _serving: serving })
    }
}

fn agent(name: &str) -> Result<Agent, Status> {
    Agent::new(name).map_err(|error| Status::new(Code::Internal, error.to_string()))
}

async fn offer_echo(client: &Client, name: &str) -> Result<ServeHandle, Status> {
    let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
    client.serve(agent(name)?, echo).await
}

async fn answer_bulk(mut request: Request) -> Result<Response, Status> {
    let count = number(&mut request).await?;
    let (sender, body) = hailwire::Body::channel(4);
    tokio::spawn(async move {
        for chunk in pattern(count) {
            sender.send(chunk).await?;
        }
        sender.finish().await
    });
    Ok(Response::new(body))
}

async fn number(request: &mut Request) -> Result<u64, Status> {
    let asked = request.body_mut().bytes(64).await?;
    let text = std::str::from_utf8(&asked).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| Status::new(Code::InvalidArgument, "expected a number"))
}

/// More agents, more trusted keys.
struct SetupRequest {
    client: Client,
    seed: String,
    echoes: tokio::sync::Mutex<Vec<ServeHandle>>,
    trusted: AtomicU32,
}

impl SetupRequest {
    async fn answer(&self, mut request: Request) -> Result<Response, Status> {
        let count = number(&mut request).await?.min(u64::from(MAX_NODES * 20)) as u32;
        if request.header().method == "packets" {
            let sent = sent(&self.client).await;
            let sent = sent.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
            let text = serde_json::to_vec(&sent)
                .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
            return Ok(Response::new(Bytes::from(text)));
        }
        if request.header().method == "trust" {
            let from = self.trusted.fetch_max(count, Ordering::Relaxed);
            trust(&self.client, &self.seed, from..count)
                .await
                .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        } else {
            let mut echoes = self.echoes.lock().await;
            for i in echoes.len()..count as usize {
                echoes.push(offer_echo(&self.client, &format!("echo-{i}")).await?);
            }
        }
        Ok(Response::new(Bytes::new()))
    }
}

/// The serving node, and the nodes of this program.
pub(super) struct SessionTarget {
    carrier: SessionCarrier,
    ready: ReadyAddress,
    options: SubjectSetup,
    home: TempDir,
    base: SessionConnection,
    next_key: AtomicU32,
    /// Nodes that have connected to the serving node before.
    known: Mutex<Vec<SessionConnection>>,
    /// How many seconds the node took to choose its carrier for bulk, once it has.
    chosen: Mutex<Option<f64>>,
}

/// A node's client, with what it calls.
#[derive(Clone)]
pub(super) struct SessionConnection {
    client: Client,
    /// The node itself, where it runs in this process and is not shared.
    node: Arc<Mutex<Option<Node>>>,
    early: bool,
}

impl SessionTarget {
    pub(super) async fn new(
        carrier: SessionCarrier,
        ready: &ReadyAddress,
        options: &SubjectSetup,
    ) -> Result<Self, BenchError> {
        let home = TempDir::new().map_err(BenchError::io("creating a temporary folder"))?;
        let options = local_options(options, ready)?;
        let node = local_node(carrier, &home.path().join("0"), ready, 0, &options).await?;
        Ok(Self {
            carrier,
            ready: ready.clone(),
            options,
            base: SessionConnection::embedded(node),
            home,
            next_key: AtomicU32::new(1),
            known: Mutex::default(),
            chosen: Mutex::default(),
        })
    }

    pub(super) async fn agents(&self, count: u32) -> Result<(), BenchError> {
        if count > 1 {
            set_up(&self.base.client, "agents", count).await?;
        }
        Ok(())
    }

    pub(super) async fn expect(&self, count: u32) -> Result<(), BenchError> {
        let last = self.next_key.load(Ordering::Relaxed) + count;
        if last >= FIRST_KEYS {
            set_up(&self.base.client, "trust", last + 1).await?;
        }
        Ok(())
    }

    pub(super) async fn prepare(
        &self,
        start: ConnectionStart,
        alone: bool,
    ) -> Result<SessionConnection, BenchError> {
        match start {
            ConnectionStart::Warm if !alone => {
                self.settle().await?;
                Ok(self.base.clone())
            }
            ConnectionStart::Cold | ConnectionStart::Warm => self.untrusted_peer().await,
            ConnectionStart::Resumed | ConnectionStart::ZeroRtt => {
                let known = lock(&self.known).pop();
                let mut link = match known {
                    Some(link) => link,
                    None => self.untrusted_peer().await?,
                };
                // So that it has connected to the serving node, as a node of earlier work has.
                link.early = false;
                link.echo(0, Priority::default(), Bytes::from_static(b"hello"))
                    .await?;
                self.hang_up(&link.client).await?;
                link.early = start == ConnectionStart::ZeroRtt;
                Ok(link)
            }
        }
    }

    /// Waits until the tunnel has its connections and is on the path that is to be measured.
    async fn settle(&self) -> Result<(), BenchError> {
        let SubjectSetup { path, pool, .. } = self.options;
        if path.is_none() && pool.is_none() {
            return Ok(());
        }
        let hello = Bytes::from_static(b"hello");
        self.base.echo(0, Priority::default(), hello).await?;
        if let Some(number) = pool {
            let otherwise = "the tunnel did not get its connections";
            until_within(CONNECT_TIMEOUT, &self.base.client, otherwise, |status| {
                let mut tunnels = status.tunnels.iter();
                tunnels.any(|tunnel| tunnel.connections >= number)
            })
            .await?;
        }
        match path {
            None => Ok(()),
            Some(path) => on_path(&self.base.client, path).await,
        }
    }

    /// Transfers bulk until the node has tried the other carrier for it; returns the seconds that this took, `None`
    /// for a node that may not choose. It is done once: later choices of the node are not waited for.
    pub(super) async fn choose(&self) -> Result<Option<f64>, BenchError> {
        if !self.carrier.may_choose() {
            return Ok(None);
        }
        let before = *lock(&self.chosen);
        if before.is_some() {
            return Ok(before);
        }
        let begun = std::time::Instant::now();
        let mut tried = false;
        while begun.elapsed() < CARRIER_CHOICE_TIMEOUT {
            let status = status(&self.base.client).await?;
            let carrying = status.tunnels.iter().find(|tunnel| tunnel.carries);
            let trying = carrying.is_some_and(|tunnel| tunnel.why.starts_with("trying"));
            // It was tried, or the node changed its carrier for another reason.
            let over_tcp = carrying.is_some_and(|tunnel| tunnel.carrier != "quic");
            if (tried || over_tcp) && !trying {
                let took = begun.elapsed().as_secs_f64();
                *lock(&self.chosen) = Some(took);
                return Ok(Some(took));
            }
            tried |= trying;
            let got = super::StreamProgress::default();
            self.base
                .bulk(Priority::default(), CARRIER_CHOICE_BYTES, &got)
                .await?;
        }
        Err(BenchError::Unsupported(
            "the node did not try its other carrier: too little was transferred",
        ))
    }

    /// The packets that the serving node has sent on its tunnels, and lost.
    pub(super) async fn packets(&self) -> Result<Option<PacketCounts>, BenchError> {
        if self.carrier != SessionCarrier::Quic {
            return Ok(None);
        }
        let answer = asked(&self.base.client, "packets", 0, 256).await?;
        serde_json::from_slice(&answer)
            .map(Some)
            .map_err(failed("reading packet counts"))
    }

    /// Bytes received over UDP and over TCP.
    pub(super) async fn received(&self) -> Result<Option<[u64; 2]>, BenchError> {
        if !self.carrier.may_choose() {
            return Ok(None);
        }
        let mut received = [0; 2];
        for tunnel in status(&self.base.client).await?.tunnels {
            received[usize::from(tunnel.carrier != "quic")] += tunnel.received_bytes;
        }
        Ok(Some(received))
    }

    /// A node that has never connected to the serving node.
    async fn untrusted_peer(&self) -> Result<SessionConnection, BenchError> {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let data = self.home.path().join(key.to_string());
        let options = SubjectSetup {
            pool: None,
            ..self.options.clone()
        };
        let node = local_node(self.carrier, &data, &self.ready, key, &options).await?;
        Ok(SessionConnection::embedded(node))
    }

    /// Closes a node's tunnel, and keeps its state.
    async fn hang_up(&self, client: &Client) -> Result<(), BenchError> {
        let who = admin::PeerSelector {
            who: REMOTE_NODE.into(),
        };
        let gone: Result<(), Status> = client.admin(method::TRUST_REMOVE, &who).await;
        gone.map_err(failed("closing"))?;
        until(client, "the tunnel did not end", |status| {
            status.tunnels.is_empty()
        })
        .await?;
        trust_each_other(client, &self.ready, &self.options).await
    }

    pub(super) async fn release(&self, links: Vec<SessionConnection>) {
        let mut stopping = JoinSet::new();
        for link in links {
            if Arc::ptr_eq(&link.node, &self.base.node) {
                continue;
            }
            let enough = lock(&self.known).len() >= 128;
            if enough {
                stopping.spawn(stop(link));
            } else {
                lock(&self.known).push(link);
            }
        }
        while stopping.join_next().await.is_some() {}
    }

    pub(super) async fn stop(self) {
        let mut all = std::mem::take(&mut *lock(&self.known));
        all.push(self.base);
        let mut stopping = JoinSet::new();
        all.into_iter().for_each(|link| {
            stopping.spawn(stop(link));
        });
        while stopping.join_next().await.is_some() {}
    }
}

async fn stop(link: SessionConnection) {
    let node = lock(&link.node).take();
    if let Some(node) = node {
        node.shutdown(Duration::ZERO).await;
    }
}

/// Waits until a node's tunnel is on a path.
pub(super) async fn on_path(client: &Client, path: Way) -> Result<(), BenchError> {
    let (kind, otherwise) = match path {
        Way::Direct => ("direct", "no direct path was established"),
        Way::Relay => ("relay", "the path did not stay on the relay"),
    };
    until(client, otherwise, |status| {
        status.tunnels.iter().any(|tunnel| tunnel.path.kind == kind)
    })
    .await
}

pub(super) async fn set_up(client: &Client, what: &str, count: u32) -> Result<(), BenchError> {
    asked(client, what, count, 0).await.map(drop)
}

/// The answer of the setup agent, in at most a number of bytes.
async fn asked(client: &Client, what: &str, count: u32, most: usize) -> Result<Bytes, BenchError> {
    let call = client.call(format!("{SET_UP}@{REMOTE_NODE}"));
    let mut answer = call
        .method(what)
        .body(count.to_string())
        .send()
        .await
        .map_err(failed("setting up"))?;
    answer.bytes(most).await.map_err(failed("setting up"))
}

async fn status(client: &Client) -> Result<admin::NodeStatus, BenchError> {
    client
        .admin(method::STATUS, &())
        .await
        .map_err(failed("reading the node's status"))
}

/// The packets that a node has sent on all of its tunnels.
async fn sent(client: &Client) -> Result<PacketCounts, BenchError> {
    let mut all = PacketCounts::default();
    for tunnel in status(client).await?.tunnels {
        all.sent += tunnel.sent_packets;
        all.lost += tunnel.lost_packets;
    }
    Ok(all)
}

impl SessionConnection {
    fn embedded(node: Node) -> Self {
        Self {
            client: node.client(),
            node: Arc::new(Mutex::new(Some(node))),
            early: false,
        }
    }

    pub(super) fn attached(client: Client) -> Self {
        Self {
            client,
            node: Arc::default(),
            early: false,
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Calls `echo`, or an agent of its own where there are several; agents count from 1.
    pub(super) async fn echo(
        &self,
        agent: u32,
        priority: Priority,
        body: Bytes,
    ) -> Result<Bytes, BenchError> {
        let limit = body.len();
        // The first agent's address is not written anew for each call, as no caller does that.
        let to = match agent {
            0 => ECHO_ADDRESS.to_owned(),
            agent => format!("echo-{}@{REMOTE_NODE}", agent - 1),
        };
        let mut call = self.client.call(to).priority(priority).body(body);
        if self.early {
            // An echo is idempotent, so it may be sent with the first flight (0-RTT).
            call = call.idempotency_key("echo");
        }
        let mut answer = call.send().await.map_err(failed("the call"))?;
        answer
            .bytes(limit)
            .await
            .map_err(failed("reading the answer"))
    }

    pub(super) async fn bulk(
        &self,
        priority: Priority,
        bytes: u64,
        got: &super::StreamProgress,
    ) -> Result<(), BenchError> {
        let call = self
            .client
            .call(format!("bulk@{REMOTE_NODE}"))
            .priority(priority);
        let answer = call.body(bytes.to_string()).send().await;
        let mut answer = answer.map_err(failed("the call"))?;
        let mut at = 0;
        while let Some(chunk) = answer.chunk().await.map_err(failed("reading the answer"))? {
            at = check_pattern(at, &chunk)?;
            got.set(at);
        }
        Ok(())
    }
}

/// A node with the key of a number, that trusts the serving node and knows its address.
async fn local_node(
    carrier: SessionCarrier,
    data: &Path,
    target: &ReadyAddress,
    number: u32,
    options: &SubjectSetup,
) -> Result<Node, BenchError> {
    let seed = seed_of(&target.seed, number);
    fs::create_dir_all(data).map_err(BenchError::io("creating a data folder"))?;
    let mut key = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(DataDir::new(data).key())
        .map_err(BenchError::io("writing a key"))?;
    writeln!(key, "{seed}").map_err(BenchError::io("writing a key"))?;
    let node = start(data, config(carrier, options)?).await?;
    join_hub(&node.client(), options).await?;
    trust_each_other(&node.client(), target, options).await?;
    Ok(node)
}

/// Joins the hub of the options, if there is one, and waits until it has this node's record.
async fn join_hub(client: &Client, options: &SubjectSetup) -> Result<(), BenchError> {
    let Some(ticket) = &options.hub else {
        return Ok(());
    };
    let join = admin::JoinRequest {
        ticket: ticket.clone(),
        // The run's own hub.
        yes: true,
        ..admin::JoinRequest::default()
    };
    let _: admin::JoinAnswer = client
        .admin(method::JOIN, &join)
        .await
        .map_err(failed("joining the hub"))?;
    until(client, "the hub did not answer", |status| {
        !status.hubs.is_empty() && status.hubs.iter().all(|hub| hub.connected)
    })
    .await
}

/// Polls a node's status until it is as wanted.
async fn until(
    client: &Client,
    otherwise: &'static str,
    wanted: impl Fn(&admin::NodeStatus) -> bool,
) -> Result<(), BenchError> {
    until_within(SETTLE_TIMEOUT, client, otherwise, wanted).await
}

async fn until_within(
    within: Duration,
    client: &Client,
    otherwise: &'static str,
    wanted: impl Fn(&admin::NodeStatus) -> bool,
) -> Result<(), BenchError> {
    let begun = std::time::Instant::now();
    loop {
        if wanted(&status(client).await?) {
            return Ok(());
        }
        if begun.elapsed() > within {
            return Err(BenchError::Unsupported(otherwise));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn trust_each_other(
    client: &Client,
    target: &ReadyAddress,
    options: &SubjectSetup,
) -> Result<(), BenchError> {
    // Nodes at a hub learn each other's addresses from it.
    let known = |address: &str| match (&options.hub, address) {
        (Some(_), _) | (_, "") => Vec::new(),
        (None, address) => vec![address.to_owned()],
    };
    let add = admin::TrustAdd {
        id: target.id.parse().map_err(failed("parsing the key"))?,
        alias: REMOTE_NODE.into(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: known(&target.address),
        tcp: known(&target.tcp),
    };
    let _: admin::TrustedPeer = client
        .admin(method::TRUST_ADD, &add)
        .await
        .map_err(failed("adding a trusted peer"))?;
    Ok(())
}

/// Makes a node trust the keys of some numbers.
async fn trust(client: &Client, seed: &str, keys: std::ops::Range<u32>) -> Result<(), BenchError> {
    for number in keys {
        let add = admin::TrustAdd {
            id: id_of(seed, number)?,
            alias: String::new(),
            allow: Vec::new(),
            offer: Vec::new(),
            addresses: Vec::new(),
            tcp: Vec::new(),
        };
        let _: admin::TrustedPeer = client
            .admin(method::TRUST_ADD, &add)
            .await
            .map_err(failed("adding a trusted peer"))?;
    }
    Ok(())
}

async fn start(data: &Path, config: Config) -> Result<Node, BenchError> {
    let builder = Node::builder().data_dir(DataDir::new(data)).config(config);
    Box::pin(builder.start())
        .await
        .map_err(failed("starting a node"))
}

fn local_options(
    options: &SubjectSetup,
    target: &ReadyAddress,
) -> Result<SubjectSetup, BenchError> {
    Ok(SubjectSetup {
        listen: any_like(target.socket()?.ip()),
        ..options.clone()
    })
}

fn config(carrier: SessionCarrier, options: &SubjectSetup) -> Result<Config, BenchError> {
    let mut config = Config::default();
    config.listen.udp = vec![(options.listen, 0).into()];
    config.carrier = match carrier {
        SessionCarrier::Quic => hailwire::config::Carrier::Quic,
        SessionCarrier::H2 => hailwire::config::Carrier::H2,
        SessionCarrier::Ws => hailwire::config::Carrier::Ws,
        SessionCarrier::Auto => hailwire::config::Carrier::Auto,
    };
    if carrier != SessionCarrier::Quic {
        config.listen.tcp = vec![(options.listen, 0).into()];
    }
    if let Some(number) = options.pool {
        config.pool = TunnelPool::Fixed(number);
    }
    match options.congestion {
        Some(CongestionControl::Bbr) => {
            config.quic.congestion = hailwire::config::CongestionControl::Bbr;
        }
        Some(CongestionControl::Cubic) => {
            config.quic.congestion = hailwire::config::CongestionControl::Cubic;
        }
        None => {}
    }
    if let Some(window) = options.window {
        if window < MIN_WINDOW {
            return Err(BenchError::Unsupported(
                "a node's stream window is 2 MiB at least: the beginning of an urgent call may need it",
            ));
        }
        config.quic.stream_window = ByteSize::mib((window >> 20) as u16);
    }
    Ok(config)
}

/// 28 random bytes in hex, to which a number is added.
fn draw_seed() -> Result<String, BenchError> {
    let mut bytes = [0; 28];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(BenchError::io("reading /dev/urandom"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// 64 hex digits.
fn seed_of(seed: &str, number: u32) -> String {
    format!("{seed}{number:08x}")
}

fn id_of(seed: &str, number: u32) -> Result<NodeId, BenchError> {
    let text = seed_of(seed, number);
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(failed("parsing the seed"))?;
        *byte = u8::from_str_radix(pair, 16).map_err(failed("parsing the seed"))?;
    }
    Ok(KeyPair::from_seed(&bytes).id())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_key_of_its_own() {
        let seed = draw_seed().unwrap();
        assert_eq!(seed_of(&seed, 7).len(), 64);
        assert_ne!(id_of(&seed, 1).unwrap(), id_of(&seed, 2).unwrap());
        assert_eq!(id_of(&seed, 3).unwrap(), id_of(&seed, 3).unwrap());
    }
}
