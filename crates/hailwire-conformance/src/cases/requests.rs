//! Cases about calls, sends and streams toward the peer: what it reads of them and what it answers.

use hailwire_wire::{CallHeader, Code, NodeId, Priority, frame::FrameKind};
use serde_json::{Value, json};

use crate::{
    case::{Case, CaseGroup},
    failure::{Outcome, holds, same},
    node::{PlayedNode, json_of, to_peer},
    pattern::sha256,
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "Calls of the peer's agent",
        cases: vec![
            Case::new(
                "echo",
                "bodies of 0, 1, 16,385 and 1,048,576 bytes come back, with type and fields; a head that says nothing may be left out",
                |stage| Box::pin(echo(stage)),
            ),
            Case::new(
                "inspect-defaults",
                "a header that names only the agent and the method",
                |stage| Box::pin(inspect_defaults(stage)),
            ),
            Case::new(
                "inspect-all-fields",
                "every field of the call header reaches the handler",
                |stage| Box::pin(inspect_all(stage)),
            ),
            Case::new(
                "caller-identity",
                "`from` as an agent, `agent@key` and `@key`",
                |stage| Box::pin(caller_identity(stage)),
            ),
            Case::new(
                "body-in-one-byte-frames",
                "a body in `DATA` of one byte each, with empty ones between",
                |stage| Box::pin(one_byte_frames(stage)),
            ),
            Case::new(
                "body-in-one-large-frame",
                "a `DATA` of 16,777,215 bytes in over 1,000 frames of the multiplexer",
                |stage| Box::pin(one_large_frame(stage)),
            ),
            Case::new(
                "body-with-unknown-frames",
                "unknown frames in a body are skipped, whatever their length",
                |stage| Box::pin(body_with_unknown_frames(stage)),
            ),
            Case::new(
                "body-with-frames-that-mean-nothing",
                "`HEAD`, `END`, `PING`, `CALL` and others in a caller's direction are ignored",
                |stage| Box::pin(body_with_known_frames(stage)),
            ),
            Case::new(
                "body-truncated",
                "a direction that finishes inside `DATA`: the call ends with `invalid_argument`",
                |stage| Box::pin(truncated_body(stage)),
            ),
            Case::new(
                "body-frame-too-large",
                "a known frame beyond 65,536 bytes in a body: the call ends with `invalid_argument`",
                |stage| Box::pin(large_frame_in_body(stage)),
            ),
            Case::new(
                "chunks-as-they-come",
                "each chunk is answered before the next is sent, while the request is open",
                |stage| Box::pin(chunks(stage)),
            ),
            Case::new(
                "ignored-body",
                "an answer that is whole before the body has ended; the peer then stops the body",
                |stage| Box::pin(ignored_body(stage)),
            ),
            Case::new(
                "ignored-body-is-stopped-with-ok",
                "the code of that STOP is 0",
                |stage| Box::pin(ignored_body_code(stage)),
            ),
            Case::new(
                "handler-crash",
                "a handler that fails ends its call with `internal` or `unknown`, and nothing else",
                |stage| Box::pin(crash(stage)),
            ),
            Case::new(
                "produce",
                "an answer of 1,000,000 bytes in chunks, with type and fields in a canonical `HEAD`",
                |stage| Box::pin(produce(stage)),
            ),
            Case::new(
                "produce-status",
                "a failed answer keeps its body; message, hint, details and `retry_after_ms` are written canonically, with every code",
                |stage| Box::pin(produce_status(stage)),
            ),
            Case::new(
                "produce-long-status",
                "texts of a status beyond their bounds are cut where it is made",
                |stage| Box::pin(long_status(stage)),
            ),
            Case::new(
                "raw-stream",
                "`HEAD` at once, before anything was sent; bytes both ways; each side ends its own direction",
                |stage| Box::pin(raw_stream(stage)),
            ),
            Case::new(
                "raw-stream-has-one-head",
                "a raw stream whose handler states a type has one `HEAD` all the same",
                |stage| Box::pin(one_head(stage)),
            ),
            Case::new(
                "raw-stream-half-closed",
                "the caller's direction ends first, and what was sent comes back all the same",
                |stage| Box::pin(half_closed(stage)),
            ),
            Case::new(
                "send",
                "one-way sends are read whole and acknowledged with `END(ok)`, without body",
                |stage| Box::pin(send(stage)),
            ),
            Case::new(
                "send-too-large",
                "a send of more than 16 MiB is refused with `resource_exhausted`",
                |stage| Box::pin(large_send(stage)),
            ),
            Case::new(
                "priority-of-answers",
                "the frames of an answer have the priority of the call in their flags",
                |stage| Box::pin(priority_of_answers(stage)),
            ),
        ],
    }
}

