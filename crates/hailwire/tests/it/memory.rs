//! What peers that mean harm can make a node hold: bodies without end, answers that nobody reads, over
//! real sockets and against a node in a process of its own.

use std::{net::SocketAddr, time::Duration};

use bytes::{Bytes, BytesMut};
use hailwire::{
    Agent, Client, Code, DataDir, NodeId, Priority, Request, Response,
    admin::{self, method},
    carrier::{
        CarrierConnection, ReadError, RecvStream, SendStream, quic,
        tcp::{self, TcpCarrier, TlsIdentity},
    },
};
use hailwire_wire::{
    CallHeader,
    frame::{self, FrameKind},
    header::{self, Hello, VERSION},
};
use iroh::{
    Endpoint, EndpointAddr, EndpointId, RelayMap, RelayMode, TransportAddr, endpoint::presets,
};
use tokio::task::JoinSet;

use crate::{
    carriers::both,
    child::{Helper, Role},
    fixtures::identity,
    test_node::{PATIENCE, call, status},
};

/// What a node takes at most, whatever its peers do; what was measured is in
/// docs/decisions/0027-what-peers-may-hold.md.
const MOST: u64 = 256 << 20;

/// One attack at a time, so that each has the machine for itself.
static ATTACK: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const PEERS: usize = 64;

/// After so long without an answer a node does not read from this peer.
const SETTLED: Duration = Duration::from_secs(5);

/// Streams of each peer, half of which send a body and half of which read no answer.
const STREAMS: usize = 400;

/// Streams on which each peer sends what nobody reads, together more than a window.
const FILLED: usize = 20;

/// After so long a write waits for credit.
const STUCK: Duration = Duration::from_millis(100);

/// A node in another process.
struct Victim {
    node: Helper,
    client: Client,
    id: NodeId,
    udp: SocketAddr,
    tcp: SocketAddr,
    dir: tempfile::TempDir,
}

impl Victim {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Helper::start(Role::TcpNode, dir.path(), "victim");
        let client = Client::attach(&DataDir::new(dir.path())).await.unwrap();
        let status = status(&client).await;
        Self {
            node,
            client,
            id: status.id,
            udp: status.sockets[0].parse().unwrap(),
            tcp: status.tcp_sockets[0].parse().unwrap(),
            dir,
        }
    }

    fn place(&self) -> Place {
        Place {
            id: self.id,
            udp: self.udp,
            tcp: self.tcp,
        }
    }

    async fn trust(&self, id: NodeId, allow: &[&str]) {
        let add = admin::TrustAdd {
            id,
            alias: String::new(),
            allow: allow.iter().map(ToString::to_string).collect(),
            offer: Vec::new(),
            addresses: Vec::new(),
            tcp: Vec::new(),
        };
        let _: admin::TrustedPeer = self.client.admin(method::TRUST_ADD, &add).await.unwrap();
    }
}

/// Over what a peer comes, with a key of its own.
#[derive(Clone)]
enum Way {
    Tcp(TcpCarrier, TlsIdentity),
    Quic(Endpoint),
}

impl Way {
    async fn tcp(by: TcpCarrier) -> (NodeId, Self) {
        let (id, identity) = identity();
        (id, Self::Tcp(by, identity))
    }

    async fn quic() -> (NodeId, Self) {
        let endpoint = Endpoint::builder(presets::Minimal)
            .relay_mode(RelayMode::Custom(RelayMap::empty()))
            .clear_ip_transports()
            .bind_addr(SocketAddr::from(([127, 0, 0, 1], 0)))
            .unwrap()
            .bind()
            .await
            .unwrap();
        let id = NodeId::from_bytes(*endpoint.id().as_bytes());
        (id, Self::Quic(endpoint))
    }

    async fn connect(&self, victim: Place) -> CarrierConnection {
        match self {
            Self::Tcp(by, identity) => {
                let dialled = tcp::connect(identity, victim.id, victim.tcp, &[*by]).await;
                dialled.unwrap()
            }
            Self::Quic(endpoint) => {
                let id = EndpointId::from_bytes(victim.id.as_bytes()).unwrap();
                let to = EndpointAddr::from_parts(id, [TransportAddr::Ip(victim.udp)]);
                CarrierConnection::Quic(quic::QuicConnection::new(
                    endpoint.connect(to, b"hailwire").await.unwrap(),
                ))
            }
        }
    }
}

/// Where a node is.
#[derive(Clone, Copy)]
struct Place {
    id: NodeId,
    udp: SocketAddr,
    tcp: SocketAddr,
}

/// A stream whose answer nobody reads.
type Held = (SendStream, RecvStream);

/// A peer that greets and then does its worst on one connection.
struct Hostile {
    connection: CarrierConnection,
    held: Vec<Held>,
}

impl Hostile {
    async fn at(victim: Place, way: &Way) -> Self {
        let connection = way.connect(victim).await;
        let hello = Hello {
            versions: vec![VERSION],
            ..Hello::default()
        };
        let mut this = Self {
            connection,
            held: Vec::new(),
        };
        let mut bytes = BytesMut::new();
        frame::put(&mut bytes, FrameKind::HELLO, &header::encode(&hello));
        this.open(bytes.freeze()).await;
        this
    }

    /// Opens a stream and writes, as far as there is credit for it. False where there can be none.
    async fn open(&mut self, bytes: Bytes) -> bool {
        let opened = self.connection.open(Priority::Medium);
        let Ok(Ok((mut send, recv))) = tokio::time::timeout(SETTLED, opened).await else {
            return false;
        };
        let _ = tokio::time::timeout(SETTLED, send.write(bytes)).await;
        self.held.push((send, recv));
        true
    }

