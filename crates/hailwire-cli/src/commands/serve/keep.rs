//! `hail serve --keep` and `hail serve rm`: changes of the file that declares agents, and what comes of them.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use hailwire::{Client, Code, Status};
use hailwire_kdl::TextMistake;
use hailwire_terminal::failure::CommandFailure;
use hailwire_wire::AgentName;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::real;
use crate::{
    commands::CommandContext,
    serve::{
        agent_spec::AgentSpec,
        agents_file::{self, AgentsFile},
        agents_file_edit::{with_agent, without_agent},
        control::{self, ServedAgent, ServedAgents, ServedState, method, not_kept},
        program_file::find_program,
        program_user::find_user,
        supervisor_lock::{self, LockFor},
    },
};

/// How long the node may take to start its supervisor.
const START_TIME: Duration = Duration::from_secs(10);

/// First and longest time between two looks whether it has.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Writes an agent into the file and waits until it is served, if a node runs.
pub(in crate::commands) async fn add(
    run: &CommandContext,
    path: &Path,
    agent: AgentSpec,
) -> Result<(), CommandFailure> {
    let agent = portable(agent)?;
    let (name, on_message) = (agent.name.clone(), agent.on_message.is_some());
    let edit = |text: &str| with_agent(text, &agent).map(Some);
    let path = change(run, path, edit).await?;
    let Some(served) = applied(run, &path, true).await? else {
        return said(
            run,
            &json!({ "kept": name, "file": path, "state": "stopped" }),
            &format!(
                "{name} is kept in {}; no node runs: it is served once one does (`hail up -d`)",
                path.display()
            ),
        );
    };
    let row = served.agents.into_iter().find(|row| row.name == name);
    let Some(ServedAgent { state, why, .. }) = row else {
        return Err(not_kept(&name).into());
    };
    if state == ServedState::Failed {
        let what = format!(
            "{name} is kept in {}, but not served: {why}",
            path.display()
        );
        return Err(Status::new(Code::FailedPrecondition, what).into());
    }
    said(
        run,
        &json!({ "kept": name, "file": path, "state": state }),
        &match on_message {
            true => format!(
                "{name} is woken by messages from now on, also after a restart; try: hail send --durable {name}@NODE \"hello\"   (`hail serve rm {name}` ends it)"
            ),
            false => format!(
                "{name} is served from now on, also after a restart; try: hail call {name} \"hello\"   (`hail serve rm {name}` ends it)"
            ),
        },
    )
}

/// Takes an agent out of the file, and waits until it is not served any more.
pub(in crate::commands) async fn remove(
    run: &CommandContext,
    path: &Path,
    name: &AgentName,
) -> Result<(), CommandFailure> {
    let mut there = true;
    let edit = |text: &str| {
        let without = without_agent(text, name)?;
        there = without.is_some();
        Ok(without)
    };
    let path = change(run, path, edit).await?;
    if !there {
        return Err(not_kept(name).into());
    }
    applied(run, &path, false).await?;
    said(
        run,
        &json!({ "removed": name, "file": path }),
        &format!("{name} is not served any more"),
    )
}

fn said(
    run: &CommandContext,
    value: &serde_json::Value,
    people: &str,
) -> Result<(), CommandFailure> {
    match run.output.json {
        true => run.output.value(value, |_| String::new()),
        false => {
            run.output.note(people);
            Ok(())
        }
    }
}

/// The agent as it means the same to another process: with the whole path of its program, and its folder.
fn portable(mut agent: AgentSpec) -> Result<AgentSpec, CommandFailure> {
    let folder = match agent.folder.take() {
        Some(folder) => folder,
        None => std::env::current_dir()
            .map_err(|error| CommandFailure::io("cannot find the current folder", &error))?,
    };
    if folder.to_str().is_none() {
        let what = format!("{} is not UTF-8 text", folder.display());
        return Err(CommandFailure::usage(what).hint("choose another folder with --folder"));
    }
    let path = agent.path_variable();
    let program = find_program(&agent.program, &folder, path.as_deref()).map_err(|missing| {
        CommandFailure::caused(Code::FailedPrecondition, &missing).hint(missing.hint())
    })?;
    if let Some(user) = &agent.user {
        find_user(user).map_err(|why| Status::new(Code::FailedPrecondition, why))?;
    }
    agent.program = program.into();
    agent.folder = Some(folder);
    Ok(agent)
}

