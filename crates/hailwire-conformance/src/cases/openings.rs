//! Cases about how streams toward the peer begin: openings, headers, and what is malformed.

use hailwire_wire::{
    CallHeader, Code, Priority,
    frame::{FrameKind, prefix},
    header,
    limits::{MAX_AFFINITY, MAX_HEADER, MAX_HEADER_FIELDS, MAX_METHOD},
};

use crate::{
    answer::Answered,
    case::{Case, CaseGroup},
    failure::{Outcome, same},
    node::{PlayedNode, json_of, to_peer},
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "Openings and headers",
        cases: vec![
            Case::new(
                "opening-unknown",
                "openings of the kinds 0x06 to 0x0f are answered `END(unimplemented)`",
                |stage| Box::pin(unknown_opening(stage)),
            ),
            Case::new(
                "opening-is-none",
                "a stream that begins with `HEAD`, `END`, `PING`, `PONG`, `GOING_AWAY` or `OFFERS` is answered `END(unimplemented)`",
                |stage| Box::pin(not_an_opening(stage)),
            ),
            Case::new(
                "opening-is-data",
                "a stream that begins with `DATA` is answered `END(unimplemented)`",
                |stage| Box::pin(data_opening(stage)),
            ),
            Case::new(
                "opening-behind-unknown-frames",
                "unknown frames ahead of the opening are skipped, 0x00 and one of 100,000 bytes included",
                |stage| Box::pin(behind_unknown_frames(stage)),
            ),
            Case::new(
                "opening-byte-by-byte",
                "a call whose bytes come one in each DATA frame of the multiplexer",
                |stage| Box::pin(byte_by_byte(stage)),
            ),
            Case::new(
                "opening-truncated",
                "a direction that finishes inside the opening: `END(invalid_argument)`, or a reset with it",
                |stage| Box::pin(truncated(stage)),
            ),
            Case::new(
                "opening-empty",
                "a direction that finishes without any frame disturbs nothing",
                |stage| Box::pin(empty_stream(stage)),
            ),
            Case::new(
                "agent-unknown",
                "a call of an agent that the program does not serve: `END(not_found)`",
                |stage| Box::pin(unknown_agent(stage)),
            ),
            Case::new(
                "method-unknown",
                "a call, send and stream of an unknown method: `unimplemented`",
                |stage| Box::pin(unknown_method(stage)),
            ),
            Case::new(
                "header-malformed",
                "a number, a value of another type, text that is not UTF-8, an integer out of range, bytes that are missing: `END(invalid_argument)`",
                |stage| Box::pin(malformed_header(stage)),
            ),
            Case::new(
                "header-is-an-array",
                "an array in place of the map is malformed",
                |stage| Box::pin(array_header(stage)),
            ),
            Case::new(
                "header-key-twice",
                "a key that occurs twice is malformed, known or in the application's header",
                |stage| Box::pin(key_twice(stage)),
            ),
            Case::new(
                "header-depth",
                "an unknown key whose value lies 16 deep is skipped, one that lies 17 deep is malformed",
                |stage| Box::pin(depth(stage)),
            ),
            Case::new(
                "header-fields",
                "128 fields are taken, 129 are refused with `invalid_argument`",
                |stage| Box::pin(fields(stage)),
            ),
            Case::new(
                "header-bounds",
                "a method of 128 and an affinity key of 256 bytes are taken, a byte more is refused with `invalid_argument`",
                |stage| Box::pin(bounds(stage)),
            ),
            Case::new(
                "header-size",
                "a header of 65,536 bytes is taken, a frame of 65,537 is refused with `invalid_argument` before it is whole",
                |stage| Box::pin(size(stage)),
            ),
            Case::new(
                "header-from-the-future",
                "unknown keys, any order, the widest forms of integers and lengths, and bytes behind the map",
                |stage| Box::pin(from_the_future(stage)),
            ),
            Case::new(
                "header-priority-beyond",
                "a priority above 3 is read as 3",
                |stage| Box::pin(priority_beyond(stage)),
            ),
            Case::new(
                "caller-malformed",
                "a `from` whose key cannot be read is refused with `invalid_argument`",
                |stage| Box::pin(malformed_caller(stage)),
            ),
        ],
    }
}

