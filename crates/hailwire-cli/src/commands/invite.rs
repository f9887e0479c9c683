//! `hail invite`.

use std::time::Duration;

use hailwire::admin::{InviteAnswer, InviteRequest, method};
use hailwire_terminal::{failure::CommandFailure, text};

use super::{CommandContext, connect};

pub(super) async fn run(
    run: &CommandContext,
    request: InviteRequest,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let invited: InviteAnswer = client.admin(method::INVITE, &request).await?;
    run.output
        .value(&invited, |invited| format!("{}\n", invited.ticket))?;
    let uses = match invited.uses {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    };
    let left = text::age(Duration::from_secs(request.expires_s));
    run.output.note(&format!(
        "a secret, valid {uses} within {left}; on the other machine:"
    ));
    run.output.note("  hail join TICKET");
    run.output.note(&super::trust::may_call(
        "a node that joins with it",
        &invited.allow,
    ));
    Ok(())
}
