//! `hail serve ls | restart | logs`: what the agents of a file do.

use std::path::Path;

use hailwire::{Client, Code, Status};
use hailwire_terminal::{failure::CommandFailure, table::TextTable, text};
use hailwire_wire::AgentName;
use serde_json::json;

use super::real;
use crate::{
    commands::{CommandContext, connect},
    serve::{
        agents_file::AgentsFile,
        control::{
            self, LogsRequest, RestartRequest, ServedAgent, ServedAgents, ServedState, method,
        },
        program_log::LogLine,
    },
};

/// Longest line of JSON that a log may have.
const MAX_LINE: usize = 64 * 1024;

/// Lists the agents: as their supervisor says, or if there is none, as the file does.
pub(in crate::commands) async fn list(
    run: &CommandContext,
    path: &Path,
) -> Result<(), CommandFailure> {
    let path = real(path);
    let served = match served(run, &path).await? {
        Some(served) => served,
        None => declared(run, &path).await?,
    };
    run.output.rows(
        &served.agents,
        table,
        "no agents are kept; keep one with `hail serve --keep NAME -- CMD`",
    )?;
    if !served.error.is_empty() {
        run.output.note(&format!(
            "the file as it is now is not served: {}",
            served.error
        ));
    }
    Ok(())
}

/// What the supervisor says; `None` if there is none.
async fn served(run: &CommandContext, path: &Path) -> Result<Option<ServedAgents>, CommandFailure> {
    let Ok(client) = Client::attach(&run.data).await else {
        return Ok(None);
    };
    match control::ask(&client, path, method::LIST, &()).await {
        Ok(served) => Ok(Some(served)),
        Err(status) if matches!(status.code, Code::NotFound | Code::Unavailable) => Ok(None),
        Err(status) => Err(status.into()),
    }
}

/// What the file says, and that nobody serves it.
async fn declared(run: &CommandContext, path: &Path) -> Result<ServedAgents, CommandFailure> {
    if !path.exists() {
        return Ok(ServedAgents::default());
    }
    let why = match Client::attach(&run.data).await {
        Ok(_) => "no process serves the file",
        Err(_) => "no node is running",
    };
    let read = AgentsFile::load(path).map_err(|error| CommandFailure::file(&error))?;
    let row = |agent: crate::serve::agents_file::DeclaredAgent| ServedAgent {
        command: agent.spec.command(),
        folder: agent
            .spec
            .folder
            .map(|folder| folder.display().to_string())
            .unwrap_or_default(),
        name: agent.spec.name,
        state: ServedState::Stopped,
        why: why.to_owned(),
        restart_in_ms: None,
        lines: agent.spec.lines,
        processes: 0,
        running: 0,
        calls: 0,
        restarts: 0,
    };
    Ok(ServedAgents {
        agents: read.agents.into_iter().map(row).collect(),
        error: String::new(),
    })
}

fn table(rows: &[ServedAgent]) -> TextTable {
    let mut table = TextTable::new([
        "AGENT",
        "STATE",
        ">PROCESSES",
        ">CALLS",
        ">RESTARTS",
        "RUNS",
        "WHY",
    ]);
    for row in rows {
        let state = match row.restart_in_ms {
            Some(ms) => format!("restarting in {} s", ms.div_ceil(1000)),
            None => row.state.name().to_owned(),
        };
        table.row([
            row.name.to_string(),
            state,
            row.processes.to_string(),
            row.calls.to_string(),
            row.restarts.to_string(),
            row.command.join(" "),
            row.why.clone(),
        ]);
    }
    table
}

/// Begins one agent anew.
pub(in crate::commands) async fn restart(
    run: &CommandContext,
    path: &Path,
    name: AgentName,
) -> Result<(), CommandFailure> {
    let path = real(path);
    let client = connect::attach(run).await?;
    let request = RestartRequest { name };
    control::ask::<()>(&client, &path, method::RESTART, &request)
        .await
        .map_err(|status| not_served(&path, status))?;
    run.output
        .value(&json!({ "restarted": request.name }), |_| {
            format!("{} was restarted\n", request.name)
        })
}

/// Prints the log.
pub(in crate::commands) async fn logs(
    run: &CommandContext,
    path: &Path,
    name: Option<AgentName>,
    follow: bool,
) -> Result<(), CommandFailure> {
    let path = real(path);
    let client = connect::attach(run).await?;
    let whose = name.is_none();
    let request = LogsRequest { name, follow };
    let call = control::question(&client, &path, method::LOGS, &request)?;
    let answer = call.send().await;
    let mut answer = answer.map_err(|status| not_served(&path, status))?;
    let mut rest = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            print(run, &line, whose)?;
        }
        if rest.len() > MAX_LINE {
            return Err(CommandFailure::general(
                "the log has a line that is too long",
            ));
        }
    }
    Ok(())
}

fn print(run: &CommandContext, line: &[u8], whose: bool) -> Result<(), CommandFailure> {
    let line: LogLine = serde_json::from_slice(line)
        .map_err(|error| CommandFailure::general(format!("the log is malformed: {error}")))?;
    run.output.value(&line, |line| {
        let said = text::one_line(&line.text);
        match whose {
            true => format!("{}: {said}\n", line.agent),
            false => format!("{said}\n"),
        }
    })
}

/// The failure where nobody serves the file.
fn not_served(path: &Path, status: Status) -> CommandFailure {
    if status.code != Code::NotFound || status.message.starts_with("the file has no agent") {
        return status.into();
    }
    let what = format!("no process serves {}", path.display());
    Status::new(Code::Unavailable, what)
        .with_hint(
            "the node serves the file of its data folder; `hail serve --file FILE` serves another",
        )
        .into()
}
