//! `hail hub`, `hail hub down` and `hail hub invite`.

use std::time::Duration;

use hailwire::Code;
use hailwire_hub::{Hub, InviteError, METRICS_CONTENT_TYPE, StartError, folder};
use hailwire_terminal::{failure::CommandFailure, log, output::Output, stop::StopSignals, text};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tracing::Level;

use super::{CommandContext, background, metrics};
use crate::plan::HubPlan;

/// What `hail hub` prints once the hub runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StartedHub {
    id: String,
    url: String,
    tcp: String,
    udp: String,
    data_dir: String,
    pid: u32,
    /// Where its metrics are served; none where they are not.
    metrics: Option<String>,
}

impl StartedHub {
    pub(super) fn for_people(&self, how_to_stop: &str) -> String {
        let Self {
            id,
            url,
            tcp,
            udp,
            data_dir,
            ..
        } = self;
        let metrics = match &self.metrics {
            Some(address) => format!("  metrics  http://{address}/metrics\n"),
            None => String::new(),
        };
        format!(
            "the hub is up\n  url      {url}\n  id       {id}\n  tcp      {tcp}\n  udp      {udp}\n{metrics}  data     \
             {data_dir}\n  invite   `hail hub invite`\n  stop     {how_to_stop}\n"
        )
    }
}

/// Runs the hub until SIGTERM, Ctrl-C or `hail hub down`. In the background, whoever started it reads on stdout in one line of
/// JSON what came of the start; stderr is the log.
pub(super) async fn run(run: &CommandContext, plan: HubPlan) -> Result<(), CommandFailure> {
    match plan.detached {
        true => background::detached(run, until_stopped(run, plan)).await,
        false => until_stopped(run, plan).await,
    }
}

async fn until_stopped(run: &CommandContext, plan: HubPlan) -> Result<(), CommandFailure> {
    log::start(run.log.unwrap_or(Level::INFO), run.output.log_style());
    let mut stop = StopSignals::new()?;

    let scrapes = match plan.metrics {
        Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
            CommandFailure::io(format!("cannot serve metrics at {address}"), &error)
        })?),
        None => None,
    };
    let hub = Hub::start(plan.config)
        .await
        .map_err(|error| start_failure(&error))?;
    let started = StartedHub {
        id: hub.id().to_string(),
        url: hub.url().to_string(),
        tcp: hub.tcp_addr().to_string(),
        udp: hub.udp_addr().to_string(),
        data_dir: run.data.root().display().to_string(),
        pid: std::process::id(),
        metrics: scrapes
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
            .map(|address| address.to_string()),
    };
    let output = Output {
        json: run.output.json || plan.detached,
        ..run.output
    };
    output.value(&started, |started| {
        started.for_people("Ctrl-C or `hail hub down`")
    })?;
    tokio::select! {
        _ = stop.asked() => {}
        () = measured(&hub, scrapes) => {}
    }
    output.note("stopping (again Ctrl-C to stop at once)");
    tokio::select! {
        () = hub.shutdown() => Ok(()),
        failure = stop.interrupted() => Err(failure),
    }
}

/// Serves metrics, where that is wanted. It never returns: a hub whose metrics cannot be served any more serves nodes.
async fn measured(hub: &Hub, scrapes: Option<TcpListener>) {
    if let Some(listener) = scrapes {
        // A hub that cannot count is shutting down.
        let text = || async { hub.to_openmetrics().await.unwrap_or_default() };
        if let Err(error) = metrics::serve(listener, METRICS_CONTENT_TYPE, text).await {
            tracing::error!(%error, "metrics are no longer served");
        }
    }
    std::future::pending::<()>().await;
}

/// Stops the hub and waits until its process has released the data folder.
pub(super) fn down(run: &CommandContext) -> Result<(), CommandFailure> {
    let folder = run.data.root();
    let running = folder::process(folder).and_then(|number| i32::try_from(number).ok());
    let Some(process) = running.and_then(Pid::from_raw) else {
        run.output.note("no hub is running on this data folder");
        return match run.output.json {
            true => stopped(run, false),
            false => Ok(()),
        };
    };
    kill_process(process, Signal::TERM)
        .map_err(|error| CommandFailure::io("cannot stop the hub", &error.into()))?;
    folder::wait_until_stopped(folder)
        .map_err(|error| CommandFailure::io("cannot wait for the hub", &error))?;
    stopped(run, true)
}

fn stopped(run: &CommandContext, stopped: bool) -> Result<(), CommandFailure> {
    run.output.value(&json!({ "stopped": stopped }), |_| {
        "the hub has stopped\n".to_owned()
    })
}

/// Prints a ticket for membership, whether the hub runs or not.
pub(super) fn invite(
    run: &CommandContext,
    uses: u32,
    expires: Duration,
) -> Result<(), CommandFailure> {
    let ticket = hailwire_hub::folder::invite(run.data.root(), uses, expires)
        .map_err(|error| invite_failure(&error))?;
    let value = json!({ "ticket": ticket, "uses": uses, "expires_s": expires.as_secs() });
    run.output.value(&value, |_| format!("{ticket}\n"))?;
    let uses = match uses {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    };
    run.output.note(&format!(
        "a secret, valid {uses} within {}; on a node:",
        text::age(expires)
    ));
    run.output.note("  hail join TICKET");
    Ok(())
}

fn start_failure(error: &StartError) -> CommandFailure {
    match error {
        StartError::Running(_) => CommandFailure::caused(Code::AlreadyExists, error)
            .hint("stop it first, or start another with --data DIR"),
        StartError::Bind { .. } => CommandFailure::caused(Code::Unavailable, error)
            .hint("another program may use the port; choose another with --listen"),
        _ => CommandFailure::caused(Code::FailedPrecondition, error)
            .hint("check owner, mode and free space of the data folder, and the certificate files"),
    }
}

fn invite_failure(error: &InviteError) -> CommandFailure {
    match error {
        InviteError::NeverStarted => CommandFailure::caused(Code::FailedPrecondition, error)
            .hint("start it with `hail hub` and the same --data folder"),
        InviteError::NoUses => CommandFailure::caused(Code::InvalidArgument, error),
        _ => CommandFailure::caused(Code::Internal, error),
    }
}
