//! Cases about answers to the peer: every way in which they are written, cut, ended and broken off.

use hailwire_wire::{
    Code, Status,
    frame::{FrameKind, prefix},
    header::{self, AnswerHead},
    limits::{MAX_FRAME_PAYLOAD, MAX_HEADER_FIELDS},
};
use serde_json::{Value, json};

use crate::{
    case::{Case, CaseGroup},
    failure::{Outcome, holds, same},
    node::{Asked, PlayedNode, code_is},
    pattern::sha256,
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "Answers to the peer",
        cases: vec![
            Case::new(
                "answer-without-head",
                "`DATA` and an `END` without payload; no body at all; empty `DATA`",
                |stage| Box::pin(without_head(stage)),
            ),
            Case::new(
                "answer-head",
                "type and fields of `HEAD` reach the caller, from 128 fields and unknown keys",
                |stage| Box::pin(with_head(stage)),
            ),
            Case::new(
                "answer-byte-by-byte",
                "an answer whose bytes come one in each DATA frame of the multiplexer",
                |stage| Box::pin(byte_by_byte(stage)),
            ),
            Case::new(
                "answer-in-one-byte-frames",
                "`DATA` of one byte each, with empty ones and unknown frames between",
                |stage| Box::pin(one_byte_frames(stage)),
            ),
            Case::new(
                "answer-in-one-large-frame",
                "a `DATA` of 16,777,215 bytes in over 1,000 frames of the multiplexer, handed on as it comes",
                |stage| Box::pin(one_large_frame(stage)),
            ),
            Case::new(
                "answer-handed-on-as-it-comes",
                "the first bytes of a `DATA` frame reach the caller before the frame is whole",
                |stage| Box::pin(handed_on(stage)),
            ),
            Case::new(
                "answer-codes",
                "`END` with every code: message, hint, details, `retry_after_ms`, and which are worth another try",
                |stage| Box::pin(codes(stage)),
            ),
            Case::new(
                "answer-code-from-the-future",
                "an unknown code is read as `unknown`, unknown keys of a status are skipped",
                |stage| Box::pin(unknown_code(stage)),
            ),
            Case::new(
                "answer-after-end",
                "what follows `END` is ignored: `DATA`, another `END`, half a frame, a reset",
                |stage| Box::pin(after_end(stage)),
            ),
            Case::new(
                "answer-frames-that-mean-nothing",
                "`HEAD` after `DATA`, a second `HEAD`, `CALL` and `PING` in an answer are ignored",
                |stage| Box::pin(meaningless(stage)),
            ),
            Case::new(
                "answer-cut-short",
                "FIN without `END`: `unavailable`, before `HEAD`, after it, and after `DATA`",
                |stage| Box::pin(cut_short(stage)),
            ),
            Case::new(
                "answer-truncated",
                "FIN inside a frame: `invalid_argument`",
                |stage| Box::pin(truncated(stage)),
            ),
            Case::new(
                "answer-malformed",
                "`HEAD` or `END` that is no map, `HEAD` with 129 fields: `internal`, `invalid_argument` or `unknown`, and no other call is disturbed",
                |stage| Box::pin(malformed(stage)),
            ),
            Case::new(
                "answer-frame-too-large",
                "a `HEAD` beyond 65,536 bytes: `invalid_argument`",
                |stage| Box::pin(too_large(stage)),
            ),
            Case::new(
                "reset-before-head",
                "RESET as the first of an answer: 0 and 1 are `cancelled`, others their own code, unknown ones `unknown`",
                |stage| Box::pin(reset_before_head(stage)),
            ),
            Case::new("reset-after-head", "RESET after `HEAD`", |stage| {
                Box::pin(reset_after_head(stage))
            }),
            Case::new(
                "reset-after-data",
                "RESET between two frames of a body; what came is counted",
                |stage| Box::pin(reset_after_data(stage)),
            ),
            Case::new(
                "reset-inside-a-frame",
                "RESET inside `DATA` and inside `HEAD`",
                |stage| Box::pin(reset_inside(stage)),
            ),
            Case::new(
                "body-stopped-with-ok",
                "STOP of the request's body with code 0: RESET with 0 comes, and the answer is read all the same",
                |stage| Box::pin(stopped_with_ok(stage)),
            ),
            Case::new(
                "body-stopped-while-it-is-written",
                "STOP with `resource_exhausted` in the middle of a body, then `END` with it",
                |stage| Box::pin(stopped_in_the_middle(stage)),
            ),
            Case::new(
                "answer-ahead-of-the-body",
                "a whole answer before the body has ended: the call ends with it, and the body ends",
                |stage| Box::pin(ahead_of_body(stage)),
            ),
            Case::new(
                "answers-in-reverse-order",
                "64 calls, answered from the last to the first, one byte each in turn",
                |stage| Box::pin(reverse(stage)),
            ),
        ],
    }
}