/// Opens a stream with one frame, finishes it, and reads the answer.
async fn opened_with(node: &mut PlayedNode, kind: FrameKind, payload: &[u8]) -> Outcome<Answered> {
    let id = node.open_with(kind, payload).await?;
    node.link.finish(id);
    node.answer(id, "a stream that is to be refused").await
}

/// Opens a call with these bytes as header, which is to be refused.
async fn malformed_call(node: &mut PlayedNode, what: &str, payload: &[u8]) -> Outcome {
    let answered = opened_with(node, FrameKind::CALL, payload).await;
    let refused = answered.and_then(|answered| answered.ended_with(Code::InvalidArgument));
    refused.map_err(|failure| failure.within(what))
}

/// Calls `inspect` with these bytes as header.
async fn inspected(node: &mut PlayedNode, payload: &[u8]) -> Outcome<serde_json::Value> {
    json_of(&opened_with(node, FrameKind::CALL, payload).await?)
}

async fn unknown_opening(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for kind in 0x06..=0x0f {
        let answered = opened_with(&mut node, FrameKind(kind), b"\x80").await?;
        let ended = answered.ended_with(Code::Unimplemented);
        ended.map_err(|failure| failure.within(format_args!("kind {kind:#04x}")))?;
    }
    node.still_works().await
}

async fn not_an_opening(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let kinds = [
        FrameKind::HEAD,
        FrameKind::END,
        FrameKind::PING,
        FrameKind::PONG,
        FrameKind::GOING_AWAY,
        FrameKind::OFFERS,
    ];
    for kind in kinds {
        let answered = opened_with(&mut node, kind, b"\x80").await?;
        let ended = answered.ended_with(Code::Unimplemented);
        ended.map_err(|failure| failure.within(format_args!("{kind:?}")))?;
    }
    node.still_works().await
}

async fn data_opening(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let answered = opened_with(&mut node, FrameKind::DATA, b"body").await?;
    answered.ended_with(Code::Unimplemented)?;
    node.still_works().await
}

async fn behind_unknown_frames(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.open_with(FrameKind(0x00), b"nothing").await?;
    node.link.put(id, FrameKind(0x7f), &vec![1; 100_000]);
    node.link
        .put(id, FrameKind::CALL, &header::encode(&to_peer("echo")));
    node.data(id, b"body");
    node.link.finish(id);
    let answered = node.answer(id, "echo").await?;
    same("the answer", b"body", answered.success()?.as_ref())
}

async fn byte_by_byte(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let call = header::encode(&to_peer("echo"));
    let mut bytes = prefix(FrameKind::CALL, call.len()).to_vec();
    bytes.extend_from_slice(&call);
    bytes.extend_from_slice(b"\x11\x00\x00\x03abc\x11\x00\x00\x00\x11\x00\x00\x01d");
    let id = node.link.open(Priority::Medium).await?;
    for byte in bytes {
        node.link.data_now(id, &[], false);
        node.link.data_now(id, &[byte], false);
        node.link.flush().await?;
    }
    node.link.finish(id);
    let answered = node.answer(id, "echo").await?;
    same("the answer", b"abcd", answered.success()?.as_ref())
}

async fn truncated(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for cut in [1, 3, 4, 10] {
        let call = header::encode(&to_peer("echo"));
        let mut bytes = prefix(FrameKind::CALL, call.len()).to_vec();
        bytes.extend_from_slice(&call);
        bytes.truncate(cut);
        let id = node.link.open(Priority::Medium).await?;
        node.link.write(id, bytes);
        node.link.finish(id);
        let answered = node.answer(id, "a truncated opening").await?;
        let failed = answered.failed_with(&[Code::InvalidArgument]);
        failed.map_err(|failure| failure.within(format_args!("{cut} bytes")))?;
    }
    node.still_works().await
}

