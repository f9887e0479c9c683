//! `hail hub` and `hail hub invite`.

use std::time::Duration;

use hailwire::Code;
use hailwire_hub::{Hub, HubConfig, InviteError, StartError};
use hailwire_terminal::{failure::Failure, log, stop::Stop, text};
use serde_json::json;
use tracing::Level;

use super::Run;

/// Runs the hub until SIGTERM or Ctrl-C.
pub(super) async fn run(run: &Run, config: HubConfig) -> Result<(), Failure> {
    log::start(run.log.unwrap_or(Level::INFO), run.output.colour_errors);
    let mut stop = Stop::new()?;

    let hub = Hub::start(config)
        .await
        .map_err(|error| start_failure(&error))?;
    let value = json!({
        "id": hub.id(),
        "url": hub.url(),
        "tcp": hub.tcp_addr(),
        "udp": hub.udp_addr(),
        "data_dir": run.data.root(),
        "pid": std::process::id(),
    });
    run.output.value(&value, |_| {
        format!(
            "the hub is up\n  url      {}\n  id       {}\n  tcp      {}\n  udp      {}\n  data     \
             {}\n  invite   `hail hub invite`\n  stop     Ctrl-C\n",
            hub.url(),
            hub.id(),
            hub.tcp_addr(),
            hub.udp_addr(),
            run.data.root().display(),
        )
    })?;
    stop.asked().await;
    run.output.note("stopping (again Ctrl-C to stop at once)");
    tokio::select! {
        () = hub.shutdown() => Ok(()),
        failure = stop.interrupted() => Err(failure),
    }
}

/// Prints a ticket for membership. The hub may run or not.
pub(super) fn invite(run: &Run, uses: u32, expires: Duration) -> Result<(), Failure> {
    let ticket = hailwire_hub::folder::invite(run.data.root(), uses, expires)
        .map_err(|error| invite_failure(&error))?;
    let value = json!({ "ticket": ticket, "uses": uses, "expires_s": expires.as_secs() });
    run.output.value(&value, |_| format!("{ticket}\n"))?;
    let uses = match uses {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    };
    run.output.note(&format!(
        "a secret, good {uses} within {}; on a node:",
        text::age(expires)
    ));
    run.output.note("  hail join TICKET");
    Ok(())
}

fn start_failure(error: &StartError) -> Failure {
    match error {
        StartError::Running(_) => Failure::caused(Code::AlreadyExists, error)
            .hint("stop that one first, or start another with --data DIR"),
        StartError::Bind { .. } => Failure::caused(Code::Unavailable, error)
            .hint("another program may use the port; choose another with --listen"),
        _ => Failure::caused(Code::FailedPrecondition, error)
            .hint("check owner, mode and free space of the data folder, and the certificate files"),
    }
}

fn invite_failure(error: &InviteError) -> Failure {
    match error {
        InviteError::NeverStarted => Failure::caused(Code::FailedPrecondition, error)
            .hint("start it with `hail hub`, on the same --data folder"),
        InviteError::NoUses => Failure::caused(Code::InvalidArgument, error),
        _ => Failure::caused(Code::Internal, error),
    }
}
