//! `hail invite`.

use std::time::Duration;

use hailwire::admin::{Invite, Invited, method};
use hailwire_terminal::{failure::Failure, text};

use super::{Run, connect};

pub(super) async fn run(run: &Run, request: Invite) -> Result<(), Failure> {
    let client = connect::attach(run).await?;
    let invited: Invited = client.admin(method::INVITE, &request).await?;
    run.output
        .value(&invited, |invited| format!("{}\n", invited.ticket))?;
    let uses = match invited.uses {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    };
    let left = text::age(Duration::from_secs(request.expires_s));
    run.output.note(&format!(
        "a secret, good {uses} within {left}; on the other machine:"
    ));
    run.output.note("  hail join TICKET");
    run.output.note(&super::trust::may_call(
        "whoever joins with it",
        &invited.allow,
    ));
    Ok(())
}