async fn empty_stream(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.link.open(Priority::Medium).await?;
    node.link.finish(id);
    node.link.awaits("the end of a stream without frames");
    node.link.direction_end(id).await?;
    node.still_works().await
}

async fn unknown_agent(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for kind in [FrameKind::CALL, FrameKind::SEND, FrameKind::STREAM] {
        let header = CallHeader {
            to: "nobody".to_owned(),
            ..CallHeader::default()
        };
        let answered = opened_with(&mut node, kind, &header::encode(&header)).await?;
        let ended = answered.ended_with(Code::NotFound);
        ended.map_err(|failure| failure.within(format_args!("{kind:?}")))?;
    }
    node.still_works().await
}

async fn unknown_method(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for kind in [FrameKind::CALL, FrameKind::SEND, FrameKind::STREAM] {
        for method in ["", "echos", "Echo"] {
            let header = header::encode(&to_peer(method));
            let answered = opened_with(&mut node, kind, &header).await?;
            let ended = answered.ended_with(Code::Unimplemented);
            ended.map_err(|failure| failure.within(format_args!("{kind:?} of `{method}`")))?;
        }
    }
    node.still_works().await
}

async fn malformed_header(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let headers: [(&str, &[u8]); 10] = [
        ("nothing", b""),
        ("a number", b"\x01"),
        ("a map that is cut", b"\x82\xa2to\xa4peer"),
        ("a text that is cut", b"\x81\xa2to\xa9peer"),
        ("a name that is a number", b"\x81\xa2to\x07"),
        (
            "text that is not UTF-8",
            b"\x82\xa2to\xa4peer\xa6method\xa2\xff\xfe",
        ),
        (
            "a priority below zero",
            b"\x82\xa2to\xa4peer\xa8priority\xff",
        ),
        (
            "a deadline below zero",
            b"\x82\xa2to\xa4peer\xabdeadline_ms\xff",
        ),
        (
            "a durability that is not known",
            b"\x82\xa2to\xa4peer\xa7durable\x03",
        ),
        (
            "a field without value",
            b"\x82\xa2to\xa4peer\xa7headers\x91\x91\xa1a",
        ),
    ];
    for (what, bytes) in headers {
        malformed_call(&mut node, what, bytes).await?;
    }
    node.still_works().await
}

async fn array_header(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    malformed_call(&mut node, "an array", b"\x92\xa4peer\xa4echo").await?;
    node.still_works().await
}

async fn key_twice(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let twice = b"\x83\xa2to\xa4peer\xa6method\xa4echo\xa2to\xa4peer";
    malformed_call(&mut node, "`to` twice", twice).await?;
    let twice = b"\x84\xa2to\xa4peer\xa6method\xa4echo\xa8priority\x01\xa8priority\x01";
    malformed_call(&mut node, "`priority` twice", twice).await?;
    node.still_works().await
}

/// A header with an unknown key, whose value lies so many arrays deep in the header's map.
fn nested(deep: usize) -> Vec<u8> {
    let mut bytes = b"\x83\xa2to\xa4peer\xa6method\xa7inspect\xa6future".to_vec();
    bytes.extend(std::iter::repeat_n(0x91, deep - 1));
    bytes.push(0x01);
    bytes
}

async fn depth(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let deepest = inspected(&mut node, &nested(16)).await;
    deepest.map_err(|failure| failure.within("16 deep"))?;
    malformed_call(&mut node, "17 deep", &nested(17)).await?;
    malformed_call(&mut node, "60,000 deep", &nested(60_000)).await?;
    node.still_works().await
}

async fn fields(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let mut header = to_peer("inspect");
    header.headers = (0..MAX_HEADER_FIELDS)
        .map(|i| ("x".to_owned(), i.to_string()))
        .collect();
    let told = inspected(&mut node, &header::encode(&header)).await?;
    same(
        "headers",
        &serde_json::json!(header.headers),
        &told["headers"],
    )?;
    header.headers.push(Default::default());
    malformed_call(&mut node, "129 fields", &header::encode(&header)).await?;
    node.still_works().await
}