    /// Sends bodies to an agent that reads nothing, until the window is full or the connection is gone.
    async fn fill(&mut self) {
        let piece = data(64 * 1024);
        for _ in 0..FILLED {
            if !self.open(call_to("deaf", 0)).await {
                return;
            }
            let Some((send, _)) = self.held.last_mut() else {
                return;
            };
            let write = async { while send.write(piece.clone()).await.is_ok() {} };
            let _ = tokio::time::timeout(STUCK, write).await;
        }
    }

    /// The code with which the node resets this stream.
    async fn refusal(&mut self, at: usize) -> Code {
        let (_, recv) = &mut self.held[at];
        let read = async {
            loop {
                match recv.read(1 << 16).await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Code::Ok,
                    Err(ReadError::Reset(code)) => return code,
                    Err(_) => return Code::Unavailable,
                }
            }
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap()
    }
}

fn data(bytes: usize) -> Bytes {
    let mut frame = BytesMut::new();
    frame::put(&mut frame, FrameKind::DATA, &vec![0; bytes]);
    frame.freeze()
}

fn call_to(agent: &str, body: usize) -> Bytes {
    let header = CallHeader {
        to: agent.to_owned(),
        ..CallHeader::default()
    };
    let mut bytes = BytesMut::new();
    frame::put(&mut bytes, FrameKind::CALL, &header::encode(&header));
    if body > 0 {
        bytes.extend_from_slice(&data(body));
    }
    bytes.freeze()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_hostile_peers_over_web_socket_cannot_make_a_node_hold_more_than_its_bound() {
    attacked_by_64(async || Way::tcp(TcpCarrier::Ws).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_hostile_peers_over_http2_cannot_make_a_node_hold_more_than_its_bound() {
    attacked_by_64(async || Way::tcp(TcpCarrier::H2).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_hostile_peers_over_quic_cannot_make_a_node_hold_more_than_its_bound() {
    attacked_by_64(async || Way::quic().await).await;
}

/// Bodies without end, and answers that nobody reads.
async fn attacked_by_64(way: impl AsyncFn() -> (NodeId, Way)) {
    let _alone = ATTACK.lock().await;
    let victim = Victim::start().await;
    let honest = both("honest", |_| {}).await;
    victim.trust(honest.node.id(), &[]).await;
    let at = admin::TrustAdd {
        id: victim.id,
        alias: "victim".into(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: Vec::new(),
        tcp: vec![victim.tcp.to_string()],
    };
    let _: admin::TrustedPeer = honest.client().admin(method::TRUST_ADD, &at).await.unwrap();
    // In a process of its own, as agents are: what the node holds of its answers is the node's.
    let large = |_: Request| async { Ok(Response::new(Bytes::from(vec![7; 256 * 1024]))) };
    let agent = Agent::new("large").unwrap();
    let _large = victim.client.serve(agent, large).await.unwrap();
    let deaf = |request: Request| async move {
        std::future::pending::<()>().await;
        Ok(Response::new(request.into_body()))
    };
    let _deaf = victim
        .client
        .serve(Agent::new("deaf").unwrap(), deaf)
        .await
        .unwrap();
    let mut attacks = JoinSet::new();
    let (body, ask) = (call_to("node", 60_000), call_to("large", 0));
    for _ in 0..PEERS {
        let (id, way) = way().await;
        victim.trust(id, &["large", "deaf"]).await;
        let (place, body, ask) = (victim.place(), body.clone(), ask.clone());
        attacks.spawn(async move {
            let mut hostile = Hostile::at(place, &way).await;
            for turn in 0..STREAMS {
                let what = if turn % 2 == 0 { &body } else { &ask };
                if !hostile.open(what.clone()).await {
                    break;
                }
            }
            hostile.fill().await;
            // Answered or refused: then everything before it has been read. Or nobody reads it, which is
            // an answer too.
            hostile.open(call_to("echo", 0)).await;
            let last = hostile.held.len() - 1;
            let _ = tokio::time::timeout(SETTLED, hostile.refusal(last)).await;
            hostile
        });
    }
    let mut hostile = Vec::new();
    while let Some(done) = attacks.join_next().await {
        hostile.push(done.unwrap());
        // Others are served meanwhile.
        let client = honest.client();
        let answer = call(&client, "echo@victim", "hail");
        let answer = tokio::time::timeout(3 * PATIENCE, answer);
        assert_eq!(answer.await.unwrap().unwrap(), b"hail");
    }
    let peak = victim.node.peak_rss();
    let over = hostile[0].connection.carrier();
    println!("peak of the node over {over}: {} MiB", peak >> 20);
    assert!(peak < MOST, "{} MiB", peak >> 20);
    drop(hostile);
    let gone = async {
        while status(&victim.client).await.tunnels.len() > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(3 * PATIENCE, gone).await.unwrap();
    let kept = status(&victim.client).await.rss_bytes;
    println!("after they have gone: {} MiB", kept >> 20);
    drop((honest, victim.dir));
}

#[tokio::test]
async fn a_peer_with_more_streams_than_its_room_is_told_so_and_others_are_served() {
    let victim = Victim::start().await;
    let (id, way) = Way::tcp(TcpCarrier::Ws).await;
    victim.trust(id, &[]).await;
    let mut hostile = Hostile::at(victim.place(), &way).await;
    for _ in 0..4000 {
        hostile.open(call_to("node", 100)).await;
    }
    assert_eq!(hostile.refusal(4000).await, Code::ResourceExhausted);
    assert_eq!(call(&victim.client, "echo", "hail").await.unwrap(), b"hail");
}
