//! Cases about deadlines and cancels, at both ends.

use hailwire_wire::{CallHeader, Code, Status, frame::FrameKind};
use serde_json::{Value, json};

use crate::{
    case::{Case, CaseGroup},
    failure::{Outcome, holds, same},
    link::DirectionEnd,
    node::{PlayedNode, code_is, to_peer},
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "Deadlines and cancels",
        cases: vec![
            Case::new(
                "deadline-ends-the-handler",
                "a handler that runs when its deadline passes is cancelled, and `END(deadline_exceeded)` or RESET with it comes no earlier",
                |stage| Box::pin(deadline_of_handler(stage)),
            ),
            Case::new(
                "deadline-of-zero",
                "a deadline of 0 has passed already",
                |stage| Box::pin(deadline_zero(stage)),
            ),
            Case::new(
                "deadline-inside-an-answer",
                "a deadline that passes while the node reads no more: RESET, or `END`, with `deadline_exceeded`",
                |stage| Box::pin(deadline_in_answer(stage)),
            ),
            Case::new(
                "deadline-is-told",
                "a handler knows what is left of its deadline",
                |stage| Box::pin(deadline_told(stage)),
            ),
            Case::new(
                "deadline-of-64-bits",
                "a deadline of 2^64 − 1 ms is as good as none",
                |stage| Box::pin(deadline_huge(stage)),
            ),
            Case::new(
                "call-deadline",
                "`deadline_ms` of a call is what is left; the caller gives up by itself with `deadline_exceeded`, and cancels",
                |stage| Box::pin(call_deadline(stage)),
            ),
            Case::new(
                "call-deadline-in-an-answer",
                "a caller's deadline that passes while an answer comes",
                |stage| Box::pin(call_deadline_in_answer(stage)),
            ),
            Case::new(
                "call-deadline-while-writing",
                "a caller's deadline that passes while its body is held back: RESET with `cancelled`",
                |stage| Box::pin(call_deadline_writing(stage)),
            ),
            Case::new(
                "call-without-deadline",
                "a call without deadline states none",
                |stage| Box::pin(call_without(stage)),
            ),
            Case::new(
                "deadline-is-inherited",
                "a call that a handler makes has what is left of the deadline of the call that it serves",
                |stage| Box::pin(inherited(stage)),
            ),
            Case::new(
                "cancel-reaches-the-handler",
                "RESET and STOP with `cancelled` cancel the handler; with the request finished STOP alone does",
                |stage| Box::pin(cancel(stage)),
            ),
            Case::new(
                "cancel-with-other-codes",
                "so does STOP with any other code, and it is answered with RESET and the same code",
                |stage| Box::pin(cancel_codes(stage)),
            ),
            Case::new(
                "cancel-of-many",
                "2,000 handlers are cancelled, one by one, and counted",
                |stage| Box::pin(cancel_many(stage)),
            ),
            Case::new(
                "cancel-while-the-body-is-read",
                "RESET of the request inside a frame ends the call",
                |stage| Box::pin(reset_request(stage)),
            ),
            Case::new(
                "cancel-of-an-answer",
                "STOP in the middle of a long answer ends it with RESET and the same code",
                |stage| Box::pin(cancel_answer(stage)),
            ),
            Case::new(
                "caller-leaves-after-the-first-chunk",
                "STOP with `cancelled`; RESET with it where the body had not ended",
                |stage| Box::pin(leaves(stage)),
            ),
            Case::new(
                "caller-cancels-before-the-answer",
                "a call that is cancelled from outside: STOP with `cancelled`, and RESET where the body had not ended",
                |stage| Box::pin(caller_cancels(stage)),
            ),
        ],
    }
}

fn with_deadline(method: &str, ms: u64) -> CallHeader {
    CallHeader {
        deadline_ms: Some(ms),
        ..to_peer(method)
    }
}

/// What `counts` says, as waiting and cancelled.
async fn counts(node: &mut PlayedNode) -> Outcome<(u64, u64)> {
    let came = node.json("counts", "").await?;
    let number = |name: &str| came[name].as_u64().unwrap_or(u64::MAX);
    Ok((number("waiting"), number("cancelled")))
}

/// Asks `counts` until it says so.
async fn counted(node: &mut PlayedNode, expected: (u64, u64)) -> Outcome {
    loop {
        let came = counts(node).await?;
        if came == expected {
            return Ok(());
        }
        node.link.awaits(format_args!(
            "`counts` to say {expected:?}, waiting and cancelled, not {came:?}"
        ));
        node.link.round_trip().await?;
    }
}

