//! `hail leave [HUB]`.

use hailwire::admin::{LeaveAnswer, LeaveRequest, method};
use hailwire_terminal::failure::CommandFailure;

use super::{CommandContext, connect};

pub(super) async fn run(run: &CommandContext, request: LeaveRequest) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let left: LeaveAnswer = client.admin(method::LEAVE, &request).await?;
    run.output.value(&left, |left| {
        format!("this node is no member of {} any more\n", left.url)
    })?;
    if !left.error.is_empty() {
        run.output.note(&format!(
            "the hub could not be told ({}): it lists this node until its operator runs `hail hub members rm` with this node's \
             key (`hail id`)",
            left.error
        ));
    }
    if left.configured {
        run.output.note(
            "hail.kdl names the hub: remove its `hub` line, or the next start registers there again",
        );
    }
    Ok(())
}
