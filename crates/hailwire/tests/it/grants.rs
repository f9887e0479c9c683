//! What a peer may call, and which calls that name no node it takes: nothing grows by itself.

use hailwire::{Agent, Code, Request, Response, ServeHandle, admin, admin::method};

use crate::test_node::{TestNode, call, serve_echo};

async fn trust_add(
    host: &TestNode,
    other: &TestNode,
    allow: &[&str],
    offer: &[&str],
) -> admin::TrustedPeer {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    let add = admin::TrustAdd {
        id: other.node.id(),
        alias: String::new(),
        allow: texts(allow),
        offer: texts(offer),
        addresses: Vec::new(),
        tcp: Vec::new(),
    };
    host.client().admin(method::TRUST_ADD, &add).await.unwrap()
}

/// What `other` may call at `host`; no name stands for all.
async fn may_call(host: &TestNode, other: &TestNode) -> Vec<String> {
    let trusted: Vec<admin::TrustedPeer> =
        host.client().admin(method::TRUST_LIST, &()).await.unwrap();
    let row = trusted.into_iter().find(|row| row.id == other.node.id());
    row.unwrap().allow
}

/// Joins with this node's user saying what the other may call.
async fn join_allowing(host: &TestNode, ticket: String, allow: &[&str]) -> Vec<String> {
    let join = admin::JoinRequest {
        ticket,
        allow: allow.iter().map(ToString::to_string).collect(),
        ..admin::JoinRequest::default()
    };
    match host.client().admin(method::JOIN, &join).await.unwrap() {
        admin::JoinAnswer::Node { allow, .. } => allow,
        admin::JoinAnswer::Hub { .. } => panic!("joined a hub"),
    }
}

/// An agent that says whose it is.
async fn serve_named(host: &TestNode, agent: &str, whose: &'static str) -> ServeHandle {
    let answer = move |_: Request| async move { Ok(Response::new(whose)) };
    let agent = Agent::new(agent).unwrap();
    host.client().serve(agent, answer).await.unwrap()
}

/// Waits until a host knows of an agent at a peer; gives which calls without a node it gets.
pub(crate) async fn bare(host: &TestNode, agent: &str, at: &TestNode) -> admin::BareCalls {
    let find = async {
        loop {
            let query = admin::AgentsQuery::default();
            let rows: Vec<admin::AgentRow> =
                host.client().admin(method::AGENTS, &query).await.unwrap();
            let wanted = |row: &admin::AgentRow| row.name == agent && row.node == at.node.id();
            if let Some(row) = rows.into_iter().find(wanted) {
                return row.bare;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::test_node::PATIENCE, find)
        .await
        .unwrap()
}

#[tokio::test]
async fn joining_keeps_a_narrower_grant_and_says_so_and_only_a_user_widens_it() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    trust_add(&alice, &bob, &["echo"], &[]).await;
    let _echo = serve_echo(&alice.client(), "echo").await;
    let _shut = serve_echo(&alice.client(), "shut").await;
    // By the other's ticket, by a ticket of this node's own that allows all, and by hand again.
    let joined = alice.join(&bob.invite(1, &[]).await).await.unwrap();
    assert!(matches!(&joined, admin::JoinAnswer::Node { allow, .. } if *allow == ["echo"]));
    bob.join(&alice.invite(1, &[]).await).await.unwrap();
    assert_eq!(trust_add(&alice, &bob, &[], &[]).await.allow, ["echo"]);
    assert_eq!(may_call(&alice, &bob).await, ["echo"]);
    assert_eq!(call(&bob.client(), "echo@alice", "x").await.unwrap(), b"x");
    let refused = call(&bob.client(), "shut@alice", "x").await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    // A ticket for something else neither widens nor replaces it.
    bob.join(&alice.invite(1, &["shut"]).await).await.unwrap();
    assert_eq!(may_call(&alice, &bob).await, ["echo"]);
    // This user may say otherwise, of this very peer.
    let ticket = bob.invite(1, &[]).await;
    assert_eq!(join_allowing(&alice, ticket, &["shut"]).await, ["shut"]);
    let all = trust_add(&alice, &bob, &["*"], &[]).await.allow;
    assert!(all.is_empty(), "{all:?}");
    assert_eq!(call(&bob.client(), "echo@alice", "x").await.unwrap(), b"x");
}

#[tokio::test]
async fn a_joiner_that_may_not_call_everything_takes_no_call_that_does_not_name_it() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    let _theirs = serve_named(&bob, "grep", "bob's").await;
    bob.join(&alice.invite(1, &["nothing"]).await)
        .await
        .unwrap();
    assert_eq!(bare(&alice, "grep", &bob).await, admin::BareCalls::Never);
    let nobody = call(&alice.client(), "grep", "secret").await.unwrap_err();
    assert_eq!(nobody.code, Code::NotFound, "{nobody}");
    assert_eq!(
        call(&alice.client(), "grep@bob", "").await.unwrap(),
        b"bob's"
    );
    // Beside one of this user's own it takes none either.
    let carol = TestNode::named("carol").await;
    let _own = serve_named(&carol, "grep", "carol's").await;
    carol.join(&alice.invite(1, &[]).await).await.unwrap();
    assert_eq!(bare(&alice, "grep", &carol).await, admin::BareCalls::First);
    for _ in 0..50 {
        let answer = call(&alice.client(), "grep", "secret").await.unwrap();
        assert_eq!(answer, b"carol's");
    }
    // Until this user asks for it, and for that name alone.
    let _other = serve_named(&bob, "sum", "bob's").await;
    trust_add(&alice, &bob, &[], &["sum"]).await;
    assert_eq!(bare(&alice, "sum", &bob).await, admin::BareCalls::First);
    assert_eq!(bare(&alice, "grep", &bob).await, admin::BareCalls::Never);
    assert_eq!(call(&alice.client(), "sum", "").await.unwrap(), b"bob's");
    // A restart forgets none of it.
    let alice = alice.restart("alice").await;
    assert_eq!(call(&alice.client(), "sum", "").await.unwrap(), b"bob's");
    let grep = call(&alice.client(), "grep", "").await;
    assert_eq!(grep.unwrap(), b"carol's");
}

#[tokio::test]
async fn a_name_that_this_user_gave_goes_to_no_joiner_that_calls_itself_so() {
    let (alice, bank) = tokio::join!(TestNode::named("alice"), TestNode::named("real"));
    let thief = TestNode::named("bank").await;
    let _theirs = serve_named(&thief, "pay", "the thief's").await;
    let _real = serve_named(&bank, "pay", "the bank's").await;
    // First come, and then named by this user all the same.
    thief.join(&alice.invite(1, &[]).await).await.unwrap();
    let join = admin::JoinRequest {
        ticket: bank.invite(1, &[]).await,
        alias: "bank".into(),
        ..admin::JoinRequest::default()
    };
    let joined = alice.client().admin(method::JOIN, &join).await.unwrap();
    assert!(matches!(&joined, admin::JoinAnswer::Node { name, .. } if name == "bank"));
    let answer = call(&alice.client(), "pay@bank", "").await.unwrap();
    assert_eq!(answer, b"the bank's");
    // Nor does it get the name by joining again.
    thief.join(&alice.invite(1, &[]).await).await.unwrap();
    let answer = call(&alice.client(), "pay@bank", "").await.unwrap();
    assert_eq!(answer, b"the bank's");
}
