//! Calls between nodes: answers, errors, deadlines, cancels, priorities, back-pressure.

use std::{sync::Arc, time::Duration};

use hailwire::{Agent, Body, Code, Request, Response, Status};
use hailwire_wire::limits;
use tokio::sync::{Notify, oneshot};

use crate::test_node::{PATIENCE, TestNode, call, serve_echo};

#[tokio::test]
async fn an_embedded_agent_is_called_by_name_from_another_node() {
    let (alice, bob) = TestNode::pair().await;
    let _echo = serve_echo(&bob.client(), "echo").await;
    assert_eq!(
        call(&alice.client(), "echo@bob", "hail").await.unwrap(),
        b"hail"
    );
    // The bare name finds it too: it is offered over the tunnel.
    assert_eq!(
        call(&alice.client(), "echo", "hail").await.unwrap(),
        b"hail"
    );
    let by_key = format!("echo@{}", bob.node.id());
    assert_eq!(
        call(&alice.client(), &by_key, "hail").await.unwrap(),
        b"hail"
    );
}

#[tokio::test]
async fn an_attached_agent_is_called_by_an_attached_program_through_two_nodes() {
    let (alice, bob) = TestNode::pair().await;
    let (caller, callee) = tokio::join!(alice.attach(), bob.attach());
    let _echo = serve_echo(&callee, "echo").await;
    assert_eq!(call(&caller, "echo@bob", "hail").await.unwrap(), b"hail");
    let large = vec![7_u8; 3_000_000];
    assert_eq!(
        call(&caller, "echo@bob", large.clone()).await.unwrap(),
        large
    );
}

#[tokio::test]
async fn a_body_larger_than_every_window_is_answered_while_it_is_sent() {
    let (alice, bob) = TestNode::pair().await;
    let _echo = serve_echo(&bob.client(), "echo").await;
    let large = vec![7_u8; 64_000_000];
    let client = alice.client();
    let answered = call(&client, "echo@bob", large.clone());
    let answer = tokio::time::timeout(PATIENCE, answered).await.unwrap();
    assert_eq!(answer.unwrap().len(), large.len());
}