async fn echo(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for size in [0, 1, 16_385, 1_048_576] {
        let body = stage.pattern.bytes(size);
        let header = CallHeader {
            content_type: "text/x-pattern".to_owned(),
            headers: vec![
                ("b".into(), "1".into()),
                ("a".into(), "2".into()),
                ("b".into(), String::new()),
            ],
            ..to_peer("echo")
        };
        let id = node
            .begin_as(FrameKind::CALL, &header, body.clone())
            .await?;
        let answered = node.answer(id, "echo").await?;
        let intact = *answered.success()? == body;
        holds(
            format_args!("{size} bytes as they were sent"),
            intact,
            answered.body.len(),
        )?;
        let head = answered.head.unwrap_or_default();
        same("the type", header.content_type, head.content_type)?;
        same("the fields", header.headers, head.headers)?;
    }
    node.still_works().await
}

/// Checks some members of what `inspect` told.
fn told(came: &Value, expected: &Value) -> Outcome {
    for (name, value) in expected.as_object().into_iter().flatten() {
        let got = came.get(name);
        same(&format!("`{name}`"), Some(value), got)?;
    }
    Ok(())
}

async fn inspected(
    node: &mut PlayedNode,
    kind: FrameKind,
    header: &CallHeader,
    body: &[u8],
) -> Outcome<Value> {
    let id = node.begin_as(kind, header, body).await?;
    node.link.awaits("the end of the answer of inspect");
    // That a raw stream has one head is a case of its own.
    let answered = node.link.answer(id).await?;
    json_of(&answered)
}

async fn inspect_defaults(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let came = inspected(&mut node, FrameKind::CALL, &to_peer("inspect"), b"").await?;
    told(
        &came,
        &json!({
            "kind": "call", "method": "inspect", "agent": "peer", "from": {"agent": "", "node": null}, "type": "",
            "deadline_ms": null, "priority": 1, "idempotency_key": "", "traceparent": "", "tracestate": "",
            "affinity": "", "headers": [], "bytes": 0, "sha256": sha256(b""),
        }),
    )
}

fn full_header(key: NodeId) -> CallHeader {
    CallHeader {
        from: hailwire_wire::address::CallFrom {
            agent: "caller".parse().ok(),
            node: Some(key),
        },
        content_type: "application/x-é".to_owned(),
        deadline_ms: Some(3_600_000),
        priority: Priority::High,
        idempotency_key: "key".to_owned(),
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        tracestate: "a=1".to_owned(),
        affinity: "user-7".to_owned(),
        headers: vec![
            ("name".into(), "value\n".into()),
            ("name".into(), "again".into()),
        ],
        ..to_peer("inspect")
    }
}

async fn inspect_all(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let key = NodeId::from_bytes([7; 32]);
    let body = stage.pattern.bytes(100_000);
    for (kind, name) in [(FrameKind::CALL, "call"), (FrameKind::STREAM, "stream")] {
        let came = inspected(&mut node, kind, &full_header(key), &body).await?;
        told(
            &came,
            &json!({
                "kind": name, "method": "inspect", "agent": "peer", "from": {"agent": "caller", "node": key.to_string()},
                "type": "application/x-é", "priority": 2, "idempotency_key": "key",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1",
                "affinity": "user-7", "headers": [["name", "value\n"], ["name", "again"]],
                "bytes": body.len(), "sha256": sha256(&body),
            }),
        )?;
        let left = came["deadline_ms"].as_u64().unwrap_or_default();
        let sensible = (3_590_000..=3_600_000).contains(&left);
        holds("what is left of a deadline of an hour", sensible, left)?;
    }
    Ok(())
}