async fn deadline_of_handler(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let began = std::time::Instant::now();
    let id = node
        .open(FrameKind::CALL, &with_deadline("wait", 200))
        .await?;
    let answered = node.answer(id, "wait with a deadline").await?;
    let took = began.elapsed().as_millis();
    answered.failed_with(&[Code::DeadlineExceeded])?;
    holds("the end after 200 ms", (195..10_000).contains(&took), took)?;
    counted(&mut node, (0, 1)).await?;
    node.still_works().await
}

async fn deadline_zero(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node
        .begin_as(FrameKind::CALL, &with_deadline("wait", 0), "")
        .await?;
    let answered = node.answer(id, "wait with a deadline of 0").await?;
    answered.failed_with(&[Code::DeadlineExceeded])?;
    let (waiting, _) = counts(&mut node).await?;
    same("handlers that wait", 0, waiting)
}

async fn deadline_in_answer(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    node.link.set_grants(false);
    let ask = json!({"bytes": 50_000_000}).to_string();
    let id = node
        .begin_as(FrameKind::CALL, &with_deadline("produce", 300), ask)
        .await?;
    node.link.awaits("RESET or END with deadline_exceeded");
    let end = node.link.direction_end(id).await?;
    if end == DirectionEnd::Finished {
        node.answer(id, "produce")
            .await?
            .ended_with(Code::DeadlineExceeded)?;
    } else {
        same("the end", DirectionEnd::Reset(Code::DeadlineExceeded), end)?;
    }
    node.link.set_grants(true);
    node.still_works().await
}

async fn deadline_told(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node
        .begin_as(FrameKind::CALL, &with_deadline("inspect", 60_000), "")
        .await?;
    let came = crate::node::json_of(&node.answer(id, "inspect").await?)?;
    let left = came["deadline_ms"].as_u64();
    let sensible = left.is_some_and(|left| (50_000..=60_000).contains(&left));
    holds(
        "deadline_ms of at most 60,000, and hardly less",
        sensible,
        left,
    )
}

async fn deadline_huge(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for ms in [u64::MAX, 1 << 53, u64::from(u32::MAX)] {
        let id = node
            .begin_as(FrameKind::CALL, &with_deadline("echo", ms), "x")
            .await?;
        node.answer(id, "echo").await?.success()?;
    }
    Ok(())
}

async fn call_deadline(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node.ask(&json!({"to": "other", "timeout_ms": 300})).await?;
    let stated = asked.made.header.deadline_ms;
    let sensible = stated.is_some_and(|ms| (1..=300).contains(&ms));
    holds("deadline_ms of 1 to 300", sensible, stated)?;
    node.given_up(asked.made.id).await?;
    let outcome = node.outcome_code(&asked, Code::DeadlineExceeded).await?;
    let elapsed = outcome["elapsed_ms"].as_u64();
    let sensible = elapsed.is_some_and(|ms| (290..5_000).contains(&ms));
    holds("the end of the call after 300 ms", sensible, elapsed)
}

async fn call_deadline_in_answer(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node.ask(&json!({"to": "other", "timeout_ms": 300})).await?;
    node.data(asked.made.id, b"so far");
    node.given_up(asked.made.id).await?;
    let outcome = node.outcome_code(&asked, Code::DeadlineExceeded).await?;
    same("the bytes that came", Some(6), outcome["bytes"].as_u64())
}

async fn call_deadline_writing(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    node.link.set_grants(false);
    let asked = node
        .ask(&json!({"to": "other", "timeout_ms": 300, "body_bytes": 10_000_000}))
        .await?;
    node.given_up(asked.made.id).await?;
    let end = node.link.direction_end(asked.made.id).await?;
    same(
        "the end of the body",
        DirectionEnd::Reset(Code::Cancelled),
        end,
    )?;
    node.link.set_grants(true);
    node.outcome_code(&asked, Code::DeadlineExceeded).await?;
    Ok(())
}

async fn call_without(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node.ask(&json!({"to": "other"})).await?;
    same("deadline_ms", None, asked.made.header.deadline_ms)?;
    node.end(asked.made.id, &Status::ok());
    node.outcome_code(&asked, Code::Ok).await?;
    Ok(())
}

