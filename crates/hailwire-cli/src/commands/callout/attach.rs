//! `hail callout agent`: attaches an inspection agent to the node for as long as this process runs.

use std::{path::Path, process::Stdio, time::Duration};

use hailwire::{Agent, Client, Code, Request, ServeHandle, Status};
use hailwire_terminal::{failure::CommandFailure, stop::StopSignals};
use hailwire_wire::{AgentName, limits::MAX_SOCKET_PATH};
use serde_json::json;
use tokio::{net::UnixStream, process::Command, time::sleep};

use super::remote_agent;
use crate::{
    commands::{CommandContext, offered_agent, process_guard},
    plan::AgentListener,
    serve::{
        backoff::AttachBackoff,
        reaper::{ChildOwnership, ProcessReaper, ReaperHandle, StartFailure},
    },
};

/// Time between SIGTERM and SIGKILL for the agent's program.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// How often the socket of a program that was started is tried.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(in crate::commands) async fn run(
    run: &CommandContext,
    name: AgentName,
    at: AgentListener,
) -> Result<(), CommandFailure> {
    match at {
        AgentListener::Socket(path) => offered_until_stopped(run, &name, &path, None).await,
        AgentListener::Program(command) => {
            let work = async |children| {
                let folder = tempfile::tempdir().map_err(|error| {
                    CommandFailure::io("cannot create a folder for the agent's socket", &error)
                })?;
                let socket = folder.path().join("agent.sock");
                let program = Some((&*command, children));
                offered_until_stopped(run, &name, &socket, program).await
            };
            process_guard::run(run.output, None, work).await
        }
    }
}

/// Attaches the agent until the user stops this, and also runs its program if there is one.
async fn offered_until_stopped(
    run: &CommandContext,
    name: &AgentName,
    socket: &Path,
    program: Option<(&str, ChildOwnership)>,
) -> Result<(), CommandFailure> {
    let mut stop = match program {
        Some(_) => StopSignals::of_every_kind()?,
        None => StopSignals::new()?,
    };
    let reaper =
        ProcessReaper::start(program.map_or(ChildOwnership::Mixed, |(_, children)| children));
    let handle = reaper.handle();
    let keep = async {
        match program {
            None => std::future::pending().await,
            Some((command, _)) => keep_running(run, command, socket, &handle).await,
        }
    };
    let done = tokio::select! {
        done = offered(run, name, socket) => done,
        failed = keep => Err(failed),
        _ = stop.asked() => Ok(()),
    };
    // No process outlives this one.
    reaper.finish().await;
    done
}

/// Attaches the agent once it listens.
async fn offered(
    run: &CommandContext,
    name: &AgentName,
    socket: &Path,
) -> Result<(), CommandFailure> {
    while UnixStream::connect(socket).await.is_err() {
        tracing::debug!(socket = %socket.display(), "the agent does not listen yet");
        sleep(POLL_INTERVAL).await;
    }
    let offer = async |client: &Client| offer(client, name, socket).await;
    offered_agent::keep(run, name, offer, || {
        run.output.value(&json!({ "attached": name }), |_| {
            format!("{name} is attached; a proxy elsewhere names it as: hail \"{name}@NODE\"\n")
        })
    })
    .await
}

async fn offer(client: &Client, name: &AgentName, socket: &Path) -> Result<ServeHandle, Status> {
    let agent = Agent::new(name.as_str())
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?
        .describe("inspection agent")
        .tag("callout");
    let agent = match reachable(socket) {
        Some(path) => agent.streams_to(path),
        None => agent,
    };
    let socket = socket.to_owned();
    let handler = move |request: Request| remote_agent::splice(request, socket.clone());
    client.serve(agent, handler).await
}

/// The socket for the node to connect to directly. Without it, proxies' connections go through this process.
fn reachable(socket: &Path) -> Option<String> {
    let path = std::path::absolute(socket).ok()?.into_os_string();
    let path = path.into_string().ok()?;
    (path.len() <= MAX_SOCKET_PATH).then_some(path)
}

/// Runs the agent's program, and starts it again when it ends. Returns when it cannot be started.
async fn keep_running(
    run: &CommandContext,
    command: &str,
    socket: &Path,
    reaper: &ReaperHandle,
) -> CommandFailure {
    let mut backoff = AttachBackoff::default();
    loop {
        let mut program = Command::new("sh");
        program
            .args(["-c", command])
            .env("HAIL_SOCKET", socket)
            .stdin(Stdio::null());
        let mut running = match reaper.spawn(&mut program, TERM_GRACE, None) {
            Ok(running) => running,
            Err(StartFailure::System(error)) => {
                return CommandFailure::io("cannot start the agent", &error);
            }
            Err(StartFailure::Stopping) => return std::future::pending().await,
        };
        match running.wait().await {
            Ok(status) => run
                .output
                .note(&format!("the agent ended with {status}; restarting it")),
            Err(error) => return CommandFailure::io("cannot wait for the agent", &error),
        }
        sleep(backoff.wait()).await;
    }
}
