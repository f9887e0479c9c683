//! Which carrier a tunnel takes: the race, networks without UDP, and calls that move when UDP fails.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use hailwire::{
    Agent, Client, Code, Config, DataDir, Node, Request, Response, Status, admin, admin::method,
    config::Carrier,
};
use tokio::sync::Notify;

use crate::{
    test_node::{self, PATIENCE, TestNode, serve_echo},
    wire::Wire,
};

/// A node on loopback that listens on TCP too.
pub(crate) async fn both(name: &str, change: impl FnOnce(&mut Config)) -> TestNode {
    let dir = tempfile::tempdir().unwrap();
    let mut config = test_node::config(name);
    config.listen.tcp = vec![(Ipv4Addr::LOCALHOST, 0).into()];
    change(&mut config);
    let node = Node::builder()
        .data_dir(DataDir::new(dir.path()))
        .config(config)
        .start()
        .await
        .unwrap();
    TestNode { node, dir }
}

/// A node on the near side of a [`Wire`].
pub(crate) async fn near_of_wire() -> TestNode {
    both("near", |config| {
        config.listen.udp = vec![(Ipv6Addr::LOCALHOST, 0).into()];
    })
    .await
}

/// Lets `host` trust `other` and find it at these addresses.
pub(crate) async fn introduce(
    host: &TestNode,
    other: &TestNode,
    name: &str,
    udp: &[SocketAddr],
    tcp: &[SocketAddr],
) {
    let texts = |addresses: &[SocketAddr]| addresses.iter().map(ToString::to_string).collect();
    let add = admin::TrustAdd {
        id: other.node.id(),
        alias: name.into(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: texts(udp),
        tcp: texts(tcp),
    };
    let _: admin::TrustedPeer = host.client().admin(method::TRUST_ADD, &add).await.unwrap();
}

/// Calls and reads the answer as text.
pub(crate) async fn call(client: &Client, to: &str, body: &'static str) -> Result<String, Status> {
    let bytes = test_node::call(client, to, body).await?;
    Ok(String::from_utf8(bytes).unwrap())
}

pub(crate) async fn ping(
    host: &TestNode,
    who: &str,
    carrier: &str,
) -> Result<admin::PingAnswer, Status> {
    let ping = admin::PingRequest {
        who: who.into(),
        carrier: carrier.into(),
    };
    host.client().admin(method::PING, &ping).await
}

/// The carrier that takes new calls, and why.
pub(crate) async fn carrying(host: &TestNode) -> (String, String) {
    carrying_in(host.status().await)
}

fn carrying_in(status: admin::NodeStatus) -> (String, String) {
    let tunnel = status.tunnels.into_iter().find(|tunnel| tunnel.carries);
    tunnel.map_or_else(Default::default, |tunnel| (tunnel.carrier, tunnel.why))
}

#[tokio::test]
async fn a_node_that_only_tcp_reaches_can_be_joined_and_called_both_ways() {
    for carrier in [Carrier::Ws, Carrier::H2] {
        joined_and_called(carrier).await;
    }
}

async fn joined_and_called(fixed: Carrier) {
    let far = both("far", |config| config.carrier = fixed).await;
    let near = both("near", |config| config.carrier = fixed).await;
    near.join(&far.invite(1, &[]).await).await.unwrap();
    let _there = serve_echo(&far.client(), "echo").await;
    let _here = serve_echo(&near.client(), "echo").await;
    assert_eq!(
        call(&near.client(), "echo@far", "over").await.unwrap(),
        "over"
    );
    assert_eq!(
        call(&far.client(), "echo@near", "back").await.unwrap(),
        "back"
    );
    for host in [&near, &far] {
        let (carrier, why) = carrying(host).await;
        assert_eq!(
            (carrier.as_str(), why.as_str()),
            (fixed.name(), "configured")
        );
    }
    let pong = ping(&near, "far", "").await.unwrap();
    assert_eq!((pong.carrier.as_str(), pong.trusted), (fixed.name(), true));
    let refused = ping(&near, "far", "quic").await;
    // UDP would work here; it was asked for by hand.
    assert_eq!(refused.unwrap().carrier, "quic");
}

#[tokio::test]
async fn an_untrusted_peer_over_tcp_is_let_in_for_a_ticket_and_nothing_else() {
    let far = both("far", |_| {}).await;
    let near = both("near", |config| config.carrier = Carrier::Ws).await;
    let _echo = serve_echo(&far.client(), "echo").await;
    introduce(&near, &far, "far", &[], &far.node.tcp_sockets()).await;
    let refused = call(&near.client(), "echo@far", "x").await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    let pending: Vec<admin::UntrustedPeer> = far
        .client()
        .admin(method::TRUST_PENDING, &())
        .await
        .unwrap();
    assert_eq!(pending[0].id, near.node.id());
}

#[tokio::test]
async fn quic_wins_the_race_where_udp_passes() {
    let (far, near) = (both("far", |_| {}).await, both("near", |_| {}).await);
    near.join(&far.invite(1, &[]).await).await.unwrap();
    assert_eq!(carrying(&near).await, ("quic".into(), "UDP works".into()));
    for carrier in ["ws", "h2"] {
        let pong = ping(&near, "far", carrier).await.unwrap();
        assert_eq!(
            (pong.carrier.as_str(), pong.why.as_str()),
            (carrier, "asked for")
        );
    }
    // The second tunnel waits; new calls go where they went.
    assert_eq!(ping(&near, "far", "").await.unwrap().carrier, "quic");
    assert_eq!(near.status().await.tunnels.len(), 2);
}

#[tokio::test]
async fn a_node_behind_a_wall_against_udp_is_reached_over_tcp_within_a_second() {
    let (far, near) = (both("far", |_| {}).await, near_of_wire().await);
    let _echo = serve_echo(&far.client(), "echo").await;
    let wire = Wire::to(far.node.sockets()[0]).await;
    wire.cut(true);
    introduce(&far, &near, "near", &[], &[]).await;
    introduce(&near, &far, "far", &[wire.address], &far.node.tcp_sockets()).await;
    let start = Instant::now();
    assert_eq!(call(&near.client(), "echo@far", "x").await.unwrap(), "x");
    // A connection attempt delay of a quarter of a second, and the handshake; a dial over UDP would take ten.
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert!(wire.passed() > 0, "udp was tried first");
    assert_eq!(carrying(&near).await.0, "h2");
}

#[tokio::test]
async fn a_carrier_that_reaches_nobody_says_which_and_what_to_do() {
    let (far, near) = (
        both("far", |_| {}).await,
        both("near", |c| c.carrier = Carrier::Ws).await,
    );
    introduce(&near, &far, "far", &far.node.sockets(), &[]).await;
    let status = call(&near.client(), "echo@far", "x").await.unwrap_err();
    assert_eq!(status.code, Code::Unavailable);
    assert!(
        status
            .message
            .contains("no address of it is known for carrier `ws`"),
        "{status}"
    );
    assert!(status.hint.contains("--listen-tcp"), "{}", status.hint);
}

/// Calls in flight stay where they are, new ones move, and move back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_move_to_tcp_when_udp_is_cut_and_return_when_it_is_mended() {
    let (far, near) = (both("far", |_| {}).await, near_of_wire().await);
    let _echo = serve_echo(&far.client(), "echo").await;
    let release = std::sync::Arc::new(Notify::new());
    let held = release.clone();
    let slow = move |_: Request| {
        let held = held.clone();
        async move {
            held.notified().await;
            Ok(Response::new("late"))
        }
    };
    let _slow = far
        .client()
        .serve(Agent::new("slow").unwrap(), slow)
        .await
        .unwrap();
    let wire = Wire::to(far.node.sockets()[0]).await;
    introduce(&far, &near, "near", &[], &[]).await;
    introduce(&near, &far, "far", &[wire.address], &far.node.tcp_sockets()).await;
    assert_eq!(call(&near.client(), "echo@far", "x").await.unwrap(), "x");
    // The answer may overtake the greeting that makes the tunnel one.
    until(&near, "quic").await;
    let waiting = {
        let client = near.client();
        tokio::spawn(async move { call(&client, "slow@far", "").await })
    };

    wire.cut(true);
    let start = Instant::now();
    until(&near, "h2").await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let (_, why) = carrying(&near).await;
    assert!(why.starts_with("udp silent"), "{why}");
    assert_eq!(call(&near.client(), "echo@far", "y").await.unwrap(), "y");

    wire.cut(false);
    until(&near, "quic").await;
    release.notify_waiters();
    assert_eq!(
        waiting.await.unwrap().unwrap(),
        "late",
        "the call on UDP outlived the cut"
    );
    assert_eq!(call(&near.client(), "echo@far", "z").await.unwrap(), "z");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_move_to_tcp_when_udp_loses_many_packets() {
    let (far, near) = (both("far", |_| {}).await, near_of_wire().await);
    let _echo = serve_echo(&far.client(), "echo").await;
    let wire = Wire::to(far.node.sockets()[0]).await;
    introduce(&far, &near, "near", &[], &[]).await;
    introduce(&near, &far, "far", &[wire.address], &far.node.tcp_sockets()).await;
    assert_eq!(call(&near.client(), "echo@far", "x").await.unwrap(), "x");
    wire.lose_one_of(4);
    let start = Instant::now();
    while carrying(&near).await.0 != "h2" {
        assert!(start.elapsed() < PATIENCE, "{:?}", carrying(&near).await);
        assert_eq!(call(&near.client(), "echo@far", "y").await.unwrap(), "y");
    }
    let (_, why) = carrying(&near).await;
    assert!(why.starts_with("udp loses"), "{why}");
}

/// Ends the tunnel to `far` on this side, which remembers the TLS session.
async fn forget_tunnel(near: &TestNode, far: &TestNode, wire: &Wire) {
    let who = admin::PeerSelector { who: "far".into() };
    // An answer may come before the tunnel is up.
    near.once(|status| (!status.tunnels.is_empty()).then_some(()))
        .await;
    let () = near
        .client()
        .admin(method::TRUST_REMOVE, &who)
        .await
        .unwrap();
    for host in [near, far] {
        host.once(|status| status.tunnels.is_empty().then_some(()))
            .await;
    }
    introduce(near, far, "far", &[wire.address], &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_may_be_made_twice_travels_in_the_first_flight_of_a_resumed_tunnel() {
    let (far, near) = (both("far", |_| {}).await, near_of_wire().await);
    let (came, mut comes) = tokio::sync::mpsc::unbounded_channel();
    let count = move |request: Request| {
        let _ = came.send(request.header().idempotency_key.clone());
        async { Ok(Response::new("counted")) }
    };
    let agent = Agent::new("count").unwrap();
    let _count = far.client().serve(agent, count).await.unwrap();
    let wire = Wire::to(far.node.sockets()[0]).await;
    introduce(&far, &near, "near", &[], &[]).await;
    introduce(&near, &far, "far", &[wire.address], &[]).await;
    let calls = |key: &'static str| {
        let call = near.client().call("count@far").idempotency_key(key);
        tokio::spawn(async move { call.send().await.unwrap().bytes(100).await.unwrap() })
    };
    assert_eq!(calls("").await.unwrap(), "counted");
    assert_eq!(comes.recv().await.unwrap(), "");

    // Nothing comes back, so the handshake cannot be complete: yet the call is made.
    forget_tunnel(&near, &far, &wire).await;
    wire.mute(true);
    let answer = calls("once");
    assert_eq!(comes.recv().await.unwrap(), "once");
    assert!(!answer.is_finished());
    wire.mute(false);
    assert_eq!(answer.await.unwrap(), "counted");

    // Without a key it waits for the handshake, however often the first packet is sent again.
    forget_tunnel(&near, &far, &wire).await;
    wire.mute(true);
    let before = wire.passed();
    let answer = calls("");
    wire.has_passed(before + 6).await;
    assert!(comes.try_recv().is_err(), "it came before the handshake");
    wire.mute(false);
    assert_eq!(answer.await.unwrap(), "counted");
}

/// Two nodes of which the far one was restarted, so that it refuses the first flight of the near one.
async fn refuses_first_flights() -> (TestNode, TestNode) {
    let (far, near) = (both("far", |_| {}).await, both("near", |_| {}).await);
    near.join(&far.invite(1, &[]).await).await.unwrap();
    {
        let _echo = serve_echo(&far.client(), "echo").await;
        assert_eq!(call(&near.client(), "echo@far", "x").await.unwrap(), "x");
    }
    // It forgets its TLS sessions; the near side does not.
    let far = far.restart("far").await;
    let who = admin::PeerSelector { who: "far".into() };
    let () = near
        .client()
        .admin(method::TRUST_REMOVE, &who)
        .await
        .unwrap();
    introduce(&near, &far, "far", &far.node.sockets(), &[]).await;
    (far, near)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_flight_that_the_peer_refuses_is_sent_again_unnoticed() {
    let (far, near) = refuses_first_flights().await;
    let _echo = serve_echo(&far.client(), "echo").await;
    let body = "y".repeat(20_000);
    let call = near
        .client()
        .call("echo@far")
        .body(body.clone())
        .idempotency_key("k");
    let answer = call.send().await.unwrap().bytes(1 << 20).await.unwrap();
    assert_eq!(answer.len(), body.len());
    assert_eq!(
        self::call(&near.client(), "echo@far", "z").await.unwrap(),
        "z"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_ends_or_breaks_off_after_its_first_flight_was_refused_does_so_at_the_far_side()
{
    for ends in [true, false] {
        let (far, near) = refuses_first_flights().await;
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let read = move |mut request: Request| {
            let tell = tell.clone();
            async move {
                loop {
                    let chunk = request.body_mut().chunk().await;
                    let goes_on = matches!(chunk, Ok(Some(_)));
                    tell.send(chunk.map_err(|status| status.code)).unwrap();
                    if !goes_on {
                        return Ok(Response::new("read"));
                    }
                }
            }
        };
        let agent = Agent::new("read").unwrap();
        let _read = far.client().serve(agent, read).await.unwrap();
        let (sender, body) = hailwire::Body::channel(1);
        let call = near.client().call("read@far").idempotency_key("k");
        let answer = tokio::spawn(call.body(body).send());
        // All that is said so far comes again on another stream, and no more is said.
        sender.send("first").await.unwrap();
        assert_eq!(told.recv().await.unwrap().unwrap().unwrap(), "first");
        if ends {
            sender.finish().await.unwrap();
            assert_eq!(told.recv().await.unwrap(), Ok(None));
            let mut answer = answer.await.unwrap().unwrap();
            assert_eq!(answer.bytes(100).await.unwrap(), "read");
        } else {
            sender.abort(Status::new(Code::Aborted, "no more")).await;
            assert!(told.recv().await.unwrap().is_err());
            drop(answer);
        }
    }
}

/// Waits until a carrier takes new calls.
pub(crate) async fn until(host: &TestNode, carrier: &str) {
    host.once(|status| (carrying_in(status).0 == carrier).then_some(()))
        .await;
}
