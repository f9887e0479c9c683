//! Tunnels whose far end is played by hand: who may stay, for how long, and what it is told.

use hailwire_wire::{
    CallHeader, frame::FrameKind, header, header::ADDITIONAL_CONNECTIONS, header::VERSION,
    offers::OfferPage,
};
use tokio::time::{Instant, advance};

use super::*;
use crate::{
    Agent, Response,
    agent::Request,
    node::hand_played::{HandPlayedPeer, LoneNode, is_ready, key, nobody},
    session::tests::{RawPeer, frames, settled, to},
};

#[tokio::test(start_paused = true)]
async fn an_untrusted_peer_may_stay_half_a_minute() {
    let host = LoneNode::named("desk").await;
    let begun = Instant::now();
    let stranger = host.peer(key(9)).await;
    let (code, reason) = stranger.raw.closed().await;
    assert_eq!(code, Code::PermissionDenied);
    assert_eq!(reason, "this node does not trust yours");
    assert_eq!(begun.elapsed(), UNTRUSTED_STAY);
    assert!(host.inner().peers.untrusted.slots().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_greet_is_let_go_trusted_or_not() {
    let host = LoneNode::named("desk").await;
    host.trust(key(7), "laptop", &[]).await;
    for id in [key(7), key(9)] {
        let begun = Instant::now();
        let mute = host.dialled(id).closed().await;
        assert_eq!(begun.elapsed(), GREETING_TIMEOUT, "{mute}");
        assert!(!host.inner().peers.has(id));
    }
}

#[tokio::test(start_paused = true)]
async fn the_oldest_untrusted_peer_of_a_host_makes_way_for_the_next() {
    let host = LoneNode::named("desk").await;
    let mut strangers = Vec::new();
    for byte in 0..UNTRUSTED_SLOTS.per_host as u8 {
        strangers.push(host.peer(key(100 + byte)).await);
        advance(Duration::from_millis(10)).await;
    }
    let _next = host.peer(key(200)).await;
    let (code, reason) = strangers[0].raw.closed().await;
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(reason, "another untrusted peer needs the place");
    for stranger in &strangers[1..] {
        assert!(!is_ready(std::pin::pin!(stranger.raw.0.closed())));
    }
}

#[tokio::test(start_paused = true)]
async fn an_untrusted_peer_has_one_connection() {
    let host = LoneNode::named("desk").await;
    let raw = RawPeer(host.dialled(key(9)));
    let hello = Hello {
        versions: vec![VERSION],
        features: vec![ADDITIONAL_CONNECTIONS.to_owned()],
        additional: true,
        ..Hello::default()
    };
    let greeting = frames(&[(FrameKind::HELLO, &header::encode(&hello))]);
    let _control = raw.open(greeting).await;
    let (code, reason) = raw.closed().await;
    assert_eq!(code, Code::PermissionDenied);
    assert_eq!(reason, "an untrusted peer has one connection");
}

#[tokio::test(start_paused = true)]
async fn an_untrusted_peer_that_is_approved_stays() {
    let host = LoneNode::named("desk").await;
    let stranger = host.peer(key(9)).await;
    let status = stranger.manage("agents", "").await.unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied);
    host.trust(key(9), "laptop", &[]).await;
    // It is looked at again when somebody has become a peer.
    let _friend = host.friend(key(7), "tower").await;
    advance(2 * UNTRUSTED_STAY).await;
    assert_eq!(stranger.manage("agents", "").await.unwrap(), "[]");
}

#[tokio::test(start_paused = true)]
async fn a_node_has_as_many_tunnels_as_it_may_and_says_so_on_both_sides() {
    let host = LoneNode::with("desk", |config| config.limits.max_tunnels = 1).await;
    let _first = host.friend(key(7), "laptop").await;
    host.trust(key(8), "tower", &[]).await;
    let second = host.peer(key(8)).await;
    let closed = (Code::ResourceExhausted, "no more tunnels".to_owned());
    assert_eq!(second.raw.closed().await, closed);
    let refused = tunnel_to(host.inner(), key(8)).await.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert_eq!(refused.message, "this node has as many tunnels as it may");
    assert!(refused.hint.contains("max-tunnels"), "{}", refused.hint);
    // The one that it has is found again.
    let session = tunnel_to(host.inner(), key(7)).await.unwrap();
    assert!(session.takes_work() && !session.dialled());
}

#[tokio::test(start_paused = true)]
async fn nobody_is_dialled_who_is_not_trusted_or_of_whom_no_address_is_known() {
    let host = LoneNode::named("desk").await;
    let refused = tunnel_to(host.inner(), key(9)).await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    assert_eq!(refused.message, format!("{} is not a trusted peer", key(9)));
    assert!(refused.hint.contains("hail join"), "{}", refused.hint);
    host.trust(key(8), "tower", &[]).await;
    let nowhere = tunnel_to(host.inner(), key(8)).await.unwrap_err();
    let reason = "no address of it is known that can be reached from this network";
    assert_eq!(nowhere, unreachable(host.inner(), key(8), reason));
    assert!(nowhere.hint.contains("--listen-tcp"), "{}", nowhere.hint);
}

/// The next list of offers that a peer is told, with its number.
async fn told(peer: &mut HandPlayedPeer) -> (u64, Vec<String>) {
    loop {
        let (kind, payload) = peer.control.frame().await.unwrap();
        if kind == FrameKind::OFFERS {
            let page: header::AgentOffers = header::decode(&payload).unwrap();
            assert!(OfferPage::parse(kind, payload).is_ok());
            let names = page.agents.iter().map(|offer| offer.name.to_string());
            return (page.number, names.collect());
        }
    }
}

async fn serve(host: &LoneNode, name: &str) -> crate::ServeHandle {
    let agent = Agent::new(name).unwrap();
    let empty = |_: Request| async { Ok(Response::default()) };
    host.client().serve(agent, empty).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_peer_is_told_of_the_agents_that_it_may_call_as_they_come_and_go() {
    let host = LoneNode::named("desk").await;
    let _echo = serve(&host, "echo").await;
    let mut all = host.friend(key(7), "laptop").await;
    host.trust(key(8), "tower", &["echo", "sum"]).await;
    let mut some = host.peer(key(8)).await;
    let (mut number, names) = told(&mut all).await;
    assert_eq!(names, ["echo"]);
    assert_eq!(told(&mut some).await.1, ["echo"]);

    let grep = serve(&host, "grep").await;
    let _sum = serve(&host, "sum").await;
    // What comes at once is said in one list.
    for (peer, names) in [
        (&mut all, &["echo", "grep", "sum"][..]),
        (&mut some, &["echo", "sum"]),
    ] {
        let (later, told) = told(peer).await;
        assert_eq!(told, names);
        assert!(later > number);
    }
    number += 1;
    drop(grep);
    let (later, names) = told(&mut all).await;
    assert_eq!(names, ["echo", "sum"]);
    assert!(later > number);
    // A grant that changes is said at once.
    let add = crate::admin::TrustAdd {
        allow: vec!["sum".to_owned()],
        ..nobody(key(7))
    };
    let _: crate::admin::TrustedPeer = host.admin("trust.add", &add).await.unwrap();
    assert_eq!(told(&mut all).await.1, ["sum"]);
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_ends_takes_what_its_peer_offered_with_it() {
    let host = LoneNode::named("desk").await;
    let mut peer = host.friend(key(7), "laptop").await;
    peer.offer(&host, 1, &["grep"]).await;
    let mut changes = host.node.tunnel_changes();
    changes.mark_unchanged();
    peer.raw.0.close(Code::Ok, "good night");
    changes.changed().await.unwrap();
    assert!(!host.inner().peers.has(key(7)));
    let grep = "grep".parse().unwrap();
    settled(|| !host.inner().registry.knows(&grep)).await;
    // Back again, it may begin to count anew.
    let mut peer = host.friend(key(7), "laptop").await;
    peer.offer(&host, 1, &["grep"]).await;
    let header = CallHeader::default();
    let refused = peer.ask(FrameKind::CALL, &header, b"").await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "it names nobody");
    assert!(peer.ask(FrameKind::CALL, &to("node"), b"").await.is_err());
}
