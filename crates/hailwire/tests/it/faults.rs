//! Faults: processes that are killed, handlers that panic, nodes that leave.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hailwire::{Agent, Answer, Body, Client, Code, DataDir, Request, Response, Status};
use hailwire_skip::skipped;
use tokio::sync::{Notify, mpsc};

use crate::{
    child::{Helper, Role},
    port,
    test_node::{self, PATIENCE, TestNode, call, serve_echo},
};

/// Far below every deadline in use here, and long enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A call whose answer has begun.
async fn begun(client: &Client, to: &str) -> Answer {
    let call = client.call(to).deadline(PATIENCE);
    let mut answer = call.send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "half");
    answer
}

/// How an answer that has begun goes on, and after what time.
async fn outcome(mut answer: Answer) -> (Status, Duration) {
    let since = Instant::now();
    let status = answer.chunk().await.unwrap_err();
    (status, since.elapsed())
}

/// An agent that begins an answer and ends it when told to.
async fn serve_half(client: &Client) -> (hailwire::ServeHandle, Arc<Notify>) {
    let end = Arc::new(Notify::new());
    let told = end.clone();
    let half = move |_: Request| {
        let told = told.clone();
        async move {
            let (sender, body) = Body::channel(1);
            sender.send("half").await?;
            tokio::spawn(async move {
                told.notified().await;
                sender.send("whole").await?;
                sender.finish().await
            });
            Ok(Response::new(body))
        }
    };
    let agent = Agent::new("half").unwrap();
    (client.serve(agent, half).await.unwrap(), end)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_in_mid_answer_is_unavailable_at_once_here_and_on_another_node() {
    let (alice, bob) = TestNode::pair().await;
    let mut agent = Helper::start(Role::HalfAgent, bob.dir.path(), "");
    let near = begun(&bob.attach().await, "half").await;
    let embedded = begun(&bob.client(), "half").await;
    let far = begun(&alice.attach().await, "half@bob").await;
    agent.kill();
    for (status, after) in [
        outcome(near).await,
        outcome(embedded).await,
        outcome(far).await,
    ] {
        assert_eq!(status.code, Code::Unavailable, "{status}");
        assert!(after < AT_ONCE, "only after {after:?}");
    }
    let gone = call(&alice.client(), "half@bob", "").await.unwrap_err();
    assert_eq!(gone.code, Code::NotFound, "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_fails_its_calls_in_time_and_comes_back_as_it_was() {
    let Some(port) = port::reserve() else {
        return skipped("the system gives away every UDP port");
    };
    let alice = TestNode::named("alice").await;
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::new(dir.path());
    test_node::was_at(dir.path(), "bob", port.address).await;
    let mut node = Helper::start(Role::Node, dir.path(), "bob");
    let bob = Client::attach(&data).await.unwrap();
    test_node::join(&bob, &alice.invite(1, &[]).await)
        .await
        .unwrap();
    let (_half, _end) = serve_half(&bob).await;
    let before = test_node::status(&bob).await;
    let near = begun(&Client::attach(&data).await.unwrap(), "half").await;
    let far = begun(&alice.client(), "half@bob").await;

    node.kill();
    let (near, far) = tokio::join!(outcome(near), outcome(far));
    assert_eq!(
        (near.0.code, far.0.code),
        (Code::Unavailable, Code::Unavailable)
    );
    assert!(near.1 < AT_ONCE, "a local caller waited {:?}", near.1);
    assert!(far.1 < Duration::from_secs(9), "a peer waited {:?}", far.1);
    assert_eq!(bob.closed().await.code, Code::Unavailable);

    let _node = Helper::start(Role::Node, dir.path(), "bob");
    let bob = Client::attach(&data).await.unwrap();
    let after = test_node::status(&bob).await;
    assert_eq!((after.id, &after.name), (before.id, &before.name));
    assert_eq!(after.sockets, before.sockets);
    assert_eq!(after.sockets, [port.address.to_string()]);
    let _echo = serve_echo(&bob, "echo").await;
    let _echo_too = serve_echo(&alice.client(), "echo").await;
    assert_eq!(call(&alice.client(), "echo@bob", "x").await.unwrap(), b"x");
    assert_eq!(call(&bob, "echo@alice", "x").await.unwrap(), b"x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ping_finds_a_peer_again_that_was_killed_and_is_back() {
    let Some(port) = port::reserve() else {
        return skipped("the system gives away every UDP port");
    };
    let alice = TestNode::named("alice").await;
    let dir = tempfile::tempdir().unwrap();
    test_node::was_at(dir.path(), "bob", port.address).await;
    let mut node = Helper::start(Role::Node, dir.path(), "bob");
    let bob = Client::attach(&DataDir::new(dir.path())).await.unwrap();
    test_node::join(&bob, &alice.invite(1, &[]).await)
        .await
        .unwrap();
    let ping = hailwire::admin::PingRequest {
        who: "bob".into(),
        carrier: String::new(),
    };
    let client = alice.client();
    let pinged = || client.admin::<_, hailwire::admin::PingAnswer>("ping", &ping);
    assert!(pinged().await.unwrap().reused);

    node.kill();
    let _node = Helper::start(Role::Node, dir.path(), "bob");
    // QUIC itself gives the old tunnel up after 30 s.
    let start = Instant::now();
    pinged().await.unwrap();
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(9), "it took {waited:?}");
    assert!(pinged().await.unwrap().reused);
}

#[tokio::test]
async fn a_second_node_on_one_folder_is_refused_with_the_first_ones_process_id() {
    let host = TestNode::named("alice").await;
    let error = test_node::start(host.dir.path(), "alice")
        .await
        .unwrap_err();
    let pid = std::process::id().to_string();
    assert!(error.to_string().contains(&pid), "{error}");
    assert!(
        host.attach()
            .await
            .admin::<_, hailwire::admin::NodeStatus>("status", &())
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_handler_that_panics_is_an_internal_error_to_its_caller_and_to_nobody_else() {
    let (alice, bob) = TestNode::pair().await;
    let attached = bob.attach().await;
    for client in [&attached, &bob.client()] {
        let panics = |request: Request| async move {
            assert!(request.header().method != "panic", "as it was told to");
            Ok(Response::new(request.into_body()))
        };
        let _serving = client
            .serve(Agent::new("frail").unwrap(), panics)
            .await
            .unwrap();
        let (_half, end) = serve_half(client).await;
        let caller = alice.client();
        let mut other = begun(&caller, "half@bob").await;
        let refused = caller.call("frail@bob").method("panic").deadline(PATIENCE);
        let status = refused.send().await.unwrap_err();
        assert_eq!(status.code, Code::Internal, "{status}");
        assert!(status.message.contains("panicked"), "{status}");
        end.notify_one();
        assert_eq!(other.bytes(100).await.unwrap(), "whole");
        assert_eq!(call(&caller, "frail@bob", "x").await.unwrap(), b"x");
    }
}

#[tokio::test]
async fn dropping_an_answer_in_mid_stream_stops_the_far_writer() {
    let (alice, bob) = TestNode::pair().await;
    let (stopped, mut was_stopped) = mpsc::channel(1);
    let endless = move |_: Request| {
        let stopped = stopped.clone();
        async move {
            let (sender, body) = Body::channel(1);
            tokio::spawn(async move {
                while sender.send(vec![0_u8; 1024]).await.is_ok() {}
                stopped.send(()).await
            });
            Ok(Response::new(body))
        }
    };
    let attached = bob.attach().await;
    for client in [&attached, &bob.client()] {
        let agent = Agent::new("endless").unwrap();
        let _serving = client.serve(agent, endless.clone()).await.unwrap();
        for caller in [alice.client(), alice.attach().await] {
            let mut answer = caller.call("endless@bob").send().await.unwrap();
            answer.chunk().await.unwrap().unwrap();
            drop(answer);
            tokio::time::timeout(PATIENCE, was_stopped.recv())
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn a_deadline_ends_a_raw_stream_too() {
    let (alice, bob) = TestNode::pair().await;
    let _echo = serve_echo(&bob.attach().await, "echo").await;
    let bob_side = bob.attach().await;
    let _kept = serve_echo(&bob_side, "echo").await;
    let deadline = Duration::from_millis(300);
    let stream = alice.client().stream("echo@bob").deadline(deadline);
    let mut stream = stream.open().await.unwrap();
    stream.send.send("x").await.unwrap();
    assert_eq!(stream.recv.chunk().await.unwrap().unwrap(), "x");
    let status = stream.recv.chunk().await.unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
}

#[tokio::test]
async fn a_node_that_leaves_lets_calls_finish_and_takes_no_new_ones() {
    let (alice, bob) = TestNode::pair().await;
    let (_half, end) = serve_half(&bob.client()).await;
    let _echo = serve_echo(&bob.client(), "echo").await;
    let program = bob.attach().await;
    let caller = alice.client();
    let mut answer = begun(&caller, "half@bob").await;
    let mut near = begun(&program, "half").await;

    let bob_id = bob.node.id();
    let leaving = tokio::spawn(bob.node.shutdown(PATIENCE));
    for (client, to) in [
        (&program, "echo".to_owned()),
        (&caller, format!("echo@{bob_id}")),
    ] {
        let refused = loop {
            if let Err(status) = call(client, &to, "").await {
                break status;
            }
        };
        assert_eq!(refused.code, Code::Unavailable, "{refused}");
    }

    end.notify_waiters();
    assert_eq!(answer.bytes(100).await.unwrap(), "whole");
    assert_eq!(near.bytes(100).await.unwrap(), "whole");
    tokio::time::timeout(AT_ONCE, leaving)
        .await
        .unwrap()
        .unwrap();
}
