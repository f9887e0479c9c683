//! `hail serve NAME -- CMD…`: keeps a program on offer for as long as this process runs, also
//! through restarts of the node.

use hailwire::{Agent, Client, Code, Request, RequestKind, Response, Serving, Status};
use serde_json::json;

use super::{Run, offered, stop::Stop};
use crate::{
    failure::Failure,
    plan::Serve,
    serve::{
        Program, each_call, environment,
        group::{Reaper, ReaperHandle},
        lines::{self, Lines},
    },
};

pub(super) async fn run(run: &Run, serve: Serve) -> Result<(), Failure> {
    let mut stop = Stop::new()?;
    let reaper = Reaper::start();
    let program = Program {
        program: serve.program.clone(),
        args: serve.args.clone(),
        grace: serve.grace,
    };
    let handle = reaper.handle();
    let done = tokio::select! {
        done = keep(run, &serve, &program, &handle) => done,
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
    let (lines, _task) = Lines::start(program.clone(), reaper.clone());
    let offer = async |client: &Client| offer(client, serve, program, reaper, &lines).await;
    offered::keep(run, &serve.name, offer, || announce(run, serve)).await
}

async fn offer(
    client: &Client,
    serve: &Serve,
    program: &Program,
    reaper: &ReaperHandle,
    lines: &Lines,
) -> Result<Serving, Status> {
    let mut agent = Agent::new(serve.name.as_str())
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?
        .describe(serve.description.clone())
        .version(serve.version.clone())
        .max_concurrency(serve.max_concurrency);
    for tag in &serve.tags {
        agent = agent.tag(tag.clone());
    }
    let (program, reaper) = (program.clone(), reaper.clone());
    let lines = serve.lines.then(|| lines.clone());
    client
        .serve(agent, move |request: Request| {
            let (program, reaper, lines) = (program.clone(), reaper.clone(), lines.clone());
            async move { answer(request, &program, &reaper, lines).await }
        })
        .await
}

async fn answer(
    mut request: Request,
    program: &Program,
    reaper: &ReaperHandle,
    lines: Option<Lines>,
) -> Result<Response, Status> {
    if let Some(lines) = lines {
        let body = request.body_mut().bytes(lines::MAX_LINE).await?;
        return lines.exchange(&body).await.map(Response::new);
    }
    let kind = request.kind();
    let (header, caller, body) = request.into_parts();
    let variables = environment::variables(&header, caller.node())?;
    let mut answer = each_call::answer(program, &variables, body, reaper)?;
    if kind == RequestKind::Send {
        // A message was taken once the program has ended well; what it prints goes nowhere.
        while answer.chunk().await?.is_some() {}
    }
    Ok(Response::new(answer))
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
