//! Cases about calls that the peer makes: how it writes them.

use hailwire_wire::{
    CallHeader, Code, Priority, Status,
    frame::FrameKind,
    header::{self, Durability},
};
use serde_json::{Value, json};

use crate::{
    answer::hex,
    case::{Case, CaseGroup},
    failure::{Outcome, holds, same},
    node::{Asked, PlayedNode},
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "Calls that the peer makes",
        cases: vec![
            Case::new(
                "call",
                "a `CALL` in canonical bytes, its body, FIN; the answer reaches the caller",
                |stage| Box::pin(call(stage)),
            ),
            Case::new(
                "call-all-fields",
                "every field of a call but `tracestate`, in canonical bytes",
                |stage| Box::pin(call_all(stage)),
            ),
            Case::new("call-tracestate", "`tracestate` of a call", |stage| {
                Box::pin(call_tracestate(stage))
            }),
            Case::new(
                "call-priorities",
                "the flags of a call's frames have the priority of its header",
                |stage| Box::pin(call_priorities(stage)),
            ),
            Case::new(
                "call-member-and-carrier",
                "`member` and `carrier` of a call",
                |stage| Box::pin(call_member(stage)),
            ),
            Case::new(
                "call-durable",
                "`durable` 1 and 2 of a call and of a send, which the node answers with a receipt",
                |stage| Box::pin(call_durable(stage)),
            ),
            Case::new(
                "call-send",
                "a `SEND`, acknowledged by `END(ok)`, and one that is refused",
                |stage| Box::pin(call_send(stage)),
            ),
            Case::new(
                "call-raw-stream",
                "a `STREAM` that is accepted; bytes both ways",
                |stage| Box::pin(call_stream(stage)),
            ),
            Case::new(
                "call-raw-stream-refused",
                "`END` in place of `HEAD`",
                |stage| Box::pin(call_stream_refused(stage)),
            ),
        ],
    }
}

async fn call(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node
        .ask(&json!({"to": "word-count", "body": "one two three"}))
        .await?;
    same("the opening", FrameKind::CALL, asked.made.kind)?;
    let expected = CallHeader {
        to: "word-count".to_owned(),
        from: asked.made.header.from.clone(),
        ..CallHeader::default()
    };
    let from = expected.from.to_string();
    holds(
        "`from` to be empty or the peer's own agent",
        from.is_empty() || from == "peer",
        from,
    )?;
    same("the call header", &expected, &asked.made.header)?;
    same(
        "the body",
        b"one two three".to_vec(),
        node.body(asked.made.id).await?,
    )?;
    node.answer_with(asked.made.id, b"3\n");
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    same(
        "the text of the answer",
        Some("3\n"),
        outcome["text"].as_str(),
    )?;
    same("its bytes", Some(2), outcome["bytes"].as_u64())?;
    same(
        "its hash",
        Some(crate::pattern::sha256(b"3\n").as_str()),
        outcome["sha256"].as_str(),
    )
}

/// Has a call made, compares its header, and lets it end well.
async fn call_with(node: &mut PlayedNode, ask: &Value, expected: &CallHeader) -> Outcome<Asked> {
    let asked = node.ask(ask).await?;
    let mut expected = expected.clone();
    if expected.from.is_empty() {
        // A library may say by itself which agent's handler makes the call.
        expected.from = asked.made.header.from.clone();
    }
    same("the call header", &expected, &asked.made.header)?;
    let bytes = hex(&header::encode(&expected));
    same(
        "the bytes of the call header",
        bytes,
        hex(&asked.made.payload),
    )?;
    node.end(asked.made.id, &Status::ok());
    node.outcome_code(&asked, Code::Ok).await?;
    Ok(asked)
}

async fn call_all(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let ask = json!({
        "to": "some-agent@laptop", "method": "métier", "type": "text/plain", "idempotency_key": "once", "affinity": "user",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "from": "alias", "priority": 3,
        "headers": [["b", "2"], ["a", "é"], ["b", ""]],
    });
    let expected = CallHeader {
        to: "some-agent@laptop".to_owned(),
        method: "métier".to_owned(),
        from: from_agent("alias"),
        content_type: "text/plain".to_owned(),
        priority: Priority::Critical,
        idempotency_key: "once".to_owned(),
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        affinity: "user".to_owned(),
        headers: vec![
            ("b".into(), "2".into()),
            ("a".into(), "é".into()),
            ("b".into(), String::new()),
        ],
        ..CallHeader::default()
    };
    call_with(&mut node, &ask, &expected).await?;
    Ok(())
}

