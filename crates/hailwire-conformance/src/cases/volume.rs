//! Cases about credit, many streams, and much: no side sends more than was granted, and nothing grows while somebody is slow.

use std::time::{Duration, Instant};

use hailwire_wire::{
    CallHeader, Code, Status,
    frame::FrameKind,
    limits::{MUX_INITIAL_WINDOW, MUX_MAX_STREAMS},
};
use serde_json::{Value, json};

use crate::{
    case::{Case, CaseGroup},
    failure::{Failure, Outcome, holds, same},
    link::StreamEvent,
    node::{PeerCall, PlayedNode, json_of, to_peer},
    stage::Stage,
};

/// A GiB.
const GIB: u64 = 1 << 30;

/// The most memory that a peer may have had while a slow side held a fast one back.
const MOST_MEMORY_KIB: u64 = 96 * 1024;

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "Credit and volume",
        cases: vec![
            Case::new("credit-of-a-body", "a call's body stops at 16,384 bytes of its stream and goes on by as many as WINDOW grants: 1, 100, 5,000, 70,000", |stage| Box::pin(credit_of_body(stage))),
            Case::new("credit-of-an-answer", "so does an answer", |stage| Box::pin(credit_of_answer(stage))),
            Case::new("credit-held-back-stops-no-other", "while 100 bodies are held back, calls are answered both ways", |stage| Box::pin(held_back(stage))),
            Case::new("whole-bodies-held-back", "40 calls at once, each with 50,000 bytes that are there whole, of which the node grants the rest late and to the last call first", |stage| Box::pin(whole_bodies(stage))),
            Case::new("windows-are-granted-as-it-reads", "20 MB to a handler that reads: WINDOW comes, never more than 2 MiB for a stream", |stage| Box::pin(windows(stage))),
            Case::new("windows-of-many-streams", "64 bodies of 2 MB at once: all windows together stay within 16,384 bytes each and 8 MiB", |stage| Box::pin(windows_of_many(stage))).within(60),
            Case::new("unread-body-is-held-back", "a handler that does not read is granted 128 KiB at most, for what its library holds, and its stream stops no other", |stage| Box::pin(unread(stage))),
            Case::new("streams-of-the-peer", "the peer opens 4,096 streams and no more until STREAMS comes, in batches of 1 to 1,000: 10,000 calls", |stage| Box::pin(peer_streams(stage))).within(90),
            Case::new("streams-of-the-node", "STREAMS comes as streams are over: 10,000 calls of the peer's agent", |stage| Box::pin(node_streams(stage))).within(90),
            Case::new("streams-open-at-once", "4,000 calls that are open at the same time, then ended in another order", |stage| Box::pin(open_at_once(stage))).within(60),
            Case::new("slow-consumer-of-a-gib", "1 GiB to a handler that pauses after each chunk; the peer never has more than 96 MiB", |stage| Box::pin(slow_consumer(stage))).within(240),
            Case::new("slow-reader-of-a-produced-gib", "1 GiB from a handler, read slowly; the peer never has more than 96 MiB", |stage| Box::pin(produced(stage))).within(240),
            Case::new("slow-reader-of-a-called-gib", "1 GiB as the body of a call, read slowly; the peer never has more than 96 MiB", |stage| Box::pin(called(stage))).within(240),
            Case::new("slow-caller-of-a-gib", "1 GiB as an answer to the peer, which pauses after each chunk; it never has more than 96 MiB", |stage| Box::pin(slow_caller(stage))).within(240),
        ],
    }
}

