//! Attaches to the running node.

use std::io::ErrorKind;

use hailwire::{AttachError, Client, Code, Status};
use hailwire_terminal::{failure::CommandFailure, text};

use super::CommandContext;

/// A client of the node that runs on the data folder.
pub(super) async fn attach(run: &CommandContext) -> Result<Client, CommandFailure> {
    Client::attach(&run.data).await.map_err(failure)
}

/// The error of a failed attachment.
pub(super) fn failure(error: AttachError) -> CommandFailure {
    let message = error.to_string();
    match error {
        AttachError::NotRunning { .. } => Status::new(Code::Unavailable, message)
            .with_hint("start it with `hail up -d`")
            .into(),
        AttachError::Socket { source, .. } => {
            let message = format!("{message}: {}", text::lower_first(&source.to_string()));
            let (code, hint) = match source.kind() {
                ErrorKind::PermissionDenied => (
                    Code::PermissionDenied,
                    "nothing was sent; the folder may belong to another user: choose one of your own with --data",
                ),
                _ => (
                    Code::Unavailable,
                    "the folder may belong to another user's node",
                ),
            };
            Status::new(code, message).with_hint(hint).into()
        }
        AttachError::Refused(status) => CommandFailure::from(status)
            .hint("this program and the node may be of different versions: restart the node"),
    }
}
