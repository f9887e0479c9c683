//! `hail serve`: agents for as long as this process runs, also across restarts of the node: one of the command line, or those of
//! a file.

pub(super) mod keep;
pub(super) mod manage;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hailwire::{Code, Status};
use hailwire_terminal::{failure::CommandFailure, stop::StopSignals};
use serde_json::json;
use tokio::{sync::watch, time::timeout};

use super::{CommandContext, connect, process_guard};
use crate::serve::{
    agent_log::SharedLog,
    agent_spec::AgentSpec,
    command_agent::ProgramContext,
    control::{ServedState, SupervisorControl},
    file_watch::FileWatch,
    program_slot::ProgramLimit,
    reaper::{ChildOwnership, ProcessReaper},
    supervisor::{AgentSupervisor, ServeStop, SupervisedFile},
    supervisor_lock::{self, FileLock, LockFor},
};

/// `hail serve NAME -- CMD…`.
pub(super) async fn one(
    run: &CommandContext,
    agent: AgentSpec,
    drain: Duration,
) -> Result<(), CommandFailure> {
    guarded(run, None, drain, async |context, stop| {
        let mut supervisor = AgentSupervisor::new(run.data.clone(), context, None, stop);
        let name = agent.name.clone();
        let on_message = agent.on_message.is_some();
        supervisor.declare(agent.clone())?;
        supervisor.attach().await.map_err(connect::failure)?;
        if let Some(status) = supervisor.failure() {
            return Err(status.into());
        }
        if run.output.json {
            run.output
                .value(&json!({ "serving": name }), |_| String::new())?;
        } else if on_message {
            run.output.note(&format!(
                "{name} is woken by messages; try: hail send --durable {name}@NODE \"hello\"   (Ctrl-C to stop)"
            ));
        } else {
            run.output.note(&format!(
                "serving {name}; try: hail call {name} \"hello\"   (Ctrl-C to stop)"
            ));
        }
        Ok(supervisor.run().await?)
    })
    .await
}

/// `hail serve --file FILE`. Beside a node it is started by the node, waits for an earlier supervisor of the file to end, and ends
/// with the node.
pub(super) async fn file(
    run: &CommandContext,
    path: &Path,
    beside_node: Option<u32>,
    drain: Duration,
) -> Result<(), CommandFailure> {
    let path = real(path);
    guarded(run, beside_node, drain, async |mut context, stop| {
        let _lock = lock(run, &path, beside_node.is_some()).await?;
        let log = SharedLog::new();
        context.log = Some(log.clone());
        let (control, requests) = SupervisorControl::new(&path, log);
        let watch = FileWatch::new(&path);
        if let Err(error) = &watch {
            tracing::warn!(%error, "changes of the file are not noticed by themselves");
        }
        let file = SupervisedFile {
            path: path.clone(),
            control,
            requests,
            watch: watch.ok(),
            ends_when_empty: beside_node.is_some(),
            error: String::new(),
        };
        let mut supervisor = AgentSupervisor::new(run.data.clone(), context, Some(file), stop);
        let read = supervisor.reload().await;
        let attached = supervisor.attach().await.map_err(connect::failure);
        match beside_node {
            None => {
                read?;
                attached?;
                announce(run, &path, &supervisor)?;
            }
            // The node waits for a line before it says that it is up. What went wrong stands in the agents' states.
            Some(_) => run.output.text("ready\n")?,
        }
        Ok(supervisor.run().await?)
    })
    .await
}

/// Runs `work` guarded, until it ends or the user stops it: once, and it has the time of its draining to end; twice, and it ends at once. No process
/// outlives this one.
async fn guarded(
    run: &CommandContext,
    beside_node: Option<u32>,
    drain: Duration,
    work: impl AsyncFnOnce(ProgramContext, ServeStop) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    process_guard::run(run.output, beside_node, async |children: ChildOwnership| {
        let mut stop = StopSignals::of_every_kind()?;
        let reaper = ProcessReaper::start(children);
        let output = run.output;
        let context = ProgramContext {
            reaper: reaper.handle(),
            limit: Arc::new(ProgramLimit::new(usize::MAX)),
            data: std::path::absolute(run.data.root())
                .ok()
                .and_then(|path| path.into_os_string().into_string().ok()),
            log: None,
            tell: Arc::new(move |text| output.note(text)),
        };
        let (ask, asked) = watch::channel(false);
        let stopping = async {
            stop.asked().await;
            ask.send_replace(true);
            // What does not serve yet does not know of draining.
            let _ = timeout(drain, stop.asked()).await;
        };
        let done = tokio::select! {
            done = work(context, ServeStop { asked, drain }) => done,
            () = stopping => Ok(()),
        };
        reaper.finish().await;
        done
    })
    .await
}

/// Makes this the only process that serves the file.
async fn lock(run: &CommandContext, path: &Path, waits: bool) -> Result<FileLock, CommandFailure> {
    let failed = |error| CommandFailure::io("cannot lock the file of agents", &error);
    if waits {
        let lock = supervisor_lock::lock(&run.data, path, LockFor::Serving).await;
        return lock.map_err(failed);
    }
    let lock = supervisor_lock::try_lock(&run.data, path, LockFor::Serving).map_err(failed)?;
    lock.map_err(|process| {
        let what = format!("process {process} serves {} already", path.display());
        Status::new(Code::AlreadyExists, what)
            .with_hint("list its agents with `hail serve ls`; it follows changes of the file")
            .into()
    })
}

/// The same path however it is reached, so that all who are about one file agree on its name.
pub(super) fn real(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    // It need not exist yet.
    let (folder, name) = (path.parent(), path.file_name());
    match (folder.and_then(|folder| folder.canonicalize().ok()), name) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

fn announce(
    run: &CommandContext,
    path: &Path,
    supervisor: &AgentSupervisor,
) -> Result<(), CommandFailure> {
    let served = supervisor.served().agents;
    let (serving, failed): (Vec<_>, Vec<_>) = served
        .iter()
        .partition(|agent| matches!(agent.state, ServedState::Serving | ServedState::Sleeping));
    if run.output.json {
        let names = |agents: &[&crate::serve::control::ServedAgent]| -> Vec<String> {
            agents.iter().map(|agent| agent.name.to_string()).collect()
        };
        let value = json!({ "file": path, "serving": names(&serving), "failed": names(&failed) });
        return run.output.value(&value, |_| String::new());
    }
    for agent in &failed {
        run.output.note(&format!(
            "agent {} is not served: {}",
            agent.name, agent.why
        ));
    }
    run.output.note(&format!(
        "serving {} of {} agents of {}; `hail serve ls --file {}` lists them   (Ctrl-C to stop)",
        serving.len(),
        served.len(),
        path.display(),
        path.display(),
    ));
    Ok(())
}
