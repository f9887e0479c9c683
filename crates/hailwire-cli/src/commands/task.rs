//! `hail task`: durable calls by their ids.

use std::{
    env,
    io::{IsTerminal as _, Write as _},
};

use hailwire::{
    Client, Code, Status,
    admin::{
        MESSAGE_ATTEMPT_FIELD, MESSAGE_ID_FIELD, MessageDetail, MessageQuery, MessageRow,
        MessageSeen, TaskProgress, TaskProgressReport, method,
    },
};
use hailwire_terminal::{failure::CommandFailure, output::stdout_failure, table::TextTable};

use super::{CommandContext, connect, inbox, trust::when};
use crate::{
    plan::{CallPlan, DurablePlan},
    serve::environment::variable_name,
};

/// Has a task kept on disk, and says by which id.
pub(super) async fn submit(
    run: &CommandContext,
    call: CallPlan,
    durable: &DurablePlan,
) -> Result<(), CommandFailure> {
    let (client, receipt) = inbox::accepted(run, call, durable).await?;
    match durable.wait {
        true => {
            run.output
                .note(&format!("{}: {}", receipt.id, receipt.state));
            follow(run, &client, &receipt.id).await
        }
        false => run
            .output
            .value(&receipt, |receipt| format!("{}\n", receipt.id)),
    }
}

pub(super) async fn status(run: &CommandContext, id: String) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let detail = client.task(&id).await?;
    run.output.value(&detail, inbox::page)
}

pub(super) async fn list(run: &CommandContext, query: MessageQuery) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let rows: Vec<MessageRow> = client.admin(method::MESSAGE_LIST, &query).await?;
    let table = |rows: &[MessageRow]| {
        let mut table = TextTable::new([
            "ID",
            "TO",
            "STATE",
            "SUBMITTED",
            ">TRIES",
            "PROGRESS",
            "WHY",
        ]);
        for row in rows {
            table.row([
                row.id.clone(),
                row.to.clone(),
                row.task.clone(),
                when(row.stored_at_ms / 1000),
                row.attempts.to_string(),
                row.progress.as_ref().map(progress_text).unwrap_or_default(),
                row.reason.clone(),
            ]);
        }
        table
    };
    run.output.rows(&rows, table, "no such tasks")
}

/// How far a task is, in words.
pub(super) fn progress_text(progress: &TaskProgress) -> String {
    let how_far = match (progress.done, progress.total) {
        (0, 0) => String::new(),
        (done, 0) => done.to_string(),
        (done, total) => format!("{done}/{total}"),
    };
    let said = [how_far.as_str(), progress.text.as_str()];
    let said = said.into_iter().filter(|part| !part.is_empty());
    said.collect::<Vec<_>>().join(" ")
}

pub(super) async fn cancel(run: &CommandContext, id: String) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let row = client.cancel_task(&id).await?;
    run.output.value(&row, |row| match row.ended_at_ms {
        Some(_) => format!("{} is {}\n", row.id, row.state),
        None => format!(
            "{} is withdrawn; its node will be told: `hail task wait {}` waits for its end\n",
            row.id, row.id
        ),
    })
}

pub(super) async fn progress(
    run: &CommandContext,
    report: TaskProgressReport,
) -> Result<(), CommandFailure> {
    let told = |field| env::var(variable_name(field)).unwrap_or_default();
    let report = match report.id.is_empty() {
        false => report,
        true => TaskProgressReport {
            id: told(MESSAGE_ID_FIELD),
            attempt: told(MESSAGE_ATTEMPT_FIELD).parse().unwrap_or_default(),
            ..report
        },
    };
    if report.id.is_empty() {
        let variable = variable_name(MESSAGE_ID_FIELD);
        let what = format!("no task is named, and {variable} is not set");
        return Err(CommandFailure::usage(what).hint(
            "a program that `hail serve` starts for a task has it in its environment; else say --id ID",
        ));
    }
    let client = connect::attach(run).await?;
    client
        .admin::<_, ()>(method::TASK_PROGRESS, &report)
        .await?;
    match run.output.json {
        true => run.output.value(&report, |_| String::new()),
        false => Ok(()),
    }
}

