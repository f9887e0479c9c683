//! `hail callout agent`: keeps an inspection agent on offer at the node, for as long as this process runs.

use std::{path::Path, process::Stdio, time::Duration};

use hailwire::{Agent, Client, Code, Request, Serving, Status};
use hailwire_terminal::{failure::Failure, stop::Stop};
use hailwire_wire::{AgentName, limits::MAX_SOCKET_PATH};
use serde_json::json;
use tokio::{net::UnixStream, process::Command, time::sleep};

use super::far;
use crate::{
    commands::{Run, guarded, offered},
    plan::Attached,
    serve::{
        backoff::Backoff,
        reaper::{Children, Reaper, ReaperHandle, StartFailure},
    },
};

/// Time between SIGTERM and SIGKILL for the agent's program.
const GRACE: Duration = Duration::from_secs(2);

/// How often a program that was started is looked for at its socket.
const LOOK: Duration = Duration::from_millis(20);

pub(in crate::commands) async fn run(
    run: &Run,
    name: AgentName,
    at: Attached,
) -> Result<(), Failure> {
    match at {
        Attached::Socket(path) => offered_until_stopped(run, &name, &path, None).await,
        Attached::Program(command) => {
            let work = async |children| {
                let folder = tempfile::tempdir()
                    .map_err(|error| Failure::io("no folder for the agent's socket", &error))?;
                let socket = folder.path().join("agent.sock");
                let program = Some((&*command, children));
                offered_until_stopped(run, &name, &socket, program).await
            };
            guarded::run(run.output, work).await
        }
    }
}

/// Offers the agent until the user stops that, and runs its program besides where there is one.
async fn offered_until_stopped(
    run: &Run,
    name: &AgentName,
    socket: &Path,
    program: Option<(&str, Children)>,
) -> Result<(), Failure> {
    let mut stop = match program {
        Some(_) => Stop::of_every_kind()?,
        None => Stop::new()?,
    };
    let reaper = Reaper::start(program.map_or(Children::Mixed, |(_, children)| children));
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
        asked = stop.asked() => asked.end(),
    };
    // No process outlives this one.
    reaper.finish().await;
    done
}

/// Offers the agent once it listens.
async fn offered(run: &Run, name: &AgentName, socket: &Path) -> Result<(), Failure> {
    while UnixStream::connect(socket).await.is_err() {
        tracing::debug!(socket = %socket.display(), "the agent does not listen yet");
        sleep(LOOK).await;
    }
    let offer = async |client: &Client| offer(client, name, socket).await;
    offered::keep(run, name, offer, || {
        run.output.value(&json!({ "attached": name }), |_| {
            format!("{name} is attached; a proxy elsewhere names it as: hail \"{name}@NODE\"\n")
        })
    })
    .await
}

async fn offer(client: &Client, name: &AgentName, socket: &Path) -> Result<Serving, Status> {
    let agent = Agent::new(name.as_str())
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?
        .describe("inspection agent")
        .tag("callout");
    let agent = match reachable(socket) {
        Some(path) => agent.streams_to(path),
        None => agent,
    };
    let socket = socket.to_owned();
    let handler = move |request: Request| far::splice(request, socket.clone());
    client.serve(agent, handler).await
}

/// The socket as the node can be told of it, so that it connects proxies by itself. Without that they come through this process.
fn reachable(socket: &Path) -> Option<String> {
    let path = std::path::absolute(socket).ok()?.into_os_string();
    let path = path.into_string().ok()?;
    (path.len() <= MAX_SOCKET_PATH).then_some(path)
}

/// Runs the agent's program, and starts it again when it ends. Returns when it cannot be started.
async fn keep_running(run: &Run, command: &str, socket: &Path, reaper: &ReaperHandle) -> Failure {
    let mut backoff = Backoff::default();
    loop {
        let mut program = Command::new("sh");
        program
            .args(["-c", command])
            .env("HAIL_SOCKET", socket)
            .stdin(Stdio::null());
        let mut running = match reaper.spawn(&mut program, GRACE, None) {
            Ok(running) => running,
            Err(StartFailure::System(error)) => {
                return Failure::io("the agent cannot be started", &error);
            }
            Err(StartFailure::Stopping) => return std::future::pending().await,
        };
        match running.wait().await {
            Ok(status) => run.output.note(&format!(
                "the agent has ended with {status}; starting it again"
            )),
            Err(error) => return Failure::io("the agent is lost", &error),
        }
        sleep(backoff.wait()).await;
    }
}
