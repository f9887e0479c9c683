//! Cases about the end of the connection: the node goes, comes back, closes; the peer is told to end; agents come and go.

use std::time::Duration;

use hailwire_wire::{
    CallHeader, Code, Status,
    frame::FrameKind,
    header::{self, AnswerHead},
};
use serde_json::{Value, json};

use crate::{
    case::{Case, CaseGroup},
    failure::{Failure, Outcome, holds, same},
    link::{LinkEnd, StreamEvent},
    node::{PlayedNode, code_is, json_of, to_peer},
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "The node goes, the peer goes, agents go",
        cases: vec![
            Case::new("node-restarts", "the connection is lost under 1,000 calls: within 2 s the peer has attached and registered anew, with no call left over", |stage| Box::pin(restart(stage))),
            Case::new("node-restarts-under-calls-of-the-peer", "the connection is lost under 1,000 calls of the peer: each ends with `unavailable` within 2 s", |stage| Box::pin(lost_calls(stage))),
            Case::new("node-closes-under-calls-of-the-peer", "CLOSE with `resource_exhausted` under 100 calls of the peer: each ends with it", |stage| Box::pin(closed_calls(stage))),
            Case::new("node-closes", "after CLOSE with `ok`, `unavailable` or `aborted` the peer attaches again", |stage| Box::pin(closes(stage))),
            Case::new("node-refuses-at-first", "connections that are dropped before the preface, before the greeting and before the registration is accepted: the peer tries again", |stage| Box::pin(refuses_at_first(stage))),
            Case::new("node-is-away", "for some time nobody listens; then the peer attaches", |stage| Box::pin(away(stage))),
            Case::new("node-stops-inside-a-frame", "the byte stream ends inside a frame", |stage| Box::pin(inside_a_frame(stage))),
            Case::new("second-agent", "another `REGISTER` on the same connection, and calls of both agents", |stage| Box::pin(second(stage))),
            Case::new("second-agent-refused", "`END` with a status in place of `HEAD`: whoever offered it is told, and the first stays", |stage| Box::pin(second_refused(stage))),
            Case::new("drain", "an agent is taken back: FIN of its `REGISTER`; calls are served until the node's `END`, which the peer waits for", |stage| Box::pin(drain(stage))),
            Case::new("drain-under-way", "a call that is under way when its agent is taken back ends well", |stage| Box::pin(drain_under_way(stage))),
            Case::new("terminated", "SIGTERM: FIN of `REGISTER`, then, after the node's `END`, the peer's end with exit code 0", |stage| Box::pin(terminated(stage))),
            Case::new("terminated-under-calls", "SIGTERM while calls run: they end well, and only then the peer does", |stage| Box::pin(terminated_under_calls(stage))),
            Case::new("terminated-under-a-call-without-end", "SIGTERM while a call runs that never ends: the peer ends with 0 after 10 s, and the call is reset, ended or cut off", |stage| Box::pin(terminated_under_wait(stage))).within(40),
        ],
    }
}

async fn restart(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for _ in 0..500 {
        node.begin("wait", "").await?;
    }
    let outer = node
        .begin("call", json!({"to": "other", "times": 500}).to_string())
        .await?;
    for _ in 0..500 {
        node.peer_call(Some(outer)).await?;
    }
    waiting(&mut node, 500).await?;
    drop(node);
    let mut node = within_two_seconds(stage).await?;
    let came = settled(&mut node).await?;
    same(
        "handlers that were cancelled",
        Some(500),
        came["cancelled"].as_u64(),
    )?;
    node.still_works().await
}

/// Waits until so many handlers wait.
async fn waiting(node: &mut PlayedNode, count: u64) -> Outcome {
    while node.json("counts", "").await?["waiting"].as_u64() != Some(count) {
        node.link.awaits(format_args!("{count} handlers that wait"));
        node.link.round_trip().await?;
    }
    Ok(())
}

/// What `counts` says once no handler waits any more.
async fn settled(node: &mut PlayedNode) -> Outcome<Value> {
    loop {
        let came = node.json("counts", "").await?;
        if came["waiting"].as_u64() == Some(0) {
            return Ok(came);
        }
        node.link.awaits("no handler of a lost connection to wait");
        node.link.round_trip().await?;
    }
}

