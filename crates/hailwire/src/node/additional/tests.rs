//! Two nodes in one process, with several connections between them.

use std::{net::Ipv4Addr, time::Duration};

use hailwire_core::Transport;
use hailwire_wire::header::Hello;
use tokio::time::timeout;

use super::*;
use crate::{
    Agent, Client, Config, DataDir, Node, Request, Response, ServeHandle,
    admin::{self, method},
    carrier::{CarrierConnection, mux},
    config::TunnelPool,
    node::peers::Peers,
    session::{OpenedStream, StreamDispatcher},
};

pub(in crate::node) const PATIENCE: Duration = Duration::from_secs(20);

const CARRIERS: [Carrier; 3] = [Carrier::Quic, Carrier::H2, Carrier::Ws];

pub(in crate::node) struct TestNode {
    pub(in crate::node) node: Node,
    dir: tempfile::TempDir,
}

impl TestNode {
    async fn start(name: &str, carrier: Carrier, pool: TunnelPool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.node.name = Some(name.parse().unwrap());
        config.listen.udp = vec![(Ipv4Addr::LOCALHOST, 0).into()];
        config.listen.tcp = vec![(Ipv4Addr::LOCALHOST, 0).into()];
        config.carrier = carrier;
        config.pool = pool;
        Self::with(dir, config).await
    }

    async fn with(dir: tempfile::TempDir, config: Config) -> Self {
        let node = Node::builder()
            .data_dir(DataDir::new(dir.path()))
            .config(config);
        let node = Box::pin(node.start()).await.unwrap();
        Self { node, dir }
    }

    /// The same node, started anew.
    pub(in crate::node) async fn again(self) -> Self {
        let config = self.inner().config().clone();
        self.node.shutdown(Duration::ZERO).await;
        Self::with(self.dir, config).await
    }

    pub(in crate::node) fn client(&self) -> Client {
        self.node.client()
    }

    pub(in crate::node) fn inner(&self) -> &Arc<NodeInner> {
        &self.node.inner
    }

    /// The connections to a peer, once there are so many.
    async fn connections(&self, peer: &Self, number: usize) -> Vec<Session> {
        let all = || -> Vec<Session> {
            let of = |transport| self.inner().peers.connections(peer.node.id(), transport);
            Transport::BOTH.into_iter().flat_map(of).collect()
        };
        self.once(|| Some(all()).filter(|all| all.len() == number))
            .await
    }

