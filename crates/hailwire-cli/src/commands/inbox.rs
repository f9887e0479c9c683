//! `hail inbox`, and what `hail call --durable` and `hail send --durable` do.

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use data_encoding::BASE64;
use hailwire::{
    Client, Code, Status,
    admin::{
        MessageContent, MessageDetail, MessageQuery, MessageRow, MessageSelector, MessageTake,
        MessageVerdict, MessageWait, SendReceipt, method,
    },
};
use hailwire_terminal::{failure::CommandFailure, output::stdout_failure, table::TextTable, text};
use hailwire_wire::messages::MessageState;

use super::{CommandContext, body, call::prepare, connect, did_you_mean, task, trust::when};
use crate::plan::{CallPlan, DurablePlan};

/// How long one request waits; it is asked again until the user gives up.
const WAIT_MS: u64 = 60_000;

/// How much of a body is shown to people.
const SHOWN_BODY: usize = 2000;

/// Has a call or a send kept on disk, and says by which id.
pub(super) async fn send(
    run: &CommandContext,
    call: CallPlan,
    durable: &DurablePlan,
) -> Result<(), CommandFailure> {
    let (client, receipt) = accepted(run, call, durable).await?;
    if durable.wait {
        run.output
            .note(&format!("{}: {}", receipt.id, receipt.state));
        return wait(run, &client, receipt.id, String::new()).await;
    }
    run.output
        .value(&receipt, |receipt| format!("{}\n", receipt.id))
}

/// Reads a body and has it kept.
pub(super) async fn accepted(
    run: &CommandContext,
    call: CallPlan,
    durable: &DurablePlan,
) -> Result<(Client, SendReceipt), CommandFailure> {
    let body = body::open_whole(call.body.clone(), "is kept", "").await?;
    let client = connect::attach(run).await?;
    let address = call.to.clone();
    let mut sent = prepare(&client, call).body(body).keep(durable.keep);
    if let Some(most) = durable.attempts {
        sent = sent.attempts(most);
    }
    let sent = sent.durable(durable.answered, durable.in_order).await;
    let receipt: SendReceipt = did_you_mean::or(&client, &address, sent).await?;
    Ok((client, receipt))
}

pub(super) async fn list(run: &CommandContext, query: MessageQuery) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let rows: Vec<MessageRow> = client.admin(method::MESSAGE_LIST, &query).await?;
    let table = |rows: &[MessageRow]| {
        let other = if query.sent { "TO" } else { "AGENT" };
        let mut table = TextTable::new([
            "ID", other, "NODE", "STATE", "SENT", ">TRIES", ">SIZE", "WHY",
        ]);
        for row in rows {
            table.row([
                row.id.clone(),
                row.to.clone(),
                row.node.map(|node| node.short()).unwrap_or_default(),
                state_of(row).to_owned(),
                when(row.stored_at_ms / 1000),
                row.attempts.to_string(),
                text::bytes(row.bytes),
                row.reason.clone(),
            ]);
        }
        table
    };
    let empty = match query.sent {
        true => "no such messages were sent from here",
        false => "no such messages",
    };
    run.output.rows(&rows, table, empty)
}

/// Its state for people: one that waits here and at a hub is held.
fn state_of(row: &MessageRow) -> &str {
    match row.held_at_ms {
        Some(_) if row.state == MessageState::Stored.name() => "held",
        _ => &row.state,
    }
}

pub(super) async fn show(run: &CommandContext, id: String) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let selector = MessageSelector { id };
    let detail: MessageDetail = client.admin(method::MESSAGE_SHOW, &selector).await?;
    run.output.value(&detail, page)
}

pub(super) fn page(detail: &MessageDetail) -> String {
    let row = &detail.row;
    let mut page = match row.task.as_str() {
        "" => format!("{}  {}\n", row.id, state_of(row)),
        task => format!("{}  {task} ({})\n", row.id, state_of(row)),
    };
    let node = row.node.map(|node| node.short()).unwrap_or_default();
    let _ = match (row.sent, row.from.as_str()) {
        (true, _) => writeln!(page, "to {} (node {node})", row.to),
        (false, "") => writeln!(page, "for {}, from node {node}", row.to),
        (false, from) => writeln!(page, "for {}, from {from} on node {node}", row.to),
    };
    let mut said = |what: &str, at: Option<u64>| {
        if let Some(at) = at {
            let _ = writeln!(page, "{what:<13} {}", when(at / 1000));
        }
    };
    said("stored", Some(row.stored_at_ms));
    said("held by a hub", row.held_at_ms);
    said("delivered", row.delivered_at_ms);
    said("started", row.started_at_ms);
    said("withdrawn", row.withdrawn_at_ms);
    said(&row.state, row.ended_at_ms);
    if row.ended_at_ms.is_none() {
        said("expires", Some(row.expires_at_ms));
    }
    said("kept until", row.kept_until_ms);
    if let Some(progress) = &row.progress {
        let _ = writeln!(page, "{:<13} {}", "progress", task::progress_text(progress));
    }
    if row.attempts > 0 {
        let _ = writeln!(page, "{:<13} {}", "tries", row.attempts);
    }
    if !row.reason.is_empty() {
        let _ = writeln!(page, "{:<13} {} ({})", "why", row.reason, row.code);
    }
    if !detail.method.is_empty() {
        let _ = writeln!(page, "{:<13} {}", "method", detail.method);
    }
    for (name, value) in &detail.headers {
        let _ = writeln!(page, "{name}: {value}");
    }
    for (what, content) in [
        ("body", &detail.body),
        ("partial answer", &detail.partial),
        ("answer", &detail.answer),
    ] {
        let _ = match (content.text.as_str(), content.base64.len()) {
            ("", 0) => Ok(()),
            ("", encoded) => writeln!(
                page,
                "\n{what}: {} that are no text",
                text::bytes((encoded / 4 * 3) as u64)
            ),
            (text, _) if text.len() > SHOWN_BODY => {
                let cut = text.floor_char_boundary(SHOWN_BODY);
                writeln!(
                    page,
                    "\n{what}:\n{}\n… (`--json` has all of it)",
                    &text[..cut]
                )
            }
            (text, _) => writeln!(page, "\n{what}:\n{text}"),
        };
    }
    page
}

