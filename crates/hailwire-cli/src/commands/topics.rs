//! `hail pub`, `hail sub` and `hail topics`.
//!
//! With `--json` a subscription is a line of JSON that says that it stands, one for each message with everything that is known of it, and
//! `{"missed":N}` where N messages were lost.

use std::io::{self, IsTerminal as _, Write as _};

use bytes::BytesMut;
use hailwire::{
    Body, Client, Code, NodeId, Publication, Status, TopicEvent, TopicMessage,
    admin::{MessageContent, PublishReceipt, TopicList, method},
};
use hailwire_terminal::{
    failure::CommandFailure,
    output::{Output, stdout_failure},
    table::TextTable,
    text,
};
use hailwire_wire::{limits::MAX_TOPIC_BODY, shown, topics::TopicPattern};
use serde::Serialize;

use super::{CommandContext, body, connect};
use crate::plan::{BodySource, PublishPlan};

pub(super) async fn publish(
    run: &CommandContext,
    publish: PublishPlan,
) -> Result<(), CommandFailure> {
    let source = match publish.lines {
        true => BodySource::Stdin,
        false => publish.body.clone(),
    };
    let mut source = body::open(source).await?;
    let receipt = match publish.lines {
        true => {
            let client = connect::attach(run).await?;
            publish_lines(&client, &publish, source).await?
        }
        false => {
            let body = source.bytes(MAX_TOPIC_BODY).await.map_err(too_large)?;
            let client = connect::attach(run).await?;
            prepared(&client, &publish, &body).send().await?
        }
    };
    run.output.note(&went_to(&receipt));
    match run.output.json {
        true => run.output.value(&receipt, |_| String::new()),
        false => Ok(()),
    }
}

fn prepared(client: &Client, publish: &PublishPlan, body: &[u8]) -> Publication {
    let publication = client.publish(publish.topic.as_str());
    let mut publication = publication
        .content_type(publish.content_type.as_str())
        .body(body);
    for (name, value) in &publish.headers {
        publication = publication.header(name, value);
    }
    match &publish.from {
        Some(agent) => publication.from(agent),
        None => publication,
    }
}

async fn publish_lines(
    client: &Client,
    publish: &PublishPlan,
    mut source: Body,
) -> Result<PublishReceipt, CommandFailure> {
    let mut publisher = client.publisher();
    let mut unread = BytesMut::new();
    loop {
        let chunk = source.chunk().await?;
        let ended = chunk.is_none();
        let before = unread.len();
        unread.extend_from_slice(&chunk.unwrap_or_default());
        let mut from = before;
        while let Some(end) = unread[from..].iter().position(|byte| *byte == b'\n') {
            let line = unread.split_to(from + end + 1).freeze();
            let one = prepared(client, publish, &line[..line.len() - 1]);
            publisher.publish(one).await?;
            from = 0;
        }
        if unread.len() > MAX_TOPIC_BODY {
            return Err(too_large(Status::new(Code::ResourceExhausted, "")));
        }
        if ended {
            break;
        }
    }
    if !unread.is_empty() {
        publisher
            .publish(prepared(client, publish, &unread))
            .await?;
    }
    Ok(publisher.finish().await?)
}

fn went_to(receipt: &PublishReceipt) -> String {
    let PublishReceipt {
        published,
        programs,
        peers,
    } = receipt;
    match (published, programs, peers) {
        (_, 0, 0) => "nobody is subscribed now; what is published is not kept".to_owned(),
        (1, programs, peers) => format!("subscribers here: {programs}, peers: {peers}"),
        _ => format!(
            "{published} messages; copies to subscribers here: {programs}, to peers: {peers}"
        ),
    }
}

fn too_large(status: Status) -> CommandFailure {
    if status.code != Code::ResourceExhausted {
        return status.into();
    }
    let most = text::bytes(MAX_TOPIC_BODY as u64);
    let message =
        format!("the message is larger than {most}, which is the most that a topic takes");
    CommandFailure::from(Status::new(status.code, message))
        .hint("publish where it is, and let subscribers call for it")
}

