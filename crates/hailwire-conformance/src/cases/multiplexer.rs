//! Cases about the multiplexer's frames: what the peer skips, and what it ends the connection for.

use hailwire_wire::{
    Code, Priority,
    frame::{FrameKind, prefix},
    header,
    limits::MUX_MAX_STREAMS,
    mux::MuxFrameKind,
};
use serde_json::json;

use crate::{
    case::{Case, CaseGroup},
    failure::{Outcome, holds, same},
    link::LinkEnd,
    node::{PlayedNode, to_peer},
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "The multiplexer",
        cases: vec![
            Case::new(
                "mux-unknown-kinds",
                "frames of the kinds 0x00, 0x0a, 0x7f and 0xff are skipped, of up to 65,535 bytes and whatever their stream",
                |stage| Box::pin(unknown_kinds(stage)),
            ),
            Case::new(
                "mux-unknown-flags",
                "unknown flags are ignored, as is FIN on frames that are not DATA",
                |stage| Box::pin(unknown_flags(stage)),
            ),
            Case::new(
                "mux-priority-beyond",
                "a priority above 3 in the flags is read as 3",
                |stage| Box::pin(priority_beyond(stage)),
            ),
            Case::new(
                "mux-first-frame-of-any-kind",
                "a stream exists from its first frame, be it WINDOW, STOP or RESET",
                |stage| Box::pin(first_frames(stage)),
            ),
            Case::new(
                "mux-frames-of-a-stream-that-is-over",
                "WINDOW, STOP and RESET for a stream that is over are ignored",
                |stage| Box::pin(over(stage)),
            ),
            Case::new(
                "mux-split-anywhere",
                "frames whose bytes arrive one by one",
                |stage| Box::pin(split(stage)),
            ),
            Case::new("mux-many-at-once", "1,000 calls in one write", |stage| {
                Box::pin(many(stage))
            }),
            Case::new(
                "mux-data-beyond-the-window",
                "16,385 bytes on a new stream end the connection; the peer attaches again",
                |stage| Box::pin(beyond_window(stage)),
            ),
            Case::new(
                "mux-data-after-its-end",
                "DATA after FIN ends the connection",
                |stage| Box::pin(after_end(stage)),
            ),
            Case::new(
                "mux-gap-in-streams",
                "a stream number beyond the next one ends the connection",
                |stage| Box::pin(gap(stage)),
            ),
            Case::new(
                "mux-stream-never-opened",
                "a frame for stream 0, or for one that the peer has not opened, ends the connection",
                |stage| Box::pin(never_opened(stage)),
            ),
            Case::new(
                "mux-impossible-length",
                "DATA of 16,385 bytes, WINDOW of 3, PING of 9, CLOSE of 2 or DATAGRAM of 1,101 bytes end the connection",
                |stage| Box::pin(impossible(stage)),
            ),
            Case::new(
                "mux-streams-beyond-the-grant",
                "4,097 streams at once end the connection",
                |stage| Box::pin(too_many_streams(stage)),
            ),
        ],
    }
}

async fn unknown_kinds(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for kind in [0x00, 0x0a, 0x7f, 0xff] {
        for (stream, len) in [(0, 0), (0, 65_535), (999, 10), (u64::MAX, 1)] {
            node.link.raw_frame(kind, 0xff, stream, &vec![0x01; len]);
        }
    }
    node.link.round_trip().await?;
    node.still_works().await
}

/// The frames of a call of `echo` with a short body, as they stand on its stream.
fn call_bytes() -> Vec<u8> {
    let call = header::encode(&to_peer("echo"));
    let mut bytes = prefix(FrameKind::CALL, call.len()).to_vec();
    bytes.extend_from_slice(&call);
    bytes.extend_from_slice(b"\x11\x00\x00\x04body");
    bytes
}

async fn echoed(node: &mut PlayedNode, id: u64) -> Outcome {
    let answered = node.answer(id, "echo").await?;
    same("the answer", b"body", answered.success()?.as_ref())
}

async fn unknown_flags(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.link.open(Priority::Medium).await?;
    let (begin, end) = (call_bytes(), []);
    node.link.raw_frame(MuxFrameKind::DATA.0, 0x1e, id, &begin);
    node.link
        .raw_frame(MuxFrameKind::WINDOW.0, 0x1f, id, &[0, 0, 0, 1]);
    node.link
        .raw_frame(MuxFrameKind::PING.0, 0xff, 0, b"with fin");
    node.link.raw_frame(MuxFrameKind::DATA.0, 0x1f, id, &end);
    echoed(&mut node, id).await?;
    same("the payload of PONG", *b"with fin", node.link.pong().await?)
}

async fn priority_beyond(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.link.open(Priority::Critical).await?;
    node.link
        .raw_frame(MuxFrameKind::DATA.0, 0xf1, id, &call_bytes());
    echoed(&mut node, id).await?;
    let came = node.link.stream(id)?.priorities();
    let fits = !came.is_empty() && came.iter().all(|priority| *priority >= 3);
    holds(
        "a priority of 3 or more in the flags of the answer",
        fits,
        came,
    )
}