async fn inherited(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for kind in ["call", "send", "stream"] {
        let ask = json!({"to": "other", "kind": kind}).to_string();
        let outer = node
            .begin_as(FrameKind::CALL, &with_deadline("call", 30_000), ask)
            .await?;
        let made = node.peer_call(Some(outer)).await?;
        let stated = made.header.deadline_ms;
        let sensible = stated.is_some_and(|ms| (20_000..=30_000).contains(&ms));
        holds(
            format_args!("deadline_ms of a {kind} of at most 30,000, and hardly less"),
            sensible,
            stated,
        )?;
        if kind == "stream" {
            node.link.put(made.id, FrameKind::HEAD, b"\x80");
        }
        node.end(made.id, &Status::ok());
        node.answer(outer, "call").await?.success()?;
    }
    Ok(())
}

async fn cancel(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let open = node.open(FrameKind::CALL, &to_peer("wait")).await?;
    let finished = node.begin("wait", "").await?;
    let stream = node.open(FrameKind::STREAM, &to_peer("wait")).await?;
    counted(&mut node, (3, 0)).await?;
    for (count, id) in [(1, open), (2, finished), (3, stream)] {
        node.link.reset(id, Code::Cancelled);
        node.link.stop(id, Code::Cancelled);
        counted(&mut node, (3 - count, count)).await?;
        node.link
            .awaits("the end of the answer of a call that was cancelled");
        node.link.direction_end(id).await?;
    }
    node.still_works().await
}

async fn cancel_codes(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for (count, code) in (1..).zip([
        Code::Ok,
        Code::DeadlineExceeded,
        Code::Unavailable,
        Code::Internal,
    ]) {
        let id = node.begin("wait", "").await?;
        counted(&mut node, (1, count - 1)).await?;
        node.link.stop(id, code);
        counted(&mut node, (0, count)).await?;
        node.link.awaits("RESET with the code of STOP");
        let end = node.link.direction_end(id).await?;
        same("the end of the answer", DirectionEnd::Reset(code), end)?;
    }
    Ok(())
}

async fn cancel_many(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let mut calls = Vec::new();
    for _ in 0..2_000 {
        calls.push(node.begin("wait", "").await?);
    }
    counted(&mut node, (2_000, 0)).await?;
    for id in calls {
        node.link.stop(id, Code::Cancelled);
    }
    counted(&mut node, (0, 2_000)).await
}

async fn reset_request(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for method in ["echo", "consume", "chunks"] {
        let id = node.open(FrameKind::CALL, &to_peer(method)).await?;
        node.link.write(id, b"\x11\x00\x10\x00begun".to_vec());
        node.link.flush().await?;
        node.link.reset(id, Code::Cancelled);
        node.link
            .awaits(format_args!("the end of {method} whose request was reset"));
        loop {
            match node.link.event(id).await? {
                crate::link::StreamEvent::Reset(_) | crate::link::StreamEvent::Finished => break,
                crate::link::StreamEvent::Frame(FrameKind::END, payload) => {
                    let status = crate::answer::end_status(&payload)?;
                    holds("an END that is not ok", !status.is_ok(), status)?;
                }
                _ => {}
            }
        }
    }
    node.still_works().await
}

async fn cancel_answer(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node
        .begin("produce", json!({"bytes": 50_000_000}).to_string())
        .await?;
    node.link.awaits("the first MB of an answer");
    while node.link.stream(id)?.received() < 1_000_000 {
        node.link.event(id).await?;
    }
    node.link.stop(id, Code::Aborted);
    node.link.awaits("RESET with the code of STOP");
    let end = node.link.direction_end(id).await?;
    same(
        "the end of the answer",
        DirectionEnd::Reset(Code::Aborted),
        end,
    )?;
    node.still_works().await
}

async fn leaves(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let plans: [Value; 2] = [
        json!({"to": "other", "read": "first"}),
        json!({"to": "other", "read": "first", "body_bytes": 50_000_000}),
    ];
    for plan in plans {
        let asked = node.ask(&plan).await?;
        node.data(asked.made.id, b"first");
        node.given_up(asked.made.id).await?;
        let outcome = node.outcome(&asked).await?;
        same(
            "the bytes that were read",
            Some(5),
            outcome["bytes"].as_u64(),
        )?;
    }
    node.still_works().await
}

async fn caller_cancels(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for body in [0, 50_000_000] {
        for answers in [false, true] {
            let plan = json!({"to": "other", "read": "cancel", "cancel_after_ms": 100, "body_bytes": body});
            let asked = node.ask(&plan).await?;
            if answers {
                node.data(asked.made.id, b"begun");
            }
            node.given_up(asked.made.id).await?;
            let outcome = node.outcome(&asked).await?;
            code_is(&outcome, Code::Cancelled)?;
        }
    }
    node.still_works().await
}
