//! Cases about topics and about asking the node itself.

use bytes::BytesMut;
use hailwire_wire::{
    Code, NodeId, Status,
    frame::FrameKind,
    topics::{RecordReader, TopicRecord, put_record},
};
use serde_json::{Value, json};

use crate::{
    answer::hex,
    case::{Case, CaseGroup},
    failure::{Failure, Outcome, same},
    node::{PeerCall, PlayedNode, json_of},
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "Topics and the node itself",
        cases: vec![
            Case::new(
                "subscribe",
                "a call of `topic.subscribe` at `node`; messages with every field; the subscriber leaves with STOP",
                |stage| Box::pin(subscribe(stage)),
            ),
            Case::new(
                "subscribe-byte-by-byte",
                "records that come one byte in each `DATA`",
                |stage| Box::pin(byte_by_byte(stage)),
            ),
            Case::new(
                "subscribe-many-in-one-frame",
                "500 records in one `DATA`",
                |stage| Box::pin(many_records(stage)),
            ),
            Case::new(
                "subscribe-news",
                "`missed`, `reached`, `away`, `settled`, a log, and keys from the future",
                |stage| Box::pin(news(stage)),
            ),
            Case::new(
                "subscribe-malformed",
                "a record of more than 1,179,648 bytes, and one that is no map, end the subscription with an error",
                |stage| Box::pin(malformed(stage)),
            ),
            Case::new(
                "subscribe-refused",
                "the status of a refused subscription",
                |stage| Box::pin(refused(stage)),
            ),
            Case::new(
                "publish",
                "a call of `topic.publish` at `node` with one record in canonical bytes; the node's receipt",
                |stage| Box::pin(publish(stage)),
            ),
            Case::new(
                "admin",
                "a method of the agent `node`, its JSON both ways, and its refusal",
                |stage| Box::pin(admin(stage)),
            ),
        ],
    }
}

/// Has the peer call a method of the agent `node`, and reads that call's body.
async fn asked_of_node(
    node: &mut PlayedNode,
    method: &str,
    ask: &Value,
    of: &str,
) -> Outcome<(u64, PeerCall, Vec<u8>)> {
    let outer = node.begin(method, ask.to_string()).await?;
    let made = node.peer_call(Some(outer)).await?;
    same("the opening", FrameKind::CALL, made.kind)?;
    same("the agent", "node", made.header.to.as_str())?;
    same("the method", of, made.header.method.as_str())?;
    let body = node.body(made.id).await?;
    Ok((outer, made, body))
}

async fn subscribed(node: &mut PlayedNode, most: usize) -> Outcome<(u64, PeerCall)> {
    let ask = json!({"patterns": ["build.>", "*.done"], "most": most});
    let (outer, made, body) = asked_of_node(node, "subscribe", &ask, "topic.subscribe").await?;
    let body: Value = serde_json::from_slice(&body)
        .map_err(|error| Failure::new("JSON", format_args!("{error}")))?;
    same(
        "the patterns",
        &json!(["build.>", "*.done"]),
        &body["patterns"],
    )?;
    Ok((outer, made))
}

/// A message with every field, and what the peer is to tell of it.
fn full_message() -> (TopicRecord, Value) {
    let record = TopicRecord {
        topic: "build.web.done".to_owned(),
        node: Some(NodeId::from_bytes([9; 32])),
        from: "builder".to_owned(),
        content_type: "text/plain".to_owned(),
        headers: vec![("a".into(), "1".into()), ("a".into(), "é".into())],
        body: b"done\x00\xff".to_vec(),
        sequence: 7,
        at_ms: 1_790_000_000_000,
        kept: 3,
        deleted: true,
        ..TopicRecord::default()
    };
    let told = json!({
        "topic": "build.web.done", "from": "builder", "type": "text/plain", "headers": [["a", "1"], ["a", "é"]],
        "body": hex(&record.body), "sequence": 7, "at_ms": 1_790_000_000_000_u64, "kept": 3, "deleted": true,
        "node": hex(&[9; 32]),
    });
    (record, told)
}

fn small_message(number: u64) -> (TopicRecord, Value) {
    let record = TopicRecord {
        topic: format!("build.n{number}"),
        body: number.to_string().into_bytes(),
        sequence: number,
        ..TopicRecord::default()
    };
    let told = json!({
        "topic": record.topic, "from": "", "type": "", "headers": [], "body": hex(&record.body), "sequence": number,
        "at_ms": 0, "kept": 0, "deleted": false, "node": null,
    });
    (record, told)
}

fn records<'a>(list: impl IntoIterator<Item = &'a TopicRecord>) -> Vec<u8> {
    let mut out = BytesMut::new();
    for record in list {
        put_record(&mut out, record);
    }
    out.to_vec()
}

/// Checks what a subscriber tells, and that it has left the subscription.
async fn told(node: &mut PlayedNode, outer: u64, made: &PeerCall, expected: Value) -> Outcome {
    let came = json_of(&node.answer(outer, "subscribe").await?)?;
    same("the events", expected, came)?;
    node.link.awaits("STOP of a subscription that was left");
    node.link.stop_of(made.id).await?;
    node.still_works().await
}

async fn subscribe(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let (outer, made) = subscribed(&mut node, 2).await?;
    let ((full, told_full), (small, told_small)) = (full_message(), small_message(8));
    let all = records([&TopicRecord::default(), &full, &small]);
    node.data(made.id, &all);
    told(&mut node, outer, &made, json!([told_full, told_small])).await
}

