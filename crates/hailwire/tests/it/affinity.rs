//! Affinity: calls of a group with equal keys go to the same member, from every node.

use std::collections::HashMap;

use hailwire::{Agent, Client, Code, Request, Response, ServeHandle, admin::BareCalls};
use hailwire_wire::limits::MAX_AFFINITY;

use crate::{
    grants::bare,
    messages::ended,
    test_node::{PATIENCE, TestNode},
};

/// A member that answers with its own name.
async fn member(client: &Client, whose: &'static str) -> ServeHandle {
    let answer = move |_: Request| async move { Ok(Response::new(whose)) };
    let agent = Agent::new("shard").unwrap();
    client.serve(agent, answer).await.unwrap()
}

/// Who takes the call of a key.
async fn owner(client: &Client, to: &str, key: &str) -> String {
    let call = client.call(to).affinity(key).deadline(PATIENCE);
    let bytes = call.send().await.unwrap().bytes(64).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn owners(client: &Client) -> Vec<String> {
    let mut owners = Vec::new();
    for number in 0..60 {
        owners.push(owner(client, "shard", &format!("user-{number}")).await);
    }
    owners
}

#[tokio::test]
async fn a_key_goes_to_the_same_member_from_every_node_of_the_group() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let _a1 = member(&alice.client(), "a1").await;
    let _a2 = member(&alice.client(), "a2").await;
    let _b1 = member(&bob.client(), "b1").await;
    let _b2 = member(&program, "b2").await;
    assert_eq!(bare(&alice, "shard", &bob).await, BareCalls::Next);
    assert_eq!(bare(&bob, "shard", &alice).await, BareCalls::Next);
    let from_alice = owners(&alice.client()).await;
    assert_eq!(owners(&alice.client()).await, from_alice);
    assert_eq!(owners(&bob.client()).await, from_alice);
    assert_eq!(owners(&program).await, from_alice);
    let mut shares: HashMap<&str, u32> = HashMap::new();
    for owner in &from_alice {
        *shares.entry(owner).or_default() += 1;
    }
    assert_eq!(shares.len(), 4, "each has some: {shares:?}");
}

#[tokio::test]
async fn durable_calls_of_a_key_go_to_the_node_and_member_that_its_calls_go_to() {
    let (alice, bob) = TestNode::pair().await;
    let carol = TestNode::named("carol").await;
    carol.befriend(&alice).await;
    let _a = member(&alice.client(), "a").await;
    let _b1 = member(&bob.client(), "b1").await;
    let _b2 = member(&bob.client(), "b2").await;
    let _c = member(&carol.client(), "c").await;
    for other in [&bob, &carol] {
        assert_eq!(bare(&alice, "shard", other).await, BareCalls::Next);
    }
    let client = alice.client();
    let mut taken: HashMap<String, u32> = HashMap::new();
    for number in 0..40 {
        let key = format!("user-{number}");
        let call = client.call("shard").affinity(&key);
        let receipt = call.durable(true, true).await.unwrap();
        let end = ended(&client, &receipt.id).await;
        let by = end.answer.text;
        assert_eq!(by, owner(&client, "shard", &key).await, "{key}");
        *taken.entry(by).or_default() += 1;
    }
    assert_eq!(taken.len(), 4, "each has some: {taken:?}");
}

#[tokio::test]
async fn only_the_keys_of_a_member_that_ends_move_and_the_next_in_its_place_has_them() {
    let alice = TestNode::named("alice").await;
    let client = alice.client();
    let _first = member(&client, "first").await;
    let second = member(&client, "second").await;
    let _third = member(&client, "third").await;
    let before = owners(&client).await;
    drop(second);
    for (old, now) in before.iter().zip(owners(&client).await) {
        match old == "second" {
            true => assert_ne!(now, "second"),
            false => assert_eq!(now, *old),
        }
    }
    let _again = member(&client, "second").await;
    assert_eq!(owners(&client).await, before);
}

#[tokio::test]
async fn a_key_that_is_too_long_is_refused_before_anything_is_sent() {
    let alice = TestNode::named("alice").await;
    let _only = member(&alice.client(), "only").await;
    let program = alice.attach().await;
    assert_eq!(
        owner(&program, "shard", &"k".repeat(MAX_AFFINITY)).await,
        "only"
    );
    let call = program.call("shard").affinity("k".repeat(MAX_AFFINITY + 1));
    let refused = call.send().await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
}
