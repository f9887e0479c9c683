//! What peers that mean harm can make a node hold: bodies without end, answers that nobody reads, over
//! real sockets and against a node in a process of its own.

use std::{net::SocketAddr, time::Duration};

use bytes::{Bytes, BytesMut};
use hailwire::{
    Agent, Client, Code, DataDir, NodeId, Priority, Request, Response,
    admin::{self, method},
    carrier::{
        Connection, ReadError, RecvStream, SendStream,
        tcp::{self, Identity, TcpCarrier},
    },
};
use hailwire_wire::{
    CallHeader,
    frame::{self, FrameKind},
    header::{self, Hello, VERSION},
};
use tokio::task::JoinSet;

use crate::{
    carriers::both,
    child::{Helper, Role},
    fixtures::identity,
    house::{PATIENCE, call, status},
};

/// What a node takes at most, whatever its peers do.
const MOST: u64 = 256 << 20;

const PEERS: usize = 64;

/// After so long without an answer a node does not read from this peer.
const SETTLED: Duration = Duration::from_secs(5);

/// Streams of each peer, half of which send a body and half of which read no answer.
const STREAMS: usize = 400;

/// A node in another process.
struct Victim {
    node: Helper,
    client: Client,
    id: NodeId,
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
            tcp: status.tcp_sockets[0].parse().unwrap(),
            dir,
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
        let _: admin::Trusted = self.client.admin(method::TRUST_ADD, &add).await.unwrap();
    }
}

/// A stream whose answer nobody reads.
type Held = (SendStream, RecvStream);

/// A peer that greets and then does its worst on one connection.
struct Hostile {
    connection: Connection,
    held: Vec<Held>,
}

impl Hostile {
    async fn at((victim, tcp): (NodeId, SocketAddr), identity: &Identity, by: TcpCarrier) -> Self {
        let connection = tcp::connect(identity, victim, tcp, &[by]).await.unwrap();
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

    async fn open(&mut self, bytes: Bytes) -> bool {
        let Ok((mut send, recv)) = self.connection.open(Priority::Medium).await else {
            return false;
        };
        let _ = send.write(bytes).await;
        self.held.push((send, recv));
        true
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

fn call_to(agent: &str, body: usize) -> Bytes {
    let header = CallHeader {
        to: agent.to_owned(),
        ..CallHeader::default()
    };
    let mut bytes = BytesMut::new();
    frame::put(&mut bytes, FrameKind::CALL, &header::encode(&header));
    if body > 0 {
        frame::put(&mut bytes, FrameKind::DATA, &vec![0; body]);
    }
    bytes.freeze()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_hostile_peers_over_web_socket_cannot_make_a_node_hold_256_mib() {
    attacked_by_64(TcpCarrier::Ws).await;
}

/// Bodies without end, and answers that nobody reads.
async fn attacked_by_64(by: TcpCarrier) {
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
    let _: admin::Trusted = honest.client().admin(method::TRUST_ADD, &at).await.unwrap();
    // In a process of its own, as agents are: what the node holds of its answers is the node's.
    let large = |_: Request| async { Ok(Response::new(Bytes::from(vec![7; 256 * 1024]))) };
    let agent = Agent::new("large").unwrap();
    let _large = victim.client.serve(agent, large).await.unwrap();
    let mut attacks = JoinSet::new();
    let (body, ask) = (call_to("node", 60_000), call_to("large", 0));
    for _ in 0..PEERS {
        let (id, identity) = identity();
        victim.trust(id, &["large"]).await;
        let (place, body, ask) = ((victim.id, victim.tcp), body.clone(), ask.clone());
        attacks.spawn(async move {
            let mut hostile = Hostile::at(place, &identity, by).await;
            for turn in 0..STREAMS {
                let what = if turn % 2 == 0 { &body } else { &ask };
                if !hostile.open(what.clone()).await {
                    break;
                }
            }
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
    println!("peak of the node: {} MiB", peak >> 20);
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
    let (id, identity) = identity();
    victim.trust(id, &[]).await;
    let mut hostile = Hostile::at((victim.id, victim.tcp), &identity, TcpCarrier::Ws).await;
    for _ in 0..4000 {
        hostile.open(call_to("node", 100)).await;
    }
    assert_eq!(hostile.refusal(4000).await, Code::ResourceExhausted);
    assert_eq!(call(&victim.client, "echo", "hail").await.unwrap(), b"hail");
}