async fn byte_by_byte(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let (outer, made) = subscribed(&mut node, 2).await?;
    let ((full, told_full), (small, told_small)) = (full_message(), small_message(8));
    for byte in records([&TopicRecord::default(), &full, &small]) {
        node.link.put(made.id, FrameKind::DATA, &[byte]);
        node.link.flush().await?;
    }
    told(&mut node, outer, &made, json!([told_full, told_small])).await
}

async fn many_records(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let (outer, made) = subscribed(&mut node, 500).await?;
    let (sent, events): (Vec<TopicRecord>, Vec<Value>) = (1..=500).map(small_message).unzip();
    node.link.put(made.id, FrameKind::DATA, &records(&sent));
    told(&mut node, outer, &made, Value::Array(events)).await
}

async fn news(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let (outer, made) = subscribed(&mut node, 5).await?;
    let (message, told_message) = small_message(1);
    let missed = TopicRecord {
        missed: 12,
        ..TopicRecord::default()
    };
    let log = TopicRecord {
        log: 4_711,
        kept: 9,
        ..TopicRecord::default()
    };
    let reached = TopicRecord {
        reached: true,
        ..TopicRecord::default()
    };
    let away = TopicRecord {
        node: Some(NodeId::from_bytes([3; 32])),
        away: "no way there".to_owned(),
        ..TopicRecord::default()
    };
    let settled = TopicRecord {
        settled: true,
        ..TopicRecord::default()
    };
    node.data(
        made.id,
        &records([&TopicRecord::default(), &log, &missed, &message]),
    );
    // A key that nobody knows, in news that say nothing else.
    node.data(made.id, b"\x00\x00\x00\x09\x81\xa6future\x01");
    node.data(made.id, &records([&reached, &away, &settled]));
    let expected = json!([
        {"missed": 12}, told_message, {"news": "reached"}, {"news": "away"}, {"news": "settled"},
    ]);
    told(&mut node, outer, &made, expected).await
}

async fn malformed(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    for bytes in [&b"\x00\x12\x00\x01"[..], b"\x00\x00\x00\x02\x01\x02"] {
        let (outer, made) = subscribed(&mut node, 1).await?;
        node.data(made.id, bytes);
        let answered = node.answer(outer, "subscribe").await?;
        answered.failed_with(&[Code::Internal, Code::InvalidArgument, Code::Unknown])?;
    }
    node.still_works().await
}

async fn refused(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let (outer, made) = subscribed(&mut node, 1).await?;
    node.end(
        made.id,
        &Status::new(Code::ResourceExhausted, "too many subscriptions"),
    );
    let answered = node.answer(outer, "subscribe").await?;
    answered.ended_with(Code::ResourceExhausted)?;
    same(
        "the message",
        "too many subscriptions",
        answered.status()?.message.as_str(),
    )
}

async fn publish(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let ask = json!({"topic": "build.web.done", "body": "ok é", "type": "text/plain", "headers": [["a", "1"], ["b", ""]], "from": "builder"});
    let full = TopicRecord {
        topic: "build.web.done".to_owned(),
        from: "builder".to_owned(),
        content_type: "text/plain".to_owned(),
        headers: vec![("a".into(), "1".into()), ("b".into(), String::new())],
        body: "ok é".as_bytes().to_vec(),
        ..TopicRecord::default()
    };
    let bare = TopicRecord {
        topic: "a".to_owned(),
        ..TopicRecord::default()
    };
    for (ask, expected) in [(ask, full), (json!({"topic": "a"}), bare)] {
        let (outer, made, body) =
            asked_of_node(&mut node, "publish", &ask, "topic.publish").await?;
        let mut reader = RecordReader::default();
        reader.handle_chunk(&body);
        let came: Option<TopicRecord> = reader.poll_record().map_err(Failure::rule)?;
        same("the record", Some(&expected), came.as_ref())?;
        same(
            "its canonical bytes, and no more",
            hex(&records([&expected])),
            hex(&body),
        )?;
        let receipt = br#"{"published": 1, "programs": 2, "peers": 3, "kept": 1, "last": 9}"#;
        node.answer_with(made.id, receipt);
        let came = json_of(&node.answer(outer, "publish").await?)?;
        same("peers of the receipt", Some(3), came["peers"].as_u64())?;
        same(
            "programs of the receipt",
            Some(2),
            came["programs"].as_u64(),
        )?;
    }
    Ok(())
}

async fn admin(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    let ask = json!({"method": "some.method", "request": {"who": "é", "n": 1}});
    let (outer, made, body) = asked_of_node(&mut node, "admin", &ask, "some.method").await?;
    let body: Value = serde_json::from_slice(&body)
        .map_err(|error| Failure::new("JSON", format_args!("{error}")))?;
    same("the request", &ask["request"], &body)?;
    let answer = json!({"id": "x", "list": [1, 2.5, null, "é"]});
    node.answer_with(made.id, answer.to_string().as_bytes());
    same(
        "the answer",
        answer,
        json_of(&node.answer(outer, "admin").await?)?,
    )?;
    let (outer, made, _) = asked_of_node(&mut node, "admin", &ask, "some.method").await?;
    node.end(
        made.id,
        &Status::new(Code::PermissionDenied, "not you").with_hint("ask"),
    );
    let answered = node.answer(outer, "admin").await?;
    answered.ended_with(Code::PermissionDenied)?;
    same("the hint", "ask", answered.status()?.hint.as_str())
}
