//! Trust: tickets, approval, removal, grants.

use hailwire::{Code, admin, admin::method};

use crate::test_node::{PATIENCE, TestNode, call, serve_echo};

#[tokio::test]
async fn a_ticket_makes_both_sides_trust_each_other_also_after_a_restart() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    alice.befriend(&bob).await;
    let before = bob.node.sockets();
    let bob = bob.restart("bob").await;
    assert_eq!(bob.node.sockets(), before);
    let _echo = serve_echo(&bob.client(), "echo").await;
    assert_eq!(call(&alice.client(), "echo@bob", "x").await.unwrap(), b"x");
    let _echo = serve_echo(&alice.client(), "echo").await;
    assert_eq!(call(&bob.client(), "echo@alice", "x").await.unwrap(), b"x");
}

#[tokio::test]
async fn a_used_up_altered_or_foreign_ticket_is_refused_with_its_reason() {
    let (alice, bob, carol) = tokio::join!(
        TestNode::named("alice"),
        TestNode::named("bob"),
        TestNode::named("carol")
    );
    let ticket = alice.invite(1, &[]).await;
    bob.join(&ticket).await.unwrap();
    let used = carol.join(&ticket).await.unwrap_err();
    assert_eq!(
        (used.code, used.message.as_str()),
        (Code::PermissionDenied, "the ticket has been used up")
    );

    let mut altered = ticket.clone().into_bytes();
    let last = altered.len() - 20;
    altered[last] = if altered[last] == b'a' { b'b' } else { b'a' };
    let damaged = carol
        .join(&String::from_utf8(altered).unwrap())
        .await
        .unwrap_err();
    assert!(damaged.message.contains("damaged"), "{damaged}");

    let own = alice.join(&ticket).await.unwrap_err();
    assert!(own.message.contains("own"), "{own}");
    assert_eq!(
        carol.join("hello").await.unwrap_err().code,
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn a_grant_is_enforced_on_the_receiving_side() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    let _open = serve_echo(&alice.client(), "open").await;
    let _shut = serve_echo(&alice.client(), "shut").await;
    bob.join(&alice.invite(1, &["open"]).await).await.unwrap();
    assert_eq!(call(&bob.client(), "open@alice", "x").await.unwrap(), b"x");
    assert_eq!(
        call(&bob.client(), "shut@alice", "x")
            .await
            .unwrap_err()
            .code,
        Code::PermissionDenied
    );
    // What may not be called is not offered either.
    let rows: Vec<admin::AgentRow> = bob
        .client()
        .admin(method::AGENTS, &admin::AgentsQuery::default())
        .await
        .unwrap();
    assert_eq!(
        rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(),
        ["open"]
    );
}

#[tokio::test]
async fn an_untrusted_peer_is_refused_noted_and_can_be_approved() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    let _echo = serve_echo(&alice.client(), "echo").await;
    let add = admin::TrustAdd {
        id: alice.node.id(),
        alias: "alice".into(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: alice
            .node
            .sockets()
            .iter()
            .map(ToString::to_string)
            .collect(),
        tcp: Vec::new(),
    };
    let _: admin::TrustedPeer = bob.client().admin(method::TRUST_ADD, &add).await.unwrap();
    let refused = call(&bob.client(), "echo@alice", "x").await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    assert!(
        refused.hint.contains(&bob.node.id().to_string()),
        "{}",
        refused.hint
    );

    let pending: Vec<admin::UntrustedPeer> = alice
        .client()
        .admin(method::TRUST_PENDING, &())
        .await
        .unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!(
        (pending[0].id, pending[0].claims.as_str()),
        (bob.node.id(), "bob")
    );
    let approve = admin::TrustAdd {
        id: bob.node.id(),
        alias: String::new(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: Vec::new(),
        tcp: Vec::new(),
    };
    let _: admin::TrustedPeer = alice
        .client()
        .admin(method::TRUST_APPROVE, &approve)
        .await
        .unwrap();
    assert_eq!(call(&bob.client(), "echo@alice", "x").await.unwrap(), b"x");
}

#[tokio::test]
async fn a_removed_peers_tunnel_closes_at_once() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    alice.befriend(&bob).await;
    let hang = |_: hailwire::Request| std::future::pending();
    let agent = hailwire::Agent::new("hang").unwrap();
    let _serving = alice.client().serve(agent, hang).await.unwrap();
    let caller = bob.client();
    let call = tokio::spawn(async move { caller.call("hang@alice").send().await.map(drop) });
    while alice
        .status()
        .await
        .tunnels
        .iter()
        .all(|tunnel| tunnel.in_flight == 0)
    {
        tokio::task::yield_now().await;
    }
    let who = admin::PeerSelector { who: "bob".into() };
    let () = alice
        .client()
        .admin(method::TRUST_REMOVE, &who)
        .await
        .unwrap();
    let status = tokio::time::timeout(PATIENCE, call)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied, "{status}");
    assert!(alice.status().await.tunnels.is_empty());
}

#[tokio::test]
async fn a_ping_tells_whether_the_peer_trusts_this_node() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    alice.befriend(&bob).await;
    let ping = async |who: &str| -> admin::PingAnswer {
        let who = admin::PeerSelector { who: who.into() };
        bob.client().admin(method::PING, &who).await.unwrap()
    };
    assert!(ping("alice").await.trusted);
    let who = admin::PeerSelector { who: "bob".into() };
    let () = alice
        .client()
        .admin(method::TRUST_REMOVE, &who)
        .await
        .unwrap();
    while !bob.status().await.tunnels.is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(!ping("alice").await.trusted);
}