async fn within_two_seconds(stage: &mut Stage) -> Outcome<PlayedNode> {
    let limit = Duration::from_secs(2);
    match tokio::time::timeout(limit, stage.attach_again()).await {
        Ok(attached) => attached,
        Err(_) => Err(Failure::new(
            "the peer to attach again within 2 s",
            "nothing",
        )),
    }
}

/// Has the peer make calls that outlast the connection they were asked for on.
async fn detached(node: &mut PlayedNode, times: usize) -> Outcome {
    let ask = json!({"to": "other", "times": times, "detached": true});
    let id = node.begin("call", ask.to_string()).await?;
    let started = node.answer(id, "a `call` that is `detached`").await?;
    same("the answer of one", b"started", started.success()?.as_ref())?;
    for _ in 0..times {
        node.peer_call(None).await?;
    }
    Ok(())
}

async fn lost_calls(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    detached(&mut node, 1_000).await?;
    drop(node);
    let limit = Duration::from_secs(2);
    let outcome = async {
        let mut node = stage.attach_again().await?;
        node.json("outcome", "").await
    };
    let Ok(came) = tokio::time::timeout(limit, outcome).await else {
        return Err(Failure::new("the end of all calls within 2 s", "nothing"));
    };
    same("the outcomes", &json!({"14": 1_000}), &came?["outcomes"])
}

async fn closed_calls(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    detached(&mut node, 100).await?;
    node.link
        .close(Code::ResourceExhausted, "too many programs");
    // The peer may be gone before all is written.
    let _ = node.link.flush().await;
    drop(node);
    let mut node = stage.attach_again().await?;
    let came = node.json("outcome", "").await?;
    same("the outcomes", &json!({"8": 100}), &came["outcomes"])
}

async fn closes(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    for code in [Code::Ok, Code::Unavailable, Code::Aborted] {
        node.begin("wait", "").await?;
        node.link.close(code, "restarting");
        let _ = node.link.flush().await;
        drop(node);
        node = stage.attach_again().await?;
        settled(&mut node).await?;
    }
    node.still_works().await
}

async fn refuses_at_first(stage: &mut Stage) -> Outcome {
    drop(stage.attach_for_good().await?);
    drop(stage.accept().await?);
    let mut link = stage.accept().await?;
    link.preface();
    link.greeted().await?;
    drop(link);
    let mut link = stage.accept().await?;
    link.greet(&crate::node::node_hello()).await?;
    link.registration().await?;
    drop(link);
    let mut link = stage.accept().await?;
    link.preface();
    link.close(Code::Unavailable, "still starting");
    let _ = link.flush().await;
    drop(link);
    stage.attach_again().await?.still_works().await
}

async fn away(stage: &mut Stage) -> Outcome {
    let node = stage.attach_for_good().await?;
    stage.stop_listening().map_err(Failure::driver)?;
    drop(node);
    // Long enough that it has looked for the node at least once and found nothing.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    stage.listen().map_err(Failure::driver)?;
    stage.attach_again().await?.still_works().await
}

async fn inside_a_frame(stage: &mut Stage) -> Outcome {
    for cut in [1, 11, 14] {
        let mut node = stage.attach_for_good().await?;
        let mut frame = b"\x01\x10\x00\x08".to_vec();
        frame.extend_from_slice(&node.link.next_id().to_be_bytes());
        frame.extend_from_slice(b"\x02\x00\x00\x04");
        node.link.raw(frame.get(..cut).unwrap_or_default());
        node.link.flush().await?;
    }
    stage.attach_again().await?.still_works().await
}

/// Has the peer offer its second agent, and accepts it.
async fn offered(node: &mut PlayedNode) -> Outcome<u64> {
    let offering = node.begin("second", "").await?;
    let (id, register) = node.link.registration().await?;
    same("the agent's name", "second", register.name.as_str())?;
    node.link.round_trip().await?;
    let early = node.link.stream(offering)?.end();
    same("the answer of `second` before it was accepted", None, early)?;
    node.link
        .put(id, FrameKind::HEAD, &header::encode(&AnswerHead::default()));
    node.answer(offering, "second").await?.success()?;
    Ok(id)
}

fn to_second() -> CallHeader {
    CallHeader {
        to: "second".to_owned(),
        ..to_peer("anything")
    }
}