const ASK: &str = r#"{"to": "other"}"#;

async fn asked(node: &mut PlayedNode) -> Outcome<Asked> {
    let ask: Value = serde_json::from_str(ASK).unwrap_or_default();
    node.ask(&ask).await
}

/// Checks bytes and hash of an answer.
fn body_is(outcome: &Value, expected: &[u8]) -> Outcome {
    same(
        "the bytes of the answer",
        Some(expected.len() as u64),
        outcome["bytes"].as_u64(),
    )?;
    same(
        "their hash",
        Some(sha256(expected).as_str()),
        outcome["sha256"].as_str(),
    )
}

async fn without_head(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for parts in [&["three"][..], &[], &["", "a", "", "b", ""]] {
        let asked = asked(&mut node).await?;
        for part in parts {
            node.link
                .put(asked.made.id, FrameKind::DATA, part.as_bytes());
        }
        node.link.put(asked.made.id, FrameKind::END, b"");
        node.link.finish(asked.made.id);
        let outcome = node.outcome_code(&asked, Code::Ok).await?;
        body_is(&outcome, parts.concat().as_bytes())?;
        same("the type", Some(""), outcome["type"].as_str())?;
        same("the fields", &json!([]), &outcome["headers"])?;
    }
    Ok(())
}

async fn with_head(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let head = AnswerHead {
        content_type: "text/plain; charset=utf-8".to_owned(),
        headers: (0..MAX_HEADER_FIELDS)
            .map(|i| ("é".to_owned(), i.to_string()))
            .collect(),
    };
    let mut bytes = header::encode(&head);
    if let Some(first) = bytes.first_mut() {
        *first += 1;
    }
    bytes.extend_from_slice(b"\xa6future\x92\xc0\xc2 behind the map");
    let asked = asked(&mut node).await?;
    node.link.put(asked.made.id, FrameKind::HEAD, &bytes);
    node.answer_with(asked.made.id, b"body");
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    same(
        "the type",
        Some(head.content_type.as_str()),
        outcome["type"].as_str(),
    )?;
    same("the fields", &json!(head.headers), &outcome["headers"])?;
    body_is(&outcome, b"body")
}

async fn byte_by_byte(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for code in [Code::Ok, Code::Aborted] {
        let asked = asked(&mut node).await?;
        let status = header::encode(&Status::new(code, "half way"));
        let mut bytes = HEAD.to_vec();
        bytes.extend_from_slice(b"\x11\x00\x00\x03abc\x11\x00\x00\x00");
        bytes.extend_from_slice(&prefix(FrameKind::END, status.len()));
        bytes.extend_from_slice(&status);
        for byte in bytes {
            node.link.data_now(asked.made.id, &[byte], false);
            node.link.round_trip().await?;
        }
        node.link.finish(asked.made.id);
        let outcome = node.outcome_code(&asked, code).await?;
        body_is(&outcome, b"abc")?;
        if code == Code::Ok {
            same("the type", Some("t"), outcome["type"].as_str())?;
        }
    }
    Ok(())
}

async fn one_byte_frames(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = asked(&mut node).await?;
    let body = stage.pattern.bytes(3_000);
    for byte in &body {
        node.link.put(asked.made.id, FrameKind::DATA, &[*byte]);
        node.link.put(asked.made.id, FrameKind::DATA, b"");
        node.link.put(asked.made.id, FrameKind(0x7f), b"skip");
    }
    node.link
        .put(asked.made.id, FrameKind(0x00), &vec![0; 200_000]);
    node.end(asked.made.id, &Status::ok());
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    body_is(&outcome, &body)
}