/// Reads a direction whose bytes of DATA are the pattern, and grants as it is told.
async fn by_small_windows(stage: &Stage, node: &mut PlayedNode, id: u64, total: u64) -> Outcome {
    let initial = u64::from(MUX_INITIAL_WINDOW);
    let (mut granted, mut read) = (initial, 0);
    let mut grants = [1, 1, 1, 100, 5_000, 70_000].into_iter().cycle();
    loop {
        node.link.awaits(format_args!(
            "{granted} bytes of the stream, which were granted"
        ));
        while node.link.stream(id)?.received() < granted && node.link.stream(id)?.end().is_none() {
            node.link.pump().await?;
        }
        // Whatever it would send without credit has come by then, and fails the case.
        node.link.round_trip().await?;
        while let Some(event) = node.link.poll_event(id)? {
            match event {
                StreamEvent::Data(bytes) => {
                    holds(
                        "the bytes of the pattern",
                        stage.pattern.is_at(read, &bytes),
                        read,
                    )?;
                    read += bytes.len() as u64;
                }
                StreamEvent::Frame(FrameKind::END, payload) => same("END", 0, payload.len())?,
                StreamEvent::Frame(..) => {}
                StreamEvent::Finished => return same("the bytes of the body", total, read),
                StreamEvent::Reset(code) => return holds("FIN", false, code),
            }
        }
        let more = grants.next().unwrap_or(1);
        node.link.grant(id, more);
        granted += u64::from(more);
    }
}

async fn credit_of_body(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    node.link.set_grants(false);
    let asked = node
        .ask(&json!({"to": "other", "body_bytes": 400_000, "body_chunk": 10_000}))
        .await?;
    by_small_windows(stage, &mut node, asked.made.id, 400_000).await?;
    node.end(asked.made.id, &Status::ok());
    node.outcome_code(&asked, Code::Ok).await?;
    Ok(())
}

async fn credit_of_answer(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    node.link.set_grants(false);
    let id = node
        .begin(
            "produce",
            json!({"bytes": 400_000, "chunk": 10_000}).to_string(),
        )
        .await?;
    by_small_windows(stage, &mut node, id, 400_000).await
}

async fn whole_bodies(stage: &mut Stage) -> Outcome {
    const CALLS: u64 = 40;
    let body = "x".repeat(50_000);
    let mut node = stage.attach().await?;
    node.link.set_grants(false);
    let call = json!({"to": "other", "times": CALLS, "body": body});
    let outer = node.begin("call", call.to_string()).await?;
    node.link.grant(outer, 100_000);
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        calls.push(node.peer_call(Some(outer)).await?.id);
    }
    node.still_works().await?;
    for id in calls.into_iter().rev() {
        node.link.grant(id, 100_000);
        let came = node.body(id).await?;
        same("the body", body.len(), came.len())?;
        node.end(id, &Status::ok());
    }
    let came = json_of(&node.answer(outer, "call").await?)?;
    same("the outcomes", &json!({"0": CALLS}), &came["outcomes"])
}

async fn held_back(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    node.link.set_grants(false);
    let mut produced = Vec::new();
    let mut called = Vec::new();
    for _ in 0..50 {
        produced.push(
            node.begin("produce", json!({"bytes": 100_000}).to_string())
                .await?,
        );
        called.push(
            node.ask(&json!({"to": "other", "body_bytes": 100_000}))
                .await?,
        );
    }
    for _ in 0..20 {
        node.still_works().await?;
        let asked = node.ask(&json!({"to": "other"})).await?;
        node.end(asked.made.id, &Status::ok());
        node.outcome_code(&asked, Code::Ok).await?;
    }
    node.link.set_grants(true);
    for id in produced {
        node.link.grant(id, 200_000);
        let answered = node.answer(id, "produce").await?;
        same("the bytes of an answer", 100_000, answered.success()?.len())?;
    }
    for asked in called {
        node.link.grant(asked.made.id, 200_000);
        same(
            "the bytes of a body",
            100_000,
            node.body(asked.made.id).await?.len(),
        )?;
        node.end(asked.made.id, &Status::ok());
        node.outcome_code(&asked, Code::Ok).await?;
    }
    Ok(())
}

/// Checks what `consume` says of a body that is the pattern.
fn consumed(stage: &Stage, came: &Value, bytes: u64) -> Outcome {
    same(
        "the bytes that were consumed",
        Some(bytes),
        came["bytes"].as_u64(),
    )?;
    let hash = stage.pattern.sha256(bytes);
    same("their hash", Some(hash.as_str()), came["sha256"].as_str())
}

async fn windows(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let body = stage.pattern.bytes(20_000_000);
    let id = node.begin("consume", body).await?;
    let came = json_of(&node.answer(id, "consume").await?)?;
    consumed(stage, &came, 20_000_000)
}