fn from_agent(name: &str) -> hailwire_wire::address::CallFrom {
    hailwire_wire::address::CallFrom {
        agent: name.parse().ok(),
        node: None,
    }
}

async fn call_tracestate(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let expected = CallHeader {
        to: "other".to_owned(),
        tracestate: "a=1,b=2".to_owned(),
        ..CallHeader::default()
    };
    call_with(
        &mut node,
        &json!({"to": "other", "tracestate": "a=1,b=2"}),
        &expected,
    )
    .await?;
    Ok(())
}

async fn call_priorities(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for priority in Priority::ALL {
        let ask = json!({"to": "other", "priority": priority as u8, "body": "some body"});
        let expected = CallHeader {
            to: "other".to_owned(),
            priority,
            ..CallHeader::default()
        };
        let asked = call_with(&mut node, &ask, &expected).await?;
        let came = node.link.stream(asked.made.id)?.priorities();
        same("the priority in the flags", vec![priority as u8], came)?;
    }
    Ok(())
}

async fn call_member(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for carrier in ["quic", "h2", "ws"] {
        let expected = CallHeader {
            to: "other@desk".to_owned(),
            carrier: carrier.to_owned(),
            member: 5_000_000_000,
            ..CallHeader::default()
        };
        let ask = json!({"to": "other@desk", "carrier": carrier, "member": 5_000_000_000_u64});
        call_with(&mut node, &ask, &expected).await?;
    }
    Ok(())
}

async fn call_durable(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let kinds = [("call", FrameKind::CALL), ("send", FrameKind::SEND)];
    for (kind, opening) in kinds {
        for (number, durable) in [(1, Durability::InOrder), (2, Durability::AnyOrder)] {
            let ask = json!({"kind": kind, "to": "other@desk", "durable": number, "body": "kept"});
            let asked = node.ask(&ask).await?;
            same("the opening", opening, asked.made.kind)?;
            same("durable", durable, asked.made.header.durable)?;
            same(
                "the body",
                b"kept".to_vec(),
                node.body(asked.made.id).await?,
            )?;
            let receipt =
                br#"{"id": "06h109s4ru1f1c04ejvdgihr9o", "state": "stored", "known": false}"#;
            node.answer_with(asked.made.id, receipt);
            node.outcome_code(&asked, Code::Ok).await?;
        }
    }
    Ok(())
}

async fn call_send(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for status in [
        Status::ok(),
        Status::new(Code::ResourceExhausted, "the inbox is full"),
    ] {
        let asked = node
            .ask(&json!({"kind": "send", "to": "other", "body": "one way"}))
            .await?;
        same("the opening", FrameKind::SEND, asked.made.kind)?;
        same(
            "the body",
            b"one way".to_vec(),
            node.body(asked.made.id).await?,
        )?;
        node.end(asked.made.id, &status);
        let outcome = node.outcome_code(&asked, status.code).await?;
        same(
            "the message",
            Some(status.message.as_str()),
            outcome["message"].as_str(),
        )?;
    }
    Ok(())
}

async fn call_stream(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node
        .ask(&json!({"kind": "stream", "to": "other", "body": "up"}))
        .await?;
    same("the opening", FrameKind::STREAM, asked.made.kind)?;
    node.link.put(asked.made.id, FrameKind::HEAD, b"\x80");
    same("the body", b"up".to_vec(), node.body(asked.made.id).await?)?;
    // Each side ends its own direction: this one goes on after the other's end.
    node.data(asked.made.id, b"do");
    node.link.sent(asked.made.id).await?;
    node.answer_with(asked.made.id, b"wn");
    let outcome = node.outcome_code(&asked, Code::Ok).await?;
    same(
        "the text that came down",
        Some("down"),
        outcome["text"].as_str(),
    )
}

async fn call_stream_refused(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let asked = node
        .ask(&json!({"kind": "stream", "to": "other", "body": "up"}))
        .await?;
    node.end(asked.made.id, &Status::new(Code::NotFound, "no such agent"));
    let outcome = node.outcome_code(&asked, Code::NotFound).await?;
    same(
        "the message",
        Some("no such agent"),
        outcome["message"].as_str(),
    )
}