#[tokio::test]
async fn an_answer_is_streamed_as_it_is_made() {
    let (alice, bob) = TestNode::pair().await;
    let more = Arc::new(Notify::new());
    let told = more.clone();
    let count = move |_: Request| {
        let told = told.clone();
        async move {
            let (sender, body) = Body::channel(1);
            tokio::spawn(async move {
                sender.send("one").await?;
                told.notified().await;
                sender.send("two").await?;
                sender.finish().await
            });
            Ok(Response::new(body)
                .content_type("text/plain")
                .header("k", "v"))
        }
    };
    let _serving = bob
        .client()
        .serve(Agent::new("count").unwrap(), count)
        .await
        .unwrap();
    let mut answer = alice
        .client()
        .call("count@bob")
        .deadline(PATIENCE)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.head().content_type, "text/plain");
    assert_eq!(answer.head().headers, [("k".to_owned(), "v".to_owned())]);
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "one");
    more.notify_one();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "two");
    assert_eq!(answer.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn a_handlers_error_reaches_the_caller_whole() {
    let (alice, bob) = TestNode::pair().await;
    let fail = |_: Request| async {
        Err(Status::new(Code::OutOfRange, "too far")
            .with_hint("stay")
            .with_details("tail"))
    };
    let _serving = bob
        .attach()
        .await
        .serve(Agent::new("fail").unwrap(), fail)
        .await
        .unwrap();
    let bob_side = bob.attach().await;
    let _kept = bob_side
        .serve(Agent::new("fail").unwrap(), fail)
        .await
        .unwrap();
    let status = call(&alice.attach().await, "fail@bob", "")
        .await
        .unwrap_err();
    assert_eq!(status.code, Code::OutOfRange);
    assert_eq!(
        (status.message, status.hint, status.details),
        ("too far".into(), "stay".into(), "tail".into())
    );
}

#[tokio::test]
async fn an_unknown_agent_and_an_unknown_node_are_told_apart() {
    let (alice, _bob) = TestNode::pair().await;
    let agent = call(&alice.client(), "nobody@bob", "").await.unwrap_err();
    assert_eq!(
        (agent.code, agent.message.as_str()),
        (Code::NotFound, "no agent `nobody` is known here")
    );
    let node = call(&alice.client(), "echo@nowhere", "").await.unwrap_err();
    assert_eq!(
        (node.code, node.message.as_str()),
        (Code::NotFound, "no node `nowhere` is known here")
    );
    assert_eq!(
        call(&alice.client(), "Not A Name", "")
            .await
            .unwrap_err()
            .code,
        Code::InvalidArgument
    );
}

/// An agent that never answers and tells when its future is dropped.
async fn serve_hang(
    host: &TestNode,
) -> (
    hailwire::ServeHandle,
    hailwire::Client,
    oneshot::Receiver<()>,
    Arc<Notify>,
) {
    let (dropped, was_dropped) = oneshot::channel::<()>();
    let slot = Arc::new(std::sync::Mutex::new(Some(dropped)));
    let started = Arc::new(Notify::new());
    let begun = started.clone();
    let hang = move |_: Request| {
        let guard = slot.lock().unwrap().take();
        begun.notify_one();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    };
    let client = host.attach().await;
    let serving = client
        .serve(Agent::new("hang").unwrap(), hang)
        .await
        .unwrap();
    (serving, client, was_dropped, started)
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_through_two_nodes() {
    let (alice, bob) = TestNode::pair().await;
    let (_serving, _client, dropped, started) = serve_hang(&bob).await;
    let caller = alice.attach().await;
    let call = tokio::spawn(async move { caller.call("hang@bob").send().await.map(drop) });
    started.notified().await;
    call.abort();
    // The sender is dropped with the handler's future, which resolves this as an error.
    tokio::time::timeout(PATIENCE, dropped)
        .await
        .unwrap()
        .unwrap_err();
}

#[tokio::test]
async fn a_deadline_holds_on_both_ends() {
    let (alice, bob) = TestNode::pair().await;
    let (_serving, _client, dropped, _started) = serve_hang(&bob).await;
    let caller = alice.attach().await;
    let begun = std::time::Instant::now();
    let deadline = Duration::from_millis(300);
    let status = caller
        .call("hang@bob")
        .deadline(deadline)
        .send()
        .await
        .unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(begun.elapsed() >= deadline);
    tokio::time::timeout(PATIENCE, dropped)
        .await
        .unwrap()
        .unwrap_err();
}

#[tokio::test]
async fn a_one_way_send_is_acknowledged() {
    let (alice, bob) = TestNode::pair().await;
    let (tell, told) = oneshot::channel();
    let tell = Arc::new(std::sync::Mutex::new(Some(tell)));
    let take = move |mut request: Request| {
        let tell = tell.lock().unwrap().take();
        async move {
            let bytes = request.body_mut().bytes(100).await?;
            if let Some(tell) = tell {
                tell.send((request.kind(), bytes)).unwrap();
            }
            Ok(Response::default())
        }
    };
    let _serving = bob
        .client()
        .serve(Agent::new("take").unwrap(), take)
        .await
        .unwrap();
    alice.client().send("take@bob", "note").await.unwrap();
    assert_eq!(
        told.await.unwrap(),
        (hailwire::RequestKind::Send, "note".into())
    );
    assert_eq!(
        alice.client().send("none@bob", "").await.unwrap_err().code,
        Code::NotFound
    );
}

#[tokio::test]
async fn a_message_past_its_bound_is_refused_even_if_its_agent_does_not_mind() {
    let (alice, bob) = TestNode::pair().await;
    let take = |mut request: Request| async move {
        while let Ok(Some(_)) = request.body_mut().chunk().await {}
        Ok(Response::default())
    };
    let agent = Agent::new("take").unwrap();
    let _serving = bob.attach().await.serve(agent, take).await.unwrap();
    let caller = alice.attach().await;
    let largest = vec![7; limits::MAX_SEND_BODY];
    let longer = vec![7; limits::MAX_SEND_BODY + 1];
    caller.send("take@bob", largest).await.unwrap();
    let refused = caller.send("take@bob", longer).await.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted, "{refused}");
}

#[tokio::test]
async fn a_raw_stream_carries_bytes_both_ways_at_once() {
    let (alice, bob) = TestNode::pair().await;
    let bob_side = bob.attach().await;
    let _echo = serve_echo(&bob_side, "echo").await;
    let mut stream = alice
        .attach()
        .await
        .stream("echo@bob")
        .open()
        .await
        .unwrap();
    for word in ["one", "two", "three"] {
        stream.send.send(word).await.unwrap();
        assert_eq!(stream.recv.chunk().await.unwrap().unwrap(), word);
    }
    stream.send.finish().await.unwrap();
    assert_eq!(stream.recv.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn a_thousand_calls_at_once_are_all_answered() {
    let (alice, bob) = TestNode::pair().await;
    let bob_side = bob.attach().await;
    let _echo = serve_echo(&bob_side, "echo").await;
    let caller = alice.attach().await;
    let mut calls = tokio::task::JoinSet::new();
    for i in 0..1000_u32 {
        let caller = caller.clone();
        calls.spawn(async move {
            let body = i.to_string().repeat(100);
            assert_eq!(
                call(&caller, "echo@bob", body.clone()).await.unwrap(),
                body.into_bytes()
            );
        });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_raw_stream_brings_its_media_type_and_its_key() {
    let alice = TestNode::named("alice").await;
    let tell = |request: Request| async move {
        let header = request.header();
        let told = format!("{} {}", header.content_type, header.idempotency_key);
        Ok(Response::new(told))
    };
    let agent = Agent::new("tell").unwrap();
    let _serving = alice.client().serve(agent, tell).await.unwrap();
    let stream = alice.attach().await.stream("tell");
    let stream = stream.content_type("text/csv").idempotency_key("7");
    let mut stream = stream.deadline(PATIENCE).open().await.unwrap();
    assert_eq!(stream.recv.bytes(100).await.unwrap(), "text/csv 7");
}

#[tokio::test]
async fn a_raw_stream_is_accepted_before_its_agent_answers() {
    let (alice, bob) = TestNode::pair().await;
    let bob_side = bob.attach().await;
    let whole = |mut request: Request| async move {
        Ok(Response::new(request.body_mut().bytes(100).await?))
    };
    let _serving = bob_side
        .serve(Agent::new("whole").unwrap(), whole)
        .await
        .unwrap();
    let mut stream = alice
        .attach()
        .await
        .stream("whole@bob")
        .open()
        .await
        .unwrap();
    stream.send.send("all of it").await.unwrap();
    stream.send.finish().await.unwrap();
    assert_eq!(stream.recv.chunk().await.unwrap().unwrap(), "all of it");
}
