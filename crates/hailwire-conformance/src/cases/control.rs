//! Cases about the control stream, and about the connection as a whole.

use hailwire_wire::{Code, Priority, Status, frame::FrameKind, header};
use serde_json::json;

use crate::{
    case::{Case, CaseGroup},
    failure::{Failure, Outcome, holds, same},
    link::{LinkEnd, StreamEvent},
    node::{PlayedNode, code_is},
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "The control stream",
        cases: vec![
            Case::new(
                "ping-is-answered",
                "`PING` of 0, 8 and 64 bytes: each `PONG` has its payload, in order",
                |stage| Box::pin(ping(stage)),
            ),
            Case::new(
                "ping-split",
                "a `PING` that comes one byte at a time",
                |stage| Box::pin(split_ping(stage)),
            ),
            Case::new(
                "ping-too-long",
                "a `PING` of 65 bytes closes the connection with `invalid_argument`; the peer attaches again",
                |stage| Box::pin(long_ping(stage)),
            ),
            Case::new(
                "mux-ping-is-answered",
                "16 PINGs at once: a PONG of the same payload each, in order",
                |stage| Box::pin(mux_ping(stage)),
            ),
            Case::new(
                "offers-are-ignored",
                "`OFFERS`, `MORE_OFFERS` and an unasked `PONG` change nothing",
                |stage| Box::pin(offers(stage)),
            ),
            Case::new(
                "unknown-control-frames-are-skipped",
                "frames of kind 0x00, 0x25 and 0x7f of any length, and known frames of other streams",
                |stage| Box::pin(unknown_frames(stage)),
            ),
            Case::new(
                "control-malformed",
                "a `HELLO` beyond 65,536 bytes on the control stream closes the connection with `invalid_argument`",
                |stage| Box::pin(malformed(stage)),
            ),
            Case::new(
                "control-stream-ends",
                "where the node ends the control stream, the session is over, and the peer attaches again",
                |stage| Box::pin(control_ends(stage)),
            ),
            Case::new(
                "second-control-stream",
                "a second `HELLO` stream closes the connection with `invalid_argument`",
                |stage| Box::pin(second_control(stage)),
            ),
            Case::new(
                "going-away",
                "after `GOING_AWAY` what runs is answered, and the peer opens no further stream: a call of its own ends with `unavailable`",
                |stage| Box::pin(going_away(stage)),
            ),
            Case::new(
                "datagrams-are-ignored",
                "200 datagrams of up to 1,100 bytes change nothing",
                |stage| Box::pin(datagrams(stage)),
            ),
        ],
    }
}

/// The next frame on the control stream.
async fn control_frame(node: &mut PlayedNode) -> Outcome<(FrameKind, Vec<u8>)> {
    node.link.awaits("PONG on the control stream");
    match node.link.event(node.control).await? {
        StreamEvent::Frame(kind, payload) => Ok((kind, payload.to_vec())),
        other => Err(Failure::new(
            "a frame on the control stream",
            format_args!("{other:?}"),
        )),
    }
}

async fn pong_of(node: &mut PlayedNode, payload: &[u8]) -> Outcome {
    node.link.put(node.control, FrameKind::PING, payload);
    let came = control_frame(node).await?;
    same("the answer", (FrameKind::PONG, payload.to_vec()), came)
}

async fn ping(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let payloads: [&[u8]; 4] = [b"", b"12345678", &[0xff; 64], b"x"];
    for payload in payloads {
        node.link.put(node.control, FrameKind::PING, payload);
    }
    for payload in payloads {
        let came = control_frame(&mut node).await?;
        same("the answer", (FrameKind::PONG, payload.to_vec()), came)?;
    }
    Ok(())
}

async fn split_ping(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for byte in *b"\x20\x00\x00\x05hello" {
        node.link.data_now(node.control, &[byte], false);
        node.link.round_trip().await?;
    }
    let came = control_frame(&mut node).await?;
    same("the answer", (FrameKind::PONG, b"hello".to_vec()), came)
}