async fn caller_identity(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let key = NodeId::from_bytes([0xab; 32]);
    let agent: Option<hailwire_wire::AgentName> = "some-agent.1".parse().ok();
    let cases = [
        (None, None),
        (agent.clone(), None),
        (None, Some(key)),
        (agent, Some(key)),
    ];
    for (agent, at) in cases {
        let name = agent
            .as_ref()
            .map_or("", hailwire_wire::AgentName::as_str)
            .to_owned();
        let from = hailwire_wire::address::CallFrom { agent, node: at };
        let header = CallHeader {
            from,
            ..to_peer("inspect")
        };
        let came = inspected(&mut node, FrameKind::CALL, &header, b"").await?;
        let node_text = at.map(|key| key.to_string());
        told(&came, &json!({"from": {"agent": name, "node": node_text}}))?;
    }
    Ok(())
}

async fn one_byte_frames(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let body = stage.pattern.bytes(3_000);
    let id = node.open(FrameKind::CALL, &to_peer("echo")).await?;
    for byte in &body {
        node.link.put(id, FrameKind::DATA, &[*byte]);
        node.link.put(id, FrameKind::DATA, b"");
    }
    node.link.finish(id);
    let answered = node.answer(id, "echo").await?;
    holds(
        "the body as it was sent",
        *answered.success()? == body,
        answered.body.len(),
    )
}

async fn one_large_frame(stage: &mut Stage) -> Outcome {
    const LARGEST: usize = hailwire_wire::limits::MAX_FRAME_PAYLOAD;
    let mut node = stage.attach().await?;
    let id = node.open(FrameKind::CALL, &to_peer("consume")).await?;
    node.link
        .put(id, FrameKind::DATA, &stage.pattern.bytes(LARGEST));
    node.link.finish(id);
    let answered = node.answer(id, "consume").await?;
    let came = json_of(&answered)?;
    told(
        &came,
        &json!({"bytes": LARGEST, "sha256": stage.pattern.sha256(LARGEST as u64)}),
    )
}

async fn body_with_unknown_frames(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.open(FrameKind::CALL, &to_peer("echo")).await?;
    for (kind, len) in [(0x00, 5), (0x13, 0), (0x7f, 1_000_000), (0xff, 65_537)] {
        node.data(id, b"ab");
        node.link.put(id, FrameKind(kind), &vec![0x11; len]);
    }
    node.link.finish(id);
    let answered = node.answer(id, "echo").await?;
    same("the answer", b"abababab", answered.success()?.as_ref())
}

async fn body_with_known_frames(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.open(FrameKind::CALL, &to_peer("echo")).await?;
    let kinds = [
        FrameKind::HEAD,
        FrameKind::END,
        FrameKind::PING,
        FrameKind::PONG,
        FrameKind::CALL,
        FrameKind::HELLO,
        FrameKind::GOING_AWAY,
        FrameKind::OFFERS,
    ];
    for kind in kinds {
        node.data(id, b"a");
        node.link.put(id, kind, b"\x80");
    }
    node.link.finish(id);
    let answered = node.answer(id, "echo").await?;
    same("the answer", b"aaaaaaaa", answered.success()?.as_ref())
}

async fn truncated_body(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for cut in [1, 4, 6] {
        let id = node.open(FrameKind::CALL, &to_peer("echo")).await?;
        let bytes: &[u8] = b"\x11\x00\x00\x0aab";
        node.link
            .write(id, bytes.get(..cut).unwrap_or_default().to_vec());
        node.link.finish(id);
        let answered = node.answer(id, "echo of a truncated body").await?;
        answered.failed_with(&[Code::InvalidArgument])?;
    }
    node.still_works().await
}

