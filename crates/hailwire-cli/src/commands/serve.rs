//! `hail serve NAME -- CMD…`: keeps a program on offer for as long as this process runs, also
//! through restarts of the node.

use std::sync::Arc;

use hailwire::{Agent, Client, Code, Request, RequestKind, Response, Serving, Status};
use hailwire_terminal::failure::Failure;
use hailwire_terminal::stop::Stop;
use serde_json::json;
use tokio::sync::Semaphore;

use super::{Run, guarded, offered};
use crate::{
    plan::Serve,
    serve::{
        Program, each_call, environment,
        lines::{self, Lines, Manner},
        reaper::{Children, Reaper, ReaperHandle},
    },
};

pub(super) async fn run(run: &Run, serve: Serve) -> Result<(), Failure> {
    guarded::run(run.output, async |children| {
        until_stopped(run, &serve, children).await
    })
    .await
}

async fn until_stopped(run: &Run, serve: &Serve, children: Children) -> Result<(), Failure> {
    let mut stop = Stop::of_every_kind()?;
    let reaper = Reaper::start(children);
    let program = Program {
        program: serve.program.clone(),
        args: serve.args.clone(),
        grace: serve.grace,
    };
    let handle = reaper.handle();
    let done = tokio::select! {
        done = keep(run, serve, &program, &handle) => done,
        asked = stop.asked() => asked.end(),
    };
    // No process outlives this one.
    reaper.finish().await;
    done
}

/// Offers the agent, with one program kept for it where that was asked for.
async fn keep(
    run: &Run,
    serve: &Serve,
    program: &Program,
    reaper: &ReaperHandle,
) -> Result<(), Failure> {
    let output = run.output;
    let manner = Manner {
        keys: serve.keys,
        tell: Arc::new(move |text| output.note(text)),
    };
    let (lines, _task) = Lines::start(program.clone(), manner, reaper.clone());
    let behind = Behind {
        program: program.clone(),
        reaper: reaper.clone(),
        // With --lines, calls wait for one process instead.
        lines: serve.lines.then_some(lines),
        slots: Arc::new(Semaphore::new(slots(serve.max))),
    };
    let offer = async |client: &Client| offer(client, serve, &behind).await;
    offered::keep(run, &serve.name, offer, || announce(run, serve)).await
}

fn slots(max: u32) -> usize {
    usize::try_from(max).map_or(Semaphore::MAX_PERMITS, |max| {
        max.min(Semaphore::MAX_PERMITS)
    })
}

/// What answers calls.
#[derive(Clone)]
struct Behind {
    program: Program,
    reaper: ReaperHandle,
    lines: Option<Lines>,
    /// One for each process that may run.
    slots: Arc<Semaphore>,
}

async fn offer(client: &Client, serve: &Serve, behind: &Behind) -> Result<Serving, Status> {
    let mut agent = Agent::new(serve.name.as_str())
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?
        .describe(serve.description.clone())
        .version(serve.version.clone())
        .max_concurrency(serve.max);
    for tag in &serve.tags {
        agent = agent.tag(tag.clone());
    }
    let behind = behind.clone();
    client
        .serve(agent, move |request: Request| {
            let behind = behind.clone();
            async move { behind.answer(request).await }
        })
        .await
}

impl Behind {
    async fn answer(self, mut request: Request) -> Result<Response, Status> {
        if let Some(lines) = self.lines {
            let body = request.body_mut().bytes(lines::MAX_LINE).await?;
            return lines.exchange(&body).await.map(Response::new);
        }
        // The node lets in no more calls than there are slots, so as many wait at most, and only for the processes
        // of calls that are over. The semaphore is never closed.
        let slot = self.slots.acquire_owned().await.ok();
        let kind = request.kind();
        let (header, caller, body) = request.into_parts();
        let variables = environment::variables(&header, caller.node())?;
        let mut answer = each_call::answer(&self.program, &variables, body, &self.reaper, slot)?;
        if kind == RequestKind::Send {
            // A message was taken once the program has ended well; what it prints goes nowhere.
            while answer.chunk().await?.is_some() {}
        }
        Ok(Response::new(answer))
    }
}

fn announce(run: &Run, serve: &Serve) -> Result<(), Failure> {
    if run.output.json {
        return run
            .output
            .value(&json!({ "serving": serve.name }), |_| String::new());
    }
    run.output.note(&format!(
        "{} is on offer; try: hail call {} \"hello\"   (Ctrl-C to stop)",
        serve.name, serve.name
    ));
    Ok(())
}