async fn one_large_frame(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = asked(&mut node).await?;
    let body = stage.pattern.bytes(MAX_FRAME_PAYLOAD);
    node.link.put(asked.made.id, FrameKind::DATA, &body);
    node.end(asked.made.id, &Status::ok());
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    body_is(&outcome, &body)
}

async fn handed_on(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node.ask(&json!({"to": "other", "read": "first"})).await?;
    let begin = prefix(FrameKind::DATA, MAX_FRAME_PAYLOAD).to_vec();
    node.link.write(asked.made.id, begin);
    node.link
        .write(asked.made.id, b"the first of many".to_vec());
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    body_is(&outcome, b"the first of many")
}

async fn codes(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for code in Code::ALL {
        let asked = asked(&mut node).await?;
        let status = Status::new(code, "what happened: é")
            .with_hint("try later")
            .with_details("line\nline")
            .with_retry_after(std::time::Duration::from_millis(5_000_000_000));
        node.data(asked.made.id, b"so far");
        node.link
            .put(asked.made.id, FrameKind::END, &header::encode(&status));
        node.link.finish(asked.made.id);
        let outcome = node.outcome_code(&asked, code).await?;
        body_is(&outcome, b"so far")?;
        if code == Code::Ok {
            continue;
        }
        same(
            "message",
            Some(status.message.as_str()),
            outcome["message"].as_str(),
        )?;
        same("hint", Some("try later"), outcome["hint"].as_str())?;
        same("details", Some("line\nline"), outcome["details"].as_str())?;
        same(
            "retry_after_ms",
            Some(5_000_000_000),
            outcome["retry_after_ms"].as_u64(),
        )?;
        let retryable = matches!(
            code,
            Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        );
        same(
            &format!("retryable of {code}"),
            Some(retryable),
            outcome["retryable"].as_bool(),
        )?;
    }
    Ok(())
}

async fn unknown_code(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let ends: [&[u8]; 4] = [
        b"\x81\xa4code\x11",
        b"\x81\xa4code\xcd\x03\xe8",
        b"\x81\xa4code\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x83\xa6future\x91\x01\xa4code\xcc\x63\xa7message\xa1m",
    ];
    for end in ends {
        let asked = asked(&mut node).await?;
        node.link.put(asked.made.id, FrameKind::END, end);
        node.link.finish(asked.made.id);
        node.outcome_code(&asked, Code::Unknown).await?;
    }
    Ok(())
}

async fn after_end(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for end in 0..4 {
        let asked = asked(&mut node).await?;
        let id = asked.made.id;
        node.data(id, b"answer");
        node.link.put(id, FrameKind::END, b"");
        match end {
            0 => node.data(id, b"more"),
            1 => node.link.put(id, FrameKind::END, b"\x81\xa4code\x05"),
            2 => node.link.write(id, b"\x11\x00\x01".to_vec()),
            _ => {
                node.link.flush().await?;
                node.link.reset(id, Code::Internal);
            }
        }
        node.link.finish(id);
        let outcome = node.outcome(&asked).await?;
        if end < 3 || outcome["code"] != json!(13) {
            // A reset may overtake what was not read yet.
            code_is(&outcome, Code::Ok)?;
            body_is(&outcome, b"answer")?;
        }
    }
    node.still_works().await
}

async fn meaningless(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = asked(&mut node).await?;
    let id = asked.made.id;
    node.link.put(id, FrameKind::CALL, b"\x80");
    node.link.put(id, FrameKind::HEAD, b"\x81\xa4type\xa1t");
    node.data(id, b"a");
    node.link.put(id, FrameKind::HEAD, b"\x81\xa4type\xa1u");
    node.link.put(id, FrameKind::PING, b"12345678");
    node.link.put(id, FrameKind::OFFERS, b"");
    node.answer_with(id, b"b");
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    same("the type", Some("t"), outcome["type"].as_str())?;
    body_is(&outcome, b"ab")
}

