//! `hail serve NAME -- CMD…`: keeps a program on offer for as long as this process runs, also
//! through restarts of the node.

use hailwire::{Agent, Client, Code, Request, RequestKind, Response, Serving, Status};
use serde_json::json;

use super::{Run, connect};
use crate::{
    failure::Failure,
    plan::Serve,
    serve::{
        Program,
        backoff::Backoff,
        each_call, environment,
        group::{Reaper, ReaperHandle},
        lines::{self, Lines},
    },
};

pub(super) async fn run(run: &Run, serve: Serve) -> Result<(), Failure> {
    let reaper = Reaper::start();
    let program = Program {
        program: serve.program.clone(),
        args: serve.args.clone(),
        grace: serve.grace,
    };
    let handle = reaper.handle();
    let done = tokio::select! {
        done = keep(run, &serve, &program, &handle) => done,
        done = terminated() => done,
    };
    // No process outlives this one.
    reaper.finish().await;
    done
}

/// Waits for SIGTERM or Ctrl-C, after which the programs still have to be ended.
async fn terminated() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};

    let no_signals = |error| Failure::io("signals cannot be noticed", &error);
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Err(Failure::interrupted()),
    }
}

/// Offers the agent, again and again where the node goes away. A first offer that fails is a
/// failure of the command.
async fn keep(
    run: &Run,
    serve: &Serve,
    program: &Program,
    reaper: &ReaperHandle,
) -> Result<(), Failure> {
    let mut backoff = Backoff::default();
    let (lines, _task) = Lines::start(program.clone(), reaper.clone());
    let client = connect::attach(run).await?;
    let mut current = Some(offer(&client, serve, program, reaper, &lines).await?);
    announce(run, serve)?;
    loop {
        if let Some(mut serving) = current.take() {
            backoff.succeeded();
            let status = serving.closed().await;
            run.output
                .note(&format!("{}: {status}; attaching again", serve.name));
        }
        tokio::time::sleep(backoff.wait()).await;
        let Ok(client) = Client::attach(&run.data).await else {
            continue;
        };
        match offer(&client, serve, program, reaper, &lines).await {
            Ok(serving) => {
                run.output
                    .note(&format!("{} is on offer again", serve.name));
                current = Some(serving);
            }
            Err(status) if is_final(status.code) => return Err(status.into()),
            Err(status) => tracing::debug!(%status, "not on offer yet"),
        }
    }
}

/// Whether trying again cannot help.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented
    )
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
    let variables = environment::variables(&header, caller.node)?;
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
