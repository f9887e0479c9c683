//! `hail serve NAME -- CMD…`: serves a program for as long as this process runs, also across restarts
//! of the node.

use std::sync::Arc;

use hailwire::{Agent, Client, Code, Request, RequestKind, Response, ServeHandle, Status};
use hailwire_terminal::failure::CommandFailure;
use hailwire_terminal::stop::StopSignals;
use serde_json::json;
use tokio::sync::Semaphore;

use super::{CommandContext, offered_agent, process_guard};
use crate::{
    plan::ServePlan,
    serve::{
        AgentProgram, each_call, environment,
        lines::{self, LineOptions, LineProgram},
        reaper::{ChildOwnership, ProcessReaper, ReaperHandle},
    },
};

pub(super) async fn run(run: &CommandContext, serve: ServePlan) -> Result<(), CommandFailure> {
    process_guard::run(run.output, async |children| {
        until_stopped(run, &serve, children).await
    })
    .await
}

async fn until_stopped(
    run: &CommandContext,
    serve: &ServePlan,
    children: ChildOwnership,
) -> Result<(), CommandFailure> {
    let mut stop = StopSignals::of_every_kind()?;
    let reaper = ProcessReaper::start(children);
    let program = AgentProgram {
        program: serve.program.clone(),
        args: serve.args.clone(),
        grace: serve.grace,
    };
    let handle = reaper.handle();
    let done = tokio::select! {
        done = keep(run, serve, &program, &handle) => done,
        _ = stop.asked() => Ok(()),
    };
    // No process outlives this one.
    reaper.finish().await;
    done
}

/// Serves the agent, with one process for all calls if requested.
async fn keep(
    run: &CommandContext,
    serve: &ServePlan,
    program: &AgentProgram,
    reaper: &ReaperHandle,
) -> Result<(), CommandFailure> {
    let output = run.output;
    let options = LineOptions {
        keys: serve.keys,
        tell: Arc::new(move |text| output.note(text)),
    };
    let (lines, _task) = LineProgram::start(program.clone(), options, reaper.clone());
    let agent_command = CommandAgent {
        program: program.clone(),
        reaper: reaper.clone(),
        // With --lines, calls wait for one process instead.
        lines: serve.lines.then_some(lines),
        slots: Arc::new(Semaphore::new(slots(serve.max))),
    };
    let offer = async |client: &Client| offer(client, serve, &agent_command).await;
    offered_agent::keep(run, &serve.name, offer, || announce(run, serve)).await
}

fn slots(max: u32) -> usize {
    usize::try_from(max).map_or(Semaphore::MAX_PERMITS, |max| {
        max.min(Semaphore::MAX_PERMITS)
    })
}

/// How calls are answered.
#[derive(Clone)]
struct CommandAgent {
    program: AgentProgram,
    reaper: ReaperHandle,
    lines: Option<LineProgram>,
    /// One permit for each process that may run.
    slots: Arc<Semaphore>,
}

async fn offer(
    client: &Client,
    serve: &ServePlan,
    agent_command: &CommandAgent,
) -> Result<ServeHandle, Status> {
    let mut agent = Agent::new(serve.name.as_str())
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?
        .describe(serve.description.clone())
        .version(serve.version.clone())
        .max_concurrency(serve.max);
    for tag in &serve.tags {
        agent = agent.tag(tag.clone());
    }
    let agent_command = agent_command.clone();
    client
        .serve(agent, move |request: Request| {
            let agent_command = agent_command.clone();
            async move { agent_command.answer(request).await }
        })
        .await
}

impl CommandAgent {
    async fn answer(self, mut request: Request) -> Result<Response, Status> {
        if let Some(lines) = self.lines {
            let body = request.body_mut().bytes(lines::MAX_LINE).await?;
            return lines.exchange(&body).await.map(Response::new);
        }
        // The node admits no more calls than there are slots, so at most as many wait here, and only for the processes
        // of calls that have ended. The semaphore is never closed.
        let slot = self.slots.acquire_owned().await.ok();
        let kind = request.kind();
        let (header, caller, body) = request.into_parts();
        let variables = environment::variables(&header, caller.node())?;
        let mut answer = each_call::answer(&self.program, &variables, body, &self.reaper, slot)?;
        if kind == RequestKind::Send {
            // A message is accepted once the program has succeeded; its output is discarded.
            while answer.chunk().await?.is_some() {}
        }
        Ok(Response::new(answer))
    }
}

fn announce(run: &CommandContext, serve: &ServePlan) -> Result<(), CommandFailure> {
    if run.output.json {
        return run
            .output
            .value(&json!({ "serving": serve.name }), |_| String::new());
    }
    run.output.note(&format!(
        "serving {}; try: hail call {} \"hello\"   (Ctrl-C to stop)",
        serve.name, serve.name
    ));
    Ok(())
}