async fn large_frame_in_body(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.open(FrameKind::CALL, &to_peer("echo")).await?;
    node.data(id, b"begin");
    node.link.put(id, FrameKind::HEAD, &vec![0x81; 65_537]);
    node.link.finish(id);
    let answered = node.answer(id, "echo").await?;
    answered.failed_with(&[Code::InvalidArgument])?;
    node.still_works().await
}

/// Sends chunks and waits for each to come back; the stream is then half open.
async fn exchange(node: &mut PlayedNode, id: u64) -> Outcome {
    for text in ["one", "two", "three"] {
        node.data(id, text.as_bytes());
        node.link
            .awaits(format_args!("the chunk `{text}` to come back"));
        let mut came = Vec::new();
        while came.len() < text.len() {
            match node.link.event(id).await? {
                crate::link::StreamEvent::Data(bytes) => came.extend_from_slice(&bytes),
                crate::link::StreamEvent::Frame(FrameKind::HEAD, _) if came.is_empty() => {}
                other => return holds("DATA", false, other),
            }
        }
        same("the chunk", text.as_bytes(), &came)?;
    }
    Ok(())
}

async fn chunks(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.open(FrameKind::CALL, &to_peer("chunks")).await?;
    exchange(&mut node, id).await?;
    node.link.finish(id);
    node.answer(id, "chunks").await?.success()?;
    Ok(())
}

async fn ignored_body(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    stop_of_ignored(stage, &mut node).await?;
    node.still_works().await
}

async fn ignored_body_code(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let code = stop_of_ignored(stage, &mut node).await?;
    same("the code of STOP", Code::Ok, code)
}

/// The code with which the peer stops a body that its handler did not read.
async fn stop_of_ignored(stage: &Stage, node: &mut PlayedNode) -> Outcome<Code> {
    let id = node.open(FrameKind::CALL, &to_peer("ignore")).await?;
    node.data(id, &stage.pattern.bytes(1_000_000));
    let answered = node.answer(id, "ignore").await?;
    same("the answer", b"ignored", answered.success()?.as_ref())?;
    node.link.awaits("STOP of a body that nobody reads");
    node.link.stop_of(id).await
}

async fn crash(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let waiting = node.begin("wait", "").await?;
    for kind in [FrameKind::CALL, FrameKind::STREAM, FrameKind::CALL] {
        let id = node.begin_as(kind, &to_peer("crash"), "").await?;
        let answered = node.answer(id, "crash").await?;
        answered.status()?;
        answered.failed_with(&[Code::Internal, Code::Unknown])?;
    }
    let end = node.link.stream(waiting)?.end();
    same("the end of another call", None, end)?;
    node.still_works().await
}

async fn produce(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let ask = json!({"bytes": 1_000_000, "chunk": 999, "type": "text/x", "headers": [["a", "1"], ["b", ""], ["a", "é"]]});
    let answered = node.call("produce", ask.to_string()).await?;
    let intact = stage.pattern.is_at(0, answered.success()?);
    holds(
        "1,000,000 bytes of the pattern",
        intact && answered.body.len() == 1_000_000,
        answered.body.len(),
    )?;
    let head = answered.head.unwrap_or_default();
    same("the type", "text/x", head.content_type.as_str())?;
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let fields = vec![field("a", "1"), field("b", ""), field("a", "é")];
    same("the fields", fields, head.headers)?;
    let answered = node
        .call("produce", json!({"bytes": 0}).to_string())
        .await?;
    same("an answer without bytes", 0, answered.success()?.len())
}

async fn produce_status(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for code in Code::ALL.into_iter().filter(|code| *code != Code::Ok) {
        let status = json!({"code": code.number(), "message": "it failed", "hint": "try é", "details": "a\nb", "retry_after_ms": 1_500});
        let ask = json!({"bytes": 70_000, "status": status});
        let answered = node.call("produce", ask.to_string()).await?;
        answered.ended_with(code)?;
        let status = answered.status()?;
        let texts = (
            status.message.as_str(),
            status.hint.as_str(),
            status.details.as_str(),
        );
        same(
            "message, hint and details",
            ("it failed", "try é", "a\nb"),
            texts,
        )?;
        same("retry_after_ms", 1_500, status.retry_after_ms)?;
        let intact = answered.body.len() == 70_000 && stage.pattern.is_at(0, &answered.body);
        holds("the body ahead of the failure", intact, answered.body.len())?;
    }
    Ok(())
}