pub(super) async fn wait_for(
    run: &CommandContext,
    id: String,
    until: String,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    wait(run, &client, id, until).await
}

async fn wait(
    run: &CommandContext,
    client: &Client,
    id: String,
    until: String,
) -> Result<(), CommandFailure> {
    let request = MessageWait {
        id,
        state: until,
        seen: None,
        timeout_ms: WAIT_MS,
    };
    let waited = async {
        loop {
            let detail: Result<MessageDetail, Status> =
                client.admin(method::MESSAGE_WAIT, &request).await;
            match detail {
                Err(status) if status.code == Code::DeadlineExceeded => {}
                outcome => return outcome,
            }
        }
    };
    let detail = match run.timeout {
        None => waited.await?,
        Some(limit) => match tokio::time::timeout(limit, waited).await {
            Ok(detail) => detail?,
            Err(_) => {
                return Err(CommandFailure::timed_out(limit)
                    .hint("the message is kept all the same: `hail inbox wait ID` waits on"));
            }
        },
    };
    ended(run, &detail)
}

/// Prints what became of a message: its answer, or nothing, or why it failed.
fn ended(run: &CommandContext, detail: &MessageDetail) -> Result<(), CommandFailure> {
    if run.output.json {
        run.output.value(detail, |_| String::new())?;
    }
    let row = &detail.row;
    if let Some(failure) = failure_of(row, "message") {
        return Err(failure);
    }
    match row.state.as_str() {
        _ if run.output.json => Ok(()),
        "answered" => {
            let bytes = bytes_of(&detail.answer)?;
            let mut stdout = std::io::stdout();
            let newline = stdout.is_terminal() && !bytes.ends_with(b"\n") && !bytes.is_empty();
            let written = stdout.write_all(&bytes).and_then(|()| match newline {
                true => stdout.write_all(b"\n"),
                false => Ok(()),
            });
            written
                .and_then(|()| stdout.flush())
                .map_err(|error| stdout_failure(&error))
        }
        state => run.output.text(&format!("{state}\n")),
    }
}

/// Why a message, or what else it is called, has no result, and what to do; `None` where it was done.
pub(super) fn failure_of(row: &MessageRow, what: &str) -> Option<CommandFailure> {
    let failure = CommandFailure::from(task::status_of(row, what)?);
    Some(match row.state.as_str() {
        "unknown" => failure.hint("it may have been done or not: look, before you send it again"),
        _ => failure,
    })
}

pub(super) fn bytes_of(content: &MessageContent) -> Result<Vec<u8>, CommandFailure> {
    if content.base64.is_empty() {
        return Ok(content.text.clone().into_bytes());
    }
    let decoded = BASE64.decode(content.base64.as_bytes());
    decoded.map_err(|_| CommandFailure::general("the node's answer is no base64"))
}

pub(super) async fn retry(run: &CommandContext, id: String) -> Result<(), CommandFailure> {
    change(
        run,
        method::MESSAGE_RETRY,
        &MessageSelector { id },
        "waits again",
    )
    .await
}

pub(super) async fn drop(run: &CommandContext, id: String) -> Result<(), CommandFailure> {
    change(
        run,
        method::MESSAGE_DROP,
        &MessageSelector { id },
        "is removed",
    )
    .await
}

pub(super) async fn ack(
    run: &CommandContext,
    verdict: MessageVerdict,
) -> Result<(), CommandFailure> {
    let what = match (&verdict.failed, verdict.retry) {
        (None, _) => "is done",
        (Some(_), true) => "is handed over again",
        (Some(_), false) => "is given up",
    };
    change(run, method::MESSAGE_ACK, &verdict, what).await
}

async fn change<T: serde::Serialize + Sync>(
    run: &CommandContext,
    method: &str,
    request: &T,
    what: &str,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let row: MessageRow = client.admin(method, request).await?;
    run.output.value(&row, |row| format!("{} {what}\n", row.id))
}

pub(super) async fn take(
    run: &CommandContext,
    agent: String,
    most: u32,
    lease: Duration,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let request = MessageTake {
        agent,
        most,
        lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
    };
    let taken: Vec<MessageDetail> = client.admin(method::MESSAGE_TAKE, &request).await?;
    run.output.value(&taken, |taken| match taken.as_slice() {
        [] => "no message waits\n".to_owned(),
        taken => taken.iter().map(page).collect::<Vec<_>>().join("\n"),
    })
}
