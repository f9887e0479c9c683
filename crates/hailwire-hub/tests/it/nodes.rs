//! Nodes that are members of one hub and have no ticket of each other.

use std::{net::Ipv4Addr, time::Duration};

use hailwire::{
    Agent, Code, Config, DataDir, Node, Request, Response, Status,
    admin::{self, method},
};
use hailwire_wire::directory::Trust;
use tempfile::TempDir;

use crate::house::House;

/// Long enough for any step on a busy machine; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node of this name that is a member of the hub.
async fn member(house: &House, name: &str) -> (Node, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.node.name = Some(name.parse().unwrap());
    config.listen.udp = vec![(Ipv4Addr::LOCALHOST, 0).into()];
    let node = Node::builder()
        .data_dir(DataDir::new(folder.path()))
        .config(config)
        .start();
    let node = node.await.unwrap();
    let join = admin::Join {
        ticket: house.hub.invite(1, PATIENCE).await.unwrap(),
        alias: String::new(),
    };
    let client = node.client();
    let joined = Box::pin(client.admin::<_, admin::Joined>(method::JOIN, &join)).await;
    joined.unwrap();
    (node, folder)
}

async fn call(node: &Node, to: &str) -> Result<(), Status> {
    let call = node.client().call(to).deadline(PATIENCE);
    Box::pin(call.send()).await?.bytes(100).await.map(drop)
}

#[tokio::test]
async fn members_that_trust_each_other_call_by_the_names_held_at_the_hub() {
    let house = House::with(|config| config.trust = Trust::Members).await;
    let ((alice, _a), (bob, _b)) = tokio::join!(member(&house, "alice"), member(&house, "bob"));
    let answer = |_: Request| async { Ok(Response::new("hail")) };
    let agent = Agent::new("echo").unwrap();
    let _serving = bob.client().serve(agent, answer).await.unwrap();
    // Bob was never met, and the call is the first that brings a tunnel up.
    call(&alice, "echo@bob").await.unwrap();
}

#[tokio::test]
async fn members_of_a_hub_that_vouches_for_nobody_do_not_call_each_other() {
    let house = House::plain().await;
    let ((alice, _a), (_bob, _b)) = tokio::join!(member(&house, "alice"), member(&house, "bob"));
    let status = call(&alice, "echo@bob").await.unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied);
}

#[tokio::test]
async fn agents_of_members_are_listed_before_they_are_met() {
    let house = House::with(|config| config.trust = Trust::Members).await;
    let (alice, _a) = Box::pin(member(&house, "alice")).await;
    let other = house.member(7).await;
    other.publish(&other.record(Some("bob"), 1)).await.unwrap();
    let query = admin::AgentsQuery::default();
    let client = alice.client();
    let rows: Vec<admin::AgentRow> = Box::pin(client.admin(method::AGENTS, &query))
        .await
        .unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["grep"]);
    assert_eq!(rows[0].node, other.key.id());
}
