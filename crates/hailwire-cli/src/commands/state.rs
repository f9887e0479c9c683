//! `hail state`: values that many share.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use hailwire::{Code, NodeId, StateEvent, StateValue, Status, admin::MessageContent};
use hailwire_terminal::{failure::CommandFailure, output::stdout_failure, table::TextTable, text};
use hailwire_wire::{limits::MAX_TOPIC_BODY, shown};
use serde::Serialize;

use super::{CommandContext, body, connect, topics};
use crate::plan::PublishPlan;

/// How long nodes may take to say what stands, while it is watched.
const WATCH_PATIENCE: Duration = Duration::from_secs(3);

/// Characters of a value in a list.
const SHOWN: usize = 60;

/// A value as JSON.
#[derive(Serialize)]
struct PrintedValue<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<NodeId>,
    from: &'a str,
    content_type: &'a str,
    value: MessageContent,
    revision: u64,
    at_ms: u64,
    deleted: bool,
}

/// A value that was asked for, with the nodes that may have a later one.
#[derive(Serialize)]
struct ReadValue<'a> {
    #[serde(flatten)]
    value: PrintedValue<'a>,
    away: Vec<NodeId>,
}

impl<'a> From<&'a StateValue> for PrintedValue<'a> {
    fn from(value: &'a StateValue) -> Self {
        Self {
            key: &value.key,
            node: value.node,
            from: &value.from,
            content_type: &value.content_type,
            value: value.value.as_ref().into(),
            revision: value.revision,
            at_ms: value.at_ms,
            deleted: value.deleted,
        }
    }
}

pub(super) async fn put(run: &CommandContext, put: PublishPlan) -> Result<(), CommandFailure> {
    let mut source = body::open(put.body.clone()).await?;
    let body = source
        .bytes(MAX_TOPIC_BODY)
        .await
        .map_err(topics::too_large)?;
    let client = connect::attach(run).await?;
    let receipt = topics::prepared(&client, &put, &body).send().await?;
    let revision = receipt.last;
    run.output
        .value(&serde_json::json!({ "revision": revision }), |_| {
            format!("{revision}\n")
        })
}

pub(super) async fn get(
    run: &CommandContext,
    key: String,
    wait: Duration,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let (value, away) = client.state_get(&key, wait).await?;
    note_away(run, &away);
    let Some(value) = value else {
        return Err(CommandFailure::from(Status::new(
            Code::NotFound,
            format!("`{key}` has no value"),
        ))
        .hint("`hail state ls` lists keys that have one"));
    };
    if run.output.json {
        let printed = ReadValue {
            value: PrintedValue::from(&value),
            away: nodes(&away),
        };
        return run.output.value(&printed, |_| String::new());
    }
    let mut out = match (
        io::stdout().is_terminal(),
        std::str::from_utf8(&value.value),
    ) {
        // What others wrote steers no terminal.
        (true, Ok(text)) => shown::lines(text).into_bytes(),
        (true, Err(_)) => no_text(&value).into_bytes(),
        (false, _) => value.value.to_vec(),
    };
    if out.last() != Some(&b'\n') {
        out.push(b'\n');
    }
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(&out).and_then(|()| stdout.flush());
    written.map_err(|error| stdout_failure(&error))
}

fn no_text(value: &StateValue) -> String {
    format!(
        "({} that are no text)",
        text::bytes(value.value.len() as u64)
    )
}

fn note_away(run: &CommandContext, away: &[(NodeId, String)]) {
    for (node, why) in away {
        let why = shown::lines(why);
        run.output
            .note(&format!("what {} keeps is not known: {why}", node.short()));
    }
}

pub(super) async fn watch(
    run: &CommandContext,
    pattern: String,
    most: Option<u64>,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let mut watch = client.watch_state(&pattern, WATCH_PATIENCE).await?;
    run.output
        .note(&format!("watching {pattern} (Ctrl-C to stop)"));
    let mut left = most.unwrap_or(u64::MAX);
    while left > 0 {
        match watch.next().await? {
            Some(StateEvent::Value(value)) => {
                left -= 1;
                run.output
                    .value(&PrintedValue::from(&value), |_| watched(&value))?;
            }
            Some(StateEvent::Away(node, why)) => {
                note_away(run, &[(node, why.clone())]);
                if run.output.json {
                    let line = serde_json::json!({ "away": node, "why": why });
                    run.output.value(&line, |_| String::new())?;
                }
            }
            Some(StateEvent::Settled) if run.output.json => {
                let line = serde_json::json!({ "settled": true });
                run.output.value(&line, |_| String::new())?;
            }
            Some(StateEvent::Settled) => {}
            None => break,
        }
    }
    Ok(())
}

/// A change as a line: key, tab, value.
fn watched(value: &StateValue) -> String {
    match value.deleted {
        true => format!("{}\t(deleted)\n", value.key),
        false => format!("{}\t{}\n", value.key, in_line(value, usize::MAX)),
    }
}

/// A value in one line.
fn in_line(value: &StateValue, most: usize) -> String {
    match std::str::from_utf8(&value.value) {
        Ok(text) => {
            let line = text.trim_end_matches('\n').replace('\n', " ");
            let shown: String = shown::lines(&line).chars().take(most).collect();
            match shown.len() < line.len() && line.chars().count() > most {
                true => format!("{shown}…"),
                false => shown,
            }
        }
        Err(_) => no_text(value),
    }
}

pub(super) async fn list(
    run: &CommandContext,
    pattern: String,
    wait: Duration,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let (values, away) = client.state_values(&pattern, wait).await?;
    note_away(run, &away);
    if run.output.json {
        let rows: Vec<PrintedValue<'_>> = values.iter().map(PrintedValue::from).collect();
        let list = serde_json::json!({ "values": rows, "away": nodes(&away) });
        return run.output.value(&list, |_| String::new());
    }
    if values.is_empty() {
        run.output.note("no key has a value");
        return Ok(());
    }
    let mut table = TextTable::new(["KEY", ">REVISION", "NODE", "VALUE"]);
    for value in &values {
        table.row([
            value.key.clone(),
            value.revision.to_string(),
            value
                .node
                .map_or_else(|| "here".to_owned(), |node| node.short()),
            in_line(value, SHOWN),
        ]);
    }
    run.output.text(&table.render(run.output.table_style()))
}

/// The nodes whose values are not known.
fn nodes(away: &[(NodeId, String)]) -> Vec<NodeId> {
    away.iter().map(|(node, _)| *node).collect()
}
