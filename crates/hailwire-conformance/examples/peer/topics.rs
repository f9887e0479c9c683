//! Topics, and asking the node: the peer's methods `subscribe`, `publish` and `admin`.

use data_encoding::HEXLOWER;
use hailwire::{Request, Response, Status, TopicEvent};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Peer, answer, name, read_json};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Subscribe {
    patterns: Vec<String>,
    most: usize,
}

pub(crate) async fn subscribe(peer: &Peer, request: Request) -> Result<Response, Status> {
    let asked: Subscribe = read_json(request).await?;
    let mut subscription = peer.client()?.subscribe(asked.patterns).await?;
    let mut events = Vec::new();
    while events.len() < asked.most {
        let Some(event) = subscription.next().await? else {
            break;
        };
        events.push(match event {
            TopicEvent::Message(message) => json!({
                "topic": message.topic, "from": message.from, "type": message.content_type,
                "headers": message.headers, "body": HEXLOWER.encode(&message.body),
                "sequence": message.sequence, "at_ms": message.at_ms, "kept": message.kept,
                "deleted": message.deleted,
                "node": message.node.map(|node| HEXLOWER.encode(node.as_bytes())),
            }),
            TopicEvent::Missed(count) => json!({"missed": count}),
            TopicEvent::Reached(_) => json!({"news": "reached"}),
            TopicEvent::Away(..) => json!({"news": "away"}),
            TopicEvent::Settled => json!({"news": "settled"}),
            _ => json!({"news": "unknown"}),
        });
    }
    Ok(answer(&Value::Array(events)))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Publish {
    topic: String,
    body: String,
    r#type: String,
    headers: Vec<(String, String)>,
    from: String,
}

pub(crate) async fn publish(peer: &Peer, request: Request) -> Result<Response, Status> {
    let asked: Publish = read_json(request).await?;
    let client = peer.client()?;
    let mut publication = client
        .publish(asked.topic)
        .body(asked.body)
        .content_type(asked.r#type);
    for (name, value) in asked.headers {
        publication = publication.header(name, value);
    }
    if !asked.from.is_empty() {
        publication = publication.from(&name(&asked.from)?);
    }
    let receipt = publication.send().await?;
    Ok(answer(&serde_json::to_value(receipt).unwrap_or_default()))
}

#[derive(Deserialize)]
struct Admin {
    method: String,
    #[serde(default)]
    request: Value,
}

pub(crate) async fn admin(peer: &Peer, request: Request) -> Result<Response, Status> {
    let asked: Admin = read_json(request).await?;
    let client = peer.client()?;
    let came: Value = client.admin(&asked.method, &asked.request).await?;
    Ok(answer(&came))
}
