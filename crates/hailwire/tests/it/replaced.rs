//! Agents that are offered anew in place of themselves, and agents that only their own machine may call.

use std::sync::Arc;

use hailwire::{Agent, Client, Code, Request, Response, Status, admin};
use tokio::sync::Notify;

use crate::test_node::{PATIENCE, TestNode, call, serve_echo};

/// Answers with a word.
async fn new(_: Request) -> Result<Response, Status> {
    Ok(Response::new("new"))
}

fn agent(description: &str) -> Agent {
    Agent::new("a").unwrap().describe(description)
}

/// Waits until the node lists its agents so. Nothing tells of a registration, so it is asked again and again.
async fn seen(client: &Client, is: impl Fn(&[admin::AgentRow]) -> bool) {
    let looks = async {
        let query = admin::AgentsQuery::default();
        loop {
            let rows: Vec<admin::AgentRow> =
                client.admin(admin::method::AGENTS, &query).await.unwrap();
            if is(&rows) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap();
}

#[tokio::test]
async fn a_replaced_agent_is_never_gone_and_calls_that_run_finish_with_the_old_one() {
    let host = TestNode::named("desk").await;
    for client in [host.client(), host.attach().await] {
        let [begun, may] = [(); 2].map(|()| Arc::new(Notify::new()));
        let told = (begun.clone(), may.clone());
        let old = move |_: Request| {
            let (begun, may) = told.clone();
            async move {
                begun.notify_one();
                may.notified().await;
                Ok(Response::new("old"))
            }
        };
        let mut serving = client.serve(agent("old"), old).await.unwrap();
        let caller = host.client();
        let running = tokio::spawn(async move { call(&caller, "a", "").await });
        begun.notified().await;
        serving.replace(agent("new"), new).await.unwrap();
        for round in 0..50 {
            let description = format!("new {round}");
            let replaced = serving.replace(agent(&description), new);
            let caller = host.client();
            let (replaced, answered) = tokio::join!(replaced, call(&caller, "a", ""));
            replaced.unwrap();
            assert_eq!(answered.unwrap(), b"new");
            // The old registration ends a moment after the new one is there.
            seen(&host.client(), |rows| {
                rows.len() == 1 && rows[0].members == 1 && rows[0].description == description
            })
            .await;
        }
        may.notify_one();
        let ended = tokio::time::timeout(PATIENCE, running).await;
        assert_eq!(ended.unwrap().unwrap().unwrap(), b"old");
        let refused = serving.replace(Agent::new("b").unwrap(), new).await;
        assert_eq!(refused.unwrap_err().code, Code::InvalidArgument);
        drop(serving);
        seen(&host.client(), |rows| rows.is_empty()).await;
    }
}

#[tokio::test]
async fn a_private_agent_is_called_on_its_machine_and_neither_seen_nor_called_from_elsewhere() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let _private = serve_echo(&program, "node.secret").await;
    let _public = serve_echo(&program, "public").await;
    assert_eq!(call(&bob.client(), "node.secret", "x").await.unwrap(), b"x");
    assert_eq!(
        call(&alice.client(), "public@bob", "x").await.unwrap(),
        b"x"
    );
    for to in ["node.secret@bob", "node.secret"] {
        let refused = call(&alice.client(), to, "x").await.unwrap_err();
        assert_eq!(refused.code, Code::NotFound, "{to}: {refused}");
    }
    for client in [alice.client(), bob.client()] {
        seen(&client, |rows| !rows.is_empty()).await;
        seen(&client, |rows| rows.iter().all(|row| row.name == "public")).await;
    }
}