async fn windows_of_many(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let body = stage.pattern.bytes(2_000_000);
    let mut calls = Vec::new();
    for _ in 0..64 {
        calls.push(node.begin("consume", body.clone()).await?);
    }
    for id in calls {
        let came = json_of(&node.answer(id, "consume").await?)?;
        consumed(stage, &came, 2_000_000)?;
    }
    Ok(())
}

async fn unread(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let mut calls = Vec::new();
    for _ in 0..100 {
        let id = node.open(FrameKind::CALL, &to_peer("wait")).await?;
        node.data(id, &[0x55; 1_000_000]);
        calls.push(id);
    }
    node.still_works().await?;
    let body = stage.pattern.bytes(1_000_000);
    let came = node.json("consume", body).await?;
    consumed(stage, &came, 1_000_000)?;
    node.link.round_trip().await?;
    for id in calls {
        let sent = node.link.stream(id)?.bytes_sent();
        // A library may hold a little of its own ahead of the handler.
        let most = 8 * u64::from(MUX_INITIAL_WINDOW);
        holds(
            format_args!("at most {most} bytes taken of a body that nobody reads"),
            sent <= most,
            sent,
        )?;
    }
    Ok(())
}

async fn peer_streams(stage: &mut Stage) -> Outcome {
    const CALLS: usize = 10_000;
    let mut node = stage.attach().await?;
    let ask = json!({"to": "other", "times": CALLS}).to_string();
    let outer = node.begin("call", ask).await?;
    let mut held: Vec<PeerCall> = Vec::new();
    let own = node.link.peer_streams();
    let mut answered = 0;
    let mut batches = [1, 1, 7, 100, 1_000].into_iter().cycle();
    let mut granted = MUX_MAX_STREAMS;
    while answered < CALLS {
        let expected = granted.min(CALLS + own);
        while node.link.peer_streams() < expected || held.len() + answered < expected - own {
            node.link
                .awaits(format_args!("{expected} streams of the peer in all"));
            held.push(node.peer_call(Some(outer)).await?);
        }
        // A stream beyond what was granted has come by then, and fails the case.
        node.link.round_trip().await?;
        let batch = batches.next().unwrap_or(1).min(held.len());
        for call in held.drain(..batch) {
            node.answer_with(call.id, b"x");
            answered += 1;
        }
        node.link
            .grant_streams(u32::try_from(batch).unwrap_or_default());
        granted += batch;
    }
    let came = json_of(&node.answer(outer, "call").await?)?;
    same("the outcomes", &json!({"0": CALLS}), &came["outcomes"])?;
    same(
        "the bytes of all",
        Some(CALLS as u64),
        came["bytes"].as_u64(),
    )
}

async fn node_streams(stage: &mut Stage) -> Outcome {
    const CALLS: usize = 10_000;
    let mut node = stage.attach().await?;
    let mut open = std::collections::VecDeque::new();
    for _ in 0..CALLS {
        if node.link.may_open() == 0 || open.len() > 500 {
            let id = open.pop_front().unwrap_or_default();
            node.answer(id, "echo").await?.success()?;
        }
        open.push_back(node.begin("echo", "x").await?);
    }
    for id in open {
        same(
            "the answer",
            1,
            node.answer(id, "echo").await?.success()?.len(),
        )?;
    }
    Ok(())
}

async fn open_at_once(stage: &mut Stage) -> Outcome {
    const CALLS: usize = 4_000;
    let mut node = stage.attach().await?;
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        calls.push(node.open(FrameKind::CALL, &to_peer("echo")).await?);
    }
    node.still_works().await?;
    // Every seventh, seven times over.
    let order = (0..7).flat_map(|first| (first..CALLS).step_by(7));
    for (number, at) in order.enumerate() {
        let Some(&id) = calls.get(at) else { continue };
        node.data(id, &number.to_be_bytes());
        node.link.finish(id);
        let answered = node.answer(id, "echo").await?;
        same(
            "the answer",
            number.to_be_bytes(),
            answered.success()?.as_ref(),
        )?;
    }
    Ok(())
}

