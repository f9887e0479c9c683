//! An agent that is served for as long as a command runs, also across restarts of the node.

use hailwire::{Client, Code, ServeHandle, Status};
use hailwire_terminal::failure::CommandFailure;
use hailwire_wire::AgentName;

use super::{CommandContext, connect};
use crate::serve::backoff::AttachBackoff;

/// Serves the agent, calls `announce`, and attaches it again whenever the node has gone away. Returns when the first
/// attempt fails, or a later one with an error that a retry cannot fix.
pub(super) async fn keep(
    run: &CommandContext,
    name: &AgentName,
    offer: impl AsyncFn(&Client) -> Result<ServeHandle, Status>,
    announce: impl FnOnce() -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut backoff = AttachBackoff::default();
    let client = connect::attach(run).await?;
    let mut current = Some(offer(&client).await?);
    announce()?;
    loop {
        if let Some(mut serving) = current.take() {
            backoff.succeeded();
            let status = serving.closed().await;
            run.output
                .note(&format!("{name}: {status}; attaching again"));
        }
        tokio::time::sleep(backoff.wait()).await;
        let Ok(client) = Client::attach(&run.data).await else {
            continue;
        };
        match offer(&client).await {
            Ok(serving) => {
                run.output.note(&format!("{name} is served again"));
                current = Some(serving);
            }
            Err(status) if is_final(status.code) => return Err(status.into()),
            Err(status) => tracing::debug!(%status, "not served yet"),
        }
    }
}

/// Whether a retry cannot help.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented
    )
}
