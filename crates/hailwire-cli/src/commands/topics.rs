//! `hail pub` and `hail sub`.
//!
//! With `--json` a subscription is a line of JSON that says that it stands, one for each message with everything that is known of it, and
//! `{"missed":N}` where N messages were lost.

pub(super) mod list;

use std::{
    collections::HashMap,
    io::{self, IsTerminal as _, Write as _},
};

use bytes::BytesMut;
use hailwire::{
    Body, Client, Code, NodeId, Publication, Status, Subscription, TopicEvent, TopicMessage,
    admin::{MessageContent, PublishReceipt},
};
use hailwire_terminal::{
    failure::CommandFailure,
    output::{Output, stdout_failure},
    text,
};
use hailwire_wire::{limits::MAX_TOPIC_BODY, shown};
use serde::Serialize;

use super::{CommandContext, body, connect};
use crate::plan::{BodySource, PublishPlan, SubscribePlan};

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

pub(super) fn prepared(client: &Client, publish: &PublishPlan, body: &[u8]) -> Publication {
    let publication = client.publish(publish.topic.as_str());
    let mut publication = publication
        .content_type(publish.content_type.as_str())
        .body(body);
    for (name, value) in &publish.headers {
        publication = publication.header(name, value);
    }
    if publish.deleted {
        publication = publication.deleted();
    }
    if let Some(number) = publish.if_kept {
        publication = publication.if_kept(number);
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
        kept,
        last,
    } = receipt;
    let to = match (published, programs, peers) {
        (_, 0, 0) if *kept == 0 => {
            "nobody is subscribed now; what is published is not kept".to_owned()
        }
        (1, programs, peers) => format!("subscribers here: {programs}, peers: {peers}"),
        _ => format!(
            "{published} messages; copies to subscribers here: {programs}, to peers: {peers}"
        ),
    };
    match (published, kept) {
        (_, 0) => to,
        (1, _) => format!("kept as number {last}; {to}"),
        _ => format!("{kept} kept, the last as number {last}; {to}"),
    }
}

pub(super) fn too_large(status: Status) -> CommandFailure {
    if status.code != Code::ResourceExhausted {
        return status.into();
    }
    let most = text::bytes(MAX_TOPIC_BODY as u64);
    let message =
        format!("the message is larger than {most}, which is the most that a topic takes");
    CommandFailure::from(Status::new(status.code, message))
        .hint("publish where it is, and let subscribers call for it")
}

/// Messages that are printed before they are confirmed together, where more are there.
const CONFIRMED_TOGETHER: usize = 256;

pub(super) async fn subscribe(
    run: &CommandContext,
    plan: SubscribePlan,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let patterns = &plan.request.patterns;
    let mut subscription = client.subscribe_with(&plan.request).await?;
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
        with_topic: plan.topic,
        to_terminal: io::stdout().is_terminal(),
    };
    let named = !plan.request.name.is_empty();
    let mut left = plan.most.unwrap_or(u64::MAX);
    let mut printed: HashMap<Option<NodeId>, TopicMessage> = HashMap::new();
    let mut unconfirmed = 0;
    while left > 0 {
        let next = tokio::select! {
            biased;
            next = subscription.next(), if unconfirmed < CONFIRMED_TOGETHER => Some(next?),
            () = std::future::ready(()), if unconfirmed > 0 => None,
        };
        let Some(next) = next else {
            confirm(&subscription, &mut printed).await?;
            unconfirmed = 0;
            continue;
        };
        match next {
            Some(TopicEvent::Message(message)) => {
                printer.message(&message)?;
                left -= 1;
                if named {
                    unconfirmed += 1;
                    printed.insert(message.node, message);
                }
            }
            Some(TopicEvent::Missed(missed)) => printer.missed(missed)?,
            Some(TopicEvent::Reached(node)) => printer.reached(node)?,
            Some(TopicEvent::Away(node, why)) => printer.away(node, &why)?,
            Some(_) => {}
            None => break,
        }
    }
    confirm(&subscription, &mut printed).await
}

/// What is printed comes no more under its subscriber's name.
async fn confirm(
    subscription: &Subscription,
    printed: &mut HashMap<Option<NodeId>, TopicMessage>,
) -> Result<(), CommandFailure> {
    for (_, last) in printed.drain() {
        subscription.confirm(&last).await?;
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
    #[serde(skip_serializing_if = "is_zero")]
    kept: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
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
                kept: message.kept,
                deleted: message.deleted,
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

    /// All has come that a node had kept.
    fn reached(&self, node: Option<NodeId>) -> Result<(), CommandFailure> {
        match self.output.json {
            true => {
                let line = serde_json::json!({ "reached": node });
                self.output.value(&line, |_| String::new())
            }
            false => Ok(()),
        }
    }

    /// What a peer keeps does not come now.
    fn away(&self, node: NodeId, why: &str) -> Result<(), CommandFailure> {
        let why = shown::lines(why);
        self.output.note(&format!(
            "what {} keeps does not come now: {why}",
            node.short()
        ));
        match self.output.json {
            true => {
                let line = serde_json::json!({ "away": node, "why": why });
                self.output.value(&line, |_| String::new())
            }
            false => Ok(()),
        }
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