/// States the peer's highest memory so far in the case's line, and fails where it is too high.
fn memory(stage: &mut Stage, began: Instant, bytes: u64) -> Outcome {
    let rate = bytes as f64 / (1 << 20) as f64 / began.elapsed().as_secs_f64();
    stage.note(format_args!("{rate:.0} MiB/s"));
    let Some(peak) = stage.peer()?.peak_memory_kib() else {
        stage.note("memory is not known");
        return Ok(());
    };
    let mib = peak as f64 / 1024.0;
    stage.note(format_args!("VmHWM {mib:.1} MiB"));
    holds(
        "a VmHWM of at most 96 MiB",
        peak <= MOST_MEMORY_KIB,
        format_args!("{mib:.1} MiB"),
    )
}

/// Feeds a GiB of the pattern into a stream, never more than a few MiB of it queued.
async fn feed(stage: &Stage, node: &mut PlayedNode, id: u64) -> Outcome {
    let period = stage.pattern.part(0, usize::MAX).len();
    let chunk = stage.pattern.bytes(16 * period);
    let mut at = 0;
    while at < GIB {
        let len = (GIB - at).min(chunk.len() as u64);
        let part = chunk.get(..usize::try_from(len).unwrap_or_default());
        node.data(id, part.unwrap_or_default());
        at += len;
        while node.link.queued(id) > chunk.len() {
            if let Some(code) = node.link.stream(id)?.stop() {
                return holds("a body that is read to its end", false, code);
            }
            node.link
                .awaits("WINDOW, so that the rest of a GiB can be sent");
            node.link.pump().await?;
        }
    }
    Ok(())
}

/// Reads a GiB of the pattern, with pauses in which nothing is read off the socket.
async fn read_slowly(stage: &Stage, node: &mut PlayedNode, id: u64) -> Outcome {
    let (mut read, mut until) = (0, 8 << 20);
    loop {
        node.link.awaits(format_args!("byte {read} of a GiB"));
        match node.link.event(id).await? {
            StreamEvent::Data(bytes) => {
                holds(
                    "the bytes of the pattern",
                    stage.pattern.is_at(read, &bytes),
                    read,
                )?;
                read += bytes.len() as u64;
            }
            StreamEvent::Frame(FrameKind::END, payload) => same("END", 0, payload.len())?,
            StreamEvent::Frame(..) => {}
            StreamEvent::Finished => return same("the bytes that came", GIB, read),
            StreamEvent::Reset(code) => {
                return Err(Failure::new("FIN", format_args!("RESET with {code}")));
            }
        }
        if read >= until {
            // This is what being slow is: the peer has all this time to fill its memory.
            tokio::time::sleep(Duration::from_millis(20)).await;
            until += 8 << 20;
        }
    }
}

async fn slow_consumer(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let began = Instant::now();
    let header = CallHeader {
        headers: vec![("pause-us".to_owned(), "50".to_owned())],
        ..to_peer("consume")
    };
    let id = node.open(FrameKind::CALL, &header).await?;
    feed(stage, &mut node, id).await?;
    node.link.finish(id);
    let came = json_of(&node.answer(id, "consume").await?)?;
    consumed(stage, &came, GIB)?;
    memory(stage, began, GIB)
}

async fn produced(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let began = Instant::now();
    let id = node
        .begin("produce", json!({"bytes": GIB}).to_string())
        .await?;
    read_slowly(stage, &mut node, id).await?;
    memory(stage, began, GIB)
}

async fn called(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let began = Instant::now();
    let asked = node.ask(&json!({"to": "other", "body_bytes": GIB})).await?;
    read_slowly(stage, &mut node, asked.made.id).await?;
    node.end(asked.made.id, &Status::ok());
    node.outcome_code(&asked, Code::Ok).await?;
    memory(stage, began, GIB)
}

async fn slow_caller(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let began = Instant::now();
    let asked = node
        .ask(&json!({"to": "other", "read": "chunks", "pause_us": 50}))
        .await?;
    feed(stage, &mut node, asked.made.id).await?;
    node.end(asked.made.id, &Status::ok());
    let came = node.outcome_code(&asked, Code::Ok).await?;
    consumed(stage, &came, GIB)?;
    memory(stage, began, GIB)
}
