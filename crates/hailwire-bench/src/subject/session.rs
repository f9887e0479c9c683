//! The Hailwire session between embedded nodes, over each carrier.
//!
//! The serving node offers `echo`, `bulk`, and on demand `echo-0`, `echo-1`, …, an agent each. The
//! loading program has one node for work on a warm tunnel, and starts others where parties have to be
//! strangers or each agent has to have a connection of its own: two nodes have one tunnel, however many
//! agents they have. That of the warm one may be of several connections (`--pool`).
//!
//! Keys of loading nodes are drawn from a seed that the serving side makes, so that it trusts them
//! before they have ever met.

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
    Agent, Client, Code, Config, DataDir, Node, NodeId, Priority, Request, Response, Serving,
    Status,
    admin::{self, method},
    config::{Pool, Size},
};
use hailwire_wire::signed::KeyPair;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::{
    Congestion, Options, Packets, Path as Way, Ready, any_like, failed,
    pattern::{check_pattern, pattern},
};
use crate::{BenchError, work::Start};

/// The alias of the node with the agents.
pub(super) const FAR: &str = "far";
/// The agent that sets the far side up.
const SET_UP: &str = "set-up";
/// Keys that are trusted from the start.
const FIRST_KEYS: u32 = 4;
/// How long a hub may take to answer, and a path to come about.
const SETTLES_WITHIN: Duration = Duration::from_secs(15);
/// How long a tunnel may take to get all of its connections.
const CONNECTED_WITHIN: Duration = Duration::from_secs(45);
/// How often it is looked.
const LOOKS_EVERY: Duration = Duration::from_millis(10);
/// The least that `quic.stream-window` may be.
const LEAST_WINDOW: u32 = 2 << 20;
/// How long a node may take to try both carriers for bulk.
const CHOOSES_WITHIN: Duration = Duration::from_secs(20);
/// One answer of the bulk that it chooses by; a new call begins on the carrier of that moment.
const CHOOSES_BY: u64 = 32_000_000;
/// Most nodes in one program.
const MOST_NODES: u32 = 1_000;

/// What moves a session's streams between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// QUIC.
    Quic,
    /// HTTP/2 over TLS 1.3.
    H2,
    /// WebSocket over TLS 1.3.
    Ws,
    /// Whichever the node chooses: it listens on both.
    Auto,
}

impl Carrier {
    /// Whether the node chooses between UDP and TCP.
    #[must_use]
    pub fn may_choose(self) -> bool {
        self == Self::Auto
    }
}

/// A node that serves.
pub(super) struct Served {
    pub(super) ready: Ready,
    node: Node,
    _agents: Option<Agents>,
    _home: TempDir,
}

impl Served {
    pub(super) async fn stop(self) {
        self.node.shutdown(Duration::ZERO).await;
    }
}

/// Serves the agents in the node's own process.
pub(super) async fn serve(carrier: Carrier, options: &Options) -> Result<Served, BenchError> {
    let mut served = serve_node_over(carrier, options).await?;
    let agents = Agents::serve(served.node.client(), &served.ready.seed).await?;
    served._agents = Some(agents);
    Ok(served)
}

/// A node and nothing else: one that others come to, or one that knows `options.peer`.
pub(super) async fn serve_node(options: &Options) -> Result<Served, BenchError> {
    serve_node_over(Carrier::Quic, options).await
}

async fn serve_node_over(carrier: Carrier, options: &Options) -> Result<Served, BenchError> {
    let home = TempDir::new().map_err(BenchError::io("a temporary folder"))?;
    let data = home.path().join("far");
    let seed = draw_seed()?;
    if let Some(peer) = &options.peer {
        let peer: Ready = serde_json::from_str(peer).map_err(failed("the peer"))?;
        let here = options_near(options, &peer)?;
        let node = near_node(carrier, &data, &peer, 0, &here).await?;
        let ready = Ready {
            data: data.display().to_string(),
            ..Ready::default()
        };
        return Ok(Served {
            ready,
            node,
            _agents: None,
            _home: home,
        });
    }
    let mut config = config(carrier, options)?;
    config.node.name = FAR.parse().ok();
    let node = start(&data, config).await?;
    trust(&node.client(), &seed, 0..FIRST_KEYS).await?;
    join_hub(&node.client(), options).await?;
    let first = |sockets: Vec<std::net::SocketAddr>| {
        let first = sockets.first().map(ToString::to_string);
        first.unwrap_or_default()
    };
    let ready = Ready {
        address: first(node.sockets()),
        tcp: first(node.tcp_sockets()),
        id: node.id().to_string(),
        seed,
        data: data.display().to_string(),
        ..Ready::default()
    };
    Ok(Served {
        ready,
        node,
        _agents: None,
        _home: home,
    })
}

