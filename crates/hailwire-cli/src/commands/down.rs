//! `hail down`: asks the node to stop and waits until its process has released the data folder.

use std::{fs::File, time::Duration};

use hailwire::{
    AttachError, Client, Code, Status,
    admin::{ShutdownRequest, method},
};
use rustix::fs::{FlockOperation, flock};
use serde_json::json;

use super::{CommandContext, connect, up::SHUTDOWN_TIMEOUT};
use hailwire_terminal::failure::CommandFailure;

pub(super) async fn run(
    run: &CommandContext,
    request: ShutdownRequest,
) -> Result<(), CommandFailure> {
    let client = match Client::attach(&run.data).await {
        Ok(client) => client,
        Err(AttachError::NotRunning { .. }) => {
            run.output.note("no node is running");
            return match run.output.json {
                true => run
                    .output
                    .value(&json!({ "stopped": false }), |_| String::new()),
                false => Ok(()),
            };
        }
        Err(error) => return Err(connect::failure(error)),
    };
    match client.admin::<_, ()>(method::SHUTDOWN, &request).await {
        Ok(()) => {}
        // The node may have exited before its answer was sent, or another command has just stopped it.
        Err(status) if status.code == Code::Unavailable => {}
        Err(status) => return Err(status.into()),
    }
    let patience = Duration::from_millis(request.grace_ms).saturating_add(SHUTDOWN_TIMEOUT);
    if tokio::time::timeout(patience, gone(run)).await.is_err() {
        let pid = std::fs::read_to_string(run.data.lock()).unwrap_or_default();
        let message = format!("the node (process {}) is still running", pid.trim());
        return Err(Status::new(Code::DeadlineExceeded, message)
            .with_hint("wait a little, or end it with `kill`")
            .into());
    }
    run.output.value(&json!({ "stopped": true }), |_| {
        "the node has stopped\n".to_owned()
    })
}

/// Waits until no process holds the lock of the data folder.
async fn gone(run: &CommandContext) {
    let lock = run.data.lock();
    let wait = tokio::task::spawn_blocking(move || {
        // A lock file that does not exist is not held.
        if let Ok(file) = File::open(lock) {
            let _ = flock(&file, FlockOperation::LockShared);
        }
    });
    let _ = wait.await;
}