/// Answers with these bytes and FIN, and checks the code with which the call ends.
async fn finished(node: &mut PlayedNode, bytes: &[u8], codes: &[Code]) -> Outcome<Value> {
    let asked = asked(node).await?;
    node.link.write(asked.made.id, bytes.to_vec());
    node.link.finish(asked.made.id);
    let outcome = node.outcome(&asked).await?;
    let came = outcome["code"].as_u64().map(Code::from_number);
    let expected: Vec<&str> = codes.iter().map(|code| code.name()).collect();
    let fits = came.is_some_and(|code| codes.contains(&code));
    holds(
        format_args!("the call to end with {}", expected.join(" or ")),
        fits,
        came,
    )?;
    Ok(outcome)
}

const HEAD: &[u8] = b"\x10\x00\x00\x08\x81\xa4type\xa1t";

async fn cut_short(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let unavailable = [Code::Unavailable];
    finished(&mut node, b"", &unavailable).await?;
    finished(&mut node, HEAD, &unavailable).await?;
    let outcome = finished(&mut node, b"\x11\x00\x00\x02ab", &unavailable).await?;
    body_is(&outcome, b"ab")?;
    node.still_works().await
}

async fn truncated(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let invalid = [Code::InvalidArgument];
    let cuts: [&[u8]; 5] = [
        b"\x11",
        b"\x11\x00\x00\x03ab",
        b"\x10\x00\x00\x08\x81\xa4",
        b"\x11\x00\x00\x01a\x12\x00\x00\x02\x81",
        b"\x7f\x00\x00\x05abc",
    ];
    for bytes in cuts {
        finished(&mut node, bytes, &invalid).await?;
    }
    node.still_works().await
}

async fn malformed(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let refused = [Code::Internal, Code::InvalidArgument, Code::Unknown];
    let other = asked(&mut node).await?;
    let many = AnswerHead {
        headers: vec![Default::default(); MAX_HEADER_FIELDS + 1],
        ..AnswerHead::default()
    };
    let frames: [(FrameKind, Vec<u8>); 6] = [
        (FrameKind::HEAD, b"\x01".to_vec()),
        (FrameKind::HEAD, b"\x81\xa4type\x01".to_vec()),
        (FrameKind::HEAD, b"\x82\xa4type\xa1a\xa4type\xa1b".to_vec()),
        (FrameKind::HEAD, header::encode(&many)),
        (FrameKind::END, b"\x01".to_vec()),
        (FrameKind::END, b"\x81\xa7message\xa1m".to_vec()),
    ];
    for (kind, payload) in frames {
        let mut bytes = prefix(kind, payload.len()).to_vec();
        bytes.extend_from_slice(&payload);
        bytes.extend_from_slice(&prefix(FrameKind::END, 0));
        let outcome = finished(&mut node, &bytes, &refused).await;
        outcome.map_err(|failure| failure.within(format_args!("{kind:?}")))?;
    }
    node.answer_with(other.made.id, b"undisturbed");
    let outcome = node.outcome_code(&other, Code::Ok).await?;
    body_is(&outcome, b"undisturbed")
}

async fn too_large(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let mut bytes = prefix(FrameKind::HEAD, 65_537).to_vec();
    bytes.extend_from_slice(&[0x80; 1_000]);
    finished(&mut node, &bytes, &[Code::InvalidArgument]).await?;
    node.still_works().await
}

/// Answers with these bytes and RESET, with several codes.
async fn resets(stage: &mut Stage, bytes: &[u8], body: &[u8]) -> Outcome {
    let mut node = stage.attach().await?;
    let codes = [
        (0, Code::Cancelled),
        (1, Code::Cancelled),
        (3, Code::InvalidArgument),
        (8, Code::ResourceExhausted),
        (14, Code::Unavailable),
        (16, Code::Unauthenticated),
        (17, Code::Unknown),
        (u32::MAX, Code::Unknown),
    ];
    for (number, code) in codes {
        let asked = node
            .ask(&json!({"to": "other", "body_bytes": 100_000}))
            .await?;
        node.link.write(asked.made.id, bytes.to_vec());
        node.link.sent(asked.made.id).await?;
        // What was sent is read now, so that the reset does not overtake it.
        node.link.round_trip().await?;
        node.link.reset_number(asked.made.id, number);
        let outcome = node.outcome_code(&asked, code).await;
        let outcome =
            outcome.map_err(|failure| failure.within(format_args!("RESET with {number}")))?;
        let came = outcome["bytes"].as_u64().unwrap_or(u64::MAX);
        holds(
            format_args!("at most {} bytes", body.len()),
            came <= body.len() as u64,
            came,
        )?;
        node.link
            .awaits("the end of the body of a call whose answer was reset");
        node.link.direction_end(asked.made.id).await?;
    }
    node.still_works().await
}