async fn bounds(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let longest = CallHeader {
        affinity: "a".repeat(MAX_AFFINITY),
        ..to_peer("inspect")
    };
    let told = inspected(&mut node, &header::encode(&longest)).await?;
    same(
        "affinity",
        Some(longest.affinity.as_str()),
        told["affinity"].as_str(),
    )?;
    let method = to_peer(&"m".repeat(MAX_METHOD));
    let answered = opened_with(&mut node, FrameKind::CALL, &header::encode(&method)).await?;
    answered.ended_with(Code::Unimplemented)?;
    let affinity = CallHeader {
        affinity: "a".repeat(MAX_AFFINITY + 1),
        ..to_peer("inspect")
    };
    malformed_call(
        &mut node,
        "affinity of 257 bytes",
        &header::encode(&affinity),
    )
    .await?;
    let method = to_peer(&"m".repeat(MAX_METHOD + 1));
    malformed_call(&mut node, "method of 129 bytes", &header::encode(&method)).await?;
    node.still_works().await
}

async fn size(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let mut largest = to_peer("inspect");
    largest.headers = vec![("x".to_owned(), String::new())];
    let missing = MAX_HEADER - header::encode(&largest).len();
    // A long text takes two bytes more for its length than an empty one.
    largest.headers = vec![("x".to_owned(), "v".repeat(missing - 2))];
    let bytes = header::encode(&largest);
    same("the driver's own header", MAX_HEADER, bytes.len())?;
    let told = inspected(&mut node, &bytes).await?;
    let value = told["headers"][0][1].as_str().map(str::len);
    same("the length of the field", Some(missing - 2), value)?;
    let id = node.link.open(Priority::Medium).await?;
    node.link
        .write(id, prefix(FrameKind::CALL, MAX_HEADER + 1).to_vec());
    let answered = node.answer(id, "a header that is too large").await?;
    answered.failed_with(&[Code::InvalidArgument])?;
    node.link.reset(id, Code::Cancelled);
    node.still_works().await
}

async fn from_the_future(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let mut bytes = b"\xdf\x00\x00\x00\x06".to_vec();
    bytes.extend_from_slice(b"\xd9\x06future\xc7\x03\x05abc");
    bytes.extend_from_slice(b"\xdb\x00\x00\x00\x08priority\xcf\x00\x00\x00\x00\x00\x00\x00\x02");
    bytes.extend_from_slice(b"\xda\x00\x06method\xdb\x00\x00\x00\x07inspect");
    bytes.extend_from_slice(b"\xa7another\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00");
    bytes.extend_from_slice(b"\xa7headers\xdd\x00\x00\x00\x01\xdc\x00\x02\xd9\x01a\xda\x00\x01b");
    bytes.extend_from_slice(b"\xa2to\xd9\x04peer");
    bytes.extend_from_slice(b"behind the map");
    let told = inspected(&mut node, &bytes).await?;
    same("priority", Some(2), told["priority"].as_u64())?;
    same(
        "headers",
        &serde_json::json!([["a", "b"]]),
        &told["headers"],
    )
}

async fn priority_beyond(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let bytes = b"\x83\xa2to\xa4peer\xa6method\xa7inspect\xa8priority\xcd\x03\xe8";
    let told = inspected(&mut node, bytes).await?;
    same("priority", Some(3), told["priority"].as_u64())
}

async fn malformed_caller(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let callers = [
        "caller@",
        "@",
        "caller@desk",
        "caller@0123456789",
        "a@b@c",
        "Not A Name",
    ];
    for caller in callers {
        let mut bytes = b"\x83\xa2to\xa4peer\xa6method\xa7inspect\xa4from".to_vec();
        bytes.push(0xa0 | caller.len() as u8);
        bytes.extend_from_slice(caller.as_bytes());
        malformed_call(&mut node, caller, &bytes).await?;
    }
    node.still_works().await
}
