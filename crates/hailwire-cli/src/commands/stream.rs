//! `hail stream`: stdin to the agent, what it sends to stdout, until the agent is done.

use hailwire_terminal::{failure::CommandFailure, output::stdout_failure};
use tokio::io::AsyncWriteExt as _;

use super::{CommandContext, body, connect, did_you_mean};
use crate::plan;

pub(super) async fn run(run: &CommandContext, call: plan::CallPlan) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let mut builder = client
        .stream(call.to.to_string())
        .method(call.method)
        .content_type(call.content_type)
        .idempotency_key(call.idempotency_key)
        .affinity(call.affinity)
        .carrier(call.carrier)
        .priority(call.priority);
    if let Some(agent) = &call.from {
        builder = builder.from_agent(agent);
    }
    for (name, value) in call.headers {
        builder = builder.header(name, value);
    }
    if let Some(left) = call.deadline {
        builder = builder.deadline(left);
    }
    let opened = builder.open().await;
    let mut stream = did_you_mean::or(&client, &call.to, opened).await?;
    // Ends with stdin, or once the remote side stops reading.
    tokio::spawn(body::pump(tokio::io::stdin(), stream.send));
    let mut stdout = tokio::io::stdout();
    while let Some(chunk) = stream.recv.chunk().await? {
        stdout
            .write_all(&chunk)
            .await
            .map_err(|error| stdout_failure(&error))?;
        stdout
            .flush()
            .await
            .map_err(|error| stdout_failure(&error))?;
    }
    Ok(())
}