async fn second(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    offered(&mut node).await?;
    let id = node
        .begin_as(FrameKind::CALL, &to_second(), "for the second")
        .await?;
    let answered = node.answer(id, "the second agent").await?;
    same(
        "the answer",
        b"for the second",
        answered.success()?.as_ref(),
    )?;
    node.still_works().await
}

async fn second_refused(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let offering = node.begin("second", "").await?;
    let (id, _) = node.link.registration().await?;
    node.end(id, &Status::new(Code::AlreadyExists, "the name is taken"));
    let answered = node.answer(offering, "second").await?;
    answered.ended_with(Code::AlreadyExists)?;
    let id = node.begin_as(FrameKind::CALL, &to_second(), "").await?;
    node.answer(id, "an agent that was refused")
        .await?
        .ended_with(Code::NotFound)?;
    node.still_works().await
}

/// Waits until a registration's direction is finished.
async fn taken_back(node: &mut PlayedNode, registration: u64) -> Outcome {
    node.link.awaits("FIN of REGISTER");
    match node.link.event(registration).await? {
        StreamEvent::Finished => Ok(()),
        other => holds("FIN of REGISTER", false, other),
    }
}

async fn drain(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let registration = offered(&mut node).await?;
    let draining = node.begin("drain", "").await?;
    taken_back(&mut node, registration).await?;
    // A call that was on its way.
    let id = node.begin_as(FrameKind::CALL, &to_second(), "late").await?;
    let answered = node.answer(id, "a call on its way").await?;
    same("the answer", b"late", answered.success()?.as_ref())?;
    let early = node.link.stream(draining)?.end();
    same("the answer of `drain` before the node's END", None, early)?;
    node.end(registration, &Status::ok());
    node.answer(draining, "drain").await?.success()?;
    let id = node.begin_as(FrameKind::CALL, &to_second(), "").await?;
    node.answer(id, "an agent that is gone")
        .await?
        .ended_with(Code::NotFound)?;
    node.still_works().await
}

async fn drain_under_way(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let registration = offered(&mut node).await?;
    let id = node.open(FrameKind::CALL, &to_second()).await?;
    node.data(id, b"under ");
    let draining = node.begin("drain", "").await?;
    taken_back(&mut node, registration).await?;
    node.data(id, b"way");
    node.link.finish(id);
    let answered = node.answer(id, "a call under way").await?;
    same("the answer", b"under way", answered.success()?.as_ref())?;
    node.end(registration, &Status::ok());
    node.answer(draining, "drain").await?.success()?;
    node.still_works().await
}

/// Waits for the peer to detach and to exit with 0.
async fn ends(stage: &mut Stage, mut node: PlayedNode) -> Outcome {
    node.link.awaits("the peer to detach");
    if let LinkEnd::Closed { code, reason } = node.link.ended().await? {
        let fits = matches!(code, Code::Ok | Code::Unavailable);
        holds("CLOSE with ok or unavailable", fits, (code, reason))?;
    }
    stage.exits_with(0).await
}

async fn terminated(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    node.still_works().await?;
    stage.peer()?.terminate();
    let registration = node.registration;
    taken_back(&mut node, registration).await?;
    node.still_works().await?;
    node.end(registration, &Status::ok());
    ends(stage, node).await
}

async fn terminated_under_calls(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let echo = node.open(FrameKind::CALL, &to_peer("echo")).await?;
    node.data(echo, b"under ");
    let asked = node.ask(&json!({"to": "other"})).await?;
    stage.peer()?.terminate();
    let registration = node.registration;
    taken_back(&mut node, registration).await?;
    node.data(echo, b"way");
    node.link.finish(echo);
    let answered = node.answer(echo, "a call under way").await?;
    same("the answer", b"under way", answered.success()?.as_ref())?;
    node.answer_with(asked.made.id, b"of another");
    let outcome = json_of(&node.answer(asked.outer, "call").await?)?;
    code_is(&outcome, Code::Ok)?;
    node.end(registration, &Status::ok());
    ends(stage, node).await
}

async fn terminated_under_wait(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    node.begin("wait", "").await?;
    waiting(&mut node, 1).await?;
    let began = std::time::Instant::now();
    stage.peer()?.terminate();
    let registration = node.registration;
    taken_back(&mut node, registration).await?;
    ends(stage, node).await?;
    let took = began.elapsed().as_secs_f64();
    stage.note(format_args!("ended after {took:.1} s"));
    holds("the end after 9 to 20 s", (9.0..20.0).contains(&took), took)
}
