//! `hail hub` and `hail hub invite`.

use std::time::Duration;

use hailwire::Code;
use hailwire_hub::{Hub, HubConfig, InviteError, StartError};
use hailwire_terminal::{failure::CommandFailure, log, stop::StopSignals, text};
use serde_json::json;
use tracing::Level;

use super::CommandContext;

/// Runs the hub until SIGTERM or Ctrl-C.
pub(super) async fn run(run: &CommandContext, config: HubConfig) -> Result<(), CommandFailure> {
    log::start(run.log.unwrap_or(Level::INFO), run.output.log_style());
    let mut stop = StopSignals::new()?;

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