pub(super) async fn wait_for(run: &CommandContext, id: String) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    follow(run, &client, &id).await
}

/// Prints what becomes known of a task, until its end.
async fn follow(run: &CommandContext, client: &Client, id: &str) -> Result<(), CommandFailure> {
    let followed = async {
        let mut shown = ShownTask::default();
        loop {
            let detail = client.task_news(id, shown.seen.clone()).await?;
            if detail.row.ended_at_ms.is_some() {
                return Ok::<_, CommandFailure>((shown, detail));
            }
            shown.show(run, &detail)?;
        }
    };
    let (shown, detail) = match run.timeout {
        None => followed.await?,
        Some(limit) => match tokio::time::timeout(limit, followed).await {
            Ok(ended) => ended?,
            Err(_) => {
                return Err(CommandFailure::timed_out(limit)
                    .hint("the task goes on all the same: `hail task wait ID` waits on"));
            }
        },
    };
    inbox::failure_of(&detail.row, "task").map_or_else(
        || shown.finish(run, &detail),
        |failure| {
            if run.output.json {
                run.output.value(&detail, |_| String::new())?;
            }
            Err(failure)
        },
    )
}

/// What was printed of a task.
#[derive(Debug, Default)]
struct ShownTask {
    seen: MessageSeen,
    /// The beginning of the result.
    printed: Vec<u8>,
}

impl ShownTask {
    fn show(&mut self, run: &CommandContext, detail: &MessageDetail) -> Result<(), CommandFailure> {
        let row = &detail.row;
        if row.attempts > self.seen.attempts.max(1) {
            let void = match self.printed.is_empty() {
                true => "",
                false => "; what was printed before does not count",
            };
            run.output
                .note(&format!("attempt {} begins{void}", row.attempts));
            self.printed.clear();
        }
        let told = row.progress.as_ref();
        let at = told.map_or(0, |progress| progress.at_ms);
        if let Some(progress) = told.filter(|_| at != self.seen.progress_at_ms) {
            run.output.note(&progress_text(progress));
        }
        self.seen = MessageSeen {
            attempts: row.attempts,
            progress_at_ms: at,
            partial_bytes: detail.partial_bytes,
        };
        if run.output.json {
            return Ok(());
        }
        let partial = inbox::bytes_of(&detail.partial)?;
        if let Some(new) = partial.get(self.printed.len()..) {
            print(new)?;
            self.printed.extend_from_slice(new);
        }
        Ok(())
    }

    /// Prints what of the result was not printed yet.
    fn finish(self, run: &CommandContext, detail: &MessageDetail) -> Result<(), CommandFailure> {
        if run.output.json {
            return run.output.value(detail, |_| String::new());
        }
        let answer = inbox::bytes_of(&detail.answer)?;
        let rest = match answer.strip_prefix(self.printed.as_slice()) {
            Some(rest) => rest,
            None => {
                run.output
                    .note("another attempt has the result; what was printed before does not count");
                &answer
            }
        };
        print(rest)?;
        let unended = !answer.is_empty() && !answer.ends_with(b"\n");
        match unended && std::io::stdout().is_terminal() {
            true => print(b"\n"),
            false => Ok(()),
        }
    }
}

fn print(bytes: &[u8]) -> Result<(), CommandFailure> {
    let mut stdout = std::io::stdout();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.map_err(|error| stdout_failure(&error))
}

/// Why a task or message has no result; `None` where it was done.
pub(super) fn status_of(row: &MessageRow, what: &str) -> Option<Status> {
    let (code, why) = match row.state.as_str() {
        "dead" => {
            let code = Code::ALL.into_iter().find(|code| code.name() == row.code);
            let why = format!("the {what} was given up: {}", row.reason);
            (code.unwrap_or(Code::Aborted), why)
        }
        "expired" => (
            Code::DeadlineExceeded,
            format!("the {what} expired before an agent took it"),
        ),
        "unknown" => (Code::Unknown, row.reason.clone()),
        "dropped" => (
            Code::Cancelled,
            format!("the {what} was removed at its receiver"),
        ),
        "cancelled" => (
            Code::Cancelled,
            format!("the {what} is cancelled: {}", row.reason),
        ),
        _ => return None,
    };
    Some(Status::new(code, why))
}