/// Changes the file, if `edit` gives another text for it: at once for whoever reads it, and one change at a time. Returns its
/// path.
async fn change(
    run: &CommandContext,
    path: &Path,
    mut edit: impl FnMut(&str) -> Result<Option<String>, TextMistake>,
) -> Result<PathBuf, CommandFailure> {
    run.data
        .create()
        .map_err(|error| CommandFailure::io("cannot use the data folder", &error))?;
    let path = real(path);
    let locked = supervisor_lock::lock(&run.data, &path, LockFor::Editing).await;
    let _lock =
        locked.map_err(|error| CommandFailure::io("cannot lock the file of agents", &error))?;
    let text = match path.exists() {
        true => agents_file::read(&path).map_err(|error| CommandFailure::file(&error))?,
        false => String::new(),
    };
    let mistaken =
        |mistake: TextMistake, text: &str| CommandFailure::file(&mistake.in_file(text, &path));
    let folder = agents_file::folder_of(&path);
    // What a person is in the middle of writing is not touched.
    AgentsFile::parse(&text, &folder).map_err(|mistake| mistaken(mistake, &text))?;
    let Some(new) = edit(&text).map_err(|mistake| mistaken(mistake, &text))? else {
        return Ok(path);
    };
    AgentsFile::parse(&new, &folder).map_err(|mistake| mistaken(mistake, &new))?;
    if new.len() as u64 > agents_file::MAX_FILE {
        let what = format!("{} would be larger than 1 MiB", path.display());
        return Err(Status::new(Code::ResourceExhausted, what).into());
    }
    write(&path, &new)
        .map_err(|error| CommandFailure::io(format!("cannot write {}", path.display()), &error))?;
    Ok(path)
}

/// Puts a new file in the place of the old one, with its mode.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mode = fs::metadata(path).map_or(0o600, |meta| meta.permissions().mode() & 0o777);
    let mut new = tempfile::NamedTempFile::new_in(agents_file::folder_of(path))?;
    new.write_all(text.as_bytes())?;
    new.as_file()
        .set_permissions(fs::Permissions::from_mode(mode))?;
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Waits until the supervisor has taken over the file as it is now, and what its agents do then. `None` where no node runs. With
/// `starts`, a supervisor that is not there yet is waited for, which the node starts when it sees the file.
async fn applied(
    run: &CommandContext,
    path: &Path,
    starts: bool,
) -> Result<Option<ServedAgents>, CommandFailure> {
    let Ok(client) = Client::attach(&run.data).await else {
        return Ok(None);
    };
    let give_up = Instant::now() + START_TIME;
    let mut pause = LOOKS.0;
    loop {
        let why = match control::ask::<ServedAgents>(&client, path, method::RELOAD, &()).await {
            Ok(served)
                if served
                    .agents
                    .iter()
                    .all(|row| row.state != ServedState::Starting) =>
            {
                return Ok(Some(served));
            }
            Ok(_) => Status::new(Code::Unavailable, "the agents are still being offered"),
            Err(status) if matches!(status.code, Code::NotFound | Code::Unavailable) => {
                if !starts {
                    return Ok(None);
                }
                status
            }
            Err(status) => return Err(status.into()),
        };
        if Instant::now() > give_up {
            let what = format!(
                "{} is written, but nobody serves it yet: {why}",
                path.display()
            );
            return Err(Status::new(Code::Unavailable, what)
                .with_hint("`hail serve ls` shows its agents, and the node's log says why")
                .into());
        }
        sleep(pause).await;
        pause = (pause * 2).min(LOOKS.1);
    }
}