async fn long_status(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let status = json!({"code": 9, "message": "é".repeat(5_000), "hint": "é".repeat(5_000), "details": "é".repeat(50_000)});
    let answered = node
        .call("produce", json!({"bytes": 1, "status": status}).to_string())
        .await?;
    answered.ended_with(Code::FailedPrecondition)?;
    let status = answered.status()?;
    for (text, most) in [
        (&status.message, 1_024),
        (&status.hint, 1_024),
        (&status.details, 8_192),
    ] {
        let cut = !text.is_empty() && text.len() <= most && text.chars().all(|c| c == 'é');
        holds(
            format_args!("a text cut to {most} bytes at a character"),
            cut,
            text.len(),
        )?;
    }
    Ok(())
}

/// Waits for the `HEAD` with which a raw stream is accepted.
async fn accepted(node: &mut PlayedNode, id: u64) -> Outcome {
    node.link
        .awaits("HEAD of a raw stream, before anything is sent on it");
    match node.link.event(id).await? {
        crate::link::StreamEvent::Frame(FrameKind::HEAD, _) => Ok(()),
        other => holds("HEAD", false, other),
    }
}

async fn raw_stream(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node.open(FrameKind::STREAM, &to_peer("chunks")).await?;
    accepted(&mut node, id).await?;
    exchange(&mut node, id).await?;
    node.link.finish(id);
    let answered = node.answer(id, "a raw stream").await?;
    same("what follows", 0, answered.success()?.len())
}

async fn one_head(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let id = node
        .begin_as(FrameKind::STREAM, &to_peer("inspect"), "")
        .await?;
    node.answer(id, "a raw stream").await?.success()?;
    Ok(())
}

async fn half_closed(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let body = stage.pattern.bytes(300_000);
    let id = node.open(FrameKind::STREAM, &to_peer("echo")).await?;
    accepted(&mut node, id).await?;
    node.data(id, &body);
    node.link.finish(id);
    let answered = node.answer(id, "a raw stream").await?;
    holds(
        "the bytes as they were sent",
        *answered.success()? == body,
        answered.body.len(),
    )
}

async fn send(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for method in ["echo", "consume", "inspect"] {
        for size in [0, 10, 200_000] {
            let body = stage.pattern.bytes(size);
            let id = node
                .begin_as(FrameKind::SEND, &to_peer(method), body)
                .await?;
            let answered = node.answer(id, "a send").await?;
            same(
                "the body of an acknowledgement",
                0,
                answered.success()?.len(),
            )?;
            let stop = node.link.stream(id)?.stop();
            same("STOP of a send", None, stop)?;
        }
    }
    let id = node
        .begin_as(FrameKind::SEND, &to_peer("crash"), "")
        .await?;
    let answered = node.answer(id, "a send").await?;
    answered.failed_with(&[Code::Internal, Code::Unknown])
}

async fn large_send(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let largest = hailwire_wire::limits::MAX_SEND_BODY;
    for (more, code) in [(0, Code::Ok), (1, Code::ResourceExhausted)] {
        let body = stage.pattern.bytes(largest + more);
        let id = node
            .begin_as(FrameKind::SEND, &to_peer("consume"), body)
            .await?;
        let answered = node.answer(id, "a send of 16 MiB").await?;
        answered.failed_with(&[code])?;
    }
    node.still_works().await
}

async fn priority_of_answers(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for priority in Priority::ALL {
        let header = CallHeader {
            priority,
            ..to_peer("echo")
        };
        let body = stage.pattern.bytes(200_000);
        let id = node.begin_as(FrameKind::CALL, &header, body).await?;
        node.answer(id, "echo").await?.success()?;
        let came = node.link.stream(id)?.priorities();
        same(
            "the priority of the answer's frames",
            vec![priority as u8],
            came,
        )?;
    }
    Ok(())
}