pub(super) async fn subscribe(
    run: &CommandContext,
    patterns: Vec<TopicPattern>,
    most: Option<u64>,
    with_topic: bool,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let patterns: Vec<&str> = patterns.iter().map(TopicPattern::as_str).collect();
    let mut subscription = client.subscribe(patterns.iter().copied()).await?;
    // What is published from here on comes.
    run.output.note(&format!(
        "subscribed to {} (Ctrl-C to stop)",
        patterns.join(", ")
    ));
    if run.output.json {
        let line = serde_json::json!({ "subscribed": patterns });
        run.output.value(&line, |_| String::new())?;
    }
    let printer = MessagePrinter {
        output: run.output,
        with_topic,
        to_terminal: io::stdout().is_terminal(),
    };
    let mut left = most.unwrap_or(u64::MAX);
    while left > 0 {
        match subscription.next().await? {
            Some(TopicEvent::Message(message)) => {
                printer.message(&message)?;
                left -= 1;
            }
            Some(TopicEvent::Missed(missed)) => printer.missed(missed)?,
            None => break,
        }
    }
    Ok(())
}

struct MessagePrinter {
    output: Output,
    with_topic: bool,
    to_terminal: bool,
}

/// A message as a line of JSON.
#[derive(Serialize)]
struct PrintedMessage<'a> {
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<NodeId>,
    from: &'a str,
    content_type: &'a str,
    headers: &'a [(String, String)],
    body: MessageContent,
    sequence: u64,
    at_ms: u64,
}

impl MessagePrinter {
    fn message(&self, message: &TopicMessage) -> Result<(), CommandFailure> {
        if self.output.json {
            let printed = PrintedMessage {
                topic: &message.topic,
                node: message.node,
                from: &message.from,
                content_type: &message.content_type,
                headers: &message.headers,
                body: message.body.as_ref().into(),
                sequence: message.sequence,
                at_ms: message.at_ms,
            };
            return self.output.value(&printed, |_| String::new());
        }
        let mut line = Vec::new();
        if self.with_topic {
            line.extend_from_slice(message.topic.as_bytes());
            line.push(b'\t');
        }
        match (self.to_terminal, std::str::from_utf8(&message.body)) {
            (false, _) => line.extend_from_slice(&message.body),
            // What others wrote steers no terminal.
            (true, Ok(body)) => line.extend_from_slice(shown::lines(body).as_bytes()),
            (true, Err(_)) => {
                let size = text::bytes(message.body.len() as u64);
                line.extend_from_slice(format!("({size} that are no text)").as_bytes());
            }
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(&line).and_then(|()| stdout.flush());
        written.map_err(|error| stdout_failure(&error))
    }

    fn missed(&self, missed: u64) -> Result<(), CommandFailure> {
        self.output.note(&format!("{missed} messages were missed"));
        match self.output.json {
            true => {
                let line = serde_json::json!({ "missed": missed });
                self.output.value(&line, |_| String::new())
            }
            false => Ok(()),
        }
    }
}

pub(super) async fn list(run: &CommandContext) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let list: TopicList = client.admin(method::TOPIC_LIST, &()).await?;
    if run.output.json {
        return run.output.value(&list, |_| String::new());
    }
    let shown_node = |name: &str, id: NodeId| match name {
        "" => id.short(),
        name => name.to_owned(),
    };
    let table = |rows: &[hailwire::admin::TopicRow]| {
        let head = [
            "PATTERN",
            "WHERE",
            ">SUBSCRIBERS",
            ">PUBLISHED",
            ">DELIVERED",
            ">MISSED",
        ];
        let mut table = TextTable::new(head);
        for row in rows {
            table.row([
                row.pattern.clone(),
                row.node
                    .map_or_else(|| "here".to_owned(), |id| shown_node(&row.node_name, id)),
                row.subscribers.to_string(),
                row.published.to_string(),
                row.delivered.to_string(),
                row.missed.to_string(),
            ]);
        }
        table
    };
    run.output
        .rows(&list.topics, table, "nobody is subscribed")?;
    for peer in &list.peers {
        let name = shown_node(&peer.node_name, peer.node);
        if !peer.error.is_empty() {
            run.output
                .note(&format!("nothing comes from {name} now: {}", peer.error));
        }
        if !peer.refused.is_empty() {
            let refused = peer.refused.join(", ");
            run.output.note(&format!(
                "{name} does not let this node subscribe to {refused}; `hail trust add` there allows it"
            ));
        }
        if peer.dropped > 0 {
            run.output.note(&format!(
                "{} messages of {name} were dropped: it may not publish under their topics here",
                peer.dropped
            ));
        }
    }
    Ok(())
}
