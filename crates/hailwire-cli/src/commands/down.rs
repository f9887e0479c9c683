//! `hail down`: asks the node to stop and waits until its process has let go of the data folder.

use std::{fs::File, time::Duration};

use hailwire::{
    AttachError, Client, Code, Status,
    admin::{Shutdown, method},
};
use rustix::fs::{FlockOperation, flock};
use serde_json::json;

use super::{Run, connect, up::FAREWELL};
use hailwire_terminal::failure::Failure;

pub(super) async fn run(run: &Run, request: Shutdown) -> Result<(), Failure> {
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
        // The node may be gone before its answer has left, or somebody else stopped it just now.
        Err(status) if status.code == Code::Unavailable => {}
        Err(status) => return Err(status.into()),
    }
    let patience = Duration::from_millis(request.grace_ms).saturating_add(FAREWELL);
    if tokio::time::timeout(patience, gone(run)).await.is_err() {
        let pid = std::fs::read_to_string(run.data.lock()).unwrap_or_default();
        let message = format!("the node (process {}) is still there", pid.trim());
        return Err(Status::new(Code::DeadlineExceeded, message)
            .with_hint("wait a little, or end it with `kill`")
            .into());
    }
    run.output.value(&json!({ "stopped": true }), |_| {
        "the node has stopped\n".to_owned()
    })
}

/// Waits until nobody holds the lock of the data folder.
async fn gone(run: &Run) {
    let lock = run.data.lock();
    let wait = tokio::task::spawn_blocking(move || {
        // A lock file that is gone is held by nobody.
        if let Ok(file) = File::open(lock) {
            let _ = flock(&file, FlockOperation::LockShared);
        }
    });
    let _ = wait.await;
}