async fn reset_before_head(stage: &mut Stage) -> Outcome {
    resets(stage, b"", b"").await
}

async fn reset_after_head(stage: &mut Stage) -> Outcome {
    resets(stage, HEAD, b"").await
}

async fn reset_after_data(stage: &mut Stage) -> Outcome {
    resets(stage, b"\x11\x00\x00\x02ab", b"ab").await
}

async fn reset_inside(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for bytes in [
        &b"\x11\x00\x01\x00ab"[..],
        b"\x10\x00\x00\x08\x81\xa4",
        b"\x11\x00",
    ] {
        for (number, code) in [
            (0, Code::Cancelled),
            (1, Code::Cancelled),
            (14, Code::Unavailable),
            (10, Code::Aborted),
        ] {
            let asked = asked(&mut node).await?;
            node.link.write(asked.made.id, bytes.to_vec());
            node.link.flush().await?;
            node.link.reset_number(asked.made.id, number);
            node.outcome_code(&asked, code).await?;
        }
    }
    node.still_works().await
}

async fn stopped_with_ok(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node
        .ask(&json!({"to": "other", "body_bytes": 50_000_000}))
        .await?;
    let id = asked.made.id;
    node.link.stop(id, Code::Ok);
    node.link.awaits("RESET with the code of STOP");
    let end = node.link.direction_end(id).await?;
    same(
        "the end of the body",
        crate::link::DirectionEnd::Reset(Code::Ok),
        end,
    )?;
    node.answer_with(id, b"enough");
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    body_is(&outcome, b"enough")
}

async fn stopped_in_the_middle(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node
        .ask(&json!({"to": "other", "body_bytes": 50_000_000}))
        .await?;
    let id = asked.made.id;
    node.link.awaits("1,000,000 bytes of the body");
    while node.link.stream(id)?.received() < 1_000_000 {
        node.link.event(id).await?;
    }
    node.link.stop(id, Code::ResourceExhausted);
    node.link.awaits("RESET with the code of STOP");
    let end = node.link.direction_end(id).await?;
    same(
        "the end of the body",
        crate::link::DirectionEnd::Reset(Code::ResourceExhausted),
        end,
    )?;
    node.end(id, &Status::new(Code::ResourceExhausted, "no room"));
    let outcome = node.outcome_code(&asked, Code::ResourceExhausted).await?;
    same("message", Some("no room"), outcome["message"].as_str())?;
    node.still_works().await
}

async fn ahead_of_body(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for code in [Code::Ok, Code::PermissionDenied] {
        let asked = node
            .ask(&json!({"to": "other", "body_bytes": 50_000_000}))
            .await?;
        node.data(asked.made.id, b"early");
        node.end(asked.made.id, &Status::new(code, ""));
        let outcome = node.outcome_code(&asked, code).await?;
        body_is(&outcome, b"early")?;
        // Whoever has the whole answer writes no more, or all of it: not neither.
        node.link.stop(asked.made.id, Code::Ok);
        node.link.awaits("the end of the body");
        node.link.direction_end(asked.made.id).await?;
    }
    node.still_works().await
}

async fn reverse(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let mut calls = Vec::new();
    for _ in 0..64 {
        calls.push(asked(&mut node).await?);
    }
    let texts: Vec<String> = (0..64).map(|i| format!("answer number {i:04}")).collect();
    let longest = texts.iter().map(String::len).max().unwrap_or_default();
    for at in 0..longest {
        for (call, text) in calls.iter().zip(&texts).rev() {
            if let Some(byte) = text.as_bytes().get(at) {
                node.link.put(call.made.id, FrameKind::DATA, &[*byte]);
            }
        }
        node.link.flush().await?;
    }
    for (call, text) in calls.iter().zip(&texts).rev() {
        node.end(call.made.id, &Status::ok());
        let outcome = node.outcome_code(call, Code::Ok).await?;
        same("the answer", Some(text.as_str()), outcome["text"].as_str())?;
    }
    Ok(())
}