/// The agents on offer. They end when this is dropped.
pub(super) struct Agents {
    _serving: Vec<Serving>,
}

impl Agents {
    pub(super) async fn serve(client: Client, seed: &str) -> Result<Self, BenchError> {
        let mut serving = Vec::new();
        serving.push(
            offer_echo(&client, "echo")
                .await
                .map_err(failed("serving"))?,
        );
        let bulk = client.serve(agent("bulk").map_err(failed("serving"))?, answer_bulk);
        serving.push(bulk.await.map_err(failed("serving"))?);
        let set_up = SetUp {
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

async fn offer_echo(client: &Client, name: &str) -> Result<Serving, Status> {
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
struct SetUp {
    client: Client,
    seed: String,
    echoes: tokio::sync::Mutex<Vec<Serving>>,
    trusted: AtomicU32,
}

impl SetUp {
    async fn answer(&self, mut request: Request) -> Result<Response, Status> {
        let count = number(&mut request).await?.min(u64::from(MOST_NODES * 20)) as u32;
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

/// The far node, and the nodes of this program.
pub(super) struct Far {
    carrier: Carrier,
    ready: Ready,
    options: Options,
    home: TempDir,
    base: Link,
    next_key: AtomicU32,
    /// Nodes that have met the far one.
    known: Mutex<Vec<Link>>,
    /// How many seconds the node took to choose its carrier for bulk, once it has.
    chosen: Mutex<Option<f64>>,
}

/// A node's client, with what it calls.
#[derive(Clone)]
pub(super) struct Link {
    client: Client,
    /// The node itself, where it is of this process and not shared.
    node: Arc<Mutex<Option<Node>>>,
    early: bool,
}

impl Far {
    pub(super) async fn new(
        carrier: Carrier,
        ready: &Ready,
        options: &Options,
    ) -> Result<Self, BenchError> {
        let home = TempDir::new().map_err(BenchError::io("a temporary folder"))?;
        let options = options_near(options, ready)?;
        let node = near_node(carrier, &home.path().join("0"), ready, 0, &options).await?;
        Ok(Self {
            carrier,
            ready: ready.clone(),
            options,
            base: Link::embedded(node),
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

    pub(super) async fn prepare(&self, start: Start, alone: bool) -> Result<Link, BenchError> {
        match start {
            Start::Warm if !alone => {
                self.settle().await?;
                Ok(self.base.clone())
            }
            Start::Cold | Start::Warm => self.stranger().await,
            Start::Resumed | Start::ZeroRtt => {
                let known = lock(&self.known).pop();
                let mut link = match known {
                    Some(link) => link,
                    None => self.stranger().await?,
                };
                // So that it has met the far side, which a node of an earlier work has.
                link.early = false;
                link.echo(0, Priority::default(), Bytes::from_static(b"hello"))
                    .await?;
                self.hang_up(&link.client).await?;
                link.early = start == Start::ZeroRtt;
                Ok(link)
            }
        }
    }

    /// Waits until the tunnel has its connections and is on the path that is to be measured.
    async fn settle(&self) -> Result<(), BenchError> {
        let Options { path, pool, .. } = self.options;
        if path.is_none() && pool.is_none() {
            return Ok(());
        }
        let hello = Bytes::from_static(b"hello");
        self.base.echo(0, Priority::default(), hello).await?;
        if let Some(number) = pool {
            let otherwise = "the tunnel did not get its connections";
            until_within(CONNECTED_WITHIN, &self.base.client, otherwise, |status| {
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

    /// Moves bulk until the node has tried the other carrier for it; seconds that this took, nothing for a
    /// node that may not choose. It is done once: whatever the node thinks later is its own affair.
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
        while begun.elapsed() < CHOOSES_WITHIN {
            let status = status(&self.base.client).await?;
            let carrying = status.tunnels.iter().find(|tunnel| tunnel.carries);
            let trying = carrying.is_some_and(|tunnel| tunnel.why.starts_with("trying"));
            // It was tried, or the node moved for another reason.
            let over_tcp = carrying.is_some_and(|tunnel| tunnel.carrier != "quic");
            if (tried || over_tcp) && !trying {
                let took = begun.elapsed().as_secs_f64();
                *lock(&self.chosen) = Some(took);
                return Ok(Some(took));
            }
            tried |= trying;
            let got = super::Got::default();
            self.base
                .bulk(Priority::default(), CHOOSES_BY, &got)
                .await?;
        }
        Err(BenchError::Unsupported(
            "the node did not try its other carrier: too little was moved",
        ))
    }

    /// What the far node has sent on its tunnels, and lost.
    pub(super) async fn packets(&self) -> Result<Option<Packets>, BenchError> {
        if self.carrier != Carrier::Quic {
            return Ok(None);
        }
        let answer = asked(&self.base.client, "packets", 0, 256).await?;
        serde_json::from_slice(&answer)
            .map(Some)
            .map_err(failed("the packets"))
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

    /// A node that has never met the far one.
    async fn stranger(&self) -> Result<Link, BenchError> {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let data = self.home.path().join(key.to_string());
        let options = Options {
            pool: None,
            ..self.options.clone()
        };
        let node = near_node(self.carrier, &data, &self.ready, key, &options).await?;
        Ok(Link::embedded(node))
    }

    /// Ends a node's tunnel, and leaves it what it knows.
    async fn hang_up(&self, client: &Client) -> Result<(), BenchError> {
        let who = admin::Who { who: FAR.into() };
        let gone: Result<(), Status> = client.admin(method::TRUST_REMOVE, &who).await;
        gone.map_err(failed("hanging up"))?;
        until(client, "the tunnel did not end", |status| {
            status.tunnels.is_empty()
        })
        .await?;
        befriend(client, &self.ready, &self.options).await
    }

    pub(super) async fn release(&self, links: Vec<Link>) {
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

async fn stop(link: Link) {
    let node = lock(&link.node).take();
    if let Some(node) = node {
        node.shutdown(Duration::ZERO).await;
    }
}

/// Waits until a node's tunnel is on a path.
pub(super) async fn on_path(client: &Client, path: Way) -> Result<(), BenchError> {
    let (kind, otherwise) = match path {
        Way::Direct => ("direct", "no direct path came about"),
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

/// What the agent that sets up answers, in at most so many bytes.
async fn asked(client: &Client, what: &str, count: u32, most: usize) -> Result<Bytes, BenchError> {
    let call = client.call(format!("{SET_UP}@{FAR}"));
    let mut answer = call
        .method(what)
        .body(count.to_string())
        .send()
        .await
        .map_err(failed("setting up"))?;
    answer.bytes(most).await.map_err(failed("setting up"))
}

async fn status(client: &Client) -> Result<admin::Status, BenchError> {
    client
        .admin(method::STATUS, &())
        .await
        .map_err(failed("the node's status"))
}

/// What a node has sent on all of its tunnels.
async fn sent(client: &Client) -> Result<Packets, BenchError> {
    let mut all = Packets::default();
    for tunnel in status(client).await?.tunnels {
        all.sent += tunnel.sent_packets;
        all.lost += tunnel.lost_packets;
    }
    Ok(all)
}

impl Link {
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
        let to = match agent {
            0 => format!("echo@{FAR}"),
            agent => format!("echo-{}@{FAR}", agent - 1),
        };
        let mut call = self.client.call(to).priority(priority).body(body);
        if self.early {
            // An echo may be repeated: it may go with the first flight.
            call = call.idempotency_key("echo");
        }
        let mut answer = call.send().await.map_err(failed("the call"))?;
        answer.bytes(limit).await.map_err(failed("the answer"))
    }

    pub(super) async fn bulk(
        &self,
        priority: Priority,
        bytes: u64,
        got: &super::Got,
    ) -> Result<(), BenchError> {
        let call = self.client.call(format!("bulk@{FAR}")).priority(priority);
        let answer = call.body(bytes.to_string()).send().await;
        let mut answer = answer.map_err(failed("the call"))?;
        let mut at = 0;
        while let Some(chunk) = answer.chunk().await.map_err(failed("the answer"))? {
            at = check_pattern(at, &chunk)?;
            got.set(at);
        }
        Ok(())
    }
}

/// A node with the key of a number, that knows the far one.
async fn near_node(
    carrier: Carrier,
    data: &Path,
    far: &Ready,
    number: u32,
    options: &Options,
) -> Result<Node, BenchError> {
    let seed = seed_of(&far.seed, number);
    fs::create_dir_all(data).map_err(BenchError::io("a data folder"))?;
    let mut key = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(DataDir::new(data).key())
        .map_err(BenchError::io("a key"))?;
    writeln!(key, "{seed}").map_err(BenchError::io("a key"))?;
    let node = start(data, config(carrier, options)?).await?;
    join_hub(&node.client(), options).await?;
    befriend(&node.client(), far, options).await?;
    Ok(node)
}

/// Joins the hub of the options, if there is one, and waits until it has this node's record.
async fn join_hub(client: &Client, options: &Options) -> Result<(), BenchError> {
    let Some(ticket) = &options.hub else {
        return Ok(());
    };
    let join = admin::Join {
        ticket: ticket.clone(),
        // The run's own hub.
        yes: true,
        ..admin::Join::default()
    };
    let _: admin::Joined = client
        .admin(method::JOIN, &join)
        .await
        .map_err(failed("joining the hub"))?;
    until(client, "the hub did not answer", |status| {
        !status.hubs.is_empty() && status.hubs.iter().all(|hub| hub.connected)
    })
    .await
}

/// Asks a node for its status until it is as wanted.
async fn until(
    client: &Client,
    otherwise: &'static str,
    wanted: impl Fn(&admin::Status) -> bool,
) -> Result<(), BenchError> {
    until_within(SETTLES_WITHIN, client, otherwise, wanted).await
}

async fn until_within(
    within: Duration,
    client: &Client,
    otherwise: &'static str,
    wanted: impl Fn(&admin::Status) -> bool,
) -> Result<(), BenchError> {
    let begun = std::time::Instant::now();
    loop {
        if wanted(&status(client).await?) {
            return Ok(());
        }
        if begun.elapsed() > within {
            return Err(BenchError::Unsupported(otherwise));
        }
        tokio::time::sleep(LOOKS_EVERY).await;
    }
}

async fn befriend(client: &Client, far: &Ready, options: &Options) -> Result<(), BenchError> {
    // At a hub, nodes learn from it where they are.
    let place = |place: &str| match (&options.hub, place) {
        (Some(_), _) | (_, "") => Vec::new(),
        (None, place) => vec![place.to_owned()],
    };
    let add = admin::TrustAdd {
        id: far.id.parse().map_err(failed("the key"))?,
        alias: FAR.into(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: place(&far.address),
        tcp: place(&far.tcp),
    };
    let _: admin::Trusted = client
        .admin(method::TRUST_ADD, &add)
        .await
        .map_err(failed("trusting"))?;
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
        let _: admin::Trusted = client
            .admin(method::TRUST_ADD, &add)
            .await
            .map_err(failed("trusting"))?;
    }
    Ok(())
}

async fn start(data: &Path, config: Config) -> Result<Node, BenchError> {
    let builder = Node::builder().data_dir(DataDir::new(data)).config(config);
    Box::pin(builder.start())
        .await
        .map_err(failed("starting a node"))
}

fn options_near(options: &Options, far: &Ready) -> Result<Options, BenchError> {
    Ok(Options {
        listen: any_like(far.socket()?.ip()),
        ..options.clone()
    })
}

fn config(carrier: Carrier, options: &Options) -> Result<Config, BenchError> {
    let mut config = Config::default();
    config.listen.udp = vec![(options.listen, 0).into()];
    config.carrier = match carrier {
        Carrier::Quic => hailwire::config::Carrier::Quic,
        Carrier::H2 => hailwire::config::Carrier::H2,
        Carrier::Ws => hailwire::config::Carrier::Ws,
        Carrier::Auto => hailwire::config::Carrier::Auto,
    };
    if carrier != Carrier::Quic {
        config.listen.tcp = vec![(options.listen, 0).into()];
    }
    if let Some(number) = options.pool {
        config.pool = Pool::Fixed(number);
    }
    match options.congestion {
        Some(Congestion::Bbr) => config.quic.congestion = hailwire::config::Congestion::Bbr,
        Some(Congestion::Cubic) => config.quic.congestion = hailwire::config::Congestion::Cubic,
        None => {}
    }
    if let Some(window) = options.window {
        if window < LEAST_WINDOW {
            return Err(BenchError::Unsupported(
                "a node's stream window is 2 MiB at least: an urgent call's beginning may need it",
            ));
        }
        config.quic.stream_window = Size::mib((window >> 20) as u16);
    }
    Ok(config)
}

/// 28 random bytes in hex, to which a number is added.
fn draw_seed() -> Result<String, BenchError> {
    let mut bytes = [0; 28];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(BenchError::io("/dev/urandom"))?;
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
        let pair = std::str::from_utf8(pair).map_err(failed("the seed"))?;
        *byte = u8::from_str_radix(pair, 16).map_err(failed("the seed"))?;
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