async fn first_frames(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let window = node.link.open(Priority::Medium).await?;
    node.link.grant(window, 1_000);
    let stop = node.link.open(Priority::Medium).await?;
    node.link.stop(stop, Code::Cancelled);
    let reset = node.link.open(Priority::Medium).await?;
    node.link.reset(reset, Code::Cancelled);
    let empty = node.link.open(Priority::Medium).await?;
    node.link.data_now(empty, b"", false);
    node.link.round_trip().await?;
    for id in [window, empty] {
        node.link.write(id, call_bytes());
        node.link.finish(id);
        echoed(&mut node, id).await?;
    }
    node.link.awaits("the end of a stream that began with STOP");
    let end = node.link.direction_end(stop).await?;
    same(
        "its end",
        crate::link::DirectionEnd::Reset(Code::Cancelled),
        end,
    )?;
    node.still_works().await
}

async fn over(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.begin("echo", "body").await?;
    echoed(&mut node, id).await?;
    node.link.round_trip().await?;
    for kind in [
        MuxFrameKind::WINDOW,
        MuxFrameKind::STOP,
        MuxFrameKind::RESET,
    ] {
        node.link.raw_frame(kind.0, 0x10, id, &[0, 0, 0, 1]);
    }
    // One of the peer's, too, which it has forgotten.
    let asked = node.ask(&json!({"to": "other"})).await?;
    node.body(asked.made.id).await?;
    node.answer_with(asked.made.id, b"");
    node.outcome_code(&asked, Code::Ok).await?;
    node.link
        .raw_frame(MuxFrameKind::WINDOW.0, 0x10, asked.made.id, &[0, 0, 0, 1]);
    node.link
        .raw_frame(MuxFrameKind::RESET.0, 0x10, asked.made.id, &[0, 0, 0, 1]);
    node.link.round_trip().await?;
    node.still_works().await
}

async fn split(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    let id = node.link.open(Priority::Medium).await?;
    let call = call_bytes();
    let mut bytes = vec![MuxFrameKind::DATA.0, 0x11, 0, call.len() as u8];
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes.extend_from_slice(&call);
    for byte in bytes {
        node.link.raw(&[byte]);
        node.link.flush().await?;
    }
    echoed(&mut node, id).await
}

async fn many(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let mut calls = Vec::new();
    for _ in 0..1_000 {
        calls.push(node.begin("echo", "body").await?);
    }
    for id in calls {
        echoed(&mut node, id).await?;
    }
    Ok(())
}

/// Waits for the peer to end a connection on which it was sent what it refuses, and to attach again.
async fn refused(stage: &mut Stage, mut node: PlayedNode) -> Outcome {
    node.link.awaits("the end of the connection");
    if let LinkEnd::Closed { code, reason } = node.link.ended().await? {
        let refused = code != Code::Ok;
        holds("CLOSE with a code that is not ok", refused, (code, reason))?;
    }
    stage.attach_again().await?.still_works().await
}

async fn beyond_window(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    let id = node.link.open(Priority::Medium).await?;
    // A handler that reads nothing, so that nothing more is granted.
    let call = header::encode(&to_peer("wait"));
    let mut bytes = prefix(FrameKind::CALL, call.len()).to_vec();
    bytes.extend_from_slice(&call);
    bytes.extend_from_slice(&prefix(FrameKind::DATA, 1_000_000));
    bytes.resize(2_000_000, 0x01);
    for chunk in bytes.chunks(16_384) {
        node.link.data_now(id, chunk, false);
    }
    refused(stage, node).await
}

async fn after_end(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    let id = node.begin("wait", "").await?;
    node.link.round_trip().await?;
    node.link.raw_frame(MuxFrameKind::DATA.0, 0x10, id, b"more");
    refused(stage, node).await
}

async fn gap(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    let beyond = node.link.next_id() + 2;
    node.link
        .raw_frame(MuxFrameKind::DATA.0, 0x11, beyond, &call_bytes());
    refused(stage, node).await
}

async fn never_opened(stage: &mut Stage) -> Outcome {
    for stream in [0, 1_001] {
        let mut node = stage.attach_for_good().await?;
        node.link.raw_frame(MuxFrameKind::DATA.0, 0x10, stream, b"");
        let ended = refused(stage, node).await;
        ended.map_err(|failure| failure.within(format_args!("stream {stream}")))?;
        stage.restart_peer().await?;
    }
    Ok(())
}

async fn impossible(stage: &mut Stage) -> Outcome {
    let frames = [
        (MuxFrameKind::DATA, true, 16_385),
        (MuxFrameKind::WINDOW, true, 3),
        (MuxFrameKind::PING, false, 9),
        (MuxFrameKind::CLOSE, false, 2),
        (MuxFrameKind::DATAGRAM, false, 1_101),
        (MuxFrameKind::RESET, true, 5),
    ];
    for (kind, of_a_stream, len) in frames {
        let mut node = stage.attach_for_good().await?;
        let stream = if of_a_stream { node.link.next_id() } else { 0 };
        node.link.raw_frame(kind.0, 0x10, stream, &vec![0; len]);
        let ended = refused(stage, node).await;
        ended.map_err(|failure| failure.within(format_args!("{kind:?} of {len} bytes")))?;
        stage.restart_peer().await?;
    }
    Ok(())
}

async fn too_many_streams(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach_for_good().await?;
    for _ in 0..=MUX_MAX_STREAMS {
        let id = node.link.open_now(Priority::Medium);
        node.link
            .put(id, FrameKind::CALL, &header::encode(&to_peer("wait")));
    }
    refused(stage, node).await
}