/// Waits for CLOSE with `invalid_argument`, and for the peer to attach again.
async fn closed_as_malformed(stage: &mut Stage, mut node: PlayedNode) -> Outcome {
    node.link.awaits("CLOSE with invalid_argument");
    match node.link.ended().await? {
        LinkEnd::Closed { code, .. } => same("the code of CLOSE", Code::InvalidArgument, code)?,
        LinkEnd::Gone => return same("the end", "CLOSE", "the end of the byte stream"),
    }
    stage.attach_again().await?.still_works().await
}

async fn long_ping(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    node.link.put(node.control, FrameKind::PING, &[1; 65]);
    closed_as_malformed(stage, node).await
}

async fn mux_ping(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let payloads: Vec<[u8; 8]> = (0..16_u64).map(u64::to_be_bytes).collect();
    for payload in &payloads {
        node.link.ping(*payload);
    }
    for payload in payloads {
        same("the payload of PONG", payload, node.link.pong().await?)?;
    }
    Ok(())
}

async fn offers(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let agents = b"\x81\xa6agents\x91\x81\xa4name\xa3one";
    node.link.put(node.control, FrameKind::OFFERS, agents);
    node.link.put(
        node.control,
        FrameKind::MORE_OFFERS,
        b"\x84\xa6agents\x90\xa6number\x02\xa4page\x01\xa5pages\x02",
    );
    node.link.put(node.control, FrameKind::PONG, b"unasked");
    pong_of(&mut node, b"after").await?;
    node.still_works().await
}

async fn unknown_frames(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for kind in [0x00, 0x25, 0x7f, 0xff] {
        node.link.put(node.control, FrameKind(kind), b"");
        node.link
            .put(node.control, FrameKind(kind), &vec![kind; 70_000]);
    }
    for kind in [FrameKind::HEAD, FrameKind::END, FrameKind::DATA] {
        node.link.put(node.control, kind, b"\x80");
    }
    pong_of(&mut node, b"after").await?;
    node.still_works().await
}

async fn malformed(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    node.link
        .put(node.control, FrameKind::HELLO, &vec![0x81; 65_537]);
    closed_as_malformed(stage, node).await
}

async fn control_ends(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    node.link.finish(node.control);
    node.link.awaits("the end of the connection");
    node.link.ended().await?;
    stage.attach_again().await?.still_works().await
}

async fn second_control(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    let hello = header::encode(&crate::node::node_hello());
    let id = node.link.open(Priority::Critical).await?;
    node.link.put(id, FrameKind::HELLO, &hello);
    closed_as_malformed(stage, node).await
}

async fn going_away(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node.ask(&json!({"to": "other"})).await?;
    node.link.put(
        node.control,
        FrameKind::GOING_AWAY,
        b"\x81\xa6reason\xa7restart",
    );
    node.link.put(node.control, FrameKind::PING, b"read");
    control_frame(&mut node).await?;
    let opened = node.link.peer_streams();
    let outcome = node
        .json("call", json!({"to": "another"}).to_string())
        .await?;
    code_is(&outcome, Code::Unavailable)?;
    same(
        "streams that the peer opened",
        opened,
        node.link.peer_streams(),
    )?;
    node.answer_with(asked.made.id, b"answered");
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    let text = outcome.get("text").and_then(|text| text.as_str());
    holds(
        "the answer of the call under way",
        text == Some("answered"),
        text,
    )
}

async fn datagrams(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for number in 0..200 {
        node.link.datagram(&vec![0xdd; number * 1_100 / 199]);
    }
    node.link.round_trip().await?;
    let asked = node.ask(&json!({"to": "other"})).await?;
    node.end(asked.made.id, &Status::ok());
    node.outcome_code(&asked, Code::Ok).await?;
    node.still_works().await
}
