//! An agent that is on offer for as long as a command runs, also through restarts of the node.

use hailwire::{Client, Code, Serving, Status};
use hailwire_terminal::failure::Failure;
use hailwire_wire::AgentName;

use super::{Run, connect};
use crate::serve::backoff::Backoff;

/// Offers the agent, calls `announce`, and offers it again whenever the node has gone away. Returns when the first
/// offer fails, or a later one in a way that trying again cannot help.
pub(super) async fn keep(
    run: &Run,
    name: &AgentName,
    offer: impl AsyncFn(&Client) -> Result<Serving, Status>,
    announce: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut backoff = Backoff::default();
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
                run.output.note(&format!("{name} is on offer again"));
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
