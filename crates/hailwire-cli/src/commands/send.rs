//! `hail send`.

use hailwire_terminal::failure::CommandFailure;
use serde_json::json;

use super::{CommandContext, body, call::prepare, connect, did_you_mean};
use crate::plan;

pub(super) async fn run(run: &CommandContext, call: plan::CallPlan) -> Result<(), CommandFailure> {
    // A message is accepted as a whole, so its size is known before it is sent.
    let hint = "`hail call` streams a body of any size";
    let body = body::open_whole(call.body.clone(), "`hail send` takes", hint).await?;
    let client = connect::attach(run).await?;
    let to = call.to.to_string();
    let address = call.to.clone();
    let sent = prepare(&client, call).body(body).one_way().await;
    did_you_mean::or(&client, &address, sent).await?;
    match run.output.json {
        true => run.output.value(&json!({ "sent": to }), |_| String::new()),
        false => Ok(()),
    }
}