    /// What `find` finds, once it does; asked again whenever the tunnels change.
    pub(in crate::node) async fn once<T>(&self, find: impl Fn() -> Option<T>) -> T {
        let mut changes = self.inner().peers.changes();
        let found = async {
            loop {
                if let Some(found) = find() {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        };
        timeout(PATIENCE, found).await.expect("it was found")
    }
}

/// `near` dials `far`, which trusts it.
pub(in crate::node) async fn pair(
    carrier: Carrier,
    near: TunnelPool,
    far: TunnelPool,
) -> (TestNode, TestNode) {
    let (near, far) = (
        TestNode::start("near", carrier, near).await,
        TestNode::start("far", carrier, far).await,
    );
    let texts =
        |sockets: Vec<std::net::SocketAddr>| sockets.iter().map(ToString::to_string).collect();
    for (here, there, alias) in [(&far, &near, "near"), (&near, &far, "far")] {
        let add = admin::TrustAdd {
            id: there.node.id(),
            alias: alias.into(),
            allow: Vec::new(),
            offer: Vec::new(),
            addresses: texts(there.node.sockets()),
            tcp: texts(there.node.tcp_sockets()),
        };
        let _: admin::TrustedPeer = here.client().admin(method::TRUST_ADD, &add).await.unwrap();
    }
    (near, far)
}

pub(in crate::node) async fn serve_echo(host: &TestNode, name: &str) -> ServeHandle {
    let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
    let agent = Agent::new(name).unwrap();
    host.client().serve(agent, echo).await.unwrap()
}

/// Waits until a list of a peer that says this name has been entered.
pub(in crate::node) async fn known(host: &TestNode, name: &str) {
    let mut entered = host.inner().peers.lists.subscribe();
    let name = name.parse().unwrap();
    let known = async {
        while !host.inner().registry.knows(&name) {
            entered.changed().await.unwrap();
        }
    };
    timeout(PATIENCE, known)
        .await
        .expect("the list was entered");
}

/// An agent that answers once it is let go.
struct HeldAgent {
    _serving: ServeHandle,
    go: watch::Sender<bool>,
    /// How many calls have reached it.
    begun: watch::Receiver<u64>,
}

impl HeldAgent {
    async fn serve(host: &TestNode) -> Self {
        let (go, (count, begun)) = (watch::Sender::new(false), watch::channel(0));
        let held = go.clone();
        let wait = move |_: Request| {
            count.send_modify(|begun| *begun += 1);
            let mut held = held.subscribe();
            async move {
                held.wait_for(|go| *go).await.unwrap();
                Ok(Response::new("late"))
            }
        };
        let agent = Agent::new("held").unwrap();
        Self {
            _serving: host.client().serve(agent, wait).await.unwrap(),
            go,
            begun,
        }
    }

    /// Waits until so many calls have reached it: they are in flight on both sides.
    async fn has(&mut self, number: u64) {
        let reached = self.begun.wait_for(|begun| *begun == number);
        timeout(PATIENCE, reached).await.unwrap().unwrap();
    }
}

pub(in crate::node) async fn call(client: &Client, to: &str) -> Result<bytes::Bytes, Status> {
    let call = client.call(to).body("hello").deadline(PATIENCE);
    call.send().await?.bytes(100).await
}

/// So many calls that are answered later.
fn begin(client: &Client, number: usize) -> JoinSet<Result<bytes::Bytes, Status>> {
    let mut calls = JoinSet::new();
    for _ in 0..number {
        let client = client.clone();
        calls.spawn(async move { call(&client, "held@far").await });
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_has_as_many_connections_as_the_dialler_is_set_up_for_and_calls_spread() {
    for carrier in CARRIERS {
        let (near, far) = pair(carrier, TunnelPool::Fixed(4), TunnelPool::Fixed(1)).await;
        let mut held = HeldAgent::serve(&far).await;
        let _echo = serve_echo(&far, "echo").await;
        assert_eq!(call(&near.client(), "echo@far").await.unwrap(), "hello");
        let ours = near.connections(&far, 4).await;
        let theirs = far.connections(&near, 4).await;
        let mut calls = JoinSet::new();
        for number in 1..=12 {
            let client = near.client();
            calls.spawn(async move { call(&client, "held@far").await });
            held.has(number).await;
        }
        for session in ours.iter().chain(&theirs) {
            assert_eq!(session.in_flight(), 3, "{carrier:?}");
        }
        held.go.send_replace(true);
        while let Some(answer) = calls.join_next().await {
            assert_eq!(answer.unwrap().unwrap(), "late");
        }
        // The far side places its own calls on them too.
        let _back = serve_echo(&near, "back").await;
        assert_eq!(call(&far.client(), "back@near").await.unwrap(), "hello");
        for host in [&near, &far] {
            let status: admin::NodeStatus = host.client().admin(method::STATUS, &()).await.unwrap();
            assert_eq!(status.tunnels.len(), 1);
            assert_eq!(status.tunnels[0].connections, 4, "{carrier:?}");
        }
        assert_eq!(
            near.inner().peers.len(),
            1,
            "one peer, however many connections"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_go_on_when_the_first_dies_and_it_is_made_good() {
    for carrier in CARRIERS {
        let (near, far) = pair(carrier, TunnelPool::Fixed(4), TunnelPool::Fixed(1)).await;
        let mut held = HeldAgent::serve(&far).await;
        let _echo = serve_echo(&far, "echo").await;
        call(&near.client(), "echo@far").await.unwrap();
        let ours = near.connections(&far, 4).await;
        far.connections(&near, 4).await;
        let mut calls = begin(&near.client(), 8);
        held.has(8).await;
        assert_eq!(ours.iter().map(Session::in_flight).sum::<u64>(), 8);
        let on_the_first = ours[0].in_flight();
        assert!((1..8).contains(&on_the_first), "{on_the_first}");

        ours[0].close(Code::Unavailable, "a cable was pulled");
        near.connections(&far, 4).await;
        for _ in 0..20 {
            assert_eq!(call(&near.client(), "echo@far").await.unwrap(), "hello");
        }
        let now = near.connections(&far, 4).await;
        assert!(now[0].is(&ours[1]), "the eldest is the first");
        assert_eq!(far.connections(&near, 4).await.len(), 4);
        held.go.send_replace(true);
        let (mut lost, mut answered) = (0, 0);
        while let Some(answer) = calls.join_next().await {
            match answer.unwrap() {
                Ok(answer) => answered += u64::from(answer == "late"),
                Err(status) => lost += u64::from(status.code == Code::Unavailable),
            }
        }
        assert_eq!(
            (lost, answered),
            (on_the_first, 8 - on_the_first),
            "{carrier:?}"
        );
        // What is offered later arrives by the one that is the first now.
        let _later = serve_echo(&far, "later").await;
        known(&near, "later").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_the_rule_a_tunnel_grows_with_what_the_peer_offers() {
    let (near, far) = pair(Carrier::Ws, TunnelPool::Rule, TunnelPool::Fixed(1)).await;
    let mut serving = vec![serve_echo(&far, "echo").await];
    call(&near.client(), "echo@far").await.unwrap();
    near.connections(&far, 2).await;
    for number in 0..30 {
        serving.push(serve_echo(&far, &format!("echo-{number}")).await);
    }
    // 31 agents.
    near.connections(&far, 4).await;
    far.connections(&near, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_ends_every_connection_of_the_old_start() {
    let (near, far) = pair(Carrier::Ws, TunnelPool::Fixed(3), TunnelPool::Fixed(1)).await;
    let _echo = serve_echo(&far, "echo").await;
    call(&near.client(), "echo@far").await.unwrap();
    let ours = near.connections(&far, 3).await;
    let theirs = far.connections(&near, 3).await;
    // The same node, started again: another instance from the same key.
    let (session, _other_end) = session(Hello {
        instance: 7,
        ..Hello::default()
    })
    .await;
    assert!(
        far.inner()
            .peers
            .enter(near.node.id(), &session, false, Carrier::Auto)
    );
    for session in ours.iter().chain(&theirs) {
        timeout(PATIENCE, session.closed()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_nothing_to_stand_beside_is_refused_with_the_reason() {
    let (near, far) = pair(Carrier::Ws, TunnelPool::Fixed(2), TunnelPool::Fixed(1)).await;
    let dial = dial_additional(near.inner().clone(), far.node.id(), Carrier::Ws);
    let refused = dial.await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.contains("no tunnel over ws"), "{refused}");
    assert_eq!(far.inner().peers.len(), 0, "it is no tunnel either");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_peer_gets_no_connection_beside_another() {
    let (near, far) = pair(Carrier::Ws, TunnelPool::Fixed(2), TunnelPool::Fixed(1)).await;
    let who = admin::PeerSelector { who: "near".into() };
    let (): () = far
        .client()
        .admin(method::TRUST_REMOVE, &who)
        .await
        .unwrap();
    let dial = dial_additional(near.inner().clone(), far.node.id(), Carrier::Ws);
    assert_eq!(dial.await.unwrap_err().code, Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nearly_every_call_finds_a_tunnel_up() {
    for pool in [TunnelPool::Fixed(1), TunnelPool::Fixed(4)] {
        let (near, far) = pair(Carrier::H2, pool, TunnelPool::Fixed(1)).await;
        let _echo = serve_echo(&far, "echo").await;
        let mut calls = JoinSet::new();
        for number in 0..500 {
            let client = near.client();
            calls.spawn(async move { call(&client, "echo@far").await });
            // The first ones come together, as they do when a program starts.
            if number >= 8 {
                calls.join_next().await.unwrap().unwrap().unwrap();
            }
        }
        while calls.join_next().await.is_some() {}
        let status: admin::NodeStatus = near.client().admin(method::STATUS, &()).await.unwrap();
        assert_eq!(status.reused + status.made, 500);
        let rate = status.reused as f64 / 500.0;
        assert!(rate >= 0.85, "{rate}");
    }
}

/// A greeted session of ours, whose far side has greeted with this.
async fn session(far_hello: Hello) -> (Session, Session) {
    struct NoDispatcher;
    impl StreamDispatcher for NoDispatcher {
        async fn dispatch(self: Arc<Self>, _session: Session, _opening: OpenedStream) {}
    }
    let hello = |hello: Hello| Hello {
        versions: vec![hailwire_wire::header::VERSION],
        ..hello
    };
    let (near, far) = mux::MuxConnection::pair();
    let (near, far) = (CarrierConnection::Mux(near), CarrierConnection::Mux(far));
    let far = Session::start(far, true, hello(far_hello), Arc::new(NoDispatcher));
    let near = Session::start(near, false, hello(Hello::default()), Arc::new(NoDispatcher));
    timeout(PATIENCE, near.greeted()).await.unwrap().unwrap();
    (near, far)
}

#[tokio::test]
async fn a_tunnel_takes_so_many_connections_and_no_more() {
    let (me, id) = (NodeId::from_bytes([2; 32]), NodeId::from_bytes([1; 32]));
    let peers = Peers::new(me);
    let most = limits::MAX_CONNECTIONS;
    let mut all = Vec::new();
    let (first, far) = session(Hello::default()).await;
    assert!(peers.enter(id, &first, false, Carrier::Auto));
    all.push((first, far));
    for number in 2..=most {
        let (one, far) = session(Hello::default()).await;
        peers.enter_additional(id, &one, false, most).unwrap();
        assert_eq!(peers.connections(id, Transport::Tcp).len(), number);
        all.push((one, far));
    }
    let (further, _far) = session(Hello::default()).await;
    let refused = peers
        .enter_additional(id, &further, false, most)
        .unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert!(refused.message.contains("64 connections"), "{refused}");

    // The one that is there twice is no further one.
    peers.enter_additional(id, &all[5].0, false, most).unwrap();
    // One that goes away leaves its place.
    peers.leave(id, &all[5].0);
    peers.enter_additional(id, &further, false, most).unwrap();
}

#[tokio::test]
async fn of_another_start_of_the_peer_nothing_stands_beside_a_tunnel() {
    let (me, id) = (NodeId::from_bytes([2; 32]), NodeId::from_bytes([1; 32]));
    let peers = Peers::new(me);
    let of_start = |instance| Hello {
        instance,
        ..Hello::default()
    };
    let (first, _far) = session(of_start(3)).await;
    let (late, _other) = session(of_start(1)).await;
    assert!(peers.enter(id, &first, false, Carrier::Auto));
    let refused = peers.enter_additional(id, &late, false, 4).unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(!first.is_closed(), "a late one undoes nothing");
}

#[tokio::test]
async fn what_stands_beside_a_tunnel_goes_with_it_when_another_takes_its_place() {
    let (me, id) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
    let peers = Peers::new(me);
    let (first, _a) = session(Hello::default()).await;
    let (additional, _b) = session(Hello::default()).await;
    let (ours, _c) = session(Hello::default()).await;
    assert!(peers.enter(id, &first, false, Carrier::Auto));
    peers.enter_additional(id, &additional, false, 4).unwrap();
    let standing = peers.watch_size(id, &first).unwrap();
    // Both have dialled at once, and the lower key's connection is kept.
    assert!(peers.enter(id, &ours, true, Carrier::Auto));
    assert!(
        standing.has_changed().is_err(),
        "nobody keeps the old one up"
    );
    assert_eq!(peers.connections(id, Transport::Tcp).len(), 1);
    peers.close_retired();
    for old in [&first, &additional] {
        timeout(PATIENCE, old.closed()).await.unwrap();
    }
    assert!(!ours.is_closed());
}
