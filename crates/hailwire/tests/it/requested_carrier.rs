//! A carrier that is asked for: by a call, and for a peer by the configuration.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hailwire::{
    Agent, Code, Request, Response, ServeHandle, admin,
    admin::method,
    config::{Carrier, PeerSettings},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    carriers::{both, call, carrying, introduce, ping},
    test_node::{TestNode, serve_echo},
};

const ALL: [Carrier; 3] = [Carrier::Quic, Carrier::H2, Carrier::Ws];

/// Two nodes that know each other's addresses of both kinds.
async fn met(far: &TestNode, near: &TestNode) {
    let (node, other) = (&far.node, &near.node);
    introduce(near, far, "far", &node.sockets(), &node.tcp_sockets()).await;
    introduce(far, near, "near", &other.sockets(), &other.tcp_sockets()).await;
}

/// An agent that answers with the carriers whose tunnels have a call in flight at its node, and with
/// the carrier that its header names.
async fn serve_which(host: &TestNode) -> ServeHandle {
    let (client, changes) = (host.client(), host.node.tunnel_changes());
    let which = move |request: Request| {
        let (client, mut changes) = (client.clone(), changes.clone());
        async move {
            loop {
                let status: admin::NodeStatus = client.admin(method::STATUS, &()).await?;
                let busy = status.tunnels.iter().filter(|t| t.in_flight > 0);
                let mut words: Vec<&str> = busy.map(|tunnel| tunnel.carrier.as_str()).collect();
                // A call may come before its tunnel is entered.
                if !words.is_empty() || request.caller().node().is_none() {
                    words.push(&request.header().carrier);
                    return Ok(Response::new(words.join(" ")));
                }
                changes.changed().await.expect("the node is there");
            }
        }
    };
    let agent = Agent::new("which").unwrap();
    host.client().serve(agent, which).await.unwrap()
}

/// Calls `which` over a carrier.
async fn ask(host: &TestNode, to: &str, carrier: Carrier) -> String {
    let call = host.client().call(to).carrier(carrier);
    let bytes = call.send().await.unwrap().bytes(1000).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn a_call_goes_over_the_carrier_that_it_asks_for_and_nobody_else_is_told() {
    let (far, near) = (both("far", |_| {}).await, both("near", |_| {}).await);
    met(&far, &near).await;
    let _which = serve_which(&far).await;
    for round in ["made", "found"] {
        for carrier in ALL {
            for to in ["which@far", "which"] {
                let came = ask(&near, to, carrier).await;
                assert_eq!(came, format!("{} ", carrier.name()), "{round} {to}");
            }
        }
    }
    // What takes new calls is not changed by it.
    assert_eq!(carrying(&near).await.0, "quic");
    assert_eq!(ask(&near, "which@far", Carrier::Auto).await, "quic ");
    // From a program beside the node, too; a stream chooses as a call does.
    let program = near.attach().await;
    let mut stream = program
        .stream("which@far")
        .carrier(Carrier::H2)
        .open()
        .await
        .unwrap();
    assert_eq!(stream.recv.bytes(1000).await.unwrap(), "h2 ");
    let _here = serve_which(&near).await;
    assert_eq!(
        ask(&near, "which", Carrier::Ws).await,
        "",
        "here it is nothing to choose"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_that_ask_at_once_share_one_dial() {
    let (far, near) = (both("far", |_| {}).await, both("near", |_| {}).await);
    introduce(&far, &near, "near", &[], &[]).await;
    let door = CountedDoor::to(far.node.tcp_sockets()[0]).await;
    introduce(&near, &far, "far", &[], &[door.address]).await;
    let _which = serve_which(&far).await;
    let mut calls = JoinSet::new();
    for _ in 0..32 {
        let call = near.client().call("which@far").carrier(Carrier::Ws);
        calls.spawn(async move { call.send().await.unwrap().bytes(1000).await.unwrap() });
    }
    while let Some(came) = calls.join_next().await {
        assert_eq!(came.unwrap(), "ws ");
    }
    assert_eq!(door.came.load(Ordering::SeqCst), 1);
}

/// Passes TCP connections on, and counts them.
struct CountedDoor {
    address: SocketAddr,
    came: Arc<AtomicUsize>,
    _passing: JoinSet<()>,
}

impl CountedDoor {
    async fn to(far: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let came = Arc::new(AtomicUsize::new(0));
        let count = came.clone();
        let mut passing = JoinSet::new();
        passing.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                connections.spawn(async move {
                    let mut far = TcpStream::connect(far).await.unwrap();
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Self {
            address,
            came,
            _passing: passing,
        }
    }
}

#[tokio::test]
async fn a_carrier_that_the_peer_does_not_have_is_said_with_what_to_do() {
    let far = TestNode::named("far").await;
    let near = both("near", |_| {}).await;
    met(&far, &near).await;
    let _echo = serve_echo(&far.client(), "echo").await;
    assert_eq!(call(&near.client(), "echo@far", "x").await.unwrap(), "x");
    for to in ["echo@far", "echo"] {
        let asked = near.client().call(to).carrier(Carrier::H2).send().await;
        let status = asked.unwrap_err();
        assert_eq!(status.code, Code::Unavailable);
        let text = "does not listen on TCP";
        assert!(status.message.contains(text), "{to}: {status}");
        assert!(status.hint.contains("--listen-tcp"), "{}", status.hint);
    }
    // It is well all the same.
    assert_eq!(call(&near.client(), "echo", "y").await.unwrap(), "y");
    let refused = ping(&near, "far", "ws").await.unwrap_err();
    assert!(
        refused.message.contains("does not listen on TCP"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_carrier_is_fixed_for_one_peer_and_the_others_keep_theirs() {
    let (far, third) = (both("far", |_| {}).await, both("third", |_| {}).await);
    let near = both("near", |config| {
        config.peers = vec![PeerSettings {
            who: "far".parse().unwrap(),
            carrier: Carrier::Ws,
        }];
    })
    .await;
    met(&far, &near).await;
    let tcp = third.node.tcp_sockets();
    introduce(&near, &third, "third", &third.node.sockets(), &tcp).await;
    introduce(&third, &near, "near", &[], &[]).await;
    let _far = serve_which(&far).await;
    let _third = serve_which(&third).await;
    let _echo = serve_echo(&near.client(), "echo").await;

    // The peer dials as it likes, and its calls come that way.
    assert_eq!(call(&far.client(), "echo@near", "x").await.unwrap(), "x");
    assert_eq!(carrying(&far).await.0, "quic");
    // Ours go as configured.
    assert_eq!(ask(&near, "which@far", Carrier::Auto).await, "ws ");
    assert_eq!(ask(&near, "which@far", Carrier::Auto).await, "ws ");
    assert_eq!(carrying(&near).await, ("ws".into(), "configured".into()));
    assert_eq!(ask(&near, "which@third", Carrier::Auto).await, "quic ");
    // A call that says otherwise is obeyed.
    assert_eq!(ask(&near, "which@far", Carrier::Quic).await, "quic ");
}
