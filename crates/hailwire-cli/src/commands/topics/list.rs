//! `hail topics`: who is subscribed to what, what is kept, and how far named subscribers have come.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hailwire::{
    NodeId,
    admin::{KeepRequest, KeptTopicRow, NamedSubscriberRow, TopicList, method},
};
use hailwire_terminal::{failure::CommandFailure, table::TextTable, text};

use super::super::{CommandContext, connect};

pub(in crate::commands) async fn list(run: &CommandContext) -> Result<(), CommandFailure> {
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
    if !list.kept.is_empty() {
        run.output.rows(&list.kept, kept_table, "")?;
    }
    if !list.named.is_empty() {
        run.output.rows(&list.named, named_table, "")?;
    }
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

fn kept_table(rows: &[KeptTopicRow]) -> TextTable {
    let mut table = TextTable::new([
        "KEPT",
        ">MESSAGES",
        ">BYTES",
        ">OF AT MOST",
        "NUMBERS",
        "SINCE",
        ">REMOVED",
    ]);
    for row in rows {
        let (numbers, since) = match row.messages {
            0 => ("-".to_owned(), "-".to_owned()),
            _ => (
                format!("{}-{}", row.first, row.last),
                since(row.first_at_ms),
            ),
        };
        table.row([
            row.pattern.clone(),
            row.messages.to_string(),
            text::bytes(row.bytes),
            bounds(row),
            numbers,
            since,
            row.removed.to_string(),
        ]);
    }
    table
}

/// How much is kept at most, in a few words.
fn bounds(row: &KeptTopicRow) -> String {
    let mut bounds = vec![text::bytes(row.max_bytes)];
    bounds.extend(row.max_messages.map(|most| format!("{most} messages")));
    let age = row.max_age_ms.map(Duration::from_millis);
    bounds.extend(age.map(text::age));
    if row.last_per_topic {
        bounds.push("last per topic".to_owned());
    }
    bounds.join(", ")
}

/// How long ago a time is, milliseconds since 1970.
fn since(at_ms: u64) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(at_ms);
    text::age(SystemTime::now().duration_since(at).unwrap_or_default())
}

fn named_table(rows: &[NamedSubscriberRow]) -> TextTable {
    let mut table = TextTable::new(["SUBSCRIBER", "PATTERNS", "READS NOW", "CONFIRMED"]);
    for row in rows {
        let positions = row.positions.iter().map(|position| {
            let node = match position.node_name.as_str() {
                "" => position.node.short(),
                name => name.to_owned(),
            };
            format!("{node}: {}", position.kept)
        });
        table.row([
            row.name.clone(),
            row.patterns.join(" "),
            if row.reading { "yes" } else { "no" }.to_owned(),
            positions.collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}

pub(in crate::commands) async fn keep(
    run: &CommandContext,
    request: KeepRequest,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let row: KeptTopicRow = client.admin(method::TOPIC_KEEP, &request).await?;
    run.output.note(&format!(
        "what is published here under {} is kept: {}",
        row.pattern,
        bounds(&row)
    ));
    said(run, &row)
}

pub(in crate::commands) async fn unkeep(
    run: &CommandContext,
    pattern: String,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let row: KeptTopicRow = client.admin(method::TOPIC_UNKEEP, &pattern).await?;
    run.output.note(&format!(
        "{} is kept no more; messages removed: {}",
        row.pattern, row.messages
    ));
    said(run, &row)
}

pub(in crate::commands) async fn forget(
    run: &CommandContext,
    name: String,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    client.admin::<_, ()>(method::TOPIC_FORGET, &name).await?;
    run.output
        .note(&format!("the subscriber {name} is forgotten"));
    said(run, &serde_json::json!({ "forgotten": name }))
}

fn said(run: &CommandContext, row: &impl serde::Serialize) -> Result<(), CommandFailure> {
    match run.output.json {
        true => run.output.value(row, |_| String::new()),
        false => Ok(()),
    }
}
